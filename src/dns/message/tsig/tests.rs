//! The MACs in these tests were computed by dnspython 2.9.2.

use std::sync::Arc;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};

use super::record::{TsigRecord, find, is_signed};
use super::*;
use crate::dns::message::zone_set::ZoneSet;
use crate::model::names;

const TIME: u64 = 1_700_000_000;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn secret() -> Vec<u8> {
    (1..=32).collect()
}

fn key_with(algorithm: Algorithm) -> Key {
    Key::new(&name("Xfr.Example."), algorithm, &secret()).unwrap()
}

fn key() -> Arc<Key> {
    Arc::new(key_with(Algorithm::Sha256))
}

fn keys_of(keys: impl IntoIterator<Item = Key>) -> TsigKeys {
    let mut all = TsigKeys::new(ZoneSet::new([Name::root()]));
    keys.into_iter().for_each(|key| assert!(all.insert(key)));
    all
}

fn keys() -> TsigKeys {
    keys_of([key_with(Algorithm::Sha256)])
}

/// Returns a query as dnspython sends it.
fn query(owner: &str, qtype: RecordType, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = qtype == RecordType::A;
    message.add_query(Query::query(name(owner), qtype));
    message.to_vec().unwrap()
}

fn a_query() -> Vec<u8> {
    query("www.Example.org.", RecordType::A, 0x1234)
}

fn signed_query() -> (Vec<u8>, ReplyChecker) {
    let mut message = a_query();
    let checker = ReplyChecker::sign(key(), &mut message, TIME);
    (message, checker)
}

/// Returns the reply to a query without TSIG: one record, whose owner is the question's name.
fn reply_to(query: &[u8], rtype: u16, data: &[u8]) -> Vec<u8> {
    let mut reply = query.to_vec();
    reply[2] |= 0x80;
    reply[7] = 1;
    reply.extend([0xc0, 12]);
    reply.extend(rtype.to_be_bytes());
    reply.extend([0, 1, 0, 0, 0, 60]);
    reply.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    reply.extend(data);
    reply
}

fn a_reply() -> Vec<u8> {
    reply_to(&a_query(), 1, &[192, 0, 2, 1])
}

fn record(message: &[u8]) -> TsigRecord {
    find(message).unwrap().unwrap().1
}

/// Returns the first 16 octets of a MAC.
fn mac(message: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&record(message).mac[..16])
}

fn check(message: &[u8]) -> CheckedRequest {
    check_request(message, &keys(), TIME)
}

fn error(message: &[u8]) -> Option<TsigError> {
    check(message).outcome.err()
}

/// Returns the rewritten TSIG record of a message, without a new MAC.
fn with_record(message: &[u8], change: impl Fn(&mut TsigRecord)) -> Vec<u8> {
    let (start, mut record) = find(message).unwrap().unwrap();
    let mut changed = message.to_vec();
    record::remove(&mut changed, start);
    change(&mut record);
    record.push(&mut changed);
    changed
}

#[test]
fn macs_equal_those_of_dnspython() {
    for (algorithm, request_mac, reply_mac) in [
        ("hmac-sha1", "cababacb6be9de376efd2cf69f674657", "11cfca5ea4ecc3f437c275dffc19fe07"),
        ("hmac-sha224", "42375376cc791b76a221a46c26b470a2", "f7711feb25b7f7e33925fb35d4d6dfb7"),
        ("hmac-sha256", "a484d365ab20e251a1d177e90407c067", "ccd0d28f39c2e00d71e862d7a33524a2"),
        ("hmac-sha384", "9ca9f0a847f133a047750cd5e83853eb", "a047afe549ce403d4f0065db08b9cf4f"),
        ("hmac-sha512", "74b151059e1d636e3d56fc5c708c102f", "5dd6e2a3af2ee41a410e05e248e6a9b1"),
    ] {
        let algorithm = Algorithm::of_name(algorithm).unwrap();
        let mut request = a_query();
        let mut checker = ReplyChecker::sign(Arc::new(key_with(algorithm)), &mut request, TIME);
        assert_eq!(mac(&request), request_mac, "{algorithm:?}");
        let CheckedRequest { outcome, signer } = check(&request);
        assert_eq!(outcome.unwrap().name(), b"\x03xfr\x07example\x00");
        let (mut reply, mut signer) = (a_reply(), signer.unwrap());
        let length = reply.len() + signer.length();
        signer.sign(&mut reply, TIME);
        assert_eq!((mac(&reply), reply.len()), (reply_mac.to_owned(), length), "{algorithm:?}");
        checker.check(&mut reply, TIME).unwrap();
        assert_eq!(reply, a_reply(), "the TSIG record is removed");
        assert!(checker.may_end());
    }
}

#[test]
fn macs_of_a_transfer_equal_those_of_dnspython() {
    let asked = query("example.org.", RecordType::AXFR, 0x4321);
    let mut request = asked.clone();
    let mut checker = ReplyChecker::sign(key(), &mut request, TIME);
    assert_eq!(mac(&request), "2fffc795854a4550d03f8580700c0e19");
    let mut signer = check(&request).signer.unwrap();
    for (number, expected) in [
        (b'0', "7473a70d2979cb22dfe96f0cdafc0565"),
        (b'1', "df0b7caa29beec880796da83a6ad54a5"),
        (b'2', "1b7916e3f392ac71c7d75bd619e0b5c0"),
    ] {
        let mut message = reply_to(&asked, 16, &[1, number]);
        signer.sign(&mut message, TIME);
        assert_eq!(mac(&message), expected);
        checker.check(&mut message, TIME).unwrap();
    }
}

#[test]
fn at_most_99_messages_of_a_transfer_lack_a_signature() {
    let asked = query("example.org.", RecordType::AXFR, 7);
    let message = |number: u8| reply_to(&asked, 16, &[1, number]);
    for (unsigned, expected) in [(0, true), (1, true), (99, true), (100, false)] {
        let mut request = asked.clone();
        let mut checker = ReplyChecker::sign(key(), &mut request, TIME);
        let mut signer = check(&request).signer.unwrap();
        assert!(!checker.may_end());
        let mut first = message(0);
        signer.sign(&mut first, TIME);
        let prior = record(&first);
        checker.check(&mut first, TIME).unwrap();
        let mut hashing = key().hashing(Algorithm::Sha256);
        hashing.update_with_prior(&prior.mac);
        let mut outcome = Ok(());
        for number in 1..=unsigned {
            let mut unsigned = message(number);
            hashing.update(&unsigned);
            outcome = outcome.and(checker.check(&mut unsigned, TIME));
            assert!(!checker.may_end());
        }
        assert_eq!(outcome.is_ok(), expected, "{unsigned}");
        let mut last = message(200);
        hashing.update(&last);
        let mut record = TsigRecord { time: TIME + 1, ..prior };
        record.hash_timers(&mut hashing);
        record.mac = hashing.finish();
        record.push(&mut last);
        if expected {
            checker.check(&mut last, TIME).unwrap();
            assert!(checker.may_end());
        }
    }
    let mut checker = ReplyChecker::sign(key(), &mut asked.clone(), TIME);
    assert_eq!(checker.check(&mut message(0), TIME), Err(TsigError::Unsigned), "the first one is signed");
}

#[test]
fn repeated_left_out_or_swapped_messages_are_refused() {
    let asked = query("example.org.", RecordType::AXFR, 7);
    for order in [&[0, 0][..], &[1], &[0, 2], &[0, 1, 1], &[0, 2, 1], &[0, 1, 0]] {
        let mut request = asked.clone();
        let mut checker = ReplyChecker::sign(key(), &mut request, TIME);
        let mut signer = check(&request).signer.unwrap();
        let messages = [0, 1, 2].map(|number| {
            let mut message = reply_to(&asked, 16, &[1, number]);
            signer.sign(&mut message, TIME);
            message
        });
        let outcomes: Vec<_> =
            order.iter().map(|number| checker.check(&mut messages[*number].clone(), TIME)).collect();
        assert!(outcomes.contains(&Err(TsigError::BadSig)), "{order:?}: {outcomes:?}");
    }
    // The reply to another request with the same key.
    let (mut first, mut second) = (asked.clone(), asked.clone());
    let _ = ReplyChecker::sign(key(), &mut first, TIME - 1);
    let mut checker = ReplyChecker::sign(key(), &mut second, TIME);
    let mut reply = reply_to(&asked, 16, &[1, 0]);
    check(&first).signer.unwrap().sign(&mut reply, TIME);
    assert_eq!(checker.check(&mut reply, TIME), Err(TsigError::BadSig));
}

/// Returns each way to flip one bit of a message.
fn flipped(message: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..message.len() * 8).map(|bit| {
        let mut changed = message.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        (bit / 8, changed)
    })
}

#[test]
fn any_flipped_bit_of_a_message_is_refused() {
    let (request, _) = signed_query();
    let (start, _) = find(&request).unwrap().unwrap();
    let key_and_algorithm = start..start + 13 + 10 + 13;
    for (at, changed) in flipped(&request) {
        let is_valid = check(&changed).outcome.is_ok();
        // The id isn't signed, but the original id is (RFC 8945 section 5.1); names are signed in lower case.
        let is_unsigned = at < 2 || key_and_algorithm.contains(&at) && changed.eq_ignore_ascii_case(&request);
        assert_eq!(is_valid, is_unsigned, "octet {at}");
    }
    let mut reply = a_reply();
    check(&request).signer.unwrap().sign(&mut reply, TIME);
    let reply_start = find(&reply).unwrap().unwrap().0;
    let key_and_algorithm = reply_start..reply_start + 13 + 10 + 13;
    for (at, mut changed) in flipped(&reply) {
        let (_, mut checker) = signed_query();
        let is_unsigned = at < 2 || key_and_algorithm.contains(&at) && changed.eq_ignore_ascii_case(&reply);
        assert_eq!(checker.check(&mut changed, TIME).is_ok(), is_unsigned, "octet {at}");
    }
}

#[test]
fn wrong_keys_and_times_have_the_errors_of_the_rfc() {
    let (request, _) = signed_query();
    assert_eq!(error(&request), None);
    let other = Key::new(&name("xfr.example."), Algorithm::Sha256, b"other").unwrap();
    let refused = check_request(&request, &keys_of([other]), TIME).outcome.err();
    assert_eq!(refused, Some(TsigError::BadSig));
    assert_eq!(check_request(&request, &TsigKeys::default(), TIME).outcome.err(), Some(TsigError::BadKey));
    let md5 = with_record(&request, |record| record.algorithm = b"\x08hmac-md5\x00".to_vec());
    assert_eq!(error(&md5), Some(TsigError::BadKey));
    for (time, expected) in [
        (TIME - 301, Some(TsigError::BadTime)),
        (TIME - 300, None),
        (TIME + 300, None),
        (TIME + 301, Some(TsigError::BadTime)),
        (0, Some(TsigError::BadTime)),
    ] {
        assert_eq!(check_request(&request, &keys(), time).outcome.err(), expected, "{time}");
    }
    for (octets, expected) in [
        (0, TsigError::Malformed),
        (9, TsigError::Malformed),
        (15, TsigError::Malformed),
        (16, TsigError::BadTrunc),
        (31, TsigError::BadTrunc),
        (33, TsigError::Malformed),
    ] {
        let cut = with_record(&request, |record| record.mac.resize(octets, 0));
        assert_eq!(error(&cut), Some(expected), "{octets}");
    }
}

#[test]
fn replies_to_refused_requests_are_signed_only_for_time_and_cut() {
    let (request, _) = signed_query();
    let signed = |request: &[u8], now: u64| {
        let CheckedRequest { outcome, signer } = check_request(request, &keys(), now);
        let (mut reply, mut signer) = (a_reply(), signer.unwrap());
        assert!(outcome.is_err() && !signer.is_of_valid_request());
        let length = reply.len() + signer.length();
        signer.sign(&mut reply, now);
        assert_eq!(reply.len(), length);
        reply
    };
    let unknown = with_record(&request, |record| record.key = b"\x01k\x00".to_vec());
    let wrong = with_record(&request, |record| record.mac[0] ^= 1);
    for (request, code) in [(&unknown, 17), (&wrong, 16)] {
        let found = record(&signed(request, TIME));
        let expected = TsigRecord { mac: vec![], error: code, ..record(request) };
        assert_eq!(found, expected);
        let (_, mut checker) = signed_query();
        let refused = checker.check(&mut signed(&wrong, TIME), TIME);
        assert_eq!(refused, Err(TsigError::ByServer(16)));
    }
    let late = TIME + 0x1_0000_0000;
    let mut reply = signed(&request, late);
    let found = record(&reply);
    assert_eq!((found.error, found.time, found.other), (18, TIME, vec![0, 1, 0x65, 0x53, 0xf1, 0]));
    let (_, mut checker) = signed_query();
    assert_eq!(checker.check(&mut reply, TIME), Err(TsigError::ByServer(18)), "it is signed");
    let cut = with_record(&request, |record| record.mac.truncate(20));
    let found = record(&signed(&cut, TIME));
    assert_eq!((found.error, found.mac.len()), (22, 32));
}

#[test]
fn record_must_be_the_last_one_and_well_formed() {
    let (request, _) = signed_query();
    assert!(is_signed(&request) && !is_signed(&a_query()) && !is_signed(&a_reply()));
    let start = find(&request).unwrap().unwrap().0;
    let twice = {
        let mut twice = [&request[..], &request[start..]].concat();
        twice[11] = 2;
        twice
    };
    let before_opt = {
        let mut before = [&request[..], &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]].concat();
        before[11] = 2;
        before
    };
    let as_answer = {
        let mut answer = request.clone();
        answer.swap(7, 11);
        answer
    };
    let longer = [&request[..], &[0]].concat();
    let in_class_in = with_changed(&request, start + 13 + 3, 1);
    let with_ttl = with_changed(&request, start + 13 + 7, 1);
    for malformed in [twice, before_opt, as_answer, longer, in_class_in, with_ttl] {
        assert_eq!(error(&malformed), Some(TsigError::Malformed), "{malformed:02x?}");
        assert!(is_signed(&malformed));
    }
    for end in 0..request.len() {
        assert_eq!(find(&request[..end]), Err(TsigError::Malformed), "{end}");
    }
    // The key's name may be compressed: here it ends with the label `org` of the question.
    let mut request = a_query();
    let key = Key::new(&name("k.org."), Algorithm::Sha256, &secret()).unwrap();
    let _ = ReplyChecker::sign(Arc::new(key), &mut request, TIME);
    let start = find(&request).unwrap().unwrap().0;
    request.splice(start + 2..start + 7, [0xc0, 12 + 4 + 8]);
    let keys = keys_of([Key::new(&name("k.org."), Algorithm::Sha256, &secret()).unwrap()]);
    assert!(check_request(&request, &keys, TIME).outcome.is_ok());
}

fn with_changed(message: &[u8], at: usize, octet: u8) -> Vec<u8> {
    let mut changed = message.to_vec();
    changed[at] = octet;
    changed
}

#[test]
fn key_of_a_zone_has_the_most_labels_in_common() {
    let key = |text: &str| Key::new(&name(text), Algorithm::Sha256, b"secret").unwrap();
    let found = |keys: &[&str], zone: &str| {
        let keys = keys_of(keys.iter().map(|text| key(text)));
        keys.for_zone(&name(zone)).map(|key| names::text(&key.name()[..key.name().len() - 1]))
    };
    let keys = ["first.", "example.org.key.", "ns1.example.net.", "sub.example.net."];
    for (zone, expected) in [
        ("Example.org.", "example.org.key"),
        ("example.net.", "ns1.example.net"),
        ("sub.example.net.", "sub.example.net"),
        ("b.sub.example.net.", "sub.example.net"),
        ("test.", "first"),
        (".", "first"),
    ] {
        assert_eq!(found(&keys, zone).as_deref(), Some(expected), "{zone}");
    }
    assert_eq!(found(&[], "example.org."), None);
    let mut other_zone = TsigKeys::new(ZoneSet::new([name("example.net.")]));
    assert!(other_zone.insert(key("a.")) && !other_zone.insert(key("A.")));
    assert!(other_zone.for_zone(&name("example.org.")).is_none());
    assert!(other_zone.for_zone(&name("a.example.net.")).is_some());
}

#[test]
fn debug_output_has_no_secret() {
    let secret = b"a very secret text that is long enough".to_vec();
    let key = Key::new(&name("k."), Algorithm::Sha512, &secret).unwrap();
    let keys = keys_of([key]);
    let (mut request, zone) = (a_query(), Name::root());
    let checker = ReplyChecker::sign(keys.for_zone(&zone).unwrap(), &mut request, TIME);
    let checked = check_request(&request, &keys, TIME);
    let shown = format!("{keys:?} {checker:?} {checked:?}");
    assert!(shown.contains("Hashing"), "{shown}");
    // Neither the secret nor the state that it leads to.
    assert!(!shown.contains("secret") && !shown.contains(&format!("{:?}", &secret[..4])), "{shown}");
}
