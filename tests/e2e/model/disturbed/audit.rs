//! Comparison of the writes in the audit log with the states of the Services at the time of each write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hickory_proto::rr::RecordType;
use jiff::Timestamp;

use super::Disturbed;
use super::history::Seen;
use crate::harness::audit::AuditEvent;
use crate::model::rules::default_name;

/// A state may be written for this long after it has ended.
const WRITE_BOUND: Duration = Duration::from_secs(10);

const USER: &str = "system:serviceaccount:lb-linker:lb-linker";

/// The writes of external targets in the audit log.
#[derive(Debug, Default)]
pub struct AuditedWrites {
    pub compared: usize,
    /// Writes of a state that the Service didn't have at any time of the last [`WRITE_BOUND`] before the API server
    /// answered.
    pub stale: Vec<String>,
    /// Writes that the API server refused.
    pub refused: usize,
}

impl Disturbed {
    /// Compares every write of an external target of a Service with the states of the Service.
    pub fn audited_writes(&self) -> AuditedWrites {
        let subjects: BTreeMap<String, usize> =
            self.subjects.iter().map(|(key, number)| (default_name(key), *number)).collect();
        let mut writes = AuditedWrites::default();
        let events = self.plane.audit_events_with(USER).into_iter();
        let is_ours =
            |event: &AuditEvent| event.user == USER && event.is_write() && event.namespace == super::TARGETS;
        for event in events.filter(is_ours) {
            let Some((object, seen, qtype)) = what_is_written(&event) else { continue };
            let Some(number) = subjects.get(&object) else { continue };
            if event.code >= 300 {
                writes.refused += 1;
                continue;
            }
            writes.compared += 1;
            let at = instant_of(event.completed);
            if !self.shared.with(|history| history.was_true(*number, &seen, qtype, (at - WRITE_BOUND, at))) {
                let states = self.shared.with(|history| history.explain(*number));
                let since = at.elapsed();
                writes.stale.push(format!("{} {object}: {seen:?} {since:.1?} ago; {states}", event.verb));
            }
        }
        writes
    }
}

/// Returns the name of the external target, and what it stands for after the write. Returns `None` for other writes.
fn what_is_written(event: &AuditEvent) -> Option<(String, Seen, RecordType)> {
    let sent = event.request.as_ref();
    let name = match &*event.name {
        "" => sent?["metadata"]["name"].as_str()?.to_owned(),
        name => name.to_owned(),
    };
    match &*event.resource {
        "services" if event.verb == "delete" => Some((name, Seen::NoName, RecordType::A)),
        "services" => {
            let host = sent?["spec"]["externalName"].as_str()?;
            Some((name, Seen::Alias(host.to_owned()), RecordType::A))
        }
        // The deletion of an EndpointSlice isn't compared: the Service may still have addresses of the other family.
        "endpointslices" if event.verb != "delete" => {
            let (object, qtype) = match name.strip_suffix("-ipv4") {
                Some(object) => (object, RecordType::A),
                None => (name.strip_suffix("-ipv6")?, RecordType::AAAA),
            };
            let endpoints = sent?["endpoints"].as_array()?;
            let address = |endpoint: &serde_json::Value| endpoint["addresses"][0].as_str()?.parse().ok();
            let ips: BTreeSet<IpAddr> = endpoints.iter().filter_map(address).collect();
            Some((object.to_owned(), Seen::Addresses(ips), qtype))
        }
        _ => None,
    }
}

fn instant_of(time: Timestamp) -> Instant {
    let ago = Timestamp::now().duration_since(time).as_secs_f64();
    Instant::now() - Duration::from_secs_f64(ago.max(0.0))
}
