//! deploy/monitoring/: the alerts by promtool, the objects on a real API server with the CRDs of the Prometheus
//! operator, and alerts and dashboard with the metrics of a running lb-linker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::chart::{CHART, Helm};
use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{CoreDns, ask_repeatedly_from, ask_udp, query};
use crate::harness::linker::Linker;
use crate::harness::programs::{helm, promtool as program};
use crate::harness::{apply_deploy, apply_prometheus_crds, cluster_with_target, deploy, eventually};

/// Metrics of the dashboard without series, because what they count didn't happen in the run.
const METRICS_WITHOUT_SERIES: [&str; 1] = ["lb_linker_sync_restarts_total"];

fn files() -> PathBuf {
    deploy().join("monitoring/files")
}

/// Runs promtool in a folder and returns its output, or its errors if it fails.
pub fn promtool(folder: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program()).current_dir(folder).args(args).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.success() { Ok(out) } else { Err(err + &out) }
}

#[test]
fn alerts_pass_the_unit_tests_of_promtool() {
    let check = |args: &[&str]| promtool(&files(), args).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    check(&["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"]);
    check(&["check", "config", "--lint-fatal", "prometheus.yaml"]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prometheus/alerts.yaml");
    check(&["test", "rules", tests.to_str().unwrap()]);
}

#[test]
fn api_server_accepts_the_objects_with_the_operators_crds() {
    let plane = ControlPlane::start(Options::default());
    apply_prometheus_crds(&plane);
    apply_deploy(&plane);
    let folder = deploy().join("monitoring");
    plane.kubectl(&["apply", "--validate=strict", "-f", folder.to_str().unwrap()]);
    let rules = plane.list("/apis/monitoring.coreos.com/v1/namespaces/lb-linker/prometheusrules");
    let kept: Value = rules[0]["spec"].clone();
    let file: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(files().join("rules.yaml")).unwrap()).unwrap();
    assert_eq!(kept, file);

    // Each ServiceMonitor selects a Service and its port, and the Service every Pod.
    plane.apply_files(&deploy().join("cluster-dns"));
    let monitors = plane.list("/apis/monitoring.coreos.com/v1/namespaces/lb-linker/servicemonitors");
    for (monitor, (name, namespace)) in
        monitors.iter().zip([("lb-linker", "lb-linker"), ("lb-linker-cluster-dns", "kube-system")])
    {
        let spec = &monitor["spec"];
        let of_other = (namespace != "lb-linker").then(|| json!([namespace]));
        assert_eq!(spec["namespaceSelector"].get("matchNames"), of_other.as_ref());
        let labels = spec["selector"]["matchLabels"].as_object().unwrap();
        let selector: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap())).collect();
        let selector = selector.join(",");
        let services =
            plane.list(&format!("/api/v1/namespaces/{namespace}/services?labelSelector={selector}"));
        assert_eq!(services.len(), 1);
        let ports = services[0]["spec"]["ports"].as_array().unwrap();
        assert!(
            ports.iter().any(|port| port["name"] == spec["endpoints"][0]["port"] && port["port"] == 9153)
        );
        assert_eq!(services[0]["metadata"]["labels"][spec["jobLabel"].as_str().unwrap()], name);
        let deployments = plane.list(&format!("/apis/apps/v1/namespaces/{namespace}/deployments"));
        let pods = deployments[0]["spec"]["template"].clone();
        for (key, value) in services[0]["spec"]["selector"].as_object().unwrap() {
            assert_eq!(&pods["metadata"]["labels"][key], value);
        }
    }

    // An unknown field is refused: the schema is in force.
    let wrong = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "wrong", "namespace": "lb-linker"},
        "spec": {"groups": [{"name": "a", "rules": [{"alert": "A", "expr": "1", "wait": "5m"}]}]},
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), wrong.to_string()).unwrap();
    let path = file.path().to_str().unwrap();
    let error = plane.try_kubectl(&["apply", "--validate=strict", "-f", path]).unwrap_err();
    assert!(error.contains("wait"), "{error}");

    for (program, release) in helm().iter().zip(["blue", "green"]) {
        Helm::new(program, &plane.admin_kubeconfig()).run(&[
            "install",
            release,
            CHART,
            &format!("--namespace={release}"),
            "--create-namespace",
            "--set=monitoring.enabled=true,targetNamespace.create=false,keepTargets.enabled=false,crds.enabled=false",
        ]);
        for kind in ["prometheusrules", "servicemonitors"] {
            let path = format!("/apis/monitoring.coreos.com/v1/namespaces/{release}/{kind}");
            assert_eq!(plane.list(&path).len(), 1, "{path}");
        }
    }
}

/// The metrics of a running lb-linker, scraped several times.
#[derive(Default)]
struct Scrapes(BTreeMap<String, Vec<Option<String>>>, usize);

impl Scrapes {
    /// Scrapes all metrics, with the labels that the ServiceMonitor adds.
    fn scrape(&mut self, linker: &Linker) {
        let page = linker.metrics();
        let samples =
            page.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
        for (series, value) in samples.chain([("up", "1")]) {
            let (name, labels) =
                series.split_once('{').map_or((series, "}"), |(name, labels)| (name, labels));
            let comma = if labels == "}" { "" } else { "," };
            let target =
                r#"job="lb-linker",namespace="lb-linker",pod="lb-linker-1",instance="10.0.0.1:9153""#;
            let values = self.0.entry(format!("{name}{{{target}{comma}{labels}")).or_default();
            values.resize(self.1, None);
            values.push(Some(value.to_owned()));
        }
        self.1 += 1;
    }

    /// Returns whether there are samples of a metric.
    fn has(&self, metric: &str) -> bool {
        self.0.keys().any(|series| series.split('{').next() == Some(metric))
    }

    /// Returns the series for promtool, with each scrape `repeated` times.
    fn input_series(&self, repeated: usize) -> Value {
        let series = self.0.iter().map(|(series, values)| {
            let mut values = values.clone();
            values.resize(self.1, None);
            let values = values.iter().map(|value| vec![value.as_deref().unwrap_or("_"); repeated].join(" "));
            json!({"series": series, "values": values.collect::<Vec<_>>().join(" ")})
        });
        series.collect()
    }
}

/// Runs `promtool test rules` with this test group.
fn passes(group: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tests.yaml");
    let rules = files().join("rules.yaml");
    // JSON is YAML.
    let tests = json!({"rule_files": [rules], "evaluation_interval": "1m", "tests": [group]});
    std::fs::write(file, tests.to_string()).unwrap();
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).unwrap_or_else(|error| panic!("{error}"));
}

/// Checks which alerts of the rules fire at these times, if each scrape counts for 40 minutes.
fn fires(scrapes: &Scrapes, expected: &[(&str, &[&str])]) {
    let tests = expected.iter().map(|(time, alerts)| {
        let samples =
            alerts.iter().map(|alert| json!({"labels": format!("{{alertname=\"{alert}\"}}"), "value": 1}));
        let expr = r#"count by (alertname) (ALERTS{alertstate="firing"})"#;
        json!({"expr": expr, "eval_time": time, "exp_samples": samples.collect::<Value>()})
    });
    let (series, tests) = (scrapes.input_series(40), tests.collect::<Value>());
    passes(&json!({"interval": "1m", "input_series": series, "promql_expr_test": tests}));
}

/// An lb-linker with links in every state that a test can bring about without waiting.
struct Stage {
    cluster: Cluster,
    namespace: String,
    target: String,
    linker: Linker,
    _upstream: CoreDns,
}

/// The load balancers of the stage. [`Stage::remove_alert_causes`] keeps the first two.
const SERVICES: [&str; 10] =
    ["web", "stale", "pending", "failing", "refused", "taken", "first", "second", "barred", "filtered"];

impl Stage {
    async fn new() -> Self {
        let (plane, cluster, target) = cluster_with_target().await;
        let namespace = cluster.create_namespace("monitoring").await;
        let upstream = CoreDns::cloud().await;
        for name in SERVICES {
            cluster.create_load_balancer(&namespace, name).await;
        }
        // All Services of a namespace may use hostnames in the domain `NAMESPACE.lb.internal`.
        let wanted = json!({"linker.hsj.com/hostname": format!("shared.{namespace}.lb.internal")});
        for name in ["first", "second"] {
            cluster.patch_service(&namespace, name, json!({"metadata": {"annotations": wanted}})).await;
        }
        for name in SERVICES.into_iter().filter(|name| !["pending", "refused"].contains(name)) {
            let host = match name {
                "failing" => "broken.example.com",
                "filtered" => "b.example.com",
                _ => "a.example.com",
            };
            cluster.set_ingress(&namespace, name, &[Ingress::Hostname(host)]).await;
        }
        cluster.set_ingress(&namespace, "refused", &[Ingress::Ip("127.0.0.1")]).await;
        let foreign = json!({
            "metadata": {
                "name": format!("taken-{namespace}-ext"),
                "labels": {"app.kubernetes.io/managed-by": "another-controller"},
            },
            "spec": {"type": "ExternalName", "externalName": "other.example.com"},
        });
        cluster.create_service(&target, foreign).await;
        let barred = format!("barred-{namespace}-ext");
        let condition = format!("object.metadata.name == '{barred}'");
        let policy = AdmissionPolicy { name: &barred, operations: &["CREATE"], condition: &condition };
        policy.validate(plane, &json!({"expression": "false"}));
        let args =
            ["-n", &target, "create", "service", "externalname", &barred, "--external-name=a.example.com"];
        let is_refused = || async { plane.try_kubectl(&[&args[..], &["--dry-run=server"]].concat()).err() };
        eventually("the policy", is_refused).await;
        let address = upstream.address.to_string();
        let policies = ["--denied-nets=192.0.2.20/32", "--client-nets=127.0.0.1/32"];
        let args = ["--upstream", &address, "--watch-namespaces", &namespace];
        let linker = Linker::in_cluster(plane, &target, &[&args[..], &policies].concat());
        linker.counts("lb_linker_conflicts", 1.0).await;
        let is_counted = || async { linker.metrics().contains(r#"code="422""#).then_some(()) };
        eventually("a refused write", is_counted).await;
        cluster.set_ingress(&namespace, "stale", &[]).await;
        linker.counts(r#"lb_linker_links{state="stale"}"#, 1.0).await;
        Self { cluster, namespace, target, linker, _upstream: upstream }
    }

    async fn ask(&self) {
        for name in ["web", "failing", "filtered", "pending"] {
            ask_udp(self.linker.dns, &query(&format!("{name}.{}.lb.internal. A", self.namespace))).await;
        }
        // The second answer comes from the cache. The client of the last queries isn't in --client-nets.
        let outside = query("a.example.com. AAAA");
        ask_udp(self.linker.dns, &outside).await;
        ask_udp(self.linker.dns, &outside).await;
        ask_repeatedly_from(Ipv4Addr::new(127, 0, 0, 2).into(), self.linker.dns, &outside).await;
    }

    /// Removes the causes of the alerts, and waits until the metrics show it.
    async fn remove_alert_causes(&self) {
        for name in &SERVICES[2..] {
            self.cluster.delete_service(&self.namespace, name).await;
        }
        self.cluster.set_ingress(&self.namespace, "stale", &[Ingress::Hostname("a.example.com")]).await;
        self.cluster.delete_service(&self.target, &format!("taken-{}-ext", self.namespace)).await;
        for (state, links) in [("live", 2.0), ("pending", 0.0), ("stale", 0.0)] {
            self.linker.counts(&format!("lb_linker_links{{state=\"{state}\"}}"), links).await;
        }
        for metric in ["conflicts", "targets_refused", "names_lost", "dns_targets_failing"] {
            self.linker.counts(&format!("lb_linker_{metric}"), 0.0).await;
        }
    }
}

#[tokio::test]
async fn alerts_fire_and_are_resolved_with_a_real_lb_linker() {
    let stage = Stage::new().await;
    let failing = query(&format!("failing.{}.lb.internal. A", stage.namespace));
    // An alert on the rate of a counter needs a sample from before the increase.
    ask_udp(stage.linker.dns, &failing).await;
    stage.linker.counts("lb_linker_dns_targets_failing", 1.0).await;
    let mut scrapes = Scrapes::default();
    scrapes.scrape(&stage.linker);
    for _ in 0..60 {
        ask_udp(stage.linker.dns, &failing).await;
    }
    scrapes.scrape(&stage.linker);
    stage.remove_alert_causes().await;
    scrapes.scrape(&stage.linker);

    let expected = [
        "LbLinkerConflicts",
        "LbLinkerLinkStale",
        "LbLinkerLinkWithoutTarget",
        "LbLinkerNamesLost",
        "LbLinkerTargetsFailing",
        "LbLinkerTargetsRefused",
    ];
    let with_servfail = [&expected[..], &["LbLinkerServfail"]].concat();
    fires(
        &scrapes,
        &[("10m", &[]), ("39m", &expected), ("46m", &with_servfail), ("79m", &expected), ("119m", &[])],
    );
}

#[tokio::test]
async fn missing_leader_fires_an_alert_only_where_sync_is_on() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("monitoring").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace, "--leader-election", "lease"];
    let linker = Linker::in_cluster(plane, &target, &args);
    // Outside a Pod the Lease is in the target namespace, where deploy/ grants nothing on Leases.
    linker.line("can't get Lease").await;
    let mut scrapes = Scrapes::default();
    scrapes.scrape(&linker);
    let verbs =
        ["create", "role", "leases", "--verb=get,create,update", "--resource=leases.coordination.k8s.io"];
    plane.kubectl(&[&["-n", &target][..], &verbs].concat());
    let account =
        ["create", "rolebinding", "leases", "--role=leases", "--serviceaccount=lb-linker:lb-linker"];
    plane.kubectl(&[&["-n", &target][..], &account].concat());
    linker.counts("lb_linker_leader", 1.0).await;
    scrapes.scrape(&linker);
    fires(&scrapes, &[("9m", &[]), ("39m", &["LbLinkerNoLeader"]), ("79m", &[])]);

    for mode in ["plan", "off"] {
        let linker = Linker::in_cluster(plane, &target, &[&args[..], &["--sync", mode]].concat());
        linker.ready().await;
        assert_eq!(linker.metric("lb_linker_leader"), Some(0.0));
        let mut scrapes = Scrapes::default();
        scrapes.scrape(&linker);
        fires(&scrapes, &[("39m", &[])]);
    }
}

#[tokio::test]
async fn queries_of_the_dashboard_return_series_of_a_real_run() {
    let stage = Stage::new().await;
    let mut scrapes = Scrapes::default();
    for _ in 0..3 {
        stage.ask().await;
        scrapes.scrape(&stage.linker);
    }

    let dashboard = std::fs::read_to_string(files().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().filter_map(|panel| panel["targets"].as_array());
    let queries: Vec<&str> = targets.flatten().map(|target| target["expr"].as_str().unwrap()).collect();
    let metrics = regex::Regex::new(r"\b(?:lb_linker|coredns|process)_[a-z_]+\b").unwrap();
    let mut missing = BTreeSet::new();
    let mut tests = Vec::new();
    for query in queries {
        let variables = [
            ("$namespace", "lb-linker"),
            ("$job", "lb-linker"),
            ("$instance", "10.0.0.1:9153|10.0.0.2:9153"),
        ];
        let query =
            variables.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
        let query = query.replace("$__rate_interval", "4m");
        assert!(!query.contains('$'), "{query}");
        let absent: Vec<&str> =
            metrics.find_iter(&query).map(|found| found.as_str()).filter(|name| !scrapes.has(name)).collect();
        // A query that promtool can't parse fails also without series.
        let expr = if absent.is_empty() { format!("absent({query})") } else { query.clone() };
        missing.extend(absent.into_iter().map(str::to_owned));
        tests.push(json!({"expr": expr, "eval_time": "5m", "exp_samples": []}));
    }
    assert!(tests.len() > 30, "{}", tests.len());
    assert_eq!(missing.iter().map(String::as_str).collect::<Vec<_>>(), METRICS_WITHOUT_SERIES);
    passes(&json!({"interval": "1m", "input_series": scrapes.input_series(2), "promql_expr_test": tests}));
}
