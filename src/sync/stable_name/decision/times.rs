//! Arithmetic with wall clock times. The status contains whole seconds.

use std::time::Duration;

use jiff::Timestamp;

/// Returns the time as the status contains it: rounded down to whole seconds.
pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Returns how long ago a time is; zero if the clock was set back since.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(since).try_into().unwrap_or_default()
}

pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns the end of a wait that began at a time of the status. One second is added because that time is rounded down:
/// no wait is shorter than the specification says.
pub(crate) fn end_of_wait(since: Timestamp, wait: Duration) -> Timestamp {
    later(since, wait.saturating_add(Duration::from_secs(1)))
}
