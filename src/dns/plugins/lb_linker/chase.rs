//! Extracts the records of a target from an upstream's answer, without I/O.
//!
//! The records are served with AA set, so no unrelated record may be accepted (RFC 5452 section 6, RFC 2181 section
//! 5.4.1).

use std::collections::HashSet;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::HTTPS;
use hickory_proto::rr::rdata::svcb::{SvcParamKey, SvcParamValue};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use smallvec::SmallVec;

use crate::dns::message::reply::{MAX_CNAMES_IN_ANSWER, Reply};
use crate::dns::message::rrsig::type_covered;
use crate::dns::message::wire::effective_ttl;
use crate::model::target_policy::TargetPolicy;

/// The records of an answer that belong to the queried name, and the end of the CNAME chain.
#[derive(Debug, PartialEq)]
pub struct CnameChain {
    /// The records of the chain from the queried name on, in order.
    pub answers: Vec<Record>,
    /// The authority records that prove that there is no data at the end of the chain.
    pub authorities: Vec<Record>,
    pub end: ChainEnd,
}

/// The end of a CNAME chain.
#[derive(Debug, PartialEq, Eq)]
pub enum ChainEnd {
    /// The last name has records of the queried type, or the upstream answered that it has none.
    Final(ResponseCode),
    /// The chain leads to this name in our zones.
    InLinkZone(Name),
    /// The chain leads to a name that the target policy or a plugin denies.
    Denied,
    /// The chain can't be followed: the answer is a referral, an error or a loop.
    Unresolved,
}

/// The owners and types of rrsets.
type RrsetKeys = HashSet<(Name, RecordType)>;

/// The place where a chain continues from a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainStep {
    /// The chain continues in the upstream's answer.
    InAnswer,
    /// The chain continues in our zones: an upstream's records for our names are never accepted.
    LinkZone,
    /// The chain ends: the target policy or a plugin denies the name.
    Denied,
}

impl CnameChain {
    /// Drops what an upstream says about our zones: authority records with an owner for which `is_ours` is true, and a
    /// DNAME whose owner is above one of our zones, for which `has_ours_below` is true.
    pub fn drop_records_about_our_zones(
        &mut self,
        is_ours: impl Fn(&Name) -> bool,
        has_ours_below: impl Fn(&Name) -> bool,
    ) {
        self.authorities.retain(|record| !is_ours(&record.name));
        self.answers
            .retain(|record| record.record_type() != RecordType::DNAME || !has_ours_below(&record.name));
    }
}

/// Follows the chain from `name` through an upstream's answer to a query of type `qtype`.
///
/// `max_negative_ttl` is the maximum negative TTL in seconds; `step` decides for each target of an alias where the
/// chain continues.
#[must_use]
pub fn follow(
    answer: &Reply,
    name: &Name,
    qtype: RecordType,
    max_negative_ttl: u32,
    mut step: impl FnMut(&Name) -> ChainStep,
) -> CnameChain {
    let chain = |mut answers: Vec<Record>, authorities, end| {
        answers.iter_mut().for_each(|record| record.ttl = effective_ttl(record.ttl));
        CnameChain { answers, authorities, end }
    };
    let checkable = checkable(&answer.records.answers);
    let mut owner = name.clone();
    let mut answers: Vec<Record> = Vec::new();
    let mut seen = vec![owner.clone()];
    let mut has_data = false;
    loop {
        let here = |record: &&&Record| record.dns_class == DNSClass::IN && record.name == owner;
        let of_type = |record: &&&Record| {
            let found = record.record_type();
            found == qtype || found == RecordType::RRSIG || qtype == RecordType::ANY
        };
        let found: Vec<&&Record> = checkable.iter().filter(here).filter(of_type).collect();
        has_data = has_data || found.iter().any(|record| record.record_type() != RecordType::RRSIG);
        answers.extend(found.into_iter().copied().cloned());
        let alias = checkable.iter().filter(here).find_map(|record| match &record.data {
            RData::CNAME(target) if !has_data => Some((*record, &target.0)),
            _ => None,
        });
        let Some((record, target)) = alias else { break };
        // RFC 6672 section 3.1: include the DNAME that the CNAME was synthesized from.
        let dname = |record: &&&Record| record.dns_class == DNSClass::IN && redirects(record, &owner, target);
        // Section 2.4: a name has only one. It may redirect several names of the chain.
        if let Some(dname) = checkable.iter().find(dname)
            && !answers.contains(dname)
        {
            answers.push((*dname).clone());
        }
        answers.push(record.clone());
        owner = target.clone();
        match step(&owner) {
            ChainStep::InAnswer => {}
            ChainStep::LinkZone => return chain(answers, Vec::new(), ChainEnd::InLinkZone(owner)),
            ChainStep::Denied => return chain(answers, Vec::new(), ChainEnd::Denied),
        }
        if seen.contains(&owner) || seen.len() > MAX_CNAMES_IN_ANSWER {
            return chain(answers, Vec::new(), ChainEnd::Unresolved);
        }
        seen.push(owner.clone());
    }
    let authorities = if has_data { Vec::new() } else { negative_proof(answer, &owner, max_negative_ttl) };
    let is_complete = has_data || is_denial(answer, &authorities);
    let end = match answer.metadata.response_code {
        rcode @ (ResponseCode::NoError | ResponseCode::NXDomain) if is_complete => ChainEnd::Final(rcode),
        _ => ChainEnd::Unresolved,
    };
    chain(answers, authorities, end)
}

/// Returns whether an answer without data is a denial, with this proof. An empty answer with NS records and without an
/// SOA is a referral (RFC 2308 section 2.2.1), and a truncated chain may have data.
fn is_denial(answer: &Reply, proof: &[Record]) -> bool {
    let is_referral = answer.metadata.response_code == ResponseCode::NoError
        && proof.is_empty()
        && answer.records.authorities.iter().any(|record| record.record_type() == RecordType::NS);
    !is_referral && !answer.metadata.truncation
}

/// Returns the records that the policies can check. Records of types with addresses or names are left out if their data
/// isn't decoded, and so are their signatures.
fn checkable(records: &[Record]) -> Vec<&Record> {
    let undecoded: RrsetKeys = records
        .iter()
        .filter(|record| is_undecoded(&record.data))
        .map(|record| (record.name.clone(), record.record_type()))
        .collect();
    let is_checkable = |record: &&Record| !is_undecoded(&record.data) && !is_signature_of(record, &undecoded);
    records.iter().filter(is_checkable).collect()
}

fn is_undecoded(data: &RData) -> bool {
    let RData::Unknown { code, .. } = data else { return false };
    // `decode_data` in `wire.rs` has to decode these types, except DNAME.
    match code {
        RecordType::A
        | RecordType::AAAA
        | RecordType::CNAME
        | RecordType::SRV
        | RecordType::MX
        | RecordType::SVCB
        | RecordType::HTTPS => true,
        // hickory-proto has no data type for DNAME.
        RecordType::DNAME => dname_target(data).is_none(),
        _ => false,
    }
}

/// Returns the target of a DNAME record; `None` for other types, and for malformed data.
fn dname_target(data: &RData) -> Option<Name> {
    let RData::Unknown { code: RecordType::DNAME, rdata } = data else { return None };
    let mut decoder = BinDecoder::new(&rdata.anything);
    Name::read(&mut decoder).ok().filter(|_| decoder.is_empty())
}

/// Returns whether a record is a DNAME that redirects `owner` to `target` (RFC 6672 section 2.2).
fn redirects(record: &Record, owner: &Name, target: &Name) -> bool {
    let is_above = record.name.zone_of(owner) && record.name != *owner;
    let Some(to) = dname_target(&record.data).filter(|_| is_above) else { return false };
    let kept = owner.iter().len() - record.name.iter().len();
    let redirected = Name::from_labels(owner.iter().take(kept)).and_then(|labels| labels.append_domain(&to));
    redirected.is_ok_and(|redirected| redirected == *target)
}

/// Drops records with addresses that the policy denies, and SRV, MX, SVCB and HTTPS records with a name that `allows`
/// denies: the owner of a hostname could otherwise direct clients anywhere, also into the cluster. The signature of a
/// changed RRset is dropped, too, because it isn't valid for the remaining records. Returns whether an address was
/// dropped.
pub fn drop_denied(
    answers: &mut Vec<Record>,
    targets: &TargetPolicy,
    mut allows: impl FnMut(&Name) -> bool,
) -> bool {
    let mut has_addresses = false;
    let mut cut = RrsetKeys::new();
    answers.retain(|record| {
        let is_address_denied = has_denied_address(&record.data, targets);
        has_addresses |= is_address_denied;
        let is_denied = is_address_denied || host_of(&record.data).is_some_and(|name| !allows(name));
        if is_denied {
            cut.insert((record.name.clone(), record.record_type()));
        }
        !is_denied
    });
    drop_signatures(answers, &cut);
    has_addresses
}

/// Drops the address hints of SVCB and HTTPS records (RFC 9460 section 7.3) that `allows` denies: `allows` returns
/// whether the client may query the host of a record for addresses of a type. The signature of a changed RRset is
/// dropped, too. Returns whether a hint was dropped.
pub fn drop_hints(answers: &mut Vec<Record>, mut allows: impl FnMut(&Name, RecordType) -> bool) -> bool {
    let mut cut = RrsetKeys::new();
    for record in &mut *answers {
        let qtype = record.record_type();
        let (RData::SVCB(svcb) | RData::HTTPS(HTTPS(svcb))) = &mut record.data else { continue };
        let host = if svcb.target_name.is_root() { &record.name } else { &svcb.target_name };
        let mut is_denied = |key: &SvcParamKey| match key {
            SvcParamKey::Ipv4Hint => !allows(host, RecordType::A),
            SvcParamKey::Ipv6Hint => !allows(host, RecordType::AAAA),
            _ => false,
        };
        let keys = svcb.svc_params.iter().map(|(key, _)| *key);
        let denied: SmallVec<[SvcParamKey; 2]> = keys.filter(&mut is_denied).collect();
        if denied.is_empty() {
            continue;
        }
        svcb.svc_params.retain_mut(|(key, value)| {
            // RFC 9460 section 8: a mandatory key must be present.
            if let SvcParamValue::Mandatory(keys) = value {
                keys.0.retain(|key| !denied.contains(key));
                return !keys.0.is_empty();
            }
            !denied.contains(key)
        });
        cut.insert((record.name.clone(), qtype));
    }
    drop_signatures(answers, &cut);
    !cut.is_empty()
}

fn drop_signatures(answers: &mut Vec<Record>, of: &RrsetKeys) {
    if !of.is_empty() {
        answers.retain(|record| !is_signature_of(record, of));
    }
}

fn is_signature_of(record: &Record, rrsets: &RrsetKeys) -> bool {
    !rrsets.is_empty()
        && type_covered(record).is_some_and(|rtype| rrsets.contains(&(record.name.clone(), rtype)))
}

fn has_denied_address(data: &RData, targets: &TargetPolicy) -> bool {
    let is_denied = |ip: IpAddr| targets.check_address(ip).is_err();
    match data {
        RData::A(ip) => is_denied(ip.0.into()),
        RData::AAAA(ip) => is_denied(ip.0.into()),
        // RFC 9460 section 7.3: hints are addresses, too.
        RData::SVCB(svcb) | RData::HTTPS(HTTPS(svcb)) => {
            svcb.svc_params.iter().any(|(_, value)| match value {
                SvcParamValue::Ipv4Hint(hints) => hints.0.iter().any(|ip| is_denied(ip.0.into())),
                SvcParamValue::Ipv6Hint(hints) => hints.0.iter().any(|ip| is_denied(ip.0.into())),
                _ => false,
            })
        }
        _ => false,
    }
}

/// Returns the host that a record names. The root means that there is no host (RFC 2782, RFC 7505 section 3), or stands
/// for the owner (RFC 9460 section 2.5).
fn host_of(data: &RData) -> Option<&Name> {
    let name = match data {
        RData::SRV(srv) => &srv.target,
        RData::MX(mx) => &mx.exchange,
        RData::SVCB(svcb) | RData::HTTPS(HTTPS(svcb)) => &svcb.target_name,
        _ => return None,
    };
    (!name.is_root()).then_some(name)
}

/// Returns the SOA record of the zone that contains `owner`, and the NSEC, NSEC3 and RRSIG records of the zone. Their
/// TTLs are limited to `max_negative_ttl` and MINIMUM, because some caches keep a denial as long as the TTL of the SOA,
/// whatever its MINIMUM (RFC 2308 section 5).
fn negative_proof(answer: &Reply, owner: &Name, max_negative_ttl: u32) -> Vec<Record> {
    let soa = answer
        .records
        .authorities
        .iter()
        .find(|record| matches!(record.data, RData::SOA(_)) && record.name.zone_of(owner));
    let Some(soa) = soa else { return Vec::new() };
    let belongs = |record: &&Record| {
        let denies = matches!(record.record_type(), RecordType::NSEC | RecordType::NSEC3 | RecordType::RRSIG);
        *record == soa || denies && soa.name.zone_of(&record.name)
    };
    let mut proof: Vec<Record> = answer.records.authorities.iter().filter(belongs).cloned().collect();
    let limit = negative_ttl(&proof, max_negative_ttl);
    for record in &mut proof {
        record.ttl = effective_ttl(record.ttl).min(limit);
    }
    proof
}

/// Returns the lesser of `max_negative_ttl` and the MINIMUM field of the SOA record in a proof, in seconds.
pub(super) fn negative_ttl(proof: &[Record], max_negative_ttl: u32) -> u32 {
    let minimums = proof.iter().filter_map(|record| match &record.data {
        RData::SOA(soa) => Some(effective_ttl(soa.minimum)),
        _ => None,
    });
    minimums.fold(max_negative_ttl, u32::min)
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{MessageType, Metadata, OpCode};
    use hickory_proto::rr::rdata::svcb::{IpHint, Mandatory, SVCB};
    use hickory_proto::rr::rdata::{A, AAAA, MX, NULL, SRV};

    use super::*;
    use crate::dns::plugins::tests::support;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    /// Parses `name type data`.
    fn record(text: &str) -> Record {
        let (owner, rest) = text.split_once(' ').unwrap();
        support::record(&format!("{owner} 3600 {rest}"))
    }

    fn reply(rcode: ResponseCode, answers: Vec<Record>, authorities: Vec<Record>) -> Reply {
        let mut reply = Reply::new(Metadata::new(1, MessageType::Response, OpCode::Query), "");
        reply.metadata.response_code = rcode;
        reply.records.answers = answers;
        reply.records.authorities = authorities;
        reply
    }

    fn follow_a(rcode: ResponseCode, answers: &[&str], authorities: &[&str]) -> String {
        let all = |records: &[&str]| records.iter().map(|text| record(text)).collect();
        let reply = reply(rcode, all(answers), all(authorities));
        let step = |name: &Name| {
            if self::name("lb.internal.").zone_of(name) {
                ChainStep::LinkZone
            } else if self::name("denied.example.").zone_of(name) {
                ChainStep::Denied
            } else {
                ChainStep::InAnswer
            }
        };
        let chain = follow(&reply, &name("t.example."), RecordType::A, 5, step);
        let list = |records: &[Record]| {
            records
                .iter()
                .map(|record| format!("{} {}", record.name, record.record_type()))
                .collect::<Vec<_>>()
                .join(", ")
        };
        format!("{:?} | {} | {}", chain.end, list(&chain.answers), list(&chain.authorities))
    }

    #[test]
    fn only_records_of_the_chain_are_accepted() {
        let ok = ResponseCode::NoError;
        let nx = ResponseCode::NXDomain;
        for (rcode, answers, authorities, expected) in [
            (
                ok,
                &["t.example. A 192.0.2.1"][..],
                &["example. NS ns.example."][..],
                "Final(NoError) | t.example. A | ",
            ),
            (
                ok,
                &["c.example. A 192.0.2.1", "t.example. CNAME c.example."],
                &[],
                "Final(NoError) | t.example. CNAME, c.example. A | ",
            ),
            (
                ok,
                &["t.example. A 192.0.2.1", "web.lb.internal. A 192.0.2.6", "www.bank.example. A 192.0.2.6"],
                &[],
                "Final(NoError) | t.example. A | ",
            ),
            (
                ok,
                &["www.bank.example. A 192.0.2.6"],
                &["example. SOA ns.example."],
                "Final(NoError) |  | example. SOA",
            ),
            (
                nx,
                &[],
                &["lb.internal. SOA ns.evil.", "bank.example. NS ns.evil.", "example. SOA ns.example."],
                "Final(NXDomain) |  | example. SOA",
            ),
            (nx, &[], &[], "Final(NXDomain) |  | "),
            (ok, &[], &["com. NS ns.com."], "Unresolved |  | "),
            (
                ok,
                &["t.example. CNAME web.lb.internal.", "web.lb.internal. A 192.0.2.6"],
                &[],
                "InLinkZone(Name(\"web.lb.internal.\")) | t.example. CNAME | ",
            ),
            (
                ok,
                &[
                    "example. DNAME svc.cluster.local.",
                    ". DNAME example.test.",
                    "example. DNAME Other.test.",
                    "t.example. DNAME other.test.",
                    "t.example. CNAME t.other.test.",
                    "t.other.test. A 192.0.2.1",
                ],
                &[],
                "Final(NoError) | example. DNAME, t.example. CNAME, t.other.test. A | ",
            ),
            (
                ok,
                &["t.example. CNAME u.example.", "u.example. CNAME t.example."],
                &[],
                "Unresolved | t.example. CNAME, u.example. CNAME | ",
            ),
            (
                ok,
                &[
                    "t.example. CNAME u.example.",
                    "u.example. CNAME a.denied.example.",
                    "a.denied.example. A 192.0.2.6",
                ],
                &["example. SOA ns.example."],
                "Denied | t.example. CNAME, u.example. CNAME | ",
            ),
            (ResponseCode::ServFail, &[], &[], "Unresolved |  | "),
        ] {
            assert_eq!(follow_a(rcode, answers, authorities), expected, "{answers:?} {authorities:?}");
        }
    }

    #[test]
    fn ttls_with_the_top_bit_become_zero() {
        for (answers, ours) in [
            (&["t.example. A 192.0.2.1"][..], false),
            (&["t.example. CNAME u.example."], true),
            (&["t.example. CNAME u.example.", "u.example. CNAME t.example."], false),
        ] {
            let answers = answers.iter().map(|text| record(text)).collect();
            let mut reply = reply(ResponseCode::NoError, answers, vec![]);
            reply.records.set_ttl(1 << 31);
            let chain = follow(&reply, &name("t.example."), RecordType::A, 5, |_| {
                if ours { ChainStep::LinkZone } else { ChainStep::InAnswer }
            });
            assert!(!chain.answers.is_empty());
            assert!(chain.answers.iter().all(|record| record.ttl == 0), "RFC 2181 section 8");
        }
    }

    #[test]
    fn chain_is_followed_up_to_the_limit() {
        let end = |aliases: usize| {
            let host = |i: usize| if i == 0 { "t.example.".to_owned() } else { format!("a{i}.example.") };
            let alias = |i: usize| record(&format!("{} CNAME {}", host(i), host(i + 1)));
            let mut answers: Vec<Record> = (0..aliases).map(alias).collect();
            answers.push(record(&format!("{} A 192.0.2.1", host(aliases))));
            let reply = reply(ResponseCode::NoError, answers, vec![]);
            let chain = follow(&reply, &name("t.example."), RecordType::A, 5, |_| ChainStep::InAnswer);
            (chain.end, chain.answers.len())
        };
        assert_eq!(
            end(MAX_CNAMES_IN_ANSWER),
            (ChainEnd::Final(ResponseCode::NoError), MAX_CNAMES_IN_ANSWER + 1)
        );
        assert_eq!(end(MAX_CNAMES_IN_ANSWER + 1), (ChainEnd::Unresolved, MAX_CNAMES_IN_ANSWER + 1));
        assert_eq!(end(1000), (ChainEnd::Unresolved, MAX_CNAMES_IN_ANSWER + 1));
    }

    fn dropped(answers: &[Record]) -> (Vec<Record>, bool) {
        let mut remaining = answers.to_vec();
        let denied = name("denied.example.");
        let has_addresses =
            drop_denied(&mut remaining, &TargetPolicy::default(), |name| !denied.zone_of(name));
        (remaining, has_addresses)
    }

    #[test]
    fn denied_addresses_are_dropped() {
        let mut answers = ["t.example. CNAME u.example.", "u.example. A 127.0.0.1", "u.example. A 192.0.2.1"]
            .map(record)
            .to_vec();
        let (remaining, has_addresses) = dropped(&answers);
        answers.remove(1);
        assert_eq!((&remaining, has_addresses), (&answers, true));
        assert_eq!(dropped(&answers), (answers, false));

        let https = |hint: &str| {
            let hint = SvcParamValue::Ipv4Hint(IpHint(vec![hint.parse::<A>().unwrap()]));
            let svcb = SVCB::new(1, name("t.example."), vec![(SvcParamKey::Ipv4Hint, hint)]);
            Record::from_rdata(name("t.example."), 60, RData::HTTPS(HTTPS(svcb)))
        };
        let (remaining, has_addresses) = dropped(&[https("192.0.2.1"), https("127.0.0.1")]);
        assert_eq!((remaining, has_addresses), (vec![https("192.0.2.1")], true));
    }

    fn signature(owner: &str, covered: RecordType) -> Record {
        let rdata = [&u16::from(covered).to_be_bytes()[..], &[8, 2, 0, 0, 0, 60]].concat();
        let rdata = RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(rdata) };
        Record::from_rdata(name(owner), 60, rdata)
    }

    #[test]
    fn record_with_a_denied_host_is_dropped_with_its_signature() {
        let svcb = |target: &str| SVCB::new(1, name(target), vec![]);
        let all = |target: &str| {
            [
                (RecordType::SRV, RData::SRV(SRV::new(0, 0, 80, name(target)))),
                (RecordType::MX, RData::MX(MX::new(10, name(target)))),
                (RecordType::SVCB, RData::SVCB(svcb(target))),
                (RecordType::HTTPS, RData::HTTPS(HTTPS(svcb(target)))),
            ]
        };
        for (place, (qtype, denied)) in all("a.Denied.example.").into_iter().enumerate() {
            let of = |data: &RData| Record::from_rdata(name("T.example."), 60, data.clone());
            let denied = of(&denied);
            let allowed = of(&all("b.example.")[place].1);
            let root = of(&all(".")[place].1);
            let others = [signature("t.example.", RecordType::A), signature("u.example.", qtype)];
            let rest = [&[allowed, root][..], &others].concat();
            let whole = [&rest[..], &[denied, signature("t.example.", qtype)]].concat();
            assert_eq!(dropped(&whole), (rest.clone(), false), "{qtype}");
            let signed = [&rest[..], &[signature("t.example.", qtype)]].concat();
            assert_eq!(dropped(&signed), (signed, false), "nothing is denied: {qtype}");
        }
    }

    #[test]
    fn denied_hint_is_dropped_with_signature_and_mandatory_key() {
        let v4 = SvcParamValue::Ipv4Hint(IpHint(vec![A::new(192, 0, 2, 1)]));
        let v6 = SvcParamValue::Ipv6Hint(IpHint(vec![AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)]));
        let (v4, v6) = ((SvcParamKey::Ipv4Hint, v4), (SvcParamKey::Ipv6Hint, v6));
        let mandatory = |keys: &[SvcParamKey]| {
            (SvcParamKey::Mandatory, SvcParamValue::Mandatory(Mandatory(keys.to_vec())))
        };
        let https = |target: &str, params: &[(SvcParamKey, SvcParamValue)]| {
            let svcb = SVCB::new(1, name(target), params.to_vec());
            Record::from_rdata(name("t.example."), 60, RData::HTTPS(HTTPS(svcb)))
        };
        // The root stands for the owner.
        for (target, host) in [(".", "t.example."), ("u.example.", "u.example.")] {
            let drop = |mut answers: Vec<Record>, denied: RecordType| {
                let allows = |at: &Name, qtype| *at != name(host) || qtype != denied;
                let has_hints = drop_hints(&mut answers, allows);
                (answers, has_hints)
            };
            let keys = [SvcParamKey::Ipv4Hint, SvcParamKey::Ipv6Hint];
            let both = https(target, &[mandatory(&keys), v4.clone(), v6.clone()]);
            let signed = vec![both, signature("t.example.", RecordType::HTTPS)];
            let only = |key: SvcParamKey, hint: &(SvcParamKey, SvcParamValue)| {
                (vec![https(target, &[mandatory(&[key]), hint.clone()])], true)
            };
            assert_eq!(drop(signed.clone(), RecordType::A), only(SvcParamKey::Ipv6Hint, &v6), "{target}");
            assert_eq!(drop(signed.clone(), RecordType::AAAA), only(SvcParamKey::Ipv4Hint, &v4), "{target}");
            assert_eq!(drop(signed.clone(), RecordType::MX), (signed, false), "{target}");
            let alone = https(target, &[mandatory(&[SvcParamKey::Ipv4Hint]), v4.clone()]);
            assert_eq!(drop(vec![alone], RecordType::A), (vec![https(target, &[])], true), "{target}");
        }
    }

    #[test]
    fn undecoded_record_is_dropped_with_its_signature() {
        let opaque = |owner: &str, code: RecordType, data: &[u8]| {
            Record::from_rdata(name(owner), 60, RData::Unknown { code, rdata: NULL::with(data.to_vec()) })
        };
        let ok = ResponseCode::NoError;
        for (qtype, data) in [
            (RecordType::A, &[127, 0, 0][..]),
            (RecordType::AAAA, &[0; 17]),
            (RecordType::SRV, &[0; 6]),
            (RecordType::MX, &[0]),
            (RecordType::HTTPS, &[0, 1, 0, 0, 4, 0, 9, 127]),
            (RecordType::SVCB, &[0]),
        ] {
            let sound = signature("t.example.", RecordType::TXT);
            let answers =
                vec![opaque("t.example.", qtype, data), signature("t.example.", qtype), sound.clone()];
            let reply = reply(ok, answers, vec![]);
            let chain = follow(&reply, &name("t.example."), qtype, 5, |_| ChainStep::InAnswer);
            assert_eq!(chain.answers, [sound], "{qtype}");
        }
        let alias = record("t.example. CNAME u.example.");
        let answers = vec![
            opaque("example.", RecordType::DNAME, b"\x01u"),
            opaque("t.example.", RecordType::CNAME, b"\x01u"),
            alias.clone(),
            opaque("t.example.", RecordType::TXT, b"\xff"),
        ];
        let chain = follow(&reply(ok, answers, vec![]), &name("t.example."), RecordType::A, 5, |_| {
            ChainStep::InAnswer
        });
        assert_eq!(chain.answers, [alias]);
    }

    #[test]
    fn repeated_dname_is_passed_on_once() {
        let hosts = (0..16).map(|hop| format!("t.{}d.example.", "x.".repeat(hop)));
        let aliases = hosts.clone().zip(hosts.skip(1)).map(|(from, to)| format!("{from} CNAME {to}"));
        let dnames = (0..1000).map(|_| "d.example. DNAME x.d.example.".to_owned());
        let answers: Vec<Record> = dnames.chain(aliases).map(|text| record(&text)).collect();
        let reply = reply(ResponseCode::NoError, answers, vec![]);
        let chain = follow(&reply, &name("t.d.example."), RecordType::CNAME, 5, |_| ChainStep::InAnswer);
        assert_eq!(chain.answers.len(), 1);
        let chain = follow(&reply, &name("t.d.example."), RecordType::A, 5, |_| ChainStep::InAnswer);
        let types: Vec<RecordType> = chain.answers.iter().map(Record::record_type).collect();
        assert_eq!(types[..2], [RecordType::DNAME, RecordType::CNAME]);
        assert_eq!(types.len(), 16, "{types:?}");
    }

    #[test]
    fn signature_is_dropped_with_a_denied_address() {
        let rest = vec![record("t.example. A 192.0.2.1"), signature("t.example.", RecordType::AAAA)];
        let denied = [record("t.example. A 127.0.0.1"), signature("t.example.", RecordType::A)];
        assert_eq!(dropped(&[&rest[..], &denied].concat()), (rest, true));
    }

    #[test]
    fn negative_ttl_is_limited_to_our_own_ttl_and_minimum() {
        for (soa, limit, ttl) in [
            ("example. SOA ns.example.", 5, 5),
            ("example. SOA ns. root. 1 1 1 1 30", 300, 30),
            ("example. SOA ns. root. 1 1 1 1 4294967295", 300, 0),
            ("example. SOA ns. root. 1 1 1 1 86400", 7200, 3600),
        ] {
            let reply = reply(ResponseCode::NXDomain, vec![], vec![record(soa)]);
            let chain = follow(&reply, &name("t.example."), RecordType::A, limit, |_| ChainStep::InAnswer);
            assert_eq!(chain.authorities[0].ttl, ttl, "{soa}");
        }
    }
}
