//! Databases in MaxMind's format (`.mmdb`), and the labels that they have.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use maxminddb::PathElement::{self, Key};
use maxminddb::{LookupResult, MaxMindDbError, Reader};
use parking_lot::Mutex;
use serde::Deserialize;
use tracing::debug;

/// The maximum size of a database, in bytes: it is kept in memory.
const MAX_FILE: u64 = 512 << 20;
/// An address that every database is asked for when it is opened, as in CoreDNS.
const PROBE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// The types of databases with labels of cities that CoreDNS knows.
const CITY_TYPES: [&str; 19] = [
    "DBIP-City-Lite",
    "DBIP-Country",
    "DBIP-Country-Lite",
    "DBIP-ISP (compat=Enterprise)",
    "DBIP-Location (compat=City)",
    "DBIP-Location-ISP (compat=Enterprise)",
    "GeoIP-City-Redacted-US",
    "GeoIP-Enterprise-Redacted-US",
    "GeoIP2-City",
    "GeoIP2-City-Africa",
    "GeoIP2-City-Asia-Pacific",
    "GeoIP2-City-Europe",
    "GeoIP2-City-North-America",
    "GeoIP2-City-South-America",
    "GeoIP2-Country",
    "GeoIP2-Enterprise",
    "GeoIP2-Precision-City",
    "GeoLite2-City",
    "GeoLite2-Country",
];
/// The types of databases with labels of autonomous systems.
const ASN_TYPES: [&str; 4] =
    ["DBIP-ASN-Lite (compat=GeoLite2-ASN)", "GeoIP2-ISP", "GeoIP2-Precision-ISP", "GeoLite2-ASN"];

/// The labels, without `geoip/`, and where the record of a network has their values.
pub const LABELS: [(&str, Schema, ValueKind, &[PathElement<'static>]); 13] = [
    ("asn/number", Schema::Asn, ValueKind::Number, &[Key("autonomous_system_number")]),
    ("asn/org", Schema::Asn, ValueKind::Text, &[Key("autonomous_system_organization")]),
    ("city/name", Schema::City, ValueKind::Text, &[Key("city"), Key("names"), Key("en")]),
    ("continent/code", Schema::City, ValueKind::Text, &[Key("continent"), Key("code")]),
    ("continent/name", Schema::City, ValueKind::Text, &[Key("continent"), Key("names"), Key("en")]),
    ("country/code", Schema::City, ValueKind::Text, &[Key("country"), Key("iso_code")]),
    (
        "country/is_in_european_union",
        Schema::City,
        ValueKind::Flag,
        &[Key("country"), Key("is_in_european_union")],
    ),
    ("country/name", Schema::City, ValueKind::Text, &[Key("country"), Key("names"), Key("en")]),
    ("latitude", Schema::City, ValueKind::Float, &[Key("location"), Key("latitude")]),
    ("longitude", Schema::City, ValueKind::Float, &[Key("location"), Key("longitude")]),
    ("postalcode", Schema::City, ValueKind::Text, &[Key("postal"), Key("code")]),
    ("subdivisions/code", Schema::City, ValueKind::Codes, &[Key("subdivisions")]),
    ("timezone", Schema::City, ValueKind::Text, &[Key("location"), Key("time_zone")]),
];

/// Which kind of database has a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    City,
    Asn,
}

/// How the value of a label is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Number,
    Float,
    Flag,
    /// The codes of a list of places.
    Codes,
}

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("can't be read: {0}")]
    Io(#[from] io::Error),
    #[error("isn't a whole database in MaxMind's format: {0}")]
    Format(#[from] MaxMindDbError),
    #[error(
        "is a database of the type {0:?}, which has no labels; those of cities, countries, ISPs and ASNs have some"
    )]
    Type(String),
}

#[derive(Debug)]
pub struct Database {
    reader: Reader<Vec<u8>>,
    schema: Schema,
}

/// An area of a country, of which only the code is read.
#[derive(Deserialize)]
struct Subdivision<'a> {
    #[serde(borrow, default)]
    iso_code: &'a str,
}

/// What tells a file from the file that was at its path before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

/// The databases in use: blocks with the same file share one.
#[derive(Clone, Debug, Default)]
pub struct Databases(Arc<Mutex<KnownFiles>>);

#[derive(Debug, Default)]
struct KnownFiles {
    databases: HashMap<(PathBuf, FileId), Weak<Database>>,
    /// The files that were read last at their paths, and what was wrong with them: it is logged once for all blocks.
    read: HashMap<PathBuf, (FileId, Option<String>)>,
}

// === impl Database ===

impl Database {
    #[must_use]
    pub fn schema(&self) -> Schema {
        self.schema
    }

    /// Reads a database.
    ///
    /// # Errors
    /// If the bytes aren't a database, or it has none of the labels.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, DatabaseError> {
        let reader = Reader::from_source(bytes)?;
        let kind = &*reader.metadata().database_type;
        let schema = match (CITY_TYPES.contains(&kind), ASN_TYPES.contains(&kind)) {
            (true, _) => Schema::City,
            (false, true) => Schema::Asn,
            (false, false) => return Err(DatabaseError::Type(kind.to_owned())),
        };
        let database = Self { reader, schema };
        for (label, ..) in LABELS.iter().filter(|(_, of, ..)| *of == schema) {
            database.value(label, PROBE)?;
        }
        Ok(database)
    }

    /// Returns the value of a label for an address, empty if the database doesn't have it; `None` if the label isn't
    /// one of this kind of database, or can't be read.
    #[must_use]
    pub fn label(&self, label: &str, address: IpAddr) -> Option<String> {
        let value = self.value(label, address);
        value.unwrap_or_else(|error| {
            debug!("plugin/geoip: {label} of {address}: {error}");
            None
        })
    }

    fn value(&self, label: &str, address: IpAddr) -> Result<Option<String>, MaxMindDbError> {
        let known = LABELS.iter().find(|(known, schema, ..)| *known == label && *schema == self.schema);
        let Some((_, _, kind, path)) = known else { return Ok(None) };
        let found: LookupResult<'_, _> = self.reader.lookup(address)?;
        let value = match kind {
            ValueKind::Text => found.decode_path::<&str>(path)?.unwrap_or_default().to_owned(),
            ValueKind::Number => found.decode_path::<u32>(path)?.unwrap_or_default().to_string(),
            ValueKind::Float => {
                found.decode_path::<f64>(path)?.map_or_else(String::new, |value| value.to_string())
            }
            ValueKind::Flag => found.decode_path::<bool>(path)?.unwrap_or_default().to_string(),
            ValueKind::Codes => {
                let places = found.decode_path::<Vec<Subdivision<'_>>>(path)?.unwrap_or_default();
                places.iter().map(|place| place.iso_code).collect::<Vec<_>>().join(",")
            }
        };
        Ok(Some(value))
    }
}

// === impl FileId ===

impl FileId {
    /// Returns the id of the file that is at a path now.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(|file| Self::from(&file))
    }
}

impl From<&Metadata> for FileId {
    fn from(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            length: file.len(),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

// === impl Databases ===

impl Databases {
    /// Returns the database at a path, which other blocks may use already, and the id of its file.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn open(&self, path: &Path) -> Result<(Arc<Database>, FileId), DatabaseError> {
        let mut file = File::open(path)?;
        let id = FileId::from(&file.metadata()?);
        let key = (path.to_owned(), id);
        let known = &mut self.0.lock().databases;
        if let Some(database) = known.get(&key).and_then(Weak::upgrade) {
            return Ok((database, id));
        }
        let too_long = || io::Error::other(format!("it has more than {} MiB", MAX_FILE >> 20));
        if id.length > MAX_FILE {
            return Err(too_long().into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(id.length).unwrap_or_default());
        file.by_ref().take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(too_long().into());
        }
        let database = Arc::new(Database::parse(bytes)?);
        known.retain(|_, database| database.strong_count() > 0);
        known.insert(key, Arc::downgrade(&database));
        Ok((database, id))
    }

    /// Notes that a file was read after a change, and what is wrong with it. Returns whether that wasn't noted yet.
    pub fn is_news(&self, path: &Path, id: FileId, why: Option<String>) -> bool {
        let read = (id, why);
        self.0.lock().read.insert(path.to_owned(), read.clone()) != Some(read)
    }
}
