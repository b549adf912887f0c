//! The PrometheusRule of a StableName, as it should be.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::rule::{ObservedRule, PrometheusRule, canonical_hash};
use super::rule_name::rule_name;
use crate::api::limits::{MAX_ALERT_LABEL, MAX_LABELS};
use crate::api::stable_name::{Alerts, StableName};
use crate::api::validation::{is_alert_label, is_object_label, is_reserved_alert_label};
use crate::model::names::MAX_LABEL;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::labels::{RULE_LABELS, RULE_MANAGED_BY, RULE_OWNER};

/// The page with a section for each alert.
const RUNBOOKS: &str = "docs/stable-names.md";
/// The labels by which the expressions group the series, and which the alerts keep. `cluster` is set where one
/// Prometheus reads several clusters.
const SERIES: &str = "cluster, stable_name_namespace, stable_name";
/// How long the last values count while no leader exports the metrics. LbLinkerNoLeader fires before this time ends.
const LAST_VALUES: &str = "15m";
/// The alert Flapping counts the changes of the target within this time.
const FLAPPING_WINDOW: &str = "1h";
/// The number of changes at which the alert Flapping fires: a failover and the way back are two changes.
const FLAPPING_THRESHOLD: u32 = 5;

/// What the PrometheusRule of a StableName depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleInputs {
    pub uid: Uid,
    pub alerts: Alerts,
    /// The position in `spec.sources` of the source in `spec.pin`.
    pub pinned: Option<usize>,
}

/// A PrometheusRule as it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredRule {
    pub(super) key: ServiceKey,
    uid: Uid,
    labels: BTreeMap<String, String>,
    /// The annotation with the names of the labels in `spec.alerts.ruleLabels`, so that they can be removed later.
    rule_labels: Option<String>,
    groups: Value,
}

/// Returns the `spec` of the PrometheusRule of a StableName.
#[must_use]
pub fn spec(key: &ServiceKey, inputs: &RuleInputs) -> Value {
    DesiredRule::new(key, inputs).object(key.name()).spec
}

impl DesiredRule {
    pub(super) fn new(key: &ServiceKey, inputs: &RuleInputs) -> Self {
        let RuleInputs { uid, alerts, pinned } = inputs;
        let given = alerts.rule_labels.iter().flatten();
        let given = given.filter(|(name, text)| is_object_label(name, text)).take(MAX_LABELS);
        let mut labels: BTreeMap<String, String> =
            given.map(|(name, text)| (name.clone(), text.clone())).collect();
        let (managed_by, lb_linker) = RULE_MANAGED_BY;
        labels.retain(|name, _| name != managed_by && name != RULE_OWNER);
        let names: Vec<&str> = labels.keys().map(String::as_str).collect();
        let rule_labels = (!names.is_empty()).then(|| names.join(","));
        labels.insert(managed_by.to_owned(), lb_linker.to_owned());
        labels.insert(RULE_OWNER.to_owned(), label_value(key.name()));
        let name = rule_name(key.name());
        let groups = json!([{"name": name, "rules": alert_rules(key, alerts, *pinned)}]);
        let key = ServiceKey::new(key.namespace(), &name);
        Self { key, uid: uid.clone(), labels, rule_labels, groups }
    }

    /// Returns a hash of all fields.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.key, self.uid.to_string(), &self.labels, &self.rule_labels).hash(&mut hasher);
        canonical_hash(&self.groups).hash(&mut hasher);
        hasher.finish()
    }

    fn owner(&self, name: &str) -> OwnerReference {
        OwnerReference {
            api_version: StableName::api_version(&()).into_owned(),
            kind: StableName::kind(&()).into_owned(),
            name: name.to_owned(),
            uid: self.uid.to_string(),
            controller: Some(true),
            // With true the permission to change finalizers of StableNames would be needed.
            block_owner_deletion: Some(false),
        }
    }

    /// Returns the object for the StableName of this name.
    pub(super) fn object(&self, owner: &str) -> PrometheusRule {
        let annotations = self.rule_labels.iter().map(|names| (RULE_LABELS.to_owned(), names.clone()));
        PrometheusRule {
            metadata: ObjectMeta {
                namespace: Some(self.key.namespace().to_owned()),
                name: Some(self.key.name().to_owned()),
                labels: Some(self.labels.clone()),
                annotations: Some(annotations.collect()).filter(|all: &BTreeMap<_, _>| !all.is_empty()),
                owner_references: Some(vec![self.owner(owner)]),
                ..ObjectMeta::default()
            },
            spec: json!({"groups": self.groups}),
        }
    }

    /// Returns whether an object is as it should be, apart from labels and annotations of other clients.
    pub(super) fn matches(&self, observed: &ObservedRule) -> bool {
        observed.has_exact_owner
            && observed.owner_uid == self.uid
            && observed.labels == self.labels
            && observed.rule_labels == self.rule_labels
            && observed.groups == canonical_hash(&self.groups)
    }

    /// Returns a merge patch that turns the observed object into the desired one. The API server refuses it for another
    /// uid or resourceVersion.
    pub(super) fn patch(&self, observed: &ObservedRule, owner: &str) -> Value {
        let stale = observed.labels.keys().filter(|name| !self.labels.contains_key(*name));
        let stale = stale.map(|name| (name.clone(), Value::Null));
        let wanted = self.labels.iter().map(|(name, text)| (name.clone(), json!(text)));
        let labels: serde_json::Map<String, Value> = stale.chain(wanted).collect();
        json!({
            "metadata": {
                "uid": observed.uid.to_string(),
                "resourceVersion": observed.version,
                "labels": labels,
                "annotations": {RULE_LABELS: self.rule_labels},
                "ownerReferences": [self.owner(owner)],
            },
            "spec": {"groups": self.groups},
        })
    }
}

/// Returns a name, cut to the maximum length of the value of a label.
fn label_value(name: &str) -> String {
    let cut: String = name.chars().take(MAX_LABEL).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// An alert about a StableName.
struct Alert {
    name: &'static str,
    expr: String,
    wait: Option<Duration>,
    severity: &'static str,
    summary: String,
    description: String,
}

impl Alert {
    fn rule(self, alerts: &Alerts) -> Value {
        let Self { name, expr, wait, severity, summary, description } = self;
        let alert = format!("LbLinkerStableName{name}");
        let runbook = format!("{RUNBOOKS}#{}", alert.to_lowercase());
        let mut rule = json!({
            "alert": alert,
            "expr": expr,
            "labels": labels_of(alerts, severity),
            "annotations": {"summary": summary, "description": description, "runbook_url": runbook},
        });
        if let Some(wait) = wait {
            rule["for"] = json!(duration(wait));
        }
        rule
    }
}

/// Returns the three alerts.
fn alert_rules(key: &ServiceKey, alerts: &Alerts, pinned: Option<usize>) -> Value {
    let all = [
        not_ready(key, alerts.not_ready_for()),
        failed_over(key, alerts.failed_over_for(), pinned),
        flapping(key),
    ];
    all.map(|alert| alert.rule(alerts)).into_iter().collect()
}

fn not_ready(key: &ServiceKey, wait: Duration) -> Alert {
    let (namespace, name) = key.parts();
    Alert {
        name: "NotReady",
        // Without a leader the last values of several Pods count: an alert that fires isn't resolved.
        expr: format!("{} == 0", last(key, "ready", "min")),
        wait: Some(wait),
        severity: "critical",
        summary: format!("StableName {namespace}/{name} isn't Ready."),
        description: format!(
            "StableName {name} in namespace {namespace} hasn't been Ready for {}: its spec or one of its names is \
             refused, it has no target, its target isn't verified or fails its checks, or its external target is \
             missing. {}",
            words(wait),
            look(key)
        ),
    }
}

fn failed_over(key: &ServiceKey, wait: Duration, pinned: Option<usize>) -> Alert {
    let (namespace, name) = key.parts();
    let preferred = match pinned.unwrap_or_default() {
        0 => "> 0".to_owned(),
        position => format!(">= 0 != {position}"),
    };
    let wanted = if pinned.is_some() { "the pinned one" } else { "the preferred one" };
    Alert {
        name: "FailedOver",
        expr: format!("{} {preferred}", last(key, "source", "max")),
        wait: Some(wait),
        severity: "warning",
        summary: format!("StableName {namespace}/{name} leads to another source than {wanted}."),
        description: format!(
            "StableName {name} in namespace {namespace} has led to source {{{{ $value }}}} of spec.sources, counted \
             from 0 (behind the last one: to a source that left it), and not to {wanted}, for {}. {}",
            words(wait),
            look(key)
        ),
    }
}

fn flapping(key: &ServiceKey) -> Alert {
    let (namespace, name) = key.parts();
    Alert {
        name: "Flapping",
        expr: format!(
            "sum by ({SERIES}) (\n  increase(lb_linker_stable_name_changes_total{}[{FLAPPING_WINDOW}])\n) >= \
             {FLAPPING_THRESHOLD}",
            selector(key)
        ),
        wait: None,
        severity: "warning",
        summary: format!("The target of StableName {namespace}/{name} changes often."),
        description: format!(
            "The target of StableName {name} in namespace {namespace} has changed {{{{ $value | humanize }}}} times in \
             the last hour. {}",
            look(key)
        ),
    }
}

fn selector(key: &ServiceKey) -> String {
    let (namespace, name) = key.parts();
    format!("{{stable_name_namespace={}, stable_name={}}}", json!(namespace), json!(name))
}

/// Returns the value of a metric; `of_several` chooses one of several Pods' values. After a change of the leader another
/// Pod exports the metrics, and for a while no Pod does.
fn last(key: &ServiceKey, metric: &str, of_several: &str) -> String {
    let metric = format!("lb_linker_stable_name_{metric}{}", selector(key));
    format!(
        "(\n  max by ({SERIES}) ({metric})\n    or\n  {of_several} by ({SERIES}) (last_over_time({metric}[{LAST_VALUES}]))\n)"
    )
}

/// Returns the sentence with the command that tells the reasons.
fn look(key: &ServiceKey) -> String {
    let (namespace, name) = key.parts();
    format!("kubectl -n {namespace} describe stablename {name} tells why.")
}

/// Returns the labels of an alert: `severity`, and the valid labels of `spec.alerts.labels`, which may replace it.
fn labels_of(alerts: &Alerts, severity: &str) -> BTreeMap<String, String> {
    let is_bounded = |text: &str| text.chars().count() <= MAX_ALERT_LABEL;
    let given = alerts.labels.iter().flatten();
    let given = given
        .filter(|(name, text)| {
            is_alert_label(name, text) && !is_reserved_alert_label(name) && is_bounded(text)
        })
        .take(MAX_LABELS);
    let mut labels = BTreeMap::from([("severity".to_owned(), severity.to_owned())]);
    labels.extend(given.map(|(name, text)| (name.clone(), text.clone())));
    labels
}

/// Returns a duration in the syntax of Prometheus.
fn duration(wait: Duration) -> String {
    match wait.as_secs() {
        0 => "0s".to_owned(),
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// Returns a duration in words.
fn words(wait: Duration) -> String {
    let (number, unit) = match wait.as_secs() {
        seconds if seconds > 0 && seconds % 3600 == 0 => (seconds / 3600, "hour"),
        seconds if seconds > 0 && seconds % 60 == 0 => (seconds / 60, "minute"),
        seconds => (seconds, "second"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}
