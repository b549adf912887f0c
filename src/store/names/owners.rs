//! The link that each external target is labelled for.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::model::service_key::ServiceKey;

/// The link that each external target is labelled for, by the external target's name.
#[derive(Debug, Default)]
pub(crate) struct CurrentOwners {
    /// Owners of their default name; the name is derived, not stored.
    default_owners: HashTable<ServiceKey>,
    other_owners: HashMap<Box<str>, ServiceKey>,
    hasher: RandomState,
}

impl CurrentOwners {
    /// Returns the link that an external target is labelled for.
    pub(crate) fn get(&self, object: &str) -> Option<&ServiceKey> {
        let is_it = |holder: &ServiceKey| holder.is_external_target(object.as_bytes());
        self.default_owners
            .find(self.hasher.hash_one(object), is_it)
            .or_else(|| self.other_owners.get(object))
    }

    /// Returns the stored, equal key, if this link owns its default name.
    pub(crate) fn default_owner(&self, key: &ServiceKey) -> Option<&ServiceKey> {
        self.default_owners.find(self.hasher.hash_one(&*key.external_target()), |holder| holder == key)
    }

    /// Returns whether a link owns any name.
    pub(crate) fn contains(&self, key: &ServiceKey) -> bool {
        self.default_owner(key).is_some() || self.other_owners.values().any(|holder| holder == key)
    }

    /// Records the link that an external target is labelled for, if any.
    pub(crate) fn set(&mut self, object: &str, holder: Option<ServiceKey>) {
        let Self { default_owners: usual, other_owners: others, hasher } = self;
        let hash = hasher.hash_one(object);
        if let Ok(before) = usual.find_entry(hash, |holder| holder.is_external_target(object.as_bytes())) {
            before.remove();
        } else {
            others.remove(object);
        }
        match holder {
            Some(holder) if holder.is_external_target(object.as_bytes()) => {
                usual.insert_unique(hash, holder, |holder| hasher.hash_one(&*holder.external_target()));
            }
            Some(holder) => drop(others.insert(object.into(), holder)),
            None => {}
        }
    }
}
