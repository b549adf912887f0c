//! A data directory that is removed when its process ends, at the latest when the next data directory is created.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::{Builder, TempDir};

const PREFIX: &str = "lb-linker-control-plane-";
const LOCK: &str = "lock";

/// A directory in the system's temporary directory, readable only by this user.
#[derive(Debug)]
pub struct DataDir {
    directory: TempDir,
    _lock: File,
}

impl DataDir {
    /// Creates a directory, and removes the directories of processes that were killed or interrupted.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn create() -> io::Result<Self> {
        remove_abandoned();
        // The directory will contain tokens.
        let private = Permissions::from_mode(0o700);
        let directory = Builder::new().prefix(PREFIX).permissions(private).tempdir()?;
        // The lock file gets its name after it is locked, so that no other process finds it unlocked.
        let unnamed = directory.path().join("lock.new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(&unnamed, directory.path().join(LOCK))?;
        Ok(Self { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes the directory, for instances that are never dropped.
    pub fn remove(&self) {
        // If this fails, `remove_abandoned` removes the directory later.
        let _ = fs::remove_dir_all(self.path());
    }
}

fn remove_abandoned() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Directories of other users can't be opened.
        let lock = File::open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
