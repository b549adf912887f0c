//! A zone that is served from a file, and read again when the file changes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use hickory_proto::rr::Name;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::zone_map::{Lack, ServedZone};
use crate::dns::message::query::whole_wire_name;
use crate::dns::zone::received::is_newer;
use crate::dns::zone::{FileVersion, Zone};

#[derive(Debug)]
pub(in crate::dns::plugins) struct FileZone {
    path: PathBuf,
    served: Arc<ServedZone>,
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
    /// Whether the zone of the files isn't served because its serial is that of the zone before.
    has_same_serial: bool,
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
            let served = Arc::new(ServedZone::new(origin, Lack::File));
            let zone = Arc::new(FileZone { path, served, last_read: Mutex::default() });
            known.insert_entry(Arc::downgrade(&zone));
            zone
        })
    }
}

// === impl FileZone ===

impl FileZone {
    pub(in crate::dns::plugins) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::dns::plugins) fn served(&self) -> &Arc<ServedZone> {
        &self.served
    }

    pub(in crate::dns::plugins) fn zone(&self) -> Option<Arc<Zone>> {
        self.served.zone()
    }

    /// Reads the file if it has changed, and serves its zone. One with the serial of the zone before is served only with
    /// `by_mtime`, or if the zone before was read shortly after a write, perhaps in the middle of a copy. `by_mtime` may
    /// differ from that of the last update: blocks share the zone.
    pub(in crate::dns::plugins) fn update(&self, by_mtime: bool) -> Update {
        let mut last = self.last_read.lock();
        let is_served_now = by_mtime && last.has_same_serial;
        if !is_served_now && !last.files.is_empty() && last.files.iter().all(FileVersion::is_current) {
            let failed = |error: &String| Update::Failed { error: error.clone(), is_new: false };
            return last.error.as_ref().map_or(Update::Unchanged, failed);
        }
        let now = SystemTime::now();
        let (read, files) = Zone::read(&self.path, &whole_wire_name(self.served.origin()));
        let is_settled = files.iter().all(|file| file.is_settled(now));
        last.files = files;
        last.has_same_serial = false;
        let error = read.as_ref().err().map(ToString::to_string);
        let is_new = last.error != error;
        last.error.clone_from(&error);
        match (read, self.zone()) {
            (Err(_), _) => Update::Failed { error: error.unwrap_or_default(), is_new },
            (Ok(zone), Some(before)) if zone.serial() == before.serial() && last.is_settled && !by_mtime => {
                last.has_same_serial = true;
                Update::SameSerial(zone.serial())
            }
            (Ok(zone), before) => {
                let (serial, records) = (zone.serial(), zone.number_of_records());
                self.served.serve(zone);
                last.is_settled = is_settled;
                Update::Served { before: before.map(|before| before.serial()), serial, records }
            }
        }
    }

    /// Updates the zone, and logs what became of it.
    pub(in crate::dns::plugins) fn refresh(&self, by_mtime: bool) {
        let (origin, path) = (self.served.origin(), self.path.display());
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
                let is_older = before.is_some_and(|before| before != serial && !is_newer(serial, before));
                let before = before.map_or("none".to_owned(), |before| before.to_string());
                let what =
                    format!("zone {origin}: serial {before} → {serial}, {records} records from {path}");
                if is_older {
                    warn!(
                        "{what}; secondary servers keep the zone before: the serial isn't newer (RFC 1982)"
                    );
                } else {
                    info!("{what}");
                }
            }
        }
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
