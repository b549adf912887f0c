//! Reads zone files (RFC 1035 section 5, RFC 2308 section 4), as miekg/dns does: `$ORIGIN`, `$TTL`, `$INCLUDE`,
//! `$GENERATE`.

mod generate;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::rr::{DNSClass, RecordType};

use super::record::{DEFAULT_TTL, Head, data, head};
use super::word::{Entries, Entry, Place, TextError, Word};
use crate::dns::message::presentation::class_text;
use generate::Range;

/// The maximum depth of `$INCLUDE`.
const MAX_DEPTH: usize = 7;
/// The maximum number of files of a zone; an included file counts each time.
const MAX_FILES: usize = 1000;
/// The maximum size of all files of a zone in bytes; an included file counts each time.
const MAX_BYTES: u64 = 256 << 20;
/// The maximum number of records that `$GENERATE` makes in the files of a zone.
const MAX_GENERATED: usize = 1_000_000;
/// The maximum TTL in seconds (RFC 2181 section 8).
pub(super) const MAX_TTL: u32 = i32::MAX as u32;

/// The reason why a zone file can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{} {message}", file.display(), PlaceText(*place))]
pub(in crate::dns) struct ZoneError {
    file: PathBuf,
    place: Option<Place>,
    message: String,
}

struct PlaceText(Option<Place>);

impl fmt::Display for PlaceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Place { line, column }) => write!(f, "{line}:{column}:"),
            None => Ok(()),
        }
    }
}

/// The state of a file that shows a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dns) struct FileVersion {
    path: PathBuf,
    /// Device, inode, size, and the time of the last modification.
    state: (u64, u64, u64, i64, i64),
}

/// A record of a zone file.
#[derive(Debug)]
pub(super) struct FileRecord<'a> {
    /// In wire form, in lower case.
    pub(super) owner: &'a [u8],
    pub(super) rtype: RecordType,
    pub(super) ttl: u32,
    pub(super) data: &'a [u8],
}

/// Reads the files of a zone, and passes their records on.
pub(super) struct Reader<'s> {
    /// Takes a record, or returns the reason why it can't be in the zone.
    take: &'s mut dyn FnMut(FileRecord<'_>) -> Result<(), String>,
    /// The files that were read; empty if one of them couldn't be read.
    pub(super) files: Vec<FileVersion>,
    reads: usize,
    bytes: u64,
    generated: usize,
}

/// What the lines before set.
#[derive(Clone, Debug)]
struct Context {
    /// In wire form.
    origin: Vec<u8>,
    /// The owner of the last record, in wire form.
    owner: Vec<u8>,
    ttl: Option<u32>,
    /// Whether `$TTL` has set the TTL; otherwise the TTL of a record is the default for those after it.
    has_ttl_line: bool,
    depth: usize,
    is_generated: bool,
}

// === impl ZoneError ===

impl ZoneError {
    pub(super) fn of_file(file: &Path, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), place: None, message: message.into() }
    }

    fn at(file: &Path, TextError { place, message }: TextError) -> Self {
        // The message may repeat a part of the file, and is a line of a log.
        let message = message.replace(char::is_control, "?");
        Self { file: file.to_owned(), place: Some(place), message }
    }
}

// === impl FileVersion ===

impl FileVersion {
    fn of(path: &Path, metadata: &std::fs::Metadata) -> Self {
        let (size, seconds, nanos) = (metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        Self { path: path.to_owned(), state: (metadata.dev(), metadata.ino(), size, seconds, nanos) }
    }

    /// Returns whether the file hadn't been written to for some seconds at `now`: it may be in the middle of a copy.
    pub(in crate::dns) fn is_settled(&self, now: SystemTime) -> bool {
        const SETTLED: i64 = 5;
        let (.., modified, _) = self.state;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(modified) >= SETTLED
    }

    /// Returns whether the file at this path is still the same, and unchanged.
    pub(in crate::dns) fn is_current(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| Self::of(&self.path, &metadata) == *self)
    }
}

// === impl Reader ===

impl<'s> Reader<'s> {
    pub(super) fn new(take: &'s mut dyn FnMut(FileRecord<'_>) -> Result<(), String>) -> Self {
        Self { take, files: Vec::new(), reads: 0, bytes: 0, generated: 0 }
    }

    /// Reads a zone file. `origin` is in wire form.
    ///
    /// # Errors
    /// If a file can't be read, or isn't valid.
    pub(super) fn read(&mut self, path: &Path, origin: &[u8]) -> Result<(), ZoneError> {
        let mut context = Context {
            origin: origin.to_owned(),
            owner: Vec::new(),
            ttl: None,
            has_ttl_line: false,
            depth: 0,
            is_generated: false,
        };
        let text = self.content(path).map_err(|message| ZoneError::of_file(path, message))?;
        self.parse(path, &text, &mut context)
    }

    fn content(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let content = self.read_content(path);
        if content.is_err() {
            self.files.clear();
        }
        content
    }

    fn read_content(&mut self, path: &Path) -> Result<Vec<u8>, String> {
        let unreadable = |error: std::io::Error| format!("can't be read: {error}");
        self.reads += 1;
        if self.reads > MAX_FILES {
            return Err(format!("a zone has at most {MAX_FILES} files"));
        }
        let metadata = std::fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "no regular file" };
            return Err(format!("it is {kind}"));
        }
        let mut file = File::open(path).map_err(unreadable)?;
        let before = FileVersion::of(path, &file.metadata().map_err(unreadable)?);
        let room = MAX_BYTES - self.bytes;
        let mut content = Vec::new();
        if metadata.len() <= room {
            file.by_ref().take(room + 1).read_to_end(&mut content).map_err(unreadable)?;
        }
        if metadata.len().max(content.len() as u64) > room {
            return Err(format!("the files of a zone have at most {MAX_BYTES} bytes in all"));
        }
        self.bytes += content.len() as u64;
        if FileVersion::of(path, &file.metadata().map_err(unreadable)?) != before {
            return Err("it changed while it was read".to_owned());
        }
        if !self.files.contains(&before) {
            self.files.push(before);
        }
        Ok(content)
    }

    fn parse(&mut self, path: &Path, text: &[u8], context: &mut Context) -> Result<(), ZoneError> {
        let (mut entries, mut entry) = (Entries::new(text), Entry::default());
        while entries.next(&mut entry).map_err(|error| ZoneError::at(path, error))? {
            let directive =
                entry.words.first().filter(|word| !entry.is_indented && word.text.starts_with(b"$"));
            match directive.map(|word| word.str().to_ascii_uppercase()).as_deref() {
                Some("$INCLUDE") => self.include(path, &entry, context)?,
                Some("$GENERATE") => self.generate(path, &entry, context)?,
                directive => {
                    let done = match directive {
                        Some("$ORIGIN") => set_origin(&entry, context),
                        Some("$TTL") => set_ttl(&entry, context),
                        _ => self.record(&entry, context),
                    };
                    done.map_err(|error| ZoneError::at(path, error))?;
                }
            }
        }
        Ok(())
    }

    fn record(&mut self, entry: &Entry<'_>, context: &mut Context) -> Result<(), TextError> {
        let place = entry.words[0].place;
        let error = |message: String| TextError::new(place, message);
        let words = if entry.is_indented {
            if context.owner.is_empty() {
                return Err(error("no owner precedes this line, which begins with a space".to_owned()));
            }
            &entry.words[..]
        } else {
            context.owner.clear();
            entry.words[0].write_name(&context.origin, &mut context.owner).map_err(error)?;
            context.owner.make_ascii_lowercase();
            &entry.words[1..]
        };
        let (Head { ttl, class, rtype }, rest) = head(place, words)?;
        if let Some(class) = class.filter(|class| *class != DNSClass::IN) {
            return Err(error(format!("the class is {}, and a zone has only class IN", class_text(class))));
        }
        if let Some(ttl) = ttl {
            check_ttl(ttl).map_err(error)?;
            if !context.has_ttl_line {
                context.ttl = Some(ttl);
            }
        }
        let ttl = ttl.or(context.ttl).ok_or_else(|| {
            error("the TTL is missing, and neither $TTL nor a record with a TTL precedes it".to_owned())
        })?;
        let data = data(rtype, place, rest, &context.origin)?;
        (self.take)(FileRecord { owner: &context.owner, rtype, ttl, data: &data }).map_err(error)
    }

    fn include(&mut self, path: &Path, entry: &Entry<'_>, context: &Context) -> Result<(), ZoneError> {
        let place = entry.words[0].place;
        let error = |message: String| ZoneError::at(path, TextError::new(place, message));
        let (name, origin) = match &entry.words[1..] {
            [name] => (name, None),
            [name, origin] => (name, Some(origin)),
            _ => return Err(error("$INCLUDE needs a file, and may have an origin".to_owned())),
        };
        if context.depth == MAX_DEPTH {
            return Err(error(format!("$INCLUDE can be nested at most {MAX_DEPTH} deep")));
        }
        let octets = name.octets().map_err(error)?;
        let name: &Path = Path::new(std::ffi::OsStr::new(
            std::str::from_utf8(&octets).map_err(|_| error("the file's name isn't UTF-8".to_owned()))?,
        ));
        let included = path.parent().unwrap_or(Path::new("")).join(name);
        let mut inner = Context { owner: Vec::new(), depth: context.depth + 1, ..context.clone() };
        if let Some(origin) = origin {
            inner.origin.clear();
            origin.write_name(&context.origin, &mut inner.origin).map_err(error)?;
        }
        let text =
            self.content(&included).map_err(|message| error(format!("{}: {message}", included.display())))?;
        self.parse(&included, &text, &mut inner)
    }

    /// Parses each text that `$GENERATE` makes, at the place of the line.
    fn generate(&mut self, path: &Path, entry: &Entry<'_>, context: &Context) -> Result<(), ZoneError> {
        let place = entry.words[0].place;
        let error = |message: String| ZoneError::at(path, TextError::new(place, message));
        if context.is_generated {
            return Err(error("$GENERATE can't be nested".to_owned()));
        }
        let [_, range, template @ ..] = &entry.words[..] else {
            return Err(error("$GENERATE needs a range such as 1-254, and a record".to_owned()));
        };
        let range = Range::parse(range.str()).map_err(error)?;
        let template = generate::template(template);
        for number in range.numbers() {
            self.generated += 1;
            if self.generated > MAX_GENERATED {
                return Err(error(format!("$GENERATE makes at most {MAX_GENERATED} records in a zone")));
            }
            let text = range.expand(&template, number).map_err(error)?;
            // As in miekg/dns, $TTL doesn't count.
            let mut inner = Context {
                owner: Vec::new(),
                ttl: Some(DEFAULT_TTL),
                has_ttl_line: false,
                is_generated: true,
                ..context.clone()
            };
            self.parse(path, &text, &mut inner).map_err(|problem| {
                // A problem in a file that the line includes has a place of its own.
                if problem.file == path {
                    error(format!("for {number}: {}", problem.message))
                } else {
                    problem
                }
            })?;
        }
        Ok(())
    }
}

fn set_origin(entry: &Entry<'_>, context: &mut Context) -> Result<(), TextError> {
    let word = argument(entry)?;
    let mut origin = Vec::new();
    word.write_name(&context.origin, &mut origin).map_err(|message| TextError::new(word.place, message))?;
    context.origin = origin;
    Ok(())
}

fn set_ttl(entry: &Entry<'_>, context: &mut Context) -> Result<(), TextError> {
    let word = argument(entry)?;
    let error = |message: String| TextError::new(word.place, message);
    let ttl = word.seconds().ok_or_else(|| error(format!("{} is no TTL", word.shown())))?;
    check_ttl(ttl).map_err(error)?;
    (context.ttl, context.has_ttl_line) = (Some(ttl), true);
    Ok(())
}

fn argument<'e, 'a>(entry: &'e Entry<'a>) -> Result<&'e Word<'a>, TextError> {
    match &entry.words[..] {
        [_, word] => Ok(word),
        words => Err(TextError::new(words[0].place, format!("{} needs one word", words[0].str()))),
    }
}

fn check_ttl(ttl: u32) -> Result<(), String> {
    if ttl <= MAX_TTL {
        Ok(())
    } else {
        Err(format!("a TTL of {ttl} seconds; at most {MAX_TTL} are allowed"))
    }
}
