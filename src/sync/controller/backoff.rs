//! Pauses between attempts.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// Pauses that double, with jitter, from a first to a longest one.
#[derive(Debug)]
pub(crate) struct Backoff {
    backoff: ExponentialBackoff,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new((first, longest): (Duration, Duration)) -> Self {
        let builder = ExponentialBuilder::default()
            .with_min_delay(first)
            .with_max_delay(longest)
            .with_jitter()
            .without_max_times();
        Self { backoff: builder.build(), longest }
    }

    pub(crate) fn next(&mut self) -> Duration {
        // The jitter comes on top.
        self.backoff.next().unwrap_or(self.longest).min(self.longest)
    }
}
