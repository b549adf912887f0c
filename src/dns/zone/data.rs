//! A zone in memory, in a form without pointers: a record takes some 60 bytes beside its data.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::path::Path;

use hashbrown::{DefaultHashBuilder, HashTable};
use hickory_proto::rr::RecordType;
use smallvec::SmallVec;

use super::builder::ZoneBuilder;
use super::memory::Share;
use super::reader::{FileRecord, FileVersion, Reader, ZoneError};
use crate::dns::message::validity::OutdatedFlag;

/// The node of the origin.
pub(super) const APEX: NodeId = NodeId(0);

/// A zone, which never changes.
#[derive(Debug)]
pub struct Zone {
    /// In wire form, in lower case.
    pub(super) origin: Box<[u8]>,
    /// Names in wire form and in lower case, and data, each after its length in two octets.
    pub(super) octets: Vec<u8>,
    /// The names of the zone, among them those without records that have names below (empty non-terminals, RFC 8020
    /// section 1.1).
    pub(super) nodes: Vec<Node>,
    /// Rrsets, in the order of their nodes; those of a node in the order of their types.
    pub(super) rrsets: Vec<Rrset>,
    /// The offset of the data of each record in `octets`, in the order of `rrsets`.
    pub(super) records: Vec<u32>,
    pub(super) by_name: HashTable<u32>,
    pub(super) hasher: DefaultHashBuilder,
    /// The nodes with an NSEC record, in canonical order (RFC 4034 section 6.1).
    pub(super) nsec_nodes: Vec<NodeId>,
    /// Set when the zone is replaced, or isn't served any more.
    pub(super) outdated: OutdatedFlag,
    /// The part that a transferred zone has of the memory for such zones.
    pub(super) memory: Option<Share>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeId(pub(super) u32);

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// The name in `octets`, and its length.
    pub(super) name: u32,
    pub(super) name_length: u8,
    /// The node's first rrset; its last one precedes the first one of the next node.
    pub(super) first_rrset: u32,
}

/// Records of one owner and type; signatures of one owner and covered type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rrset {
    pub(super) rtype: u16,
    /// For signatures, the type that they cover; otherwise 0.
    pub(super) covered: u16,
    /// The lowest TTL of its records (RFC 2181 section 5.2).
    pub(super) ttl: u32,
    /// The first record; the last one precedes the first one of the next rrset.
    pub(super) first_record: u32,
}

impl Node {
    /// Returns the name, from the octets of the zone.
    pub(super) fn name_in(self, octets: &[u8]) -> &[u8] {
        &octets[self.name as usize..][..self.name_length.into()]
    }
}

impl Zone {
    /// Reads a zone from a file. `origin` is in wire form, in lower case. Also returns the versions of the files that
    /// were read; none if one of them couldn't be read.
    pub(in crate::dns) fn read(file: &Path, origin: &[u8]) -> (Result<Self, ZoneError>, Vec<FileVersion>) {
        let mut builder = ZoneBuilder::new(origin);
        let mut take = |record: FileRecord<'_>| builder.add(&record);
        let mut reader = Reader::new(&mut take);
        let read = reader.read(file, origin);
        let files = reader.files;
        let zone = read.and_then(|()| builder.build().map_err(|message| ZoneError::of_file(file, message)));
        (zone, files)
    }

    #[must_use]
    pub fn number_of_records(&self) -> usize {
        self.records.len()
    }

    /// Returns the size of a transferred zone in memory, in bytes.
    pub(in crate::dns) fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Share::bytes)
    }

    /// Returns the flag that outdates the answers made of the zone.
    pub(in crate::dns) fn outdated(&self) -> &OutdatedFlag {
        &self.outdated
    }

    /// Returns the serial of the SOA record.
    pub(in crate::dns) fn serial(&self) -> u32 {
        self.soa_number(5)
    }

    /// Returns the numbers REFRESH, RETRY and EXPIRE of the SOA record, in seconds (RFC 1035 section 3.3.13).
    pub(in crate::dns) fn timers(&self) -> [u32; 3] {
        [4, 3, 2].map(|from_last| self.soa_number(from_last))
    }

    /// Returns the TTL of the SOA record in a denial: the lesser of its own and of its MINIMUM field (RFC 2308 section
    /// 3).
    pub(super) fn negative_ttl(&self) -> u32 {
        let own = self.rrset(APEX, RecordType::SOA.into()).map_or(0, |soa| self.rrsets[soa].ttl);
        own.min(self.soa_number(1))
    }

    /// Returns one of the five numbers of the SOA record, counted from the last one.
    fn soa_number(&self, from_last: usize) -> u32 {
        let soa = self.rrset(APEX, RecordType::SOA.into());
        let data = soa.and_then(|soa| self.data_of(soa).next()).unwrap_or_default();
        let number = data.len().checked_sub(4 * from_last).and_then(|at| data[at..].first_chunk());
        number.map_or(0, |octets| u32::from_be_bytes(*octets))
    }

    /// Returns the node of a name, in wire form and in lower case.
    pub(super) fn node(&self, name: &[u8]) -> Option<NodeId> {
        let is_same = |node: &u32| self.name(NodeId(*node)) == name;
        self.by_name.find(self.hasher.hash_one(name), is_same).copied().map(NodeId)
    }

    pub(super) fn name(&self, node: NodeId) -> &[u8] {
        self.nodes[node.0 as usize].name_in(&self.octets)
    }

    /// Returns the indices of a node's rrsets.
    pub(super) fn rrsets_of(&self, node: NodeId) -> std::ops::Range<usize> {
        let first = |node: usize| self.nodes.get(node).map(|node| node.first_rrset as usize);
        let node = node.0 as usize;
        first(node).unwrap_or_default()..first(node + 1).unwrap_or(self.rrsets.len())
    }

    /// Returns the index of the rrset of a type that isn't RRSIG.
    pub(super) fn rrset(&self, node: NodeId, rtype: u16) -> Option<usize> {
        self.rrsets_of(node).find(|rrset| self.rrsets[*rrset].rtype == rtype)
    }

    /// Returns the index of the signatures of a type.
    pub(super) fn signatures(&self, node: NodeId, covered: u16) -> Option<usize> {
        let rrsig = u16::from(RecordType::RRSIG);
        self.rrsets_of(node).find(|rrset| {
            let Rrset { rtype, covered: own, .. } = self.rrsets[*rrset];
            rtype == rrsig && own == covered
        })
    }

    /// Returns the data of each record of an rrset.
    pub(super) fn data_of(&self, rrset: usize) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.records_of(rrset).iter().map(|at| data_at(&self.octets, *at))
    }

    /// Returns the offset of the data of each record of an rrset.
    pub(super) fn records_of(&self, rrset: usize) -> &[u32] {
        let first = |rrset: usize| self.rrsets.get(rrset).map(|rrset| rrset.first_record as usize);
        &self.records[first(rrset).unwrap_or_default()..first(rrset + 1).unwrap_or(self.records.len())]
    }

    /// Returns the node with the NSEC record that matches or covers a name, in wire form and in lower case.
    pub(super) fn nsec_node(&self, name: &[u8]) -> Option<NodeId> {
        let after = self.nsec_nodes.partition_point(|node| canonical_order(self.name(*node), name).is_le());
        after.checked_sub(1).map(|at| self.nsec_nodes[at])
    }
}

/// Returns the data at an offset, which its length precedes.
pub(super) fn data_at(octets: &[u8], at: u32) -> &[u8] {
    let (length, data) = octets[at as usize..].split_at(2);
    &data[..u16::from_be_bytes([length[0], length[1]]).into()]
}

/// Returns the labels of a name in wire form, without the root.
pub(super) fn labels(mut name: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = name.split_first().filter(|(length, _)| **length > 0)?;
        let (label, rest) = rest.split_at((*length).into());
        name = rest;
        Some(label)
    })
}

/// Compares two names in wire form and in lower case (RFC 4034 section 6.1).
pub(super) fn canonical_order(one: &[u8], other: &[u8]) -> Ordering {
    let [one, other] = [one, other].map(|name| labels(name).collect::<SmallVec<[&[u8]; 16]>>());
    one.iter().rev().cmp(other.iter().rev())
}

/// Returns whether a name is at or below another one; both are in wire form and in lower case.
pub(super) fn is_below(mut name: &[u8], zone: &[u8]) -> bool {
    while name.len() > zone.len() {
        name = &name[1 + usize::from(name[0])..];
    }
    name == zone
}

/// Returns the name without its first label.
pub(super) fn parent(name: &[u8]) -> &[u8] {
    &name[1 + usize::from(name[0])..]
}
