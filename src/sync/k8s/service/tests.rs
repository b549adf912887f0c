use serde_json::json;

use super::*;
use crate::model::hostname_policy::{HOSTNAME, INTERNAL_HOSTNAME};
use crate::model::link::Target;
use crate::model::owner::{K8sGateway, Zone};
use crate::store::OnGone;
use crate::sync::k8s::annotations::{TARGET, TTL};

#[test]
fn needed_fields_are_decoded_and_null_means_absent() {
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "12",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
        },
        "spec": {"type": "LoadBalancer", "selector": null, "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [
            {"hostname": "A.Example", "ip": null}, {"ip": "2001:DB8::1"}, {"ip": "2001:db8::1"},
            {"ip": "nonsense"}, {"hostname": format!("{}.example", "x".repeat(64))}, {}
        ]}}
    }))
    .unwrap();
    assert!(service.is_living_load_balancer());
    let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
    assert_eq!(observed.key, ServiceKey::new("default", "web"));
    assert_eq!((observed.resource_version, observed.created), (Some(12), Some(1_767_225_600)));
    assert_eq!(observed.ingress.hostnames, [Hostname::from(&Name::from_ascii("a.example.").unwrap())]);
    assert_eq!(observed.ingress.addresses, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
    assert_eq!(unusable.len(), 2, "{unusable:?}");
    assert!(
        unusable[1].to_string().contains("the address in the status \"nonsense\" isn't served: not an IPv4")
    );
}

fn observe(service: serde_json::Value) -> (ObservedService, String) {
    let service: Service = serde_json::from_value(service).unwrap();
    let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
    (observed, unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

#[test]
fn ingress_entries_and_their_rejections_are_bounded() {
    let entry = |i: usize| match i {
        0..=2000 => json!({"ip": format!("192.0.{}.{}", i / 250, i % 250)}),
        _ => json!({"ip": "x".repeat(i), "hostname": "y".repeat(i)}),
    };
    let ingress: Vec<_> = (0..3000).map(entry).collect();
    let addresses: Vec<_> = ingress.iter().map(|entry| json!({"ip": entry["ip"]})).collect();
    let (observed, rejection) = observe(json!({"status": {"loadBalancer": {"ingress": addresses}}}));
    assert_eq!(observed.ingress.addresses.len(), 1000);
    assert!(!observed.refused);
    let expected = "the status: entries that are ignored: 2000; the first 1000 count: hostnames first, each in \
                    alphabetical order";
    assert_eq!(rejection, expected);
    let reversed: Vec<_> = addresses.iter().rev().collect();
    let (other, _) = observe(json!({"status": {"loadBalancer": {"ingress": reversed}}}));
    assert_eq!(other.ingress.choose(None), observed.ingress.choose(None), "their order means nothing");
    let (observed, rejection) = observe(json!({"status": {"loadBalancer": {"ingress": ingress[2000..]}}}));
    assert!(observed.refused && rejection.len() < 2048, "{rejection}");
    assert!(rejection.contains("; and 996 more"), "{rejection}");
}

#[test]
fn hostname_counts_among_too_many_addresses() {
    for with_hostname in [None, Some("")] {
        let ip = |i| json!({"ip": format!("192.0.{}.{}", i / 250, i % 250), "hostname": with_hostname});
        let mut ingress: Vec<_> = (0..1000).map(ip).collect();
        ingress.extend(["b.example", "a.example"].map(|host| json!({"hostname": host})));
        let (observed, _) = observe(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        assert_eq!(observed.ingress.addresses.len(), 998);
        let first = Hostname::from(&Name::from_ascii("a.example.").unwrap());
        assert_eq!(observed.ingress.choose(None), Some(Target::Hostname(first)));
    }
}

#[test]
fn allow_from_reads_only_the_first_100_entries() {
    let mut namespaces: Vec<String> = (0..14_000).map(|i| format!("ns-{i}")).collect();
    namespaces[0] = "*".to_owned();
    namespaces[1] = "Not One".to_owned();
    namespaces[2] = "ns-3".to_owned();
    let annotations = json!({ALLOW_FROM: namespaces.join(", "), TTL: "\n".repeat(250_000)});
    let (observed, rejection) = observe(json!({"metadata": {"annotations": annotations}}));
    assert_eq!(observed.annotations.allow_from.len(), 98);
    assert!(observed.annotations.allows("ns-99"));
    assert!(
        rejection.contains("\"Not One\" is ignored: neither the name of a namespace nor *"),
        "{rejection}"
    );
    assert!(rejection.contains("entries that are ignored: 13900;"), "{rejection}");
    assert!(rejection.len() < 1024 && !rejection.contains('\n'), "{rejection}");
}

#[test]
fn order_of_addresses_names_and_ports_means_nothing() {
    let service = |ips: [&str; 3], names: [&str; 2], ports: [u16; 2]| {
        let ips = ips.map(|ip| json!({"ip": ip}));
        let ports = ports.map(|port| json!({"name": format!("p{port}"), "port": port}));
        observe(json!({
            "metadata": {"name": "web", "namespace": "web",
                "annotations": {HOSTNAME: names.join(","), ALLOW_FROM: names.join(",")}},
            "spec": {"ports": ports},
            "status": {"loadBalancer": {"ingress": ips}},
        }))
    };
    let (one, rejected) = service(["192.0.2.1", "127.0.0.1", "127.0.0.2"], ["a", "b"], [1, 2]);
    let (other, rejected_too) = service(["127.0.0.2", "127.0.0.1", "192.0.2.1"], ["b", "a"], [2, 1]);
    assert_eq!((one.annotations, one.ports), (other.annotations, other.ports));
    assert_eq!(one.ingress.choose(None), other.ingress.choose(None));
    assert_eq!(rejected, rejected_too);
    assert!(rejected.contains("127.0.0.1"), "{rejected}");
}

#[test]
fn unknown_annotations_with_our_prefix_are_reported() {
    let annotations = json!({"linker.hsj.com/hostnam": "a.lb.internal", TTL: "5", "a.example/b": "c"});
    let (_, rejection) = observe(json!({"metadata": {"annotations": annotations}}));
    let expected = "the annotation \"linker.hsj.com/hostnam\" is ignored: load balancers have \
                    linker.hsj.com/allow-from, linker.hsj.com/hostname, linker.hsj.com/internal-hostname, \
                    linker.hsj.com/managed, linker.hsj.com/target, linker.hsj.com/ttl";
    assert_eq!(rejection, expected);
    let many: BTreeMap<String, String> =
        (0..10_000).map(|i| (format!("{PREFIX}{i}"), String::new())).collect();
    let (_, rejection) = observe(json!({"metadata": {"annotations": many}}));
    assert!(rejection.ends_with("; and 9997 more") && rejection.len() < 1024, "{rejection}");
}

#[test]
fn managed_annotation_is_true_or_false() {
    let rejections = |text: &str| {
        let metadata = json!({"namespace": "shop", "name": "web", "annotations": {MANAGED: text}});
        observe(json!({"metadata": metadata})).1
    };
    assert_eq!((rejections("true"), rejections("false")), (String::new(), String::new()));
    for text in ["no", "False", ""] {
        assert!(rejections(text).contains("neither true nor false"), "{text:?}");
    }
}

/// Observes a Service in a zone, with the prefixes of ExternalDNS.
fn observe_in_zone(annotations: &serde_json::Value, spec: &serde_json::Value) -> (ObservedService, String) {
    let zones = vec![Name::from_ascii("lb.internal.").unwrap()];
    let denied_nets = vec!["10.97.0.0/16".parse().unwrap()];
    let policy = HostnamePolicy {
        targets: TargetPolicy {
            zones,
            denied_nets,
            cluster_domain: Name::from_ascii("cluster.local.").unwrap(),
            ..TargetPolicy::default()
        },
        annotation_prefixes: vec!["external-dns.kubernetes.io/".to_owned()],
        ..HostnamePolicy::default()
    };
    let service: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web", "annotations": annotations},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": [{"hostname": "status.example"}]}},
    }))
    .unwrap();
    let (observed, unusable) = service.observe(&policy, &Store::new(OnGone::Kept));
    (observed, unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

#[test]
fn target_annotation_obeys_the_target_policy() {
    for (value, expected, why) in [
        ("a.example,192.0.2.1", Some("a.example"), ""),
        ("192.0.2.1,2001:db8::1", Some("192.0.2.1,2001:db8::1"), ""),
        (
            "169.254.169.254",
            None,
            "the entry in annotation linker.hsj.com/target \"169.254.169.254\" isn't served",
        ),
        ("web.shop.svc.cluster.local", None, "\"web.shop.svc.cluster.local\" isn't served"),
        ("web.bank.lb.internal", None, "be below shop.lb.internal"),
        ("nonsense!", None, "neither a hostname nor an IPv4 or IPv6 address"),
        ("localhost", None, "\"localhost\" isn't served"),
        ("192.0.2.1,10.97.0.1", Some("192.0.2.1"), "denied network"),
    ] {
        let (observed, rejections) = observe_in_zone(&json!({TARGET: value}), &json!({}));
        let chosen = observed.ingress.choose(None).map(|target| target.to_string());
        assert_eq!(chosen.as_deref(), expected, "{value}: no fall-back to the status");
        assert_eq!(observed.refused, !why.is_empty(), "{value}");
        assert!(rejections.contains(why) && rejections.is_empty() == why.is_empty(), "{value}: {rejections}");
    }
}

#[test]
fn internal_hostnames_lead_to_the_cluster_ips() {
    let internal = |annotations: serde_json::Value, spec: serde_json::Value| {
        let (observed, rejections) = observe_in_zone(&annotations, &spec);
        let internal = observed.annotations.internal.unwrap_or_default();
        let names = internal.hostnames.iter().map(|name| (**name).to_owned()).collect::<Vec<_>>().join(",");
        let ips = internal.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        (names, ips, internal.refused, rejections)
    };
    let one = json!({INTERNAL_HOSTNAME: "int.shop.lb.internal"});
    let found = |ips: &str| ("int.shop.lb.internal".to_owned(), ips.to_owned(), false, String::new());
    let both = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"]});
    assert_eq!(internal(one.clone(), both.clone()), found("10.96.0.1,fd00::1"));
    assert_eq!(internal(one.clone(), json!({"clusterIP": "10.96.0.1"})), found("10.96.0.1"));
    let theirs = json!({"external-dns.kubernetes.io/internal-hostname": "int.shop.lb.internal"});
    assert_eq!(internal(theirs, both.clone()), found("10.96.0.1,fd00::1"));
    for spec in [json!({}), json!({"clusterIP": "None", "clusterIPs": ["None"]}), json!({"clusterIP": ""})] {
        let (names, ips, refused, why) = internal(one.clone(), spec);
        assert_eq!((&*names, &*ips, refused), ("int.shop.lb.internal", "", false));
        assert!(why.contains("the load balancer has no cluster IP"), "{why}");
    }
    let (_, ips, refused, why) = internal(one, json!({"clusterIP": "10.97.0.1"}));
    assert_eq!((&*ips, refused), ("", true));
    assert!(why.contains("cluster IP \"10.97.0.1\" isn't served: it lies in the denied network"), "{why}");
    let names = "int.bank.lb.internal,web.shop.lb.internal,ext.shop.lb.internal,*.shop.lb.internal";
    let all = json!({INTERNAL_HOSTNAME: names, HOSTNAME: "ext.shop.lb.internal"});
    let (names, _, _, why) = internal(all, both);
    assert_eq!(names, "*.shop.lb.internal");
    for part in ["--hostname-namespaces", "a default name of the load balancer", "one of the load balancer's"]
    {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn hostnames_of_all_prefixes_are_united() {
    let annotations = json!({
        HOSTNAME: "a.shop.lb.internal",
        "external-dns.kubernetes.io/hostname": "b.shop.lb.internal, a.shop.lb.internal",
        "external-dns.kubernetes.io/ttl": "2m",
        "external-dns.kubernetes.io/alias": "true",
        "external-dns.alpha.kubernetes.io/hostname": "c.shop.lb.internal",
    });
    let (observed, rejections) = observe_in_zone(&annotations, &json!({}));
    let names: Vec<&str> = observed.annotations.hostnames.iter().map(|name| &**name).collect();
    assert_eq!(
        (&names[..], observed.annotations.ttl),
        (&["a.shop.lb.internal", "b.shop.lb.internal"][..], Some(120))
    );
    assert_eq!(rejections, "", "unknown annotations of others are none of our business");
}

#[test]
fn terminating_service_isnt_living() {
    let mut service = Service::default();
    service.spec.type_ = Some(LOAD_BALANCER.into());
    assert!(service.is_living_load_balancer());
    service.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert!(!service.is_living_load_balancer());
}

#[test]
fn ttl_annotation_accepts_0_to_3600_seconds() {
    for (text, expected) in [("0", Some(0)), ("3600", Some(3600)), ("3601", None), ("5m", None), ("-1", None)]
    {
        let service: Service =
            serde_json::from_value(json!({"metadata": {"name": "web", "annotations": {TTL: text}}})).unwrap();
        let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
        assert_eq!(observed.annotations.ttl, expected, "{text}");
        assert_eq!(unusable.len(), usize::from(expected.is_none()));
    }
}

/// Observes a load balancer, by default `web` of `shop`, with zones of *k8s_gateway*. Another zone is of *lb_linker*;
/// `lab.example` has Services with one of two labels.
fn observe_in_k8s_gateway(
    metadata: serde_json::Value,
    entry: serde_json::Value,
    further_annotations: &[&str],
) -> (ObservedService, String) {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let zone = |origin: &str, service_selectors: &[&str]| Zone {
        apex: "dns1.kube-system".into(),
        k8s_gateway: Some(K8sGateway {
            secondary: Some("two.kube-system".into()),
            service_selectors: service_selectors.iter().map(|text| (*text).into()).collect(),
        }),
        ..(&name(origin)).into()
    };
    let zones =
        vec![(&name("lb.internal.")).into(), zone("example.com.", &[]), zone("lab.example.", &["a=b", "c"])];
    let origins = ["lb.internal.", "example.com.", "lab.example."].map(name).to_vec();
    let targets = TargetPolicy { zones: origins, ..Default::default() };
    let hostname_annotations = further_annotations.iter().map(|name| (*name).to_owned()).collect();
    let policy = HostnamePolicy { targets, zones, hostname_annotations, ..Default::default() };
    let mut service = json!({
        "metadata": metadata,
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1"},
        "status": {"loadBalancer": {"ingress": [entry]}},
    });
    for (key, default) in [("namespace", "shop"), ("name", "web")] {
        let own = &mut service["metadata"][key];
        if own.is_null() {
            *own = default.into();
        }
    }
    let service: Service = serde_json::from_value(service).unwrap();
    let (observed, unusable) = service.observe(&policy, &Store::new(OnGone::Kept));
    (observed, unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Returns the names that a Service gets, and what is refused.
fn names_of_k8s_gateway(metadata: serde_json::Value) -> (String, String) {
    let (observed, why) = observe_in_k8s_gateway(metadata, json!({"ip": "192.0.2.1"}), &[]);
    (observed.annotations.hostnames.join(" "), why)
}

#[test]
fn names_in_zones_of_k8s_gateway_follow_its_rules() {
    const OWN: &str = "coredns.io/hostname";
    const OTHER: &str = "external-dns.alpha.kubernetes.io/hostname";
    for (metadata, expected) in [
        (json!({}), "web.shop.example.com"),
        (json!({"labels": {"a": "b"}}), "web.shop.example.com web.shop.lab.example"),
        (json!({"labels": {"c": ""}}), "web.shop.example.com web.shop.lab.example"),
        (json!({"labels": {"k8s-gateway.dns/ignore": "true"}}), ""),
        (json!({"labels": {"k8s-gateway.dns/ignore": "false"}}), "web.shop.example.com"),
        (json!({"annotations": {OWN: "A.example.com, *.b.Example.com."}}), "*.b.example.com a.example.com"),
        (json!({"annotations": {OWN: "a.example.com", OTHER: "b.example.com"}}), "a.example.com"),
        (json!({"annotations": {OTHER: "b.example.com"}}), "b.example.com"),
        (json!({"annotations": {OWN: ""}}), ""),
        (json!({"annotations": {OWN: "a.b"}, "labels": {"c": ""}}), "a.b.example.com a.b.lab.example"),
        (json!({"annotations": {OWN: "a.lab.example,b.example.com"}}), "b.example.com"),
        (json!({"annotations": {OWN: "web.shop.lb.internal,x.y.lb.internal"}}), ""),
        (json!({"annotations": {HOSTNAME: "x.example.com"}}), "web.shop.example.com x.example.com"),
        (json!({"namespace": "kube-system", "name": "dns1"}), ""),
        (json!({"namespace": "internal", "name": "lb"}), "lb.internal.example.com"),
    ] {
        assert_eq!(
            names_of_k8s_gateway(metadata.clone()),
            (expected.to_owned(), String::new()),
            "{metadata}"
        );
    }
}

#[test]
fn reserved_names_of_k8s_gateway_are_refused() {
    for name in ["dns1.kube-system", "x.dns1.kube-system", "two.kube-system.example.com", "deleted"] {
        let (names, why) = names_of_k8s_gateway(json!({"annotations": {"coredns.io/hostname": name}}));
        assert!(
            names.is_empty() && why.contains("is reserved for example.com itself"),
            "{name}: {names} {why}"
        );
    }
    for name in ["example.com", "b..a", "-a"] {
        let (names, why) = names_of_k8s_gateway(json!({"annotations": {"coredns.io/hostname": name}}));
        assert!(names.is_empty() && !why.is_empty(), "{name}: {names} {why}");
    }
    for name in ["dns.example.com", "kube-system.example.com", "dns2.kube-system"] {
        let (names, why) = names_of_k8s_gateway(json!({"annotations": {"coredns.io/hostname": name}}));
        assert!(!names.is_empty() && why.is_empty(), "{name}: {names} {why}");
    }
}

#[test]
fn annotations_of_ours_obey_the_labels_in_zones_of_k8s_gateway() {
    const FURTHER: &str = "external-dns.alpha.kubernetes.io/hostname";
    let annotations = |zone: &str| {
        json!({
            HOSTNAME: format!("a.{zone},a.shop.lb.internal"),
            FURTHER: format!("b.{zone}"),
            INTERNAL_HOSTNAME: format!("int.{zone},int.shop.lb.internal"),
        })
    };
    let names = |zone: &str, labels: serde_json::Value| {
        let metadata = json!({"annotations": annotations(zone), "labels": labels});
        let (observed, why) = observe_in_k8s_gateway(metadata, json!({"ip": "192.0.2.1"}), &[FURTHER]);
        let Annotations { hostnames, internal, .. } = observed.annotations;
        (hostnames.join(" "), internal.unwrap_or_default().hostnames.join(" "), why)
    };
    for (zone, labels, selects) in [
        ("example.com", json!({}), true),
        ("example.com", json!({"k8s-gateway.dns/ignore": "true"}), false),
        ("lab.example", json!({"c": ""}), true),
        ("lab.example", json!({"x": ""}), false),
    ] {
        let (hostnames, internal, why) = names(zone, labels.clone());
        let of_zone = [&*hostnames, &*internal].map(|names| names.contains(&format!(".{zone}")));
        assert_eq!(of_zone, [selects; 2], "{zone} {labels}: {hostnames} {internal}");
        assert!(hostnames.contains("a.shop.lb.internal") && internal.contains("int.shop.lb.internal"));
        let refused = format!("isn't served: the labels of the load balancer give it no names in {zone}");
        assert_eq!(why.matches(&refused).count(), if selects { 0 } else { 3 }, "{zone} {labels}: {why}");
    }
}

#[test]
fn hostname_of_a_name_server_is_reported() {
    let hostname = json!({"hostname": "lb.example.net"});
    for (namespace, name, entry, expected) in [
        ("kube-system", "dns1", hostname.clone(), 2),
        ("kube-system", "two", hostname.clone(), 2),
        ("kube-system", "dns1", json!({"ip": "192.0.2.53"}), 0),
        ("shop", "dns1", hostname, 0),
    ] {
        let (_, why) = observe_in_k8s_gateway(json!({"namespace": namespace, "name": name}), entry, &[]);
        let count = |zone: &str| {
            let text = format!("the address of the name server \"{name}.{namespace}.{zone}\" isn't served: ");
            usize::from(
                why.contains(&text) || why.contains(&format!("; \"{name}.{namespace}.{zone}\" isn't served")),
            )
        };
        assert_eq!(count("example.com") + count("lab.example"), expected, "{namespace}/{name}: {why}");
        assert_eq!(why.is_empty(), expected == 0, "{why}");
    }
}
