//! How a link gets into the store: into the queues for its names, and under the names that it gets.

use std::sync::Arc;

use super::names::allocator::{NameAllocator, Reassigned, coalesce};
use super::names::custom_hostnames;
use super::names::custom_hostnames::OwnerChange;
use super::table::Keyed;
use super::{Lookup, Store};
use crate::model::link::{Link, LinkChange};
use crate::model::names;
use crate::model::service_key::ServiceKey;

impl Store {
    /// Stores a link under its names. A new one is put into the queues for them.
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

    /// Shows a link, in place of what it was, under the names and addresses that it has.
    pub(super) fn publish(&self, allocator: &mut NameAllocator, link: &Arc<Link>) {
        // Add new addresses first: a link must be found under each address that it has.
        self.index.addresses.add(link);
        if let Some(before) = self.links.insert(Keyed(Arc::clone(link))) {
            self.index.addresses.remove(&before.0, Some(link));
        }
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_own(allocator, &dotted, Some(Arc::clone(link)));
        }
        if let Some(label) = link.key.label().filter(|_| allocator.has_label(&link.key)) {
            self.set_own(allocator, &label, Some(Arc::clone(link)));
        }
        for name in link.hostnames.iter().filter_map(|name| custom_hostnames::wire(name)) {
            self.index.set_extra(name, Some(Arc::clone(link)));
        }
    }

    /// Takes a link and its claims out; the next link in each queue gets the name.
    pub(super) fn remove(&self, allocator: &mut NameAllocator, link: &Arc<Link>) -> LinkChange {
        let reassigned = allocator.remove(&link.key);
        self.apply_reassigned(allocator, reassigned);
        let passed = allocator.custom_hostnames.set_requested(&link.key, link.created, &[]);
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_own(allocator, &dotted, None);
        }
        if let Some(before) = self.links.remove(link.key.bytes()) {
            self.index.addresses.remove(&before.0, None);
        }
        self.apply_owner_changes(allocator, passed);
        self.record_change(allocator, &link.key, Some(Arc::clone(link)), None)
    }

    /// Gives names that have changed hands to their new owners. States in between aren't visible.
    pub(super) fn apply_reassigned(&self, allocator: &mut NameAllocator, changes: Vec<Reassigned>) {
        for change in coalesce(changes) {
            match change {
                Reassigned::Label(label, owner) => {
                    let owner = owner.and_then(|key| self.get(&key));
                    self.set_own(allocator, &label, owner);
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

    /// Gives further names that have changed hands to their new owners.
    pub(super) fn apply_owner_changes(&self, allocator: &mut NameAllocator, passed: Vec<OwnerChange>) {
        for OwnerChange { name, from, to } in passed {
            if to.is_none() {
                self.index.set_extra(name, None);
            }
            // Publish the new owner before unpublishing the old one.
            for key in [to, from].into_iter().flatten() {
                self.refresh_hostnames(allocator, &key);
            }
        }
    }

    /// Has one of the names that every link has lead to a link, or to nothing. A link with this
    /// custom hostname loses or gets it.
    fn set_own(&self, allocator: &mut NameAllocator, name: &[u8], link: Option<Arc<Link>>) {
        let owner = link.as_ref().map(|link| link.key.clone());
        let before = self.index.set_own(name, link);
        let is_changed = before.is_some() != owner.is_some();
        // The link that has lost it is published again under its other names.
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
            for key in allocator.custom_hostnames.requesters(&[name, &**zone].concat().into()) {
                self.refresh_hostnames(allocator, &key);
            }
        }
    }

    /// Stores a link again if its names have changed.
    pub(super) fn refresh_hostnames(&self, allocator: &mut NameAllocator, key: &ServiceKey) {
        let Some(link) = self.get(key) else { return };
        if link.hostnames != self.hostnames_of(allocator, key) {
            let again = Link::clone(&link);
            self.upsert(allocator, Some(link), again);
        }
    }

    /// Returns the names that a link asks for and has: none that is another link's own.
    fn hostnames_of(&self, allocator: &NameAllocator, key: &ServiceKey) -> Box<[Box<str>]> {
        let zones = self.zones();
        let free = |name: &str| {
            let Some(name) = custom_hostnames::wire(name) else { return false };
            let mut own = zones.iter().filter_map(|zone| name.strip_suffix(&**zone));
            !own.any(|name| matches!(self.index.find_own(name), Lookup::Link(_)))
        };
        allocator.custom_hostnames.names_of(key).into_iter().filter(|name| free(name)).collect()
    }
}

/// `<service>.<namespace>`. A zone hides those below its own label, which may be another one in each.
fn dotted_name(key: &ServiceKey) -> Option<Vec<u8>> {
    key.dotted().filter(|_| key.namespace() != names::DELETED)
}
