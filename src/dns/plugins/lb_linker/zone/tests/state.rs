//! States of zones for transfers, compared with the answers to queries.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::snapshot::{links, waiting};
use super::*;
use crate::dns::chain::zone_state::{TransferredZone, ZoneRecord};
use crate::dns::message::query::whole_wire_name;
use crate::dns::plugins::lb_linker::zone::state::TransferredLinkZone;
use crate::dns::zone::Zone as Secondary;
use crate::model::owner::{Claims, Owner};
use crate::store::change_time::unix_time;

const TYPES: [RecordType; 9] = [
    RecordType::CNAME,
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::TXT,
    RecordType::MX,
    RecordType::NS,
    RecordType::SOA,
    RecordType::PTR,
];

/// Lets the last change be long ago, so that the serial stays as it is.
fn settle(store: &Store) {
    store.last_change().store(1_600_000_000, Ordering::Relaxed);
}

/// Returns a zone that is transferred.
fn transferred(mut zone: Zone, store: &Arc<Store>) -> TransferredLinkZone {
    zone.set_serial(store.change_serial());
    let (all, store) = ([zone.clone()].into(), Arc::clone(store));
    TransferredLinkZone { zone, all, store, policy: Arc::default(), copy: Arc::default() }
}

fn records(zone: &TransferredLinkZone) -> Vec<ZoneRecord> {
    let state = zone.state().expect("the zone is served");
    let records: Vec<ZoneRecord> = std::iter::once(state.soa).chain(state.records.flatten()).collect();
    let distinct: BTreeSet<String> = records.iter().map(|record| format!("{record:?}")).collect();
    assert_eq!(records.len(), distinct.len(), "each record is there once");
    records
}

fn domain(wire: &[u8]) -> String {
    names::text(&wire[..wire.len() - 1]) + "."
}

/// Returns a secondary server's zone with these records.
fn secondary(records: &[ZoneRecord], origin: &Name) -> Secondary {
    let mut file = String::new();
    for ZoneRecord { owner, rtype, ttl, data } in records {
        let octets: String = data.iter().map(|octet| format!("{octet:02x}")).collect();
        writeln!(file, "{} {ttl} IN TYPE{rtype} \\# {} {octets}", domain(owner), data.len()).unwrap();
    }
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), &file).unwrap();
    Secondary::read(path.path(), &whole_wire_name(origin)).0.unwrap_or_else(|why| panic!("{why}\n{file}"))
}

type Shown = BTreeSet<(u16, u32, Vec<u8>)>;

/// Returns what a secondary server has at a name itself, and whether the name exists.
fn of_secondary(zone: &Secondary, name: &Name, qtype: RecordType) -> (bool, Shown) {
    let wire = whole_wire_name(name);
    let found = zone.look_up(&wire, qtype, false);
    let mut shown = Shown::new();
    for part in found.sections[0].iter().filter(|part| *part.owner == *wire) {
        part.write_to(|data| shown.insert((part.rtype, part.ttl, data.to_vec())));
    }
    (!shown.is_empty() || found.rcode == ResponseCode::NoError, shown)
}

/// Returns the same of the answer to a query.
fn of_query(zone: &TransferredLinkZone, name: &Name, qtype: RecordType) -> (bool, Shown) {
    let relative = zone.zone.relative(name).unwrap();
    let mut answer = zone.zone.answer(&zone.store, name, &relative, qtype);
    // The plugin clears such an answer.
    answer.answers.retain(|_| answer.link.is_none() || zone.allows(&answer.hops));
    let record = |record: &Record| ZoneRecord::try_from(record).unwrap();
    let shown = answer.answers.iter().map(record).map(|it| (it.rtype, it.ttl, it.data.into())).collect();
    (answer.rcode == ResponseCode::NoError, shown)
}

const PARTS: [&str; 4] = ["a", "a-a", "b", "west"];
const HOSTS: [&str; 12] =
    ["a.a", "a-a-a", "x", "x.a", "*.a", "*.x", "*", "y.x.a", "_t.a", "_web._tcp.a.a", "a.west", "*.b.west"];
const ASKED: [&str; 14] = [
    "",
    "a",
    "a-b",
    "z.a",
    "z.x",
    "z",
    "q.z.x.a",
    "dns",
    "ns.dns",
    "_tcp.a.a",
    "_web._tcp.a.a",
    "_web._tcp.b.b",
    "west",
    "b.b.west",
];

/// Fills a store with random Services, and with names of Ingresses and of a remote cluster.
fn fill(random: &mut StdRng, store: &Store, zones: &[owner::Zone]) {
    let part = |random: &mut StdRng| *PARTS.choose(random).unwrap();
    let hosts = |random: &mut StdRng| -> Vec<String> {
        let own = HOSTS.iter().filter(|_| random.random_bool(0.1));
        own.map(|host| format!("{host}.lb.internal")).collect()
    };
    for _ in 0..random.random_range(0..12) {
        let (namespace, service) = (part(random), part(random));
        let targets: [(&[&str], &[&str]); 5] = [
            (&["t.example."], &[]),
            (&["a.b.lb.internal."], &[]),
            (&[], &["192.0.2.1", "2001:db8::1"]),
            (&[], &["192.0.2.2"]),
            (&[], &[]),
        ];
        let (hostnames, addresses) = targets.choose(random).unwrap();
        let names = hosts(random);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let link = asking(&names, link(namespace, service, hostnames, addresses));
        let link = with_ports(&["web/TCP/80", "/UDP/53", "Dns/UDP/53"], link);
        store.apply(if random.random_bool(0.3) { with_ttl(7, link) } else { link });
    }
    for number in 0..random.random_range(0..4) {
        let source = match number {
            3 => Source { cluster: Some("west".into()), ..Source::SERVICES },
            _ => Source::INGRESSES,
        };
        let namespace = if number == 3 { "west/a" } else { "a" };
        let key = ServiceKey::new(namespace, &format!("o{number}"));
        let names = hosts(random).into_iter().map(Arc::from).collect();
        let target = Some(Target::Addresses(ips(&["192.0.2.9"]).into()));
        let target = Arc::new(Link { target, ..Link::new(key.clone(), "") });
        let claims = Claims { created: number, names, listed: None };
        store.observe(&Owner { source, key }, &claims, &target, Some(9));
    }
    for source in zones.iter().flat_map(|zone| zone.sources.clone()).collect::<BTreeSet<_>>() {
        store.set_listed(&source, zones);
    }
}

#[test]
fn secondary_has_each_record_that_queries_get_and_no_other() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let options = ZoneOptions {
            addresses: ips(&["192.0.2.53"]),
            sources: vec![Source::SERVICES, Source::INGRESSES],
            remotes: [Arc::from("west")].into(),
            ..Default::default()
        };
        let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
        let mut zones = vec![zone.configured().clone()];
        zones.extend(zone.domains.iter().cloned());
        let store = Arc::new(Store::new(OnGone::Kept).with_zones(zones.clone()));
        fill(&mut random, &store, &zones);
        store.set_known(Input::Services);
        settle(&store);
        let zone = transferred(zone, &store);
        let records = records(&zone);
        let secondary = secondary(&records, zone.zone.origin());
        let dotted = PARTS.iter().flat_map(|a| PARTS.map(|b| format!("{a}.{b}")));
        let asked = ASKED.into_iter().chain(HOSTS).map(str::to_owned).chain(dotted);
        let is_wild = records.iter().any(|record| record.owner.starts_with(b"\x01*"));
        for below in asked {
            let name = name(format!("{below}.lb.internal.").trim_start_matches('.'));
            for qtype in TYPES {
                let (exists, expected) = of_query(&zone, &name, qtype);
                let (has, found) = of_secondary(&secondary, &name, qtype);
                let place = format!("seed {seed}: {name} {qtype}");
                // A wildcard reaches further at a secondary server: names without records are no names there.
                if !expected.is_empty() || !is_wild {
                    assert_eq!(found, expected, "{place}");
                    assert!(exists || !has, "{place}");
                }
            }
        }
        for record in &records {
            let name = name(&domain(&record.owner));
            let (_, shown) = of_query(&zone, &name, record.rtype.into());
            let own = (record.rtype, record.ttl, record.data.to_vec());
            assert!(shown.contains(&own), "seed {seed}: {name} {own:?} {shown:?}");
        }
    }
}

fn shown(zone: &TransferredLinkZone) -> Vec<String> {
    let show = |ZoneRecord { owner, rtype, ttl, .. }: ZoneRecord| {
        format!("{} {ttl} {}", domain(&owner).replace("lb.internal.", "@"), RecordType::from(rtype))
    };
    records(zone).into_iter().map(show).collect()
}

#[test]
fn state_has_all_names_of_a_zone() {
    let store = store_of(vec![
        asking(&["*.y.lb.internal", "a.example"], link("a", "host", &["a.example."], &[])),
        with_ports(&["web/TCP/80"], link("a", "ips", &[], &["192.0.2.1", "2001:db8::1"])),
        link("a", "pending", &[], &[]),
    ]);
    let zone = transferred(zone(), &Arc::new(store));
    let found: BTreeSet<String> = shown(&zone).into_iter().collect();
    assert_eq!(
        found,
        [
            "@ 5 SOA",
            "@ 5 NS",
            "ns.dns.@ 5 A",
            "ns.dns.@ 5 AAAA",
            "*.y.@ 5 CNAME",
            "host.a.@ 5 CNAME",
            "ips.a.@ 5 A",
            "ips.a.@ 5 AAAA",
            "ips.a.@ 5 SRV",
            "_web._tcp.ips.a.@ 5 SRV",
            "ips-a.@ 5 A",
            "ips-a.@ 5 AAAA",
            "ips-a.@ 5 SRV",
            "host-a.@ 5 CNAME",
        ]
        .map(str::to_owned)
        .into()
    );
}

#[test]
fn state_stays_as_it_is_while_the_zone_changes() {
    let store = Arc::new(store_of(vec![link("a", "web", &[], &["192.0.2.1"])]));
    let gateway = ServiceKey::new("a", "g.gateway");
    let at = |ip: &str| {
        let target = Some(Target::Addresses(ips(&[ip]).into()));
        Arc::new(Link { target, ..Link::new(gateway.clone(), "") })
    };
    let owner = Owner { source: Source::GATEWAYS, key: ServiceKey::new("a", "route") };
    let options = ZoneOptions { sources: vec![Source::SERVICES, Source::GATEWAYS], ..Default::default() };
    let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
    store.set_zones([zone.configured().clone()]);
    store.set_listed(&Source::GATEWAYS, &[zone.configured().clone()]);
    let claims = Claims { names: ["app.lb.internal".into()].into(), ..Default::default() };
    let first = at("192.0.2.2");
    store.observe(&owner, &claims, &first, None);
    let zone = transferred(zone, &store);
    let expected = shown(&zone);
    let state = zone.state().unwrap();
    store.supersede(&first, &at("2001:db8::2"));
    store.apply(link("a", "web", &["a.example."], &[]));
    store.apply(link("a", "new", &["a.example."], &[]));
    let number = 1 + state.records.flatten().count();
    assert_eq!(number, expected.len());
    assert_ne!(shown(&zone), expected);
}

#[test]
fn reverse_zone_has_the_pointers() {
    let links =
        [("one", "192.0.2.1"), ("two", "192.0.2.2"), ("other", "198.51.100.1"), ("six", "2001:db8::6")];
    let store = store_of(links.iter().map(|(name, ip)| link("a", name, &[], &[ip])).collect());
    let store = Arc::new(store);
    for (net, expected) in [
        (
            "192.0.2.0/24",
            &[
                "2.0.192.in-addr.arpa. SOA",
                "2.0.192.in-addr.arpa. NS",
                "1.2.0.192.in-addr.arpa. PTR",
                "2.2.0.192.in-addr.arpa. PTR",
            ][..],
        ),
        (
            "192.0.2.1/32",
            &["1.2.0.192.in-addr.arpa. SOA", "1.2.0.192.in-addr.arpa. NS", "1.2.0.192.in-addr.arpa. PTR"],
        ),
        ("10.0.0.0/8", &["10.in-addr.arpa. SOA", "10.in-addr.arpa. NS"]),
    ] {
        let [zone] = &zone().reverse(net.parse().unwrap())[..] else { panic!("{net}") };
        let zone = transferred(zone.clone(), &store);
        let found: Vec<String> = records(&zone)
            .iter()
            .map(|it| format!("{} {}", domain(&it.owner), RecordType::from(it.rtype)))
            .collect();
        assert_eq!(found, expected, "{net}");
    }
}

#[test]
fn services_of_closed_namespaces_are_no_hosts_of_srv_records() {
    let store = store_of(vec![
        with_ports(&["web/TCP/80"], link("a", "web", &["db.b.lb.internal."], &[])),
        link("b", "db", &[], &["192.0.2.1"]),
    ]);
    let found = shown(&transferred(zone(), &Arc::new(store)));
    assert!(found.contains(&"web.a.@ 5 CNAME".to_owned()), "{found:?}");
    assert!(!found.iter().any(|record| record.ends_with("SRV")), "{found:?}");
}

#[test]
fn zone_is_whole_when_all_of_it_is_known() {
    let (zone, store) = (zone(), Arc::new(Store::new(OnGone::Kept).with_zones([zone().origin()])));
    let zone = transferred(zone, &store);
    assert!(zone.serial().is_none() && zone.soa().is_none() && zone.state().is_none());
    store.set_known(Input::Services);
    settle(&store);
    assert_eq!(zone.serial(), zone.soa().unwrap().serial());
    assert_eq!(shown(&zone), ["@ 5 SOA", "@ 5 NS", "ns.dns.@ 5 A", "ns.dns.@ 5 AAAA"]);
    store.update_unknown_namespaces(|names| {
        names.insert("a".into());
    });
    assert!(zone.state().is_none());
}

#[test]
fn zone_is_not_whole_while_a_source_is_unlisted() {
    let options = ZoneOptions {
        sources: vec![Source::SERVICES, Source::INGRESSES],
        remotes: [Arc::from("west")].into(),
        ..Default::default()
    };
    let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
    let mut zones = vec![zone.configured().clone()];
    zones.extend(zone.domains.iter().cloned());
    let store = Arc::new(Store::new(OnGone::Kept).with_zones(zones.clone()));
    store.set_known(Input::Services);
    let zone = transferred(zone, &store);
    let of_west = |kind: Source| Source { cluster: Some("west".into()), ..kind };
    for source in [Source::INGRESSES, of_west(Source::SERVICES), of_west(Source::INGRESSES)] {
        assert!(zone.state().is_none(), "without {source:?}");
        store.set_listed(&source, &zones);
    }
    assert!(zone.state().is_some());
}

#[test]
fn snapshot_is_transferred_with_its_serial_until_the_first_list() {
    let (store, snapshot) = waiting(links());
    snapshot.store.last_change().store(1_700_000_000, Ordering::Relaxed);
    // It was set before, with the time of the restoring.
    store.set_fallback(None);
    store.last_change().store(0, Ordering::Relaxed);
    assert!(store.set_fallback(Some(snapshot)));
    let store = Arc::new(store);
    let zone = transferred(zone(), &store);
    assert_eq!(zone.serial(), Some(1_700_000_000));
    let found = shown(&zone);
    for record in ["host.default.@ 5 CNAME", "x.@ 2 A", "*.y.@ 2 A", "_web._tcp.ips.default.@ 5 SRV"] {
        assert!(found.contains(&record.to_owned()), "{record}: {found:?}");
    }
    assert!(!found.iter().any(|record| record.starts_with("pending")), "{found:?}");
    store.set_known(Input::Services);
    assert!(zone.serial() > Some(1_700_000_000));
    assert_eq!(shown(&zone).len(), 4);
}

#[test]
fn serial_of_a_snapshot_ahead_of_the_clock_goes_on() {
    let (store, snapshot) = waiting(links());
    let ahead = unix_time() + 1000;
    snapshot.store.last_change().store(ahead, Ordering::Relaxed);
    store.set_fallback(None);
    assert!(store.set_fallback(Some(snapshot)));
    let store = Arc::new(store);
    let zone = transferred(zone(), &store);
    assert_eq!(zone.serial().map(u64::from), Some(ahead));
    store.set_known(Input::Services);
    assert!(store.last_change().load(Ordering::Relaxed) > ahead);
}

#[test]
fn serial_rises_with_each_change_and_is_that_of_answers() {
    let store = Arc::new(store_of(vec![link("a", "web", &[], &["192.0.2.1"])]));
    let zone = transferred(zone(), &store);
    let before = zone.serial().unwrap();
    store.last_change().store(u64::from(before) - 100, Ordering::Relaxed);
    store.apply(link("a", "web", &[], &["192.0.2.2"]));
    let changed = store.last_change().load(Ordering::Relaxed);
    assert!(changed >= u64::from(before), "{changed} {before}");
    store.apply(link("a", "web", &[], &["192.0.2.2"]));
    let soa = ask_in(&zone.zone, &store, "lb.internal. SOA");
    let serial = zone.zone.serial().unwrap().shown().load(Ordering::Relaxed);
    assert!(soa.contains(&format!(" {serial} 7200 ")), "{soa} {serial}");
    assert!((u64::from(before)..=changed).contains(&serial), "{before} {serial} {changed}");
}
