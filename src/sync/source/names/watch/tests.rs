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
use crate::sync::test_support;

/// Returns a watcher of names of DNSEndpoints, with a stub that answers each request for a streamed list with the next
/// of these lists. After it, and for other requests, a bookmark comes every 20 s.
fn watcher(lists: Vec<Vec<Value>>) -> NameWatcher {
    let lists = Mutex::new(lists.into_iter());
    let service = tower::service_fn(move |request: axum::http::Request<Sent>| {
        let is_list = request.uri().query().unwrap_or_default().contains("sendInitialEvents=true");
        let lines = if is_list { lists.lock().next() } else { None }.unwrap_or_default();
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
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones([zone]));
    store.set_known(Input::Services);
    NameWatcher {
        cluster: None,
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
