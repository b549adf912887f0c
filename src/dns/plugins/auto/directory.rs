//! A directory with zone files, whose changes are followed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::StreamExt as _;
use hickory_proto::rr::Name;
use parking_lot::Mutex;
use regex::Regex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::dns::message::presentation::{lower_name_text, parse_name};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::file::served::{ServedZone, ZoneMap};
use crate::file_watcher::changes;

/// The maximum number of zones, and of their records in all.
const MAX_ZONES: usize = 10_000;
const MAX_RECORDS: usize = 1_000_000;
/// The maximum number of files and directories that are looked at, and the maximum depth.
const MAX_ENTRIES: usize = 200_000;
const MAX_DEPTH: usize = 16;

/// How the name of a file leads to a zone.
#[derive(Debug)]
pub(super) struct Pattern {
    /// `None` for `db\.(.*)`.
    regex: Option<Regex>,
    /// In the syntax of [`regex::Captures::expand`].
    template: String,
}

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    pattern: Pattern,
    origins: ZoneSet,
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
    files: BTreeMap<String, Arc<ServedZone>>,
    /// The origins of the zones that are served.
    served: Vec<String>,
    /// What kept files from being used.
    problems: Vec<String>,
}

impl Default for Pattern {
    fn default() -> Self {
        Self { regex: None, template: "${1}".to_owned() }
    }
}

impl Pattern {
    /// In `template`, `{1}` stands for the first group, as in CoreDNS.
    pub(super) fn new(regex: Regex, template: &str) -> Self {
        Self { regex: Some(regex), template: template.replace('{', "${") }
    }

    /// Returns the origin for a file's name as a text.
    fn origin(&self, file: &str) -> Option<String> {
        let Some(regex) = &self.regex else {
            return file.split_once("db.").map(|(_, origin)| origin.to_owned());
        };
        let mut origin = String::new();
        regex.captures(file)?.expand(&self.template, &mut origin);
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
    pub(super) fn new(path: PathBuf, pattern: Pattern, origins: ZoneSet) -> Self {
        Self { path, pattern, origins, zones: ArcSwap::default(), known: Mutex::default() }
    }

    pub(super) fn zones(&self) -> Arc<ZoneMap> {
        self.zones.load_full()
    }

    /// Reads the files that have changed, and serves their zones.
    pub(super) fn refresh(&self) -> Changes {
        let mut known = self.known.lock();
        let mut problems = Vec::new();
        let mut files = BTreeMap::new();
        for (origin, path) in self.find(&mut problems) {
            let text = lower_name_text(&origin);
            let before = known.files.get(&text).filter(|before| before.path() == path);
            let zone = before.map_or_else(|| Arc::new(ServedZone::new(path, origin)), Arc::clone);
            files.insert(text, zone);
        }
        let mut records = 0;
        let (mut map, mut served) = (ZoneMap::default(), Vec::new());
        for (origin, zone) in &files {
            if known.files.get(origin).is_some_and(|before| Arc::ptr_eq(before, zone)) {
                zone.refresh(false);
            } else if let Err(problem) = zone.read() {
                problems.push(problem.to_string());
            }
            let Some(content) = zone.zone() else { continue };
            records += content.number_of_records();
            if records > MAX_RECORDS {
                let path = zone.path().display();
                problems
                    .push(format!("{path}: left out: the zones have at most {MAX_RECORDS} records in all"));
                records -= content.number_of_records();
                continue;
            }
            map.insert(Arc::clone(zone));
            served.push(origin.clone());
        }
        let is_new = |problem: &&String| !known.problems.contains(problem);
        let mut changes =
            Changes { problems: problems.iter().filter(is_new).cloned().collect(), zones: Vec::new() };
        let gone = known.served.iter().filter(|origin| !served.contains(origin));
        changes.zones.extend(gone.map(|origin| format!("zone {origin}: its file is gone")));
        for origin in served.iter().filter(|origin| !known.served.contains(origin)) {
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
        *known = Known { files, served, problems };
        changes
    }

    /// Returns the zones of all matching files, in the order of their paths.
    fn find(&self, problems: &mut Vec<String>) -> Vec<(Name, PathBuf)> {
        let (mut paths, mut entries) = (Vec::new(), 0);
        // The directory may be a symbolic link.
        collect(&self.path, 0, &mut entries, &mut paths, problems);
        let mut found: BTreeMap<String, (Name, PathBuf)> = BTreeMap::new();
        for path in paths {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(text) = self.pattern.origin(&file) else { continue };
            let shown = path.display();
            let Some(origin) = parse_name(&text).map(|name| name.to_lowercase()) else {
                problems.push(format!("{shown}: {text:?} is no zone"));
                continue;
            };
            if !self.origins.contains(&origin) {
                continue;
            }
            let key = lower_name_text(&origin);
            if let Some((_, first)) = found.get(&key) {
                problems.push(format!("{shown}: left out: the zone {key} has the file {}", first.display()));
            } else if found.len() == MAX_ZONES {
                problems.push(format!("{shown} and others: left out: at most {MAX_ZONES} zones are served"));
                break;
            } else {
                found.insert(key, (origin, path));
            }
        }
        found.into_values().collect()
    }
}

/// Adds the files in a directory and below it, in the order of their paths.
fn collect(
    directory: &Path,
    depth: usize,
    entries: &mut usize,
    paths: &mut Vec<PathBuf>,
    problems: &mut Vec<String>,
) {
    let shown = directory.display();
    let listed = match fs::read_dir(directory) {
        Ok(listed) => listed,
        Err(error) => return problems.push(format!("{shown}: can't be read: {error}")),
    };
    let mut inside: Vec<PathBuf> = Vec::new();
    for entry in listed {
        *entries += 1;
        if *entries > MAX_ENTRIES {
            problems.push(format!("{shown}: the rest is left out: there are more than {MAX_ENTRIES} files"));
            break;
        }
        match entry {
            Ok(entry) => inside.push(entry.path()),
            Err(error) => problems.push(format!("{shown}: can't be read: {error}")),
        }
    }
    inside.sort_unstable();
    for path in inside {
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        let is_versioned = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
        if is_versioned {
            // A ConfigMap's files are links into this directory.
        } else if !is_directory {
            paths.push(path);
        } else if depth < MAX_DEPTH {
            collect(&path, depth + 1, entries, paths, problems);
        }
    }
}

/// Looks for changes at this interval, and at each change in the directory itself, until `stop` is cancelled.
pub(super) async fn watch(directory: Arc<Directory>, every: Duration, stop: CancellationToken) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // A directory that doesn't exist, or can't be watched, is looked at in each interval.
        let mut notices = pin!(futures::stream::iter(changes(&directory.path).ok()).flatten());
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
