//! Zones that are served, wherever they come from.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use hashbrown::DefaultHashBuilder;
use hickory_proto::rr::Name;
use parking_lot::Mutex;

use crate::dns::chain::plugin::PluginError;
use crate::dns::chain::zone_state::{TransferredZone, ZoneRecord, ZoneState};
use crate::dns::message::ede::Ede;
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::validity::OutdatedFlag;
use crate::dns::zone::Zone;

/// Zones that are served, by their origins in wire form.
#[derive(Debug, Default)]
pub(in crate::dns::plugins) struct ZoneMap {
    zones: HashMap<Box<[u8]>, Arc<ServedZone>, DefaultHashBuilder>,
    /// Set when another map takes its place.
    outdated: OutdatedFlag,
}

#[derive(Debug)]
pub(in crate::dns::plugins) struct ServedZone {
    origin: Name,
    /// `None` while there is no valid zone.
    zone: ArcSwapOption<Zone>,
    lack: Mutex<Lack>,
}

/// Why a zone isn't there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dns::plugins) enum Lack {
    /// Its file is missing, or has an error.
    File,
    /// No primary server has sent it yet.
    Transfer,
    /// No primary server has confirmed it for too long.
    Expired,
}

// === impl ZoneMap ===

impl ZoneMap {
    /// Adds a zone, and returns the one with the same origin that it replaces.
    pub(in crate::dns::plugins) fn insert(&mut self, zone: Arc<ServedZone>) -> Option<Arc<ServedZone>> {
        self.zones.insert(whole_wire_name(&zone.origin).into(), zone)
    }

    /// Returns the longest zone that contains a name, in wire form and in lower case.
    pub(super) fn closest(&self, mut name: &[u8]) -> Option<&Arc<ServedZone>> {
        loop {
            if let Some(zone) = self.zones.get(name) {
                return Some(zone);
            }
            name = above(name)?;
        }
    }

    /// Returns the longest zone that contains the parent of a name.
    pub(super) fn closest_above(&self, name: &[u8]) -> Option<&Arc<ServedZone>> {
        self.closest(above(name)?)
    }

    pub(in crate::dns::plugins) fn outdated(&self) -> &OutdatedFlag {
        &self.outdated
    }

    /// Returns the zone with this origin, for a transfer.
    pub(in crate::dns::plugins) fn transferred(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        let zone = self.zones.get(&*whole_wire_name(origin))?;
        Some(Arc::clone(zone) as Arc<dyn TransferredZone>)
    }

    pub(in crate::dns::plugins) fn origins(&self) -> Vec<Name> {
        self.zones.values().map(|zone| zone.origin.clone()).collect()
    }
}

/// Returns a name without its first label; `None` for the root.
fn above(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first().filter(|(length, _)| **length > 0)?;
    rest.get(usize::from(*length)..)
}

// === impl ServedZone ===

impl ServedZone {
    pub(in crate::dns::plugins) fn new(origin: Name, lack: Lack) -> Self {
        Self { origin, zone: ArcSwapOption::default(), lack: Mutex::new(lack) }
    }

    pub(in crate::dns::plugins) fn origin(&self) -> &Name {
        &self.origin
    }

    pub(in crate::dns::plugins) fn zone(&self) -> Option<Arc<Zone>> {
        self.zone.load_full()
    }

    /// Serves a zone from now on.
    pub(in crate::dns::plugins) fn serve(&self, zone: impl Into<Arc<Zone>>) {
        self.replace(Some(zone.into()));
    }

    /// Stops serving the zone.
    pub(in crate::dns::plugins) fn withdraw(&self, lack: Lack) {
        *self.lack.lock() = lack;
        self.replace(None);
    }

    /// Takes back a zone that no query has got yet.
    pub(in crate::dns::plugins) fn take_back(&self) {
        self.zone.store(None);
    }

    fn replace(&self, zone: Option<Arc<Zone>>) {
        if let Some(before) = self.zone.swap(zone) {
            before.outdated().set();
        }
    }

    /// Returns the error for queries while there is no zone.
    pub(super) fn error(&self) -> PluginError {
        let origin = &self.origin;
        match *self.lack.lock() {
            Lack::File => PluginError::servfail(format!("the zone {origin} has no valid file")),
            Lack::Transfer => PluginError::servfail(format!("the zone {origin} hasn't been transferred yet"))
                .with_ede(Ede::NOT_TRANSFERRED),
            Lack::Expired => {
                PluginError::servfail(format!("the zone {origin} has expired")).with_ede(Ede::EXPIRED)
            }
        }
    }
}

impl TransferredZone for ServedZone {
    fn serial(&self) -> Option<u32> {
        self.zone().map(|zone| zone.serial())
    }

    fn soa(&self) -> Option<ZoneRecord> {
        self.zone()?.soa()
    }

    fn state(&self) -> Option<ZoneState> {
        let zone = self.zone()?;
        Some(ZoneState { soa: zone.soa()?, records: Box::new(zone.records_without_soa().map(Some)) })
    }
}
