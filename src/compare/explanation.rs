//! Which differences are those of the manual of the plugin *kubernetes*, or come from upstreams. Pure.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use super::answer::{Answer, Entry, Reply, Shape};
use super::names::Names;

const ALIAS: &str = "an ExternalName is a CNAME for each type, with what is behind it";
const FQDN: &str = "EndpointSlices with names instead of addresses are left out";
const WITHOUT_SERVICE: &str = "EndpointSlices without the label of a Service are left out";
const OTHER_TYPE: &str = "a name that exists without records of the type is NODATA";
const PARENT: &str = "a name with names below it is NODATA";
const REVERSE_TYPE: &str = "an address with a PTR record is NODATA for other types";
const BELOW_IPV6: &str = "a PTR record is only at the exact name of the address";
const ABSENT_SOA: &str = "a name that doesn't exist has no SOA record";
const POD_ADDRESS: &str = "each address of a Pod counts";
const AUTOPATH: &str = "autopath fails for a search domain itself";
const HIDDEN: &str = "namespace_labels hides PTR records, too";
const NAME_SERVER: &str =
    "each server names the Services in front of its own Pod as name servers, or else itself";
const UPSTREAM: &str = "records from outside of the cluster vary with the upstream and its caches";
const UPSTREAM_FAILS: &str =
    "a name outside of the cluster for which neither server gets an answer from its upstream";
pub const SILENT: &str = "neither server gives an answer that can be compared";
const CACHED: &str = "TTLs count down in a cache of one server";

/// What is known about the name of a question beside the answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// The rcode of each server for A of the name.
    pub rcodes_of_a: [Option<ResponseCode>; 2],
    /// Both servers answer NXDOMAIN for the target of a PTR record.
    pub is_target_denied: bool,
    /// Whether each server has only addresses of its own as those of the name server.
    pub is_itself: [bool; 2],
}

/// Returns why the answers of two servers to a question may differ; `None` if they may not. The first reason holds if
/// the first server is CoreDNS and the second is lb-linker, the second reason if they are the other way round.
#[must_use]
pub fn explanations(
    names: &Names,
    name: &str,
    qtype: RecordType,
    [a, b]: [&Answer; 2],
    context: Context,
) -> [Option<&'static str>; 2] {
    let upstream = is_upstreams(names, name, a, b).then_some(UPSTREAM);
    let is_server = |(answer, is_itself)| is_itself || is_front(names, name, qtype, answer);
    let are_servers = is_name_server(names, name) && [a, b].into_iter().zip(context.is_itself).all(is_server);
    let other = are_servers.then_some(NAME_SERVER).or(upstream);
    [(a, b, 0), (b, a, 1)].map(|(theirs, ours, coredns)| {
        let theirs_for_a = context.rcodes_of_a[coredns];
        one_way(names, name, qtype, theirs, ours, theirs_for_a, context).or(other)
    })
}

/// Returns the explanation if `theirs` is CoreDNS's answer and `ours` is lb-linker's.
fn one_way(
    names: &Names,
    name: &str,
    qtype: RecordType,
    theirs: &Answer,
    ours: &Answer,
    theirs_for_a: Option<ResponseCode>,
    context: Context,
) -> Option<&'static str> {
    let zone = &names.zone;
    if names.aliases.contains_key(name) && is_unresolved(names, name, theirs, ours) {
        return Some(ALIAS);
    }
    if is_by_fqdn_slices(names, name, qtype, theirs, ours) {
        return Some(FQDN);
    }
    let has_more = !theirs.sections[0].is_empty()
        && ours.sections[0].iter().all(|entry| theirs.sections[0].contains(entry));
    if names.without_service.contains(name) && qtype == RecordType::PTR && has_more {
        return Some(WITHOUT_SERVICE);
    }
    let fails = |answer: &Answer| answer.rcode == ResponseCode::ServFail;
    if fails(theirs) && !fails(ours) && names.is_search_domain(name) {
        return Some(AUTOPATH);
    }
    let is_apart = ours.is_nodata() && theirs.rcode == ResponseCode::NXDomain;
    if is_apart && qtype == RecordType::TXT && theirs_for_a == Some(ResponseCode::NoError) {
        return Some(OTHER_TYPE);
    }
    if is_apart && (is_name_server(names, name) || name == format!("dns-version.{zone}")) {
        return Some(OTHER_TYPE);
    }
    let is_above = name.starts_with('_') && names.is_of_object(names.subject(name));
    if is_apart && (name == format!("dns.{zone}") || is_above) {
        return Some(PARENT);
    }
    of_reverse_name(name, qtype, theirs, ours, context).or_else(|| {
        let denies_soa = ours.rcode == ResponseCode::NXDomain && theirs.is_nodata();
        if qtype == RecordType::SOA && denies_soa && theirs_for_a == Some(ResponseCode::NXDomain) {
            return Some(ABSENT_SOA);
        }
        let is_missing = theirs.rcode == ResponseCode::NXDomain && ours.rcode == ResponseCode::NoError;
        (names.further_pod_addresses.contains(name) && is_missing).then_some(POD_ADDRESS)
    })
}

fn of_reverse_name(
    name: &str,
    qtype: RecordType,
    theirs: &Answer,
    ours: &Answer,
    context: Context,
) -> Option<&'static str> {
    let has_other_type = ours.is_nodata() && ours.is_authoritative();
    let is_reverse = name.ends_with(".arpa");
    if is_reverse && qtype != RecordType::PTR && has_other_type && theirs.sections[0].is_empty() {
        return Some(REVERSE_TYPE);
    }
    let is_below_ipv6 = name.ends_with(".ip6.arpa") && name.split('.').count() > 34;
    if is_below_ipv6 && ours.rcode == ResponseCode::NXDomain {
        return Some(BELOW_IPV6);
    }
    let is_hidden = !theirs.sections[0].is_empty() && ours.sections[0].is_empty();
    (qtype == RecordType::PTR && is_hidden && context.is_target_denied).then_some(HIDDEN)
}

/// Returns whether the answers are the same without what EndpointSlices with names instead of addresses add to
/// `theirs`: CNAME records at the name or SRV records that lead to the hosts, with what is behind them.
fn is_by_fqdn_slices(names: &Names, name: &str, qtype: RecordType, theirs: &Answer, ours: &Answer) -> bool {
    let Some(hosts) = names.with_fqdn_slices.get(name) else { return false };
    let mut behind: HashSet<&str> = hosts.iter().map(String::as_str).collect();
    loop {
        let aliases = theirs.sections.iter().flatten().filter(|entry| entry.rtype == RecordType::CNAME);
        let next = aliases.filter(|entry| behind.contains(&*entry.owner)).map(leads_to);
        let next: Vec<&str> = next.filter(|name| !behind.contains(name)).collect();
        if next.is_empty() {
            break;
        }
        behind.extend(next);
    }
    let is_added = |entry: &Entry| {
        let is_link = matches!(entry.rtype, RecordType::CNAME | RecordType::SRV);
        behind.contains(&*entry.owner) || (entry.owner == name && is_link && hosts.contains(leads_to(entry)))
    };
    let mut rest = theirs.retaining(|entry| !is_added(entry));
    let mut ours = ours.clone();
    if qtype == RecordType::SRV {
        // The weight depends on the number of records.
        let unweighted = |entry: &mut Entry| {
            let fields = entry.data.split(' ').enumerate();
            entry.data =
                fields.map(|(at, field)| if at == 1 { "-" } else { field }).collect::<Vec<_>>().join(" ");
        };
        rest.sections[0].iter_mut().for_each(unweighted);
        ours.sections[0].iter_mut().for_each(unweighted);
        ours.sections[0].dedup();
        rest.sections[0].dedup();
    }
    let is_denied = ours.rcode == ResponseCode::NXDomain && ours.sections[0].is_empty();
    if theirs.rcode == ResponseCode::NoError && is_denied {
        ours.rcode = ResponseCode::NoError;
    }
    if !theirs.sections[0].is_empty() && ours.sections[0].is_empty() {
        ours.sections[1].clear();
    }
    rest == ours
}

/// Returns the last field of the data of a record.
fn leads_to(entry: &Entry) -> &str {
    entry.data.rsplit(' ').next().unwrap_or_default().trim_end_matches('.')
}

/// Returns whether a name is that of the name server.
#[must_use]
pub fn is_name_server(names: &Names, name: &str) -> bool {
    name.strip_prefix("ns.dns.") == Some(&*names.zone)
}

/// Returns whether a server has the addresses of the Services in front of its Pod as those of the name server.
fn is_front(names: &Names, name: &str, qtype: RecordType, answer: &Answer) -> bool {
    let is_wanted = |ip: &IpAddr| is_of_type(*ip, qtype);
    addresses(name, qtype, answer).is_some_and(|ips| names.is_front(&ips, is_wanted))
}

/// Returns whether a server that is asked at `server` has only addresses of its own as those of the name server, as
/// outside of a cluster: the address that it is asked at, or, on this machine, those for which `is_local` holds.
#[must_use]
pub fn is_itself(
    name: &str,
    qtype: RecordType,
    answer: &Answer,
    server: IpAddr,
    is_local: impl Fn(IpAddr) -> bool,
) -> bool {
    let is_own = |ip: &IpAddr| *ip == server || is_local(server) && is_local(*ip);
    let has_none = !is_of_type(server, qtype);
    addresses(name, qtype, answer).is_some_and(|ips| ips.iter().all(is_own) && (has_none || !ips.is_empty()))
}

fn is_of_type(ip: IpAddr, qtype: RecordType) -> bool {
    if qtype == RecordType::A { ip.is_ipv4() } else { ip.is_ipv6() }
}

/// Returns the addresses in an answer for A or AAAA; `None` if it is another one, or has other records.
fn addresses(name: &str, qtype: RecordType, answer: &Answer) -> Option<BTreeSet<IpAddr>> {
    let ip = |entry: &Entry| match entry.owner == name && entry.rtype == qtype {
        true => entry.data.parse::<IpAddr>().ok(),
        false => None,
    };
    let is_address =
        matches!(qtype, RecordType::A | RecordType::AAAA) && answer.rcode == ResponseCode::NoError;
    answer.sections[0].iter().map(ip).collect::<Option<_>>().filter(|_| is_address)
}

/// Returns whether `ours` has the CNAME record of an ExternalName, and `theirs` has none, or the same one alone. A name
/// in the cluster can be looked up without an upstream.
fn is_unresolved(names: &Names, name: &str, theirs: &Answer, ours: &Answer) -> bool {
    let alias = |answer: &Answer| {
        let mut aliases = answer.sections[0].iter().filter(|entry| entry.rtype == RecordType::CNAME);
        aliases.find(|entry| entry.owner == name).map(|entry| entry.data.clone())
    };
    let is_resolved = theirs.sections[0].iter().any(|entry| entry.rtype != RecordType::CNAME);
    let (of_theirs, of_ours) = (alias(theirs), alias(ours));
    let is_failure = ours.rcode == ResponseCode::ServFail && names.leads_inside(name);
    !is_failure && !is_resolved && of_ours.is_some() && (of_theirs.is_none() || of_theirs == of_ours)
}

/// Returns whether answers differ only in what upstreams have answered.
fn is_upstreams(names: &Names, name: &str, a: &Answer, b: &Answer) -> bool {
    if name.ends_with(".arpa") {
        // An authoritative answer is the server's own.
        return a.rcode == b.rcode && !a.is_authoritative() && !b.is_authoritative();
    }
    let is_inside = |owner: &str| owner == names.zone || owner.ends_with(&format!(".{}", names.zone));
    let inside = |answer: &Answer| answer.retaining(|entry| is_inside(&entry.owner));
    names.aliases.contains_key(name) && inside(a) == inside(b)
}

/// Returns why replies may differ, if the name is outside of the cluster, and each server gives no answer, or that of an
/// upstream that fails. The time that upstreams get differs, and with it the reply.
#[must_use]
pub fn upstream_failure(names: &Names, name: &str, replies: &[Reply; 2]) -> Option<&'static str> {
    let fails = |reply: &Reply| {
        reply.as_ref().map_or(true, |answer| {
            let is_failure = matches!(answer.rcode, ResponseCode::ServFail | ResponseCode::Refused);
            // An ExternalName has its own CNAME record, with authority.
            is_failure && (names.aliases.contains_key(name) || !answer.is_authoritative())
        })
    };
    let is_outside = name.ends_with(".arpa") || names.aliases.contains_key(name);
    (is_outside && replies.iter().all(fails)).then_some(UPSTREAM_FAILS)
}

/// Returns why the server that is CoreDNS, the first one or the second, may give no answer alone: it can't encode the name
/// of an endpoint without a Service.
#[must_use]
pub fn silences(
    names: &Names,
    name: &str,
    qtype: RecordType,
    replies: &[Reply; 2],
) -> [Option<&'static str>; 2] {
    let is_left_out = qtype == RecordType::PTR && names.without_service.contains(name);
    let answers = |reply: &Reply| {
        let is_answer =
            |answer: &Answer| matches!(answer.rcode, ResponseCode::NXDomain | ResponseCode::NoError);
        reply.as_ref().is_ok_and(is_answer)
    };
    [0, 1].map(|coredns: usize| {
        let is_explained = is_left_out && replies[coredns].is_err() && answers(&replies[1 - coredns]);
        is_explained.then_some(WITHOUT_SERVICE)
    })
}

/// Returns why TTLs may differ, if nothing else does. `earlier` are the answers to the same question more than a second
/// ago.
#[must_use]
pub fn cache_explanation(earlier: &[Shape; 2], now: &[Shape; 2]) -> Option<&'static str> {
    let counts_down = |at: usize| {
        let (cached, other) = (&now[at].ttls, &now[1 - at].ttls);
        let is_lower = cached.iter().zip(other).all(|(cached, other)| cached <= other);
        let went_down = cached.iter().zip(&earlier[at].ttls).any(|(now, before)| now < before);
        is_lower && went_down && earlier[at].content == now[at].content
    };
    let is_same = now[0].content == now[1].content;
    (is_same && (counts_down(0) || counts_down(1))).then_some(CACHED)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::super::answer::tests::answer;
    use super::super::objects::Objects;
    use super::*;

    const SOA: &str = "c.local. 5 SOA ns.dns.c.local. h.c.local. SERIAL 1";

    fn known() -> Names {
        let slice = |name: &str, labels: serde_json::Value, family: &str, address: &str| {
            json!({"metadata": {"name": name, "namespace": "shop", "labels": labels}, "addressType": family,
                "endpoints": [{"addresses": [address]}]})
        };
        let objects = Objects {
            services: from_value(json!([
                {"metadata": {"name": "alias", "namespace": "shop"},
                 "spec": {"type": "ExternalName", "externalName": "a.example"}},
                {"metadata": {"name": "inside", "namespace": "shop"},
                 "spec": {"type": "ExternalName", "externalName": "web.shop.svc.C.local."}},
                {"metadata": {"name": "loop", "namespace": "shop"},
                 "spec": {"type": "ExternalName", "externalName": "loop.shop.svc.c.local"}},
                {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.0.0.1"}},
                {"metadata": {"name": "dns", "namespace": "shop"}, "spec": {"clusterIP": "10.0.0.10"}},
                {"metadata": {"name": "other-dns", "namespace": "shop"}, "spec": {"clusterIP": "10.0.0.11"}},
            ]))
            .unwrap(),
            slices: from_value(json!([
                slice("names-1", json!({"kubernetes.io/service-name": "names"}), "FQDN", "h.example"),
                slice("dns-1", json!({"kubernetes.io/service-name": "dns"}), "IPv4", "10.1.0.5"),
                slice("other-dns-1", json!({"kubernetes.io/service-name": "other-dns"}), "IPv4", "10.1.0.6"),
                slice("free", json!({}), "IPv4", "10.1.0.9"),
            ]))
            .unwrap(),
            pods: from_value(json!([{"metadata": {"name": "p", "namespace": "shop"}, "status": {
                "podIP": "10.2.0.1", "podIPs": [{"ip": "10.2.0.1"}, {"ip": "10.2.0.2"}]}}]))
            .unwrap(),
            ..Objects::default()
        };
        Names::of(&objects, "c.local")
    }

    /// Returns the explanation, after it was found to be that of the other order of the servers, too.
    fn explained(
        name: &str,
        qtype: &str,
        theirs: &Answer,
        ours: &Answer,
        for_a: &str,
    ) -> Option<&'static str> {
        let names = known();
        let rcode_of_a = Some(answer(for_a, &[]).rcode);
        let context = Context { rcodes_of_a: [rcode_of_a, rcode_of_a], ..Context::default() };
        let qtype = qtype.parse().unwrap();
        let [one, _] = explanations(&names, name, qtype, [theirs, ours], context);
        let [_, other] = explanations(&names, name, qtype, [ours, theirs], context);
        assert_eq!(one, other, "{name}");
        one
    }

    /// Returns an answer with the CNAME record of an EndpointSlice and other records.
    fn fqdn(more: &[&str]) -> Answer {
        let alias = ["names.shop.svc.c.local. 5 CNAME h.example.", "h.example. 5 CNAME i.example."];
        answer("NOERROR aa", &[&[&alias[..], &["i.example. 60 A 192.0.2.1"], more].concat()])
    }

    #[test]
    fn differences_of_the_manual_are_explained() {
        let nodata = answer("NOERROR aa", &[&[], &[SOA]]);
        let nxdomain = answer("NXDOMAIN aa", &[&[], &[SOA]]);
        let alias = "alias.shop.svc.c.local. 5 CNAME a.example.";
        let behind = answer("NOERROR aa", &[&[alias, "a.example. 60 A 192.0.2.1"]]);
        let bare = answer("NOERROR aa", &[&[alias]]);
        let looping = "loop.shop.svc.c.local. 5 CNAME loop.shop.svc.c.local.";
        let endpoint = "names.shop.svc.c.local. 5 A 10.1.0.1";
        let service =
            |weight: u8| format!("names.shop.svc.c.local. 5 SRV 0 {weight} 80 e.names.shop.svc.c.local.");
        let to_host = "names.shop.svc.c.local. 5 SRV 0 50 80 h.example.";
        let srv = answer("NOERROR aa", &[&[to_host, &service(50)], &[], &["h.example. 9 A 192.0.2.1"]]);
        let data = |record: &str| answer("NOERROR aa", &[&[record]]);
        let below = format!("x.1.{}0.d.f.ip6.arpa", "0.".repeat(29));
        for (name, qtype, theirs, ours, for_a, expected) in [
            ("alias.shop.svc.c.local", "TXT", &nodata, &bare, "NOERROR", ALIAS),
            ("alias.shop.svc.c.local", "A", &bare, &answer("SERVFAIL aa", &[&[alias]]), "NOERROR", ALIAS),
            ("loop.shop.svc.c.local", "A", &nodata, &answer("SERVFAIL aa", &[&[looping]]), "NOERROR", ALIAS),
            ("names.shop.svc.c.local", "A", &fqdn(&[]), &nxdomain, "NOERROR", FQDN),
            ("names.shop.svc.c.local", "A", &fqdn(&[endpoint]), &data(endpoint), "NOERROR", FQDN),
            ("names.shop.svc.c.local", "HTTPS", &nodata, &nxdomain, "NOERROR", FQDN),
            ("h-example.names.shop.svc.c.local", "PTR", &nodata, &nxdomain, "NOERROR", FQDN),
            ("names.shop.svc.c.local", "SRV", &srv, &data(&service(100)), "NOERROR", FQDN),
            ("9.0.1.10.in-addr.arpa", "PTR", &data("x. 5 PTR a."), &nxdomain, "NXDOMAIN", WITHOUT_SERVICE),
            ("shop.svc.c.local", "A", &answer("SERVFAIL", &[]), &nodata, "SERVFAIL", AUTOPATH),
            ("web.shop.svc.c.local", "TXT", &nxdomain, &nodata, "NOERROR", OTHER_TYPE),
            ("dns-version.c.local", "A", &nxdomain, &nodata, "NXDOMAIN", OTHER_TYPE),
            ("ns.dns.c.local", "PTR", &nxdomain, &nodata, "NOERROR", OTHER_TYPE),
            ("dns.c.local", "A", &nxdomain, &nodata, "NXDOMAIN", PARENT),
            ("_tcp.web.shop.svc.c.local", "SRV", &nxdomain, &nodata, "NXDOMAIN", PARENT),
            ("1.0.0.10.in-addr.arpa", "A", &nxdomain, &nodata, "NXDOMAIN", REVERSE_TYPE),
            (&below, "PTR", &data("x. 5 PTR a."), &nxdomain, "NXDOMAIN", BELOW_IPV6),
            ("x.shop.svc.c.local", "SOA", &nodata, &nxdomain, "NXDOMAIN", ABSENT_SOA),
            ("10-2-0-2.shop.pod.c.local", "A", &nxdomain, &data("a. 5 A 10.2.0.2"), "NXDOMAIN", POD_ADDRESS),
            (
                "ns.dns.c.local",
                "A",
                &data("ns.dns.c.local. 5 A 10.0.0.10"),
                &data("ns.dns.c.local. 5 A 10.0.0.11"),
                "NOERROR",
                NAME_SERVER,
            ),
            (
                "alias.shop.svc.c.local",
                "A",
                &answer("NOERROR aa", &[&[alias, "a.example. 9 A 192.0.2.2"]]),
                &behind,
                "NOERROR",
                UPSTREAM,
            ),
            (
                "9.9.9.9.in-addr.arpa",
                "A",
                &answer("NXDOMAIN ra", &[&[], &["arpa. 5 SOA a."]]),
                &answer("NXDOMAIN ra", &[&[], &["arpa. 9 SOA a."]]),
                "NXDOMAIN",
                UPSTREAM,
            ),
        ] {
            assert_eq!(explained(name, qtype, theirs, ours, for_a), Some(expected), "{name} {qtype}");
        }
    }

    #[test]
    fn other_differences_have_no_explanation() {
        let nodata = answer("NOERROR aa", &[&[], &[SOA]]);
        let nxdomain = answer("NXDOMAIN aa", &[&[], &[SOA]]);
        let address = |ttl: u32, last: u8| {
            answer("NOERROR aa", &[&[&format!("web.shop.svc.c.local. {ttl} A 10.0.0.{last}")]])
        };
        let alias = |target: &str| {
            answer(
                "NOERROR aa",
                &[&[&format!("alias.shop.svc.c.local. 5 CNAME {target}"), "a.example. 9 A 192.0.2.2"]],
            )
        };
        let data = |record: &str| answer("NOERROR aa", &[&[record]]);
        let failure = |alias: &str| answer("SERVFAIL aa", &[&[alias]]);
        let inside = "inside.shop.svc.c.local. 5 CNAME web.shop.svc.c.local.";
        let endpoint = |last: u8| format!("names.shop.svc.c.local. 5 A 10.1.0.{last}");
        for (name, qtype, theirs, ours, for_a) in [
            (
                "names.shop.svc.c.local",
                "A",
                &fqdn(&[&endpoint(1), &endpoint(2)]),
                &data(&endpoint(1)),
                "NOERROR",
            ),
            ("names.shop.svc.c.local", "A", &fqdn(&[&endpoint(1)]), &nxdomain, "NOERROR"),
            ("names.shop.svc.c.local", "A", &data(&endpoint(1)), &data(&endpoint(2)), "NOERROR"),
            ("x.names.shop.svc.c.local", "A", &fqdn(&[]), &nxdomain, "NOERROR"),
            ("web.shop.svc.c.local", "TXT", &nodata, &nxdomain, "NOERROR"),
            ("inside.shop.svc.c.local", "A", &data(inside), &failure(inside), "NOERROR"),
            ("inside.shop.svc.c.local", "AAAA", &nodata, &failure(inside), "NOERROR"),
            (
                "ns.dns.c.local",
                "A",
                &data("ns.dns.c.local. 5 A 10.0.0.10"),
                &data("ns.dns.c.local. 5 A 10.0.0.12"),
                "NOERROR",
            ),
            ("absent.svc.c.local", "A", &answer("SERVFAIL", &[]), &nodata, "SERVFAIL"),
            ("shop.svc.c.local", "A", &nodata, &answer("SERVFAIL", &[]), "NOERROR"),
            ("_tcp.absent.shop.svc.c.local", "SRV", &nxdomain, &nodata, "NXDOMAIN"),
            ("web.shop.svc.c.local", "A", &address(5, 1), &address(30, 1), "NOERROR"),
            ("web.shop.svc.c.local", "A", &address(5, 1), &address(5, 2), "NOERROR"),
            ("web.shop.svc.c.local", "A", &address(5, 1), &nxdomain, "NOERROR"),
            ("web.shop.svc.c.local", "AAAA", &nxdomain, &nodata, "NOERROR"),
            ("web.shop.svc.c.local", "A", &answer("SERVFAIL", &[]), &address(5, 1), "SERVFAIL"),
            (
                "web.shop.svc.c.local",
                "A",
                &answer("NOERROR", &[&["web.shop.svc.c.local. 5 A 10.0.0.1"]]),
                &address(5, 1),
                "NOERROR",
            ),
            ("x.shop.svc.c.local", "TXT", &nxdomain, &nodata, "NXDOMAIN"),
            ("alias.shop.svc.c.local", "A", &alias("a.example."), &alias("b.example."), "NOERROR"),
            ("1.0.0.10.in-addr.arpa", "PTR", &nxdomain, &nodata, "NXDOMAIN"),
            ("9.9.9.9.in-addr.arpa", "A", &answer("SERVFAIL", &[]), &answer("NOERROR", &[]), "SERVFAIL"),
            (
                "alias.shop.svc.c.local",
                "TXT",
                &answer("NOERROR aa", &[&["alias.shop.svc.c.local. 5 CNAME b.example."]]),
                &answer("NOERROR aa", &[&["alias.shop.svc.c.local. 5 CNAME a.example."]]),
                "NOERROR",
            ),
        ] {
            assert_eq!(explained(name, qtype, theirs, ours, for_a), None, "{name} {qtype}");
        }
    }

    #[test]
    fn failures_of_both_upstreams_are_explained() {
        let (silent, failed) = (|| Err("no answer".to_owned()), || Ok(answer("SERVFAIL", &[])));
        let refused = || Ok(answer("REFUSED", &[]));
        let nxdomain = || Ok(answer("NXDOMAIN", &[]));
        let own = || Ok(answer("SERVFAIL aa", &[]));
        let (reverse, alias, web) =
            ("9.9.9.9.in-addr.arpa", "alias.shop.svc.c.local", "web.shop.svc.c.local");
        for (name, replies, expected) in [
            (reverse, [silent(), silent()], Some(UPSTREAM_FAILS)),
            (reverse, [silent(), failed()], Some(UPSTREAM_FAILS)),
            (reverse, [refused(), failed()], Some(UPSTREAM_FAILS)),
            ("9.0.d.f.ip6.arpa", [failed(), silent()], Some(UPSTREAM_FAILS)),
            (alias, [own(), silent()], Some(UPSTREAM_FAILS)),
            (reverse, [nxdomain(), failed()], None),
            (reverse, [silent(), nxdomain()], None),
            (reverse, [own(), silent()], None),
            (web, [failed(), silent()], None),
        ] {
            assert_eq!(upstream_failure(&known(), name, &replies), expected, "{name} {replies:?}");
        }
    }

    #[test]
    fn silence_about_endpoints_without_service_is_explained() {
        let silent = || Err("no answer".to_owned());
        let answered = |rcode: &str| Ok(answer(rcode, &[]));
        let of = |name: &str, qtype, replies| silences(&known(), name, qtype, &replies);
        let (free, of_service) = ("9.0.1.10.in-addr.arpa", "5.0.1.10.in-addr.arpa");
        let (ptr, denied) = (RecordType::PTR, "NXDOMAIN aa");
        assert_eq!(of(free, ptr, [silent(), answered(denied)]), [Some(WITHOUT_SERVICE), None]);
        assert_eq!(of(free, ptr, [answered("NOERROR aa"), silent()]), [None, Some(WITHOUT_SERVICE)]);
        for (name, qtype, replies) in [
            (free, ptr, [silent(), silent()]),
            (free, ptr, [silent(), answered("SERVFAIL")]),
            (free, RecordType::A, [silent(), answered(denied)]),
            (of_service, ptr, [silent(), answered(denied)]),
        ] {
            assert_eq!(of(name, qtype, replies), [None; 2], "{name} {qtype}");
        }
    }

    #[test]
    fn ptr_records_of_hidden_namespaces_are_explained() {
        let ptr = answer("NOERROR aa", &[&["1.0.0.10.in-addr.arpa. 5 PTR web.shop.svc.c.local."]]);
        let denied = answer("NXDOMAIN aa", &[]);
        for (is_target_denied, expected) in [(true, Some(HIDDEN)), (false, None)] {
            let context = Context { is_target_denied, ..Context::default() };
            let name = "1.0.0.10.in-addr.arpa";
            let of = |answers| explanations(&known(), name, RecordType::PTR, answers, context);
            assert_eq!((of([&ptr, &denied]), of([&denied, &ptr])), ([expected, None], [None, expected]));
        }
    }

    #[test]
    fn name_server_outside_of_a_cluster_is_the_server_itself() {
        let (name, names) = ("ns.dns.c.local", known());
        let at = |ip: &str| answer("NOERROR aa", &[&[&format!("ns.dns.c.local. 5 A {ip}")]]);
        let local = ["127.0.0.1", "192.0.2.7"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (front, none) = (at("10.0.0.10"), answer("NOERROR aa", &[&[], &[SOA]]));
        for (server, qtype, ours, expected) in [
            ("203.0.113.5", RecordType::A, at("203.0.113.5"), Some(NAME_SERVER)),
            ("203.0.113.5", RecordType::A, at("203.0.113.6"), None),
            ("203.0.113.5", RecordType::A, at("192.0.2.7"), None),
            ("127.0.0.1", RecordType::A, at("192.0.2.7"), Some(NAME_SERVER)),
            ("127.0.0.1", RecordType::A, at("203.0.113.5"), None),
            ("127.0.0.1", RecordType::A, none.clone(), None),
            ("::1", RecordType::A, none, Some(NAME_SERVER)),
        ] {
            let is_itself = is_itself(name, qtype, &ours, server.parse().unwrap(), |ip| {
                local.contains(&ip) || ip.is_loopback()
            });
            let context = Context { is_itself: [false, is_itself], ..Context::default() };
            let found = explanations(&names, name, qtype, [&front, &ours], context);
            assert_eq!(found, [expected; 2], "{server} {ours:?}");
            assert_eq!(
                explanations(&names, "web.shop.svc.c.local", qtype, [&front, &ours], context),
                [None; 2]
            );
        }
    }

    #[test]
    fn ttls_that_count_down_are_explained() {
        let with = |ttl: u32| answer("NOERROR aa", &[&[&format!("web.c.local. {ttl} A 10.0.0.1")]]);
        let other = answer("NOERROR aa", &[&["web.c.local. 3 A 10.0.0.2"]]);
        for (earlier, later, expected) in [
            ([with(30), with(28)], [with(30), with(26)], Some(CACHED)),
            ([with(28), with(30)], [with(26), with(30)], Some(CACHED)),
            ([with(30), with(5)], [with(30), with(5)], None),
            ([with(30), with(35)], [with(30), with(33)], None),
            ([with(30), other.clone()], [with(30), with(26)], None),
            ([with(30), with(5)], [with(30), other], None),
        ] {
            let (earlier, later) = (earlier.map(|it| it.shape()), later.map(|it| it.shape()));
            assert_eq!(cache_explanation(&earlier, &later), expected, "{later:?}");
        }
    }
}
