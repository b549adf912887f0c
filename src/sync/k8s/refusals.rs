//! Writes of single objects that fail, as the log shows them: each reason once by name, and a bounded number of lines.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::model::line_limit::LineLimit;

/// Lines a minute about an object that fails for a reason that wasn't said of it yet.
const MAX_NEW_LINES: usize = 20;
/// Lines a minute about objects that fail for the same reason again.
const MAX_REPEATED_LINES: usize = 10;

/// What of failed writes was said.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    new: LineLimit,
    again: LineLimit,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self { new: LineLimit::new(MAX_NEW_LINES), again: LineLimit::new(MAX_REPEATED_LINES) }
    }
}

impl RefusalLog {
    /// Logs why writing `what` has failed, and when it is tried again, unless many such lines were written in the last
    /// minute. `is_new` says whether that reason wasn't given for it before.
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
