//! `deploy/cluster-dns/` beside CoreDNS as kubeadm installs it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use serde_json::{Value, json};

use super::{objects, of_kind};
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::answers;
use crate::harness::linker::{bare, cluster_errors, get, run_to_end};
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::harness::{apply_deploy, apply_stable_names, deploy, eventually, network};

/// What kubeadm creates.
const CORE_DNS: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        forward . 192.0.2.53
    }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: 'system:coredns'}
rules:
  - {apiGroups: [''], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: 'system:coredns'}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:coredns'}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  replicas: 2
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec: {serviceAccountName: coredns, containers: [{name: coredns, image: coredns}]}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns, kubernetes.io/cluster-service: 'true'}}
spec:
  clusterIP: 10.0.0.10
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: coredns, namespace: kube-system}
spec: {minAvailable: 1, selector: {matchLabels: {k8s-app: kube-dns}}}
";
const KINDS: &str = "serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,configmaps,deployments,services,\
                     poddisruptionbudgets,namespaces,priorityclasses";

fn folder() -> String {
    deploy().join("cluster-dns").to_str().unwrap().to_owned()
}

/// Returns the objects by kind, namespace and name.
fn all(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let list = plane.kubectl(&["get", KINDS, "--all-namespaces", "-o", "json"]);
    let mut list: Value = serde_json::from_str(&list).unwrap();
    let Value::Array(items) = list["items"].take() else { panic!("{list}") };
    items.into_iter().map(|object| (key(&object), object)).collect()
}

fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"])
}

/// Returns whether a selector is met by labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value)
}

#[test]
fn cluster_dns_is_applied_without_touching_anything_else() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    apply_stable_names(&plane);
    plane.kubectl_stdin(&["apply", "-f", "-"], CORE_DNS);
    let before = all(&plane);
    let folder = folder();
    let of_folder = objects(&deploy().join("cluster-dns"));
    for by in ["-f", "-k"] {
        let applied = plane.kubectl(&["apply", by, &folder]);
        assert!(applied.lines().all(|line| line.ends_with(" created") == (by == "-f")), "{applied}");
        let mut after = all(&plane);
        for object in &of_folder {
            assert!(after.remove(&key(object)).is_some(), "{}", key(object));
        }
        assert_eq!(after, before);
    }
    let labels = |object: &Value| object["spec"]["template"]["metadata"]["labels"].clone();
    let ours = labels(of_kind(&of_folder, "Deployment"));
    for object in
        before.values().filter(|object| object["kind"] == "Service" || object["kind"] == "Deployment")
    {
        let selector = &object["spec"]["selector"];
        let selector = selector.get("matchLabels").unwrap_or(selector);
        assert!(selector.is_null() || !selects(selector, &ours), "{} selects our Pods", key(object));
        if object["kind"] == "Deployment" {
            for kind in ["Service", "PodDisruptionBudget", "Deployment"] {
                let selector = &of_kind(&of_folder, kind)["spec"]["selector"];
                let selector = selector.get("matchLabels").unwrap_or(selector);
                assert!(!selects(selector, &labels(object)), "{kind} selects Pods of {}", key(object));
            }
        }
    }
    // Where the Service of the cluster DNS leads to lb-linker, no block is added to CoreDNS's Corefile.
    let to_lb_linker = r#"{"spec":{"selector":{"k8s-app":"lb-linker-cluster-dns"}}}"#;
    plane.kubectl(&["-n", "kube-system", "patch", "service", "kube-dns", "-p", to_lb_linker]);
    let admin = plane.admin_kubeconfig();
    for action in [&[][..], &["--apply", "--yes"], &["coredns"], &["nodelocal"]] {
        let output = run_to_end([&["stub", "--kubeconfig", admin.to_str().unwrap()], action].concat());
        let printed = String::from_utf8(output.stdout).unwrap();
        let expected = "the cluster DNS is lb-linker and answers for lb.internal itself (ConfigMap \
                        kube-system/lb-linker-cluster-dns): nothing is to be added; but CoreDNS has no block for lb.internal: \
                        after the way back to it, these names aren't answered before `lb-linker stub --apply \
                        --service kube-system/lb-linker-cluster-dns --zone lb.internal`\n";
        assert_eq!((output.status.code(), printed.as_str()), (Some(0), expected), "{:?}", output.stderr);
    }
    let output = run_to_end(["stub", "--verify", "--kubeconfig", admin.to_str().unwrap()]);
    let table = String::from_utf8(output.stdout).unwrap();
    let asked: Vec<&str> = table.lines().skip(2).filter_map(|row| row.split("  ").next()).collect();
    assert_eq!(asked, ["lb-linker", "cluster DNS"], "{table}");
    // An installer that applies its own Service again leads it back to CoreDNS, and not to no Pod at all.
    plane.kubectl_stdin(&["apply", "-f", "-"], CORE_DNS);
    let selector = ["get", "service", "kube-dns", "-n", "kube-system", "-o", "jsonpath={.spec.selector}"];
    assert_eq!(plane.kubectl(&selector), r#"{"k8s-app":"kube-dns"}"#);
    let back = |more: &[&str]| {
        run_to_end([&["stub", "--apply", "--yes", "--kubeconfig", admin.to_str().unwrap()], more].concat())
    };
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "--all"]);
    let output = back(&[]);
    let told = String::from_utf8(output.stderr).unwrap();
    let named = "name the Service of deploy/cluster-dns/ by --service kube-system/lb-linker-cluster-dns\n";
    assert!(output.status.code() == Some(1) && told.ends_with(named), "{told}");
    let output = back(&["--service", "kube-system/lb-linker-cluster-dns", "--zone", "lb.internal"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", output.stderr);
    for part in ["pods", "serviceimports"] {
        let path = format!("{folder}/{part}");
        let applied = plane.kubectl(&["apply", "-f", &path]);
        assert!(applied.lines().all(|line| line.ends_with(" created")), "{applied}");
    }
    let deleted = plane.kubectl(&["delete", "-k", &folder, "--wait=false"]);
    assert_eq!(deleted.lines().count(), of_folder.len(), "{deleted}");
}

#[tokio::test]
async fn cluster_dns_answers_with_the_token_of_its_account() {
    programs();
    if !network::is_own("deploy::cluster_dns::cluster_dns_answers_with_the_token_of_its_account") {
        return;
    }
    // The node's resolver, which doesn't answer. By 127.0.0.1 the plugin `loop` would find itself.
    fs::write("/etc/resolv.conf", "nameserver 192.0.2.53\n").unwrap();
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    apply_stable_names(&plane);
    plane.kubectl(&["apply", "-f", &folder()]);
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Ip("192.0.2.7")]).await;

    let directory = tempfile::tempdir().unwrap();
    let maps = plane.list("/api/v1/namespaces/kube-system/configmaps");
    let map = maps.iter().find(|map| map["metadata"]["name"] == "lb-linker-cluster-dns").unwrap();
    let [corefile, snapshot] = ["Corefile", "links"].map(|name| directory.path().join(name));
    fs::write(&corefile, map["data"]["Corefile"].as_str().unwrap()).unwrap();
    let deployments = plane.list("/apis/apps/v1/namespaces/kube-system/deployments");
    let container = &deployments[0]["spec"]["template"]["spec"]["containers"][0];
    let kubeconfig = plane.kubeconfig_for_service_account("kube-system", "lb-linker-cluster-dns");
    let mut args: Vec<String> = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| {
            let argument = argument.as_str().unwrap();
            let argument = argument.replace("/etc/lb-linker/Corefile", corefile.to_str().unwrap());
            argument.replace("/var/lib/lb-linker/links", snapshot.to_str().unwrap())
        })
        .collect();
    args.push(format!("--kubeconfig={}", kubeconfig.display()));
    assert_eq!(container["env"][0]["name"], "POD_IPS", "{container}");

    let log_path = directory.path().join("log");
    let mut command = bare();
    command.args(&args).env("POD_IPS", "10.0.7.7").stdout(Stdio::null());
    command.stderr(fs::File::create(&log_path).unwrap());
    let _linker = Process::spawn(command).unwrap();
    let log = || fs::read_to_string(&log_path).unwrap();
    eventually("readiness", || async {
        let ready: SocketAddr = (Ipv4Addr::LOCALHOST, 8181).into();
        tokio::net::TcpStream::connect(ready).await.ok()?;
        (get(ready, "/ready").0 == 200).then_some(())
    })
    .await;
    let dns: SocketAddr = (Ipv4Addr::LOCALHOST, 53).into();
    let services = plane.list("/api/v1/namespaces/default/services");
    let api = services.iter().find(|service| service["metadata"]["name"] == "kubernetes").unwrap();
    let address = api["spec"]["clusterIP"].as_str().unwrap();
    answers(dns, "kubernetes.default.svc.cluster.local. A", address).await;
    answers(dns, "web-default.lb.internal. A", "192.0.2.7").await;
    cluster.set_ingress("default", "web", &[Ingress::Ip("192.0.2.8")]).await;
    answers(dns, "web-default.lb.internal. A", "192.0.2.8").await;
    eventually("the snapshot", || async { snapshot.exists().then_some(()) }).await;
    assert!(!log().contains("forbid"), "{}", log());

    args[0] = "check".to_owned();
    let output = run_to_end(args.iter().map(String::as_str).chain(["--cluster"]));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", cluster_errors(&output));
    // No other right is asked for, and none is granted that isn't asked for.
    let rules = objects(&deploy().join("cluster-dns/10-rbac.yaml"));
    let rules = of_kind(&rules, "ClusterRole")["rules"].as_array().unwrap().clone();
    for rule in rules {
        assert_eq!(rule["verbs"], json!(["list", "watch"]));
        for resource in rule["resources"].as_array().unwrap() {
            let asked = format!("yes  watch {} in all namespaces\n", resource.as_str().unwrap());
            assert!(printed.contains(&asked), "{asked}{printed}");
        }
    }
    assert_eq!(printed.matches("yes  ").count(), 8, "{printed}");
}
