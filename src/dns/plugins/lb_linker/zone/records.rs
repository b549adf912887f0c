//! Builds resource records.

use std::net::IpAddr;

use hickory_proto::rr::rdata::{A, AAAA, MX, PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::model::records::{RecordData, RecordKind, RecordSet, Records};

pub(super) fn record(name: &Name, ttl: u32, data: RData) -> Record {
    Record::from_rdata(name.clone(), ttl, data)
}

/// Returns the addresses of the queried type as records; for ANY, the first family with addresses (RFC 8482 section
/// 4.1).
pub(super) fn addresses(name: &Name, ttl: u32, ips: &[IpAddr], qtype: RecordType) -> Vec<Record> {
    let of_type = |qtype| -> Vec<Record> {
        ips.iter()
            .filter_map(|ip| match (ip, qtype) {
                (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
                (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
                _ => None,
            })
            .map(|data| record(name, ttl, data))
            .collect()
    };
    if qtype != RecordType::ANY {
        return of_type(qtype);
    }
    let ipv4 = of_type(RecordType::A);
    if ipv4.is_empty() { of_type(RecordType::AAAA) } else { ipv4 }
}

/// Returns the declared records of the queried type; for ANY, the first type. `ttl` is the TTL of types without one.
pub(super) fn declared(name: &Name, ttl: u32, records: &Records, qtype: RecordType) -> Vec<Record> {
    let is_asked = |kind| match kind {
        _ if qtype == RecordType::ANY => true,
        RecordKind::Txt => qtype == RecordType::TXT,
        RecordKind::Srv => qtype == RecordType::SRV,
        RecordKind::Mx => qtype == RecordType::MX,
    };
    let set = records.sets().iter().find(|set| is_asked(set.kind));
    let of_set = |RecordSet { ttl: own, data, .. }: &RecordSet| {
        let ttl = own.unwrap_or(ttl);
        data.iter().map(|data| record(name, ttl, rdata(data))).collect()
    };
    set.map(of_set).unwrap_or_default()
}

fn rdata(data: &RecordData) -> RData {
    match data {
        RecordData::Txt(strings) => RData::TXT(TXT::from_bytes(strings.iter().map(|text| &**text).collect())),
        RecordData::Srv { priority, weight, port, host } => {
            RData::SRV(SRV::new(*priority, *weight, *port, host.name()))
        }
        RecordData::Mx { preference, host } => RData::MX(MX::new(*preference, host.name())),
    }
}

/// Returns PTR records for these names if the query asks for them. All records of an RRset have the same TTL (RFC 2181
/// section 5.2), here the lowest.
pub(super) fn pointers(name: &Name, targets: Vec<(u32, Name)>, qtype: RecordType) -> Vec<Record> {
    if !matches!(qtype, RecordType::PTR | RecordType::ANY) {
        return Vec::new();
    }
    let ttl = targets.iter().map(|(ttl, _)| *ttl).min().unwrap_or_default();
    targets.into_iter().map(|(_, target)| record(name, ttl, RData::PTR(PTR(target)))).collect()
}
