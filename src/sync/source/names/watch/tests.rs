//! Tests of the watch of a source with an API server stub.

use std::convert::Infallible;
use std::pin::pin;

use axum::body::Body;
use axum::http::Response;
use hickory_proto::rr::Name;
use kube::client::Body as Sent;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::model::owner::{Source, Zone};
use crate::model::target_policy::TargetPolicy;
use crate::store::OnGone;
use crate::sync::source::dns_endpoint::DnsEndpoints;
use crate::sync::source::remote_service::RemoteServices;
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::test_support;

/// Returns a watcher of names of DNSEndpoints, with a stub that answers each request for a streamed list with the next
/// of these lists. After it, and for other requests, a bookmark comes every 20 s.
fn watcher(lists: Vec<Vec<Value>>) -> NameWatcher {
    watcher_of(lists, None, false)
}

/// As [`watcher`], in a remote cluster; `is_missing` tells whether a further list is answered with 404.
fn watcher_of(lists: Vec<Vec<Value>>, cluster: Option<&str>, is_missing: bool) -> NameWatcher {
    let lists = Mutex::new(lists.into_iter());
    let service = tower::service_fn(move |request: axum::http::Request<Sent>| {
        let is_list = request.uri().query().unwrap_or_default().contains("sendInitialEvents=true");
        let list = if is_list { lists.lock().next() } else { None };
        if list.is_none() && is_list && is_missing {
            let missing = Response::builder().status(404).body(Body::from("404 page not found"));
            return std::future::ready(Ok(missing.unwrap()));
        }
        let lines = list.unwrap_or_default();
        let bookmarks = futures::stream::repeat(bookmark(&json!({}))).then(|bookmark| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            bookmark
        });
        let lines = futures::stream::iter(lines).chain(bookmarks);
        let body = Body::from_stream(lines.map(|line| Ok::<_, Infallible>(format!("{line}\n"))));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let origin = Name::from_ascii("lb.internal.").unwrap();
    let targets = TargetPolicy { zones: vec![origin.clone()], ..Default::default() };
    let policy = HostnamePolicy { targets, ..Default::default() };
    let zone = Zone { sources: vec![Source::SERVICES, Source::DNS_ENDPOINTS], ..(&origin).into() };
    let remotes: Vec<Arc<str>> = cluster.map(Arc::from).into_iter().collect();
    let policy = HostnamePolicy { remotes: remotes.clone().into(), ..policy };
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zone.with_remotes(&remotes)));
    store.set_known(Input::Services);
    NameWatcher {
        cluster: cluster.map(Arc::from),
        client: Client::new(service, "default"),
        availability: ApiAvailability::default(),
        selection: Arc::default(),
        hostname_policy: watch::Sender::new(Arc::new(policy)).subscribe(),
        store,
        link_reporter: test_support::link_reporter(),
        staleness: test_support::metrics(),
        rewinds: RestoreCounter::default(),
    }
}

/// Returns an event about an object that takes nearly a third of what a namespace may take.
fn large(kind: &str, number: usize) -> Value {
    let targets: Vec<String> = (0..100).map(|target: u8| target.to_string()).collect();
    let entry = |name| {
        let name = format!("n{name}.o{number}.a.lb.internal");
        json!({"dnsName": name, "recordType": "TXT", "targets": targets})
    };
    json!({"type": kind, "object": {
        "metadata": {"namespace": "a", "name": number.to_string(), "uid": "u", "resourceVersion": "5",
            "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z")},
        "spec": {"endpoints": (0..1000).map(entry).collect::<Vec<_>>()},
    }})
}

fn bookmark(annotations: &Value) -> Value {
    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5", "annotations": annotations}}})
}

#[tokio::test(start_paused = true)]
async fn object_that_has_room_again_is_listed_after_five_minutes() {
    let list = |numbers: std::ops::Range<usize>| -> Vec<Value> {
        numbers
            .map(|number| large("ADDED", number))
            .chain([bookmark(&json!({"k8s.io/initial-events-end": "true"}))])
            .collect()
    };
    let first = [list(0..4), vec![large("DELETED", 0)]].concat();
    let watcher = watcher(vec![first, list(1..4)]);
    let store = Arc::clone(&watcher.store);
    let has = |name: &str| store.link_of_host(&Name::from_ascii(name).unwrap()).is_some();
    let mut running = pin!(watcher.follow(DnsEndpoints::default()));
    assert!(timeout(Duration::from_secs(290), &mut running).await.is_err());
    assert_eq!(
        ["n0.o0.a.lb.internal.", "n0.o1.a.lb.internal.", "n0.o3.a.lb.internal."].map(has),
        [false, true, false]
    );
    assert!(timeout(Duration::from_secs(20), &mut running).await.is_err());
    assert!(has("n999.o3.a.lb.internal."));
}

#[tokio::test(start_paused = true)]
async fn remote_objects_with_impossible_names_are_passed_over() {
    let service = |namespace: &str, name: &str| {
        json!({"type": "ADDED", "object": {
            "metadata": {"namespace": namespace, "name": name, "uid": "u", "resourceVersion": "5"},
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
        }})
    };
    let list = vec![
        service("a", "b/c"),
        service("a/b", "web"),
        service("a", "web\n"),
        service("a", "web"),
        bookmark(&json!({"k8s.io/initial-events-end": "true"})),
    ];
    let watcher = NameWatcher { cluster: Some("west".into()), ..watcher(vec![list]) };
    let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
    watcher.store.set_zones(zone.with_remotes(&["west".into()]));
    let known = Arc::<UnselectedServices>::default();
    let running = pin!(watcher.follow(RemoteServices::new(Arc::clone(&known))));
    assert!(timeout(Duration::from_secs(10), running).await.is_err());
    let keys = known.uids_with(|key| Some(key.to_string())).into_iter().map(|(_, key)| key);
    assert_eq!(keys.collect::<Vec<_>>(), ["west/a/web"]);
    let host = Name::from_ascii("web.a.west.lb.internal.").unwrap();
    assert!(watcher.store.link_of_host(&host).is_some());
}

#[tokio::test(start_paused = true)]
async fn late_deletion_of_a_predecessor_removes_no_successor() {
    let event = |kind: &str, uid: &str| {
        let entry = json!({"dnsName": "web.a.lb.internal", "recordType": "A", "targets": ["192.0.2.1"]});
        let metadata = json!({"namespace": "a", "name": "web", "uid": uid, "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z"});
        json!({"type": kind, "object": {"metadata": metadata, "spec": {"endpoints": [entry]}}})
    };
    let end = bookmark(&json!({"k8s.io/initial-events-end": "true"}));
    for (deleted, stays) in [("1", true), ("2", false)] {
        let list = vec![event("ADDED", "1"), event("ADDED", "2"), end.clone(), event("DELETED", deleted)];
        let watcher = watcher(vec![list]);
        let store = Arc::clone(&watcher.store);
        let mut running = pin!(watcher.follow(DnsEndpoints::default()));
        assert!(timeout(Duration::from_secs(10), &mut running).await.is_err());
        let found = store.link_of_host(&Name::from_ascii("web.a.lb.internal.").unwrap());
        assert_eq!(found.is_some(), stays, "{deleted}");
    }
}

#[tokio::test(start_paused = true)]
async fn crd_that_a_remote_cluster_denies_ends_no_names() {
    for (cluster, domain, stays) in [(None, "a", false), (Some("west"), "a.west", true)] {
        let name = format!("web.{domain}.lb.internal");
        let entry = json!({"dnsName": name, "recordType": "A", "targets": ["192.0.2.1"]});
        let metadata = json!({"namespace": "a", "name": "web", "uid": "u", "resourceVersion": "5"});
        let object = json!({"metadata": metadata, "spec": {"endpoints": [entry]}});
        let added = json!({"type": "ADDED", "object": object});
        let list = vec![added, bookmark(&json!({"k8s.io/initial-events-end": "true"}))];
        let watcher = watcher_of(vec![list], cluster, true);
        let (store, rewinds) = (Arc::clone(&watcher.store), watcher.rewinds.clone());
        let has = || store.link_of_host(&Name::from_ascii(format!("{name}.")).unwrap()).is_some();
        let mut running = pin!(watcher.follow(DnsEndpoints::default()));
        assert!(timeout(Duration::from_secs(5), &mut running).await.is_err());
        assert!(has(), "{cluster:?}");
        rewinds.record_new_address();
        assert!(timeout(Duration::from_secs(90), &mut running).await.is_err());
        assert_eq!(has(), stays, "{cluster:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_name_the_cluster_and_the_remedy() {
    let (refusing, _) = test_support::refusing(401, "Unauthorized", "Unauthorized");
    let watcher = NameWatcher { client: refusing, ..watcher_of(Vec::new(), Some("west"), false) };
    let readiness = Arc::clone(&watcher.link_reporter.findings.readiness);
    let mut running = pin!(watcher.follow(RemoteServices::new(Arc::default())));
    assert!(timeout(Duration::from_secs(5), &mut running).await.is_err());
    let note = "can't list load balancers of cluster west: the API server doesn't accept lb-linker's credentials (401 \
                Unauthorized); renew those in the kubeconfig of --remote west; names that aren't known get SERVFAIL";
    assert_eq!(readiness.of_sources(None, |_| true), [note]);
}
