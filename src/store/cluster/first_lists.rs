//! Waiting for the first lists of a cluster's objects.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::Cluster;

/// Maximum number of questions that wait.
const MAX_WAITING: usize = 1000;

/// How long a block's questions wait until all objects are listed.
#[derive(Debug)]
pub struct FirstLists {
    cluster: Arc<Cluster>,
    longest: Duration,
    began: OnceLock<Instant>,
    places: Semaphore,
}

impl FirstLists {
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, longest: Duration) -> Self {
        Self { cluster, longest, began: OnceLock::new(), places: Semaphore::new(MAX_WAITING) }
    }

    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Begins the time for waiting, if it hasn't begun, and returns when it began.
    pub fn begin(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    /// Waits until all objects are listed, or the time for that is over.
    pub async fn wait(&self) {
        let until = self.begin().checked_add(self.longest);
        if let Some(until) = until.filter(|_| !self.cluster.is_listed()) {
            // The caller looks what has come.
            let _ = timeout_at(until, self.cluster.listed()).await;
        }
    }

    /// As [`Self::wait`], for a question, unless too many wait.
    pub async fn wait_in_queue(&self) {
        if let Ok(_place) = self.places.try_acquire() {
            self.wait().await;
        }
    }
}
