//! The records of answers.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::endpoints::Endpoint;
use crate::model::names;

/// The longest name in wire form (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 63;
/// Maximum number of records of a section: no more fit into 64 KiB.
pub(super) const MAX_RECORDS: usize = 4096;

pub const A: u16 = 1;
pub const NS: u16 = 2;
pub const CNAME: u16 = 5;
pub const SOA: u16 = 6;
pub const PTR: u16 = 12;
pub const TXT: u16 = 16;
pub const AAAA: u16 = 28;
pub const SRV: u16 = 33;

/// A record of class IN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether it is in the additional section, else in the answer section.
    pub is_additional: bool,
    /// In wire form with the root octet.
    pub owner: Arc<[u8]>,
    pub rtype: u16,
    /// In seconds.
    pub ttl: u32,
    /// In wire form.
    pub data: SmallVec<[u8; 16]>,
}

/// What a name leads to.
#[derive(Default)]
pub(super) struct Group<'a> {
    /// The ports; `None` for one without an SRV record, which counts for the weight of the others.
    pub(super) ports: SmallVec<[Option<u16>; 4]>,
    pub(super) targets: Vec<Endpoint<'a>>,
    /// Further targets, in wire form with the root octet.
    pub(super) hosts: Vec<&'a [u8]>,
    /// The name of the Service or the Pod.
    pub(super) owner: Arc<[u8]>,
    /// Whether each target has a name of its own below that.
    pub(super) is_named: bool,
}

/// The TTLs of SRV records and of the addresses of their targets, in seconds.
#[derive(Clone, Copy)]
pub(super) struct Ttls {
    pub(super) record: u32,
    pub(super) glue: u32,
}

/// The records of an answer, and whether some of them were left out.
#[derive(Debug, Default)]
pub(super) struct RecordSet {
    pub(super) records: Vec<Record>,
    pub(super) is_cut: bool,
    /// The targets of SRV records outside of the cluster, each once, in wire form with the root octet.
    pub(super) hosts: Vec<Box<[u8]>>,
}

/// Returns a name in wire form with the root octet, in lower case: these labels below a zone. A label with dots stands
/// for several. `None` if DNS can't have the name.
pub(super) fn name_below<'a>(labels: impl IntoIterator<Item = &'a str>, zone: &[u8]) -> Option<Arc<[u8]>> {
    let mut name = Vec::with_capacity(64);
    for label in labels.into_iter().flat_map(|label| label.split('.')) {
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        names::push_label(label.as_bytes(), &mut name);
    }
    name.make_ascii_lowercase();
    name.extend_from_slice(zone);
    (name.len() <= MAX_NAME).then(|| name.into())
}

pub(super) fn address(owner: &Arc<[u8]>, ip: IpAddr, ttl: u32, is_additional: bool) -> Record {
    let (rtype, data) = match ip {
        IpAddr::V4(ip) => (A, ip.octets().as_slice().into()),
        IpAddr::V6(ip) => (AAAA, ip.octets().as_slice().into()),
    };
    Record { is_additional, owner: Arc::clone(owner), rtype, ttl, data }
}

/// Returns a record whose data is a name.
pub(super) fn pointer(owner: &Arc<[u8]>, rtype: u16, target: &[u8], ttl: u32) -> Record {
    Record { is_additional: false, owner: Arc::clone(owner), rtype, ttl, data: target.into() }
}

impl RecordSet {
    /// Adds a record, unless the limit is reached.
    fn push(&mut self, record: Record) {
        let is_same = |known: &&Record| known.is_additional == record.is_additional;
        if self.records.len() < MAX_RECORDS || self.records.iter().filter(is_same).count() < MAX_RECORDS {
            self.records.push(record);
        } else {
            self.is_cut = true;
        }
    }

    /// Returns the addresses of a type, each once.
    pub(super) fn addresses(groups: &[Group<'_>], owner: &Arc<[u8]>, qtype: u16, ttl: u32) -> Self {
        let (mut set, mut seen) = (Self::default(), HashSet::new());
        for target in groups.iter().flat_map(|group| &group.targets) {
            if target.ip.is_ipv4() == (qtype == A) && seen.insert(target.ip) {
                set.push(address(owner, target.ip, ttl, false));
                if set.is_cut {
                    break;
                }
            }
        }
        set
    }

    /// Returns the SRV records, each once, and the addresses of their targets as far as these are in the cluster.
    pub(super) fn services(groups: &[Group<'_>], owner: &Arc<[u8]>, ttls: Ttls) -> Self {
        let number = |group: &Group<'_>| group.targets.len() + group.hosts.len();
        let total = groups.iter().map(|group| group.ports.len().saturating_mul(number(group))).sum();
        let weight = weight(total);
        let (mut set, mut seen, mut glue) = (Self::default(), HashSet::new(), HashSet::new());
        let hosts: BTreeSet<&[u8]> = groups.iter().flat_map(|group| &group.hosts).copied().collect();
        set.hosts = hosts.into_iter().map(Into::into).collect();
        for group in groups.iter().filter(|group| group.ports.iter().any(Option::is_some)) {
            let targets = group.targets.iter().map(|target| {
                let name = match group.is_named {
                    true => name_below([&*target.label()], &group.owner),
                    false => Some(Arc::clone(&group.owner)),
                };
                (name, Some(target.ip))
            });
            let hosts = group.hosts.iter().map(|host| (Some((*host).into()), None));
            for (name, ip) in targets.chain(hosts) {
                let Some(name) = name else { continue };
                for port in group.ports.iter().flatten() {
                    if seen.insert((Arc::clone(&name), *port)) {
                        set.push(service(owner, [0, weight, *port], &name, ttls.record));
                    }
                }
                if let Some(ip) = ip.filter(|ip| glue.insert((Arc::clone(&name), *ip))) {
                    set.push(address(&name, ip, ttls.glue, true));
                }
                if set.is_cut {
                    return set;
                }
            }
        }
        set
    }
}

/// Returns an SRV record; the numbers are its priority, weight and port.
fn service(owner: &Arc<[u8]>, numbers: [u16; 3], target: &[u8], ttl: u32) -> Record {
    let data = numbers.map(u16::to_be_bytes).as_flattened().iter().chain(target).copied().collect();
    Record { is_additional: false, owner: Arc::clone(owner), rtype: SRV, ttl, data }
}

/// Returns the weight of each of the SRV records of a name, of which together 100 are shared.
fn weight(total: usize) -> u16 {
    // In CoreDNS's steps, so that both round alike.
    let weight = (100.0 / total.saturating_mul(100) as f64 * 100.0).floor();
    (weight as u16).clamp(1, 100)
}
