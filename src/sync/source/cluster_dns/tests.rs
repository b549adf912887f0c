//! Tests with an API server stub.

mod mutated;

use std::convert::Infallible;

use axum::body::Body;
use axum::http::Response;
use hickory_proto::rr::RecordType;
use kube::client::Body as Sent;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::captured_log::CapturedLog;
use crate::metrics::MetricGroup;
use crate::model::names;
use crate::store::cluster::answer::{Outcome, PodMode, Rules};
use crate::store::cluster::external::ExternalRules;
use crate::store::cluster::registry::{ClusterSpec, Connection};

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}

/// Returns the events of a streamed list.
fn list(objects: &[Value]) -> String {
    let end = json!({ "metadata": { "resourceVersion": "900", "annotations": { "k8s.io/initial-events-end": "true" } } });
    objects.iter().map(|object| event("ADDED", object)).chain([event("BOOKMARK", &end)]).collect()
}

/// What comes after it in a stream comes 5 s later: the watches of several kinds have no common order.
const PAUSE: &str = "PAUSE\n";

/// Watches an API server that answers the list of each resource with these events, once.
fn watch(streams: Vec<(&'static str, String)>) -> (Arc<Cluster>, CancellationToken) {
    watch_with(streams, Connection::Own, &Registry::new())
}

/// As [`watch`], by this connection, with metrics in this registry.
fn watch_with(
    streams: Vec<(&'static str, String)>,
    connection: Connection,
    registry: &Registry,
) -> (Arc<Cluster>, CancellationToken) {
    let has_imports = streams.iter().any(|(resource, _)| *resource == "/serviceimports");
    let streams = parking_lot::Mutex::new(streams);
    let service = tower::service_fn(move |request: axum::http::Request<Sent>| {
        let path = request.uri().path();
        let mut streams = streams.lock();
        let found = streams.iter().position(|(resource, _)| path.ends_with(resource));
        let text = found.map(|at| streams.remove(at).1).unwrap_or_default();
        let status = if text.contains("\"code\":404") { 404 } else { 200 };
        let ends = status == 404;
        let rest = futures::stream::pending().take(usize::from(!ends));
        let parts: Vec<String> = text.split(PAUSE).map(str::to_owned).collect();
        let parts = futures::stream::iter(parts.into_iter().enumerate()).then(|(number, part)| async move {
            sleep(Duration::from_secs(5) * u32::from(number > 0)).await;
            Ok::<_, Infallible>(part)
        });
        let lines = parts.chain(rest);
        std::future::ready(Ok::<_, Infallible>(
            Response::builder().status(status).body(Body::from_stream(lines)).unwrap(),
        ))
    });
    let spec = ClusterSpec { connection, has_imports, ..spec() };
    let (cluster, stop) = (Arc::new(Cluster::new(spec)), CancellationToken::new());
    let watcher = ClusterWatcher {
        cluster: Arc::clone(&cluster),
        client: Client::new(service, "default"),
        availability: ApiAvailability::default(),
        staleness: Arc::new(Staleness::register(registry).unwrap()),
        programming: Arc::new(ProgrammingMetrics::register(registry).unwrap()),
        log: ObjectLog::default(),
    };
    tokio::spawn(watcher.run(stop.clone()));
    (cluster, stop)
}

fn spec() -> ClusterSpec {
    ClusterSpec { has_pods: true, ..ClusterSpec::default() }
}

fn object(namespace: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({ "metadata": { "namespace": namespace, "name": name, "resourceVersion": "7" } });
    for (field, value) in rest.as_object().unwrap() {
        match (field.as_str(), value.as_object()) {
            ("metadata", Some(more)) => object["metadata"].as_object_mut().unwrap().extend(more.clone()),
            _ => object[field] = value.clone(),
        }
    }
    object
}

fn rules() -> Rules {
    Rules {
        zones: vec![wire("cluster.local")],
        primary: wire("cluster.local"),
        pods: PodMode::Verified,
        ttl: 5,
        zonal: false,
        multicluster: Vec::new(),
        ignores_empty: false,
        namespaces: None,
        selects_namespaces: false,
        own_addresses: Vec::new(),
    }
}

fn wire(name: &str) -> Box<[u8]> {
    [&*names::wire_of(name).unwrap(), &[0]].concat().into()
}

/// Returns the number of A records of a name; `None` if it doesn't exist.
fn addresses(cluster: &Cluster, name: &str) -> Option<usize> {
    let name = wire(&format!("{name}.cluster.local"));
    match cluster.answer(&rules(), &wire("cluster.local"), &name, RecordType::A.into()).outcome {
        Outcome::Absent => None,
        Outcome::Records { records, .. } => Some(records.len()),
        _ => Some(0),
    }
}

fn namespace() -> (&'static str, String) {
    let mut namespace = object("", "a", json!({}));
    namespace["metadata"].as_object_mut().unwrap().remove("namespace");
    ("namespaces", list(&[namespace]))
}

#[tokio::test(start_paused = true)]
async fn hostile_objects_stop_no_other_ones() {
    let headless = |name: &str| object("a", name, json!({ "spec": { "clusterIP": "None" } }));
    let many: Vec<Value> =
        (0..12_000).map(|i| json!({ "addresses": [format!("10.1.{}.{}", i / 250, i % 250)] })).collect();
    let slice = |name: &str, service: &str, endpoints: Value| {
        let metadata = json!({ "labels": { "kubernetes.io/service-name": service, "x": 5 } });
        object(
            "a",
            name,
            json!({ "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": null }),
        )
    };
    let odd = json!([
        { "addresses": ["nonsense", "10.0.0.1"], "conditions": { "ready": null } },
        { "addresses": null }, { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
        { "addresses": ["::ffff:10.0.0.3"], "hostname": "no label", "targetRef": { "name": null } },
    ]);
    let streams = vec![
        namespace(),
        (
            "/services",
            list(&[
                object("a", "broken", json!({ "spec": 5 })),
                object("a", "no.label", json!({ "spec": { "clusterIP": "10.0.0.9" } })),
                object("a", "ip", json!({ "spec": { "type": "ExternalName", "externalName": "192.0.2.1" } })),
                object(
                    "a",
                    "long",
                    json!({ "spec": { "type": "ExternalName", "externalName": "x".repeat(3000) } }),
                ),
                object(
                    "a",
                    "ports",
                    json!({ "spec": { "clusterIPs": ["10.0.0.8", "x"], "ports": vec![json!({ "port": -7, "name": "y".repeat(64) }); 2000] } }),
                ),
                object(
                    "a",
                    "external",
                    json!({ "spec": { "externalIPs": ["192.0.2.1", "x y", "192.0.2.1"],
                        "ports": [{ "port": 80 }] }, "status": { "loadBalancer": {
                        "ingress": [{}, { "ip": "192.0.2.2", "hostname": "x" }, { "hostname": "LB.Example.org" },
                            { "hostname": "x".repeat(3000) }, { "ip": "", "hostname": null }] } } }),
                ),
                object("a", "null", json!({ "status": { "loadBalancer": null } })),
                headless("odd"),
                headless("many"),
                headless("names"),
            ]),
        ),
        (
            "/endpointslices",
            list(&[
                slice("odd-1", "odd", odd),
                slice("many-1", "many", json!(many)),
                slice("bad", "odd", json!("x")),
                object(
                    "a",
                    "fqdn",
                    json!({ "metadata": { "labels": { "kubernetes.io/service-name": "names" } },
                "addressType": "FQDN", "endpoints": [{ "addresses": ["10.0.0.7"] }] }),
                ),
                object(
                    "a",
                    "free",
                    json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["10.0.0.7"] }] }),
                ),
            ]),
        ),
        (
            "/pods",
            list(&[
                object(
                    "a",
                    "p",
                    json!({ "status": { "podIP": "10.2.0.1", "podIPs": [{ "ip": "10.2.0.2" }, {}] } }),
                ),
                object(
                    "a",
                    "q",
                    json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "podIP": "10.2.0.3" } }),
                ),
            ]),
        ),
    ];
    let (cluster, _stop) = watch(streams);
    cluster.listed().await;
    for (name, expected) in [
        ("broken.a.svc", None),
        ("ip.a.svc", None),
        ("long.a.svc", None),
        ("ports.a.svc", Some(1)),
        ("odd.a.svc", Some(2)),
        ("many.a.svc", Some(4096)),
        ("names.a.svc", None),
        ("10-2-0-1.a.pod", Some(1)),
        ("10-2-0-2.a.pod", Some(1)),
        ("10-2-0-3.a.pod", None),
        ("absent.a.svc", None),
    ] {
        assert_eq!(addresses(&cluster, name), expected, "{name}");
    }
    assert!(!format!("{cluster:?}").contains("yyy"), "a port name that can't be asked for is kept");
    for (qtype, expected) in [(RecordType::A, 2), (RecordType::SRV, 4)] {
        let zones = vec![wire("ex.test")];
        let external = ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false };
        let (zone, name) = (wire("ex.test"), wire("external.a.ex.test"));
        let answer = cluster.external_answer(&rules(), &external, &zone, &name, qtype.into());
        let Outcome::Records { records, .. } = answer.outcome else { panic!("{answer:?}") };
        assert_eq!(records.len(), expected, "{qtype}: {records:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_slices_are_timed_from_their_cause() {
    let service = |name: &str, ip: &str| object("a", name, json!({ "spec": { "clusterIP": ip } }));
    let slice = |service: &str, at: Value| {
        let metadata = json!({ "labels": { "kubernetes.io/service-name": service },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": at } });
        object("a", "slice", json!({ "metadata": metadata, "addressType": "IPv4" }))
    };
    let now = Timestamp::now();
    let slices = [
        ("ADDED", slice("headless", json!(now))),
        ("MODIFIED", slice("headless", json!("2026-01-02T03:04:05.6789Z"))),
        ("MODIFIED", slice("web", json!("2026-01-02T03:04:05+02:00"))),
        ("DELETED", slice("headless", json!(now))),
        ("ADDED", slice("absent", json!(now))),
        ("ADDED", slice("web", json!("yesterday"))),
        ("ADDED", slice("web", Value::Null)),
    ];
    let events = slices.into_iter().zip(901..).map(|((kind, mut slice), version)| {
        slice["metadata"]["resourceVersion"] = json!(version.to_string());
        event(kind, &slice)
    });
    let events: String = events.collect();
    let listed = [slice("headless", json!(now)), slice("web", json!(now))];
    let streams = vec![
        namespace(),
        ("/services", list(&[service("headless", "None"), service("web", "10.0.0.1")])),
        ("/endpointslices", format!("{}{PAUSE}{events}", list(&listed))),
        ("/pods", list(&[])),
    ];
    let registry = Registry::new();
    let (cluster, _stop) = watch_with(streams, Connection::Own, &registry);
    cluster.listed().await;
    sleep(Duration::from_secs(10)).await;
    let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let counts: Vec<&str> = page.lines().filter(|line| line.contains("duration_seconds_count")).collect();
    let name = "coredns_kubernetes_dns_programming_duration_seconds_count";
    let expected = [("cluster_ip", 1), ("headless_with_selector", 3)]
        .map(|(kind, number)| format!("{name}{{service_kind=\"{kind}\"}} {number}"));
    assert_eq!(counts, expected);
    for bound in ["0.001", "524.288"] {
        assert!(page.contains(&format!("service_kind=\"cluster_ip\",le=\"{bound}\"}} 0")), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_name_the_connection_that_isnt_the_own_one() {
    let gone = event("ERROR", &json!({ "kind": "Status", "code": 500, "message": "broken" }));
    let connection = Connection::Kubeconfig { path: "/etc/other".into(), context: Some("far".to_owned()) };
    let (cluster, _stop) = watch_with(vec![("/services", gone)], connection, &Registry::new());
    sleep(Duration::from_secs(1)).await;
    let why = cluster.failure().unwrap();
    assert!(why.contains("Services of context \"far\" of kubeconfig /etc/other in all namespaces"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn missing_imports_are_none_and_are_listed_again() {
    let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
    let missing = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 });
    let slice = |name: &str, id: &str| {
        let labels = json!({ "multicluster.kubernetes.io/service-name": "db", "multicluster.kubernetes.io/source-cluster": id });
        object(
            "a",
            name,
            json!({ "metadata": { "labels": labels }, "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.9.0.1"], "hostname": "db-0" }] }),
        )
    };
    let import = json!({ "spec": { "type": "Headless", "ports": null, "ips": null } });
    let streams = vec![
        namespace(),
        ("/services", list(&[])),
        ("/endpointslices", list(&[slice("db-1", "EAST"), slice("db-2", "a.b")])),
        ("/pods", list(&[])),
        ("/serviceimports", missing.to_string()),
        ("/serviceimports", list(&[object("a", "db", import)])),
    ];
    let (cluster, _stop) = watch(streams);
    let began = Instant::now();
    cluster.listed().await;
    assert!(began.elapsed() < Duration::from_secs(2) && cluster.failure().is_none());
    assert_eq!(cluster.number(Kind::Slices), 1);
    let found = || {
        let rules = Rules { multicluster: vec![wire("cluster.local")], ..rules() };
        let name = wire("db-0.east.db.a.svc.cluster.local");
        let answer = cluster.answer(&rules, &wire("cluster.local"), &name, RecordType::A.into());
        matches!(answer.outcome, Outcome::Records { .. })
    };
    sleep(Duration::from_secs(20)).await;
    assert!(!found());
    sleep(Duration::from_secs(20)).await;
    assert!(found() && began.elapsed() < Duration::from_secs(45));
    let about = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    let missing = "ServiceImports aren't served by the API server (no CRD); asked for again every 30 s";
    assert_eq!(
        [about(missing), about("ServiceImports for DNS: 1"), about("ServiceImports for DNS: ")],
        [1; 3]
    );
}

#[tokio::test(start_paused = true)]
async fn imports_that_go_missing_need_a_second_list() {
    let missing = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404 });
    let gone =
        event("ERROR", &json!({ "kind": "Status", "code": 410, "message": "too old", "reason": "Expired" }));
    let all: Vec<Value> = (0..20).map(|i| object("a", &format!("i{i}"), json!({ "spec": {} }))).collect();
    let streams = vec![
        namespace(),
        ("/services", list(&[])),
        ("/endpointslices", list(&[])),
        ("/pods", list(&[])),
        ("/serviceimports", format!("{}{gone}", list(&all))),
        ("/serviceimports", missing.to_string()),
        ("/serviceimports", missing.to_string()),
    ];
    let (cluster, _stop) = watch(streams);
    cluster.listed().await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.number(Kind::Imports), 20, "the resource is doubted to be gone");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.number(Kind::Imports), 0);
}

#[tokio::test(start_paused = true)]
async fn list_that_lacks_most_services_needs_a_second_one() {
    let service =
        |i: usize| object("a", &format!("s{i}"), json!({ "spec": { "clusterIP": format!("10.0.0.{i}") } }));
    let all: Vec<Value> = (0..50).map(service).collect();
    let deleted = object("a", "s7", json!({ "metadata": { "resourceVersion": "901" } }));
    let deleted = event("DELETED", &deleted);
    let gone =
        event("ERROR", &json!({ "kind": "Status", "code": 410, "message": "too old", "reason": "Expired" }));
    let streams = vec![
        namespace(),
        ("/services", format!("{}{deleted}{gone}", list(&all))),
        ("/services", list(&all[..5])),
        ("/services", list(&all[..5])),
        ("/endpointslices", list(&[])),
        ("/pods", list(&[])),
    ];
    let (cluster, _stop) = watch(streams);
    cluster.listed().await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.number(Kind::Services), 49, "the second list is doubted");
    assert_eq!((addresses(&cluster, "s7.a.svc"), addresses(&cluster, "s49.a.svc")), (None, Some(1)));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(cluster.number(Kind::Services), 5, "the third one confirms it");
}
