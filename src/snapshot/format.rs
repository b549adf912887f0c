//! The format of snapshots: a header with a version and a checksum, and a JSON object per line.
//!
//! ```text
//! lb-linker snapshot 2 <SHA-256 of the rest, in 64 hexadecimal digits>
//! {"taken":"2026-11-25T18:00:00Z","program":"0.1.0",…}
//! {"namespace":"default","service":"web",…}
//! {"cluster":"west","kind":"Ingress","namespace":"default","service":"web",…}
//! ```
//!
//! Version 1 has only Services of the home cluster, and is still read.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::clusters;
use crate::model::excerpt;
use crate::model::link::Port;
use crate::model::names::{self, MAX_LABEL};
use crate::model::records::{MAX_RECORDS, MAX_TEXT, RecordKind};
use crate::model::rejection::{MAX_ENTRIES, MAX_ENTRY_BYTES};
use crate::sync::k8s::client::ClusterIdentity;
use crate::sync::k8s::service::{MAX_INGRESS, MAX_TTL};

/// Maximum size of a snapshot in bytes: some 100,000 links.
pub const MAX_BYTES: usize = 32 << 20;

/// The version of the format.
const VERSION: &str = "2";
/// The versions that are read. Each is of the same length.
const VERSIONS: [&str; 2] = ["1", VERSION];
const MAGIC: &str = "lb-linker snapshot ";
/// The size of the header line in bytes: name, version, checksum, and the characters between them.
const HEADER_BYTES: usize = MAGIC.len() + VERSION.len() + 1 + 64 + 1;
/// Maximum number of types of the records of a link.
const MAX_RECORD_SETS: usize = 3;
/// Maximum number of ports of a link.
const MAX_PORTS: usize = 1000;
/// Maximum size in bytes of a uid, or of the name of a source.
const MAX_TEXT_BYTES: usize = 1024;
/// Limits of the length of a link's line in bytes, tried in order until the snapshot fits. Of a link with a longer line
/// only the default names are kept.
const LINE_LIMITS: [usize; 5] = [usize::MAX, 16 << 10, 4 << 10, 1 << 10, 512];

/// The links of a process, and when and under which flags they were known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub head: Head,
    pub links: Vec<SavedLink>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Head {
    /// The time at which the links were known to be current.
    pub taken: Timestamp,
    /// The version of the program.
    pub program: String,
    pub cluster: ClusterIdentity,
    #[serde(rename = "settings")]
    pub recorded_flags: RecordedFlags,
    /// The serial of the zones.
    pub serial: u64,
    /// The Unix time of the last change, of which transferred zones have their serial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<u64>,
}

/// The flags that select Services and their annotations, and whose effect can't be seen in a saved link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RecordedFlags {
    /// `--selection annotated`.
    pub annotated_only: bool,
    /// `--service-selector`; empty for any.
    pub selector: String,
    /// `--load-balancer-classes`; empty for any.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub classes: BTreeSet<String>,
    pub hostname_annotations: Vec<String>,
    /// `--annotation-prefixes`, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub annotation_prefixes: Vec<String>,
    /// The zones with names of objects that have classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<RecordedZone>,
}

/// The classes of the objects with names in a zone; empty for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RecordedZone {
    /// Without the dot at the end.
    pub origin: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_classes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateway_classes: Vec<String>,
}

/// What DNS needs of a link, or of another owner of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SavedLink {
    /// The cluster of the owner, and its kind; by default a Service of the home cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub namespace: String,
    /// The name of the owner.
    pub service: String,
    /// The namespace and the name of what is behind the names, if it isn't the owner: many owners may share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<(String, String)>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The time of creation in seconds since 1970, which decides which link gets a name.
    pub created: i64,
    /// `None` if the link has no target that can be kept, and for a link of which only the default names are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<SavedTarget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
    /// The custom hostnames that the link holds; of an owner of another kind, the names that it asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_from: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// The name of the external target; empty for an owner that isn't a Service of the home cluster.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub external_target: String,
    /// Whether custom hostnames of the link aren't kept, because the link exceeds a limit, or the snapshot would be too
    /// large.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_hostnames: bool,
    /// The StableName that overrides the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<SavedOverride>,
    /// The records beside the target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<SavedRecords>,
}

/// The records of a name and type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SavedRecords {
    #[serde(rename = "type")]
    pub kind: RecordKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
    /// As in a zone file.
    pub data: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SavedTarget {
    /// As text, without the trailing dot.
    Hostname(String),
    Addresses(Vec<IpAddr>),
}

/// The StableName that overrides a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SavedOverride {
    pub uid: String,
    /// The name of the source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service_uid: String,
}

/// Why bytes aren't a snapshot that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error("it doesn't begin with the header of a snapshot")]
    NoSnapshot,
    #[error("its format isn't version {}, and this lb-linker reads no other version", VERSIONS.join(" or "))]
    OtherVersion,
    #[error("its checksum doesn't match its content")]
    Checksum,
    #[error("line {line}: {why}")]
    Line { line: usize, why: String },
}

/// The bytes of a snapshot.
#[derive(Debug)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    /// The number of links.
    pub links: usize,
    /// The number of links of which only the default names are kept, or nothing if these names are invalid.
    pub cut: usize,
}

/// Returns a snapshot as bytes. `links` returns an iterator over the links each time it is called.
///
/// # Errors
/// If the snapshot is too large, even without the contents of large links.
pub fn encode<I: Iterator<Item = SavedLink>>(
    head: &Head,
    links: impl Fn() -> I,
) -> Result<Encoded, FormatError> {
    encode_within(MAX_BYTES, head, links)
}

fn encode_within<I: Iterator<Item = SavedLink>>(
    max: usize,
    head: &Head,
    links: impl Fn() -> I,
) -> Result<Encoded, FormatError> {
    for limit in LINE_LIMITS {
        let mut encoded = Encoded { bytes: vec![b' '; HEADER_BYTES], links: 0, cut: 0 };
        write_line(&mut encoded.bytes, head)?;
        for link in links() {
            let start = encoded.bytes.len();
            write_line(&mut encoded.bytes, &link)?;
            if encoded.bytes.len() - start > limit || link.check().is_err() {
                encoded.bytes.truncate(start);
                encoded.cut += 1;
                let link = link.names_only();
                if link.check().is_err() {
                    continue;
                }
                write_line(&mut encoded.bytes, &link)?;
            }
            encoded.links += 1;
            if encoded.bytes.len() > max {
                break;
            }
        }
        if encoded.bytes.len() <= max {
            let header = header(VERSION, &encoded.bytes[HEADER_BYTES..]);
            encoded.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
            return Ok(encoded);
        }
    }
    Err(FormatError::TooLarge)
}

/// Reads a snapshot.
///
/// # Errors
/// If the bytes are too large, don't begin with a header of a version that is read, don't match their checksum, or have an
/// invalid line.
pub fn decode(bytes: &[u8]) -> Result<Snapshot, FormatError> {
    if bytes.len() > MAX_BYTES {
        return Err(FormatError::TooLarge);
    }
    let after_name = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(FormatError::NoSnapshot)?;
    let is_version = |version: &&&str| after_name.starts_with(format!("{version} ").as_bytes());
    let version = VERSIONS.iter().find(is_version).ok_or(FormatError::OtherVersion)?;
    let (head, body) = bytes.split_at_checked(HEADER_BYTES).ok_or(FormatError::Checksum)?;
    if head != header(version, body).as_bytes() {
        return Err(FormatError::Checksum);
    }
    // The line after the header is the second one of the file.
    let mut lines = body.strip_suffix(b"\n").unwrap_or(body).split(|byte| *byte == b'\n').zip(2..);
    let head = lines.next().ok_or(FormatError::NoSnapshot).and_then(read_line)?;
    let link = |(text, line)| {
        let link: SavedLink = read_line((text, line))?;
        link.check().map_err(|why| FormatError::Line { line, why: why.to_owned() })?;
        Ok(link)
    };
    Ok(Snapshot { head, links: lines.map(link).collect::<Result<_, _>>()? })
}

/// Returns the header line of a snapshot with this content.
fn header(version: &str, body: &[u8]) -> String {
    format!("{MAGIC}{version} {}\n", names::hash_of(body))
}

fn write_line(bytes: &mut Vec<u8>, value: &impl Serialize) -> Result<(), FormatError> {
    // Only a value that JSON can't express fails here.
    let failed = |error: io::Error| FormatError::Line { line: 0, why: error.to_string() };
    serde_json::to_writer(&mut *bytes, value).map_err(|error| failed(error.into()))?;
    bytes.write_all(b"\n").map_err(failed)
}

fn read_line<'a, T: Deserialize<'a>>((text, line): (&'a [u8], usize)) -> Result<T, FormatError> {
    serde_json::from_slice(text)
        .map_err(|error| FormatError::Line { line, why: excerpt::sentence(&error.to_string()).to_string() })
}

// === impl SavedLink ===

impl SavedLink {
    /// Returns whether a namespace is one of the owner's cluster.
    fn is_namespace(&self, namespace: &str) -> bool {
        let (cluster, plain) = clusters::split(namespace);
        names::is_label(plain) && (cluster.is_none() || cluster == self.cluster.as_deref())
    }

    /// Returns the link with only its default names, its rank, and the name of its external target; another owner
    /// with its names and its rank.
    fn names_only(self) -> Self {
        let is_service = self.is_service();
        let Self { cluster, kind, namespace, service, created, external_target, mut hostnames, .. } = self;
        let lacks_hostnames = is_service && !hostnames.is_empty();
        hostnames.retain(|_| !is_service);
        Self {
            cluster,
            kind,
            namespace,
            service,
            created,
            hostnames,
            external_target,
            lacks_hostnames,
            ..Self::default()
        }
    }

    pub(super) fn is_service(&self) -> bool {
        self.cluster.is_none() && self.kind.is_none()
    }

    /// Checks the names of the objects, and the limits of all fields. Returns the first defect, as a clause.
    fn check(&self) -> Result<(), &'static str> {
        let is_object = |name: &str| name.len() <= MAX_ENTRY_BYTES && name.split('.').all(names::is_label);
        let are_entries = |texts: &[String]| {
            texts.len() <= MAX_ENTRIES && texts.iter().all(|text| text.len() <= MAX_ENTRY_BYTES)
        };
        let is_key = |name: &str, max_label: usize| {
            let mut labels = name.strip_prefix("*.").unwrap_or(name).split('.');
            let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
            let is_label =
                |label: &str| (1..=max_label).contains(&label.len()) && label.chars().all(is_allowed);
            name.len() <= MAX_TEXT_BYTES && labels.all(is_label)
        };
        let source = [&self.cluster, &self.kind].into_iter().flatten();
        // A name that another owner asks for is a hostname; the key of what is behind it has the names of objects, of
        // which a single label may take the whole length.
        let is_host = is_key(&self.service, MAX_LABEL);
        let is_behind = self
            .behind
            .as_ref()
            .is_none_or(|(namespace, name)| self.is_namespace(namespace) && is_key(name, MAX_ENTRY_BYTES));
        let by = self.overridden_by.iter().flat_map(|by| [&by.uid, &by.source, &by.service_uid]);
        let mut texts = by.chain([&self.uid]).chain(source);
        let is_service = self.is_service();
        let is_ttl = |ttl: Option<u32>| ttl.is_none_or(|ttl| ttl <= MAX_TTL);
        let are_records = |SavedRecords { ttl, data, .. }: &SavedRecords| {
            is_ttl(*ttl) && data.len() <= MAX_RECORDS && data.iter().all(|text| text.len() <= MAX_TEXT)
        };
        match &self.target {
            _ if !self.is_namespace(&self.namespace) => Err("the namespace isn't a DNS label"),
            _ if is_service && !is_object(&self.service) => Err("the Service's name isn't a DNS name"),
            _ if !is_host => Err("the owner's name isn't a hostname"),
            _ if !is_behind => Err("what is behind the owner's names isn't an object"),
            _ if is_service && !is_object(&self.external_target) => {
                Err("the external target's name isn't a DNS name")
            }
            _ if !texts.all(|text| text.len() <= MAX_TEXT_BYTES) => Err("a text is too long"),
            _ if ![&self.hostnames, &self.allow_from].into_iter().all(|it| are_entries(it)) => {
                Err("a list of names is too long")
            }
            _ if self.ports.len() > MAX_PORTS => Err("there are too many ports"),
            _ if !is_ttl(self.ttl) => Err("the TTL is too long"),
            _ if self.records.len() > MAX_RECORD_SETS || !self.records.iter().all(are_records) => {
                Err("there are too many records, or too long ones")
            }
            Some(SavedTarget::Hostname(host)) if host.len() > MAX_ENTRY_BYTES => {
                Err("the target is too long")
            }
            Some(SavedTarget::Addresses(ips)) if ips.is_empty() || ips.len() > MAX_INGRESS => {
                Err("the number of addresses is wrong")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
