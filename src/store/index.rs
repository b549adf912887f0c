//! Which link a DNS name leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use super::Link;
use super::addresses::Addresses;

/// What the index knows of a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The link whose name it is.
    Link(Arc<Link>),
    /// No link's name, but there are names below it (RFC 8020: it exists).
    EmptyNonTerminal,
    /// No such name.
    Nothing,
}

/// Which names there were at some time. It says nothing of what they led to.
#[derive(Clone, Debug)]
pub struct Names {
    generation: u64,
    generations: Arc<AtomicU64>,
}

/// Counts the changes of which names there are: odd while there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Generations(Arc<AtomicU64>);

/// A change that is under way.
#[derive(Debug)]
struct Changing<'a>(&'a Generations);

/// The names of all links, in wire form, and their addresses.
#[derive(Debug)]
pub(super) struct Index {
    /// The names that every link has, relative to the zone.
    pub(super) own: Tree,
    /// The further names that links ask for: absolute ones.
    pub(super) extras: Tree,
    /// The addresses of their targets.
    pub(super) addresses: Addresses,
    pub(super) names: Generations,
}

/// Names, and the domains that they stand in.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The names that lead to a link.
    names: DashMap<Box<[u8]>, Arc<Link>>,
    /// The domains that names stand in, and how many.
    domains: DashMap<Box<[u8]>, usize>,
    /// How many names lead to a link.
    owned: AtomicUsize,
    generations: Generations,
}

// === impl Names ===

impl Names {
    /// Returns whether there are the same names still.
    #[must_use]
    pub fn are_the_same(&self) -> bool {
        // What was seen during a change may be of before.
        self.generation.is_multiple_of(2) && self.generations.load(Ordering::Acquire) == self.generation
    }
}

// === impl Generations ===

impl Generations {
    pub(super) fn now(&self) -> Names {
        Names { generation: self.0.load(Ordering::Acquire), generations: Arc::clone(&self.0) }
    }

    /// Takes in that everything may have changed. Writers take turns.
    pub(super) fn change(&self) {
        self.0.fetch_add(2, Ordering::AcqRel);
    }

    /// Begins a change, which lasts as long as what this returns: a panic ends it, too.
    fn begin(&self) -> Changing<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Changing(self)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

// === impl Index ===

impl Default for Index {
    fn default() -> Self {
        let names = Generations::default();
        let tree = || Tree { generations: names.clone(), ..Tree::default() };
        Self { own: tree(), extras: tree(), addresses: Addresses::default(), names }
    }
}

impl Index {
    /// Looks up a name: the part below its zone, and the zone's origin. A link's own names come before
    /// those that are asked for.
    pub(super) fn find(&self, name: &[u8], origin: &[u8]) -> Found {
        let own = self.own.find(name);
        // Mostly nobody asks for names, and then nobody needs to look.
        if matches!(own, Found::Link(_)) || self.extras.owned.load(Ordering::Acquire) == 0 {
            return own;
        }
        match self.extras.find(&[name, origin].concat()) {
            Found::Nothing if own == Found::Nothing => self.find_wildcard(name, origin),
            Found::Nothing => own,
            found => found,
        }
    }

    /// Looks for the wildcard that stands directly below the closest name that exists (RFC 4592
    /// section 3.3.1).
    fn find_wildcard(&self, name: &[u8], origin: &[u8]) -> Found {
        let mut rest = name;
        while let Some(parent) = parent(rest) {
            // Names below `_tcp` and the like aren't a load balancer's to have.
            if rest.get(1) == Some(&b'_') {
                return Found::Nothing;
            }
            let absolute = [parent, origin].concat();
            if let Found::Link(link) = self.extras.find(&[b"\x01*", &*absolute].concat()) {
                return Found::Link(link);
            }
            if self.own.find(parent) != Found::Nothing || self.extras.find(&absolute) != Found::Nothing {
                return Found::Nothing;
            }
            rest = parent;
        }
        Found::Nothing
    }
}

// === impl Tree ===

impl Tree {
    /// Has a name lead to a link, or to nothing. Returns what it led to before.
    pub(super) fn set(&self, name: Box<[u8]>, link: Option<Arc<Link>>) -> Option<Arc<Link>> {
        // Who looks now waits for this change: nobody is told of the new one and then again of the old one.
        match (self.names.entry(name), link) {
            (Entry::Occupied(mut place), Some(link)) => {
                let before = place.insert(Arc::clone(&link));
                if !Arc::ptr_eq(&before, &link) {
                    before.set_outdated();
                }
                Some(before)
            }
            (Entry::Vacant(place), Some(link)) => {
                let _changing = self.generations.begin();
                let name = place.key().clone();
                drop(place.insert(link));
                self.count_below(&name, 1);
                self.owned.fetch_add(1, Ordering::Release);
                None
            }
            (Entry::Occupied(place), None) => {
                let _changing = self.generations.begin();
                place.get().set_outdated();
                let (name, before) = place.remove_entry();
                self.count_below(&name, -1);
                self.owned.fetch_sub(1, Ordering::Release);
                Some(before)
            }
            (Entry::Vacant(_), None) => None,
        }
    }

    pub(super) fn find(&self, name: &[u8]) -> Found {
        match self.names.get(name) {
            Some(link) => Found::Link(Arc::clone(&link)),
            None if self.domains.contains_key(name) => Found::EmptyNonTerminal,
            None => Found::Nothing,
        }
    }

    /// Counts a name below all the domains that it stands in.
    fn count_below(&self, name: &[u8], step: isize) {
        let mut rest = name;
        while let Some(domain) = parent(rest).filter(|domain| !domain.is_empty()) {
            let mut below = self.domains.entry(domain.into()).or_default();
            *below = below.saturating_add_signed(step);
            let unused = *below == 0;
            drop(below);
            // Writers take turns: nobody has used it meanwhile.
            if unused {
                self.domains.remove(domain);
            }
            rest = domain;
        }
    }
}

/// Returns the domain directly above a name in wire form.
fn parent(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first()?;
    rest.get(usize::from(*length)..)
}
