//! Records the store look-ups of an answer, which are the answer's dependencies.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::model::link::Link;
use crate::store::{Lookup, NameDependency, Store};

/// The look-ups in the store for one answer, with their results.
#[derive(Debug)]
pub(super) struct Lookups<'a> {
    store: &'a Store,
    names: Option<NameDependency>,
    links: SmallVec<[Arc<Link>; 1]>,
}

/// The data that a zone's answer depends on, except for the serial of the SOA.
#[derive(Clone, Debug)]
pub struct ZoneDependencies {
    /// The links that were found, in their state at that time.
    pub links: SmallVec<[Arc<Link>; 1]>,
    /// The names that could change the answer by beginning or ceasing to exist.
    pub names: Option<NameDependency>,
}

impl<'a> Lookups<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self { store, names: None, links: SmallVec::new() }
    }

    pub(super) fn store(&self) -> &'a Store {
        self.store
    }

    pub(super) fn find(&mut self, name: &[u8], origin: &[u8], has_default_names: bool) -> Lookup {
        let (found, names) = self.store.find_to_keep(name, origin, has_default_names);
        if let Lookup::Link(link) = &found {
            self.links.push(Arc::clone(link));
        }
        match (&mut self.names, names) {
            (Some(known), Some(names)) => known.add(&names),
            (known, names) => *known = known.take().or(names),
        }
        found
    }
}

impl From<Lookups<'_>> for ZoneDependencies {
    fn from(lookups: Lookups<'_>) -> Self {
        let Lookups { names, links, .. } = lookups;
        Self { links, names }
    }
}
