//! The clock by which Leases are judged.

use std::ops::Add;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment on CLOCK_BOOTTIME, which goes on while the machine is suspended. CLOCK_MONOTONIC, the clock of
/// [`std::time::Instant`] and of all timers, stands still meanwhile: by it a Lease that ran out during a suspend looks
/// valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

/// Tells the time. Tests have clocks that they move themselves.
pub(super) type Clock = fn() -> BootInstant;

/// Returns this moment.
pub(super) fn now() -> BootInstant {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    // A clock that can't be read makes every Lease one that has run out.
    BootInstant(clock_gettime(CLOCK).map_or(Duration::MAX, Duration::from))
}

impl BootInstant {
    /// Returns how long ago `earlier` was; zero if it is to come.
    pub(super) fn saturating_duration_since(self, earlier: Self) -> Duration {
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
pub(super) mod by_hand {
    //! A clock that follows tokio's, which a test can stop and move, and a suspend on top of it.

    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::*;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    thread_local! {
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Returns this moment.
    pub(crate) fn now() -> BootInstant {
        let start = *START;
        let awake = tokio::time::Instant::now().into_std().saturating_duration_since(start);
        // Far from zero: tests look back.
        BootInstant(Duration::from_secs(1_000_000) + awake + SUSPENDED.get())
    }

    /// Has the machine suspended for so long: timers don't notice.
    pub(crate) fn suspend(duration: Duration) {
        SUSPENDED.set(SUSPENDED.get() + duration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_goes_on_and_never_overflows() {
        let before = now();
        std::thread::sleep(Duration::from_millis(2));
        let after = now();
        assert!(after.saturating_duration_since(before) >= Duration::from_millis(2));
        assert_eq!(before.saturating_duration_since(after), Duration::ZERO);
        assert!(BootInstant(Duration::MAX) + Duration::from_secs(15) > after);
    }
}
