//! The source of links without a cluster: Services in YAML or JSON files of a directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;
use tracing::{info, warn};

use super::directory::{DirectoryError, changes};
use super::selection::Selection;
use super::service::Service;
use super::trouble::{Complaints, located};
use super::watch::observe;
use super::{SyncError, log_changes};
use crate::metrics::Metrics;
use crate::store::{Observed, ServiceKey, Store};

/// The endings of file names that are read.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// The Services in a directory of manifests.
#[derive(Clone, Debug)]
pub struct ManifestSource {
    /// The directory.
    pub directory: PathBuf,
    /// Which Services become links.
    pub selection: Arc<Selection>,
    /// Where the links go.
    pub store: Arc<Store>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl ManifestSource {
    /// Keeps the store in step with the files.
    ///
    /// # Errors
    /// If the directory can't be read or watched any more.
    pub async fn run(self) -> Result<(), SyncError> {
        let mut changes = Box::pin(changes(&self.directory)?);
        let mut files = Files::default();
        let mut complaints = Complaints::default();
        while changes.next().await.is_some() {
            let directory = self.directory.clone();
            files = tokio::task::spawn_blocking(move || files.read(&directory)).await??;
            for sentence in std::mem::take(&mut files.news) {
                warn!("{sentence}");
            }
            let first = !self.store.is_synced();
            let list = files.services(&self.selection, &mut complaints);
            let number = list.len();
            let changes = self.store.replace(None, list, Vec::new());
            self.store.set_synced();
            if first {
                info!("{number} LoadBalancer Services in {}: ready", self.directory.display());
            }
            log_changes(&self.metrics, changes);
        }
        Err(SyncError::WatchEnded)
    }
}

/// Reads all manifests of a directory once and returns what is wrong with them.
///
/// # Errors
/// If the directory can't be read.
pub fn check(directory: &Path, selection: &Selection) -> Result<(usize, Vec<String>), DirectoryError> {
    let files = Files::default().read(directory)?;
    Ok((files.services(selection, &mut Complaints::default()).len(), files.news))
}

/// The files as they were read last.
#[derive(Debug, Default)]
struct Files {
    by_name: BTreeMap<PathBuf, File>,
    twice: BTreeSet<String>,
    /// What is to be said since the last look.
    news: Vec<String>,
}

/// One file: its bytes as they are now, and the Services of its last good content.
#[derive(Debug, Default)]
struct File {
    content: Vec<u8>,
    services: Vec<Service>,
}

impl Files {
    /// Looks at the directory again. A file that can't be read or understood keeps what it had.
    fn read(mut self, directory: &Path) -> Result<Self, DirectoryError> {
        let mut before = std::mem::take(&mut self.by_name);
        for path in manifest_files(directory)? {
            let mut file = before.remove(&path).unwrap_or_default();
            match std::fs::read(&path) {
                Ok(content) if content == file.content => {}
                Ok(content) => {
                    match parse(&path, &content) {
                        Ok(services) => file.services = services,
                        Err(error) => self.news.push(kept(&error, &file)),
                    }
                    file.content = content;
                }
                // Gone since the directory was listed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => self.news.push(kept(&format!("{}: {error}", path.display()), &file)),
            }
            self.by_name.insert(path, file);
        }
        self.report_twice();
        Ok(self)
    }

    /// The same Service in two files: the first file by name has it.
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
        self.news.extend(twice.difference(&self.twice).cloned());
        self.twice = twice;
    }

    /// Returns the load balancers of all files, each once.
    fn services(&self, selection: &Selection, complaints: &mut Complaints) -> Vec<Observed> {
        let mut seen = BTreeSet::new();
        self.by_name
            .values()
            .flat_map(|file| &file.services)
            .filter(|service| seen.insert(service.key()))
            .filter(|service| selection.selects(service))
            .map(|service| observe(service, complaints))
            .collect()
    }
}

fn kept(what: &str, file: &File) -> String {
    match file.services.len() {
        0 => format!("{what}; the file is passed over"),
        number => format!("{what}; its last good content stays in force ({number} Services)"),
    }
}

fn manifest_files(directory: &Path) -> Result<Vec<PathBuf>, DirectoryError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(DirectoryError::at(directory))? {
        let path = entry.map_err(DirectoryError::at(directory))?.path();
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let known = path.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
        if known && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// One YAML document, whatever it is.
#[derive(Debug, Deserialize)]
struct Head {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// A `List`, whose items may be of any kind: what each is has to be seen before it is decoded.
#[derive(Debug, Deserialize)]
struct List {
    #[serde(default)]
    items: Vec<Spanned<Value>>,
}

impl List {
    /// Returns the Services in it.
    fn services(self, path: &Path) -> Result<Vec<Service>, String> {
        // Items of a ServiceList don't repeat what they are.
        let is = |item: &Value, field, what| item.get(field).is_none_or(|found| found == what);
        self.items
            .into_iter()
            .filter(|item| is(&item.value, "apiVersion", "v1") && is(&item.value, "kind", "Service"))
            .map(|Spanned { value, defined: at, .. }| {
                serde_json::from_value(value).map_err(|error| {
                    format!(
                        "{}:{}:{}: this item of the list: {error}",
                        path.display(),
                        at.line(),
                        at.column()
                    )
                })
            })
            .collect()
    }
}

/// Returns the Services of a file with one or more YAML documents, or with JSON, which is YAML.
///
/// # Errors
/// One sentence that begins with file, line and column.
fn parse(path: &Path, content: &[u8]) -> Result<Vec<Service>, String> {
    let at = |error: serde_saphyr::Error| located(&path.display().to_string(), &error);
    let mut found = Vec::new();
    let mut heads = content;
    let mut services = content;
    let mut lists = content;
    // Three looks at the same documents: what it is decides which look counts.
    let documents = serde_saphyr::read::<_, Head>(&mut heads)
        .zip(serde_saphyr::read::<_, Service>(&mut services))
        .zip(serde_saphyr::read::<_, List>(&mut lists));
    for ((head, service), list) in documents {
        let head = head.map_err(at)?;
        match (head.api_version.as_deref(), head.kind.as_deref()) {
            (Some("v1"), Some("Service")) => found.push(service.map_err(at)?),
            (Some("v1"), Some("List" | "ServiceList")) => {
                found.extend(list.map_err(at)?.services(path)?);
            }
            _ => {}
        }
    }
    if let Some(nameless) = found.iter().position(|service| service.metadata.name.is_none()) {
        return Err(format!(
            "{}: Service {} of this file has no metadata.name",
            path.display(),
            nameless + 1
        ));
    }
    Ok(found)
}
