use hickory_proto::rr::Name;
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::*;
use crate::captured_log::CapturedLog;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{LinkChange, Target};
use crate::model::owner::{Claims, K8sGateway, Owner, Zone};
use crate::model::target_policy::TargetPolicy;
use crate::store::{OnGone, Store};
use crate::sync::election::Leadership;
use crate::sync::events::Recorder;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::source::names::source::Names;
use crate::sync::source::selection::Selection;
use crate::sync::test_support;

/// The state of routes in a zone, with the store.
struct World {
    store: Arc<Store>,
    names: Names<Gateways>,
    feed: broadcast::Receiver<Arc<[LinkChange]>>,
    link_reporter: LinkReporter,
}

impl World {
    fn new(selection: Selection) -> Self {
        let origin = Name::from_ascii("lb.internal.").unwrap();
        let zone = Zone { sources: vec![Source::SERVICES, Source::GATEWAYS], ..(&origin).into() };
        let store = Arc::new(Store::new(OnGone::Dropped).with_zones([zone]));
        store.set_known(crate::store::Input::Services);
        let targets = TargetPolicy { zones: vec![origin], ..Default::default() };
        let policy = HostnamePolicy { targets, ..Default::default() };
        let recorder =
            Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
        let link_reporter = LinkReporter { recorder, ..test_support::link_reporter() };
        let selection = Arc::new(selection);
        let mut names =
            Names::new(Gateways::default(), None, Arc::clone(&store), selection, link_reporter.clone());
        names.set_rules(store.zones(), Arc::new(policy));
        Self { feed: store.subscribe(), store, names, link_reporter }
    }

    fn listed() -> Self {
        let mut world = Self::new(Selection::default());
        world.names.end_lists();
        world
    }

    fn take(&mut self, object: Object) {
        self.names.take(object);
        self.names.state.publish();
        self.settle();
    }

    fn gateway(&mut self, key: &str, addresses: &Value) {
        self.take(gateway(key, addresses));
    }

    fn route(&mut self, name: &str, hosts: &[&str], annotations: &Value) {
        self.take(route(name, hosts, &json!({"name": "gw", "namespace": "infra"}), annotations));
    }

    fn remove(&mut self, kind: RegardingKind, key: &str) {
        self.names.remove(&id(kind, key));
        self.names.state.publish();
        self.settle();
    }

    fn settle(&mut self) {
        while self.names.has_work() {
            self.names.work();
        }
        while let Ok(changes) = self.feed.try_recv() {
            self.names.on_changes(&changes);
        }
    }

    fn link(&self, host: &str) -> Option<Arc<Link>> {
        self.store.link_of_host(&Name::from_ascii(format!("{host}.lb.internal.")).unwrap())
    }

    fn answer(&self, host: &str) -> String {
        match self.link(host) {
            None => "nothing".to_owned(),
            Some(link) => link.target.as_ref().map_or_else(|| "pending".to_owned(), Target::to_string),
        }
    }

    fn events(&self) -> Vec<String> {
        let queued = self.link_reporter.recorder.take_queued().into_iter();
        queued.map(|(reason, note)| format!("{reason}: {note}")).collect()
    }
}

fn id(kind: RegardingKind, key: &str) -> ObjectId {
    let (namespace, name) = key.split_once('/').unwrap();
    ObjectId { key: ServiceKey::new(namespace, name), kind }
}

fn gateway(key: &str, addresses: &Value) -> Object {
    let (namespace, name) = key.split_once('/').unwrap();
    let all = json!({"namespaces": {"from": "All"}});
    let listeners = json!([
        {"name": "web", "port": 80, "protocol": "HTTP", "allowedRoutes": all},
        {"name": "tls", "port": 443, "protocol": "HTTPS", "allowedRoutes": all},
    ]);
    let object = json!({
        "metadata": {"namespace": namespace, "name": name, "uid": key},
        "spec": {"gatewayClassName": "envoy", "listeners": listeners},
        "status": {"addresses": addresses},
    });
    Object::Gateway(serde_json::from_value(object).unwrap())
}

/// Returns a route in namespace `shop` that this parent has accepted.
fn route(name: &str, hosts: &[&str], parent: &Value, annotations: &Value) -> Object {
    let hosts: Vec<String> = hosts.iter().map(|host| format!("{host}.lb.internal")).collect();
    let object = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name, "annotations": annotations},
        "spec": {"parentRefs": [parent], "hostnames": hosts},
        "status": {"parents": [
            {"parentRef": parent, "conditions": [{"type": "Accepted", "status": "True"}]}]},
    });
    Object::Route(RegardingKind::HttpRoute, serde_json::from_value(object).unwrap())
}

fn ip(last: u8) -> Value {
    json!([{"type": "IPAddress", "value": format!("192.0.2.{last}")}])
}

#[test]
fn target_is_the_gateways_addresses_and_hostnames() {
    let mut world = World::listed();
    world.route("web", &["a.shop"], &json!({}));
    for (addresses, expected) in [
        (json!([{"type": "example.com/own", "value": "192.0.2.9"}]), "pending"),
        (
            json!([{"value": "192.0.2.1"}, {"type": "IPAddress", "value": "2001:db8::1"}]),
            "192.0.2.1,2001:db8::1",
        ),
        (json!([{"value": "192.0.2.1"}, {"type": "Hostname", "value": "gw.example.com"}]), "gw.example.com"),
        (json!(null), "gw.example.com"),
        (ip(2), "192.0.2.2"),
        (json!([{"value": "127.0.0.1"}]), "192.0.2.2"),
    ] {
        world.gateway("infra/gw", &addresses);
        assert_eq!(world.answer("a.shop"), expected, "{addresses}");
    }
    let events = world.events();
    let reasons: Vec<&str> = events.iter().filter_map(|event| event.split(':').next()).collect();
    assert_eq!(reasons, ["TargetStale", "TargetRefused", "TargetStale"], "{events:?}");
}

#[test]
fn names_of_5000_routes_follow_with_one_log_line() {
    let mut world = World::new(Selection::default());
    world.names.take(gateway("infra/gw", &ip(1)));
    for number in 0..5_000 {
        let hosts = [&*format!("a{number}.shop"), &*format!("b{number}.shop")];
        let object =
            route(&format!("r{number}"), &hosts, &json!({"name": "gw", "namespace": "infra"}), &json!({}));
        world.names.take(object);
    }
    world.names.end_lists();
    let (log, _logging) = CapturedLog::start(tracing::Level::INFO);
    assert_eq!(world.answer("b4999.shop"), "192.0.2.1");
    // Several changes before the routes have their turns are one for them.
    for last in 2..5 {
        world.names.take(gateway("infra/gw", &ip(last)));
    }
    assert_eq!(world.names.source.waiting.len(), 5_000);
    world.settle();
    let links: Vec<Arc<Link>> =
        (0..5_000).map(|number| world.link(&format!("a{number}.shop")).unwrap()).collect();
    assert!(links.iter().all(|link| Arc::ptr_eq(link, &links[0])), "they share one target");
    assert_eq!(world.answer("b0.shop"), "192.0.2.4");
    let lines = log.text();
    assert_eq!(lines.lines().count(), 3, "one line for each change: {lines}");
    assert!(lines.contains("Gateway infra/gw: 192.0.2.3 → 192.0.2.4"), "{lines}");
}

#[test]
fn route_may_come_before_its_gateway() {
    let mut world = World::new(Selection::default());
    world.route("web", &["a.shop"], &json!({}));
    assert!(!world.names.has_work());
    world.gateway("infra/gw", &ip(1));
    assert_eq!(world.answer("a.shop"), "nothing", "not everything is listed");
    world.names.end_lists();
    assert_eq!(world.answer("a.shop"), "192.0.2.1");
    world.route("next", &["b.shop"], &json!({}));
    assert_eq!(world.answer("b.shop"), "192.0.2.1");
    let other = json!({"name": "gw", "namespace": "other"});
    world.take(route("other", &["c.shop"], &other, &json!({})));
    assert_eq!(world.answer("c.shop"), "nothing");
    world.gateway("other/gw", &ip(2));
    assert_eq!(world.answer("c.shop"), "192.0.2.2");
}

#[test]
fn names_end_with_their_gateway_or_route() {
    let mut world = World::listed();
    world.gateway("infra/gw", &ip(1));
    world.route("one", &["a.shop"], &json!({}));
    world.route("two", &["b.shop"], &json!({"linker.hsj.com/ttl": "60"}));
    world.remove(RegardingKind::HttpRoute, "shop/one");
    assert_eq!([world.answer("a.shop"), world.answer("b.shop")], ["nothing", "192.0.2.1"]);
    world.remove(RegardingKind::Gateway, "infra/gw");
    assert_eq!(world.answer("b.shop"), "nothing");
    world.gateway("infra/gw", &json!(null));
    assert_eq!(world.answer("b.shop"), "pending", "it has no target of its predecessor");
    world.remove(RegardingKind::HttpRoute, "shop/two");
    assert!(world.names.source.children.is_empty() && world.names.source.waiting.is_empty());
}

#[test]
fn settings_of_a_route_are_its_own() {
    let mut world = World::listed();
    world.gateway("infra/gw", &ip(1));
    world.route(
        "one",
        &["a.shop"],
        &json!({"linker.hsj.com/ttl": "60", "linker.hsj.com/allow-from": "bank"}),
    );
    world.route("two", &["b.shop"], &json!({}));
    let (own, plain) = (world.link("a.shop").unwrap(), world.link("b.shop").unwrap());
    assert_eq!(
        (own.annotations.ttl, own.annotations.allows("bank"), plain.annotations.ttl),
        (Some(60), true, None)
    );
    assert_eq!(own.key, ServiceKey::new("infra", "gw._httproute.shop.one.gateway"));
    assert_eq!(plain.key, ServiceKey::new("infra", "gw.gateway"));
    world.gateway("infra/gw", &ip(2));
    assert_eq!([world.answer("a.shop"), world.answer("b.shop")], ["192.0.2.2", "192.0.2.2"]);
    assert!(own.is_outdated() && plain.is_outdated());
    let own = world.link("a.shop").unwrap();
    world.route(
        "one",
        &["a.shop"],
        &json!({"linker.hsj.com/ttl": "60", "linker.hsj.com/allow-from": "bank"}),
    );
    assert!(Arc::ptr_eq(&own, &world.link("a.shop").unwrap()), "nothing has changed");
    world.route("one", &["a.shop"], &json!({}));
    assert_eq!(world.link("a.shop").unwrap().key, plain.key);
}

#[test]
fn routes_of_a_listener_set_follow_it_and_its_gateway() {
    let mut world = World::listed();
    let set = |accepted: &str, hostname: &str| {
        let object = json!({
            "metadata": {"namespace": "shop", "name": "set"},
            "spec": {"parentRef": {"name": "gw", "namespace": "infra"},
                "listeners": [{"name": "web", "port": 80, "protocol": "HTTP", "hostname": hostname}]},
            "status": {"conditions": [{"type": "Accepted", "status": accepted}]},
        });
        Object::ListenerSet(serde_json::from_value(object).unwrap())
    };
    world.take(route("web", &["a.shop"], &json!({"kind": "ListenerSet", "name": "set"}), &json!({})));
    world.gateway("infra/gw", &ip(1));
    world.take(set("Unknown", "*.shop.lb.internal"));
    assert_eq!(world.answer("a.shop"), "nothing");
    world.take(set("True", "*.shop.lb.internal"));
    assert_eq!(world.answer("a.shop"), "192.0.2.1");
    world.gateway("infra/gw", &ip(2));
    assert_eq!(world.answer("a.shop"), "192.0.2.2");
    world.take(set("True", "b.shop.lb.internal"));
    assert_eq!(world.answer("a.shop"), "nothing");
    world.take(set("True", ""));
    world.remove(RegardingKind::ListenerSet, "shop/set");
    assert_eq!(world.answer("a.shop"), "nothing");
}

#[test]
fn gateway_in_an_unwatched_namespace_is_told_once() {
    let namespaces = ["shop".to_owned()].into();
    let mut world = World::new(Selection { namespaces, ..Selection::default() });
    world.names.end_lists();
    for _ in 0..2 {
        world.route("web", &["a.shop"], &json!({}));
    }
    let expected = "TargetRefused: the parent \"Gateway infra/gw\" isn't served: --watch-namespaces doesn't have its \
                    namespace";
    assert_eq!(world.events(), [expected]);
}

#[test]
fn routes_opt_in_or_out_but_not_gateways() {
    let managed = |value: &str| json!({"linker.hsj.com/managed": value});
    for (annotated_only, annotations, is_served) in
        [(false, managed("false"), false), (true, json!({}), false), (true, managed("true"), true)]
    {
        let mut world = World::new(Selection { annotated_only, ..Selection::default() });
        world.names.end_lists();
        world.gateway("infra/gw", &ip(1));
        world.route("web", &["a.shop"], &annotations);
        assert_eq!(world.answer("a.shop") == "192.0.2.1", is_served, "{annotated_only} {annotations}");
    }
}

#[test]
fn refused_names_are_told_and_not_served() {
    let mut world = World::listed();
    world.gateway("infra/gw", &ip(1));
    world.route("web", &["a.shop", "a.bank"], &json!({}));
    let events = world.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].starts_with("HostnameRefused: the host \"a.bank.lb.internal\" isn't served"),
        "{events:?}"
    );
    assert_eq!([world.answer("a.shop"), world.answer("a.bank")], ["192.0.2.1", "nothing"]);
}

#[test]
fn gateway_with_a_hostname_of_our_zones_is_checked_again() {
    let mut world = World::listed();
    world.gateway("infra/gw", &json!([{"type": "Hostname", "value": "lb.infra.lb.internal"}]));
    world.route("web", &["a.shop"], &json!({}));
    assert_eq!(world.answer("a.shop"), "lb.infra.lb.internal", "its namespace may have the name");
    let next = json!({"name": "next", "namespace": "shop"});
    world.gateway("shop/next", &json!([{"type": "Hostname", "value": "a.shop.lb.internal"}]));
    world.take(route("next", &["b.shop"], &next, &json!({})));
    assert_eq!(world.answer("b.shop"), "pending", "the name belongs to namespace infra");
    assert!(world.events()[0].contains("allow-from"));
    world.route("web", &["a.shop"], &json!({"linker.hsj.com/allow-from": "shop"}));
    assert!(world.names.state.recheck_at.is_some());
    world.names.recheck();
    world.names.state.publish();
    world.settle();
    assert_eq!(world.answer("b.shop"), "a.shop.lb.internal");
}

#[test]
fn route_with_gateways_in_two_namespaces_is_told_which_counts() {
    let mut world = World::listed();
    world.gateway("a/gw", &ip(1));
    world.gateway("b/gw", &ip(2));
    let parents = ["a", "b"].map(|namespace| json!({"name": "gw", "namespace": namespace}));
    let Object::Route(kind, first) = route("web", &["x.shop"], &parents[0], &json!({})) else { panic!() };
    let Object::Route(_, second) = route("web", &["x.shop"], &parents[1], &json!({})) else { panic!() };
    let mut both = first;
    both.spec.parent_refs.extend(second.spec.parent_refs);
    both.status.parents.extend(second.status.parents);
    world.take(Object::Route(kind, both));
    assert_eq!(world.answer("x.shop"), "192.0.2.1");
    let expected = "Conflict: of its parents in several namespaces, those of one are behind DNS names: \
                    x.shop.lb.internal";
    assert_eq!(world.events(), [expected]);
}

#[test]
fn changed_rules_apply_to_all_routes() {
    let mut world = World::listed();
    world.gateway("infra/gw", &ip(1));
    world.route("web", &["a.shop", "a.bank"], &json!({}));
    let hostname_namespaces = ["shop".to_owned()].into();
    let policy =
        HostnamePolicy { hostname_namespaces, ..HostnamePolicy::clone(&world.names.state.rules.policy) };
    world.names.set_rules(world.store.zones(), Arc::new(policy));
    world.names.end_lists();
    assert_eq!([world.answer("a.shop"), world.answer("a.bank")], ["192.0.2.1", "192.0.2.1"]);
}

#[test]
fn annotated_target_takes_the_place_of_addresses() {
    let mut world = World::listed();
    let annotated = |mut object: Value, target: Option<&str>| {
        object["metadata"]["annotations"] =
            target.map_or_else(|| json!({}), |target| json!({"linker.hsj.com/target": target}));
        object
    };
    let gateway = |target: Option<&str>| {
        let listeners = json!([{"name": "web", "port": 80, "protocol": "HTTP",
            "allowedRoutes": {"namespaces": {"from": "All"}}}]);
        let object = json!({"metadata": {"namespace": "infra", "name": "gw", "uid": "g"},
            "spec": {"gatewayClassName": "envoy", "listeners": listeners}, "status": {"addresses": ip(1)}});
        Object::Gateway(serde_json::from_value(annotated(object, target)).unwrap())
    };
    let set = |target: Option<&str>| {
        let object = json!({"metadata": {"namespace": "shop", "name": "set", "uid": "s"},
            "spec": {"parentRef": {"name": "gw", "namespace": "infra"},
                "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]},
            "status": {"conditions": [{"type": "Accepted", "status": "True"}]}});
        Object::ListenerSet(serde_json::from_value(annotated(object, target)).unwrap())
    };
    world.take(gateway(None));
    world.take(set(None));
    world.route("direct", &["a.shop"], &json!({}));
    world.take(route("by-set", &["b.shop"], &json!({"kind": "ListenerSet", "name": "set"}), &json!({})));
    let answers = |world: &World| [world.answer("a.shop"), world.answer("b.shop")];
    assert_eq!(answers(&world), ["192.0.2.1", "192.0.2.1"]);
    world.take(set(Some("198.51.100.7")));
    assert_eq!(answers(&world), ["192.0.2.1", "198.51.100.7"]);
    world.take(gateway(Some("edge.example.com")));
    assert_eq!(answers(&world), ["edge.example.com", "198.51.100.7"]);
    world.take(set(Some("169.254.169.254")));
    assert_eq!(answers(&world), ["edge.example.com", "198.51.100.7"], "a denied target changes nothing");
    assert!(world.events().iter().any(|event| event.starts_with("TargetRefused: the entry in annotation")));
    world.take(set(None));
    assert_eq!(answers(&world), ["edge.example.com", "edge.example.com"]);
    world.take(gateway(None));
    assert_eq!(answers(&world), ["192.0.2.1", "192.0.2.1"]);
}

#[test]
fn routes_of_namespaces_take_turns() {
    let mut world = World::listed();
    world.gateway("infra/gw", &ip(1));
    let parent = json!({"name": "gw", "namespace": "infra"});
    for (namespace, name) in [("shop", "a"), ("shop", "b"), ("shop", "c"), ("bank", "d")] {
        let Object::Route(kind, mut object) = route(name, &[], &parent, &json!({})) else { panic!() };
        object.metadata.namespace = Some(namespace.to_owned());
        world.take(Object::Route(kind, object));
    }
    world.names.take(gateway("infra/gw", &ip(2)));
    let order: Vec<Arc<str>> = std::iter::from_fn(|| world.names.source.turns.take(|_| true))
        .map(|(namespace, _)| namespace)
        .collect();
    assert!(order.len() == 4 && order[..2].contains(&Arc::from("bank")), "{order:?}");
}

impl World {
    /// Returns a world whose zone is one of *k8s_gateway* with these sources.
    fn of_k8s_gateway(sources: &[Source]) -> Self {
        let mut world = Self::listed();
        let zone = Zone {
            sources: sources.to_vec(),
            k8s_gateway: Some(K8sGateway::default()),
            ..world.store.zones()[0].clone()
        };
        world.store.set_zones([zone.clone()]);
        let policy =
            HostnamePolicy { zones: vec![zone], ..HostnamePolicy::clone(&world.names.state.rules.policy) };
        world.names.set_rules(world.store.zones(), Arc::new(policy));
        world.names.end_lists();
        ["infra/gw", "infra/other", "bank/gw"]
            .into_iter()
            .zip(1..)
            .for_each(|(key, last)| world.gateway(key, &ip(last)));
        world
    }

    /// Takes a route of a kind at a Gateway of `infra`.
    fn route_of(&mut self, kind: RegardingKind, gateway: &str, host: &str) {
        let parent = json!({"name": gateway, "namespace": "infra"});
        let Object::Route(_, object) = route(gateway, &[host], &parent, &json!({})) else { panic!() };
        self.take(Object::Route(kind, object));
    }
}

#[test]
fn first_kind_of_routes_has_a_name_of_k8s_gateway() {
    use RegardingKind::{GrpcRoute, HttpRoute, TlsRoute};
    let mut world = World::of_k8s_gateway(&[Source::HTTP_ROUTES, Source::INGRESSES, Source::TLS_ROUTES]);
    world.route_of(TlsRoute, "gw", "x");
    assert_eq!(world.answer("x"), "192.0.2.1");
    let ingress = Owner { source: Source::INGRESSES, key: ServiceKey::new("shop", "x.lb.internal") };
    let target = Target::Addresses([[192, 0, 2, 9].into()].into());
    let target =
        Arc::new(Link { target: Some(target), ..Link::new(ServiceKey::new("shop", "i.ingress"), "") });
    let claims = Claims { created: 1, names: ["x.lb.internal".into()].into(), ..Claims::default() };
    world.store.observe(&ingress, &claims, &target, None);
    assert_eq!(world.answer("x"), "192.0.2.9", "an Ingress stands before TLSRoutes");
    world.route_of(HttpRoute, "other", "x");
    assert_eq!(world.answer("x"), "192.0.2.2", "HTTPRoutes stand before Ingresses");
    world.route_of(GrpcRoute, "gw", "y");
    assert_eq!(world.answer("y"), "nothing", "GRPCRoutes aren't there");
    world.remove(HttpRoute, "shop/other");
    assert_eq!(world.answer("x"), "192.0.2.9");
    world.store.forget(ingress);
    assert_eq!(world.answer("x"), "192.0.2.1");
    world.remove(TlsRoute, "shop/gw");
    assert_eq!(world.answer("x"), "nothing");
}

#[test]
fn route_has_its_hostnames_where_it_is_accepted() {
    let mut world = World::of_k8s_gateway(&[Source::HTTP_ROUTES]);
    let listener =
        json!([{"name": "web", "port": 80, "protocol": "HTTP", "hostname": "*.elsewhere.lb.internal"}]);
    let object = json!({"metadata": {"namespace": "infra", "name": "narrow", "uid": "g"},
        "spec": {"gatewayClassName": "envoy", "listeners": listener}, "status": {"addresses": ip(7)}});
    world.take(Object::Gateway(serde_json::from_value(object).unwrap()));
    let narrow = json!({"name": "narrow", "namespace": "infra"});
    world.take(route("one", &["a", "*.b"], &narrow, &json!({})));
    world.take(route("none", &[], &narrow, &json!({})));
    assert_eq!(
        ["a", "x.b", "x.elsewhere"].map(|host| world.answer(host)),
        ["192.0.2.7", "192.0.2.7", "nothing"]
    );
    let Object::Route(kind, mut object) = route("two", &["c"], &narrow, &json!({})) else { panic!() };
    object.metadata.labels = Some([("k8s-gateway.dns/ignore".to_owned(), "true".to_owned())].into());
    world.take(Object::Route(kind, object));
    assert_eq!(world.answer("c"), "nothing");
    let refused = json!({"metadata": {"namespace": "shop", "name": "three", "uid": "r"},
        "spec": {"parentRefs": [narrow], "hostnames": ["d.lb.internal"]},
        "status": {"parents": [
            {"parentRef": narrow, "conditions": [{"type": "Accepted", "status": "False"}]}]}});
    world.take(Object::Route(RegardingKind::HttpRoute, serde_json::from_value(refused).unwrap()));
    assert_eq!(world.answer("d"), "nothing");
    let events = world.events();
    let why = "the hostname \"d.lb.internal\" isn't served: Gateway infra/narrow hasn't accepted the route";
    assert!(events.iter().any(|event| event.contains(why)), "{events:?}");
}

#[test]
fn name_of_k8s_gateway_stays_with_the_older_route() {
    let mut world = World::of_k8s_gateway(&[Source::HTTP_ROUTES, Source::INGRESSES]);
    let at = |name: &str, namespace: &str, gateway: &str, seconds: u8| {
        let parent = json!({"name": "gw", "namespace": gateway});
        let Object::Route(kind, mut object) = route(name, &["bank"], &parent, &json!({})) else { panic!() };
        object.metadata.namespace = Some(namespace.to_owned());
        let created = format!("2026-01-01T00:00:{seconds:02}Z");
        object.metadata.creation_timestamp = serde_json::from_value(json!(created)).unwrap();
        Object::Route(kind, object)
    };
    world.take(at("own", "shop", "infra", 1));
    world.take(at("thief", "bank", "bank", 2));
    assert_eq!(world.answer("bank"), "192.0.2.1");
    assert!(world.events().iter().any(|event| event.starts_with("Conflict: it doesn't get DNS names")));
    world.remove(RegardingKind::HttpRoute, "shop/own");
    assert_eq!(world.answer("bank"), "192.0.2.3");
}

#[test]
fn only_named_kinds_of_routes_are_read() {
    let zone = |sources: &[Source]| Zone {
        sources: sources.to_vec(),
        ..(&Name::from_ascii("lb.internal.").unwrap()).into()
    };
    for (zones, expected) in [
        (vec![zone(&[Source::GATEWAYS])], 5),
        (vec![zone(&[Source::INGRESSES, Source::HTTP_ROUTES])], 3),
        (vec![zone(&[Source::HTTP_ROUTES]), zone(&[Source::TLS_ROUTES])], 4),
    ] {
        let read = Gateways::KINDS.iter().filter(|kind| Gateways::reads(kind.kind, &zones));
        assert_eq!(read.count(), expected, "{zones:?}");
    }
}
