//! Copies of zones on disk, for a start without the primary servers. A copy has the messages of the transfer.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hickory_proto::rr::Name;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use super::source::Source;
use crate::dns::message::query::whole_wire_name;
use crate::dns::zone::Zone;
use crate::dns::zone::memory::ZoneMemory;
use crate::dns::zone::received::{TransferError, TransferReader};
use crate::model::names;
use crate::snapshot::file::{NewFile, open};

/// What a copy begins with. After it stand the source, and the time of the last check, which the checksum leaves out.
const HEAD: &[u8; 17] = b"lb-linker zone 2\n";
/// Where the time of the last check stands.
const CHECKED_AT: u64 = (HEAD.len() + Source::SIZE) as u64;
/// The maximum length of the origin in the name of a file, in characters.
const MAX_NAME: usize = 150;
/// The number of digits of the hash in the name of a file.
const DIGITS: usize = 16;

/// Why a copy can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is cut")]
    Cut,
    #[error("it isn't a copy of a zone that this version can read")]
    Head,
    #[error("it is of other primary servers")]
    Source,
    #[error("its checksum doesn't match its content")]
    Checksum,
    #[error("{0}")]
    Content(#[from] TransferError),
}

/// The place of a zone's copy.
#[derive(Clone, Debug)]
pub(super) struct SavedZone {
    path: PathBuf,
    source: Source,
    /// Held while a copy is written.
    writing: Arc<Mutex<()>>,
}

/// What a copy has.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) zone: Zone,
    /// The time since the last check.
    pub(super) age: Duration,
    /// Whether the last check seems to lie in the future, as after the clock was set back.
    pub(super) is_of_future: bool,
    /// The source of the zone: it may be of the primary servers before a change.
    pub(super) content: Source,
}

/// A copy that is being written.
#[derive(Debug)]
pub(super) struct NewCopy {
    file: NewFile,
    hash: Sha256,
    /// The first error.
    written: io::Result<()>,
    _guard: OwnedMutexGuard<()>,
}

impl SavedZone {
    pub(super) fn new(directory: &Path, origin: &Name, source: Source) -> Self {
        Self { path: directory.join(file_name(origin, None)), source, writing: Arc::default() }
    }

    /// Returns the place for a zone with these listeners and this view, if another block's zone has the usual place.
    pub(super) fn beside(directory: &Path, origin: &Name, source: Source) -> Self {
        Self { path: directory.join(file_name(origin, Some(source))), source, writing: Arc::default() }
    }

    /// Returns the same place, for a zone with another source.
    pub(super) fn of_source(&self, source: Source) -> Self {
        Self { source, ..self.clone() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the source of the copy, and the time of its last check; `None` if there is no copy. Blocks.
    pub(super) fn content(&self) -> Result<Option<(Source, u64)>, CopyError> {
        open(&self.path)?.map(|mut file| read_head(&mut file)).transpose()
    }

    /// Returns whether the copy at another place was checked later, and is of the servers of this zone. Blocks.
    pub(super) fn is_outdated_by(&self, other: &Self) -> bool {
        let (Ok(Some((_, own))), Ok(Some((source, checked)))) = (self.content(), other.content()) else {
            return false;
        };
        checked > own && source.has_same_servers(&self.source)
    }

    /// Reads the copy; `None` if there is none. Blocks.
    pub(super) fn read(
        &self,
        origin: &Name,
        now: SystemTime,
        memory: ZoneMemory,
    ) -> Result<Option<Copy>, CopyError> {
        let Some(file) = open(&self.path)? else { return Ok(None) };
        let mut file = BufReader::new(file);
        let (content, checked) = read_head(&mut file)?;
        let mut reader = TransferReader::new(&whole_wire_name(origin), None, memory);
        let mut hash = Sha256::new_with_prefix(HEAD);
        hash.update(content.to_bytes());
        let mut message = Vec::new();
        loop {
            let mut length = [0; 2];
            read_whole(&mut file, &mut length)?;
            hash.update(length);
            if length == [0; 2] {
                break;
            }
            message.resize(u16::from_be_bytes(length).into(), 0);
            read_whole(&mut file, &mut message)?;
            hash.update(&message);
            reader.read(&message)?;
        }
        let mut sum = [0; 32];
        read_whole(&mut file, &mut sum)?;
        if *hash.finalize() != sum {
            return Err(CopyError::Checksum);
        }
        let checked = UNIX_EPOCH.checked_add(Duration::from_secs(checked));
        let age = checked.and_then(|checked| now.duration_since(checked).ok());
        let (age, is_of_future) = (age.unwrap_or_default(), age.is_none());
        Ok(Some(Copy { zone: reader.finish()?, age, is_of_future, content }))
    }

    /// Keeps the copy at another place here, too, if it is of the same servers. Blocks.
    pub(super) fn share(&self, other: &Self) -> io::Result<()> {
        let is_own =
            |place: &Self| matches!(place.content(), Ok(Some((it, _))) if it.has_same_servers(&self.source));
        if is_own(other) {
            fs::hard_link(&other.path, &self.path)?;
            // The copy may have been replaced meanwhile.
            if !is_own(self) {
                fs::remove_file(&self.path)?;
            }
        }
        Ok(())
    }

    /// Begins a copy, which takes the place of the one before when it is complete. Waits for one that is being written.
    pub(super) async fn begin(&self) -> io::Result<NewCopy> {
        let guard = Arc::clone(&self.writing).lock_owned().await;
        let saved = self.clone();
        spawn_blocking(move || saved.create(guard)).await?
    }

    fn create(&self, guard: OwnedMutexGuard<()>) -> io::Result<NewCopy> {
        if let Some(directory) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = NewFile::create(&self.path)?;
        let mut copy = NewCopy { file, hash: Sha256::new(), written: Ok(()), _guard: guard };
        copy.write(HEAD);
        copy.write(&self.source.to_bytes());
        copy.written = copy.written.and_then(|()| copy.file.file().write_all(&[0; 8]));
        Ok(copy)
    }

    /// Notes in the copy that the zone was checked. Blocks.
    ///
    /// # Errors
    /// Also if the file isn't a copy of this zone.
    pub(super) fn confirm(&self, checked: SystemTime) -> Result<(), CopyError> {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path)?;
        if !read_head(&mut file)?.0.has_same_servers(&self.source) {
            return Err(CopyError::Source);
        }
        Ok(file.write_all_at(&seconds(checked), CHECKED_AT)?)
    }
}

impl NewCopy {
    /// Adds a message.
    pub(super) fn add(&mut self, message: &[u8]) {
        let length = u16::try_from(message.len()).unwrap_or_default().to_be_bytes();
        self.write(&[&length[..], message].concat());
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.written.is_ok() {
            self.hash.update(bytes);
            self.written = self.file.file().write_all(bytes);
        }
    }

    /// Completes the copy. Blocks.
    pub(super) fn finish(mut self, checked: SystemTime) -> io::Result<()> {
        self.write(&[0; 2]);
        self.written?;
        let file = self.file.file();
        file.write_all(&self.hash.finalize())?;
        file.write_all_at(&seconds(checked), CHECKED_AT)?;
        self.file.replace()
    }
}

/// Reads the source, and the time of the last check in seconds.
fn read_head(file: &mut impl Read) -> Result<(Source, u64), CopyError> {
    let (mut head, mut source, mut checked) = ([0; HEAD.len()], [0; Source::SIZE], [0; 8]);
    let parts: [&mut [u8]; 3] = [&mut head, &mut source, &mut checked];
    parts.into_iter().try_for_each(|part| file.read_exact(part)).map_err(|_| CopyError::Head)?;
    let read = (Source::of_bytes(&source), u64::from_be_bytes(checked));
    if head == *HEAD { Ok(read) } else { Err(CopyError::Head) }
}

fn read_whole(from: &mut impl Read, to: &mut [u8]) -> Result<(), CopyError> {
    from.read_exact(to).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => CopyError::Cut,
        _ => error.into(),
    })
}

fn seconds(time: SystemTime) -> [u8; 8] {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().to_be_bytes()
}

/// Returns the name of the file for a zone; with a source, the name for its listeners and view alone. Octets other than
/// letters, digits, `-` and `_` are escaped, so that the name leads into no other directory.
fn file_name(origin: &Name, source: Option<Source>) -> String {
    let mut text = String::new();
    for label in origin.iter() {
        if !text.is_empty() {
            text.push('.');
        }
        for byte in label.to_ascii_lowercase() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => text.push(byte.into()),
                other => text.push_str(&format!("%{other:02x}")),
            }
        }
    }
    let listeners = source.as_ref().map_or(&[][..], Source::listeners);
    let hash = names::hash_of([text.as_bytes(), listeners].concat());
    text.truncate(MAX_NAME);
    format!("{text}-{}.zone", &hash[..DIGITS])
}

#[cfg(test)]
mod tests;
