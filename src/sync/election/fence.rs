//! State that the election and the writers of a process share, besides the leader status.

use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::boot_clock::BootInstant;

/// Minimum pause between two renewals that writers wait for: concurrent writes share a renewal, and there are at most
/// 50 such renewals per second.
pub(super) const MIN_RENEWAL_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Fence {
    /// The highest term on external targets.
    highest_term: watch::Sender<u64>,
    /// Notified when a writer waits for a renewal of the Lease.
    pub(super) renewal_requested: Notify,
    /// The time at which the last renewal that a writer waited for was sent.
    pub(super) confirmed: watch::Sender<Option<BootInstant>>,
}

impl Fence {
    /// Records a term from an external target.
    pub(super) fn observe_term(&self, term: u64) {
        self.highest_term.send_if_modified(|seen| {
            let is_higher = term > *seen;
            *seen = term.max(*seen);
            is_higher
        });
    }

    /// Returns the highest term on external targets.
    pub(super) fn highest_term(&self) -> u64 {
        *self.highest_term.borrow()
    }

    /// Returns a receiver for increases of the highest term.
    pub(super) fn subscribe_highest_term(&self) -> watch::Receiver<u64> {
        self.highest_term.subscribe()
    }
}
