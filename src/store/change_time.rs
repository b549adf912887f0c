//! The times of changes, of which the serials of transferred zones are made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
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

/// A clock for times of changes that goes on after the last change of an earlier process, also if the clock of the machine
/// was ahead then: secondary servers ignore a serial that is lower than theirs.
#[derive(Debug, Default)]
pub struct ChangeClock {
    /// The time at which this clock went on after an earlier process, and since when it goes on.
    continued: OnceLock<(u64, Instant)>,
}

impl ChangeClock {
    /// Lets the clock go on after a time, the first one that is ahead of the clock of the machine.
    pub fn continue_after(&self, time: u64) {
        if time > unix_time() {
            let _ = self.continued.set((time.saturating_add(1), Instant::now()));
        }
    }

    /// Returns the Unix time in seconds, or a later time, which never goes back.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now_at(unix_time(), Instant::now())
    }

    /// A time ahead of the clock of the machine passes at half its speed, so that the clock of the machine reaches it.
    fn now_at(&self, unix_time: u64, now: Instant) -> u64 {
        let continued = self.continued.get();
        continued.map_or(unix_time, |(time, since)| {
            let passed = now.saturating_duration_since(*since).as_secs() / 2;
            unix_time.max(time.saturating_add(passed))
        })
    }
}

/// The serial of a zone that is transferred: the Unix time of the last change. A serial is shown only when its second is
/// over. So it stands for one state, however many changes a second has, and never runs ahead of the clock.
#[derive(Clone, Debug, Default)]
pub struct ChangeSerial {
    clock: Arc<ChangeClock>,
    changed: Arc<AtomicU64>,
    shown: Arc<AtomicU64>,
}

impl ChangeSerial {
    /// Returns the serial of a zone whose last change was at the Unix time `changed`.
    #[must_use]
    pub fn new(changed: &Arc<AtomicU64>) -> Self {
        Self { changed: Arc::clone(changed), ..Self::default() }
    }

    /// Sets the clock by which the time of the last change is.
    #[must_use]
    pub fn by_clock(self, clock: &Arc<ChangeClock>) -> Self {
        Self { clock: Arc::clone(clock), ..self }
    }

    /// Returns a serial that stays as it is.
    #[must_use]
    pub fn fixed(serial: u64) -> Self {
        Self { shown: Arc::new(AtomicU64::new(serial)), ..Self::default() }
    }

    /// Returns the serial, which kept answers show from now on, too. A state of the zone that is taken after this has all
    /// changes up to the serial.
    pub fn advance(&self) -> u64 {
        self.advance_at(self.clock.now())
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
    fn clock_goes_on_after_a_time_in_the_future_at_half_speed() {
        let clock = ChangeClock::default();
        clock.continue_after(unix_time() - 10);
        assert!(clock.continued.get().is_none());
        let saved = unix_time() + 100;
        clock.continue_after(saved);
        let since = clock.continued.get().unwrap().1;
        for (passed, unix_time, expected) in [
            (0, saved - 100, saved + 1),
            (1, saved - 99, saved + 1),
            (2, saved - 98, saved + 2),
            (10, saved - 90, saved + 6),
            (300, saved + 200, saved + 200),
        ] {
            let now = clock.now_at(unix_time, since + std::time::Duration::from_secs(passed));
            assert_eq!(now, expected, "after {passed} s");
        }
    }

    #[test]
    fn unix_time_is_that_of_the_clock() {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (before, time, after) = (clock(), unix_time(), clock());
        assert!((before - 1..=after + 1).contains(&time), "{before} {time} {after}");
    }
}
