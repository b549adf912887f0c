//! `spec.alerts` of StableNames: PrometheusRules with the CRD of the Prometheus operator, and without it.

mod release;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use lb_linker::api::stable_name::StableName;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::pool::{Base, Lent};
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::harness::{EVENT_TIMEOUT, apply_prometheus_crds, deploy, eventually, grant_optional};

const RULES: &str = "monitoring.coreos.com";

/// A control plane for this test alone, with the namespace `shop`.
struct Shop {
    plane: Lent,
    cluster: Cluster,
}

impl Shop {
    /// Applies these folders of `deploy/`, too.
    async fn open(base: Base, folders: &[&str]) -> Self {
        let plane = match base {
            Base::PrometheusRules => ControlPlane::lend_with(base),
            // A control plane that is lent may have the CRDs of the Prometheus operator.
            _ => ControlPlane::start_with(base, Options::default()),
        };
        plane.create_namespace("shop");
        let cluster = plane.cluster().await;
        let shop = Self { plane, cluster };
        folders.iter().for_each(|folder| shop.install(folder));
        shop
    }

    fn install(&self, folder: &str) {
        self.plane.apply_files(&deploy().join(folder));
    }

    async fn linker(&self, args: &[&str]) -> Linker {
        let args = [&["--upstream", "none"], args].concat();
        let linker = Linker::in_cluster(&self.plane, "external-targets", &args);
        linker.ready().await;
        linker
    }

    fn targets(&self) -> Api<StableName> {
        Api::namespaced(self.cluster.client.clone(), "shop")
    }

    fn rules(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(RULES, "v1", "PrometheusRule");
        Api::namespaced_with(self.cluster.client.clone(), "shop", &ApiResource::from_gvk(&kind))
    }

    /// Creates a StableName with two sources that have addresses. Without `spec.check.tcpPort` addresses aren't
    /// checked, and count as healthy.
    async fn create(&self, name: &str, alerts: Value) {
        let sources = json!([
            {"name": "first", "addresses": ["192.0.2.10"]},
            {"name": "second", "addresses": ["192.0.2.11"]},
        ]);
        let spec = json!({"sources": sources, "alerts": alerts});
        let object = StableName::new(name, serde_json::from_value(spec).unwrap());
        self.targets().create(&PostParams::default(), &object).await.unwrap();
    }

    async fn patch(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.targets().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Returns status, reason and observed generation of a condition.
    async fn condition(&self, name: &str, kind: &str) -> Option<(String, String, i64)> {
        let status = self.targets().get(name).await.unwrap().status.unwrap_or_default();
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind)?;
        Some((condition.status, condition.reason, condition.observed_generation.unwrap()))
    }

    /// Waits until a condition has this status and reason.
    async fn wait_for_condition(&self, name: &str, kind: &str, expected: (&str, &str)) {
        let look = || async {
            let (status, reason, _) = self.condition(name, kind).await?;
            ((&*status, &*reason) == expected).then_some(())
        };
        eventually(&format!("condition {kind} of {name} is {expected:?}"), look).await;
    }

    /// Waits until a PrometheusRule exists and `is_expected` accepts it, and returns the rule.
    async fn wait_for_rule(&self, name: &str, what: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        let look = || async {
            let rule = self.rules().get_opt(name).await.unwrap()?;
            let rule = serde_json::to_value(rule).unwrap();
            is_expected(&rule).then_some(rule)
        };
        eventually(&format!("PrometheusRule {name}: {what}"), look).await
    }

    async fn rule_is_gone(&self, name: &str) {
        let look = || async { self.rules().get_opt(name).await.unwrap().is_none().then_some(()) };
        eventually(&format!("PrometheusRule {name} is gone"), look).await;
    }

    /// Returns the requests of lb-linker about the API group of PrometheusRules: the verb, and the path.
    fn requests(&self) -> BTreeSet<(String, String)> {
        let events = self.plane.audit_events().into_iter();
        let ours = events.filter(|event| event.user.contains("lb-linker") && event.uri.contains(RULES));
        ours.map(|event| (event.verb, event.uri.split('?').next().unwrap().to_owned())).collect()
    }
}

fn alerts_of(rule: &Value) -> Vec<&str> {
    let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap().iter();
    rules.map(|rule| rule["alert"].as_str().unwrap()).collect()
}

/// Returns whether a PrometheusRule has these labels. `None` stands for a label that it must not have.
fn has_labels(rule: &Value, labels: &[(&str, Option<&str>)]) -> bool {
    labels.iter().all(|(name, text)| rule["metadata"]["labels"][name].as_str() == *text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_rule_is_written_restored_and_removed() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let linker = shop.linker(&[]).await;
    shop.create("plain", Value::Null).await;
    shop.wait_for_condition("plain", "Ready", ("True", "TargetVerified")).await;
    assert_eq!(shop.requests(), BTreeSet::new(), "no StableName has spec.alerts");

    let alerts = json!({"ruleLabels": {"release": "monitoring"}, "labels": {"team": "shop"}});
    shop.create("web", alerts).await;
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    shop.wait_for_condition("web", "Ready", ("True", "TargetVerified")).await;
    let rule = shop.wait_for_rule("lb-linker-web", "written", |_| true).await;
    let uid = shop.targets().get("web").await.unwrap().metadata.uid.unwrap();
    let owner = &rule["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["blockOwnerDeletion"]), (&json!(uid), &json!(false)));
    assert!(has_labels(&rule, &[("release", Some("monitoring"))]));
    assert_eq!(alerts_of(&rule).len(), 3);

    // lb-linker reverts changes of another client, and keeps the labels that the other client adds.
    let is_restored = |expected: &Value| {
        let (spec, labels) =
            (expected["spec"].clone(), [("release", Some("monitoring")), ("policy", Some("x"))]);
        move |rule: &Value| rule["spec"] == spec && has_labels(rule, &labels)
    };
    for change in [
        json!({"metadata": {"labels": {"policy": "x"}}, "spec": {"groups": []}}),
        json!({"metadata": {"labels": {"release": "other"}}}),
        json!({"metadata": {"labels": {"linker.hsj.com/stable-name": null, "release": null}}}),
    ] {
        let changed =
            shop.rules().patch("lb-linker-web", &PatchParams::default(), &Patch::Merge(&change)).await;
        let changed = changed.unwrap().metadata.resource_version;
        let is_newer = |rule: &Value| rule["metadata"]["resourceVersion"].as_str() != changed.as_deref();
        let is_restored = is_restored(&rule);
        shop.wait_for_rule("lb-linker-web", "restored", |rule| is_newer(rule) && is_restored(rule)).await;
    }
    shop.rules().delete("lb-linker-web", &DeleteParams::default()).await.unwrap();
    shop.wait_for_rule("lb-linker-web", "created again", |it| it["spec"] == rule["spec"]).await;

    // A change of the StableName's spec changes the rule.
    shop.patch("web", json!({"pin": "second", "alerts": {"ruleLabels": {"release": null, "team": "a"}}}))
        .await;
    let is_followed = |rule: &Value| has_labels(rule, &[("release", None), ("team", Some("a"))]);
    let pinned = shop.wait_for_rule("lb-linker-web", "follows the spec", is_followed).await;
    assert!(pinned.to_string().contains(">= 0 != 1"), "{pinned}");
    let generation = shop.targets().get("web").await.unwrap().metadata.generation.unwrap();
    let is_observed = || async {
        let (status, _, observed) = shop.condition("web", "AlertsReady").await?;
        (status == "True" && observed == generation).then_some(())
    };
    eventually("AlertsReady has the new generation", is_observed).await;

    shop.patch("web", json!({"alerts": null})).await;
    shop.rule_is_gone("lb-linker-web").await;
    let is_gone = || async { shop.condition("web", "AlertsReady").await.is_none().then_some(()) };
    eventually("the condition AlertsReady is gone", is_gone).await;
    shop.wait_for_condition("web", "Ready", ("True", "TargetVerified")).await;
    drop(linker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_removed_before_the_answer_to_a_write_is_restored() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let is_next_late = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&is_next_late);
    let injector = move |line: &str| {
        let is_patch = line.starts_with("PATCH ") && line.contains("/prometheusrules/");
        match is_patch && late.swap(false, Ordering::SeqCst) {
            true => ApiFault::LateAnswer(Duration::from_secs(5)),
            false => ApiFault::Pass,
        }
    };
    let api = FaultyApi::start(&shop.plane, Arc::new(injector)).await;
    let linker = Linker::start(["--kubeconfig", api.kubeconfig(), "--upstream", "none"]);
    linker.ready().await;
    shop.create("web", json!({})).await;
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    let patch = async |change: Value| {
        shop.rules().patch("lb-linker-web", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    };
    is_next_late.store(true, Ordering::SeqCst);
    patch(json!({"spec": {"groups": []}})).await;
    let has_groups = |rule: &Value| rule["spec"]["groups"] != json!([]);
    shop.wait_for_rule("lb-linker-web", "restored", has_groups).await;
    // While the answer is on its way, the watch shows that the rule has lost the label by which it is selected.
    const OWNER: &str = "linker.hsj.com/stable-name";
    patch(json!({"metadata": {"labels": {OWNER: null}}})).await;
    let has_label = |rule: &Value| rule["metadata"]["labels"][OWNER].is_string();
    let restored = shop.wait_for_rule("lb-linker-web", "restored again", has_label);
    // Without an event, the watch lists again after 150 s only.
    timeout(EVENT_TIMEOUT / 2, restored).await.expect("the label is restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_leader_removes_the_rule_of_removed_alerts() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let mut linker = shop.linker(&[]).await;
    shop.create("web", json!({"ruleLabels": {"release": "monitoring"}})).await;
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    let written = shop.wait_for_rule("lb-linker-web", "written", |_| true).await;
    linker.stop();

    // The next leader finds the rule as it should be, and writes only the rule of another StableName.
    shop.create("other", json!({})).await;
    let mut linker = shop.linker(&[]).await;
    shop.wait_for_condition("other", "AlertsReady", ("True", "RuleWritten")).await;
    shop.wait_for_rule("lb-linker-web", "unchanged", |rule| *rule == written).await;
    linker.stop();

    shop.patch("web", json!({"alerts": null})).await;
    let linker = shop.linker(&[]).await;
    shop.rule_is_gone("lb-linker-web").await;
    let is_gone = || async { shop.condition("web", "AlertsReady").await.is_none().then_some(()) };
    eventually("the condition AlertsReady is gone", is_gone).await;
    drop(linker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_crd_and_permission_delay_only_the_rule() {
    let shop = Shop::open(Base::StableNames, &[]).await;
    let linker = shop.linker(&[]).await;
    shop.create("web", json!({})).await;
    shop.wait_for_condition("web", "AlertsReady", ("False", "PrometheusRuleNotInstalled")).await;
    shop.wait_for_condition("web", "Ready", ("True", "TargetVerified")).await;
    let discovery = BTreeSet::from([("get".to_owned(), format!("/apis/{RULES}/v1"))]);
    eventually("discovery", || async { shop.requests().is_superset(&discovery).then_some(()) }).await;
    assert_eq!(shop.requests(), discovery);
    linker.line("doesn't serve PrometheusRules").await;
    assert_eq!(linker.logged("doesn't serve PrometheusRules"), 1);

    apply_prometheus_crds(&shop.plane);
    shop.wait_for_condition("web", "AlertsReady", ("False", "Forbidden")).await;
    shop.wait_for_condition("web", "Ready", ("True", "TargetVerified")).await;
    linker.line("deploy/alerts/").await;
    assert_eq!(linker.logged("deploy/alerts/"), 1);
    // The leader goes on deciding about the target.
    shop.patch("web", json!({"pin": "second"})).await;
    let follows = || async {
        let target = shop.targets().get("web").await.unwrap().status?.target?;
        (target.source == "second").then_some(())
    };
    eventually("the pin is followed", follows).await;

    shop.install("alerts");
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    shop.wait_for_rule("lb-linker-web", "written", |_| true).await;

    // The CRD is deleted with its objects, and installed again.
    shop.plane.kubectl(&["delete", "crd", "prometheusrules.monitoring.coreos.com"]);
    shop.wait_for_condition("web", "AlertsReady", ("False", "PrometheusRuleNotInstalled")).await;
    apply_prometheus_crds(&shop.plane);
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    shop.wait_for_rule("lb-linker-web", "written again", |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_of_removed_alerts_is_deleted_when_permission_returns() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let mut linker = shop.linker(&[]).await;
    shop.create("web", json!({})).await;
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    linker.stop();
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker-alerts"]);
    let linker = shop.linker(&[]).await;
    shop.wait_for_condition("web", "AlertsReady", ("False", "Forbidden")).await;

    // The leader decides about each version of the StableName before the next patch.
    shop.patch("web", json!({"alerts": null})).await;
    for source in ["second", "first"] {
        shop.patch("web", json!({"pin": source})).await;
        let follows = || async {
            let target = shop.targets().get("web").await.unwrap().status?.target?;
            (target.source == source).then_some(())
        };
        eventually("the pin is followed", follows).await;
    }
    let (_, reason, _) = shop.condition("web", "AlertsReady").await.expect("the rule remains");
    assert_eq!(reason, "Forbidden");
    shop.install("alerts");
    shop.rule_is_gone("lb-linker-web").await;
    let is_gone = || async { shop.condition("web", "AlertsReady").await.is_none().then_some(()) };
    eventually("the condition AlertsReady is gone", is_gone).await;
    drop(linker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permission_in_one_namespace_suffices_for_its_rules() {
    let shop = Shop::open(Base::PrometheusRules, &[]).await;
    shop.plane.create_namespace("other");
    grant_optional(&shop.plane, "alerts", "shop");
    let linker = shop.linker(&["--watch-namespaces", "other,shop"]).await;
    let other: Api<StableName> = Api::namespaced(shop.cluster.client.clone(), "other");
    shop.create("web", json!({})).await;
    let web = shop.targets().get("web").await.unwrap();
    other.create(&PostParams::default(), &StableName::new("web", web.spec)).await.unwrap();
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;
    let is_forbidden = || async {
        let conditions = other.get("web").await.unwrap().status?.conditions;
        let condition = conditions.into_iter().find(|condition| condition.type_ == "AlertsReady")?;
        (condition.reason == "Forbidden").then_some(condition.message)
    };
    let message = eventually("AlertsReady in the other namespace", is_forbidden).await;
    assert!(message.starts_with("can't list PrometheusRules in namespace other: "), "{message}");
    assert!(message.ends_with("spec.alerts needs the permissions of deploy/alerts/ there"), "{message}");
    drop(linker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_prometheus_rule_is_left_unchanged() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let foreign = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "lb-linker-web", "namespace": "shop"},
        "spec": {"groups": []},
    });
    let foreign: DynamicObject = serde_json::from_value(foreign).unwrap();
    let version = |object: DynamicObject| object.metadata.resource_version;
    let created = version(shop.rules().create(&PostParams::default(), &foreign).await.unwrap());
    let linker = shop.linker(&[]).await;
    shop.create("web", json!({})).await;
    shop.create("other", json!({})).await;
    shop.wait_for_condition("web", "AlertsReady", ("False", "Conflict")).await;
    shop.wait_for_condition("web", "Ready", ("True", "TargetVerified")).await;
    shop.wait_for_condition("other", "AlertsReady", ("True", "RuleWritten")).await;
    assert_eq!(version(shop.rules().get("lb-linker-web").await.unwrap()), created);
    // lb-linker doesn't delete the foreign rule when spec.alerts is removed.
    shop.patch("web", json!({"alerts": null})).await;
    let is_gone = || async { shop.condition("web", "AlertsReady").await.is_none().then_some(()) };
    eventually("the condition AlertsReady is gone", is_gone).await;
    assert_eq!(version(shop.rules().get("lb-linker-web").await.unwrap()), created);

    shop.patch("web", json!({"alerts": {}})).await;
    shop.wait_for_condition("web", "AlertsReady", ("False", "Conflict")).await;
    shop.rules().delete("lb-linker-web", &DeleteParams::default()).await.unwrap();
    shop.wait_for_condition("web", "AlertsReady", ("True", "RuleWritten")).await;

    // lb-linker writes more and more seldom while another client reverts its writes.
    let is_filled = |rule: &Value| !alerts_of(rule).is_empty();
    let emptied = Patch::Merge(json!({"spec": {"groups": [{"name": "mine", "rules": []}]}}));
    for _ in 0..11 {
        shop.wait_for_rule("lb-linker-other", "written", is_filled).await;
        shop.rules().patch("lb-linker-other", &PatchParams::default(), &emptied).await.unwrap();
    }
    linker.line("another client changes its PrometheusRule").await;
    shop.wait_for_condition("other", "AlertsReady", ("False", "RuleRefused")).await;
    shop.wait_for_rule("lb-linker-other", "written", is_filled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_share_a_bounded_rate_of_writes() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    shop.plane.create_namespace("small");
    for number in 0..24 {
        shop.create(&format!("web{number:02}"), json!({})).await;
    }
    let small: Api<StableName> = Api::namespaced(shop.cluster.client.clone(), "small");
    let web = shop.targets().get("web00").await.unwrap();
    small.create(&PostParams::default(), &StableName::new("web", web.spec)).await.unwrap();
    let linker = shop.linker(&[]).await;
    let created = || async {
        let events = shop.plane.audit_events().into_iter();
        let created: Vec<_> =
            events.filter(|event| event.verb == "create" && event.resource == "prometheusrules").collect();
        (created.len() >= 25).then_some(created)
    };
    let created = eventually("25 created PrometheusRules in the audit log", created).await;
    assert_eq!(created.len(), 25, "{created:?}");
    // lb-linker begins at most four writes of PrometheusRules per second, and at most four are under way: 21 begin after
    // the end of the first one.
    let took = created[24].completed.duration_since(created[0].completed);
    assert!(took >= SignedDuration::from_millis(4500), "{took:?}");
    let place = created.iter().position(|event| event.namespace == "small").unwrap();
    assert!(place < 12, "the namespace with one StableName waits for {place} writes");
    drop(linker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sync_plan_logs_the_rule_and_sync_off_requests_nothing() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    shop.create("web", json!({})).await;
    let linker = shop.linker(&["--sync", "off"]).await;
    linker.line("ready: StableNames: 1").await;
    drop(linker);
    assert_eq!(shop.requests(), BTreeSet::new());
    let linker = shop.linker(&["--sync", "plan"]).await;
    linker.line("plan for StableName shop/web: create PrometheusRule lb-linker-web").await;
    assert!(shop.requests().iter().all(|(verb, _)| ["get", "list", "watch"].contains(&&**verb)));
    assert!(shop.rules().get_opt("lb-linker-web").await.unwrap().is_none());

    let kubeconfig = shop.plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let check = |sync: &str| {
        let user = kubeconfig.to_str().unwrap();
        let args = ["check", "--cluster", "--upstream=none", "--kubeconfig", user, "--sync", sync];
        let printed = String::from_utf8(run_to_end(args).stdout).unwrap();
        let lines = printed.lines().filter(|line| line.contains("prometheusrules"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let granted = ["list", "watch", "create", "patch", "delete"]
        .map(|verb| format!("yes  {verb} prometheusrules in all namespaces"));
    assert_eq!(check("on"), granted);
    assert_eq!(check("plan"), granted[..2]);
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker-alerts"]);
    let missing =
        "no   list prometheusrules in all namespaces (only for spec.alerts of StableNames: deploy/alerts/)";
    assert_eq!(check("on")[0], missing);
}
