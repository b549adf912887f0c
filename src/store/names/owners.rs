//! The link that each external target is labelled for.

use std::collections::HashMap;

use crate::model::service_key::ServiceKey;

/// The links by the names of the external targets.
#[derive(Debug, Default)]
pub(crate) struct CurrentOwners {
    owners: HashMap<Box<str>, ServiceKey>,
    /// The number of external targets that are labelled for each link.
    counts: HashMap<ServiceKey, usize>,
}

impl CurrentOwners {
    /// Returns the link that an external target is labelled for.
    pub(crate) fn get(&self, object: &str) -> Option<&ServiceKey> {
        self.owners.get(object)
    }

    /// Returns whether the external target with the link's default name is labelled for the link.
    pub(crate) fn owns_default_name(&self, key: &ServiceKey) -> bool {
        self.counts.contains_key(key) && self.get(&key.external_target()) == Some(key)
    }

    /// Returns whether any external target is labelled for the link.
    pub(crate) fn contains(&self, key: &ServiceKey) -> bool {
        self.counts.contains_key(key)
    }

    /// Records the link that an external target is labelled for, if any.
    pub(crate) fn set(&mut self, object: &str, owner: Option<&ServiceKey>) {
        let before = match owner {
            Some(owner) => self.owners.insert(object.into(), owner.clone()),
            None => self.owners.remove(object),
        };
        if let Some(owner) = owner {
            *self.counts.entry(owner.clone()).or_default() += 1;
        }
        if let Some(before) = before {
            match self.counts.get_mut(&before) {
                Some(count @ 2..) => *count -= 1,
                _ => drop(self.counts.remove(&before)),
            }
        }
    }
}
