//! lb-linker as a DNS server without a cluster, and as a sidecar: `deploy/sidecar/`.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{CoreDns, answers};
use crate::harness::linker::{Linker, run_to_end_with};
use crate::harness::{apply_deploy, deploy, eventually};

const CLOUD: &str = "$ORIGIN example.com.
@  60 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 60
@  60 IN NS ns.example.com.
lb 60 IN A 192.0.2.10
";
const WITHOUT_LINKS: &str = "DNS only, without a cluster: the Corefile has neither lb_linker nor k8s_gateway";
/// Where a Pod finds the token of its ServiceAccount.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Writes a Corefile on free ports. A line of `more` is added to its only block.
fn write_corefile(path: &Path, upstream: &CoreDns, more: &str) {
    let text = format!(
        ".:0 {{\n    bind 127.0.0.1\n    prometheus 127.0.0.1:0\n    health 127.0.0.1:0\n    ready 127.0.0.1:0\n    \
         {more}\n    forward . {}\n}}\n",
        upstream.address
    );
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn corefile_without_lb_linker_needs_no_cluster() {
    let upstream = CoreDns::start("file db example.com", CLOUD).await;
    let home = tempfile::tempdir().unwrap();
    let corefile = home.path().join("Corefile");
    write_corefile(&corefile, &upstream, "cache 30");
    // The home directory has no kubeconfig, and the environment has no variables of a Pod.
    let environment = [("HOME", home.path().to_str().unwrap())];
    let args = ["--corefile", corefile.to_str().unwrap()];
    let checked = run_to_end_with(&environment, [&["check"], &args[..]].concat());
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{printed}");
    assert!(printed.lines().any(|line| line == WITHOUT_LINKS), "{printed}");
    assert!(!printed.contains("API server"), "{printed}");

    let mut linker = Linker::start_bare(&environment, args);
    linker.ready().await;
    answers(linker.dns, "lb.example.com. A", "192.0.2.10").await;
    linker.line(WITHOUT_LINKS).await;
    assert_eq!(linker.logged("API server"), 0, "{:#?}", linker.log());
    assert_eq!(linker.metric("lb_linker_leader"), None);

    // The plugin *lb_linker* can't be added by a reload: without it at the start, no load balancers are read.
    write_corefile(&corefile, &upstream, "lb_linker lb.internal");
    linker.signal(Signal::SIGUSR1);
    let line = linker.line("the new Corefile can't be applied").await;
    assert!(
        line.contains("the Corefile had neither lb_linker nor k8s_gateway when lb-linker started"),
        "{line}"
    );
    answers(linker.dns, "lb.example.com. A", "192.0.2.10").await;
    assert!(linker.stop().success());
}

#[tokio::test]
async fn cluster_flag_needs_a_kubeconfig_without_lb_linker() {
    let upstream = CoreDns::start("file db example.com", CLOUD).await;
    let home = tempfile::tempdir().unwrap();
    let corefile = home.path().join("Corefile");
    write_corefile(&corefile, &upstream, "cache 30");
    let environment = [("HOME", home.path().to_str().unwrap())];
    for flag in [
        "--sync=on",
        "--sync=plan",
        "--kubeconfig=/nonexistent",
        "--leader-election=off",
        "--finalizer",
        "--watch-namespaces=shop",
    ] {
        let output = run_to_end_with(&environment, ["run", "--corefile", corefile.to_str().unwrap(), flag]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("kubeconfig"), "{flag}: {message}");
    }
}

/// Returns the Pod's sidecar, after checks that it comes first, has no token, and is the Pod's resolver.
fn sidecar(spec: &Value, namespace: &str) -> Value {
    let sidecar = &spec["initContainers"][0];
    assert_eq!((&sidecar["name"], &sidecar["restartPolicy"]), (&json!("lb-linker"), &json!("Always")));
    let mounts = sidecar["volumeMounts"].as_array().unwrap();
    let token: Vec<&Value> = mounts.iter().filter(|mount| mount["mountPath"] == TOKEN).collect();
    assert!(matches!(token[..], [mount] if mount["name"] == "lb-linker-no-token"), "{mounts:?}");
    assert_eq!(spec["dnsPolicy"], "None");
    let searches = [&format!("{namespace}.svc.cluster.local"), "svc.cluster.local", "cluster.local"];
    let options = [json!({"name": "ndots", "value": "5"})];
    let dns = json!({"nameservers": ["127.0.0.1"], "searches": searches, "options": options});
    assert_eq!(spec["dnsConfig"], dns);
    let unprivileged = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"});
    assert!(spec["securityContext"]["sysctls"].as_array().unwrap().contains(&unprivileged));
    let resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    assert_eq!(sidecar["resources"], resources);
    sidecar.clone()
}

/// Returns the fields of a container that all forms of the sidecar share.
fn shared_fields(container: &Value) -> Value {
    let get = |field: &str| container["startupProbe"][field].clone();
    json!({
        "image": container["image"], "args": container["args"], "securityContext": container["securityContext"],
        "path": container["startupProbe"]["httpGet"]["path"], "port": container["startupProbe"]["httpGet"]["port"],
        "periodSeconds": get("periodSeconds"), "failureThreshold": get("failureThreshold"),
    })
}

fn example_sidecar() -> Value {
    let text = fs::read_to_string(deploy().join("sidecar/pod.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let pod = objects.iter().find(|object| object["kind"] == "Pod").unwrap();
    pod["spec"]["initContainers"][0].clone()
}

#[tokio::test]
async fn annotated_pod_gets_the_sidecar_from_the_policy() {
    let plane = ControlPlane::start(Options { admits_service_accounts: true, ..Options::default() });
    apply_deploy(&plane);
    plane.apply_files(&deploy().join("sidecar/policy"));
    plane.create_namespace("shop");
    plane.create_service_account("shop", "default");
    let create = |annotation: &str, more: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": "web-", "annotations": {"linker.hsj.com/sidecar": annotation, "a": "b"}},
            "spec": {"containers": [{"name": "application", "image": "a"}]},
        });
        pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let args = ["-n", "shop", "create", "--dry-run=server", "-o", "json", "-f", "-"];
        let created: Value = serde_json::from_str(&plane.kubectl_stdin(&args, &pod.to_string())).unwrap();
        created
    };
    let has_sidecar = |pod: &Value| pod["spec"]["dnsPolicy"] == "None";
    // A policy is in force a moment after it was created.
    let plain = eventually("the policy", || async {
        let pod = create("true", json!({}));
        has_sidecar(&pod).then_some(pod)
    })
    .await;
    let injected = sidecar(&plain["spec"], "shop");
    assert_eq!(shared_fields(&injected), shared_fields(&example_sidecar()));
    // The application keeps its token.
    let mounts = plain["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().any(|mount| mount["mountPath"] == TOKEN), "{mounts:?}");
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    let text = plain["metadata"]["annotations"]["linker.hsj.com/corefile"].as_str().unwrap();
    fs::write(&corefile, text).unwrap();
    let checked = run_to_end_with(&[], ["check", "--corefile", corefile.to_str().unwrap()]);
    assert!(checked.status.success(), "{text}: {}", String::from_utf8_lossy(&checked.stderr));
    assert!(text.contains("lb.internal {") && text.contains("forward . 10.96.0.53"), "{text}");

    // Fields that the Pod already has stay.
    let sysctl = json!({"name": "net.ipv4.tcp_syncookies", "value": "1"});
    let unprivileged = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "53"});
    let has_sysctl = create("true", json!({"securityContext": {"sysctls": [unprivileged]}}));
    sidecar(&has_sysctl["spec"], "shop");
    assert_eq!(has_sysctl["spec"]["securityContext"]["sysctls"], json!([unprivileged]));
    let full = create(
        "true",
        json!({
            "initContainers": [{"name": "migrate", "image": "m"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "securityContext": {"runAsUser": 1, "sysctls": [sysctl]},
        }),
    );
    sidecar(&full["spec"], "shop");
    assert_eq!(full["spec"]["initContainers"][1]["name"], "migrate");
    assert_eq!(full["spec"]["volumes"][0]["name"], "data");
    assert_eq!(full["spec"]["securityContext"]["runAsUser"], 1);
    assert_eq!(full["spec"]["securityContext"]["sysctls"][0], sysctl);
    assert_eq!(full["metadata"]["annotations"]["a"], "b");

    let windows = json!({"os": {"name": "windows"}});
    for (annotation, more) in
        [("false", json!({})), ("true", json!({"hostNetwork": true})), ("true", windows)]
    {
        assert!(!has_sidecar(&create(annotation, more)));
    }
}

#[test]
fn component_adds_the_sidecar_to_labelled_deployments() {
    let directory = tempfile::tempdir().unwrap();
    let component = directory.path().join("component");
    fs::create_dir(&component).unwrap();
    for entry in fs::read_dir(deploy().join("sidecar/component")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), component.join(entry.file_name())).unwrap();
    }
    let deployment = |name: &str, labels: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "initContainers": [{"name": "migrate", "image": "m"}],
                        "containers": [{"name": "application", "image": "a"}],
                        "volumes": [{"name": "data", "emptyDir": {}}],
                    },
                },
            },
        })
    };
    let labelled = deployment("web", json!({"linker.hsj.com/sidecar": "true"}));
    let other = deployment("other", json!({}));
    fs::write(directory.path().join("deployments.yaml"), format!("{labelled}\n---\n{other}\n")).unwrap();
    let kustomization = json!({
        "namespace": "shop", "resources": ["deployments.yaml"], "components": ["component"],
        "configMapGenerator": [{
            "name": "lb-linker-sidecar-settings",
            "literals": ["namespace=shop", "service=10.96.0.53", "cluster-dns=10.96.0.10"],
        }],
    });
    fs::write(directory.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let plane = ControlPlane::shared();
    let rendered = plane.kubectl(&["kustomize", directory.path().to_str().unwrap()]);
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
    let deployed = |name: &str| {
        let found = objects.iter().find(|it| it["kind"] == "Deployment" && it["metadata"]["name"] == name);
        found.unwrap()["spec"]["template"]["spec"].clone()
    };
    let spec = deployed("web");
    let added = sidecar(&spec, "shop");
    assert_eq!(shared_fields(&added), shared_fields(&example_sidecar()));
    assert_eq!(spec["initContainers"][1]["name"], "migrate");
    assert_eq!(spec["volumes"].as_array().unwrap().len(), 3);
    assert_eq!(deployed("other"), other["spec"]["template"]["spec"]);
    // The references name the generated ConfigMaps.
    for reference in [
        &added["env"][0]["valueFrom"]["configMapKeyRef"]["name"],
        &added["env"][1]["valueFrom"]["configMapKeyRef"]["name"],
        &spec["volumes"][0]["configMap"]["name"],
    ] {
        let is_referred = |it: &Value| it["kind"] == "ConfigMap" && it["metadata"]["name"] == *reference;
        assert!(objects.iter().any(is_referred), "{reference}: {rendered}");
    }
}

#[test]
fn sidecar_corefiles_are_identical_and_valid() {
    let component = fs::read_to_string(deploy().join("sidecar/component/Corefile")).unwrap();
    let text = fs::read_to_string(deploy().join("sidecar/pod.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert_eq!(objects[0]["data"]["Corefile"], component.as_str());
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    fs::write(&corefile, component).unwrap();
    let addresses = [("LB_LINKER_SERVICE", "10.96.0.53"), ("CLUSTER_DNS", "10.96.0.10")];
    let checked = run_to_end_with(&addresses, ["check", "--corefile", corefile.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
