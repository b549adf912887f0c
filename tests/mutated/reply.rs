//! Properties of the records that lb-linker uses from arbitrary bytes of an upstream, shared by the property test and
//! the fuzz target.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Message, MessageType, Metadata, OpCode, Query};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use lb_linker::dns::message::encode::encode;
use lb_linker::dns::message::freshness::reduce_ttls;
use lb_linker::dns::message::records::Records;
use lb_linker::dns::message::reply::Reply as Answer;
use lb_linker::dns::message::sections::Sections;
use lb_linker::dns::message::upstream_reply::{UpstreamReply, parse_datagram};
use lb_linker::dns::message::validity::Section;
use lb_linker::dns::message::wire::WireMessage;
use lb_linker::dns::plugins::lb_linker::chase::{ChainEnd, ChainStep, CnameChain, drop_denied, follow};
use lb_linker::dns::plugins::lb_linker::zone::TTL;
use lb_linker::model::target_policy::TargetPolicy;

/// The offset of the type in a query for `t.example`.
const TYPE: usize = 12 + 11;

/// Handles the bytes as the reply to a query for `t.example`. The query gets the id and the type of the reply,
/// because otherwise almost no reply would match. Returns the kind of reply, or the violated property.
pub fn try_reply(bytes: &[u8]) -> Result<&'static str, String> {
    let name = Name::from_ascii("t.example.").unwrap();
    let qtype = bytes.get(TYPE..TYPE + 2).map_or(1, |qtype| u16::from_be_bytes([qtype[0], qtype[1]]));
    let mut asked = Message::new(0, MessageType::Query, OpCode::Query);
    asked.add_query(Query::query(name.clone(), qtype.into()));
    let mut asked = asked.to_vec().map_err(|error| format!("the question: {error}"))?;
    asked[..2].copy_from_slice(bytes.get(..2).unwrap_or(&[0, 0]));
    let (kind, message) = match parse_datagram(&asked, bytes, false) {
        UpstreamReply::Mismatch => return Ok("mismatch"),
        UpstreamReply::Malformed(_) => return Ok("malformed"),
        UpstreamReply::Truncated(message) => ("truncated", message),
        UpstreamReply::Answer(message) => ("answer", message),
    };
    check_aged(&asked, bytes, &message).map_err(|rule| format!("{rule}\n{bytes:02x?}"))?;
    let zone = Name::from_ascii("lb.internal.").unwrap();
    let ours = |name: &Name| zone.zone_of(name);
    let step = |name: &Name| if ours(name) { ChainStep::LinkZone } else { ChainStep::InAnswer };
    check_passed_on(&message, qtype.into()).map_err(|rule| format!("{rule}\n{bytes:02x?}"))?;
    let answer = Answer {
        records: Records::of_wire(Arc::clone(&message), &name),
        ..Answer::new(message.metadata, "")
    };
    let mut chain = follow(&answer, &name, qtype.into(), TTL, step);
    let has_ours_below = |name: &Name| name.zone_of(&zone);
    chain.drop_records_about_our_zones(ours, has_ours_below);
    check_chain(&chain, &name, qtype.into(), ours, has_ours_below)
        .and_then(|()| check_encoded(&mut chain, &name, qtype.into()))
        .map_err(|rule| format!("{rule}\n{bytes:02x?}\n{chain:#?}"))?;
    Ok(kind)
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

/// Checks the same reply from an HTTP cache, in which it was for some time (RFC 8484 section 5.1).
fn check_aged(asked: &[u8], bytes: &[u8], message: &WireMessage) -> Result<(), String> {
    for age in [0, 1, 100, u32::MAX] {
        let mut aged = bytes.to_vec();
        reduce_ttls(&mut aged, age);
        ensure(age > 0 || aged == bytes, "without an age, the reply stays the same")?;
        ensure(aged.len() == bytes.len(), "its length stays the same")?;
        if let UpstreamReply::Answer(aged) | UpstreamReply::Truncated(aged) =
            parse_datagram(asked, &aged, false)
        {
            let limit = message.lowest_ttl().map(|ttl| ttl.saturating_sub(age));
            // A malformed name may lead into a TTL, and its record be left out then.
            let has_all = Section::ALL.iter().all(|section| aged.count(*section) == message.count(*section));
            ensure(!has_all || aged.lowest_ttl() <= limit, "the lowest TTL is reduced by the age")?;
        }
    }
    Ok(())
}

/// Checks that all used records belong to the chain, and that the end of the chain is allowed.
fn check_chain(
    followed: &CnameChain,
    name: &Name,
    qtype: RecordType,
    ours: impl Fn(&Name) -> bool,
    has_ours_below: impl Fn(&Name) -> bool,
) -> Result<(), String> {
    let mut chain = vec![name];
    for record in &followed.answers {
        let kind = record.record_type();
        let asked_for = kind == qtype || kind == RecordType::RRSIG || qtype == RecordType::ANY;
        let dname = kind == RecordType::DNAME && chain.iter().any(|name| record.name.zone_of(name));
        ensure(
            asked_for || kind == RecordType::CNAME || dname,
            "a used record has the queried type or is RRSIG, CNAME or DNAME",
        )?;
        ensure(dname || chain.contains(&&record.name), "the owner of a used record is in the CNAME chain")?;
        ensure(record.dns_class == DNSClass::IN, "a used record has the class IN")?;
        ensure(!ours(&record.name), "a used record has no owner in a zone of links")?;
        let redirects = kind == RecordType::DNAME && has_ours_below(&record.name);
        ensure(!redirects, "no used DNAME is above a zone of links")?;
        ensure(i32::try_from(record.ttl).is_ok(), "a TTL is at most 2^31 - 1 (RFC 2181 section 8)")?;
        if let RData::CNAME(target) = &record.data {
            chain.push(&target.0);
        }
    }
    for record in &followed.authorities {
        ensure(record.ttl <= TTL, "the TTL of a negative answer is at most the TTL of a link's records")?;
        let kind = record.record_type();
        let proof = [RecordType::SOA, RecordType::NSEC, RecordType::NSEC3, RecordType::RRSIG].contains(&kind);
        ensure(
            proof && !ours(&record.name),
            "a used authority record proves the absence, and has no owner in a zone of links",
        )?;
    }
    match &followed.end {
        ChainEnd::InLinkZone(name) => ensure(ours(name), "the chain ends at a name in a zone of links"),
        ChainEnd::Final(_) | ChainEnd::Denied | ChainEnd::Unresolved => Ok(()),
    }
}

/// Checks the whole and the truncated answers to a client that spells the name in another case than the upstream.
fn check_passed_on(message: &WireMessage, qtype: RecordType) -> Result<(), String> {
    let query = Query::query(Name::from_ascii("T.eXample.").unwrap(), qtype);
    let counts = message.decode(None).counts();
    let expected = Section::ALL.map(|section| message.count(section));
    ensure(counts == expected, "every record can be decoded")?;
    for limit in [40, 512, u16::MAX] {
        let records = Records::of_wire(Arc::new(message.clone()), query.name());
        let reply = Answer { records, ..Answer::new(message.metadata, "") };
        let bytes = encode(&reply, &query, None, limit)
            .map(|(bytes, _)| bytes)
            .map_err(|error| format!("passing on: {error}"))?;
        ensure(bytes.len() <= limit.into(), "an answer that is passed on isn't longer than the limit")?;
        let encoded =
            WireMessage::new(&bytes).map_err(|error| format!("an answer that is passed on: {error}"))?;
        let question = encoded.question().ok_or("an answer that is passed on has a question")?;
        ensure(question.name().eq_case(query.name()), "the client gets its own spelling")?;
        let kept = Section::ALL.map(|section| encoded.count(section));
        if limit == u16::MAX {
            let expected = message.decode(Some(query.name()));
            ensure(encoded.decode(None) == expected, "an answer by TCP has all records of the upstream")?;
        }
        if kept[0] < counts[0] {
            ensure(encoded.metadata.truncation, "TC is set if answers are left out")?;
            let types = encoded.types(Section::Answer).filter(|rtype| *rtype != RecordType::RRSIG);
            let is_alias = |rtype: RecordType| matches!(rtype, RecordType::CNAME | RecordType::DNAME);
            ensure(types.is_sorted_by_key(|rtype| !is_alias(rtype)), "a truncated answer has aliases first")?;
        }
        ensure(
            encoded.lowest_ttl().is_none_or(|ttl| i32::try_from(ttl).is_ok()),
            "no TTL has its top bit set",
        )?;
    }
    Ok(())
}

/// Checks that the used records can be encoded, and that `drop_denied` removes all denied addresses.
fn check_encoded(chain: &mut CnameChain, name: &Name, qtype: RecordType) -> Result<(), String> {
    let policy = TargetPolicy::default();
    drop_denied(&mut chain.answers, &policy, |_| true);
    let is_denied = |record: &Record| {
        let address: IpAddr = match &record.data {
            RData::A(ip) => ip.0.into(),
            RData::AAAA(ip) => ip.0.into(),
            // The policy can't check data that isn't decoded.
            RData::Unknown { code: RecordType::A | RecordType::AAAA, .. } => return true,
            _ => return false,
        };
        policy.check_address(address).is_err()
    };
    ensure(!chain.answers.iter().any(is_denied), "denied addresses are removed")?;
    let sections = Sections {
        answers: chain.answers.clone(),
        authorities: chain.authorities.clone(),
        additionals: Vec::new(),
    };
    let response = Answer {
        records: sections.into(),
        ..Answer::new(Metadata::new(1, MessageType::Response, OpCode::Query), "")
    };
    for limit in [512, 1232, u16::MAX] {
        let question = Query::query(name.clone(), qtype);
        let bytes = encode(&response, &question, None, limit)
            .map(|(bytes, _)| bytes)
            .map_err(|error| format!("encoding: {error}"))?;
        ensure(bytes.len() <= limit.into(), "the encoded answer isn't longer than the limit")?;
        let encoded =
            WireMessage::new(&bytes).map_err(|error| format!("decoding what was encoded: {error}"))?;
        let negative = encoded.types(Section::Authority).any(|rtype| rtype == RecordType::SOA);
        let decoded =
            encoded.decode(None).authorities.iter().any(|record| matches!(record.data, RData::SOA(_)));
        ensure(negative == decoded, "the SOA record of a denial can be decoded")?;
    }
    Ok(())
}
