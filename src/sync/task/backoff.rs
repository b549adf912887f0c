use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// An exponential backoff with jitter, between a first and a longest pause.
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
        // backon adds the jitter after its own limit, so the sum is limited here.
        self.backoff.next().unwrap_or(self.longest).min(self.longest)
    }
}
