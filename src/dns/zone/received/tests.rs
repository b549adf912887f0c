use hickory_proto::op::{Message, MessageType, OpCode, Query};

use super::*;
use crate::dns::zone::record::parse;

const ORIGIN: &[u8] = b"\x07example\x03org\x00";
const ID: u16 = 0x1234;
const SOA: &str = "example.org. 300 IN SOA ns.example.org. host.example.org. 7 3600 900 86400 60";
const A: &str = "www.example.org. 60 IN A 192.0.2.1";

/// Returns a message of a transfer with these records.
fn message(records: &[&str]) -> Vec<u8> {
    let mut message = Message::new(ID, MessageType::Response, OpCode::Query);
    message.metadata.authoritative = true;
    message.add_query(Query::query(Name::from_ascii("example.org.").unwrap(), RecordType::AXFR));
    for record in records {
        message.add_answer(parse(record).unwrap());
    }
    message.to_vec().unwrap()
}

/// Reads messages; an error if they aren't a whole zone.
fn read(messages: &[Vec<u8>]) -> Result<Zone, TransferError> {
    let mut reader = TransferReader::new(ORIGIN, Some(ID), ZoneMemory::default());
    for message in messages {
        reader.read(message)?;
    }
    reader.finish()
}

fn error(messages: &[Vec<u8>]) -> String {
    read(messages).map_or_else(|error| error.to_string(), |zone| format!("serial {}", zone.serial()))
}

/// Returns a message with a change of its octets.
fn changed(mut message: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut message);
    message
}

#[test]
fn records_between_two_soa_records_are_a_zone() {
    let records =
        [SOA, "example.org. 60 IN NS ns.example.org.", A, "www.example.org. 60 IN A 192.0.2.2", SOA];
    let whole = [message(&records)];
    let split: Vec<Vec<u8>> = records.iter().map(|record| message(&[record])).collect();
    let without_questions = split.iter().enumerate().map(|(number, part)| match number {
        0 => part.clone(),
        _ => changed(part.clone(), |part| {
            // The owner of the record is a pointer to the question.
            let record = parse(records[number]).unwrap();
            let mut other = Message::new(ID, MessageType::Response, OpCode::Query);
            other.add_answer(record);
            *part = other.to_vec().unwrap();
        }),
    });
    for messages in [whole.to_vec(), split.clone(), without_questions.collect()] {
        let zone = read(&messages).unwrap();
        assert_eq!((zone.serial(), zone.number_of_records()), (7, 4));
        assert_eq!(zone.timers(), [3600, 900, 86_400]);
    }
}

#[test]
fn names_are_read_whatever_their_case_and_compression() {
    let mixed = "EXAMPLE.org. 300 IN SOA NS.example.ORG. host.example.org. 7 3600 900 86400 60";
    let zone = read(&[message(&[SOA, "Www.Example.Org. 60 IN CNAME target.example.org.", mixed])]).unwrap();
    assert!(zone.node(b"\x03www\x07example\x03org\x00").is_some());
}

#[test]
fn transfer_that_isnt_whole_is_refused() {
    let other = SOA.replace(" 7 ", " 8 ");
    for (messages, expected) in [
        (vec![], "the transfer ends before the last SOA record"),
        (vec![message(&[SOA, A])], "the transfer ends before the last SOA record"),
        (vec![message(&[SOA])], "the transfer ends before the last SOA record"),
        (vec![message(&[A, SOA])], "the first record isn't the SOA record of the zone"),
        (
            vec![message(&["www.example.org. 1 IN SOA a. b. 1 2 3 4 5"])],
            "the first record isn't the SOA record of the zone",
        ),
        (
            vec![message(&[SOA, A, &other])],
            "the last SOA record isn't the first one: the zone has changed during the transfer",
        ),
        (vec![message(&[SOA, A, SOA, A])], "records follow the last SOA record"),
        (vec![message(&[SOA, SOA]), message(&[A])], "records follow the last SOA record"),
        (vec![message(&[SOA]), message(&[])], "a message has no records"),
        (vec![message(&[])], "a message has no records"),
    ] {
        assert_eq!(error(&messages), expected);
    }
}

#[test]
fn message_that_answers_another_question_is_refused() {
    const MISMATCH: &str = "a message doesn't answer the question";
    let whole = message(&[SOA, A, SOA]);
    let at = |index: usize, octet: u8| error(&[changed(whole.clone(), |bytes| bytes[index] = octet)]);
    for (found, expected) in [
        (at(1, 0x35), MISMATCH),
        (at(2, 0x04), MISMATCH),
        (at(2, 0x94), MISMATCH),
        (at(2, 0x86), "a message is cut, or has a malformed name"),
        (at(3, 0x05), "the answer is REFUSED"),
        (at(3, 0x09), "the answer is NOTAUTH"),
        // The number of questions, the name, the type and the class.
        (at(5, 0), MISMATCH),
        (at(5, 2), MISMATCH),
        (at(13, b'f'), MISMATCH),
        (at(13, b'E'), "serial 7"),
        (at(26, 1), MISMATCH),
        (at(28, 3), MISMATCH),
    ] {
        assert_eq!(found, expected);
    }
}

#[test]
fn record_that_cant_be_in_the_zone_is_refused() {
    let class = |record: &str, class: u8| {
        changed(message(&[SOA, record, SOA]), |bytes| {
            let at = bytes.windows(4).position(|window| window == [0, 1, 0, 1]).unwrap();
            bytes[at + 3] = class;
        })
    };
    let error = |record: &str| error(&[message(&[SOA, record, SOA])]);
    assert_eq!(
        self::error(&[class(A, 3)]),
        "www.example.org. A: its class is CH, and a zone has only class IN"
    );
    for (record, expected) in [
        ("www.example.net. 60 IN A 192.0.2.1", "www.example.net. A: its owner is outside the zone"),
        ("org. 60 IN A 192.0.2.1", "org. A: its owner is outside the zone"),
        ("a.example.org. 60 IN SOA a. b. 1 2 3 4 5", "a.example.org. SOA: only the origin has an SOA record"),
        ("a.example.org. 60 IN TYPE200 \\# 1 00", "a.example.org. TYPE200: no zone has records of this type"),
    ] {
        assert_eq!(error(record), expected);
    }
    let both = message(&[SOA, A, "www.example.org. 60 IN CNAME a.example.org.", SOA]);
    assert_eq!(
        self::error(&[both]),
        "www.example.org. CNAME: a name with a CNAME record has no other records (RFC 1034 section 3.6.2)"
    );
}

#[test]
fn malformed_record_is_refused() {
    const MALFORMED: &str = "a message is cut, or has a malformed name";
    let whole = message(&[SOA, A, SOA]);
    for length in 12..whole.len() {
        let found = error(&[whole[..length].to_vec()]);
        let expected = if length < 29 { "a message doesn't answer the question" } else { MALFORMED };
        assert_eq!(found, expected, "{length}");
    }
    // The address record: a pointer to itself as its owner, and data of three octets.
    let start = whole.windows(4).position(|window| window == b"\x03www").unwrap();
    let pointer = changed(whole.clone(), |bytes| {
        let itself = u16::try_from(0xc000 | start).unwrap().to_be_bytes();
        bytes.splice(start..start + 4, itself);
    });
    assert_eq!(error(&[pointer]), MALFORMED);
    let address = whole.windows(6).position(|window| window == [0, 4, 192, 0, 2, 1]).unwrap();
    let short = changed(whole.clone(), |bytes| drop(bytes.splice(address..address + 6, [0, 3, 192, 0, 2])));
    assert_eq!(error(&[short]), "www.example.org. A: its octets are no data of this type");
    // Each message has only a part of what stands in its header.
    assert_eq!(error(&[changed(whole, |bytes| bytes[6] = 0xff)]), "records follow the last SOA record");
}

#[test]
fn ttl_with_the_highest_bit_counts_as_0() {
    let high = changed(message(&[SOA, A, SOA]), |bytes| {
        let at = bytes.windows(6).position(|window| window == [0, 0, 0, 60, 0, 4]).unwrap();
        bytes[at] = 0x80;
    });
    let zone = read(&[high]).unwrap();
    let node = zone.node(b"\x03www\x07example\x03org\x00").unwrap();
    assert_eq!(zone.rrsets[zone.rrset(node, 1).unwrap()].ttl, 0);
}

#[test]
fn endless_records_are_refused() {
    let mut reader = TransferReader::new(ORIGIN, Some(ID), ZoneMemory::default());
    reader.read(&message(&[SOA, "a.example.org. 60 IN CNAME b.example.org."])).unwrap();
    // Each is the same CNAME record, which takes no memory.
    let again = message(&["a.example.org. 60 IN CNAME b.example.org."; 1000]);
    let found = (0..5000).find_map(|_| reader.read(&again).err());
    assert_eq!(found, Some(TransferError::TooLarge));
    let mut reader = TransferReader::new(ORIGIN, Some(ID), ZoneMemory::default());
    reader.read(&message(&[SOA])).unwrap();
    // Octets after the records count, too.
    let padded = changed(message(&[A]), |bytes| bytes.resize(65_535, 0));
    let found = (0..10_000).find_map(|_| reader.read(&padded).err());
    assert_eq!(found, Some(TransferError::TooLarge));
}

#[test]
fn zone_that_takes_too_much_memory_is_refused() {
    let memory = ZoneMemory::default();
    let read = || {
        let mut reader = TransferReader::new(ORIGIN, Some(ID), memory.clone());
        reader.read(&message(&[SOA, A, SOA]))?;
        reader.finish()
    };
    let mut others = memory.receive();
    assert!(others.resize(MAX_RECEIVED - 50, MAX_RECEIVED));
    assert_eq!(read().err(), Some(TransferError::ReceivedMemory));
    drop(others);
    let others = memory.keep(MAX_KEPT - 50).unwrap();
    assert_eq!(read().err(), Some(TransferError::KeptMemory));
    drop(others);
    let zone = read().unwrap();
    assert!(memory.keep(MAX_KEPT).is_none());
    assert!(memory.replacing(zone.bytes()).keep(MAX_KEPT).is_some());
}

#[test]
fn serial_is_read_from_the_answer_to_an_soa_query() {
    let answer = |records: &[&str]| changed(message(records), |bytes| bytes[26] = 6);
    assert_eq!(serial_in(&answer(&[SOA]), ORIGIN, ID), Ok(7));
    assert_eq!(serial_in(&answer(&[A, SOA]), ORIGIN, ID), Ok(7));
    assert_eq!(serial_in(&answer(&[A]), ORIGIN, ID), Err(TransferError::NoSoa));
    assert_eq!(serial_in(&answer(&[SOA]), ORIGIN, 1), Err(TransferError::Mismatch));
    assert_eq!(serial_in(&message(&[SOA]), ORIGIN, ID), Err(TransferError::Mismatch), "another type");
}

/// RFC 1982 section 3.2.
#[test]
fn serials_are_compared_modulo_2_to_the_32nd() {
    for (serial, than, expected) in [
        (2, 1, true),
        (1, 2, false),
        (1, 1, false),
        (0, u32::MAX, true),
        (u32::MAX, 0, false),
        (1 << 31, 1, true),
        ((1 << 31) + 1, 1, false),
    ] {
        assert_eq!(is_newer(serial, than), expected, "{serial} {than}");
    }
}
