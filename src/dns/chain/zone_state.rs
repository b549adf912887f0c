//! The records of a zone, for zone transfers (RFC 5936).

use std::fmt;

/// A zone that can be transferred.
pub trait TransferredZone: Send + Sync {
    /// Returns the serial of the zone; `None` while the zone can't be served.
    fn serial(&self) -> Option<u32>;

    /// Returns the zone as it is now; `None` while the zone can't be served.
    fn state(&self) -> Option<ZoneState>;
}

/// One state of a zone, which stays as it is though the zone changes.
pub struct ZoneState {
    pub soa: ZoneRecord,
    /// The other records, each once.
    pub records: Box<dyn Iterator<Item = ZoneRecord> + Send>,
}

/// A record of class IN. Owner and data are in wire form, without name compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    pub owner: Box<[u8]>,
    pub rtype: u16,
    /// In seconds.
    pub ttl: u32,
    pub data: Box<[u8]>,
}

impl fmt::Debug for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneState").field("soa", &self.soa).finish_non_exhaustive()
    }
}
