//! The StableNames that wait for a write: namespaces take turns, and there is a minimum time between two writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::service_key::ServiceKey;

/// The maximum number of concurrent writes.
pub(super) const MAX_WRITES: usize = 4;
/// The maximum number of concurrent writes in one namespace: a webhook may be slow there.
const MAX_WRITES_PER_NAMESPACE: usize = 2;
/// The minimum time between the starts of two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct FairQueue {
    waiting: BTreeMap<Box<str>, BTreeSet<ServiceKey>>,
    /// The number of writes under way, by namespace.
    under_way: HashMap<Box<str>, usize>,
    /// The namespace that had the last turn.
    last: Box<str>,
    next_at: Option<Instant>,
}

impl FairQueue {
    pub(super) fn add(&mut self, key: &ServiceKey) {
        self.waiting.entry(key.namespace().into()).or_default().insert(key.clone());
    }

    pub(super) fn remove(&mut self, key: &ServiceKey) {
        if let Some(keys) = self.waiting.get_mut(key.namespace()) {
            keys.remove(key);
            if keys.is_empty() {
                self.waiting.remove(key.namespace());
            }
        }
    }

    /// Returns when the next write may begin; `None` if no key waits, or another write has to end first.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_any_free = self.waiting.keys().any(|namespace| self.is_free(namespace));
        is_any_free.then(|| self.next_at.unwrap_or(now))
    }

    /// Takes the next key for a write, if a write may begin now. [`Self::begin`] counts the write.
    pub(super) fn take(&mut self, now: Instant) -> Option<ServiceKey> {
        if self.next_at.is_some_and(|at| at > now) {
            return None;
        }
        let after = self
            .waiting
            .range::<str, _>((std::ops::Bound::Excluded(&*self.last), std::ops::Bound::Unbounded));
        let in_turn = after.chain(&self.waiting).map(|(namespace, _)| namespace);
        let namespace = in_turn.into_iter().find(|namespace| self.is_free(namespace))?.clone();
        let key = self.waiting.get(&namespace)?.first()?.clone();
        self.remove(&key);
        self.last = namespace;
        Some(key)
    }

    pub(super) fn begin(&mut self, key: &ServiceKey, now: Instant) {
        *self.under_way.entry(key.namespace().into()).or_default() += 1;
        self.next_at = Some(now + WRITE_INTERVAL);
    }

    pub(super) fn end(&mut self, key: &ServiceKey) {
        if let Some(number) = self.under_way.get_mut(key.namespace()) {
            *number -= 1;
            if *number == 0 {
                self.under_way.remove(key.namespace());
            }
        }
    }

    fn is_free(&self, namespace: &str) -> bool {
        let of_namespace = self.under_way.get(namespace).copied().unwrap_or_default();
        self.under_way.values().sum::<usize>() < MAX_WRITES && of_namespace < MAX_WRITES_PER_NAMESPACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, number: usize) -> ServiceKey {
        ServiceKey::new(namespace, &number.to_string())
    }

    /// Takes keys, each [`WRITE_INTERVAL`] after the previous key, until no write may begin. With `ends_at_once` each
    /// write ends before the next one begins.
    fn take_all(queue: &mut FairQueue, now: &mut Instant, ends_at_once: bool) -> Vec<String> {
        let mut taken = Vec::new();
        while queue.due(*now).is_some() {
            *now = queue.due(*now).unwrap();
            let key = queue.take(*now).unwrap();
            queue.begin(&key, *now);
            assert_eq!(queue.take(*now), None, "too early");
            if ends_at_once {
                queue.end(&key);
            }
            taken.push(key.to_string());
        }
        taken
    }

    #[test]
    fn namespaces_take_turns() {
        let (mut queue, mut now) = (FairQueue::default(), Instant::now());
        for number in 0..4 {
            queue.add(&key("busy", number));
        }
        queue.add(&key("small", 0));
        queue.add(&key("a", 0));
        let taken = take_all(&mut queue, &mut now, true);
        assert_eq!(taken, ["a/0", "busy/0", "small/0", "busy/1", "busy/2", "busy/3"]);
        assert_eq!(queue.due(now), None);
    }

    #[test]
    fn slow_namespace_leaves_writes_to_other_namespaces() {
        let (mut queue, mut now) = (FairQueue::default(), Instant::now());
        for number in 0..9 {
            for namespace in ["a", "b", "c"] {
                queue.add(&key(namespace, number));
            }
        }
        let taken = take_all(&mut queue, &mut now, false);
        assert_eq!(taken, ["a/0", "b/0", "c/0", "a/1"]);
        queue.end(&key("a", 0));
        assert_eq!(take_all(&mut queue, &mut now, false), ["b/1"]);
        for (namespace, number) in [("b", 0), ("c", 0)] {
            queue.end(&key(namespace, number));
        }
        assert_eq!(take_all(&mut queue, &mut now, false), ["c/1", "a/2"]);
    }

    #[test]
    fn removed_key_is_not_taken() {
        let (mut queue, now) = (FairQueue::default(), Instant::now());
        queue.add(&key("a", 0));
        queue.add(&key("a", 0));
        queue.remove(&key("a", 0));
        assert_eq!((queue.due(now), queue.take(now)), (None, None));
    }
}
