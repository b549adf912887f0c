use hickory_proto::op::{Edns, Message, MessageType, OpCode};
use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::CNAME;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

use super::*;
use crate::dns::message::encode::encode;
use crate::dns::message::records::Records;
use crate::dns::message::reply::Reply;

const NOERROR: [u8; 2] = [0x81, 0x80];

/// Builds a message with the question `a.example. A`. The name is at 12, and `example.` at 14.
struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    fn new() -> Self {
        let mut bytes = vec![0x12, 0x34, NOERROR[0], NOERROR[1], 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"\x01a\x07example\x00\x00\x01\x00\x01");
        Self { bytes }
    }

    /// Adds a record to a section, after all records of the sections before.
    fn add(mut self, section: Section, owner: &[u8], rtype: u16, ttl: u32, rdata: &[u8]) -> Self {
        let count = 6 + 2 * section as usize;
        let number = u16::from_be_bytes([self.bytes[count], self.bytes[count + 1]]) + 1;
        self.bytes[count..count + 2].copy_from_slice(&number.to_be_bytes());
        self.bytes.extend(owner);
        self.bytes.extend(rtype.to_be_bytes());
        self.bytes.extend([0, 1]);
        self.bytes.extend(ttl.to_be_bytes());
        self.bytes.extend(u16::try_from(rdata.len()).unwrap().to_be_bytes());
        self.bytes.extend(rdata);
        self
    }

    fn answer(self, owner: &[u8], rtype: u16, rdata: &[u8]) -> Self {
        self.add(Section::Answer, owner, rtype, 60, rdata)
    }

    fn additional(self, owner: &[u8], rtype: u16, rdata: &[u8]) -> Self {
        self.add(Section::Additional, owner, rtype, 0, rdata)
    }

    fn parse(&self) -> Result<WireMessage, WireError> {
        WireMessage::new(&self.bytes)
    }
}

const ROOT: &[u8] = &[0];

fn query(name: &str) -> Query {
    Query::query(Name::from_ascii(name).unwrap(), RecordType::A)
}

/// Returns the answer to a client that asks for `name`.
fn given(message: WireMessage, name: &str, limit: u16) -> Vec<u8> {
    let query = query(name);
    let metadata = message.metadata;
    let records = Records::of_wire(message.into(), query.name());
    assert!(records.is_wire_for(&query));
    encode(&Reply { records, ..Reply::new(metadata, "") }, &query, None, limit).unwrap().0
}

/// Returns type and uncompressed data of all records.
fn data(message: &WireMessage) -> Vec<(u16, Vec<u8>)> {
    let expanded =
        |record: &WireRecord| (message.rtype(record).into(), message.expand(&message.bytes, record));
    message.records.iter().map(expanded).collect()
}

/// Returns the owners of all records in lower case.
fn owners(message: &WireMessage) -> Vec<String> {
    let sections = message.decode(None);
    sections.all().into_iter().flatten().map(|record| record.name.to_lowercase().to_string()).collect()
}

/// Returns random data for a type: random octets, or well-formed names among them.
fn random_data(random: &mut StdRng, rtype: u16) -> Vec<u8> {
    let mut octets = |most: usize| {
        let mut octets = vec![0; random.random_range(0..=most)];
        random.fill_bytes(&mut octets);
        octets
    };
    let names: [&[u8]; 4] = [b"\xc0\x0c", b"\x01b\xc0\x0e", b"\x03www\xc0\x0c", b"\x01B\x04Test\x00"];
    match rtype {
        1 => vec![192, 0, 2, 1],
        28 => vec![0x20; 16],
        2 | 5 | 12 | 39 => names.choose(random).unwrap().to_vec(),
        6 => [*names.choose(random).unwrap(), *names.choose(random).unwrap(), &[7; 20]].concat(),
        15 => [&[0, 10], *names.choose(random).unwrap()].concat(),
        33 => [&[0; 6], *names.choose(random).unwrap()].concat(),
        35 => [&[0, 1, 0, 2], &b"\x01U\x03sip\x00"[..], *names.choose(random).unwrap()].concat(),
        _ => octets(40),
    }
}

#[test]
fn records_of_all_types_keep_their_data_when_passed_on() {
    for seed in 0..2000 {
        let random = &mut StdRng::seed_from_u64(seed);
        // Data of other types may be malformed, and an answer section with nothing else is refused.
        let mut builder = Builder::new().answer(b"\xc0\x0c", 1, &[192, 0, 2, 1]);
        for section in Section::ALL {
            for _ in 0..random.random_range(0..4) {
                let rtype = match random.random_range(0..3) {
                    0 => *[1, 2, 5, 6, 12, 15, 28, 33, 35].choose(random).unwrap(),
                    1 => random.random_range(1..70),
                    _ => random.random(),
                };
                if [SIG, OPT, TSIG].contains(&rtype) {
                    continue;
                }
                let rdata = random_data(random, rtype);
                let owners: [&[u8]; 4] = [b"\xc0\x0c", b"\xc0\x0e", ROOT, b"\x01A\x07exAMple\x00"];
                builder =
                    builder.add(section, owners.choose(random).unwrap(), rtype, random.random(), &rdata);
            }
        }
        let message = builder.parse().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let expected = {
            let (indexed, _) = WireMessage::index(&builder.bytes, question(&builder.bytes).unwrap()).unwrap();
            data(&indexed)
        };
        assert_eq!(data(&message), expected, "seed {seed}");
        let owners_of_upstream = {
            let (indexed, _) = WireMessage::index(&builder.bytes, question(&builder.bytes).unwrap()).unwrap();
            owners(&indexed)
        };
        assert_eq!(owners(&message), owners_of_upstream, "seed {seed}");
        // Passed on with another spelling.
        let bytes = given(message.clone(), "A.Example.", u16::MAX);
        let passed_on = WireMessage::new(&bytes).unwrap();
        let same_name = |(rtype, data): (u16, Vec<u8>)| (rtype, data.to_ascii_lowercase());
        let lower = |all: Vec<(u16, Vec<u8>)>| all.into_iter().map(same_name).collect::<Vec<_>>();
        assert_eq!(lower(data(&passed_on)), lower(expected.clone()), "seed {seed}");
        // Decoded and encoded anew.
        let sections = message.decode(None);
        assert_eq!(sections.counts().iter().sum::<usize>(), expected.len(), "seed {seed}");
        let again = WireMessage::of_sections(&message.metadata, &sections, &message.question().unwrap(), &[])
            .unwrap();
        assert_eq!(data(&again), expected, "seed {seed}");
        assert_eq!(owners(&again), owners_of_upstream, "seed {seed}");
        assert_eq!(message.uncompressed, again.uncompressed, "seed {seed}");
        let records = sections.all().into_iter().flatten();
        assert!(records.map(|record| record.ttl).all(|ttl| i32::try_from(ttl).is_ok()), "RFC 2181 section 8");
    }
}

#[test]
fn mutated_messages_are_refused_or_decode_completely() {
    let mut accepted = 0;
    for seed in 0..20_000 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut builder = Builder::new();
        for rtype in [5, 1, 6, 33] {
            let rdata = random_data(random, rtype);
            builder = builder.answer(b"\xc0\x0c", rtype, &rdata);
        }
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(HEADER + 15..builder.bytes.len());
            builder.bytes[at] = *[0, 1, 0xc0, 12, 14, 33, 45, random.random()].choose(random).unwrap();
        }
        let Ok(message) = builder.parse() else { continue };
        accepted += 1;
        assert_eq!(message.decode(None).answers.len(), message.count(Section::Answer), "seed {seed}");
        let bytes = given(message, "A.EXAMPLE.", u16::MAX);
        assert!(WireMessage::new(&bytes).is_ok(), "seed {seed}");
    }
    assert!(accepted > 1000, "{accepted}");
}

#[test]
fn pointers_into_the_question_get_the_clients_spelling() {
    let message = Builder::new().answer(b"\xc0\x0c", 5, b"\x01b\xc0\x0e").parse().unwrap();
    let spelled = Name::from_ascii("A.exAMPLE.").unwrap();
    let [record] = &message.decode(Some(&spelled)).answers[..] else { panic!() };
    assert!(record.name.eq_case(&spelled));
    let target = Name::from_ascii("b.exAMPLE.").unwrap();
    assert!(matches!(&record.data, RData::CNAME(CNAME(name)) if name.eq_case(&target)));
    let bytes = given(message, "A.exAMPLE.", 512);
    let answer = Message::from_vec(&bytes).unwrap().answers.remove(0);
    assert!(answer.name.eq_case(&spelled));
}

#[test]
fn owner_equal_to_the_question_becomes_a_pointer() {
    let message = Builder::new().answer(b"\x01A\x07exAMple\x00", 1, &[192, 0, 2, 1]).parse().unwrap();
    assert_eq!(message.bytes.len(), Builder::new().answer(&QUESTION_NAME, 1, &[0; 4]).bytes.len());
    assert!(message.has_direct_answer());
}

#[test]
fn opt_is_removed_wherever_it_is() {
    const BADVERS: [u8; 4] = [1, 0, 0x80, 0];
    let opt = |builder: Builder| {
        let options = b"\x00\x0f\x00\x06\x00\x03gone\x00\x0a\x00\x08cookie!!";
        builder.add(Section::Additional, ROOT, OPT, u32::from_be_bytes(BADVERS), options)
    };
    let glue = |builder: Builder| builder.additional(b"\xc0\x0c", 1, &[192, 0, 2, 1]);
    for message in [opt(glue(Builder::new())), glue(opt(Builder::new()))] {
        let message = message.parse().unwrap();
        assert_eq!(data(&message), [(1, vec![192, 0, 2, 1])]);
        assert_eq!(u16::from(message.metadata.response_code), 16);
        assert_eq!(message.extended_errors.len(), 1, "only the extended error is kept, not the cookie");
        let bytes = given(message, "a.example.", 512);
        assert!(Message::from_vec(&bytes).unwrap().edns.is_none());
    }
}

#[test]
fn second_opt_and_signatures_of_messages_are_refused() {
    let opt = |builder: Builder| builder.additional(ROOT, OPT, &[]);
    assert_eq!(opt(opt(Builder::new())).parse().unwrap_err(), WireError::Opt);
    assert_eq!(Builder::new().additional(b"\xc0\x0c", OPT, &[]).parse().unwrap_err(), WireError::Opt);
    assert_eq!(Builder::new().additional(ROOT, TSIG, &[0; 20]).parse().unwrap_err(), WireError::Signed);
    assert_eq!(Builder::new().additional(ROOT, SIG, &[0; 20]).parse().unwrap_err(), WireError::Signed);
    let signature_of_a = [&[0, 1][..], &[0; 20]].concat();
    assert!(Builder::new().answer(b"\xc0\x0c", SIG, &signature_of_a).parse().is_ok());
}

#[test]
fn forbidden_compression_is_expanded() {
    let message =
        Builder::new().answer(b"\xc0\x0c", 33, b"\x00\x01\x00\x02\x00\x03\xc0\x0c").parse().unwrap();
    assert!(message.bytes.ends_with(b"\x00\x03\x01a\x07example\x00"));
    // The pointer of an MX may stay.
    let message = Builder::new().answer(b"\xc0\x0c", 15, b"\x00\x01\xc0\x0c").parse().unwrap();
    assert!(message.bytes.ends_with(b"\x00\x01\xc0\x0c"));
}

#[test]
fn pointer_into_a_ttl_or_an_address_is_never_passed_on() {
    // A record at 27: its TTL is at 33, its data at 39.
    let record = Builder::new().add(Section::Answer, b"\xc0\x0c", 1, 0x0161_0000, b"\x01a\x00x");
    assert_eq!(record.bytes.len(), 43);
    for target in [33, 39] {
        let owner = [0xc0, target];
        let pointing = Builder { bytes: record.bytes.clone() }.answer(&owner, 1, &[192, 0, 2, 1]);
        assert_eq!(pointing.parse().unwrap().count(Section::Answer), 1, "{target}");
        let pointing = Builder { bytes: record.bytes.clone() }.answer(b"\xc0\x0c", 12, &owner);
        assert_eq!(pointing.parse().unwrap().count(Section::Answer), 1, "{target}");
    }
    let forwards = Builder::new().answer(b"\xc0\x0c", 15, b"\x00\x0a\xc0\x3b").answer(ROOT, 16, b"\x00");
    assert_eq!(data(&forwards.parse().unwrap()), [(16, vec![0])]);
    // Malformed data without a compression pointer doesn't depend on its position, so the record is kept.
    let opaque = Builder::new().answer(b"\xc0\x0c", 15, b"").answer(b"\xc0\x0c", 5, b"\x40");
    assert_eq!(data(&opaque.parse().unwrap()), [(15, vec![]), (5, vec![0x40])]);
}

#[test]
fn only_the_record_with_a_malformed_owner_is_removed() {
    let (to_itself, too_long) = (b"\xc0\x1b", [&[63; 64][..]; 4].concat());
    let before = |owner: &[u8]| Builder::new().answer(owner, 1, &[192, 0, 2, 1]);
    let address = |builder: Builder| builder.answer(b"\xc0\x0c", 1, &[192, 0, 2, 2]);
    for owner in [&to_itself[..], &[&too_long[..], ROOT].concat()] {
        let message = address(before(owner)).additional(owner, 16, b"\x01x").parse().unwrap();
        assert_eq!(data(&message), [(1, vec![192, 0, 2, 2])]);
        let alone = before(owner).additional(b"\xc0\x0c", 1, &[192, 0, 2, 3]);
        assert_eq!(alone.parse().unwrap_err(), WireError::Incomplete, "it isn't passed on as NODATA");
        let opt = Builder::new().additional(owner, OPT, &[]);
        assert_eq!(opt.parse().unwrap_err(), WireError::Opt);
    }
    for (rtype, rdata) in [(2, &b"\xc0\x0e"[..]), (6, &[0; 22])] {
        let denial = Builder::new().add(Section::Authority, to_itself, rtype, 60, rdata);
        assert_eq!(denial.parse().unwrap_err(), WireError::Incomplete, "a referral or NODATA");
    }
    let of_another_name = before(to_itself).answer(b"\xc0\x0e", 1, &[192, 0, 2, 2]);
    assert_eq!(of_another_name.parse().unwrap_err(), WireError::Incomplete);
    // The end of this owner isn't known.
    assert_eq!(address(before(b"\x40")).parse().unwrap_err(), WireError::Owner);
    // An answer that lacks an alias, or its only address, is refused even if other records remain.
    let alias = || Builder::new().answer(b"\xc0\x0c", 5, b"\x01u\xc0\x0e");
    let behind_alias = alias().answer(b"\xc0\x30", 1, &[192, 0, 2, 1]);
    assert_eq!(behind_alias.parse().unwrap_err(), WireError::Incomplete);
    let without_alias =
        Builder::new().answer(&to_itself[..], 5, ROOT).answer(b"\xc0\x0c", 1, &[192, 0, 2, 1]);
    assert_eq!(without_alias.parse().unwrap_err(), WireError::Incomplete);
    let data_alone = Builder::new().answer(b"\xc0\x0c", 15, b"\x00\x0a\xc0\x3b");
    assert_eq!(data_alone.parse().unwrap_err(), WireError::Incomplete);
}

#[test]
fn malformed_data_changes_no_other_record() {
    let srv = || Builder::new().answer(b"\xc0\x0c", 33, b"\x00\x01\x00\x02\x00\x03\xc0\x0c");
    let cut = srv().answer(b"\xc0\x0c", 15, b"\x00\x0a\x03foo").answer(b"\x01b\xc0\x0e", 1, &[192, 0, 2, 1]);
    assert_eq!(owners(&cut.parse().unwrap()), ["a.example.", "a.example.", "b.example."]);
    // The first of two names is compressed, and the second one is malformed: the record is removed.
    let two = srv().answer(b"\xc0\x0c", 14, b"\xc0\x0c\x40").answer(b"\x01b\xc0\x0e", 1, &[192, 0, 2, 1]);
    assert_eq!(owners(&two.parse().unwrap()), ["a.example.", "b.example."]);
}

#[test]
fn rewrite_expands_only_the_target_of_the_srv_record() {
    let mut builder = Builder::new();
    for number in 0..3000_u16 {
        let label = format!("\x03{number:03x}").into_bytes();
        builder = builder.answer(b"\xc0\x0c", 12, &[&label[..], b"\xc0\x0e"].concat());
    }
    let before = builder.bytes.len();
    let srv = builder.answer(b"\xc0\x0c", 33, b"\x00\x01\x00\x02\x00\x03\xc0\x0c");
    let message = srv.parse().unwrap();
    assert_eq!(message.count(Section::Answer), 3001);
    assert_eq!(message.bytes.len(), before + 12 + 6 + 11, "the target of the SRV record alone is longer");
}

#[test]
fn message_up_to_a_section_equals_a_message_without_the_rest() {
    let answer = || Builder::new().answer(b"\xc0\x0c", 1, &[192, 0, 2, 1]);
    let whole = answer().additional(b"\xc0\x0c", 1, &[192, 0, 2, 66]).parse().unwrap();
    let (cut, alone) = (whole.until(Section::Answer), answer().parse().unwrap());
    assert_eq!(
        (data(&cut), cut.section_ends, cut.uncompressed),
        (data(&alone), alone.section_ends, alone.uncompressed)
    );
    assert_eq!(cut.bytes[HEADER..], alone.bytes[HEADER..]);
}

#[test]
fn answer_that_exceeds_the_limit_is_cut_after_a_record() {
    let mut builder = Builder::new();
    for last in 0..40 {
        builder = builder.answer(b"\xc0\x0c", 1, &[192, 0, 2, last]);
    }
    let whole = builder.additional(b"\xc0\x0c", 1, &[192, 0, 2, 66]).parse().unwrap();
    let cut = Message::from_vec(&given(whole.clone(), "a.example.", 512)).unwrap();
    assert_eq!((cut.answers.len(), cut.additionals.len()), ((512 - 27) / 16, 0));
    assert!(cut.metadata.truncation);
    let message = Message::from_vec(&given(whole, "a.example.", 27 + 40 * 16)).unwrap();
    assert_eq!((message.answers.len(), message.additionals.len()), (40, 0));
    assert!(!message.metadata.truncation, "additional records are left out without TC (RFC 2181 section 9)");
}

#[test]
fn texts_of_extended_errors_make_room_for_records() {
    let message = Builder::new().answer(b"\xc0\x0c", 16, &[3; 400]).parse().unwrap();
    let query = query("a.example.");
    let reply = Reply {
        records: Records::of_wire(message.into(), query.name()),
        ..Reply::new(Metadata::new(1, MessageType::Response, OpCode::Query), "")
    };
    let mut edns = Edns::new();
    edns.options_mut().insert(EdnsOption::Unknown(15, [&[0, 3][..], &[b'x'; 200]].concat()));
    let bytes = encode(&reply, &query, Some(&edns), 512).unwrap().0;
    let message = Message::from_vec(&bytes).unwrap();
    assert_eq!((message.answers.len(), message.metadata.truncation), (1, false));
    assert!(message.edns.unwrap().option(15.into()).is_some());
}

#[test]
fn addresses_are_shuffled_in_place() {
    let addresses = |builder: Builder| {
        (0..20).fold(builder, |builder, last| builder.answer(b"\xc0\x0c", 1, &[192, 0, 2, last]))
    };
    let message = addresses(Builder::new()).parse().unwrap();
    let (shuffled, number) = message.with_shuffled_addresses().unwrap();
    assert_eq!(number, 20);
    let (mut all, order) = (data(&message), data(&shuffled));
    assert_ne!(all, order, "the same order has the probability 1 / 20!");
    let mut sorted = order;
    sorted.sort();
    all.sort();
    assert_eq!(all, sorted);
    let with_glue = addresses(Builder::new()).additional(b"\xc0\x0c", 1, &[192, 0, 2, 66]);
    assert!(with_glue.parse().unwrap().with_shuffled_addresses().is_none());
}
