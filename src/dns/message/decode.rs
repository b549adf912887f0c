//! Decodes the answers of upstreams.

use hickory_proto::op::{Edns, Header, Message, Query};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::header::QUESTION_NAME;

/// Type, class and data length of address records (RFC 1035 section 3.2, RFC 3596).
const A_IN: [u8; 4] = [0, 1, 0, 1];
const AAAA_IN: [u8; 4] = [0, 28, 0, 1];
const A_LENGTH: [u8; 2] = [0, 4];
const AAAA_LENGTH: [u8; 2] = [0, 16];
/// The size of the shortest address record, in bytes.
const SHORTEST: usize = 16;
/// Owner and type of an OPT record (RFC 6891 section 6.1.2).
const OPT: [u8; 3] = [0, 0, 41];

/// Decodes a message with a question that ends at `question_end`; `None` if the message is malformed.
#[must_use]
pub fn decode(message: &[u8], question_end: usize) -> Option<Message> {
    addresses(message, question_end).or_else(|| Message::from_vec(message).ok())
}

/// Decodes the most common form of answer: addresses of the name in the question, and an OPT record without options.
/// This fast path skips the decoding of the owner names, which takes longer than decoding the rest of the records.
fn addresses(message: &[u8], question_end: usize) -> Option<Message> {
    let mut rest = message.get(question_end..)?;
    if !rest.starts_with(&QUESTION_NAME) {
        return None;
    }
    let mut decoder = BinDecoder::new(message);
    let Header { metadata, counts } = Header::read(&mut decoder).ok()?;
    if counts.queries != 1 || counts.authorities > 0 || counts.additionals > 1 {
        return None;
    }
    let query = Query::read(&mut decoder).ok()?;
    if decoder.index() != question_end {
        return None;
    }
    let mut answers = Vec::with_capacity(rest.len() / SHORTEST);
    for _ in 0..counts.answers {
        answers.push(address(&mut rest, query.name())?);
    }
    let edns = if counts.additionals > 0 { Some(opt(&mut rest)?) } else { None };
    if !rest.is_empty() {
        return None;
    }
    let mut message = Message::new(metadata.id, metadata.message_type, metadata.op_code);
    message.metadata = metadata;
    message.queries.push(query);
    message.answers = answers;
    message.edns = edns;
    Some(message)
}

fn address(bytes: &mut &[u8], owner: &Name) -> Option<Record> {
    let rest = bytes.strip_prefix(&QUESTION_NAME)?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    let (ttl, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (data, rest) = match (*kind, *length) {
        (A_IN, A_LENGTH) => {
            let (address, rest) = rest.split_first_chunk::<4>()?;
            (RData::A(A((*address).into())), rest)
        }
        (AAAA_IN, AAAA_LENGTH) => {
            let (address, rest) = rest.split_first_chunk::<16>()?;
            (RData::AAAA(AAAA((*address).into())), rest)
        }
        _ => return None,
    };
    *bytes = rest;
    Some(Record::from_rdata(owner.clone(), u32::from_be_bytes(*ttl), data))
}

/// Reads an OPT record from the front, if it has no options and no flags except DO.
fn opt(bytes: &mut &[u8]) -> Option<Edns> {
    const DO: u8 = 0x80;
    let (payload, rest) = bytes.strip_prefix(&OPT)?.split_first_chunk()?;
    let (&[0, 0, flags, 0, 0, 0], rest) = rest.split_first_chunk()? else { return None };
    let payload = u16::from_be_bytes(*payload);
    // RFC 6891 section 6.2.3: smaller sizes mean 512, which the general decoder handles.
    if flags & !DO != 0 || payload < 512 {
        return None;
    }
    *bytes = rest;
    let mut edns = Edns::new();
    edns.set_max_payload(payload);
    edns.set_dnssec_ok(flags & DO != 0);
    Some(edns)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{MessageType, OpCode, ResponseCode};
    use hickory_proto::rr::RecordType;
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::dns::message::header::HEADER;

    #[test]
    fn fast_path_agrees_with_hickory() {
        let (mut here, mut there) = (0, 0);
        for seed in 0..5000 {
            let random = &mut StdRng::seed_from_u64(seed);
            let name = *["a.example.", ".", "A.b.c.Example.", "other.test."].choose(random).unwrap();
            let name = Name::from_ascii(name).unwrap();
            let mut message = Message::new(random.random(), MessageType::Response, OpCode::Query);
            message.metadata.authoritative = random.random();
            message.metadata.recursion_available = random.random();
            message.metadata.authentic_data = random.random();
            message.metadata.response_code = ResponseCode::from(0, random.random_range(0..6));
            message.add_query(Query::query(name.clone(), RecordType::A));
            for _ in 0..random.random_range(0..4) {
                let data = match random.random() {
                    true => RData::A(A(random.random::<u32>().into())),
                    false => RData::AAAA(AAAA(random.random::<u128>().into())),
                };
                message.add_answer(Record::from_rdata(name.clone(), random.random(), data));
            }
            if random.random() {
                let mut edns = Edns::new();
                edns.set_max_payload(*[512, 1232, 65535].choose(random).unwrap());
                edns.set_dnssec_ok(random.random());
                message.set_edns(edns);
            }
            let mut bytes = message.to_vec().unwrap();
            let end = HEADER + if name.is_root() { 1 } else { name.len() + 1 } + 4;
            // The bytes stay unchanged, get bytes changed or appended, or are truncated.
            for _ in 0..random.random_range(0..3) {
                let at = random.random_range(HEADER / 2..bytes.len());
                match random.random_range(0..4) {
                    0 => bytes.truncate(at.max(end)),
                    1 => bytes.push(random.random()),
                    _ => bytes[at] = random.random(),
                }
            }
            let expected = Message::from_vec(&bytes).ok();
            let quick = addresses(&bytes, end);
            if bytes[HEADER..end] == message.to_vec().unwrap()[HEADER..end] {
                assert!(quick.is_none() || quick == expected, "seed {seed}: {quick:?} {expected:?}");
                assert_eq!(decode(&bytes, end), expected, "seed {seed}");
            }
            here += usize::from(quick.is_some());
            there += usize::from(quick.is_none() && expected.is_some());
        }
        assert!(here > 1000 && there > 500, "{here} {there}");
    }
}
