//! Which objects ask for a name, for users.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::RegardingKind;
use crate::model::object_texts::ObjectTexts;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;

/// Returns the objects that ask for an owner's name, the oldest first.
type Asking = dyn Fn(&ServiceKey) -> Vec<(RegardingKind, ServiceKey)> + Send + Sync;

/// The objects of all sources of names, except load balancers, and what of them is denied, invalid or ignored.
#[derive(Clone, Default)]
pub struct AskingObjects(Arc<RwLock<State>>);

#[derive(Default)]
struct State {
    sources: BTreeMap<Source, Arc<Asking>>,
    /// By cluster, which is `None` for the home cluster, and kind.
    texts: BTreeMap<(Option<Arc<str>>, RegardingKind), ObjectTexts>,
    /// The number of changes of the objects that ask for names.
    changes: u64,
}

impl AskingObjects {
    /// Returns the texts about what of objects of a kind in a cluster is denied, invalid or ignored.
    #[must_use]
    pub fn texts(&self, cluster: Option<&str>, kind: RegardingKind) -> ObjectTexts {
        self.0.write().texts.entry((cluster.map(Into::into), kind)).or_default().clone()
    }

    /// Records that other objects ask for names than before, or that their order has changed.
    pub fn note_change(&self) {
        self.0.write().changes += 1;
    }

    /// Returns a number that grows with each change of these objects and texts.
    #[must_use]
    pub fn version(&self) -> u64 {
        let state = self.0.read();
        state.texts.values().map(ObjectTexts::version).fold(state.changes, u64::wrapping_add)
    }

    /// Sets how the objects of a source are found.
    pub fn set(
        &self,
        source: Source,
        asking: impl Fn(&ServiceKey) -> Vec<(RegardingKind, ServiceKey)> + Send + Sync + 'static,
    ) {
        self.0.write().sources.insert(source, Arc::new(asking));
    }

    /// Returns the objects that ask for an owner's name, the oldest first.
    #[must_use]
    pub fn of(&self, owner: &Owner) -> Vec<(RegardingKind, ServiceKey)> {
        let asking = self.0.read().sources.get(&owner.source).cloned();
        asking.map(|asking| asking(&owner.key)).unwrap_or_default()
    }
}

impl fmt::Debug for AskingObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.read().sources.keys()).finish()
    }
}
