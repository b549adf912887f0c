//! Zones of the plugin k8s_gateway: its chart's Corefile as it is, and a cluster whose objects change.

use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::cluster::Ingress;
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::{LINKER, cluster_with_target, deploy, network, permission};
use crate::name_sources::{Ingresses, event};

const ABSENT: &str = "Non-Existent Domain";

/// The Corefile of the chart k8s-gateway with its default values, `domain: example.com` and the release `exdns`:
/// `charts/k8s-gateway/templates/configmap.yaml`.
const CHART: &str = include_str!("../corefiles/external-k8s-gateway-chart.corefile");

const MANIFESTS: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: app, namespace: shop}
spec: {rules: [{host: app.example.com}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}
---
apiVersion: v1
kind: Service
metadata: {name: exdns-k8s-gateway, namespace: kube-system}
spec: {type: LoadBalancer}
status: {loadBalancer: {ingress: [{ip: 192.0.2.53}]}}
";

#[tokio::test]
async fn corefile_of_its_chart_is_served_as_it_is() {
    // It has ports of its own.
    if !network::is_own("k8s_gateway::corefile_of_its_chart_is_served_as_it_is") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("objects.yaml"), MANIFESTS).unwrap();
    let linker = Linker::start_on_corefile(CHART, directory.path(), None);
    linker.ready().await;
    assert_eq!(linker.dns.port(), 1053);
    for (question, expected) in [
        ("app.example.com. A", "192.0.2.1"),
        ("web.shop.example.com. A", "192.0.2.2"),
        ("web-shop.example.com. A", ABSENT),
        ("absent.example.com. A", ABSENT),
        ("example.com. NS", "exdns-k8s-gateway.kube-system.example.com."),
        ("exdns-k8s-gateway.kube-system.example.com. A", "192.0.2.53"),
    ] {
        assert_eq!(short(linker.dns, question).await, expected, "{question}");
    }
    linker.line("every namespace may have any name in example.com").await;
}

/// The permissions of its chart with the default values: `charts/k8s-gateway/templates/rbac.yaml`.
const PERMISSIONS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: exdns-k8s-gateway}
rules:
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}
- {apiGroups: [''], resources: [services, namespaces], verbs: [list, watch]}
- {apiGroups: [extensions, networking.k8s.io], resources: [ingresses], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: exdns-k8s-gateway}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: exdns-k8s-gateway}
subjects: [{kind: ServiceAccount, name: exdns-k8s-gateway, namespace: default}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: exdns-k8s-gateway, namespace: default}
";

/// As in docs/moving.md: its Deployment runs lb-linker.
#[tokio::test]
async fn permissions_of_its_chart_suffice() {
    let (plane, cluster, _) = cluster_with_target().await;
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects.yaml");
    std::fs::write(&objects, PERMISSIONS).unwrap();
    plane.apply_files(&objects);
    let account = "--as=system:serviceaccount:default:exdns-k8s-gateway";
    for resource in ["services", "ingresses.networking.k8s.io"] {
        permission(plane, true, &["watch", resource, "-A", account]).await;
    }
    let shop = cluster.create_namespace("shop").await;
    Ingresses::of(&cluster, &shop).create("web", &[&format!("app-{shop}.example.com")], "192.0.2.1").await;
    let kubeconfig = plane.kubeconfig_for_service_account("default", "exdns-k8s-gateway");
    let corefile = directory.path().join("Corefile");
    write_corefile(&corefile, kubeconfig.to_str().unwrap(), "resources Ingress Service");
    let args = ["run", "--corefile", corefile.to_str().unwrap(), "--sync=off", "--admin-listen=none"];
    let linker = Linker::start_bare(&[], args);
    linker.ready().await;
    assert_eq!(short(linker.dns, &format!("app-{shop}.example.com. A")).await, "192.0.2.1");
    let checked = run_to_end(["check", "--cluster", "--corefile", args[2], "--sync=off"]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

fn write_corefile(path: &Path, kubeconfig: &str, options: &str) {
    let corefile = format!(
        "example.com:0 lb.internal:0 {{
            bind 127.0.0.1
            errors
            prometheus 127.0.0.1:0
            health 127.0.0.1:0
            ready 127.0.0.1:0
            lb_linker lb.internal
            k8s_gateway example.com {{
                kubeconfig {kubeconfig}
                {options}
            }}
        }}"
    );
    std::fs::write(path, corefile).unwrap();
}

#[tokio::test]
async fn zone_follows_the_cluster_that_its_block_names() {
    let (plane, cluster, target) = cluster_with_target().await;
    plane.apply_files(&deploy().join("sources"));
    for verb in ["list", "watch"] {
        permission(plane, true, &[verb, "ingresses.networking.k8s.io", "-A", LINKER]).await;
    }
    let [shop, thief] = [cluster.create_namespace("shop").await, cluster.create_namespace("thief").await];
    let (both, directory) = (format!("{shop},{thief}"), tempfile::tempdir().unwrap());
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let (kubeconfig, corefile) = (kubeconfig.to_str().unwrap(), directory.path().join("Corefile"));
    write_corefile(&corefile, kubeconfig, "resources Service Ingress");
    let args = ["--corefile", corefile.to_str().unwrap(), "--watch-namespaces", &both];
    let writes = ["--target-namespace", &target, "--max-deletes", "unlimited"];
    let mut linker = Linker::start([&args[..], &writes].concat());
    linker.ready().await;

    let own = format!("web.{shop}.example.com. A");
    cluster.create_load_balancer(&shop, "web").await;
    answers(linker.dns, &own, "No Error").await;
    cluster.set_ingress(&shop, "web", &[Ingress::Ip("192.0.2.1")]).await;
    answers(linker.dns, &own, "192.0.2.1").await;
    assert_eq!(short(linker.dns, &format!("web-{shop}.example.com. A")).await, ABSENT);
    assert_eq!(short(linker.dns, &format!("web-{shop}.lb.internal. A")).await, "192.0.2.1");
    let bank = format!("bank-{shop}");
    let annotate = |name: &str| json!({"metadata": {"annotations": {"coredns.io/hostname": name}}});
    cluster.patch_service(&shop, "web", annotate(&bank)).await;
    answers(linker.dns, &format!("{bank}.example.com. A"), "192.0.2.1").await;
    answers(linker.dns, &own, ABSENT).await;

    // Another namespace gets neither this name nor a reserved one.
    cluster.create_load_balancer(&thief, "web").await;
    cluster.set_ingress(&thief, "web", &[Ingress::Ip("192.0.2.66")]).await;
    cluster.patch_service(&thief, "web", annotate(&format!("{bank}.example.com,next-{thief}"))).await;
    let thieves = Ingresses::of(&cluster, &thief);
    thieves
        .create("web", &[&format!("{bank}.example.com"), "dns1.kube-system.example.com"], "192.0.2.66")
        .await;
    answers(linker.dns, &format!("next-{thief}.example.com. A"), "192.0.2.66").await;
    event(plane, &thief, ("Ingress", "web"), "Conflict").await;
    event(plane, &thief, ("Ingress", "web"), "HostnameRefused").await;
    assert_eq!(short(linker.dns, &format!("{bank}.example.com. A")).await, "192.0.2.1");
    assert_eq!(short(linker.dns, "dns1.kube-system.example.com. A").await, "No Error");
    let admin = linker.admin().await.to_string();
    let output = run_to_end(["names", "--admin-listen", &admin, &format!("{bank}.example.com")]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("Service {shop}/web")) && text.contains("Ingress"), "{text}");

    let ignore = json!({"metadata": {"labels": {"k8s-gateway.dns/ignore": "true"}}});
    cluster.patch_service(&shop, "web", ignore).await;
    answers(linker.dns, &format!("{bank}.example.com. A"), "192.0.2.66").await;
    assert_eq!(short(linker.dns, &format!("web-{shop}.lb.internal. A")).await, "192.0.2.1");

    let checked = run_to_end([&["check", "--cluster", "--sync", "off"], &args[..]].concat());
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(text.contains("yes  list ingresses") && !text.contains("httproutes"), "{text}");

    // A reload changes the rules, but not the connection.
    write_corefile(&corefile, kubeconfig, "resources Ingress");
    linker.signal(Signal::SIGUSR1);
    answers(linker.dns, &format!("next-{thief}.example.com. A"), ABSENT).await;
    write_corefile(&corefile, kubeconfig, "resources Service Ingress\nserviceLabelSelectors tier=web");
    linker.signal(Signal::SIGUSR1);
    let labelled = format!("next-{thief}.example.com. A");
    cluster.patch_service(&thief, "web", json!({"metadata": {"labels": {"tier": "web"}}})).await;
    answers(linker.dns, &labelled, "192.0.2.66").await;
    let other = directory.path().join("other");
    std::fs::copy(kubeconfig, &other).unwrap();
    write_corefile(&corefile, other.to_str().unwrap(), "resources Ingress");
    linker.signal(Signal::SIGUSR1);
    linker.line("k8s_gateway names the kubeconfig").await;
    assert_eq!(short(linker.dns, &labelled).await, "192.0.2.66");
}
