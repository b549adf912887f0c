//! What the election and the writers of a process tell each other, beside whether the process leads.

use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::clock::BootInstant;

/// How long after a renewal that writes have waited for the next one is sent at the earliest: writes that wait at the
/// same time share one, and there are no more than 50 a second.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Shared by the election and all writers of a process.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// The highest term on external targets.
    seen: watch::Sender<u64>,
    /// Told when a writer waits until the Lease has been renewed.
    pub(super) asked: Notify,
    /// When the last renewal that a writer has waited for was sent.
    pub(super) confirmed: watch::Sender<Option<BootInstant>>,
}

impl Fence {
    /// Takes in a term on an external target.
    pub(super) fn see(&self, term: u64) {
        self.seen.send_if_modified(|seen| {
            let is_higher = term > *seen;
            *seen = term.max(*seen);
            is_higher
        });
    }

    /// Returns the highest term on external targets.
    pub(super) fn seen(&self) -> u64 {
        *self.seen.borrow()
    }

    /// Returns a channel that tells when a higher term is seen.
    pub(super) fn watch_seen(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }
}
