//! A zone that is served from a file, and read again when the file changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use hashbrown::DefaultHashBuilder;
use hickory_proto::rr::Name;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dns::chain::zone_state::{TransferredZone, ZoneRecord, ZoneState};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::validity::OutdatedFlag;
use crate::dns::zone::{FileVersion, Zone};

/// Zones that are served, by their origins in wire form.
#[derive(Debug, Default)]
pub(in crate::dns::plugins) struct ZoneMap {
    zones: HashMap<Box<[u8]>, Arc<FileZone>, DefaultHashBuilder>,
    /// Set when another map takes its place.
    outdated: OutdatedFlag,
}

#[derive(Debug)]
pub(in crate::dns::plugins) struct FileZone {
    path: PathBuf,
    origin: Name,
    /// `None` until the file was read without an error.
    zone: ArcSwapOption<Zone>,
    last_read: Mutex<LastRead>,
}

/// The last attempt to read the file.
#[derive(Debug, Default)]
struct LastRead {
    /// The files that were read; empty if one of them couldn't be read.
    files: Vec<FileVersion>,
    /// Whether the files of the served zone hadn't been written to shortly before they were read: only then its serial
    /// tells whether it has changed.
    is_settled: bool,
    /// The text of the error.
    error: Option<String>,
}

/// What became of an attempt to read a zone.
#[derive(Debug)]
pub(in crate::dns::plugins) enum Update {
    Unchanged,
    /// The zone is served now, with this serial and number of records.
    Served {
        before: Option<u32>,
        serial: u32,
        records: usize,
    },
    /// The file has changed, but not the serial of its zone: the zone before stays.
    SameSerial(u32),
    /// The zone before stays, if there is one.
    Failed {
        error: String,
        is_new: bool,
    },
}

/// The zones that blocks serve, by their files and origins: a block that is built again serves the same zones.
#[derive(Clone, Debug, Default)]
pub struct ZoneRegistry(Arc<Mutex<ZonesByFile>>);

type ZonesByFile = HashMap<(PathBuf, Name), Weak<FileZone>>;

impl ZoneRegistry {
    /// Returns the zone of a file, whose file isn't read yet if no block has it.
    pub(in crate::dns::plugins) fn zone(&self, path: PathBuf, origin: Name) -> Arc<FileZone> {
        let mut zones = self.0.lock();
        if zones.len() == zones.capacity() {
            zones.retain(|_, zone| zone.strong_count() > 0);
        }
        let known = zones.entry((path, origin));
        let zone = match &known {
            Entry::Occupied(known) => known.get().upgrade(),
            Entry::Vacant(_) => None,
        };
        zone.unwrap_or_else(|| {
            let (path, origin) = known.key().clone();
            let zone = Arc::new(FileZone {
                path,
                origin,
                zone: ArcSwapOption::default(),
                last_read: Mutex::default(),
            });
            known.insert_entry(Arc::downgrade(&zone));
            zone
        })
    }
}

// === impl ZoneMap ===

impl ZoneMap {
    /// Adds a zone, and returns the one with the same origin that it replaces.
    pub(in crate::dns::plugins) fn insert(&mut self, zone: Arc<FileZone>) -> Option<Arc<FileZone>> {
        self.zones.insert(whole_wire_name(&zone.origin).into(), zone)
    }

    /// Returns the longest zone that contains a name, in wire form and in lower case.
    pub(super) fn closest(&self, mut name: &[u8]) -> Option<&Arc<FileZone>> {
        loop {
            if let Some(zone) = self.zones.get(name) {
                return Some(zone);
            }
            name = above(name)?;
        }
    }

    /// Returns the longest zone that contains the parent of a name.
    pub(super) fn closest_above(&self, name: &[u8]) -> Option<&Arc<FileZone>> {
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

// === impl FileZone ===

impl FileZone {
    pub(in crate::dns::plugins) fn origin(&self) -> &Name {
        &self.origin
    }

    pub(in crate::dns::plugins) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::dns::plugins) fn zone(&self) -> Option<Arc<Zone>> {
        self.zone.load_full()
    }

    /// Stops serving the zone. The next update reads its file again.
    pub(in crate::dns::plugins) fn forget(&self) {
        self.last_read.lock().files.clear();
        if let Some(before) = self.zone.swap(None) {
            before.outdated().set();
        }
    }

    /// Reads the file if it has changed, and serves its zone. One with the serial of the zone before is served only with
    /// `by_mtime`, or if the zone before was read shortly after a write, perhaps in the middle of a copy.
    pub(in crate::dns::plugins) fn update(&self, by_mtime: bool) -> Update {
        let mut last = self.last_read.lock();
        if !last.files.is_empty() && last.files.iter().all(FileVersion::is_current) {
            let failed = |error: &String| Update::Failed { error: error.clone(), is_new: false };
            return last.error.as_ref().map_or(Update::Unchanged, failed);
        }
        let now = SystemTime::now();
        let (read, files) = Zone::read(&self.path, &whole_wire_name(&self.origin));
        let is_settled = files.iter().all(|file| file.is_settled(now));
        last.files = files;
        let error = read.as_ref().err().map(ToString::to_string);
        let is_new = last.error != error;
        last.error.clone_from(&error);
        match (read, self.zone()) {
            (Err(_), _) => Update::Failed { error: error.unwrap_or_default(), is_new },
            (Ok(zone), Some(before)) if zone.serial() == before.serial() && last.is_settled && !by_mtime => {
                Update::SameSerial(zone.serial())
            }
            (Ok(zone), before) => {
                let (serial, records) = (zone.serial(), zone.number_of_records());
                self.serve(zone);
                last.is_settled = is_settled;
                Update::Served { before: before.map(|before| before.serial()), serial, records }
            }
        }
    }

    /// Updates the zone, and logs what became of it.
    pub(in crate::dns::plugins) fn refresh(&self, by_mtime: bool) {
        let (origin, path) = (&self.origin, self.path.display());
        match self.update(by_mtime) {
            Update::Unchanged | Update::Failed { is_new: false, .. } => {}
            Update::Failed { error, .. } if self.zone().is_some() => {
                error!("zone {origin}: the zone before stays: {error}");
            }
            Update::Failed { error, .. } => error!("zone {origin}: {error}"),
            Update::SameSerial(serial) => {
                warn!(
                    "zone {origin}: the zone before stays: {path} has changed, but its serial is still {serial}"
                );
            }
            Update::Served { before, serial, records } => {
                let before = before.map_or("none".to_owned(), |before| before.to_string());
                info!("zone {origin}: serial {before} → {serial}, {records} records from {path}");
            }
        }
    }

    fn serve(&self, zone: Zone) {
        if let Some(before) = self.zone.swap(Some(Arc::new(zone))) {
            before.outdated().set();
        }
    }
}

impl TransferredZone for FileZone {
    fn serial(&self) -> Option<u32> {
        self.zone().map(|zone| zone.serial())
    }

    fn soa(&self) -> Option<ZoneRecord> {
        self.zone()?.soa()
    }

    fn state(&self) -> Option<ZoneState> {
        let zone = self.zone()?;
        Some(ZoneState { soa: zone.soa()?, records: Box::new(zone.records_without_soa()) })
    }
}

/// Looks for changes of the files at this interval, until `stop` is cancelled.
pub(super) async fn watch(
    zones: Vec<Arc<FileZone>>,
    every: Duration,
    by_mtime: bool,
    stop: CancellationToken,
) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        for zone in &zones {
            let zone = Arc::clone(zone);
            // Reading may block.
            if let Err(error) = tokio::task::spawn_blocking(move || zone.refresh(by_mtime)).await {
                error!("reading a zone file failed: {error}");
            }
        }
    }
}
