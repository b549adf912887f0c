//! Names, their owners, and what is behind the names: links of Services, and targets of owners of other kinds.
//!
//! Sources say what owners ask for and what is behind their names; `names` decides which owner has a name; `index` finds
//! what is behind it. `sync` writes the store, `dns` reads it, and the two modules meet nowhere else. The store does no
//! I/O. A reader locks the owners, or the index of names, while it copies a reference. Writers are serialized.

pub mod change_time;
pub mod cluster;
mod copy;
pub mod fallback;
mod index;
mod internal_names;
mod listed;
pub mod metrics;
mod name_slots;
mod names;
mod owners;
mod reverse_index;
pub mod sources;
pub mod target_chain;
mod update;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use dashmap::DashSet;
use hickory_proto::rr::Name;
use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{broadcast, watch};

use crate::model::link::{Link, LinkChange, Target};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::service_key::ServiceKey;
use change_time::ChangeClock;
use fallback::Fallback;
use index::Index;
pub use index::Lookup;
use listed::Listed;
pub use name_slots::NameDependency;
use names::Names;
use owners::Owners;

/// Capacity of the change feed, in batches. A subscriber that falls behind rescans all links, so a larger number only
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

/// Whether each input is known completely.
#[derive(Debug, Default)]
struct Known {
    services: watch::Sender<bool>,
    stable_names: watch::Sender<bool>,
    external_targets: watch::Sender<bool>,
}

impl Known {
    fn of(&self, input: Input) -> &watch::Sender<bool> {
        match input {
            Input::Services => &self.services,
            Input::StableNames => &self.stable_names,
            Input::ExternalTargets => &self.external_targets,
        }
    }
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
    owners: Arc<Owners>,
    index: Index,
    /// The owner of each name. Every change of a link holds this lock.
    names: Mutex<Names>,
    feed: broadcast::Sender<Arc<[LinkChange]>>,
    /// Which inputs are known completely.
    known: Known,
    /// Services that exist but can't be decoded.
    unreadable: DashSet<ServiceKey>,
    /// The namespaces whose Services aren't known although the load balancers are.
    unknown_namespaces: ArcSwapOption<BTreeSet<Box<str>>>,
    serial: Arc<AtomicU64>,
    /// See [`Self::last_change`].
    last_change: Arc<AtomicU64>,
    change_clock: Arc<ChangeClock>,
    /// Whether the serial follows resourceVersions instead of the clock.
    has_versions: AtomicBool,
    on_gone: OnGone,
    zones: watch::Sender<Arc<[Zone]>>,
    listed: watch::Sender<Listed>,
    /// What DNS answers from until the load balancers are known, and for names of other sources until these are listed.
    fallback: ArcSwapOption<Fallback>,
}

impl Store {
    /// Returns an empty store that isn't synced yet.
    #[must_use]
    pub fn new(policy: OnGone) -> Self {
        let names = Names::default();
        Self {
            owners: Arc::clone(&names.owners),
            names: Mutex::new(names),
            index: Index::default(),
            feed: broadcast::Sender::new(FEED_CAPACITY),
            known: Known::default(),
            unreadable: DashSet::new(),
            unknown_namespaces: ArcSwapOption::default(),
            serial: Arc::default(),
            last_change: Arc::default(),
            change_clock: Arc::default(),
            has_versions: AtomicBool::new(false),
            on_gone: policy,
            zones: watch::Sender::new(Arc::default()),
            listed: watch::Sender::default(),
            fallback: ArcSwapOption::default(),
        }
    }

    /// Returns the store with its zones. They tell whether a custom hostname of one link is the default name of
    /// another.
    #[must_use]
    pub fn with_zones<Z: Into<Zone>>(self, zones: impl IntoIterator<Item = Z>) -> Self {
        self.zones.send_replace(zones.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the zones in which links have names now.
    pub(crate) fn zones(&self) -> Arc<[Zone]> {
        Arc::clone(&self.zones.borrow())
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
    /// Service in a namespace whose Services aren't known. A cut label may be of any namespace, and in a zone of
    /// *k8s_gateway* any name.
    #[must_use]
    pub fn may_lack(&self, zone: &Zone, relative: &[u8]) -> bool {
        let namespaces = self.unknown_namespaces.load();
        let Some(namespaces) = namespaces.as_deref() else { return false };
        if zone.k8s_gateway.is_some() && zone.has(&Source::SERVICES) && !zone.reserves(relative) {
            return true;
        }
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
            self.known.of(input).send_replace(true);
            return;
        }
        let _writer = self.write();
        // The serial in answers from the fallback may be ahead of the versions: by changes without a version.
        if let Some(fallback) = &*self.fallback.load() {
            self.serial.fetch_max(fallback.store.serial(), Ordering::Relaxed);
        }
        // A zone without links needs a serial, too, if the serial is derived from the clock.
        if self.serial.load(Ordering::Relaxed) == 0 {
            self.advance_serial(None, true);
        }
        // What an earlier process has served may differ.
        self.note_change();
        self.known.of(input).send_replace(true);
        // Reused answers from before the first list, and those from the fallback, are invalid from here on.
        self.index.slots.outdate_all();
        self.invalidate_fallback();
        self.end_fallback();
    }

    fn record_change(
        &self,
        names: &mut Names,
        owner: impl Into<Owner>,
        before: Option<Arc<Link>>,
        after: Option<Arc<Link>>,
    ) -> LinkChange {
        let change = LinkChange { owner: owner.into(), before, after };
        self.invalidate_fallback();
        names.changes.push(change.clone());
        change
    }

    /// Advances the serial of the zones at the end of a write: to the newest resourceVersion applied (of several clusters to
    /// the sum), which all replicas share, and by at least one if what a name leads to was replaced. For a source without resourceVersions it is the
    /// time in seconds, so that a restart never decreases it.
    fn advance_serial(&self, resource_version: Option<u64>, is_changed: bool) {
        if resource_version.is_some() {
            self.has_versions.store(true, Ordering::Relaxed);
        }
        if is_changed {
            self.note_change();
        }
        let last = self.serial.load(Ordering::Relaxed);
        let least = match is_changed {
            true if !self.has_versions.load(Ordering::Relaxed) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
                now.max(last + 1)
            }
            // A first list, whose order says nothing about age, ends at the version of its newest object.
            true if self.is_known(Input::Services) => last + 1,
            _ => last,
        };
        self.serial.store(least.max(resource_version.unwrap_or_default()), Ordering::Relaxed);
    }

    fn write(&self) -> Writer<'_> {
        // A panic of another writer leaves claims and maps usable: each step is complete in itself.
        Writer { names: self.names.lock(), store: self }
    }
}

/// The lock of writers. Its end advances the serial, which thus is never newer than the names, and sends the changes.
struct Writer<'a> {
    names: MutexGuard<'a, Names>,
    store: &'a Store,
}

impl Deref for Writer<'_> {
    type Target = Names;

    fn deref(&self) -> &Names {
        &self.names
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut Names {
        &mut self.names
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let is_changed = self.store.index.slots.take_changed();
        let version = self.names.take_version();
        self.store.advance_serial(version, is_changed);
        let changes = std::mem::take(&mut self.names.changes);
        if !changes.is_empty() {
            // The send fails if there are no subscribers, which is fine.
            let _ = self.store.feed.send(changes.into());
        }
    }
}

impl Store {
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<Link>> {
        self.owners.find(&Owner::from(key))?.1
    }

    /// Returns whether an external target is labelled for this Service.
    #[must_use]
    pub fn has_external_target(&self, key: &ServiceKey) -> bool {
        let names = self.write();
        self.owners.find(&Owner::from(key)).is_some_and(|(id, _)| names.is_recorded(id))
    }

    /// Returns the keys of the links whose external target has this name.
    #[must_use]
    pub fn claimants(&self, external_target: &str) -> Vec<ServiceKey> {
        let ids = self.write().claimants(external_target);
        let links = ids.into_iter().filter_map(|id| self.owners.get(id).1);
        links.filter(|link| link.external_target() == external_target).map(|link| link.key.clone()).collect()
    }

    #[must_use]
    pub fn is_unreadable(&self, key: &ServiceKey) -> bool {
        self.unreadable.contains(key)
    }

    /// Returns all links, in no order.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.owners.all(Some(&Source::SERVICES)).into_iter().map(|(_, link)| link).collect()
    }

    /// Returns all owners that aren't Services, with the names that they ask for and what is behind them, in no order.
    #[must_use]
    pub fn other_owners(&self) -> Vec<(Owner, Claims, Arc<Link>)> {
        let names = self.write();
        let all = self.owners.all(None).into_iter();
        let all = all.map(|(id, target)| (self.owners.get(id).0, names.claims_of(id), target));
        all.filter(|(owner, ..)| !owner.is_service()).collect()
    }

    /// Returns the link that owns an absolute DNS name.
    #[must_use]
    pub fn link_of_host(&self, host: &Name) -> Option<Arc<Link>> {
        match self.find_host(host) {
            Lookup::Link(link) => Some(link),
            Lookup::EmptyNonTerminal | Lookup::Nothing => None,
        }
    }

    /// Returns whether a target is a DNS name of the link of this key.
    pub(crate) fn leads_to(&self, target: Option<&Target>, key: &ServiceKey) -> bool {
        let Some(Target::Hostname(host)) = target else { return false };
        self.link_of_host(&host.name()).is_some_and(|link| link.key == *key)
    }

    /// Looks up an absolute DNS name. Names outside the zones, and reserved ones, give [`Lookup::Nothing`].
    fn find_host(&self, host: &Name) -> Lookup {
        let Some(wire) = crate::model::names::wire(host.iter()) else { return Lookup::Nothing };
        let zones = self.zones();
        let zone = Zone::closest(&zones, &wire);
        match zone.and_then(|zone| Some((zone.below(&wire)?, zone))) {
            Some((below, zone)) if !zone.reserves(below) => {
                self.find(below, &zone.origin, zone.has_default_names())
            }
            _ => Lookup::Nothing,
        }
    }

    /// Returns whether a hostname, in wire form, is the target of an owner of any kind.
    #[must_use]
    pub fn is_target(&self, host: &[u8]) -> bool {
        let is_it =
            |link: &Arc<Link>| matches!(&link.target, Some(Target::Hostname(target)) if target.is(host));
        self.owners.all(None).iter().any(|(_, link)| is_it(link))
    }

    /// Sets or removes what DNS answers from before everything is known. Returns `false`, and sets nothing, if all that
    /// it has is known.
    pub fn set_fallback(&self, fallback: Option<Arc<Fallback>>) -> bool {
        let _writer = self.write();
        if fallback.as_deref().is_some_and(|fallback| self.is_replaced(fallback)) {
            return false;
        }
        if let Some(fallback) = &fallback {
            let last_change = fallback.store.last_change.load(Ordering::Relaxed);
            self.change_clock.continue_after(last_change);
            self.last_change.fetch_max(last_change, Ordering::Relaxed);
        }
        self.replace_fallback(fallback);
        true
    }

    /// Returns whether nothing can be answered from a fallback any more: everything that it has is known.
    fn is_replaced(&self, fallback: &Fallback) -> bool {
        let has_others = fallback.store.numbers_of_owners().iter().any(|(_, number)| *number > 0);
        self.is_known(Input::Services) && (!has_others || self.has_listed(&self.zones()))
    }

    /// Ends the use of the fallback if it is replaced. The caller holds the lock of writers.
    fn end_fallback(&self) {
        if self.fallback.load().as_deref().is_some_and(|fallback| self.is_replaced(fallback)) {
            self.replace_fallback(None);
        }
    }

    /// Waits until [`Self::has_listed`].
    pub async fn sources_listed(&self, zones: &[Zone]) {
        let mut listed = self.listed.subscribe();
        // The sender lives as long as `self`: waiting can't fail.
        while !self.has_listed(zones) && listed.changed().await.is_ok() {}
    }

    /// Replaces the fallback. The caller holds the lock of writers.
    fn replace_fallback(&self, fallback: Option<Arc<Fallback>>) {
        if let Some(before) = self.fallback.swap(fallback) {
            before.store.index.slots.outdate_all();
        }
    }

    /// Invalidates answers from the fallback, because a link from the watch replaces one of its links. The caller holds
    /// the lock of writers.
    fn invalidate_fallback(&self) {
        if let Some(fallback) = &*self.fallback.load() {
            fallback.store.index.slots.outdate_all();
        }
    }

    /// Returns what DNS answers from until the load balancers are known, if there is anything.
    #[must_use]
    pub fn fallback(&self) -> Option<Arc<Fallback>> {
        self.fallback.load_full()
    }

    /// Returns a dependency that ends when this store isn't in use as a fallback any more. Call this before the look-ups
    /// that depend on it.
    #[must_use]
    pub fn use_as_fallback(&self) -> NameDependency {
        NameDependency::on_all(&self.index.slots).0
    }

    /// Returns the links that have this target address, ordered by namespace and name.
    #[must_use]
    pub fn links_at(&self, ip: IpAddr) -> Vec<Arc<Link>> {
        let has =
            |link: &Arc<Link>| matches!(&link.target, Some(Target::Addresses(ips)) if ips.contains(&ip));
        let ids = self.index.addresses.of(ip.into(), usize::MAX);
        // The index may briefly list a link under an address that it doesn't have yet, or any more: check its target.
        let mut links: Vec<_> = ids.into_iter().filter_map(|id| self.owners.get(id).1).filter(has).collect();
        links.sort_by(|one, other| one.key.cmp(&other.key));
        links
    }

    /// Returns whether any link's target has an address in this network.
    #[must_use]
    pub fn has_address_in(&self, net: IpNet) -> bool {
        !self.index.addresses.of(net, 1).is_empty()
    }

    /// Subscribes to the changes of all owners from now on, in batches: changes that were made together arrive together. A
    /// subscriber that falls behind gets `Lagged` and has to rescan all links.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<[LinkChange]>> {
        self.feed.subscribe()
    }

    /// Returns whether an input is known completely.
    #[must_use]
    pub fn is_known(&self, input: Input) -> bool {
        *self.known.of(input).borrow()
    }

    /// Waits until an input is known completely.
    pub async fn known(&self, input: Input) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.known.of(input).subscribe().wait_for(|known| *known).await;
    }

    /// Returns the serial of the zones, of which DNS has the low 32 bits (RFC 1982 arithmetic).
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    pub(crate) fn current_serial(&self) -> &Arc<AtomicU64> {
        &self.serial
    }
}

#[cfg(test)]
mod tests;
