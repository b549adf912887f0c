//! The owners of names, each with a number of four bytes, and what is behind their names.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::model::link::Link;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;

/// The number of an owner, as long as the owner has a target or a recorded name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OwnerId(u32);

#[derive(Debug, Default)]
pub(super) struct Owners(RwLock<Table>);

#[derive(Clone, Debug, Default)]
struct Table {
    /// The owners of each source. There are few sources.
    sources: Vec<(Source, HashMap<ServiceKey, OwnerId>)>,
    slots: Vec<Slot>,
    free: Vec<OwnerId>,
}

#[derive(Clone, Debug)]
struct Slot {
    key: ServiceKey,
    /// What is behind the owner's names; `None` if the owner asks for none.
    target: Option<Arc<Link>>,
    /// The position in [`Table::sources`].
    source: usize,
}

impl Owners {
    pub(super) fn copy(&self) -> Self {
        Self(RwLock::new(self.0.read().clone()))
    }

    /// Returns the number of an owner, which gets one if it has none.
    pub(super) fn intern(&self, owner: &Owner) -> OwnerId {
        if let Some((id, _)) = self.find(owner) {
            return id;
        }
        let table = &mut *self.0.write();
        let source = table.sources.iter().position(|(source, _)| *source == owner.source);
        let source = source.unwrap_or_else(|| {
            table.sources.push((owner.source.clone(), HashMap::new()));
            table.sources.len() - 1
        });
        let slot = Slot { key: owner.key.clone(), target: None, source };
        let id = match table.free.pop() {
            Some(id) => {
                table.slots[id.index()] = slot;
                id
            }
            None => {
                table.slots.push(slot);
                // Memory ends before the numbers do.
                OwnerId(u32::try_from(table.slots.len() - 1).unwrap_or(u32::MAX))
            }
        };
        table.sources[source].1.insert(owner.key.clone(), id);
        id
    }

    /// Returns the number of an owner, and its target.
    pub(super) fn find(&self, owner: &Owner) -> Option<(OwnerId, Option<Arc<Link>>)> {
        let table = self.0.read();
        let (_, ids) = table.sources.iter().find(|(source, _)| *source == owner.source)?;
        let id = *ids.get(&owner.key)?;
        Some((id, table.slots[id.index()].target.clone()))
    }

    /// Returns the owner of a number, and its target.
    pub(super) fn get(&self, id: OwnerId) -> (Owner, Option<Arc<Link>>) {
        let table = self.0.read();
        let Slot { key, source, target } = &table.slots[id.index()];
        (Owner { source: table.sources[*source].0.clone(), key: key.clone() }, target.clone())
    }

    /// Replaces what is behind an owner's names.
    pub(super) fn set_target(&self, id: OwnerId, target: Option<Arc<Link>>) {
        self.0.write().slots[id.index()].target = target;
    }

    /// Frees the number of an owner without a target.
    pub(super) fn release(&self, id: OwnerId) {
        let table = &mut *self.0.write();
        let Slot { key, target: None, source } = &table.slots[id.index()] else { return };
        if table.sources[*source].1.remove(key).is_some() {
            table.free.push(id);
        }
    }

    /// Returns the number of owners of each source.
    pub(super) fn numbers(&self) -> Vec<(Source, usize)> {
        self.0.read().sources.iter().map(|(source, ids)| (source.clone(), ids.len())).collect()
    }

    /// Returns the owners of a source that have a target (`None`: of all sources), in no order.
    pub(super) fn all(&self, source: Option<&Source>) -> Vec<(OwnerId, Arc<Link>)> {
        let table = self.0.read();
        let of_source = |known: &&(Source, _)| source.is_none_or(|source| *source == known.0);
        let ids = table.sources.iter().filter(of_source).flat_map(|(_, ids)| ids.values());
        ids.filter_map(|id| Some((*id, table.slots[id.index()].target.clone()?))).collect()
    }
}

impl OwnerId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_free_only_without_target() {
        let owners = Owners::default();
        let [web, api] = ["web", "api"].map(|name| Owner::from(&ServiceKey::new("shop", name)));
        let id = owners.intern(&web);
        assert_eq!(owners.intern(&web), id);
        let target = Arc::new(Link::new(web.key.clone(), ""));
        owners.set_target(id, Some(Arc::clone(&target)));
        owners.release(id);
        assert_eq!(owners.find(&web), Some((id, Some(target))));
        assert_ne!(owners.intern(&api), id);
        owners.set_target(id, None);
        owners.release(id);
        owners.release(id);
        assert_eq!(owners.find(&web), None);
        let other = Owner { source: Source { kind: "Ingress".into(), cluster: None }, key: web.key.clone() };
        assert_eq!(owners.intern(&other), id, "the number is used again");
        assert_ne!(owners.intern(&web), id);
        assert_eq!(owners.get(id).0, other);
    }
}
