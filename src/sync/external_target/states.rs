//! The states of external targets, as the reconciler sees them.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::{broadcast, watch};

use crate::model::link::Target;
use crate::model::service_key::ServiceKey;

/// Capacity of the feed of changes. A subscriber that falls behind has to look at all links.
const FEED_CAPACITY: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalTargetState {
    /// The external target points at this target.
    At(Target),
    /// There is no external target although the link has a target, or it has no target that this version can read.
    Missing,
    /// An object that isn't ours has the name of the external target.
    Conflict {
        /// The reason why it isn't ours.
        why: String,
        /// The target that it points at, if it has one.
        at: Option<Target>,
    },
}

#[derive(Debug)]
pub struct ExternalTargetStates {
    /// With whether an ExternalTarget overrides the link.
    states: DashMap<ServiceKey, (ExternalTargetState, bool)>,
    feed: broadcast::Sender<ServiceKey>,
    version: AtomicU64,
    /// Whether each link of the first list has been reconciled once.
    known: watch::Sender<bool>,
}

impl Default for ExternalTargetStates {
    fn default() -> Self {
        let (states, version, known) = Default::default();
        Self { states, feed: broadcast::Sender::new(FEED_CAPACITY), version, known }
    }
}

impl ExternalTargetStates {
    /// Returns the state of the external target of a link; `None` if the link has no target or hasn't been reconciled
    /// yet, and, unless an ExternalTarget overrides the link, also if the external target is as it should be.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<ExternalTargetState> {
        self.states.get(key).map(|state| state.0.clone())
    }

    /// Subscribes to the keys of links that an ExternalTarget overrides, or did, when the state of their external target
    /// changes.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.feed.subscribe()
    }

    /// Returns a number that grows with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until each link of the first list has been reconciled once, or there are no external targets.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// Records that each link of the first list has been reconciled once, or that there are no external targets.
    pub fn set_known(&self) {
        self.known.send_replace(true);
    }

    #[cfg(test)]
    pub(crate) fn set_for_tests(&self, key: &ServiceKey, state: Option<ExternalTargetState>) {
        self.set(key, state, false);
    }

    pub(super) fn set(&self, key: &ServiceKey, state: Option<ExternalTargetState>, is_overridden: bool) {
        let state = state.map(|state| (state, is_overridden));
        let before = match state.clone() {
            Some(state) => self.states.insert(key.clone(), state),
            None => self.states.remove(key).map(|(_, before)| before),
        };
        if before != state {
            self.version.fetch_add(1, Ordering::Release);
            if is_overridden || before.is_some_and(|(_, was_overridden)| was_overridden) {
                // The send fails if there are no subscribers, which is fine.
                let _ = self.feed.send(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feed_has_only_links_that_are_or_were_overridden() {
        let states = ExternalTargetStates::default();
        let mut feed = states.subscribe();
        let key = ServiceKey::new("shop", "web");
        let missing = || Some(ExternalTargetState::Missing);
        for (state, is_overridden, is_sent) in [
            (missing(), false, false),
            (None, false, false),
            (missing(), true, true),
            (missing(), true, false),
            (missing(), false, true),
            (None, false, false),
            (missing(), true, true),
            (None, false, true),
        ] {
            states.set(&key, state, is_overridden);
            assert_eq!(feed.try_recv().is_ok(), is_sent);
        }
        assert_eq!(states.version(), 7);
    }
}
