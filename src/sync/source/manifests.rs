//! A source of links and names without a cluster: Services, Ingresses, objects of Gateway API, and StableNames in the YAML
//! or JSON files of a directory.

mod reader;
mod schema;
#[cfg(test)]
mod serde_fields;
mod services;
mod source_objects;
mod stable_names;
mod strings;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use kube::Resource;
use parking_lot::Mutex;
use serde_saphyr::Spanned;
use serde_saphyr::options::NonFiniteFloatPolicy;
use tokio::time::sleep;
use tracing::{info, warn};

use super::cluster::EXTERNAL_TARGETS_LIST_TIMEOUT;
use super::internal_names::LostInternalNames;
use super::kept_services::KeptServices;
use super::own_targets::own_hosts;
use super::selection::Selection;
use super::unselected::UnselectedServices;
use crate::api::stable_name::StableName;
use crate::file_watcher::{DirectoryError, changes};
use crate::model::excerpt::{examples, located, value};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange, ObservedService};
use crate::model::names;
use crate::model::owner::Zone;
use crate::model::rejection::Rejection;
use crate::model::service_key::ServiceKey;
use crate::store::{Input, OnGone, Store};
use crate::sync::events::link_log::{LinkReporter, log_changes, log_first_list};
use crate::sync::k8s::errors::ObjectErrors;
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::removal::facts::{Found, Membership};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::source::names::shared::ObjectId;
use crate::sync::source::persisted_targets::PersistedTargets;
use crate::sync::source::service_links::service_link;
use crate::sync::task::supervisor::SyncError;
use reader::{FieldError, MAX_ERRORS};
pub use source_objects::SourceNames;
use source_objects::SourceObject;
use strings::SourceText;
use tree::{Node, place};

/// The pause between two looks for a directory that was removed.
const DIRECTORY_INTERVAL: Duration = Duration::from_secs(1);
/// The extensions of the files that are read.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];
const SERVICE: &str = "Service";
const STABLE_NAME: &str = "StableName";

/// Kinds that aren't read, and have names like some that are.
const OTHER_ROUTES: [&str; 2] = ["TCPRoute", "UDPRoute"];

/// Applies the overrides by these StableNames, of which no two have the same name, and ends all other overrides.
/// Returns the changes of links.
pub type ApplyOverrides = Arc<dyn Fn(&[Arc<StableName>], &HostnamePolicy) -> Vec<LinkChange> + Send + Sync>;

#[derive(Clone)]
pub struct ManifestSource {
    pub directory: PathBuf,
    /// Selects the Services that become links.
    pub selection: Arc<Selection>,
    /// Decides which requested hostnames and targets are allowed.
    pub hostname_policy: Arc<HostnamePolicy>,
    pub store: Arc<Store>,
    pub persisted: Arc<PersistedTargets>,
    /// The load balancers without a link.
    pub unselected: Arc<UnselectedServices>,
    pub apply_overrides: ApplyOverrides,
    pub link_reporter: LinkReporter,
    /// The names of Ingresses and routes in the files, if a zone has them.
    pub source_names: Arc<Mutex<SourceNames>>,
    /// The files as last read, also by an earlier run of this source.
    pub files: Arc<Mutex<ManifestFiles>>,
    /// Whether targets are kept if the first list lacks the Services of most external targets, until it is certain that
    /// these Services are gone.
    pub keeps_unlisted: bool,
    /// Time for which the link of a Service is kept after the Service has left the selection (`--delete-delay`).
    pub delete_delay: Duration,
}

impl ManifestSource {
    /// Keeps the store in sync with the files. Records that they can't be read.
    ///
    /// # Errors
    /// If the directory can't be read any more.
    pub async fn run(self) -> Result<(), SyncError> {
        let ended = self.follow().await;
        if let Err(error @ SyncError::Source(_)) = &ended {
            self.show_unread(error);
        }
        ended
    }

    fn show_unread(&self, error: &dyn fmt::Display) {
        let note = format!("the manifests can't be read, the links stay as they are: {error}");
        self.link_reporter.findings.readiness.manifests.store(Some(Arc::new(note)));
    }

    /// Waits until there is a directory to watch, and returns its changes.
    async fn changes(&self) -> Pin<Box<impl Stream<Item = ()> + use<>>> {
        let mut logged = None;
        loop {
            let error = match changes(&self.directory) {
                Ok(changes) => return Box::pin(changes),
                Err(error) => error.to_string(),
            };
            self.show_unread(&error);
            if logged.as_ref() != Some(&error) {
                warn!("{error}; the links stay as they are");
                logged = Some(error);
            }
            sleep(DIRECTORY_INTERVAL).await;
        }
    }

    async fn follow(&self) -> Result<(), SyncError> {
        let mut changes = self.changes().await;
        let LinkReporter { findings, log, .. } = &self.link_reporter;
        let mut object_errors = ObjectErrors::shown_in(&findings.services, "Service", log.clone());
        let (mut kept, mut owners_deadline) = (KeptServices::new(self.delete_delay), None);
        let (mut is_empty, mut lost_internal) = (true, LostInternalNames::default());
        let mut zones = self.store.watch_zones();
        loop {
            tokio::select! {
                changed = changes.next() => if changed.is_none() {
                    changes = self.changes().await;
                    info!("{}: the directory was replaced, and is read again", self.directory.display());
                    continue;
                },
                Ok(()) = zones.changed(), if self.store.is_known(Input::Services) => {
                    self.take_source_objects();
                    continue;
                }
                () = sleep_until_opt(kept.due().map(Into::into)) => {
                    for (key, uid, since) in kept.take_expired(Instant::now()) {
                        log_changes(&self.link_reporter, self.store.gone(&key, &uid, None, since));
                    }
                    log_changes(&self.link_reporter, self.apply_overrides());
                    continue;
                }
            }
            let (files, directory) = (Arc::clone(&self.files), self.directory.clone());
            let read = move || files.lock().read(&directory);
            let read = tokio::task::spawn_blocking(read).await?;
            let (mut list, unselected, has_never_valid_file) =
                self.load_balancers(read.is_ok(), &mut kept, &mut object_errors);
            read?;
            // Wait until the external targets are read, which record the owners of names: otherwise a Service that is
            // read earlier could get the name of another link.
            let deadline = *owners_deadline
                .get_or_insert_with(|| tokio::time::Instant::now() + EXTERNAL_TARGETS_LIST_TIMEOUT);
            let _ = tokio::time::timeout_at(deadline, self.store.known(Input::ExternalTargets)).await;
            // A file that can't be read yet may contain any Service, so none may be considered gone.
            if !self.store.is_known(Input::Services) && has_never_valid_file {
                continue;
            }
            let listed: HashSet<ServiceKey> = list.iter().map(|observed| observed.key.clone()).collect();
            list.iter_mut().for_each(|observed| self.persisted.attach(&self.store, observed));
            self.unselected.replace(None, unselected, &HashSet::new());
            object_errors.retain(|key| listed.contains(key));
            let was_empty = std::mem::replace(&mut is_empty, listed.is_empty());
            let changes = self.take_list(list, &kept);
            if !self.store.is_known(Input::Services) {
                self.end_first_list(&changes);
                self.take_source_objects();
                lost_internal.start(&self.store, &self.link_reporter);
                continue;
            }
            self.take_source_objects();
            lost_internal.check_all(&self.store, &self.link_reporter);
            if listed.is_empty() && !was_empty {
                warn!("{} has no selected load balancer any more", self.directory.display());
            }
            log_changes(&self.link_reporter, changes);
        }
    }

    /// Returns the selected load balancers of the files, the other ones, and whether a file could never be read. Reports
    /// what is wrong with the files.
    fn load_balancers(
        &self,
        is_read: bool,
        kept: &mut KeptServices,
        object_errors: &mut ObjectErrors,
    ) -> (Vec<ObservedService>, Vec<ObservedService>, bool) {
        let mut files = self.files.lock();
        for broken in std::mem::take(&mut files.errors) {
            warn!("{broken}");
        }
        for notice in std::mem::take(&mut files.notices) {
            warn!("{notice}");
        }
        if is_read {
            self.link_reporter.findings.readiness.manifests.store(files.broken().map(Arc::new));
        }
        self.update_kept(&files, kept);
        let list = files.services(&self.selection, &self.hostname_policy, object_errors);
        let unselected = files.unselected(&self.selection, &self.hostname_policy, &self.store);
        (list, unselected, files.has_never_valid_file())
    }

    /// Lets DNS answer from the links of the first list, whose changes these are.
    fn end_first_list(&self, changes: &[LinkChange]) {
        self.persisted.on_first_list(&self.store, self.keeps_unlisted, &BTreeSet::new());
        self.store.set_known(Input::StableNames);
        self.store.set_known(Input::Services);
        log_first_list(&self.store, &self.link_reporter, changes);
        let stable_names = self.files.lock().stable_names(&self.selection).len();
        if stable_names > 0 {
            info!("ready: StableNames: {stable_names}");
        }
    }

    /// Applies a complete list of Services, and the StableNames.
    fn take_list(&self, list: Vec<ObservedService>, kept: &KeptServices) -> Vec<LinkChange> {
        let kept: HashSet<ServiceKey> = kept.keys().cloned().collect();
        let overriding = self.files.lock().stable_names(&self.selection);
        let listed: HashSet<ServiceKey> = list.iter().map(|observed| observed.key.clone()).collect();
        let overriding = overriding.iter().map(|object| stable_names::key(object));
        let replaced: HashSet<ServiceKey> =
            overriding.filter(|key| !kept.contains(key) && !listed.contains(key)).collect();
        // A Service that a StableName replaces is removed after the override is applied, so that the link is never
        // without a target.
        let staying = kept.union(&replaced).cloned().collect();
        let mut changes = self.store.replace(None, list, Vec::new(), &staying);
        changes.extend(self.apply_overrides());
        let replaced = replaced.iter().filter_map(|key| service_link(&self.store, key));
        let replaced: Vec<Arc<Link>> =
            replaced.filter(|service| !service.is_gone() && !service.is_left_out()).collect();
        if !replaced.is_empty() {
            let delete = |service: &Arc<Link>| {
                self.store.gone(&service.key, &service.uid.to_string(), None, Instant::now())
            };
            changes.extend(replaced.iter().filter_map(delete));
            changes.extend(self.apply_overrides());
        }
        changes
    }

    /// Gives the links of StableNames their targets, after each change of a Service.
    fn apply_overrides(&self) -> Vec<LinkChange> {
        let objects = self.files.lock().stable_names(&self.selection);
        (self.apply_overrides)(&objects, &self.hostname_policy)
    }

    /// Keeps the links of Services that the files contain and the flags don't select any more, and ends those of
    /// Services that opt out.
    fn update_kept(&self, files: &ManifestFiles, kept: &mut KeptServices) {
        let mut unselected = HashSet::new();
        for service in files.all() {
            let key = service.key();
            let is_followed =
                |link: &Arc<Link>| link.uid == *service.uid() && !link.is_gone() && !link.is_left_out();
            if !service_link(&self.store, &key).is_some_and(|link| is_followed(&link)) {
                continue;
            }
            let found = Found::same(self.selection.membership(service));
            match may_remove(&kept.facts(&key, service.uid(), found), Instant::now()) {
                Verdict::Wait(..)
                | Verdict::Keep(RemovalReason::NotSelected)
                | Verdict::Remove(RemovalReason::NotSelected) => {
                    if kept.keep(&key, service.uid()) {
                        self.link_reporter.log.info(&key, kept.notice(&key));
                    }
                    unselected.insert(key);
                }
                Verdict::Remove(RemovalReason::OptedOut) => {
                    let ended = self.store.gone(&key, service.uid(), None, kept.long_ago());
                    log_changes(&self.link_reporter, ended);
                }
                _ => {}
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
    pub stable_names: usize,
    /// The number of objects with names in the zones, of each other source.
    pub of_sources: Vec<(&'static str, usize)>,
    /// The errors, with the file, and with line and column if known.
    pub errors: Vec<String>,
    /// The objects that are ignored.
    pub notices: Vec<String>,
    /// What of each selected load balancer is denied or ignored.
    pub rejections: Vec<String>,
}

/// Reads all manifests of a directory once. Checks the objects with names by a hostname policy and zones, if given.
///
/// # Errors
/// If the directory can't be read.
pub fn check(
    directory: &Path,
    selection: &Selection,
    names: Option<(&HostnamePolicy, &[Zone])>,
) -> Result<ManifestCheck, DirectoryError> {
    let mut files = ManifestFiles::default();
    files.read(directory)?;
    let stable_names = files.stable_names(selection).len();
    let services = files.all().filter(|service| selection.selects(service)).count();
    let (mut rejections, mut of_sources) = (Vec::new(), Vec::new());
    if let Some((hostname_policy, zones)) = names {
        files.observed_by(selection, hostname_policy, |key, found| {
            rejections.extend(found.iter().map(|rejection| format!("Service {key}: {rejection}")));
        });
        let found = files.check_source_objects(selection, hostname_policy, zones);
        of_sources = found.0;
        rejections.extend(found.1);
    }
    let errors = files.errors.into_iter().map(|broken| broken.error).collect();
    Ok(ManifestCheck { services, stable_names, of_sources, errors, notices: files.notices, rejections })
}

/// Returns all load balancers in the valid manifests of a directory, including load balancers that the flags leave out.
///
/// # Errors
/// If the directory can't be read.
pub fn load_balancers(directory: &Path) -> Result<Vec<Service>, DirectoryError> {
    let mut files = ManifestFiles::default();
    files.read(directory)?;
    let services = files.by_name.into_values().flat_map(|file| file.objects.services);
    Ok(services.filter(Service::is_living_load_balancer).collect())
}

/// The files as last read.
#[derive(Debug, Default)]
pub struct ManifestFiles {
    by_name: BTreeMap<PathBuf, ManifestFile>,
    reported_duplicates: BTreeSet<String>,
    /// The errors that haven't been reported yet, with the file, and with line and column if known.
    errors: Vec<FileError>,
    /// The ignored objects that weren't reported before.
    notices: Vec<String>,
}

/// A file: its bytes as last read, and the objects of its last valid content.
#[derive(Debug, Default)]
struct ManifestFile {
    content: Option<Vec<u8>>,
    objects: Objects,
    /// Whether the file has ever been valid.
    had_valid_content: bool,
    /// The first error of the present content.
    error: Option<String>,
}

/// The objects of a file that are used.
#[derive(Debug, Default)]
pub struct Objects {
    pub services: Vec<Service>,
    pub stable_names: Vec<Arc<StableName>>,
    pub of_sources: Vec<SourceObject>,
    /// The errors of the objects that are refused, as sentences that begin with file, line and column.
    pub refused: Vec<String>,
    /// The object of each of these errors.
    refused_at: Vec<RefusedObject>,
    /// All objects that are refused.
    refused_objects: HashSet<RefusedObject>,
}

/// What a refused object tells of its kind, its namespace and its name; `None` if no name can be read.
type RefusedObject = Option<(Option<&'static str>, Option<String>, String)>;

impl Objects {
    /// Adds the objects of an earlier content of the file that are missing because they are refused. Returns the refused
    /// objects of which there is an earlier content; without a name, a refused object may be each missing one.
    fn keep_refused(&mut self, before: &mut Self) -> HashSet<RefusedObject> {
        let mut kept = HashSet::new();
        let mut keeps = |kind: &'static str, key: &ServiceKey| {
            let (namespace, name) = (Some(key.namespace().to_owned()), key.name());
            let same = [(Some(kind), &namespace), (Some(kind), &None), (None, &namespace), (None, &None)];
            let same = same.map(|(kind, namespace)| Some((kind, namespace.clone(), name.to_owned())));
            let found: Vec<RefusedObject> = same
                .into_iter()
                .chain([None])
                .filter(|object| self.refused_objects.contains(object))
                .collect();
            let is_kept = !found.is_empty();
            kept.extend(found);
            is_kept
        };
        let known: HashSet<ServiceKey> = self.services.iter().map(Service::key).collect();
        let services = before.services.drain(..).filter(|service| {
            let key = service.key();
            !known.contains(&key) && keeps(SERVICE, &key)
        });
        self.services.extend(services);
        let known: HashSet<ServiceKey> =
            self.stable_names.iter().map(|object| stable_names::key(object)).collect();
        let stable_names = before.stable_names.drain(..).filter(|object| {
            let key = stable_names::key(object);
            !known.contains(&key) && keeps(STABLE_NAME, &key)
        });
        self.stable_names.extend(stable_names);
        let known: HashSet<ObjectId> = self.of_sources.iter().map(SourceObject::id).collect();
        let of_sources = before.of_sources.drain(..).filter(|object| {
            let id = object.id();
            !known.contains(&id) && keeps(id.kind.api().1, &id.key)
        });
        self.of_sources.extend(of_sources);
        kept
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.stable_names.is_empty() && self.of_sources.is_empty()
    }
}

impl ManifestFile {
    /// Takes the objects of a new content, and returns its errors.
    fn take(&mut self, read: Result<Objects, String>) -> Vec<FileError> {
        let errors = self.errors_of(read);
        self.error = errors.first().map(ToString::to_string);
        errors
    }

    fn errors_of(&mut self, read: Result<Objects, String>) -> Vec<FileError> {
        let mut objects = match read {
            Ok(objects) => objects,
            Err(error) => {
                return vec![FileError { error, passed_over: "file", is_kept: !self.objects.is_empty() }];
            }
        };
        self.had_valid_content |= objects.refused.is_empty();
        let kept = objects.keep_refused(&mut self.objects);
        objects.refused_objects.clear();
        let refused = std::mem::take(&mut objects.refused).into_iter();
        let refused = refused.zip(std::mem::take(&mut objects.refused_at));
        self.objects = objects;
        let error =
            |(error, object)| FileError { error, passed_over: "object", is_kept: kept.contains(&object) };
        refused.map(error).collect()
    }
}

impl ManifestFiles {
    /// Reads the directory again. A file that can't be read or parsed keeps its last valid content; of a file with
    /// objects that are refused, the other ones are used.
    fn read(&mut self, directory: &Path) -> Result<(), DirectoryError> {
        let paths = manifest_files(directory)?;
        let mut before = std::mem::take(&mut self.by_name);
        for path in paths {
            let mut file = before.remove(&path).unwrap_or_default();
            match read_file(&path) {
                Ok(content) if file.content.as_ref() == Some(&content) => {}
                Ok(content) => {
                    self.errors.extend(file.take(parse(&path, &content)));
                    file.content = Some(content);
                }
                // The file was removed after the directory was listed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let error = Err(format!("{}: {error}", path.display()));
                    self.errors.extend(file.take(error));
                    file.content = None;
                }
            }
            self.by_name.insert(path, file);
        }
        self.report_twice();
        Ok(())
    }

    /// Returns a sentence about the files whose present content isn't used, or only in part.
    fn broken(&self) -> Option<String> {
        let errors: Vec<&String> = self.by_name.values().filter_map(|file| file.error.as_ref()).collect();
        (!errors.is_empty()).then(|| format!("manifests with errors: {}", examples(errors)))
    }

    /// Returns whether there is a file that has never been valid.
    fn has_never_valid_file(&self) -> bool {
        self.by_name.values().any(|file| !file.had_valid_content)
    }

    /// Reports objects that occur more than once: the first one, in the order of the file names, counts.
    fn report_twice(&mut self) {
        let mut first: HashMap<(&str, ServiceKey), &Path> = HashMap::new();
        let mut reported_duplicates = BTreeSet::new();
        for (path, file) in &self.by_name {
            let Objects { services, stable_names, of_sources, .. } = &file.objects;
            let services = services.iter().map(|service| (SERVICE, service.key()));
            let stable_names = stable_names.iter();
            let stable_names = stable_names.map(|object| (STABLE_NAME, stable_names::key(object)));
            let of_sources = of_sources.iter().map(SourceObject::id).map(|id| (id.kind.api().1, id.key));
            for (kind, key) in services.chain(stable_names).chain(of_sources) {
                if let Some(winner) = first.get(&(kind, key.clone())) {
                    reported_duplicates.insert(format!(
                        "{}: {kind} {key} is passed over, {} has it already",
                        path.display(),
                        winner.display()
                    ));
                } else {
                    first.insert((kind, key), path);
                }
            }
        }
        self.notices.extend(reported_duplicates.difference(&self.reported_duplicates).cloned());
        self.reported_duplicates = reported_duplicates;
    }

    /// Returns the selected load balancers of all files, without duplicates, and logs their invalid or denied parts.
    fn services(
        &self,
        selection: &Selection,
        hostname_policy: &HostnamePolicy,
        object_errors: &mut ObjectErrors,
    ) -> Vec<ObservedService> {
        self.observed_by(selection, hostname_policy, |key, rejections| {
            object_errors.set_parts(key, rejections);
        })
    }

    /// Returns the selected load balancers of all files, without duplicates. Passes the invalid or denied parts of each
    /// to `on_rejections`.
    fn observed_by(
        &self,
        selection: &Selection,
        hostname_policy: &HostnamePolicy,
        mut on_rejections: impl FnMut(&ServiceKey, &[Rejection]),
    ) -> Vec<ObservedService> {
        // Whether a target in our zones is allowed depends on the load balancers of all files.
        let all = Store::new(OnGone::Dropped);
        let all = match &hostname_policy.zones[..] {
            [] => all.with_zones(&hostname_policy.targets.zones),
            zones => all.with_zones(zones.iter().cloned()),
        };
        let services = self.by_name.values().flat_map(|file| &file.objects.services);
        if services.into_iter().any(|service| !own_hosts(service, hostname_policy).is_empty()) {
            let list = self.observed(selection, |service| service.observe(hostname_policy, &all).0);
            all.replace(None, list, Vec::new(), &HashSet::new());
        }
        self.observed(selection, |service| {
            let (observed, rejections) = service.observe(hostname_policy, &all);
            on_rejections(&observed.key, &rejections);
            observed
        })
    }

    /// Returns the Services of all files; of several with the same name, the first.
    fn all(&self) -> impl Iterator<Item = &Service> {
        let mut seen = BTreeSet::new();
        let services = self.by_name.values().flat_map(|file| &file.objects.services);
        services.filter(move |service| seen.insert(service.key()))
    }

    /// Returns the load balancers that match the label selector but aren't selected: StableNames may have them as
    /// sources.
    fn unselected(
        &self,
        selection: &Selection,
        hostname_policy: &HostnamePolicy,
        store: &Store,
    ) -> Vec<ObservedService> {
        let is_unselected = |service: &&Service| {
            matches!(selection.membership(service), Membership::NotSelected | Membership::OptedOut)
                && selection.matches_labels(&service.metadata)
        };
        self.all().filter(is_unselected).map(|service| service.observe(hostname_policy, store).0).collect()
    }

    /// Returns the StableNames of all files in watched namespaces; of several with the same name, the first.
    fn stable_names(&self, selection: &Selection) -> Vec<Arc<StableName>> {
        let mut seen = HashSet::new();
        let objects = self.by_name.values().flat_map(|file| &file.objects.stable_names);
        let is_used = |object: &&Arc<StableName>| {
            let key = stable_names::key(object);
            selection.watches(key.namespace()) && seen.insert(key)
        };
        objects.filter(is_used).cloned().collect()
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

/// The error of a file or of an object in it.
#[derive(Debug)]
struct FileError {
    error: String,
    /// What isn't used because of the error, if there is no last valid content.
    passed_over: &'static str,
    /// Whether its last valid content is used.
    is_kept: bool,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.error)?;
        match self.is_kept {
            true => f.write_str("its last good content stays in force"),
            false => write!(f, "the {} is passed over", self.passed_over),
        }
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

/// Returns the YAML documents of a file. Spellings of infinity and NaN are decoded as strings, because kubectl reads
/// some of them, such as `Infinity`, as strings.
fn documents<'a>(
    content: &'a mut &[u8],
) -> impl Iterator<Item = Result<Spanned<Node>, serde_saphyr::Error>> + 'a {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_reader_input_bytes: None },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
    };
    serde_saphyr::read_with_options(content, options)
}

/// Returns the objects of a file with YAML documents, or with JSON, which is a subset of YAML.
///
/// # Errors
/// If the file isn't YAML: a sentence that begins with file, line and column.
pub fn parse(path: &Path, mut content: &[u8]) -> Result<Objects, String> {
    let text = std::str::from_utf8(content).map_err(|error| {
        let line = content[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        format!("{}:{line}:1: this line isn't UTF-8", path.display())
    })?;
    let mut reader = FileReader { content: SourceText::new(text), path, objects: Objects::default() };
    for document in documents(&mut content) {
        let document = document.map_err(|error| located(&path.display().to_string(), &error))?;
        reader.document(&document);
    }
    Ok(reader.objects)
}

/// Collects the objects of the documents of a file.
struct FileReader<'a> {
    content: SourceText<'a>,
    path: &'a Path,
    objects: Objects,
}

impl FileReader<'_> {
    /// Reads a document, which may be a list.
    fn document(&mut self, document: &Spanned<Node>) {
        let (api_version, kind) = (document.value.text("apiVersion"), document.value.text("kind"));
        let (Some(api_version), Some(kind)) = (api_version, kind) else {
            let missing = if api_version.is_none() { "apiVersion" } else { "kind" };
            let kind = kind.and_then(kind_of);
            let error =
                FieldError { position: place(document), message: format!("this document has no {missing}") };
            return self.refuse(refused_object(&document.value, kind), vec![error]);
        };
        let Some(assumed) = kind_of_items(api_version, kind) else {
            return self.object(document, (api_version, kind));
        };
        match document.value.field("items").map(|items| &items.value) {
            Some(Node::List(items)) => items.iter().for_each(|item| self.object(item, assumed)),
            Some(Node::Scalar(serde_json::Value::Null)) => {}
            _ => self.refuse_list(document, format!("a {kind} has to have items, an array")),
        }
    }

    fn refuse_list(&mut self, list: &Spanned<Node>, message: String) {
        let error = FieldError { position: place(list), message };
        self.refuse(refused_object(&list.value, None), vec![error]);
    }

    /// Reads an object, with the apiVersion and the kind that it has if it doesn't tell.
    fn object(&mut self, object: &Spanned<Node>, assumed: (&str, &str)) {
        let field = |name, assumed| match object.value.field(name) {
            None => Some(assumed),
            Some(_) => object.value.text(name),
        };
        let (api_version, kind) = (field("apiVersion", assumed.0), field("kind", assumed.1));
        if let (Some(api_version), Some(kind)) = (api_version, kind)
            && kind_of_items(api_version, kind).is_some()
        {
            return self.refuse_list(object, format!("a {kind} can't be an item of a list"));
        }
        let of_source =
            api_version.zip(kind).and_then(|(version, kind)| source_objects::kind_of(version, kind));
        let refused = if (api_version, kind) == (Some("v1"), Some(SERVICE)) {
            services::read(&self.content, object).map(|service| self.objects.services.push(service))
        } else if let Some(kind) = of_source {
            let read = source_objects::read(&self.content, object, kind);
            read.map(|object| self.objects.of_sources.push(object))
        } else {
            match stable_names::is_stable_name(api_version, kind) {
                Ok(false) => match misspelled_kind(api_version, kind) {
                    None => return,
                    Some(message) => {
                        let position = object.value.field("kind").map_or_else(|| place(object), place);
                        Err(vec![FieldError { position, message }])
                    }
                },
                Ok(true) => stable_names::read(&self.content, object)
                    .map(|object| self.objects.stable_names.push(Arc::new(object))),
                Err(message) => Err(vec![FieldError { position: place(object), message }]),
            }
        };
        if let Err(errors) = refused {
            self.refuse(refused_object(&object.value, kind.and_then(kind_of)), errors);
        }
    }

    fn refuse(&mut self, object: RefusedObject, errors: Vec<FieldError>) {
        for FieldError { position, message } in errors {
            if self.objects.refused.len() < MAX_ERRORS {
                let (line, column) = (position.line(), position.column());
                self.objects.refused.push(format!("{}:{line}:{column}: {message}", self.path.display()));
                self.objects.refused_at.push(object.clone());
            }
        }
        self.objects.refused_objects.insert(object);
    }
}

/// Returns the apiVersion and the kind that items of a list may omit; `None` if the object isn't a list.
fn kind_of_items<'a>(api_version: &'a str, kind: &str) -> Option<(&'a str, &'static str)> {
    match (api_version, kind.strip_suffix("List")?) {
        ("v1", "" | SERVICE) => Some(("v1", SERVICE)),
        (_, STABLE_NAME) => Some((api_version, STABLE_NAME)),
        (_, item) => Some((api_version, source_objects::kind_of(api_version, item)?.api().1)),
    }
}

fn kind_of(kind: &str) -> Option<&'static str> {
    let of_sources = source_objects::kind_names(None);
    of_sources.into_iter().chain([SERVICE, STABLE_NAME]).find(|known| *known == kind)
}

/// Returns the error for a kind that is a misspelled kind of this apiVersion, or isn't one of lb-linker's own group;
/// `None` for other kinds.
fn misspelled_kind(api_version: Option<&str>, kind: Option<&str>) -> Option<String> {
    let known = match api_version?.split_once('/') {
        None if api_version == Some("v1") => vec![SERVICE],
        Some((group, _)) if group == StableName::group(&()) => vec![STABLE_NAME],
        _ => source_objects::kind_names(api_version),
    };
    let kind = kind.filter(|kind| !OTHER_ROUTES.contains(kind))?;
    match meant(kind, &known) {
        Some(meant) => Some(format!("kind {} is unknown; did you mean {meant}?", value(kind))),
        None => known
            .contains(&STABLE_NAME)
            .then(|| format!("kind {} is unknown; there is {STABLE_NAME}", value(kind))),
    }
}

/// Returns the known word of which `word` is a misspelling; `None` if there is none.
fn meant<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    /// The maximum number of wrong, missing, extra and transposed letters.
    const MAX_TYPOS: usize = 2;
    let typos = |known: &str| strsim::osa_distance(&known.to_ascii_lowercase(), &word.to_ascii_lowercase());
    let closest = known.iter().copied().min_by_key(|known| typos(known))?;
    (closest.len().abs_diff(word.len()) <= MAX_TYPOS && typos(closest) <= MAX_TYPOS).then_some(closest)
}

/// Returns what a refused object tells of itself. Its namespace may be absent because the field is misspelled.
fn refused_object(object: &Node, kind: Option<&'static str>) -> RefusedObject {
    let metadata = &object.field("metadata")?.value;
    // An invalid name may be a misspelled one.
    let name = metadata.text("name").filter(|name| names::is_label(name))?;
    let namespace = metadata.text("namespace").filter(|namespace| names::is_label(namespace));
    Some((kind, namespace.map(ToOwned::to_owned), name.to_owned()))
}

#[cfg(test)]
mod tests;
