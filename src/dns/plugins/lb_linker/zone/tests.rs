mod records;
mod remotes;
mod reverse;
mod services;
mod snapshot;
mod sources;
mod state;

use std::net::IpAddr;

use crate::dns::plugins::lb_linker::zone::*;
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService, Port};
use crate::model::service_key::ServiceKey;
use crate::store::{Input, OnGone};

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn zone() -> Zone {
    let addresses = ips(&["192.0.2.53", "2001:db8::53"]);
    Zone::with_options(&name("LB.internal."), ZoneOptions { addresses, ..Default::default() }).unwrap()
}

fn link(namespace: &str, service: &str, hostnames: &[&str], addresses: &[&str]) -> ObservedService {
    ObservedService {
        key: ServiceKey::new(namespace, service),
        uid: "u".into(),
        created: None,
        resource_version: Some(42),
        ingress: Ingress {
            hostnames: hostnames.iter().map(|host| Hostname::from(&name(host))).collect(),
            addresses: ips(addresses),
        },
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn with_ttl(ttl: u32, link: ObservedService) -> ObservedService {
    ObservedService { annotations: Annotations { ttl: Some(ttl), ..link.annotations }, ..link }
}

fn asking(names: &[&str], link: ObservedService) -> ObservedService {
    let hostnames = names.iter().map(|name| Arc::from(*name)).collect();
    ObservedService { annotations: Annotations { hostnames, ..link.annotations }, ..link }
}

/// Adds ports, each as `name/protocol/number`; a port without a name begins with a slash.
fn with_ports(ports: &[&str], link: ObservedService) -> ObservedService {
    let port = |text: &&str| {
        let [name, protocol, number] = text.split('/').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let name = (!name.is_empty()).then(|| name.into());
        let (protocol, port) = (protocol.into(), number.parse().unwrap());
        Port { name, protocol, port, app_protocol: None }
    };
    ObservedService { ports: ports.iter().map(port).collect(), ..link }
}

fn store_of(links: Vec<ObservedService>) -> Store {
    let store = Store::new(OnGone::Kept).with_zones([zone().origin()]);
    store.replace(None, links, vec![], &Default::default());
    store.set_known(Input::Services);
    store
}

fn store() -> Store {
    store_of(vec![
        link("default", "host", &["a.example."], &[]),
        link("default", "ips", &[], &["192.0.2.1", "2001:db8::1", "192.0.2.2"]),
        link("default", "six", &[], &["2001:db8::6"]),
        link("default", "pending", &[], &[]),
    ])
}

/// Answers `name type`, and returns the rcode, the target that has to be resolved, the extended error, and the sections
/// in zone file syntax.
fn ask(store: &Store, question: &str) -> String {
    ask_in(&zone(), store, question)
}

fn ask_in(zone: &Zone, store: &Store, question: &str) -> String {
    let (qname, qtype) = question.split_once(' ').unwrap();
    let qname = name(qname);
    let relative = zone.relative(&qname).unwrap();
    let answer = zone.answer(store, &qname, &relative, qtype.parse().unwrap());
    let sections = [&answer.answers, &answer.authorities, &answer.additionals];
    let records =
        sections.iter().map(|section| section.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    let chase = answer.target.map(|host| format!(" → {host}")).unwrap_or_default();
    let ede = answer.ede.map(|ede| format!(" EDE {}", ede.code)).unwrap_or_default();
    format!("{:?}{chase}{ede} | {}", answer.rcode, records.collect::<Vec<_>>().join(" | "))
}

/// Checks a table of queries and answers; `NODATA` and `NXDOMAIN` stand for these answers with the SOA record.
fn check(zone: &Zone, store: &Store, soa: &str, table: &[(&str, &str)]) {
    for (question, expected) in table {
        let expected = match *expected {
            "NODATA" => format!("NoError |  | {soa} | "),
            "NXDOMAIN" => format!("NXDomain |  | {soa} | "),
            whole => whole.to_owned(),
        };
        assert_eq!(ask_in(zone, store, question), expected, "{question}");
    }
}

const SOA_RECORD: &str =
    "lb.internal. 5 IN SOA ns.dns.lb.internal. hostmaster.lb.internal. 42 7200 1800 86400 5";

fn soa_record(serial: u64) -> String {
    SOA_RECORD.replace(" 42 ", &format!(" {serial} "))
}

#[test]
fn queries_have_the_answers_of_the_rfcs() {
    let soa = format!("NoError | {SOA_RECORD} |  | ");
    let table = [
        // RFC 1034 section 3.6.2: an alias is the answer to every type, and its target is resolved.
        (
            "host-default.lb.internal. CNAME",
            "NoError | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        (
            "host.default.lb.internal. CNAME",
            "NoError | host.default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        (
            "host-default.lb.internal. A",
            "NoError → a.example. | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        (
            "host-default.lb.internal. NS",
            "NoError → a.example. | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        // RFC 4343 section 4: names are case-insensitive, and the answer keeps the query's case.
        (
            "HOST-Default.lb.INTERNAL. TXT",
            "NoError → a.example. | HOST-Default.lb.INTERNAL. 5 IN CNAME a.example. |  | ",
        ),
        // RFC 8482 section 4.1: the answer to ANY is the alias, or else one of the RRsets.
        ("host-default.lb.internal. ANY", "NoError | host-default.lb.internal. 5 IN CNAME a.example. |  | "),
        ("six-default.lb.internal. ANY", "NoError | six-default.lb.internal. 5 IN AAAA 2001:db8::6 |  | "),
        (
            "ips-default.lb.internal. ANY",
            "NoError | ips-default.lb.internal. 5 IN A 192.0.2.1, ips-default.lb.internal. 5 IN A 192.0.2.2 |  | ",
        ),
        ("pending-default.lb.internal. ANY", "NODATA"),
        // RFC 1035 section 3.4.1, RFC 3596 section 2.1: addresses.
        (
            "ips-default.lb.internal. A",
            "NoError | ips-default.lb.internal. 5 IN A 192.0.2.1, ips-default.lb.internal. 5 IN A 192.0.2.2 |  | ",
        ),
        ("ips.default.lb.internal. AAAA", "NoError | ips.default.lb.internal. 5 IN AAAA 2001:db8::1 |  | "),
        // RFC 2308 section 2.2: the name exists, the type doesn't.
        ("six-default.lb.internal. A", "NODATA"),
        ("ips-default.lb.internal. CNAME", "NODATA"),
        ("ips-default.lb.internal. MX", "NODATA"),
        ("ips-default.lb.internal. TXT", "NODATA"),
        ("ips-default.lb.internal. HTTPS", "NODATA"),
        ("ips-default.lb.internal. PTR", "NODATA"),
        ("pending-default.lb.internal. A", "NODATA"),
        // RFC 8020 section 2: the ancestors of an existing name exist.
        ("default.lb.internal. A", "NODATA"),
        ("default.lb.internal. SRV", "NODATA"),
        // RFC 2308 section 2.1: the name doesn't exist.
        ("other.lb.internal. A", "NXDOMAIN"),
        ("x.host.default.lb.internal. A", "NXDOMAIN"),
        ("x.host-default.lb.internal. A", "NXDOMAIN"),
        // The zone's own names.
        ("dns.lb.internal. A", "NODATA"),
        ("ns.dns.lb.internal. A", "NoError | ns.dns.lb.internal. 5 IN A 192.0.2.53 |  | "),
        ("ns.dns.lb.internal. AAAA", "NoError | ns.dns.lb.internal. 5 IN AAAA 2001:db8::53 |  | "),
        ("NS.dns.lb.internal. ANY", "NoError | NS.dns.lb.internal. 5 IN A 192.0.2.53 |  | "),
        ("ns.dns.lb.internal. NS", "NODATA"),
        ("x.dns.lb.internal. A", "NXDOMAIN"),
        ("x.ns.dns.lb.internal. A", "NXDOMAIN"),
        ("hostmaster.lb.internal. A", "NXDOMAIN"),
        // Reserved names: labels that begin with `_` (RFC 8552 section 1.1), and `deleted`.
        ("_tcp.lb.internal. SRV", "NXDOMAIN"),
        ("deleted.lb.internal. A", "NXDOMAIN"),
        ("x.deleted.lb.internal. CNAME", "NXDOMAIN"),
        // RFC 1034 section 4.2.1: the apex; the additional section has the name server's addresses.
        ("lb.internal. SOA", &soa),
        ("lb.internal. ANY", &soa),
        (
            "lb.internal. NS",
            "NoError | lb.internal. 5 IN NS ns.dns.lb.internal. |  | \
             ns.dns.lb.internal. 5 IN A 192.0.2.53, ns.dns.lb.internal. 5 IN AAAA 2001:db8::53",
        ),
        (
            "LB.Internal. NS",
            "NoError | LB.Internal. 5 IN NS ns.dns.lb.internal. |  | \
             ns.dns.lb.internal. 5 IN A 192.0.2.53, ns.dns.lb.internal. 5 IN AAAA 2001:db8::53",
        ),
        ("lb.internal. A", "NODATA"),
        ("lb.internal. SRV", "NODATA"),
        // RFC 4035 section 3.1.4.1: DS records are in the parent zone, so the zone itself answers NODATA.
        ("lb.internal. DS", "NODATA"),
    ];
    check(&zone(), &store(), SOA_RECORD, &table);
}

/// RFC 4592; the examples are those of section 2.2.1 that have counterparts here.
#[test]
fn wildcard_matches_only_names_that_do_not_exist() {
    let names = ["*.w.lb.internal", "sub.w.lb.internal", "deep.er.w.lb.internal", "*.lb.internal"];
    let store = store_of(vec![
        asking(&names, with_ports(&["http/TCP/80"], link("default", "ips", &[], &["192.0.2.1"]))),
        asking(&["*.alias.lb.internal"], link("default", "host", &["a.example."], &[])),
    ]);
    let table = [
        // Section 3.3.3: the answer has the queried name, in the query's case.
        ("x.w.lb.internal. A", "NoError | x.w.lb.internal. 5 IN A 192.0.2.1 |  | "),
        ("X.W.lb.internal. A", "NoError | X.W.lb.internal. 5 IN A 192.0.2.1 |  | "),
        // Section 2.2.1: the asterisk also matches several labels.
        ("x.y.w.lb.internal. A", "NoError | x.y.w.lb.internal. 5 IN A 192.0.2.1 |  | "),
        ("x.alias.lb.internal. A", "NoError → a.example. | x.alias.lb.internal. 5 IN CNAME a.example. |  | "),
        // Section 2.2.1: for a type that the wildcard doesn't have, the answer is NODATA, not NXDOMAIN.
        ("x.w.lb.internal. MX", "NODATA"),
        ("x.w.lb.internal. AAAA", "NODATA"),
        // Only a link's default names have SRV records.
        ("x.w.lb.internal. SRV", "NODATA"),
        ("sub.w.lb.internal. SRV", "NODATA"),
        ("_http._tcp.x.w.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.sub.w.lb.internal. SRV", "NXDOMAIN"),
        // Section 2.1.1: a query for the asterisk itself is an exact match.
        ("*.w.lb.internal. A", "NoError | *.w.lb.internal. 5 IN A 192.0.2.1 |  | "),
        // Section 2.2.1, `ghost.*.example.`: there are no names below an asterisk.
        ("x.*.w.lb.internal. A", "NXDOMAIN"),
        // Section 2.2.2: an existing name, even an empty non-terminal, blocks the wildcard for itself and all names
        // below.
        ("sub.w.lb.internal. A", "NoError | sub.w.lb.internal. 5 IN A 192.0.2.1 |  | "),
        ("x.sub.w.lb.internal. A", "NXDOMAIN"),
        ("er.w.lb.internal. A", "NODATA"),
        ("x.er.w.lb.internal. A", "NXDOMAIN"),
        ("w.lb.internal. A", "NODATA"),
        ("default.lb.internal. A", "NODATA"),
        ("x.default.lb.internal. A", "NXDOMAIN"),
        ("x.ips.default.lb.internal. A", "NXDOMAIN"),
        ("any.lb.internal. A", "NoError | any.lb.internal. 5 IN A 192.0.2.1 |  | "),
        // The zone's own names are reserved.
        ("lb.internal. A", "NODATA"),
        ("dns.lb.internal. A", "NODATA"),
        ("x.dns.lb.internal. A", "NXDOMAIN"),
        ("deleted.lb.internal. A", "NXDOMAIN"),
        ("_tcp.lb.internal. A", "NXDOMAIN"),
    ];
    check(&zone(), &store, SOA_RECORD, &table);
}

#[test]
fn ttl_and_apex_label_are_configurable() {
    let options = ZoneOptions {
        addresses: ips(&["192.0.2.53"]),
        ttl: 30,
        apex: "K8s".to_owned(),
        ..Default::default()
    };
    let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
    let store = store_of(vec![
        link("dns", "ns", &["a.example."], &[]),
        link("k8s", "web", &[], &["192.0.2.1"]),
        with_ttl(5, link("default", "six", &[], &["2001:db8::6"])),
    ]);
    let soa = "lb.internal. 30 IN SOA ns.k8s.lb.internal. hostmaster.lb.internal. 42 7200 1800 86400 30";
    let table = [
        ("ns.dns.lb.internal. CNAME", "NoError | ns.dns.lb.internal. 30 IN CNAME a.example. |  | "),
        ("ns.k8s.lb.internal. A", "NoError | ns.k8s.lb.internal. 30 IN A 192.0.2.53 |  | "),
        ("k8s.lb.internal. A", "NODATA"),
        ("web.k8s.lb.internal. A", "NXDOMAIN"),
        ("web-k8s.lb.internal. A", "NoError | web-k8s.lb.internal. 30 IN A 192.0.2.1 |  | "),
        ("six.default.lb.internal. AAAA", "NoError | six.default.lb.internal. 5 IN AAAA 2001:db8::6 |  | "),
        // RFC 2308 section 5: a negative answer is cached for the TTL of the SOA, not for the link's own TTL.
        ("six.default.lb.internal. A", "NODATA"),
        (
            "lb.internal. NS",
            "NoError | lb.internal. 30 IN NS ns.k8s.lb.internal. |  | ns.k8s.lb.internal. 30 IN A 192.0.2.53",
        ),
    ];
    check(&zone, &store, soa, &table);
    for apex in ["", "a.b", "_dns", &"x".repeat(64)] {
        let options = ZoneOptions { apex: apex.to_owned(), ..Default::default() };
        assert!(Zone::with_options(&name("lb.internal."), options).is_err(), "{apex:?}");
    }
}

/// The zone's own names are below `dns`, so links in a namespace `dns` only have their dashed names.
#[test]
fn namespace_named_as_the_apex_has_only_dashed_names() {
    let store = store_of(vec![link("dns", "web", &["a.example."], &[])]);
    let table = [
        ("web.dns.lb.internal. CNAME", "NXDOMAIN"),
        ("web-dns.lb.internal. CNAME", "NoError | web-dns.lb.internal. 5 IN CNAME a.example. |  | "),
    ];
    check(&zone(), &store, SOA_RECORD, &table);
}

#[test]
fn ttl_of_a_link_does_not_apply_to_negative_answers() {
    let store = store();
    store.apply(with_ttl(60, link("default", "host", &["a.example."], &[])));
    store.apply(with_ttl(0, link("default", "six", &[], &["2001:db8::6"])));
    assert_eq!(
        ask(&store, "host-default.lb.internal. CNAME"),
        "NoError | host-default.lb.internal. 60 IN CNAME a.example. |  | "
    );
    assert!(ask(&store, "six-default.lb.internal. AAAA").contains(" 0 IN AAAA 2001:db8::6"));
    check(&zone(), &store, &soa_record(44), &[("six-default.lb.internal. A", "NODATA")]);
}

#[test]
fn absent_name_of_an_unlisted_namespace_gets_servfail() {
    let store = Store::new(OnGone::Kept);
    store.apply(link("closed", "web", &["a.example."], &[]));
    store.update_unknown_namespaces(|namespaces| _ = namespaces.insert("closed".into()));
    store.set_known(Input::Services);
    for name in ["none-closed", "none.closed", "_p._tcp.none.closed"] {
        assert_eq!(ask(&store, &format!("{name}.lb.internal. A")), "ServFail EDE 14 |  |  | ", "{name}");
    }
    assert!(ask(&store, "web-closed.lb.internal. CNAME").starts_with("NoError | web-closed"));
    assert!(ask(&store, "none-open.lb.internal. A").starts_with("NXDomain"));
    store.update_unknown_namespaces(|namespaces| namespaces.clear());
    assert!(ask(&store, "none-closed.lb.internal. A").starts_with("NXDomain"));
}

#[test]
fn only_names_with_final_data_are_answered_before_first_list() {
    let store = Store::new(OnGone::Kept);
    let not_ready = "ServFail EDE 14 |  |  | ";
    for question in ["web-default.lb.internal. A", "lb.internal. SOA"] {
        assert_eq!(ask(&store, question), not_ready);
    }
    assert!(
        ask(&store, "deleted.lb.internal. A").starts_with("NXDomain"),
        "`deleted` never depends on links"
    );
    store.apply(link("default", "web", &["a.example."], &[]));
    store.apply(link("default", "pending", &[], &[]));
    let wild = ObservedService {
        annotations: Annotations { hostnames: [Arc::from("*.lb.internal")].into(), ..Default::default() },
        ..link("default", "wild", &["wild.example."], &[])
    };
    store.apply(wild);
    assert!(ask(&store, "web.default.lb.internal. CNAME").starts_with("NoError | web.default"));
    // Another link may turn out to own the name, and the last known target of a pending link isn't read yet.
    for question in [
        "web-default.lb.internal. A",
        "x-y-z.lb.internal. A",
        "pending.default.lb.internal. A",
        "default.lb.internal. A",
    ] {
        assert_eq!(ask(&store, question), not_ready, "{question}");
    }
}

#[test]
fn name_added_during_a_look_up_never_gets_nxdomain() {
    let zone = zone();
    let qname = name("web.default.lb.internal.");
    let relative = zone.relative(&qname).unwrap();
    for _ in 0..2_000 {
        let store = Store::new(OnGone::Kept);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                loop {
                    match zone.answer(&store, &qname, &relative, RecordType::CNAME).rcode {
                        ResponseCode::ServFail => {}
                        rcode => return rcode,
                    }
                }
            });
            store.apply(link("default", "web", &["a.example."], &[]));
            store.set_known(Input::Services);
            assert_eq!(asking.join().unwrap(), ResponseCode::NoError);
        });
    }
}

#[test]
fn zone_is_matched_only_at_label_boundaries() {
    let zone = zone();
    assert_eq!(zone.relative(&name("lb.internal.")).as_deref(), Some(&b""[..]));
    assert_eq!(zone.relative(&name("a.B.lb.Internal.")).as_deref(), Some(&b"\x01a\x01b"[..]));
    for outside in ["internal.", "xlb.internal.", ".", "lb.internal.example."] {
        assert_eq!(zone.relative(&name(outside)), None, "{outside}");
    }
}
