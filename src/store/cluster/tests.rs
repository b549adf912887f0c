use std::net::IpAddr;
use std::time::Duration;

use super::answer::{Answer, Outcome, PodMode, Rules};
use super::first_lists::FirstLists;
use super::objects::{Addressing, EndpointZones, Kind, Port, Protocol, Service, Slice};
use super::records::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use super::registry::{ClusterRegistry, ClusterSpec};
use super::*;
use crate::model::names;

const MX: u16 = 15;

fn spec() -> ClusterSpec {
    ClusterSpec { has_pods: true, has_imports: true, ..ClusterSpec::default() }
}

fn wire(name: &str) -> Box<[u8]> {
    let mut wire = if name.is_empty() { Vec::new() } else { names::wire_of(name).unwrap() };
    wire.push(0);
    wire.into()
}

fn rules() -> Rules {
    Rules {
        zones: ["cluster.local", "in-addr.arpa", "ip6.arpa"].map(wire).into(),
        primary: wire("cluster.local"),
        pods: PodMode::Disabled,
        ttl: 5,
        zonal: false,
        multicluster: Vec::new(),
        ignores_empty: false,
        namespaces: None,
        selects_namespaces: false,
        own_addresses: Vec::new(),
    }
}

fn key(text: &str) -> ServiceKey {
    let (name, namespace) = text.split_once('.').unwrap();
    ServiceKey::new(namespace, name)
}

fn ips(texts: &[&str]) -> Box<[IpAddr]> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Parses ports such as `http/tcp/80`.
fn ports(texts: &[&str]) -> Box<[Port]> {
    let port = |text: &&str| {
        let parts: Vec<&str> = text.split('/').collect();
        Port { name: parts[0].into(), protocol: Protocol::of(parts[1]), number: parts[2].parse().ok() }
    };
    texts.iter().map(port).collect()
}

fn cluster_ip(addresses: &[&str], texts: &[&str]) -> Option<Service> {
    Some(Service { addressing: Addressing::ClusterIps(ips(addresses)), ports: ports(texts) })
}

fn headless() -> Option<Service> {
    Some(Service { addressing: Addressing::Headless, ports: [].into() })
}

fn alias(target: &str) -> Option<Service> {
    Some(Service { addressing: Addressing::Alias(wire(target)), ports: [].into() })
}

/// Returns a slice with endpoints such as `10.1.0.1` or `10.1.0.1=name`.
/// An address may have a topology zone: `10.1.0.1@a.b`.
fn slice(name: &str, endpoints: &[&str], texts: &[&str]) -> Slice {
    let (endpoints, zones): (Vec<&str>, Vec<Option<&str>>) = endpoints
        .iter()
        .map(|text| text.split_once('@').map_or((*text, None), |(text, zone)| (text, Some(zone))))
        .unzip();
    let parts = || endpoints.iter().map(|text| text.split_once('=').unwrap_or((text, "")));
    let named = (0..).zip(parts()).filter(|(_, (_, name))| !name.is_empty());
    Slice {
        name: name.into(),
        ports: ports(texts),
        addresses: parts().map(|(ip, _)| ip.parse().unwrap()).collect(),
        names: named.map(|(at, (_, name))| (at, name.into())).collect(),
        zones: EndpointZones::of(zones.iter().map(|zone| zone.and_then(names::wire_of))),
        cluster: Box::default(),
    }
}

fn example() -> Cluster {
    let cluster = Cluster::new(spec());
    cluster.set_namespace("a", true);
    cluster.set_namespace("b", true);
    let set = |text: &str, service| cluster.set_service(&key(text), service, &[]);
    set("web.a", cluster_ip(&["10.0.0.1", "fd00::1"], &["http/tcp/80", "dns/udp/53"]));
    set("one.a", cluster_ip(&["10.0.0.2"], &["/tcp/80"]));
    set("db.a", headless());
    set("bare.b", headless());
    set("ext.b", alias("www.example.org"));
    set("ip.b", Some(Service { addressing: Addressing::Unusable, ports: [].into() }));
    let add = |text: &str, service, slice| cluster.set_slice(&key(text), Some((service, slice)));
    add("web-1.a", "web", slice("web-1", &["10.1.0.1"], &["http/tcp/8080"]));
    add("db-1.a", "db", slice("db-1", &["10.1.0.1=db-0", "10.1.0.2"], &["sql/tcp/5432"]));
    add("db-2.a", "db", slice("db-2", &["fd00:1::"], &["sql/tcp/5432", "/tcp/x"]));
    add("lone-1.a", "lone", slice("lone-1", &["10.1.0.9"], &[]));
    cluster.set_pod(&key("p.a"), &ips(&["10.2.0.1", "fd00:2::1"]));
    Kind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
    cluster
}

/// Returns the answer as text: `owner TYPE data` without the zone, joined by commas; additional records after `|`.
fn show(answer: &Answer) -> String {
    let records = match &answer.outcome {
        Outcome::Absent => return "absent".to_owned(),
        Outcome::Empty if answer.is_passed => return "empty, passed on".to_owned(),
        Outcome::Empty => return "empty".to_owned(),
        Outcome::Soa => return "soa".to_owned(),
        Outcome::Alias(target) => return format!("alias {}", names::text(target).trim_end_matches('.')),
        Outcome::Records { records, .. } => records,
    };
    let short =
        |name: &[u8]| names::text(name).replace("cluster.local", "@").trim_end_matches('.').to_owned();
    let text = |record: &answer::Record| {
        let data = &*record.data;
        let data = match record.rtype {
            A | AAAA => address_text(data),
            SRV => {
                let number = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
                format!("{} {} {} {}", number(0), number(2), number(4), short(&data[6..]))
            }
            TXT => String::from_utf8_lossy(&data[1..]).into_owned(),
            _ => short(data),
        };
        format!("{} {} {data}", short(&record.owner), record.ttl)
    };
    let section = |is_additional| {
        let records = records.iter().filter(|record| record.is_additional == is_additional);
        records.map(text).collect::<Vec<_>>().join(", ")
    };
    format!("{} | {}", section(false), section(true)).trim_end_matches(" | ").to_owned()
}

fn address_text(data: &[u8]) -> String {
    let v4: Result<[u8; 4], _> = data.try_into();
    v4.map_or_else(|_| IpAddr::from(<[u8; 16]>::try_from(data).unwrap()), IpAddr::from).to_string()
}

fn ask(cluster: &Cluster, rules: &Rules, name: &str, qtype: u16) -> Answer {
    let name = wire(name);
    cluster.answer(rules, answer::zone_of(&rules.zones, &name).unwrap(), &name, qtype)
}

fn check(cluster: &Cluster, rules: &Rules, table: &[(&str, u16, &str)]) {
    for (name, qtype, expected) in table {
        assert_eq!(show(&ask(cluster, rules, name, *qtype)), *expected, "{name} {qtype}");
    }
}

#[test]
fn services_are_answered_by_name_and_port() {
    check(
        &example(),
        &rules(),
        &[
            ("web.a.svc.cluster.local", A, "web.a.svc.@ 5 10.0.0.1"),
            ("web.a.svc.cluster.local", AAAA, "web.a.svc.@ 5 fd00::1"),
            ("web.a.svc.cluster.local", TXT, "empty"),
            ("web.a.svc.cluster.local", MX, "empty"),
            ("one.a.svc.cluster.local", AAAA, "empty"),
            ("web.b.svc.cluster.local", A, "absent"),
            ("web.c.svc.cluster.local", A, "absent"),
            (
                "web.a.svc.cluster.local",
                SRV,
                "web.a.svc.@ 5 0 25 80 web.a.svc.@, web.a.svc.@ 5 0 25 53 web.a.svc.@ | web.a.svc.@ 5 10.0.0.1, \
                 web.a.svc.@ 5 fd00::1",
            ),
            (
                "_http._tcp.web.a.svc.cluster.local",
                SRV,
                "_http._tcp.web.a.svc.@ 5 0 50 80 web.a.svc.@ | web.a.svc.@ 5 10.0.0.1, web.a.svc.@ 5 fd00::1",
            ),
            ("http.tcp.web.a.svc.cluster.local", A, "http.tcp.web.a.svc.@ 5 10.0.0.1"),
            ("_http._udp.web.a.svc.cluster.local", SRV, "absent"),
            ("_tcp.web.a.svc.cluster.local", SRV, "empty, passed on"),
            ("_sctp.web.a.svc.cluster.local", SRV, "absent"),
            ("_tcp.one.a.svc.cluster.local", A, "absent"),
            ("10-1-0-1.web.a.svc.cluster.local", A, "10-1-0-1.web.a.svc.@ 5 10.1.0.1"),
            ("10-1-0-2.web.a.svc.cluster.local", A, "absent"),
            ("x._http._tcp.web.a.svc.cluster.local", SRV, "absent"),
        ],
    );
}

#[test]
fn headless_services_are_answered_by_endpoints() {
    check(
        &example(),
        &rules(),
        &[
            ("db.a.svc.cluster.local", A, "db.a.svc.@ 5 10.1.0.1, db.a.svc.@ 5 10.1.0.2"),
            ("db.a.svc.cluster.local", AAAA, "db.a.svc.@ 5 fd00:1::"),
            ("db-0.db.a.svc.cluster.local", A, "db-0.db.a.svc.@ 5 10.1.0.1"),
            ("10-1-0-1.db.a.svc.cluster.local", A, "absent"),
            ("10-1-0-2.db.a.svc.cluster.local", A, "10-1-0-2.db.a.svc.@ 5 10.1.0.2"),
            ("fd00-1--0.db.a.svc.cluster.local", AAAA, "fd00-1--0.db.a.svc.@ 5 fd00:1::"),
            ("fd00-1--.db.a.svc.cluster.local", AAAA, "absent"),
            ("bare.b.svc.cluster.local", A, "absent"),
            ("lone.a.svc.cluster.local", A, "absent"),
            ("_tcp.db.a.svc.cluster.local", A, "empty, passed on"),
            (
                "_sql._tcp.db.a.svc.cluster.local",
                SRV,
                "_sql._tcp.db.a.svc.@ 5 0 33 5432 db-0.db.a.svc.@, _sql._tcp.db.a.svc.@ 5 0 33 5432 \
                 10-1-0-2.db.a.svc.@, _sql._tcp.db.a.svc.@ 5 0 33 5432 fd00-1--0.db.a.svc.@ | db-0.db.a.svc.@ 5 10.1.0.1, \
                 10-1-0-2.db.a.svc.@ 5 10.1.0.2, fd00-1--0.db.a.svc.@ 5 fd00:1::",
            ),
        ],
    );
}

#[test]
fn external_names_are_aliases_for_each_type() {
    check(
        &example(),
        &rules(),
        &[
            ("ext.b.svc.cluster.local", A, "alias www.example.org"),
            ("ext.b.svc.cluster.local", SRV, "alias www.example.org"),
            ("ext.b.svc.cluster.local", CNAME, "alias www.example.org"),
            ("x.ext.b.svc.cluster.local", A, "absent"),
            ("_http._tcp.ext.b.svc.cluster.local", SRV, "absent"),
            ("ip.b.svc.cluster.local", A, "absent"),
        ],
    );
}

#[test]
fn names_of_the_zone_itself_exist() {
    let rules = Rules { own_addresses: ips(&["10.1.0.1", "10.9.0.1"]).into(), ..rules() };
    check(
        &example(),
        &rules,
        &[
            ("cluster.local", SOA, "soa"),
            ("cluster.local", A, "empty"),
            ("svc.cluster.local", A, "empty"),
            ("a.svc.cluster.local", A, "empty"),
            ("c.svc.cluster.local", A, "absent"),
            ("a.pod.cluster.local", A, "absent"),
            ("x.cluster.local", SOA, "absent"),
            ("dns.cluster.local", A, "empty, passed on"),
            ("dns.cluster.local", SOA, "empty"),
            ("cluster.local", TXT, "empty, passed on"),
            ("svc.cluster.local", TXT, "empty, passed on"),
            ("a.svc.cluster.local", TXT, "empty, passed on"),
            ("ns.dns.cluster.local", PTR, "empty, passed on"),
            ("dns-version.cluster.local", TXT, "dns-version.@ 28800 1.1.0"),
            ("dns-version.cluster.local", A, "empty, passed on"),
            ("ns.dns.cluster.local", A, "ns.dns.@ 5 10.1.0.1, ns.dns.@ 5 10.1.0.2, ns.dns.@ 5 10.0.0.1"),
            (
                "cluster.local",
                NS,
                "@ 5 db-0.db.a.svc.@, @ 5 10-1-0-2.db.a.svc.@, @ 5 web.a.svc.@ | db-0.db.a.svc.@ 5 10.1.0.1, \
                 10-1-0-2.db.a.svc.@ 5 10.1.0.2, web.a.svc.@ 5 10.0.0.1, web.a.svc.@ 5 fd00::1",
            ),
        ],
    );
    let alone = Rules { own_addresses: ips(&["10.9.0.1"]).into(), ..rules };
    check(
        &example(),
        &alone,
        &[
            ("cluster.local", NS, "@ 5 ns.dns.@ | ns.dns.@ 5 10.9.0.1"),
            ("ns.dns.cluster.local", A, "ns.dns.@ 5 10.9.0.1"),
            ("ns.dns.cluster.local", AAAA, "empty"),
        ],
    );
}

#[test]
fn addresses_have_the_names_of_services_or_endpoints() {
    let table = [
        ("1.0.0.10.in-addr.arpa", PTR, "1.0.0.10.in-addr.arpa 5 web.a.svc.@"),
        ("1.0.0.10.in-addr.arpa", A, "empty, passed on"),
        (
            "1.0.1.10.in-addr.arpa",
            PTR,
            "1.0.1.10.in-addr.arpa 5 db-0.db.a.svc.@, 1.0.1.10.in-addr.arpa 5 10-1-0-1.web.a.svc.@",
        ),
        ("9.0.1.10.in-addr.arpa", PTR, "9.0.1.10.in-addr.arpa 5 10-1-0-9.lone.a.svc.@"),
        ("3.0.1.10.in-addr.arpa", PTR, "absent"),
        ("01.0.0.10.in-addr.arpa", PTR, "absent"),
        ("10.in-addr.arpa", PTR, "absent"),
        ("in-addr.arpa", PTR, "empty"),
        ("web.a.svc.in-addr.arpa", A, "absent"),
        ("web.a.svc.cluster.local", PTR, "empty"),
        ("none.a.svc.cluster.local", PTR, "absent"),
    ];
    check(&example(), &rules(), &table);
    let hidden = Rules { namespaces: Some([Box::from("b")].into()), selects_namespaces: true, ..rules() };
    check(
        &example(),
        &hidden,
        &[("1.0.0.10.in-addr.arpa", PTR, "absent"), ("a.svc.cluster.local", A, "absent")],
    );
}

#[test]
fn pods_are_answered_in_three_modes() {
    let names = |expected: [&'static str; 6]| {
        let names =
            ["10-2-0-1.a", "10-9-9-9.a", "fd00-2--1.a", "FD00-2-0--1.a", "x.10-2-0-1.a", "--ffff-a02-1.a"];
        let names = names.map(|name| format!("{}.pod.cluster.local", name.to_lowercase()));
        names.into_iter().zip(expected).collect::<Vec<_>>()
    };
    for (pods, expected) in [
        (PodMode::Disabled, ["absent"; 6]),
        (PodMode::Insecure, ["10.2.0.1", "10.9.9.9", "empty", "empty", "10.2.0.1", "10.2.0.1"]),
        (PodMode::Verified, ["10.2.0.1", "absent", "empty", "absent", "10.2.0.1", "absent"]),
    ] {
        let rules = Rules { pods, ..rules() };
        for (name, expected) in names(expected) {
            let shown = show(&ask(&example(), &rules, &name, A));
            assert!(
                shown == expected || shown.ends_with(&format!(" 5 {expected}")),
                "{pods:?} {name}: {shown}"
            );
        }
    }
    let verified = Rules { pods: PodMode::Verified, ..rules() };
    let srv = "10-2-0-1.a.pod.@ 5 0 100 0 10-2-0-1.a.pod.@ | 10-2-0-1.a.pod.@ 5 10.2.0.1";
    check(
        &example(),
        &verified,
        &[("10-2-0-1.a.pod.cluster.local", SRV, srv), ("a.pod.cluster.local", A, "empty")],
    );
}

#[test]
fn names_of_topology_zones_select_endpoints() {
    let cluster = example();
    let endpoints = ["10.1.0.1@a", "10.1.0.2@B.c", "10.1.0.3"];
    cluster.set_slice(&key("db-1.a"), Some(("db", slice("db-1", &endpoints, &["sql/tcp/5432"]))));
    cluster.set_slice(&key("db-2.a"), Some(("db", slice("db-2", &["10.1.0.4@b.c"], &[]))));
    let names = |expected: [&'static str; 9]| {
        let names = ["a.pin", "b.c.pin", "c.pin", "a.prefer", "c.prefer", "a.other", "pin", "a.pin", ""];
        let services = ["db", "db", "db", "db", "db", "db", "db", "web", "db"];
        let name = |(below, service): (&str, &str)| {
            format!("{below}._zone.{service}.a.svc.cluster.local").trim_start_matches('.').to_owned()
        };
        names.into_iter().zip(services).map(name).zip(expected).collect::<Vec<_>>()
    };
    let all = "10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4";
    let denied = "empty, passed on";
    let zonal =
        ["10.1.0.1", "10.1.0.2 10.1.0.4", "empty", "10.1.0.1", all, "absent", denied, "absent", denied];
    for (is_zonal, expected) in [(true, zonal), (false, ["absent"; 9])] {
        let rules = Rules { zonal: is_zonal, ..rules() };
        for (name, expected) in names(expected) {
            let shown = show(&ask(&cluster, &rules, &name, A));
            let ips: Vec<&str> =
                shown.split(", ").filter_map(|record| record.split_once(" 5 ")).map(|(_, ip)| ip).collect();
            assert!(shown == expected || ips.join(" ") == expected, "{name}: {shown}");
        }
    }
    let rules = Rules { zonal: true, ..rules() };
    check(
        &cluster,
        &rules,
        &[
            ("c.pin._zone.db.a.svc.cluster.local", TXT, "empty"),
            (
                "a.pin._zone.db.a.svc.cluster.local",
                SRV,
                "a.pin._zone.db.a.svc.@ 5 0 100 5432 10-1-0-1.db.a.svc.@ | 10-1-0-1.db.a.svc.@ 5 10.1.0.1",
            ),
            ("a.pin._zone.none.a.svc.cluster.local", A, "absent"),
            ("a.pin._zone.10-2-0-1.a.pod.cluster.local", A, "absent"),
        ],
    );
}

#[test]
fn imports_have_names_in_their_zones_alone() {
    let cluster = example();
    add_imports(&cluster);
    let zones = ["cluster.local", "in-addr.arpa", "set.local"].map(wire).into();
    let rules = Rules { zones, multicluster: vec![wire("set.local")], zonal: true, ..rules() };
    check(
        &cluster,
        &rules,
        &[
            ("web.a.svc.set.local", A, "web.a.svc.set.local 5 10.8.0.1"),
            ("web.a.svc.cluster.local", A, "web.a.svc.@ 5 10.0.0.1"),
            ("bare.a.svc.set.local", A, "absent"),
            ("one.a.svc.set.local", A, "absent"),
            ("db.a.svc.set.local", A, "db.a.svc.set.local 5 10.9.0.1, db.a.svc.set.local 5 10.9.0.2"),
            ("db-0.east.db.a.svc.set.local", A, "db-0.east.db.a.svc.set.local 5 10.9.0.1"),
            ("db-0.west.db.a.svc.set.local", A, "absent"),
            ("db-0.db.a.svc.set.local", A, "absent"),
            ("10-9-0-2.db.a.svc.set.local", A, "10-9-0-2.db.a.svc.set.local 5 10.9.0.2"),
            ("east.db.a.svc.set.local", A, "empty, passed on"),
            ("x.pin._zone.db.a.svc.set.local", A, "absent"),
            (
                "_sql._tcp.db.a.svc.set.local",
                SRV,
                "_sql._tcp.db.a.svc.set.local 5 0 50 5432 db-0.east.db.a.svc.set.local, _sql._tcp.db.a.svc.set.local 5 0 50 \
                 5432 10-9-0-2.db.a.svc.set.local | db-0.east.db.a.svc.set.local 5 10.9.0.1, 10-9-0-2.db.a.svc.set.local 5 \
                 10.9.0.2",
            ),
            ("1.0.9.10.in-addr.arpa", PTR, "absent"),
        ],
    );
    let serials = || [View::Inside, View::Imports].map(|view| cluster.serial(view).load(Ordering::Relaxed));
    cluster.serial(View::Inside).store(1, Ordering::Relaxed);
    cluster.serial(View::Imports).store(1, Ordering::Relaxed);
    let kept = [
        "web.a.svc.cluster.local",
        "web.a.svc.set.local",
        "none.a.svc.cluster.local",
        "none.a.svc.set.local",
    ]
    .map(|name| ask(&cluster, &rules, name, A));
    cluster.set_import(&key("web.a"), None);
    cluster.set_import(&key("none.a"), headless());
    assert_eq!(kept.map(|answer| is_outdated(&answer)), [false, true, false, true]);
    assert!(serials()[0] == 1 && serials()[1] > 1, "{:?}", serials());
}

fn add_imports(cluster: &Cluster) {
    cluster.set_import(&key("web.a"), cluster_ip(&["10.8.0.1"], &["http/tcp/80"]));
    cluster.set_import(&key("bare.a"), cluster_ip(&["10.8.0.2"], &[]));
    cluster.set_import(&key("db.a"), headless());
    for (name, endpoint, id) in [("db-1", "10.9.0.1=db-0", "east"), ("db-2", "10.9.0.2", "")] {
        let slice = Slice { cluster: id.into(), ..slice(name, &[endpoint], &["sql/tcp/5432"]) };
        cluster.set_import_slice(&key(&format!("{name}.a")), Some(("db", slice)));
    }
}

#[test]
fn service_without_a_ready_endpoint_can_be_ignored() {
    let rules = Rules { ignores_empty: true, ..rules() };
    let table = [
        ("one.a.svc.cluster.local", A, "absent"),
        ("web.a.svc.cluster.local", A, "web.a.svc.@ 5 10.0.0.1"),
        ("ext.b.svc.cluster.local", A, "alias www.example.org"),
    ];
    check(&example(), &rules, &table);
}

fn is_outdated(answer: &Answer) -> bool {
    answer.flags.iter().any(|flag| flag.is_set())
        || !answer.names.as_ref().is_none_or(|names| names.is_current())
}

#[test]
fn change_outdates_only_the_answers_that_rest_on_it() {
    let questions = [
        ("web.a.svc.cluster.local", A),
        ("db.a.svc.cluster.local", A),
        ("none.a.svc.cluster.local", A),
        ("web.none.svc.cluster.local", A),
        ("1.0.1.10.in-addr.arpa", PTR),
        ("7.0.1.10.in-addr.arpa", PTR),
        ("10-2-0-1.a.pod.cluster.local", A),
        ("10-2-0-7.a.pod.cluster.local", A),
        ("x.cluster.local", A),
    ];
    let rules = Rules { pods: PodMode::Verified, ..rules() };
    type Change = fn(&Cluster);
    let changes: [(Change, &[usize]); 9] = [
        (|cluster| cluster.set_service(&key("web.a"), None, &[]), &[0]),
        (|cluster| cluster.set_service(&key("none.a"), headless(), &[]), &[2]),
        (|cluster| cluster.set_namespace("none", true), &[3]),
        (|cluster| cluster.set_namespace("a", false), &[0, 1, 2, 6, 7]),
        (|cluster| cluster.set_slice(&key("db-2.a"), None), &[1]),
        (
            |cluster| {
                let slice = slice("db-1", &["10.1.0.2", "10.1.0.7"], &["sql/tcp/5432"]);
                cluster.set_slice(&key("db-1.a"), Some(("db", slice)));
            },
            &[1, 4, 5],
        ),
        (|cluster| cluster.set_pod(&key("p.a"), &[]), &[6]),
        (|cluster| cluster.set_pod(&key("q.a"), &ips(&["10.2.0.7"])), &[7]),
        (
            |cluster| {
                cluster.set_service(&key("db.a"), headless(), &[]);
                cluster.set_pod(&key("p.a"), &ips(&["10.2.0.1", "fd00:2::1"]));
                cluster.set_namespace("b", true);
            },
            &[],
        ),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let cluster = example();
        let answers = questions.map(|(name, qtype)| ask(&cluster, &rules, name, qtype));
        change(&cluster);
        let outdated: Vec<usize> = (0..answers.len()).filter(|at| is_outdated(&answers[*at])).collect();
        assert_eq!(outdated, expected, "change {number}");
    }
}

#[test]
fn removed_objects_leave_nothing() {
    let cluster = example();
    add_imports(&cluster);
    for kind in Kind::ALL {
        assert_eq!(cluster.keys(kind).len(), cluster.number(kind));
        for key in cluster.keys(kind) {
            cluster.remove(kind, &key);
        }
        assert_eq!(cluster.number(kind), 0, "{kind:?}");
    }
    check(
        &cluster,
        &rules(),
        &[("1.0.1.10.in-addr.arpa", PTR, "absent"), ("web.a.svc.cluster.local", A, "absent")],
    );
    assert!(cluster.index.read().is_empty());
}

#[test]
fn slice_moves_to_another_service() {
    let cluster = example();
    cluster.set_slice(&key("db-2.a"), Some(("bare", slice("db-2", &["10.1.0.5"], &[]))));
    cluster.set_slice(&key("web-1.a"), Some(("db", slice("web-1", &["10.1.0.1"], &[]))));
    check(
        &cluster,
        &rules(),
        &[
            ("db.a.svc.cluster.local", AAAA, "empty"),
            ("5.0.1.10.in-addr.arpa", PTR, "5.0.1.10.in-addr.arpa 5 10-1-0-5.bare.a.svc.@"),
            (
                "1.0.1.10.in-addr.arpa",
                PTR,
                "1.0.1.10.in-addr.arpa 5 db-0.db.a.svc.@, 1.0.1.10.in-addr.arpa 5 10-1-0-1.db.a.svc.@",
            ),
        ],
    );
}

#[test]
fn addresses_of_other_slices_stay_when_a_slice_shrinks() {
    let cluster = example();
    let all: Vec<String> = (0..30).map(|i| format!("10.7.0.{i}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for (name, endpoints) in [("big-1", &all[..]), ("big-2", &all[10..20]), ("big-1", &all[..5])] {
        cluster.set_slice(&key(&format!("{name}.a")), Some(("db", slice(name, endpoints, &[]))));
    }
    for (address, expected) in all.iter().zip(0..) {
        let reverse = address.rsplit('.').collect::<Vec<_>>().join(".");
        let found = show(&ask(&cluster, &rules(), &format!("{reverse}.in-addr.arpa"), PTR));
        assert_eq!(found != "absent", expected < 5 || (10..20).contains(&expected), "{address}: {found}");
    }
}

#[test]
fn large_services_have_bounded_answers() {
    let cluster = example();
    let many: Vec<String> = (0..10_000).map(|i| format!("10.7.{}.{}", i / 250, i % 250)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let texts: Vec<String> = (0..100).map(|i| format!("p{i}/tcp/{i}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    cluster.set_slice(&key("big-1.a"), Some(("db", slice("big-1", &many, &texts))));
    for qtype in [A, SRV] {
        let answer = ask(&cluster, &rules(), "db.a.svc.cluster.local", qtype);
        let Outcome::Records { records, is_cut, .. } = answer.outcome else { panic!("{qtype}") };
        assert!(is_cut && records.len() <= 2 * 4096, "{}", records.len());
    }
}

#[test]
fn all_kinds_of_the_selection_have_to_be_listed() {
    let cluster = Cluster::new(ClusterSpec { has_pods: false, has_imports: false, ..spec() });
    for kind in [Kind::Services, Kind::Slices, Kind::Namespaces] {
        assert!(!cluster.is_listed());
        cluster.set_failure(kind, Some("no"));
        assert_eq!(cluster.failure().as_deref(), Some("no"));
        cluster.set_listed(kind);
        assert_eq!(cluster.failure(), None);
    }
    assert!(cluster.is_listed());
}

#[test]
fn name_servers_are_unknown_until_all_is_listed() {
    let cluster = Cluster::new(spec());
    let rules = Rules { own_addresses: ips(&["10.9.0.1"]).into(), ..rules() };
    let names = [("cluster.local", NS), ("ns.dns.cluster.local", A)];
    check(&cluster, &rules, &names.map(|(name, qtype)| (name, qtype, "empty")));
    Kind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
    for (name, qtype) in names {
        assert!(show(&ask(&cluster, &rules, name, qtype)).ends_with(" 10.9.0.1"), "{name}");
    }
}

#[test]
fn services_may_share_an_address() {
    let cluster = example();
    let set = |name: &str, is_there: bool| {
        let service = cluster_ip(&["10.7.0.1"], &[]).filter(|_| is_there);
        cluster.set_service(&key(&format!("{name}.a")), service, &[]);
    };
    for (name, is_there, first) in [
        ("m", true, "m"),
        ("z", true, "m"),
        ("c", true, "c"),
        ("m", true, "c"),
        ("c", false, "m"),
        ("m", false, "z"),
    ] {
        set(name, is_there);
        let found = show(&ask(&cluster, &rules(), "1.0.7.10.in-addr.arpa", PTR));
        assert_eq!(found, format!("1.0.7.10.in-addr.arpa 5 {first}.a.svc.@"), "{name}");
    }
}

#[test]
fn serials_rise_with_the_changes_that_their_zones_show() {
    const ALL: [View; 4] = [View::Inside, View::External, View::ExternalHeadless, View::Imports];
    let outside = [External::Address([192, 0, 2, 1].into())];
    type Change<'a> = &'a dyn Fn(&Cluster);
    let changes: [(Change<'_>, [bool; 4]); 6] = [
        (&|cluster| cluster.set_service(&key("new.a"), headless(), &[]), [true, false, true, false]),
        (&|cluster| cluster.set_service(&key("new.a"), headless(), &outside), [false, true, true, false]),
        (&|cluster| cluster.set_service(&key("new.a"), None, &[]), [true, true, true, false]),
        (&|cluster| cluster.set_slice(&key("db-1.a"), None), [true, false, true, false]),
        (&|cluster| cluster.set_pod(&key("p.a"), &[]), [true, false, false, true]),
        (&|cluster| cluster.set_namespace("c", true), [true; 4]),
    ];
    let cluster = example();
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        ALL.iter().for_each(|view| cluster.serial(*view).store(1, Ordering::Relaxed));
        change(&cluster);
        let raised = ALL.map(|view| cluster.serial(view).load(Ordering::Relaxed) > 1);
        assert_eq!(raised, expected, "change {number}");
    }
}

#[test]
fn blocks_with_the_same_selection_share_a_cluster() {
    let registry = ClusterRegistry::default();
    let (one, other) = (registry.cluster(spec()), registry.cluster(spec()));
    assert!(Arc::ptr_eq(&one, &other) && registry.has_own());
    let labelled = registry.cluster(ClusterSpec { labels: "a=b".to_owned(), ..spec() });
    assert!(!Arc::ptr_eq(&one, &labelled));
    let served = registry.served();
    let guards = [registry.serve(Arc::clone(&one)), registry.serve(one)];
    assert_eq!(served.borrow().len(), 2);
    drop(guards);
    assert!(served.borrow().is_empty());
    let block = FirstLists::new(Arc::clone(&other), Duration::ZERO);
    assert!(other.has_blocks(), "a reload has built a block, which isn't served yet");
    drop(block);
    assert!(!other.has_blocks());
    registry.forget(&other);
    assert!(!Arc::ptr_eq(&registry.cluster(spec()), &other), "its objects aren't kept up to date any more");
    drop((other, labelled));
    assert!(!registry.has_own());
}
