//! The times of changes, of which the serials of transferred zones are made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the Unix time in seconds. It never goes back while the process runs, also if the clock is set back: a later
/// change must not have an earlier time.
#[must_use]
pub fn unix_time() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    /// The greatest Unix time at `START`, as the clock has told it so far, in milliseconds.
    static AT_START: AtomicU64 = AtomicU64::new(0);
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or_default();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
    let elapsed = millis(START.elapsed());
    let at_start = clock.saturating_sub(elapsed);
    (AT_START.fetch_max(at_start, Ordering::Relaxed).max(at_start) + elapsed) / 1000
}

/// The serial of a zone that is transferred: the Unix time of the last change. A serial is shown only when its second is
/// over. So it stands for one state, however many changes a second has, and never runs ahead of the clock.
#[derive(Clone, Debug, Default)]
pub struct ChangeSerial {
    changed: Arc<AtomicU64>,
    shown: Arc<AtomicU64>,
}

impl ChangeSerial {
    /// Returns the serial of a zone whose last change was at the Unix time `changed`.
    #[must_use]
    pub fn new(changed: &Arc<AtomicU64>) -> Self {
        Self { changed: Arc::clone(changed), shown: Arc::default() }
    }

    /// Returns a serial that stays as it is.
    #[must_use]
    pub fn fixed(serial: u64) -> Self {
        Self { changed: Arc::default(), shown: Arc::new(AtomicU64::new(serial)) }
    }

    /// Returns the serial, which kept answers show from now on, too. A state of the zone that is taken after this has all
    /// changes up to the serial.
    pub fn advance(&self) -> u64 {
        self.advance_at(unix_time())
    }

    fn advance_at(&self, now: u64) -> u64 {
        let serial = self.changed.load(Ordering::Relaxed).min(now.saturating_sub(1));
        self.shown.fetch_max(serial, Ordering::Relaxed).max(serial)
    }

    /// Returns the serial that was shown last.
    #[must_use]
    pub fn shown(&self) -> &Arc<AtomicU64> {
        &self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_of_a_second_is_shown_when_it_is_over() {
        let changed = Arc::new(AtomicU64::new(0));
        let serial = ChangeSerial::new(&changed);
        for (time, now, expected) in [
            (100, 100, 99),
            (100, 101, 100),
            (100, 105, 100),
            (106, 106, 105),
            (106, 106, 105),
            (107, 107, 106),
            (107, 108, 107),
            // A clock that differs.
            (107, 50, 107),
        ] {
            changed.store(time, Ordering::Relaxed);
            assert_eq!(serial.advance_at(now), expected, "changed at {time}, now {now}");
            assert_eq!(serial.shown().load(Ordering::Relaxed), expected);
        }
    }

    #[test]
    fn unix_time_is_that_of_the_clock() {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (before, time, after) = (clock(), unix_time(), clock());
        assert!((before - 1..=after + 1).contains(&time), "{before} {time} {after}");
    }
}
