//! What the objects of a source ask for together. Pure.
//!
//! The objects of a namespace share a name: their addresses are united, and a hostname goes before addresses. Load
//! balancers share none. The store has one owner for each name and namespace, as old as the oldest of these objects.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use indexmap::IndexSet;
use smallvec::SmallVec;

use super::bound::Bounds;
use crate::model::clusters;
use crate::model::link::{Annotations, Link, LinkState, Target};
use crate::model::names;
use crate::model::owner::Zone;
use crate::model::records::{Records, smallest};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::events::RegardingKind;

/// Maximum number of objects, and of their addresses, that count for a name in a namespace.
pub const MAX_SHARED: usize = 100;
/// What a name takes here and in the store, beside its text and records, in bytes, roughly.
const NAME_SIZE: usize = 1024;

/// An object of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub key: ServiceKey,
    pub kind: RegardingKind,
}

/// What an object asks for.
#[derive(Debug, Default)]
pub struct Observation {
    /// When the object was created, in seconds since 1970: the oldest object comes first.
    pub created: i64,
    pub uid: Uid,
    /// The names, in order: see [`Observation::new`].
    claims: Box<[Claim]>,
    /// What the names and their records take, in bytes, roughly.
    size: usize,
}

/// A name that an object asks for.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The namespace whose objects share the name, and the hostname.
    pub name: ServiceKey,
    /// What is behind the name, as far as the object decides.
    pub target: Arc<Link>,
}

impl Observation {
    #[must_use]
    pub fn new(created: i64, uid: Uid, mut claims: Vec<Claim>) -> Self {
        // The order of equal names, with several targets, stays.
        claims.sort_by(|one, other| one.name.cmp(&other.name));
        let size = claims.iter().map(Claim::size).sum();
        Self { created, uid, claims: claims.into(), size }
    }

    /// Returns the claims, sorted by name.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Returns the names, each once.
    fn names(&self) -> impl Iterator<Item = &ServiceKey> {
        self.claims.chunk_by(|one, other| one.name == other.name).map(|claims| &claims[0].name)
    }

    /// Returns what is behind a name, as far as the object decides.
    fn targets(&self, name: &ServiceKey) -> impl Iterator<Item = &Arc<Link>> {
        let first = self.claims.partition_point(|claim| claim.name < *name);
        self.claims[first..].iter().take_while(move |claim| claim.name == *name).map(|claim| &claim.target)
    }
}

impl Claim {
    /// Records are an object's own; a target without records is shared by all names of its object.
    fn size(&self) -> usize {
        let Link { target, records, .. } = &*self.target;
        let addresses = match target {
            Some(Target::Addresses(addresses)) if records.is_some() => size_of_val(&addresses[..]),
            _ => 0,
        };
        NAME_SIZE + self.name.name().len() + addresses + records.as_ref().map_or(0, |records| records.size())
    }
}

/// The objects of a source.
#[derive(Debug, Default)]
pub struct SharedNames {
    objects: HashMap<ObjectId, Observation>,
    bounds: Bounds,
    /// The objects that don't count, because their namespace has too many: what they ask for isn't kept.
    excess: HashSet<ObjectId>,
    /// The names, each with the objects that ask for it, the oldest first.
    asking: BTreeSet<(ServiceKey, i64, ObjectId)>,
    /// What is behind the names for which no single object decides.
    united: HashMap<ServiceKey, Arc<Link>>,
    /// The zones, if one of them lists routes of single kinds.
    zones: Arc<[Zone]>,
}

/// Objects that ask for a name, the oldest first.
type Asked<'a> = SmallVec<[(&'a ObjectId, &'a Observation); 1]>;

/// What follows from a change of an object.
#[derive(Debug, Default)]
pub struct Change {
    /// The names that are concerned.
    pub names: Vec<ServiceKey>,
    /// The objects that don't count any more, because their namespace has too many.
    pub excess: Vec<(ObjectId, Uid)>,
}

/// What is behind a name.
#[derive(Debug)]
pub struct Behind {
    /// When the oldest object that asks for the name was created.
    pub created: i64,
    pub link: Arc<Link>,
    /// The first object that doesn't count, or not with all of its addresses, because there are too many.
    pub cut: Option<ObjectId>,
    /// The kind of the objects, if the name's zone lists routes of single kinds.
    pub kind: Option<RegardingKind>,
}

impl SharedNames {
    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<&Observation> {
        self.objects.get(id)
    }

    pub fn objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys().chain(&self.excess)
    }

    pub fn names(&self) -> impl Iterator<Item = &ServiceKey> {
        let mut last = None;
        self.asking.iter().map(|(name, ..)| name).filter(move |name| last.replace(*name) != Some(*name))
    }

    /// Changes the zones: some list routes of single kinds, of which the first with a name has it.
    pub fn set_zones(&mut self, zones: &Arc<[Zone]>) {
        let has_kinds = zones.iter().any(|zone| zone.kinds_of_routes().next().is_some());
        self.zones = if has_kinds { Arc::clone(zones) } else { Arc::default() };
    }

    /// Returns the objects that ask for a name and may count, the oldest first.
    pub fn asking(&self, name: &ServiceKey) -> impl Iterator<Item = &ObjectId> {
        asking_of(&self.asking, name, first_kind(&self.asking, &self.zones, name))
    }

    /// Replaces what was observed of an object; `None` if it is gone.
    pub fn set(&mut self, id: &ObjectId, now: Option<Observation>) -> Change {
        let before = self.objects.remove(id).unwrap_or_default();
        let mut now = now.unwrap_or_default();
        let sized =
            |object: &Observation| (!object.claims.is_empty()).then_some((object.created, object.size));
        let others = || {
            let all = self.objects.iter().filter(|(other, _)| other.key.namespace() == id.key.namespace());
            all.map(|(other, object)| ((object.created, other.clone()), object.size)).collect()
        };
        let evicted = self.bounds.set(id, sized(&before), sized(&now), others);
        let mut change = Change::default();
        for other in evicted.iter().filter(|other| *other != id) {
            let ended = self.objects.remove(other).unwrap_or_default();
            change.names.extend(self.replace_claims(other, &ended, &Observation::default()));
            change.excess.push((other.clone(), ended.uid));
        }
        if evicted.contains(id) {
            let uid = std::mem::take(&mut now).uid;
            if self.excess.insert(id.clone()) {
                change.excess.push((id.clone(), uid));
            }
        } else {
            self.excess.remove(id);
        }
        self.excess.extend(evicted);
        change.names.extend(self.replace_claims(id, &before, &now));
        if !now.claims.is_empty() {
            self.objects.insert(id.clone(), now);
        }
        change.names.sort_unstable();
        change.names.dedup();
        change
    }

    /// Returns whether there is room for objects that didn't count, once for each time: they have to be listed.
    pub fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.bounds.has_room)
    }

    /// Replaces the claims of an object. Returns the names that are concerned.
    fn replace_claims(&mut self, id: &ObjectId, before: &Observation, now: &Observation) -> Vec<ServiceKey> {
        let has_same_age = before.created == now.created;
        let mut concerned: Vec<ServiceKey> = Vec::new();
        for (one, other, is_new) in [(before, now, false), (now, before, true)] {
            for name in one.names() {
                let is_in_both = has_same_age && other.targets(name).next().is_some();
                let entry = || (name.clone(), one.created, id.clone());
                match (is_in_both, is_new) {
                    (true, _) => {}
                    (false, true) => drop(self.asking.insert(entry())),
                    (false, false) => drop(self.asking.remove(&entry())),
                }
                let targets = one.targets(name).map(Arc::as_ptr);
                if !is_in_both || !targets.eq(other.targets(name).map(Arc::as_ptr)) {
                    concerned.push(name.clone());
                }
            }
        }
        concerned
    }

    /// Returns the number of names that an object asks for.
    #[must_use]
    pub fn number_of(&self, id: &ObjectId) -> usize {
        self.objects.get(id).map_or(0, |object| object.names().count())
    }

    /// Returns the objects that ask for a name and don't count: all load balancers but one, and routes, at Gateways of one
    /// namespace, of another namespace than the oldest one and with other links.
    #[must_use]
    pub fn overruled(&self, name: &ServiceKey) -> BTreeSet<ObjectId> {
        let asked = self.asking(name).take(MAX_SHARED).filter_map(|id| Some((id, self.objects.get(id)?)));
        let asked: Asked<'_> = asked.collect();
        let Some(first) = first(name, &asked) else { return BTreeSet::new() };
        let overruled = asked.into_iter().filter(|other| !counts_with(name, first, *other));
        overruled.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the same hostname in other namespaces, if an object asks for it there, too.
    pub fn elsewhere<'a>(
        &'a self,
        id: &ObjectId,
        name: &'a ServiceKey,
    ) -> impl Iterator<Item = &'a ServiceKey> + use<'a> {
        let names = self.objects.get(id).into_iter().flat_map(Observation::names);
        names.filter(move |other| other.name() == name.name() && *other != name)
    }

    /// Replaces an earlier version of a target behind the names of an object. Returns the names that are concerned.
    pub fn set_target(&mut self, id: &ObjectId, now: &Arc<Link>) -> Vec<ServiceKey> {
        let claims = self.objects.get_mut(id).map(|object| &mut object.claims[..]).unwrap_or_default();
        let earlier = |claim: &&mut Claim| claim.target.key == now.key && !Arc::ptr_eq(&claim.target, now);
        let replace = |claim: &mut Claim| {
            claim.target = Arc::clone(now);
            claim.name.clone()
        };
        claims.iter_mut().filter(earlier).map(replace).collect()
    }

    /// Returns what is behind a name; `None` if no object asks for it.
    pub fn behind(&mut self, name: &ServiceKey) -> Option<Behind> {
        let Self { objects, asking: all, united: known, zones, .. } = self;
        let kind = first_kind(all, zones, name);
        let mut ids = asking_of(all, name, kind);
        let mut asked: Asked<'_> =
            ids.by_ref().take(MAX_SHARED).filter_map(|id| Some((id, objects.get(id)?))).collect();
        let beyond = ids.next().cloned();
        if let Some(first) = first(name, &asked) {
            asked.retain(|other| counts_with(name, first, *other));
        }
        // Some objects may still have an earlier version of their target.
        let targets =
            asked.iter().flat_map(|(id, object)| object.targets(name).map(|link| (*id, Link::newest(link))));
        let newest: SmallVec<[(&ObjectId, Arc<Link>); 1]> = targets.collect();
        let links: SmallVec<[(&ObjectId, &Arc<Link>); 1]> =
            newest.iter().map(|(id, link)| (*id, link)).collect();
        let (Some((_, Observation { created, .. })), Some((_, oldest))) = (asked.first(), links.first())
        else {
            known.remove(name);
            return None;
        };
        let (target, cut) = united(&links);
        let (records, cut_records) = united_records(&links, &target);
        let ttl = ttl(&links, &target);
        let (created, cut) = (*created, cut.or(cut_records).cloned().or(beyond));
        if target == oldest.target && records == oldest.records && ttl == oldest.annotations.ttl {
            let link = Arc::clone(oldest);
            known.remove(name);
            return Some(Behind { created, link, cut, kind });
        }
        let link = unite(oldest, (target, records, ttl), known.get(name));
        known.insert(name.clone(), Arc::clone(&link));
        Some(Behind { created, link, cut, kind })
    }
}

/// Returns the object that has a name: the load balancer with this default name, or else the oldest object.
fn first<'a>(name: &ServiceKey, asked: &Asked<'a>) -> Option<(&'a ObjectId, &'a Observation)> {
    let has_default_name = |(id, _): &&(&ObjectId, &Observation)| {
        let own = || format!("{}.{}.", id.key.name(), clusters::domain_of(id.key.namespace()));
        id.kind == RegardingKind::Service && name.name().starts_with(&own())
    };
    asked.iter().find(has_default_name).or(asked.first()).copied()
}

/// Returns whether an object counts beside the first one for a name: it is of the same namespace, or leads to the very same
/// links. A link with a route's own settings is another one. Beside a load balancer none counts.
fn counts_with(
    name: &ServiceKey,
    (oldest, of_oldest): (&ObjectId, &Observation),
    (id, object): (&ObjectId, &Observation),
) -> bool {
    if oldest.kind == RegardingKind::Service {
        return id == oldest;
    }
    let has = |target: &Arc<Link>| {
        let newest = Link::newest(target);
        of_oldest.targets(name).any(|known| Arc::ptr_eq(&Link::newest(known), &newest))
    };
    id.key.namespace() == oldest.key.namespace() || object.targets(name).all(has)
}

/// Returns the kind of the objects that count for a name, if its zone lists routes of single kinds.
fn first_kind(
    all: &BTreeSet<(ServiceKey, i64, ObjectId)>,
    zones: &[Zone],
    name: &ServiceKey,
) -> Option<RegardingKind> {
    let wire = if zones.is_empty() { None } else { names::wire_of(name.name()) }?;
    let zone = Zone::closest(zones, &wire)?;
    let place = |id: &ObjectId| zone.kinds_of_routes().position(|listed| listed.kind == id.kind.api().1);
    let first =
        asking(all, name).filter_map(|id| Some((place(id)?, id.kind))).min_by_key(|(place, _)| *place);
    first.map(|(_, kind)| kind)
}

/// Returns the objects that ask for a name, the oldest first; of all kinds, or of one.
fn asking_of<'a>(
    all: &'a BTreeSet<(ServiceKey, i64, ObjectId)>,
    name: &ServiceKey,
    kind: Option<RegardingKind>,
) -> impl Iterator<Item = &'a ObjectId> + use<'a> {
    asking(all, name).filter(move |id| kind.is_none_or(|kind| id.kind == kind))
}

fn asking<'a>(
    all: &'a BTreeSet<(ServiceKey, i64, ObjectId)>,
    name: &ServiceKey,
) -> impl Iterator<Item = &'a ObjectId> + use<'a> {
    let before_all = ObjectId { key: ServiceKey::new("", ""), kind: RegardingKind::default() };
    let (first, name) = ((name.clone(), i64::MIN, before_all), name.clone());
    all.range(first..).take_while(move |(asked, ..)| *asked == name).map(|(.., id)| id)
}

/// Returns the first hostname, or else all addresses; `None` without any. Also returns the first object with more
/// addresses than count.
fn united<'a>(links: &[(&'a ObjectId, &Arc<Link>)]) -> (Option<Target>, Option<&'a ObjectId>) {
    let mut targets = links.iter().filter_map(|(id, link)| Some((*id, link.target.as_ref()?)));
    if let Some((_, host)) = targets.clone().find(|(_, target)| matches!(target, Target::Hostname(_))) {
        return (Some(host.clone()), None);
    }
    if links.len() == 1 {
        return (targets.next().map(|(_, target)| target.clone()), None);
    }
    let (mut all, mut cut): (IndexSet<IpAddr>, _) = (IndexSet::new(), None);
    for (id, target) in targets {
        let Target::Addresses(addresses) = target else { continue };
        for address in addresses {
            if all.len() < MAX_SHARED {
                all.insert(*address);
            } else if !all.contains(address) {
                cut.get_or_insert(id);
            }
        }
    }
    ((!all.is_empty()).then(|| Target::Addresses(all.into_iter().collect())), cut)
}

/// Returns the records that the objects declare beside their addresses; beside a hostname there are none (RFC 1034
/// section 3.6.2). Also returns the first object with more records than count.
fn united_records<'a>(
    links: &[(&'a ObjectId, &Arc<Link>)],
    target: &Option<Target>,
) -> (Option<Arc<Records>>, Option<&'a ObjectId>) {
    let (Some((_, oldest)), mut cut) = (links.first(), None) else { return (None, None) };
    let Some(first) = oldest.records.as_ref().filter(|_| links.len() > 1) else {
        return (oldest.records.clone(), None);
    };
    let mut all = Records::default();
    if !matches!(target, Some(Target::Hostname(_))) {
        for (id, link) in links {
            if link.records.as_ref().is_some_and(|records| !all.add_all(records)) {
                cut.get_or_insert(*id);
            }
        }
    }
    (Some(if **first == all { Arc::clone(first) } else { Arc::new(all) }), cut)
}

/// Returns the TTL of the target: that of the oldest object or, if its objects declare each name's TTL, the smallest.
fn ttl(links: &[(&ObjectId, &Arc<Link>)], target: &Option<Target>) -> Option<u32> {
    let (_, oldest) = links.first()?;
    if oldest.records.is_none() {
        return oldest.annotations.ttl;
    }
    let counts = |link: &&&Arc<Link>| match target {
        Some(Target::Hostname(_)) => link.target == *target,
        _ => link.target.is_some(),
    };
    smallest(links.iter().map(|(_, link)| link).filter(counts).map(|link| link.annotations.ttl))
}

/// Returns the settings of the oldest object with another target, other records and another TTL. `known` is what was
/// behind the name before.
fn unite(
    oldest: &Link,
    (target, records, ttl): (Option<Target>, Option<Arc<Records>>, Option<u32>),
    known: Option<&Arc<Link>>,
) -> Arc<Link> {
    let (namespace, name) = oldest.key.parts();
    let (object, word) = name.rsplit_once('.').unwrap_or((name, ""));
    let united = Link {
        // Another key than the object's: links with one key are versions of one target, which the other names of the
        // oldest object may share. No object has a name with `_`.
        key: ServiceKey::new(namespace, &format!("{object}._shared.{word}")),
        target,
        records,
        annotations: Annotations { ttl, ..oldest.annotations.clone() },
        state: LinkState::Live,
        last_queried: known.unwrap_or(&Arc::new(oldest.clone())).last_queried.clone(),
        ..oldest.clone()
    };
    match known {
        Some(known) if **known == united => Arc::clone(known),
        _ => Arc::new(united),
    }
}

#[cfg(test)]
mod tests;
