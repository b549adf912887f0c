//! The Services that follow by `linker.hsj.com/source`, as the leader sees them, for `lb-linker links --followers` and
//! the status page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::model::service_key::ServiceKey;

/// A Service with the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// The link that the annotation names; `None` if the annotation is malformed.
    pub source: Option<ServiceKey>,
    /// `spec.externalName`; empty if the annotation is malformed.
    pub name: String,
    pub state: FollowerState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowerState {
    /// The Service points at the target of its link.
    Follows,
    /// The Service has to point at this name, which isn't written yet.
    Outdated(String),
    /// The Service stays as it is for this reason: its link has no target at present.
    Kept(String),
    /// The Service stays as it is for this reason: it may not follow, or names no link.
    Refused(String),
}

#[derive(Debug, Default)]
pub struct Followers {
    followers: Mutex<BTreeMap<ServiceKey, Follower>>,
    version: AtomicU64,
    /// Whether all Services have been listed in this term.
    known: watch::Sender<bool>,
}

impl Followers {
    /// Returns the Services by namespace and name; `None` if this process doesn't know them.
    #[must_use]
    pub fn list(&self) -> Option<Vec<(ServiceKey, Follower)>> {
        let list = || self.followers.lock().iter().map(|(key, seen)| (key.clone(), seen.clone())).collect();
        self.known.borrow().then(list)
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until all Services are listed.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    pub(super) fn set_known(&self) {
        if !self.known.send_replace(true) {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets all Services: the term has ended.
    pub(super) fn clear(&self) {
        self.known.send_replace(false);
        self.followers.lock().clear();
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn set(&self, key: &ServiceKey, follower: Option<Follower>) {
        let mut followers = self.followers.lock();
        let before = match follower.clone() {
            Some(follower) => followers.insert(key.clone(), follower),
            None => followers.remove(key),
        };
        drop(followers);
        if before != follower {
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}
