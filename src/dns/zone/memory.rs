//! Bounds the memory that zones from primary servers take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum size of the zones that are being received, in bytes.
pub(super) const MAX_RECEIVED: usize = 32 << 20;
/// The maximum size of the zones that are kept, in bytes. It is twice the size of one zone: each has room to be replaced.
pub(super) const MAX_KEPT: usize = 64 << 20;

/// The memory of all zones from primary servers.
#[derive(Clone, Debug, Default)]
pub struct ZoneMemory {
    received: Arc<AtomicUsize>,
    kept: Arc<AtomicUsize>,
    /// The size of the zone that the next one replaces.
    replaced: usize,
}

/// The part of one zone.
#[derive(Debug)]
pub(super) struct Share {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl ZoneMemory {
    /// Returns the same memory, for a zone that replaces one of this size.
    pub(in crate::dns) fn replacing(&self, replaced: usize) -> Self {
        Self { replaced, ..self.clone() }
    }

    pub(super) fn receive(&self) -> Share {
        Share { total: Arc::clone(&self.received), bytes: 0 }
    }

    /// Returns the part of a zone that is kept; `None` if there is no room.
    pub(super) fn keep(&self, bytes: usize) -> Option<Share> {
        let mut share = Share { total: Arc::clone(&self.kept), bytes: 0 };
        share.resize(bytes, MAX_KEPT + self.replaced).then_some(share)
    }
}

impl Share {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the size, unless all parts together would have more than `max` bytes. Returns whether it has changed.
    pub(super) fn resize(&mut self, bytes: usize, max: usize) -> bool {
        let resized = |total: usize| Some(total - self.bytes + bytes).filter(|total| *total <= max);
        let fits = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, resized).is_ok();
        if fits {
            self.bytes = bytes;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_share_a_bounded_memory() {
        let memory = ZoneMemory::default();
        let (mut one, mut other) = (memory.receive(), memory.receive());
        assert!(one.resize(MAX_RECEIVED - 100, MAX_RECEIVED));
        assert!(!other.resize(101, MAX_RECEIVED));
        assert!(other.resize(100, MAX_RECEIVED));
        drop(one);
        assert!(other.resize(MAX_RECEIVED, MAX_RECEIVED));
        let kept = memory.keep(MAX_KEPT - 10).unwrap();
        assert!(memory.keep(11).is_none());
        let new = memory.replacing(kept.bytes()).keep(MAX_KEPT - 20).unwrap();
        drop((kept, new));
        assert!(memory.keep(MAX_KEPT).is_some());
    }
}
