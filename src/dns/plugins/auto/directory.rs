//! A directory with zone files, whose changes are followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use arc_swap::ArcSwap;
use futures::StreamExt as _;
use parking_lot::Mutex;
use regex::Regex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dns::message::presentation::{lower_name_text, parse_name};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::file::ZoneRegistry;
use crate::dns::plugins::file::served::{FileZone, Update};
use crate::dns::plugins::file::zone_map::ZoneMap;
use crate::file_watcher::changes;

/// The maximum number of zones, and of their records in all.
const MAX_ZONES: usize = 10_000;
const MAX_RECORDS: usize = 1_000_000;
/// The maximum number of files and directories that are looked at, and the maximum depth.
const MAX_ENTRIES: usize = 200_000;
const MAX_DEPTH: usize = 16;

/// How the name of a file leads to a zone: an expression, and a template in the syntax of
/// [`regex::Captures::expand`]. `None` stands for `db\.(.*)` and its first group.
#[derive(Debug, Default)]
pub(super) struct Pattern(Option<(Regex, String)>);

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    pattern: Pattern,
    origins: ZoneSet,
    registry: ZoneRegistry,
    zones: ArcSwap<ZoneMap>,
    known: Mutex<Known>,
}

/// What has changed since the last look at the directory.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What keeps files from being used.
    pub(super) problems: Vec<String>,
    /// The zones that have begun or ceased to be served.
    zones: Vec<String>,
}

/// The files of the last look at the directory.
#[derive(Debug, Default)]
struct Known {
    /// By their origins; those without a valid file aren't served.
    files: BTreeMap<String, Arc<FileZone>>,
    /// The origins of the zones that are served.
    served: BTreeSet<String>,
    /// What kept files from being used.
    problems: BTreeSet<String>,
}

impl Pattern {
    /// In `template`, `{1}` stands for the first group, as in CoreDNS.
    pub(super) fn new(regex: Regex, template: &str) -> Self {
        Self(Some((regex, template.replace('{', "${"))))
    }

    /// Returns the origin for a file's name as a text.
    fn origin(&self, file: &str) -> Option<String> {
        let Some((regex, template)) = &self.0 else {
            return file.split_once("db.").map(|(_, origin)| origin.to_owned());
        };
        let mut origin = String::new();
        regex.captures(file)?.expand(template, &mut origin);
        Some(origin)
    }
}

impl Changes {
    fn log(&self) {
        /// The maximum number of lines of each kind.
        const MAX_LINES: usize = 20;
        self.problems.iter().take(MAX_LINES).for_each(|problem| warn!("{problem}"));
        self.zones.iter().take(MAX_LINES).for_each(|change| info!("{change}"));
        let more = [&self.problems, &self.zones].map(|lines| lines.len().saturating_sub(MAX_LINES));
        if more != [0; 2] {
            info!("zone files: {} more problems, and {} more zones have changed", more[0], more[1]);
        }
    }
}

impl Directory {
    pub(super) fn new(path: PathBuf, pattern: Pattern, origins: ZoneSet, registry: ZoneRegistry) -> Self {
        Self { path, pattern, origins, registry, zones: ArcSwap::default(), known: Mutex::default() }
    }

    pub(super) fn zones(&self) -> Arc<ZoneMap> {
        self.zones.load_full()
    }

    /// Reads the files that have changed, and serves their zones.
    pub(super) fn refresh(&self) -> Changes {
        let mut known = self.known.lock();
        let mut found = Listing::default();
        collect(&self.path, 0, &mut found);
        let mut files = self.zones_of(&mut found, &known);
        let (mut records, mut map) = (0, ZoneMap::default());
        let mut served = BTreeSet::new();
        // Zones that are left out aren't kept in memory, unless another block serves them.
        files.retain(|origin, zone| {
            let shown = zone.path().display().to_string();
            let left_out =
                || format!("{shown}: left out: the zones have at most {MAX_RECORDS} records in all");
            if records >= MAX_RECORDS {
                found.problem(left_out());
                return false;
            }
            if known.files.get(origin).is_some_and(|before| Arc::ptr_eq(before, zone)) {
                zone.refresh(false);
            } else if let Update::Failed { error, .. } = zone.update(false) {
                found.problem(error);
            }
            let Some(content) = zone.zone() else { return true };
            if records + content.number_of_records() > MAX_RECORDS {
                found.problem(left_out());
                return false;
            }
            records += content.number_of_records();
            map.insert(Arc::clone(zone.served()));
            served.insert(origin.clone());
            true
        });
        let mut changes = Changes::default();
        changes.problems.extend(found.problems.difference(&known.problems).cloned());
        let gone = known.served.difference(&served);
        changes.zones.extend(gone.map(|origin| format!("zone {origin}: its file is gone")));
        for origin in served.difference(&known.served) {
            let path = files.get(origin).map(|zone| zone.path().display().to_string()).unwrap_or_default();
            changes.zones.push(format!("zone {origin}: now served from {path}"));
        }
        let is_same = |origin: &String| {
            let [before, after] = [&known.files, &files].map(|files| files.get(origin));
            before.zip(after).is_some_and(|(before, after)| Arc::ptr_eq(before, after))
        };
        if known.served != served || !served.iter().all(is_same) {
            self.zones.swap(Arc::new(map)).outdated().set();
        }
        *known = Known { files, served, problems: found.problems };
        changes
    }

    /// Returns the zones of all matching files. The first file of a zone by path counts. Files in a directory that can't
    /// be read are still there.
    fn zones_of(&self, found: &mut Listing, known: &Known) -> BTreeMap<String, Arc<FileZone>> {
        let mut zones: BTreeMap<String, Arc<FileZone>> = BTreeMap::new();
        for path in std::mem::take(&mut found.paths) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(text) = self.pattern.origin(&file) else { continue };
            let shown = path.display();
            let Some(origin) = parse_name(&text).map(|name| name.to_lowercase()) else {
                found.problem(format!("{shown}: {text:?} is no zone"));
                continue;
            };
            if !self.origins.contains(&origin) {
                continue;
            }
            let key = lower_name_text(&origin);
            if let Some(first) = zones.get(&key) {
                let first = first.path().display();
                found.problem(format!("{shown}: left out: the zone {key} has the file {first}"));
            } else if zones.len() == MAX_ZONES {
                found.problem(format!("{shown} and others: left out: at most {MAX_ZONES} zones are served"));
                break;
            } else {
                let before = known.files.get(&key).filter(|before| before.path() == path);
                let zone = before.map_or_else(|| self.registry.zone(path, origin), Arc::clone);
                zones.insert(key, zone);
            }
        }
        let is_unreadable =
            |path: &Path| found.unreadable.iter().any(|directory| path.starts_with(directory));
        for (key, zone) in known.files.iter().filter(|(_, zone)| is_unreadable(zone.path())) {
            zones.entry(key.clone()).or_insert_with(|| Arc::clone(zone));
        }
        zones
    }
}

/// What was found in a directory.
#[derive(Debug, Default)]
struct Listing {
    /// The files, in the order of their paths.
    paths: Vec<PathBuf>,
    entries: usize,
    /// The directories that exist and couldn't be read.
    unreadable: Vec<PathBuf>,
    problems: BTreeSet<String>,
}

impl Listing {
    /// Notes what keeps a file from being used.
    fn problem(&mut self, problem: String) {
        const MAX_PROBLEMS: usize = 1000;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.insert(problem);
        }
    }
}

/// Adds the files in a directory and below it.
fn collect(directory: &Path, depth: usize, found: &mut Listing) {
    let shown = directory.display();
    let listed = fs::read_dir(directory).and_then(|listed| {
        let room = MAX_ENTRIES - found.entries;
        listed.take(room + 1).map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
    });
    let mut inside = match listed {
        Ok(listed) => listed,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                found.unreadable.push(directory.to_owned());
            }
            return found.problem(format!("{shown}: can't be read: {error}"));
        }
    };
    found.entries += inside.len();
    if found.entries > MAX_ENTRIES {
        found.problem(format!("{shown}: the rest is left out: there are more than {MAX_ENTRIES} files"));
        found.entries = MAX_ENTRIES;
    }
    inside.sort_unstable();
    for path in inside {
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        let is_versioned = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
        if is_versioned {
            // A ConfigMap's files are links into this directory.
        } else if !is_directory {
            found.paths.push(path);
        } else if depth < MAX_DEPTH {
            collect(&path, depth + 1, found);
        } else {
            found.problem(format!("{}: left out: directories are read {MAX_DEPTH} deep", path.display()));
        }
    }
}

/// Looks for changes at this interval, and at each change in the directory itself, until `stop` is cancelled.
pub(super) async fn watch(directory: Arc<Directory>, every: Duration, stop: CancellationToken) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_problem = None;
    loop {
        // A directory that doesn't exist, or can't be watched, is looked at in each interval.
        let watched = changes(&directory.path);
        let problem = watched.as_ref().err().map(ToString::to_string);
        if let Some(problem) = problem.as_ref().filter(|_| problem != last_problem) {
            warn!("{problem}; it is looked at every {} s", every.as_secs_f64());
        }
        last_problem = problem;
        let mut notices = pin!(futures::stream::iter(watched.ok()).flatten());
        let mut has_ended = false;
        while !has_ended {
            tokio::select! {
                () = stop.cancelled() => return,
                notice = notices.next() => {
                    has_ended = notice.is_none();
                    if has_ended && stop.run_until_cancelled(ticks.tick()).await.is_none() {
                        return;
                    }
                }
                _ = ticks.tick() => {}
            }
            let directory = Arc::clone(&directory);
            // Reading may block.
            match tokio::task::spawn_blocking(move || directory.refresh()).await {
                Ok(changes) => changes.log(),
                Err(error) => error!("reading zone files failed: {error}"),
            }
        }
    }
}
