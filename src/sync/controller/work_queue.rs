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
use crate::sync::controller::backoff::Backoff;
use crate::sync::controller::fair_keys::FairKeys;
use crate::sync::controller::write_slots::WriteSlots;
use crate::sync::k8s::watch::sleep_until_opt;

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
pub(crate) const CONFLICT_TIMEOUT: Duration = Duration::from_secs(60);
/// Capacity up to which the queue keeps its memory.
const MAX_IDLE_CAPACITY: usize = 2048;

/// Queue of keys. `A` is the desired state that a write sets: two writes for an equal state count as repeated.
#[derive(Debug)]
pub(crate) struct WorkQueue<A> {
    slots: WriteSlots,
    ready: FairKeys,
    /// Keys with a failed last write, which are taken when no key of `ready` can be taken.
    retries: FairKeys,
    /// The keys in `ready` and `retries`.
    queued: HashSet<ServiceKey>,
    timers: DelayQueue<ServiceKey>,
    timer_of: HashMap<ServiceKey, delay_queue::Key>,
    failures: HashMap<ServiceKey, FailedWrites>,
    /// Keys of `failures` that were refused because of a limit of the target namespace.
    limited: BTreeSet<ServiceKey>,
    throttles: HashMap<ServiceKey, DriftThrottle<A>>,
    /// The time of the next removal of old `throttles`.
    check_throttles_at: Option<Instant>,
}

/// Failed writes of a key since its last successful write, or since its desired state last changed.
#[derive(Debug)]
struct FailedWrites {
    backoff: Backoff,
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
    /// Creates a queue for a controller that makes at most `max_writes` writes at once.
    pub(crate) fn new(max_writes: usize) -> Self {
        Self {
            slots: WriteSlots::new(max_writes),
            ready: FairKeys::default(),
            retries: FairKeys::default(),
            queued: HashSet::new(),
            timers: DelayQueue::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            limited: BTreeSet::new(),
            throttles: HashMap::new(),
            check_throttles_at: None,
        }
    }

    // === keys to reconcile ===

    /// Queues a key, unless it is queued or a write for it is under way: when the write ends, the controller has to add
    /// the key again.
    pub(crate) fn add(&mut self, key: &ServiceKey) {
        if !self.slots.contains(key) && self.queued.insert(key.clone()) {
            let queue = if self.has_failed(key) { &mut self.retries } else { &mut self.ready };
            queue.push(key.clone());
        }
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
        while self.has_capacity() {
            let slots = &self.slots;
            let key = self.ready.pop(|namespace| slots.has_room(namespace, false));
            let key = match key {
                Some(key) => key,
                // Else `pop` would look for room in each namespace.
                None if slots.is_full(true) => return None,
                None => self.retries.pop(|namespace| slots.has_room(namespace, true))?,
            };
            self.queued.remove(&key);
            if !self.is_backing_off(&key) {
                return Some(key);
            }
        }
        None
    }

    /// Returns whether keys without failures are queued.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether another write may begin.
    pub(crate) fn has_capacity(&self) -> bool {
        !self.slots.is_full(false)
    }

    /// Records that a write for a key begins.
    pub(crate) fn begin(&mut self, key: &ServiceKey) {
        let is_retry = self.has_failed(key);
        self.slots.begin(key, is_retry);
    }

    /// Returns the keys for which a write is under way, in order.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> Vec<ServiceKey> {
        let mut keys: Vec<ServiceKey> = self.slots.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Records that the write for a key has ended. Returns whether [`Self::changed`] was called meanwhile.
    pub(crate) fn done(&mut self, key: &ServiceKey) -> bool {
        self.slots.end(key)
    }

    /// Records that the desired state of a key has changed: forgets its timer and its failures.
    pub(crate) fn changed(&mut self, key: &ServiceKey) {
        self.stop_timer(key);
        self.succeeded(key);
        self.slots.supersede(key);
    }

    /// Returns a copy of the queued keys.
    pub(crate) fn queued(&self) -> HashSet<ServiceKey> {
        self.queued.clone()
    }

    /// Frees memory after the queue had very many keys: if at most retries are left, and `queued` has room for more than
    /// four times its keys. Returns whether memory was freed.
    pub(crate) fn shrink(&mut self) -> bool {
        let shrinks =
            self.ready.is_empty() && self.queued.capacity() > MAX_IDLE_CAPACITY.max(4 * self.queued.len());
        if shrinks {
            self.ready.shrink_to_fit();
            self.retries.shrink_to_fit();
            self.queued.shrink_to_fit();
        }
        shrinks
    }

    /// Waits for the next timer, and queues its key.
    pub(crate) async fn due(&mut self) -> ServiceKey {
        loop {
            tokio::select! {
                Some(due) = self.timers.next() => {
                    let key = due.into_inner();
                    self.timer_of.remove(&key);
                    self.add(&key);
                    return key;
                }
                () = sleep_until_opt(self.check_throttles_at) => self.forget_throttles(),
            }
        }
    }

    /// Removes the timer of a key.
    pub(crate) fn stop_timer(&mut self, key: &ServiceKey) {
        if let Some(timer) = self.timer_of.remove(key) {
            self.timers.remove(&timer);
        }
    }

    /// Returns the keys that have timers, failures or counted writes. A key may occur more than once.
    pub(crate) fn known(&self) -> impl Iterator<Item = &ServiceKey> {
        self.timer_of.keys().chain(self.failures.keys()).chain(self.throttles.keys())
    }

    /// Forgets the timer, the failures and the throttle of a key. A write in flight counts as superseded.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.changed(key);
        self.throttles.remove(key);
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
        pause
    }

    /// Returns whether the last write of a key has failed, and its desired state hasn't changed since.
    pub(crate) fn has_failed(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key)
    }

    /// Returns whether a key is in its pause after a failed write.
    pub(crate) fn is_backing_off(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key) && self.timer_of.contains_key(key)
    }

    /// Records after [`Self::add_refused`] that the reason is a limit of the target namespace, such as a quota.
    pub(crate) fn mark_limited(&mut self, key: &ServiceKey) {
        self.limited.insert(key.clone());
    }

    /// Forgets the failed writes of a key.
    pub(crate) fn succeeded(&mut self, key: &ServiceKey) {
        self.failures.remove(key);
        self.limited.remove(key);
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
            self.failures.remove(key);
            self.stop_timer(key);
            self.add(key);
        }
    }

    /// Forgets all failures, and ends the pauses after them. Queues no key.
    pub(crate) fn end_pauses(&mut self) {
        self.limited.clear();
        for key in std::mem::take(&mut self.failures).into_keys() {
            self.stop_timer(&key);
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
        self.check_throttles_at.get_or_insert_with(|| Instant::now() + QUIET_PERIOD);
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

    fn forget_throttles(&mut self) {
        self.throttles.retain(|_, repairs| repairs.last.elapsed() < QUIET_PERIOD);
        self.throttles.shrink_to_fit();
        self.check_throttles_at = (!self.throttles.is_empty()).then(|| Instant::now() + QUIET_PERIOD);
    }
}

impl FailedWrites {
    fn new() -> Self {
        Self { backoff: Backoff::new(RETRY_BACKOFF), reason: None }
    }
}

impl<A: Clone> DriftThrottle<A> {
    fn new(about: &A) -> Self {
        Self { desired: about.clone(), number: 0, last: Instant::now(), slowed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ServiceKey {
        ServiceKey::new("default", "web")
    }

    #[tokio::test]
    async fn repeated_writes_for_an_unchanged_key_are_throttled() {
        let (mut work_queue, key) = (WorkQueue::new(4), key());
        for _ in 0..MAX_UNTHROTTLED_WRITES {
            assert_eq!(work_queue.record_write(&key, &"same"), None);
            assert_eq!(work_queue.throttled_for(&key, &"same"), None);
        }
        let pause = work_queue.record_write(&key, &"same").unwrap();
        assert!(pause >= REPAIR_BACKOFF.0 && pause <= REPAIR_BACKOFF.1);
        assert!(work_queue.throttled_for(&key, &"same").unwrap() <= pause);
        assert_eq!(work_queue.throttled_for(&key, &"new"), None, "a new target is written at once");
        assert_eq!(work_queue.record_write(&key, &"new"), None);
        assert_eq!(work_queue.throttled_for(&key, &"same"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_after_failures_grow_to_their_bound_until_resume() {
        let (mut work_queue, key) = (WorkQueue::<()>::new(4), key());
        let pauses: Vec<Duration> = (0..12).map(|_| work_queue.add_rate_limited(&key, None)).collect();
        assert!(pauses[0] < Duration::from_secs(2));
        assert!(pauses.iter().all(|pause| *pause <= RETRY_BACKOFF.1));
        assert_eq!(pauses[11], RETRY_BACKOFF.1);
        assert!(work_queue.add_rate_limited(&key, Some(Duration::from_secs(50))) >= Duration::from_secs(50));
        assert!(work_queue.is_backing_off(&key));
        work_queue.resume();
        assert!(!work_queue.is_backing_off(&key));
        assert_eq!(work_queue.next(), Some(key));
    }

    #[tokio::test(start_paused = true)]
    async fn many_failing_links_are_retried_at_a_bounded_rate() {
        for (links, expected) in [(500, 9_000..=15_000), (2000, 36_000..=50_000)] {
            let mut work_queue = WorkQueue::<()>::new(4);
            let keys: Vec<ServiceKey> =
                (0..links).map(|i| ServiceKey::new("default", &i.to_string())).collect();
            for key in &keys {
                let pause = work_queue.add_refused(key, None, "a policy").0;
                assert!(pause < Duration::from_secs(2), "other links don't delay the first retry: {pause:?}");
            }
            let start = Instant::now();
            let mut tries = 0;
            while start.elapsed() < Duration::from_secs(600) {
                let key = work_queue.due().await;
                assert!(work_queue.add_rate_limited(&key, None) <= RETRY_PAUSE_PER_FAILING_KEY.1);
                tries += 1;
            }
            assert!(expected.contains(&tries), "{tries} of {links} links in 600 s");
            let other = ServiceKey::new("another", "web");
            let pauses = [(); 2].map(|()| work_queue.add_rate_limited(&other, None));
            assert!(pauses[1] < Duration::from_secs(4), "keys of another namespace fail: {pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn success_releases_two_keys_with_the_same_limit() {
        let mut work_queue = WorkQueue::<()>::new(4);
        let keys: Vec<ServiceKey> = (0..5).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        for key in &keys {
            work_queue.add_rate_limited(key, None);
        }
        for key in &keys[..4] {
            work_queue.mark_limited(key);
        }
        work_queue.succeeded_and_release(&keys[4]);
        assert_eq!(work_queue.next(), None, "its own write was refused for another reason");
        work_queue.succeeded_and_release(&keys[0]);
        assert_eq!([work_queue.next(), work_queue.next()], [Some(keys[1].clone()), Some(keys[2].clone())]);
        assert!(!work_queue.is_backing_off(&keys[1]) && work_queue.is_backing_off(&keys[3]));
        work_queue.succeeded_and_release(&keys[3]);
        assert_eq!(work_queue.next(), None, "no key is limited any more");
    }

    #[tokio::test]
    async fn repeated_reason_is_not_new_until_a_write_succeeds() {
        let (mut work_queue, key) = (WorkQueue::<()>::new(4), key());
        let fails = |work_queue: &mut WorkQueue<()>, reason| work_queue.add_refused(&key, None, reason).1;
        assert!(fails(&mut work_queue, "a") && !fails(&mut work_queue, "a"));
        assert!(fails(&mut work_queue, "b") && !fails(&mut work_queue, "b"));
        work_queue.succeeded(&ServiceKey::new("default", "web"));
        assert!(fails(&mut work_queue, "b"));
    }

    #[tokio::test(start_paused = true)]
    async fn resume_keeps_the_pause_of_an_individually_refused_key() {
        let (mut work_queue, refused) = (WorkQueue::<()>::new(4), key());
        let keys: Vec<ServiceKey> = (0..3).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        work_queue.add_refused(&refused, None, "a policy");
        for key in &keys {
            work_queue.add_rate_limited(key, None);
        }
        work_queue.resume();
        let resumed: Vec<ServiceKey> = std::iter::from_fn(|| work_queue.next()).collect();
        assert_eq!(resumed.into_iter().collect::<BTreeSet<_>>(), keys.into_iter().collect());
        assert!(work_queue.is_backing_off(&refused) && work_queue.has_failed(&refused));
        work_queue.add_rate_limited(&refused, None);
        work_queue.resume();
        assert_eq!(work_queue.next(), Some(refused.clone()), "other keys may share the last reason");
        work_queue.add_refused(&refused, None, "a policy");
        work_queue.end_pauses();
        assert!(!work_queue.is_backing_off(&refused) && !work_queue.has_failed(&refused));
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_due_when_its_timer_ends() {
        let (mut work_queue, key) = (WorkQueue::<()>::new(4), key());
        work_queue.add_after(key.clone(), Duration::from_secs(600));
        let before = Instant::now();
        assert_eq!(work_queue.due().await, key);
        assert!(before.elapsed() >= Duration::from_secs(600));
    }

    #[test]
    fn key_is_taken_once_and_not_while_its_write_is_under_way() {
        let (mut work_queue, key) = (WorkQueue::<()>::new(2), key());
        work_queue.add(&key);
        work_queue.add(&key);
        assert_eq!(work_queue.next(), Some(key.clone()));
        assert_eq!(work_queue.next(), None);
        work_queue.begin(&key);
        work_queue.add(&key);
        assert_eq!(work_queue.next(), None);
        assert!(!work_queue.done(&key), "nothing has changed");
        work_queue.begin(&key);
        work_queue.changed(&key);
        assert!(work_queue.done(&key));
        work_queue.add(&key);
        assert_eq!(work_queue.next(), Some(key));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_take_half_of_the_writes_and_come_last() {
        let mut work_queue = WorkQueue::<()>::new(4);
        let keys: Vec<ServiceKey> = (0..6).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        for key in &keys[..4] {
            work_queue.add_rate_limited(key, None);
        }
        for _ in 0..4 {
            work_queue.due().await;
        }
        work_queue.add(&keys[4]);
        let first = work_queue.next().unwrap();
        assert_eq!(first, keys[4]);
        for _ in 0..2 {
            let retry = work_queue.next().unwrap();
            work_queue.begin(&retry);
        }
        assert_eq!(work_queue.next(), None, "two of four writes are retries");
        work_queue.add(&keys[5]);
        assert_eq!(work_queue.next().as_ref(), Some(&keys[5]));
    }

    #[test]
    fn hanging_namespace_leaves_writes_to_other_namespaces() {
        let mut work_queue = WorkQueue::<()>::new(8);
        for number in 0..20 {
            work_queue.add(&ServiceKey::new("hangs", &number.to_string()));
        }
        let begin_all = |work_queue: &mut WorkQueue<()>| {
            while let Some(key) = work_queue.next() {
                work_queue.begin(&key);
            }
        };
        begin_all(&mut work_queue);
        assert_eq!(work_queue.in_flight().len(), 6);
        for name in ["1", "2", "3"] {
            work_queue.add(&ServiceKey::new("shop", name));
        }
        begin_all(&mut work_queue);
        assert_eq!(work_queue.in_flight().len(), 8, "two writes of the other namespace have begun");
        work_queue.done(&ServiceKey::new("shop", "1"));
        begin_all(&mut work_queue);
        assert!(work_queue.in_flight().contains(&ServiceKey::new("shop", "3")));
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_is_forgotten_after_the_quiet_period() {
        let (mut work_queue, key) = (WorkQueue::new(4), key());
        for _ in 0..=MAX_UNTHROTTLED_WRITES {
            work_queue.record_write(&key, &"same");
        }
        work_queue.add_after(key.clone(), QUIET_PERIOD - Duration::from_secs(1));
        work_queue.due().await;
        assert_eq!(work_queue.known().count(), 1, "not forgotten yet");
        work_queue.add_after(key.clone(), QUIET_PERIOD);
        work_queue.due().await;
        assert_eq!(work_queue.known().count(), 0);
        assert_eq!(work_queue.record_write(&key, &"same"), None);
    }
}
