use serde_json::{Value, json};

use super::*;
use crate::model::link::Target;
use crate::model::target_policy::TargetPolicy;
use crate::store::OnGone;
use crate::sync::source::ingress::Ingress;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Rules with a zone that has names of Ingresses, one of some classes, and one of load balancers alone.
fn rules() -> Rules {
    let zone = |origin: &str, sources: &[Source], classes: &[&str]| Zone {
        sources: sources.to_vec(),
        ingress_classes: classes.iter().map(|class| (*class).into()).collect(),
        ..(&name(origin)).into()
    };
    let zones = [
        zone("lb.internal.", &[Source::SERVICES, Source::INGRESSES], &[]),
        zone("classes.example.", &[Source::INGRESSES], &["nginx", "traefik"]),
        zone("services.example.", &[Source::SERVICES], &[]),
    ];
    let origins = ["lb.internal.", "classes.example.", "services.example."].map(name).to_vec();
    let targets =
        TargetPolicy { zones: origins, cluster_domain: name("cluster.local."), ..Default::default() };
    let policy = HostnamePolicy {
        targets,
        hostname_namespaces: ["free".to_owned()].into(),
        hostname_annotations: vec!["theirs/hostname".to_owned()],
        annotation_prefixes: vec!["external-dns.kubernetes.io/".to_owned()],
        ..Default::default()
    };
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.clone()));
    Rules { zones: zones.into(), policy: Arc::new(policy), store }
}

fn ingress(namespace: &str, annotations: &Value, spec: &Value, status: &Value) -> Ingress {
    let metadata = json!({
        "namespace": namespace, "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:07Z",
        "annotations": annotations,
    });
    let object = json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": status}}});
    serde_json::from_value(object).unwrap()
}

fn hosts(hosts: &[&str]) -> Value {
    json!({"rules": hosts.iter().map(|host| json!({"host": host})).collect::<Vec<_>>()})
}

/// Returns the names of an Ingress, its target, and what is wrong with it.
fn observed(object: &Ingress, before: Option<&Arc<Link>>) -> (Vec<String>, String, String, Arc<Link>) {
    let (names, link, unusable) = object.observe(&rules(), before);
    let names = names.iter().map(|name| (**name).to_owned()).collect();
    let target = link.target.as_ref().map_or_else(|| "none".to_owned(), Target::to_string);
    let unusable = unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    (names, target, unusable, link)
}

#[test]
fn hosts_of_rules_and_tls_are_names_in_zones_of_the_source() {
    let spec = json!({
        "rules": [{"host": "App.shop.lb.internal"}, {"host": null}, {"host": "www.example.com"},
            {"host": "*.shop.lb.internal"}, {"host": "x.shop.services.example"}, {}],
        "tls": [{"hosts": ["app.shop.lb.internal", "tls.shop.lb.internal"]}, {"hosts": null}],
    });
    let (names, target, unusable, link) = observed(&ingress("shop", &json!(null), &spec, &json!(null)), None);
    assert_eq!(names, ["app.shop.lb.internal", "*.shop.lb.internal", "tls.shop.lb.internal"]);
    assert_eq!((&*target, &*unusable), ("none", ""));
    assert_eq!(link.created, 1_767_225_607);
    assert_eq!(
        observed(&serde_json::from_value(json!({"spec": null, "status": null})).unwrap(), None).0,
        [""; 0]
    );
}

#[test]
fn host_elsewhere_needs_the_permission_of_the_namespace() {
    let spec = hosts(&["app.other.lb.internal", "lb.internal", "*.lb.internal", "app.shop.lb.internal"]);
    let (names, _, unusable, _) = observed(&ingress("shop", &json!({}), &spec, &json!([])), None);
    assert_eq!(names, ["app.shop.lb.internal"]);
    for part in
        ["the host \"*.lb.internal\" isn't served", "\"app.other.lb.internal\"", "--hostname-namespaces"]
    {
        assert!(unusable.contains(part), "{unusable}");
    }
    let (names, _, unusable, _) = observed(&ingress("free", &json!({}), &spec, &json!([])), None);
    assert_eq!(names.len(), 3, "{unusable}");
    assert!(unusable.contains("the zone itself is reserved"), "{unusable}");
}

#[test]
fn default_name_of_a_service_of_the_same_name_is_asked_for() {
    let spec = hosts(&["web.shop.lb.internal", "web-shop.lb.internal"]);
    let (names, _, unusable, _) = observed(&ingress("shop", &json!({}), &spec, &json!([])), None);
    assert_eq!(names, ["web.shop.lb.internal"]);
    assert!(unusable.contains("\"web-shop.lb.internal\" isn't served"), "{unusable}");
}

#[test]
fn zone_may_have_the_names_of_some_classes() {
    let of_class = |annotations: Value, class: Value| {
        let mut spec = hosts(&["app.shop.classes.example", "app.shop.lb.internal"]);
        spec["ingressClassName"] = class;
        observed(&ingress("shop", &annotations, &spec, &json!([])), None).0.len()
    };
    let annotation = |class: &str| json!({"kubernetes.io/ingress.class": class});
    assert_eq!(of_class(json!({}), json!("nginx")), 2);
    assert_eq!(of_class(json!({}), json!("other")), 1);
    assert_eq!(of_class(json!({}), json!(null)), 1, "without a class");
    assert_eq!(of_class(annotation("traefik"), json!(null)), 2);
    assert_eq!(of_class(annotation("traefik"), json!("other")), 1, "the field goes before the annotation");
}

#[test]
fn annotations_are_as_on_load_balancers() {
    let annotations = json!({
        "linker.hsj.com/hostname": "a.shop.lb.internal,b.example.com,c.shop.services.example",
        "theirs/hostname": "d.shop.lb.internal",
        "linker.hsj.com/ttl": "60",
        "linker.hsj.com/allow-from": "bank",
        "linker.hsj.com/tll": "60",
    });
    let (names, _, unusable, link) = observed(&ingress("shop", &annotations, &json!({}), &json!([])), None);
    assert_eq!(names, ["a.shop.lb.internal", "d.shop.lb.internal"]);
    assert_eq!((link.annotations.ttl, link.annotations.allows("bank")), (Some(60), true));
    assert!(
        unusable.contains("\"b.example.com\" isn't served: it lies in none of lb-linker's zones"),
        "{unusable}"
    );
    assert!(
        unusable.contains("\"c.shop.services.example\" isn't served: its zone doesn't have"),
        "{unusable}"
    );
    assert_eq!(link.key, ServiceKey::new("shop", "web.ingress"), "no key of a Service");
    assert!(unusable.contains("\"linker.hsj.com/tll\" is ignored: Ingresses have"), "{unusable}");
}

#[test]
fn target_annotation_takes_the_place_of_the_status() {
    let (spec, status) = (hosts(&["app.shop.lb.internal"]), json!([{"ip": "192.0.2.9"}]));
    let at = |annotations: Value| {
        let object = ingress("shop", &annotations, &spec, &status);
        let (_, target, unusable, _) = observed(&object, None);
        (target, unusable, object.has_own_target(&rules().policy))
    };
    let theirs = "external-dns.kubernetes.io/target";
    for (annotations, expected) in [
        (json!({"linker.hsj.com/target": "a.example"}), ("a.example", false)),
        (json!({theirs: "192.0.2.1,2001:db8::1"}), ("192.0.2.1,2001:db8::1", false)),
        (
            json!({theirs: "192.0.2.1", "linker.hsj.com/target": "x.shop.lb.internal"}),
            ("x.shop.lb.internal", true),
        ),
    ] {
        let (target, unusable, is_own) = at(annotations);
        assert_eq!((&*target, is_own, &*unusable), (expected.0, expected.1, ""));
    }
    for (value, why) in [
        ("169.254.169.254", "the entry in annotation linker.hsj.com/target \"169.254.169.254\" isn't served"),
        ("kubernetes.default.svc.cluster.local", "cluster's own domain"),
        ("app.shop.lb.internal", "so DNS would lead in a circle"),
        ("x.bank.lb.internal", "be below shop.lb.internal"),
        ("a_b:c", "neither a hostname nor an IPv4 or IPv6 address"),
    ] {
        let (target, unusable, _) = at(json!({"linker.hsj.com/target": value}));
        assert!(target == "none" && unusable.contains(why), "{value}: {target}, {unusable}");
    }
}

#[test]
fn hostname_source_selects_spec_or_annotations() {
    let names = |source: &str| {
        let annotations = json!({
            "external-dns.kubernetes.io/ingress-hostname-source": source,
            "external-dns.kubernetes.io/hostname": "annotated.shop.lb.internal",
        });
        let object = ingress("shop", &annotations, &hosts(&["app.shop.lb.internal"]), &json!([]));
        let (names, _, unusable, _) = observed(&object, None);
        (names.join(" "), unusable)
    };
    let none = String::new();
    assert_eq!(names("annotation-only"), ("annotated.shop.lb.internal".to_owned(), none.clone()));
    assert_eq!(names("defined-hosts-only"), ("app.shop.lb.internal".to_owned(), none));
    let (both, why) = names("other");
    assert_eq!(both, "app.shop.lb.internal annotated.shop.lb.internal");
    assert!(why.contains("neither annotation-only nor defined-hosts-only"), "{why}");
}

#[test]
fn names_after_the_first_100_are_reported() {
    let all: Vec<String> = (0..130).map(|number| format!("n{number}.shop.lb.internal")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (names, _, unusable, _) = observed(&ingress("shop", &json!({}), &hosts(&all), &json!([])), None);
    assert_eq!((names.len(), &*names[99]), (100, "n99.shop.lb.internal"));
    assert!(unusable.contains("an Ingress may have 100 names at most"), "{unusable}");
    assert!(unusable.ends_with("and 27 more"), "{unusable}");
}

#[test]
fn target_policy_is_as_for_load_balancers() {
    let spec = hosts(&["app.shop.lb.internal"]);
    for (status, expected, why) in [
        (json!([{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]), "192.0.2.1,2001:db8::1", ""),
        (json!([{"ip": "192.0.2.1"}, {"hostname": "a.example"}, {"hostname": "b.example"}]), "a.example", ""),
        (json!([{"ip": "169.254.169.254"}]), "none", "addresses are denied"),
        (json!([{"hostname": "kubernetes.default.svc.cluster.local"}]), "none", "cluster's own domain"),
        (json!([{"hostname": "app.shop.lb.internal"}]), "none", "so DNS would lead in a circle"),
        (json!([{"hostname": "web.bank.lb.internal"}]), "none", "be below shop.lb.internal"),
        (json!([{"hostname": "web.shop.lb.internal"}]), "web.shop.lb.internal", ""),
    ] {
        let (_, target, unusable, link) = observed(&ingress("shop", &json!({}), &spec, &status), None);
        assert_eq!(target, expected, "{status}");
        assert!(unusable.contains(why) && unusable.is_empty() == why.is_empty(), "{status}: {unusable}");
        assert_eq!(link.refused, !why.is_empty(), "{status}");
    }
}

#[test]
fn blank_or_denied_status_keeps_the_target_of_the_same_object() {
    let spec = hosts(&["app.shop.lb.internal"]);
    let with = |status: Value| ingress("shop", &json!({}), &spec, &status);
    let first = observed(&with(json!([{"ip": "192.0.2.1"}])), None).3;
    assert!(Arc::ptr_eq(&observed(&with(json!([{"ip": "192.0.2.1"}])), Some(&first)).3, &first), "unchanged");
    for status in [json!([]), json!(null), json!([{"ip": "127.0.0.1"}])] {
        let (_, target, _, link) = observed(&with(status.clone()), Some(&first));
        assert_eq!((&*target, link.state), ("192.0.2.1", LinkState::Stale), "{status}");
    }
    let mut recreated = with(json!([]));
    recreated.metadata.uid = Some("v".to_owned());
    assert_eq!(observed(&recreated, Some(&first)).1, "none");
    assert_eq!(observed(&with(json!([{"ip": "192.0.2.2"}])), Some(&first)).1, "192.0.2.2");
}
