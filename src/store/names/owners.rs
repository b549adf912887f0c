//! The link that each external target is labelled for.

use std::collections::HashMap;

use crate::model::service_key::ServiceKey;

/// The links by the names of the external targets.
#[derive(Debug, Default)]
pub(crate) struct CurrentOwners {
    owners: HashMap<Box<str>, ServiceKey>,
    /// By link, the number of external targets that are labelled for the link and don't have its default name. Few
    /// links have any.
    with_other_names: HashMap<ServiceKey, usize>,
}

impl CurrentOwners {
    /// Returns the link that an external target is labelled for.
    pub(crate) fn get(&self, object: &str) -> Option<&ServiceKey> {
        self.owners.get(object)
    }

    /// Returns whether the external target with the link's default name is labelled for the link.
    pub(crate) fn owns_default_name(&self, key: &ServiceKey) -> bool {
        self.get(&key.external_target()) == Some(key)
    }

    /// Returns whether any external target is labelled for the link.
    pub(crate) fn contains(&self, key: &ServiceKey) -> bool {
        self.owns_default_name(key) || self.with_other_names.contains_key(key)
    }

    /// Records the link that an external target is labelled for, if any.
    pub(crate) fn set(&mut self, object: &str, owner: Option<&ServiceKey>) {
        let before = match owner {
            Some(owner) => self.owners.insert(object.into(), owner.clone()),
            None => self.owners.remove(object),
        };
        let has_other_name = |key: &ServiceKey| *object != *key.external_target();
        if let Some(owner) = owner.filter(|owner| has_other_name(owner)) {
            *self.with_other_names.entry(owner.clone()).or_default() += 1;
        }
        if let Some(before) = before.filter(has_other_name) {
            match self.with_other_names.get_mut(&before) {
                Some(count @ 2..) => *count -= 1,
                _ => drop(self.with_other_names.remove(&before)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_has_an_external_target_until_the_last_one_is_gone() {
        let (key, other) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
        let default = key.external_target();
        let mut owners = CurrentOwners::default();
        let mut set = |object: &str, owner: Option<&ServiceKey>| {
            owners.set(object, owner);
            (owners.contains(&key), owners.owns_default_name(&key), owners.contains(&other))
        };
        assert_eq!(set(&default, Some(&key)), (true, true, false));
        assert_eq!(set("one", Some(&key)), (true, true, false));
        assert_eq!(set("two", Some(&key)), (true, true, false));
        assert_eq!(set("two", Some(&key)), (true, true, false));
        assert_eq!(set(&default, Some(&other)), (true, false, true));
        assert_eq!(set("one", None), (true, false, true));
        assert_eq!(set("two", Some(&other)), (false, false, true));
        assert_eq!(set(&default, None), (false, false, true));
        assert_eq!(set("two", None), (false, false, false));
        assert!(owners.owners.is_empty() && owners.with_other_names.is_empty());
    }
}
