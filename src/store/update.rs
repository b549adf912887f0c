//! Inserts, publishes and removes links: their claims, and the index entries of their names.

use std::sync::Arc;

use indexmap::IndexSet;

use super::names::allocator::{NameAllocator, Reassigned, coalesce};
use super::names::custom_hostnames;
use super::names::custom_hostnames::OwnerChange;
use super::{Lookup, Store};
use crate::model::link::{Link, LinkChange};
use crate::model::names;
use crate::model::service_key::ServiceKey;

impl Store {
    /// Stores a link and publishes it under its names. A link that is new or has another rank claims its names first.
    pub(super) fn upsert(
        &self,
        allocator: &mut NameAllocator,
        before: Option<Arc<Link>>,
        mut link: Link,
    ) -> LinkChange {
        let mut reassigned = Vec::new();
        if before.as_ref().is_none_or(|before| before.created != link.created) {
            reassigned = allocator.remove(&link.key);
            let (own, changes) = allocator.add(&link.key, link.created);
            link.rename(own);
            reassigned.extend(changes);
        }
        let asks = |link: &Link| (link.created, link.annotations.hostnames.clone());
        let mut passed = Vec::new();
        if before.as_deref().is_none_or(|before| asks(before) != asks(&link)) {
            passed = allocator.custom_hostnames.set_requested(
                &link.key,
                link.created,
                &link.annotations.hostnames,
            );
        }
        link.hostnames = self.hostnames_of(allocator, &link.key);
        let link = Arc::new(link);
        self.publish(allocator, &link);
        let change = self.record_change(allocator, &Arc::clone(&link).key, before, Some(link));
        self.apply_reassigned(allocator, reassigned);
        self.apply_owner_changes(allocator, passed);
        change
    }

    /// Publishes a link, in place of its previous version, under its names and addresses.
    pub(super) fn publish(&self, allocator: &mut NameAllocator, link: &Arc<Link>) {
        // Add new addresses first: a link must be found under each address that it has.
        self.index.addresses.add(link);
        if let Some(before) = self.links.insert(link.key.clone(), Arc::clone(link)) {
            self.index.addresses.remove(&before, Some(link));
        }
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_default_name(allocator, &dotted, Some(Arc::clone(link)));
        }
        if let Some(label) = link.key.label().filter(|_| allocator.has_label(&link.key)) {
            self.set_default_name(allocator, &label, Some(Arc::clone(link)));
        }
        for name in link.hostnames.iter().filter_map(|name| custom_hostnames::wire(name)) {
            self.index.custom_hostnames.set(&name, Some(Arc::clone(link)));
        }
    }

    /// Removes a link and its claims; the next claim for each name wins it.
    pub(super) fn remove(&self, allocator: &mut NameAllocator, link: &Arc<Link>) -> LinkChange {
        let reassigned = allocator.remove(&link.key);
        self.apply_reassigned(allocator, reassigned);
        let passed = allocator.custom_hostnames.set_requested(&link.key, link.created, &[]);
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_default_name(allocator, &dotted, None);
        }
        if let Some((_, before)) = self.links.remove(&link.key) {
            self.index.addresses.remove(&before, None);
        }
        self.apply_owner_changes(allocator, passed);
        self.record_change(allocator, &link.key, Some(Arc::clone(link)), None)
    }

    /// Publishes names under their new owners. Of several changes of a name only the last is published.
    pub(super) fn apply_reassigned(&self, allocator: &mut NameAllocator, changes: Vec<Reassigned>) {
        for change in coalesce(changes) {
            match change {
                Reassigned::Label(label, owner) => {
                    let owner = owner.and_then(|key| self.get(&key));
                    self.set_default_name(allocator, &label, owner);
                }
                Reassigned::Object(key, external_target) => {
                    if let Some(link) =
                        self.get(&key).filter(|link| link.external_target() != *external_target)
                    {
                        let mut renamed = Link::clone(&link);
                        renamed.rename(external_target);
                        self.upsert(allocator, Some(link), renamed);
                    }
                }
            }
        }
    }

    /// Publishes custom hostnames under their new owners.
    pub(super) fn apply_owner_changes(&self, allocator: &mut NameAllocator, passed: Vec<OwnerChange>) {
        for OwnerChange { name, to, .. } in &passed {
            if let (None, Some(name)) = (to, custom_hostnames::wire(name)) {
                self.index.custom_hostnames.set(&name, None);
            }
        }
        // Publish the new owners before unpublishing the old ones, so that no name is without a link. Refresh each link
        // once: many of its names may have changed.
        let new_owners = passed.iter().filter_map(|change| change.to.as_ref());
        let old_owners = passed.iter().filter_map(|change| change.from.as_ref());
        let keys: IndexSet<&ServiceKey> = new_owners.chain(old_owners).collect();
        for key in keys {
            self.refresh_hostnames(allocator, key);
        }
    }

    /// Maps a default name to a link, or removes the name. A link with an equal custom hostname loses or gets that
    /// hostname.
    fn set_default_name(&self, allocator: &mut NameAllocator, name: &[u8], link: Option<Arc<Link>>) {
        let owner = link.as_ref().map(|link| link.key.clone());
        let before = self.index.default_names.set(name, link);
        let is_changed = before.is_some() != owner.is_some();
        // The previous owner keeps its other names, but `NameTree::set` has marked its link as outdated: publish a new
        // version under the other names.
        if let (Some(loser), Some(owner)) = (before, owner)
            && loser.key != owner
            && self.get(&loser.key).is_some_and(|link| Arc::ptr_eq(&link, &loser))
        {
            self.publish(allocator, &Arc::new(Link::clone(&loser)));
        }
        if !is_changed {
            return;
        }
        for zone in &*self.zones() {
            for key in allocator.custom_hostnames.requesters(&names::text(&[name, &**zone].concat())) {
                self.refresh_hostnames(allocator, &key);
            }
        }
    }

    /// Stores a link again if its custom hostnames have changed.
    pub(super) fn refresh_hostnames(&self, allocator: &mut NameAllocator, key: &ServiceKey) {
        let Some(link) = self.get(key) else { return };
        if link.hostnames != self.hostnames_of(allocator, key) {
            let again = Link::clone(&link);
            self.upsert(allocator, Some(link), again);
        }
    }

    /// Returns the custom hostnames that a link owns, without hostnames that are the default name of a link.
    fn hostnames_of(&self, allocator: &NameAllocator, key: &ServiceKey) -> Box<[Arc<str>]> {
        let zones = self.zones();
        let free = |name: &str| {
            let Some(name) = custom_hostnames::wire(name) else { return false };
            let mut own = zones.iter().filter_map(|zone| name.strip_suffix(&**zone));
            !own.any(|name| matches!(self.index.default_names.find(name), Lookup::Link(_)))
        };
        allocator.custom_hostnames.names_of(key).into_iter().filter(|name| free(name)).collect()
    }
}

/// Returns `<service>.<namespace>`, unless the namespace is reserved below every zone.
fn dotted_name(key: &ServiceKey) -> Option<Vec<u8>> {
    key.dotted().filter(|_| key.namespace() != names::DELETED)
}
