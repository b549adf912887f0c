//! What a zone answers (RFC 1034 section 4.3.2, RFC 4592, RFC 6672, RFC 4035 section 3.1).

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use smallvec::SmallVec;

use super::data::{APEX, NodeId, Rrset, Zone, data_at, is_below, parent};
use crate::dns::message::validity::Section;
use crate::dns::message::wire_name::{MAX_NAME, first_name};

/// The maximum number of aliases that are followed, as in CoreDNS.
const MAX_ALIASES: usize = 8;

/// The maximum number of names in an rrset whose addresses are added.
const MAX_TARGETS: usize = 100;

const A: u16 = 1;
const NS: u16 = 2;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const MX: u16 = 15;
const AAAA: u16 = 28;
const SRV: u16 = 33;
const DNAME: u16 = 39;
const DS: u16 = 43;
const RRSIG: u16 = 46;
const NSEC: u16 = 47;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const ANY: u16 = 255;

/// The answer of a zone. Names are in wire form.
#[derive(Debug)]
pub(in crate::dns) struct Found<'z> {
    pub(in crate::dns) rcode: ResponseCode,
    /// Whether the answer comes from the zone, and isn't only a referral.
    pub(in crate::dns) is_authoritative: bool,
    /// The records of the three sections of a message.
    pub(in crate::dns) sections: [Vec<Part<'z>>; 3],
    /// The target of the last alias, if the zone doesn't have it.
    pub(in crate::dns) outside: Option<Target>,
}

/// A name outside the zone, in wire form.
pub(in crate::dns) type Target = Box<[u8]>;

/// Records of an answer, with one owner, type and TTL.
#[derive(Debug)]
pub(in crate::dns) struct Part<'z> {
    pub(in crate::dns) owner: Cow<'z, [u8]>,
    pub(in crate::dns) rtype: u16,
    pub(in crate::dns) ttl: u32,
    data: PartData<'z>,
}

#[derive(Debug)]
enum PartData<'z> {
    /// The zone's octets, and the offsets of the data.
    Zone(&'z [u8], &'z [u32]),
    Synthesized(Box<[u8]>),
}

/// A look-up in progress.
struct Search<'z> {
    zone: &'z Zone,
    qtype: u16,
    dnssec: bool,
    found: Found<'z>,
    /// The nodes whose NSEC records are in the answer.
    proofs: Vec<NodeId>,
    /// The nodes whose addresses are in the answer.
    additional: Vec<NodeId>,
}

// === impl Part ===

impl Part<'_> {
    /// Passes the data of each record on, until `take` returns false.
    pub(in crate::dns) fn write_to(&self, mut take: impl FnMut(&[u8]) -> bool) {
        match &self.data {
            PartData::Zone(octets, records) => {
                let _ = records.iter().all(|at| take(data_at(octets, *at)));
            }
            PartData::Synthesized(data) => {
                take(data);
            }
        }
    }
}

// === impl Zone ===

impl Zone {
    /// Answers a query for a name at or below the origin, in wire form and in lower case. `dnssec` says whether the client
    /// wants DNSSEC records.
    pub(in crate::dns) fn look_up(&self, name: &[u8], qtype: RecordType, dnssec: bool) -> Found<'_> {
        let found = Found {
            rcode: ResponseCode::NoError,
            is_authoritative: true,
            sections: <[Vec<Part<'_>>; 3]>::default(),
            outside: None,
        };
        let mut search = Search {
            zone: self,
            qtype: qtype.into(),
            dnssec,
            found,
            proofs: Vec::new(),
            additional: Vec::new(),
        };
        search.run(name.to_owned());
        search.found
    }

    /// Returns the rrset with this index as a part of an answer.
    fn part<'z>(&'z self, rrset: usize, owner: Cow<'z, [u8]>) -> Part<'z> {
        let Rrset { rtype, ttl, .. } = self.rrsets[rrset];
        Part { owner, rtype, ttl, data: PartData::Zone(&self.octets, self.records_of(rrset)) }
    }
}

// === impl Search ===

impl<'z> Search<'z> {
    fn run(&mut self, name: Vec<u8>) {
        let mut names = vec![name];
        let mut proofs = 0;
        while let Some(name) = names.last().cloned()
            && let Some(target) = self.step(&name)
        {
            proofs = self.found.sections[Section::Authority as usize].len();
            let mut lower = target.clone();
            lower.make_ascii_lowercase();
            let is_outside = !is_below(&lower, &self.zone.origin);
            if is_outside || names.len() > MAX_ALIASES || names.contains(&lower) {
                self.found.outside = is_outside.then(|| target.into());
                self.push_name_servers();
                return;
            }
            names.push(lower);
        }
        // Another zone or plugin may have what this zone lacks below its origin (RFC 1034 section 4.3.2, step 3a).
        if names.len() > 1 && self.found.rcode == ResponseCode::NXDomain {
            self.found.rcode = ResponseCode::NoError;
            // What proves the wildcards of the aliases stays (RFC 4035 section 3.1.3.3).
            self.found.sections[Section::Authority as usize].truncate(proofs);
            self.found.outside = names.pop().map(Into::into);
            self.push_name_servers();
        }
    }

    /// Adds what there is at a name. Returns the target of an alias that has to be followed.
    fn step(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let zone = self.zone;
        let mut names = SmallVec::<[&[u8]; 8]>::new();
        let mut rest = name;
        while rest.len() > zone.origin.len() {
            names.push(rest);
            rest = parent(rest);
        }
        let mut node = APEX;
        for below in names.into_iter().rev() {
            if let Some(dname) = zone.rrset(node, DNAME) {
                return self.substitute(name, node, dname);
            }
            let Some(next) = zone.node(below) else { return self.absent(name, node) };
            node = next;
            // The DS record is on the parent's side of a delegation (RFC 4035 section 3.1.4.1).
            let is_ds = below.len() == name.len() && self.qtype == DS;
            if let Some(ns) = zone.rrset(node, NS).filter(|_| !is_ds) {
                self.refer(node, ns);
                return None;
            }
        }
        self.present(name, node, node_owner(zone, node))
    }

    /// Answers for a name that exists, or from a wildcard. `owner` is the owner of the answer.
    fn present(&mut self, name: &[u8], node: NodeId, owner: Cow<'z, [u8]>) -> Option<Vec<u8>> {
        let zone = self.zone;
        let is_wildcard = *owner != *zone.name(node);
        let qtype = self.qtype;
        let mut asked = zone.rrsets_of(node).filter(|rrset| zone.rrsets[*rrset].rtype == qtype);
        let is_proof = |rrset: &usize| matches!(zone.rrsets[*rrset].rtype, RRSIG | NSEC);
        // For ANY, a subset of the records is enough (RFC 8482 section 4.1).
        let first = if qtype == ANY { zone.rrsets_of(node).min_by_key(is_proof) } else { asked.next() };
        let Some(first) = first else {
            if let Some(cname) = zone.rrset(node, CNAME) {
                self.push_signed(Section::Answer, node, cname, owner);
                if is_wildcard {
                    self.prove(name);
                }
                return zone.data_of(cname).next().map(<[u8]>::to_vec);
            }
            self.deny(name, node, is_wildcard);
            return None;
        };
        if qtype == RRSIG {
            for signatures in std::iter::once(first).chain(asked) {
                self.push(Section::Answer, zone.part(signatures, owner.clone()));
            }
        } else {
            self.push_signed(Section::Answer, node, first, owner);
        }
        self.add_addresses(node, first);
        if !(node == APEX && matches!(qtype, NS | ANY)) {
            self.push_name_servers();
        }
        if is_wildcard {
            self.prove(name);
        }
        None
    }

    /// Answers for a name that doesn't exist. `encloser` is the closest ancestor that exists (RFC 4592 section 3.3.1).
    fn absent(&mut self, name: &[u8], encloser: NodeId) -> Option<Vec<u8>> {
        let wildcard = [b"\x01*", self.zone.name(encloser)].concat();
        if let Some(node) = self.zone.node(&wildcard) {
            return self.present(name, node, Cow::Owned(name.to_owned()));
        }
        self.found.rcode = ResponseCode::NXDomain;
        self.push_soa();
        self.prove(name);
        self.prove(&wildcard);
        None
    }

    /// Denies that a name has records of the queried type.
    fn deny(&mut self, name: &[u8], node: NodeId, is_wildcard: bool) {
        self.push_soa();
        self.push_nsec(node);
        if is_wildcard || self.zone.rrset(node, NSEC).is_none() {
            self.prove(name);
        }
    }

    /// Follows a DNAME record (RFC 6672 section 3.2).
    fn substitute(&mut self, name: &[u8], node: NodeId, dname: usize) -> Option<Vec<u8>> {
        let zone = self.zone;
        self.push_signed(Section::Answer, node, dname, node_owner(zone, node));
        let prefix = &name[..name.len() - zone.name(node).len()];
        let data = zone.data_of(dname).next().unwrap_or_default();
        let target = [prefix, &first_name(DNAME, data).unwrap_or_default()].concat();
        if target.len() > MAX_NAME {
            self.found.rcode = ResponseCode::YXDomain;
            return None;
        }
        let ttl = zone.rrsets[dname].ttl;
        let data = PartData::Synthesized(target.clone().into());
        self.push(Section::Answer, Part { owner: Cow::Owned(name.to_owned()), rtype: CNAME, ttl, data });
        if self.qtype == CNAME {
            self.push_name_servers();
            return None;
        }
        Some(target)
    }

    /// Refers to the name servers of a delegated zone.
    fn refer(&mut self, node: NodeId, ns: usize) {
        let zone = self.zone;
        self.found.is_authoritative = !self.found.sections[Section::Answer as usize].is_empty();
        self.push(Section::Authority, zone.part(ns, node_owner(zone, node)));
        if self.dnssec {
            match zone.rrset(node, DS) {
                Some(ds) => self.push_signed(Section::Authority, node, ds, node_owner(zone, node)),
                None => self.push_nsec(node),
            }
        }
        self.add_addresses(node, ns);
    }

    /// Adds the addresses that the names in an rrset have in this zone. Those of name servers are added only if the
    /// name server's name is at or below the owner, as in CoreDNS.
    fn add_addresses(&mut self, owner: NodeId, rrset: usize) {
        let zone = self.zone;
        let rtype = zone.rrsets[rrset].rtype;
        if !matches!(rtype, NS | MX | SRV | SVCB | HTTPS) {
            return;
        }
        for data in zone.data_of(rrset).take(MAX_TARGETS) {
            let target = first_name(rtype, data).unwrap_or_default().to_ascii_lowercase();
            let Some(node) = zone.node(&target) else { continue };
            let is_foreign = rtype == NS && !is_below(&target, zone.name(owner));
            if is_foreign || self.additional.contains(&node) {
                continue;
            }
            self.additional.push(node);
            for address in [A, AAAA] {
                if let Some(rrset) = zone.rrset(node, address) {
                    self.push_signed(Section::Additional, node, rrset, node_owner(zone, node));
                }
            }
        }
    }

    fn push_name_servers(&mut self) {
        if let Some(ns) = self.zone.rrset(APEX, NS) {
            self.push_signed(Section::Authority, APEX, ns, Cow::Borrowed(&self.zone.origin));
        }
    }

    fn push_soa(&mut self) {
        let zone = self.zone;
        let Some(soa) = zone.rrset(APEX, SOA) else { return };
        let first = self.found.sections[Section::Authority as usize].len();
        self.push_signed(Section::Authority, APEX, soa, Cow::Borrowed(&zone.origin));
        let ttl = zone.negative_ttl();
        self.found.sections[Section::Authority as usize][first..].iter_mut().for_each(|part| part.ttl = ttl);
    }

    /// Proves that a name doesn't exist.
    fn prove(&mut self, name: &[u8]) {
        if self.dnssec
            && let Some(node) = self.zone.nsec_node(name)
        {
            self.push_nsec(node);
        }
    }

    fn push_nsec(&mut self, node: NodeId) {
        if !self.dnssec || self.proofs.contains(&node) {
            return;
        }
        if let Some(nsec) = self.zone.rrset(node, NSEC) {
            self.proofs.push(node);
            self.push_signed(Section::Authority, node, nsec, node_owner(self.zone, node));
        }
    }

    /// Adds an rrset and, for clients that want it, its signatures.
    fn push_signed(&mut self, section: Section, node: NodeId, rrset: usize, owner: Cow<'z, [u8]>) {
        let zone = self.zone;
        let signatures = self.dnssec.then(|| zone.signatures(node, zone.rrsets[rrset].rtype)).flatten();
        self.push(section, zone.part(rrset, owner.clone()));
        if let Some(signatures) = signatures {
            self.push(section, zone.part(signatures, owner));
        }
    }

    fn push(&mut self, section: Section, part: Part<'z>) {
        self.found.sections[section as usize].push(part);
    }
}

fn node_owner(zone: &Zone, node: NodeId) -> Cow<'_, [u8]> {
    Cow::Borrowed(zone.name(node))
}
