use hickory_proto::rr::Name;
use serde_json::{Value, json};

use super::*;
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::owner::{Claims, Owner, Zone};
use crate::store::OnGone;
use crate::sync::source::service_links::set_override;

/// Returns a store with these load balancers: namespace, name, hostname or address, and the allowed namespaces.
fn store(load_balancers: &[(&str, &str, &str, &[&str])]) -> Store {
    let store = Store::new(OnGone::Kept);
    for (namespace, name, target, allowed) in load_balancers {
        store.apply(observed(namespace, name, target, allowed));
    }
    store
}

fn observed(namespace: &str, name: &str, target: &str, allowed: &[&str]) -> ObservedService {
    let address: Option<IpAddr> = target.parse().ok();
    let hostname =
        address.is_none().then(|| Hostname::from(&Name::from_ascii(format!("{target}.")).unwrap()));
    ObservedService {
        key: ServiceKey::new(namespace, name),
        uid: "uid".into(),
        created: None,
        resource_version: None,
        ingress: Ingress {
            hostnames: hostname.into_iter().collect(),
            addresses: address.into_iter().collect(),
        },
        ports: Arc::default(),
        annotations: Annotations {
            allow_from: allowed.iter().map(|&namespace| Arc::from(namespace)).collect(),
            ..Annotations::default()
        },
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn service(namespace: &str, name: &str, spec: Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "7"}, "spec": spec
    }))
    .unwrap()
}

fn external(namespace: &str, name: &str, hostname: &str) -> Service {
    service(namespace, name, json!({"type": "ExternalName", "externalName": hostname}))
}

fn found(store: &Store, services: Vec<Service>) -> (Scan, Vec<Candidate>) {
    find(&Objects { services, ..Objects::default() }, store, "external-targets")
}

#[test]
fn service_with_the_hostname_of_one_load_balancer_is_exact() {
    let store = store(&[("lb", "a", "a.lb.example", &["shop"]), ("lb", "b", "b.lb.example", &[])]);
    let services = vec![
        external("shop", "one", "A.LB.example."),
        external("shop", "two", "b.lb.example"),
        external("lb", "three", "b.lb.example"),
    ];
    let (scan, candidates) = found(&store, services);
    let short: Vec<_> = scan
        .exact
        .iter()
        .map(|it| (&*it.namespace, &*it.service, &*it.load_balancer, it.needs_allow_from))
        .collect();
    assert_eq!(
        short,
        [("lb", "three", "lb/b", false), ("shop", "one", "lb/a", false), ("shop", "two", "lb/b", true)]
    );
    assert_eq!(
        (scan.exact[1].allowed.as_slice(), scan.exact[1].version.as_deref()),
        (&["shop".to_owned()][..], Some("7"))
    );
    assert_eq!(candidates, []);
}

#[test]
fn hostname_of_several_load_balancers_is_ambiguous() {
    let store = store(&[("lb", "b", "a.lb.example", &[]), ("lb", "a", "a.lb.example", &[])]);
    let (scan, _) = found(&store, vec![external("shop", "one", "a.lb.example")]);
    assert_eq!(scan.exact, []);
    assert_eq!(scan.ambiguous[0].load_balancers, ["lb/a", "lb/b"]);
}

#[test]
fn unknown_hostname_in_the_clouds_domain_is_a_candidate() {
    let store = store(&[("lb", "a", "a.lb.example", &[])]);
    let services = vec![
        external("shop", "stale", "old.lb.example"),
        external("shop", "foreign", "db.other.example"),
        external("shop", "deeper", "x.old.lb.example"),
        external("shop", "short", "example"),
    ];
    let (scan, candidates) = found(&store, services);
    let names: Vec<&str> = candidates.iter().map(|it| it.service.as_str()).collect();
    assert_eq!((scan, names), (Scan::default(), vec!["stale"]));
}

#[test]
fn external_targets_and_following_services_are_left_out() {
    let store = store(&[("lb", "a", "a.lb.example", &[])]);
    let mut follows = external("shop", "follows", "a.lb.example");
    follows.metadata.annotations = Some([(SOURCE.to_owned(), "lb/a".to_owned())].into());
    let mut labelled: Service = external("elsewhere", "a-lb-ext", "a.lb.example");
    labelled.metadata.labels = Some(
        [
            ("app.kubernetes.io/managed-by", "lb-linker-operator"),
            ("original-service-name", "a"),
            ("original-service-namespace", "lb"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    );
    let mut external_target = external("external-targets", "b-lb-ext", "a.lb.example");
    external_target.metadata.labels.clone_from(&labelled.metadata.labels);
    let services = vec![
        follows,
        external_target,
        external("external-targets", "a-lb-ext", "a.lb.example"),
        service("shop", "cluster", json!({"type": "ClusterIP", "externalName": "a.lb.example"})),
    ];
    assert_eq!(found(&store, services), (Scan::default(), Vec::new()));
    // Elsewhere, each user may set the labels, and another lb-linker may have written the object.
    let notice = "objects outside of namespace external-targets with lb-linker's labels, which each user may set, are left \
                  out: elsewhere/a-lb-ext; if no other lb-linker has written an object, remove its label \
                  app.kubernetes.io/managed-by";
    let expected = Scan { notices: vec![notice.to_owned()], ..Scan::default() };
    assert_eq!(found(&store, vec![labelled]), (expected, Vec::new()));
    // A Service in the namespace of external targets isn't one of them if no link's external target has its name.
    let (scan, _) = found(&store, vec![external("external-targets", "database", "a.lb.example")]);
    assert_eq!(scan.exact.len(), 1);
}

#[test]
fn endpoints_with_an_address_of_a_load_balancer_are_found() {
    let store = store(&[("lb", "a", "192.0.2.1", &[])]);
    let slice = |namespace: &str, service: &str, address: &str| {
        serde_json::from_value::<EndpointSlice>(json!({
            "metadata": {"namespace": namespace, "name": format!("{service}-1"),
                "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}]
        }))
        .unwrap()
    };
    let endpoints = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "old"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}, {"ip": "nonsense"}]}, {"addresses": null}]
    }));
    let objects = Objects {
        services: vec![
            service("shop", "db", json!({"clusterIP": "None"})),
            service("shop", "pods", json!({"selector": {"app": "web"}})),
        ],
        slices: vec![
            slice("shop", "db", "192.0.2.1"),
            slice("shop", "pods", "192.0.2.1"),
            slice("shop", "other", "192.0.2.9"),
            slice("external-targets", "a-lb-ext", "192.0.2.1"),
        ],
        endpoints: vec![endpoints.unwrap()],
        ..Objects::default()
    };
    let (scan, _) = find(&objects, &store, "external-targets");
    let short: Vec<_> = scan.addresses.iter().map(|it| (it.kind, &*it.name, &*it.replacement)).collect();
    assert_eq!(
        short,
        [
            ("EndpointSlice", "db-1", "external-targets/a-lb-ext"),
            ("Endpoints", "old", "external-targets/a-lb-ext")
        ]
    );
}

#[test]
fn load_balancers_of_remote_clusters_are_found_by_target() {
    let store = store(&[("lb", "a", "both.lb.example", &[]), ("lb", "b", "192.0.2.1", &[])]);
    let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
    let other = Zone::from(&Name::from_ascii("zz.internal.").unwrap());
    let remotes = ["west".into(), "east".into()];
    store.set_zones([zone, other].into_iter().flat_map(|zone| zone.with_remotes(&remotes)));
    for (namespace, name, target, names) in [
        ("west/shop", "web", "both.lb.example", "web.shop.west.lb.internal"),
        ("west/shop", "db", "db.west.example", "db.shop.west.lb.internal,db.shop.west.zz.internal"),
        ("east/shop", "db", "db.west.example", "other.shop.east.lb.internal,db.shop.east.lb.internal"),
        ("west/shop", "one", "192.0.2.1", "one.shop.west.lb.internal"),
        ("west/shop", "two", "192.0.2.2", "two.shop.west.lb.internal"),
        // It has no name.
        ("west/shop", "mine", "mine.west.example", ""),
    ] {
        let link = Arc::new(observed(namespace, name, target, &[]).link(None, false));
        // As for all sources but the home cluster's load balancers, each name has an owner.
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let key = ServiceKey::new(namespace, name);
            let owner = Owner { source: Source::SERVICES.in_cluster_of(namespace), key };
            store.observe(
                &owner,
                &Claims { created: 1, names: [name.into()].into(), ..Claims::default() },
                &link,
                None,
            );
        }
    }
    let slice = |name: &str, address: &str| -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}]
        }))
        .unwrap()
    };
    let services = vec![
        external("a", "both", "both.lb.example"),
        external("a", "db", "db.west.example"),
        external("a", "mine", "mine.west.example"),
        external("a", "old", "old.west.example"),
    ];
    let slices = vec![slice("one", "192.0.2.1"), slice("two", "192.0.2.2")];
    let objects = Objects { services, slices, ..Objects::default() };
    let (scan, candidates) = find(&objects, &store, "external-targets");
    assert_eq!((scan.exact.len(), &*scan.exact[0].load_balancer), (1, "lb/a"));
    let remote = |it: &RemoteMatch| format!("{} {} {}", it.service, it.remote.cluster, it.remote.name);
    let expected = ["db east db.shop.east.lb.internal", "db west db.shop.west.lb.internal"];
    assert_eq!(scan.remote.iter().map(remote).collect::<Vec<_>>(), expected);
    assert_eq!(scan.remote[0].remote.load_balancer, "shop/db");
    let short: Vec<_> = scan.addresses.iter().map(|it| (&*it.load_balancer, &*it.replacement)).collect();
    assert_eq!(
        short,
        [("lb/b", "external-targets/b-lb-ext"), ("west/shop/two", "two.shop.west.lb.internal")]
    );
    let names: Vec<&str> = candidates.iter().map(|it| it.service.as_str()).collect();
    assert_eq!(names, ["mine", "old"]);
}

#[test]
fn labelled_slice_in_another_namespace_is_left_out() {
    let store = store(&[("lb", "a", "192.0.2.1", &[])]);
    let slice = |name: &str, address: &str| -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name, "labels": {
                "kubernetes.io/service-name": "db", "app.kubernetes.io/managed-by": "lb-linker-operator",
                "original-service-name": "a", "original-service-namespace": "lb"
            }},
            "addressType": "IPv4", "endpoints": [{"addresses": [address]}]
        }))
        .unwrap()
    };
    let slices = vec![slice("db-1", "192.0.2.1"), slice("db-2", "192.0.2.9")];
    let (scan, _) = find(&Objects { slices, ..Objects::default() }, &store, "external-targets");
    assert_eq!(scan.addresses, []);
    assert!(
        scan.notices[0].contains("which each user may set, are left out: shop/db-1; "),
        "{:?}",
        scan.notices
    );
}

#[test]
fn mirrored_slice_is_reported_once_with_its_endpoints() {
    let store = store(&[("lb", "a", "192.0.2.1", &[])]);
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "db-x7k2p", "labels": {
            "kubernetes.io/service-name": "db",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"
        }},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]
    }))
    .unwrap();
    let endpoints = |addresses: &str| -> Endpoints {
        let subset = json!({addresses: [{"ip": "192.0.2.1"}]});
        let object = json!({"metadata": {"namespace": "shop", "name": "db"}, "subsets": [subset]});
        serde_json::from_value(object).unwrap()
    };
    let names = |endpoints: Vec<Endpoints>| -> Vec<String> {
        let objects = Objects { slices: vec![slice.clone()], endpoints, ..Objects::default() };
        let (scan, _) = find(&objects, &store, "external-targets");
        scan.addresses.into_iter().map(|it| it.name).collect()
    };
    assert_eq!(names(vec![endpoints("addresses")]), ["db"]);
    assert_eq!(names(vec![endpoints("notReadyAddresses")]), ["db"]);
    // lb-linker may lack the permission to read Endpoints.
    assert_eq!(names(Vec::new()), ["db-x7k2p"]);
}

#[test]
fn hostname_of_a_source_is_found_with_its_stable_name() {
    let store = store(&[("shop", "web", "a.lb.example", &[]), ("dr", "web", "b.lb.example", &[])]);
    let announced = Hostname::from(&Name::from_ascii("lb.fixed.example.").unwrap());
    let link_override = LinkOverride {
        announced: Announcement::Target(Target::Hostname(announced)),
        annotations: Annotations { allow_from: [Arc::from("app")].into(), ..Annotations::default() },
        ..LinkOverride::default()
    };
    set_override(&store, &ServiceKey::new("shop", "web"), link_override, None);
    let object = json!({
        "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"sources": [
            {"name": "seoul", "service": {"name": "web"}}, {"name": "standby", "hostname": "standby.example"},
            {"name": "fixed", "hostname": "lb.fixed.example"},
        ]},
        "status": {"sources": [{"name": "seoul", "offers": "next.lb.example"}, {"name": "standby"}],
            "history": [{"source": "seoul", "display": "old.lb.example"}, {"display": "192.0.2.1, 192.0.2.2"}]},
    });
    let hosts =
        ["a.lb.example", "standby.example", "next.lb.example", "old.lb.example", "other.fixed.example"];
    let services = hosts.into_iter().map(|host| external("app", host, host)).chain([
        external("app", "current", "lb.fixed.example"),
        external("shop", "own", "lb.fixed.example"),
        external("app", "dr", "b.lb.example"),
        external("app", "stale", "gone.lb.example"),
    ]);
    let objects = Objects {
        services: services.collect(),
        stable_names: vec![serde_json::from_value(object).unwrap()],
        ..Objects::default()
    };
    let (scan, candidates) = find(&objects, &store, "external-targets");
    let names: Vec<&str> = scan.sources.iter().map(|it| &*it.service).collect();
    // A tenant may write any hostname as a fixed source: Services of other namespaces don't follow it.
    let expected = ["a.lb.example", "current", "next.lb.example", "old.lb.example", "standby.example"];
    assert_eq!(names, expected);
    assert!(scan.sources.iter().all(|it| it.stable_names == ["shop/web"]));
    let exact: Vec<_> = scan
        .exact
        .iter()
        .map(|it| (&*it.service, &*it.load_balancer, it.is_stable_name, it.needs_allow_from))
        .collect();
    assert_eq!(exact, [("dr", "dr/web", false, true), ("own", "shop/web", true, false)]);
    let candidates: Vec<&str> = candidates.iter().map(|it| &*it.service).collect();
    assert_eq!(candidates, ["stale"]);
}

#[test]
fn hostname_of_an_ingress_names_the_ingress() {
    let store = store(&[("lb", "a", "a.lb.example", &[])]);
    let of = |objects: &[&str]| objects.iter().map(|object| (*object).to_owned()).collect();
    let of_targets = [
        ("gone.lb.example".to_owned(), of(&["Ingress shop/web", "Ingress shop/api"])),
        ("a.lb.example".to_owned(), of(&["Ingress shop/web"])),
    ];
    let services = vec![external("shop", "one", "Gone.lb.example."), external("lb", "two", "a.lb.example")];
    let objects = Objects { services, of_targets: of_targets.into(), ..Objects::default() };
    let (scan, candidates) = find(&objects, &store, "external-targets");
    assert_eq!((scan.exact.len(), candidates.len()), (1, 0), "the load balancer goes first");
    let [TargetMatch { service, objects, .. }] = &scan.targets[..] else { panic!("{scan:?}") };
    assert_eq!((&**service, &objects.join(",")[..]), ("one", "Ingress shop/api,Ingress shop/web"));
}
