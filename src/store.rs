//! The links: a concurrent map by Service key, an index by DNS name and by address, and a change feed.
//!
//! `sync` writes the store, `dns` reads it, and the two modules meet nowhere else. The store does no I/O. A reader locks
//! one shard of the links, or the index of names, while it copies a reference. Writers are serialized.

pub mod fallback;
mod index;
pub mod metrics;
mod name_slots;
pub mod names;
mod reverse_index;

mod update;

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use dashmap::{DashMap, DashSet};
use hickory_proto::rr::Name;
use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{broadcast, watch};

use crate::model::link::{Link, LinkChange, ObservedService, Target};
use crate::model::link_override::{LinkOverride, OverriddenLink};
use crate::model::service_key::ServiceKey;
use fallback::Fallback;
use index::Index;
pub use index::Lookup;
pub use name_slots::NameDependency;
use names::allocator::NameAllocator;

/// Capacity of the change feed, in changes. A subscriber that falls behind rescans all links, so a larger number only
/// saves work.
const FEED_CAPACITY: usize = 1024;

/// What the sources have to tell before something may rest on its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The load balancers: from here on a name that isn't in the store doesn't exist, unless [`Store::may_lack`] it.
    Services,
    /// The StableNames, which override links. They also count as known if they can't be listed.
    StableNames,
    /// The external targets, which record owners of names, so that a list doesn't give a name to another link. They also
    /// count as known if they can't be read.
    ExternalTargets,
}

/// How the store treats a link after its Service is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnGone {
    /// The link keeps its names, without a target, until [`Store::forget`]: the reconciler removes the external target
    /// first.
    Kept,
    /// The link is removed at once. For a store without a backend for external targets.
    Dropped,
}

/// The links and the index of their names.
#[derive(Debug)]
pub struct Store {
    links: DashMap<ServiceKey, Arc<Link>>,
    index: Index,
    /// The owner of each name. Every change of a link holds this lock.
    allocator: Mutex<NameAllocator>,
    feed: broadcast::Sender<LinkChange>,
    /// Which inputs are known completely, by [`Input`].
    known: [watch::Sender<bool>; 3],
    /// Services that exist but can't be decoded.
    unreadable: DashSet<ServiceKey>,
    /// The namespaces whose Services aren't known although the load balancers are.
    unknown_namespaces: ArcSwapOption<BTreeSet<Box<str>>>,
    serial: AtomicU64,
    /// The serial minus the newest resourceVersion: 0 unless resourceVersions have gone backwards.
    serial_offset: AtomicU64,
    /// Whether the serial follows resourceVersions instead of the clock.
    has_versions: AtomicBool,
    on_gone: OnGone,
    zones: RwLock<Zones>,
    /// What DNS answers from until the load balancers are known.
    fallback: ArcSwapOption<Fallback>,
    /// Counts published changes that the change feed doesn't have: only answers and what is saved depend on them.
    silent_updates: watch::Sender<u64>,
}

/// The origins of zones, in wire form.
type Zones = Arc<[Box<[u8]>]>;

fn origins<'a>(zones: impl IntoIterator<Item = &'a Name>) -> Zones {
    zones.into_iter().filter_map(|zone| Some(crate::model::names::wire(zone.iter())?.into())).collect()
}

impl Store {
    /// Returns an empty store that isn't synced yet.
    #[must_use]
    pub fn new(policy: OnGone) -> Self {
        Self {
            links: DashMap::new(),
            index: Index::default(),
            allocator: Mutex::default(),
            feed: broadcast::Sender::new(FEED_CAPACITY),
            known: Default::default(),
            unreadable: DashSet::new(),
            unknown_namespaces: ArcSwapOption::default(),
            serial: AtomicU64::new(0),
            serial_offset: AtomicU64::new(0),
            has_versions: AtomicBool::new(false),
            on_gone: policy,
            zones: RwLock::default(),
            fallback: ArcSwapOption::default(),
            silent_updates: watch::Sender::new(0),
        }
    }

    /// Returns the store with its zones. They tell whether a custom hostname of one link is the default name of
    /// another.
    #[must_use]
    pub fn with_zones<'a>(self, zones: impl IntoIterator<Item = &'a Name>) -> Self {
        Self { zones: RwLock::new(origins(zones)), ..self }
    }

    /// Replaces the zones and checks all custom hostnames again: a hostname may now equal another link's default name.
    pub fn set_zones<'a>(&self, zones: impl IntoIterator<Item = &'a Name>) {
        let mut allocator = self.write();
        *self.zones.write() = origins(zones);
        self.index.slots.outdate_all();
        for link in self.links() {
            self.refresh_hostnames(&mut allocator, &link.key);
        }
    }

    /// Returns the origins of the zones in which links have names now.
    pub(crate) fn zones(&self) -> Zones {
        Arc::clone(&self.zones.read())
    }

    /// Applies one observed Service; returns the change of its link, if any.
    pub fn apply(&self, observed: ObservedService) -> Option<LinkChange> {
        let mut allocator = self.write();
        self.apply_one(&mut allocator, observed)
    }

    /// Replaces the link of a key by what `next` makes of it; `None` if it stays as it is. Returns the change, if there is
    /// one for the feed.
    pub fn observe(
        &self,
        key: &ServiceKey,
        next: impl FnOnce(Option<&Arc<Link>>) -> Option<Link>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let before = self.get(key);
        let link = next(before.as_ref())?;
        self.put(&mut allocator, before, link)
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
        let mut allocator = self.write();
        let was_unreadable = self.unreadable.remove(key).is_some();
        let before = self.get(key);
        let Some(service) = before.as_ref().and_then(Link::service_link) else {
            // The Service couldn't be decoded, but its external target may still exist.
            return was_unreadable.then(|| self.record_change(&mut allocator, key, before.clone(), before));
        };
        if service.uid != *uid || service.is_gone() {
            return None;
        }
        self.advance_serial(resource_version);
        self.mark_gone(&mut allocator, key, since)
    }

    /// Replaces the links of a namespace (`None`: of all namespaces) by a complete list. Services that the list lacks
    /// are gone, except those in `unreadable`, which exist but can't be decoded, and those in `kept`, which wait for a
    /// second list or for the answer to a LIST by name, or have recently left the selection. Unchanged links aren't touched, and readers see each link either before or after its change.
    /// Returns the changes.
    pub fn replace(
        &self,
        namespace: Option<&str>,
        list: impl IntoIterator<Item = ObservedService>,
        unreadable: Vec<ServiceKey>,
        kept: &HashSet<ServiceKey>,
    ) -> Vec<LinkChange> {
        let mut allocator = self.write();
        let within = |key: &ServiceKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
        self.unreadable.retain(|key| !within(key));
        let mut listed = HashSet::new();
        for key in unreadable {
            self.unreadable.insert(key.clone());
            listed.insert(key);
        }
        let mut changes = Vec::new();
        allocator.pending_changes = Some(Vec::new());
        for observed in list {
            listed.insert(observed.key.clone());
            changes.extend(self.apply_one(&mut allocator, observed));
        }
        let absent: Vec<Arc<Link>> = self
            .services()
            .into_iter()
            .filter(|link| within(&link.key))
            .filter(|link| !listed.contains(&link.key) && !kept.contains(&link.key))
            // A link that is gone, or of a Service that no list has had, can't be missing from one.
            .filter(|link| !link.is_gone() && !link.was_never_observed())
            .collect();
        for link in absent {
            changes.extend(self.mark_gone(&mut allocator, &link.key, Instant::now()));
        }
        self.send_pending(&mut allocator);
        changes
    }

    /// Changes the namespaces whose Services aren't known although the load balancers are.
    pub fn update_unknown_namespaces(&self, change: impl Fn(&mut BTreeSet<Box<str>>)) {
        self.unknown_namespaces.rcu(|known| {
            let mut namespaces = known.as_deref().cloned().unwrap_or_default();
            change(&mut namespaces);
            (!namespaces.is_empty()).then(|| Arc::new(namespaces))
        });
    }

    /// Returns whether a name below a zone, in the form of [`crate::model::names::wire`], may be the default name of a
    /// Service in a namespace whose Services aren't known. A cut label may be of any namespace.
    #[must_use]
    pub fn may_lack(&self, relative: &[u8]) -> bool {
        let namespaces = self.unknown_namespaces.load();
        let Some(namespaces) = namespaces.as_deref() else { return false };
        let Some(last) = crate::model::names::labels(relative).last() else { return false };
        let is_of = |namespace: &str| {
            let before = last.strip_suffix(namespace.as_bytes());
            before.is_some_and(|before| before.is_empty() || before.ends_with(b"-"))
        };
        namespaces.iter().any(|namespace| is_of(namespace)) || crate::model::names::may_be_cut(last)
    }

    /// Records that an input is known completely.
    pub fn set_known(&self, input: Input) {
        if input != Input::Services {
            self.known[input as usize].send_replace(true);
            return;
        }
        // A zone without links needs a serial, too, if the serial is derived from the clock.
        if self.serial.load(Ordering::Relaxed) == 0 {
            self.advance_serial(None);
        }
        self.known[input as usize].send_replace(true);
        // Reused answers from before the first list, and those from the fallback, are invalid from here on.
        let _writer = self.write();
        self.index.slots.outdate_all();
        self.replace_fallback(None);
    }

    /// Forgets a link that is gone, or of a Service that was never observed, and frees its names. An overridden link only
    /// forgets its Service.
    pub fn forget(&self, key: &ServiceKey) -> Option<LinkChange> {
        let mut allocator = self.write();
        let before = self.get(key)?;
        before.service_link().filter(|link| link.is_gone() || link.was_never_observed())?;
        match before.with_service(None) {
            Some(link) => self.put(&mut allocator, Some(before), link),
            None => Some(self.remove(&mut allocator, &before)),
        }
    }

    /// Gives the link of a key to a StableName, or updates its override. The Service of the same name is still
    /// followed, and gets the link back when the override ends. The names of the link stay. Returns `None` if nothing
    /// changes.
    pub fn set_override(
        &self,
        key: &ServiceKey,
        by: LinkOverride,
        resource_version: Option<u64>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        if resource_version.is_some() {
            self.advance_serial(resource_version);
        }
        let before = self.get(key);
        let service_link = before.as_ref().and_then(Link::service_link).cloned();
        let link = OverriddenLink { by, service_link }.link(key, before.as_deref());
        self.put(&mut allocator, before, link)
    }

    /// Ends the override of a link because its StableName is gone since the given time. The Service of the same
    /// name gets the link back; without that Service the link is that of a deleted Service: see [`OnGone`].
    pub fn end_override(
        &self,
        key: &ServiceKey,
        resource_version: Option<u64>,
        since: Instant,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let link = self.get(key).filter(|link| link.overridden.is_some())?;
        if resource_version.is_some() {
            self.advance_serial(resource_version);
        }
        let after = match link.service_link().filter(|service| !service.is_gone()) {
            Some(service) => service.after_override(&link),
            None if self.on_gone == OnGone::Dropped => return Some(self.remove(&mut allocator, &link)),
            None => link.to_gone(since),
        };
        Some(self.upsert(&mut allocator, Some(link), after))
    }

    /// Records the link that an external target is labelled for, and the custom hostnames recorded on the external
    /// target: the owner of a name keeps the name.
    pub fn set_owner(&self, object: &str, owner: Option<&ServiceKey>, hostnames: &[Arc<str>]) {
        let mut allocator = self.write();
        let reassigned = allocator.set_owner(object, owner);
        self.apply_reassigned(&mut allocator, reassigned);
        let passed = allocator.custom_hostnames.set_recorded(object, owner.map(|owner| (owner, hostnames)));
        self.apply_owner_changes(&mut allocator, passed);
    }

    fn apply_one(&self, allocator: &mut NameAllocator, mut observed: ObservedService) -> Option<LinkChange> {
        self.unreadable.remove(&observed.key);
        if observed.resource_version.is_some() {
            self.advance_serial(observed.resource_version);
        }
        let before = self.get(&observed.key);
        if let Some(before) = &before {
            // All maps share the text of the key.
            observed.key = before.key.clone();
        }
        let known = before.as_ref().and_then(Link::service_link);
        let link = observed.link(known.map(|link| &**link), !self.is_known(Input::Services));
        let link = match &before {
            Some(before) => before.with_service(Some(link))?,
            None => link,
        };
        self.put(allocator, before, link)
    }

    fn mark_gone(
        &self,
        allocator: &mut NameAllocator,
        key: &ServiceKey,
        since: Instant,
    ) -> Option<LinkChange> {
        let before = self.get(key)?;
        let service = before.service_link()?;
        match before.with_service((self.on_gone == OnGone::Kept).then(|| service.to_gone(since))) {
            Some(link) => self.put(allocator, Some(before), link),
            None => Some(self.remove(allocator, &before)),
        }
    }

    /// Stores the link of a key in the place of the link before, unless they are equal.
    fn put(
        &self,
        allocator: &mut NameAllocator,
        before: Option<Arc<Link>>,
        link: Link,
    ) -> Option<LinkChange> {
        match &before {
            Some(before) if **before == link => return None,
            Some(before) if before.differs_only_for_dns(&link) => {
                self.advance_serial(None);
                self.publish(allocator, &Arc::new(link));
                self.count_silent_update();
                return None;
            }
            _ => {}
        }
        Some(self.upsert(allocator, before, link))
    }

    fn record_change(
        &self,
        allocator: &mut NameAllocator,
        key: &ServiceKey,
        before: Option<Arc<Link>>,
        after: Option<Arc<Link>>,
    ) -> LinkChange {
        let change = LinkChange { key: key.clone(), before, after };
        self.advance_serial(None);
        self.invalidate_fallback();
        match &mut allocator.pending_changes {
            Some(queued) => queued.push(change.clone()),
            // The send fails if there are no subscribers, which is fine.
            None => drop(self.feed.send(change.clone())),
        }
        change
    }

    /// Records that a link was published without a change for the feed.
    fn count_silent_update(&self) {
        self.invalidate_fallback();
        self.silent_updates.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn send_pending(&self, allocator: &mut NameAllocator) {
        for change in allocator.pending_changes.take().into_iter().flatten() {
            let _ = self.feed.send(change);
        }
    }

    /// Continues with a resourceVersion that is older than those before, because etcd has been restored to an earlier
    /// revision. The serial of the zone still increases, as it must never decrease (RFC 1982). A process that starts
    /// later counts from the resourceVersions again.
    pub fn rewind(&self, resource_version: u64) {
        let _writer = self.write();
        let next = self.serial.load(Ordering::Relaxed) + 1;
        self.serial_offset.store(next.saturating_sub(resource_version), Ordering::Relaxed);
        self.serial.store(next, Ordering::Relaxed);
    }

    /// Advances the serial of the zone: to the newest resourceVersion applied, which all replicas share, or, for a
    /// source without resourceVersions, to the time in seconds, so that a restart never decreases it.
    fn advance_serial(&self, resource_version: Option<u64>) {
        match resource_version {
            Some(version) => {
                self.has_versions.store(true, Ordering::Relaxed);
                let serial = version.saturating_add(self.serial_offset.load(Ordering::Relaxed));
                self.serial.fetch_max(serial, Ordering::Relaxed);
            }
            None if !self.has_versions.load(Ordering::Relaxed) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
                let last = self.serial.load(Ordering::Relaxed);
                self.serial.store(now.max(last + 1), Ordering::Relaxed);
            }
            None => {}
        }
    }

    fn write(&self) -> MutexGuard<'_, NameAllocator> {
        // A panic of another writer leaves claims and maps usable: each step is complete in itself.
        let mut allocator = self.allocator.lock();
        // Send the changes that a panicked writer has left unsent.
        self.send_pending(&mut allocator);
        allocator
    }
}

impl Store {
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<Link>> {
        self.links.get(key).map(|link| Arc::clone(&link))
    }

    /// Returns whether an external target is labelled for this Service.
    #[must_use]
    pub fn has_external_target(&self, key: &ServiceKey) -> bool {
        self.write().owns_object(key)
    }

    /// Returns the keys of the links whose external target has this name.
    #[must_use]
    pub fn claimants(&self, external_target: &str) -> Vec<ServiceKey> {
        let mut keys = self.write().claimants(external_target);
        keys.retain(|key| self.get(key).is_some_and(|link| link.external_target() == external_target));
        keys
    }

    #[must_use]
    pub fn is_unreadable(&self, key: &ServiceKey) -> bool {
        self.unreadable.contains(key)
    }

    /// Returns all links, in no order.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.iter().map(|link| Arc::clone(&link)).collect()
    }

    /// Returns the links of all Services, also behind an override.
    fn services(&self) -> Vec<Arc<Link>> {
        self.links.iter().filter_map(|link| link.service_link().cloned()).collect()
    }

    /// Looks up a DNS name, given as the part below its zone and the zone's origin, both in the wire form of
    /// [`crate::model::names::wire`].
    #[must_use]
    pub fn find(&self, name: &[u8], origin: &[u8]) -> Lookup {
        self.index.find(name, origin)
    }

    /// Looks up a DNS name as [`Self::find`] does. Returns also on which names an answer made of the result rests; `None`
    /// if it rests on the found link alone.
    #[must_use]
    pub fn find_to_keep(&self, name: &[u8], origin: &[u8]) -> (Lookup, Option<NameDependency>) {
        self.index.find_to_keep(name, origin)
    }

    /// Returns the link that owns an absolute DNS name.
    #[must_use]
    pub fn link_of_host(&self, host: &Name) -> Option<Arc<Link>> {
        match self.find_host(host) {
            Lookup::Link(link) => Some(link),
            Lookup::EmptyNonTerminal | Lookup::Nothing => None,
        }
    }

    /// Looks up an absolute DNS name. Names outside the zones give [`Lookup::Nothing`].
    fn find_host(&self, host: &Name) -> Lookup {
        let Some(wire) = crate::model::names::wire(host.iter()) else { return Lookup::Nothing };
        let zones = self.zones();
        // A zone must end at a label boundary: the part of the name below it consists of whole labels.
        let in_zone = |zone: &&[u8]| wire.strip_suffix(*zone).is_some_and(ends_at_label_boundary);
        match zones.iter().map(|zone| &**zone).filter(in_zone).max_by_key(|zone| zone.len()) {
            Some(zone) => self.find(&wire[..wire.len() - zone.len()], zone),
            None => Lookup::Nothing,
        }
    }

    /// Returns a dependency that ends when this store isn't in use as a fallback any more. Call this before the look-ups
    /// that depend on it.
    #[must_use]
    pub fn use_as_fallback(&self) -> NameDependency {
        NameDependency::on_all(&self.index.slots)
    }

    /// Returns the links that have this target address, ordered by namespace and name.
    #[must_use]
    pub fn links_at(&self, ip: IpAddr) -> Vec<Arc<Link>> {
        let has =
            |link: &Arc<Link>| matches!(&link.target, Some(Target::Addresses(ips)) if ips.contains(&ip));
        // The index may briefly list a link under an address that it doesn't have yet, or any more: check its target.
        self.index.addresses.of(ip).iter().filter_map(|key| self.get(key)).filter(has).collect()
    }

    /// Returns whether any link's target has an address in this network.
    #[must_use]
    pub fn has_address_in(&self, net: IpNet) -> bool {
        self.index.addresses.any_in(net)
    }

    /// Subscribes to changes from now on. A subscriber that falls behind gets `Lagged` and has to rescan all links.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<LinkChange> {
        self.feed.subscribe()
    }

    /// Subscribes to a counter of the published changes that the change feed doesn't have: only DNS and the snapshot
    /// depend on them.
    #[must_use]
    pub fn subscribe_silent_updates(&self) -> watch::Receiver<u64> {
        self.silent_updates.subscribe()
    }

    /// Returns whether an input is known completely.
    #[must_use]
    pub fn is_known(&self, input: Input) -> bool {
        *self.known[input as usize].borrow()
    }

    /// Waits until an input is known completely.
    pub async fn known(&self, input: Input) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.known[input as usize].subscribe().wait_for(|known| *known).await;
    }

    /// Returns the serial of the zones, of which DNS has the low 32 bits (RFC 1982 arithmetic).
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Returns the store with this serial of its zones. From here on the serial follows resourceVersions, and is never
    /// derived from the clock, not even before the first resourceVersion.
    #[must_use]
    pub fn with_serial(self, serial: u64) -> Self {
        self.serial.store(serial, Ordering::Relaxed);
        self.has_versions.store(true, Ordering::Relaxed);
        self
    }
}

/// Returns whether bytes in wire form end at a label boundary.
fn ends_at_label_boundary(mut labels: &[u8]) -> bool {
    while let Some((length, rest)) = labels.split_first() {
        match rest.get(usize::from(*length)..) {
            Some(rest) => labels = rest,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
