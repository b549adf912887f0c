//! Writes of which the API server refuses all of a sort: a right or a namespace is missing.
//! One at a time finds out whether it still does, and the others wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::service_key::ServiceKey;
use crate::sync::controller::backoff::Backoff;
use crate::sync::k8s::object::ObjectKind;

/// The first and the longest pause before one of them asks again.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Writes that the API server refuses together: by verb and kind, and of load balancers by namespace.
pub(crate) type WriteClass = (&'static str, ObjectKind, Option<Arc<str>>);

/// The sorts of writes that are refused, and the links that wait with one.
#[derive(Debug, Default)]
pub(crate) struct Breakers(HashMap<WriteClass, Breaker>);

#[derive(Debug)]
struct Breaker {
    pauses: Backoff,
    /// When the next one asks.
    due: Instant,
    asking: Option<ServiceKey>,
    waiting: VecDeque<ServiceKey>,
    known: HashSet<ServiceKey>,
}

impl Breakers {
    /// Returns whether a link has to wait with a write; it is told when its turn comes.
    pub(crate) fn holds(&mut self, key: &ServiceKey, class: &WriteClass) -> bool {
        let Some(breaker) = self.0.get_mut(class) else { return false };
        if breaker.asking.as_ref() == Some(key) {
            return false;
        }
        breaker.wait(key);
        true
    }

    /// Takes over that a link's write was refused for a reason that all of its sort have.
    pub(crate) fn refused(&mut self, key: &ServiceKey, class: &WriteClass, at_least: Option<Duration>) {
        let breaker = self.0.entry(class.clone()).or_insert_with(|| Breaker {
            pauses: Backoff::new(PROBE_BACKOFF),
            due: Instant::now(),
            asking: None,
            waiting: VecDeque::new(),
            known: HashSet::new(),
        });
        breaker.asking = None;
        breaker.wait(key);
        breaker.due = Instant::now() + breaker.pauses.next().max(at_least.unwrap_or_default());
    }

    /// Takes over that a write wasn't refused for such a reason. Returns the links that have waited.
    pub(crate) fn opened(&mut self, class: &WriteClass) -> VecDeque<ServiceKey> {
        self.0.remove(class).map(|breaker| breaker.waiting).unwrap_or_default()
    }

    /// Returns when the next link may try.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.values().filter(|breaker| !breaker.waiting.is_empty()).map(|breaker| breaker.due).min()
    }

    /// Returns the link that may try now. If it makes no write after all, the next link may try a while later.
    pub(crate) fn next(&mut self) -> Option<ServiceKey> {
        let now = Instant::now();
        let breaker =
            self.0.values_mut().find(|breaker| breaker.due <= now && !breaker.waiting.is_empty())?;
        let key = breaker.waiting.pop_front()?;
        breaker.known.remove(&key);
        breaker.due = now + PROBE_BACKOFF.1;
        breaker.asking = Some(key.clone());
        Some(key)
    }
}

impl Breaker {
    fn wait(&mut self, key: &ServiceKey) {
        if self.known.insert(key.clone()) {
            self.waiting.push_back(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("default", name)
    }

    fn finalizer(namespace: &str) -> WriteClass {
        ("patch", ObjectKind::LoadBalancer, Some(namespace.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn they_ask_in_turn_until_one_gets_through_and_then_all_go_on() {
        let (mut closed, write) = (Breakers::default(), finalizer("a"));
        assert!(!closed.holds(&key("1"), &write));
        closed.refused(&key("1"), &write, None);
        for name in ["2", "3", "2"] {
            assert!(closed.holds(&key(name), &write));
        }
        assert!(!closed.holds(&key("4"), &finalizer("b")), "another namespace is another matter");
        for expected in ["1", "2", "3", "1"] {
            assert_eq!(closed.next(), None, "not yet");
            tokio::time::sleep_until(closed.due().unwrap()).await;
            let asks = closed.next().unwrap();
            assert_eq!(asks, key(expected));
            assert!(!closed.holds(&asks, &write));
            closed.refused(&asks, &write, None);
        }
        tokio::time::sleep_until(closed.due().unwrap()).await;
        assert_eq!(closed.next(), Some(key("2")));
        assert_eq!(closed.opened(&write), [key("3"), key("1")]);
        assert!(!closed.holds(&key("3"), &write));
        assert_eq!(closed.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn link_that_doesnt_ask_gives_way_and_retry_after_is_heeded() {
        let (mut closed, write) = (Breakers::default(), finalizer("a"));
        closed.refused(&key("1"), &write, Some(Duration::from_secs(60)));
        closed.holds(&key("2"), &write);
        let start = Instant::now();
        tokio::time::sleep_until(closed.due().unwrap()).await;
        assert!(start.elapsed() >= Duration::from_secs(60));
        assert_eq!(closed.next(), Some(key("1")));
        tokio::time::sleep_until(closed.due().unwrap()).await;
        assert_eq!(closed.next(), Some(key("2")));
    }
}
