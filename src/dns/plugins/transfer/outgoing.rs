//! The transfers that are under way.

use std::fmt;
use std::mem::take;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::rr::Name;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout_at;
use tracing::{info, warn};

use crate::dns::chain::zone_state::{ZoneRecord, ZoneState};
use crate::dns::message::presentation::lower_name_text;
use crate::model::line_limit::LineLimit;

/// The maximum number of transfers at once in the process.
const MAX_TRANSFERS: usize = 4;
/// How long a client waits for a place: a server of many zones asks for several at once.
const WAIT: Duration = Duration::from_secs(3);
/// The maximum number of lines per minute about transfers of a block.
const MAX_LINES: usize = 60;

/// The places for transfers, which all blocks share.
#[derive(Debug, Default)]
pub struct TransferSlots {
    clients: Mutex<Vec<IpAddr>>,
    /// Told when a place is free again.
    released: Notify,
}

/// The place of a client's transfer; dropping it releases the place.
#[derive(Debug)]
pub(super) struct TransferSlot {
    slots: Arc<TransferSlots>,
    client: IpAddr,
}

impl TransferSlots {
    /// Waits for a place for a client's transfer.
    ///
    /// # Errors
    /// Returns why there is none.
    pub(super) async fn take(self: &Arc<Self>, client: IpAddr) -> Result<TransferSlot, &'static str> {
        let until = tokio::time::Instant::now() + WAIT;
        loop {
            // From here on, no release is missed.
            let released = self.released.notified();
            match self.try_take(client) {
                Err(why) if timeout_at(until, released).await.is_err() => return Err(why),
                Err(_) => {}
                taken => return taken,
            }
        }
    }

    fn try_take(self: &Arc<Self>, client: IpAddr) -> Result<TransferSlot, &'static str> {
        let mut clients = self.clients.lock();
        if clients.contains(&client) {
            return Err("it has another transfer under way");
        }
        if clients.len() >= MAX_TRANSFERS {
            return Err("too many transfers are under way");
        }
        clients.push(client);
        Ok(TransferSlot { slots: Arc::clone(self), client })
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        self.slots.clients.lock().retain(|client| *client != self.client);
        self.slots.released.notify_waiters();
    }
}

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
struct More(usize);

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, "; {} lines like this were left out before", self.0) }
    }
}

/// The records of a transfer: the SOA record, all others, and the SOA record again (RFC 5936 section 2.2).
pub(super) struct Outgoing {
    soa: ZoneRecord,
    records: Box<dyn Iterator<Item = ZoneRecord> + Send>,
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
    type Item = ZoneRecord;

    fn next(&mut self) -> Option<ZoneRecord> {
        let record = match self.stage {
            Stage::Begin => {
                self.stage = Stage::Records;
                self.soa.clone()
            }
            Stage::Records => self.records.next().unwrap_or_else(|| {
                self.stage = Stage::End;
                self.soa.clone()
            }),
            Stage::End => return None,
        };
        self.taken += 1;
        Some(record)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.log.ended(&take(&mut self.about), self.taken, self.stage == Stage::End);
    }
}
