//! Which differences are those of the manual of the plugin *kubernetes*, or come from upstreams. Pure.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use super::answer::{Answer, Reply, Shape};
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
const HIDDEN: &str = "namespace_labels hides PTR records, too";
const NAME_SERVER: &str = "each server names the Services in front of its own Pod as name servers";
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
}

/// Returns why the answers of two servers to a question may differ; `None` if they may not. Either server may be
/// lb-linker.
#[must_use]
pub fn explanation(
    names: &Names,
    name: &str,
    qtype: RecordType,
    answers: [&Answer; 2],
    context: Context,
) -> Option<&'static str> {
    let [a, b] = answers;
    let upstream = || is_upstreams(names, name, a, b).then_some(UPSTREAM);
    one_way(names, name, qtype, a, b, context.rcodes_of_a[0], context)
        .or_else(|| one_way(names, name, qtype, b, a, context.rcodes_of_a[1], context))
        .or_else(upstream)
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
    let subject = names.subject(name);
    if names.aliases.contains(name) && is_unresolved(name, theirs, ours) {
        return Some(ALIAS);
    }
    if names.with_fqdn_slices.contains(subject) {
        return Some(FQDN);
    }
    if names.without_service.contains(name) && qtype == RecordType::PTR {
        return Some(WITHOUT_SERVICE);
    }
    let is_apart = ours.is_nodata() && theirs.rcode == ResponseCode::NXDomain;
    if is_apart && qtype == RecordType::TXT && theirs_for_a == Some(ResponseCode::NoError) {
        return Some(OTHER_TYPE);
    }
    let is_name_server = name == format!("ns.dns.{zone}");
    if is_apart && (is_name_server || name == format!("dns-version.{zone}")) {
        return Some(OTHER_TYPE);
    }
    if is_name_server && ours.rcode == ResponseCode::NoError {
        return Some(NAME_SERVER);
    }
    if is_apart && (name == format!("dns.{zone}") || name.starts_with('_')) {
        return Some(PARENT);
    }
    let is_reverse = name.ends_with(".arpa");
    let has_other_type = ours.is_nodata() && ours.is_authoritative();
    if is_reverse && qtype != RecordType::PTR && has_other_type && theirs.sections[0].is_empty() {
        return Some(REVERSE_TYPE);
    }
    let is_below_ipv6 = name.ends_with(".ip6.arpa") && name.split('.').count() > 34;
    if is_below_ipv6 && ours.rcode == ResponseCode::NXDomain {
        return Some(BELOW_IPV6);
    }
    let denies_soa = ours.rcode == ResponseCode::NXDomain && theirs.is_nodata();
    if qtype == RecordType::SOA && denies_soa && theirs_for_a == Some(ResponseCode::NXDomain) {
        return Some(ABSENT_SOA);
    }
    let is_missing = theirs.rcode == ResponseCode::NXDomain && ours.rcode == ResponseCode::NoError;
    if names.further_pod_addresses.contains(name) && is_missing {
        return Some(POD_ADDRESS);
    }
    let is_hidden = !theirs.sections[0].is_empty() && ours.sections[0].is_empty();
    (qtype == RecordType::PTR && is_hidden && context.is_target_denied).then_some(HIDDEN)
}

/// Returns whether `ours` has the CNAME record of an ExternalName, and `theirs` has none, or the same one alone.
fn is_unresolved(name: &str, theirs: &Answer, ours: &Answer) -> bool {
    let alias = |answer: &Answer| {
        let mut aliases = answer.sections[0].iter().filter(|entry| entry.rtype == RecordType::CNAME);
        aliases.find(|entry| entry.owner == name).map(|entry| entry.data.clone())
    };
    let is_resolved = theirs.sections[0].iter().any(|entry| entry.rtype != RecordType::CNAME);
    let (of_theirs, of_ours) = (alias(theirs), alias(ours));
    !is_resolved && of_ours.is_some() && (of_theirs.is_none() || of_theirs == of_ours)
}

/// Returns whether answers differ only in what upstreams have answered.
fn is_upstreams(names: &Names, name: &str, a: &Answer, b: &Answer) -> bool {
    if name.ends_with(".arpa") {
        // An authoritative answer is the server's own.
        return a.rcode == b.rcode && !a.is_authoritative() && !b.is_authoritative();
    }
    let is_inside = |owner: &str| owner == names.zone || owner.ends_with(&format!(".{}", names.zone));
    let inside = |answer: &Answer| answer.retaining(|entry| is_inside(&entry.owner));
    names.aliases.contains(name) && inside(a) == inside(b)
}

/// Returns why replies may differ, if the name is outside of the cluster, and each server gives no answer, or that of an
/// upstream that fails. The time that upstreams get differs, and with it the reply.
#[must_use]
pub fn upstream_failure(names: &Names, name: &str, replies: &[Reply; 2]) -> Option<&'static str> {
    let fails = |reply: &Reply| {
        reply.as_ref().map_or(true, |answer| {
            let is_failure = matches!(answer.rcode, ResponseCode::ServFail | ResponseCode::Refused);
            // An ExternalName has its own CNAME record, with authority.
            is_failure && (names.aliases.contains(name) || !answer.is_authoritative())
        })
    };
    let is_outside = name.ends_with(".arpa") || names.aliases.contains(name);
    (is_outside && replies.iter().all(fails)).then_some(UPSTREAM_FAILS)
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
                {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.0.0.1"}},
            ]))
            .unwrap(),
            slices: from_value(json!([
                slice("names-1", json!({"kubernetes.io/service-name": "names"}), "FQDN", "h.example"),
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

    /// Returns the explanation, which is the same for both orders of the servers.
    fn explained(
        name: &str,
        qtype: &str,
        theirs: &Answer,
        ours: &Answer,
        for_a: &str,
    ) -> Option<&'static str> {
        let names = known();
        let rcode_of_a = Some(answer(for_a, &[]).rcode);
        let context = Context { rcodes_of_a: [rcode_of_a, rcode_of_a], is_target_denied: false };
        let qtype = qtype.parse().unwrap();
        let one = explanation(&names, name, qtype, [theirs, ours], context);
        assert_eq!(one, explanation(&names, name, qtype, [ours, theirs], context), "{name}");
        one
    }

    #[test]
    fn differences_of_the_manual_are_explained() {
        let nodata = answer("NOERROR aa", &[&[], &[SOA]]);
        let nxdomain = answer("NXDOMAIN aa", &[&[], &[SOA]]);
        let alias = "alias.shop.svc.c.local. 5 CNAME a.example.";
        let behind = answer("NOERROR aa", &[&[alias, "a.example. 60 A 192.0.2.1"]]);
        let bare = answer("NOERROR aa", &[&[alias]]);
        let data = |record: &str| answer("NOERROR aa", &[&[record]]);
        let below = format!("x.1.{}0.d.f.ip6.arpa", "0.".repeat(29));
        for (name, qtype, theirs, ours, for_a, expected) in [
            ("alias.shop.svc.c.local", "TXT", &nodata, &bare, "NOERROR", ALIAS),
            ("alias.shop.svc.c.local", "A", &bare, &answer("SERVFAIL aa", &[&[alias]]), "NOERROR", ALIAS),
            ("x.names.shop.svc.c.local", "A", &bare, &nxdomain, "NOERROR", FQDN),
            ("9.0.1.10.in-addr.arpa", "PTR", &data("x. 5 PTR a."), &nxdomain, "NXDOMAIN", WITHOUT_SERVICE),
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
                &data("a. 5 A 10.0.0.1"),
                &data("a. 5 A 10.0.0.2"),
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
        for (name, qtype, theirs, ours, for_a) in [
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
    fn ptr_records_of_hidden_namespaces_are_explained() {
        let ptr = answer("NOERROR aa", &[&["1.0.0.10.in-addr.arpa. 5 PTR web.shop.svc.c.local."]]);
        let denied = answer("NXDOMAIN aa", &[]);
        for (is_target_denied, expected) in [(true, Some(HIDDEN)), (false, None)] {
            let context = Context { is_target_denied, ..Context::default() };
            let name = "1.0.0.10.in-addr.arpa";
            assert_eq!(explanation(&known(), name, RecordType::PTR, [&ptr, &denied], context), expected);
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
