use std::future::ready;

use prometheus::IntCounter;
use serde_json::json;

use super::checks::TargetCheckResult;
use super::object::ObservedStableName;
use super::*;
use crate::store::{Input, OnGone};
use crate::sync::events::{Reason, Recorder};
use crate::sync::test_support;

/// Returns the context of a leader with complete lists.
fn context(client: Client, recorder: Recorder) -> FailoverContext {
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

#[tokio::test(start_paused = true)]
async fn move_written_while_stopping_has_its_event() {
    let sources = ["a", "b"].map(|name| json!({"name": name, "hostname": format!("{name}.example")}));
    let object = |version: &str, target: &str| {
        let target = json!({"source": target, "hostname": format!("{target}.example"), "verified": true});
        json!({
            "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"namespace": "shop", "name": "web", "uid": "sn", "resourceVersion": version},
            "spec": {"sources": sources, "pin": "b"},
            "status": {"target": target},
        })
    };
    let answer = object("6", "b");
    let client = test_support::client(move |_| (200, answer.clone()));
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    let mut controller = FailoverController::new(context(client, recorder.clone()));
    controller.refresh_term();
    controller.applied(ObservedStableName::new(serde_json::from_value(object("5", "a")).unwrap()));
    controller.drain();
    assert_eq!(controller.leader.runtime.queue.in_flight().len(), 1);
    assert!(recorder.take_queued().is_empty(), "nothing is reported before it is written");
    let metrics = Arc::clone(&controller.context.metrics);
    controller.finish().await.unwrap();
    let reasons: Vec<_> = recorder.take_queued().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, [Reason::TargetChanged]);
    assert_eq!(metrics.switches.with_label_values(&["Pinned"]).get(), 1);
}
