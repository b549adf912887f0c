//! The states of the external targets of links that ExternalTargets override, as the reconciler sees them.

use dashmap::DashMap;
use tokio::sync::broadcast;

use crate::model::link::Target;
use crate::model::service_key::ServiceKey;

/// Capacity of the feed of changes. A subscriber that falls behind has to look at all links.
const FEED_CAPACITY: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalTargetState {
    /// The external target points at this target.
    At(Target),
    /// An object that isn't ours has the name of the external target. Contains the reason why it isn't ours.
    Conflict(String),
}

#[derive(Debug)]
pub struct ExternalTargetStates {
    states: DashMap<ServiceKey, ExternalTargetState>,
    feed: broadcast::Sender<ServiceKey>,
}

impl Default for ExternalTargetStates {
    fn default() -> Self {
        Self { states: DashMap::new(), feed: broadcast::Sender::new(FEED_CAPACITY) }
    }
}

impl ExternalTargetStates {
    /// Returns the state of the external target of a link; `None` if no ExternalTarget overrides the link, or if it has
    /// no external target or hasn't been reconciled yet.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<ExternalTargetState> {
        self.states.get(key).map(|state| state.clone())
    }

    /// Subscribes to the keys of links when the state of their external target changes.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.feed.subscribe()
    }

    pub(super) fn set(&self, key: &ServiceKey, state: Option<ExternalTargetState>) {
        let before = match state.clone() {
            Some(state) => self.states.insert(key.clone(), state),
            None => self.states.remove(key).map(|(_, before)| before),
        };
        if before != state {
            // The send fails if there are no subscribers, which is fine.
            let _ = self.feed.send(key.clone());
        }
    }
}
