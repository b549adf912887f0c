//! What DNS answers from until the load balancers are known: the links of an earlier process.
//!
//! They are in a store of their own: the code that writes to the cluster sees only the store of the watched links.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::Store;

/// The links of an earlier process.
#[derive(Debug)]
pub struct Fallback {
    pub store: Arc<Store>,
    /// The time at which the links were known to be current.
    pub taken: Timestamp,
    /// The age of the links at `since`. A clock jump after `since` doesn't change their age.
    pub age_then: Duration,
    pub since: Instant,
    /// Why the first list isn't complete: for `/ready` and the log.
    pub reason: Mutex<Cow<'static, str>>,
}

impl Fallback {
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age_then.saturating_add(self.since.elapsed())
    }
}

impl fmt::Display for Fallback {
    /// Formats the note for `/ready`: `serving a snapshot of 2026-11-25T18:00:00Z, 12 min old: the API server doesn't
    /// answer`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serving a snapshot of {}, {} old: {}", self.taken, Age(self.age()), self.reason.lock())
    }
}

/// An age for the user: in seconds, in minutes, in hours and minutes, or from 48 hours on in days and hours.
pub struct Age(pub Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 60, seconds / 3600) {
            (0, _) => write!(f, "{seconds} s"),
            (minutes, 0) => write!(f, "{minutes} min"),
            (minutes, hours) if hours < 48 => write!(f, "{hours} h {} min", minutes % 60),
            (_, hours) => write!(f, "{} d {} h", hours / 24, hours % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_one_or_two_units() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3599, "59 min"),
            (3600, "1 h 0 min"),
            (100_000, "27 h 46 min"),
            (200_000, "2 d 7 h"),
            (u64::MAX, "213503982334601 d 7 h"),
        ] {
            assert_eq!(Age(Duration::from_secs(seconds)).to_string(), expected);
        }
    }
}
