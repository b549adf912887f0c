use std::convert::Infallible;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{Request, Response};
use kube::core::Status;
use parking_lot::Mutex;
use prometheus::IntCounter;
use serde_json::{Value, json};

use super::checks::TargetCheckResult;
use super::object::ObservedStableName;
use super::pending_deletions::REFUSALS_UNTIL_FORBIDDEN;
use super::*;
use crate::captured_log::CapturedLog;
use crate::store::{Input, OnGone};
use crate::sync::events::{Reason, Recorder};
use crate::sync::k8s::watch::WatchError;
use crate::sync::test_support;

/// Returns the context of a leader with complete lists.
pub(super) fn context(client: Client, recorder: Recorder) -> FailoverContext {
    let leadership = Leadership::unconditional();
    let lists = CompletedLists::new(&BTreeSet::new(), ListEpoch { term: leadership.term(), rewinds: 0 });
    let context = FailoverContext {
        client,
        availability: ApiAvailability::default(),
        remotes: Remotes::default(),
        list_hint: PERMISSION_HINT,
        store: Arc::new(Store::new(OnGone::Kept)),
        selection: Arc::default(),
        unselected: Arc::default(),
        external_target_states: Arc::default(),
        rules: Arc::default(),
        hostname_policy: watch::Sender::new(Arc::default()).subscribe(),
        policy: test_support::policy(None),
        target_namespace: "external-targets".to_owned(),
        tcp_check_namespaces: BTreeSet::new(),
        check_dns: Arc::new(|_, _, _| Box::pin(ready(TargetCheckResult::without_answer()))),
        link_reporter: LinkReporter { recorder, ..test_support::link_reporter() },
        metrics: test_support::metrics(),
        api: test_support::metrics(),
        staleness: test_support::metrics(),
        leadership,
        rewinds: RestoreCounter::default(),
        links_listed: watch::Sender::new(lists.clone()).subscribe(),
        overrides_listed: watch::Sender::new(lists),
    };
    context.store.set_known(Input::Services);
    context.store.set_known(Input::ExternalTargets);
    context
}

/// Returns `shop/web` with the sources a and b, of which b is pinned and `target` is announced.
fn pinned(version: &str, target: &str) -> Value {
    let sources = ["a", "b"].map(|name| json!({"name": name, "hostname": format!("{name}.example")}));
    let target = json!({"source": target, "hostname": format!("{target}.example"), "verified": true});
    json!({
        "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
        "metadata": {"namespace": "shop", "name": "web", "uid": "sn", "resourceVersion": version},
        "spec": {"sources": sources, "pin": "b"},
        "status": {"target": target},
    })
}

#[tokio::test(start_paused = true)]
async fn status_that_cant_be_written_is_shown_until_it_is() {
    let is_granted = Arc::new(AtomicBool::new(false));
    let (granted, written) = (Arc::clone(&is_granted), pinned("7", "b"));
    let client = test_support::client(move |_| match granted.load(Ordering::Relaxed) {
        true => (200, written.clone()),
        false => test_support::status(403, "Forbidden", "no permission"),
    });
    let mut controller = FailoverController::new(context(client, Recorder::none()));
    controller.refresh_term();
    let observed = |object| ObservedStableName::new(serde_json::from_value(object).unwrap());
    controller.applied(observed(pinned("5", "a")));
    controller.drain();
    let findings = controller.context.link_reporter.findings.readiness.unwritten.clone();
    let key = ServiceKey::new("shop", "web");
    while findings.get(&key).is_none() {
        let ended = controller.leader.runtime.event().await.unwrap();
        ended.into_iter().for_each(|ended| controller.written(ended));
    }
    let why = findings.get(&key).unwrap();
    assert!(why.contains("nothing moves") && why.contains("no permission"), "{why}");
    is_granted.store(true, Ordering::Relaxed);
    controller.applied(observed(pinned("6", "a")));
    // The decision waits a moment, because the last one is recent.
    controller.leader.to_decide.due().await;
    controller.drain();
    let ended = timeout(Duration::from_secs(60), controller.leader.runtime.event());
    ended.await.unwrap().unwrap().into_iter().for_each(|ended| controller.written(ended));
    assert_eq!(findings.get(&key), None);
}

#[tokio::test(start_paused = true)]
async fn move_written_while_stopping_has_its_event() {
    let answer = pinned("6", "b");
    let client = test_support::client(move |_| (200, answer.clone()));
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    let mut controller = FailoverController::new(context(client, recorder.clone()));
    controller.refresh_term();
    controller.applied(ObservedStableName::new(serde_json::from_value(pinned("5", "a")).unwrap()));
    controller.drain();
    assert_eq!(controller.leader.runtime.queue.in_flight().len(), 1);
    assert!(recorder.take_queued().is_empty(), "nothing is reported before it is written");
    let metrics = Arc::clone(&controller.context.metrics);
    controller.finish().await.unwrap();
    let reasons: Vec<_> = recorder.take_queued().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, [Reason::TargetChanged]);
    assert_eq!(metrics.switches.with_label_values(&["Pinned"]).get(), 1);
}

#[tokio::test]
async fn failed_discovery_and_its_end_have_one_wording() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    let client = test_support::client(|_| test_support::status(500, "InternalError", "no"));
    let mut controller = FailoverController::new(context(client, Recorder::none()));
    let status = Status::failure("no", "InternalError").with_code(500);
    controller.on_discovery(Err(kube::Error::Api(Box::new(status))));
    controller.on_discovery(Ok(false));
    let lines = log_text.text();
    assert_eq!(lines.matches("serves StableNames").count(), 2, "{lines}");
}

#[tokio::test(start_paused = true)]
async fn refused_discovery_is_a_warning_once_it_lasts() {
    let (log_text, _logging) = CapturedLog::start(tracing::Level::WARN);
    let client = test_support::client(|_| test_support::status(403, "Forbidden", "no"));
    let mut controller = FailoverController::new(context(client, Recorder::none()));
    for _ in 0..REFUSALS_UNTIL_FORBIDDEN {
        assert_eq!(log_text.text(), "", "an API server that starts forbids everything for a moment");
        controller.pending_deletions.discover(&controller.context.client);
        let served = controller.pending_deletions.discovered().await;
        assert!(served.is_err());
        controller.on_discovery(served);
    }
    assert_eq!(log_text.text().matches("serves StableNames: the API server forbids it").count(), 1);
}

#[tokio::test]
async fn forbidden_stable_names_have_the_effect_of_what_is_known() {
    let client = test_support::client(|_| test_support::status(500, "InternalError", "no"));
    let mut controller = FailoverController::new(context(client, Recorder::none()));
    let listed = controller.context.overrides_listed.borrow().clone();
    let mut note = |lists: CompletedLists| {
        controller.context.overrides_listed.send_replace(lists);
        for _ in 0..REFUSALS_UNTIL_FORBIDDEN {
            let status = Status::failure("no", "Forbidden").with_code(403);
            let refused = WatchError::List(kube::Error::Api(Box::new(status)));
            controller.on_watch_item(0, Err(refused));
        }
        controller.context.link_reporter.findings.readiness.stable_names.load_full().unwrap().note.clone()
    };
    let known = note(listed);
    assert!(
        known.contains("their changes aren't seen, and DNS answers with the targets that are known"),
        "{known}"
    );
    let unknown = note(CompletedLists::new(&BTreeSet::new(), None));
    assert!(unknown.contains("their external targets, and the Services that follow them, stay"), "{unknown}");
    assert!(unknown.ends_with("tries again every 30s"), "{unknown}");
}

/// Returns a StableName of the namespace shop with one source, which is announced.
fn announced(name: &str) -> Value {
    let target = json!({"source": "a", "hostname": format!("{name}.example"), "verified": true});
    json!({
        "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
        "metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "5"},
        "spec": {"sources": [{"name": "a", "hostname": format!("{name}.example")}]},
        "status": {"target": target},
    })
}

/// An API server with these StableNames; `None` without the CRD. Watches send the event that follows.
type Served = Arc<Mutex<(Option<Vec<Value>>, Vec<Value>)>>;

fn serving(served: &Served) -> Client {
    let served = Arc::clone(served);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default();
        let (objects, events) = served.lock().clone();
        let (code, body) = match objects {
            None => {
                let (code, body) = test_support::status(404, "NotFound", "not found");
                (code, Body::from(body.to_string()))
            }
            Some(objects) if query.contains("sendInitialEvents=true") => {
                let added = objects.into_iter().map(|object| json!({"type": "ADDED", "object": object}));
                let annotations = json!({"k8s.io/initial-events-end": "true"});
                let metadata = json!({"resourceVersion": "6", "annotations": annotations});
                let end = json!({"type": "BOOKMARK", "object": {"metadata": metadata}});
                let lines =
                    added.chain([end]).chain(events).map(|line| Ok::<_, Infallible>(format!("{line}\n")));
                let lines: Vec<_> = lines.collect();
                (200, Body::from_stream(futures::stream::iter(lines).chain(futures::stream::pending())))
            }
            Some(_) => {
                let resource = json!({"name": "stablenames", "singularName": "", "namespaced": true,
                    "kind": "StableName", "verbs": ["create", "list", "watch"]});
                let list = json!({"groupVersion": "linker.hsj.com/v1alpha1", "resources": [resource]});
                (200, Body::from(list.to_string()))
            }
        };
        ready(Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()))
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn crd_back_without_objects_keeps_targets_as_announced() {
    let served: Served = Arc::new(Mutex::new((Some(vec![announced("web"), announced("api")]), Vec::new())));
    let mut context = context(serving(&served), Recorder::none());
    context.policy.withdrawal_delay = Duration::from_secs(600);
    let (store, findings) = (Arc::clone(&context.store), context.link_reporter.findings.clone());
    let led = || {
        let links = store.links().into_iter().filter(|link| link.active_override().is_some());
        let mut names: Vec<String> = links.map(|link| link.key.to_string()).collect();
        names.sort();
        names
    };
    let after = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let note = || findings.readiness.crd.load_full();
    let text = |name| findings.stable_names.get(&ServiceKey::new("shop", name));
    let steps = async {
        after(5).await;
        assert_eq!((led(), note()), (vec!["shop/api".to_owned(), "shop/web".to_owned()], None));
        served.lock().0 = None;
        after(31).await;
        let why = note().unwrap();
        assert!(why.contains("went with their CRD"), "{why}");
        assert_eq!(text("web").as_deref(), Some(&**why));
        // The CRD is back with one of the two, and with one that is deleted soon.
        let mut deleted = json!({"type": "DELETED", "object": announced("new")});
        deleted["object"]["metadata"]["resourceVersion"] = "7".into();
        *served.lock() = (Some(vec![announced("api"), announced("new")]), vec![deleted]);
        after(60).await;
        assert_eq!(
            (led(), note()),
            (vec!["shop/api".to_owned(), "shop/web".to_owned()], Some(Arc::clone(&why)))
        );
        assert_eq!((text("web").as_deref(), text("api")), (Some(&**why), None));
        after(480).await;
        assert_eq!(led().len(), 2);
        after(60).await;
        assert_eq!((led(), note(), text("web")), (vec!["shop/api".to_owned()], None, None));
    };
    let stop = CancellationToken::new();
    tokio::select! {
        ended = run(context, stop) => panic!("{ended:?}"),
        () = steps => {}
    }
}

#[tokio::test(start_paused = true)]
async fn notice_about_the_crd_ends_when_all_objects_are_back() {
    let served: Served = Arc::new(Mutex::new((Some(vec![announced("web")]), Vec::new())));
    let mut context = context(serving(&served), Recorder::none());
    context.policy.withdrawal_delay = Duration::from_secs(600);
    let (store, findings) = (Arc::clone(&context.store), context.link_reporter.findings.clone());
    let steps = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        for _ in 0..2 {
            for (objects, is_noted) in [(None, true), (Some(vec![announced("web")]), false)] {
                served.lock().0 = objects;
                tokio::time::sleep(Duration::from_secs(301)).await;
                assert_eq!(findings.readiness.crd.load().is_some(), is_noted);
                assert!(store.links().iter().all(|link| link.active_override().is_some()));
            }
        }
    };
    tokio::select! {
        ended = run(context, CancellationToken::new()) => panic!("{ended:?}"),
        () = steps => {}
    }
}
