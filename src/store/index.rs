//! Index of DNS names: finds the link that owns a name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;

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

/// A version of the set of names. It doesn't cover the links behind the names.
#[derive(Clone, Debug)]
pub struct NameSetVersion {
    generation: u64,
    generations: Arc<AtomicU64>,
}

/// Counts the changes of the set of names; odd while a change is in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct NameSetCounter(Arc<AtomicU64>);

/// A change in progress, which ends on drop.
#[derive(Debug)]
struct ChangeGuard<'a>(&'a NameSetCounter);

/// The names of all links, in wire form, and the addresses of their targets.
#[derive(Debug)]
pub(super) struct Index {
    /// The names `<service>.<namespace>` and `<service>-<namespace>`, relative to the zone.
    pub(super) default_names: NameTree,
    /// The custom hostnames, as absolute names.
    pub(super) custom_hostnames: NameTree,
    pub(super) addresses: ReverseIndex,
    pub(super) name_set: NameSetCounter,
}

#[derive(Debug)]
pub(super) struct NameTree {
    /// The labels of each name are in reverse order, so that the names below a domain follow the domain in the map.
    /// Empty non-terminals need no entries: a single name can have over a hundred of them above it.
    names: RwLock<BTreeMap<ReversedName, Arc<Link>>>,
    /// The number of names.
    count: AtomicUsize,
    generations: NameSetCounter,
}

impl NameSetVersion {
    /// Returns whether both are versions of the same store's names.
    #[must_use]
    pub fn is_of_same_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.generations, &other.generations)
    }

    /// Returns whether the set of names hasn't changed since this version was taken.
    #[must_use]
    pub fn is_current(&self) -> bool {
        // An odd generation was taken during a change: look-ups after it may have seen the names before the change.
        self.generation.is_multiple_of(2) && self.generations.load(Ordering::Acquire) == self.generation
    }
}

impl NameSetCounter {
    pub(super) fn current(&self) -> NameSetVersion {
        NameSetVersion { generation: self.0.load(Ordering::Acquire), generations: Arc::clone(&self.0) }
    }

    /// Counts a change of unknown extent. Writers are serialized.
    pub(super) fn increment(&self) {
        self.0.fetch_add(2, Ordering::AcqRel);
    }

    /// Begins a change. The returned guard ends the change on drop, also when a panic unwinds.
    fn begin(&self) -> ChangeGuard<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        ChangeGuard(self)
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Default for Index {
    fn default() -> Self {
        let name_set = NameSetCounter::default();
        Self {
            default_names: NameTree::new(&name_set),
            custom_hostnames: NameTree::new(&name_set),
            addresses: ReverseIndex::default(),
            name_set,
        }
    }
}

impl Index {
    /// Looks up a name, given as the part below its zone and the zone's origin. Default names take precedence over
    /// custom hostnames.
    pub(super) fn find(&self, name: &[u8], origin: &[u8]) -> Lookup {
        let own = self.default_names.find(name);
        // Fast path: there are no custom hostnames.
        if matches!(own, Lookup::Link(_)) || self.custom_hostnames.count.load(Ordering::Acquire) == 0 {
            return own;
        }
        match self.custom_hostnames.find(&[name, origin].concat()) {
            Lookup::Nothing if own == Lookup::Nothing => self.find_wildcard(name, origin),
            Lookup::Nothing => own,
            found => found,
        }
    }

    /// Looks for a wildcard directly below the closest encloser (RFC 4592 section 3.3.1).
    fn find_wildcard(&self, name: &[u8], origin: &[u8]) -> Lookup {
        let mut rest = name;
        while let Some(parent) = parent(rest) {
            // Unlike in RFC 4592, a wildcard doesn't match a name with a label that begins with `_`.
            if rest.get(1) == Some(&b'_') {
                return Lookup::Nothing;
            }
            let absolute = [parent, origin].concat();
            if let Lookup::Link(link) = self.custom_hostnames.find(&[b"\x01*", &*absolute].concat()) {
                return Lookup::Link(link);
            }
            if self.default_names.find(parent) != Lookup::Nothing
                || self.custom_hostnames.find(&absolute) != Lookup::Nothing
            {
                return Lookup::Nothing;
            }
            rest = parent;
        }
        Lookup::Nothing
    }
}

impl NameTree {
    fn new(generations: &NameSetCounter) -> Self {
        Self { names: RwLock::default(), count: AtomicUsize::new(0), generations: generations.clone() }
    }

    /// Maps a name to a link, or removes the name. Returns the previous link.
    pub(super) fn set(&self, name: &[u8], link: Option<Arc<Link>>) -> Option<Arc<Link>> {
        let name = reversed(name);
        // The map stays locked during the change, so that no reader sees the new link and then the old one again.
        let mut names = self.names.write();
        let before = names.get(&name).cloned();
        let _change = (before.is_some() != link.is_some()).then(|| self.generations.begin());
        if let Some(before) = &before
            && link.as_ref().is_none_or(|link| !Arc::ptr_eq(before, link))
        {
            before.set_outdated();
        }
        match link {
            Some(link) => names.insert(name, link),
            None => names.remove(&name),
        };
        self.count.store(names.len(), Ordering::Release);
        before
    }

    pub(super) fn find(&self, name: &[u8]) -> Lookup {
        let name = reversed(name);
        match self.names.read().range::<ReversedName, _>(&name..).next() {
            Some((found, link)) if *found == name => Lookup::Link(Arc::clone(link)),
            Some((below, _)) if !name.is_empty() && below.starts_with(&name) => Lookup::EmptyNonTerminal,
            _ => Lookup::Nothing,
        }
    }
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
            let (tree, mut expected) = (NameTree::new(&NameSetCounter::default()), HashMap::new());
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
}
