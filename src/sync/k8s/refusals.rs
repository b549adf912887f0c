//! Logs failed writes of single objects, at a limited rate.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::model::line_limit::LineLimit;

/// Maximum number of lines per minute about objects that fail for a new reason.
const MAX_NEW_LINES: usize = 20;
/// Maximum number of lines per minute about objects that fail again for the same reason.
const MAX_REPEATED_LINES: usize = 10;

#[derive(Debug)]
pub(crate) struct FailedWriteLog {
    new: LineLimit,
    again: LineLimit,
}

impl Default for FailedWriteLog {
    fn default() -> Self {
        Self { new: LineLimit::new(MAX_NEW_LINES), again: LineLimit::new(MAX_REPEATED_LINES) }
    }
}

impl FailedWriteLog {
    /// Logs why a write of `what` failed, and when it is retried, unless the limit of lines per minute is reached.
    /// `is_new` tells whether the reason differs from the last one.
    pub(crate) fn report(&mut self, what: impl Display, reason: &str, pause: Duration, is_new: bool) {
        let limit = if is_new { &mut self.new } else { &mut self.again };
        match limit.take(Instant::now()) {
            None => {}
            Some(0) => warn!("{what}: {reason}; next try in {pause:.1?}"),
            Some(omitted) => warn!(
                "{what}: {reason}; next try in {pause:.1?}; {omitted} such lines about other failed writes were left out"
            ),
        }
    }
}
