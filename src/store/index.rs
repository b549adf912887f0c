//! Which link a DNS name leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;

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
    names: DashMap<Box<[u8]>, Node>,
    /// How many names lead to a link.
    owned: AtomicUsize,
    generations: Generations,
}

#[derive(Debug, Default)]
struct Node {
    link: Option<Arc<Link>>,
    /// How many names stand below this one.
    below: usize,
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

    fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
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
    /// Has a name lead to a link, or to nothing. Returns whether it led to none before, or does no more.
    pub(super) fn set(&self, name: Box<[u8]>, link: Option<Arc<Link>>) -> bool {
        let is_owned = link.is_some();
        let mut was_owned = false;
        let change = |node: &mut Node| {
            was_owned = node.link.is_some();
            if was_owned != is_owned {
                self.generations.begin();
            }
            let before = std::mem::replace(&mut node.link, link);
            // Who looks now waits for this change: nobody is told of the new one and then again of the old one.
            if let Some(before) = before.filter(|before| !is_same(Some(before), node.link.as_ref())) {
                before.set_outdated();
            }
        };
        self.change(name.clone(), change);
        match (was_owned, is_owned) {
            (false, true) => {
                self.count_below(&name, 1);
                self.owned.fetch_add(1, Ordering::Release);
            }
            (true, false) => {
                self.count_below(&name, -1);
                self.owned.fetch_sub(1, Ordering::Release);
            }
            _ => {}
        }
        if was_owned != is_owned {
            self.generations.end();
        }
        was_owned != is_owned
    }

    pub(super) fn find(&self, name: &[u8]) -> Found {
        match self.names.get(name) {
            None => Found::Nothing,
            Some(node) => node.link.clone().map_or(Found::EmptyNonTerminal, Found::Link),
        }
    }

    fn change(&self, name: Box<[u8]>, change: impl FnOnce(&mut Node)) {
        let mut node = self.names.entry(name).or_default();
        change(&mut node);
        let unused = node.link.is_none() && node.below == 0;
        let name = node.key().clone();
        drop(node);
        // Writers take turns: nobody has used it meanwhile.
        if unused {
            self.names.remove(&name);
        }
    }

    /// Counts a name below all the domains that it stands in.
    fn count_below(&self, name: &[u8], step: isize) {
        let mut rest = name;
        while let Some(domain) = parent(rest).filter(|domain| !domain.is_empty()) {
            self.change(domain.into(), |node| node.below = node.below.saturating_add_signed(step));
            rest = domain;
        }
    }
}

fn is_same(one: Option<&Arc<Link>>, other: Option<&Arc<Link>>) -> bool {
    one.zip(other).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
}

/// Returns the domain directly above a name in wire form.
fn parent(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first()?;
    rest.get(usize::from(*length)..)
}
