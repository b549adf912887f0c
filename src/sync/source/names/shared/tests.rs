use hickory_proto::rr::Name;

use super::*;
use crate::model::hostname::Hostname;
use crate::model::link::Annotations;
use crate::model::owner::Source;

fn id(name: &str) -> ObjectId {
    ObjectId { key: ServiceKey::new("shop", name), kind: RegardingKind::Ingress }
}

fn name(host: &str) -> ServiceKey {
    ServiceKey::new("shop", host)
}

fn target(text: &str) -> Option<Target> {
    if text.is_empty() {
        return None;
    }
    let addresses: Option<Box<[IpAddr]>> = text.split(',').map(|ip| ip.parse().ok()).collect();
    let host = || Target::Hostname(Hostname::from(&Name::from_ascii(format!("{text}.")).unwrap()));
    Some(addresses.map_or_else(host, Target::Addresses))
}

fn observed(object: &str, created: i64, names: &[&str], behind: &str) -> Option<Observation> {
    let annotations = Annotations { ttl: u32::try_from(created).ok(), ..Annotations::default() };
    let link = Link {
        annotations,
        target: target(behind),
        ..Link::new(Source::INGRESSES.target_key(&id(object).key), object)
    };
    let link = Arc::new(link);
    let claim = |host: &&str| Claim { name: name(host), target: Arc::clone(&link) };
    Some(Observation::new(created, Uid::from(object), names.iter().map(claim).collect()))
}

fn shown(names: &mut SharedNames, host: &str) -> String {
    let Some(Behind { created, link, .. }) = names.behind(&name(host)) else {
        return "nothing".to_owned();
    };
    let target = match &link.target {
        Some(Target::Addresses(ips)) => ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        Some(host) => host.to_string(),
        None => "pending".to_owned(),
    };
    format!("{created} {target} {:?}", link.annotations.ttl)
}

/// A change of a Gateway reaches its routes one after the other.
#[test]
fn newest_version_of_a_target_counts_for_all_objects() {
    let mut names = SharedNames::default();
    let version = |ip: &str| Arc::new(Link { target: target(ip), ..Link::new(name("gw"), "") });
    let (before, now) = (version("192.0.2.1"), version("192.0.2.2"));
    let route =
        |namespace: &str| ObjectId { key: ServiceKey::new(namespace, "r"), kind: RegardingKind::HttpRoute };
    for namespace in ["a", "b"] {
        let claims = vec![Claim { name: name("x"), target: Arc::clone(&before) }];
        names.set(&route(namespace), Some(Observation::new(1, Uid::from("r"), claims)));
    }
    before.set_next(&now);
    assert_eq!(names.set_target(&route("a"), &now), [name("x")]);
    assert_eq!(shown(&mut names, "x"), "1 192.0.2.2 None");
    assert!(names.overruled(&name("x")).is_empty(), "both routes lead to the same target");
}

#[test]
fn addresses_are_united_and_settings_are_of_the_oldest() {
    let mut names = SharedNames::default();
    names.set(&id("b"), observed("b", 2, &["x"], "192.0.2.2,192.0.2.1"));
    assert_eq!(shown(&mut names, "x"), "2 192.0.2.2,192.0.2.1 Some(2)");
    names.set(&id("a"), observed("a", 3, &["x"], "192.0.2.1,192.0.2.3"));
    assert_eq!(shown(&mut names, "x"), "2 192.0.2.2,192.0.2.1,192.0.2.3 Some(2)");
    names.set(&id("c"), observed("c", 1, &["x", "y"], ""));
    assert_eq!(shown(&mut names, "x"), "1 192.0.2.2,192.0.2.1,192.0.2.3 Some(1)");
    assert_eq!(shown(&mut names, "y"), "1 pending Some(1)");
    assert_eq!(names.set(&id("c"), observed("c", 1, &["x", "y"], "")).names, [name("x"), name("y")]);
    assert_eq!(names.set(&id("c"), None).names, [name("x"), name("y")]);
    assert_eq!(shown(&mut names, "y"), "nothing");
    assert_eq!(names.asking(&name("x")).collect::<Vec<_>>(), [&id("b"), &id("a")]);
    assert_eq!(names.names().collect::<Vec<_>>(), [&name("x")]);
}

#[test]
fn load_balancers_share_no_name() {
    let mut names = SharedNames::default();
    let service =
        |name: &str| ObjectId { key: ServiceKey::new("west/shop", name), kind: RegardingKind::Service };
    let mut set = |object: &str, created, hosts: &[&str], behind: &str| {
        let link = Link { target: target(behind), ..Link::new(service(object).key, object) };
        let link = Arc::new(link);
        let claim =
            |host: &&str| Claim { name: ServiceKey::new("west/shop", host), target: Arc::clone(&link) };
        let now = Observation::new(created, Uid::from(object), hosts.iter().map(claim).collect());
        names.set(&service(object), Some(now));
    };
    set("a", 1, &["x.lb.internal", "b.shop.west.lb.internal"], "192.0.2.1");
    set("b", 2, &["b.shop.west.lb.internal", "x.lb.internal"], "192.0.2.2");
    for (host, expected, loser) in [("x", "192.0.2.1", "b"), ("b.shop.west", "192.0.2.2", "a")] {
        let name = ServiceKey::new("west/shop", &format!("{host}.lb.internal"));
        let link = names.behind(&name).unwrap().link;
        assert_eq!(
            (&link.target, link.key.name()),
            (&target(expected), if loser == "a" { "b" } else { "a" })
        );
        assert_eq!(names.overruled(&name), [service(loser)].into());
    }
}

#[test]
fn hostname_of_the_oldest_object_goes_before_addresses() {
    let mut names = SharedNames::default();
    names.set(&id("a"), observed("a", 1, &["x"], "192.0.2.1"));
    names.set(&id("b"), observed("b", 3, &["x"], "b.example"));
    assert_eq!(shown(&mut names, "x"), "1 b.example Some(1)");
    names.set(&id("c"), observed("c", 2, &["x"], "c.example"));
    assert_eq!(shown(&mut names, "x"), "1 c.example Some(1)");
    // Of objects of one age the first by name counts.
    names.set(&id("d"), observed("d", 1, &["x"], "d.example"));
    names.set(&id("0"), observed("0", 1, &["x"], "0.example"));
    assert_eq!(shown(&mut names, "x"), "1 0.example Some(1)");
}

#[test]
fn oldest_objects_and_a_number_of_addresses_count() {
    let mut names = SharedNames::default();
    for number in 0..1_000 {
        let object = format!("o{number}");
        names.set(&id(&object), observed(&object, number, &["x"], &format!("192.0.{}.1", number % 200)));
        names.behind(&name("x"));
    }
    let behind = names.behind(&name("x")).unwrap();
    let Some(Target::Addresses(addresses)) = &behind.link.target else { panic!("{behind:?}") };
    assert_eq!((addresses.len(), behind.cut), (MAX_SHARED, Some(id("o100"))));
    let many: Vec<String> = (0..60).map(|last| format!("192.0.2.{last}")).collect();
    let more: Vec<String> = (40..110).map(|last| format!("192.0.2.{last}")).collect();
    names.set(&id("a"), observed("a", 1, &["y"], &many.join(",")));
    names.set(&id("b"), observed("b", 2, &["y"], &more.join(",")));
    assert_eq!(names.behind(&name("y")).unwrap().cut, Some(id("b")));
}

#[test]
fn only_names_with_another_target_or_age_are_concerned() {
    let mut names = SharedNames::default();
    let target = Arc::new(Link::new(ServiceKey::new("shop", "a"), ""));
    let mut set = |created, hosts: &[&str], link: &Arc<Link>| {
        let claim = |host: &&str| Claim { name: name(host), target: Arc::clone(link) };
        let now = Observation::new(created, Uid::default(), hosts.iter().map(claim).collect());
        names.set(&id("a"), Some(now)).names
    };
    assert_eq!(set(1, &["x", "y"], &target), [name("x"), name("y")]);
    assert_eq!(set(1, &["x", "y"], &target), []);
    assert_eq!(set(1, &["x", "z"], &target), [name("y"), name("z")]);
    assert_eq!(set(2, &["x"], &target), [name("x"), name("z")]);
    assert_eq!(set(2, &["x"], &Arc::new(Link::clone(&target))), [name("x")]);
    assert_eq!(names.asking(&name("x")).count(), 1);
}

#[test]
fn younger_object_of_another_namespace_doesnt_count() {
    let mut names = SharedNames::default();
    names.set(&id("a"), observed("a", 1, &["x"], "192.0.2.1"));
    let thief = ObjectId { key: ServiceKey::new("evil", "a"), kind: RegardingKind::HttpRoute };
    names.set(&thief, observed("b", 2, &["x"], "evil.example"));
    names.set(&id("c"), observed("c", 3, &["x"], "192.0.2.2"));
    assert_eq!(shown(&mut names, "x"), "1 192.0.2.1,192.0.2.2 Some(1)");
    assert_eq!(names.overruled(&name("x")), [thief.clone()].into());
    // With the same target nothing changes.
    let shared = Arc::clone(&names.get(&id("a")).unwrap().claims[0].target);
    let claim = Claim { name: name("x"), target: shared };
    names.set(&thief, Some(Observation::new(2, Uid::default(), vec![claim])));
    assert!(names.overruled(&name("x")).is_empty());
    assert_eq!(shown(&mut names, "x"), "1 192.0.2.1,192.0.2.2 Some(1)");
}

#[test]
fn targets_of_one_object_for_a_name_are_united() {
    let mut names = SharedNames::default();
    let claims = [("x", "192.0.2.1"), ("y", "192.0.2.3"), ("x", "192.0.2.2")].map(|(host, behind)| Claim {
        name: name(host),
        target: Arc::new(Link { target: target(behind), ..Link::new(ServiceKey::new("shop", behind), "") }),
    });
    let concerned = names.set(&id("a"), Some(Observation::new(1, Uid::default(), claims.to_vec())));
    assert_eq!(concerned.names, [name("x"), name("y")]);
    assert_eq!(shown(&mut names, "x"), "1 192.0.2.1,192.0.2.2 None");
    assert_eq!(shown(&mut names, "y"), "1 192.0.2.3 None");
}

#[test]
fn newer_version_of_a_target_replaces_only_its_earlier_ones() {
    let mut names = SharedNames::default();
    names.set(&id("a"), observed("a", 1, &["x", "y"], "192.0.2.1"));
    let now = Link { target: target("192.0.2.2"), ..Link::new(ServiceKey::new("shop", "a.ingress"), "a") };
    let now = Arc::new(now);
    assert_eq!(names.set_target(&id("a"), &now), [name("x"), name("y")]);
    assert_eq!(shown(&mut names, "y"), "1 192.0.2.2 None");
    assert_eq!(names.set_target(&id("a"), &now), []);
    let other = Arc::new(Link::new(ServiceKey::new("shop", "b.ingress"), "a"));
    assert_eq!((names.set_target(&id("a"), &other), names.set_target(&id("b"), &other)), (vec![], vec![]));
}

#[test]
fn target_is_shared_where_one_object_decides() {
    let mut names = SharedNames::default();
    names.set(&id("a"), observed("a", 1, &["x", "y", "z"], "192.0.2.1"));
    names.set(&id("b"), observed("b", 2, &["y"], "192.0.2.1"));
    names.set(&id("c"), observed("c", 2, &["z"], "192.0.2.2"));
    let link = Arc::clone(&names.get(&id("a")).unwrap().claims[0].target);
    let mut behind = |host: &str| names.behind(&name(host)).unwrap().link;
    assert!(Arc::ptr_eq(&behind("x"), &link));
    assert!(Arc::ptr_eq(&behind("y"), &link), "equal targets");
    let united = behind("z");
    assert_eq!(
        [&*link.key.to_string(), &*united.key.to_string()],
        ["shop/a.ingress", "shop/a._shared.ingress"]
    );
    assert!(Arc::ptr_eq(&behind("z"), &united), "nothing has changed");
}
