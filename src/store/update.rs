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
        allotment: &mut NameAllocator,
        before: Option<Arc<Link>>,
        mut link: Link,
    ) -> LinkChange {
        let mut reallotted = Vec::new();
        if before.as_ref().is_none_or(|before| before.created != link.created) {
            reallotted = allotment.remove(&link.key);
            let (own, changes) = allotment.add(&link.key, link.created);
            link.rename(own);
            reallotted.extend(changes);
        }
        let asks = |link: &Link| (link.created, link.wishes.hostnames.clone());
        let mut passed = Vec::new();
        if before.as_deref().is_none_or(|before| asks(before) != asks(&link)) {
            passed = allotment.extras.set_requested(&link.key, link.created, &link.wishes.hostnames);
        }
        link.hostnames = self.hostnames_of(allotment, &link.key);
        let link = Arc::new(link);
        self.publish(allotment, &link);
        let change = self.record_change(allotment, &Arc::clone(&link).key, before, Some(link));
        self.apply_reassigned(allotment, reallotted);
        self.apply_owner_changes(allotment, passed);
        change
    }

    /// Shows a link, in place of what it was, under the names and addresses that it has.
    pub(super) fn publish(&self, allotment: &mut NameAllocator, link: &Arc<Link>) {
        // Add new addresses first: a link must be found under each address that it has.
        self.index.addresses.add(link);
        if let Some(before) = self.links.insert(Keyed(Arc::clone(link))) {
            self.index.addresses.remove(&before.0, Some(link));
        }
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_own(allotment, &dotted, Some(Arc::clone(link)));
        }
        if let Some(label) = link.key.label().filter(|_| allotment.has_label(&link.key)) {
            self.set_own(allotment, &label, Some(Arc::clone(link)));
        }
        for name in link.hostnames.iter().filter_map(|name| custom_hostnames::wire(name)) {
            self.index.set_extra(name, Some(Arc::clone(link)));
        }
    }

    /// Takes a link and its claims out; the next link in each queue gets the name.
    pub(super) fn remove(&self, allotment: &mut NameAllocator, link: &Arc<Link>) -> LinkChange {
        let reallotted = allotment.remove(&link.key);
        self.apply_reassigned(allotment, reallotted);
        let passed = allotment.extras.set_requested(&link.key, link.created, &[]);
        if let Some(dotted) = dotted_name(&link.key) {
            self.set_own(allotment, &dotted, None);
        }
        if let Some(before) = self.links.remove(link.key.bytes()) {
            self.index.addresses.remove(&before.0, None);
        }
        self.apply_owner_changes(allotment, passed);
        self.record_change(allotment, &link.key, Some(Arc::clone(link)), None)
    }

    /// Gives names that have changed hands to their new owners. States in between aren't visible.
    pub(super) fn apply_reassigned(&self, allotment: &mut NameAllocator, changes: Vec<Reassigned>) {
        for change in coalesce(changes) {
            match change {
                Reassigned::Label(label, owner) => {
                    let owner = owner.and_then(|key| self.get(&key));
                    self.set_own(allotment, &label, owner);
                }
                Reassigned::Object(key, external_target) => {
                    if let Some(link) =
                        self.get(&key).filter(|link| link.external_target() != *external_target)
                    {
                        let mut renamed = Link::clone(&link);
                        renamed.rename(external_target);
                        self.upsert(allotment, Some(link), renamed);
                    }
                }
            }
        }
    }

    /// Gives further names that have changed hands to their new owners.
    pub(super) fn apply_owner_changes(&self, allotment: &mut NameAllocator, passed: Vec<OwnerChange>) {
        for OwnerChange { name, from, to } in passed {
            if to.is_none() {
                self.index.set_extra(name, None);
            }
            // Publish the new owner before unpublishing the old one.
            for key in [to, from].into_iter().flatten() {
                self.refresh_hostnames(allotment, &key);
            }
        }
    }

    /// Has one of the names that every link has lead to a link, or to nothing. A link with this
    /// custom hostname loses or gets it.
    fn set_own(&self, allotment: &mut NameAllocator, name: &[u8], link: Option<Arc<Link>>) {
        let owner = link.as_ref().map(|link| link.key.clone());
        let before = self.index.set_own(name, link);
        let is_changed = before.is_some() != owner.is_some();
        // The link that has lost it is published again under its other names.
        if let (Some(loser), Some(owner)) = (before, owner)
            && loser.key != owner
            && self.get(&loser.key).is_some_and(|link| Arc::ptr_eq(&link, &loser))
        {
            self.publish(allotment, &Arc::new(Link::clone(&loser)));
        }
        if !is_changed {
            return;
        }
        for zone in &*self.zones() {
            for key in allotment.extras.requesters(&[name, &**zone].concat().into()) {
                self.refresh_hostnames(allotment, &key);
            }
        }
    }

    /// Stores a link again if its names have changed.
    pub(super) fn refresh_hostnames(&self, allotment: &mut NameAllocator, key: &ServiceKey) {
        let Some(link) = self.get(key) else { return };
        if link.hostnames != self.hostnames_of(allotment, key) {
            let again = Link::clone(&link);
            self.upsert(allotment, Some(link), again);
        }
    }

    /// Returns the names that a link asks for and has: none that is another link's own.
    fn hostnames_of(&self, allotment: &NameAllocator, key: &ServiceKey) -> Box<[Box<str>]> {
        let zones = self.zones();
        let free = |name: &str| {
            let Some(name) = custom_hostnames::wire(name) else { return false };
            let mut own = zones.iter().filter_map(|zone| name.strip_suffix(&**zone));
            !own.any(|name| matches!(self.index.find_own(name), Lookup::Link(_)))
        };
        allotment.extras.names_of(key).into_iter().filter(|name| free(name)).collect()
    }
}

/// `<service>.<namespace>`. A zone hides those below its own label, which may be another one in each.
fn dotted_name(key: &ServiceKey) -> Option<Vec<u8>> {
    key.dotted().filter(|_| key.namespace() != names::DELETED)
}
