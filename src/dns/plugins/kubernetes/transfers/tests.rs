use std::collections::BTreeSet;

use hickory_proto::rr::RecordType;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::dns::plugins::kubernetes::tests::{list, server};
use crate::dns::plugins::tests::support::TestServer;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::View;
use crate::store::cluster::objects::{Addressing, External, Port, Protocol, Service, Slice};

fn key(namespace: &str, name: &str) -> ServiceKey {
    ServiceKey::new(namespace, name)
}

fn ports(number: usize) -> Box<[Port]> {
    let all = [("http", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53), ("", Protocol::Tcp, 1)];
    let port = |(name, protocol, number): &(&str, Protocol, u16)| Port {
        name: (*name).into(),
        protocol: *protocol,
        number: Some(*number),
    };
    all.iter().take(number).map(port).collect()
}

fn slice(name: &str, addresses: &[&str], ports: Box<[Port]>) -> Slice {
    Slice {
        name: name.into(),
        ports,
        addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        names: [(0, "db-0".into())].into(),
        zones: None,
        cluster: Box::default(),
    }
}

fn host(name: &str) -> Box<[u8]> {
    [&*names::wire_of(name).unwrap(), &[0]].concat().into()
}

fn domain(wire: &[u8]) -> String {
    names::text(&wire[..wire.len() - 1]) + "."
}

/// Returns the records of a zone, as they are in the order of the transfer.
fn records(server: &TestServer, origin: &str) -> Vec<ZoneRecord> {
    let zone = server.server.transferred_zone(&Name::from_ascii(origin).unwrap(), None).expect("a zone");
    let state = zone.state().expect("the zone is served");
    std::iter::once(state.soa).chain(state.records.flatten()).collect()
}

fn shown(server: &TestServer, origin: &str) -> Vec<String> {
    let show = |ZoneRecord { owner, rtype, ttl, .. }: ZoneRecord| {
        format!("{} {ttl} {}", domain(&owner), RecordType::from(rtype))
    };
    records(server, origin).into_iter().map(show).collect()
}

type Shown = BTreeSet<(String, u16, u32, Vec<u8>)>;

fn of(records: impl IntoIterator<Item = ZoneRecord>) -> Shown {
    let record = |it: ZoneRecord| (domain(&it.owner), it.rtype, it.ttl, it.data.into());
    records.into_iter().map(record).collect()
}

/// Returns what a question is answered with, but for the records of other names.
async fn of_query(server: &TestServer, name: &str, qtype: RecordType) -> Shown {
    let reply = server.reply(&format!("{name} {qtype}")).await.unwrap();
    let all = reply.records.answers.iter().map(|record| ZoneRecord::try_from(record).unwrap());
    of(all.filter(|record| domain(&record.owner) == name))
}

const NAMES: [&str; 3] = ["web", "db", "out"];
const NAMESPACES: [&str; 2] = ["a", "b"];

fn fill(random: &mut StdRng, cluster: &Cluster) {
    for namespace in NAMESPACES {
        cluster.set_namespace(namespace, random.random_bool(0.9));
        for name in NAMES {
            let externals = [
                vec![],
                vec![
                    External::Address([192, 0, 2, 1].into()),
                    External::Address("2001:db8::1".parse().unwrap()),
                ],
                vec![External::Host(host("lb.example.org")), External::Host(host("two.example.org"))],
                vec![External::Address([192, 0, 2, 2].into()), External::Host(host("lb.example.org"))],
            ];
            let addressing = [
                Addressing::ClusterIps(
                    [[10, 0, 0, random.random_range(1..4)].into(), "fd00::1".parse().unwrap()].into(),
                ),
                Addressing::Headless,
                Addressing::Alias(host("www.example.org")),
                Addressing::Unusable,
            ];
            let number = random.random_range(0..4);
            let service =
                Service { addressing: addressing.choose(random).unwrap().clone(), ports: ports(number) };
            let service = random.random_bool(0.8).then_some(service);
            let externals =
                if service.is_some() { externals.choose(random).unwrap().clone() } else { vec![] };
            cluster.set_service(&key(namespace, name), service, &externals);
            for number in 0..random.random_range(0..3) {
                let all = ["10.1.0.1", "10.1.0.2", "fd00:1::"];
                let addresses: Vec<&str> = all.into_iter().filter(|_| random.random_bool(0.6)).collect();
                let object = format!("{name}-{number}");
                let slice = slice(&object, &addresses, ports(random.random_range(0..4)));
                cluster.set_slice(&key(namespace, &object), Some((name, slice)));
            }
        }
    }
    list(cluster);
}

/// Returns names to ask for: names that objects may have in `svc.<zone>`, and in the zone itself, but there without
/// endpoints, as any label may stand for one.
fn asked(zone: &str) -> Vec<String> {
    let own = ["", "dns.", "ns.dns.", "ns1.dns.", "dns-version.", "svc.", "a.svc.", "a."];
    let mut asked: Vec<String> = own.iter().map(|own| format!("{own}{zone}")).collect();
    for base in NAMES.iter().flat_map(|name| NAMESPACES.map(|namespace| format!("{name}.{namespace}."))) {
        for below in ["", "_http._tcp.", "_dns._udp.", "_none._tcp."] {
            asked.extend([format!("{below}{base}{zone}"), format!("{below}{base}svc.{zone}")]);
        }
        for below in ["_tcp.", "db-0.", "10-1-0-1.", "10-1-0-2.", "fd00-1--0."] {
            asked.push(format!("{below}{base}svc.{zone}"));
        }
    }
    asked
}

const TYPES_ASKED: [RecordType; 7] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::TXT,
    RecordType::NS,
    RecordType::MX,
    RecordType::CNAME,
];

async fn compare(server: &TestServer, origin: &str, asked: &[String], types: &[RecordType], context: &str) {
    let records = records(server, origin);
    let all = of(records.iter().cloned());
    assert_eq!(records.len(), all.len(), "{context}: each record is there once");
    let number = |record: &&ZoneRecord| record.rtype == u16::from(RecordType::NS);
    assert_eq!(records.iter().filter(number).count(), 1, "{context}: {records:?}");
    let is_alias = |name: &str| all.iter().any(|(owner, rtype, ..)| owner == name && *rtype == CNAME);
    for (name, rtype, ..) in all.iter().filter(|(_, rtype, ..)| *rtype != SOA) {
        let expected = of_query(server, name, (*rtype).into()).await;
        let found: Shown = all.iter().filter(|it| it.0 == *name && it.1 == *rtype).cloned().collect();
        assert_eq!(found, expected, "{context}: {name} {rtype}");
        assert!(*rtype == CNAME || !is_alias(name), "{context}: {name} {rtype}");
    }
    for name in asked {
        for qtype in types {
            let expected = of_query(server, name, *qtype).await;
            let known: Shown =
                all.iter().filter(|it| it.0 == *name && it.1 == u16::from(*qtype)).cloned().collect();
            let has_alias = expected.iter().any(|it| it.1 == CNAME);
            // Beside an alias nothing can stand; an alias for one family of addresses isn't one of the name.
            if !has_alias && !is_alias(name) || *qtype == RecordType::CNAME && !name.starts_with('_') {
                assert_eq!(known, expected, "{context}: {name} {qtype}");
            }
        }
    }
}

#[tokio::test]
async fn zones_have_what_questions_are_answered_with() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let headless = if random.random_bool(0.5) { "headless" } else { "ttl 7" };
        let cached = if random.random_bool(0.5) { "cache 3" } else { "" };
        let (server, cluster) = server(&format!(
            "transfer {{\nto *\n}}\n{cached}\nk8s_external ex.test 192.0.2.0/24 {{\n{headless}\n}}\n\
             kubernetes cluster.local 10.0.0.0/8\nwhoami"
        ));
        fill(&mut random, &cluster);
        for view in View::ALL {
            // Long ago, so that the serials stay as they are.
            cluster.serial(view).store(1_600_000_000, std::sync::atomic::Ordering::Relaxed);
        }
        for origin in ["cluster.local.", "ex.test."] {
            let context = format!("seed {seed}, {origin}");
            compare(&server, origin, &asked(origin), &TYPES_ASKED, &context).await;
        }
        for (origin, net) in
            [("10.in-addr.arpa.", ["0.0", "1.0"].as_slice()), ("2.0.192.in-addr.arpa.", &[""])]
        {
            let numbers = (0..4).map(|number| number.to_string());
            let names: Vec<String> = net
                .iter()
                .flat_map(|net| {
                    let dot = if net.is_empty() { "" } else { "." };
                    let net = net.split('.').rev().collect::<Vec<_>>().join(".");
                    numbers.clone().map(move |number| format!("{number}{dot}{net}.{origin}"))
                })
                .collect();
            let context = format!("seed {seed}, {origin}");
            compare(&server, origin, &names, &[RecordType::PTR], &context).await;
        }
    }
}

#[tokio::test]
async fn hostname_is_an_alias_only_where_no_address_is() {
    let (server, cluster) =
        server("transfer {\nto *\n}\nk8s_external ex.test {\nheadless\n}\nkubernetes cluster.local");
    let set = |name: &str, externals: &[External]| {
        let addressing = Addressing::ClusterIps([[10, 0, 0, 1].into()].into());
        cluster.set_service(&key("a", name), Some(Service { addressing, ports: ports(1) }), externals);
    };
    let lb = || External::Host(host("lb.example.org"));
    set("both", &[External::Address([192, 0, 2, 1].into()), lb()]);
    set("elb", &[lb()]);
    for (name, headless) in [("db", true), ("both", false)] {
        let slice = slice(name, &["10.1.0.1"], ports(1));
        cluster.set_slice(&key("a", name), Some((name, slice)));
        if headless {
            let service = Service { addressing: Addressing::Headless, ports: ports(1) };
            cluster.set_service(&key("a", name), Some(service), &[]);
        }
    }
    list(&cluster);
    let found: BTreeSet<String> = shown(&server, "ex.test.").into_iter().collect();
    let expected = [
        "ex.test. 5 SOA",
        "ex.test. 5 NS",
        "ns1.dns.ex.test. 5 A",
        "both.a.ex.test. 5 A",
        "both.a.ex.test. 5 SRV",
        "_http._tcp.both.a.ex.test. 5 SRV",
        "_http._tcp.both.a.ex.test. 5 A",
        "elb.a.ex.test. 5 CNAME",
        "_http._tcp.elb.a.ex.test. 5 SRV",
        "db.a.ex.test. 5 A",
        "db.a.ex.test. 5 SRV",
        "_http._tcp.db.a.ex.test. 5 A",
        "_http._tcp.db.a.ex.test. 5 SRV",
        "db-0.db.a.ex.test. 5 A",
        "db-0.db.a.ex.test. 5 SRV",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[tokio::test]
async fn zone_is_served_when_all_is_listed_and_transferred_if_named() {
    let (server, cluster) =
        server("transfer cluster.local {\nto *\n}\nk8s_external ex.test\nkubernetes cluster.local b.c");
    let name = |text: &str| Name::from_ascii(text).unwrap();
    for other in ["ex.test.", "b.c.", "a.cluster.local."] {
        assert!(server.server.transferred_zone(&name(other), None).is_none(), "{other}");
    }
    let zone = server.server.transferred_zone(&name("CLUSTER.local."), None).unwrap();
    assert!(zone.serial().is_none() && zone.soa().is_none() && zone.state().is_none());
    list(&cluster);
    assert!(zone.serial().is_some());
    cluster.serial(View::Inside).store(1_700_000_000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(zone.state().unwrap().soa.serial(), zone.serial());
}

#[tokio::test]
async fn state_stays_as_it_is_while_objects_change() {
    let (server, cluster) = server("transfer {\nto *\n}\nkubernetes cluster.local");
    list(&cluster);
    let reply = server.reply("web.a.svc.cluster.local. A").await.unwrap();
    let expected = shown(&server, "cluster.local.");
    let zone = server.server.transferred_zone(&Name::from_ascii("cluster.local.").unwrap(), None).unwrap();
    let state = zone.state().unwrap();
    drop(zone.state());
    let validity = reply.validity.unwrap();
    assert!(!validity.is_outdated(), "a copy outdates nothing");
    let service = Service { addressing: Addressing::Headless, ports: ports(2) };
    cluster.set_service(&key("a", "web"), Some(service.clone()), &[]);
    assert!(validity.is_outdated());
    cluster.set_service(&key("a", "new"), Some(service), &[]);
    cluster.set_namespace("a", false);
    assert_eq!(1 + state.records.flatten().count(), expected.len());
    assert!(shown(&server, "cluster.local.").len() < expected.len());
}
