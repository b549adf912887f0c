//! Makes a zone of the records of its files.

use std::hash::BuildHasher;
use std::num::NonZeroU32;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use hickory_proto::rr::RecordType;

use super::data::{APEX, Node, NodeId, Rrset, Zone, canonical_order, data_at, is_below, parent};
use super::reader::FileRecord;
use crate::dns::message::validity::OutdatedFlag;

/// The maximum number of records of a zone.
pub(super) const MAX_RECORDS: usize = 1_000_000;
/// The maximum size of the names and the data of a zone, in bytes.
pub(super) const MAX_OCTETS: usize = 256 << 20;

/// The records of a zone that have been read so far.
#[derive(Debug)]
pub(super) struct ZoneBuilder {
    origin: Box<[u8]>,
    octets: Vec<u8>,
    nodes: Vec<Node>,
    /// Which kinds of records a node has, by the index of the node.
    kinds: Vec<Kinds>,
    by_name: HashTable<u32>,
    hasher: DefaultHashBuilder,
    records: Vec<Record>,
    /// The data of the SOA record.
    soa: Option<u32>,
    /// The owner of the last record.
    last: NodeId,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    /// The data of the CNAME record. A name precedes all data.
    cname: Option<NonZeroU32>,
    /// Whether there are records that can't stand beside a CNAME.
    has_other: bool,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    node: NodeId,
    rtype: u16,
    covered: u16,
    ttl: u32,
    data: u32,
}

impl ZoneBuilder {
    /// `origin` is in wire form, in lower case.
    pub(super) fn new(origin: &[u8]) -> Self {
        let mut builder = Self {
            origin: origin.into(),
            octets: Vec::new(),
            nodes: Vec::new(),
            kinds: Vec::new(),
            by_name: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            records: Vec::new(),
            soa: None,
            last: APEX,
        };
        builder.add_node(origin);
        builder
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Returns the reason why the record can't be in the zone.
    pub(super) fn add(&mut self, record: &FileRecord<'_>) -> Result<(), String> {
        if !is_below(record.owner, &self.origin) {
            return Err("its owner is outside the zone".to_owned());
        }
        if self.records.len() == MAX_RECORDS {
            return Err(format!("a zone has at most {MAX_RECORDS} records"));
        }
        let node = self.node(record.owner);
        let single = match record.rtype {
            // A zone in the form of a transfer ends with its SOA record again (RFC 5936 section 2.2).
            RecordType::SOA if node == APEX => {
                self.soa.map(|soa| is_same_soa(data_at(&self.octets, soa), record.data))
            }
            RecordType::CNAME => self.kinds[node.0 as usize]
                .cname
                .map(|cname| data_at(&self.octets, cname.get()).eq_ignore_ascii_case(record.data)),
            _ => None,
        };
        if let Some(is_same) = single {
            let other = format!("the name has another {} record already", record.rtype);
            return if is_same { Ok(()) } else { Err(other) };
        }
        let data = self.offset();
        self.check_kind(node, record.rtype, data)?;
        if record.rtype == RecordType::SIG && record.data.starts_with(&[0, 0]) {
            return Err(
                "a SIG record that covers no type belongs to a message (RFC 2931 section 3)".to_owned()
            );
        }
        let covered = match (record.rtype, record.data.first_chunk()) {
            (RecordType::RRSIG, Some(covered)) => u16::from_be_bytes(*covered),
            _ => 0,
        };
        if record.rtype == RecordType::SOA {
            self.soa = Some(data);
        }
        let length =
            u16::try_from(record.data.len()).map_err(|_| "its data has more than 65535 octets".to_owned())?;
        self.octets.extend(length.to_be_bytes());
        self.octets.extend(record.data);
        if self.octets.len() > MAX_OCTETS {
            return Err(format!("the names and the data of a zone have at most {MAX_OCTETS} bytes"));
        }
        self.records.push(Record { node, rtype: record.rtype.into(), covered, ttl: record.ttl, data });
        Ok(())
    }

    fn check_kind(&mut self, node: NodeId, rtype: RecordType, data: u32) -> Result<(), String> {
        let kinds = &mut self.kinds[node.0 as usize];
        match rtype {
            RecordType::SOA if node != APEX => return Err("only the origin has an SOA record".to_owned()),
            RecordType::NSEC3 | RecordType::NSEC3PARAM => {
                return Err("NSEC3 isn't supported; sign the zone with NSEC".to_owned());
            }
            // OPT, and what only queries and messages have (RFC 6895 section 3.1).
            _ if matches!(u16::from(rtype), 0 | 41 | 128..=255) => {
                return Err("no zone has records of this type".to_owned());
            }
            RecordType::CNAME => kinds.cname = NonZeroU32::new(data),
            // RFC 4034 section 3, RFC 4035 section 2.5.
            RecordType::RRSIG | RecordType::NSEC | RecordType::KEY => {}
            _ => kinds.has_other = true,
        }
        if kinds.cname.is_some() && kinds.has_other {
            return Err("a name with a CNAME record has no other records (RFC 1034 section 3.6.2)".to_owned());
        }
        Ok(())
    }

    /// Returns how much memory the zone takes, in bytes, with what it takes only while it is built.
    pub(super) fn bytes(&self) -> usize {
        const NAME: usize = size_of::<Node>() + size_of::<Kinds>() + 2 * size_of::<u32>();
        const RECORD: usize = size_of::<Record>() + size_of::<Rrset>() + size_of::<u32>();
        self.octets.len() + NAME * self.nodes.len() + RECORD * self.records.len()
    }

    fn offset(&self) -> u32 {
        // `MAX_OCTETS` is less than 4 GiB.
        u32::try_from(self.octets.len()).unwrap_or(u32::MAX)
    }

    /// Returns the node of a name at or below the origin. Adds it, and its ancestors, if they are missing.
    fn node(&mut self, name: &[u8]) -> NodeId {
        if self.nodes[self.last.0 as usize].name_in(&self.octets) == name {
            return self.last;
        }
        let (mut ancestor, mut node) = (name, None);
        loop {
            let (id, is_new) = self.add_node(ancestor);
            self.last = *node.get_or_insert(id);
            if !is_new {
                return self.last;
            }
            ancestor = parent(ancestor);
        }
    }

    /// Returns the node of a name, and whether it is new.
    fn add_node(&mut self, name: &[u8]) -> (NodeId, bool) {
        let Self { octets, nodes, by_name, hasher, .. } = self;
        let own = |node: u32| nodes[node as usize].name_in(octets);
        let entry = by_name.entry(
            hasher.hash_one(name),
            |node| own(*node) == name,
            |node| hasher.hash_one(own(*node)),
        );
        match entry {
            Entry::Occupied(entry) => (NodeId(*entry.get()), false),
            Entry::Vacant(entry) => {
                let id = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                entry.insert(id);
                let at = self.offset();
                // A name has at most 255 octets.
                let name_length = u8::try_from(name.len()).unwrap_or(u8::MAX);
                self.nodes.push(Node { name: at, name_length, first_rrset: 0 });
                self.kinds.push(Kinds::default());
                self.octets.extend(name);
                (NodeId(id), true)
            }
        }
    }

    /// Returns the zone.
    ///
    /// # Errors
    /// Returns what is missing.
    pub(super) fn build(mut self) -> Result<Zone, String> {
        self.records.sort_by_key(|record| (record.node.0, record.rtype, record.covered));
        let (mut rrsets, mut records) = (Vec::<Rrset>::new(), Vec::with_capacity(self.records.len()));
        let mut nodes = self.nodes;
        let mut next_node = 0;
        for same in self.records.chunk_by(|one, other| {
            (one.node, one.rtype, one.covered) == (other.node, other.rtype, other.covered)
        }) {
            let Record { node, rtype, covered, .. } = same[0];
            let index = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            while next_node <= node.0 as usize {
                nodes[next_node].first_rrset = index(rrsets.len());
                next_node += 1;
            }
            let first = records.len();
            let ttl = same.iter().map(|record| record.ttl).min().unwrap_or_default();
            rrsets.push(Rrset { rtype, covered, ttl, first_record: index(first) });
            add_distinct(&self.octets, same, &mut records);
        }
        let end = u32::try_from(rrsets.len()).unwrap_or(u32::MAX);
        nodes[next_node..].iter_mut().for_each(|node| node.first_rrset = end);
        rrsets.shrink_to_fit();
        records.shrink_to_fit();
        nodes.shrink_to_fit();
        self.octets.shrink_to_fit();
        let mut zone = Zone {
            origin: self.origin,
            octets: self.octets,
            nodes,
            rrsets,
            records,
            by_name: self.by_name,
            hasher: self.hasher,
            nsec_nodes: Vec::new(),
            outdated: OutdatedFlag::default(),
            memory: None,
        };
        if zone.rrset(APEX, RecordType::SOA.into()).is_none() {
            return Err("the zone has no SOA record at its origin".to_owned());
        }
        let all = (0..u32::try_from(zone.nodes.len()).unwrap_or(u32::MAX)).map(NodeId);
        let mut signed: Vec<NodeId> =
            all.filter(|node| zone.rrset(*node, RecordType::NSEC.into()).is_some()).collect();
        signed.sort_by(|one, other| canonical_order(zone.name(*one), zone.name(*other)));
        zone.nsec_nodes = signed;
        Ok(zone)
    }
}

/// Adds the data of an rrset, each once (RFC 2181 section 5).
fn add_distinct(octets: &[u8], same: &[Record], records: &mut Vec<u32>) {
    let data = |record: &Record| data_at(octets, record.data);
    if same.len() <= 8 {
        let first = records.len();
        for record in same {
            if records[first..].iter().all(|known| data_at(octets, *known) != data(record)) {
                records.push(record.data);
            }
        }
        return;
    }
    let mut seen = std::collections::HashSet::with_capacity(same.len());
    records.extend(same.iter().filter(|record| seen.insert(data(record))).map(|record| record.data));
}

/// Returns whether the data of two SOA records is the same: two names, and 20 octets of numbers.
pub(super) fn is_same_soa(one: &[u8], other: &[u8]) -> bool {
    let parts = |data: &'_ [u8]| {
        data.split_last_chunk::<20>().map(|(names, numbers)| (names.to_ascii_lowercase(), *numbers))
    };
    parts(one) == parts(other)
}
