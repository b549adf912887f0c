//! Tests of the watch of load balancers with an API server stub.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::Response;
use hickory_proto::rr::Name;
use kube::client::Body as Sent;
use prometheus::IntCounter;
use serde_json::{Value, json};

use crate::model::link::{Annotations, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::names;
use crate::model::owner::Zone;
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::model::target_policy::TargetPolicy;
use crate::store::fallback::Fallback;
use crate::store::{Input, OnGone};
use crate::sync::events::Recorder;
use crate::sync::k8s::errors::WatchLog;
use crate::sync::k8s::listed::Reading;
use crate::sync::source::cluster::*;
use crate::sync::source::service_links::{insert_from_snapshot, service_link, set_override};
use crate::sync::test_support;

/// Returns a watcher with a stub that answers each request for a streamed list with the next of these lists. Other
/// requests, and further lists, get no data.
fn source(lists: Vec<Vec<Value>>) -> ServiceWatcher {
    source_with(lists, None)
}

/// Like [`source`]; requests by name are answered with the Service `named`.
fn source_with(lists: Vec<Vec<Value>>, named: Option<Value>) -> ServiceWatcher {
    let lists = Mutex::new(lists.into_iter());
    let service = tower::service_fn(move |request: axum::http::Request<Sent>| {
        let query = request.uri().query().unwrap_or_default();
        if let Some(named) = named.as_ref().filter(|_| query.contains("metadata.name")) {
            let list = json!({"metadata": {"resourceVersion": "5"}, "items": [named]});
            return std::future::ready(Ok(Response::new(Body::from(list.to_string()))));
        }
        let is_list = query.contains("sendInitialEvents=true");
        let lines = if is_list { lists.lock().next() } else { None }.unwrap_or_default();
        let lines = lines.into_iter().map(|line| Ok::<_, Infallible>(format!("{line}\n")));
        let body = Body::from_stream(futures::stream::iter(lines).chain(futures::stream::pending()));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let zones = vec![Name::from_ascii("lb.internal.").unwrap()];
    let store = Arc::new(Store::new(OnGone::Dropped));
    store.set_zones(&zones);
    store.set_known(Input::ExternalTargets);
    store.set_known(Input::StableNames);
    let leadership = Leadership::unconditional();
    ServiceWatcher {
        list_hint: WatchLog::READING,
        client: Client::new(service, "default"),
        availability: ApiAvailability::default(),
        selection: Arc::default(),
        hostname_policy: Arc::new(HostnamePolicy {
            targets: TargetPolicy { zones, ..Default::default() },
            ..Default::default()
        }),
        sets_finalizer: false,
        keeps_unlisted: false,
        delete_delay: Duration::from_secs(600),
        store,
        persisted: Arc::default(),
        link_reporter: test_support::link_reporter(),
        metrics: test_support::metrics(),
        staleness: test_support::metrics(),
        leadership,
        rewinds: RestoreCounter::default(),
        listed: tokio::sync::watch::Sender::default(),
        first_list: tokio::sync::watch::Sender::default(),
        own_targets: Arc::default(),
        unselected: Arc::default(),
    }
}

fn event(kind: &str, key: &str, host: &str, annotations: &Value) -> Value {
    let (namespace, name) = key.split_once('/').unwrap();
    json!({"type": kind, "object": {
        "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "5", "annotations": annotations},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"hostname": host}]}},
    }})
}

fn added(key: &str) -> Value {
    event("ADDED", key, "cloud.example", &json!({}))
}

fn opted_out(key: &str) -> Value {
    event("MODIFIED", key, "cloud.example", &json!({"linker.hsj.com/managed": "false"}))
}

fn list_ends() -> Value {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5", "annotations": annotations}}})
}

/// Returns an event that causes a new list.
fn gone() -> Value {
    json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": 410, "reason": "Expired", "message": "too old"}})
}

/// Returns the store after this many seconds.
async fn after(source: ServiceWatcher, seconds: u64) -> Arc<Store> {
    let store = Arc::clone(&source.store);
    assert!(tokio::time::timeout(Duration::from_secs(seconds), source.run()).await.is_err());
    store
}

fn links(store: &Store) -> Vec<String> {
    let mut links: Vec<String> = store.links().iter().map(|link| link.key.to_string()).collect();
    links.sort();
    links
}

#[tokio::test(start_paused = true)]
async fn last_version_of_a_listed_load_balancer_counts() {
    let first = vec![added("a/web"), added("a/api"), opted_out("a/web"), list_ends()];
    let store = after(source(vec![first]), 5).await;
    assert!(store.is_known(Input::Services));
    assert_eq!(links(&store), ["a/api"]);

    let first = vec![added("a/web"), added("a/api"), list_ends(), gone()];
    let again = vec![added("a/web"), added("a/api"), opted_out("a/web"), list_ends()];
    let store = after(source(vec![first, again]), 5).await;
    assert_eq!(links(&store), ["a/api"]);

    let mut unreadable = added("a/web");
    unreadable["object"]["spec"]["type"] = 5.into();
    let back = event("MODIFIED", "a/web", "new.example", &json!({}));
    let first = vec![unreadable, opted_out("a/web"), back, list_ends()];
    let store = after(source(vec![first]), 5).await;
    assert_eq!(links(&store), ["a/web"]);
}

#[tokio::test(start_paused = true)]
async fn ignored_annotations_have_an_event_and_a_finding() {
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    let ignored = json!({"linker.hsj.com/ttl": "5m", "linker.hsj.com/TTL": "a"});
    let list = vec![
        added("a/web"),
        event("ADDED", "a/old", "cloud.example", &ignored),
        list_ends(),
        event("MODIFIED", "a/web", "cloud.example", &ignored),
        event("MODIFIED", "a/web", "other.example", &ignored),
    ];
    let mut source = source(vec![list]);
    source.link_reporter.recorder = recorder.clone();
    let findings = source.link_reporter.findings.clone();
    after(source, 5).await;
    let queued = recorder.take_queued();
    assert_eq!(queued.len(), 1, "one Event, and none for what exists at the start: {queued:?}");
    let (reason, note) = &queued[0];
    assert_eq!(*reason, Reason::AnnotationIgnored);
    for key in ["a/web", "a/old"] {
        let (namespace, name) = key.split_once('/').unwrap();
        let finding = findings.services.get(&ServiceKey::new(namespace, name)).unwrap();
        assert_eq!(&*finding, &**note);
        assert!(finding.contains("\"5m\"") && finding.contains("linker.hsj.com/TTL"), "{finding}");
    }
}

#[tokio::test(start_paused = true)]
async fn report_of_hostile_annotations_is_bounded() {
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    let key = |number: usize| format!("linker.hsj.com/{}{number}", "X".repeat(50));
    let many: serde_json::Map<String, Value> =
        (0..5_000).map(|number| (key(number), "x".repeat(50).into())).collect();
    let hostile = event("MODIFIED", "a/web", "cloud.example", &many.into());
    let mut source = source(vec![vec![added("a/web"), list_ends(), hostile.clone(), hostile]]);
    source.link_reporter.recorder = recorder.clone();
    let findings = source.link_reporter.findings.clone();
    after(source, 5).await;
    let queued = recorder.take_queued();
    assert!(queued.len() == 1 && queued[0].1.len() <= 1024, "{queued:?}");
    let finding = findings.services.get(&ServiceKey::new("a", "web")).unwrap();
    assert!(finding.len() < 2_000 && finding.contains("and 4997 more"), "{finding}");
}

#[tokio::test(start_paused = true)]
async fn finding_ends_with_its_cause_or_its_service() {
    let ignored = json!({"linker.hsj.com/ttl": "5m"});
    let list = vec![
        event("ADDED", "a/web", "cloud.example", &ignored),
        event("ADDED", "a/api", "cloud.example", &ignored),
        list_ends(),
        event("MODIFIED", "a/web", "cloud.example", &json!({})),
        event("DELETED", "a/api", "cloud.example", &ignored),
    ];
    let source = source(vec![list]);
    let findings = source.link_reporter.findings.clone();
    after(source, 5).await;
    for name in ["web", "api"] {
        assert_eq!(findings.services.get(&ServiceKey::new("a", name)), None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_reports_a_change_of_ports_alone() {
    let with_ports = |ports: Value| {
        let mut event = added("a/web");
        event["object"]["spec"]["ports"] = ports;
        event
    };
    let first = vec![with_ports(json!([{"port": 80}])), list_ends(), gone()];
    let second = vec![with_ports(json!([{"port": 80}, {"port": 443}])), list_ends()];
    let source = source(vec![first, second]);
    let mut feed = source.store.subscribe();
    after(source, 5).await;
    assert!(feed.try_recv().unwrap()[0].before.is_none());
    let change = &feed.try_recv().unwrap()[0];
    assert_eq!((change.owner.key.to_string().as_str(), change.target_change()), ("a/web", None));
}

#[tokio::test(start_paused = true)]
async fn missing_service_stays_until_confirmed_gone() {
    let first = vec![added("a/web"), added("a/api"), list_ends(), gone()];
    // The LISTs by name aren't answered.
    let store = after(source(vec![first, vec![added("a/api"), list_ends()]]), 60).await;
    assert_eq!(links(&store), ["a/api", "a/web"]);
    assert!(store.links().iter().all(|link| !link.is_gone()));
}

#[tokio::test(start_paused = true)]
async fn predecessor_of_a_deleted_undecodable_service_is_gone() {
    let mut successor = opted_out("a/api");
    successor["object"]["metadata"]["uid"] = "new".into();
    successor["object"]["spec"]["type"] = 5.into();
    let mut deleted = successor.clone();
    deleted["type"] = "DELETED".into();
    let first = vec![opted_out("a/api"), added("a/web"), list_ends(), gone()];
    for (events, is_known) in [(vec![], true), (vec![deleted], false)] {
        let again = [vec![successor.clone(), added("a/web"), list_ends()], events].concat();
        let source = source(vec![first.clone(), again]);
        let services = Arc::clone(&source.unselected);
        after(source, 20).await;
        assert_eq!(services.get(&ServiceKey::new("a", "api")).is_some(), is_known);
    }
}

#[tokio::test(start_paused = true)]
async fn predecessor_of_an_unselected_service_is_gone() {
    let deleted = event("DELETED", "a/web", "cloud.example", &json!({}));
    let with_uid = |mut event: Value| {
        event["object"]["metadata"]["uid"] = "new".into();
        event
    };
    let successor = with_uid(opted_out("a/web"));
    let (mut undecodable, mut also_deleted) = (successor.clone(), with_uid(deleted.clone()));
    undecodable["object"]["spec"]["type"] = 5.into();
    also_deleted["object"]["spec"]["type"] = 5.into();
    let mut another_type = successor.clone();
    another_type["object"]["spec"]["type"] = "ClusterIP".into();
    for events in [
        vec![deleted.clone(), successor.clone()],
        vec![successor.clone()],
        vec![another_type],
        vec![undecodable, also_deleted],
    ] {
        let named = successor["object"].clone();
        let first = [vec![added("a/web"), list_ends()], events].concat();
        let store = after(source_with(vec![first], Some(named)), 5).await;
        let link = service_link(&store, &ServiceKey::new("a", "web"));
        assert!(link.is_none_or(|link| link.is_gone()));
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_of_another_service_cancels_no_look_up() {
    let deleted = event("DELETED", "a/web", "cloud.example", &json!({}));
    let mut other = deleted.clone();
    other["object"]["metadata"]["uid"] = "old".into();
    let named = other["object"].clone();
    for (events, is_gone) in [(vec![deleted, other.clone()], true), (vec![other], false)] {
        let first = [vec![added("a/web"), list_ends()], events].concat();
        let store = after(source_with(vec![first], Some(named.clone())), 5).await;
        let link = service_link(&store, &ServiceKey::new("a", "web"));
        assert_eq!(link.is_none_or(|link| link.is_gone()), is_gone);
    }
}

#[tokio::test(start_paused = true)]
async fn list_with_an_unselected_successor_ends_a_kept_link() {
    let selection = Selection { annotated_only: true, ..Selection::default() };
    let selected = event("ADDED", "a/web", "cloud.example", &json!({"linker.hsj.com/managed": "true"}));
    let left = event("MODIFIED", "a/web", "cloud.example", &json!({}));
    let mut successor = added("a/web");
    successor["object"]["metadata"]["uid"] = "new".into();
    let first = vec![selected, list_ends(), left];
    for (again, is_gone) in [(vec![], false), (vec![gone()], true)] {
        let lists = vec![[first.clone(), again].concat(), vec![successor.clone(), list_ends()]];
        let source = ServiceWatcher { selection: Arc::new(selection.clone()), ..source(lists) };
        let store = after(source, 10).await;
        let link = service_link(&store, &ServiceKey::new("a", "web"));
        assert_eq!(link.is_none_or(|link| link.is_gone()), is_gone);
    }
}

#[tokio::test(start_paused = true)]
async fn unselected_services_stay_if_a_list_lacks_too_many() {
    let unselected = |numbers: std::ops::Range<usize>| {
        let services = numbers.map(|number| opted_out(&format!("a/{number}")));
        services.chain([added("a/web"), list_ends()]).collect::<Vec<Value>>()
    };
    for (listed, expected) in [(1, 20), (18, 18)] {
        let first = [unselected(0..20), vec![gone()]].concat();
        let source = source(vec![first, unselected(0..listed)]);
        let services = Arc::clone(&source.unselected);
        after(source, 20).await;
        let is_known = |number: &usize| services.get(&ServiceKey::new("a", &number.to_string())).is_some();
        assert_eq!((0..20).filter(is_known).count(), expected, "{listed} are listed");
    }
}

#[tokio::test(start_paused = true)]
async fn restore_is_noticed_by_the_first_list_of_a_term() {
    let list = |version: &str| {
        let (mut web, mut end) = (added("a/web"), list_ends());
        for line in [&mut web, &mut end] {
            line["object"]["metadata"]["resourceVersion"] = version.into();
        }
        vec![web, end]
    };
    let (leadership, lead) = Leadership::by_hand();
    let source = ServiceWatcher { leadership, ..source(vec![list("500"), list("100")]) };
    let (store, rewinds) = (Arc::clone(&source.store), source.rewinds.clone());
    let run = async { tokio::time::timeout(Duration::from_secs(10), source.run()).await.unwrap_err() };
    let term = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        lead(Some(1));
    };
    tokio::join!(run, term);
    assert_eq!(rewinds.count(), 1);
    assert!(store.serial() > 500, "{}", store.serial());
}

#[tokio::test(start_paused = true)]
async fn own_target_is_not_judged_before_the_list_is_complete() {
    let first = || vec![added("a/guest"), list_ends(), gone()];
    let guest = event("MODIFIED", "a/guest", "host.b.lb.internal", &json!({}));
    let host = event("ADDED", "b/host", "cloud.example", &json!({"linker.hsj.com/allow-from": "a"}));
    let link_of = |store: &Store| store.get(&ServiceKey::new("a", "guest")).unwrap();
    let before = link_of(&*after(source(vec![first()]), 3).await);
    // The second list stops before the host.
    let store = after(source(vec![first(), vec![guest.clone()]]), 8).await;
    assert_eq!(link_of(&store).target, before.target);
    assert_eq!(link_of(&store).state, before.state);
    let store = after(source(vec![first(), vec![guest, host, list_ends()]]), 8).await;
    assert_ne!(link_of(&store).target, before.target);
}

#[tokio::test(start_paused = true)]
async fn own_target_is_checked_when_an_override_changes() {
    let guest = event("ADDED", "a/guest", "host.b.lb.internal", &json!({}));
    let source = source(vec![vec![guest, list_ends()]]);
    let store = Arc::clone(&source.store);
    let (guest, host) = (ServiceKey::new("a", "guest"), ServiceKey::new("b", "host"));
    let state = || store.get(&guest).map(|link| (link.target.is_some(), link.refused));
    let override_for = |allowed: &[&str]| {
        let allow_from = allowed.iter().map(|namespace| Arc::from(*namespace)).collect();
        LinkOverride {
            uid: "sn".into(),
            announced: Announcement::Target(Target::Addresses(["192.0.2.1".parse().unwrap()].into())),
            annotations: Annotations { allow_from, ..Annotations::default() },
            ..LinkOverride::default()
        }
    };
    let changed = async {
        store.known(Input::Services).await;
        assert_eq!(state(), Some((false, true)), "there is no host yet");
        for allowed in [&["a"][..], &[], &["a"]] {
            let mut feed = store.subscribe();
            set_override(&store, &host, override_for(allowed), None).unwrap();
            while feed.recv().await.unwrap().iter().all(|change| change.owner.key != guest) {}
            assert_eq!(state(), Some((true, allowed.is_empty())), "the last valid target stays");
        }
    };
    tokio::select! {
        _ = source.run() => unreachable!(),
        ended = tokio::time::timeout(Duration::from_secs(1), changed) => ended.unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn serial_advances_when_another_watch_notices_a_restore() {
    let list = |version: &str, host| {
        let mut web = event("ADDED", "a/web", host, &json!({}));
        let mut end = list_ends();
        for line in [&mut web, &mut end] {
            line["object"]["metadata"]["resourceVersion"] = version.into();
        }
        vec![web, end]
    };
    let source = source(vec![list("500", "new.example"), list("100", "old.example")]);
    let (store, rewinds) = (Arc::clone(&source.store), source.rewinds.clone());
    let host = |store: &Store| store.get(&ServiceKey::new("a", "web")).unwrap().target.clone();
    let run = async { tokio::time::timeout(Duration::from_secs(10), source.run()).await.unwrap_err() };
    let restore = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = (store.serial(), host(&store));
        rewinds.record_restore("EndpointSlices in namespace external-targets");
        before
    };
    let (_, (serial, target)) = tokio::join!(run, restore);
    assert_eq!(serial, 500);
    assert_ne!(host(&store), target);
    assert!(store.serial() > serial, "{}", store.serial());
}

/// Returns a watcher of the namespaces `a` and `b`, which have a load balancer `web` each. While the flag is set, an
/// authorizer refuses to list `b`.
fn source_of_two_namespaces(is_forbidden: &Arc<AtomicBool>) -> ServiceWatcher {
    let forbids = Arc::clone(is_forbidden);
    let service = tower::service_fn(move |request: axum::http::Request<Sent>| {
        let (path, query) =
            (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let (is_b, forbids) = (path.contains("/b/"), Arc::clone(&forbids));
        let refuses = is_b && forbids.load(Ordering::Relaxed);
        let namespace = if path.contains("/b/") { "b/web" } else { "a/web" };
        let lines = if query.contains("sendInitialEvents=true") {
            vec![added(namespace), list_ends()]
        } else {
            vec![]
        };
        let lines = lines.into_iter().map(|line| Ok::<_, Infallible>(format!("{line}\n")));
        let message = "services is forbidden: User \"lb-linker\" cannot watch resource \"services\" in API group \"\" \
                       in the namespace \"b\"";
        let status = test_support::status(403, "Forbidden", message);
        let end = async move {
            while !is_b || !forbids.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(String::new())
        };
        let (code, body) = if refuses {
            (status.0, Body::from(status.1.to_string()))
        } else {
            (200, Body::from_stream(futures::stream::iter(lines).chain(futures::stream::once(end))))
        };
        std::future::ready(Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()))
    });
    let namespaces: BTreeSet<String> = ["a", "b"].map(ToOwned::to_owned).into();
    let mut source = source(Vec::new());
    source.client = Client::new(service, "default");
    source.selection = Arc::new(Selection { namespaces: namespaces.clone(), ..Selection::default() });
    source.listed = tokio::sync::watch::Sender::new(CompletedLists::new(&namespaces, None));
    source
}

#[tokio::test(start_paused = true)]
async fn forbidden_namespace_delays_its_own_links_only() {
    let is_forbidden = Arc::new(AtomicBool::new(false));
    let source = source_of_two_namespaces(&is_forbidden);
    let term = source.leadership.term();
    let at = |rewinds| ListEpoch { term, rewinds };
    let (listed, rewinds, first, second) = (source.listed.subscribe(), source.rewinds.clone(), at(0), at(1));
    let restored = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(["a", "b"].iter().all(|namespace| listed.borrow().covers(namespace, first)));
        is_forbidden.store(true, Ordering::Relaxed);
        rewinds.record_restore("EndpointSlices in namespace external-targets");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(listed.borrow().is_settled(second));
        assert!(listed.borrow().covers("a", second) && !listed.borrow().covers("b", second));
        is_forbidden.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(listed.borrow().covers("b", second));
    };
    tokio::select! {
        _ = source.run() => unreachable!(),
        () = restored => {}
    }
}

#[tokio::test(start_paused = true)]
async fn namespace_refused_since_the_start_keeps_its_targets() {
    let is_forbidden = Arc::new(AtomicBool::new(true));
    let source = source_of_two_namespaces(&is_forbidden);
    let (store, listed) = (Arc::clone(&source.store), source.listed.subscribe());
    let at = ListEpoch { term: source.leadership.term(), rewinds: 0 };
    let staleness = source.staleness.clone();
    let current_at = || staleness.least_recent(&["load-balancers"]).unwrap();
    let key = |name: &str| ServiceKey::new("b", name);
    let target = Some(Target::Addresses(["192.0.2.1".parse().unwrap()].into()));
    // The external target of b/web, and a snapshot that has b/web, and b/old without an external target.
    let recorded = PersistedTarget {
        target: target.clone(),
        owner: TargetOwner::Uid("web".into()),
        hostnames: Box::default(),
        is_removable: true,
        overridden_by: None,
    };
    store.set_owner("web-b-ext", Some(&key("web")), &[]);
    assert!(source.persisted.record(&store, &key("web"), recorded, false).is_none());
    let saved = Store::new(OnGone::Dropped);
    for name in ["old", "web"] {
        let annotations = Annotations { allow_from: [Arc::from("shop")].into(), ..Annotations::default() };
        insert_from_snapshot(
            &saved,
            &Link { target: target.clone(), annotations, ..Link::new(key(name), name) },
        )
        .unwrap();
    }
    let snapshot = Fallback {
        store: Arc::new(saved),
        taken: jiff::Timestamp::UNIX_EPOCH,
        age_then: Duration::ZERO,
        since: std::time::Instant::now(),
        reason: Mutex::new("".into()),
    };
    assert!(store.set_fallback(Some(Arc::new(snapshot))));
    let steps = async {
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert!(!store.is_known(Input::Services), "a refusal of less than a minute changes nothing");
        let silent_since = current_at();
        tokio::time::timeout(Duration::from_secs(61), store.known(Input::Services)).await.unwrap();
        assert_eq!(links(&store), ["a/web", "b/old", "b/web"]);
        for name in ["old", "web"] {
            let link = store.get(&key(name)).unwrap();
            assert!(link.is_left_out() && link.target == target, "{link:?}");
            assert!(link.is_open_to("shop") && !link.is_open_to("other"), "as in the snapshot: {link:?}");
        }
        let is_unlisted = |labels: &[&str]| {
            let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
            store.may_lack(&zone, &names::wire(labels.iter().map(|label| label.as_bytes())).unwrap())
        };
        assert!(is_unlisted(&["none-b"]) && is_unlisted(&["none", "b"]) && is_unlisted(&["x", "none-b"]));
        assert!(!is_unlisted(&["none-a"]) && !is_unlisted(&["b", "a"]) && !is_unlisted(&["webb"]));
        let cut = names::dashed_label("b", &"x".repeat(63));
        assert!(is_unlisted(&[&cut]), "a cut label may be of any namespace");
        assert!(listed.borrow().covers("a", at) && !listed.borrow().covers("b", at));
        assert!(listed.borrow().is_refused("b", at));
        assert!(current_at() > silent_since, "a snapshot is as current as the other namespace");
        is_forbidden.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(links(&store), ["a/web", "b/web"]);
        assert!(store.links().iter().all(|link| !link.is_left_out()) && !is_unlisted(&["none-b"]));
    };
    tokio::select! {
        _ = source.run() => unreachable!(),
        () = steps => {}
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_load_balancers_are_a_note_until_listed() {
    let is_forbidden = Arc::new(AtomicBool::new(false));
    let source = source_of_two_namespaces(&is_forbidden);
    let (rewinds, findings) = (source.rewinds.clone(), source.link_reporter.findings.clone());
    let notes = || findings.readiness.of_cluster();
    let (listed, term) = (source.listed.subscribe(), source.leadership.term());
    let readings = || {
        let at = ListEpoch { term, rewinds: rewinds.count() };
        ["a", "b"].map(|namespace| listed.borrow().reading(namespace, at))
    };
    let after = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let steps = async {
        after(5).await;
        assert!(notes().is_empty());
        is_forbidden.store(true, Ordering::Relaxed);
        after(30).await;
        assert_eq!(readings(), [Reading::Permitted; 2], "a refusal of less than a minute changes nothing");
        after(90).await;
        assert_eq!(readings(), [Reading::Permitted, Reading::Outdated]);
        rewinds.record_restore("EndpointSlices in namespace external-targets");
        after(1).await;
        let note = notes().join("; ");
        let parts = [
            "LoadBalancer Services in namespace b: the API server forbids it (services is forbidden: ",
            "; DNS answers with the last targets of these Services, and nothing is written for them before",
        ];
        assert!(parts.iter().all(|part| note.contains(part)), "{note}");
        let forbidden = findings.readiness.load_balancers.load_full().unwrap();
        let concerns = |namespace| forbidden.note_for(&ServiceKey::new(namespace, "web")).is_some();
        assert!(concerns("b") && !concerns("a"));
        assert_eq!(readings(), [Reading::Permitted, Reading::Refused]);
        is_forbidden.store(false, Ordering::Relaxed);
        after(60).await;
        assert!(notes().is_empty());
        assert_eq!(readings(), [Reading::Permitted; 2]);
    };
    tokio::select! {
        _ = source.run() => unreachable!(),
        () = steps => {}
    }
}
