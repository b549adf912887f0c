//! Encodes decoded records.

use hickory_proto::ProtoError;
use hickory_proto::op::{Metadata, Query};
use hickory_proto::rr::{Name, Record};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use super::addresses;
use crate::dns::message::header::{HEADER, MIN_UDP};
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::sections::Sections;
use crate::model::names;

/// The largest offset of a compression pointer (RFC 1035 section 4.1.4).
const MAX_POINTER_OFFSET: usize = 0x3fff;
/// The size of type, class, TTL and data length of a record, in bytes (RFC 1035 section 4.1.3).
pub(in crate::dns::message) const FIXED: usize = 10;
/// The two bits that mark a compression pointer.
const POINTER_FLAG: u16 = 0xc000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordOffsets {
    /// The offsets of the records in the three sections, in order; records that didn't fit are missing.
    pub sections: [Vec<RecordOffset>; 3],
}

impl RecordOffsets {
    #[must_use]
    pub fn is_whole(&self, counts: [usize; 3]) -> bool {
        self.counts() == counts
    }

    pub(super) fn counts(&self) -> [usize; 3] {
        self.sections.each_ref().map(Vec::len)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOffset {
    pub start: usize,
    pub ttl: usize,
    /// The end of the record, exclusive.
    pub end: usize,
}

/// Encodes decoded records in at most `room` bytes, followed by the OPT record `opt`, which may be empty.
///
/// # Errors
/// If a record can't be encoded at any size.
pub(in crate::dns::message) fn encode_sections(
    metadata: &Metadata,
    sections: &Sections,
    question: &Query,
    opt: &[u8],
    room: usize,
) -> Result<(Vec<u8>, RecordOffsets), ProtoError> {
    if addresses::are_all(sections, question.name()) {
        return Ok(addresses::encode(metadata, sections, question, opt, room));
    }
    encode_any(metadata, sections, question, opt, room)
}

pub(super) fn encode_any(
    metadata: &Metadata,
    sections: &Sections,
    question: &Query,
    opt: &[u8],
    room: usize,
) -> Result<(Vec<u8>, RecordOffsets), ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.emit_vec(&[0; HEADER])?;
    question.emit(&mut encoder)?;
    let last = encoder.offset();
    let owner = Some((question.name(), HEADER));
    let mut writer = RecordWriter { encoder, room, end: last, full: false, owner };
    let mut offsets = RecordOffsets::default();
    for (records, offsets) in sections.all().into_iter().zip(&mut offsets.sections) {
        writer.section(records, offsets)?;
    }
    let last = writer.end;
    // Removes the record that didn't fit.
    bytes.truncate(last);
    end(&mut bytes, metadata, sections.counts(), &offsets, opt);
    Ok((bytes, offsets))
}

/// Returns room for a header, and the question.
pub(super) fn begin(question: &Query) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP));
    bytes.extend([0; HEADER]);
    question.name().iter().for_each(|label| names::push_label(label, &mut bytes));
    bytes.push(0);
    bytes.extend(u16::from(question.query_type()).to_be_bytes());
    bytes.extend(u16::from(question.query_class()).to_be_bytes());
    bytes
}

/// Writes the header of a message with these records, and appends the OPT record. `totals` are the numbers of records in
/// the whole reply.
pub(super) fn end(
    bytes: &mut Vec<u8>,
    metadata: &Metadata,
    totals: [usize; 3],
    offsets: &RecordOffsets,
    opt: &[u8],
) {
    let written = offsets.counts();
    let mut metadata = *metadata;
    // RFC 2181 section 9: authority records that accompany an answer may be left out without TC.
    metadata.truncation |= written[0] < totals[0] || written[0] == 0 && written[1] < totals[1];
    #[expect(clippy::cast_possible_truncation, reason = "64 KiB have fewer records")]
    let mut counts = written.map(|count| count as u16);
    counts[2] += u16::from(!opt.is_empty());
    bytes[..HEADER].copy_from_slice(&header(&metadata, counts));
    bytes.extend(opt);
}

/// Returns the header of a response (RFC 1035 section 4.1.1, with AD and CD of RFC 4035 section 3.2).
fn header(metadata: &Metadata, [answers, authorities, additionals]: [u16; 3]) -> [u8; HEADER] {
    const RESPONSE: u8 = 0x80;
    let flag = |is_set, bit: u8| u8::from(is_set) << bit;
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&metadata.id.to_be_bytes());
    header[2] = RESPONSE
        | u8::from(metadata.op_code) << 3
        | flag(metadata.authoritative, 2)
        | flag(metadata.truncation, 1)
        | flag(metadata.recursion_desired, 0);
    header[3] = flag(metadata.recursion_available, 7)
        | flag(metadata.authentic_data, 5)
        | flag(metadata.checking_disabled, 4)
        | metadata.response_code.low();
    for (place, count) in header[4..].chunks_exact_mut(2).zip([1, answers, authorities, additionals]) {
        place.copy_from_slice(&count.to_be_bytes());
    }
    header
}

struct RecordWriter<'a, 'n> {
    encoder: BinEncoder<'a>,
    room: usize,
    /// The end of the last record that fits.
    end: usize,
    full: bool,
    /// The owner of the previous record, and the offset of that name.
    owner: Option<(&'n Name, usize)>,
}

impl<'n> RecordWriter<'_, 'n> {
    /// Writes a section up to the first record that doesn't fit.
    fn section(&mut self, records: &'n [Record], offsets: &mut Vec<RecordOffset>) -> Result<(), ProtoError> {
        for record in records {
            if self.full {
                break;
            }
            let offset = match self.record(record) {
                Ok(offset) => Some(offset),
                // The message has reached 64 KiB.
                Err(ProtoError::MaxBufferSizeExceeded(_)) => None,
                Err(error) => return Err(error),
            };
            let Some(offset) = offset.filter(|offset| offset.end <= self.room) else {
                self.full = true;
                break;
            };
            self.end = offset.end;
            offsets.push(offset);
        }
        Ok(())
    }

    /// Returns the offset of the name written at `start`, or the target of that name if the name is only a compression
    /// pointer.
    fn pointed_at(&self, start: usize) -> usize {
        match *self.encoder.slice_of(start, self.encoder.offset()) {
            [high, low] if u16::from_be_bytes([high, low]) >= POINTER_FLAG => {
                usize::from(u16::from_be_bytes([high, low]) - POINTER_FLAG)
            }
            _ => start,
        }
    }

    /// Writes a record. The encoder searches only about the first hundred names for compression, so the owner of a long
    /// rrset is compressed here.
    fn record(&mut self, record: &'n Record) -> Result<RecordOffset, ProtoError> {
        let start = self.encoder.offset();
        match self.owner {
            Some((name, offset))
                if offset <= MAX_POINTER_OFFSET && same_spelling(name, &record.name) && !name.is_root() =>
            {
                #[expect(clippy::cast_possible_truncation, reason = "it has fourteen bits")]
                self.encoder.emit_u16(POINTER_FLAG | offset as u16)?;
            }
            _ => {
                record.name.emit(&mut self.encoder)?;
                self.owner = Some((&record.name, self.pointed_at(start)));
            }
        }
        record.record_type().emit(&mut self.encoder)?;
        record.dns_class.emit(&mut self.encoder)?;
        let ttl = self.encoder.offset();
        self.encoder.emit_u32(record.ttl)?;
        let place = self.encoder.place::<u16>()?;
        record.data.emit(&mut self.encoder)?;
        let length =
            u16::try_from(self.encoder.len_since_place(&place)).map_err(|error| error.to_string())?;
        place.replace(&mut self.encoder, length)?;
        Ok(RecordOffset { start, ttl, end: self.encoder.offset() })
    }
}
