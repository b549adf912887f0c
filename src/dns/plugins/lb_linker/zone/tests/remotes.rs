use super::*;
use crate::model::owner::{Claims, Owner};

/// A zone with Services and Ingresses of the home cluster and of the cluster west, and its store.
fn west() -> (Zone, Store) {
    let sources = vec![Source::SERVICES, Source::INGRESSES];
    let remotes: Arc<[Arc<str>]> = ["west".into()].into();
    let options = ZoneOptions { sources, remotes: Arc::clone(&remotes), ..Default::default() };
    let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
    let mut zones = vec![zone.configured().clone()];
    zones.extend(zone.domains.iter().cloned());
    (zone, Store::new(OnGone::Kept).with_zones(zones))
}

fn of_west(kind: Source) -> Source {
    Source { cluster: Some("west".into()), ..kind }
}

/// Lets a name of west lead to an address.
fn observe(store: &Store, kind: Source, text: &str, key: &str, address: &str) {
    let link = link("west/shop", key, &[], &[address]);
    let link = with_ports(&["http/TCP/80"], link).link(None, false);
    let owner = Owner { source: of_west(kind), key: ServiceKey::new("west/shop", text) };
    store.observe(
        &owner,
        &Claims { created: 1, names: [text.into()].into(), ..Claims::default() },
        &Arc::new(link),
        Some(5),
    );
}

fn ask(zone: &Zone, store: &Store, text: &str, qtype: RecordType) -> String {
    let queried = name(&format!("{text}.lb.internal."));
    let answer = zone.answer(store, &queried, &zone.relative(&queried).unwrap(), qtype);
    let data: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
    if data.is_empty() { format!("{:?}", answer.rcode) } else { data.join(" ") }
}

fn list(store: &Store) {
    let zones = store.zones();
    for source in [of_west(Source::SERVICES), of_west(Source::INGRESSES), Source::INGRESSES] {
        store.set_listed(&source, &zones);
    }
}

#[test]
fn domain_of_a_remote_cluster_has_its_names_alone() {
    let (zone, store) = west();
    store.set_known(Input::Services);
    list(&store);
    store.apply(link("home", "web", &[], &["192.0.2.1"]));
    // This namespace has the cluster's name.
    store.apply(link("west", "web", &[], &["192.0.2.2"]));
    store.apply(asking(&["*.lb.internal", "x.west.lb.internal"], link("home", "any", &[], &["192.0.2.3"])));
    observe(&store, Source::SERVICES, "web.shop.west.lb.internal", "web", "192.0.2.4");
    observe(&store, Source::SERVICES, "web.dns.west.lb.internal", "other", "192.0.2.5");
    observe(&store, Source::SERVICES, "web.home.lb.internal", "thief", "192.0.2.66");
    for (text, qtype, expected) in [
        ("web.home", RecordType::A, "192.0.2.1"),
        ("any", RecordType::A, "192.0.2.3"),
        ("west", RecordType::A, "NoError"),
        ("web.west", RecordType::A, "NXDomain"),
        ("web-west", RecordType::A, "192.0.2.2"),
        ("x.west", RecordType::A, "NXDomain"),
        ("shop.west", RecordType::A, "NoError"),
        ("web.shop.west", RecordType::A, "192.0.2.4"),
        ("WEB.shop.West", RecordType::A, "192.0.2.4"),
        ("web.dns.west", RecordType::A, "192.0.2.5"),
        ("web-shop.west", RecordType::A, "NXDomain"),
        ("_http._tcp.web.shop.west", RecordType::SRV, "0 100 80 web.shop.west.lb.internal."),
        ("_tcp.web.shop.west", RecordType::SRV, "NoError"),
        ("_x._tcp.web.shop.west", RecordType::SRV, "NXDomain"),
        ("web.shop.west", RecordType::SRV, "0 100 80 web.shop.west.lb.internal."),
    ] {
        assert_eq!(ask(&zone, &store, text, qtype), expected, "{text} {qtype}");
    }
}

#[test]
fn unlisted_remote_cluster_matters_only_in_its_domain() {
    let (zone, store) = west();
    observe(&store, Source::SERVICES, "web.shop.west.lb.internal", "web", "192.0.2.4");
    assert_eq!(ask(&zone, &store, "web.shop.west", RecordType::A), "192.0.2.4");
    assert_eq!(ask(&zone, &store, "absent", RecordType::A), "ServFail");
    assert_eq!(ask(&zone, &store, "absent.west", RecordType::A), "ServFail");
    store.set_known(Input::Services);
    store.set_listed(&Source::INGRESSES, &store.zones());
    assert!(store.has_listed(&store.zones()));
    for (text, expected) in [
        ("absent", "NXDomain"),
        ("absent.west", "ServFail"),
        ("west", "ServFail"),
        ("web.shop.west", "192.0.2.4"),
        ("a.web.shop.west", "ServFail"),
    ] {
        assert_eq!(ask(&zone, &store, text, RecordType::A), expected, "{text}");
    }
    list(&store);
    assert_eq!(ask(&zone, &store, "absent.west", RecordType::A), "NXDomain");
}

#[test]
fn name_outside_of_the_domain_goes_to_the_home_cluster() {
    let (zone, store) = west();
    store.set_known(Input::Services);
    list(&store);
    observe(&store, Source::SERVICES, "free.lb.internal", "web", "192.0.2.4");
    assert_eq!(ask(&zone, &store, "free", RecordType::A), "192.0.2.4");
    let home = Owner { source: Source::INGRESSES, key: ServiceKey::new("shop", "free.lb.internal") };
    let claims = Claims { created: 9, names: ["free.lb.internal".into()].into(), ..Claims::default() };
    let target = link("shop", "web.ingress", &[], &["192.0.2.9"]).link(None, false);
    store.observe(&home, &claims, &Arc::new(target), Some(1));
    assert_eq!(ask(&zone, &store, "free", RecordType::A), "192.0.2.9");
    store.forget(home);
    assert_eq!(ask(&zone, &store, "free", RecordType::A), "192.0.2.4");
}
