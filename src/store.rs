//! The links: a concurrent map by Service key, an index by DNS name and by address, and a feed of
//! changes.
//!
//! `sync` writes it, `dns` reads it, and they meet nowhere else. It does no I/O. Readers never
//! wait for a writer that changes another name; writers take turns.

mod index;
pub mod metrics;
pub mod names;
mod ports;
mod reverse_index;
mod table;
mod update;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dashmap::{DashMap, DashSet};
use hickory_proto::rr::Name;
use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{broadcast, watch};

use crate::model::link::{
    Annotations, LastQueried, Link, LinkChange, LinkState, NEVER, ObservedService, Superseded, Target,
    UNKNOWN,
};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use index::Index;
pub use index::{Lookup, NameSetVersion};
use names::allocator::NameAllocator;
pub(crate) use ports::PortInterner;
use table::{Keyed, Table};

/// How many changes a subscriber may be behind before it is told that it missed some. It then
/// looks at every link, so a larger number saves work and nothing else.
const FEED_CAPACITY: usize = 1024;

/// What the store does with a link whose Service is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnGone {
    /// Its names stay taken, without a target, until [`Store::forget`]: the reconciler removes
    /// the external target first.
    Kept,
    /// It is forgotten at once: no external targets are written.
    Dropped,
}

/// The external target of a link that an earlier process has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistedTarget {
    /// What it points at; nothing if that isn't a target that may be followed.
    pub target: Option<Target>,
    /// The Service whose target that is: another one of its name has another.
    pub written_for: TargetOwner,
    /// The further DNS names that are noted on it, as far as they are granted.
    pub hostnames: Box<[Box<str>]>,
    /// Whether lb-linker would remove it without its Service.
    pub is_ours: bool,
}

impl PersistedTarget {
    /// Returns the uid of its Service, where that is noted; else an empty one.
    #[must_use]
    pub fn uid(&self) -> Uid {
        match &self.written_for {
            TargetOwner::Uid(uid) => uid.clone(),
            TargetOwner::CreatedUntil(_) | TargetOwner::Anybody => Uid::default(),
        }
    }
}

/// The external targets that an earlier process has left, and what the first complete list says of their Services.
#[derive(Clone, Debug, Default)]
pub struct PersistedTargets {
    /// How many Services with an external target are in the list.
    pub listed: usize,
    /// The others' external targets.
    pub unlisted: Vec<(ServiceKey, PersistedTarget)>,
}

/// Which Service of a name an external target was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOwner {
    /// The one with this uid, as lb-linker has noted.
    Uid(Uid),
    /// One that was created until then, in seconds since 1970: the earlier operator made external
    /// targets after their Services, and deleted them with them.
    CreatedUntil(i64),
    /// It isn't noted.
    Anybody,
}

impl TargetOwner {
    fn is(&self, uid: &Uid, created: Option<i64>) -> bool {
        match self {
            Self::Uid(noted) => noted == uid,
            Self::CreatedUntil(until) => created.is_none_or(|created| created <= *until),
            Self::Anybody => true,
        }
    }
}

/// The links and the index of their names.
#[derive(Debug)]
pub struct Store {
    links: Table<Keyed>,
    index: Index,
    /// Which link has which name. Each write to the store holds this lock.
    allocator: Mutex<NameAllocator>,
    feed: broadcast::Sender<LinkChange>,
    synced: watch::Sender<bool>,
    holders_known: watch::Sender<bool>,
    /// What the external targets point at that an earlier process has left: until all Services are
    /// listed of all, from then on of those whose Service was gone.
    last_targets: DashMap<ServiceKey, PersistedTarget>,
    /// Services that exist and can't be read.
    unreadable: DashSet<ServiceKey>,
    serial: AtomicU64,
    /// What the serial is more than the newest resourceVersion: nothing, unless versions have gone backwards.
    ahead: AtomicU64,
    /// Whether the serial is a resourceVersion.
    versioned: AtomicBool,
    departed: OnGone,
    /// The origins of the zones, in wire form.
    zones: RwLock<Zones>,
}

/// The origins of zones, in wire form.
type Zones = Arc<[Box<[u8]>]>;

fn origins<'a>(zones: impl IntoIterator<Item = &'a Name>) -> Zones {
    zones.into_iter().filter_map(|zone| Some(crate::model::names::wire(zone.iter())?.into())).collect()
}

// === impl Store: for writers ===

impl Store {
    /// Returns an empty store that isn't synced yet.
    #[must_use]
    pub fn new(departed: OnGone) -> Self {
        Self {
            links: Table::default(),
            index: Index::default(),
            allocator: Mutex::default(),
            feed: broadcast::Sender::new(FEED_CAPACITY),
            synced: watch::Sender::new(false),
            holders_known: watch::Sender::new(false),
            last_targets: DashMap::new(),
            unreadable: DashSet::new(),
            serial: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            versioned: AtomicBool::new(false),
            departed,
            zones: RwLock::default(),
        }
    }

    /// Returns the store with the zones that its names stand in: a name that a link asks for may be
    /// another link's own.
    #[must_use]
    pub fn with_zones<'a>(self, zones: impl IntoIterator<Item = &'a Name>) -> Self {
        Self { zones: RwLock::new(origins(zones)), ..self }
    }

    /// Takes over that the zones have changed: a name that a link asks for may be another one's own now.
    pub fn set_zones<'a>(&self, zones: impl IntoIterator<Item = &'a Name>) {
        let mut allocator = self.write();
        *self.zones.write() = origins(zones);
        self.index.names.change();
        for link in self.links() {
            self.refresh_hostnames(&mut allocator, &link.key);
        }
    }

    fn zones(&self) -> Zones {
        Arc::clone(&self.zones.read())
    }

    /// Returns the store of a source whose objects have resourceVersions: the serial is never counted from
    /// the clock, not even before the first one.
    #[must_use]
    pub fn with_versions(self) -> Self {
        self.versioned.store(true, Ordering::Relaxed);
        self
    }

    /// Takes over what a source saw of one Service; returns the change of its link, if any.
    pub fn apply(&self, observed: ObservedService) -> Option<LinkChange> {
        let mut allocator = self.write();
        self.apply_one(&mut allocator, observed)
    }

    /// Takes over that a Service exists though it can't be read: what is known of it stays.
    pub fn set_unreadable(&self, key: &ServiceKey) {
        self.unreadable.insert(key.clone());
    }

    /// Takes over that a Service is gone, or left the selection. A `uid` that isn't the link's
    /// means another, earlier Service of that name, and changes nothing.
    pub fn delete(&self, key: &ServiceKey, uid: &str, resource_version: Option<u64>) -> Option<LinkChange> {
        self.delete_since(key, uid, resource_version, Instant::now())
    }

    /// Does what [`Store::delete`] does with a Service that counts as gone since then: from that moment on it is counted
    /// how long its external target stays.
    pub fn delete_since(
        &self,
        key: &ServiceKey,
        uid: &str,
        resource_version: Option<u64>,
        since: Instant,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let was_unreadable = self.unreadable.remove(key).is_some();
        let Some(link) = self.get(key) else {
            // Its Service couldn't be decoded, but its external target may still be there.
            return was_unreadable.then(|| self.record_change(&mut allocator, key, None, None));
        };
        if link.uid != *uid || link.is_gone() {
            return None;
        }
        self.advance_serial(resource_version);
        Some(self.depart(&mut allocator, &link, since))
    }

    /// Returns how many links there are whose Services are followed, and which of those in a namespace, or in all, a
    /// list of it lacks.
    #[must_use]
    pub fn missing_from<'a>(
        &self,
        list: impl Iterator<Item = &'a ServiceKey>,
        namespace: Option<&str>,
    ) -> (usize, HashSet<ServiceKey>) {
        let listed: HashSet<&ServiceKey> = list.collect();
        let (mut known, mut missing) = (0, HashSet::new());
        for link in self.links().iter().filter(|link| !link.is_gone() && !link.is_left_out()) {
            known += 1;
            let within = namespace.is_none_or(|namespace| link.key.namespace() == namespace);
            if within && !listed.contains(&link.key) {
                missing.insert(link.key.clone());
            }
        }
        (known, missing)
    }

    /// Replaces the links of a namespace, or all, by a complete list: what isn't in it is gone, but
    /// for the Services in `unreadable`, which exist but can't be decoded, and those in `kept`,
    /// which wait for a second list. Links that stay the same aren't touched, and readers see each link either as it was
    /// or as it is. Returns what changed.
    pub fn replace(
        &self,
        namespace: Option<&str>,
        list: Vec<ObservedService>,
        unreadable: Vec<ServiceKey>,
        kept: &HashSet<ServiceKey>,
    ) -> Vec<LinkChange> {
        let mut allocator = self.write();
        let within = |key: &ServiceKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
        self.unreadable.retain(|key| !within(key));
        let mut listed: HashSet<ServiceKey> = list.iter().map(|observed| observed.key.clone()).collect();
        for key in unreadable {
            self.unreadable.insert(key.clone());
            listed.insert(key);
        }
        let absent: Vec<Arc<Link>> = self
            .links()
            .into_iter()
            .filter(|link| within(&link.key))
            .filter(|link| !listed.contains(&link.key) && !kept.contains(&link.key))
            // No list has what isn't followed.
            .filter(|link| !link.is_gone() && !link.is_left_out())
            .collect();
        let mut changes = Vec::new();
        allocator.pending_changes = Some(Vec::new());
        for observed in list {
            changes.extend(self.apply_one(&mut allocator, observed));
        }
        for link in absent {
            changes.push(self.depart(&mut allocator, &link, Instant::now()));
        }
        allocator.pending_changes.take().into_iter().flatten().for_each(|change| self.tell(change));
        changes
    }

    /// Takes over that everything has been listed once: from here on a name that isn't in the store
    /// doesn't exist.
    pub fn set_synced(&self) {
        // A zone without links has a serial, too, where it is counted from the clock.
        if self.serial.load(Ordering::Relaxed) == 0 {
            self.advance_serial(None);
        }
        self.synced.send_replace(true);
        // What an earlier process has left has been taken over, and was as much as all links are.
        self.last_targets.shrink_to_fit();
        // Cached "not ready" answers are invalid from here on.
        let _writer = self.write();
        self.index.names.change();
    }

    /// Takes over that every external target that can be seen has been shown to
    /// [`Store::set_holder`], or that none can be seen: names are given to links from here on.
    pub fn set_holders_known(&self) {
        self.holders_known.send_replace(true);
    }

    /// Takes over what the external target of a link pointed at before this process was there. A
    /// Service whose status is blank when it is seen first keeps it, unless it is another Service: then the
    /// external target is an earlier Service's. Returns the change of its link, if it was seen before.
    pub fn set_last_target(&self, key: &ServiceKey, last: PersistedTarget) -> Option<LinkChange> {
        let mut allocator = self.write();
        if !self.is_synced() {
            self.last_targets.insert(key.clone(), last);
            return None;
        }
        // The external targets could be seen later than the Services.
        let blank = |link: &Arc<Link>| !link.is_gone() && !link.is_left_out() && link.target.is_none();
        let link = self.get(key).filter(blank)?;
        let kept = match last.target {
            // By now its predecessor may have been seen, too: only a note is certain.
            Some(target) if last.written_for == TargetOwner::Uid(link.uid.clone()) => {
                Link { target: Some(target), state: LinkState::Stale, ..Link::clone(&link) }
            }
            _ if link.state == LinkState::Live && !last.written_for.is(&link.uid, Some(link.created)) => {
                Link { state: LinkState::Recreated(Instant::now().into()), ..Link::clone(&link) }
            }
            _ => return None,
        };
        Some(self.upsert(&mut allocator, Some(link), kept))
    }

    /// Adds a link for a Service that was gone before this process could see it, because its
    /// external target still stands. It keeps the names that it holds, and comes last for all
    /// others; of its custom hostnames it keeps those without another owner. Returns
    /// nothing if there is a link, or a Service that can't be read.
    pub fn insert_gone(&self, key: &ServiceKey, hostnames: Vec<Box<str>>) -> Option<LinkChange> {
        self.insert_ghost(key, "", false, hostnames)
    }

    /// Returns the external targets that an earlier process has left and that lb-linker would remove without their
    /// Services, once all Services have been listed and before [`Store::set_synced`].
    #[must_use]
    pub fn recorded(&self) -> PersistedTargets {
        // A Service that isn't followed may be known for the finalizer that it carries.
        let is_unlisted = |key: &ServiceKey| self.get(key).is_none_or(|link| link.was_never_seen());
        let left = |entry: &dashmap::mapref::multiple::RefMulti<'_, ServiceKey, PersistedTarget>| {
            entry.is_ours && is_unlisted(entry.key()) && !self.unreadable.contains(entry.key())
        };
        let unlisted = self.last_targets.iter().filter(left);
        let unlisted: Vec<_> = unlisted.map(|entry| (entry.key().clone(), entry.value().clone())).collect();
        let allocator = self.write();
        let holds = |link: &&Arc<Link>| !link.is_gone() && allocator.holds_something(&link.key);
        PersistedTargets { listed: self.links().iter().filter(holds).count(), unlisted }
    }

    /// Takes over that a Service isn't followed, perhaps because a flag leaves it out, and what its external target
    /// says: adds a link in [`LinkState::LeftOut`], or changes the one of a Service that this process has never seen.
    /// `uid` is the Service's, or empty where it isn't known. Returns nothing where nothing changes.
    pub fn keep_left_out(
        &self,
        key: &ServiceKey,
        uid: Uid,
        target: Option<Target>,
        hostnames: Vec<Box<str>>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        let known = self.get(key);
        if known.as_ref().is_some_and(|link| !link.was_never_seen()) || self.unreadable.contains(key) {
            return None;
        }
        let hostnames = Annotations { hostnames: hostnames.into(), ..Default::default() };
        let kept = Link {
            uid,
            target,
            created: NEVER,
            annotations: hostnames.shared(),
            state: LinkState::LeftOut,
            ..known.as_ref().map_or_else(|| Link::new(key.clone(), ""), |link| Link::clone(link))
        };
        if known.as_deref() == Some(&kept) {
            return None;
        }
        Some(self.upsert(&mut allocator, known, kept))
    }

    /// Takes over that the Service of a link in [`LinkState::LeftOut`] is gone, and counts as gone since then.
    pub fn end_left_out(&self, key: &ServiceKey, since: Instant) -> Option<LinkChange> {
        let mut allocator = self.write();
        let link = self.get(key).filter(|link| link.is_left_out())?;
        Some(self.depart(&mut allocator, &link, since))
    }

    /// Adds a link for a Service of which it is only known that it isn't a load balancer any more,
    /// or is being deleted; `guarded` says whether it carries our finalizer. A link whose Service is
    /// gone learns that. Returns nothing if nothing changes.
    pub fn insert_terminating(&self, key: &ServiceKey, uid: &str, has_finalizer: bool) -> Option<LinkChange> {
        self.insert_ghost(key, uid, has_finalizer, Vec::new())
    }

    fn insert_ghost(
        &self,
        key: &ServiceKey,
        uid: &str,
        has_finalizer: bool,
        hostnames: Vec<Box<str>>,
    ) -> Option<LinkChange> {
        let mut allocator = self.write();
        if let Some(link) = self.get(key) {
            let known = !link.is_gone() || link.uid == *uid && link.has_finalizer == has_finalizer;
            if known || uid.is_empty() {
                return None;
            }
            let waiting = Link { uid: uid.into(), has_finalizer, ..Link::clone(&link) };
            return Some(self.upsert(&mut allocator, Some(link), waiting));
        }
        if self.unreadable.contains(key) {
            return None;
        }
        let ghost = Link {
            created: NEVER,
            has_finalizer,
            annotations: Annotations { hostnames: hostnames.into(), ..Default::default() }.shared(),
            state: LinkState::Gone(Instant::now().into()),
            ..Link::new(key.clone(), uid)
        };
        Some(self.upsert(&mut allocator, None, ghost))
    }

    /// Takes over that our finalizer has been put on the Service of a link, or taken off.
    pub fn set_guarded(&self, key: &ServiceKey, uid: &str, has_finalizer: bool) -> Option<LinkChange> {
        let mut allocator = self.write();
        let link = self.get(key).filter(|link| link.uid == *uid && link.has_finalizer != has_finalizer)?;
        let changed = Link { has_finalizer, ..Link::clone(&link) };
        Some(self.upsert(&mut allocator, Some(link), changed))
    }

    /// Forgets a link whose Service is gone or isn't followed: its names are free from here on.
    pub fn forget(&self, key: &ServiceKey) -> Option<LinkChange> {
        let mut allocator = self.write();
        let link = self.get(key).filter(|link| link.is_gone() || link.is_left_out())?;
        Some(self.remove(&mut allocator, &link))
    }

    /// Takes over which link an external target is labelled for, and which further names are noted
    /// on it: the holder of a name keeps it.
    pub fn set_holder(&self, object: &str, holder: Option<&ServiceKey>, hostnames: &[Box<str>]) {
        let mut allocator = self.write();
        let reassigned = allocator.set_holder(object, holder);
        self.apply_reassigned(&mut allocator, reassigned);
        let passed =
            allocator.custom_hostnames.set_recorded(object, holder.map(|holder| (holder, hostnames)));
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
        } = observed;
        self.unreadable.remove(&key);
        let known = self.get(&key);
        let key = known.as_ref().map_or_else(|| allocator.kept_key(&key), |link| link.key.clone());
        // A recreated Service starts anew: its predecessor's target isn't its own.
        let same = known.as_ref().filter(|link| {
            let is_it = link.uid == uid || link.is_left_out() && link.uid.is_empty();
            is_it && !link.is_gone()
        });
        let (in_use, predecessor_gone) = match &known {
            None => {
                let last = self.last_targets.remove(&key).map(|(_, last)| last);
                let own = |last: &PersistedTarget| !self.is_synced() && last.written_for.is(&uid, created);
                match last {
                    Some(last) if own(&last) => (last.target, None),
                    Some(_) => (None, Some(Instant::now())),
                    None => (None, None),
                }
            }
            Some(known) => match same {
                Some(link) => (link.target.clone(), link.outlived_since()),
                None => (None, Some(known.outlived_since().unwrap_or_else(Instant::now))),
            },
        };
        let chosen = ingress.choose(in_use.as_ref());
        let state = match (&chosen, &in_use, predecessor_gone) {
            (None, None, Some(since)) => LinkState::Recreated(since.into()),
            (None, Some(_), _) => LinkState::Stale,
            _ => LinkState::Live,
        };
        let target = chosen.or(in_use);
        let named = matches!(target, Some(Target::Hostname(_)));
        let link = Link {
            uid,
            // A load balancer that is deleted and recreated keeps its place for its names.
            created: known
                .as_ref()
                .filter(|link| link.created != NEVER)
                .map_or(created.unwrap_or(UNKNOWN), |link| link.created),
            target,
            ports: allocator.ports.shared(ports),
            annotations: annotations.shared(),
            hostnames: known.as_ref().map_or_else(Box::default, |link| link.hostnames.clone()),
            refused,
            has_finalizer,
            state,
            external_target_override: known.as_ref().and_then(|link| link.external_target_override.clone()),
            last_queried: known.as_ref().map_or_else(LastQueried::default, |link| link.last_queried.clone()),
            outdated: Superseded::default(),
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
        if named && known.as_ref().is_some_and(other_ports) {
            // Nothing but DNS shows the ports of a hostname: subscribers of the feed need no change.
            self.advance_serial(None);
            self.publish(allocator, &Arc::new(link));
            return None;
        }
        Some(self.upsert(allocator, known, link))
    }

    fn depart(&self, allocator: &mut NameAllocator, link: &Arc<Link>, since: Instant) -> LinkChange {
        match self.departed {
            OnGone::Dropped => self.remove(allocator, link),
            OnGone::Kept => {
                // What a Service has left that never had a target itself is its predecessor's.
                let since = link.outlived_since().map_or(since, |outlived| outlived.min(since));
                let state = LinkState::Gone(since.into());
                let gone = Link { target: None, refused: false, state, ..Link::clone(link) };
                self.upsert(allocator, Some(Arc::clone(link)), gone)
            }
        }
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
        match &mut allocator.pending_changes {
            Some(untold) => untold.push(change.clone()),
            None => self.tell(change.clone()),
        }
        change
    }

    fn tell(&self, change: LinkChange) {
        // Without a subscriber the send fails, and that is right.
        let _ = self.feed.send(change);
    }

    /// Takes over that resourceVersions go on from this one, which is older than those before: etcd has been restored
    /// to an earlier revision. The zone's serial goes on from where it is, as it may never go back (RFC 1982); a
    /// process that starts later counts from the versions again.
    pub fn rewind(&self, resource_version: u64) {
        let _writer = self.write();
        let next = self.serial.load(Ordering::Relaxed) + 1;
        self.ahead.store(next.saturating_sub(resource_version), Ordering::Relaxed);
        self.serial.store(next, Ordering::Relaxed);
    }

    /// The zone's serial is the newest resourceVersion applied, alike on all replicas; a source
    /// without versions counts on from the clock, so that a restart never goes back.
    fn advance_serial(&self, resource_version: Option<u64>) {
        match resource_version {
            Some(version) => {
                self.versioned.store(true, Ordering::Relaxed);
                let serial = version.saturating_add(self.ahead.load(Ordering::Relaxed));
                self.serial.fetch_max(serial, Ordering::Relaxed);
            }
            None if !self.versioned.load(Ordering::Relaxed) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
                let last = self.serial.load(Ordering::Relaxed);
                self.serial.store(now.max(last + 1), Ordering::Relaxed);
            }
            None => {}
        }
    }

    fn write(&self) -> MutexGuard<'_, NameAllocator> {
        // A panic of another writer leaves claims and maps usable: each step stands for itself.
        let mut allocator = self.allocator.lock();
        // What it had not told yet is told now.
        allocator.pending_changes.take().into_iter().flatten().for_each(|change| self.tell(change));
        allocator
    }
}

// === impl Store: for readers ===

impl Store {
    /// Returns the link of a Service.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<Link>> {
        self.links.get(key.bytes())
    }

    /// Returns whether an external target is labelled for this Service.
    #[must_use]
    pub fn is_held_by(&self, key: &ServiceKey) -> bool {
        self.write().holds_something(key)
    }

    /// Returns the links whose external target has this name: one, if any.
    #[must_use]
    pub fn claimants(&self, external_target: &str) -> Vec<ServiceKey> {
        let mut keys = self.write().claimants(external_target);
        keys.retain(|key| self.get(key).is_some_and(|link| link.external_target() == external_target));
        keys
    }

    /// Returns what the external target of a Service pointed at that was gone before this process could
    /// see it.
    #[must_use]
    pub fn last_target(&self, key: &ServiceKey) -> Option<Target> {
        self.last_targets.get(key).and_then(|last| last.target.clone())
    }

    /// Returns whether the Service is there and can't be read.
    #[must_use]
    pub fn is_unreadable(&self, key: &ServiceKey) -> bool {
        self.unreadable.contains(key)
    }

    /// Returns whether there is a link of this Service, or the Service is there and can't be read.
    #[must_use]
    pub fn contains(&self, key: &ServiceKey) -> bool {
        self.links.contains(key.bytes()) || self.unreadable.contains(key)
    }

    /// Returns all links, in no order.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.links.all()
    }

    /// Looks up a DNS name: the part below its zone, and the zone's origin, both as [`crate::model::names::wire`]
    /// writes them.
    #[must_use]
    pub fn find(&self, name: &[u8], origin: &[u8]) -> Lookup {
        self.index.find(name, origin)
    }

    /// Returns the link that has an absolute DNS name.
    #[must_use]
    pub fn link_of_host(&self, host: &Name) -> Option<Arc<Link>> {
        match self.find_host(host) {
            Lookup::Link(link) => Some(link),
            Lookup::EmptyNonTerminal | Lookup::Nothing => None,
        }
    }

    /// Looks up an absolute DNS name; outside the zones there is nothing.
    #[must_use]
    pub fn find_host(&self, host: &Name) -> Lookup {
        let Some(wire) = crate::model::names::wire(host.iter()) else { return Lookup::Nothing };
        let zones = self.zones();
        // Zones end at the border of a label: what is below one consists of whole labels.
        let in_zone = |zone: &&[u8]| wire.strip_suffix(*zone).is_some_and(is_whole);
        // The closest zone of several that a name is in.
        match zones.iter().map(|zone| &**zone).filter(in_zone).max_by_key(|zone| zone.len()) {
            Some(zone) => self.find(&wire[..wire.len() - zone.len()], zone),
            None => Lookup::Nothing,
        }
    }

    /// Returns the present version of the set of names, to be compared later. Take it before the look-ups that depend
    /// on it.
    #[must_use]
    pub fn names(&self) -> NameSetVersion {
        self.index.names.now()
    }

    /// Returns the links whose target has this address, ordered by namespace and name.
    #[must_use]
    pub fn links_at(&self, ip: IpAddr) -> Vec<Arc<Link>> {
        let has =
            |link: &Arc<Link>| matches!(&link.target, Some(Target::Addresses(ips)) if ips.contains(&ip));
        // What a link says of itself is newer than the index.
        self.index.addresses.of(ip).iter().filter_map(|key| self.get(key)).filter(has).collect()
    }

    /// Returns whether any link's target has an address in this network.
    #[must_use]
    pub fn has_address_in(&self, net: IpNet) -> bool {
        self.index.addresses.any_in(net)
    }

    /// Subscribes to the changes from now on. A subscriber that falls behind gets `Lagged` and has to look at every
    /// link.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<LinkChange> {
        self.feed.subscribe()
    }

    /// Returns whether a complete list has been seen.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Waits until the owners of all external targets are known.
    pub async fn holders_known(&self) {
        // The sender lives as long as `self`: waiting can't fail.
        let _ = self.holders_known.subscribe().wait_for(|known| *known).await;
    }

    /// Returns the serial of the zone: the low 32 bits of the newest version (RFC 1982 arithmetic).
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are what is wanted")]
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed) as u32
    }
}

/// Returns whether bytes are whole labels.
fn is_whole(mut labels: &[u8]) -> bool {
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
