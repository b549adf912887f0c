//! The Helm chart, rendered by Helm 3 and Helm 4, and installed with the real API server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::deploy;
use crate::harness::dns::{CoreDns, answers};
use crate::harness::linker::Linker;
use crate::harness::programs::helm;
use crate::recreation::wait_for_external_target;

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lb-linker");
/// The labels that the chart sets and the manifests in deploy/ don't.
const HELM_LABELS: [&str; 4] = [
    "helm.sh/chart",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
];

/// A Helm program with its own home directory.
pub struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Helm {
    pub fn new(program: &Path, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            home: tempfile::tempdir().unwrap(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Returns the standard output; if Helm fails, the standard error followed by the standard output.
    pub fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.home.path()).env("KUBECONFIG", &self.kubeconfig);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        if output.status.success() { Ok(out) } else { Err(err + &out) }
    }

    pub fn run(&self, args: &[&str]) -> String {
        self.try_run(args).unwrap_or_else(|error| panic!("{} {args:?}: {error}", self.program.display()))
    }

    pub fn template(&self, args: &[&str]) -> Vec<Value> {
        let release = ["template", "lb-linker", CHART, "--namespace", "lb-linker"];
        let rendered = self.run(&[&release, args].concat());
        let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        objects.into_iter().filter(|object| !object.is_null()).collect()
    }
}

pub fn without_cluster() -> [Helm; 2] {
    helm().each_ref().map(|program| Helm::new(program, Path::new("/nonexistent")))
}

/// Removes the labels and the annotation that only the chart sets, at any depth.
pub fn without_helm(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for label in HELM_LABELS {
                fields.remove(label);
            }
            fields.remove("helm.sh/resource-policy");
            if fields.get("annotations") == Some(&json!({"helm.sh/resource-policy": "keep"})) {
                fields.remove("annotations");
            }
            fields.values_mut().for_each(without_helm);
        }
        Value::Array(items) => items.iter_mut().for_each(without_helm),
        _ => {}
    }
}

pub fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    objects.sort_by_key(|object| {
        format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
    });
    objects
}

#[test]
fn chart_with_default_values_equals_deploy() {
    let folders = ["", "targets", "crd"].map(|folder| deploy().join(folder));
    let mut expected = folders.map(|path| crate::deploy::objects(&path)).concat();
    // Helm's --create-namespace creates the namespace lb-linker.
    expected.retain(|object| object["kind"] != "Namespace" || object["metadata"]["name"] != "lb-linker");
    let expected = sorted(expected);
    for helm in without_cluster() {
        let mut rendered = helm.template(&[]);
        for object in &mut rendered {
            assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/managed-by"], "Helm");
            without_helm(object);
        }
        assert_eq!(sorted(rendered), expected);
    }
}

#[test]
fn zone_with_names_of_the_cluster_fails_the_chart() {
    for helm in without_cluster() {
        let render = |values: &[&str]| helm.try_run(&[&["template", "lb-linker", CHART], values].concat());
        let variable =
            ["--set=extraEnv[0].name=LB_LINKER_CLUSTER_DOMAIN", "--set=extraEnv[0].value=corp.example"];
        for (zone, values, domain) in [
            ("cluster.local", &[][..], "cluster.local"),
            ("LOCAL.", &[], "cluster.local"),
            ("lb.svc.cluster.local", &[], "cluster.local"),
            ("example", &["--set=extraArgs={--cluster-domain=Corp.example.}"], "corp.example"),
            ("lb.corp.example", &["--set=extraArgs={--prune,--cluster-domain,corp.example}"], "corp.example"),
            ("corp.example", &variable, "corp.example"),
        ] {
            let error =
                render(&[&[&*format!("--set=zones={{lb.internal,{zone}}}")], values].concat()).unwrap_err();
            let zone = zone.to_lowercase();
            let reason = format!("zones: {} equals, holds or lies in {domain}, ", zone.trim_end_matches('.'));
            assert!(error.contains(&reason), "{error}");
        }
        render(&["--set=zones={lb.local,xcluster.local}"]).unwrap();
        render(&["--set=zones={cluster.local}", "--set=extraArgs={--cluster-domain=corp.example}"]).unwrap();
        // lb-linker decides where the domain isn't known.
        for value in ["--set-string=extraEnv[0].value=", "--set=extraEnv[0].valueFrom.fieldRef.fieldPath=a"] {
            render(&["--set=zones={cluster.local}", variable[0], value]).unwrap();
        }
    }
}

#[test]
fn chart_with_monitoring_equals_deploy_monitoring() {
    let expected = sorted(crate::deploy::objects(&deploy().join("monitoring")));
    let kinds = ["ServiceMonitor", "PrometheusRule"];
    for helm in without_cluster() {
        let rendered = |values: &[&str]| {
            let objects = helm.template(&[&["--set=monitoring.enabled=true"], values].concat());
            let is_dashboard = |object: &Value| object["metadata"]["name"] == "lb-linker-dashboard";
            let is_part =
                |object: &Value| kinds.iter().any(|kind| object["kind"] == *kind) || is_dashboard(object);
            objects.into_iter().filter(is_part).collect::<Vec<_>>()
        };
        let mut objects = rendered(&["--set=clusterDns.enabled=true"]);
        objects.iter_mut().for_each(without_helm);
        assert_eq!(sorted(objects), expected);

        let objects = rendered(&[
            "--set=monitoring.labels.release=prometheus,monitoring.serviceMonitor.interval=15s",
            "--set=monitoring.rules.runbookUrl=https://wiki.example/lb-linker",
            "--set=monitoring.dashboard.annotations.grafana_folder=DNS",
        ]);
        let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        for kind in kinds {
            assert_eq!(of_kind(kind)["metadata"]["labels"]["release"], "prometheus");
        }
        assert_eq!(of_kind("ServiceMonitor")["spec"]["endpoints"][0]["interval"], "15s");
        assert_eq!(of_kind("ConfigMap")["metadata"]["annotations"]["grafana_folder"], "DNS");
        let rule = &of_kind("PrometheusRule")["spec"]["groups"][0]["rules"][0];
        assert_eq!(rule["annotations"]["runbook_url"], "https://wiki.example/lb-linker#lblinkerdown");

        for (part, kind) in [("serviceMonitor", 0), ("rules", 1)] {
            let objects = rendered(&[&format!("--set=monitoring.{part}.enabled=false")]);
            assert!(objects.len() == 2 && objects.iter().all(|object| object["kind"] != kinds[kind]));
        }
        assert_eq!(rendered(&["--set=monitoring.dashboard.enabled=false"]).len(), 2);
    }
}

#[test]
fn chart_with_alerts_equals_deploy_alerts() {
    let expected = sorted(crate::deploy::objects(&deploy().join("alerts")));
    for helm in without_cluster() {
        let rendered = |args: &[&str]| -> Vec<Value> {
            let is_part = |object: &Value| object["metadata"]["name"] == "lb-linker-alerts";
            let mut objects: Vec<Value> = helm.template(args).into_iter().filter(is_part).collect();
            objects.iter_mut().for_each(without_helm);
            sorted(objects)
        };
        assert_eq!(rendered(&["--set=alerts.enabled=true"]), expected);
        assert_eq!(rendered(&[]), [] as [Value; 0]);
    }
}

#[test]
fn chart_with_sources_equals_deploy_sources() {
    let expected = sorted(crate::deploy::objects(&deploy().join("sources")));
    for helm in without_cluster() {
        let rendered = |args: &[&str]| -> Vec<Value> {
            let is_part = |object: &Value| object["metadata"]["name"] == "lb-linker-sources";
            let mut objects: Vec<Value> = helm.template(args).into_iter().filter(is_part).collect();
            objects.iter_mut().for_each(without_helm);
            sorted(objects)
        };
        assert_eq!(rendered(&["--set=sources={service,ingress,gateway,dnsendpoint}"]), expected);
        for (sources, rule) in [("{ingress}", 0), ("{gateway,service}", 1), ("{dnsendpoint}", 2)] {
            let mut of_one = expected.clone();
            let role = of_one.iter_mut().find(|object| object["kind"] == "ClusterRole").unwrap();
            role["rules"] = Value::Array(vec![role["rules"][rule].take()]);
            assert_eq!(rendered(&[&format!("--set=sources={sources}")]), of_one);
        }
        assert_eq!(rendered(&[]), [] as [Value; 0]);
    }
}

#[test]
fn chart_with_cluster_dns_equals_deploy_cluster_dns() {
    let is_part = |object: &Value| object["metadata"]["name"] == "lb-linker-cluster-dns";
    let expected = sorted(crate::deploy::objects(&deploy().join("cluster-dns")));
    for helm in without_cluster() {
        let rendered = |args: &[&str]| -> Vec<Value> {
            let mut objects: Vec<Value> = helm.template(args).into_iter().filter(is_part).collect();
            objects.iter_mut().for_each(without_helm);
            sorted(objects)
        };
        assert_eq!(rendered(&["--set=clusterDns.enabled=true"]), expected);
        assert_eq!(rendered(&[]), [] as [Value; 0]);
        let objects = rendered(&[
            "--set=clusterDns.enabled=true,zones={a.internal,b.internal},targetNamespace.name=targets",
            "--set=extraArgs={--cluster-domain=corp.example,--sync=plan},image.tag=v7,clusterDns.replicas=3",
            "--set=clusterDns.extraArgs={--denied-nets=10.96.0.0/12},imagePullSecrets[0].name=registry",
            "--set=extraEnv[0].name=A,extraEnv[0].valueFrom.secretKeyRef.name=mine",
        ]);
        let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        let corefile = of_kind("ConfigMap")["data"]["Corefile"].as_str().unwrap();
        for line in ["kubernetes corp.example in-addr.arpa ip6.arpa {", "a.internal:53 b.internal:53 {"] {
            assert!(corefile.contains(&format!("{line}\n")), "{corefile}");
        }
        assert_eq!(corefile.matches("disable success corp.example\n").count(), 1, "{corefile}");
        let spec = &of_kind("Deployment")["spec"];
        assert_eq!(spec["replicas"], 3);
        let pod = &spec["template"]["spec"];
        let container = &pod["containers"][0];
        let own =
            ["--target-namespace=targets", "--cluster-domain=corp.example", "--denied-nets=10.96.0.0/12"];
        assert_eq!(container["args"].as_array().unwrap()[4..], own);
        assert_eq!(container["image"], "lb-linker:v7");
        // Secrets of the release's namespace don't exist in kube-system.
        assert_eq!((pod.get("imagePullSecrets"), container["env"].as_array().unwrap().len()), (None, 1));
        let text = ".:53 {\n\tkubernetes # 1: {a}\n}\n";
        let corefile = format!("clusterDns.corefile={text}");
        let hosts =
            r#"clusterDns.extraVolumes=[{"name":"hosts","configMap":{"name":"coredns","optional":true}}]"#;
        let mount = r#"clusterDns.extraVolumeMounts=[{"name":"hosts","mountPath":"/etc/coredns"}]"#;
        let objects = rendered(&[
            "--set=clusterDns.enabled=true,corefile=a",
            "--set-literal",
            &corefile,
            "--set-json",
            hosts,
            "--set-json",
            mount,
        ]);
        let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
        assert_eq!(of_kind("ConfigMap")["data"]["Corefile"], text);
        let pod = &of_kind("Deployment")["spec"]["template"]["spec"];
        assert_eq!(
            pod["volumes"][2],
            json!({"name": "hosts", "configMap": {"name": "coredns", "optional": true}})
        );
        let mounted = &pod["containers"][0]["volumeMounts"][2];
        assert_eq!(*mounted, json!({"name": "hosts", "mountPath": "/etc/coredns"}));
    }
}

#[test]
fn crds_values_leave_out_the_crd_or_the_aggregated_roles() {
    const CRD: &str = "CustomResourceDefinition stablenames.linker.hsj.com";
    const OWN: [&str; 2] = ["ClusterRole lb-linker-crd", "ClusterRoleBinding lb-linker-crd"];
    const AGGREGATED: [&str; 2] = ["ClusterRole lb-linker-crd-edit", "ClusterRole lb-linker-crd-view"];
    for helm in without_cluster() {
        let rendered = |args: &[&str]| -> BTreeSet<String> {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let objects = helm.template(args).into_iter();
            let names = objects.map(|it| format!("{} {}", text(&it["kind"]), text(&it["metadata"]["name"])));
            names.filter(|name| name == CRD || name.contains("lb-linker-crd")).collect()
        };
        let expected = |parts: &[&[&str]]| -> BTreeSet<String> {
            parts.concat().into_iter().map(str::to_owned).collect()
        };
        assert_eq!(rendered(&[]), expected(&[&[CRD], &OWN, &AGGREGATED]));
        assert_eq!(rendered(&["--set=crds.enabled=false"]), expected(&[&OWN, &AGGREGATED]));
        assert_eq!(rendered(&["--set=crds.aggregateRoles=false"]), expected(&[&[CRD], &OWN]));
        assert_eq!(rendered(&["--kube-version=1.30.0"]), expected(&[&OWN, &AGGREGATED]));
        assert_eq!(rendered(&["--kube-version=v1.31.0-eks-1"]), rendered(&[]));

        let annotations = |args: &[&str]| {
            let objects = helm.template(args);
            let crd = objects.iter().find(|object| object["kind"] == "CustomResourceDefinition").unwrap();
            crd["metadata"].get("annotations").cloned()
        };
        assert_eq!(annotations(&[]), Some(json!({"helm.sh/resource-policy": "keep"})));
        assert_eq!(annotations(&["--set=crds.keep=false"]), None);
    }
}

#[test]
fn rules_of_a_release_select_its_namespace() {
    for helm in without_cluster() {
        let values = ["--namespace=blue", "--set=monitoring.enabled=true"];
        let rendered = helm.run(&[&["template", "blue", CHART][..], &values].concat());
        assert!(rendered.contains(r#"up{job="lb-linker", namespace="blue"}"#), "{rendered}");
        assert!(!rendered.contains(r#"namespace="lb-linker""#) && !rendered.contains("kube-system"));
        assert!(rendered.contains("{{ $labels.namespace }}"));
        let values = [&values[..], &["--set=clusterDns.enabled=true"]].concat();
        let rendered = helm.run(&[&["template", "blue", CHART][..], &values].concat());
        let both = r#"up{job=~"lb-linker(-cluster-dns)?", namespace=~"blue|kube-system"}"#;
        assert!(rendered.contains(both) && !rendered.contains("lb-linker|kube"), "{rendered}");
    }
}

#[test]
fn chart_passes_lint_and_refuses_wrong_values() {
    for helm in without_cluster() {
        helm.run(&["lint", "--strict", CHART]);
        for (value, expected) in [
            ("replica=3", "replica"),
            ("image.name=x", "name"),
            ("leaderElection=raft", "leaderElection"),
            ("zones={}", "zones"),
            ("service.clusterIP=dns", "clusterIP"),
            ("targetNamespace.name=A_b", "targetNamespace"),
            ("targetNamespace.name=default", "targetNamespace.name must be another namespace"),
            ("corefile=a,upstreams={192.0.2.1}", "upstreams must be empty if corefile is set"),
            ("serviceAccount.create=false", "serviceAccount.name must name a ServiceAccount"),
            ("priorityQuota.enabled=true", "priorityClassName must be set"),
            // Without a name, the ValidatingAdmissionPolicy would deny the deletion of every namespace.
            ("targetNamespace.name=null,targetNamespace.create=false", "targetNamespace"),
            ("leaderElection=null", "leaderElection"),
            ("crds=null", "crds"),
            ("crds.keep=yes", "keep"),
            ("clusterDns=null", "clusterDns"),
            ("clusterDns.replicas=-1", "replicas"),
            ("clusterDns.extraEnv={a}", "extraEnv"),
            ("clusterDns.enabled=true,corefile=a", "clusterDns.corefile must be set if corefile is set"),
            ("snapshot=null", "snapshot"),
            ("snapshot.size=1", "size"),
            ("zones=null", "zones"),
            ("zones={a#b}", "zones"),
            ("fullnameOverride=a.b", "fullnameOverride"),
            ("priorityClassName=a b", "priorityClassName"),
            ("image.repository=a@b", "repository"),
            ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name"),
            ("monitoring.rules.runbookUrl=", "runbookUrl"),
            ("monitoring.serviceMonitor.interval=often", "interval"),
        ] {
            let error = helm.try_run(&["template", "x", CHART, "--set", value]).unwrap_err();
            assert!(error.contains(expected), "{value}: {error}");
        }
        let error = helm.try_run(&["template", "1st", CHART]).unwrap_err();
        assert!(error.contains("the release's name must begin with a letter"), "{error}");
    }
}

#[test]
fn texts_that_yaml_would_change_stay_as_they_are() {
    let corefile = "corefile=   .:53 {\n\tlb_linker lb.internal # 1: {a}\n}\n";
    for helm in without_cluster() {
        let rendered = helm.run(&["template", "true", CHART, "--namespace", "on", "--set-literal", corefile]);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        let find = |kind| objects.iter().find(|object| object["kind"] == kind).unwrap();
        let labels = &find("Deployment")["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/instance"], "true");
        assert_eq!(find("Service")["metadata"]["namespace"], "on");
        assert_eq!(find("ConfigMap")["data"]["Corefile"], corefile.strip_prefix("corefile=").unwrap());
        // A Service can't have a dot in its name.
        let rendered = helm.run(&["template", "my.lb-linker", CHART]);
        assert!(rendered.contains("kind: Service\nmetadata:\n  name: \"my-lb-linker\"\n"), "{rendered}");
    }
}

#[test]
fn released_chart_installs_its_image_unless_another_is_named() {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let directory = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").args(["-r", CHART]).arg(directory.path()).status().unwrap();
    assert!(copied.success());
    let chart = directory.path().join("lb-linker");
    let metadata = fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    // As .github/workflows/release.yaml does it.
    let released = format!("{metadata}annotations:\n  linker.hsj.com/image: ghcr.io/a/lb-linker@{digest}\n");
    fs::write(chart.join("Chart.yaml"), released).unwrap();
    for helm in without_cluster() {
        for (values, expected) in [
            ("", format!("ghcr.io/a/lb-linker@{digest}")),
            ("image.tag=0.0.9", "ghcr.io/a/lb-linker:0.0.9".to_owned()),
            ("image.repository=mirror.example/lb-linker", "mirror.example/lb-linker:0.1.0".to_owned()),
            (&format!("image.digest={}", digest.replace('0', "f")), {
                format!("ghcr.io/a/lb-linker@{}", digest.replace('0', "f"))
            }),
        ] {
            let rendered = helm.run(&["template", "a", chart.to_str().unwrap(), "--set", values]);
            assert!(rendered.contains(&format!("image: \"{expected}\"\n")), "{values}: {rendered}");
        }
    }
}

#[test]
fn released_chart_has_absolute_addresses_of_runbooks() {
    let directory = tempfile::tempdir().unwrap();
    let charts = directory.path().join("charts");
    fs::create_dir(&charts).unwrap();
    assert!(Command::new("cp").args(["-r", CHART]).arg(&charts).status().unwrap().success());
    let workflow = concat!(env!("CARGO_MANIFEST_DIR"), "/.github/workflows/release.yaml");
    let workflow = fs::read_to_string(workflow).unwrap();
    let command = workflow.lines().find(|line| line.contains("docs/runbooks.md")).unwrap().trim();
    let replaced = Command::new("bash")
        .args(["-euc", command])
        .current_dir(directory.path())
        .env("GITHUB_SERVER_URL", "https://git.example")
        .env("GITHUB_REPOSITORY", "a/lb-linker")
        .env("GITHUB_REF_NAME", "v1.2.3")
        .status();
    assert!(replaced.unwrap().success());
    let chart = charts.join("lb-linker");
    for helm in without_cluster() {
        let rendered =
            helm.run(&["template", "a", chart.to_str().unwrap(), "--set", "monitoring.enabled=true"]);
        let urls = rendered.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
        let is_absolute =
            |url: &str| url.starts_with("https://git.example/a/lb-linker/blob/v1.2.3/docs/runbooks.md#");
        let urls: Vec<&str> = urls.collect();
        assert!(urls.len() > 10 && urls.iter().all(|url| is_absolute(url)), "{urls:?}");
    }
}

#[test]
fn chart_values_appear_in_the_rendered_objects() {
    let helm = &without_cluster()[1];
    let objects = helm.template(&[
        "--set=image.repository=registry.example/lb-linker,image.digest=sha256:\
         0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "--set=imagePullSecrets[0].name=registry,replicas=3,zones={a.internal,b.internal},upstreams={192.0.2.1}",
        "--set=extraArgs={--denied-nets=10.96.0.0/12},leaderElection=life,finalizer.enabled=true",
        "--set=stub.enabled=true",
        "--set=service.clusterIP=10.96.0.53,service.ipFamilyPolicy=PreferDualStack,priorityQuota.enabled=true",
        "--set=priorityClassName=system-cluster-critical,networkPolicy.enabled=true,targetNamespace.name=targets",
        "--set=podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null",
        "--set=tolerations[0].operator=Exists,affinity.podAntiAffinity.a=b",
    ]);
    let find = |kind: &str, name: &str| {
        let found = objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    let pod = &find("Deployment", "lb-linker")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let args = [
        "run",
        "--zone=a.internal,b.internal",
        "--upstream=192.0.2.1",
        "--target-namespace=targets",
        "--leader-election=life",
        "--finalizer",
        "--snapshot=/var/lib/lb-linker/links",
        "--denied-nets=10.96.0.0/12",
    ];
    assert_eq!(container["args"], json!(args));
    assert_eq!(pod["volumes"], json!([{"name": "snapshot", "emptyDir": {"sizeLimit": "128Mi"}}]));
    let mount = json!({"name": "snapshot", "mountPath": "/var/lib/lb-linker"});
    assert_eq!(container["volumeMounts"], json!([mount]));
    let without = helm.run(&["template", "a", CHART, "--set=snapshot.enabled=false"]);
    assert!(!without.contains("snapshot") && !without.contains("volumes:"));
    assert!(container["image"].as_str().unwrap().starts_with("registry.example/lb-linker@sha256:"));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(pod["securityContext"].get("runAsUser"), None);
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["affinity"], json!({"podAntiAffinity": {"a": "b"}}));
    assert_eq!(find("Deployment", "lb-linker")["spec"]["replicas"], 3);
    let service = &find("Service", "lb-linker")["spec"];
    assert_eq!(
        (&service["clusterIP"], &service["ipFamilyPolicy"]),
        (&json!("10.96.0.53"), &json!("PreferDualStack"))
    );
    assert_eq!(find("ResourceQuota", "lb-linker-critical")["spec"]["hard"]["pods"], "9");
    for (kind, name) in [
        ("NetworkPolicy", "lb-linker"),
        ("Namespace", "targets"),
        ("Role", "lb-linker-life"),
        ("Role", "lb-linker-stub"),
        ("RoleBinding", "lb-linker-stub"),
        ("ClusterRole", "lb-linker-patch"),
        ("ClusterRole", "lb-linker-crd"),
    ] {
        find(kind, name);
    }
    let policy = find("ValidatingAdmissionPolicy", "lb-linker-keep-targets");
    assert_eq!(policy["spec"]["matchConstraints"]["resourceRules"][0]["resourceNames"], json!(["targets"]));
}

/// Returns the objects of a release as kubectl names them, such as `namespace/external-targets`.
fn of_release(plane: &ControlPlane, release: &str) -> Vec<String> {
    let kinds = "deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,configmaps,\
                 poddisruptionbudgets,namespaces,validatingadmissionpolicies,validatingadmissionpolicybindings,\
                 customresourcedefinitions";
    let selector = format!("app.kubernetes.io/instance={release}");
    let found = plane.kubectl(&["get", kinds, "--all-namespaces", "-l", &selector, "-o", "name"]);
    found.lines().map(str::to_owned).collect()
}

async fn installs_upgrades_rolls_back_and_uninstalls(program: &Path) {
    let plane = ControlPlane::start(Options::default());
    let helm = Helm::new(program, &plane.admin_kubeconfig());
    let notes = helm.run(&["install", "lb-linker", CHART, "--namespace", "lb-linker", "--create-namespace"]);
    assert!(
        notes.contains("    lb.internal:53 {\n        errors\n        forward . <cluster IP>\n    }"),
        "{notes}"
    );
    assert!(notes.contains("kubectl -n lb-linker get service lb-linker -o jsonpath"), "{notes}");
    // By name: users of other namespaces may set the label of the Service.
    assert!(
        notes.contains("    lb-linker stub --service lb-linker/lb-linker --zone lb.internal\n"),
        "{notes}"
    );

    // lb-linker works with the permissions that the chart grants.
    let cluster = plane.cluster().await;
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none"]);
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, "external-targets", "web-default-ext", "a.example.com").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;
    drop(linker);

    let deployment = || {
        let path = "/apis/apps/v1/namespaces/lb-linker/deployments";
        plane.list(path).remove(0)["spec"].clone()
    };
    let installed = deployment();
    let corefile = "corefile=.:53 {\n    lb_linker lb.internal\n    reload\n}\n";
    let values = ["--set", "replicas=3", "--set-literal", corefile, "--set", "extraArgs={--prune}"];
    let upgrade = ["upgrade", "lb-linker", CHART, "--namespace", "lb-linker"];
    helm.run(&[&upgrade[..], &values].concat());
    let upgraded = deployment();
    assert_eq!(upgraded["replicas"], 3);
    assert!(upgraded["template"]["metadata"]["annotations"]["checksum/corefile"].is_string());
    let args = &upgraded["template"]["spec"]["containers"][0]["args"];
    let snapshot = "--snapshot=/var/lib/lb-linker/links";
    assert_eq!(*args, json!(["run", "--corefile=/etc/lb-linker/Corefile", "--sync=on", snapshot, "--prune"]));
    let corefiles =
        plane.kubectl(&["-n", "lb-linker", "get", "configmap", "lb-linker-corefile", "-o", "yaml"]);
    assert!(corefiles.contains("lb_linker lb.internal"), "{corefiles}");
    helm.run(&["rollback", "lb-linker", "1", "--namespace", "lb-linker"]);
    assert_eq!(deployment(), installed);
    // The CRD stays when `crds.enabled=false` leaves it out, and the next upgrade takes it over again.
    helm.run(&[&upgrade[..], &["--set=crds.enabled=false"]].concat());
    plane.kubectl(&["get", "crd", "stablenames.linker.hsj.com"]);
    helm.run(&upgrade);

    // A second release in the same target namespace.
    helm.run(&[
        "install",
        "blue",
        CHART,
        "--namespace=lb-linker-blue",
        "--create-namespace",
        "--set=targetNamespace.create=false,keepTargets.enabled=false,crds.enabled=false",
    ]);
    let blue = plane.list("/apis/apps/v1/namespaces/lb-linker-blue/deployments");
    let args = &blue[0]["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*args, json!(["run", "--zone=lb.internal", "--lease-name=blue-lb-linker", snapshot]));
    helm.run(&["uninstall", "blue", "--namespace=lb-linker-blue"]);
    assert_eq!(of_release(&plane, "blue"), [] as [&str; 0]);

    helm.run(&["uninstall", "lb-linker", "--namespace", "lb-linker"]);
    let crd = "customresourcedefinition.apiextensions.k8s.io/stablenames.linker.hsj.com";
    assert_eq!(of_release(&plane, "lb-linker"), ["namespace/external-targets", crd]);
    let targets = ["get", "namespace", "external-targets", "-o", "jsonpath={.metadata.deletionTimestamp}"];
    assert_eq!(plane.kubectl(&targets), "");
    let dns = CoreDns::of_cluster(&plane).await;
    let name = "web-default-ext.external-targets.svc.cluster.local. A";
    answers(dns.address, name, "a.example.com. 192.0.2.10").await;

    // The namespace and the CRD that Helm has kept belong to the release lb-linker: only this release can be installed
    // with them.
    helm.run(&["install", "lb-linker", CHART, "--namespace", "lb-linker"]);
    helm.run(&["uninstall", "lb-linker", "--namespace", "lb-linker"]);
    let other = ["install", "green", CHART, "--namespace=green", "--create-namespace"];
    let error = helm.try_run(&other).unwrap_err();
    assert!(error.contains("external-targets"), "{error}");
    let other = [&other[..], &["--set=targetNamespace.create=false"]].concat();
    let error = helm.try_run(&other).unwrap_err();
    assert!(error.contains("stablenames.linker.hsj.com"), "{error}");
    helm.run(&[&other[..], &["--set=crds.enabled=false"]].concat());
    helm.run(&["install", "lb-linker", CHART, "--namespace=lb-linker", "--set=crds.keep=false"]);
    helm.run(&["uninstall", "lb-linker", "--namespace", "lb-linker"]);
    plane.kubectl(&["wait", "--for=delete", "crd/stablenames.linker.hsj.com", "--timeout=60s"]);
}

#[tokio::test]
async fn helm_3_installs_upgrades_and_uninstalls() {
    installs_upgrades_rolls_back_and_uninstalls(&helm()[0]).await;
}

#[tokio::test]
async fn helm_4_installs_upgrades_and_uninstalls() {
    installs_upgrades_rolls_back_and_uninstalls(&helm()[1]).await;
}
