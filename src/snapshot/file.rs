//! The file of a snapshot. All functions block.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};

use super::format::MAX_BYTES;

/// Why the file of `--snapshot` can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("{}: this is a directory; name a file in it", path.display())]
    IsDirectory { path: PathBuf },
    #[error("{}: the directory can't be used; create it, or name another one: {error}", path.display())]
    Directory { path: PathBuf, error: io::Error },
    #[error("{}: it isn't a directory", path.display())]
    NoDirectory { path: PathBuf },
    #[error("{}: files can't be created in it; give the user of lb-linker write access: {error}", path.display())]
    NotWritable { path: PathBuf, error: io::Error },
}

/// Checks whether a snapshot can be written at this path, without writing.
///
/// # Errors
/// If it can't be written.
pub fn check_path(path: &Path) -> Result<(), PathError> {
    if path.file_name().is_none() || fs::symlink_metadata(path).is_ok_and(|it| it.is_dir()) {
        return Err(PathError::IsDirectory { path: path.to_owned() });
    }
    let (directory, path) = (directory_of(path), directory_of(path).to_owned());
    let metadata = match fs::metadata(directory) {
        Ok(metadata) => metadata,
        Err(error) => return Err(PathError::Directory { path, error }),
    };
    if !metadata.is_dir() {
        return Err(PathError::NoDirectory { path });
    }
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|error| PathError::NotWritable { path, error: error.into() })
}

/// Returns the content of the file; `None` if there is no file. Of a file larger than [`MAX_BYTES`] only the first
/// `MAX_BYTES` + 1 bytes are read, which `decode` refuses.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(MAX_BYTES).min(MAX_BYTES);
    let mut bytes = Vec::with_capacity(size + 1);
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Opens a regular file; `None` if there is no file.
pub(crate) fn open(path: &Path) -> io::Result<Option<File>> {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if file.metadata()?.is_file() {
        Ok(Some(file))
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "it isn't a file"))
    }
}

/// Appends `.damaged` to the name of a file, and replaces an earlier file of that name. Returns the new path.
pub(super) fn rename_damaged(path: &Path) -> io::Result<PathBuf> {
    let aside = beside(path, ".damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// A file that is written beside another one, and replaces it atomically: after a crash the file has either the old or
/// the new content. It is removed if it is dropped before.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    is_renamed: bool,
}

impl NewFile {
    /// Creates an empty file, which only its owner can read, for the content of the file at `path`.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let temporary = beside(path, ".tmp");
        // An earlier process may have ended while it wrote this temporary file.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Self { path: path.to_owned(), temporary, file, is_renamed: false })
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Replaces the file at the path. After an error that file is unchanged.
    pub(crate) fn replace(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.is_renamed = true;
        // Without this sync a crash may bring the old content back. Not every file system can sync a directory.
        let _ = File::open(directory_of(&self.path)).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            // An incomplete temporary file would take the space that the next try needs.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Replaces the content of the file, as [`NewFile`] does.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = NewFile::create(path)?;
    new.file().write_all(bytes)?;
    new.replace()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn replaced_file_is_complete_and_only_the_owner_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("links"), directory.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, beside(&path, ".tmp")).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        for content in ["one", "", "another"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(read(&path).unwrap().unwrap(), content.as_bytes());
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        for content in ["old", "new"] {
            fs::write(&path, content).unwrap();
            let aside = rename_damaged(&path).unwrap();
            assert_eq!(fs::read_to_string(aside).unwrap(), content);
        }
    }

    #[test]
    fn failed_write_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links");
        replace(&path, b"old").unwrap();
        // Not even root can remove a directory by unlink.
        fs::create_dir(beside(&path, ".tmp")).unwrap();
        replace(&path, b"new").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn unusable_paths_are_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        check_path(&file).unwrap();
        check_path(Path::new("links")).unwrap();
        for (path, expected) in [
            (directory.path().to_owned(), "this is a directory"),
            (directory.path().join("none/links"), "name another one: No such file"),
            (file.join("links"), "it isn't a directory"),
        ] {
            let error = check_path(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn reading_is_bounded_and_waits_for_no_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().len(), MAX_BYTES + 1);
        read(directory.path()).unwrap_err();
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        read(&pipe).unwrap_err();
    }
}
