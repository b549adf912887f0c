//! Records the store look-ups of an answer, which are the answer's dependencies.

use std::sync::Arc;

use smallvec::SmallVec;

use super::link_names::LinkNames;
use crate::model::link::Link;
use crate::store::{Lookup, NameSetVersion, Store};

/// The look-ups in the store for one answer, with their results.
#[derive(Debug)]
pub(super) struct Lookups<'a> {
    store: &'a Store,
    /// The version of the name set before the first look-up.
    before: NameSetVersion,
    depends_on_names: bool,
    links: SmallVec<[Arc<Link>; 1]>,
}

/// The data that a zone's answer depends on, except for the serial of the SOA.
#[derive(Clone, Debug)]
pub struct ZoneDependencies {
    /// The links that were found, in their state at that time.
    pub links: SmallVec<[Arc<Link>; 1]>,
    /// The version of the name set, if an added or removed name could change the answer.
    pub names: Option<NameSetVersion>,
}

impl<'a> Lookups<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { before: store.name_set_version(), store, depends_on_names: false, links: SmallVec::new() }
    }

    pub(super) fn store(&self) -> &'a Store {
        self.store
    }

    pub(super) fn find(&mut self, name: &[u8], origin: &[u8]) -> Lookup {
        let found = self.store.find(name, origin);
        match &found {
            Lookup::Link(link) => {
                // Each of the two default names of a link belongs to that link until `Link::is_outdated` returns true.
                // A custom hostname gives way to another link's default name, and a wildcard to any closer name.
                self.depends_on_names |= !LinkNames::is_default_name(&link.key, name);
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
