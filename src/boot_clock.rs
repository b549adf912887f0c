//! The clock for what expires: Leases, and zones of *secondary*.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A time on CLOCK_BOOTTIME, which includes suspends. CLOCK_MONOTONIC, the clock of [`std::time::Instant`] and of all
/// timers, excludes them: a Lease that expires during a suspend would still look valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

/// A function that returns the present time. Tests use clocks that they advance themselves.
pub(crate) type Clock = fn() -> BootInstant;

pub(crate) fn now() -> BootInstant {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    // If the clock can't be read, everything counts as expired.
    BootInstant(clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from))
}

impl BootInstant {
    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
pub(crate) mod by_hand {
    //! A clock that follows tokio's test clock, plus simulated suspends.

    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::*;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    thread_local! {
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(crate) fn now() -> BootInstant {
        let start = *START;
        let awake = tokio::time::Instant::now().into_std().saturating_duration_since(start);
        // Start far from zero, like the clock of a machine that has run for days.
        BootInstant(Duration::from_secs(1_000_000) + awake + SUSPENDED.get())
    }

    /// Simulates a suspend of this duration: timers don't advance.
    pub(crate) fn suspend(duration: Duration) {
        SUSPENDED.set(SUSPENDED.get() + duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_advances_and_never_overflows() {
        let before = now();
        std::thread::sleep(Duration::from_millis(2));
        let after = now();
        assert!(after.saturating_duration_since(before) >= Duration::from_millis(2));
        assert_eq!(before.saturating_duration_since(after), Duration::ZERO);
        assert!(BootInstant(Duration::MAX) + Duration::from_secs(15) > after);
    }
}
