//! Allocates custom hostnames that several links request.
//!
//! The owner of a name keeps it: the link on whose external target the name is recorded. A name without an owner goes
//! to the oldest Service; among Services of the same age, to the first by namespace and name. So a restart, or another
//! replica, gives the same result.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::claims::{Claim, Claims};
use crate::model::names;
use crate::model::service_key::ServiceKey;

/// The requests for custom hostnames, and their owners. Names are absolute, in lower case, without the trailing dot.
#[derive(Debug, Default)]
pub(crate) struct CustomHostnames {
    claims: Claims<Arc<str>>,
    requests: HashMap<ServiceKey, HostnameRequest>,
    /// By external target: the link that it is labelled for, and the names recorded on it.
    recorded: HashMap<Box<str>, (ServiceKey, Vec<Arc<str>>)>,
    /// By name: the link of each external target on which the name is recorded. While one external target replaces
    /// another, a link may be listed twice.
    recorded_owners: HashMap<Arc<str>, SmallVec<[ServiceKey; 1]>>,
}

#[derive(Debug)]
struct HostnameRequest {
    created: i64,
    names: Vec<Arc<str>>,
}

/// A name that has another owner from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerChange {
    pub(crate) name: Arc<str>,
    pub(crate) from: Option<ServiceKey>,
    pub(crate) to: Option<ServiceKey>,
}

impl CustomHostnames {
    /// Records the names that a link requests; none if the link is removed. Returns the changes.
    pub(crate) fn set_requested(
        &mut self,
        key: &ServiceKey,
        created: i64,
        names: &[Arc<str>],
    ) -> Vec<OwnerChange> {
        let before = self.requests.get(key);
        if before.is_none() && names.is_empty() {
            return Vec::new();
        }
        let names: Vec<Arc<str>> = names.iter().filter(|name| wire(name).is_some()).cloned().collect();
        let concerned = before.iter().flat_map(|before| &before.names).chain(&names).cloned().collect();
        self.changes_of(concerned, |custom_hostnames| {
            // Not before the change, because `owner` reads the requests.
            if let Some(HostnameRequest { created, names }) = custom_hostnames.requests.remove(key) {
                let claim = Claim { created, key: key.clone() };
                names.iter().for_each(|name| custom_hostnames.claims.remove(&**name, &claim));
            }
            for name in &names {
                custom_hostnames.claims.add(Arc::clone(name), Claim { created, key: key.clone() });
            }
            if !names.is_empty() {
                custom_hostnames.requests.insert(key.clone(), HostnameRequest { created, names });
            }
        })
    }

    /// Records the names that an external target carries, and its link; `None` if the external target is gone. Returns
    /// the changes.
    pub(crate) fn set_recorded(
        &mut self,
        object: &str,
        owner: Option<(&ServiceKey, &[Arc<str>])>,
    ) -> Vec<OwnerChange> {
        let before = self.recorded.remove(object);
        let now = owner
            .map(|(key, names)| {
                let names = names.iter().filter(|name| wire(name).is_some()).cloned().collect();
                (key.clone(), names)
            })
            .filter(|(_, names): &(_, Vec<Arc<str>>)| !names.is_empty());
        let concerned = before.iter().chain(&now).flat_map(|(_, names)| names).cloned().collect();
        self.changes_of(concerned, |custom_hostnames| {
            let recorded_owners = &mut custom_hostnames.recorded_owners;
            for (key, names) in before.iter() {
                for name in names {
                    let Some(owners) = recorded_owners.get_mut(name) else { continue };
                    if let Some(position) = owners.iter().position(|owner| owner == key) {
                        owners.swap_remove(position);
                    }
                    if owners.is_empty() {
                        recorded_owners.remove(name);
                    }
                }
            }
            if let Some((key, names)) = now {
                for name in &names {
                    recorded_owners.entry(Arc::clone(name)).or_default().push(key.clone());
                }
                custom_hostnames.recorded.insert(object.into(), (key, names));
            }
        })
    }

    /// Returns the names that a link requests and owns.
    pub(crate) fn names_of(&self, key: &ServiceKey) -> Box<[Arc<str>]> {
        let requested = self.requests.get(key).into_iter().flat_map(|requested| &requested.names);
        requested.filter(|name| self.owner(name) == Some(key)).cloned().collect()
    }

    pub(crate) fn requesters(&self, name: &str) -> Vec<ServiceKey> {
        self.claims.claims_for(name).iter().map(|claim| claim.key.clone()).collect()
    }

    /// Returns the first recorded owner that requests a name, in order of precedence; else the first requester.
    fn owner(&self, name: &str) -> Option<&ServiceKey> {
        let claims = self.claims.claims_for(name);
        let recorded = self.recorded_owners.get(name).into_iter().flatten();
        let positions = recorded.filter_map(|key| {
            let created = self.requests.get(key)?.created;
            claims.binary_search_by_key(&(created, key), |claim| (claim.created, &claim.key)).ok()
        });
        claims.get(positions.min().unwrap_or(0)).map(|claim| &claim.key)
    }

    /// Applies a change, and returns how the owners of these names have changed.
    fn changes_of(&mut self, names: BTreeSet<Arc<str>>, change: impl FnOnce(&mut Self)) -> Vec<OwnerChange> {
        let before: Vec<(Arc<str>, Option<ServiceKey>)> = names
            .into_iter()
            .map(|name| {
                let owner = self.owner(&name).cloned();
                (name, owner)
            })
            .collect();
        change(self);
        before
            .into_iter()
            .map(|(name, from)| {
                let to = self.owner(&name).cloned();
                OwnerChange { name, from, to }
            })
            .filter(|passed| passed.from != passed.to)
            .collect()
    }
}

/// Returns a name in the wire form of the index, or `None` if a label is empty or exceeds 63 octets.
pub(crate) fn wire(name: &str) -> Option<Vec<u8>> {
    names::wire(name.split('.').map(str::as_bytes))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("default", name)
    }

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn passed(name: &str, from: Option<&str>, to: Option<&str>) -> OwnerChange {
        OwnerChange { name: name.into(), from: from.map(key), to: to.map(key) }
    }

    #[test]
    fn oldest_requester_owns_a_name_until_its_request_ends() {
        let mut custom_hostnames = CustomHostnames::default();
        let shop = names(&["shop.example", "b.example"]);
        assert_eq!(
            custom_hostnames.set_requested(&key("young"), 2, &shop[..1]),
            [passed("shop.example", None, Some("young"))]
        );
        let changes = custom_hostnames.set_requested(&key("old"), 1, &shop);
        assert_eq!(
            changes,
            [passed("b.example", None, Some("old")), passed("shop.example", Some("young"), Some("old"))]
        );
        assert_eq!(*custom_hostnames.names_of(&key("old")), *shop);
        assert!(custom_hostnames.names_of(&key("young")).is_empty());
        assert_eq!(
            custom_hostnames.set_requested(&key("old"), 1, &shop[1..]),
            [passed("shop.example", Some("old"), Some("young"))]
        );
        assert_eq!(
            custom_hostnames.set_requested(&key("young"), 2, &[]),
            [passed("shop.example", Some("young"), None)]
        );
    }

    #[test]
    fn recorded_owner_keeps_a_name_that_it_requests() {
        let mut custom_hostnames = CustomHostnames::default();
        let shop = names(&["shop.example"]);
        assert!(custom_hostnames.set_recorded("young-ext", Some((&key("young"), &shop))).is_empty());
        assert!(custom_hostnames.names_of(&key("young")).is_empty());
        custom_hostnames.set_requested(&key("young"), 2, &shop);
        assert!(custom_hostnames.set_requested(&key("old"), 1, &shop).is_empty());
        assert_eq!(*custom_hostnames.names_of(&key("young")), *shop);
        assert_eq!(
            custom_hostnames.set_recorded("young-ext", None),
            [passed("shop.example", Some("young"), Some("old"))]
        );
    }

    #[test]
    fn owner_keeps_its_name_while_its_external_target_is_renamed() {
        let mut custom_hostnames = CustomHostnames::default();
        let shop = names(&["shop.example"]);
        custom_hostnames.set_requested(&key("young"), 2, &shop);
        custom_hostnames.set_recorded("hashed-ext", Some((&key("young"), &shop)));
        custom_hostnames.set_requested(&key("old"), 1, &shop);
        custom_hostnames.set_recorded("young-ext", Some((&key("young"), &shop)));
        assert!(custom_hostnames.set_recorded("hashed-ext", None).is_empty());
        assert_eq!(*custom_hostnames.names_of(&key("young")), *shop);
    }

    #[test]
    fn names_are_unique_and_independent_of_order_and_restarts() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let all = names(&["a.example", "b.example", "*.a.example"]);
            let keys: Vec<ServiceKey> = ["x", "y", "z"].map(key).into();
            let mut custom_hostnames = CustomHostnames::default();
            let (mut requested, mut noted) = (HashMap::new(), HashMap::<String, (ServiceKey, Vec<_>)>::new());
            let mut owners: HashMap<Arc<str>, ServiceKey> = HashMap::new();
            for _ in 0..80 {
                let key = keys[random.random_range(0..keys.len())].clone();
                let changes = if random.random_bool(0.4) {
                    // The names that a link owns are recorded on its external target, now or later.
                    let names = custom_hostnames.names_of(&key).to_vec();
                    let object = format!("{}-ext", key.name());
                    noted.insert(object.clone(), (key.clone(), names.clone()));
                    custom_hostnames.set_recorded(&object, Some((&key, &names)))
                } else {
                    let names: Vec<_> = all.iter().filter(|_| random.random_bool(0.5)).cloned().collect();
                    let created =
                        requested.get(&key).map_or(random.random_range(0..3), |(created, _)| *created);
                    requested.insert(key.clone(), (created, names.clone()));
                    custom_hostnames.set_requested(&key, created, &names)
                };
                for OwnerChange { name, from, to } in changes {
                    assert_eq!(owners.get(&name), from.as_ref(), "seed {seed}");
                    match to {
                        Some(to) => owners.insert(name, to),
                        None => owners.remove(&name),
                    };
                }
                let mut shown: Vec<(Arc<str>, ServiceKey)> = Vec::new();
                for key in &keys {
                    shown.extend(
                        custom_hostnames.names_of(key).iter().map(|name| (Arc::clone(name), key.clone())),
                    );
                }
                assert_eq!(shown.len(), owners.len(), "seed {seed}: {shown:?} {owners:?}");
                assert_eq!(shown.into_iter().collect::<HashMap<_, _>>(), owners, "seed {seed}");

                let mut fresh = CustomHostnames::default();
                let mut order: Vec<_> = requested.iter().collect();
                order.shuffle(&mut random);
                for (key, (created, names)) in order {
                    fresh.set_requested(key, *created, names);
                }
                for (object, (key, names)) in &noted {
                    fresh.set_recorded(object, Some((key, names)));
                }
                for key in &keys {
                    assert_eq!(fresh.names_of(key), custom_hostnames.names_of(key), "seed {seed}");
                }
            }
        }
    }
}
