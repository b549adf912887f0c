//! Properties of the decoder of snapshots, and of the links that they restore, for arbitrary bytes, shared by the
//! property test and the fuzz target.

use hickory_proto::rr::Name;
use lb_linker::model::hostname_policy::HostnamePolicy;
use lb_linker::model::names::hash_of;
use lb_linker::model::owner::Zone;
use lb_linker::model::target_policy::TargetPolicy;
use lb_linker::snapshot::format::{FormatError, Snapshot, decode, encode};
use lb_linker::snapshot::restore::restore;
use lb_linker::sync::source::selection::Selection;
use lb_linker::sync::source::service_links::dns_names;

use crate::links::check_names;

/// The beginning of a snapshot, up to the checksum.
const BEGINNING: &[u8] = b"lb-linker snapshot 2 ";
/// Maximum length of an error, in bytes.
const MAX_ERROR: usize = 1024;

/// Reads the bytes as a snapshot, and once more with the right checksum, so that mutations reach the lines after it.
/// Returns what becomes of the bytes with the right checksum, or the violated property.
pub fn try_snapshot(bytes: &[u8]) -> Result<&'static str, String> {
    check(bytes).map_err(|rule| format!("{rule}\n{}", String::from_utf8_lossy(bytes)))
}

fn check(bytes: &[u8]) -> Result<&'static str, String> {
    let rest = bytes.iter().position(|byte| *byte == b'\n').map(|end| &bytes[end + 1..]);
    let resealed = match rest {
        Some(rest) if bytes.starts_with(BEGINNING) => sealed(rest),
        _ => bytes.to_vec(),
    };
    let decoded = decode(&resealed);
    if resealed != bytes {
        ensure(decode(bytes).is_err(), "a snapshot with a wrong checksum is refused")?;
    }
    match decoded {
        Ok(snapshot) => restored(&snapshot),
        Err(error) => {
            ensure(error.to_string().len() <= MAX_ERROR, "an error is short")?;
            Ok(match error {
                FormatError::Line { .. } => "wrong line",
                _ => "no snapshot",
            })
        }
    }
}

/// Returns a snapshot with this content after its first line.
pub fn sealed(rest: &[u8]) -> Vec<u8> {
    [BEGINNING, hash_of(rest).as_bytes(), b"\n", rest].concat()
}

fn restored(snapshot: &Snapshot) -> Result<&'static str, String> {
    let encoded = encode(&snapshot.head, || snapshot.links.iter().cloned());
    let encoded = encoded.map_err(|error| format!("a decoded snapshot can't be encoded: {error}"))?;
    ensure(decode(&encoded.bytes).as_ref() == Ok(snapshot), "a snapshot stays the same when it is encoded")?;

    let zone = Name::from_ascii("lb.internal.").map_err(|error| error.to_string())?;
    let policy = HostnamePolicy {
        targets: TargetPolicy { zones: vec![zone.clone()], ..Default::default() },
        hostname_namespaces: ["*".to_owned()].into(),
        ..Default::default()
    };
    let lacks_hostnames = snapshot.links.iter().any(|link| link.lacks_hostnames);
    let restored = restore(snapshot.clone(), &Selection::default(), &policy, &[Zone::from(&zone)]);
    ensure(restored.answered + restored.denied <= snapshot.links.len(), "each link is counted once")?;
    let links = restored.store.links();
    ensure(links.len() <= snapshot.links.len(), "no link is added")?;
    for link in &links {
        if let Some(target) = &link.target {
            ensure(
                policy.targets.allowed(target.clone()).as_ref() == Some(target),
                "the policy allows each target",
            )?;
        }
        let names = dns_names(&restored.store, link);
        let has_wildcard = names.iter().any(|name| name.starts_with('*'));
        ensure(!has_wildcard || !lacks_hostnames, "no wildcard hides a hostname that isn't kept")?;
        check_names(&names, &zone)?;
    }
    Ok(if links.is_empty() { "no links" } else { "links" })
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}
