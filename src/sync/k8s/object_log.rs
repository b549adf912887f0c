//! Log lines about single objects, such as Services: at most 10 in ten minutes for an object, and 200 for a namespace.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::model::service_key::ServiceKey;
use crate::sync::k8s::rate_limiter::{Allowed, KeyedRateLimiter};

/// Maximum numbers of lines about an object, and about all objects of a namespace, in [`LINES_WINDOW`].
const MAX_LINES_PER_SERVICE_AND_NAMESPACE: (usize, usize) = (10, 200);

const LINES_WINDOW: Duration = Duration::from_secs(600);

/// Logs lines about single objects. All clones share the limits.
#[derive(Clone, Debug)]
pub struct ObjectLog(Arc<Mutex<ObjectLogLimits>>);

#[derive(Debug)]
struct ObjectLogLimits {
    services: KeyedRateLimiter<ServiceKey>,
    namespaces: KeyedRateLimiter<Box<str>>,
}

impl Default for ObjectLog {
    fn default() -> Self {
        let (services, namespaces) = (
            KeyedRateLimiter::new(MAX_LINES_PER_SERVICE_AND_NAMESPACE.0, LINES_WINDOW),
            KeyedRateLimiter::new(MAX_LINES_PER_SERVICE_AND_NAMESPACE.1, LINES_WINDOW),
        );
        Self(Arc::new(Mutex::new(ObjectLogLimits { services, namespaces })))
    }
}

impl ObjectLog {
    /// Logs a sentence about an object, at a limited rate. The sentence names the object.
    pub fn warn(&self, key: &ServiceKey, sentence: &str) {
        match self.take(key, Instant::now()) {
            (Allowed::No, _) | (_, Allowed::No) => {}
            (_, Allowed::Last) => warn!(
                "{sentence}; that was the last such line about objects of namespace {} for up to ten minutes",
                key.namespace()
            ),
            (Allowed::Last, _) => {
                warn!("{sentence}; that was the last such line about this object for up to ten minutes");
            }
            (Allowed::Yes, Allowed::Yes) => warn!("{sentence}"),
        }
    }

    fn take(&self, key: &ServiceKey, now: Instant) -> (Allowed, Allowed) {
        let mut limits = self.0.lock();
        match limits.services.take(key, now) {
            Allowed::No => (Allowed::No, Allowed::No),
            allowed => (allowed, limits.namespaces.take(&key.namespace().into(), now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_per_object_and_per_namespace_are_limited() {
        let (log, now) = (ObjectLog::default(), Instant::now());
        let lines = |namespace: &str, name: &str| {
            let key = ServiceKey::new(namespace, name);
            let taken = (0..1000).map(|_| log.take(&key, now));
            taken.filter(|taken| taken.0 != Allowed::No && taken.1 != Allowed::No).count()
        };
        assert_eq!(lines("a", "web"), MAX_LINES_PER_SERVICE_AND_NAMESPACE.0);
        let all: usize = (0..1000).map(|i| lines("tenant", &i.to_string())).sum();
        assert_eq!(all, MAX_LINES_PER_SERVICE_AND_NAMESPACE.1);
        assert_eq!(lines("a", "other"), MAX_LINES_PER_SERVICE_AND_NAMESPACE.0);
    }
}
