//! A data directory that goes with its user: at the latest when the next one is made.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::{Builder, TempDir};

const PREFIX: &str = "lb-linker-control-plane-";
const LOCK: &str = "lock";

/// A directory below the system's temporary one, for this user's eyes only.
#[derive(Debug)]
pub struct DataDir {
    directory: TempDir,
    _lock: File,
}

impl DataDir {
    /// Makes one, and removes those whose user was killed or interrupted before it could.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create() -> io::Result<Self> {
        remove_abandoned();
        // It will hold tokens.
        let private = Permissions::from_mode(0o700);
        let directory = Builder::new().prefix(PREFIX).permissions(private).tempdir()?;
        // It gets its name once it is locked, so that nobody finds it unlocked while we live.
        let unnamed = directory.path().join("lock.new");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(&unnamed, directory.path().join(LOCK))?;
        Ok(Self { directory, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Removes it, for those that are never dropped.
    pub fn remove(&self) {
        // What stays is for `remove_abandoned`.
        let _ = fs::remove_dir_all(self.path());
    }
}

fn remove_abandoned() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Other users' can't be opened.
        let lock = File::open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
