//! Encodes the most common form of answer, addresses of the name in the question, without an encoder: the encoder's
//! search for names to compress would take longer than all other encoding.

use hickory_proto::op::{Metadata, Query};
use hickory_proto::rr::{Name, RData, Record};

use super::{FIXED, RecordOffset, RecordOffsets};
use crate::dns::message::header::{HEADER, MIN_UDP, QUESTION_NAME};
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::reply::Reply;
use crate::model::names;

pub(super) fn are_all(response: &Reply, name: &Name) -> bool {
    response.sections().into_iter().flatten().all(|record| {
        matches!(record.data, RData::A(_) | RData::AAAA(_)) && same_spelling(&record.name, name)
    })
}

/// Encodes a response for which [`are_all`] is true in at most `room` bytes, followed by the OPT record `opt`.
pub(super) fn encode(
    response: &Reply,
    question: &Query,
    opt: &[u8],
    room: usize,
) -> (Vec<u8>, RecordOffsets) {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP));
    bytes.extend([0; HEADER]);
    question.name().iter().for_each(|label| names::push_label(label, &mut bytes));
    bytes.push(0);
    bytes.extend(u16::from(question.query_type()).to_be_bytes());
    bytes.extend(u16::from(question.query_class()).to_be_bytes());
    let mut layout = RecordOffsets::default();
    let mut counts = [0_u16; 3];
    let mut metadata = response.metadata;
    'sections: for (number, records) in response.sections().into_iter().enumerate() {
        for record in records {
            let Some(place) = write(record, room, &mut bytes) else {
                // RFC 2181 section 9: records that accompany an answer may be left out without TC.
                metadata.truncation |= number == 0 || number == 1 && counts[0] == 0;
                break 'sections;
            };
            layout.sections[number].push(place);
            counts[number] += 1;
        }
    }
    counts[2] += u16::from(!opt.is_empty());
    bytes[..HEADER].copy_from_slice(&header(&metadata, counts));
    bytes.extend(opt);
    (bytes, layout)
}

fn write(record: &Record, room: usize, bytes: &mut Vec<u8>) -> Option<RecordOffset> {
    match &record.data {
        RData::A(address) => write_address(record, &address.octets(), room, bytes),
        RData::AAAA(address) => write_address(record, &address.octets(), room, bytes),
        _ => None,
    }
}

fn write_address(record: &Record, address: &[u8], room: usize, bytes: &mut Vec<u8>) -> Option<RecordOffset> {
    let start = bytes.len();
    let end = start + QUESTION_NAME.len() + FIXED + address.len();
    if end > room {
        return None;
    }
    bytes.extend(QUESTION_NAME);
    bytes.extend(u16::from(record.record_type()).to_be_bytes());
    bytes.extend(u16::from(record.dns_class).to_be_bytes());
    let ttl = bytes.len();
    bytes.extend(record.ttl.to_be_bytes());
    bytes.extend([0, u8::try_from(address.len()).unwrap_or_default()]);
    bytes.extend(address);
    Some(RecordOffset { start, ttl, end })
}

/// Returns the header (RFC 1035 section 4.1.1, with AD and CD of RFC 4035 section 3.2).
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
