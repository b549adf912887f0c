//! External targets as YAML files, for use without a cluster.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use tracing::warn;

use super::desired::{FIELD_MANAGER, Write, labelled_for};
use super::directory::{DirectoryError, changes};
use super::service::Service;
use super::writer::{ObjectEvent, WriteError};

/// The ending of the files' names.
const EXTENSION: &str = "yaml";

/// A directory with one file for each external target. Files without lb-linker's labels belong to
/// somebody else.
#[derive(Clone, Debug)]
pub struct OutputDirectory {
    path: PathBuf,
}

impl OutputDirectory {
    /// Returns the directory at `path`, made if it isn't there.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn open(path: PathBuf) -> Result<Self, DirectoryError> {
        std::fs::create_dir_all(&path).map_err(DirectoryError::at(&path))?;
        Ok(Self { path })
    }

    /// Returns the path of the file for an object.
    #[must_use]
    pub fn file(&self, object: &str) -> PathBuf {
        self.path.join(format!("{object}.{EXTENSION}"))
    }

    /// Follows the files; each event is a complete list.
    pub fn events(&self) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        let directory = self.clone();
        let changes = changes(&self.path).map_err(|error| warn!("{error}")).ok();
        futures::stream::iter(changes).flatten().filter_map(move |()| {
            let list = directory.list().map_err(|error| warn!("{error}")).ok();
            std::future::ready(list.map(ObjectEvent::Listed))
        })
    }

    fn list(&self) -> Result<Vec<Service>, DirectoryError> {
        let mut objects = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(DirectoryError::at(&self.path))? {
            let path = entry.map_err(DirectoryError::at(&self.path))?.path();
            if path.extension().is_some_and(|end| end == EXTENSION) {
                objects.extend(read(&path));
            }
        }
        Ok(objects)
    }

    /// Carries out one write. Returns the object as it is afterwards, or nothing if it is gone.
    ///
    /// # Errors
    /// If the file has changed hands meanwhile, or can't be written.
    pub async fn write(&self, write: Write) -> Result<Option<Service>, WriteError> {
        let directory = self.clone();
        let done = tokio::task::spawn_blocking(move || directory.write_blocking(&write));
        done.await
            .unwrap_or_else(|error| Err(WriteError::Other { message: error.to_string(), retry_after: None }))
    }

    fn write_blocking(&self, write: &Write) -> Result<Option<Service>, WriteError> {
        let path = self.file(write.object());
        let there = read(&path);
        match write {
            Write::Create(_) if there.is_some() => return Err(WriteError::Conflict),
            Write::Change { .. } | Write::Delete { .. }
                if there.as_ref().and_then(labelled_for).is_none() =>
            {
                return Err(WriteError::Conflict);
            }
            _ => {}
        }
        let failed = |error: std::io::Error| WriteError::Other {
            message: format!("{}: {error}", path.display()),
            retry_after: None,
        };
        match write {
            Write::Create(desired) | Write::Change { desired, .. } => {
                let text = serde_saphyr::to_string(&desired).map_err(|error| WriteError::Other {
                    message: format!("{}: {error}", path.display()),
                    retry_after: None,
                })?;
                // Readers see the old file or the new one, never half of one.
                let partial = self.path.join(format!(".{}.partial", write.object()));
                std::fs::write(&partial, text).map_err(failed)?;
                std::fs::rename(&partial, &path).map_err(failed)?;
                Ok(read(&path))
            }
            Write::Delete { .. } => {
                std::fs::remove_file(&path).map_err(failed)?;
                Ok(None)
            }
        }
    }
}

/// Returns the object in a file, named after the file. What isn't a Service of ours is an object
/// without labels: there, but somebody else's.
fn read(path: &Path) -> Option<Service> {
    let name = path.file_stem()?.to_str()?.to_owned();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(_) => String::new(),
    };
    let mut service: Service = serde_saphyr::from_str(&text).unwrap_or_default();
    service.metadata.name = Some(name);
    if labelled_for(&service).is_some() {
        // Who labels a file for us gives it to us.
        service.metadata.managed_fields =
            Some(vec![ManagedFieldsEntry { manager: Some(FIELD_MANAGER.into()), ..Default::default() }]);
    }
    Some(service)
}
