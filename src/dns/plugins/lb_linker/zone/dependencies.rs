//! The look-ups of one answer in the store, which say how long the answer holds.

use std::sync::Arc;

use smallvec::SmallVec;

use super::link_names::LinkNames;
use crate::model::link::Link;
use crate::store::{Lookup, NameSetVersion, Store};

/// Looks names up for one answer, and records what each look-up has found.
#[derive(Debug)]
pub(super) struct Lookups<'a> {
    store: &'a Store,
    /// Which names there were before the first look-up.
    before: NameSetVersion,
    depends_on_names: bool,
    links: SmallVec<[Arc<Link>; 1]>,
}

/// What a zone's answer rests on, but for the serial of its SOA.
#[derive(Clone, Debug)]
pub struct ZoneDependencies {
    /// The links that were found, as they were.
    pub links: SmallVec<[Arc<Link>; 1]>,
    /// Which names there were, where another name could have changed the answer.
    pub names: Option<NameSetVersion>,
}

impl<'a> Lookups<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { before: store.names(), store, depends_on_names: false, links: SmallVec::new() }
    }

    /// Looks up a name below an origin, both in wire form.
    pub(super) fn find(&mut self, name: &[u8], origin: &[u8]) -> Lookup {
        let found = self.store.find(name, origin);
        match &found {
            Lookup::Link(link) => {
                // One of the two names that every link has leads to this link until the link is outdated. A name
                // that a link asks for gives way to another link's own name, a wildcard to any closer name.
                self.depends_on_names |= !LinkNames::is_own(&link.key, name);
                self.links.push(Arc::clone(link));
            }
            Lookup::EmptyNonTerminal | Lookup::Nothing => self.depends_on_names = true,
        }
        found
    }
}

impl From<Lookups<'_>> for ZoneDependencies {
    fn from(lookups: Lookups<'_>) -> Self {
        let Lookups { before, depends_on_names, links, .. } = lookups;
        Self { links, names: depends_on_names.then_some(before) }
    }
}
