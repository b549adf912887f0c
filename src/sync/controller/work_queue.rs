//! Queue of the Services or StableNames that a controller has to reconcile, with retries, timers and writes under
//! way.
//!
//! As in client-go a key is queued once, however often it is added, and isn't taken while a write for it is under way.
//! Namespaces take turns.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::model::service_key::ServiceKey;
use crate::sync::controller::limits::{Limits, Usage};
use crate::sync::controller::turns::Turns;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::task::backoff::Backoff;

/// First and longest pause after a failed write of a key.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// From its second failure on, the retry of a key is delayed by this much for each other failing key of its namespace,
/// up to the second value: at most 20 retries a second for up to 600 keys, and each key every 30 s beyond.
const RETRY_PAUSE_PER_FAILING_KEY: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(30));
/// The number of keys, refused because of a limit of the target namespace, that are retried when the write of another
/// such key succeeds. While all these writes succeed, the number of retries doubles from round to round.
const MAX_RELEASED_AT_ONCE: usize = 2;
/// The number of consecutive writes of one desired state above which another client is suspected of reverting them.
const MAX_UNTHROTTLED_WRITES: u32 = 10;
/// First and longest pause between writes that another client reverts.
const REPAIR_BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The time without a write after which earlier writes for a key aren't counted any more.
const QUIET_PERIOD: Duration = Duration::from_secs(120);
/// The longest timer: the timer wheel ends at about two years.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3600);
/// How long a write waits, after a conflict (409), until the watch delivers another version of the object. No other
/// version arrives if the conflict has another cause, such as a quota or a webhook.
const CONFLICT_TIMEOUT: Duration = Duration::from_secs(60);
/// Capacity up to which the queue keeps its memory.
const MAX_IDLE_CAPACITY: usize = 2048;

/// Queue of keys. `A` is the desired state that a write sets: two writes for an equal state count as repeated.
#[derive(Debug)]
pub(crate) struct WorkQueue<A> {
    ready: KeyTurns,
    /// Keys with a failed last write, which are taken when no key of `ready` can be taken.
    retries: KeyTurns,
    /// Keys with a decided write that waits for the limit of starts.
    waiting: KeyTurns,
    /// The key whose write may begin, because it was its turn in `waiting`.
    granted: Option<ServiceKey>,
    keys_added: u64,
    under_way: HashMap<ServiceKey, UnderWay>,
    usage: Usage,
    /// The retries among the writes under way: at most half of them.
    retry_usage: Usage,
    /// The time between two writes of a key that aren't urgent.
    key_interval: Duration,
    /// The writes within the last `key_interval`, the newest of each key.
    written: HashMap<ServiceKey, Instant>,
    timers: DelayQueue<ServiceKey>,
    timer_of: HashMap<ServiceKey, delay_queue::Key>,
    failures: HashMap<ServiceKey, FailedWrites>,
    /// Keys of `failures` that were refused because of a limit of the target namespace.
    limited: BTreeSet<ServiceKey>,
    /// The versions for which the API server has returned a conflict, and since when.
    conflicts: HashMap<ServiceKey, (Box<str>, Instant)>,
    throttles: HashMap<ServiceKey, DriftThrottle<A>>,
    /// The time of the next removal of what is too old to count.
    tidies_at: Option<Instant>,
}

/// Keys that wait, each once, with its number in `turns`.
#[derive(Debug, Default)]
struct KeyTurns {
    numbers: HashMap<ServiceKey, u64>,
    turns: Turns<ServiceKey>,
}

/// A write under way.
#[derive(Debug)]
struct UnderWay {
    is_retry: bool,
    /// When the key was written before, within the interval of a key.
    written_before: Option<Instant>,
    meanwhile: Meanwhile,
}

/// What has happened since a write began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meanwhile {
    /// Whether the desired state has changed.
    pub(crate) is_superseded: bool,
    /// The newest revision at which the watch has shown that the object is absent; 0 for none. An older answer is
    /// outdated.
    pub(crate) absent_at: u64,
}

/// Failed writes of a key since its last successful write, or since its desired state last changed.
#[derive(Debug)]
struct FailedWrites {
    backoff: Backoff,
    /// The end of the pause after the last failure.
    until: Option<Instant>,
    /// Hash of the reason, if it concerns this key alone.
    reason: Option<u64>,
}

/// Writes for a key while its desired state stays the same.
#[derive(Debug)]
struct DriftThrottle<A> {
    desired: A,
    number: u32,
    last: Instant,
    /// Backoff, and the end of the present pause, once the writes are throttled.
    slowed: Option<Box<(Backoff, Instant)>>,
}

impl<A: PartialEq + Clone> WorkQueue<A> {
    /// Creates a queue. Two writes of a key that aren't urgent are at least `key_interval` apart.
    pub(crate) fn new(limits: Limits, key_interval: Duration) -> Self {
        Self {
            ready: KeyTurns::default(),
            retries: KeyTurns::default(),
            waiting: KeyTurns::default(),
            granted: None,
            keys_added: 0,
            under_way: HashMap::new(),
            usage: Usage::new(limits),
            retry_usage: Usage::new(Limits::at_once((limits.at_once / 2).max(1))),
            key_interval,
            written: HashMap::new(),
            timers: DelayQueue::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            limited: BTreeSet::new(),
            conflicts: HashMap::new(),
            throttles: HashMap::new(),
            tidies_at: None,
        }
    }

    // === keys to reconcile ===

    /// Queues a key, unless it is queued or a write for it is under way: when the write ends, the controller has to add
    /// the key again.
    pub(crate) fn add(&mut self, key: &ServiceKey) {
        if self.under_way.contains_key(key)
            || self.ready.numbers.contains_key(key)
            || self.retries.numbers.contains_key(key)
        {
            return;
        }
        let number = self.next_number();
        let turns = if self.failures.contains_key(key) { &mut self.retries } else { &mut self.ready };
        turns.add(key, number);
    }

    /// Queues a key after `pause`. An earlier timer of the key is replaced.
    pub(crate) fn add_after(&mut self, key: ServiceKey, pause: Duration) {
        self.stop_timer(&key);
        let timer = self.timers.insert(key.clone(), pause.min(MAX_TIMER));
        self.timer_of.insert(key, timer);
    }

    /// Queues a key after `pause` at the latest: an earlier timer stays.
    pub(crate) fn add_within(&mut self, key: &ServiceKey, pause: Duration) {
        let due = Instant::now() + pause.min(MAX_TIMER);
        if self.timer_of.get(key).is_none_or(|timer| self.timers.deadline(timer) > due) {
            self.add_after(key.clone(), pause);
        }
    }

    /// Returns the next key to reconcile, if another write may begin. Keys in their pause after a failure are skipped:
    /// their timers add them again.
    pub(crate) fn next(&mut self) -> Option<ServiceKey> {
        self.granted = None;
        while self.has_capacity() {
            // A decision comes first: the write may be urgent. If it isn't, its key waits with the rest.
            if let Some(key) = self.ready.take(|namespace| self.usage.has_room(namespace)) {
                if !self.is_backing_off(&key) {
                    return Some(key);
                }
            } else if let Some((_, key)) = self.waiting.turns.take_within(&mut self.usage, Instant::now()) {
                self.waiting.numbers.remove(&key);
                if !self.has_failed(&key) || self.has_retry_room(key.namespace()) {
                    self.remove_queued(&key);
                    self.granted = Some(key.clone());
                    return Some(key);
                }
                self.add(&key);
            } else if self.retry_usage.is_full() {
                // Else `take` would look for room in each namespace.
                return None;
            } else {
                let has_room =
                    |namespace: &str| self.usage.has_room(namespace) && self.retry_usage.has_room(namespace);
                let key = self.retries.take(has_room)?;
                if !self.is_backing_off(&key) {
                    return Some(key);
                }
            }
        }
        None
    }

    /// Returns whether keys without failures are queued.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.turns.is_empty()
    }

    /// Returns whether another write may begin.
    pub(crate) fn has_capacity(&self) -> bool {
        !self.usage.is_full()
    }

    /// Returns whether a retry may begin in a namespace.
    pub(crate) fn has_retry_room(&self, namespace: &str) -> bool {
        self.usage.has_room(namespace) && self.retry_usage.has_room(namespace)
    }

    /// Returns when the limit of starts allows the next write that isn't urgent.
    pub(crate) fn next_start(&self) -> Instant {
        self.usage.next_start(Instant::now())
    }

    fn next_number(&mut self) -> u64 {
        self.keys_added += 1;
        self.keys_added
    }

    // === writes ===

    /// Returns whether the write of a key may begin; else the key is queued again later. `version` is what the API
    /// server has by the last event of the watch. A write waits for another version after a conflict, and for the end
    /// of the pause if another client keeps changing what was written; unless `is_urgent`, for the limits of writes
    /// within a time.
    pub(crate) fn may_start(
        &mut self,
        key: &ServiceKey,
        desired: &A,
        version: &str,
        is_urgent: bool,
    ) -> bool {
        if let Some((outdated, since)) = self.conflicts.get(key) {
            let remaining = CONFLICT_TIMEOUT.saturating_sub(since.elapsed());
            if **outdated == *version && !remaining.is_zero() {
                self.add_within(key, remaining);
                return false;
            }
            self.conflicts.remove(key);
        }
        if let Some(pause) = self.throttled_for(key, desired) {
            self.add_within(key, pause);
            return false;
        }
        if is_urgent {
            return true;
        }
        let now = Instant::now();
        if let Some(last) = self.written.get(key)
            && *last + self.key_interval > now
        {
            let pause = *last + self.key_interval - now;
            self.add_within(key, pause);
            return false;
        }
        let is_turn = self.granted.as_ref() == Some(key)
            || self.waiting.numbers.is_empty() && self.usage.next_start(now) <= now;
        if !is_turn && !self.waiting.numbers.contains_key(key) {
            let number = self.next_number();
            self.waiting.add(key, number);
        }
        is_turn
    }

    /// Records that a write for a key begins.
    pub(crate) fn begin(&mut self, key: &ServiceKey, is_urgent: bool) {
        let (is_retry, now) = (self.has_failed(key), Instant::now());
        self.granted = None;
        self.waiting.remove(key);
        self.remove_queued(key);
        self.usage.begin(key.namespace(), is_urgent, now);
        if is_retry {
            self.retry_usage.begin(key.namespace(), is_urgent, now);
        }
        let mut written_before = None;
        if !self.key_interval.is_zero() {
            written_before = self.written.insert(key.clone(), now);
            self.tidies_at.get_or_insert(now + QUIET_PERIOD);
        }
        let meanwhile = Meanwhile::default();
        self.under_way.insert(key.clone(), UnderWay { is_retry, written_before, meanwhile });
    }

    /// Records that the watch has shown the absence of an object at a revision, if a write of its key is under way.
    pub(crate) fn absent(&mut self, key: &ServiceKey, revision: u64) {
        if let Some(write) = self.under_way.get_mut(key) {
            write.meanwhile.absent_at = revision.max(write.meanwhile.absent_at);
        }
    }

    /// Returns the keys for which a write is under way, in order.
    pub(crate) fn in_flight(&self) -> Vec<ServiceKey> {
        let mut keys: Vec<ServiceKey> = self.under_way.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Records that the write for a key has ended. A write that has failed doesn't delay the next one of its key.
    pub(crate) fn done(&mut self, key: &ServiceKey, has_failed: bool) -> Meanwhile {
        let Some(ended) = self.under_way.remove(key) else { return Meanwhile::default() };
        self.usage.end(key.namespace());
        if ended.is_retry {
            self.retry_usage.end(key.namespace());
        }
        if has_failed {
            match ended.written_before {
                Some(before) => self.written.insert(key.clone(), before),
                None => self.written.remove(key),
            };
        }
        ended.meanwhile
    }

    /// Records that the API server has returned a conflict for a version: the key isn't written before the watch
    /// delivers another version, or [`CONFLICT_TIMEOUT`] ends.
    pub(crate) fn conflict(&mut self, key: &ServiceKey, version: &str) {
        self.conflicts.insert(key.clone(), (version.into(), Instant::now()));
        self.tidies_at.get_or_insert_with(|| Instant::now() + QUIET_PERIOD);
    }

    /// Records that the desired state of a key has changed: forgets its timer and its failures.
    pub(crate) fn changed(&mut self, key: &ServiceKey) {
        self.stop_timer(key);
        self.succeeded(key);
        if let Some(write) = self.under_way.get_mut(key) {
            write.meanwhile.is_superseded = true;
        }
    }

    /// Returns a copy of the queued keys.
    pub(crate) fn queued(&self) -> HashSet<ServiceKey> {
        self.ready.numbers.keys().chain(self.retries.numbers.keys()).cloned().collect()
    }

    /// Frees memory after the queue had very many keys: if at most retries are left, and there is room for more than
    /// four times their number. Returns whether memory was freed.
    pub(crate) fn shrink(&mut self) -> bool {
        let capacity = self.ready.numbers.capacity() + self.retries.numbers.capacity();
        let shrinks =
            self.ready.turns.is_empty() && capacity > MAX_IDLE_CAPACITY.max(4 * self.retries.numbers.len());
        if shrinks {
            self.ready.shrink_to_fit();
            self.retries.shrink_to_fit();
        }
        shrinks
    }

    /// Waits until a timer has queued its key, or a key that waits for the limit of starts has its turn.
    pub(crate) async fn due(&mut self) {
        loop {
            let now = Instant::now();
            let start = self.waiting.turns.due(&self.usage, now);
            tokio::select! {
                Some(due) = self.timers.next() => {
                    let key = due.into_inner();
                    self.timer_of.remove(&key);
                    if let Some(failure) = self.failures.get_mut(&key) {
                        failure.until = None;
                    }
                    return self.add(&key);
                }
                () = sleep_until_opt(start) => return,
                () = sleep_until_opt(self.tidies_at) => self.tidy(),
            }
        }
    }

    /// Removes the timer of a key, and ends the pause after a failure.
    pub(crate) fn stop_timer(&mut self, key: &ServiceKey) {
        if let Some(timer) = self.timer_of.remove(key) {
            self.timers.remove(&timer);
        }
        if let Some(failure) = self.failures.get_mut(key) {
            failure.until = None;
        }
    }

    /// Returns the keys that have timers, failures or counted writes. A key may occur more than once.
    pub(crate) fn known(&self) -> impl Iterator<Item = &ServiceKey> {
        self.timer_of.keys().chain(self.failures.keys()).chain(self.throttles.keys())
    }

    /// Forgets the timer, the failures, the conflict and the throttle of a key. A write in flight counts as superseded.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.changed(key);
        self.waiting.remove(key);
        self.conflicts.remove(key);
        self.throttles.remove(key);
    }

    fn remove_queued(&mut self, key: &ServiceKey) {
        self.ready.remove(key);
        self.retries.remove(key);
    }

    // === failures ===

    /// Queues a key again, after a pause of `at_least` or longer, because its write failed for a reason that other keys
    /// may share. Returns the pause.
    pub(crate) fn add_rate_limited(&mut self, key: &ServiceKey, at_least: Option<Duration>) -> Duration {
        let pause = self.back_off(key, at_least);
        if let Some(failure) = self.failures.get_mut(key) {
            failure.reason = None;
        }
        pause
    }

    /// Queues a key again, after a pause of `at_least` or longer, because its write failed for a reason of this key
    /// alone. Returns the pause, and whether the reason differs from that of the previous failure.
    pub(crate) fn add_refused(
        &mut self,
        key: &ServiceKey,
        at_least: Option<Duration>,
        reason: &str,
    ) -> (Duration, bool) {
        let pause = self.back_off(key, at_least);
        let mut hasher = DefaultHasher::new();
        reason.hash(&mut hasher);
        let hash = hasher.finish();
        let failure = self.failures.get_mut(key);
        (pause, failure.is_none_or(|failure| failure.reason.replace(hash) != Some(hash)))
    }

    fn back_off(&mut self, key: &ServiceKey, at_least: Option<Duration>) -> Duration {
        let failed_before = self.has_failed(key);
        let failure = self.failures.entry(key.clone()).or_insert_with(FailedWrites::new);
        let mut pause = failure.backoff.next().max(at_least.unwrap_or_default());
        if failed_before {
            // A tenant's failing keys delay no key of another namespace.
            let failing = self.failures.keys().filter(|other| other.namespace() == key.namespace()).count();
            let other_keys = u32::try_from(failing - 1).unwrap_or(u32::MAX);
            pause = pause.max(
                RETRY_PAUSE_PER_FAILING_KEY.0.saturating_mul(other_keys).min(RETRY_PAUSE_PER_FAILING_KEY.1),
            );
        }
        self.add_after(key.clone(), pause);
        if let Some(failure) = self.failures.get_mut(key) {
            failure.until = Some(Instant::now() + pause);
        }
        pause
    }

    /// Returns whether the last write of a key has failed, and its desired state hasn't changed since.
    pub(crate) fn has_failed(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key)
    }

    /// Returns whether a key is in its pause after a failed write.
    pub(crate) fn is_backing_off(&self, key: &ServiceKey) -> bool {
        let until = self.failures.get(key).and_then(|failure| failure.until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// Records after [`Self::add_refused`] that the reason is a limit of the target namespace, such as a quota.
    pub(crate) fn mark_limited(&mut self, key: &ServiceKey) {
        self.limited.insert(key.clone());
    }

    /// Forgets the failed writes of a key.
    pub(crate) fn succeeded(&mut self, key: &ServiceKey) {
        self.limited.remove(key);
        // A queued retry isn't one any more.
        if self.failures.remove(key).is_some()
            && let Some(number) = self.retries.remove(key)
        {
            self.ready.add(key, number);
        }
    }

    /// Forgets the failed writes of a key. If they were refused because of a limit of the target namespace, queues some
    /// of the other keys that were refused for such a reason.
    pub(crate) fn succeeded_and_release(&mut self, key: &ServiceKey) {
        let was_limited = self.limited.contains(key);
        self.succeeded(key);
        if was_limited {
            let freed: Vec<ServiceKey> = self.limited.iter().take(MAX_RELEASED_AT_ONCE).cloned().collect();
            for key in &freed {
                self.limited.remove(key);
                self.stop_timer(key);
                self.add(key);
            }
        }
    }

    /// Queues the keys that have failed for a reason that other keys may share, and ends their pauses. Keys that were
    /// refused for an individual reason keep their pause.
    pub(crate) fn resume(&mut self) {
        let shared =
            |(key, failure): (&ServiceKey, &FailedWrites)| failure.reason.is_none().then(|| key.clone());
        let keys: Vec<ServiceKey> = self.failures.iter().filter_map(shared).collect();
        for key in &keys {
            self.succeeded(key);
            self.stop_timer(key);
            self.add(key);
        }
    }

    /// Forgets all failures, and ends the pauses after them. Queues no key.
    pub(crate) fn end_pauses(&mut self) {
        for key in self.failures.keys().cloned().collect::<Vec<_>>() {
            self.stop_timer(&key);
            self.succeeded(&key);
        }
    }

    // === writes that another client reverts ===

    /// Returns the remaining pause before the next write of this desired state for a key, if another client reverts the
    /// writes.
    pub(crate) fn throttled_for(&self, key: &ServiceKey, desired: &A) -> Option<Duration> {
        let repairs = self.throttles.get(key).filter(|repairs| repairs.desired == *desired)?;
        repairs.slowed.as_ref()?.1.checked_duration_since(Instant::now())
    }

    /// Counts a successful write for a key. After many consecutive writes for the same desired state, another client or
    /// an admission policy seems to revert them: then returns the growing pause before the next write.
    pub(crate) fn record_write(&mut self, key: &ServiceKey, desired: &A) -> Option<Duration> {
        self.tidies_at.get_or_insert_with(|| Instant::now() + QUIET_PERIOD);
        let repairs = self.throttles.entry(key.clone()).or_insert_with(|| DriftThrottle::new(desired));
        if repairs.desired != *desired || repairs.last.elapsed() >= QUIET_PERIOD {
            *repairs = DriftThrottle::new(desired);
        }
        repairs.number += 1;
        repairs.last = Instant::now();
        if repairs.number <= MAX_UNTHROTTLED_WRITES {
            return None;
        }
        let now = Instant::now();
        let (backoff, due) =
            &mut **repairs.slowed.get_or_insert_with(|| Box::new((Backoff::new(REPAIR_BACKOFF), now)));
        let pause = backoff.next();
        *due = now + pause;
        Some(pause)
    }

    /// Forgets all counted writes: what they wrote is gone for a known reason.
    pub(crate) fn forget_writes(&mut self) {
        self.throttles.clear();
    }

    fn tidy(&mut self) {
        self.throttles.retain(|_, repairs| repairs.last.elapsed() < QUIET_PERIOD);
        self.throttles.shrink_to_fit();
        self.written.retain(|_, at| at.elapsed() < self.key_interval);
        self.conflicts.retain(|_, (_, since)| since.elapsed() < CONFLICT_TIMEOUT);
        self.usage.forget_starts(Instant::now());
        let is_idle = self.throttles.is_empty() && self.written.is_empty() && self.conflicts.is_empty();
        self.tidies_at = (!is_idle).then(|| Instant::now() + QUIET_PERIOD);
    }
}

impl KeyTurns {
    fn add(&mut self, key: &ServiceKey, number: u64) {
        self.numbers.insert(key.clone(), number);
        self.turns.add(key.namespace(), number, key.clone());
    }

    fn remove(&mut self, key: &ServiceKey) -> Option<u64> {
        let number = self.numbers.remove(key)?;
        self.turns.remove(key.namespace(), number);
        Some(number)
    }

    fn take(&mut self, has_room: impl Fn(&str) -> bool) -> Option<ServiceKey> {
        let (_, key) = self.turns.take(has_room)?;
        self.numbers.remove(&key);
        Some(key)
    }

    fn shrink_to_fit(&mut self) {
        self.numbers.shrink_to_fit();
        self.turns.shrink_to_fit();
    }
}

impl FailedWrites {
    fn new() -> Self {
        Self { backoff: Backoff::new(RETRY_BACKOFF), until: None, reason: None }
    }
}

impl<A: Clone> DriftThrottle<A> {
    fn new(about: &A) -> Self {
        Self { desired: about.clone(), number: 0, last: Instant::now(), slowed: None }
    }
}

#[cfg(test)]
mod tests;
