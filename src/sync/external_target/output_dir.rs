use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use nix::unistd::{AccessFlags, access};
use serde_json::Value;
use tokio::task::JoinError;
use tracing::warn;

use super::backend::ObjectEvent;
use super::decision::Write;
use super::desired::link_of_labels;
use super::observed_object::ObservedObject;
use crate::file_watcher::{DirectoryError, changes};
use crate::sync::controller::write_error::WriteError;
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::labels::FIELD_MANAGER;
use crate::sync::k8s::object::{Object, ObjectKind};
use crate::sync::k8s::service::Service;

const EXTENSION: &str = "yaml";
/// The extension of a file while it is being written.
const PARTIAL: &str = "lb-linker-partial";
/// The name of the file that is written at the start.
const PROBE: &str = "lb-linker-start";

/// A directory with a file for each external target and each EndpointSlice. Files without lb-linker's labels are
/// foreign.
#[derive(Clone, Debug)]
pub struct OutputDirectory {
    path: PathBuf,
    /// The namespace of the objects in the files.
    namespace: String,
}

impl OutputDirectory {
    /// Returns the directory at `path`, which is created if it doesn't exist.
    ///
    /// # Errors
    /// If the directory can't be created, or no file can be written in it.
    pub fn open(path: PathBuf, namespace: String) -> Result<Self, DirectoryError> {
        let directory = Self { path, namespace };
        directory.prepare()?;
        let probe = directory.path.join(format!(".{PROBE}.{PARTIAL}"));
        std::fs::write(&probe, "").map_err(DirectoryError::at(&directory.path))?;
        std::fs::remove_file(&probe).map_err(DirectoryError::at(&probe))?;
        Ok(directory)
    }

    /// Creates the directory, and removes partial files after a crash.
    fn prepare(&self) -> Result<(), DirectoryError> {
        std::fs::create_dir_all(&self.path).map_err(DirectoryError::at(&self.path))?;
        for entry in std::fs::read_dir(&self.path).map_err(DirectoryError::at(&self.path))? {
            let path = entry.map_err(DirectoryError::at(&self.path))?.path();
            if path.extension().is_some_and(|end| end == PARTIAL) {
                std::fs::remove_file(&path).map_err(DirectoryError::at(&path))?;
            }
        }
        Ok(())
    }

    /// Returns the path of the file for an object. Objects of different kinds have different names.
    #[must_use]
    pub fn file(&self, object: &str) -> PathBuf {
        self.path.join(format!("{object}.{EXTENSION}"))
    }

    /// Watches the files: yields complete lists of both kinds at the start and after each change. Ends when the
    /// directory can't be watched or read any more.
    pub fn events(&self) -> impl Stream<Item = ObjectEvent> + Send + use<> {
        let directory = self.clone();
        let changes = self.prepare().and_then(|()| changes(&self.path));
        let changes = changes.map_err(|error| warn!("{error}")).ok();
        let path = self.path.clone();
        let end = async move { warn!("{}: the directory was removed or replaced", path.display()) };
        let end = futures::stream::once(end).filter(|()| std::future::ready(false));
        let changes = changes.map(|changes| changes.chain(end));
        // A file system that doesn't answer must not delay other tasks.
        let lists = futures::stream::iter(changes).flatten().then(move |()| {
            let directory = directory.clone();
            tokio::task::spawn_blocking(move || directory.list())
        });
        let to_events = |list: Result<Result<_, DirectoryError>, JoinError>| match list {
            Ok(list) => list.map_err(|error| warn!("{error}")).ok(),
            Err(error) => {
                warn!("{error}");
                None
            }
        };
        lists.scan((), move |(), list| std::future::ready(to_events(list))).flat_map(
            |objects: Vec<ObservedObject>| {
                let (services, slices) =
                    objects.into_iter().partition(|object| object.id.kind == ObjectKind::Service);
                futures::stream::iter([
                    ObjectEvent::Listed(ObjectKind::Service, services),
                    ObjectEvent::Listed(ObjectKind::EndpointSlice, slices),
                ])
            },
        )
    }

    fn list(&self) -> Result<Vec<ObservedObject>, DirectoryError> {
        let mut objects = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(DirectoryError::at(&self.path))? {
            let path = entry.map_err(DirectoryError::at(&self.path))?.path();
            if path.extension().is_some_and(|end| end == EXTENSION) {
                objects.extend(read(&path).map(|object| ObservedObject::of(&object)));
            }
        }
        Ok(objects)
    }

    /// Makes a write. Returns the object afterwards, or `None` if it is gone.
    ///
    /// # Errors
    /// If a file to create exists, a file to change or remove isn't ours, or the file can't be written.
    pub async fn write(&self, write: Write) -> Result<Option<Object>, WriteError> {
        let directory = self.clone();
        let done = tokio::task::spawn_blocking(move || directory.write_blocking(&write));
        done.await
            .unwrap_or_else(|error| Err(WriteError::Other { message: error.to_string(), retry_after: None }))
    }

    fn write_blocking(&self, write: &Write) -> Result<Option<Object>, WriteError> {
        let name = write.id().name;
        let path = self.file(&name);
        let there = read(&path);
        let ours = there.as_ref().is_some_and(|object| link_of_labels(object.meta()).is_some());
        let as_expected = match write {
            Write::Create(_) => there.is_none(),
            Write::Change { .. } | Write::Delete { .. } => ours,
            // No finalizers, because manifests are read-only; no annotations, because files belong to no instance.
            Write::Annotate { .. } | Write::Finalizer { .. } => return Ok(None),
        };
        if !as_expected {
            return Err(WriteError::Conflict);
        }
        let failed = |error: &dyn std::error::Error| WriteError::Other {
            message: format!("{}: {error}", path.display()),
            retry_after: None,
        };
        match write {
            Write::Create(desired) | Write::Change { desired, .. } => {
                let mut desired = desired.clone();
                desired.meta_mut().namespace = Some(self.namespace.clone());
                let text = serde_saphyr::to_string(&desired).map_err(|error| failed(&error))?;
                // Readers see the old file or the new one, never a partial file.
                let partial = self.path.join(format!(".{name}.{PARTIAL}"));
                std::fs::write(&partial, text).map_err(|error| failed(&error))?;
                std::fs::rename(&partial, &path).map_err(|error| failed(&error))?;
                Ok(read(&path))
            }
            Write::Delete { .. } | Write::Annotate { .. } | Write::Finalizer { .. } => {
                std::fs::remove_file(&path).map_err(|error| failed(&error))?;
                Ok(None)
            }
        }
    }
}

/// Checks without writing whether [`OutputDirectory::open`] can use or create a directory.
///
/// # Errors
/// If it can't.
pub fn check(path: &Path) -> Result<(), DirectoryError> {
    let absolute = std::path::absolute(path).map_err(DirectoryError::at(path))?;
    // The directories that don't exist are created in this one.
    let present =
        absolute.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()).unwrap_or(&absolute);
    if present == absolute {
        std::fs::read_dir(present).map_err(DirectoryError::at(present))?;
    }
    // The dot makes a file an error. A parent directory is never read.
    access(&present.join("."), AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|error| DirectoryError::at(present)(error.into()))
}

/// Returns the object in a file, named after the file. A foreign file becomes a Service without labels, which occupies
/// its name and is left alone.
fn read(path: &Path) -> Option<Object> {
    let name = path.file_stem()?.to_str()?.to_owned();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(_) => String::new(),
    };
    let adopt = |metadata: &mut ObjectMeta| {
        metadata.name = Some(name);
        if link_of_labels(metadata).is_some() {
            // A file with our labels is ours.
            metadata.managed_fields =
                Some(vec![ManagedFieldsEntry { manager: Some(FIELD_MANAGER.into()), ..Default::default() }]);
        }
    };
    // Decoding YAML once, to a value, keeps the program small.
    let file: Value = serde_saphyr::from_str(&text).unwrap_or_default();
    // Each of the two types would also accept the other one.
    if file["kind"] == ObjectKind::EndpointSlice.to_string()
        && let Ok(mut slice) = serde_json::from_value::<EndpointSlice>(file.clone())
    {
        adopt(&mut slice.metadata);
        return Some(slice.into());
    }
    let service: Service = serde_json::from_value(file).unwrap_or_default();
    // A file without our labels isn't an external target, whatever its contents.
    let mut service = if link_of_labels(&service.metadata).is_some() { service } else { Service::default() };
    adopt(&mut service.metadata);
    Some(service.into())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use nix::unistd::{Uid, setfsuid};

    use super::*;

    #[test]
    fn check_refuses_what_open_refuses_and_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("out")] {
            for error in [check(&path), OutputDirectory::open(path.clone(), String::new()).map(drop)] {
                let error = error.unwrap_err().to_string();
                assert!(error.ends_with(": it isn't a directory"), "{error}");
            }
        }
        let new = directory.path().join("a/b");
        check(&new).unwrap();
        assert!(!directory.path().join("a").exists());
        OutputDirectory::open(new.clone(), String::new()).unwrap();
        check(&new).unwrap();
    }

    #[test]
    fn unreadable_parent_is_no_error() {
        let parent = tempfile::tempdir().unwrap();
        let set_mode = |mode| std::fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
        set_mode(0o333);
        let new = parent.path().join("out");
        let opened = std::thread::spawn(move || {
            // Of this thread alone; root could read the parent.
            setfsuid(Uid::from_raw(65534));
            check(&new).and_then(|()| OutputDirectory::open(new, String::new()))
        });
        let opened = opened.join().unwrap();
        set_mode(0o700);
        assert!(opened.is_ok(), "{opened:?}");
    }
}
