//! Index of DNS names: finds what is behind a name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter::{once, successors};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::Store;
use super::name_slots::{ChangeGuard, NameDependency, NameSlots};
use super::reverse_index::ReverseIndex;
use crate::model::link::Link;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Link(Arc<Link>),
    /// No link owns the name, but names below it exist (RFC 8020).
    EmptyNonTerminal,
    Nothing,
}

/// A name whose labels, each with its length octet, are in reverse order.
type ReversedName = SmallVec<[u8; 40]>;

/// The names of all links, in wire form, and the addresses of their targets.
#[derive(Debug)]
pub(super) struct Index {
    /// The names `<service>.<namespace>` and `<service>-<namespace>`, relative to the zone.
    pub(super) default_names: NameTree,
    /// The custom hostnames, as absolute names.
    pub(super) custom_hostnames: NameTree,
    pub(super) addresses: ReverseIndex,
    pub(super) slots: Arc<NameSlots>,
}

#[derive(Debug)]
pub(super) struct NameTree {
    /// Tells apart the names of the trees.
    id: u8,
    /// The labels of each name are in reverse order, so that the names below a domain follow the domain in the map.
    /// Empty non-terminals need no entries: a single name can have over a hundred of them above it.
    names: RwLock<BTreeMap<ReversedName, Arc<Link>>>,
    /// The number of names.
    count: AtomicUsize,
    slots: Arc<NameSlots>,
    /// Whether answers about existing names rest on their slots, too: then a name may go to another target, and the target
    /// that it leaves isn't outdated, which other names may share.
    shares_targets: bool,
}

impl Default for Index {
    fn default() -> Self {
        let slots = Arc::default();
        Self {
            default_names: NameTree::new(0, &slots, false),
            custom_hostnames: NameTree::new(1, &slots, true),
            addresses: ReverseIndex::default(),
            slots,
        }
    }
}

impl Store {
    /// Looks up a DNS name, given as the part below its zone and the zone's origin, both in the wire form of
    /// [`crate::model::names::wire`]. `has_default_names` tells whether load balancers have their default names there.
    #[must_use]
    pub fn find(&self, name: &[u8], origin: &[u8], has_default_names: bool) -> Lookup {
        self.index.find(name, origin, has_default_names)
    }

    /// Looks up a DNS name as [`Self::find`] does. Returns also on which names an answer made of the result rests; `None`
    /// if it rests on the found link alone.
    #[must_use]
    pub fn find_to_keep(
        &self,
        name: &[u8],
        origin: &[u8],
        has_default_names: bool,
    ) -> (Lookup, Option<NameDependency>) {
        self.index.find_to_keep(name, origin, has_default_names)
    }
}

impl Index {
    pub(super) fn copy(&self) -> Self {
        let slots = Arc::default();
        Self {
            default_names: self.default_names.copy(&slots),
            custom_hostnames: self.custom_hostnames.copy(&slots),
            addresses: self.addresses.copy(),
            slots,
        }
    }

    /// Looks up a name, given as the part below its zone and the zone's origin. Default names take precedence over
    /// custom hostnames.
    fn find(&self, name: &[u8], origin: &[u8], has_default_names: bool) -> Lookup {
        let own = self.default_name(name, has_default_names);
        // Fast path: there are no custom hostnames.
        if matches!(own, Lookup::Link(_)) || self.custom_hostnames.count.load(Ordering::Acquire) == 0 {
            return own;
        }
        self.find_custom(name, origin, has_default_names, own).0
    }

    fn default_name(&self, name: &[u8], has_default_names: bool) -> Lookup {
        if has_default_names { self.default_names.find(name) } else { Lookup::Nothing }
    }

    /// Looks up a name as [`Self::find`] does. Returns also on which names the result rests; `None` if it is the link
    /// with this default name, which belongs to the link until the link is outdated.
    fn find_to_keep(
        &self,
        name: &[u8],
        origin: &[u8],
        has_default_names: bool,
    ) -> (Lookup, Option<NameDependency>) {
        let (all, changes) = NameDependency::on_all(&self.slots);
        let own = self.default_name(name, has_default_names);
        if matches!(own, Lookup::Link(_)) {
            return (own, None);
        }
        // The first custom hostname outdates everything.
        if self.custom_hostnames.count.load(Ordering::Acquire) == 0 {
            return (own, Some(all.with_slots([self.default_names.slot_of(name)], changes)));
        }
        let (found, encloser) = self.find_custom(name, origin, has_default_names, own);
        let slots = self.slots_of(name, origin, encloser);
        (found, Some(all.with_slots(slots, changes)))
    }

    /// Looks up a name that isn't the default name of a link; `own` is what the default names have at it. If it doesn't
    /// exist, and a wildcard could match it, returns also its closest encloser, as the part below the origin.
    fn find_custom<'a>(
        &self,
        name: &'a [u8],
        origin: &[u8],
        has_default_names: bool,
        own: Lookup,
    ) -> (Lookup, Option<&'a [u8]>) {
        match self.custom_hostnames.find(&[name, origin].concat()) {
            Lookup::Nothing if own == Lookup::Nothing => self.find_wildcard(name, origin, has_default_names),
            Lookup::Nothing => (own, None),
            found => (found, None),
        }
    }

    /// Looks for a wildcard directly below the closest encloser (RFC 4592 section 3.3.1), and returns the encloser, too.
    fn find_wildcard<'a>(
        &self,
        name: &'a [u8],
        origin: &[u8],
        has_default_names: bool,
    ) -> (Lookup, Option<&'a [u8]>) {
        let mut rest = name;
        while let Some(parent) = parent(rest) {
            // Unlike in RFC 4592, a wildcard doesn't match a name with a label that begins with `_`.
            if rest.get(1) == Some(&b'_') {
                return (Lookup::Nothing, None);
            }
            let absolute = [parent, origin].concat();
            if let Lookup::Link(link) = self.custom_hostnames.find(&wildcard(&absolute)) {
                return (Lookup::Link(link), Some(parent));
            }
            if parent.is_empty()
                || self.default_name(parent, has_default_names) != Lookup::Nothing
                || self.custom_hostnames.find(&absolute) != Lookup::Nothing
            {
                return (Lookup::Nothing, Some(parent));
            }
            rest = parent;
        }
        (Lookup::Nothing, None)
    }

    /// Returns the slots of a name and, for its closest encloser, of the encloser, of the next closer name and of the
    /// wildcard: if none of them begins or ceases to exist, neither does another name above `name`.
    fn slots_of(&self, name: &[u8], origin: &[u8], encloser: Option<&[u8]>) -> SmallVec<[u16; 7]> {
        let absolute = |relative: &[u8]| [relative, origin].concat();
        let mut slots = SmallVec::new();
        let mut add = |relative: &[u8]| {
            slots.push(self.default_names.slot_of(relative));
            slots.push(self.custom_hostnames.slot_of(&absolute(relative)));
        };
        add(name);
        let Some(encloser) = encloser else { return slots };
        add(encloser);
        let mut next_closer = name;
        while let Some(above) = parent(next_closer).filter(|above| above.len() > encloser.len()) {
            next_closer = above;
        }
        if next_closer.len() < name.len() {
            add(next_closer);
        }
        slots.push(self.custom_hostnames.slot_of(&wildcard(&absolute(encloser))));
        slots
    }
}

impl NameTree {
    fn new(id: u8, slots: &Arc<NameSlots>, shares_targets: bool) -> Self {
        let (names, count) = (RwLock::default(), AtomicUsize::new(0));
        Self { id, names, count, slots: Arc::clone(slots), shares_targets }
    }

    fn slot_of(&self, name: &[u8]) -> u16 {
        self.slots.slot_of(self.id, name)
    }

    fn copy(&self, slots: &Arc<NameSlots>) -> Self {
        // Names that share a target may be led to a newer version of it at any time: they get a version of their own.
        let mut own: HashMap<*const Link, Arc<Link>> = HashMap::new();
        let mut version = |link: Arc<Link>| match self.shares_targets {
            true => Arc::clone(own.entry(Arc::as_ptr(&link)).or_insert_with(|| Arc::new(Link::clone(&link)))),
            false => link,
        };
        let names = self.names.read();
        let names: BTreeMap<_, _> =
            names.iter().map(|(name, link)| (name.clone(), version(Link::newest(link)))).collect();
        let count = AtomicUsize::new(names.len());
        Self { names: RwLock::new(names), count, slots: Arc::clone(slots), ..*self }
    }

    /// Returns the names at and below a domain, as the parts below the domain.
    pub(super) fn names_below(&self, domain: &[u8]) -> BTreeSet<Vec<u8>> {
        let domain = reversed(domain);
        let names = self.names.read();
        let from = names.range::<ReversedName, _>(&domain..).map(|(name, _)| name);
        let below = from.take_while(|name| name.starts_with(&domain));
        below.map(|name| reversed(&name[domain.len()..]).to_vec()).collect()
    }

    /// Maps a name to what is behind it, or removes the name. Returns what was there.
    pub(super) fn set(&self, name: &[u8], link: Option<Arc<Link>>) -> Option<Arc<Link>> {
        let (given, name) = (name, reversed(name));
        // The map stays locked during the change, so that no reader sees the new link and then the old one again.
        let mut names = self.names.write();
        let before = names.get(&name);
        let differs = |before: Option<&Arc<Link>>| before.map(Arc::as_ptr) != link.as_ref().map(Arc::as_ptr);
        if differs(before) {
            self.slots.set_changed();
        }
        let before = before.map(Link::newest);
        let is_replaced = before.is_some() && differs(before.as_ref());
        let _change = if before.is_some() != link.is_some() {
            Some(self.begin_existence(given, &name, &names))
        } else {
            let leaves = is_replaced && self.shares_targets;
            let left = before.as_ref().filter(|before| leaves && !before.is_outdated());
            left.map(|_| self.slots.begin([self.slot_of(given)]))
        };
        if let Some(before) = before.as_ref().filter(|_| is_replaced && !self.shares_targets) {
            before.set_outdated();
        }
        match link {
            Some(link) => names.insert(name, link),
            None => names.remove(&name),
        };
        self.count.store(names.len(), Ordering::Release);
        before
    }

    /// Begins the change by which a name begins or ceases to exist, and with it domains above it.
    fn begin_existence(
        &self,
        given: &[u8],
        name: &ReversedName,
        names: &BTreeMap<ReversedName, Arc<Link>>,
    ) -> ChangeGuard<'_> {
        // The domains above exist as long as there is a name below them.
        let has_others = |domain: &&[u8]| {
            let domain = reversed(domain);
            let mut below = names.range::<ReversedName, _>(&domain..).map(|(other, _)| other);
            let others = |other: &&ReversedName| other.starts_with(&domain);
            below.by_ref().take_while(others).take(2).any(|other| other != name)
        };
        let above = successors(parent(given), |domain| parent(domain));
        let alone = above.take_while(|domain| !domain.is_empty() && !has_others(domain));
        let change = self.slots.begin(once(given).chain(alone).map(|changed| self.slot_of(changed)));
        // What was kept while the tree had no names doesn't rest on its slots.
        if names.is_empty() {
            self.slots.outdate_all();
        }
        change
    }

    pub(super) fn find(&self, name: &[u8]) -> Lookup {
        let name = reversed(name);
        match self.names.read().range::<ReversedName, _>(&name..).next() {
            Some((found, link)) if *found == name => Lookup::Link(Link::newest(link)),
            Some((below, _)) if !name.is_empty() && below.starts_with(&name) => Lookup::EmptyNonTerminal,
            _ => Lookup::Nothing,
        }
    }
}

/// Returns the wildcard directly below a domain.
fn wildcard(domain: &[u8]) -> Vec<u8> {
    [b"\x01*", domain].concat()
}

/// Returns a name in wire form with its labels in reverse order.
fn reversed(mut name: &[u8]) -> ReversedName {
    let mut reversed = SmallVec::from_elem(0, name.len());
    while let Some((length, _)) = name.split_first() {
        let (label, rest) = name.split_at((1 + usize::from(*length)).min(name.len()));
        reversed[rest.len()..name.len()].copy_from_slice(label);
        name = rest;
    }
    reversed
}

/// Returns the domain directly above a name in wire form.
fn parent(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first()?;
    rest.get(usize::from(*length)..)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::model::service_key::ServiceKey;

    fn name(random: &mut StdRng) -> Vec<u8> {
        let labels = (0..random.random_range(1..5)).map(|_| *["a", "aa", "b", "*"].choose(random).unwrap());
        crate::model::names::wire(labels.map(str::as_bytes).collect::<Vec<_>>()).unwrap()
    }

    fn is_below(name: &[u8], domain: &[u8]) -> bool {
        let mut rest = name;
        while let Some(parent) = parent(rest) {
            if parent == domain {
                return true;
            }
            rest = parent;
        }
        false
    }

    #[test]
    fn look_ups_agree_with_a_plain_map_of_names() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let (tree, mut expected) = (NameTree::new(0, &Arc::default(), false), HashMap::new());
            for step in 0..100 {
                let name = name(&mut random);
                if random.random_bool(0.6) {
                    let link = Arc::new(Link::new(ServiceKey::new("ns", &step.to_string()), ""));
                    assert_eq!(tree.set(&name, Some(Arc::clone(&link))), expected.insert(name, link));
                } else {
                    let before = tree.set(&name, None);
                    assert!(before.as_ref().is_none_or(|link| link.is_outdated()));
                    assert_eq!(before, expected.remove(&name));
                }
                assert_eq!(tree.count.load(Ordering::Relaxed), expected.len());
                let name = self::name(&mut random);
                let lookup = match expected.get(&name) {
                    Some(link) => Lookup::Link(Arc::clone(link)),
                    None if expected.keys().any(|known| is_below(known, &name)) => Lookup::EmptyNonTerminal,
                    None => Lookup::Nothing,
                };
                assert_eq!(tree.find(&name), lookup, "seed {seed}, step {step}: {name:?}");
            }
            assert_eq!(tree.find(&[]), Lookup::Nothing);
        }
    }

    const ORIGIN: &[u8] = b"\x02lb";

    /// A look-up whose result was kept.
    struct Kept {
        name: Vec<u8>,
        found: Lookup,
        names: Option<NameDependency>,
    }

    impl Kept {
        fn of(index: &Index, name: Vec<u8>) -> Self {
            // Every third name is looked up in a zone without default names.
            let has_default_names = !name.len().is_multiple_of(3);
            let (found, names) = index.find_to_keep(&name, ORIGIN, has_default_names);
            assert_eq!(found, index.find(&name, ORIGIN, has_default_names));
            Self { name, found, names }
        }

        fn is_current(&self) -> bool {
            let is_link_current = !matches!(&self.found, Lookup::Link(link) if link.is_outdated());
            is_link_current && self.names.as_ref().is_none_or(NameDependency::is_current)
        }

        fn is_right(&self, index: &Index) -> bool {
            index.find(&self.name, ORIGIN, !self.name.len().is_multiple_of(3)) == self.found
        }
    }

    #[test]
    fn kept_look_up_is_current_only_while_it_is_right() {
        for seed in 0..100 {
            let mut random = StdRng::seed_from_u64(seed);
            let index = Index::default();
            let mut kept: Vec<Kept> = Vec::new();
            for step in 0..100 {
                let name = name(&mut random);
                let link = random.random_bool(0.5);
                let link = link.then(|| Arc::new(Link::new(ServiceKey::new("ns", &step.to_string()), "")));
                match random.random_bool(0.5) {
                    true => index.default_names.set(&name, link),
                    false => index.custom_hostnames.set(&[&name, ORIGIN].concat(), link),
                };
                for kept in &kept {
                    assert!(
                        !kept.is_current() || kept.is_right(&index),
                        "seed {seed}, step {step}: {:?} after a change of {name:?}",
                        kept.name
                    );
                }
                kept.retain(Kept::is_current);
                kept.push(Kept::of(&index, self::name(&mut random)));
            }
            index.slots.outdate_all();
            assert!(kept.iter().all(|kept| kept.names.is_none() || !kept.is_current()), "seed {seed}");
        }
    }

    #[test]
    fn change_of_a_name_outdates_few_other_answers() {
        let index = Index::default();
        let of = |label: &str, i: usize| {
            let namespace = format!("namespace-{}", i % 50);
            crate::model::names::wire([format!("{label}-{i}").as_bytes(), namespace.as_bytes()]).unwrap()
        };
        let set = |name: &[u8], exists: bool| {
            let link = exists.then(|| Arc::new(Link::new(ServiceKey::new("ns", "web"), "")));
            index.default_names.set(name, link);
        };
        (0..1333).for_each(|i| set(&of("web", i), true));
        let names = (0..1333).map(|i| of("web", i)).chain((0..667).map(|i| of("absent", i)));
        let mut outdated = 0;
        let mut kept: Vec<Kept> = names.map(|name| Kept::of(&index, name)).collect();
        for i in 0..200 {
            for exists in [true, false] {
                set(&of("other", i), exists);
                for kept in kept.iter_mut().filter(|kept| !kept.is_current()) {
                    assert!(kept.is_right(&index));
                    outdated += 1;
                    *kept = Kept::of(&index, std::mem::take(&mut kept.name));
                }
            }
        }
        // At most 0.1 % of 2,000 answers for each of 400 changes; 0.007 % are expected.
        assert!(outdated <= 800, "{outdated}");
    }

    #[test]
    fn look_up_during_a_change_is_not_kept() {
        let index = Index::default();
        let change = index.slots.begin([]);
        let kept = Kept::of(&index, b"\x01a".to_vec());
        assert!(!kept.is_current());
        drop(change);
        assert!(!kept.is_current());
        assert!(Kept::of(&index, b"\x01a".to_vec()).is_current());
    }
}
