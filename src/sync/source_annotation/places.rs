//! Where nothing can be written at present: one follower asks now and then, the others wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::service_key::ServiceKey;
use crate::sync::controller::backoff::Backoff;
use crate::sync::k8s::errors::ThrottledLog;

/// The first and the longest pause between two probes of a place.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A namespace, or the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WritePlace {
    /// The API server doesn't answer.
    Everywhere,
    /// A namespace whose Services can't be written.
    Namespace(Arc<str>),
}

/// The places where nothing can be written.
#[derive(Debug, Default)]
pub(super) struct Breakers(HashMap<WritePlace, PlaceBreaker>);

#[derive(Debug)]
struct PlaceBreaker {
    trouble: ThrottledLog,
    pauses: Backoff,
    /// When the next probe may be made.
    due: Instant,
    probe: Option<ServiceKey>,
    waiting: WaitingServices,
}

/// Followers that wait, each once. A follower that has been the probe goes to the end: its failure may be
/// its own.
#[derive(Debug, Default)]
struct WaitingServices {
    by_number: BTreeMap<u64, ServiceKey>,
    number_of: HashMap<ServiceKey, u64>,
    last: u64,
}

impl Breakers {
    /// Returns whether a follower may be written now, if only as a probe; else it waits.
    pub(super) fn admit(&mut self, key: &ServiceKey) -> bool {
        let namespace = WritePlace::Namespace(key.namespace().into());
        for place in [&WritePlace::Everywhere, &namespace] {
            if let Some(closed) = self.0.get_mut(place)
                && (closed.probe.is_some() || closed.due > Instant::now())
            {
                closed.waiting.push(key);
                return false;
            }
        }
        for place in [&WritePlace::Everywhere, &namespace] {
            if let Some(closed) = self.0.get_mut(place) {
                closed.probe = Some(key.clone());
                closed.waiting.remove(key);
            }
        }
        true
    }

    /// Takes over that nothing can be written in a place, as a follower has found out, and logs why.
    pub(super) fn close(
        &mut self,
        place: WritePlace,
        key: &ServiceKey,
        at_least: Option<Duration>,
        why: Option<(u16, &str)>,
    ) {
        self.probe_ended(key);
        let closed = self.0.entry(place).or_insert_with(PlaceBreaker::new);
        if let Some((code, sentence)) = why {
            closed.trouble.report(code, sentence);
        }
        // Writes that were under way together count once.
        if closed.due <= Instant::now() {
            closed.due = Instant::now() + closed.pauses.next().max(at_least.unwrap_or_default());
        }
        closed.waiting.push(key);
    }

    /// Takes over that something was written, or could have been, in a place. Returns the followers that have waited
    /// for that.
    pub(super) fn open(&mut self, place: &WritePlace) -> Vec<ServiceKey> {
        let Some(mut closed) = self.0.remove(place) else { return Vec::new() };
        if let WritePlace::Namespace(namespace) = place {
            closed.trouble.over(&format!(
                "Services in namespace {namespace} that follow a load balancer can be written again"
            ));
        }
        closed.waiting.by_number.into_values().collect()
    }

    /// Takes over that a follower has had its turn as a probe, if it was one, without an answer that
    /// would count.
    pub(super) fn probe_ended(&mut self, key: &ServiceKey) {
        for closed in self.0.values_mut() {
            closed.probe.take_if(|probe| probe == key);
        }
    }

    /// Returns the next follower that may probe a place. A place without waiting followers is
    /// forgotten.
    pub(super) fn next_probe(&mut self) -> Option<ServiceKey> {
        let now = Instant::now();
        self.0.retain(|_, closed| !closed.is_due(now) || !closed.waiting.by_number.is_empty());
        self.0.values_mut().find(|closed| closed.is_due(now))?.waiting.pop()
    }

    /// Waits until a follower may probe a place.
    pub(super) async fn due(&self) {
        let idle = self.0.values().filter(|closed| closed.probe.is_none());
        match idle.map(|closed| closed.due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Forgets a follower.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        for closed in self.0.values_mut() {
            closed.waiting.remove(key);
        }
    }
}

impl PlaceBreaker {
    fn new() -> Self {
        Self {
            trouble: ThrottledLog::default(),
            pauses: Backoff::new(PROBE_BACKOFF),
            due: Instant::now(),
            probe: None,
            waiting: WaitingServices::default(),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.probe.is_none() && self.due <= now
    }
}

impl WaitingServices {
    fn push(&mut self, key: &ServiceKey) {
        if !self.number_of.contains_key(key) {
            self.last += 1;
            self.number_of.insert(key.clone(), self.last);
            self.by_number.insert(self.last, key.clone());
        }
    }

    fn pop(&mut self) -> Option<ServiceKey> {
        let (_, key) = self.by_number.pop_first()?;
        self.number_of.remove(&key);
        Some(key)
    }

    fn remove(&mut self, key: &ServiceKey) {
        if let Some(number) = self.number_of.remove(key) {
            self.by_number.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> ServiceKey {
        ServiceKey::new(namespace, name)
    }

    fn refuse(places: &mut Breakers, key: &ServiceKey) {
        places.close(WritePlace::Namespace(key.namespace().into()), key, None, Some((403, "refused")));
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_closed_place_one_follower_probes_and_the_rest_wait() {
        let mut places = Breakers::default();
        let keys: Vec<ServiceKey> = (0..3).map(|number| key("a", &number.to_string())).collect();
        assert!(keys.iter().all(|key| places.admit(key)), "nothing is known yet");
        keys.iter().for_each(|key| refuse(&mut places, key));
        assert!(keys.iter().all(|key| !places.admit(key)));
        assert!(places.admit(&key("b", "elsewhere")));
        assert_eq!(places.next_probe(), None, "not yet");
        let mut asked = Vec::new();
        for _ in 0..6 {
            places.due().await;
            let probe = places.next_probe().unwrap();
            assert!(places.admit(&probe));
            assert!(!places.admit(&keys[0]) || probe == keys[0], "one at a time");
            assert_eq!(places.next_probe(), None);
            refuse(&mut places, &probe);
            asked.push(probe);
        }
        assert!(keys.iter().all(|key| asked.contains(key)), "they take turns: {asked:?}");
        let waited = places.open(&WritePlace::Namespace("a".into()));
        assert_eq!(waited.len(), 3);
        assert!(keys.iter().all(|key| places.admit(key)));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_between_probes_grow_to_their_bound() {
        let mut places = Breakers::default();
        let asks = key("a", "db");
        refuse(&mut places, &asks);
        let mut pause = Duration::ZERO;
        for _ in 0..12 {
            let before = Instant::now();
            places.due().await;
            pause = before.elapsed();
            assert!(pause <= PROBE_BACKOFF.1 + Duration::from_millis(2), "{pause:?}");
            assert_eq!(places.next_probe().as_ref(), Some(&asks));
            assert!(places.admit(&asks));
            refuse(&mut places, &asks);
        }
        assert!(pause >= PROBE_BACKOFF.1, "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_api_server_closes_all_namespaces() {
        let mut places = Breakers::default();
        let asks = key("a", "db");
        places.close(WritePlace::Everywhere, &asks, None, None);
        assert!(!places.admit(&key("b", "db")));
        assert_eq!(places.open(&WritePlace::Everywhere).len(), 2);
        refuse(&mut places, &asks);
        places.forget(&asks);
        places.due().await;
        assert_eq!(places.next_probe(), None);
        assert!(places.0.is_empty());
    }
}
