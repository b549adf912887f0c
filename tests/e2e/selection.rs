//! Selection of load balancers by annotation, label and namespace.

use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;

async fn load_balancer(cluster: &Cluster, namespace: &str, name: &str, metadata: serde_json::Value) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.patch_service(namespace, name, json!({"metadata": metadata})).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname("a.example.com")]).await;
}

async fn annotate(cluster: &Cluster, namespace: &str, name: &str, value: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {"linker.hsj.com/managed": value}}});
    cluster.patch_service(namespace, name, patch).await;
}

#[tokio::test]
async fn opted_out_load_balancer_has_no_link_until_it_opts_in() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("opt-out").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    load_balancer(&cluster, &namespace, "web", json!({})).await;
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;

    annotate(&cluster, &namespace, "web", Some("false")).await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "Non-Existent Domain").await;
    eventually("the end of the external target", || async {
        cluster.get_service(&target, &object).await.is_none().then_some(())
    })
    .await;

    annotate(&cluster, &namespace, "web", None).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
}

#[tokio::test]
async fn selection_annotated_follows_only_services_that_opt_in() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("opt-in").await;
    load_balancer(&cluster, &namespace, "silent", json!({})).await;
    load_balancer(
        &cluster,
        &namespace,
        "willing",
        json!({"annotations": {"linker.hsj.com/managed": "true"}}),
    )
    .await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--selection", "annotated"]);
    wait_for_external_target(&cluster, &target, &format!("willing-{namespace}-ext"), "a.example.com").await;
    let silent = format!("silent-{namespace}.lb.internal. CNAME");
    assert_eq!(short(linker.dns, &silent).await, "Non-Existent Domain");
    assert!(cluster.get_service(&target, &format!("silent-{namespace}-ext")).await.is_none());

    annotate(&cluster, &namespace, "silent", Some("true")).await;
    wait_for_external_target(&cluster, &target, &format!("silent-{namespace}-ext"), "a.example.com").await;
}

#[tokio::test]
async fn only_watched_namespaces_are_followed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let mut namespaces = Vec::new();
    for prefix in ["one", "two", "unwatched"] {
        let namespace = cluster.create_namespace(prefix).await;
        load_balancer(&cluster, &namespace, "web", json!({})).await;
        namespaces.push(namespace);
    }
    let object = |i: usize| format!("web-{}-ext", namespaces[i]);
    // The first run watches all namespaces, the second run only two.
    let mut linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    for i in 0..3 {
        wait_for_external_target(&cluster, &target, &object(i), "a.example.com").await;
    }
    assert!(linker.stop().success());
    let watched = namespaces[..2].join(",");
    let args = ["--upstream", "none", "--delete-delay", "0s", "--watch-namespaces", &watched];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    let question = |i: usize| format!("web-{}.lb.internal. CNAME", namespaces[i]);
    for i in 0..2 {
        assert_eq!(short(linker.dns, &question(i)).await, "a.example.com.");
    }
    answers(linker.dns, &question(2), "Non-Existent Domain").await;
    cluster.delete_service(&namespaces[0], "web").await;
    eventually("the end of the external target", || async {
        cluster.get_service(&target, &object(0)).await.is_none().then_some(())
    })
    .await;
    wait_for_external_target(&cluster, &target, &object(1), "a.example.com").await;
    wait_for_external_target(&cluster, &target, &object(2), "a.example.com").await;
}

#[tokio::test]
async fn load_balancer_without_the_selected_label_is_removed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("labels").await;
    load_balancer(&cluster, &namespace, "web", json!({"labels": {"tier": "web"}})).await;
    load_balancer(&cluster, &namespace, "db", json!({"labels": {"tier": "db"}})).await;
    let args = ["--upstream", "none", "--delete-delay", "0s", "--service-selector", "tier in (web)"];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    assert_eq!(short(linker.dns, &format!("web-{namespace}.lb.internal. CNAME")).await, "a.example.com.");
    assert_eq!(short(linker.dns, &format!("db-{namespace}.lb.internal. CNAME")).await, "Non-Existent Domain");
    cluster.patch_service(&namespace, "web", json!({"metadata": {"labels": {"tier": "db"}}})).await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "Non-Existent Domain").await;
}

#[tokio::test]
async fn deselected_service_is_kept_for_the_delete_delay() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("left").await;
    for name in ["left", "back", "out", "deleted"] {
        load_balancer(&cluster, &namespace, name, json!({"labels": {"tier": "web"}})).await;
    }
    let args = ["--upstream", "none", "--delete-delay", "1h", "--service-selector", "tier=web"];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    let object = |name: &str| format!("{name}-{namespace}-ext");
    let question = |name: &str| format!("{name}-{namespace}.lb.internal. CNAME");
    for name in ["left", "back", "out", "deleted"] {
        wait_for_external_target(&cluster, &target, &object(name), "a.example.com").await;
    }
    let relabel = async |name: &str, metadata: serde_json::Value| {
        cluster.patch_service(&namespace, name, json!({"metadata": metadata})).await;
    };
    let not_selected = |name: &str| format!("link {namespace}/{name}: its Service isn't selected any more");

    // The watch, which has the label selector, reports all four Services as deleted.
    relabel("left", json!({"labels": {"tier": "db"}})).await;
    relabel("back", json!({"labels": {"tier": "db"}})).await;
    let opted_out = json!({"labels": {"tier": "db"}, "annotations": {"linker.hsj.com/managed": "false"}});
    relabel("out", opted_out).await;
    cluster.delete_service(&namespace, "deleted").await;
    linker.line(&not_selected("left")).await;
    linker.line(&not_selected("back")).await;
    answers(linker.dns, &question("out"), "Non-Existent Domain").await;
    eventually("the end of the external target", || async {
        cluster.get_service(&target, &object("out")).await.is_none().then_some(())
    })
    .await;
    answers(linker.dns, &question("deleted"), "No Error").await;
    wait_for_external_target(&cluster, &target, &object("deleted"), "a.example.com").await;
    assert_eq!(short(linker.dns, &question("left")).await, "a.example.com.");
    wait_for_external_target(&cluster, &target, &object("left"), "a.example.com").await;

    relabel("back", json!({"labels": {"tier": "web"}})).await;
    cluster.set_ingress(&namespace, "back", &[Ingress::Hostname("b.example.com")]).await;
    answers(linker.dns, &question("back"), "b.example.com.").await;
    wait_for_external_target(&cluster, &target, &object("back"), "b.example.com").await;
    assert_eq!(linker.logged(&not_selected("deleted")), 0);
    assert!(linker.stop().success());

    // With a short delay the external target is removed, also when the Service loses its `managed` annotation instead
    // of opting out.
    relabel("back", json!({"annotations": {"linker.hsj.com/managed": "true"}})).await;
    let args = ["--upstream", "none", "--delete-delay", "1s", "--selection", "annotated"];
    let linker = Linker::in_cluster(plane, &target, &args);
    answers(linker.dns, &question("back"), "b.example.com.").await;
    annotate(&cluster, &namespace, "back", None).await;
    linker.line(&not_selected("back")).await;
    answers(linker.dns, &question("back"), "Non-Existent Domain").await;
    eventually("the end of the external target", || async {
        cluster.get_service(&target, &object("back")).await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn opting_out_clears_the_warnings_of_a_service() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("complaints").await;
    let linker =
        Linker::in_cluster(plane, &target, &["--upstream", "none", "--watch-namespaces", &namespace]);
    linker.ready().await;
    load_balancer(&cluster, &namespace, "web", json!({})).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("localhost")]).await;
    let complaint = format!("Service {namespace}/web: the hostname in the status");
    linker.line(&complaint).await;
    linker.counts("lb_linker_targets_refused", 1.0).await;
    annotate(&cluster, &namespace, "web", Some("false")).await;
    linker.counts("lb_linker_targets_refused", 0.0).await;
    let said = linker.logged(&complaint);
    // The warning is logged again when the Service opts in again.
    annotate(&cluster, &namespace, "web", None).await;
    eventually("the repeated warning", || async { (linker.logged(&complaint) > said).then_some(()) }).await;
    linker.counts("lb_linker_targets_refused", 1.0).await;
}
