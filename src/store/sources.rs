//! What the store knows of whole sources, beside the load balancers: which are listed completely, and for which zones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::listed::{Listed, has};
use super::{Input, Lookup, Store};
use crate::model::names;
use crate::model::owner::{Owner, Source, Zone};
use crate::model::service_key::ServiceKey;

/// The zones of a block, which is ready when their sources are listed.
#[derive(Debug)]
pub struct FirstNames {
    zones: Vec<Zone>,
    is_optional: AtomicBool,
}

impl FirstNames {
    #[must_use]
    pub fn of(zones: Vec<Zone>) -> Self {
        Self { zones, is_optional: AtomicBool::new(false) }
    }

    /// Makes the block count as ready without the lists: it came by a reload, and the process was ready before.
    pub fn set_optional(&self) {
        self.is_optional.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_ready(&self, store: &Store) -> bool {
        self.is_optional.load(Ordering::Relaxed) || self.unlisted(store).is_none()
    }

    /// Returns a source that isn't listed.
    #[must_use]
    pub fn unlisted(&self, store: &Store) -> Option<&Source> {
        self.zones.iter().find_map(|zone| store.unlisted_source(zone))
    }
}

impl Store {
    /// Returns a receiver of the zones in which objects have names.
    #[must_use]
    pub fn watch_zones(&self) -> watch::Receiver<Arc<[Zone]>> {
        self.zones.subscribe()
    }

    /// Records that all names of a source in these zones are known.
    pub fn set_listed(&self, source: &Source, zones: &[Zone]) {
        let zones: Vec<Zone> = zones.iter().filter(|zone| zone.has(source)).cloned().collect();
        self.listed.send_modify(|listed| {
            listed.now.insert(source.clone(), zones);
            listed.since.insert(source.clone());
        });
        let _writer = self.write();
        self.end_fallback();
    }

    /// Waits until all objects of a source are known.
    pub async fn source_listed(&self, source: &Source) {
        let mut listed = self.listed.subscribe();
        // The sender lives as long as `self`: waiting can't fail.
        let _ = listed.wait_for(|listed| listed.now.contains_key(source)).await;
    }

    /// Forgets all names of a source that isn't read any more.
    pub fn forget_source(&self, source: &Source) {
        self.listed.send_modify(|listed| listed.end(source));
        let mut names = self.write();
        for (id, _) in self.owners.all(Some(source)) {
            let owner = self.owners.get(id).0;
            self.remove(&mut names, owner);
        }
    }

    /// Returns a source of a zone whose names aren't all known. The load balancers aren't among these sources, and those of
    /// remote clusters only in the domains of their clusters. During a reload nothing is missing for the blocks before, if
    /// nothing was missing for the zone as it was.
    #[must_use]
    pub fn unlisted_source<'a>(&self, zone: &'a Zone) -> Option<&'a Source> {
        self.unlisted_sources(zone).into_iter().next()
    }

    /// As [`Self::unlisted_source`], all of them.
    #[must_use]
    pub fn unlisted_sources<'a>(&self, zone: &'a Zone) -> Vec<&'a Source> {
        if zone.sources.iter().all(|source| *source == Source::SERVICES) {
            return Vec::new();
        }
        let is_in_force = self.zones.borrow().contains(zone);
        self.unlisted_of(zone, |listed, source| !is_in_force && listed.had(source, zone))
    }

    /// Returns the sources of remote clusters whose names aren't all known.
    #[must_use]
    pub fn unlisted_remotes(&self) -> Vec<Source> {
        let zones = self.zones();
        let remote = zones.iter().filter(|zone| zone.cluster.is_some());
        remote.flat_map(|zone| self.unlisted_sources(zone)).cloned().collect()
    }

    fn unlisted_of<'a>(
        &self,
        zone: &'a Zone,
        is_known: impl Fn(&Listed, &Source) -> bool,
    ) -> Vec<&'a Source> {
        let listed = self.listed.borrow();
        let counts = |source: &&Source| **source != Source::SERVICES && source.cluster == zone.cluster;
        let others = zone.sources.iter().filter(counts);
        let unlisted = others.filter(|source| {
            let read = source.general();
            !has(&listed.now, &read, zone) && !is_known(&listed, &read)
        });
        unlisted.collect()
    }

    /// Returns whether all sources of these zones, which may not be in force yet, are listed, apart from remote clusters.
    #[must_use]
    pub fn has_listed(&self, zones: &[Zone]) -> bool {
        let mut own = zones.iter().filter(|zone| zone.cluster.is_none());
        own.all(|zone| self.unlisted_of(zone, |_, _| false).is_empty())
    }

    /// Waits until the load balancers are known, and the other sources of all zones are listed.
    pub async fn all_known(&self) {
        self.known(Input::Services).await;
        let (mut listed, mut zones) = (self.listed.subscribe(), self.zones.subscribe());
        loop {
            drop(listed.borrow_and_update());
            let all = Arc::clone(&zones.borrow_and_update());
            if self.has_listed(&all) {
                return;
            }
            // The senders live as long as `self`: waiting can't fail.
            tokio::select! {
                _ = listed.changed() => {}
                _ = zones.changed() => {}
            }
        }
    }

    /// Returns the names that an owner asks for in the zones of its source, and that belong to other owners.
    #[must_use]
    pub fn lost_names(&self, owner: &Owner) -> Vec<Arc<str>> {
        self.with_lost_names(owner, |lost| lost.cloned().collect())
    }

    /// Returns whether [`Self::lost_names`] has a name.
    #[must_use]
    pub fn has_lost_names(&self, owner: &Owner) -> bool {
        self.with_lost_names(owner, |lost| lost.next().is_some())
    }

    fn with_lost_names<T: Default>(
        &self,
        owner: &Owner,
        of: impl FnOnce(&mut dyn Iterator<Item = &Arc<str>>) -> T,
    ) -> T {
        let all = self.write();
        let Some((id, Some(_))) = self.owners.find(owner) else { return T::default() };
        let is_free = |name: &str| names::wire_of(name).is_some_and(|wire| self.is_free(&wire));
        of(&mut all.lost_by(id, is_free))
    }

    /// Returns whether something is behind the names of an owner.
    #[must_use]
    pub fn has(&self, owner: &Owner) -> bool {
        self.owners.find(owner).is_some_and(|(_, target)| target.is_some())
    }

    /// Returns whether an absolute name in wire form is a custom hostname itself, not by a wildcard.
    #[must_use]
    pub fn has_exactly(&self, name: &[u8]) -> bool {
        matches!(self.index.custom_hostnames.find(name), Lookup::Link(_))
    }

    /// Returns the custom hostnames that owners ask for, in no order.
    #[must_use]
    pub fn asked_names(&self) -> Vec<Arc<str>> {
        self.write().asked()
    }

    /// Returns the owners that ask for a custom hostname, the holder first.
    #[must_use]
    pub fn owners_asking(&self, name: &str) -> Vec<Owner> {
        let names = self.write();
        names.asking(name).into_iter().map(|id| self.owners.get(id).0).collect()
    }

    /// Returns the keys of the owners of a source.
    #[must_use]
    pub fn owners_of(&self, source: &Source) -> Vec<ServiceKey> {
        let ids = self.owners.all(Some(source)).into_iter();
        ids.map(|(id, _)| self.owners.get(id).0.key).collect()
    }

    /// Returns the numbers of owners that aren't load balancers, by the sources that zones list.
    #[must_use]
    pub fn numbers_of_owners(&self) -> Vec<(Source, usize)> {
        let mut numbers = self.owners.numbers();
        numbers.retain(|(source, _)| source.clone().listed() != Source::SERVICES);
        numbers
    }
}
