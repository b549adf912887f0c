//! Writes messages with compressed names (RFC 1035 section 4.1.4).
//!
//! hickory-proto stops compressing after some hundred names, so a long reply that it encodes could exceed 64 KiB.

use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::header::HEADER;
use super::wire_name::{RdataPart, read_rdata};
use crate::model::names;

/// The size of type, class, TTL and data length of a record, in bytes (RFC 1035 section 4.1.3).
pub(super) const FIXED: usize = 10;
/// The two bits that mark a compression pointer. The other fourteen are the offset of a name.
const POINTER_FLAG: u16 = 0xc000;
const MAX_POINTER_OFFSET: u16 = !POINTER_FLAG;

/// The offsets of a record in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOffset {
    /// The start of the owner.
    pub start: usize,
    /// The TTL; type and class precede it.
    pub ttl: usize,
    /// The end of the record, exclusive.
    pub end: usize,
}

/// Returns type, class and TTL of a record.
pub(super) fn fixed(rtype: u16, class: u16, ttl: u32) -> [u8; FIXED - 2] {
    let ([t0, t1], [c0, c1], [l0, l1, l2, l3]) =
        (rtype.to_be_bytes(), class.to_be_bytes(), ttl.to_be_bytes());
    [t0, t1, c0, c1, l0, l1, l2, l3]
}

/// A message to which records are added.
pub(super) struct CompressingWriter {
    pub(super) bytes: Vec<u8>,
    /// The names written so far, and their suffixes.
    names: HashTable<WrittenName>,
    hasher: DefaultHashBuilder,
}

/// A name in a message.
#[derive(Clone, Copy)]
struct WrittenName {
    hash: u64,
    offset: u16,
}

impl CompressingWriter {
    /// Returns a writer that continues a message after its question.
    pub(super) fn new(question: &[u8]) -> Self {
        /// Enough for most messages.
        const BYTES: usize = 512;
        const NAMES: usize = 14;
        let name = question.len() - 4;
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.resize(HEADER, 0);
        let names = HashTable::with_capacity(NAMES);
        let mut writer = Self { bytes, names, hasher: DefaultHashBuilder::default() };
        writer.name(&question[..name], true);
        writer.bytes.extend(&question[name..]);
        writer
    }

    /// Adds a record. Owner and data are given without compression, `fixed` is type, class and TTL. Names in data that
    /// is malformed aren't compressed. Returns `None`, and adds nothing, if the message would exceed `room` bytes.
    pub(super) fn record(
        &mut self,
        owner: &[u8],
        fixed: [u8; FIXED - 2],
        rdata: &[u8],
        room: usize,
    ) -> Option<RecordOffset> {
        let start = self.bytes.len();
        self.name(owner, true);
        let ttl = self.bytes.len() + 4;
        self.bytes.extend(fixed);
        self.bytes.extend([0; 2]);
        let data = self.bytes.len();
        let rtype = u16::from_be_bytes([fixed[0], fixed[1]]);
        if read_rdata(rdata, rtype, 0..rdata.len(), |_| true, |_| {}).is_ok() {
            let mut name = Vec::new();
            let _ = read_rdata(
                rdata,
                rtype,
                0..rdata.len(),
                |_| true,
                |part| match part {
                    RdataPart::Octets(octets) => self.bytes.extend(octets),
                    RdataPart::Label(label) => names::push_label(label, &mut name),
                    RdataPart::EndOfName { may_compress } => {
                        name.push(0);
                        self.name(&name, may_compress);
                        name.clear();
                    }
                },
            );
        } else {
            self.bytes.extend(rdata);
        }
        let end = self.bytes.len();
        let length = u16::try_from(end - data).ok().filter(|_| end <= room);
        let Some(length) = length else {
            self.bytes.truncate(start);
            self.names.retain(|name| usize::from(name.offset) < start);
            return None;
        };
        self.bytes[data - 2..data].copy_from_slice(&length.to_be_bytes());
        Some(RecordOffset { start, ttl, end })
    }

    /// Writes a name, given in wire form.
    fn name(&mut self, mut name: &[u8], may_compress: bool) {
        let Self { bytes, names, hasher } = self;
        while name.len() > 1 {
            let hash = hasher.hash_one(name);
            let is_same =
                |other: &WrittenName| other.hash == hash && is_name_at(bytes, other.offset.into(), name);
            let offset = u16::try_from(bytes.len()).ok().filter(|offset| *offset <= MAX_POINTER_OFFSET);
            match (names.entry(hash, is_same, |other| other.hash), offset) {
                (Entry::Occupied(written), _) if may_compress => {
                    bytes.extend((POINTER_FLAG | written.get().offset).to_be_bytes());
                    return;
                }
                (Entry::Vacant(free), Some(offset)) => _ = free.insert(WrittenName { hash, offset }),
                _ => {}
            }
            let (label, rest) = name.split_at(1 + usize::from(name[0]));
            bytes.extend(label);
            name = rest;
        }
        bytes.push(0);
    }
}

/// Returns whether a message has this name, given in wire form, at an offset. Case matters.
fn is_name_at(message: &[u8], mut at: usize, mut name: &[u8]) -> bool {
    loop {
        match message.get(at..) {
            Some([high, low, ..]) if u16::from_be_bytes([*high, *low]) >= POINTER_FLAG => {
                at = (u16::from_be_bytes([*high, *low]) & MAX_POINTER_OFFSET).into();
            }
            Some([0, ..]) => return name == [0],
            Some([length, rest @ ..]) if rest.len() >= usize::from(*length) => {
                let label = &message[at..=at + usize::from(*length)];
                let Some(after) = name.strip_prefix(label) else { return false };
                (name, at) = (after, at + label.len());
            }
            _ => return false,
        }
    }
}
