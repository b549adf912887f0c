//! Tests of desired PrometheusRules, and of the detection of changes by other clients.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource;
use serde_json::{Value, json};

use super::desired::{DesiredRule, RuleInputs, spec};
use super::rule::{ObservedRule, PrometheusRule, canonical_hash, target_key};
use super::rule_name::rule_name;
use crate::api::stable_name::Alerts;
use crate::model::service_key::ServiceKey;

fn web() -> ServiceKey {
    ServiceKey::new("shop", "web")
}

fn inputs(alerts: Value, pinned: Option<usize>) -> RuleInputs {
    RuleInputs { uid: "u".into(), alerts: serde_json::from_value(alerts).unwrap(), pinned }
}

fn desired(alerts: Value) -> DesiredRule {
    DesiredRule::new(&web(), &inputs(alerts, None))
}

/// Returns the object as the API server stores it.
fn stored(desired: &DesiredRule) -> PrometheusRule {
    let mut object = desired.object("web");
    object.metadata.uid = Some("r".to_owned());
    object.metadata.resource_version = Some("7".to_owned());
    object
}

fn observed(object: &PrometheusRule) -> ObservedRule {
    ObservedRule::of(object).unwrap().1
}

/// Applies a merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return *target = patch.clone() };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, field) in fields {
        if field.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], field);
        }
    }
}

fn patched(object: &PrometheusRule, patch: &Value) -> PrometheusRule {
    let mut value = serde_json::to_value(object).unwrap();
    merge(&mut value, patch);
    serde_json::from_value(value).unwrap()
}

fn rules(spec: &Value) -> BTreeMap<String, Value> {
    let rules = spec["groups"][0]["rules"].as_array().unwrap().iter();
    rules.map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone())).collect()
}

#[test]
fn rule_has_owner_reference_labels_and_three_alerts() {
    let alerts = json!({"ruleLabels": {"release": "monitoring"}, "labels": {"team": "shop"}});
    let object = serde_json::to_value(desired(alerts).object("web")).unwrap();
    assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1");
    assert_eq!(object["kind"], "PrometheusRule");
    let expected = json!({
        "namespace": "shop",
        "name": "lb-linker-web",
        "labels": {
            "app.kubernetes.io/managed-by": "lb-linker",
            "linker.hsj.com/stable-name": "web",
            "release": "monitoring",
        },
        "annotations": {"linker.hsj.com/rule-labels": "release"},
        "ownerReferences": [{
            "apiVersion": "linker.hsj.com/v1alpha1",
            "kind": "StableName",
            "name": "web",
            "uid": "u",
            "controller": true,
            "blockOwnerDeletion": false,
        }],
    });
    assert_eq!(object["metadata"], expected);
    let rules = rules(&object["spec"]);
    assert_eq!(
        rules.keys().collect::<Vec<_>>(),
        ["LbLinkerStableNameFailedOver", "LbLinkerStableNameFlapping", "LbLinkerStableNameNotReady"]
    );
    for rule in rules.values() {
        assert_eq!(rule["labels"]["team"], "shop");
        assert!(
            rule["expr"].as_str().unwrap().contains(r#"{stable_name_namespace="shop", stable_name="web"}"#)
        );
    }
}

#[test]
fn for_durations_come_from_the_spec_or_are_defaults() {
    for (alerts, not_ready, failed_over) in [
        (json!({}), "5m", "15m"),
        (json!({"notReadyForSeconds": 0, "failedOverForSeconds": 86400}), "0s", "24h"),
        (json!({"notReadyForSeconds": 90, "failedOverForSeconds": -1}), "90s", "15m"),
    ] {
        let rules = rules(&spec(&web(), &inputs(alerts, None)));
        assert_eq!(rules["LbLinkerStableNameNotReady"]["for"], not_ready);
        assert_eq!(rules["LbLinkerStableNameFailedOver"]["for"], failed_over);
        assert_eq!(rules["LbLinkerStableNameFlapping"].get("for"), None);
    }
}

#[test]
fn failed_over_alert_expects_the_pinned_or_preferred_source() {
    for (pinned, end) in [(None, ") > 0"), (Some(0), ") > 0"), (Some(2), ") >= 0 != 2")] {
        let rules = rules(&spec(&web(), &inputs(json!({}), pinned)));
        let rule = &rules["LbLinkerStableNameFailedOver"];
        assert!(rule["expr"].as_str().unwrap().ends_with(end), "{rule}");
        let word = if pinned.is_some() { "pinned" } else { "preferred" };
        assert!(rule["annotations"]["summary"].as_str().unwrap().contains(word));
    }
}

#[test]
fn unusable_labels_are_left_out() {
    let alerts = json!({
        "ruleLabels": {
            "app.kubernetes.io/managed-by": "tenant",
            "linker.hsj.com/stable-name": "other",
            "bad key": "x",
            "release": "bad value",
            "team": "shop",
        },
        "labels": {
            "__name__": "x",
            "0": "x",
            "template": "{{ $labels.pod }}",
            "long": "x".repeat(257),
            "severity": "page",
            "quote": "\"\\\n{}",
        },
    });
    let object = desired(alerts).object("web");
    let labels = object.metadata.labels.unwrap();
    let expected = BTreeMap::from([
        ("app.kubernetes.io/managed-by", "lb-linker"),
        ("linker.hsj.com/stable-name", "web"),
        ("team", "shop"),
    ]);
    assert_eq!(labels.iter().map(|(name, text)| (&**name, &**text)).collect::<BTreeMap<_, _>>(), expected);
    for rule in rules(&object.spec).values() {
        assert_eq!(rule["labels"], json!({"severity": "page", "quote": "\"\\\n{}"}));
    }
}

#[test]
fn number_of_labels_is_bounded() {
    let many = |value: &str| -> BTreeMap<String, String> {
        (0..100).map(|number| (format!("label{number:02}"), value.to_owned())).collect()
    };
    let alerts =
        Alerts { rule_labels: Some(many("a")), labels: Some(many(&"é".repeat(256))), ..Alerts::default() };
    let inputs = RuleInputs { uid: "u".into(), alerts, pinned: None };
    let object = DesiredRule::new(&web(), &inputs).object("web");
    assert_eq!(object.metadata.labels.as_ref().unwrap().len(), 18);
    assert_eq!(rules(&object.spec)["LbLinkerStableNameFlapping"]["labels"].as_object().unwrap().len(), 17);
    assert!(serde_json::to_vec(&object).unwrap().len() < 100_000);
}

#[test]
fn long_names_stay_valid_and_distinct() {
    let mut names = BTreeSet::new();
    for name in
        ["a".repeat(243), "a".repeat(244), "a".repeat(253), "a.".repeat(126) + "b", "a-".repeat(126) + "c"]
    {
        let rule = rule_name(&name);
        assert!(rule.len() <= 253, "{}", rule.len());
        assert!(!rule.contains("..") && !rule.contains(".-") && rule.starts_with("lb-linker-a"), "{rule}");
        let key = ServiceKey::new("shop", &name);
        let object = DesiredRule::new(&key, &inputs(json!({}), None)).object(&name);
        let value = &object.metadata.labels.as_ref().unwrap()["linker.hsj.com/stable-name"];
        assert!(value.len() <= 63 && value.ends_with(|c: char| c.is_ascii_alphanumeric()), "{value}");
        assert_eq!(ObservedRule::of(&object).unwrap().0, key);
        names.insert(rule);
    }
    assert_eq!(names.len(), 5);
    assert_eq!(rule_name(&"a".repeat(243)), format!("lb-linker-{}", "a".repeat(243)));
    assert_eq!(target_key(&ServiceKey::new("shop", "lb-linker-web")), Some(web()));
}

#[test]
fn rule_matches_despite_labels_of_other_clients() {
    let desired = desired(json!({"ruleLabels": {"release": "monitoring"}}));
    let mut object = stored(&desired);
    assert!(desired.matches(&observed(&object)));
    // Labels and annotations of other clients don't matter.
    object.metadata.labels.as_mut().unwrap().insert("policy".to_owned(), "x".to_owned());
    object.metadata.annotations.as_mut().unwrap().insert("validated".to_owned(), "true".to_owned());
    assert!(desired.matches(&observed(&object)));
}

#[test]
fn changes_of_other_clients_are_reverted() {
    let desired = desired(json!({"ruleLabels": {"release": "monitoring"}}));
    type Change = fn(&mut PrometheusRule);
    let changes: [(&str, Change); 8] = [
        ("label", |it| drop(it.metadata.labels.as_mut().unwrap().insert("release".into(), "x".into()))),
        ("no label", |it| drop(it.metadata.labels.as_mut().unwrap().remove("release"))),
        ("annotation", |it| it.metadata.annotations = None),
        ("long annotation", |it| {
            let long = BTreeMap::from([("linker.hsj.com/rule-labels".to_owned(), "x,".repeat(100_000))]);
            it.metadata.annotations = Some(long);
        }),
        ("expr", |it| it.spec["groups"][0]["rules"][0]["expr"] = json!("vector(0)")),
        ("rules", |it| it.spec = json!({})),
        ("blockOwnerDeletion", |it| {
            it.metadata.owner_references.as_mut().unwrap()[0].block_owner_deletion = Some(true);
        }),
        ("second owner", |it| {
            let owners = it.metadata.owner_references.as_mut().unwrap();
            let second = k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                controller: None,
                uid: "x".to_owned(),
                ..owners[0].clone()
            };
            owners.push(second);
        }),
    ];
    for (what, change) in changes {
        let mut object = stored(&desired);
        change(&mut object);
        let changed = observed(&object);
        assert!(!desired.matches(&changed), "{what}");
        let patch = desired.patch(&changed, "web");
        assert_eq!(
            (&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]),
            (&json!("r"), &json!("7"))
        );
        assert!(desired.matches(&observed(&patched(&object, &patch))), "{what}");
    }
}

#[test]
fn labels_that_left_the_spec_are_removed() {
    let before = desired(json!({"ruleLabels": {"release": "monitoring", "team": "shop"}}));
    let mut object = stored(&before);
    object.metadata.labels.as_mut().unwrap().insert("policy".to_owned(), "x".to_owned());
    let after = desired(json!({"ruleLabels": {"team": "web"}}));
    assert_ne!(before.fingerprint(), after.fingerprint());
    let object = patched(&object, &after.patch(&observed(&object), "web"));
    assert!(after.matches(&observed(&object)));
    let labels = object.metadata.labels.as_ref().unwrap();
    assert_eq!(
        (labels.get("release"), labels["team"].as_str(), labels["policy"].as_str()),
        (None, "web", "x")
    );
    let without = desired(json!({}));
    let object = patched(&object, &without.patch(&observed(&object), "web"));
    assert!(without.matches(&observed(&object)));
    assert!(object.metadata.annotations.is_none_or(|all| all.is_empty()));
}

#[test]
fn object_of_another_owner_is_foreign() {
    let desired = desired(json!({}));
    let found = |change: &dyn Fn(&mut PrometheusRule)| {
        let mut object = stored(&desired);
        change(&mut object);
        ObservedRule::for_stable_name(&object, &web())
    };
    let owner = |change: fn(&mut k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference)| {
        found(&|it| change(&mut it.metadata.owner_references.as_mut().unwrap()[0]))
    };
    assert!(owner(|_| {}).is_some());
    assert!(owner(|owner| owner.kind = "Deployment".to_owned()).is_none());
    assert!(owner(|owner| owner.api_version = "example.com/v1".to_owned()).is_none());
    assert!(owner(|owner| owner.name = "other".to_owned()).is_none());
    // The owner was a deleted StableName of the same name: the rule is taken over.
    let earlier = owner(|owner| owner.uid = "earlier".to_owned()).unwrap();
    assert!(!desired.matches(&earlier));
    // The garbage collector removes the reference when the owner is deleted with --cascade=orphan.
    let orphan = found(&|it| it.metadata.owner_references = None).unwrap();
    assert!(orphan.owner_uid.is_empty() && !desired.matches(&orphan));
    let foreign = found(&|it| {
        it.metadata.owner_references = None;
        it.metadata.labels = None;
    });
    assert!(foreign.is_none());
}

#[test]
fn hash_depends_on_values_and_not_on_the_order_of_fields() {
    let hash = |text: &str| canonical_hash(&serde_json::from_str(text).unwrap());
    assert_eq!(hash(r#"{"a": 1, "b": [true, null]}"#), hash(r#"{"b": [true, null], "a": 1}"#));
    let texts =
        [r#"{"a": 1}"#, r#"{"a": "1"}"#, r#"[["a"]]"#, r#"["a", []]"#, r#"[["a"], []]"#, "null", "{}", "[]"];
    assert_eq!(texts.iter().map(|text| hash(text)).collect::<BTreeSet<_>>().len(), texts.len());
    assert_eq!(
        PrometheusRule::url_path(&(), Some("shop")),
        "/apis/monitoring.coreos.com/v1/namespaces/shop/prometheusrules"
    );
}
