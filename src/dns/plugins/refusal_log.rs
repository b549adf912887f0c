//! Log lines about refused requests, one a minute at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// The number of refused requests since the last line.
    unlogged: AtomicU64,
    last_line: Mutex<Option<Instant>>,
}

impl RefusalLog {
    /// Counts a refused request. If a line is due, returns the number of requests since the last one.
    pub(super) fn count(&self) -> Option<u64> {
        self.unlogged.fetch_add(1, Ordering::Relaxed);
        // If another thread is writing the line, that line or the next one counts this request.
        let mut last_line = self.last_line.try_lock()?;
        if last_line.is_some_and(|last| last.elapsed() < INTERVAL) {
            return None;
        }
        *last_line = Some(Instant::now());
        Some(self.unlogged.swap(0, Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(super) fn unlogged(&self) -> u64 {
        self.unlogged.load(Ordering::Relaxed)
    }
}
