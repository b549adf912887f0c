//! The manifests that lb-linker reads, and the external targets that lb-linker writes.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::screen::Row;

/// The initial manifests of the demo.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/manifests");

/// The label that ties an EndpointSlice to its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A LoadBalancer Service of a manifest.
#[derive(Clone, Debug)]
pub struct LoadBalancer {
    pub file: PathBuf,
    pub namespace: String,
    pub name: String,
    /// The hostnames and addresses of its status.
    pub ingress: Vec<Ingress>,
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Deserialize)]
pub struct Ingress {
    pub hostname: Option<String>,
    pub ip: Option<String>,
}

/// A Service, a List of Services, or an EndpointSlice.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    kind: String,
    endpoints: Vec<Endpoint>,
    metadata: Metadata,
    spec: Spec,
    status: Status,
    items: Vec<Object>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    addresses: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    r#type: String,
    external_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    load_balancer: LoadBalancerStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadBalancerStatus {
    ingress: Vec<Ingress>,
}

impl LoadBalancer {
    pub fn hostname(&self) -> Option<&str> {
        self.ingress.iter().find_map(|entry| entry.hostname.as_deref())
    }

    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.ingress.iter().filter_map(|entry| entry.ip.as_deref())
    }
}

/// Copies the examples to `directory`.
///
/// # Errors
/// If a file can't be read or written.
pub fn copy_examples(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    for entry in fs::read_dir(EXAMPLES)? {
        let entry = entry?;
        fs::copy(entry.path(), directory.join(entry.file_name()))?;
    }
    Ok(())
}

/// Returns the load balancers of all manifests in `directory`, by file.
///
/// # Errors
/// If a file can't be read or parsed.
pub fn load_balancers(directory: &Path) -> Result<Vec<LoadBalancer>, Box<dyn Error>> {
    let mut found = Vec::new();
    for file in files(directory)? {
        let object = read(&file)?;
        let services = if object.items.is_empty() { vec![object] } else { object.items };
        found.extend(services.into_iter().filter(|service| service.spec.r#type == "LoadBalancer").map(
            |service| LoadBalancer {
                file: file.clone(),
                namespace: service.metadata.namespace,
                name: service.metadata.name,
                ingress: service.status.load_balancer.ingress,
            },
        ));
    }
    Ok(found)
}

/// Replaces `old` by `new` in a file. Readers see either the old or the new file.
///
/// # Errors
/// If the file doesn't contain `old`, or can't be read or written.
pub fn replace(file: &Path, old: &str, new: &str) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(file)?;
    if !text.contains(old) {
        return Err(format!("{}: there is no {old} in it", file.display()).into());
    }
    let partial = file.with_extension("partial");
    fs::write(&partial, text.replace(old, new))?;
    Ok(fs::rename(partial, file)?)
}

/// Returns the external targets in `directory`, by name: each with its `spec.externalName`, or with the addresses of
/// its EndpointSlices.
///
/// # Errors
/// If a file can't be read or parsed.
pub fn external_targets(directory: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut objects = Vec::new();
    for file in files(directory)? {
        match read(&file) {
            Ok(object) => objects.push(object),
            // The file was removed after the directory was listed.
            Err(_) if !file.exists() => {}
            Err(error) => return Err(error),
        }
    }
    let (slices, services): (Vec<Object>, Vec<Object>) =
        objects.into_iter().partition(|object| object.kind == "EndpointSlice");
    let leads_to = |service: &Object| {
        if !service.spec.external_name.is_empty() {
            return vec![service.spec.external_name.clone()];
        }
        let behind = slices
            .iter()
            .filter(|slice| slice.metadata.labels.get(SERVICE_NAME) == Some(&service.metadata.name));
        behind.flat_map(|slice| &slice.endpoints).flat_map(|endpoint| endpoint.addresses.clone()).collect()
    };
    Ok(services.iter().map(|service| (service.metadata.name.clone(), leads_to(service))).collect())
}

/// Returns the files of a directory that aren't hidden, sorted by name; none if the directory doesn't exist.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|file| file.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')));
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Object, Box<dyn Error>> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(serde_saphyr::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?)
}
