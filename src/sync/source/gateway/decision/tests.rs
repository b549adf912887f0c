use std::sync::Arc;

use hickory_proto::rr::Name;
use serde_json::{Value, json};

use super::*;
use crate::model::target_policy::TargetPolicy;
use crate::store::{OnGone, Store};

/// Rules with a zone that has names of routes, one of a class, and one of load balancers alone. Namespace `infra` may
/// have any name.
fn rules() -> Rules {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let zone = |origin: &str, sources: &[Source], classes: &[&str]| Zone {
        sources: sources.to_vec(),
        gateway_classes: classes.iter().map(|class| (*class).into()).collect(),
        ..(&name(origin)).into()
    };
    let zones = [
        zone("lb.internal.", &[Source::SERVICES, Source::GATEWAYS], &[]),
        zone("classes.example.", &[Source::GATEWAYS], &["envoy"]),
        zone("services.example.", &[Source::SERVICES], &[]),
    ];
    let origins = ["lb.internal.", "classes.example.", "services.example."].map(name).to_vec();
    let policy = HostnamePolicy {
        targets: TargetPolicy { zones: origins, ..Default::default() },
        hostname_namespaces: ["infra".to_owned()].into(),
        annotation_prefixes: vec!["external-dns.kubernetes.io/".to_owned()],
        ..Default::default()
    };
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.clone()));
    Rules { zones: zones.into(), policy: Arc::new(policy), store }
}

fn all() -> Value {
    json!({"namespaces": {"from": "All"}})
}

fn listener(name: &str, hostname: &str, port: i32, protocol: &str, allowed_routes: &Value) -> Value {
    json!({"name": name, "hostname": hostname, "port": port, "protocol": protocol,
        "allowedRoutes": allowed_routes})
}

fn plain(hostname: &str) -> Value {
    json!([listener("web", hostname, 80, "HTTP", &all())])
}

/// A route in namespace `shop`, with these hostnames and references to its parents, all of which have accepted it.
fn route(hostnames: &[&str], parents: &Value) -> Value {
    let statuses: Vec<Value> =
        parents.as_array().unwrap().iter().map(|parent| accepted(parent, "True")).collect();
    json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:07Z"},
        "spec": {"hostnames": hostnames, "parentRefs": parents},
        "status": {"parents": statuses},
    })
}

fn accepted(parent: &Value, status: &str) -> Value {
    json!({"parentRef": parent, "controllerName": "example.com/c", "conditions": [
        {"type": "ResolvedRefs", "status": "False"}, {"type": "Accepted", "status": status}]})
}

/// Returns the names of a route, each with the namespace that shares it and the Gateway, and what is wrong with the
/// route. The Gateways are `infra/gw` with these listeners, `shop/gw` and `shop/other`; the ListenerSet `team/set`
/// belongs to
/// `infra/gw`.
fn decided_of(kind: RegardingKind, object: &Value, listeners: &Value) -> (String, String) {
    let rules = rules();
    let route = Route::new(serde_json::from_value(object.clone()).unwrap(), &rules.policy);
    let listeners: Vec<Listener> = serde_json::from_value(listeners.clone()).unwrap();
    let [infra, own, other] =
        [("infra", "gw"), ("shop", "gw"), ("shop", "other")].map(|(namespace, name)| ObjectId {
            key: ServiceKey::new(namespace, name),
            kind: RegardingKind::Gateway,
        });
    let parents = route.accepted.iter().filter_map(|attachment| {
        let (target, class) = match &*attachment.parent.key.to_string() {
            "infra/gw" | "team/set" => (&infra, "envoy"),
            "shop/gw" => (&own, "istio"),
            "shop/other" => (&other, "istio"),
            _ => return None,
        };
        Some(Listeners { attachment, listeners: &listeners, target, class })
    });
    let parents: Vec<Listeners<'_>> = parents.collect();
    let id = ObjectId { key: ServiceKey::new("shop", "web"), kind };
    let Decision { names, unusable, .. } = route.decide(&id, &parents, &rules);
    let mut shown: Vec<String> = names
        .iter()
        .map(|(name, ObjectId { key: gateway, .. })| {
            let host = name.name().trim_end_matches(".lb.internal").trim_end_matches(".shop");
            format!("{}:{host}@{gateway}", name.namespace())
        })
        .collect();
    shown.sort();
    (shown.join(" "), unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn decided(object: &Value, listeners: &Value) -> (String, String) {
    decided_of(RegardingKind::HttpRoute, object, listeners)
}

fn at_infra() -> Value {
    json!([{"name": "gw", "namespace": "infra"}])
}

#[test]
fn hostname_source_leaves_names_out_without_a_report() {
    let hosts = ["a.shop.lb.internal", "other.lb.internal"];
    for (source, hosts, expected) in [
        ("annotation-only", &hosts[..], "infra:c@infra/gw"),
        ("annotation-only", &[], "infra:c@infra/gw"),
        ("defined-hosts-only", &hosts[..1], "infra:a@infra/gw"),
        ("defined-hosts-only", &[], ""),
    ] {
        let mut object = route(hosts, &at_infra());
        object["metadata"]["annotations"] = json!({
            "external-dns.kubernetes.io/gateway-hostname-source": source,
            "external-dns.kubernetes.io/hostname": "c.shop.lb.internal",
        });
        let expected = (expected.to_owned(), String::new());
        assert_eq!(decided(&object, &plain("*.shop.lb.internal")), expected, "{source} {hosts:?}");
    }
}

#[test]
fn names_are_where_hostnames_of_route_and_listener_overlap() {
    for (host, listener, expected) in [
        ("a.shop.lb.internal", "", "a"),
        ("a.shop.lb.internal", "a.shop.lb.internal", "a"),
        ("A.shop.LB.internal", "a.Shop.lb.internal", "a"),
        ("a.shop.lb.internal", "b.shop.lb.internal", ""),
        ("a.shop.lb.internal", "*.shop.lb.internal", "a"),
        ("a.b.shop.lb.internal", "*.shop.lb.internal", "a.b"),
        ("a.b.shop.lb.internal", "*.b.shop.lb.internal", "a.b"),
        ("b.shop.lb.internal", "*.b.shop.lb.internal", ""),
        ("*.shop.lb.internal", "a.shop.lb.internal", "a"),
        ("*.shop.lb.internal", "*.shop.lb.internal", "*"),
        ("*.shop.lb.internal", "*.b.shop.lb.internal", "*.b"),
        ("*.b.shop.lb.internal", "*.shop.lb.internal", "*.b"),
        ("*.b.shop.lb.internal", "*.c.shop.lb.internal", ""),
        ("*.b.shop.lb.internal", "", "*.b"),
        ("*.internal", "a.shop.lb.internal", "a"),
        ("ab.shop.lb.internal", "*.b.shop.lb.internal", ""),
        ("www.example.com", "", ""),
    ] {
        let (names, unusable) = decided(&route(&[host], &at_infra()), &plain(listener));
        let expected = if expected.is_empty() { String::new() } else { format!("infra:{expected}@infra/gw") };
        assert_eq!(names, expected, "{host} {listener}: {unusable}");
        let is_reported = expected.is_empty() && host.ends_with(".lb.internal");
        assert_eq!(
            unusable.contains("no listener at which the route is accepted"),
            is_reported,
            "{host} {listener}"
        );
    }
}

#[test]
fn route_without_hostnames_has_those_of_the_listeners() {
    let listeners = json!([
        listener("a", "a.shop.lb.internal", 80, "HTTP", &all()),
        listener("b", "*.b.shop.lb.internal", 80, "HTTP", &all()),
        listener("c", "", 81, "HTTP", &all()),
        listener("d", "d.shop.lb.internal", 443, "TLS", &all()),
    ]);
    let (names, unusable) = decided(&route(&[], &at_infra()), &listeners);
    assert_eq!((&*names, &*unusable), ("infra:*.b@infra/gw infra:a@infra/gw", ""));
}

#[test]
fn listeners_are_those_that_section_port_and_protocol_fit() {
    let listeners = json!([
        listener("http", "http.shop.lb.internal", 80, "HTTP", &all()),
        listener("https", "https.shop.lb.internal", 443, "HTTPS", &all()),
        listener("tls", "tls.shop.lb.internal", 443, "TLS", &all()),
        listener("tcp", "", 443, "TCP", &all()),
        listener("own", "own.shop.lb.internal", 80, "example.com/own", &all()),
    ]);
    let parent = |section: Value, port: Value| {
        json!([{"name": "gw", "namespace": "infra", "group": GROUP, "kind": "Gateway", "sectionName": section,
            "port": port}])
    };
    let (http, grpc, tls) = (RegardingKind::HttpRoute, RegardingKind::GrpcRoute, RegardingKind::TlsRoute);
    for (kind, section, port, expected) in [
        (http, json!(null), json!(null), "http https"),
        (grpc, json!(null), json!(null), "http https"),
        (tls, json!(null), json!(null), "tls"),
        (http, json!("https"), json!(null), "https"),
        (http, json!(""), json!(80), "http"),
        (http, json!("https"), json!(80), ""),
        (http, json!("tls"), json!(null), ""),
        (tls, json!("https"), json!(null), ""),
        (http, json!("other"), json!(null), ""),
        (http, json!("own"), json!(null), ""),
    ] {
        let (names, _) = decided_of(kind, &route(&[], &parent(section.clone(), port.clone())), &listeners);
        let expected: Vec<String> =
            expected.split_whitespace().map(|host| format!("infra:{host}@infra/gw")).collect();
        assert_eq!(names, expected.join(" "), "{kind:?} {section} {port}");
    }
}

#[test]
fn parent_counts_if_it_is_in_the_spec_and_has_accepted() {
    let parent = &at_infra()[0];
    let with = |key: &str, value: Value| {
        let mut changed = parent.clone();
        changed[key] = value;
        changed
    };
    let expected = "infra:a@infra/gw";
    for (case, spec, status, expected) in [
        ("as in the spec", json!([parent]), accepted(parent, "True"), expected),
        ("defaults", json!([parent]), accepted(&with("kind", json!("Gateway")), "True"), expected),
        ("other section", json!([parent]), accepted(&with("sectionName", json!("web")), "True"), ""),
        ("other port", json!([with("port", json!(80))]), accepted(parent, "True"), ""),
        ("other namespace", json!([with("namespace", json!(null))]), accepted(parent, "True"), ""),
        ("not in the spec", json!([]), accepted(parent, "True"), ""),
        ("refused", json!([parent]), accepted(parent, "False"), ""),
        ("pending", json!([parent]), accepted(parent, "Unknown"), ""),
        ("no condition", json!([parent]), json!({"parentRef": parent}), ""),
        ("of a Service", json!([with("group", json!(""))]), accepted(&with("group", json!("")), "True"), ""),
        (
            "another kind",
            json!([with("kind", json!("XListenerSet"))]),
            accepted(&with("kind", json!("XListenerSet")), "True"),
            "",
        ),
    ] {
        let mut object = route(&["a.shop.lb.internal"], &spec);
        object["status"]["parents"] = json!([status]);
        let (names, unusable) = decided(&object, &plain(""));
        assert_eq!(names, expected, "{case}");
        let refusal =
            "the hostname \"a.shop.lb.internal\" isn't served: Gateway infra/gw hasn't accepted the route";
        assert_eq!(unusable, if case == "refused" { refusal } else { "" }, "{case}");
    }
}

#[test]
fn namespace_of_a_reference_is_that_of_the_route_by_default() {
    let parents = json!([{"name": "gw"}, {"name": "other", "sectionName": "web"}, {"name": "gone"}]);
    let (names, _) = decided(&route(&["a.shop.lb.internal"], &parents), &plain(""));
    assert_eq!(names, "shop:a@shop/gw shop:a@shop/other", "both Gateways of the namespace share the name");
}

#[test]
fn listener_set_gives_names_of_its_own_namespace() {
    let parents = json!([{"name": "set", "namespace": "team", "kind": "ListenerSet", "group": GROUP}]);
    let (names, _) = decided(&route(&["a.shop.lb.internal"], &parents), &plain("*.shop.lb.internal"));
    assert_eq!(names, "team:a@infra/gw");
    let hosts = ["a.team.lb.internal", "a.other.lb.internal"];
    let (names, unusable) = decided(&route(&hosts, &parents), &plain("*.lb.internal"));
    assert_eq!(names, "team:a.team@infra/gw", "the Gateway's namespace doesn't hand names on");
    assert!(unusable.contains("\"a.other.lb.internal\" isn't served: namespace shop may have"), "{unusable}");
}

#[test]
fn gateway_hands_on_names_within_the_hostname_of_a_listener() {
    let host = "a.other.lb.internal";
    let selector =
        |label: &str| json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {label: "x"}}}});
    let both = |one: &Value, other: &Value| {
        json!([listener("one", "*.lb.internal", 80, "HTTP", one), listener("two", "", 80, "HTTP", other)])
    };
    for (case, listeners, is_served) in [
        ("exact", plain(host), true),
        ("wildcard", plain("*.other.lb.internal"), true),
        ("any", plain(""), false),
        ("selector", both(&selector("a"), &selector("a")), true),
        ("another listener may have accepted the route", both(&selector("a"), &selector("b")), false),
        ("another listener accepts all", both(&selector("a"), &all()), false),
        ("own namespace alone", both(&json!({"namespaces": {"from": "Same"}}), &all()), false),
        ("own namespace by default", both(&json!(null), &all()), false),
        ("none", both(&json!({"namespaces": {"from": "None"}}), &all()), false),
    ] {
        let (names, unusable) = decided(&route(&[host], &at_infra()), &listeners);
        assert_eq!(names == "infra:a.other@infra/gw", is_served, "{case}: {names} {unusable}");
        assert_eq!(
            unusable.contains("namespace shop may have names below shop.lb.internal"),
            !is_served,
            "{case}"
        );
    }
    let own = json!([{"name": "gw"}]);
    assert_eq!(decided(&route(&[host], &own), &plain(host)).0, "", "its namespace may not have it");
    let reserved = ["dns.lb.internal", "lb.internal"];
    assert_eq!(decided(&route(&reserved, &at_infra()), &plain("*.internal")).0, "");
}

#[test]
fn listener_may_be_for_some_kinds_and_namespaces_of_routes() {
    let host = "a.shop.lb.internal";
    let kinds = |kind: &str, group: Value| json!({"namespaces": {"from": "All"}, "kinds": [{"kind": kind, "group": group}]});
    for (allowed, is_served) in [
        (kinds("HTTPRoute", json!(null)), true),
        (kinds("HTTPRoute", json!(GROUP)), true),
        (kinds("HTTPRoute", json!("example.com")), false),
        (kinds("GRPCRoute", json!(null)), false),
        (json!(null), false),
        (json!({"namespaces": {"from": "Selector"}}), true),
    ] {
        let listeners = json!([listener("web", host, 80, "HTTP", &allowed)]);
        assert_eq!(!decided(&route(&[host], &at_infra()), &listeners).0.is_empty(), is_served, "{allowed}");
        let is_own = !decided(&route(&[host], &json!([{"name": "gw"}])), &listeners).0.is_empty();
        assert_eq!(is_own, is_served || allowed.is_null(), "{allowed}");
    }
}

#[test]
fn zone_may_have_the_names_of_some_classes() {
    let hosts = ["a.shop.classes.example", "a.shop.services.example", "a.shop.lb.internal"];
    let at_both = json!([at_infra()[0], {"name": "gw"}]);
    let (names, unusable) = decided(&route(&hosts, &at_both), &plain(""));
    let expected = "infra:a.shop.classes.example@infra/gw infra:a@infra/gw shop:a@shop/gw";
    assert_eq!((&*names, &*unusable), (expected, ""));
}

#[test]
fn annotations_are_as_on_load_balancers() {
    let mut object = route(&["a.shop.lb.internal"], &at_infra());
    object["metadata"]["annotations"] = json!({
        "linker.hsj.com/hostname": "b.shop.lb.internal,c.other.lb.internal,d.shop.example",
        "linker.hsj.com/ttl": "-1",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    });
    let (names, unusable) = decided(&object, &plain("*.shop.lb.internal"));
    assert_eq!(names, "infra:a@infra/gw infra:b@infra/gw");
    for part in [
        "\"c.other.lb.internal\" isn't served: its zone doesn't have the names of routes",
        "\"d.shop.example\" isn't served: it lies in none",
        "annotation linker.hsj.com/ttl \"-1\"",
    ] {
        assert!(unusable.contains(part), "{unusable}");
    }
    let (names, _) = decided(&object, &plain("*.lb.internal"));
    assert_eq!(names, "infra:a@infra/gw infra:b@infra/gw infra:c.other@infra/gw", "handed on, too");
    let kept = Route::new(serde_json::from_value(object).unwrap(), &rules().policy).annotations;
    assert_eq!(kept.len(), 2);
}

#[test]
fn hostnames_listeners_and_parents_are_bounded() {
    let hosts: Vec<String> = (0..2000).map(|number| format!("n{number}.shop.lb.internal")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let parents: Vec<Value> = (0..100)
        .map(|number| json!({"name": "gw", "namespace": "infra", "sectionName": null, "port": 1000 + number}))
        .collect();
    let listeners: Vec<Value> = (0..100_u16)
        .map(|number| listener(&format!("l{number}"), "", 1000 + i32::from(number), "HTTP", &all()))
        .collect();
    let mut object = route(&hosts, &json!(parents));
    let (names, unusable) = decided(&object, &json!(listeners));
    assert_eq!(names.split(' ').count(), 100);
    assert!(
        unusable.contains("entries that are ignored: 1900; the first 100 in lb-linker's zones"),
        "{unusable}"
    );
    let kept = Route::new(serde_json::from_value(object.clone()).unwrap(), &rules().policy).accepted;
    assert_eq!(kept.len(), MAX_PARENTS);
    let parents: Vec<Value> =
        (0..32).map(|number| json!({"name": "gw", "namespace": format!("n{number}")})).collect();
    object = route(&["a.shop.lb.internal"], &json!(parents));
    let route = Route::new(serde_json::from_value(object).unwrap(), &rules().policy);
    let listeners: Vec<Listener> = serde_json::from_value(json!(listeners)).unwrap();
    let gateway = ObjectId { key: ServiceKey::new("infra", "gw"), kind: RegardingKind::Gateway };
    let of = |attachment| Listeners { attachment, listeners: &listeners, target: &gateway, class: "" };
    let parents: Vec<Listeners<'_>> = route.accepted.iter().map(of).collect();
    let id = ObjectId { key: ServiceKey::new("shop", "web"), kind: RegardingKind::HttpRoute };
    let Decision { names, unusable, .. } = route.decide(&id, &parents, &rules());
    assert_eq!(names.len(), MAX_OF_ROUTE / MAX_LISTENERS);
    let text = unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(text.contains("ignored: 1792; the first 256 count"), "{text}");
}

#[test]
fn name_is_handed_on_only_at_a_gateway_with_a_class_of_its_zone() {
    let host = "a.other.classes.example";
    let listeners = plain(host);
    assert_eq!(decided(&route(&[host], &at_infra()), &listeners).0, format!("infra:{host}@infra/gw"));
    let (names, unusable) = decided(&route(&[host], &json!([{"name": "gw"}])), &listeners);
    assert_eq!((&*names, &*unusable), ("", ""), "names of other classes are passed over");
}
