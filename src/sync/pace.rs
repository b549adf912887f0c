//! When links, and what follows them, are looked at again: after a failed write, at the end of a delay, and ever more
//! seldom where somebody else wants it otherwise.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

use super::Pauses;
use super::watch::until;
use crate::store::ServiceKey;

/// The first and the longest pause after a failed write of a link.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Writes for one link that follow each other though it stays the same, until somebody else is
/// suspected: more than it ever takes.
const REPAIRS: u32 = 10;
/// The first and the longest pause between writes from then on.
const REPAIR: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How long it must have been quiet for all that to be forgotten.
const PEACE: Duration = Duration::from_secs(120);
/// The farthest moment a timer is set for: the timer wheel ends at some two years.
const FARTHEST: Duration = Duration::from_secs(24 * 3600);

/// When links are looked at again; a write is about `A`.
#[derive(Debug)]
pub(super) struct Pace<A> {
    timers: DelayQueue<ServiceKey>,
    timer_of: HashMap<ServiceKey, delay_queue::Key>,
    failures: HashMap<ServiceKey, Pauses>,
    repairs: HashMap<ServiceKey, Repairs<A>>,
    /// When it is looked which of them may be forgotten.
    peace: Option<Instant>,
}

/// Writes for a link as it is now.
#[derive(Debug)]
struct Repairs<A> {
    about: A,
    number: u32,
    last: Instant,
    /// The pauses from now on, and when the present one ends: few links have any.
    slowed: Option<Box<(Pauses, Instant)>>,
}

impl<A> Default for Pace<A> {
    fn default() -> Self {
        Self {
            timers: DelayQueue::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            repairs: HashMap::new(),
            peace: None,
        }
    }
}

impl<A: PartialEq + Clone> Pace<A> {
    /// Waits for the next link whose time has come.
    pub(super) async fn due(&mut self) -> ServiceKey {
        loop {
            tokio::select! {
                Some(due) = self.timers.next() => {
                    let key = due.into_inner();
                    self.timer_of.remove(&key);
                    return key;
                }
                () = until(self.peace) => self.forget_repairs(),
            }
        }
    }

    /// Forgets writes of which it has been quiet for long enough.
    fn forget_repairs(&mut self) {
        self.repairs.retain(|_, repairs| repairs.last.elapsed() < PEACE);
        self.repairs.shrink_to_fit();
        self.peace = (!self.repairs.is_empty()).then(|| Instant::now() + PEACE);
    }

    /// Has a link looked at after `pause`, and not at an earlier moment that was set before.
    pub(super) fn wait(&mut self, key: ServiceKey, pause: Duration) {
        self.stop_waiting(&key);
        let timer = self.timers.insert(key.clone(), pause.min(FARTHEST));
        self.timer_of.insert(key, timer);
    }

    /// Forgets the moment that a link waits for.
    pub(super) fn stop_waiting(&mut self, key: &ServiceKey) {
        if let Some(timer) = self.timer_of.remove(key) {
            self.timers.remove(&timer);
        }
    }

    /// Has a link looked at again after a failed write, and returns when.
    pub(super) fn failed(&mut self, key: &ServiceKey, at_least: Option<Duration>) -> Duration {
        let pauses = self.failures.entry(key.clone()).or_insert_with(|| Pauses::new(RETRY));
        let pause = pauses.next().max(at_least.unwrap_or_default());
        self.wait(key.clone(), pause);
        pause
    }

    /// Returns whether a link rests after a failed write.
    pub(super) fn rests(&self, key: &ServiceKey) -> bool {
        self.failures.contains_key(key) && self.timer_of.contains_key(key)
    }

    /// Forgets that writes of a link have failed.
    pub(super) fn succeeded(&mut self, key: &ServiceKey) {
        self.failures.remove(key);
    }

    /// Returns the links of which something is known.
    pub(super) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.timer_of.keys().chain(self.failures.keys()).chain(self.repairs.keys())
    }

    /// Forgets everything about a link.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.stop_waiting(key);
        self.failures.remove(key);
        self.repairs.remove(key);
    }

    /// Ends all rests after failures, and returns whose.
    pub(super) fn resume(&mut self) -> Vec<ServiceKey> {
        let keys: Vec<ServiceKey> = std::mem::take(&mut self.failures).into_keys().collect();
        for key in &keys {
            self.stop_waiting(key);
        }
        keys
    }

    /// Returns how long a write for a link as it is now has to wait, because somebody else undoes
    /// them.
    pub(super) fn not_before(&self, key: &ServiceKey, about: &A) -> Option<Duration> {
        let repairs = self.repairs.get(key).filter(|repairs| repairs.about == *about)?;
        repairs.slowed.as_ref()?.1.checked_duration_since(Instant::now())
    }

    /// Counts a write that was made for a link as it is now. Where many follow each other, somebody
    /// else, an admission policy perhaps, undoes them: then they get ever more seldom, and the pause
    /// before the next one is returned.
    pub(super) fn made(&mut self, key: &ServiceKey, about: &A) -> Option<Duration> {
        self.peace.get_or_insert_with(|| Instant::now() + PEACE);
        let repairs = self.repairs.entry(key.clone()).or_insert_with(|| Repairs::new(about));
        if repairs.about != *about || repairs.last.elapsed() >= PEACE {
            *repairs = Repairs::new(about);
        }
        repairs.number += 1;
        repairs.last = Instant::now();
        if repairs.number <= REPAIRS {
            return None;
        }
        let now = Instant::now();
        let (pauses, due) = &mut **repairs.slowed.get_or_insert_with(|| Box::new((Pauses::new(REPAIR), now)));
        let pause = pauses.next();
        *due = now + pause;
        Some(pause)
    }
}

impl<A: Clone> Repairs<A> {
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
        let (mut pace, key) = (Pace::default(), key());
        for _ in 0..REPAIRS {
            assert_eq!(pace.made(&key, &"same"), None);
            assert_eq!(pace.not_before(&key, &"same"), None);
        }
        let pause = pace.made(&key, &"same").unwrap();
        assert!(pause >= REPAIR.0 && pause <= REPAIR.1);
        assert!(pace.not_before(&key, &"same").unwrap() <= pause);
        assert_eq!(pace.not_before(&key, &"new"), None, "a new target is written at once");
        assert_eq!(pace.made(&key, &"new"), None);
        assert_eq!(pace.not_before(&key, &"same"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_after_failures_grow_to_their_bound_and_end_together() {
        let (mut pace, key) = (Pace::<()>::default(), key());
        let pauses: Vec<Duration> = (0..12).map(|_| pace.failed(&key, None)).collect();
        assert!(pauses[0] < Duration::from_secs(2));
        assert!(pauses.iter().all(|pause| *pause <= RETRY.1));
        assert_eq!(pauses[11], RETRY.1);
        assert!(pace.failed(&key, Some(Duration::from_secs(50))) >= Duration::from_secs(50));
        assert!(pace.rests(&key));
        assert_eq!(pace.resume(), std::slice::from_ref(&key));
        assert!(!pace.rests(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_due_when_its_time_has_come() {
        let (mut pace, key) = (Pace::<()>::default(), key());
        pace.wait(key.clone(), Duration::from_secs(600));
        let before = Instant::now();
        assert_eq!(pace.due().await, key);
        assert!(before.elapsed() >= Duration::from_secs(600));
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_long_ago_are_forgotten_while_it_waits() {
        let (mut pace, key) = (Pace::default(), key());
        for _ in 0..=REPAIRS {
            pace.made(&key, &"same");
        }
        pace.wait(key.clone(), PEACE - Duration::from_secs(1));
        pace.due().await;
        assert_eq!(pace.links().count(), 1, "it may go on");
        pace.wait(key.clone(), PEACE);
        pace.due().await;
        assert_eq!(pace.links().count(), 0);
        assert_eq!(pace.made(&key, &"same"), None);
    }
}
