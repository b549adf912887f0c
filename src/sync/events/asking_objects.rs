//! Which objects ask for a name, for users.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::RegardingKind;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;

/// Returns the objects that ask for an owner's name, the oldest first.
type Asking = dyn Fn(&ServiceKey) -> Vec<(RegardingKind, ServiceKey)> + Send + Sync;

/// The objects of all sources of names, except load balancers.
#[derive(Clone, Default)]
pub struct AskingObjects(Arc<RwLock<BTreeMap<Source, Arc<Asking>>>>);

impl AskingObjects {
    /// Sets how the objects of a source are found.
    pub fn set(
        &self,
        source: Source,
        asking: impl Fn(&ServiceKey) -> Vec<(RegardingKind, ServiceKey)> + Send + Sync + 'static,
    ) {
        self.0.write().insert(source, Arc::new(asking));
    }

    /// Returns the objects that ask for an owner's name, the oldest first.
    #[must_use]
    pub fn of(&self, owner: &Owner) -> Vec<(RegardingKind, ServiceKey)> {
        let asking = self.0.read().get(&owner.source).cloned();
        asking.map(|asking| asking(&owner.key)).unwrap_or_default()
    }
}

impl fmt::Debug for AskingObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.read().keys()).finish()
    }
}
