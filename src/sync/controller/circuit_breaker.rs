//! Circuit breaker for writes that the API server refuses together, such as all writes of a kind in a namespace for
//! which a permission is missing: one key at a time probes, the other keys wait.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use indexmap::IndexSet;
use tokio::time::Instant;

use crate::model::service_key::ServiceKey;
use crate::sync::task::backoff::Backoff;

/// First and longest pause between two probes of a class.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The classes of writes that are refused at present, each with the keys that wait for it.
#[derive(Debug)]
pub(crate) struct CircuitBreakers<C>(HashMap<C, CircuitBreaker>);

#[derive(Debug)]
struct CircuitBreaker {
    backoff: Backoff,
    /// When the next probe may be made.
    due: Instant,
    probe: Option<ServiceKey>,
    /// The keys in the order of the probes. A key that has probed goes to the end, because its failure may concern this
    /// key alone.
    waiting: IndexSet<ServiceKey>,
}

impl<C> Default for CircuitBreakers<C> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<C: Eq + Hash> CircuitBreakers<C> {
    /// Returns whether a write that belongs to all `classes` may be made for a key, perhaps as a probe. Otherwise the
    /// key waits until [`Self::record_success`] or [`Self::next_probe`] returns it.
    pub(crate) fn admit(&mut self, key: &ServiceKey, classes: &[C]) -> bool {
        for class in classes {
            if let Some(breaker) = self.0.get_mut(class)
                && !breaker.is_due(Instant::now())
            {
                breaker.waiting.insert(key.clone());
                return false;
            }
        }
        for class in classes {
            if let Some(breaker) = self.0.get_mut(class) {
                breaker.probe = Some(key.clone());
                breaker.waiting.shift_remove(key);
            }
        }
        true
    }

    /// Opens the breaker of a class, or keeps it open: a write was refused for a reason that may concern the whole
    /// class. The key waits, and the next probe is made after `at_least` at the earliest.
    pub(crate) fn record_failure(&mut self, class: C, key: &ServiceKey, at_least: Option<Duration>) {
        self.probe_ended(key);
        let breaker = self.0.entry(class).or_insert_with(CircuitBreaker::new);
        // Failures of concurrent writes count once.
        if breaker.due <= Instant::now() {
            breaker.due = Instant::now() + breaker.backoff.next().max(at_least.unwrap_or_default());
        }
        breaker.waiting.insert(key.clone());
    }

    /// Closes the breaker of a class, because the API server has processed one of its writes. Returns the keys that
    /// waited.
    pub(crate) fn record_success<Q>(&mut self, class: &Q) -> Vec<ServiceKey>
    where
        C: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.0.remove(class).map(|breaker| breaker.waiting.into_iter().collect()).unwrap_or_default()
    }

    /// Returns whether writes of a class are refused at present.
    pub(crate) fn is_open(&self, class: &C) -> bool {
        self.0.contains_key(class)
    }

    /// Returns whether the failure of a write of a class is that of a probe: the breaker was opened before the write.
    pub(crate) fn is_probed(&self, class: &C) -> bool {
        self.0.get(class).is_some_and(|breaker| breaker.due <= Instant::now())
    }

    /// Ends the probes of a key, whatever the result: another key may probe.
    pub(crate) fn probe_ended(&mut self, key: &ServiceKey) {
        for breaker in self.0.values_mut() {
            breaker.probe.take_if(|probe| probe == key);
        }
    }

    /// Returns when the next probe of a class is due, with a key for which `has_room` is true; `None` if no class waits
    /// for a probe.
    pub(crate) fn probe_at(&self, has_room: impl Fn(&ServiceKey) -> bool) -> Option<Instant> {
        let idle = self.0.values().filter(|breaker| breaker.probe.is_none());
        idle.filter(|breaker| breaker.waiting.is_empty() || breaker.waiting.iter().any(&has_room))
            .map(|breaker| breaker.due)
            .min()
    }

    /// Returns the next key that may probe its class, of those for which `has_room` is true. A class that is due, and
    /// for which no key waits, is forgotten.
    pub(crate) fn next_probe(&mut self, has_room: impl Fn(&ServiceKey) -> bool) -> Option<ServiceKey> {
        let now = Instant::now();
        self.0.retain(|_, breaker| !breaker.is_due(now) || !breaker.waiting.is_empty());
        let mut due = self.0.values_mut().filter(|breaker| breaker.is_due(now));
        due.find_map(|breaker| {
            let place = breaker.waiting.iter().position(&has_room)?;
            breaker.waiting.shift_remove_index(place)
        })
    }

    /// Removes a key from the keys that wait.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        for breaker in self.0.values_mut() {
            breaker.waiting.shift_remove(key);
        }
    }
}

impl CircuitBreaker {
    fn new() -> Self {
        Self {
            backoff: Backoff::new(PROBE_BACKOFF),
            due: Instant::now(),
            probe: None,
            waiting: IndexSet::new(),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.probe.is_none() && self.due <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::k8s::watch::sleep_until_opt;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("default", name)
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_probes_an_open_class_and_the_rest_wait() {
        let mut breakers = CircuitBreakers::default();
        let keys: Vec<ServiceKey> = (0..3).map(|number| key(&number.to_string())).collect();
        assert!(keys.iter().all(|key| breakers.admit(key, &["a"])), "no class is open");
        keys.iter().for_each(|key| breakers.record_failure("a", key, None));
        assert!(keys.iter().all(|key| !breakers.admit(key, &["a"])));
        assert!(breakers.admit(&key("elsewhere"), &["b"]));
        assert_eq!(breakers.next_probe(|_| true), None, "not yet");
        let mut probes = Vec::new();
        for _ in 0..6 {
            sleep_until_opt(breakers.probe_at(|_| true)).await;
            let probe = breakers.next_probe(|_| true).unwrap();
            assert!(breakers.admit(&probe, &["a"]));
            assert!(!breakers.admit(&keys[0], &["a"]) || probe == keys[0], "one key probes at a time");
            assert_eq!(breakers.next_probe(|_| true), None);
            breakers.record_failure("a", &probe, None);
            probes.push(probe);
        }
        assert!(keys.iter().all(|key| probes.contains(key)), "the keys take turns: {probes:?}");
        assert_eq!(breakers.record_success(&"a").len(), 3);
        assert!(keys.iter().all(|key| breakers.admit(key, &["a"])));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_between_probes_grow_to_their_bound() {
        let (mut breakers, probe, mut pause) = (CircuitBreakers::default(), key("db"), Duration::ZERO);
        breakers.record_failure("a", &probe, None);
        for _ in 0..12 {
            let before = Instant::now();
            sleep_until_opt(breakers.probe_at(|_| true)).await;
            pause = before.elapsed();
            assert!(pause <= PROBE_BACKOFF.1 + Duration::from_millis(2), "{pause:?}");
            assert_eq!(breakers.next_probe(|_| true).as_ref(), Some(&probe));
            assert!(breakers.admit(&probe, &["a"]));
            breakers.record_failure("a", &probe, None);
        }
        assert!(pause >= PROBE_BACKOFF.1, "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_obeyed_and_unused_probe_goes_to_the_next_key() {
        let (mut breakers, start) = (CircuitBreakers::default(), Instant::now());
        breakers.record_failure("a", &key("1"), Some(Duration::from_secs(60)));
        breakers.admit(&key("2"), &["a"]);
        sleep_until_opt(breakers.probe_at(|_| true)).await;
        assert!(start.elapsed() >= Duration::from_secs(60));
        assert_eq!(breakers.next_probe(|_| true), Some(key("1")));
        assert_eq!(breakers.next_probe(|_| true), Some(key("2")), "1 made no write");
    }

    #[tokio::test(start_paused = true)]
    async fn key_waits_for_any_of_its_open_classes_unless_forgotten() {
        let mut breakers = CircuitBreakers::default();
        breakers.record_failure("everywhere", &key("1"), None);
        assert!(!breakers.admit(&key("2"), &["everywhere", "a"]));
        assert_eq!(breakers.record_success(&"everywhere"), [key("1"), key("2")]);
        breakers.record_failure("a", &key("1"), None);
        breakers.forget(&key("1"));
        sleep_until_opt(breakers.probe_at(|_| true)).await;
        assert_eq!(breakers.next_probe(|_| true), None);
        assert!(breakers.0.is_empty());
    }
}
