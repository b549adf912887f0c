//! A reply in wire form: an upstream's message, validated and indexed once. Its records are passed on without being
//! decoded; they are decoded when a plugin has to look into them.

mod decode;
mod index;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

use std::borrow::Cow;
use std::ops::Range;

use hickory_proto::op::{Metadata, Query};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use smallvec::SmallVec;

use super::address_range::AddressRange;
use super::alias::is_alias_type;
use super::compress::{CompressingWriter, FIXED, RecordOffset};
use super::encode::typed::encode_sections;
use super::header::{HEADER, QUESTION_NAME, question};
use super::rrsig::ValidityPeriod;
use super::sections::Sections;
use super::validity::Section;
use super::wire_name::{self, MalformedName, RdataForm, RdataPart, WireName};
use crate::dns::message::presentation::names::same_spelling;
use crate::model::names;

const OPT: u16 = 41;
const SIG: u16 = 24;
const TSIG: u16 = 250;

/// A validated reply in wire form, without its OPT record and without records whose owner is malformed, or whose data has
/// malformed names that are compressed.
#[derive(Clone, Debug)]
pub struct WireMessage {
    /// The header's fields, with the extended rcode (RFC 6891 section 6.1.3).
    pub metadata: Metadata,
    /// The extended errors of the OPT record (RFC 8914).
    pub extended_errors: Box<[EdnsOption]>,
    /// Most messages need no other allocation.
    bytes: SmallVec<[u8; 88]>,
    records: SmallVec<[WireRecord; 2]>,
    /// The ends of the three sections in `records`.
    section_ends: [u16; 3],
    /// The end of the question.
    question_end: u16,
    /// The size up to the end of each section without name compression, in bytes.
    uncompressed: [u32; 3],
}

/// The offsets of a record, as in [`RecordOffset`], in 6 bytes.
#[derive(Clone, Copy, Debug)]
struct WireRecord {
    start: u16,
    /// The offset of the TTL; type and class precede it.
    ttl: u16,
    end: u16,
}

/// The reason why a reply isn't accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("its question can't be read")]
    Question,
    #[error("it ends within a record")]
    Cut,
    #[error("the owner of a record has a label of an unknown kind")]
    Owner,
    #[error("it is incomplete without the records whose names are malformed")]
    Incomplete,
    #[error("it has two OPT records, or one that isn't at the root")]
    Opt,
    #[error("it is signed with TSIG or SIG(0), which no query asked for")]
    Signed,
    #[error("it exceeds 64 KiB once the names that mustn't be compressed are written in full")]
    TooLong,
}

/// What an answer or a denial lacks because a record was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Missing {
    Nothing,
    /// A record of the authority section, or of another type.
    Other,
    /// A record of the question's type.
    Asked,
    Alias,
}

/// Whether a message has to be written anew before it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rewrite {
    None,
    /// Only for the spelling, and only if the message doesn't grow: the owner of a record equals the question's name, but
    /// isn't a pointer to it.
    Spelling,
    /// The OPT record precedes other records, a name is compressed that mustn't be compressed (RFC 3597 section 4), or
    /// a record is removed.
    Necessary,
}

impl WireMessage {
    /// Validates and indexes a reply with one question.
    ///
    /// # Errors
    /// If the reply is malformed, or isn't acceptable.
    pub fn new(message: &[u8]) -> Result<Self, WireError> {
        let (indexed, rewrite) = Self::index(message, question(message).ok_or(WireError::Question)?)?;
        match rewrite {
            Rewrite::None => Ok(indexed),
            Rewrite::Spelling => {
                let is_no_longer = |rewritten: &Self| rewritten.bytes.len() <= indexed.bytes.len();
                Ok(indexed.rewritten().filter(is_no_longer).unwrap_or(indexed))
            }
            Rewrite::Necessary => indexed.rewritten().ok_or(WireError::TooLong),
        }
    }

    /// Reads a reply without a question, as the reply to `query`. Its records and TC are dropped.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub(super) fn without_question(message: &[u8], query: &[u8]) -> Result<Self, WireError> {
        let (Self { mut metadata, extended_errors, .. }, _) = Self::index(message, &[])?;
        metadata.truncation = false;
        let question = question(query).ok_or(WireError::Question)?;
        let bytes = SmallVec::from_vec([&[0; HEADER][..], question].concat());
        let end = u16::try_from(bytes.len()).map_err(|_| WireError::Question)?;
        Ok(Self {
            metadata,
            extended_errors,
            bytes,
            records: SmallVec::new(),
            section_ends: [0; 3],
            question_end: end,
            uncompressed: [end.into(); 3],
        })
    }

    /// Reads the whole records of a truncated reply, which may end within a record, and sets TC. Without the records that
    /// can't be used the rest might mislead: then no record is used.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub(super) fn truncated(message: &[u8]) -> Result<Self, WireError> {
        let question_end = HEADER + question(message).ok_or(WireError::Question)?.len();
        let (mut whole, mut end) = (message.to_vec(), question_end);
        for count in whole[6..HEADER].chunks_exact_mut(2) {
            let number = u16::from_be_bytes([count[0], count[1]]);
            let mut kept = 0_u16;
            while kept < number
                && let Some(record_end) = record_end(message, end)
            {
                (kept, end) = (kept + 1, record_end);
            }
            count.copy_from_slice(&kept.to_be_bytes());
        }
        whole.truncate(end);
        let mut read = Self::new(&whole);
        if read.as_ref().is_err_and(|error| *error == WireError::Incomplete) {
            whole[6..HEADER].fill(0);
            whole.truncate(question_end);
            read = Self::new(&whole);
        }
        read.map(|mut message| {
            message.metadata.truncation = true;
            message
        })
    }

    /// Returns the message with all names compressed anew, as far as they may be compressed; `None` if it exceeds 64
    /// KiB.
    fn rewritten(&self) -> Option<Self> {
        let question = self.question_octets();
        let mut writer = CompressingWriter::new(question);
        for record in &self.records {
            self.rewrite(record, None, &mut writer, u16::MAX.into())?;
        }
        let counts = Section::ALL.map(|section| self.count(section));
        writer.bytes[5] = 1;
        for (field, count) in writer.bytes[6..HEADER].chunks_exact_mut(2).zip(counts) {
            field.copy_from_slice(&u16::try_from(count).ok()?.to_be_bytes());
        }
        let (rewritten, _) = Self::index(&writer.bytes, question).ok()?;
        let is_complete = rewritten.section_ends == self.section_ends;
        let errors = self.extended_errors.clone();
        is_complete.then_some(Self { metadata: self.metadata, extended_errors: errors, ..rewritten })
    }

    pub(super) fn question_octets(&self) -> &[u8] {
        &self.bytes[HEADER..self.question_end.into()]
    }

    /// Adds a record to `writer`, with its names compressed anew. An owner that equals the name in the question gets its
    /// spelling; `ttl` replaces the TTL, in seconds. Returns `None`, and adds nothing, if the message would exceed `room`
    /// bytes.
    fn rewrite(
        &self,
        record: &WireRecord,
        ttl: Option<u32>,
        writer: &mut CompressingWriter,
        room: usize,
    ) -> Option<RecordOffset> {
        let question = self.question_octets();
        let name = &question[..question.len() - 4];
        let mut owner = Vec::with_capacity(name.len());
        self.read_name(record.start.into(), |label| names::push_label(label, &mut owner)).ok()?;
        owner.push(0);
        if owner.eq_ignore_ascii_case(name) {
            owner.copy_from_slice(name);
        }
        let mut fixed: [u8; FIXED - 2] = self.octets_at(record.fixed_start());
        if let Some(ttl) = ttl {
            fixed[4..].copy_from_slice(&ttl.to_be_bytes());
        }
        writer.record(&owner, fixed, &self.expand(&self.bytes, record), room)
    }

    fn read_name(&self, at: usize, label: impl FnMut(&[u8])) -> Result<WireName, MalformedName> {
        let is_stable = |range| never_changes(&self.bytes, &self.records, self.question_end.into(), range);
        wire_name::read(&self.bytes, at, is_stable, label)
    }

    /// Returns records in wire form; `None` if they don't fit into 64 KiB, or can't be encoded.
    #[must_use]
    pub fn of_sections(
        metadata: &Metadata,
        sections: &Sections,
        question: &Query,
        extended_errors: &[EdnsOption],
    ) -> Option<Self> {
        let name = question.name();
        // An owner that equals the question's name has to be a pointer to it, so that each client gets its own
        // spelling.
        let mut sections = Cow::Borrowed(sections);
        let has_other_spelling = |record: &Record| record.name == *name && !same_spelling(&record.name, name);
        if sections.all().into_iter().flatten().any(has_other_spelling) {
            let records = sections.to_mut().all_mut().into_iter().flatten();
            records
                .filter(|record| has_other_spelling(record))
                .for_each(|record| record.name.clone_from(name));
        }
        let (bytes, offsets) =
            encode_sections(metadata, &sections, question, &[], usize::from(u16::MAX)).ok()?;
        if !offsets.is_whole(sections.counts()) {
            return None;
        }
        let encoded = Self::new(&bytes).ok()?;
        Some(Self { metadata: *metadata, extended_errors: extended_errors.into(), ..encoded })
    }

    /// Returns the question, as the upstream has spelled it.
    #[must_use]
    pub fn question(&self) -> Option<Query> {
        Query::read(&mut BinDecoder::new(&self.bytes).clone(u16::try_from(HEADER).ok()?)).ok()
    }

    /// Returns whether the question of this message is spelled as `question`; `None` unless it is the same question,
    /// whatever the case of its name (RFC 4343 section 3).
    pub(super) fn spells(&self, question: &Query) -> Option<bool> {
        let fixed = usize::from(self.question_end) - 4;
        let numbers = [question.query_type().into(), question.query_class().into()].map(u16::to_be_bytes);
        if self.bytes[fixed..fixed + 4] != *numbers.as_flattened() {
            return None;
        }
        let is_spelled = self.is_spelled(question.name());
        let is_same = is_spelled || has_name_in_any_case(&self.bytes[HEADER..fixed - 1], question.name());
        is_same.then_some(is_spelled)
    }

    /// Returns whether the question has exactly the spelling of a name.
    pub(super) fn is_spelled(&self, name: &Name) -> bool {
        let own = &self.bytes[HEADER..usize::from(self.question_end) - 5];
        has_labels(own, name, |own, label| own == label)
    }

    /// Returns the number of records in a section.
    #[must_use]
    pub fn count(&self, section: Section) -> usize {
        self.records_in(section).len()
    }

    fn records_in(&self, section: Section) -> &[WireRecord] {
        let [answers, authorities, additionals] = self.section_ends.map(usize::from);
        match section {
            Section::Answer => &self.records[..answers],
            Section::Authority => &self.records[answers..authorities],
            Section::Additional => &self.records[authorities..additionals],
        }
    }

    /// Returns whether a section has a record of a type.
    #[must_use]
    pub fn has(&self, section: Section, rtype: RecordType) -> bool {
        self.types(section).any(|own| own == rtype)
    }

    /// Returns the types of the records in a section.
    pub fn types(&self, section: Section) -> impl Iterator<Item = RecordType> {
        self.records_in(section).iter().map(|record| self.rtype(record))
    }

    fn rtype(&self, record: &WireRecord) -> RecordType {
        let [high, low] = self.octets_at(record.fixed_start());
        u16::from_be_bytes([high, low]).into()
    }

    /// Returns whether a record is an alias, or the signature of one.
    fn is_alias(&self, record: &WireRecord) -> bool {
        match (self.rtype(record), self.rdata(record).first_chunk()) {
            (RecordType::RRSIG, Some(covered)) => is_alias_type(u16::from_be_bytes(*covered).into()),
            (rtype, _) => is_alias_type(rtype),
        }
    }

    fn octets_at<const LENGTH: usize>(&self, at: usize) -> [u8; LENGTH] {
        self.bytes[at..].first_chunk().copied().unwrap_or([0; LENGTH])
    }

    /// Returns the lowest TTL of all records in seconds; `None` without records.
    #[must_use]
    pub fn lowest_ttl(&self) -> Option<u32> {
        self.records.iter().map(|record| u32::from_be_bytes(self.octets_at(record.ttl.into()))).min()
    }

    /// Returns whether a signature in the sections up to `last` is cut, or isn't valid at `now` (RFC 4035 section
    /// 5.3.1).
    pub(crate) fn has_invalid_signature(&self, last: Section, now: u32) -> bool {
        let sections = Section::ALL.into_iter().filter(|section| *section <= last);
        let mut records = sections.flat_map(|section| self.records_in(section));
        let is_valid =
            |record| ValidityPeriod::parse(self.rdata(record)).is_some_and(|period| period.holds(now));
        records.any(|record| self.rtype(record) == RecordType::RRSIG && !is_valid(record))
    }

    /// Returns how long a denial may be kept, in seconds: the lesser of the TTL of its SOA record and the MINIMUM field of
    /// this record (RFC 2308 section 5). `None` without an SOA record in the authority section.
    pub(crate) fn negative_ttl(&self) -> Option<u32> {
        /// The two names of the data have at least an octet each, and five numbers follow; MINIMUM is the last one.
        const MIN_SOA: usize = 2 + 5 * 4;
        let records = self.records_in(Section::Authority).iter();
        let soas = records.filter(|record| self.rtype(record) == RecordType::SOA);
        let ttls = soas.map(|record| {
            let data = self.rdata(record);
            let minimum = data.last_chunk().filter(|_| data.len() >= MIN_SOA).copied();
            let ttl = u32::from_be_bytes(self.octets_at(record.ttl.into()));
            minimum.map_or(ttl, |minimum| ttl.min(effective_ttl(u32::from_be_bytes(minimum))))
        });
        ttls.min()
    }

    fn rdata(&self, record: &WireRecord) -> &[u8] {
        &self.bytes[record.data()]
    }

    /// Returns whether the answer section has a record of the question's type at the question's name, and no CNAME.
    pub(crate) fn has_direct_answer(&self) -> bool {
        let fixed = self.octets_at::<4>(usize::from(self.question_end) - 4);
        let answers = self.records_in(Section::Answer);
        let is_direct = |record: &WireRecord| {
            // The owner is a pointer to the question, or both are the root.
            let owner = self.octets_at::<2>(record.start.into());
            (owner == QUESTION_NAME || owner[0] == 0 && self.bytes[HEADER] == 0)
                && self.octets_at(record.fixed_start()) == fixed
        };
        answers.iter().any(is_direct) && answers.iter().all(|record| self.rtype(record) != RecordType::CNAME)
    }

    /// Returns the size of the records up to the end of a section in bytes as CoreDNS counts it: without name
    /// compression.
    pub(super) fn uncompressed_length(&self, last: Section) -> usize {
        self.uncompressed[last as usize] as usize - usize::from(self.question_end)
    }

    /// Returns the size up to the end of a section in bytes, without OPT.
    pub(super) fn length(&self, last: Section) -> usize {
        let number = usize::from(self.section_ends[last as usize]);
        self.records[..number].last().map_or(self.question_end, |record| record.end).into()
    }

    /// Returns the size in memory, in bytes.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        /// The approximate size of an option's data on the heap, in bytes.
        const OPTION_ALLOCATION: usize = 64;
        let errors: usize =
            self.extended_errors.iter().map(|error| size_of_val(error) + OPTION_ALLOCATION).sum();
        let bytes = if self.bytes.spilled() { self.bytes.len() } else { 0 };
        size_of::<Self>() + bytes + size_of_val(&*self.records) + errors
    }

    /// Returns the message up to the end of a section.
    pub(super) fn until(&self, last: Section) -> Self {
        let number = self.section_ends[last as usize];
        let length = self.uncompressed[last as usize];
        Self {
            metadata: self.metadata,
            extended_errors: self.extended_errors.clone(),
            bytes: self.bytes[..self.length(last)].into(),
            records: self.records[..number.into()].into(),
            section_ends: self.section_ends.map(|end| end.min(number)),
            question_end: self.question_end,
            uncompressed: self.uncompressed.map(|size| size.min(length)),
        }
    }

    /// Appends the records to `out`, which contains the header and the question, up to the end of the section `last` or
    /// to the first record that doesn't fit. `ttl` replaces all TTLs, in seconds; `room` is the maximum size of the
    /// message without OPT, in bytes. The question has to have the same length as this message's. Returns the offsets
    /// of the records.
    pub(super) fn write_records(
        &self,
        out: &mut Vec<u8>,
        ttl: Option<u32>,
        last: Section,
        room: usize,
    ) -> [Vec<RecordOffset>; 3] {
        let mut full = false;
        let mut end = usize::from(self.question_end);
        let written = Section::ALL.map(|section| {
            let records = if full || section > last { &[] } else { self.records_in(section) };
            let fitting = records.iter().take_while(|record| usize::from(record.end) <= room);
            let offsets: Vec<RecordOffset> = fitting.map(|record| RecordOffset::from(*record)).collect();
            full |= offsets.len() < records.len();
            end = offsets.last().map_or(end, |offset| offset.end);
            offsets
        });
        out.extend(&self.bytes[usize::from(self.question_end)..end]);
        if let Some(ttl) = ttl {
            for offset in written.iter().flatten() {
                out[offset.ttl..offset.ttl + 4].copy_from_slice(&ttl.to_be_bytes());
            }
        }
        written
    }

    /// Returns whether the aliases of the answer section precede its other records.
    pub(super) fn has_aliases_first(&self) -> bool {
        self.records_in(Section::Answer).is_sorted_by_key(|record| !self.is_alias(record))
    }

    /// Appends the records of the answer section to `out`, as [`Self::write_records`] does, but the aliases first. Returns
    /// the offsets of the records.
    pub(super) fn write_aliases_first(
        &self,
        out: &mut Vec<u8>,
        ttl: Option<u32>,
        room: usize,
    ) -> Vec<RecordOffset> {
        let answers = self.records_in(Section::Answer).iter();
        let aliases = answers.clone().filter(|record| self.is_alias(record));
        let others = answers.filter(|record| !self.is_alias(record));
        // The writer has the upstream's spelling of the question, so that the same names are compressed for each
        // client's spelling in `out`.
        let mut writer = CompressingWriter::new(self.question_octets());
        let rewrite = |record| self.rewrite(record, ttl, &mut writer, room);
        let offsets = aliases.chain(others).map_while(rewrite).collect();
        out.extend(&writer.bytes[self.question_end.into()..]);
        offsets
    }

    /// Returns whether the message has addresses or mail exchangers.
    pub(super) fn has_addresses_or_exchangers(&self) -> bool {
        let mut types = self.records.iter().map(|record| self.rtype(record));
        types.any(|rtype| is_address(rtype) || rtype == RecordType::MX)
    }

    /// Returns the message with its addresses in random order, and their number; `None` if the answer section isn't
    /// CNAME records followed by addresses of one name and one family, if the authority section has addresses, or if
    /// the additional section isn't empty.
    pub(super) fn with_shuffled_addresses(&self) -> Option<(Self, usize)> {
        let answers = self.records_in(Section::Answer);
        let first = answers.iter().position(|record| is_address(self.rtype(record))).unwrap_or(answers.len());
        let (aliases, addresses) = answers.split_at(first);
        let is_in_order = aliases.iter().all(|record| self.rtype(record) == RecordType::CNAME)
            && !self.types(Section::Authority).any(is_address)
            && self.count(Section::Additional) == 0;
        if !is_in_order {
            return None;
        }
        let mut shuffled = self.clone();
        if addresses.len() > 1 {
            let offsets: Vec<RecordOffset> = addresses.iter().map(|record| (*record).into()).collect();
            AddressRange::of(&self.bytes, &offsets)?.shuffle(&mut shuffled.bytes, &mut rand::rng())?;
        }
        Some((shuffled, addresses.len()))
    }

    /// Passes the parts of a record's data to `part`; `bytes` are those of the message, perhaps with another spelling.
    fn read_rdata(
        &self,
        bytes: &[u8],
        record: &WireRecord,
        part: impl FnMut(RdataPart<'_>),
    ) -> Result<RdataForm, MalformedName> {
        let is_stable = |range| never_changes(bytes, &self.records, self.question_end.into(), range);
        wire_name::read_rdata(bytes, self.rtype(record).into(), record.data(), is_stable, part)
    }

    /// Returns the data of a record with its names in full; data with a malformed name stays unchanged.
    fn expand(&self, bytes: &[u8], record: &WireRecord) -> Vec<u8> {
        let mut expanded = Vec::new();
        match self.read_rdata(bytes, record, |part| part.write(&mut expanded)) {
            Ok(_) => expanded,
            Err(_) => self.rdata(record).to_vec(),
        }
    }
}

impl WireRecord {
    /// Returns the offsets in 6 bytes; `None` if they exceed 64 KiB.
    fn of(RecordOffset { start, ttl, end }: RecordOffset) -> Option<Self> {
        let [start, ttl, end] = [start, ttl, end].map(u16::try_from);
        Some(Self { start: start.ok()?, ttl: ttl.ok()?, end: end.ok()? })
    }

    /// Returns the offset of the fixed fields: type, class, TTL and length of the data.
    fn fixed_start(self) -> usize {
        usize::from(self.ttl) - 4
    }

    /// Returns the range of the data, which the fixed fields precede.
    fn data(self) -> Range<usize> {
        self.fixed_start() + FIXED..self.end.into()
    }
}

impl From<WireRecord> for RecordOffset {
    fn from(WireRecord { start, ttl, end }: WireRecord) -> Self {
        Self { start: start.into(), ttl: ttl.into(), end: end.into() }
    }
}

/// Returns the effective TTL: a TTL with the top bit set is zero (RFC 2181 section 8).
pub(crate) fn effective_ttl(ttl: u32) -> u32 {
    if i32::try_from(ttl).is_ok() { ttl } else { 0 }
}

/// Returns the end of the record at an offset; `None` if the message ends before it, or if its owner is malformed.
fn record_end(message: &[u8], start: usize) -> Option<usize> {
    let data = wire_name::end(message, start)? + FIXED;
    let length: &[u8; 2] = message.get(data - 2..)?.first_chunk()?;
    let end = data + usize::from(u16::from_be_bytes(*length));
    (end <= message.len()).then_some(end)
}

/// Returns whether no octet of a range changes when the message is passed on. The fixed fields of a record count as
/// changing because of the TTL, and the data of address records because addresses are shuffled.
fn never_changes(message: &[u8], records: &[WireRecord], question_end: usize, range: Range<usize>) -> bool {
    if range.end <= question_end {
        return true;
    }
    let first = records.partition_point(|record| usize::from(record.end) <= range.start);
    records[first..].iter().take_while(|record| usize::from(record.start) < range.end).all(|record| {
        let fixed = record.fixed_start();
        let rtype = [message[fixed], message[fixed + 1]];
        let is_address = is_address(u16::from_be_bytes(rtype).into());
        let end = if is_address { record.end.into() } else { record.data().start };
        range.end <= fixed || end <= range.start
    })
}

/// Returns whether the name at an offset equals an uncompressed name, whatever the case.
fn has_name(message: &[u8], at: usize, name: &[u8]) -> bool {
    let mut own = Vec::with_capacity(name.len());
    let read = wire_name::read(message, at, |_| true, |label| names::push_label(label, &mut own));
    own.push(0);
    // Length octets are at most 63, so they are never letters.
    read.is_ok() && own.eq_ignore_ascii_case(name)
}

/// Returns whether a name in wire form without the root octet equals a name, whatever the case.
pub(super) fn has_name_in_any_case(wire: &[u8], name: &Name) -> bool {
    // Mostly the case is the same, which is faster to see.
    has_labels(wire, name, |own, label| own == label || own.eq_ignore_ascii_case(label))
}

/// Returns whether a name in wire form without the root octet has the same labels as a name, by `is_same`.
fn has_labels(mut wire: &[u8], name: &Name, is_same: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    name.iter().all(|label| {
        let own = wire.split_first().and_then(|(length, labels)| labels.split_at_checked((*length).into()));
        own.is_some_and(|(own, rest)| {
            wire = rest;
            is_same(own, label)
        })
    }) && wire.is_empty()
}

/// Returns the record type at an offset.
fn rtype_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|octets| u16::from_be_bytes(*octets))
}

fn is_address(rtype: RecordType) -> bool {
    matches!(rtype, RecordType::A | RecordType::AAAA)
}
