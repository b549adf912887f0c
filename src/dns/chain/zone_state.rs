//! The records of a zone, for zone transfers (RFC 5936).

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

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

/// The copy of what zones are made of. Transfers of one serial share it as long as one of them is under way.
#[derive(Debug)]
pub struct SharedCopy<T>(Mutex<(u64, Weak<T>)>);

impl<T> Default for SharedCopy<T> {
    fn default() -> Self {
        Self(Mutex::new((0, Weak::new())))
    }
}

impl<T> SharedCopy<T> {
    /// Returns the copy for a serial, which `copy` makes if there is none.
    pub fn of(&self, serial: u64, copy: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock();
        if let Some(known) = shared.1.upgrade().filter(|_| shared.0 == serial) {
            return known;
        }
        let made = Arc::new(copy());
        *shared = (serial, Arc::downgrade(&made));
        made
    }
}

impl fmt::Debug for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneState").field("soa", &self.soa).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_shared_by_transfers_of_one_serial() {
        let shared = SharedCopy::default();
        let first = shared.of(7, || "a");
        assert!(Arc::ptr_eq(&first, &shared.of(7, || "b")));
        let later = shared.of(8, || "c");
        assert_eq!((*first, *later), ("a", "c"));
        assert_eq!(*shared.of(7, || "d"), "d", "only the last one is shared");
        drop(later);
        assert_eq!(*shared.of(8, || "e"), "e", "its transfers have ended");
    }
}
