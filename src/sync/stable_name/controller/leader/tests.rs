use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::super::FailoverContext;
use super::super::check_queue::CheckKey;
use super::super::tests::context;
use super::decide::REMOTE_LIST_WAIT;
use super::*;
use crate::api::stable_name::StableName;
use crate::captured_log::CapturedLog;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::Target;
use crate::sync::events::{Reason, Recorder};
use crate::sync::external_target::states::ExternalTargetState;
use crate::sync::k8s::service::host_name;
use crate::sync::stable_name::decision::checks::CheckOutcome;
use crate::sync::test_support;

/// A leader, the StableName `shop/web` with the sources seoul and busan, of which seoul is in use, and the API server.
struct Shop {
    controller: FailoverController,
    key: ServiceKey,
    recorder: Recorder,
    object: Arc<Mutex<Value>>,
    /// Whether the status may be written.
    is_granted: Arc<AtomicBool>,
}

fn hostname(source: &str) -> Target {
    let host = format!("{source}.example");
    Target::Hostname((&host_name(&host).unwrap()).into())
}

fn web() -> Value {
    let sources = ["seoul", "busan"].map(|name| json!({"name": name, "hostname": format!("{name}.example")}));
    let target = json!({"source": "seoul", "hostname": "seoul.example", "display": "seoul.example",
        "since": "2026-01-01T00:00:00Z", "verified": true});
    json!({
        "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
        "metadata": {"namespace": "shop", "name": "web", "uid": "sn", "resourceVersion": "5", "generation": 1},
        "spec": {"sources": sources, "failback": {"mode": "Manual"},
            "check": {"failureThreshold": 1, "successThreshold": 1}},
        "status": {"target": target},
    })
}

/// Applies a merge patch.
fn merge(value: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else { return *value = patch };
    for (field, patch) in patch {
        match patch {
            Value::Null => drop(value.as_object_mut().unwrap().remove(&field)),
            patch => merge(&mut value[field], patch),
        }
    }
}

impl Shop {
    /// Both sources have passed a check.
    async fn open(object: Value) -> Self {
        Self::open_with(object, HostnamePolicy::default()).await
    }

    /// Opens a shop whose process has waited for the lists of the remote clusters of the policy in vain.
    async fn open_with(object: Value, policy: HostnamePolicy) -> Self {
        let (object, is_granted) = (Arc::new(Mutex::new(object)), Arc::new(AtomicBool::new(true)));
        let (stored, granted) = (Arc::clone(&object), Arc::clone(&is_granted));
        let client = test_support::client(move |request| {
            if !granted.load(Ordering::Relaxed) {
                return test_support::status(403, "Forbidden", "no permission");
            }
            let body = request.body().try_clone().unwrap().collect_bytes().now_or_never().unwrap().unwrap();
            let patch: Value = serde_json::from_slice(&body).unwrap();
            let mut object = stored.lock();
            if patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                return test_support::status(409, "Conflict", "another version");
            }
            merge(&mut object, patch);
            let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
            (200, object.clone())
        });
        let recorder =
            Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
        let hostname_policy = watch::Sender::new(Arc::new(policy)).subscribe();
        let context = FailoverContext { hostname_policy, ..context(client, recorder.clone()) };
        let mut controller = FailoverController::new(context);
        controller.started -= REMOTE_LIST_WAIT;
        controller.refresh_term();
        let mut shop = Self { controller, key: ServiceKey::new("shop", "web"), recorder, object, is_granted };
        shop.see();
        shop.run().await;
        shop.check("seoul", "");
        shop.check("busan", "");
        shop.decide().await;
        shop
    }

    /// Processes the object as the API server has it.
    fn see(&mut self) {
        let object: StableName = serde_json::from_value(self.object.lock().clone()).unwrap();
        self.controller.applied(ObservedStableName::new(object));
    }

    /// Changes the object, as another client.
    fn edit(&mut self, edit: impl FnOnce(&mut Value)) {
        {
            let mut object = self.object.lock();
            edit(&mut object);
            let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        }
        self.see();
    }

    fn unwritten(&self) -> Option<Arc<str>> {
        self.controller.context.link_reporter.findings.readiness.unwritten.get(&self.key)
    }

    fn set_granted(&self, is_granted: bool) {
        self.is_granted.store(is_granted, Ordering::Relaxed);
    }

    /// Records the result of a check, which has failed if `failure` isn't empty.
    fn check(&mut self, source: &str, failure: &str) {
        let outcome = match failure {
            "" => CheckOutcome::Passed,
            failure => CheckOutcome::Failed(failure.to_owned()),
        };
        let result = CheckResult { at: Timestamp::now(), outcomes: vec![outcome] };
        let LeaderTerm { states, upstreams, .. } = &mut self.controller.leader;
        states.get_mut(&self.key).unwrap().records.record(&hostname(source), None, result, upstreams);
    }

    /// Lets a check end, at an upstream that has answered if `answered`.
    fn end_check(&mut self, source: &str, answered: bool) {
        let upstream = SocketAddr::from(([192, 0, 2, 1], 53));
        let Target::Hostname(host) = hostname(source) else { unreachable!() };
        let ended = TargetCheckResult::without_answer();
        let result = match answered {
            true => TargetCheckResult {
                answers: vec![(upstream, host, Timestamp::now())],
                outcomes: vec![CheckOutcome::Passed],
                ..ended
            },
            false => {
                let missing = CheckOutcome::NoAnswer { upstream, message: "SERVFAIL".to_owned() };
                TargetCheckResult { outcomes: vec![missing], ..ended }
            }
        };
        let (namespace, timeout) = (Some("shop".into()), Duration::from_secs(2));
        let key = CheckKey { target: hostname(source), namespace, tcp_port: None, timeout };
        self.controller.leader.check_queue.add(key.clone(), self.key.clone());
        self.controller.leader.check_queue.next(Instant::now());
        self.controller.checked(FinishedCheck { key, result });
    }

    /// Decides, and lets a minute pass, with all retries of writes.
    async fn decide(&mut self) {
        self.controller.leader.to_decide.add(&self.key);
        self.run().await;
    }

    async fn run(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        self.controller.drain();
        while let Ok(ended) = timeout_at(end, self.controller.leader.runtime.event()).await {
            ended.unwrap().into_iter().for_each(|ended| self.controller.written(ended));
            self.controller.drain();
        }
    }

    fn status(&self) -> Value {
        self.object.lock()["status"].clone()
    }

    /// The metrics `ready`, `source` and `changes_total`.
    fn metrics(&self) -> (i64, i64, u64) {
        let (metrics, labels) = (&self.controller.context.metrics, ["shop", "web"]);
        let gauge = |of: &prometheus::IntGaugeVec| of.with_label_values(&labels).get();
        (gauge(&metrics.ready), gauge(&metrics.source), metrics.changes.with_label_values(&labels).get())
    }

    fn reported(&self) -> Vec<Reason> {
        self.recorder.take_queued().into_iter().map(|(reason, _)| reason).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn move_counts_once_its_status_is_written() {
    let mut shop = Shop::open(web()).await;
    assert_eq!(shop.metrics(), (1, 0, 0));
    shop.set_granted(false);
    shop.check("seoul", "NXDOMAIN");
    shop.decide().await;
    assert_eq!(shop.metrics(), (0, 0, 0), "clients still get seoul, which fails");
    shop.set_granted(true);
    shop.run().await;
    let status = shop.status();
    assert_eq!((&status["target"]["source"], shop.metrics()), (&json!("busan"), (1, 1, 1)));
    assert_eq!(status["history"].as_array().unwrap().len(), 1);
    assert_eq!(shop.reported(), [Reason::FailedOver]);
}

#[tokio::test(start_paused = true)]
async fn target_of_an_unlisted_cluster_stays_until_it_fails() {
    let mut object = web();
    object["spec"]["sources"][0] = json!({"name": "seoul", "service": {"cluster": "west", "name": "web"}});
    object["status"]["target"]["serviceUID"] = json!("u");
    for (remotes, why) in [
        (vec!["west".into()], "source seoul: the Services of cluster west aren't listed yet"),
        (vec![], "source seoul: no flag --remote names cluster west; the remote clusters are: none"),
    ] {
        let policy = HostnamePolicy { remotes: remotes.into(), ..HostnamePolicy::default() };
        let mut shop = Shop::open_with(object.clone(), policy).await;
        let status = shop.status();
        let condition = |kind: &str| {
            let conditions = status["conditions"].as_array().unwrap();
            let condition = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
            ["status", "reason", "message"].map(|field| condition[field].as_str().unwrap().to_owned())
        };
        assert_eq!(condition("Accepted"), ["False", "NotListed", why]);
        assert_eq!((&status["target"]["source"], &condition("Ready")[0][..]), (&json!("seoul"), "True"));
        shop.check("seoul", "NXDOMAIN");
        shop.decide().await;
        assert_eq!(shop.status()["target"]["source"], "busan");
        assert_eq!(shop.reported(), [Reason::FailedOver]);
    }
}

#[tokio::test(start_paused = true)]
async fn unwritten_moves_leave_no_trace() {
    let mut shop = Shop::open(web()).await;
    let before = shop.status();
    shop.set_granted(false);
    for (failing, passing) in [("seoul", "busan"), ("busan", "seoul")] {
        shop.check(passing, "");
        shop.check(failing, "NXDOMAIN");
        shop.decide().await;
    }
    shop.check("busan", "");
    shop.decide().await;
    shop.set_granted(true);
    shop.run().await;
    let status = shop.status();
    assert_eq!((&status["target"], &status["history"]), (&before["target"], &before["history"]));
    assert_eq!((shop.metrics(), shop.reported()), ((1, 0, 0), vec![]));
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_write_rests_on_present_facts() {
    let mut shop = Shop::open(web()).await;
    shop.set_granted(false);
    shop.check("seoul", "NXDOMAIN");
    shop.decide().await;
    shop.check("seoul", "");
    shop.check("busan", "NXDOMAIN");
    shop.set_granted(true);
    shop.run().await;
    assert_eq!((&shop.status()["target"]["source"], shop.metrics()), (&json!("seoul"), (1, 0, 0)));
    assert_eq!(shop.reported(), []);
}

#[tokio::test(start_paused = true)]
async fn failover_from_a_target_not_offered_outlasts_refused_writes() {
    let mut shop = Shop::open(web()).await;
    shop.set_granted(false);
    shop.edit(|object| object["spec"]["sources"][0]["hostname"] = json!("new.example"));
    shop.decide().await;
    shop.check("seoul", "NXDOMAIN");
    for _ in 0..2 {
        shop.decide().await;
        assert_eq!(shop.metrics(), (0, 0, 0), "clients still get the old target of seoul, which fails");
        assert!(shop.unwritten().unwrap().contains("no permission"));
    }
    shop.set_granted(true);
    shop.decide().await;
    assert_eq!((&shop.status()["target"]["source"], shop.metrics()), (&json!("busan"), (1, 1, 1)));
    assert_eq!((shop.reported(), shop.unwritten()), (vec![Reason::FailedOver], None));
}

#[tokio::test(start_paused = true)]
async fn failed_write_of_a_deleted_object_leaves_no_note() {
    let mut shop = Shop::open(web()).await;
    shop.set_granted(false);
    shop.check("seoul", "NXDOMAIN");
    shop.controller.leader.to_decide.add(&shop.key);
    shop.controller.drain();
    assert_eq!(shop.controller.leader.runtime.queue.in_flight(), [shop.key.clone()]);
    shop.controller.forget(&shop.key);
    shop.run().await;
    assert_eq!(shop.unwritten(), None);
}

#[tokio::test(start_paused = true)]
async fn plan_with_the_present_target_is_not_logged() {
    let mut shop = Shop::open(web()).await;
    shop.controller.context.policy.sync = SyncMode::Plan;
    shop.controller.leader.states.get_mut(&shop.key).unwrap().sent = None;
    let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
    shop.check("busan", "NXDOMAIN");
    shop.decide().await;
    assert!(!log_text.text().contains("plan for"), "{}", log_text.text());
    shop.check("busan", "");
    shop.check("seoul", "NXDOMAIN");
    shop.decide().await;
    let line = "plan for StableName shop/web: status.target → busan.example";
    assert!(log_text.text().contains(line), "{}", log_text.text());
}

#[tokio::test(start_paused = true)]
async fn refusal_is_logged_once_in_all_terms() {
    let (log, _logging) = CapturedLog::start(tracing::Level::WARN);
    let logged =
        |name: &str| log.text().matches(&format!("HostnameRefused: spec.hostnames: \"{name}\"")).count();
    let mut object = web();
    object["spec"]["hostnames"] = json!(["a.example"]);
    let mut shop = Shop::open(object).await;
    assert_eq!(logged("a.example"), 1, "{}", log.text());
    let new_term = |shop: &mut Shop| {
        let FailoverController { leader, context, .. } = &mut shop.controller;
        *leader = LeaderTerm::new(leader.term, context.leadership.clone());
    };
    new_term(&mut shop);
    shop.decide().await;
    assert_eq!(logged("a.example"), 1);
    new_term(&mut shop);
    shop.edit(|object| object["spec"]["hostnames"] = json!(["b.example"]));
    shop.decide().await;
    assert_eq!((logged("a.example"), logged("b.example")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn refused_name_is_shown_before_a_leader_writes_it() {
    let mut shop = Shop::open(web()).await;
    let mut object = web();
    object["metadata"]["name"] = json!("api");
    object["spec"]["hostnames"] = json!(["a.example"]);
    shop.controller.applied(ObservedStableName::new(serde_json::from_value(object).unwrap()));
    let shown = &shop.controller.context.link_reporter.findings.stable_names;
    let why = shown.get(&ServiceKey::new("shop", "api")).unwrap();
    assert!(why.starts_with("HostnameRefused: spec.hostnames: \"a.example\": "), "{why}");
}

#[tokio::test(start_paused = true)]
async fn long_queue_is_decided_in_parts() {
    let mut shop = Shop::open(web()).await;
    shop.controller.context.policy.sync = SyncMode::Plan;
    let keys: Vec<ServiceKey> =
        (0..200).map(|number| ServiceKey::new("shop", &format!("web-{number}"))).collect();
    for key in &keys {
        let mut object: StableName = serde_json::from_value(web()).unwrap();
        object.metadata.name = Some(key.name().to_owned());
        shop.controller.applied(ObservedStableName::new(object));
        shop.controller.leader.to_decide.forget(key);
        shop.controller.leader.runtime.queue.add(key);
    }
    let mut decided = vec![0];
    loop {
        let is_busy = shop.controller.drain();
        let states = &shop.controller.leader.states;
        decided.push(keys.iter().filter(|key| states.contains_key(*key)).count());
        if !is_busy {
            break;
        }
    }
    assert!(decided.windows(2).all(|pair| pair[1] - pair[0] <= 2 * MAX_DECISIONS), "{decided:?}");
    assert_eq!(decided.last(), Some(&200));
}

#[tokio::test(start_paused = true)]
async fn check_is_counted_by_the_verdict_that_counts() {
    let mut shop = Shop::open(web()).await;
    let checks = shop.controller.context.metrics.checks.clone();
    let counted = |label: &str| checks.with_label_values(&["dns", label]).get();
    for _ in 0..2 {
        shop.end_check("seoul", false);
        shop.end_check("busan", true);
    }
    shop.end_check("seoul", false);
    assert_eq!(["passed", "failed", "unknown"].map(counted), [2, 2, 0]);
    shop.end_check("seoul", false);
    assert_eq!(["passed", "failed", "unknown"].map(counted), [2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn refused_write_of_the_external_target_is_named() {
    let mut shop = Shop::open(web()).await;
    let states = Arc::clone(&shop.controller.context.external_target_states);
    states.set_known();
    states.set(&shop.key, Some(ExternalTargetState::Missing), Some(&hostname("seoul")), true);
    states.set_failure(&shop.key, "no permission".to_owned());
    shop.decide().await;
    let status = shop.status();
    let ready = status["conditions"].as_array().unwrap().iter().find(|known| known["type"] == "Ready");
    let message = ready.unwrap()["message"].as_str().unwrap();
    assert!(message.ends_with("doesn't point at the target: no permission"), "{message}");
}
