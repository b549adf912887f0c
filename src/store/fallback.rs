//! What DNS answers from until the load balancers are known: the links of an earlier process.
//!
//! They are in a store of their own: the code that writes to the cluster sees only the store of the watched links.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Input, Store};

/// The links of an earlier process.
#[derive(Debug)]
pub struct Fallback {
    pub store: Arc<Store>,
    /// The time at which the links were known to be current.
    pub taken: Timestamp,
    /// The age of the links at `since`. A clock jump after `since` doesn't change their age.
    age: Duration,
    since: Instant,
    /// Why the first list isn't complete: for `/ready` and the log.
    pub reason: Mutex<Cow<'static, str>>,
}

impl Fallback {
    /// Returns links that are of this age now.
    #[must_use]
    pub fn new(store: Arc<Store>, taken: Timestamp, age: Duration, reason: Cow<'static, str>) -> Self {
        Self { store, taken, age, since: Instant::now(), reason: Mutex::new(reason) }
    }

    #[must_use]
    pub fn age(&self) -> Duration {
        self.age.saturating_add(self.since.elapsed())
    }

    /// Invalidates all answers that were made from these links.
    fn invalidate(&self) {
        self.store.index.slots.outdate_all();
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

impl Store {
    /// Sets or removes the links that DNS answers from before the first complete list. Returns `false`, and sets nothing,
    /// if the list is already complete.
    pub fn set_fallback(&self, fallback: Option<Arc<Fallback>>) -> bool {
        let _writer = self.write();
        if fallback.is_some() && self.is_known(Input::Services) {
            return false;
        }
        self.replace_fallback(fallback);
        true
    }

    /// Replaces the fallback. The caller holds the lock of writers.
    pub(super) fn replace_fallback(&self, fallback: Option<Arc<Fallback>>) {
        if let Some(before) = self.fallback.swap(fallback) {
            before.invalidate();
        }
    }

    /// Invalidates answers from the fallback, because a link from the watch replaces one of its links. The caller holds the
    /// lock of writers.
    pub(super) fn invalidate_fallback(&self) {
        if let Some(fallback) = &*self.fallback.load() {
            fallback.invalidate();
        }
    }

    /// Returns the links with which DNS answers until the first complete list, if there are any.
    #[must_use]
    pub fn fallback(&self) -> Option<Arc<Fallback>> {
        self.fallback.load_full()
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
