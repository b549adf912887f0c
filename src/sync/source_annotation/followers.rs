//! The Services that follow by `linker.hsj.com/source`, as the leader sees them, for `lb-linker links --followers` and
//! the status page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::sync::watch;

use crate::metrics::{MetricGroup, registered};
use crate::model::service_key::ServiceKey;

/// A Service with the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// The link that the annotation names; `None` if the annotation is malformed.
    pub source: Option<ServiceKey>,
    /// `spec.externalName`.
    pub name: String,
    pub state: FollowerState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerState {
    /// The Service points at the target of its link.
    Follows,
    /// The Service has to point at this name, which isn't written yet, and why the last try has failed.
    Outdated { name: String, failure: Option<String> },
    /// The Service stays as it is for this reason: its link has no target at present.
    Kept(String),
    /// The Service stays as it is for this reason: it may not follow, or names no link.
    Refused(String),
}

impl FollowerState {
    pub(super) const LABELS: [&str; 4] = ["ready", "degraded", "kept", "refused"];

    /// Returns the label of the metric.
    fn label(&self) -> &'static str {
        Self::LABELS[match self {
            Self::Follows => 0,
            Self::Outdated { .. } => 1,
            Self::Kept(_) => 2,
            Self::Refused(_) => 3,
        }]
    }
}

#[derive(Debug)]
pub struct Followers {
    followers: Mutex<BTreeMap<ServiceKey, Follower>>,
    counts: IntGaugeVec,
    version: AtomicU64,
    /// The places that can't be read, if all others have been listed in this term.
    unread: watch::Sender<Option<Vec<String>>>,
}

impl MetricGroup for Followers {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts =
            Opts::new("lb_linker_followers", "Services that follow by linker.hsj.com/source, by state.");
        let counts = registered(registry, IntGaugeVec::new(opts, &["state"]))?;
        for label in FollowerState::LABELS {
            counts.with_label_values(&[label]).set(0);
        }
        let (followers, version, unread) = Default::default();
        Ok(Self { followers, counts, version, unread })
    }
}

impl Followers {
    /// Returns the Services by namespace and name; `None` if this process doesn't know them.
    #[must_use]
    pub fn list(&self) -> Option<Vec<(ServiceKey, Follower)>> {
        let list = || self.followers.lock().iter().map(|(key, seen)| (key.clone(), seen.clone())).collect();
        self.unread.borrow().is_some().then(list)
    }

    /// Returns the places, such as `namespace shop`, that can't be read.
    #[must_use]
    pub fn unread(&self) -> Vec<String> {
        self.unread.borrow().clone().unwrap_or_default()
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until all Services that can be read are listed.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.unread.subscribe().wait_for(Option::is_some).await;
    }

    /// Records that all Services are listed, but for those of these places; `None` if not.
    pub(crate) fn set_unread(&self, unread: Option<Vec<String>>) {
        if *self.unread.borrow() != unread {
            self.unread.send_replace(unread);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self, label: &str) -> i64 {
        self.counts.with_label_values(&[label]).get()
    }

    /// Forgets all Services: the term has ended.
    pub(super) fn clear(&self) {
        self.set_unread(None);
        let followers = std::mem::take(&mut *self.followers.lock());
        for follower in followers.values() {
            self.counts.with_label_values(&[follower.state.label()]).dec();
        }
    }

    /// Records why a Service couldn't be written, or why none of its namespace can be (`is_shared`): a reason of its own
    /// that another Service has already stays.
    pub(super) fn set_failure(&self, key: &ServiceKey, why: &str, is_shared: bool) {
        for (other, follower) in self.followers.lock().iter_mut() {
            let is_own = other == key;
            if let FollowerState::Outdated { failure, .. } = &mut follower.state
                && (is_own || is_shared && failure.is_none() && other.namespace() == key.namespace())
                && failure.as_deref() != Some(why)
            {
                *failure = Some(why.to_owned());
                self.version.fetch_add(1, Ordering::Release);
            }
        }
    }

    pub(super) fn set(&self, key: &ServiceKey, mut follower: Option<Follower>) {
        let mut followers = self.followers.lock();
        if let Some(FollowerState::Outdated { name, failure }) = follower.as_mut().map(|it| &mut it.state)
            && let Some(FollowerState::Outdated { name: before, failure: last }) =
                followers.get(key).map(|it| &it.state)
            && name == before
        {
            failure.clone_from(last);
        }
        let before = match follower.clone() {
            Some(follower) => followers.insert(key.clone(), follower),
            None => followers.remove(key),
        };
        for (follower, change) in [(&before, -1), (&follower, 1)] {
            if let Some(follower) = follower {
                self.counts.with_label_values(&[follower.state.label()]).add(change);
            }
        }
        drop(followers);
        if before != follower {
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::test_support;

    #[test]
    fn failure_of_a_write_is_shown_until_another_name_is_wanted() {
        let followers: std::sync::Arc<Followers> = test_support::metrics();
        let key = ServiceKey::new("app", "db");
        let decide = |name: &str| {
            let state = FollowerState::Outdated { name: name.to_owned(), failure: None };
            followers.set(&key, Some(Follower { source: None, name: String::new(), state }));
        };
        let shown = || {
            let state = followers.followers.lock()[&key].state.clone();
            let FollowerState::Outdated { failure, .. } = state else { panic!("{state:?}") };
            failure
        };
        decide("a.example");
        followers.set_failure(&key, "no", false);
        decide("a.example");
        assert_eq!(shown().as_deref(), Some("no"), "it is tried again");
        decide("b.example");
        assert_eq!(shown(), None);
    }
}
