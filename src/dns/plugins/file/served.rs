//! A zone that is served from a file, and read again when the file changes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hickory_proto::rr::Name;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dns::message::query::wire_name;
use crate::dns::message::validity::OutdatedFlag;
use crate::dns::zone::{FileVersion, Zone, ZoneError};

/// Zones that are served, by their origins in wire form.
#[derive(Debug, Default)]
pub(in crate::dns::plugins) struct ZoneMap {
    zones: HashMap<Box<[u8]>, Arc<ServedZone>>,
    /// Set when another map takes its place.
    outdated: OutdatedFlag,
}

#[derive(Debug)]
pub(in crate::dns::plugins) struct ServedZone {
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
    /// The text of the error.
    error: Option<String>,
}

// === impl ZoneMap ===

impl ZoneMap {
    /// Adds a zone, and returns the one with the same origin that it replaces.
    pub(in crate::dns::plugins) fn insert(&mut self, zone: Arc<ServedZone>) -> Option<Arc<ServedZone>> {
        self.zones.insert(wire_origin(&zone.origin).into(), zone)
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
}

/// Returns a name without its first label; `None` for the root.
fn above(name: &[u8]) -> Option<&[u8]> {
    let (length, rest) = name.split_first().filter(|(length, _)| **length > 0)?;
    rest.get(usize::from(*length)..)
}

fn wire_origin(origin: &Name) -> Vec<u8> {
    [&wire_name(origin)[..], &[0]].concat()
}

// === impl ServedZone ===

impl ServedZone {
    /// Returns a zone whose file isn't read yet.
    pub(in crate::dns::plugins) fn new(path: PathBuf, origin: Name) -> Self {
        Self { path, origin, zone: ArcSwapOption::default(), last_read: Mutex::default() }
    }

    pub(in crate::dns::plugins) fn origin(&self) -> &Name {
        &self.origin
    }

    pub(in crate::dns::plugins) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::dns::plugins) fn zone(&self) -> Option<Arc<Zone>> {
        self.zone.load_full()
    }

    /// Reads the file, and serves its zone.
    ///
    /// # Errors
    /// If the file can't be read, or isn't valid; the zone before stays.
    pub(in crate::dns::plugins) fn read(&self) -> Result<(), ZoneError> {
        let mut last = self.last_read.lock();
        let (zone, files) = self.read_file();
        *last = LastRead { files, error: zone.as_ref().err().map(ToString::to_string) };
        self.serve(zone?);
        Ok(())
    }

    fn read_file(&self) -> (Result<Zone, ZoneError>, Vec<FileVersion>) {
        Zone::read(&self.path, &wire_origin(&self.origin))
    }

    /// Reads the file if it has changed. A zone with the serial of the one before is served only with `by_mtime`.
    pub(in crate::dns::plugins) fn refresh(&self, by_mtime: bool) {
        let mut last = self.last_read.lock();
        if !last.files.is_empty() && last.files.iter().all(FileVersion::is_current) {
            return;
        }
        let (read, files) = self.read_file();
        last.files = files;
        let (origin, path) = (&self.origin, self.path.display());
        let error = read.as_ref().err().map(ToString::to_string);
        match (read, self.zone()) {
            (Err(_), _) if last.error == error => {}
            (Err(problem), Some(_)) => error!("zone {origin}: the zone before stays: {problem}"),
            (Err(problem), None) => error!("zone {origin}: {problem}"),
            (Ok(zone), Some(before)) if zone.serial() == before.serial() && !by_mtime => {
                let serial = zone.serial();
                warn!(
                    "zone {origin}: the zone before stays: {path} has changed, but its serial is still {serial}"
                );
            }
            (Ok(zone), before) => {
                let (records, serial) = (zone.number_of_records(), zone.serial());
                let before = before.map_or("none".to_owned(), |before| before.serial().to_string());
                info!("zone {origin}: serial {before} → {serial}, {records} records from {path}");
                self.serve(zone);
            }
        }
        last.error = error;
    }

    fn serve(&self, zone: Zone) {
        if let Some(before) = self.zone.swap(Some(Arc::new(zone))) {
            before.outdated().set();
        }
    }
}

/// Looks for changes of the files at this interval, until `stop` is cancelled.
pub(super) async fn watch(
    zones: Vec<Arc<ServedZone>>,
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
