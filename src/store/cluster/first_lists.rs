//! Waiting for the first lists of a cluster's objects.

use std::sync::atomic::{AtomicBool, Ordering};
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
    is_optional: AtomicBool,
    _block: Arc<()>,
}

impl FirstLists {
    #[must_use]
    pub fn new(cluster: Arc<Cluster>, longest: Duration) -> Self {
        let (began, places) = (OnceLock::new(), Semaphore::new(MAX_WAITING));
        let block = Arc::clone(&cluster.blocks);
        Self { cluster, longest, began, places, is_optional: AtomicBool::new(false), _block: block }
    }

    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Makes the block count as ready without the lists: it came by a reload, and the process was ready before.
    pub fn set_optional(&self) {
        self.is_optional.store(true, Ordering::Relaxed);
    }

    /// Returns whether the block counts as ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.cluster.is_listed() || self.is_optional.load(Ordering::Relaxed)
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
