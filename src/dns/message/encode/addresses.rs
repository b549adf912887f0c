//! Encodes the most common form of answer, addresses of the name in the question, without an encoder: the encoder's
//! search for names to compress would take longer than all other encoding.

use hickory_proto::op::{Metadata, Query};
use hickory_proto::rr::{Name, RData, Record};

use super::typed::{FIXED, RecordOffset, RecordOffsets, begin, end};
use crate::dns::message::header::QUESTION_NAME;
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::sections::Sections;

pub(super) fn are_all(sections: &Sections, name: &Name) -> bool {
    // The root is shorter than a pointer to it.
    !name.is_root()
        && sections.all().into_iter().flatten().all(|record| {
            matches!(record.data, RData::A(_) | RData::AAAA(_)) && same_spelling(&record.name, name)
        })
}

/// Encodes records for which [`are_all`] is true in at most `room` bytes, followed by the OPT record `opt`.
pub(super) fn encode(
    metadata: &Metadata,
    sections: &Sections,
    question: &Query,
    opt: &[u8],
    room: usize,
) -> (Vec<u8>, RecordOffsets) {
    let mut bytes = begin(question);
    let mut offsets = RecordOffsets::default();
    'sections: for (records, offsets) in sections.all().into_iter().zip(&mut offsets.sections) {
        for record in records {
            let Some(offset) = write(record, room, &mut bytes) else { break 'sections };
            offsets.push(offset);
        }
    }
    end(&mut bytes, metadata, sections.counts(), &offsets, opt);
    (bytes, offsets)
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
