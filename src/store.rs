//! The links: a concurrent map by Service key, an index by DNS name and by address, and a change feed.
//!
//! `sync` writes the store, `dns` reads it, and the two modules meet nowhere else. The store does no I/O. A reader locks
//! one shard of the links, or the index of names, while it copies a reference. Writers are serialized.

mod index;
pub mod metrics;
mod name_slots;
pub mod names;
mod reverse_index;
pub mod snapshot_links;
mod update;

use std::borrow::Cow;
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

use crate::model::link::{
    Annotations, LastQueried, Link, LinkChange, LinkState, ObservedService, OutdatedFlag,
    RANK_NEVER_OBSERVED, RANK_WITHOUT_CREATION_TIME, Target,
};
use crate::model::link_override::{LinkOverride, OverriddenLink};
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use index::Index;
pub use index::Lookup;
pub use name_slots::NameDependency;
use names::allocator::NameAllocator;
use snapshot_links::SnapshotLinks;

/// Capacity of the change feed, in changes. A subscriber that falls behind rescans all links, so a larger number only
/// saves work.
const FEED_CAPACITY: usize = 1024;

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
    synced: watch::Sender<bool>,
    owners_known: watch::Sender<bool>,
    /// Whether the StableNames are listed, or can't be listed.
    overrides_known: watch::Sender<bool>,
    /// Services that exist but can't be decoded.
    unreadable: DashSet<ServiceKey>,
    /// Namespaces that have never been listed, although the store is synced.
    unlisted: ArcSwapOption<BTreeSet<Box<str>>>,
    serial: AtomicU64,
    /// The serial minus the newest resourceVersion: 0 unless resourceVersions have gone backwards.
    serial_offset: AtomicU64,
    /// Whether the serial follows resourceVersions instead of the clock.
    has_versions: AtomicBool,
    on_gone: OnGone,
    zones: RwLock<Zones>,
    /// The links of an earlier process, until the first complete list.
    snapshot_links: ArcSwapOption<SnapshotLinks>,
    /// Counts published changes that the change feed doesn't have: only DNS and the snapshot depend on them.
    silent_updates: watch::Sender<u64>,
    /// What keeps external targets from being written, for the user.
    sync_note: ArcSwapOption<String>,
    /// Why the first list isn't complete yet, for the user.
    list_note: ArcSwapOption<Cow<'static, str>>,
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
            synced: watch::Sender::new(false),
            owners_known: watch::Sender::new(false),
            overrides_known: watch::Sender::new(false),
            unreadable: DashSet::new(),
            unlisted: ArcSwapOption::default(),
            serial: AtomicU64::new(0),
            serial_offset: AtomicU64::new(0),
            has_versions: AtomicBool::new(false),
            on_gone: policy,
            zones: RwLock::default(),
            snapshot_links: ArcSwapOption::default(),
            silent_updates: watch::Sender::new(0),
            sync_note: ArcSwapOption::default(),
            list_note: ArcSwapOption::default(),
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

    /// Returns the store for a source of objects with resourceVersions: the serial is never derived from the clock,
    /// not even before the first resourceVersion.
    #[must_use]
    pub fn with_versions(self) -> Self {
        self.has_versions.store(true, Ordering::Relaxed);
        self
    }

    /// Applies one observed Service; returns the change of its link, if any.
    pub fn apply(&self, observed: ObservedService) -> Option<LinkChange> {
        let mut allocator = self.write();
        self.apply_one(&mut allocator, observed)
    }

    /// Records that a Service exists but can't be decoded. Its link, if any, stays as it is.
    pub fn set_unreadable(&self, key: &ServiceKey) {
        self.unreadable.insert(key.clone());
    }

    /// Records that a Service is deleted or has left the selection. If `uid` isn't that of the link, another Service of
    /// the same name is gone, and the link stays as it is.
    pub fn delete(&self, key: &ServiceKey, uid: &str, resource_version: Option<u64>) -> Option<LinkChange> {
        self.delete_since(key, uid, resource_version, Instant::now())
    }

    /// Like [`Store::delete`], for a Service that is gone since the given time: its deletion delay starts then.
    pub fn delete_since(
        &self,
        key: &ServiceKey,
        uid: &str,
        resource_version: Option<u64>,
        since: Instant,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let was_unreadable = self.unreadable.remove(key).is_some();
        let Some(service) = self.service_link(key) else {
            let link = self.get(key);
            // The Service couldn't be decoded, but its external target may still exist.
            return was_unreadable.then(|| self.record_change(&mut allocator, key, link.clone(), link));
        };
        if service.uid != *uid || service.is_gone() {
            return None;
        }
        self.advance_serial(resource_version);
        self.mark_gone(&mut allocator, key, since)
    }

    /// Returns the number of links of watched Services in all namespaces, and the keys of those in `namespace` (`None`:
    /// in all namespaces) that the list lacks.
    #[must_use]
    pub fn missing_from<'a>(
        &self,
        list: impl Iterator<Item = &'a ServiceKey>,
        namespace: Option<&str>,
    ) -> (usize, HashSet<ServiceKey>) {
        let listed: HashSet<&ServiceKey> = list.collect();
        let (mut known, mut missing) = (0, HashSet::new());
        for link in self.services().iter().filter(|link| !link.is_gone() && !link.is_left_out()) {
            known += 1;
            let within = namespace.is_none_or(|namespace| link.key.namespace() == namespace);
            if within && !listed.contains(&link.key) {
                missing.insert(link.key.clone());
            }
        }
        (known, missing)
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
            // A link that is gone or left out is in no list, so its absence changes nothing.
            .filter(|link| !link.is_gone() && !link.is_left_out())
            .collect();
        for link in absent {
            changes.extend(self.mark_gone(&mut allocator, &link.key, Instant::now()));
        }
        self.send_pending(&mut allocator);
        changes
    }

    /// Records the namespaces whose Services aren't known although the store is going to be synced.
    pub fn set_unlisted(&self, namespaces: &BTreeSet<&str>) {
        let namespaces: BTreeSet<Box<str>> = namespaces.iter().map(|namespace| (*namespace).into()).collect();
        self.unlisted.store((!namespaces.is_empty()).then(|| Arc::new(namespaces)));
    }

    /// Records that the Services of a namespace are known.
    pub fn set_listed(&self, namespace: &str) {
        self.unlisted.rcu(|unlisted| {
            let mut left = unlisted.as_deref()?.clone();
            left.remove(namespace);
            (!left.is_empty()).then(|| Arc::new(left))
        });
    }

    /// Returns whether a name below a zone, in the form of [`crate::model::names::wire`], may be the default name of a
    /// Service in a namespace whose Services aren't known. A cut label may be of any namespace.
    #[must_use]
    pub fn is_unlisted(&self, relative: &[u8]) -> bool {
        let unlisted = self.unlisted.load();
        let Some(unlisted) = unlisted.as_deref() else { return false };
        let Some(last) = crate::model::names::labels(relative).last() else { return false };
        let is_of = |namespace: &str| {
            let before = last.strip_suffix(namespace.as_bytes());
            before.is_some_and(|before| before.is_empty() || before.ends_with(b"-"))
        };
        unlisted.iter().any(|namespace| is_of(namespace)) || crate::model::names::may_be_cut(last)
    }

    /// Marks the first complete list as applied: from here on a name that isn't in the store doesn't exist, except for
    /// names of which [`Store::is_unlisted`] is true.
    pub fn set_synced(&self) {
        // A zone without links needs a serial, too, if the serial is derived from the clock.
        if self.serial.load(Ordering::Relaxed) == 0 {
            self.advance_serial(None);
        }
        self.synced.send_replace(true);
        // Reused answers from before the first list, and those from a snapshot, are invalid from here on.
        let _writer = self.write();
        self.index.slots.outdate_all();
        self.replace_snapshot_links(None);
    }

    /// Marks the owners of external targets as known: every readable external target has been passed to
    /// [`Store::set_owner`], or none can be read. Sources wait for this, with a timeout, before their
    /// first list: a list allocates names.
    pub fn set_owners_known(&self) {
        self.owners_known.send_replace(true);
    }

    /// Records that the StableNames are listed, or that they can't be: without their CRD, or without a permission.
    pub fn set_overrides_known(&self) {
        self.overrides_known.send_replace(true);
    }

    /// Applies an external target of an earlier process that was observed later than its Service. A pending Service
    /// takes the target if the external target was written for that Service. The Service counts as recreated if the
    /// external target was written for a predecessor.
    pub fn apply_persisted_target(&self, key: &ServiceKey, last: PersistedTarget) -> Option<LinkChange> {
        let mut allocator = self.write();
        let blank = |link: &Arc<Link>| !link.is_gone() && !link.is_left_out() && link.target.is_none();
        let link = self.service_link(key).filter(blank)?;
        let kept = match last.target {
            // Without a recorded uid the external target may be that of the link's predecessor.
            Some(target) if last.owner == TargetOwner::Uid(link.uid.clone()) => {
                Link { target: Some(target), state: LinkState::Stale, ..Link::clone(&link) }
            }
            _ if link.state == LinkState::Live && !last.owner.matches(&link.uid, Some(link.created)) => {
                Link { state: LinkState::Recreated(Instant::now()), ..Link::clone(&link) }
            }
            _ => return None,
        };
        self.set_service(&mut allocator, key, Some(kept))
    }

    /// Adds a link for a Service that was gone before this process started, because its external target still exists.
    /// The link keeps the names that it owns, ranks last for all other names, and keeps those of its custom hostnames
    /// that have no other owner. Returns `None` if the link exists, or if the Service can't be decoded.
    pub fn insert_gone(&self, key: &ServiceKey, hostnames: Vec<Arc<str>>) -> Option<LinkChange> {
        self.insert_unobserved(key, "", false, hostnames)
    }

    /// Records that a Service isn't selected, perhaps because of a flag, and the contents of its external target: adds
    /// a link in [`LinkState::LeftOut`], or changes the link of a Service that this process has never observed. `uid`
    /// is the Service's, or empty if unknown. Returns `None` if nothing changes, and for a link that a StableName
    /// overrides.
    pub fn insert_left_out(
        &self,
        key: &ServiceKey,
        uid: Uid,
        target: Option<Target>,
        hostnames: Vec<Arc<str>>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let known = self.get(key);
        if known.as_ref().is_some_and(|link| !link.was_never_observed()) || self.unreadable.contains(key) {
            return None;
        }
        let same = known.as_ref().filter(|link| link.is_left_out() && link.uid == uid);
        let annotations = same.map(|link| link.annotations.clone()).unwrap_or_default();
        let kept = Link {
            uid,
            target,
            created: RANK_NEVER_OBSERVED,
            annotations: Annotations { hostnames: hostnames.into(), ..annotations },
            state: LinkState::LeftOut,
            ..known.as_ref().map_or_else(|| Link::new(key.clone(), ""), |link| Link::clone(link))
        };
        if known.as_deref() == Some(&kept) {
            return None;
        }
        Some(self.upsert(&mut allocator, known, kept))
    }

    /// Adds a link of a snapshot in [`LinkState::LeftOut`]. Returns `None` if the store has a link of this key, or if
    /// the Service can't be decoded.
    pub fn insert_from_snapshot(&self, saved: &Link) -> Option<LinkChange> {
        let mut allocator = self.write();
        if self.contains(&saved.key) || self.unreadable.contains(&saved.key) {
            return None;
        }
        let Link { key, uid, target, annotations, ports, .. } = saved.clone();
        let kept = Link {
            uid,
            target,
            annotations,
            ports,
            created: RANK_NEVER_OBSERVED,
            state: LinkState::LeftOut,
            ..Link::new(key, "")
        };
        Some(self.upsert(&mut allocator, None, kept))
    }

    /// Records that the Service of a link in [`LinkState::LeftOut`] is gone since the given time.
    pub fn delete_left_out(&self, key: &ServiceKey, since: Instant) -> Option<LinkChange> {
        let mut allocator = self.write();
        self.service_link(key).filter(|link| link.is_left_out())?;
        self.mark_gone(&mut allocator, key, since)
    }

    /// Adds a link for a Service that is being deleted, or that is no longer a load balancer. `has_finalizer` tells
    /// whether the Service has our finalizer. The link of a gone Service gets this uid and finalizer. Returns `None`
    /// if nothing changes.
    pub fn insert_terminating(&self, key: &ServiceKey, uid: &str, has_finalizer: bool) -> Option<LinkChange> {
        self.insert_unobserved(key, uid, has_finalizer, Vec::new())
    }

    fn insert_unobserved(
        &self,
        key: &ServiceKey,
        uid: &str,
        has_finalizer: bool,
        hostnames: Vec<Arc<str>>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        if let Some(link) = self.service_link(key) {
            let known = !link.is_gone() || link.uid == *uid && link.has_finalizer == has_finalizer;
            if known || uid.is_empty() {
                return None;
            }
            let waiting = Link { uid: uid.into(), has_finalizer, ..Link::clone(&link) };
            return self.set_service(&mut allocator, key, Some(waiting));
        }
        // An overridden link needs a gone Service only for its finalizer.
        if self.unreadable.contains(key) || uid.is_empty() && self.links.contains_key(key) {
            return None;
        }
        let gone_link = Link {
            created: RANK_NEVER_OBSERVED,
            has_finalizer,
            annotations: Annotations { hostnames: hostnames.into(), ..Default::default() },
            state: LinkState::Gone(Instant::now()),
            ..Link::new(key.clone(), uid)
        };
        self.set_service(&mut allocator, key, Some(gone_link))
    }

    /// Records that our finalizer was added to the Service of a link, or removed from it.
    pub fn set_has_finalizer(&self, key: &ServiceKey, uid: &str, has_finalizer: bool) -> Option<LinkChange> {
        let mut allocator = self.write();
        let link =
            self.service_link(key).filter(|link| link.uid == *uid && link.has_finalizer != has_finalizer)?;
        let changed = Link { has_finalizer, ..Link::clone(&link) };
        self.set_service(&mut allocator, key, Some(changed))
    }

    /// Forgets a link that is gone or left out, and frees its names. An overridden link only forgets its gone Service.
    pub fn forget(&self, key: &ServiceKey) -> Option<LinkChange> {
        let mut allocator = self.write();
        self.service_link(key).filter(|link| link.is_gone() || link.is_left_out())?;
        self.set_service(&mut allocator, key, None)
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
        let before = self.get(key);
        let service_link = before.as_ref().and_then(Link::service_link).cloned();
        let link = OverriddenLink { by, service_link }.link(key, before.as_deref());
        if resource_version.is_some() {
            self.advance_serial(resource_version);
        }
        if before.as_deref() == Some(&link) {
            return None;
        }
        Some(self.upsert(&mut allocator, before, link))
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

    fn apply_one(&self, allocator: &mut NameAllocator, observed: ObservedService) -> Option<LinkChange> {
        let ObservedService {
            key,
            uid,
            created,
            resource_version,
            ingress,
            ports,
            annotations,
            refused,
            has_finalizer,
            persisted,
        } = observed;
        self.unreadable.remove(&key);
        let before = self.get(&key);
        // Reuse the key of the previous link: all maps share its text.
        let key = before.as_ref().map_or(key, |link| link.key.clone());
        let known = before.as_ref().and_then(Link::service_link).cloned();
        // A recreated Service doesn't inherit the target of its predecessor.
        let same = known.as_ref().filter(|link| {
            let is_it = link.uid == uid || link.is_left_out() && link.uid.is_empty();
            is_it && !link.is_gone()
        });
        let (in_use, predecessor_gone) = match &known {
            None => match persisted {
                Some(last) if !self.is_synced() && last.owner.matches(&uid, created) => (last.target, None),
                Some(_) => (None, Some(Instant::now())),
                None => (None, None),
            },
            Some(known) => match same {
                Some(link) => (link.target.clone(), link.service_gone_since()),
                None => (None, Some(known.service_gone_since().unwrap_or_else(Instant::now))),
            },
        };
        let chosen = ingress.choose(in_use.as_ref());
        let state = match (&chosen, &in_use, predecessor_gone) {
            (None, None, Some(since)) => LinkState::Recreated(since),
            (None, Some(_), _) => LinkState::Stale,
            _ => LinkState::Live,
        };
        let target = chosen.or(in_use);
        let named = matches!(target, Some(Target::Hostname(_)));
        let link = Link {
            uid,
            // A load balancer that is deleted and recreated keeps its rank for its names.
            created: known
                .as_ref()
                .filter(|link| link.created != RANK_NEVER_OBSERVED)
                .map_or(created.unwrap_or(RANK_WITHOUT_CREATION_TIME), |link| link.created),
            object_created: created,
            target,
            ports,
            annotations,
            hostnames: known.as_ref().map_or_else(Box::default, |link| link.hostnames.clone()),
            refused,
            has_finalizer,
            state,
            external_target_override: known.as_ref().and_then(|link| link.external_target_override.clone()),
            last_queried: known.as_ref().map_or_else(LastQueried::default, |link| link.last_queried.clone()),
            outdated: OutdatedFlag::default(),
            overridden: None,
            key,
        };
        if resource_version.is_some() {
            self.advance_serial(resource_version);
        }
        if known.as_deref() == Some(&link) {
            return None;
        }
        let other_ports =
            |known: &Arc<Link>| Link { ports: link.ports.clone(), ..Link::clone(known) } == link;
        let is_overridden = before.is_some_and(|link| link.overridden.is_some());
        if named && !is_overridden && known.as_ref().is_some_and(other_ports) {
            // Only DNS uses the ports of a hostname target: subscribers of the feed need no change.
            self.advance_serial(None);
            self.publish(allocator, &Arc::new(link));
            self.count_silent_update();
            return None;
        }
        let key = link.key.clone();
        self.set_service(allocator, &key, Some(link))
    }

    fn mark_gone(
        &self,
        allocator: &mut NameAllocator,
        key: &ServiceKey,
        since: Instant,
    ) -> Option<LinkChange> {
        let service = self.service_link(key)?;
        self.set_service(allocator, key, (self.on_gone == OnGone::Kept).then(|| service.to_gone(since)))
    }

    /// Sets or removes the link of a Service. If a StableName overrides the link, the Service stays behind the
    /// override.
    fn set_service(
        &self,
        allocator: &mut NameAllocator,
        key: &ServiceKey,
        service: Option<Link>,
    ) -> Option<LinkChange> {
        let before = self.get(key);
        let overridden = before.as_ref().and_then(|before| before.overridden.as_deref());
        let link = match (overridden, service) {
            (Some(overridden), service) => {
                let overridden =
                    OverriddenLink { by: overridden.by.clone(), service_link: service.map(Arc::new) };
                let link = overridden.link(key, before.as_deref());
                let before = before
                    .as_deref()
                    .map(|before| Link { overridden: link.overridden.clone(), ..before.clone() });
                if before.as_ref() == Some(&link) {
                    // Only the Service behind the override has changed.
                    self.publish(allocator, &Arc::new(link));
                    self.count_silent_update();
                    return None;
                }
                link
            }
            (None, Some(service)) => service,
            (None, None) => return before.map(|before| self.remove(allocator, &before)),
        };
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
        self.invalidate_snapshot_answers();
        match &mut allocator.pending_changes {
            Some(queued) => queued.push(change.clone()),
            // The send fails if there are no subscribers, which is fine.
            None => drop(self.feed.send(change.clone())),
        }
        change
    }

    /// Records that a link was published without a change for the feed.
    fn count_silent_update(&self) {
        self.invalidate_snapshot_answers();
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

    /// Returns the link of the Service of a key, also while a StableName overrides the link of the key.
    #[must_use]
    pub fn service_link(&self, key: &ServiceKey) -> Option<Arc<Link>> {
        self.get(key)?.service_link().cloned()
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

    /// Returns whether a Service or a StableName with this key has a link, or the Service exists but can't be
    /// decoded.
    #[must_use]
    pub fn contains(&self, key: &ServiceKey) -> bool {
        self.links.contains_key(key) || self.unreadable.contains(key)
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
    #[must_use]
    pub fn find_host(&self, host: &Name) -> Lookup {
        let Some(wire) = crate::model::names::wire(host.iter()) else { return Lookup::Nothing };
        let zones = self.zones();
        // A zone must end at a label boundary: the part of the name below it consists of whole labels.
        let in_zone = |zone: &&[u8]| wire.strip_suffix(*zone).is_some_and(ends_at_label_boundary);
        match zones.iter().map(|zone| &**zone).filter(in_zone).max_by_key(|zone| zone.len()) {
            Some(zone) => self.find(&wire[..wire.len() - zone.len()], zone),
            None => Lookup::Nothing,
        }
    }

    /// Returns a dependency that ends when the links of a snapshot are not in use any more. Call this before the look-ups
    /// that depend on it.
    #[must_use]
    pub fn use_of_snapshot(&self) -> NameDependency {
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

    /// Returns the DNS names that lead to a link: for each zone the short name, if the link has it, and the name that no
    /// other link can have; then the custom hostnames. As text, without the trailing dot.
    #[must_use]
    pub fn dns_names(&self, link: &Link) -> Vec<String> {
        let (namespace, service) = link.key.parts();
        let mut dns_names = Vec::new();
        for zone in &*self.zones() {
            for relative in
                [crate::model::names::dashed_label(namespace, service), format!("{service}.{namespace}")]
            {
                let Some(name) = crate::model::names::wire(relative.split('.').map(str::as_bytes)) else {
                    continue;
                };
                if matches!(self.find(&name, zone), Lookup::Link(holder) if holder.key == link.key) {
                    dns_names.push(crate::model::names::text(&[&name, &**zone].concat()));
                }
            }
        }
        dns_names.extend(link.hostnames.iter().map(|hostname| hostname.to_string()));
        dns_names
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

    /// Records what keeps external targets from being written at present. DNS answers anyway.
    pub fn set_sync_note(&self, note: Option<String>) {
        if self.sync_note.load().as_deref() != note.as_ref() {
            self.sync_note.store(note.map(Arc::new));
        }
    }

    /// Returns what keeps external targets from being written at present.
    #[must_use]
    pub fn sync_note(&self) -> Option<Arc<String>> {
        self.sync_note.load_full()
    }

    /// Records why the first list isn't complete yet, as a clause.
    pub fn set_list_note(&self, why: Cow<'static, str>) {
        self.list_note.store(Some(Arc::new(why)));
    }

    /// Returns why the first list isn't complete yet; `None` if that isn't known.
    #[must_use]
    pub fn list_note(&self) -> Option<Arc<Cow<'static, str>>> {
        self.list_note.load_full().filter(|_| !self.is_synced())
    }

    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub async fn synced(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Waits until the owners of all external targets are known.
    pub async fn owners_known(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.owners_known.subscribe().wait_for(|known| *known).await;
    }

    #[must_use]
    pub fn are_owners_known(&self) -> bool {
        *self.owners_known.borrow()
    }

    #[must_use]
    pub fn are_overrides_known(&self) -> bool {
        *self.overrides_known.borrow()
    }

    /// Waits until it is known which links StableNames override.
    pub async fn overrides_known(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.overrides_known.subscribe().wait_for(|known| *known).await;
    }

    /// Returns the serial of the zone: the low 32 bits of [`Store::full_serial`] (RFC 1982 arithmetic).
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are what is wanted")]
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed) as u32
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
