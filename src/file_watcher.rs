//! Watches the files of a directory for changes.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Quiet time after which changed files are read: editors and ConfigMap mounts touch a file several times for one
/// change.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Maximum time to wait for the quiet time.
const MAX_DEBOUNCE: Duration = Duration::from_millis(500);

/// Interval of checks whether the path still is the same directory.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The reason why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory, or a file in it, can't be read or written.
    #[error("{}: {}", path.display(), explain(source))]
    Io {
        /// The directory or file.
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: can't be watched for changes: {}", path.display(), explain_watch(source))]
    Watch {
        /// The directory.
        path: PathBuf,
        source: notify::Error,
    },
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        // The latter is the answer to the creation of a directory.
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => "it isn't a directory".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns the reason without the path, which notify's own text repeats.
fn explain_watch(error: &notify::Error) -> String {
    match &error.kind {
        notify::ErrorKind::Io(error) => explain(error),
        notify::ErrorKind::PathNotFound => "it doesn't exist".to_owned(),
        notify::ErrorKind::MaxFilesWatch => {
            "the limit of watched files is reached: raise the sysctl fs.inotify.max_user_watches".to_owned()
        }
        _ => error.to_string(),
    }
}

impl DirectoryError {
    /// Returns a closure that adds `path` to an error of the operating system.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }
}

/// Returns a stream that yields once at the start and once after each burst of changes in `directory`. The stream ends
/// when the directory is removed or replaced.
///
/// # Errors
/// If the directory doesn't exist or can't be watched.
pub fn changes(directory: &Path) -> Result<impl Stream<Item = ()> + Send + use<>, DirectoryError> {
    // Events contain absolute paths.
    let directory = std::path::absolute(directory).map_err(DirectoryError::at(directory))?;
    // A single pending notice is enough: each notice causes a read of all files.
    let (sender, receiver) = mpsc::channel(1);
    let failed = |source| DirectoryError::Watch { path: directory.clone(), source };
    let watched = directory.clone();
    let replaced = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&replaced);
    let mut watcher: RecommendedWatcher =
        notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else {
                let _ = sender.try_send(());
                return;
            };
            if event.paths.contains(&watched) && (event.kind.is_remove() || is_rename(event.kind)) {
                flag.store(true, Ordering::Relaxed);
            }
            if !event.kind.is_access() {
                let _ = sender.try_send(());
            }
        })
        .map_err(failed)?;
    watcher.watch(&directory, RecursiveMode::NonRecursive).map_err(failed)?;
    let watched =
        FileWatcher { inode: inode(&directory), path: directory, replaced, watcher, notices: receiver };
    let later = futures::stream::unfold(watched, |mut watched| async move {
        // A symbolic link to a directory can be changed without a notice.
        while timeout(POLL_INTERVAL, watched.notices.recv()).await.is_err() {
            if watched.is_elsewhere() {
                return None;
            }
        }
        let settled = async { while let Ok(Some(())) = timeout(DEBOUNCE, watched.notices.recv()).await {} };
        // Read the files even if changes never pause.
        let _ = timeout(MAX_DEBOUNCE, settled).await;
        (!watched.is_elsewhere()).then_some(((), watched))
    });
    Ok(futures::stream::once(std::future::ready(())).chain(later))
}

fn is_rename(kind: EventKind) -> bool {
    matches!(kind, EventKind::Modify(ModifyKind::Name(_)))
}

struct FileWatcher {
    path: PathBuf,
    inode: Option<(u64, u64)>,
    /// Whether the directory was removed or renamed: its successor may have the same inode.
    replaced: Arc<AtomicBool>,
    /// Must live as long as `notices` is used.
    #[expect(dead_code, reason = "dropping it ends the watch")]
    watcher: RecommendedWatcher,
    notices: mpsc::Receiver<()>,
}

impl FileWatcher {
    /// Returns whether the path isn't the watched directory any more.
    fn is_elsewhere(&self) -> bool {
        self.replaced.load(Ordering::Relaxed) || inode(&self.path) != self.inode
    }
}

/// Returns the device and inode of a directory: the watch is on the inode, not on the path.
fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directory_is_named_once_with_its_reason() {
        let error = changes(Path::new("/nonexistent/manifests")).err().unwrap().to_string();
        assert_eq!(error, "/nonexistent/manifests: can't be watched for changes: it doesn't exist");
    }

    #[tokio::test]
    async fn recreated_directory_ends_the_stream() {
        // A path as a user types it: relative to the working directory.
        let parent = tempfile::tempdir_in(".").unwrap();
        let directory = Path::new(".").join(parent.path().file_name().unwrap()).join("watched");
        std::fs::create_dir(&directory).unwrap();
        let mut changes = Box::pin(changes(&directory).unwrap());
        assert_eq!(changes.next().await, Some(()));
        std::fs::write(directory.join("file"), "text").unwrap();
        assert_eq!(changes.next().await, Some(()));
        std::fs::remove_dir_all(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(changes.next().await, None);
    }
}
