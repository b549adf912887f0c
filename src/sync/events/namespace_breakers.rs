//! Namespaces that refuse Events, or for which requests fail: for a while Events are dropped or wait. The first few
//! namespaces have log lines of their own.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::task::backoff::Backoff;

/// The first and the longest time for which the Events of a namespace are dropped or wait.
const NAMESPACE_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum number of namespaces with their own log lines: if a permission is missing everywhere, a few lines suffice.
const MAX_NAMED_NAMESPACES: usize = 10;
/// Maximum number of namespaces in memory. A forgotten namespace gets at worst one more request.
const MAX_NAMESPACES: usize = 1000;

/// The state of a namespace since the last Event that it accepted.
#[derive(Debug)]
struct NamespaceBreaker {
    /// `None` for a namespace without its own log lines.
    own_log: Option<ThrottledLog>,
    pauses: Backoff,
    /// Until this time Events wait if `has_failed`, else they are dropped.
    not_before: Instant,
    /// Whether all attempts to send the last Event have failed for a temporary reason.
    has_failed: bool,
}

/// The namespaces that refuse Events, or for which requests fail.
#[derive(Debug, Default)]
pub(super) struct NamespaceBreakers {
    namespaces: HashMap<Box<str>, NamespaceBreaker>,
    /// The log for the namespaces without their own log lines.
    unnamed_log: ThrottledLog,
    /// The log for single rejected Events. An accepted Event doesn't mark their error as recovered.
    pub(super) event_log: ThrottledLog,
}

impl NamespaceBreakers {
    /// Returns whether a namespace refused Events recently, so that its Events are dropped.
    pub(super) fn is_dropping(&self, namespace: &str, now: Instant) -> bool {
        self.namespaces.get(namespace).is_some_and(|refused| now < refused.not_before && !refused.has_failed)
    }

    /// Returns whether requests for a namespace failed recently, so that its Events wait.
    pub(super) fn is_held(&self, namespace: &str, now: Instant) -> bool {
        self.namespaces.get(namespace).is_some_and(|refused| now < refused.not_before && refused.has_failed)
    }

    /// Returns the earliest time at which a held namespace isn't held any more; `None` if no namespace is held.
    pub(super) fn next_to_resume(&self, now: Instant) -> Option<Instant> {
        let held = self.namespaces.values().filter(|refused| now < refused.not_before && refused.has_failed);
        held.map(|refused| refused.not_before).min()
    }

    /// Returns whether all attempts to send the last Event of a namespace have failed.
    pub(super) fn has_failed(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|refused| refused.has_failed)
    }

    /// Records that a namespace refuses all Events. Its Events are dropped for a time that grows with each refusal.
    pub(super) fn refuse(&mut self, namespace: &str, now: Instant) {
        let refused = self.entry(namespace, now);
        refused.not_before = now + refused.pauses.next();
        refused.has_failed = false;
    }

    /// Records that all attempts to send an Event have failed. The namespace is held for a growing time, at least for
    /// `at_least`.
    pub(super) fn fail(&mut self, namespace: &str, at_least: Duration, now: Instant) {
        let refused = self.entry(namespace, now);
        refused.not_before = now + refused.pauses.next().max(at_least);
        refused.has_failed = true;
    }

    /// Returns the log for a namespace; a namespace that isn't known yet is added.
    pub(super) fn error_log(&mut self, namespace: &str, now: Instant) -> &mut ThrottledLog {
        self.entry(namespace, now);
        let own = self.namespaces.get_mut(namespace).and_then(|refused| refused.own_log.as_mut());
        own.unwrap_or(&mut self.unnamed_log)
    }

    /// Records that a namespace has accepted an Event.
    pub(super) fn on_accepted(&mut self, namespace: &str) {
        let Some(refused) = self.namespaces.remove(namespace) else { return };
        if let Some(mut own_log) = refused.own_log {
            own_log.recovered(&format!("Events can be recorded again in namespace {namespace}"));
        } else if self.namespaces.values().all(|refused| refused.own_log.is_some()) {
            self.unnamed_log.recovered("Events can be recorded again in the other namespaces");
        }
    }

    fn entry(&mut self, namespace: &str, now: Instant) -> &mut NamespaceBreaker {
        if !self.namespaces.contains_key(namespace) && self.namespaces.len() >= MAX_NAMESPACES {
            // Keep the namespaces with their own log lines: they would be logged anew.
            let unnamed = self.namespaces.iter().filter(|(_, refused)| refused.own_log.is_none());
            let oldest = unnamed.min_by_key(|(_, refused)| refused.not_before);
            if let Some(oldest) = oldest.map(|(namespace, _)| namespace.clone()) {
                self.namespaces.remove(&oldest);
            }
        }
        let named = self.namespaces.values().filter(|refused| refused.own_log.is_some()).count();
        self.namespaces.entry(namespace.into()).or_insert_with(|| NamespaceBreaker {
            own_log: (named < MAX_NAMED_NAMESPACES).then(ThrottledLog::default),
            pauses: Backoff::new(NAMESPACE_BACKOFF),
            not_before: now,
            has_failed: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pause_of_a_refusing_namespace_grows_to_half_a_minute() {
        let (mut namespaces, mut pauses) = (NamespaceBreakers::default(), Vec::new());
        for _ in 0..8 {
            let start = Instant::now();
            namespaces.refuse("no", start);
            assert!(namespaces.is_dropping("no", start));
            assert!(!namespaces.is_dropping("yes", start), "other namespaces aren't skipped");
            while namespaces.is_dropping("no", Instant::now()) {
                tokio::time::advance(Duration::from_millis(100)).await;
            }
            pauses.push(start.elapsed());
        }
        assert!(pauses[0] < Duration::from_secs(3), "{pauses:?}");
        assert_eq!(pauses[7], NAMESPACE_BACKOFF.1);
        namespaces.on_accepted("yes");
        namespaces.refuse("no", Instant::now());
        assert!(
            namespaces.is_dropping("no", Instant::now() + NAMESPACE_BACKOFF.1 / 2),
            "an Event that another namespace accepts changes nothing"
        );
        namespaces.on_accepted("no");
        assert!(!namespaces.is_dropping("no", Instant::now()));
    }

    #[tokio::test]
    async fn namespaces_in_memory_and_in_the_log_are_bounded() {
        let (mut namespaces, now) = (NamespaceBreakers::default(), Instant::now());
        for i in 0..MAX_NAMESPACES + 10 {
            namespaces.refuse(&i.to_string(), now);
        }
        assert_eq!(namespaces.namespaces.len(), MAX_NAMESPACES);
        let named = |namespaces: &NamespaceBreakers| {
            namespaces.namespaces.values().filter(|refused| refused.own_log.is_some()).count()
        };
        assert_eq!(named(&namespaces), MAX_NAMED_NAMESPACES);
        for i in 0..MAX_NAMESPACES + 10 {
            namespaces.on_accepted(&i.to_string());
        }
        assert!(namespaces.namespaces.is_empty());
    }
}
