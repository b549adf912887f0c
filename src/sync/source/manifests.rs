//! A source of links without a cluster: Services in the YAML or JSON files of a directory.

mod strings;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Location, Spanned};
use tracing::{info, warn};

use super::cluster::{set_rejections, wait_for_owners};
use super::file_watcher::{DirectoryError, changes};
use super::kept_services::KeptServices;
use super::own_targets::own_hosts;
use super::selection::{Membership, Selection};
use crate::model::excerpt;
use crate::model::excerpt::{located, sentence};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, ObservedService};
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::{OnGone, Store};
use crate::sync::controller::supervisor::SyncError;
use crate::sync::events::link_log::{Telemetry, log_changes, log_first_list};
use crate::sync::k8s::errors::ObjectErrors;
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::source::persisted_targets::PersistedTargets;
use strings::{Document, Misread};

/// The extensions of the files that are read.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

#[derive(Clone)]
pub struct ManifestSource {
    pub directory: PathBuf,
    /// Selects the Services that become links.
    pub selection: Arc<Selection>,
    /// Decides which requested hostnames and targets are allowed.
    pub hostname_policy: Arc<HostnamePolicy>,
    pub store: Arc<Store>,
    pub persisted: Arc<PersistedTargets>,
    pub telemetry: Telemetry,
    /// The files as last read, also by an earlier run of this source.
    pub files: Arc<Mutex<ManifestFiles>>,
    /// Whether targets are kept if the first list lacks the Services of most external targets, until it is certain that
    /// these Services are gone.
    pub keeps_unlisted: bool,
    /// Time for which the link of a Service is kept after the Service has left the selection (`--delete-delay`).
    pub delete_delay: Duration,
}

impl ManifestSource {
    /// Keeps the store in sync with the files.
    ///
    /// # Errors
    /// If the directory can't be read or watched any more.
    pub async fn run(self) -> Result<(), SyncError> {
        let mut changes = Box::pin(changes(&self.directory)?);
        let mut object_errors = ObjectErrors::default();
        let (mut kept, mut owners_deadline) = (KeptServices::new(self.delete_delay), None);
        loop {
            tokio::select! {
                changed = changes.next() => changed.ok_or(SyncError::WatchEnded)?,
                () = sleep_until_opt(kept.due().map(Into::into)) => {
                    for (key, uid, since) in kept.take_expired(Instant::now()) {
                        log_changes(&self.telemetry, self.store.delete_since(&key, &uid, None, since));
                    }
                    continue;
                }
            }
            let (files, directory) = (Arc::clone(&self.files), self.directory.clone());
            let read = move || files.lock().read(&directory);
            let read = tokio::task::spawn_blocking(read).await?;
            // Don't hold the lock across an await.
            let (list, unread) = {
                let mut files = self.files.lock();
                for broken in std::mem::take(&mut files.errors) {
                    warn!("{broken}");
                }
                for notice in std::mem::take(&mut files.notices) {
                    warn!("{notice}");
                }
                self.update_kept(&files, &mut kept);
                (files.services(&self.selection, &self.hostname_policy, &mut object_errors), files.unread())
            };
            read?;
            wait_for_owners(&self.store, &mut owners_deadline).await;
            // A file that can't be read yet may contain any Service, so none may be considered gone.
            if !self.store.is_synced() && unread {
                continue;
            }
            let list =
                list.into_iter().map(|observed| self.persisted.attach(&self.store, observed)).collect();
            let kept = kept.keys().cloned().collect();
            let changes = self.store.replace(None, list, Vec::new(), &kept);
            if self.store.is_synced() {
                log_changes(&self.telemetry, changes);
            } else {
                self.persisted.on_first_list(&self.store, self.keeps_unlisted);
                self.store.set_synced();
                log_first_list(&self.store, &self.telemetry, &changes);
            }
        }
    }

    /// Keeps the links of Services that the files contain and the flags don't select any more, and ends those of
    /// Services that opt out.
    fn update_kept(&self, files: &ManifestFiles, kept: &mut KeptServices) {
        let mut unselected = HashSet::new();
        for service in files.all() {
            let key = service.key();
            let is_followed =
                |link: &Arc<Link>| link.uid == *service.uid() && !link.is_gone() && !link.is_left_out();
            if !self.store.service(&key).is_some_and(|link| is_followed(&link)) {
                continue;
            }
            match self.selection.membership(service) {
                Membership::NotSelected => {
                    if kept.keep(&key, service.uid()) {
                        info!("{}", kept.notice(&key));
                    }
                    unselected.insert(key);
                }
                Membership::OptedOut => {
                    let ended = self.store.delete_since(&key, service.uid(), None, kept.long_ago());
                    log_changes(&self.telemetry, ended);
                }
                Membership::Selected | Membership::Gone => {}
            }
        }
        kept.retain(|key| unselected.contains(key));
    }
}

/// Maximum size of a file, in bytes: a larger file isn't a manifest.
const MAX_FILE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub struct ManifestCheck {
    /// The number of Services that would become links.
    pub services: usize,
    /// The errors, with file, line and column.
    pub errors: Vec<String>,
    /// The Services that are ignored.
    pub notices: Vec<String>,
}

/// Reads all manifests of a directory once.
///
/// # Errors
/// If the directory can't be read.
pub fn check(
    directory: &Path,
    selection: &Selection,
    hostname_policy: &HostnamePolicy,
) -> Result<ManifestCheck, DirectoryError> {
    let mut files = ManifestFiles::default();
    files.read(directory)?;
    let services = files.services(selection, hostname_policy, &mut ObjectErrors::default()).len();
    let errors = files.errors.into_iter().map(|broken| broken.error).collect();
    Ok(ManifestCheck { services, errors, notices: files.notices })
}

/// Returns all load balancers in the valid manifests of a directory, including load balancers that the flags leave out.
///
/// # Errors
/// If the directory can't be read.
pub fn load_balancers(directory: &Path) -> Result<Vec<Service>, DirectoryError> {
    let mut files = ManifestFiles::default();
    files.read(directory)?;
    let services = files.by_name.into_values().flat_map(|file| file.services);
    Ok(services.filter(Service::is_living_load_balancer).collect())
}

/// The files as last read.
#[derive(Debug, Default)]
pub struct ManifestFiles {
    by_name: BTreeMap<PathBuf, ManifestFile>,
    twice: BTreeSet<String>,
    /// The errors of the last read, with file, line and column.
    errors: Vec<FileError>,
    /// The ignored Services that weren't reported before.
    notices: Vec<String>,
}

/// A file: its present bytes, and the Services of its last valid content.
#[derive(Debug, Default)]
struct ManifestFile {
    content: Vec<u8>,
    services: Vec<Service>,
    /// Whether the file has ever been valid.
    had_valid_content: bool,
}

impl ManifestFiles {
    /// Reads the directory again. A file that can't be read or parsed keeps its last valid content.
    fn read(&mut self, directory: &Path) -> Result<(), DirectoryError> {
        let paths = manifest_files(directory)?;
        let mut before = std::mem::take(&mut self.by_name);
        for path in paths {
            let mut file = before.remove(&path).unwrap_or_default();
            match read_file(&path) {
                Ok(content) if content == file.content => {}
                Ok(content) => {
                    match parse(&path, &content) {
                        Ok(services) => (file.services, file.had_valid_content) = (services, true),
                        Err(error) => {
                            self.errors.push(FileError { error, had_valid_content: file.had_valid_content })
                        }
                    }
                    file.content = content;
                }
                // The file was removed after the directory was listed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let error = format!("{}: {error}", path.display());
                    self.errors.push(FileError { error, had_valid_content: file.had_valid_content });
                }
            }
            self.by_name.insert(path, file);
        }
        self.report_twice();
        Ok(())
    }

    /// Returns whether there is a file that has never been valid.
    fn unread(&self) -> bool {
        self.by_name.values().any(|file| !file.had_valid_content)
    }

    /// Reports Services that occur in several files: the first file by name counts.
    fn report_twice(&mut self) {
        let mut first: HashMap<ServiceKey, &Path> = HashMap::new();
        let mut twice = BTreeSet::new();
        for (path, file) in &self.by_name {
            for service in &file.services {
                let key = service.key();
                if let Some(winner) = first.get(&key) {
                    twice.insert(format!(
                        "{}: Service {key} is passed over, {} has it already",
                        path.display(),
                        winner.display()
                    ));
                } else {
                    first.insert(key, path);
                }
            }
        }
        self.notices.extend(twice.difference(&self.twice).cloned());
        self.twice = twice;
    }

    /// Returns the load balancers of all files, without duplicates.
    fn services(
        &self,
        selection: &Selection,
        hostname_policy: &HostnamePolicy,
        object_errors: &mut ObjectErrors,
    ) -> Vec<ObservedService> {
        // Whether a target in our zones is allowed depends on the load balancers of all files.
        let all = Store::new(OnGone::Dropped).with_zones(&hostname_policy.targets.zones);
        let services = self.by_name.values().flat_map(|file| &file.services);
        if services.into_iter().any(|service| !own_hosts(service, hostname_policy).is_empty()) {
            let list = self.observed(selection, |service| service.observe(hostname_policy, &all).0);
            all.replace(None, list, Vec::new(), &HashSet::new());
        }
        self.observed(selection, |service| {
            let (observed, rejections) = service.observe(hostname_policy, &all);
            set_rejections(object_errors, &observed.key, &rejections);
            observed
        })
    }

    /// Returns the Services of all files; of several with the same name, the first.
    fn all(&self) -> impl Iterator<Item = &Service> {
        let mut seen = BTreeSet::new();
        let services = self.by_name.values().flat_map(|file| &file.services);
        services.filter(move |service| seen.insert(service.key()))
    }

    fn observed(
        &self,
        selection: &Selection,
        mut observe: impl FnMut(&Service) -> ObservedService,
    ) -> Vec<ObservedService> {
        self.all()
            .filter(|service| selection.selects(service))
            // The resourceVersion of an exported manifest doesn't change with the file.
            .map(|service| ObservedService { resource_version: None, ..observe(service) })
            .collect()
    }
}

/// The error of a file, and whether the file has been valid before.
#[derive(Debug)]
struct FileError {
    error: String,
    had_valid_content: bool,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let consequence = if self.had_valid_content {
            "its last good content stays in force"
        } else {
            "the file is passed over"
        };
        write!(f, "{}; {consequence}", self.error)
    }
}

fn manifest_files(directory: &Path) -> Result<Vec<PathBuf>, DirectoryError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(DirectoryError::at(directory))? {
        let path = entry.map_err(DirectoryError::at(directory))?.path();
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let known = path.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
        // Reading a named pipe would block.
        if known && !hidden && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    std::fs::read(path)
}

/// The type of a YAML document.
#[derive(Debug, Deserialize)]
struct DocumentType {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// A `List` with items of any kind: the kind of each item has to be checked before it is decoded.
#[derive(Debug, Deserialize)]
struct ObjectList {
    #[serde(default)]
    items: Vec<Spanned<Value>>,
}

impl ObjectList {
    /// Returns the Services of the list, and their positions.
    fn services(self, place: impl Fn(Location) -> String) -> Result<Vec<(String, Service)>, String> {
        // Items of a ServiceList may omit apiVersion and kind.
        let is = |item: &Value, field, what| item.get(field).is_none_or(|found| found == what);
        self.items
            .into_iter()
            .filter(|item| is(&item.value, "apiVersion", "v1") && is(&item.value, "kind", "Service"))
            .map(|Spanned { value, defined, .. }| {
                let here = place(defined);
                match serde_json::from_value(value) {
                    Ok(service) => Ok((here, service)),
                    Err(error) => {
                        let error = sentence(&error.to_string()).to_string();
                        Err(format!("{here}: this item of the list: {error}"))
                    }
                }
            })
            .collect()
    }
}

/// Returns the YAML documents of a file. Spellings of infinity and NaN are decoded as strings, because kubectl reads
/// some of them, such as `Infinity`, as strings.
fn documents<'a, T: DeserializeOwned + 'a>(
    content: &'a mut &[u8],
) -> impl Iterator<Item = Result<T, serde_saphyr::Error>> + 'a {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_reader_input_bytes: None },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
    };
    serde_saphyr::read_with_options(content, options)
}

/// Returns the Services of a file with YAML documents, or with JSON, which is a subset of YAML.
///
/// # Errors
/// One sentence that begins with file, line and column.
fn parse(path: &Path, content: &[u8]) -> Result<Vec<Service>, String> {
    let text = std::str::from_utf8(content).map_err(|error| {
        let line = content[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        format!("{}:{line}:1: this line isn't UTF-8", path.display())
    })?;
    let at = |error: serde_saphyr::Error| located(&path.display().to_string(), &error);
    let place = |at: Location| format!("{}:{}:{}", path.display(), at.line(), at.column());
    let mut found = Vec::new();
    let mut heads = content;
    let mut services = content;
    let mut lists = content;
    let mut strings = content;
    // Parse each document in four ways: its kind decides which result counts.
    let documents = documents::<Spanned<DocumentType>>(&mut heads)
        .zip(documents::<Service>(&mut services))
        .zip(documents::<ObjectList>(&mut lists))
        .zip(documents::<Document>(&mut strings));
    for (((head, service), list), strings) in documents {
        let head = head.map_err(at)?;
        let here = place(head.defined);
        let kind = (head.value.api_version.as_deref(), head.value.kind.as_deref());
        // The other parsers report syntax errors.
        if let (Ok(strings), (Some("v1"), Some("Service" | "List" | "ServiceList"))) = (strings, kind)
            && let Some(Misread { place: at, why }) = strings.misread(text)
        {
            return Err(format!("{}: {why}", place(at)));
        }
        match kind {
            (Some("v1"), Some("Service")) => found.push((here, service.map_err(at)?)),
            (Some("v1"), Some("List" | "ServiceList")) => found.extend(list.map_err(at)?.services(place)?),
            (None, _) => return Err(format!("{here}: this document has no apiVersion")),
            (_, None) => return Err(format!("{here}: this document has no kind")),
            _ => {}
        }
    }
    for (here, service) in &found {
        let key = service.key();
        let (namespace, name) = key.parts();
        for (field, value) in [("name", name), ("namespace", namespace)] {
            if !names::is_label(value) {
                return Err(format!(
                    "{here}: metadata.{field} {} isn't 1 to 63 lower-case letters, digits and hyphens",
                    excerpt::value(value)
                ));
            }
        }
    }
    Ok(found.into_iter().map(|(_, service)| service).collect())
}
