mod left_out;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::model::link::{LinkState, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::store::{Input, OnGone, Store};
use crate::sync::controller::runtime::Ended;
use crate::sync::controller::write_error::WriteError;
use crate::sync::election::Leadership;
use crate::sync::election::term::TERM;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::events::{Reason, Recorder};
use crate::sync::external_target::backend::Backend;
use crate::sync::external_target::decision::{CREATES, WriteClass};
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::external_target::desired::{Desired, IpTargets, Precondition, Stamp, placeholder_name};
use crate::sync::external_target::left_out::ServiceLookup;
use crate::sync::external_target::metrics::ReconcileResult;
use crate::sync::external_target::missing_namespace::{NAMESPACE_HINT, ROLE_HINT};
use crate::sync::external_target::states::ExternalTargetState;
use crate::sync::external_target::write_result::{Answered, Before, SentWrite};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::labels::STABLE_NAME_UID;
use crate::sync::k8s::listed::CompletedLists;
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::k8s::service::Spec;
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::{insert_gone, insert_left_out, set_override};
use crate::sync::test_support;

/// Returns complete lists of all namespaces.
fn lists(term: u64, rewinds: u64) -> CompletedLists {
    CompletedLists::new(&BTreeSet::new(), ListEpoch { term, rewinds })
}

fn reconciler(client: Client) -> Reconciler {
    reconciler_with(client, test_support::link_reporter())
}

fn reconciler_with(client: Client, link_reporter: LinkReporter) -> Reconciler {
    let leadership = Leadership::unconditional();
    Reconciler::new(ReconcilerContext {
        persisted: Arc::default(),
        external_target_states: Arc::default(),
        store: Arc::new(Store::new(OnGone::Kept)),
        backend: Backend::Namespace {
            client: client.clone(),
            availability: ApiAvailability::default(),
            namespace: "external-targets".to_owned(),
            list_hint: "",
        },
        service_lookup: ServiceLookup::Cluster(client),
        looks_up: true,
        selection: Arc::default(),
        hostname_policy: watch::Sender::new(Arc::default()).subscribe(),
        policy: test_support::policy(Some("own")),
        link_reporter,
        metrics: test_support::metrics(),
        api: test_support::metrics(),
        staleness: test_support::metrics(),
        rewinds: RestoreCounter::default(),
        links_listed: watch::Sender::new(lists(leadership.term(), 0)).subscribe(),
        overrides_listed: watch::Sender::new(lists(leadership.term(), 0)).subscribe(),
        leadership,
    })
}

/// Returns a reconciler with a stub that refuses every write by an admission policy, and the number of requests.
fn denied() -> (Reconciler, Arc<AtomicUsize>) {
    let (client, requests) =
        test_support::refusing(422, "Invalid", "ValidatingAdmissionPolicy 'no' denied request: no");
    (reconciler(client), requests)
}

/// Adds a load balancer to the store, and returns its link.
fn load_balancer(reconciler: &Reconciler, name: &str) -> Arc<Link> {
    load_balancer_at(reconciler, name, "cloud.example")
}

/// Adds a load balancer with this hostname to the store, or changes it, and returns its link.
fn load_balancer_at(reconciler: &Reconciler, name: &str, hostname: &str) -> Arc<Link> {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"hostname": hostname}]}},
    }))
    .unwrap();
    let ReconcilerContext { store, hostname_policy, .. } = &reconciler.context;
    store.apply(service.observe(&hostname_policy.borrow(), store).0);
    store.set_known(Input::Services);
    store.get(&service.key()).unwrap()
}

/// Like [`external_target_of`], for the load balancer `web`.
fn external_target(reconciler: &Reconciler, term: &str) -> Object {
    external_target_of(reconciler, "web", term)
}

/// Adds a load balancer to the store, and returns its external target as the API server stores it, with this term.
fn external_target_of(reconciler: &Reconciler, name: &str, term: &str) -> Object {
    stored_for(&load_balancer(reconciler, name), term)
}

/// Returns the external target of a link as the API server stores it, with this term.
fn stored_for(link: &Link, term: &str) -> Object {
    let mut made: Object = Desired::first(link, IpTargets::Headless).service.unwrap().into();
    Stamp { instance: Some("own".to_owned()), term: Some(1) }.put_on(&mut made);
    let mut value = to_json(&made, "7");
    value["metadata"]["uid"] = "o".into();
    value["metadata"]["annotations"][TERM] = term.into();
    assert_eq!(value["metadata"]["annotations"][INSTANCE], "own");
    serde_json::from_value::<Service>(value).unwrap().into()
}

/// Returns an object as JSON with this resourceVersion.
fn to_json(object: &Object, version: &str) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    value["metadata"]["resourceVersion"] = version.into();
    value
}

#[tokio::test]
async fn placeholder_leaves_the_target_of_the_slices() {
    let (mut reconciler, _) = denied();
    let target = Target::Addresses(["192.0.2.1".parse().unwrap()].into());
    let link = load_balancer(&reconciler, "web");
    let link = Link { target: Some(target.clone()), ..Arc::unwrap_or_clone(link) };
    let Desired { service, slices } = Desired::first(&link, IpTargets::Headless);
    let mut service = service.unwrap();
    service.spec = Spec::external_name(&placeholder_name(&link.external_target()));
    for object in slices.into_iter().map(Object::from).chain([service.into()]) {
        reconciler.on_object_event(ObjectEvent::Applied(object));
    }
    assert_eq!(reconciler.recorded_target(&link.key), Some(target));
}

#[tokio::test(start_paused = true)]
async fn denied_annotation_write_backs_off() {
    let (mut reconciler, requests) = denied();
    let object = external_target(&reconciler, "no number");
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    assert!(reconciler.may_write());
    reconciler.queue_all();
    let end = tokio::time::Instant::now() + Duration::from_secs(600);
    while tokio::time::Instant::now() < end {
        reconciler.drain_queue();
        tokio::select! {
            ended = reconciler.runtime.event() => {
                ended.unwrap().into_iter().for_each(|ended| reconciler.on_write_end(ended));
            }
            () = tokio::time::sleep_until(end) => break,
        }
    }
    let requests = requests.load(Ordering::Relaxed);
    assert!((10..=60).contains(&requests), "{requests} in 600 s");
}

#[tokio::test(start_paused = true)]
async fn refusal_of_an_outdated_write_does_not_delay_the_new_target() {
    let (mut reconciler, _) = denied();
    let object = external_target(&reconciler, "no number");
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    reconciler.drain_queue();
    let key = ServiceKey::new("shop", "web");
    assert_eq!(reconciler.runtime.queue.in_flight(), std::slice::from_ref(&key));
    let mut changes = reconciler.context.store.subscribe();
    load_balancer_at(&reconciler, "web", "new.example");
    reconciler.on_link_change(&changes.try_recv().unwrap()[0]);
    let ended = reconciler.runtime.drained().await.unwrap().unwrap();
    reconciler.on_write_end(ended);
    assert!(!reconciler.runtime.queue.has_failed(&key));
    reconciler.drain_queue();
    assert_eq!(reconciler.runtime.queue.in_flight(), [key], "the new target is written at once");
}

#[tokio::test]
async fn no_write_between_a_rewind_and_new_lists() {
    let (mut reconciler, _) = denied();
    let object = external_target(&reconciler, "no number");
    let list = |reconciler: &mut Reconciler| {
        reconciler
            .on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    };
    let term = reconciler.term;
    let links_listed = watch::Sender::new(lists(term, 0));
    reconciler.context.links_listed = links_listed.subscribe();
    reconciler.context.overrides_listed = links_listed.subscribe();
    list(&mut reconciler);
    assert!(reconciler.may_write());
    // The watch of external targets notices the restore.
    reconciler.on_object_event(ObjectEvent::Rewound(ObjectKind::Service));
    assert!(!reconciler.may_write());
    drop(reconciler.begin_term());
    list(&mut reconciler);
    assert!(!reconciler.may_write(), "the load balancers haven't been listed since");
    links_listed.send_replace(lists(term, 1));
    assert!(reconciler.may_write());
    // The watch of load balancers notices the restore.
    reconciler.context.rewinds.record_restore("load balancers");
    links_listed.send_replace(lists(term, 2));
    assert!(!reconciler.may_write(), "the external targets haven't been listed since");
    drop(reconciler.begin_term());
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    assert!(!reconciler.may_write());
    list(&mut reconciler);
    assert!(reconciler.may_write());
}

#[tokio::test(start_paused = true)]
async fn panic_affects_only_its_link() {
    let (mut reconciler, requests) = denied();
    for name in ["before", "defect", "zafter"] {
        load_balancer(&reconciler, name);
    }
    let key = ServiceKey::new("shop", "defect");
    crate::sync::controller::runtime::defect::choose(key.clone());
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    reconciler.drain_queue();
    assert_eq!(reconciler.runtime.queue.in_flight().len(), 2);
    while let Some(written) = reconciler.runtime.drained().await.unwrap() {
        reconciler.on_write_end(written);
    }
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert!(reconciler.runtime.queue.is_backing_off(&key), "the next try comes later");
    assert_eq!(
        reconciler.context.metrics.count(ReconcileResult::Failed),
        3,
        "the panic, and two refused writes"
    );
}

#[tokio::test(start_paused = true)]
async fn targets_written_while_stopping_have_their_events() {
    let answers = Arc::new(Mutex::new(HashMap::<String, Value>::new()));
    let stored = Arc::clone(&answers);
    let client = test_support::client(move |request| {
        assert_eq!(request.method(), "PATCH");
        let name = request.uri().path().rsplit('/').next().unwrap();
        (200, stored.lock()[name].clone())
    });
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    let link_reporter = LinkReporter { recorder: recorder.clone(), ..test_support::link_reporter() };
    let mut reconciler = reconciler_with(client, link_reporter);
    let names: Vec<String> = (0..=MAX_WRITES).map(|number| number.to_string()).collect();
    let objects = names.iter().map(|name| ObservedObject::of(&external_target_of(&reconciler, name, "1")));
    let objects = objects.collect();
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, objects));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    reconciler.drain_queue();
    assert!(!reconciler.runtime.is_writing());
    let mut feed = reconciler.context.store.subscribe();
    for name in &names {
        let link = load_balancer_at(&reconciler, name, "new.example");
        answers.lock().insert(link.external_target().to_string(), to_json(&stored_for(&link, "1"), "8"));
        reconciler.on_link_change(&feed.recv().await.unwrap()[0]);
    }
    reconciler.drain_queue();
    let at_once = (MAX_WRITES - 1) / 2;
    assert_eq!(
        reconciler.runtime.queue.in_flight().len(),
        at_once,
        "the other writes are for other namespaces"
    );
    reconciler.finish().await.unwrap();
    let changed = (Reason::TargetChanged, "cloud.example → new.example".into());
    assert_eq!(recorder.take_queued(), vec![changed; at_once]);
}

#[tokio::test(start_paused = true)]
async fn external_target_that_is_missing_or_differs_has_a_state() {
    let (mut reconciler, _) = denied();
    let states = Arc::clone(&reconciler.context.external_target_states);
    let key = ServiceKey::new("shop", "web");
    let host = |name: &str| {
        let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
        Target::Hostname(crate::model::hostname::Hostname::from(&name))
    };
    load_balancer(&reconciler, "web");
    reconciler.reconcile(&key);
    assert_eq!(states.get(&key), Some(ExternalTargetState::Missing));
    let object = external_target(&reconciler, "1");
    reconciler.on_object_event(ObjectEvent::Applied(object.clone()));
    reconciler.reconcile(&key);
    assert_eq!(states.get(&key), None, "it is as it should be");
    load_balancer_at(&reconciler, "web", "new.example");
    reconciler.reconcile(&key);
    assert_eq!(states.get(&key), Some(ExternalTargetState::At(host("cloud.example."))));
    let mut other = to_json(&object, "8");
    other["metadata"]["annotations"][INSTANCE] = "other".into();
    let other: Object = serde_json::from_value::<Service>(other).unwrap().into();
    reconciler.on_object_event(ObjectEvent::Applied(other));
    reconciler.reconcile(&key);
    let Some(ExternalTargetState::Conflict { why, at }) = states.get(&key) else { panic!() };
    assert!(why.contains("other"), "{why}");
    assert_eq!(at, Some(host("cloud.example.")));
    reconciler.context.store.gone(&key, "web", None, Instant::now());
    reconciler.context.store.forget(&key);
    reconciler.reconcile(&key);
    assert_eq!(states.get(&key), None);
}

#[tokio::test(start_paused = true)]
async fn refused_write_is_a_problem_of_its_link_with_a_reason() {
    let (mut reconciler, _) = denied();
    let states = Arc::clone(&reconciler.context.external_target_states);
    states.set_known();
    for kind in [ObjectKind::Service, ObjectKind::EndpointSlice] {
        reconciler.on_object_event(ObjectEvent::Listed(kind, Vec::new()));
    }
    let key = load_balancer(&reconciler, "web").key.clone();
    reconciler.queue_all();
    reconciler.drain_queue();
    assert_eq!(states.problem(&key, false), None, "it is being written");
    let ended = reconciler.runtime.event().await.unwrap().unwrap();
    reconciler.on_write_end(ended);
    let (state, why) = states.problem(&key, false).unwrap();
    assert_eq!(state, ExternalTargetState::Missing);
    assert!(why.unwrap().contains("ValidatingAdmissionPolicy 'no' denied request"));
}

/// RBAC's message for a LIST without permission.
const NO_PERMISSION: &str = "services \"web\" is forbidden: User \"lb-linker\" cannot list resource \"services\" in API \
                        group \"\" in the namespace \"shop\"";

/// Returns a reconciler without the permission to list Services, and the paths of its DELETE requests.
fn without_permission_to_list(message: &'static str) -> (Reconciler, Arc<Mutex<Vec<String>>>) {
    let deleted = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&deleted);
    let client = test_support::client(move |request| {
        if request.method() == "DELETE" {
            log.lock().push(request.uri().path().to_owned());
            return test_support::status(200, "", "");
        }
        test_support::status(403, "Forbidden", message)
    });
    (reconciler(client), deleted)
}

/// Runs the reconciler for this many seconds.
async fn run_for(reconciler: &mut Reconciler, seconds: u64) {
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    while tokio::time::Instant::now() < end {
        reconciler.drain_queue();
        tokio::select! {
            ended = reconciler.runtime.event() => {
                ended.unwrap().into_iter().for_each(|ended| reconciler.on_write_end(ended));
            }
            () = tokio::time::sleep_until(end) => break,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missing_permission_is_an_event_at_the_second_attempt() {
    let message = "services is forbidden: User \"lb\" cannot create resource \"services\" in API group \"\"";
    for is_brief in [true, false] {
        let attempts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let client = test_support::client(move |_| {
            let attempt = counted.fetch_add(1, Ordering::Relaxed);
            match attempt {
                1.. if is_brief => test_support::status(500, "InternalError", "no"),
                _ => test_support::status(403, "Forbidden", &format!("{message}, {attempt}")),
            }
        });
        let recorder =
            Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
        let reporter = LinkReporter { recorder: recorder.clone(), ..test_support::link_reporter() };
        let mut reconciler = reconciler_with(client, reporter);
        load_balancer(&reconciler, "web");
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
        reconciler.queue_all();
        run_for(&mut reconciler, 60).await;
        let reasons: Vec<_> = recorder.take_queued().into_iter().map(|(reason, _)| reason).collect();
        let forbidden = reasons.iter().filter(|reason| **reason == Reason::Forbidden).count();
        assert_eq!(forbidden, usize::from(!is_brief), "{reasons:?}");
        assert!(attempts.load(Ordering::Relaxed) > 1);
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_seen_by_the_watch_needs_no_permission_to_list() {
    for (is_told, message, is_deleted) in [
        (true, NO_PERMISSION, true),
        (false, NO_PERMISSION, false),
        (true, "services is forbidden: a policy says no", false),
    ] {
        let (mut reconciler, deleted) = without_permission_to_list(message);
        reconciler.context.policy.prune = true;
        let object = external_target(&reconciler, "1");
        let store = Arc::clone(&reconciler.context.store);
        let key = ServiceKey::new("shop", "web");
        store.gone(&key, "web", None, Instant::now());
        if !is_told {
            // An earlier process has left the external target.
            store.forget(&key);
        }
        reconciler
            .on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
        reconciler.restore_deleted(false);
        reconciler.queue_all();
        run_for(&mut reconciler, 599).await;
        assert!(deleted.lock().is_empty(), "too soon: {message}");
        run_for(&mut reconciler, 3600).await;
        assert_eq!(!deleted.lock().is_empty(), is_deleted, "told {is_told}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn recreated_undecodable_service_keeps_its_target() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    let client = test_support::client(move |request| {
        log.lock().push(format!("{} {}", request.method(), request.uri().path()));
        let metadata = json!({"namespace": "shop", "name": "web", "uid": "new", "resourceVersion": "9"});
        match request.method().as_str() {
            "GET" => (200, json!({"metadata": {"resourceVersion": "9"}, "items": [{"metadata": metadata}]})),
            _ => test_support::status(200, "", ""),
        }
    });
    let mut reconciler = reconciler(client);
    let object = external_target(&reconciler, "1");
    let (store, key) = (Arc::clone(&reconciler.context.store), ServiceKey::new("shop", "web"));
    store.gone(&key, "web", None, Instant::now());
    store.set_unreadable(&key);
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    run_for(&mut reconciler, 3600).await;
    let looked_up = requests.lock().len();
    assert!(
        looked_up > 0 && requests.lock().iter().all(|request| request.starts_with("GET")),
        "{requests:?}"
    );
    assert!(looked_up < 200, "{looked_up} look-ups in an hour");
    assert_eq!(reconciler.context.rewinds.count(), 0, "another list would not help");
}

#[tokio::test]
async fn removal_of_an_external_target_is_told_with_its_time() {
    let (mut reconciler, _) = denied();
    let object = external_target(&reconciler, "1");
    let key = ServiceKey::new("shop", "web");
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    let removals = reconciler.context.link_reporter.findings.removals.clone();
    reconciler.reconcile(&key);
    assert_eq!(removals.get(&key), None);
    reconciler.context.policy.delete_delay = Duration::from_secs(600);
    reconciler.context.store.gone(&key, "web", None, Instant::now());
    reconciler.reconcile(&key);
    let told = removals.get(&key).unwrap();
    let removed = told.starts_with("its external target is removed at 2")
        && told.ends_with("Z (DeleteDelay, by this replica's count)");
    assert!(removed, "{told}");
    load_balancer(&reconciler, "web");
    reconciler.reconcile(&key);
    assert_eq!(removals.get(&key), None);
}

#[tokio::test(start_paused = true)]
async fn restore_resets_refused_look_ups() {
    let (mut reconciler, deleted) = without_permission_to_list(NO_PERMISSION);
    let object = external_target(&reconciler, "1");
    reconciler.context.store.gone(&ServiceKey::new("shop", "web"), "web", None, Instant::now());
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    run_for(&mut reconciler, 500).await;
    assert!(!reconciler.refused_look_ups.is_empty());
    drop(reconciler.begin_term());
    assert!(reconciler.refused_look_ups.is_empty());
    assert!(deleted.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_look_up_uses_no_deletion_budget() {
    let deleted = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&deleted);
    let client = test_support::client(move |request| {
        let uri = request.uri().to_string();
        if request.method() == "DELETE" {
            log.lock().push(uri);
            return test_support::status(200, "", "");
        }
        if uri.contains("metadata.name%3Dapi") {
            return test_support::status(500, "InternalError", "no");
        }
        (200, json!({"metadata": {"resourceVersion": "9"}, "items": []}))
    });
    let mut reconciler = reconciler(client);
    reconciler.context.policy.max_deletes = MaxDeletes::Number(1);
    let objects: Vec<ObservedObject> = ["api", "web"]
        .map(|name| {
            let object = ObservedObject::of(&external_target_of(&reconciler, name, "1"));
            reconciler.context.store.gone(&ServiceKey::new("shop", name), name, None, Instant::now());
            object
        })
        .into();
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, objects));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    // Queue the link with the failing look-up first.
    for name in ["api", "web"] {
        reconciler.runtime.queue.add(&ServiceKey::new("shop", name));
    }
    run_for(&mut reconciler, 60).await;
    assert!(deleted.lock().iter().all(|uri| uri.contains("web")) && deleted.lock().len() == 1, "{deleted:?}");
    // The next removal waits for the budget.
    assert!(
        reconciler
            .deletion_budget
            .lock()
            .allows(MaxDeletes::Number(1), "shop", "another", 1, Instant::now())
            .is_err()
    );
}

#[tokio::test]
async fn removal_that_only_a_list_shows_uses_the_deletion_budget() {
    let (mut reconciler, _) = denied();
    let objects = ["api", "web"].map(|name| ObservedObject::of(&external_target_of(&reconciler, name, "1")));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, objects.to_vec()));
    reconciler.context.store.gone(&ServiceKey::new("shop", "web"), "web", None, Instant::now());
    let is_free = |reconciler: &Reconciler, number| {
        let mut budget = reconciler.deletion_budget.lock();
        budget.allows(MaxDeletes::Number(number), "shop", "another", 1, Instant::now()).is_ok()
    };
    assert!(is_free(&reconciler, 1));
    // An earlier leader has removed "web"; "api" was removed by hand.
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
    assert!(!is_free(&reconciler, 1) && is_free(&reconciler, 2));
}

#[tokio::test(start_paused = true)]
async fn unlisted_namespace_delays_only_its_own_links() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    let client = test_support::client(move |request| {
        log.lock().push(request.method().to_string());
        match request.method().as_str() {
            "GET" => (200, json!({"metadata": {"resourceVersion": "9"}, "items": []})),
            _ => test_support::status(422, "Invalid", "no"),
        }
    });
    let mut reconciler = reconciler(client);
    let (term, link) = (reconciler.term, load_balancer(&reconciler, "web"));
    let namespaces = ["shop", "open"].map(ToOwned::to_owned).into();
    let mut all = CompletedLists::new(&namespaces, ListEpoch { term, rewinds: 0 });
    let (now, before) = (ListEpoch { term, rewinds: 0 }, ListEpoch { term: term - 1, rewinds: 0 });
    let links_listed = watch::Sender::new(all.clone());
    reconciler.context.links_listed = links_listed.subscribe();
    reconciler.context.overrides_listed = links_listed.subscribe();
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    assert!(reconciler.may_write_for(&link));
    // In this term the list of the link's namespace has failed.
    all.note(Some("shop"), before, true);
    all.note(Some("shop"), now, false);
    links_listed.send_replace(all.clone());
    assert!(reconciler.may_write() && !reconciler.may_write_for(&link));
    let elsewhere = Link::new(ServiceKey::new("open", "web"), "u");
    assert!(reconciler.may_write_for(&elsewhere));
    reconciler.queue_all();
    run_for(&mut reconciler, 60).await;
    assert!(sent.lock().is_empty(), "{sent:?}");
    // The end of a Service that the watch has reported is confirmed before each write.
    let gone = Link { state: LinkState::Gone(Instant::now()), ..Link::clone(&link) };
    assert!(reconciler.may_write_for(&gone));
    let never_seen = Link { created: crate::model::link::RANK_NEVER_OBSERVED, ..gone.clone() };
    assert!(!reconciler.may_write_for(&never_seen));
    // After a restore the Service may exist again.
    reconciler.rewinds = 1;
    reconciler.context.rewinds.record_restore("EndpointSlices");
    all.note(Some("open"), reconciler.lists(), true);
    all.note(Some("shop"), reconciler.lists(), false);
    links_listed.send_replace(all.clone());
    assert!(reconciler.may_write_for(&elsewhere) && !reconciler.may_write_for(&gone));
    all.note(Some("shop"), reconciler.lists(), true);
    links_listed.send_replace(all);
    assert!(reconciler.may_write_for(&link) && reconciler.may_write_for(&gone));
    reconciler.queue_all();
    run_for(&mut reconciler, 1).await;
    assert_eq!(sent.lock().first().map(String::as_str), Some("POST"));
}

/// A reconciler of the namespaces `open` and `shop`. `shop` is refused, and the Service of its external target doesn't
/// exist.
struct RefusedNamespace {
    reconciler: Reconciler,
    key: ServiceKey,
    lists: watch::Sender<CompletedLists>,
    /// The methods of the requests.
    sent: Arc<Mutex<Vec<String>>>,
}

impl RefusedNamespace {
    fn new() -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&sent);
        let client = test_support::client(move |request| {
            log.lock().push(request.method().to_string());
            (200, json!({"metadata": {"resourceVersion": "9"}, "items": []}))
        });
        let mut reconciler = reconciler(client);
        let object = ObservedObject::of(&external_target(&reconciler, "1"));
        let (store, key) = (Arc::new(Store::new(OnGone::Kept)), ServiceKey::new("shop", "web"));
        let target = Some(Target::Addresses(["192.0.2.1".parse().unwrap()].into()));
        insert_left_out(&store, &key, "web".into(), target, Vec::new()).unwrap();
        store.set_known(Input::Services);
        reconciler.context.store = store;
        let namespaces: BTreeSet<String> = ["open", "shop"].map(ToOwned::to_owned).into();
        let mut listed = CompletedLists::new(&namespaces, None);
        listed.note(Some("open"), reconciler.lists(), true);
        listed.note(Some("shop"), reconciler.lists(), false);
        let lists = watch::Sender::new(listed);
        reconciler.context.links_listed = lists.subscribe();
        reconciler.context.selection = Arc::new(Selection { namespaces, ..Selection::default() });
        reconciler.context.policy.prune = true;
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![object]));
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
        Self { reconciler, key, lists, sent }
    }

    /// Lists the namespace at last, and processes the result of the look-up.
    async fn list(&mut self) {
        let at = self.reconciler.lists();
        self.lists.send_modify(|lists| assert!(lists.note(Some("shop"), at, true)));
        self.reconciler.on_links_listed();
        let existing = self.reconciler.start_check.look_ups.join_next().await.unwrap().unwrap();
        self.reconciler.on_look_up_end(&existing);
    }

    fn link(&self) -> Arc<Link> {
        self.reconciler.context.store.get(&self.key).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn link_of_a_refused_namespace_stays_until_it_is_listed() {
    let mut refused = RefusedNamespace::new();
    refused.reconciler.resume_writing();
    run_for(&mut refused.reconciler, 3600).await;
    assert!(refused.sent.lock().is_empty() && refused.link().is_left_out(), "{:?}", refused.sent);
    refused.list().await;
    assert!(refused.link().is_gone());
    run_for(&mut refused.reconciler, 60).await;
    assert!(refused.sent.lock().contains(&"DELETE".to_owned()), "{:?}", refused.sent);
}

#[tokio::test(start_paused = true)]
async fn follower_ends_the_link_of_a_namespace_refused_before() {
    let mut refused = RefusedNamespace::new();
    // Nothing is written without these lists, as without the lease.
    refused.reconciler.context.overrides_listed =
        watch::Sender::new(CompletedLists::new(&BTreeSet::new(), None)).subscribe();
    assert!(!refused.reconciler.may_write());
    refused.list().await;
    assert!(refused.link().is_gone());
    run_for(&mut refused.reconciler, 60).await;
    assert_eq!(*refused.sent.lock(), ["GET"]);
}

#[tokio::test(start_paused = true)]
async fn overridden_links_are_written_after_a_list_of_this_term() {
    let (mut reconciler, requests) = denied();
    let (term, link) = (reconciler.term, load_balancer(&reconciler, "web"));
    let (now, before) = (ListEpoch { term, rewinds: 0 }, ListEpoch { term: term - 1, rewinds: 0 });
    let mut overrides = CompletedLists::new(&BTreeSet::new(), before);
    let overrides_listed = watch::Sender::new(overrides.clone());
    reconciler.context.overrides_listed = overrides_listed.subscribe();
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    assert!(!reconciler.may_write(), "a StableName may override any link");
    reconciler.queue_all();
    run_for(&mut reconciler, 60).await;
    assert_eq!(requests.load(Ordering::Relaxed), 0);

    let announced = Announcement::Target(Target::Addresses(["192.0.2.1".parse().unwrap()].into()));
    let link_override = LinkOverride { uid: "sn".into(), announced, ..LinkOverride::default() };
    set_override(&reconciler.context.store, &ServiceKey::new("shop", "api"), link_override, None);
    let overridden = reconciler.context.store.get(&ServiceKey::new("shop", "api")).unwrap();
    overrides.note(None, now, false);
    overrides_listed.send_replace(overrides.clone());
    assert!(reconciler.may_write_for(&link) && !reconciler.may_write_for(&overridden), "the list has failed");
    overrides.note(None, now, true);
    overrides_listed.send_replace(overrides);
    assert!(reconciler.may_write_for(&overridden));

    let mut services = CompletedLists::new(&BTreeSet::new(), before);
    services.note(None, now, false);
    for is_refused in [false, true] {
        services.set_refused(None, is_refused);
        reconciler.context.links_listed = watch::Sender::new(services.clone()).subscribe();
        assert!(!reconciler.may_write_for(&link));
        assert_eq!(reconciler.may_write_for(&overridden), is_refused, "its StableName says everything");
    }
}

#[tokio::test(start_paused = true)]
async fn stale_watch_cache_causes_no_removal() {
    let (is_stale, deleted) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let (stale, log) = (Arc::clone(&is_stale), Arc::clone(&deleted));
    let client = test_support::client(move |request| {
        let uri = request.uri().to_string();
        if request.method() == "DELETE" {
            log.lock().push(uri);
            return test_support::status(200, "", "");
        }
        // The cache is ahead of the restored etcd, which answers a list at an exact version.
        if uri.contains("resourceVersion=900&resourceVersionMatch=Exact") && stale.load(Ordering::Relaxed) {
            return test_support::status(504, "Timeout", "Too large resource version: 900, current: 500");
        }
        (200, json!({"metadata": {"resourceVersion": "900"}, "items": []}))
    });
    let mut reconciler = reconciler(client);
    let object = external_target(&reconciler, "1");
    reconciler.context.store.gone(&ServiceKey::new("shop", "web"), "web", None, Instant::now());
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    reconciler.queue_all();
    run_for(&mut reconciler, 3600).await;
    assert!(deleted.lock().is_empty(), "{deleted:?}");
    is_stale.store(false, Ordering::Relaxed);
    run_for(&mut reconciler, 60).await;
    assert_eq!(deleted.lock().len(), 1);
}

#[tokio::test]
async fn refusal_by_admission_concerns_one_object_for_any_code() {
    let webhook = "admission webhook \"no.example\" denied the request: namespaces \"x\" not found";
    let policy = "services \"web-shop-ext\" is forbidden: ValidatingAdmissionPolicy 'no' denied request: no";
    for (code, reason, message, is_of_all, is_of_object) in [
        (404, "NotFound", "namespaces \"external-targets\" not found", true, false),
        (404, "NotFound", webhook, false, true),
        (404, "NotFound", "404 page not found", false, false),
        (401, "Unauthorized", "Unauthorized", true, false),
        (401, "Unauthorized", webhook, false, true),
        (401, "Unauthorized", policy, false, true),
    ] {
        let (reconciler, _) = {
            let (client, requests) = test_support::refusing(code, reason, message);
            (reconciler(client), requests)
        };
        let object = external_target(&reconciler, "1");
        let precondition = Precondition { uid: Some("o".to_owned()), resource_version: None };
        let delete = Write::Delete { id: object.id(), precondition };
        let (stamp, backend) = (Stamp { instance: None, term: None }, &reconciler.context.backend);
        let (_, created) = backend.write(Write::Create(object), &stamp, "").await;
        assert_eq!(matches!(created, Err(WriteError::WholeClass { .. })), is_of_all, "{created:?}");
        assert_eq!(matches!(created, Err(WriteError::Refused { .. })), is_of_object, "{created:?}");
        let (_, deleted) = backend.write(delete, &stamp, "").await;
        assert_eq!(matches!(deleted, Err(WriteError::Refused { .. })), is_of_object, "{deleted:?}");
    }
}

/// Returns a reconciler with a lost deletion of the external target of `web`, and the deletion.
fn with_lost_deletion() -> (Reconciler, Object, Write) {
    let (mut reconciler, _) = denied();
    let object = external_target(&reconciler, "1");
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, vec![ObservedObject::of(&object)]));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    let precondition = Precondition { uid: Some("o".to_owned()), resource_version: None };
    let delete = Write::Delete { id: object.id(), precondition };
    reconciler.lost_answers.add(&ServiceKey::new("shop", "web"), &delete, Before::Other);
    (reconciler, object, delete)
}

#[tokio::test]
async fn effect_seen_during_the_retry_is_reported_by_its_answer() {
    for is_answered in [true, false] {
        let (mut reconciler, object, delete) = with_lost_deletion();
        reconciler.objects.write_begins(&object.id());
        let uid = object.uid().to_string();
        reconciler.on_object_event(ObjectEvent::Deleted { id: object.id(), uid });
        let remembered = |reconciler: &Reconciler| reconciler.lost_answers.of_kind(ObjectKind::Service).len();
        assert_eq!(remembered(&reconciler), 1, "nothing is reported yet");
        let write = SentWrite {
            started_at: Instant::now(),
            write: delete,
            target: None,
            before: Before::Other,
            budget_key: None,
        };
        let answered = Answered {
            confirmed: None,
            code: if is_answered { 200 } else { 422 },
            result: if is_answered { Ok(None) } else { Err(WriteError::Conflict) },
        };
        let ended = Ended { key: ServiceKey::new("shop", "web"), write, answer: Ok(Ok(answered)) };
        reconciler.on_write_end(ended);
        assert_eq!(remembered(&reconciler), 0);
    }
}

#[tokio::test]
async fn lost_deletion_is_forgotten_when_the_link_needs_no_write() {
    let (mut reconciler, ..) = with_lost_deletion();
    reconciler.context.policy.sync = SyncMode::Off;
    reconciler.queue_all();
    reconciler.drain_queue();
    assert!(reconciler.lost_answers.of_kind(ObjectKind::Service).is_empty());
}

#[tokio::test]
async fn targets_of_stable_names_that_are_read_late_are_answered() {
    let mut reconciler =
        reconciler(test_support::client(|_| test_support::status(500, "InternalError", "no")));
    reconciler.context.policy.sync = SyncMode::Off;
    let mut object = to_json(&external_target_of(&reconciler, "web", "1"), "7");
    object["metadata"]["annotations"][STABLE_NAME_UID] = "s".into();
    let object: Object = serde_json::from_value::<Service>(object).unwrap().into();
    reconciler.context.store = Arc::new(Store::new(OnGone::Kept));
    reconciler.context.store.set_known(Input::Services);
    // Nothing may be read at first, and later everything but StableNames.
    reconciler.context.store.set_known(Input::StableNames);
    reconciler.context.overrides_listed =
        watch::Sender::new(CompletedLists::new(&BTreeSet::new(), None)).subscribe();
    reconciler.on_object_event(ObjectEvent::Unseen(403));
    assert!(reconciler.is_listed(), "nothing waits for them");
    for (kind, list) in
        [(ObjectKind::Service, vec![ObservedObject::of(&object)]), (ObjectKind::EndpointSlice, vec![])]
    {
        reconciler.on_object_event(ObjectEvent::Listed(kind, list));
    }
    let link = reconciler.context.store.get(&ServiceKey::new("shop", "web")).unwrap();
    assert!(link.active_override().is_some_and(|by| by.is_provisional), "{link:?}");
    assert!(link.target.is_some());
}

#[tokio::test(start_paused = true)]
async fn target_of_an_unread_stable_name_stays_without_its_slice() {
    let (mut reconciler, requests) = denied();
    (reconciler.context.policy.prune, reconciler.context.policy.delete_delay) = (true, Duration::ZERO);
    let object = external_target(&reconciler, "1");
    let key = ServiceKey::new("shop", "web");
    let mut headless = to_json(&object, "7");
    headless["metadata"]["annotations"][STABLE_NAME_UID] = "s".into();
    headless["spec"] = json!({"clusterIP": "None"});
    let object: Object = serde_json::from_value::<Service>(headless).unwrap().into();
    let epoch = ListEpoch { term: reconciler.term, rewinds: 0 };
    let mut refused = CompletedLists::new(&BTreeSet::new(), None);
    refused.note(None, epoch, false);
    reconciler.context.overrides_listed = watch::Sender::new(refused).subscribe();
    for is_gone_before in [false, true] {
        reconciler.context.store = Arc::new(Store::new(OnGone::Kept));
        reconciler.context.store.set_known(Input::Services);
        reconciler.context.store.set_known(Input::StableNames);
        if is_gone_before {
            assert!(insert_gone(&reconciler.context.store, &key, Vec::new()).is_some());
        }
        let list = vec![ObservedObject::of(&object)];
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, list));
        reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, vec![]));
        assert!(reconciler.may_write());
        reconciler.queue_all();
        run_for(&mut reconciler, 3600).await;
        let link = reconciler.context.store.get(&key).unwrap();
        assert_eq!((&link.target, link.is_gone()), (&None, is_gone_before));
        assert_eq!(requests.load(Ordering::Relaxed), 0, "gone: {is_gone_before}");
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_namespace_isnt_a_client_that_reverts_writes() {
    let (mut reconciler, _) = denied();
    let create = Write::Create(external_target(&reconciler, "1"));
    let key = ServiceKey::new("shop", "web");
    let link = reconciler.context.store.get(&key).unwrap();
    let mut write = |is_refused_before: bool| {
        if is_refused_before {
            reconciler.open_breaker(&key, &create, Some(MissingNamespace::Terminating), None);
        }
        reconciler.close_breakers(&create);
        reconciler.runtime.succeeded(&key, Some(&link))
    };
    for deletion in 0..30 {
        assert_eq!(write(true), None, "deletion {deletion}");
    }
    assert!((0..30).any(|_| write(false).is_some()), "another client does");
}

#[tokio::test(start_paused = true)]
async fn refused_creates_of_one_kind_do_not_delay_the_other_kind() {
    let (mut reconciler, _) = denied();
    let service = Write::Create(external_target(&reconciler, "1"));
    let slice: EndpointSlice =
        serde_json::from_value(json!({"metadata": {"name": "web-shop-ext"}, "addressType": "IPv4"})).unwrap();
    let slice = Write::Create(slice.into());
    let (web, api) = (ServiceKey::new("shop", "web"), ServiceKey::new("shop", "api"));
    let open = |reconciler: &Reconciler| {
        [&WriteClass::AllCreates, &CREATES[0], &CREATES[1]]
            .map(|class| reconciler.runtime.breakers.is_open(class))
    };
    let refused = Some(MissingNamespace::Refused);
    reconciler.open_breaker(&web, &service, refused, None);
    reconciler.open_breaker(&api, &slice, refused, None);
    assert_eq!(open(&reconciler), [false, true, true]);
    reconciler.open_breaker(&web, &service, Some(MissingNamespace::Absent), None);
    assert_eq!(open(&reconciler), [true, false, false]);
    // The Role is gone together with the namespace.
    reconciler.open_breaker(&web, &service, refused, None);
    assert_eq!(open(&reconciler), [false, true, false]);
    for _ in 0..20 {
        // The creates of slices stay refused.
        reconciler.open_breaker(&api, &slice, refused, None);
        reconciler.open_breaker(&web, &service, refused, None);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(reconciler.runtime.breakers.admit(&web, &service.classes()), "a probe after at most 5 s");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_writes_are_noted_with_fitting_advice() {
    let (mut reconciler, _) = denied();
    let object = external_target(&reconciler, "1");
    let precondition = Precondition { uid: None, resource_version: None };
    let delete = Write::Delete { id: object.id(), precondition };
    let (web, refused) = (ServiceKey::new("shop", "web"), Some(MissingNamespace::Refused));
    let note = |reconciler: &mut Reconciler| {
        reconciler.note_missing_namespace();
        let note = reconciler.context.link_reporter.findings.readiness.writes.load_full();
        let head = "external targets can't be written to namespace external-targets now: ";
        note.map(|note| note.strip_prefix(head).unwrap().to_owned())
    };
    reconciler.on_object_event(ObjectEvent::Unseen(401));
    assert_eq!(note(&mut reconciler), None, "the namespace may well exist");
    reconciler.on_object_event(ObjectEvent::Unseen(403));
    assert_eq!(note(&mut reconciler).as_deref(), Some(NAMESPACE_HINT), "the namespace may be missing");
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, Vec::new()));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    assert_eq!(note(&mut reconciler), None);
    reconciler.open_breaker(&web, &Write::Create(object.clone()), refused, None);
    let expected = format!("lb-linker may not create Services there; {ROLE_HINT}");
    assert_eq!(note(&mut reconciler), Some(expected.clone()), "the namespace may be missing by now");
    reconciler.close_breakers(&Write::Create(object));
    assert_eq!(note(&mut reconciler), None);
    reconciler.open_breaker(&web, &delete, None, None);
    assert_eq!(note(&mut reconciler), None, "401 doesn't concern the namespace");
    reconciler.open_breaker(&web, &delete, refused, None);
    assert_eq!(note(&mut reconciler), Some(expected.replace("create", "delete")));
    reconciler.close_breakers(&delete);
    assert_eq!(note(&mut reconciler), None);
}
