//! The transfers that are under way.

use std::fmt;
use std::mem::take;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hickory_proto::rr::Name;
use parking_lot::Mutex;
use tracing::{info, warn};

use super::slots::TransferSlot;
use crate::dns::chain::zone_state::{ZoneRecord, ZoneRecords, ZoneState};
use crate::dns::message::presentation::lower_name_text;
use crate::model::line_limit::LineLimit;

/// The maximum number of lines per minute about transfers of a block.
const MAX_LINES: usize = 60;

/// The log lines about transfers of a block, with limits.
#[derive(Debug)]
pub(super) struct TransferLog {
    transfers: Mutex<LineLimit>,
    refusals: Mutex<LineLimit>,
}

impl Default for TransferLog {
    fn default() -> Self {
        Self { transfers: Mutex::new(LineLimit::new(MAX_LINES)), refusals: Mutex::default() }
    }
}

impl TransferLog {
    pub(super) fn refused(&self, origin: &Name, client: IpAddr, why: &str) {
        if let Some(omitted) = self.refusals.lock().take(Instant::now()) {
            let more = More(omitted);
            warn!("transfer: {} refused to {client}: {why}{more}", lower_name_text(origin));
        }
    }

    fn ended(&self, about: &str, records: usize, is_whole: bool) {
        let Some(omitted) = self.transfers.lock().take(Instant::now()) else { return };
        let more = More(omitted);
        if is_whole {
            info!("transfer: {about}: {records} records{more}");
        } else {
            warn!("transfer: {about}: the connection ended after {records} records{more}");
        }
    }
}

/// The number of lines that were left out since the last line.
pub(super) struct More(pub(super) usize);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, "; {} lines like this were left out before", self.0) }
    }
}

/// The records of a transfer: the SOA record, all others, and the SOA record again (RFC 5936 section 2.2).
pub(super) struct Outgoing {
    soa: ZoneRecord,
    records: ZoneRecords,
    stage: Stage,
    taken: usize,
    /// The zone, its serial and the client, for the log.
    about: String,
    log: Arc<TransferLog>,
    _slot: TransferSlot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Records,
    End,
}

impl Outgoing {
    pub(super) fn new(
        state: ZoneState,
        origin: &Name,
        client: IpAddr,
        slot: TransferSlot,
        log: Arc<TransferLog>,
    ) -> Self {
        let ZoneState { soa, records } = state;
        let serial = soa.serial().unwrap_or_default();
        let about = format!("{} serial {serial} to {client}", lower_name_text(origin));
        Self { soa, records, stage: Stage::Begin, taken: 0, about, log, _slot: slot }
    }
}

impl Iterator for Outgoing {
    type Item = Option<ZoneRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.stage {
            Stage::Begin => {
                self.stage = Stage::Records;
                Some(self.soa.clone())
            }
            Stage::Records => self.records.next().unwrap_or_else(|| {
                self.stage = Stage::End;
                Some(self.soa.clone())
            }),
            Stage::End => return None,
        };
        self.taken += usize::from(record.is_some());
        Some(record)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.log.ended(&take(&mut self.about), self.taken, self.stage == Stage::End);
    }
}
