//! When links, and what follows them, are looked at again: after a failed write, at the end of a delay, and ever more
//! seldom where another client undoes the writes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::model::service_key::ServiceKey;
use crate::sync::controller::backoff::Backoff;
use crate::sync::k8s::watch::sleep_until_opt;

/// The first and the longest pause after a failed write of a link.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How much later a link is tried again, from its second failure on, for each link whose writes fail, and how much
/// later at most: no more than 20 tries a second of up to 600 links, and of more each one every 30 s.
const RETRY_JITTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// How many links whose writes were refused for a limit of their namespace are tried when one of them has succeeded:
/// their number doubles as long as all succeed.
const MAX_FREED_AT_ONCE: usize = 2;
/// Writes for one link that follow each other though it stays the same, until another client is
/// suspected of undoing them: more than are ever needed.
const FREE_REPAIRS: u32 = 10;
/// The first and the longest pause between writes from then on.
const REPAIR_BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How long it must have been quiet for all that to be forgotten.
const QUIET_PERIOD: Duration = Duration::from_secs(120);
/// The farthest moment a timer is set for: the timer wheel ends at some two years.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3600);

/// When links are looked at again; a write is about `A`.
#[derive(Debug)]
pub(crate) struct WorkQueue<A> {
    timers: DelayQueue<ServiceKey>,
    timer_of: HashMap<ServiceKey, delay_queue::Key>,
    failures: HashMap<ServiceKey, FailedWrites>,
    /// Those of them that were refused for a limit of the namespace.
    limited: BTreeSet<ServiceKey>,
    repairs: HashMap<ServiceKey, DriftThrottle<A>>,
    /// When it is looked which of them may be forgotten.
    peace: Option<Instant>,
}

/// Writes for a link that have failed since the last one that succeeded.
#[derive(Debug)]
struct FailedWrites {
    pauses: Backoff,
    /// The hash of the reason, where it is one of this link alone.
    reason: Option<u64>,
}

/// Writes for a link as it is now.
#[derive(Debug)]
struct DriftThrottle<A> {
    about: A,
    number: u32,
    last: Instant,
    /// The pauses from now on, and when the present one ends: few links have any.
    slowed: Option<Box<(Backoff, Instant)>>,
}

impl<A> Default for WorkQueue<A> {
    fn default() -> Self {
        Self {
            timers: DelayQueue::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            limited: BTreeSet::new(),
            repairs: HashMap::new(),
            peace: None,
        }
    }
}

impl<A: PartialEq + Clone> WorkQueue<A> {
    /// Waits for the next link whose time has come.
    pub(crate) async fn due(&mut self) -> ServiceKey {
        loop {
            tokio::select! {
                Some(due) = self.timers.next() => {
                    let key = due.into_inner();
                    self.timer_of.remove(&key);
                    return key;
                }
                () = sleep_until_opt(self.peace) => self.forget_repairs(),
            }
        }
    }

    /// Forgets writes of which it has been quiet for long enough.
    fn forget_repairs(&mut self) {
        self.repairs.retain(|_, repairs| repairs.last.elapsed() < QUIET_PERIOD);
        self.repairs.shrink_to_fit();
        self.peace = (!self.repairs.is_empty()).then(|| Instant::now() + QUIET_PERIOD);
    }

    /// Has a link looked at after `pause`, and not at an earlier moment that was set before.
    pub(crate) fn wait(&mut self, key: ServiceKey, pause: Duration) {
        self.stop_waiting(&key);
        let timer = self.timers.insert(key.clone(), pause.min(MAX_TIMER));
        self.timer_of.insert(key, timer);
    }

    /// Forgets the moment that a link waits for.
    pub(crate) fn stop_waiting(&mut self, key: &ServiceKey) {
        if let Some(timer) = self.timer_of.remove(key) {
            self.timers.remove(&timer);
        }
    }

    /// Has a link looked at again after a write that has failed for a reason that others may have, too, and returns
    /// when.
    pub(crate) fn failed(&mut self, key: &ServiceKey, at_least: Option<Duration>) -> Duration {
        let pause = self.pause(key, at_least);
        if let Some(failure) = self.failures.get_mut(key) {
            failure.reason = None;
        }
        pause
    }

    /// Has a link looked at again after a write that has failed for a reason of its own. Returns when, and whether
    /// that is another reason than the one before.
    pub(crate) fn refused(
        &mut self,
        key: &ServiceKey,
        at_least: Option<Duration>,
        reason: &str,
    ) -> (Duration, bool) {
        let pause = self.pause(key, at_least);
        let mut hasher = DefaultHasher::new();
        reason.hash(&mut hasher);
        let hash = hasher.finish();
        let failure = self.failures.get_mut(key);
        (pause, failure.is_none_or(|failure| failure.reason.replace(hash) != Some(hash)))
    }

    fn pause(&mut self, key: &ServiceKey, at_least: Option<Duration>) -> Duration {
        let failed_before = self.has_failed(key);
        let failure = self.failures.entry(key.clone()).or_insert_with(FailedWrites::new);
        let mut pause = failure.pauses.next().max(at_least.unwrap_or_default());
        if failed_before {
            let others = u32::try_from(self.failures.len() - 1).unwrap_or(u32::MAX);
            pause = pause.max(RETRY_JITTER.0.saturating_mul(others).min(RETRY_JITTER.1));
        }
        self.wait(key.clone(), pause);
        pause
    }

    /// Returns whether the last write of a link has failed.
    pub(crate) fn has_failed(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key)
    }

    /// Notes that a write of a link was refused for a limit that its namespace has, after [`Self::refused`].
    pub(crate) fn limited(&mut self, key: &ServiceKey) {
        self.limited.insert(key.clone());
    }

    /// Returns whether a link rests after a failed write.
    pub(crate) fn is_backing_off(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key) && self.timer_of.contains_key(key)
    }

    /// Forgets that writes of a link have failed.
    pub(crate) fn succeeded(&mut self, key: &ServiceKey) {
        self.failures.remove(key);
        self.limited.remove(key);
    }

    /// Takes over that a write of a link has succeeded. Where it was refused for a limit of the namespace before, a
    /// few of the other links that were are returned: they don't have to wait any more.
    pub(crate) fn relieved(&mut self, key: &ServiceKey) -> Vec<ServiceKey> {
        let was_limited = self.limited.contains(key);
        self.succeeded(key);
        if !was_limited {
            return Vec::new();
        }
        let others: Vec<ServiceKey> = self.limited.iter().take(MAX_FREED_AT_ONCE).cloned().collect();
        for other in &others {
            self.limited.remove(other);
            self.stop_waiting(other);
        }
        others
    }

    /// Returns the links of which something is known.
    pub(crate) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.timer_of.keys().chain(self.failures.keys()).chain(self.repairs.keys())
    }

    /// Forgets everything about a link.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.stop_waiting(key);
        self.succeeded(key);
        self.repairs.remove(key);
    }

    /// Ends the rests after failures that others had, too, and returns whose. What was refused alone waits on.
    pub(crate) fn resume(&mut self) -> Vec<ServiceKey> {
        let shared =
            |(key, failure): (&ServiceKey, &FailedWrites)| failure.reason.is_none().then(|| key.clone());
        let keys: Vec<ServiceKey> = self.failures.iter().filter_map(shared).collect();
        for key in &keys {
            self.failures.remove(key);
            self.stop_waiting(key);
        }
        keys
    }

    /// Ends all rests after failures.
    pub(crate) fn resume_all(&mut self) {
        self.limited.clear();
        for key in std::mem::take(&mut self.failures).into_keys() {
            self.stop_waiting(&key);
        }
    }

    /// Returns how long a write for a link as it is now has to wait, because another client undoes
    /// them.
    pub(crate) fn not_before(&self, key: &ServiceKey, about: &A) -> Option<Duration> {
        let repairs = self.repairs.get(key).filter(|repairs| repairs.about == *about)?;
        repairs.slowed.as_ref()?.1.checked_duration_since(Instant::now())
    }

    /// Counts a write that was made for a link as it is now. Where many follow each other, another
    /// client or an admission policy undoes them: then they get ever more seldom, and the pause
    /// before the next one is returned.
    pub(crate) fn record_write(&mut self, key: &ServiceKey, about: &A) -> Option<Duration> {
        self.peace.get_or_insert_with(|| Instant::now() + QUIET_PERIOD);
        let repairs = self.repairs.entry(key.clone()).or_insert_with(|| DriftThrottle::new(about));
        if repairs.about != *about || repairs.last.elapsed() >= QUIET_PERIOD {
            *repairs = DriftThrottle::new(about);
        }
        repairs.number += 1;
        repairs.last = Instant::now();
        if repairs.number <= FREE_REPAIRS {
            return None;
        }
        let now = Instant::now();
        let (pauses, due) =
            &mut **repairs.slowed.get_or_insert_with(|| Box::new((Backoff::new(REPAIR_BACKOFF), now)));
        let pause = pauses.next();
        *due = now + pause;
        Some(pause)
    }
}

impl FailedWrites {
    fn new() -> Self {
        Self { pauses: Backoff::new(RETRY_BACKOFF), reason: None }
    }
}

impl<A: Clone> DriftThrottle<A> {
    fn new(about: &A) -> Self {
        Self { about: about.clone(), number: 0, last: Instant::now(), slowed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ServiceKey {
        ServiceKey::new("default", "web")
    }

    #[tokio::test]
    async fn writes_for_a_link_that_stays_the_same_get_ever_more_seldom() {
        let (mut work_queue, key) = (WorkQueue::default(), key());
        for _ in 0..FREE_REPAIRS {
            assert_eq!(work_queue.record_write(&key, &"same"), None);
            assert_eq!(work_queue.not_before(&key, &"same"), None);
        }
        let pause = work_queue.record_write(&key, &"same").unwrap();
        assert!(pause >= REPAIR_BACKOFF.0 && pause <= REPAIR_BACKOFF.1);
        assert!(work_queue.not_before(&key, &"same").unwrap() <= pause);
        assert_eq!(work_queue.not_before(&key, &"new"), None, "a new target is written at once");
        assert_eq!(work_queue.record_write(&key, &"new"), None);
        assert_eq!(work_queue.not_before(&key, &"same"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_after_failures_grow_to_their_bound_and_end_together() {
        let (mut work_queue, key) = (WorkQueue::<()>::default(), key());
        let pauses: Vec<Duration> = (0..12).map(|_| work_queue.failed(&key, None)).collect();
        assert!(pauses[0] < Duration::from_secs(2));
        assert!(pauses.iter().all(|pause| *pause <= RETRY_BACKOFF.1));
        assert_eq!(pauses[11], RETRY_BACKOFF.1);
        assert!(work_queue.failed(&key, Some(Duration::from_secs(50))) >= Duration::from_secs(50));
        assert!(work_queue.is_backing_off(&key));
        assert_eq!(work_queue.resume(), std::slice::from_ref(&key));
        assert!(!work_queue.is_backing_off(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn many_failing_links_are_retried_at_a_bounded_rate() {
        for (links, expected) in [(500, 9_000..=15_000), (2000, 36_000..=50_000)] {
            let mut work_queue = WorkQueue::<()>::default();
            let keys: Vec<ServiceKey> =
                (0..links).map(|i| ServiceKey::new("default", &i.to_string())).collect();
            for key in &keys {
                let pause = work_queue.refused(key, None, "a policy").0;
                assert!(pause < Duration::from_secs(2), "the first failure of a link is its own: {pause:?}");
            }
            let start = Instant::now();
            let mut tries = 0;
            while start.elapsed() < Duration::from_secs(600) {
                let key = work_queue.due().await;
                assert!(work_queue.failed(&key, None) <= RETRY_JITTER.1);
                tries += 1;
            }
            assert!(expected.contains(&tries), "{tries} of {links} links in 600 s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_relieves_two_links_with_the_same_limit() {
        let mut work_queue = WorkQueue::<()>::default();
        let keys: Vec<ServiceKey> = (0..5).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        for key in &keys {
            work_queue.failed(key, None);
        }
        for key in &keys[..4] {
            work_queue.limited(key);
        }
        assert!(work_queue.relieved(&keys[4]).is_empty(), "its own write was refused for another reason");
        assert_eq!(work_queue.relieved(&keys[0]), keys[1..3]);
        assert!(!work_queue.is_backing_off(&keys[1]) && work_queue.is_backing_off(&keys[3]));
        assert_eq!(work_queue.relieved(&keys[3]), [], "the others are being tried");
    }

    #[tokio::test]
    async fn a_reason_is_new_once_until_it_changes_or_a_write_succeeds() {
        let (mut work_queue, key) = (WorkQueue::<()>::default(), key());
        let fails = |work_queue: &mut WorkQueue<()>, reason| work_queue.refused(&key, None, reason).1;
        assert!(fails(&mut work_queue, "a") && !fails(&mut work_queue, "a"));
        assert!(fails(&mut work_queue, "b") && !fails(&mut work_queue, "b"));
        work_queue.succeeded(&ServiceKey::new("default", "web"));
        assert!(fails(&mut work_queue, "b"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_shared_trouble_ends_no_rest_of_a_refused_link() {
        let (mut work_queue, refused) = (WorkQueue::<()>::default(), key());
        let keys: Vec<ServiceKey> = (0..3).map(|i| ServiceKey::new("default", &i.to_string())).collect();
        work_queue.refused(&refused, None, "a policy");
        for key in &keys {
            work_queue.failed(key, None);
        }
        let mut resumed = work_queue.resume();
        resumed.sort();
        assert_eq!(resumed, keys);
        assert!(work_queue.is_backing_off(&refused) && work_queue.has_failed(&refused));
        work_queue.failed(&refused, None);
        assert_eq!(work_queue.resume(), std::slice::from_ref(&refused), "its last failure was another one");
        work_queue.refused(&refused, None, "a policy");
        work_queue.resume_all();
        assert!(!work_queue.is_backing_off(&refused) && !work_queue.has_failed(&refused));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_due_when_its_time_has_come() {
        let (mut work_queue, key) = (WorkQueue::<()>::default(), key());
        work_queue.wait(key.clone(), Duration::from_secs(600));
        let before = Instant::now();
        assert_eq!(work_queue.due().await, key);
        assert!(before.elapsed() >= Duration::from_secs(600));
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_long_ago_are_forgotten_while_it_waits() {
        let (mut work_queue, key) = (WorkQueue::default(), key());
        for _ in 0..=FREE_REPAIRS {
            work_queue.record_write(&key, &"same");
        }
        work_queue.wait(key.clone(), QUIET_PERIOD - Duration::from_secs(1));
        work_queue.due().await;
        assert_eq!(work_queue.links().count(), 1, "it may go on");
        work_queue.wait(key.clone(), QUIET_PERIOD);
        work_queue.due().await;
        assert_eq!(work_queue.links().count(), 0);
        assert_eq!(work_queue.record_write(&key, &"same"), None);
    }
}
