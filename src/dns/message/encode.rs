//! Encodes a response in at most as many bytes as the client accepts.

mod sequence;
pub(super) mod typed;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Metadata, Query};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use super::alias::is_alias;
use super::compress::FIXED;
use super::ede::without_text;
use super::header::HEADER;
use super::records::WireRecords;
use super::sections::Sections;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::Section;
use typed::{
    encode_sections, finish_message, is_referral, write_header_and_octets, write_header_and_question,
};

pub use sequence::MessageSequence;
pub use typed::RecordOffsets;

/// Encodes a response in at most `limit` bytes, but always with the header, the question and OPT. Also returns the
/// offsets of the records.
///
/// Sets TC if records of the answer section don't fit, or records of the authority section of a reply without answers,
/// or additional records of a referral. Other records may be left out without TC (RFC 2181 section 9). If answers are
/// left out, aliases come first. The texts of extended errors are left out if records don't fit beside them (RFC 8914
/// section 3).
///
/// # Errors
/// If a record's data can't be encoded. Data of more than 64 KiB is no error: the record doesn't fit.
pub fn encode(
    reply: &Reply,
    question: &Query,
    edns: Option<&Edns>,
    limit: u16,
) -> Result<(Vec<u8>, RecordOffsets), ProtoError> {
    let Some(edns) = edns else { return encode_with(reply, question, &[], limit) };
    let (bytes, offsets) = encode_with(reply, question, &opt_record(edns, reply)?, limit)?;
    if bytes.len() <= usize::from(limit) && offsets.is_whole(reply.records.counts())
        || edns.options().as_ref().is_empty()
    {
        return Ok((bytes, offsets));
    }
    let mut without_texts = edns.clone();
    for (_, option) in &mut without_texts.options_mut().options {
        *option = without_text(option);
    }
    encode_with(reply, question, &opt_record(&without_texts, reply)?, limit)
}

fn encode_with(
    reply: &Reply,
    question: &Query,
    opt: &[u8],
    limit: u16,
) -> Result<(Vec<u8>, RecordOffsets), ProtoError> {
    let room = usize::from(limit).saturating_sub(opt.len());
    if let Some((wire, is_spelled)) = reply.records.wire_for(question) {
        let start = if is_spelled {
            write_header_and_octets(wire.message.question_octets())
        } else {
            write_header_and_question(question)
        };
        return Ok(encode_wire(&reply.metadata, wire, start, opt, room));
    }
    let (bytes, offsets) = encode_sections(&reply.metadata, &reply.records, question, opt, room)?;
    let answers = &reply.records.answers;
    if offsets.sections[0].len() < answers.len() && !answers.is_sorted_by_key(|record| !is_alias(record)) {
        let mut sections = Sections::clone(&reply.records);
        sections.answers.sort_by_key(|record| !is_alias(record));
        let (bytes, offsets) = encode_sections(&reply.metadata, &sections, question, opt, room)?;
        return Ok((bytes, RecordOffsets { is_reordered: true, ..offsets }));
    }
    Ok((bytes, offsets))
}

/// Encodes records that are in wire form, without decoding them. `bytes` are an empty header and the question.
fn encode_wire(
    metadata: &Metadata,
    wire: &WireRecords,
    mut bytes: Vec<u8>,
    opt: &[u8],
    room: usize,
) -> (Vec<u8>, RecordOffsets) {
    let start = bytes.len();
    let sections = wire.message.write_records(&mut bytes, wire.ttl, wire.last, room);
    let mut offsets = RecordOffsets { sections, is_reordered: false };
    let totals = Section::ALL.map(|section| wire.count(section));
    if offsets.sections[0].len() < totals[0] && !wire.message.has_aliases_first() {
        bytes.truncate(start);
        let answers = wire.message.write_aliases_first(&mut bytes, wire.ttl, room);
        offsets = RecordOffsets { sections: [answers, Vec::new(), Vec::new()], is_reordered: true };
    }
    let is_referral = is_referral(metadata, totals[0], wire.message.types(Section::Authority));
    finish_message(&mut bytes, metadata, totals, &offsets, opt, is_referral);
    (bytes, offsets)
}

/// Returns the OPT record, which contains the upper bits of the rcode (RFC 6891 section 6.1.3).
fn opt_record(edns: &Edns, reply: &Reply) -> Result<Vec<u8>, ProtoError> {
    let mut edns = edns.clone();
    edns.set_rcode_high(reply.metadata.response_code.high());
    let mut bytes = Vec::new();
    Record::from(&edns).emit(&mut BinEncoder::new(&mut bytes))?;
    Ok(bytes)
}

/// Returns the size of an answer in bytes as CoreDNS counts and logs it: without name compression, even if the
/// client accepts less, and without OPT. A record that can't be encoded counts as 0.
#[must_use]
pub fn uncompressed_length(reply: &Reply, question: &Query) -> usize {
    let start = HEADER + length_of(question.name()) + 4;
    if let Some(records) = reply.records.uncompressed_wire_length() {
        return start + records;
    }
    let mut bytes = Vec::new();
    let records: usize = reply
        .records
        .all()
        .into_iter()
        .flatten()
        .map(|record| {
            // Fast path: most records need no encoder.
            let data = match &record.data {
                RData::A(_) => 4,
                RData::AAAA(_) => 16,
                RData::CNAME(CNAME(name)) => length_of(name),
                data => {
                    bytes.clear();
                    if typed::write_data(data, &mut bytes).is_err() {
                        return 0;
                    }
                    bytes.len()
                }
            };
            length_of(&record.name) + FIXED + data
        })
        .sum();
    start + records
}

/// Returns the length of an uncompressed name in wire form, in bytes.
fn length_of(name: &Name) -> usize {
    // hickory counts the root octet only for the root name itself.
    if name.is_root() { 1 } else { name.len() + 1 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hickory_proto::op::{Message, MessageType, Metadata, OpCode};
    use hickory_proto::rr::RecordType;
    use hickory_proto::rr::rdata::{A, NS, NULL, SOA};

    use super::*;
    use crate::dns::message::records::Records;
    use crate::dns::message::wire::WireMessage;

    #[test]
    fn truncation_keeps_whole_records_and_opt() {
        let name = Name::from_ascii("many.example.").unwrap();
        let question = Query::query(name.clone(), RecordType::A);
        let address = |i: u8| Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, i)));
        let metadata = Metadata::new(1, MessageType::Response, OpCode::Query);
        let edns = Edns::new();
        let decode = |reply: &Reply, edns, limit: u16| {
            let bytes = encode(reply, &question, edns, limit).unwrap().0;
            assert!(bytes.len() <= usize::from(limit), "{} > {limit}", bytes.len());
            Message::from_vec(&bytes).unwrap()
        };

        let reply = |sections: Sections| Reply { records: sections.into(), ..Reply::new(metadata, "") };
        let many = reply(Sections { answers: (0..100).map(address).collect(), ..Sections::default() });
        // 12 bytes for the header, 18 for the question, 16 for each record, 11 for OPT.
        for (limit, edns, kept) in [(512, None, 30), (512, Some(&edns), 29), (1232, Some(&edns), 74)] {
            let message = decode(&many, edns, limit);
            assert_eq!(message.answers.len(), kept);
            assert!(message.metadata.truncation);
            assert_eq!(message.edns.is_some(), edns.is_some());
        }
        assert!(!decode(&many, None, u16::MAX).metadata.truncation);

        let glue = reply(Sections { additionals: (0..100).map(address).collect(), ..Sections::default() });
        let message = decode(&glue, None, 512);
        assert!(!message.metadata.truncation, "TC isn't for additional records");
        assert_eq!(message.additionals.len(), 30);

        let name_server = Record::from_rdata(name.clone(), 5, RData::NS(NS(name.clone())));
        let additionals = (0..100).map(address).collect();
        let mut referral =
            reply(Sections { authorities: vec![name_server], additionals, ..Sections::default() });
        for authoritative in [false, true] {
            referral.metadata.authoritative = authoritative;
            let message = decode(&referral, None, 512);
            assert_eq!(message.metadata.truncation, !authoritative, "only glue needs TC");
        }
        referral.metadata.authoritative = false;
        let soa = SOA::new(name.clone(), name.clone(), 1, 2, 3, 4, 5);
        referral.records.authorities.push(Record::from_rdata(name.clone(), 5, RData::SOA(soa)));
        assert!(!decode(&referral, None, 512).metadata.truncation, "a denial");
    }

    #[test]
    fn truncated_answer_has_the_aliases_first() {
        let [asked, spelled, target] =
            ["a.example.", "A.eXample.", "b.example."].map(|name| Name::from_ascii(name).unwrap());
        let address = |i: u8| Record::from_rdata(target.clone(), 5, RData::A(A::new(192, 0, 2, i)));
        let alias = Record::from_rdata(asked.clone(), 5, RData::CNAME(CNAME(target.clone())));
        let signature = |covered: RecordType| {
            let rdata = NULL::with([&u16::from(covered).to_be_bytes()[..], &[0; 16]].concat());
            Record::from_rdata(asked.clone(), 5, RData::Unknown { code: RecordType::RRSIG, rdata })
        };
        let first = [alias, signature(RecordType::CNAME)];
        let others = std::iter::once(signature(RecordType::A)).chain((0..40).map(address));
        let answers: Vec<Record> = others.chain(first.clone()).collect();
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(asked.clone(), RecordType::A)).add_answers(answers.clone());
        let wire = Arc::new(WireMessage::new(&message.to_vec().unwrap()).unwrap());
        let mut records = Records::of_wire(wire, &spelled);
        records.set_ttl(7);
        let in_wire_form = Reply { records, ..Reply::new(message.metadata, "") };
        for (reply, ttl, owner) in [(in_wire_form, 7, &spelled), (responding(answers), 5, &asked)] {
            let question = Query::query(spelled.clone(), RecordType::A);
            let answers_in = |limit: u16| {
                let (bytes, offsets) = encode(&reply, &question, None, limit).unwrap();
                assert!(bytes.len() <= usize::from(limit));
                let message = Message::from_vec(&bytes).unwrap();
                assert_eq!(offsets.counts(), [message.answers.len(), 0, 0]);
                assert_eq!(offsets.is_reordered, message.metadata.truncation);
                assert_eq!(message.metadata.truncation, message.answers.len() < 43);
                message.answers
            };
            let cut = answers_in(512);
            assert!(cut.len() > 20 && cut.len() < 43, "{}", cut.len());
            assert_eq!([&cut[0].data, &cut[1].data], [&first[0].data, &first[1].data]);
            assert!(cut.iter().all(|record| record.ttl == ttl));
            assert!(cut[0].name.eq_case(owner));
            let data =
                |records: &[Record]| records.iter().map(|record| record.data.clone()).collect::<Vec<_>>();
            assert_eq!(
                data(&cut[2..]),
                data(&answers_in(1232)[..cut.len() - 2]),
                "the other records keep their order"
            );
        }
    }

    #[test]
    fn owner_equal_to_question_takes_two_bytes() {
        let name = Name::from_ascii("A-long-name.Somewhere.example.").unwrap();
        let question = Query::query(name.clone(), RecordType::A);
        let metadata = Metadata::new(1, MessageType::Response, OpCode::Query);
        let record = Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, 1)));
        let sections = Sections { answers: vec![record], ..Sections::default() };
        let response = Reply { records: sections.into(), ..Reply::new(metadata, "") };
        let bytes = encode(&response, &question, None, 512).unwrap().0;
        assert_eq!(bytes.len(), 12 + (name.len() + 1) + 4 + 16);
    }

    #[test]
    fn uncompressed_length_equals_the_size_in_coredns_log() {
        // Sizes from CoreDNS's log: 54 bytes for the query, 106 for the answer.
        let name = Name::from_ascii("kubernetes.default.svc.cluster.local.").unwrap();
        let record = Record::from_rdata(name.clone(), 5, RData::A(A::new(10, 96, 0, 1)));
        assert_eq!(uncompressed_length(&responding(vec![]), &question(&name)), 54);
        assert_eq!(uncompressed_length(&responding(vec![record.clone()]), &question(&name)), 106);
        assert_eq!(uncompressed_length(&responding(vec![record; 4000]), &question(&name)), 54 + 4000 * 52);
        let alias = Record::from_rdata(name.clone(), 5, RData::CNAME(CNAME(name.clone())));
        assert_eq!(uncompressed_length(&responding(vec![alias]), &question(&name)), 54 + 38 + 10 + 38);
    }

    fn question(name: &Name) -> Query {
        Query::query(name.clone(), RecordType::A)
    }

    fn responding(answers: Vec<Record>) -> Reply {
        let records = Sections { answers, ..Sections::default() }.into();
        Reply { records, ..Reply::new(Metadata::new(1, MessageType::Response, OpCode::Query), "") }
    }

    /// Returns the length of a message, computed from its section counts.
    fn read_length(bytes: &[u8]) -> usize {
        use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
        let mut decoder = BinDecoder::new(bytes);
        Message::read(&mut decoder).unwrap();
        decoder.index()
    }

    #[test]
    fn cut_answer_ends_at_the_last_record_that_fits() {
        let long = Name::from_ascii(format!("{0}.{0}.{0}.{1}.", "x".repeat(62), "y".repeat(60))).unwrap();
        for name in [Name::from_ascii("a.example.").unwrap(), long] {
            let alias = Record::from_rdata(
                name.clone(),
                5,
                RData::CNAME(CNAME(Name::from_ascii("b.example.").unwrap())),
            );
            let address = |i: u8| {
                Record::from_rdata(Name::from_ascii("b.example.").unwrap(), 5, RData::A(A::new(192, 0, 2, i)))
            };
            let mut before = 0;
            for count in 0..100 {
                let answers = std::iter::once(alias.clone()).chain((0..count).map(address)).collect();
                let bytes = encode(&responding(answers), &question(&name), None, 512).unwrap().0;
                assert!(bytes.len() <= 512);
                assert_eq!(read_length(&bytes), bytes.len(), "no junk at the end");
                let message = Message::from_vec(&bytes).unwrap();
                // Each address takes 16 bytes: with that much space left, another address would have fitted.
                let cut = message.answers.len() < usize::from(count) + 1;
                assert_eq!(message.metadata.truncation, cut);
                assert!(!cut || bytes.len() + 16 > 512, "{} bytes", bytes.len());
                assert!(bytes.len() >= before);
                before = bytes.len();
            }
        }
    }

    #[test]
    fn all_owners_of_a_large_rrset_are_compressed() {
        let name = Name::from_ascii("many.example.").unwrap();
        let address = |i: u16| {
            let [high, low] = i.to_be_bytes();
            Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, high, low)))
        };
        let bytes = encode(&responding((0..4000).map(address).collect()), &question(&name), None, u16::MAX)
            .unwrap()
            .0;
        assert_eq!(bytes.len(), 12 + 18 + 4000 * 16);
        let message = Message::from_vec(&bytes).unwrap();
        assert!(!message.metadata.truncation && message.answers.len() == 4000);
        // More records than a message can hold.
        let bytes = encode(&responding((0..5000).map(address).collect()), &question(&name), None, u16::MAX)
            .unwrap()
            .0;
        let message = Message::from_vec(&bytes).unwrap();
        assert!(message.metadata.truncation && message.answers.len() > 4000);
        assert_eq!(read_length(&bytes), bytes.len());
    }

    #[test]
    fn owners_keep_their_case() {
        let names = ["A.example.", "a.example.", "a.Example.", "a.Example.", "A.example."];
        let names = names.map(|name| Name::from_ascii(name).unwrap());
        let records =
            names.iter().map(|name| Record::from_rdata(name.clone(), 5, RData::A(A::new(192, 0, 2, 1))));
        let bytes = encode(&responding(records.collect()), &question(&names[0]), None, 512).unwrap().0;
        let message = Message::from_vec(&bytes).unwrap();
        for (record, name) in message.answers.iter().zip(&names) {
            assert!(record.name.eq_case(name), "{} {name}", record.name);
        }
    }
}
