//! Aggregates equal Events into series, and limits the rate of Events. No I/O.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{EventKey, Reason, Regarding, RegardingKind};
use crate::sync::k8s::rate_limiter::KeyedRateLimiter;

/// Time since the last occurrence within which an equal Event extends the series, as in client-go's recorder.
const SERIES_WINDOW: Duration = Duration::from_secs(360);
/// Interval at which the API server gets updates of a series: a loop must not flood it.
const SERIES_UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of series in memory. A forgotten Event is at worst recorded again.
const MAX_SERIES: usize = 4096;

/// Number of Events in a burst, and Events per second afterwards.
const BURST_AND_RATE: (f64, f64) = (50.0, 20.0);

/// The write for an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventWrite {
    /// Create an Event that happened at this time.
    Create(Timestamp),
    /// An Event has happened again: update its series.
    Count {
        /// The time of the first occurrence.
        first: Timestamp,
        /// The number of occurrences.
        count: i32,
        /// The time of the last occurrence.
        last: Timestamp,
    },
    /// No write yet.
    Nothing,
    /// No write: the quota of the Event's object and reason is used up.
    Drop,
}

/// Maximum number of Events of a reason about an object in [`REASON_WINDOW`]. A recreated object counts as the same.
const MAX_EVENTS_OF_REASON: usize = 10;
const REASON_WINDOW: Duration = Duration::from_secs(600);

/// The quota of Events, by kind, namespace and name of the object and by reason.
#[derive(Debug)]
pub(super) struct ReasonQuota(KeyedRateLimiter<QuotaKey>);

type QuotaKey = (RegardingKind, Box<str>, Box<str>, Reason);

impl Default for ReasonQuota {
    fn default() -> Self {
        Self(KeyedRateLimiter::new(MAX_EVENTS_OF_REASON, REASON_WINDOW))
    }
}

impl ReasonQuota {
    /// Returns whether the quota has room for another Event.
    fn allows(&self, event_key: &EventKey, now: Instant) -> bool {
        self.0.allows(&Self::key(event_key), now)
    }

    /// Counts an Event that the API server has accepted.
    pub(super) fn count(&mut self, event_key: &EventKey, now: Instant) {
        self.0.take(&Self::key(event_key), now);
    }

    fn key(event_key: &EventKey) -> QuotaKey {
        let Regarding { kind, namespace, name, .. } = &event_key.regarding;
        (*kind, namespace.clone(), name.clone(), event_key.reason)
    }
}

#[derive(Debug)]
struct EventSeriesState {
    first: Timestamp,
    count: i32,
    /// The count that was last sent, and the time of sending.
    reported: (i32, Instant),
    last: (Timestamp, Instant),
}

impl EventSeriesState {
    fn is_due(&self, now: Instant) -> bool {
        let (sent_count, at) = self.reported;
        self.count != sent_count && (sent_count <= 1 || now.duration_since(at) >= SERIES_UPDATE_INTERVAL)
    }

    /// Returns the write for the series that is due now. The second occurrence is sent at once; further updates are at
    /// least [`SERIES_UPDATE_INTERVAL`] apart.
    fn next_update(&mut self, now: Instant) -> EventWrite {
        if !self.is_due(now) {
            return EventWrite::Nothing;
        }
        self.reported = (self.count, now);
        EventWrite::Count { first: self.first, count: self.count, last: self.last.0 }
    }
}

/// The series of the last minutes.
#[derive(Debug, Default)]
pub(super) struct EventAggregator(HashMap<EventKey, EventSeriesState>);

impl EventAggregator {
    /// Adds an Event that happened at `at` and is processed at `now`, and returns the write for it.
    pub(super) fn observe(
        &mut self,
        event_key: &EventKey,
        at: Timestamp,
        now: Instant,
        quota: &ReasonQuota,
    ) -> EventWrite {
        if let Some(sent) = self.0.get_mut(event_key)
            && now.duration_since(sent.last.1) < SERIES_WINDOW
        {
            sent.count = sent.count.saturating_add(1);
            sent.last = (at, now);
            return sent.next_update(now);
        }
        if !quota.allows(event_key, now) {
            return EventWrite::Drop;
        }
        if self.0.len() >= MAX_SERIES {
            let oldest = self.0.iter().min_by_key(|(_, sent)| sent.last.1);
            if let Some(oldest) = oldest.map(|(event_key, _)| event_key.clone()) {
                self.0.remove(&oldest);
            }
        }
        let sent = EventSeriesState { first: at, count: 1, reported: (1, now), last: (at, now) };
        self.0.insert(event_key.clone(), sent);
        EventWrite::Create(at)
    }

    /// Returns the series with an update that is due, and forgets old series.
    pub(super) fn due(&mut self, now: Instant) -> Vec<EventKey> {
        let due = self.0.iter().filter(|(_, sent)| sent.is_due(now));
        let due = due.map(|(event_key, _)| event_key.clone()).collect();
        self.0.retain(|_, sent| now.duration_since(sent.last.1) < SERIES_WINDOW || sent.is_due(now));
        self.0.shrink_to(2 * self.0.len());
        due
    }

    /// Returns the update of a series, if it is still due.
    pub(super) fn update(&mut self, event_key: &EventKey, now: Instant) -> EventWrite {
        self.0.get_mut(event_key).map_or(EventWrite::Nothing, |sent| sent.next_update(now))
    }

    /// Forgets an Event that the API server doesn't have.
    pub(super) fn forget(&mut self, event_key: &EventKey) {
        self.0.remove(event_key);
    }
}

/// A rate limit with a burst.
#[derive(Debug)]
pub(super) struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST_AND_RATE.0, at: now }
    }

    /// Takes a token, and returns the time to wait for it.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        let gained = now.duration_since(self.at).as_secs_f64() * BURST_AND_RATE.1;
        self.left = (self.left + gained).min(BURST_AND_RATE.0) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / BURST_AND_RATE.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_key(uid: &str, reason: Reason, note: &str) -> EventKey {
        let regarding = Regarding::new(&crate::model::service_key::ServiceKey::new("default", "web"), uid);
        EventKey { regarding, reason, note: note.into() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn is_new(todo: &EventWrite) -> bool {
        matches!(todo, EventWrite::Create(_))
    }

    #[test]
    fn series_needs_equal_object_reason_and_note() {
        let (mut memory, quota, now) = (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        let first = event_key("u", Reason::TargetChanged, "a → b");
        for (second, other) in [
            first.clone(),
            event_key("u", Reason::TargetChanged, "b → c"),
            event_key("u", Reason::TargetStale, "a → b"),
            event_key("recreated", Reason::TargetChanged, "a → b"),
        ]
        .iter()
        .enumerate()
        {
            let todo = memory.observe(other, at(second as i64), now, &quota);
            assert!(is_new(&todo), "{other:?}: {todo:?}");
        }
        let again = EventWrite::Count { first: at(0), count: 2, last: at(9) };
        assert_eq!(memory.observe(&first, at(9), now, &quota), again);
    }

    #[test]
    fn repeated_event_costs_a_request_a_minute_with_exact_count() {
        let (mut memory, quota, start) = (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        let looping = event_key("u", Reason::Conflict, "taken");
        let (mut requests, mut sent_count) = (0, 0);
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            let mut todo = vec![memory.observe(&looping, at(0), now, &quota)];
            let due = memory.due(now);
            todo.extend(due.iter().map(|event_key| memory.update(event_key, now)));
            for todo in todo {
                requests += i32::from(todo != EventWrite::Nothing);
                if let EventWrite::Count { count, .. } = todo {
                    sent_count = count;
                }
            }
        }
        assert!(requests <= 12, "{requests}");
        let later = start + Duration::from_secs(700);
        for event_key in memory.due(later) {
            let todo = memory.update(&event_key, later);
            let EventWrite::Count { count, .. } = todo else { panic!("{todo:?}") };
            sent_count = count;
        }
        assert_eq!(sent_count, 600);
        assert!(memory.due(start + Duration::from_secs(2000)).is_empty());
        assert!(memory.0.is_empty(), "old series are forgotten");
    }

    #[test]
    fn update_of_a_series_has_the_newest_count() {
        let (mut memory, quota, start) = (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        let looping = event_key("u", Reason::Conflict, "taken");
        let mut observe = |second: u64| {
            let now = start + Duration::from_secs(second);
            (memory.observe(&looping, at(second as i64), now, &quota), memory.due(now))
        };
        assert!(observe(0).1.is_empty() && observe(1).1.is_empty() && observe(2).1.is_empty());
        // The update waits for its turn while the Event happens again.
        let later = start + SERIES_UPDATE_INTERVAL + Duration::from_secs(3);
        assert_eq!(memory.due(later), std::slice::from_ref(&looping));
        let newest = EventWrite::Count { first: at(0), count: 4, last: at(99) };
        assert_eq!(memory.observe(&looping, at(99), later, &quota), newest);
        assert_eq!(memory.update(&looping, later), EventWrite::Nothing);
    }

    #[test]
    fn old_or_lost_event_is_created_anew() {
        let (mut memory, quota, now) = (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        let same = event_key("u", Reason::Conflict, "taken");
        memory.observe(&same, at(0), now, &quota);
        assert!(is_new(&memory.observe(&same, at(1), now + SERIES_WINDOW, &quota)));
        memory.forget(&same);
        assert!(is_new(&memory.observe(&same, at(2), now + SERIES_WINDOW, &quota)));
    }

    #[test]
    fn oldest_series_is_forgotten_at_the_limit() {
        let (mut memory, quota, now) = (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        for i in 0..MAX_SERIES as u64 + 1 {
            let now = now + Duration::from_millis(i);
            memory.observe(&event_key(&i.to_string(), Reason::Removed, ""), at(0), now, &quota);
        }
        assert_eq!(memory.0.len(), MAX_SERIES);
        let now = now + Duration::from_secs(60);
        assert!(!is_new(&memory.observe(&event_key("1", Reason::Removed, ""), at(1), now, &quota)));
        assert!(is_new(&memory.observe(&event_key("0", Reason::Removed, ""), at(1), now, &quota)));
    }

    #[test]
    fn service_gets_at_most_ten_events_of_a_reason_in_ten_minutes() {
        let (mut memory, mut quota, start) =
            (EventAggregator::default(), ReasonQuota::default(), Instant::now());
        let mut created_for = |kind, uid: &str, reason, second: u64| {
            let now = start + Duration::from_secs(second);
            let mut event_key = event_key(uid, reason, &second.to_string());
            event_key.regarding.kind = kind;
            let is_new = is_new(&memory.observe(&event_key, at(0), now, &quota));
            if is_new {
                quota.count(&event_key, now);
            }
            is_new
        };
        let mut created =
            |uid: &str, reason, second| created_for(RegardingKind::Service, uid, reason, second);
        let seconds: Vec<u64> =
            (0..1800).filter(|second| created("u", Reason::HostnameRefused, *second)).collect();
        assert!(seconds.windows(11).all(|ten| ten[10] - ten[0] >= 600), "{seconds:?}");
        assert_eq!(seconds.len(), 30);
        assert!(!created("recreated", Reason::HostnameRefused, 1799), "it is the same Service");
        assert!(created("u", Reason::Conflict, 1799), "each reason counts by itself");
        let stable_name = RegardingKind::StableName;
        assert!(created_for(stable_name, "e", Reason::HostnameRefused, 1799), "another object of the name");
    }

    #[test]
    fn burst_is_sent_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut limit = TokenBucket::new(now);
        let waits: Vec<Duration> = (0..90).map(|_| limit.take(now)).collect();
        assert!(waits[..50].iter().all(Duration::is_zero));
        assert_eq!(waits[89], Duration::from_secs(2), "40 more, at 20 a second");
        assert!(limit.take(now + Duration::from_secs(60)).is_zero());
    }
}
