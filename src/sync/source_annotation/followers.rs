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
    /// Whether lb-linker has written the Service.
    pub is_written: bool,
    pub state: FollowerState,
    /// Which annotations beside `linker.hsj.com/source` have no effect.
    pub ignored: Option<String>,
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
}

impl Follower {
    /// Returns the label of the metric.
    fn label(&self) -> &'static str {
        FollowerState::LABELS[match &self.state {
            FollowerState::Follows if self.ignored.is_none() => 0,
            FollowerState::Follows | FollowerState::Outdated { .. } => 1,
            FollowerState::Kept(_) => 2,
            FollowerState::Refused(_) => 3,
        }]
    }
}

#[derive(Debug)]
pub struct Followers {
    followers: Mutex<BTreeMap<ServiceKey, Follower>>,
    /// The namespaces in which no Service can be written, and why.
    refused: Mutex<BTreeMap<String, String>>,
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
        let (followers, refused, version, unread) = Default::default();
        Ok(Self { followers, refused, counts, version, unread })
    }
}

impl Followers {
    /// Returns the Services by namespace and name; `None` if this process doesn't know them.
    #[must_use]
    pub fn list(&self) -> Option<Vec<(ServiceKey, Follower)>> {
        self.unread.borrow().as_ref()?;
        let refused = self.refused.lock();
        let shown = |(key, follower): (&ServiceKey, &Follower)| {
            let mut shown = follower.clone();
            if let FollowerState::Outdated { failure, .. } = &mut shown.state {
                *failure = failure.take().or_else(|| refused.get(key.namespace()).cloned());
            }
            (key.clone(), shown)
        };
        Some(self.followers.lock().iter().map(shown).collect())
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
        self.refused.lock().clear();
        let followers = std::mem::take(&mut *self.followers.lock());
        for follower in followers.values() {
            self.counts.with_label_values(&[follower.label()]).dec();
        }
    }

    /// Records why a Service couldn't be written, or why none of its namespace can be (`is_shared`).
    pub(super) fn set_failure(&self, key: &ServiceKey, why: &str, is_shared: bool) {
        if is_shared {
            self.set_refused(key.namespace(), Some(why));
        }
        let own = (!is_shared).then_some(why);
        if let Some(Follower { state: FollowerState::Outdated { failure, .. }, .. }) =
            self.followers.lock().get_mut(key)
            && failure.as_deref() != own
        {
            *failure = own.map(ToOwned::to_owned);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Records why no Service of a namespace can be written: Services without a reason of their own show it.
    pub(super) fn set_refused(&self, namespace: &str, why: Option<&str>) {
        let mut refused = self.refused.lock();
        let before = match why {
            Some(why) => refused.insert(namespace.to_owned(), why.to_owned()),
            None => refused.remove(namespace),
        };
        if before.as_deref() != why {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn set(&self, key: &ServiceKey, mut follower: Option<Follower>) {
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
                self.counts.with_label_values(&[follower.label()]).add(change);
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

    fn followers() -> std::sync::Arc<Followers> {
        let followers: std::sync::Arc<Followers> = test_support::metrics();
        followers.set_unread(Some(Vec::new()));
        followers
    }

    fn decide(followers: &Followers, key: &ServiceKey, name: &str) {
        let state = FollowerState::Outdated { name: name.to_owned(), failure: None };
        let name = String::new();
        let follower = Follower { source: None, name, is_written: false, state, ignored: None };
        followers.set(key, Some(follower));
    }

    /// Returns the reasons of all Services, which have to be outdated.
    fn shown(followers: &Followers) -> Vec<Option<String>> {
        let failure = |state| match state {
            FollowerState::Outdated { failure, .. } => failure,
            state => panic!("{state:?}"),
        };
        followers.list().unwrap().into_iter().map(|(_, follower)| failure(follower.state)).collect()
    }

    #[test]
    fn failure_of_a_write_is_shown_until_another_name_is_wanted() {
        let (followers, key) = (followers(), ServiceKey::new("app", "db"));
        decide(&followers, &key, "a.example");
        followers.set_failure(&key, "no", false);
        decide(&followers, &key, "a.example");
        assert_eq!(shown(&followers), [Some("no".to_owned())], "it is tried again");
        decide(&followers, &key, "b.example");
        assert_eq!(shown(&followers), [None]);
    }

    #[test]
    fn reason_of_a_namespace_is_shown_until_it_can_be_written() {
        let followers = followers();
        let [db, web, new, other] =
            [("app", "db"), ("app", "web"), ("app", "z"), ("shop", "db")].map(|(a, b)| ServiceKey::new(a, b));
        let reasons = |whys: &[&str]| -> Vec<_> {
            whys.iter().map(|why| Some((*why).to_owned()).filter(|why| !why.is_empty())).collect()
        };
        [&db, &web, &other].iter().for_each(|key| decide(&followers, key, "a.example"));
        followers.set_failure(&db, "403", true);
        assert_eq!(shown(&followers), reasons(&["403", "403", ""]));
        let version = followers.version();
        followers.set_failure(&web, "403", true);
        assert_eq!(followers.version(), version, "nothing changes");
        [&db, &web, &new].iter().for_each(|key| decide(&followers, key, "b.example"));
        assert_eq!(shown(&followers), reasons(&["403", "403", "403", ""]), "none of them may be tried");
        followers.set_failure(&web, "401", true);
        assert_eq!(shown(&followers), reasons(&["401", "401", "401", ""]));
        assert_ne!(followers.version(), version);
        followers.set_failure(&new, "a webhook", false);
        followers.set_failure(&other, "a quota", false);
        assert_eq!(shown(&followers), reasons(&["401", "401", "a webhook", "a quota"]));
        followers.set_refused("app", None);
        assert_eq!(shown(&followers), reasons(&["", "", "a webhook", "a quota"]));
        followers.set_failure(&new, "403", true);
        assert_eq!(shown(&followers), reasons(&["403", "403", "403", "a quota"]), "it is the latest reason");
        followers.clear();
        followers.set_unread(Some(Vec::new()));
        decide(&followers, &db, "a.example");
        assert_eq!(shown(&followers), [None]);
    }
}
