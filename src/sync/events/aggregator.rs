//! Which Events are the same again, and how fast Events are sent: pure.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Happening, Reason, Regarding};
use crate::model::allowance::Allowance;

/// How long after it was last seen the same is one more of a series, as for Kubernetes' own recorder.
const TOGETHER: Duration = Duration::from_secs(360);
/// How often the API server is told of a series that goes on: a loop must not become a flood.
const REFRESH: Duration = Duration::from_secs(60);
/// How many Events are remembered. A forgotten Event is at worst recorded anew.
const REMEMBERED: usize = 4096;

/// Events that may be sent at once after a quiet time, and then per second.
const RATE: (f64, f64) = (50.0, 20.0);

/// What is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// A new Event: it happened at that time.
    Create(Timestamp),
    /// An Event has happened again.
    Count {
        /// When it happened first.
        first: Timestamp,
        /// How often by now.
        count: i32,
        /// When last.
        last: Timestamp,
    },
    /// Nothing yet.
    Nothing,
    /// Nothing: there were too many Events of its reason about the Service.
    Drop,
}

/// How many Events of a reason there may be about a Service in [`SPAN`]. A Service that is made again is the same.
const EVENTS: usize = 10;
const SPAN: Duration = Duration::from_secs(600);

/// How many more Events there may be, by namespace and name of the Service and by reason.
#[derive(Debug)]
pub(super) struct Quota(Allowance<(Box<str>, Box<str>, Reason)>);

impl Default for Quota {
    fn default() -> Self {
        Self(Allowance::new(EVENTS, SPAN))
    }
}

impl Quota {
    /// Returns whether there may be another one.
    fn allows(&self, happening: &Happening, now: Instant) -> bool {
        self.0.allows(&Self::key(happening), now)
    }

    /// Counts an Event that the API server has taken.
    pub(super) fn count(&mut self, happening: &Happening, now: Instant) {
        self.0.take(&Self::key(happening), now);
    }

    fn key(happening: &Happening) -> (Box<str>, Box<str>, Reason) {
        let Regarding { namespace, name, .. } = &happening.regarding;
        (namespace.clone(), name.clone(), happening.reason)
    }
}

/// An Event that was sent.
#[derive(Debug)]
struct Sent {
    first: Timestamp,
    count: i32,
    /// How much of the count was sent, and when.
    told: (i32, Instant),
    last: (Timestamp, Instant),
}

impl Sent {
    /// Returns what is to be sent of the series now. The second time is news; later ones can wait.
    fn tell(&mut self, now: Instant) -> Todo {
        let (told, at) = self.told;
        if self.count == told || (told > 1 && now.duration_since(at) < REFRESH) {
            return Todo::Nothing;
        }
        self.told = (self.count, now);
        Todo::Count { first: self.first, count: self.count, last: self.last.0 }
    }
}

/// The Events of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<Happening, Sent>);

impl Memory {
    /// Takes in that something happened at `at` that is looked at `now`.
    pub(super) fn see(&mut self, happening: &Happening, at: Timestamp, now: Instant, quota: &Quota) -> Todo {
        if let Some(sent) = self.0.get_mut(happening)
            && now.duration_since(sent.last.1) < TOGETHER
        {
            sent.count = sent.count.saturating_add(1);
            sent.last = (at, now);
            return sent.tell(now);
        }
        if !quota.allows(happening, now) {
            return Todo::Drop;
        }
        if self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, sent)| sent.last.1);
            if let Some(oldest) = oldest.map(|(happening, _)| happening.clone()) {
                self.0.remove(&oldest);
            }
        }
        let sent = Sent { first: at, count: 1, told: (1, now), last: (at, now) };
        self.0.insert(happening.clone(), sent);
        Todo::Create(at)
    }

    /// Returns the series of which more has happened than was sent, and forgets what is long ago.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Happening, Todo)> {
        let todo = self.0.iter_mut().filter_map(|(happening, sent)| match sent.tell(now) {
            Todo::Nothing => None,
            todo => Some((happening.clone(), todo)),
        });
        let todo = todo.collect();
        self.0.retain(|_, sent| now.duration_since(sent.last.1) < TOGETHER);
        self.0.shrink_to(2 * self.0.len());
        todo
    }

    /// Forgets an Event: the API server doesn't have it.
    pub(super) fn forget(&mut self, happening: &Happening) {
        self.0.remove(happening);
    }
}

/// A limit of requests: some at once, then at a rate.
#[derive(Debug)]
pub(super) struct Limit {
    left: f64,
    at: Instant,
}

impl Limit {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: RATE.0, at: now }
    }

    /// Takes one request's turn, and returns how long it has to wait for it.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        let gained = now.duration_since(self.at).as_secs_f64() * RATE.1;
        self.left = (self.left + gained).min(RATE.0) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / RATE.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(uid: &str, reason: Reason, note: &str) -> Happening {
        let regarding = Regarding { namespace: "default".into(), name: "web".into(), uid: uid.into() };
        Happening { regarding, reason, note: note.into() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn is_new(todo: &Todo) -> bool {
        matches!(todo, Todo::Create(_))
    }

    #[test]
    fn only_the_same_object_reason_and_note_are_the_same_again() {
        let (mut memory, quota, now) = (Memory::default(), Quota::default(), Instant::now());
        let first = happening("u", Reason::TargetChanged, "a → b");
        for (second, other) in [
            first.clone(),
            happening("u", Reason::TargetChanged, "b → c"),
            happening("u", Reason::TargetStale, "a → b"),
            happening("recreated", Reason::TargetChanged, "a → b"),
        ]
        .iter()
        .enumerate()
        {
            let todo = memory.see(other, at(second as i64), now, &quota);
            assert!(is_new(&todo), "{other:?}: {todo:?}");
        }
        let again = Todo::Count { first: at(0), count: 2, last: at(9) };
        assert_eq!(memory.see(&first, at(9), now, &quota), again);
    }

    #[test]
    fn event_loop_costs_one_request_a_minute_with_exact_count() {
        let (mut memory, quota, start) = (Memory::default(), Quota::default(), Instant::now());
        let looping = happening("u", Reason::Conflict, "taken");
        let (mut requests, mut told) = (0, 0);
        for second in 0..600 {
            let now = start + Duration::from_secs(second);
            let mut todo = vec![memory.see(&looping, at(0), now, &quota)];
            todo.extend(memory.due(now).into_iter().map(|(_, todo)| todo));
            for todo in todo {
                requests += i32::from(todo != Todo::Nothing);
                if let Todo::Count { count, .. } = todo {
                    told = count;
                }
            }
        }
        assert!(requests <= 12, "{requests}");
        for (_, todo) in memory.due(start + Duration::from_secs(700)) {
            let Todo::Count { count, .. } = todo else { panic!("{todo:?}") };
            told = count;
        }
        assert_eq!(told, 600);
        assert!(memory.due(start + Duration::from_secs(2000)).is_empty());
        assert!(memory.0.is_empty(), "what is long ago is forgotten");
    }

    #[test]
    fn what_was_long_ago_or_never_arrived_is_a_new_event() {
        let (mut memory, quota, now) = (Memory::default(), Quota::default(), Instant::now());
        let same = happening("u", Reason::Conflict, "taken");
        memory.see(&same, at(0), now, &quota);
        assert!(is_new(&memory.see(&same, at(1), now + TOGETHER, &quota)));
        memory.forget(&same);
        assert!(is_new(&memory.see(&same, at(2), now + TOGETHER, &quota)));
    }

    #[test]
    fn the_memory_is_bounded_and_forgets_the_oldest() {
        let (mut memory, quota, now) = (Memory::default(), Quota::default(), Instant::now());
        for i in 0..REMEMBERED as u64 + 1 {
            let now = now + Duration::from_millis(i);
            memory.see(&happening(&i.to_string(), Reason::Removed, ""), at(0), now, &quota);
        }
        assert_eq!(memory.0.len(), REMEMBERED);
        let now = now + Duration::from_secs(60);
        assert!(!is_new(&memory.see(&happening("1", Reason::Removed, ""), at(1), now, &quota)));
        assert!(is_new(&memory.see(&happening("0", Reason::Removed, ""), at(1), now, &quota)));
    }

    #[test]
    fn a_service_has_ten_events_of_a_reason_in_ten_minutes() {
        let (mut memory, mut quota, start) = (Memory::default(), Quota::default(), Instant::now());
        let mut created = |uid: &str, reason, second: u64| {
            let now = start + Duration::from_secs(second);
            let happening = happening(uid, reason, &second.to_string());
            let is_new = is_new(&memory.see(&happening, at(0), now, &quota));
            if is_new {
                quota.count(&happening, now);
            }
            is_new
        };
        let seconds: Vec<u64> =
            (0..1800).filter(|second| created("u", Reason::HostnameRefused, *second)).collect();
        assert!(seconds.windows(11).all(|ten| ten[10] - ten[0] >= 600), "{seconds:?}");
        assert_eq!(seconds.len(), 30);
        assert!(!created("recreated", Reason::HostnameRefused, 1799), "it is the same Service");
        assert!(created("u", Reason::Conflict, 1799), "each reason counts by itself");
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut limit = Limit::new(now);
        let waits: Vec<Duration> = (0..90).map(|_| limit.take(now)).collect();
        assert!(waits[..50].iter().all(Duration::is_zero));
        assert_eq!(waits[89], Duration::from_secs(2), "40 more, at 20 a second");
        assert!(limit.take(now + Duration::from_secs(60)).is_zero());
    }
}
