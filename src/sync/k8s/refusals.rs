//! Logs failed writes of single objects, at a limited rate.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tracing::Level;

use crate::model::line_limit::LineLimit;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::k8s::rate_limiter::{Allowed, KeyedRateLimiter};

/// Maximum number of lines per minute about objects that fail for a new reason.
const MAX_NEW_LINES: usize = 20;
/// Maximum number of lines per minute about objects that fail again for the same reason.
const MAX_REPEATED_LINES: usize = 10;
/// Maximum number of lines per minute about the objects of one namespace.
const MAX_LINES_PER_NAMESPACE: usize = 10;

#[derive(Debug)]
pub(crate) struct FailedWriteLog {
    new: LineLimit,
    again: LineLimit,
    namespaces: KeyedRateLimiter<Box<str>>,
}

impl Default for FailedWriteLog {
    fn default() -> Self {
        Self {
            new: LineLimit::new(MAX_NEW_LINES),
            again: LineLimit::new(MAX_REPEATED_LINES),
            namespaces: KeyedRateLimiter::new(MAX_LINES_PER_NAMESPACE, Duration::from_secs(60)),
        }
    }
}

impl FailedWriteLog {
    /// Logs why a write of `what`, which belongs to the object `key`, failed, and when it is retried, unless a limit of
    /// lines per minute is reached. `is_new` tells whether the reason differs from the last one.
    pub(crate) fn report(
        &mut self,
        log: &ObjectLog,
        key: &ServiceKey,
        what: impl Display,
        reason: &str,
        pause: Duration,
        is_new: bool,
    ) {
        let limit = if is_new { &mut self.new } else { &mut self.again };
        let now = Instant::now();
        if self.namespaces.take(&key.namespace().into(), now.into()) == Allowed::No {
            return limit.leave_out(1);
        }
        match limit.take(now) {
            None => {}
            Some(omitted) if !log.takes(key) => limit.leave_out(omitted),
            Some(0) => log.write(key, Level::WARN, &format_args!("{what}: {reason}; next try in {pause:.1?}")),
            Some(omitted) => log.write(
                key,
                Level::WARN,
                &format_args!(
                    "{what}: {reason}; next try in {pause:.1?}; {omitted} such lines about other failed writes were left \
                     out"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_namespace_leave_lines_to_another() {
        let (mut failures, log) = (FailedWriteLog::default(), ObjectLog::default());
        for number in 0..100 {
            let key = ServiceKey::new("tenant", &number.to_string());
            failures.report(&log, &key, "a write", "why", Duration::ZERO, true);
        }
        let left_out = 100 - MAX_LINES_PER_NAMESPACE;
        assert_eq!(failures.new.take(Instant::now()), Some(left_out), "there is room for another namespace");
    }
}
