//! How the external targets of links stand that ExternalTargets lead, as the reconciler sees them.

use dashmap::DashMap;
use tokio::sync::broadcast;

use crate::model::link::Target;
use crate::model::service_key::ServiceKey;

/// Capacity of the feed of changes. A subscriber that falls behind has to look at all links.
const FEED_CAPACITY: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The external target points at this target.
    At(Target),
    /// Another object has the name of the external target, for this reason it isn't ours.
    Conflict(String),
}

#[derive(Debug)]
pub struct StandingTargets {
    states: DashMap<ServiceKey, Standing>,
    feed: broadcast::Sender<ServiceKey>,
}

impl Default for StandingTargets {
    fn default() -> Self {
        Self { states: DashMap::new(), feed: broadcast::Sender::new(FEED_CAPACITY) }
    }
}

impl StandingTargets {
    /// Returns how the external target of a link stands; `None` if there is none, or it isn't known.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Standing> {
        self.states.get(key).map(|state| state.clone())
    }

    /// Subscribes to the keys of links whose external target has changed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.feed.subscribe()
    }

    pub(super) fn set(&self, key: &ServiceKey, state: Option<Standing>) {
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
