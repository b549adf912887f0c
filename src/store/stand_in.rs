//! The links of an earlier process, with which DNS answers until the first complete list.
//!
//! They are in a store of their own: everything that writes sees only the store of the watched links.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::Store;

/// The links of a snapshot.
#[derive(Debug)]
pub struct StandIn {
    pub store: Arc<Store>,
    /// The time at which the links were known to be current.
    pub taken: Timestamp,
    /// The age of the links at `since`. A clock jump after `since` doesn't change their age.
    age: Duration,
    since: Instant,
    /// Why the links aren't known, as a clause.
    reason: Mutex<Cow<'static, str>>,
}

impl StandIn {
    /// Returns the links of a snapshot that has this age now.
    #[must_use]
    pub fn new(store: Arc<Store>, taken: Timestamp, age: Duration, reason: Cow<'static, str>) -> Self {
        Self { store, taken, age, since: Instant::now(), reason: Mutex::new(reason) }
    }

    #[must_use]
    pub fn age(&self) -> Duration {
        self.age.saturating_add(self.since.elapsed())
    }

    #[must_use]
    pub fn reason(&self) -> Cow<'static, str> {
        self.reason.lock().clone()
    }

    pub fn set_reason(&self, reason: Cow<'static, str>) {
        *self.reason.lock() = reason;
    }

    /// Invalidates all answers that were made from these links.
    fn outdate(&self) {
        self.store.index.names.increment();
    }
}

impl fmt::Display for StandIn {
    /// Formats the note for `/ready`: `serving a snapshot of 2026-11-25T18:00:00Z, 12 min old: the API server doesn't
    /// answer`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serving a snapshot of {}, {} old: {}", self.taken, Age(self.age()), self.reason())
    }
}

/// An age for the user, in its two largest units.
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
    /// Lets DNS answer from these links until the first complete list, or ends that. Returns whether it is done: after
    /// the first list nothing stands in.
    pub fn set_stand_in(&self, stand_in: Option<Arc<StandIn>>) -> bool {
        let _writer = self.write();
        if stand_in.is_some() && self.is_synced() {
            return false;
        }
        self.replace_stand_in(stand_in);
        true
    }

    /// Replaces the links that stand in. The caller holds the lock of writers.
    pub(super) fn replace_stand_in(&self, stand_in: Option<Arc<StandIn>>) {
        if let Some(before) = self.stand_in.swap(stand_in) {
            before.outdate();
        }
    }

    /// Invalidates answers from links that stand in, because a watched link precedes them. The caller holds the lock of
    /// writers.
    pub(super) fn outdate_stand_in(&self) {
        if let Some(stand_in) = &*self.stand_in.load() {
            stand_in.outdate();
        }
    }

    /// Returns the links with which DNS answers until the first complete list, if there are any.
    #[must_use]
    pub fn stand_in(&self) -> Option<Arc<StandIn>> {
        self.stand_in.load_full()
    }

    /// Returns the serial of the zone in full.
    #[must_use]
    pub fn full_serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Returns the store with this serial, which doesn't follow the clock.
    #[must_use]
    pub fn with_serial(self, serial: u64) -> Self {
        self.serial.store(serial, Ordering::Relaxed);
        self.with_versions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_its_two_largest_units() {
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
