//! PrometheusRules beside the garbage collector of Kubernetes, and their alerts by promtool.

use std::path::Path;

use kube::api::DeleteParams;
use lb_linker::api::stable_name::Alerts;
use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::alerts::desired::{RuleInputs, spec};
use serde_json::{Value, json};

use super::Shop;
use crate::harness::eventually;
use crate::harness::pool::Base;
use crate::release::monitoring::promtool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_collector_removes_the_rule() {
    let shop = Shop::open(Base::PrometheusRules, &["alerts"]).await;
    let linker = shop.linker(&[]).await;
    for name in ["web", "stays"] {
        shop.create(name, json!({})).await;
        shop.wait_for_condition(name, "AlertsReady", ("True", "RuleWritten")).await;
    }
    let collector = shop.plane.start_garbage_collector();
    shop.targets().delete("web", &DeleteParams::default()).await.unwrap();
    shop.rule_is_gone("lb-linker-web").await;
    shop.wait_for_rule("lb-linker-stays", "stays", |_| true).await;
    assert!(shop.requests().iter().all(|(verb, _)| verb != "delete"), "{:?}", shop.requests());

    // A new StableName with the same name becomes the owner of the orphaned rule.
    let before = shop.wait_for_rule("lb-linker-stays", "stays", |_| true).await;
    check_rules(&before["spec"]);
    shop.targets().delete("stays", &DeleteParams::orphan()).await.unwrap();
    let is_orphan = |rule: &Value| rule["metadata"]["ownerReferences"].is_null();
    shop.wait_for_rule("lb-linker-stays", "has no owner", is_orphan).await;
    let is_gone = || async { shop.targets().get_opt("stays").await.unwrap().is_none().then_some(()) };
    eventually("the StableName is gone", is_gone).await;
    shop.create("stays", json!({})).await;
    shop.wait_for_condition("stays", "AlertsReady", ("True", "RuleWritten")).await;
    let after = shop.wait_for_rule("lb-linker-stays", "has an owner", |rule| !is_orphan(rule)).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let uid = shop.targets().get("stays").await.unwrap().metadata.uid.unwrap();
    assert_eq!(after["metadata"]["ownerReferences"][0]["uid"], json!(uid));
    let creates = shop.plane.audit_events().into_iter().filter(|event| {
        let name = event.request.as_ref().map(|request| &request["metadata"]["name"]);
        event.verb == "create" && event.code == 201 && name == Some(&json!("lb-linker-stays"))
    });
    assert_eq!(creates.count(), 1);
    drop((collector, linker));
}

fn inputs(alerts: Value, pinned: Option<usize>) -> RuleInputs {
    RuleInputs { uid: "u".into(), alerts: serde_json::from_value::<Alerts>(alerts).unwrap(), pinned }
}

/// Runs `promtool check rules` with the spec of a PrometheusRule.
fn check_rules(spec: &Value) {
    let folder = tempfile::tempdir().unwrap();
    // JSON is YAML.
    std::fs::write(folder.path().join("rules.yaml"), spec.to_string()).unwrap();
    check_file(folder.path());
}

fn check_file(folder: &Path) {
    let checked = promtool(folder, &["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"]);
    checked.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn promtool_accepts_rules_with_any_accepted_labels() {
    let label = |number: usize| format!("{}{number:02}", "l".repeat(61));
    let many: serde_json::Map<String, Value> = (0..16)
        .map(|number| (label(number), json!("é\"'\\\n$${} }}".to_owned() + &"x".repeat(240))))
        .collect();
    for (name, alerts, pinned) in [
        ("web".to_owned(), json!({}), None),
        ("web".to_owned(), json!({"notReadyForSeconds": 0, "failedOverForSeconds": 86400}), Some(0)),
        ("web".to_owned(), json!({"notReadyForSeconds": 61, "failedOverForSeconds": 7200}), Some(7)),
        ("a".repeat(63), json!({"labels": many}), None),
        ("a.b-".repeat(63) + "c", json!({"labels": {"alertname": "x", "severity": ""}}), None),
    ] {
        check_rules(&spec(&ServiceKey::new("shop", &name), &inputs(alerts, pinned)));
    }
}

/// Asserts with `promtool test rules` which alerts fire at these times. The series have one value per minute.
fn fires(inputs: &RuleInputs, series: &[(&str, &str, &str)], expected: &[(&str, &[&str])]) {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(&ServiceKey::new("shop", "web"), inputs);
    std::fs::write(folder.path().join("rules.yaml"), spec.to_string()).unwrap();
    check_file(folder.path());
    let series = series.iter().map(|(metric, pod, values)| {
        let labels = format!(
            r#"job="lb-linker",namespace="lb-linker",pod="{pod}",stable_name_namespace="shop",stable_name="web""#
        );
        json!({"series": format!("lb_linker_stable_name_{metric}{{{labels}}}"), "values": values})
    });
    let tests = expected.iter().map(|(time, alerts)| {
        let samples = alerts.iter().map(|alert| {
            let label = format!("{{alertname=\"LbLinkerStableName{alert}\"}}");
            json!({"labels": label, "value": 1})
        });
        let expr = r#"count by (alertname) (ALERTS{alertstate="firing"})"#;
        json!({"expr": expr, "eval_time": time, "exp_samples": samples.collect::<Value>()})
    });
    let group = json!({
        "interval": "1m",
        "input_series": series.collect::<Value>(),
        "promql_expr_test": tests.collect::<Value>(),
    });
    let tests = json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [group]});
    std::fs::write(folder.path().join("tests.yaml"), tests.to_string()).unwrap();
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn alerts_fire_after_their_times_and_are_resolved() {
    let inputs = inputs(json!({"notReadyForSeconds": 120, "failedOverForSeconds": 300}), None);
    let series = [("ready", "a", "1x4 0x9 1x30"), ("source", "a", "0x4 1x14 0x30")];
    let expected: [(&str, &[&str]); 6] = [
        ("4m", &[]),
        ("6m", &[]),
        ("7m", &["NotReady"]),
        ("10m", &["FailedOver", "NotReady"]),
        ("15m", &["FailedOver"]),
        ("20m", &[]),
    ];
    fires(&inputs, &series, &expected);
}

#[test]
fn change_of_the_leader_neither_resolves_nor_fires_alerts() {
    let inputs = inputs(json!({}), None);
    // No replica leads for three minutes: the alerts go on firing, and the new leader's values count at once.
    let gap = [
        ("ready", "a", "0x11 stale _x60"),
        ("ready", "b", "_x15 0x9 1x40"),
        ("source", "a", "1x11 stale _x60"),
        ("source", "b", "_x15 1x9 0x40"),
    ];
    let expected: [(&str, &[&str]); 5] = [
        ("4m", &[]),
        ("11m", &["NotReady"]),
        ("13m", &["NotReady"]),
        ("16m", &["FailedOver", "NotReady"]),
        ("26m", &[]),
    ];
    fires(&inputs, &gap, &expected);
    // A Ready StableName fires no alert, even while the series of the former leader still exist.
    let overlap = [("ready", "a", "1x9 0x2 stale"), ("ready", "b", "_x9 1x60"), ("source", "b", "0x60")];
    fires(&inputs, &overlap, &[("12m", &[]), ("30m", &[])]);
}

#[test]
fn last_values_count_for_a_quarter_of_an_hour_without_a_leader() {
    let series = [("ready", "a", "0x9 stale _x60"), ("source", "a", "1x9 stale _x60")];
    let expected: [(&str, &[&str]); 4] = [
        ("20m", &["FailedOver", "NotReady"]),
        ("23m", &["FailedOver", "NotReady"]),
        ("26m", &[]),
        ("60m", &[]),
    ];
    fires(&inputs(json!({}), None), &series, &expected);
}

#[test]
fn pinned_source_is_no_failover() {
    let on_second = [("ready", "a", "1x40"), ("source", "a", "1x40")];
    fires(&inputs(json!({}), Some(1)), &on_second, &[("30m", &[])]);
    fires(&inputs(json!({}), Some(0)), &on_second, &[("30m", &["FailedOver"])]);
    let on_first = [("ready", "a", "1x40"), ("source", "a", "0x40")];
    fires(&inputs(json!({}), Some(1)), &on_first, &[("30m", &["FailedOver"])]);
    let on_none = [("ready", "a", "0x40"), ("source", "a", "-1x40")];
    fires(&inputs(json!({}), Some(1)), &on_none, &[("30m", &["NotReady"])]);
}

#[test]
fn flapping_needs_five_changes_in_an_hour() {
    let inputs = inputs(json!({}), None);
    // A failover and the way back, twice.
    fires(&inputs, &[("changes_total", "a", "0x9 1 2 2x9 3 4 4x60")], &[("30m", &[]), ("60m", &[])]);
    let changes =
        [("changes_total", "a", "0x5 1x5 2x5 3x5 stale _x80"), ("changes_total", "b", "_x25 0x2 1x5 2x80")];
    fires(&inputs, &changes, &[("20m", &[]), ("40m", &["Flapping"]), ("100m", &[])]);
}
