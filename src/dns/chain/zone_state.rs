//! The records of a zone, for zone transfers (RFC 5936).

use std::fmt;

pub use crate::dns::message::zone_record::{ZoneRecord, ZoneRecords};

/// A zone that can be transferred.
pub trait TransferredZone: Send + Sync {
    /// Returns the serial of the zone; `None` while the zone can't be served. It is asked for each second.
    fn serial(&self) -> Option<u32>;

    /// Returns the SOA record; `None` while the zone can't be served. The threads of UDP sockets call this, so a zone
    /// whose state takes long has another way.
    fn soa(&self) -> Option<ZoneRecord> {
        Some(self.state()?.soa)
    }

    /// Returns the zone as it is now; `None` while the zone can't be served. It may block for some milliseconds;
    /// the records may be made as they are read.
    fn state(&self) -> Option<ZoneState>;
}

/// One state of a zone, which stays as it is though the zone changes.
pub struct ZoneState {
    pub soa: ZoneRecord,
    /// The other records, each once.
    pub records: ZoneRecords,
}

impl fmt::Debug for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneState").field("soa", &self.soa).finish_non_exhaustive()
    }
}
