//! When the primary servers of a zone are asked, and when the zone expires (RFC 1035 section 3.3.13, RFC 1996 section
//! 4.2). Pure.

use std::time::Duration;

use crate::boot_clock::BootInstant;
use crate::dns::zone::Zone;

/// The bounds of REFRESH and RETRY: a primary server mustn't make us ask it without pause, or never again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_hours(7 * 24));
/// The maximum of EXPIRE: 24 weeks, as in BIND.
const MAX_EXPIRE: Duration = Duration::from_hours(24 * 7 * 24);
/// The first and the longest pause after a failure without a zone, as in CoreDNS.
const WITHOUT_ZONE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The first and the longest pause after a zone that was sent, and not accepted: a transfer is expensive.
const REFUSED_ZONE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// The least time between two checks for NOTIFY.
const AFTER_NOTIFY: Duration = Duration::from_secs(1);
/// The pause after a check for NOTIFY that failed: a primary server may send NOTIFY at its start, before it listens.
const AFTER_FAILED_NOTIFY: Duration = Duration::from_secs(2);
/// The longest pause between two looks at the clock: timers stand still during a suspend.
const CLOCK_LOOK: Duration = Duration::from_secs(30);

/// The pauses that the SOA record of a zone asks for, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timers {
    pub(super) refresh: Duration,
    retry: Duration,
    pub(super) expire: Duration,
}

impl Timers {
    pub(super) fn of(zone: &Zone) -> Self {
        Self::new(zone.timers())
    }

    fn new(numbers: [u32; 3]) -> Self {
        let [refresh, retry, expire] = numbers.map(|seconds| Duration::from_secs(seconds.into()));
        let (refresh, retry) = (refresh.clamp(PAUSES.0, PAUSES.1), retry.clamp(PAUSES.0, PAUSES.1));
        // A zone mustn't expire before it is due, and was tried once more.
        Self { refresh, retry, expire: expire.max(refresh + retry).min(MAX_EXPIRE) }
    }
}

/// What became of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No primary server has answered as it should.
    NoAnswer,
    /// A zone was sent, and not accepted.
    RefusedZone,
}

#[derive(Debug)]
pub(super) struct Schedule {
    /// When the primary servers are asked next.
    due: BootInstant,
    /// The earliest time at which NOTIFY may cause a check.
    notify_from: BootInstant,
    /// Whether the next check is for NOTIFY.
    is_notified: bool,
    /// The numbers of failures in a row.
    failures: u32,
    refused: u32,
}

impl Schedule {
    /// Returns the schedule of a zone that is checked at once.
    pub(super) fn new(now: BootInstant) -> Self {
        Self { due: now, notify_from: now, is_notified: false, failures: 0, refused: 0 }
    }

    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        now >= self.due
    }

    /// Returns how long to wait before the next look at the clock.
    pub(super) fn pause(&self, now: BootInstant) -> Duration {
        self.due.saturating_duration_since(now).min(CLOCK_LOOK)
    }

    /// Notes NOTIFY from a primary server.
    pub(super) fn notify(&mut self, now: BootInstant) {
        self.is_notified = true;
        self.due = self.due.min(self.notify_from.max(now));
    }

    /// Notes that the zone has expired: the pauses are those without a zone.
    pub(super) fn expire(&mut self, now: BootInstant) {
        self.failures = 0;
        self.notify(now);
    }

    /// Notes that a primary server has confirmed the zone. The pause is multiplied by `jitter`.
    pub(super) fn confirm(&mut self, now: BootInstant, timers: Timers, jitter: f64) {
        (self.failures, self.refused, self.is_notified) = (0, 0, false);
        self.due = now + timers.refresh.mul_f64(jitter);
        self.notify_from = now + AFTER_NOTIFY;
    }

    /// Notes a failed check. `timers` are those of the zone that is served, if there is one.
    pub(super) fn fail(&mut self, now: BootInstant, failure: Failure, timers: Option<Timers>, jitter: f64) {
        let own = timers.map_or_else(|| doubled(WITHOUT_ZONE, self.failures), |timers| timers.retry);
        let own = if std::mem::take(&mut self.is_notified) { own.min(AFTER_FAILED_NOTIFY) } else { own };
        self.failures = self.failures.saturating_add(1);
        let refused = match failure {
            Failure::NoAnswer => Duration::ZERO,
            Failure::RefusedZone => {
                self.refused = self.refused.saturating_add(1);
                doubled(REFUSED_ZONE, self.refused - 1)
            }
        };
        self.due = now + own.max(refused).mul_f64(jitter);
        self.notify_from = now + AFTER_NOTIFY.max(refused);
    }
}

/// When a zone expires, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Expiry(Option<BootInstant>);

impl Expiry {
    /// Notes that a primary server has confirmed the zone, in an answer to a question asked at `asked`.
    pub(super) fn confirm(&mut self, asked: BootInstant, left: Duration) {
        self.0 = Some(asked + left);
    }

    /// Returns whether the zone has expired; `true` only once.
    pub(super) fn has_come(&mut self, now: BootInstant) -> bool {
        self.0.take_if(|expires| now >= *expires).is_some()
    }

    /// Returns how long to wait before the next look at the clock.
    pub(super) fn pause(&self, now: BootInstant) -> Duration {
        self.0.map_or(CLOCK_LOOK, |expires| expires.saturating_duration_since(now).min(CLOCK_LOOK))
    }
}

/// Returns the pause after this number of earlier failures.
fn doubled((first, longest): (Duration, Duration), earlier: u32) -> Duration {
    first.saturating_mul(1_u32.checked_shl(earlier).unwrap_or(u32::MAX)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_clock::by_hand;

    const NUMBERS: [u32; 3] = [3600, 900, 86_400];

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn soa_timers_are_bounded() {
        for (numbers, expected) in [
            (NUMBERS, NUMBERS.map(u64::from)),
            ([0, 0, 0], [2, 2, 4]),
            ([600, 60, 30], [600, 60, 660]),
            ([u32::MAX; 3], [604_800, 604_800, 14_515_200]),
        ] {
            let timers = Timers::new(numbers);
            assert_eq!([timers.refresh, timers.retry, timers.expire], expected.map(seconds), "{numbers:?}");
        }
    }

    #[test]
    fn confirmed_zone_is_checked_after_refresh() {
        let (now, timers) = (by_hand::now(), Timers::new(NUMBERS));
        let mut schedule = Schedule::new(now);
        assert!(schedule.is_due(now));
        schedule.confirm(now, timers, 1.0);
        assert!(!schedule.is_due(now + seconds(3599)) && schedule.is_due(now + seconds(3600)));
        schedule.confirm(now, timers, 0.9);
        assert!(schedule.is_due(now + seconds(3240)));
    }

    #[test]
    fn zone_expires_once() {
        let (now, mut expiry) = (by_hand::now(), Expiry::default());
        assert!(!expiry.has_come(now + seconds(u64::MAX)));
        expiry.confirm(now, seconds(86_400));
        assert!(!expiry.has_come(now + seconds(86_399)));
        assert!(expiry.has_come(now + seconds(86_400)));
        assert!(!expiry.has_come(now + seconds(86_401)));
    }

    #[test]
    fn failed_check_is_repeated_after_retry() {
        let (now, timers) = (by_hand::now(), Timers::new(NUMBERS));
        let mut schedule = Schedule::new(now);
        schedule.confirm(now, timers, 1.0);
        for number in 1..=3 {
            schedule.fail(now, Failure::NoAnswer, Some(timers), 1.0);
            assert_eq!(schedule.due, now + seconds(900), "{number}");
        }
    }

    #[test]
    fn failed_check_for_notify_is_repeated_once_soon() {
        let (now, timers) = (by_hand::now(), Timers::new(NUMBERS));
        let mut schedule = Schedule::new(now);
        schedule.confirm(now, timers, 1.0);
        schedule.notify(now);
        schedule.fail(now, Failure::NoAnswer, Some(timers), 1.0);
        assert_eq!(schedule.due, now + seconds(2));
        schedule.fail(now, Failure::NoAnswer, Some(timers), 1.0);
        assert_eq!(schedule.due, now + seconds(900));
        schedule.notify(now);
        schedule.confirm(now, timers, 1.0);
        schedule.fail(now, Failure::NoAnswer, Some(timers), 1.0);
        assert_eq!(schedule.due, now + seconds(900), "the check for NOTIFY has passed");
    }

    #[test]
    fn pause_doubles_without_a_zone() {
        let now = by_hand::now();
        let mut schedule = Schedule::new(now);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            schedule.fail(now, Failure::NoAnswer, None, 1.0);
            pauses.push(schedule.due.saturating_duration_since(now).as_millis());
        }
        assert_eq!(pauses[..7], [250, 500, 1000, 2000, 4000, 8000, 10_000]);
        assert_eq!(pauses.last(), Some(&10_000));
        schedule.confirm(now, Timers::new(NUMBERS), 1.0);
        schedule.fail(now, Failure::NoAnswer, None, 1.0);
        assert_eq!(schedule.due, now + Duration::from_millis(250));
    }

    #[test]
    fn zone_that_isnt_accepted_is_transferred_ever_less_often() {
        let (now, timers) = (by_hand::now(), Timers::new([2, 2, 1000]));
        let mut schedule = Schedule::new(now);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            schedule.fail(now, Failure::RefusedZone, Some(timers), 1.0);
            schedule.notify(now);
            pauses.push(schedule.due.saturating_duration_since(now).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600], "also with NOTIFY");
    }

    #[test]
    fn notify_causes_a_check_at_most_once_a_second() {
        let (now, timers) = (by_hand::now(), Timers::new(NUMBERS));
        let mut schedule = Schedule::new(now);
        schedule.confirm(now, timers, 1.0);
        schedule.notify(now);
        assert_eq!(schedule.pause(now), seconds(1));
        schedule.notify(now + seconds(20));
        assert_eq!(schedule.due, now + seconds(1), "the check that waits isn't put off");
        schedule.confirm(now, timers, 1.0);
        schedule.notify(now + seconds(20));
        assert!(schedule.is_due(now + seconds(20)));
    }

    #[test]
    fn expired_zone_is_asked_for_at_once() {
        let (now, timers) = (by_hand::now(), Timers::new([3600, 604_800, 86_400]));
        let mut schedule = Schedule::new(now);
        schedule.confirm(now, timers, 1.0);
        schedule.fail(now, Failure::NoAnswer, Some(timers), 1.0);
        let later = now + seconds(86_400);
        assert!(!schedule.is_due(later));
        schedule.expire(later);
        assert!(schedule.is_due(later));
        schedule.fail(later, Failure::NoAnswer, None, 1.0);
        assert_eq!(schedule.pause(later), Duration::from_millis(250));
    }

    #[test]
    fn clock_is_looked_at_every_30_s() {
        let (now, timers) = (by_hand::now(), Timers::new(NUMBERS));
        let (mut schedule, mut expiry) = (Schedule::new(now), Expiry::default());
        assert_eq!(expiry.pause(now), seconds(30));
        schedule.confirm(now, timers, 1.0);
        expiry.confirm(now, timers.expire);
        assert_eq!((schedule.pause(now), expiry.pause(now)), (seconds(30), seconds(30)));
        assert_eq!(schedule.pause(now + seconds(3590)), seconds(10));
        assert_eq!(expiry.pause(now + seconds(86_390)), seconds(10));
        assert_eq!(expiry.pause(now + seconds(86_500)), Duration::ZERO);
    }
}
