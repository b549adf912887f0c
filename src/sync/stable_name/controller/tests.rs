use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::IntCounter;
use serde_json::json;

use super::checks::TargetCheckResult;
use super::object::ObservedStableName;
use super::*;
use crate::store::{Input, OnGone};
use crate::sync::events::{Reason, Recorder};
use crate::sync::test_support;

/// Returns the context of a leader with complete lists.
pub(super) fn context(client: Client, recorder: Recorder) -> FailoverContext {
    let leadership = Leadership::unconditional();
    let lists = CompletedLists::new(&BTreeSet::new(), ListEpoch { term: leadership.term(), rewinds: 0 });
    let context = FailoverContext {
        client,
        availability: ApiAvailability::default(),
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
fn pinned(version: &str, target: &str) -> serde_json::Value {
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
    let findings = controller.context.link_reporter.findings.unwritten.clone();
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
