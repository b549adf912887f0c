//! The changes of the store: what sources have observed, the owners of names that external targets record, and zones.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indexmap::IndexSet;

use super::names::{Names, OwnerChange, Reassigned};
use super::owners::OwnerId;
use super::{Input, Lookup, OnGone, Store};
use crate::model::link::{Link, LinkChange, ObservedService};
use crate::model::names;
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::service_key::ServiceKey;

impl Store {
    /// Replaces the zones, and decides again which owner has which custom hostname: a hostname may now equal another
    /// link's default name, or other sources may come first for it.
    pub fn set_zones<Z: Into<Zone>>(&self, zones: impl IntoIterator<Item = Z>) {
        let mut names = self.write();
        let zones: Arc<[Zone]> = zones.into_iter().map(Into::into).collect();
        self.listed.send_modify(|listed| listed.change_zones(&zones));
        let has_default_names = |zones: &[Zone], origin: &[u8]| {
            zones.iter().any(|zone| *zone.origin == *origin && zone.has_default_names())
        };
        let before = self.zones.send_replace(Arc::clone(&zones));
        let differs =
            |zone: &Zone| has_default_names(&before, &zone.origin) != has_default_names(&zones, &zone.origin);
        if before.iter().any(differs) {
            // The zone gets or loses default names.
            self.index.slots.set_changed();
        }
        self.index.slots.outdate_all();
        let all = self.owners.all(None);
        // A name may pass several times: the first change tells where it was, the last one where it is.
        let mut passed: BTreeMap<Arc<str>, OwnerChange> = BTreeMap::new();
        for (id, _) in &all {
            let claims = names.claims_of(*id);
            for change in self.request(&mut names, *id, &claims) {
                let to = change.to;
                passed.entry(Arc::clone(&change.name)).or_insert(change).to = to;
            }
        }
        let passed = passed.into_values().filter(|change| change.from != change.to).collect();
        self.apply_owner_changes(&mut names, passed);
        for (id, _) in all {
            self.refresh_hostnames(&mut names, id);
        }
        self.end_fallback();
    }

    /// Records what an owner asks for, and what is behind its names, which many owners may share. `resource_version` is the
    /// newest one of both, if it is of the API server of the links.
    pub fn observe(&self, owner: &Owner, claims: &Claims, target: &Arc<Link>, resource_version: Option<u64>) {
        if owner.is_service() {
            let mut link = Link { key: owner.key.clone(), created: claims.created, ..Link::clone(target) };
            link.annotations.hostnames = Arc::clone(&claims.names);
            self.update(&owner.key, resource_version, |_| Some(link));
            return;
        }
        let mut names = self.write();
        (names.version, names.cluster) = (resource_version, owner.source.cluster.clone());
        self.observe_other(&mut names, owner, claims, target);
    }

    /// Records what owners of a source, which isn't that of the Services, ask for and what is behind their names, as
    /// [`Self::observe`] does, with one lock; without a target the owner is gone.
    pub fn observe_all(
        &self,
        source: &Source,
        all: impl IntoIterator<Item = (ServiceKey, Option<(Claims, Arc<Link>)>)>,
        resource_version: Option<u64>,
    ) {
        let mut names = self.write();
        (names.version, names.cluster) = (resource_version, source.cluster.clone());
        for (key, now) in all {
            let owner = Owner { source: source.clone(), key };
            match now {
                Some((claims, target)) => self.observe_other(&mut names, &owner, &claims, &target),
                None if self.has(&owner) => drop(self.remove(&mut names, owner)),
                None => {}
            }
        }
    }

    /// Lets all names with a target lead to a newer version of it at once, however many they are. Their owners are to be
    /// observed with it after that: then the serial changes, and subscribers are told.
    pub fn supersede(&self, target: &Link, next: &Arc<Link>) {
        let _writer = self.write();
        target.set_next(next);
    }

    pub(super) fn observe_other(
        &self,
        names: &mut Names,
        owner: &Owner,
        claims: &Claims,
        target: &Arc<Link>,
    ) {
        let id = self.owners.intern(owner);
        let before = self.owners.get(id).1;
        let is_same = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, target));
        let known = names.claims_of(id);
        // Claims without names have no rank.
        let is_same_rank = claims.names.is_empty() || known.created == claims.created;
        let has_same_claims = is_same_rank && known.names == claims.names && known.listed == claims.listed;
        if is_same && has_same_claims {
            return;
        }
        self.publish(names, id, target);
        let passed = match has_same_claims {
            true => Vec::new(),
            false => self.request(names, id, claims),
        };
        self.record_change(names, owner, before, Some(Arc::clone(target)));
        self.refresh_hostnames(names, id);
        self.apply_owner_changes(names, passed);
    }

    /// Applies one observed Service; returns the change of its link, if any.
    pub fn apply(&self, observed: ObservedService) -> Option<LinkChange> {
        let mut names = self.write();
        self.apply_one(&mut names, observed)
    }

    /// Replaces the link of a Service by what `next` makes of it; `None` if it stays as it is. Returns the change, if any.
    pub fn update(
        &self,
        key: &ServiceKey,
        resource_version: Option<u64>,
        next: impl FnOnce(Option<&Arc<Link>>) -> Option<Link>,
    ) -> Option<LinkChange> {
        let mut names = self.write();
        let before = self.get(key);
        let link = next(before.as_ref())?;
        names.version = resource_version;
        self.put(&mut names, before, link)
    }

    /// Records that a Service exists but can't be decoded. Its link, if any, stays as it is.
    pub fn set_unreadable(&self, key: &ServiceKey) {
        self.unreadable.insert(key.clone());
    }

    /// Records that a Service is gone, or has left the selection, since the given time: its deletion delay starts then. If
    /// `uid` isn't that of the link, another Service of the same name is gone, and the link stays as it is.
    pub fn gone(
        &self,
        key: &ServiceKey,
        uid: &str,
        resource_version: Option<u64>,
        since: Instant,
    ) -> Option<LinkChange> {
        let mut names = self.write();
        let was_unreadable = self.unreadable.remove(key).is_some();
        let before = self.get(key);
        let Some(service) = before.as_ref().and_then(Link::service_link) else {
            // The Service couldn't be decoded, but its external target may still exist.
            return was_unreadable.then(|| self.record_change(&mut names, key, before.clone(), before));
        };
        if service.uid != *uid || service.is_gone() {
            return None;
        }
        names.version = resource_version;
        self.mark_gone(&mut names, key, since)
    }

    /// Replaces the links of a namespace (`None`: of all namespaces) by a complete list. Services that the list lacks
    /// are gone, except those in `unreadable`, which exist but can't be decoded, and those in `kept`, which wait for a
    /// second list or for the answer to a LIST by name, or have recently left the selection. Unchanged links aren't
    /// touched, and readers see each link either before or after its change. Returns the changes.
    pub fn replace(
        &self,
        namespace: Option<&str>,
        list: impl IntoIterator<Item = ObservedService>,
        unreadable: Vec<ServiceKey>,
        kept: &HashSet<ServiceKey>,
    ) -> Vec<LinkChange> {
        let mut names = self.write();
        let within = |key: &ServiceKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
        self.unreadable.retain(|key| !within(key));
        let mut listed = HashSet::new();
        for key in unreadable {
            self.unreadable.insert(key.clone());
            listed.insert(key);
        }
        let mut changes = Vec::new();
        for observed in list {
            listed.insert(observed.key.clone());
            changes.extend(self.apply_one(&mut names, observed));
        }
        let links = self.links();
        let absent =
            links.iter().filter_map(Link::service_link).filter(|link| within(&link.key)).filter(|link| {
                let is_listed = listed.contains(&link.key) || kept.contains(&link.key);
                // A link that is gone, or of a Service that no list has had, can't be missing from one.
                !is_listed && !link.is_gone() && !link.was_never_observed()
            });
        for link in absent {
            changes.extend(self.mark_gone(&mut names, &link.key, Instant::now()));
        }
        changes
    }

    /// Forgets an owner, and frees its names: a Service only if it is gone, or was never observed. An overridden link only
    /// forgets its Service.
    pub fn forget(&self, owner: impl Into<Owner>) -> Option<LinkChange> {
        let owner = owner.into();
        let mut names = self.write();
        let before = self.owners.find(&owner)?.1?;
        if owner.is_service() {
            before.service_link().filter(|link| link.is_gone() || link.was_never_observed())?;
            if let Some(link) = before.with_service(None) {
                return self.put(&mut names, Some(before), link);
            }
        }
        self.remove(&mut names, owner)
    }

    /// Records the link that an external target is labelled for, and the custom hostnames recorded on the external
    /// target: the owner of a name keeps the name.
    pub fn set_owner(&self, object: &str, owner: Option<&ServiceKey>, hostnames: &[Arc<str>]) {
        let mut names = self.write();
        let owner = owner.map(|key| self.owners.intern(&Owner::from(key)));
        let (reassigned, passed) = names.record(object, owner, hostnames);
        self.apply_reassigned(&mut names, reassigned);
        self.apply_owner_changes(&mut names, passed);
    }

    /// Continues with this resourceVersion, which may be older than those before, because etcd has been restored to an
    /// earlier revision. The serial of the zone still increases, as it must never decrease (RFC 1982): by one with each
    /// change, until the resourceVersions exceed it. A new store begins with this one. From here on the serial is never
    /// derived from the clock.
    pub fn continue_at(&self, resource_version: u64) {
        let mut names = self.write();
        self.has_versions.store(true, Ordering::Relaxed);
        let sum = names.restart_version(resource_version);
        let next = match self.serial.load(Ordering::Relaxed) {
            0 => sum,
            last => last + 1,
        };
        self.serial.store(next, Ordering::Relaxed);
    }

    // === links ===

    fn apply_one(&self, names: &mut Names, mut observed: ObservedService) -> Option<LinkChange> {
        self.unreadable.remove(&observed.key);
        names.version = names.version.max(observed.resource_version);
        let before = self.get(&observed.key);
        if let Some(before) = &before {
            // All maps share the text of the key.
            observed.key = before.key.clone();
        }
        let known = before.as_ref().and_then(Link::service_link).map(|link| &**link);
        // Without a usable target the last one stays, unless DNS would lead in a circle, as after a change of zones.
        let keeps = observed.ingress.hostnames.is_empty() && observed.ingress.addresses.is_empty();
        let emptied = known.filter(|link| keeps && self.leads_to(link.target.as_ref(), &link.key));
        let emptied = emptied.map(|link| Link { target: None, ..Link::clone(link) });
        let link = observed.link(emptied.as_ref().or(known), !self.is_known(Input::Services));
        let link = match &before {
            Some(before) => before.with_service(Some(link))?,
            None => link,
        };
        self.put(names, before, link)
    }

    fn mark_gone(&self, names: &mut Names, key: &ServiceKey, since: Instant) -> Option<LinkChange> {
        let before = self.get(key)?;
        let service = before.service_link()?;
        match before.with_service((self.on_gone == OnGone::Kept).then(|| service.to_gone(since))) {
            Some(link) => self.put(names, Some(before), link),
            None => self.remove(names, key),
        }
    }

    /// Stores the link of a Service in the place of the link before, unless they are equal.
    fn put(&self, names: &mut Names, before: Option<Arc<Link>>, link: Link) -> Option<LinkChange> {
        match &before {
            Some(before) if **before == link => return None,
            // The end of a Service, or of an override without a Service.
            Some(before)
                if self.on_gone == OnGone::Dropped
                    && link.is_gone()
                    && link.overridden.is_none()
                    && (before.overridden.is_some() || !before.is_gone()) =>
            {
                return self.remove(names, &link.key);
            }
            _ => {}
        }
        Some(self.upsert(names, before, link))
    }

    /// Stores a link and publishes it under its names. A link that is new or has another rank claims its names first.
    fn upsert(&self, names: &mut Names, before: Option<Arc<Link>>, mut link: Link) -> LinkChange {
        let id = self.owners.intern(&Owner::from(&link.key));
        let mut reassigned = Vec::new();
        if before.as_ref().is_none_or(|before| before.created != link.created) {
            let (own, changes) = names.claim(id, link.created);
            link.rename(own);
            reassigned = changes;
        }
        let asks = |link: &Link| (link.created, link.annotations.hostnames.clone());
        let mut passed = Vec::new();
        if before.as_deref().is_none_or(|before| asks(before) != asks(&link)) {
            let (created, hostnames) = asks(&link);
            passed = self.request(names, id, &Claims { created, names: hostnames, listed: None });
        }
        link.hostnames = self.free_hostnames(names, id).into();
        let link = Arc::new(link);
        let first = names.changes.len();
        self.publish(names, id, &link);
        let change =
            self.record_change(names, &Arc::clone(&link).key, before.clone(), Some(Arc::clone(&link)));
        // The names of this link may have changed other links, and this one again.
        names.changes[first..].rotate_right(1);
        self.apply_reassigned(names, reassigned);
        self.apply_owner_changes(names, passed);
        self.set_internal_names(names, &link.key, before.as_ref(), Some(&link));
        change
    }

    /// Publishes what is behind an owner's names, in place of the previous version. A Service's link is published under
    /// its names and addresses.
    fn publish(&self, names: &mut Names, id: OwnerId, link: &Arc<Link>) {
        let (owner, before) = self.owners.get(id);
        if owner.is_service() {
            self.index.addresses.set(id, before.as_deref(), Some(link));
        }
        self.owners.set_target(id, Some(Arc::clone(link)));
        if let Some(dotted) = dotted_name(&owner) {
            self.set_default_name(names, &dotted, Some(Arc::clone(link)));
        }
        if owner.is_service()
            && let Some(label) = owner.key.label().filter(|_| names.has_label(id))
        {
            self.set_default_name(names, &label, Some(Arc::clone(link)));
        }
        // All owners that share a target are going to be observed with its newer version.
        if let Some(before) = before.filter(|before| before.key == link.key && !Arc::ptr_eq(before, link)) {
            before.set_outdated();
        }
        // Another owner's target may be a Service's link, whose names aren't the owner's.
        let own = link.hostnames.iter().filter(|_| owner.is_service());
        for name in own.filter_map(|name| names::wire_of(name)) {
            self.index.custom_hostnames.set(&name, Some(Arc::clone(link)));
        }
    }

    /// Removes an owner and its claims; the next claim for each name wins it.
    pub(super) fn remove(&self, names: &mut Names, owner: impl Into<Owner>) -> Option<LinkChange> {
        let owner = owner.into();
        let (id, _) = self.owners.find(&owner)?;
        let reassigned = names.release(id);
        self.apply_reassigned(names, reassigned);
        let passed = names.request(id, &Claims::default(), |_, _| None);
        if let Some(dotted) = dotted_name(&owner) {
            self.set_default_name(names, &dotted, None);
        }
        // Its label may have become a custom hostname of its own.
        let before = self.owners.get(id).1;
        self.index.addresses.set(id, before.as_deref(), None);
        self.owners.set_target(id, None);
        self.apply_owner_changes(names, passed);
        if !names.is_recorded(id) {
            self.owners.release(id);
        }
        if owner.is_service() {
            self.set_internal_names(names, &owner.key, before.as_ref(), None);
        }
        Some(self.record_change(names, owner, before, None))
    }

    // === names ===

    /// Records the custom hostnames that an owner asks for. Returns which of them have another owner now.
    fn request(&self, names: &mut Names, id: OwnerId, claims: &Claims) -> Vec<OwnerChange> {
        let zones = self.zones();
        names.request(id, claims, |name, source| Zone::place(&zones, name, source))
    }

    /// Publishes names under their new owners.
    fn apply_reassigned(&self, names: &mut Names, changes: Vec<Reassigned>) {
        for change in changes {
            match change {
                Reassigned::Label(label, owner) => {
                    let owner = owner.and_then(|id| self.owners.get(id).1);
                    self.set_default_name(names, &label, owner);
                }
                Reassigned::Object(id, external_target) => {
                    let link = self.owners.get(id).1;
                    if let Some(link) = link.filter(|link| link.external_target() != *external_target) {
                        let mut renamed = Link::clone(&link);
                        renamed.rename(external_target);
                        self.upsert(names, Some(link), renamed);
                    }
                }
            }
        }
    }

    /// Publishes custom hostnames under their new owners.
    fn apply_owner_changes(&self, names: &mut Names, passed: Vec<OwnerChange>) {
        for OwnerChange { name, to, .. } in &passed {
            let Some(wire) = names::wire_of(name) else { continue };
            let to = to.map(|id| self.owners.get(id));
            if to.as_ref().is_none_or(|(owner, _)| !owner.is_service()) {
                let target = to.and_then(|(_, target)| target).filter(|_| self.is_free(&wire));
                self.index.custom_hostnames.set(&wire, target);
            }
        }
        // Publish the new owners before unpublishing the old ones, so that no name is without a link. Refresh each link
        // once: many of its names may have changed.
        let new_owners = passed.iter().filter_map(|change| change.to);
        let old_owners = passed.iter().filter_map(|change| change.from);
        let ids: IndexSet<OwnerId> = new_owners.chain(old_owners).collect();
        for id in ids {
            if self.owners.get(id).0.is_service() {
                self.refresh_hostnames(names, id);
            } else {
                self.record_other_names(names, id);
            }
        }
    }

    /// Tells subscribers that an owner that isn't a Service has gained or lost names.
    fn record_other_names(&self, names: &mut Names, id: OwnerId) {
        let (owner, Some(target)) = self.owners.get(id) else { return };
        if names.changes.last().is_none_or(|last| last.owner != owner) {
            self.record_change(names, owner, Some(Arc::clone(&target)), Some(target));
        }
    }

    /// Maps a default name to a link, or removes the name. A link with an equal custom hostname loses or gets that
    /// hostname.
    fn set_default_name(&self, names: &mut Names, name: &[u8], link: Option<Arc<Link>>) {
        let owner = link.as_ref().map(|link| link.key.clone());
        let before = self.index.default_names.set(name, link);
        let is_changed = before.is_some() != owner.is_some();
        // The previous owner keeps its other names, but `NameTree::set` has marked its link as outdated: publish a new
        // version under the other names.
        if let (Some(loser), Some(owner)) = (before, owner)
            && loser.key != owner
            && let Some((id, Some(link))) = self.owners.find(&Owner::from(&loser.key))
            && Arc::ptr_eq(&link, &loser)
        {
            self.publish(names, id, &Arc::new(Link::clone(&loser)));
        }
        if !is_changed {
            return;
        }
        for zone in self.zones().iter().filter(|zone| zone.has_default_names()) {
            for id in names.requesters(&names::text(&[name, &*zone.origin].concat())) {
                self.refresh_hostnames(names, id);
            }
        }
    }

    /// Stores a link again if its custom hostnames have changed. Publishes those of another owner again.
    fn refresh_hostnames(&self, names: &mut Names, id: OwnerId) {
        let (owner, Some(target)) = self.owners.get(id) else { return };
        if owner.is_service() {
            if *target.hostnames != *self.free_hostnames(names, id) {
                let again = Link::clone(&target);
                self.upsert(names, Some(target), again);
            }
            return;
        }
        // These owners have no default names.
        for wire in names.hostnames_of(id).iter().filter_map(|name| names::wire_of(name)) {
            let published = self.is_free(&wire).then(|| Arc::clone(&target));
            let is_published = published.is_some();
            if self.index.custom_hostnames.set(&wire, published).is_some() != is_published {
                self.record_other_names(names, id);
            }
        }
    }

    /// Returns the custom hostnames that an owner has, without hostnames that are the default name of a link, or are going
    /// to be a default name of the owner itself.
    fn free_hostnames(&self, names: &Names, id: OwnerId) -> Vec<Arc<str>> {
        let mut held = names.hostnames_of(id);
        if held.is_empty() {
            return held;
        }
        let (owner, zones) = (self.owners.get(id).0, self.zones());
        let own = [dotted_name(&owner), owner.key.label().filter(|_| names.has_label(id))];
        let is_own = |wire: &[u8]| {
            let zones = zones.iter().filter(|zone| zone.has_default_names());
            let mut relative = zones.filter_map(|zone| wire.strip_suffix(&*zone.origin));
            relative.any(|relative| own.iter().flatten().any(|name| *name == relative))
        };
        held.retain(|name| names::wire_of(name).is_some_and(|wire| self.is_free(&wire) && !is_own(&wire)));
        held
    }

    /// Returns whether a name in wire form isn't the default name of a link.
    pub(super) fn is_free(&self, name: &[u8]) -> bool {
        let zones = self.zones();
        let zones = zones.iter().filter(|zone| zone.has_default_names());
        let mut own = zones.filter_map(|zone| name.strip_suffix(&*zone.origin));
        !own.any(|name| matches!(self.index.default_names.find(name), Lookup::Link(_)))
    }
}

/// Returns `<service>.<namespace>` of a Service, unless the namespace is reserved below every zone.
fn dotted_name(owner: &Owner) -> Option<Vec<u8>> {
    owner.key.dotted().filter(|_| owner.is_service() && owner.key.namespace() != names::DELETED)
}
