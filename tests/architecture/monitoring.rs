//! Checks of deploy/monitoring/: its copies, and that rules, unit tests, runbooks, dashboard and metrics match.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::Value;

use crate::docs::{code, read, root, rows};

const RULES: &str = "deploy/monitoring/files/rules.yaml";
const DASHBOARD: &str = "deploy/monitoring/files/dashboard.json";
const RUNBOOKS: &str = "docs/runbooks.md";

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn alerts() -> Vec<Value> {
    let mut rules = yaml(RULES);
    let groups = rules["groups"].take();
    groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn names() -> BTreeSet<String> {
    alerts().iter().map(|alert| text(alert, "alert").to_owned()).collect()
}

/// Returns the panels of the dashboard, without its rows.
fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

fn queries() -> Vec<String> {
    let targets = panels().into_iter().flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    targets.map(|target| text(&target, "expr").to_owned()).collect()
}

fn indented(text: &str, columns: usize) -> String {
    let indent = " ".repeat(columns);
    text.lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("{indent}{line}\n") })
        .collect()
}

/// Returns the copies of the rules and of the dashboard, by path.
fn copies() -> BTreeMap<&'static str, String> {
    let object = |kind: &str, version: &str, name: &str, source: &str, label: &str| {
        format!(
            "# {source}, copied by `make docs`.\napiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n  \
             namespace: lb-linker\n  labels:\n    app.kubernetes.io/name: lb-linker\n{label}"
        )
    };
    let rules = read(RULES);
    let groups = &rules[rules.find("groups:").unwrap()..];
    let rule = object("PrometheusRule", "monitoring.coreos.com/v1", "lb-linker", RULES, "");
    let label =
        "    # The sidecar of Grafana loads ConfigMaps with this label.\n    grafana_dashboard: \"1\"\n";
    let map = object("ConfigMap", "v1", "lb-linker-dashboard", DASHBOARD, label);
    let dashboard = read(DASHBOARD);
    BTreeMap::from([
        ("charts/lb-linker/files/rules.yaml", rules.clone()),
        ("charts/lb-linker/files/dashboard.json", dashboard.clone()),
        ("deploy/monitoring/rules.yaml", format!("{rule}spec:\n{}", indented(groups, 2))),
        (
            "deploy/monitoring/dashboard.yaml",
            format!("{map}data:\n  lb-linker.json: |\n{}", indented(&dashboard, 4)),
        ),
    ])
}

#[test]
fn copies_of_rules_and_dashboard_are_up_to_date() {
    for (path, expected) in copies() {
        if std::env::var_os("LB_LINKER_WRITE_DOCS").is_some() {
            std::fs::write(root().join(path), &expected).unwrap();
        }
        assert!(read(path) == expected, "{path} isn't up to date: run `make docs`");
    }
    assert_eq!(yaml("deploy/monitoring/rules.yaml")["spec"], yaml(RULES));
    let map = yaml("deploy/monitoring/dashboard.yaml");
    assert_eq!(text(&map["data"], "lb-linker.json"), read(DASHBOARD));
}

#[test]
fn every_alert_has_severity_texts_and_a_runbook() {
    for alert in alerts() {
        let name = text(&alert, "alert");
        assert!(["critical", "warning"].contains(&text(&alert["labels"], "severity")), "{name}");
        let annotations = &alert["annotations"];
        assert!(text(annotations, "summary").ends_with('.'), "{name}");
        assert!(text(annotations, "description").contains("{{ $labels."), "{name}");
        let runbook = format!("{RUNBOOKS}#{}", name.to_lowercase());
        assert_eq!(text(annotations, "runbook_url"), runbook);
    }
}

#[test]
fn runbooks_have_a_section_for_each_alert() {
    let page = read(RUNBOOKS);
    let sections: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## LbLinker"))
        .map(|end| format!("LbLinker{end}"))
        .collect();
    assert_eq!(sections, names());
}

#[test]
fn every_alert_fires_and_is_resolved_in_unit_tests() {
    // An alert without a test has no entry.
    let mut seen: BTreeMap<String, [bool; 3]> = BTreeMap::new();
    for group in yaml("tests/prometheus/alerts.yaml")["tests"].as_array().unwrap() {
        for check in group["alert_rule_test"].as_array().unwrap() {
            let [pending, fired, resolved] = seen.entry(text(check, "alertname").to_owned()).or_default();
            match check["exp_alerts"].as_array().unwrap().is_empty() {
                false => *fired = true,
                true if *fired => *resolved = true,
                true => *pending = true,
            }
        }
    }
    assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), names());
    for (alert, stages) in seen {
        assert_eq!(stages, [true; 3], "{alert}: not yet firing, firing, resolved");
    }
}

#[test]
fn rules_select_one_installation() {
    let selectors = Regex::new(r"\b(?:up|lb_linker_\w+|coredns_\w+)\b(\{[^}]*\})?").unwrap();
    for alert in alerts() {
        let expr = text(&alert, "expr");
        for selector in selectors.find_iter(expr) {
            let own = r#"{job="lb-linker", namespace="lb-linker""#;
            let with_cluster_dns = r#"{job=~"lb-linker(-cluster-dns)?", namespace=~"lb-linker|kube-system""#;
            // Without a selector, the match ends after the name.
            let is_known = [own, with_cluster_dns].iter().any(|known| selector.as_str().contains(known));
            assert!(is_known, "{}: {}", alert["alert"], selector.as_str());
        }
    }
}

#[test]
fn metrics_of_rules_and_dashboard_are_documented() {
    let rows = rows("docs/reference.md", "## Metrics");
    let documented: BTreeSet<&str> = rows.iter().filter_map(|row| code(&row[0])?.split('{').next()).collect();
    let name = Regex::new(r"\b(?:lb_linker|coredns)_[a-z_]+\b").unwrap();
    let exprs = alerts().into_iter().map(|alert| text(&alert, "expr").to_owned()).chain(queries());
    let mut number = 0;
    for expr in exprs {
        for metric in name.find_iter(&expr).map(|found| found.as_str()) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| metric.strip_suffix(end));
            let is_known = documented.contains(metric) || base.is_some_and(|base| documented.contains(base));
            assert!(is_known, "{metric} in {expr}");
            number += 1;
        }
    }
    assert!(number > 50, "{number}");
}

#[test]
fn dashboard_panels_dont_overlap_and_have_descriptions() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["title"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|field| panel["gridPos"][field].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        let cells = (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line)));
        assert!(cells.into_iter().all(|cell| taken.insert(cell)), "{} lies on another panel", panel["title"]);
    }
    for panel in panels() {
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        assert!(!text(&panel, "description").is_empty());
    }
    for query in queries() {
        let selector = r#"{namespace=~"$namespace", job=~"$job", instance=~"$instance""#;
        assert_eq!(query.matches('{').count(), query.matches(selector).count(), "{query}");
    }
}
