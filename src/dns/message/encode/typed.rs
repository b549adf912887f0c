//! Encodes decoded records.

use hickory_proto::ProtoError;
use hickory_proto::op::{Metadata, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder, NameEncoding};

use crate::dns::message::compress::{CompressingWriter, RecordOffset, fixed};
use crate::dns::message::header::{HEADER, MIN_UDP};
use crate::dns::message::sections::Sections;
use crate::model::names;

/// The offsets of the records in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordOffsets {
    /// The records of the three sections, in order; records that didn't fit are missing.
    pub sections: [Vec<RecordOffset>; 3],
    /// Whether the records of the answer section have another order than in the reply.
    pub is_reordered: bool,
}

impl RecordOffsets {
    /// Returns whether the message has all records of sections with these sizes.
    #[must_use]
    pub fn is_whole(&self, counts: [usize; 3]) -> bool {
        self.counts() == counts
    }

    pub(super) fn counts(&self) -> [usize; 3] {
        self.sections.each_ref().map(Vec::len)
    }
}

/// Encodes decoded records in at most `room` bytes, followed by the OPT record `opt`, which may be empty.
///
/// # Errors
/// If a record's data can't be encoded. Data of more than 64 KiB is no error: the record doesn't fit.
pub(in crate::dns::message) fn encode_sections(
    metadata: &Metadata,
    sections: &Sections,
    question: &Query,
    opt: &[u8],
    room: usize,
) -> Result<(Vec<u8>, RecordOffsets), ProtoError> {
    let mut writer = CompressingWriter::new(&write_header_and_question(question)[HEADER..]);
    let mut offsets = RecordOffsets::default();
    let (mut owner, mut rdata) = (Vec::new(), Vec::new());
    'sections: for (records, offsets) in sections.all().into_iter().zip(&mut offsets.sections) {
        for record in records {
            owner.clear();
            push_name(&record.name, &mut owner);
            rdata.clear();
            match write_data(&record.data, &mut rdata) {
                // The data alone exceeds 64 KiB.
                Err(ProtoError::MaxBufferSizeExceeded(_)) => break 'sections,
                written => written?,
            }
            let fixed = fixed(record.record_type().into(), record.dns_class.into(), record.ttl);
            let Some(offset) = writer.record(&owner, fixed, &rdata, room) else { break 'sections };
            offsets.push(offset);
        }
    }
    let mut bytes = writer.bytes;
    let is_referral =
        is_referral(metadata, sections.answers.len(), sections.authorities.iter().map(Record::record_type));
    finish_message(&mut bytes, metadata, sections.counts(), &offsets, opt, is_referral);
    Ok((bytes, offsets))
}

/// Returns whether a reply with this number of answers, and these types in its authority section, is a referral (RFC 2308
/// section 2.1.1).
pub(super) fn is_referral(
    metadata: &Metadata,
    answers: usize,
    authorities: impl IntoIterator<Item = RecordType>,
) -> bool {
    if answers > 0 || metadata.authoritative || metadata.response_code != ResponseCode::NoError {
        return false;
    }
    let mut has_ns = false;
    for rtype in authorities {
        match rtype {
            RecordType::SOA => return false,
            RecordType::NS => has_ns = true,
            _ => {}
        }
    }
    has_ns
}

/// Writes the data of a record without compression into an empty buffer.
///
/// # Errors
/// If the data can't be encoded.
pub(in crate::dns::message) fn write_data(data: &RData, to: &mut Vec<u8>) -> Result<(), ProtoError> {
    let mut encoder = BinEncoder::new(to);
    encoder.set_name_encoding(NameEncoding::Uncompressed);
    data.emit(&mut encoder)
}

/// Appends a name in wire form.
fn push_name(name: &Name, to: &mut Vec<u8>) {
    name.iter().for_each(|label| names::push_label(label, to));
    to.push(0);
}

/// Returns an empty header, followed by a question in wire form.
pub(super) fn write_header_and_octets(question: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP));
    bytes.extend([0; HEADER]);
    bytes.extend(question);
    bytes
}

/// Returns an empty header, followed by the question.
pub(super) fn write_header_and_question(question: &Query) -> Vec<u8> {
    let mut bytes = write_header_and_octets(&[]);
    push_name(question.name(), &mut bytes);
    bytes.extend(u16::from(question.query_type()).to_be_bytes());
    bytes.extend(u16::from(question.query_class()).to_be_bytes());
    bytes
}

/// Writes the header of a message with these records, and appends the OPT record. `totals` are the numbers of records in
/// the whole reply; `is_referral` says whether it leads to other name servers.
pub(super) fn finish_message(
    bytes: &mut Vec<u8>,
    metadata: &Metadata,
    totals: [usize; 3],
    offsets: &RecordOffsets,
    opt: &[u8],
    is_referral: bool,
) {
    let written = offsets.counts();
    let mut metadata = *metadata;
    // RFC 2181 section 9: authority records that accompany an answer may be left out without TC.
    metadata.truncation |= written[0] < totals[0] || written[0] == 0 && written[1] < totals[1];
    // A referral needs the addresses of its name servers (RFC 9471 section 3.1).
    metadata.truncation |= is_referral && written[2] < totals[2];
    #[expect(clippy::cast_possible_truncation, reason = "64 KiB have fewer records")]
    let mut counts = written.map(|count| count as u16);
    counts[2] += u16::from(!opt.is_empty());
    bytes[..HEADER].copy_from_slice(&header(&metadata, counts));
    bytes.extend(opt);
}

/// Returns the header of a response (RFC 1035 section 4.1.1, with AD and CD of RFC 4035 section 3.2).
pub(super) fn header(metadata: &Metadata, [answers, authorities, additionals]: [u16; 3]) -> [u8; HEADER] {
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
