//! `--finalizer`: a Service is deleted only after its external target. Without the flag no Service waits for lb-linker.

use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually, grant_optional};
use crate::recreation::wait_for_external_target;

const FINALIZER: &str = "lb-linker/finalizer";

async fn finalizers(cluster: &Cluster, namespace: &str, name: &str) -> Option<Vec<String>> {
    Some(cluster.get_service(namespace, name).await?.metadata.finalizers.unwrap_or_default())
}

async fn wait_for_finalizer(cluster: &Cluster, namespace: &str, name: &str, guarded: bool) {
    eventually(&format!("{namespace}/{name} with its finalizer: {guarded}"), || async {
        let found = finalizers(cluster, namespace, name).await?;
        (found.iter().any(|finalizer| finalizer == FINALIZER) == guarded).then_some(())
    })
    .await;
}

async fn wait_until_deleted(cluster: &Cluster, namespace: &str, name: &str) {
    eventually(&format!("the end of {namespace}/{name}"), || async {
        cluster.get_service(namespace, name).await.is_none().then_some(())
    })
    .await;
}

async fn balancer(cluster: &Cluster, namespace: &str, name: &str) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname("a.example.com")]).await;
}

#[tokio::test]
async fn service_is_deleted_after_its_external_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("guarded").await;
    grant_optional(plane, "finalizer", &namespace);
    // With `--finalizer` the default `--delete-delay` isn't applied.
    let args = ["--upstream", "none", "--finalizer", "--watch-namespaces", &namespace];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    for name in ["web", "opted", "typed", "foreign"] {
        balancer(&cluster, &namespace, name).await;
        wait_for_finalizer(&cluster, &namespace, name, true).await;
    }
    let object = |name: &str| format!("{name}-{namespace}-ext");
    cluster.delete_service(&namespace, "web").await;
    wait_until_deleted(&cluster, &namespace, "web").await;
    assert!(
        cluster.get_service(&target, &object("web")).await.is_none(),
        "the external target is deleted before its Service"
    );

    // The finalizer is also removed from a Service that opts out, or isn't a load balancer any more.
    let managed = json!({"metadata": {"annotations": {"linker.hsj.com/managed": "false"}}});
    cluster.patch_service(&namespace, "opted", managed).await;
    wait_for_finalizer(&cluster, &namespace, "opted", false).await;
    wait_until_deleted(&cluster, &target, &object("opted")).await;
    cluster.patch_service(&namespace, "typed", json!({"spec": {"type": "ClusterIP"}})).await;
    wait_for_finalizer(&cluster, &namespace, "typed", false).await;

    // Changes during lb-linker's downtime are processed after its start.
    linker.kill();
    let others = json!({"metadata": {"finalizers": [FINALIZER, "example.com/other"]}});
    cluster.patch_service(&namespace, "foreign", others).await;
    cluster.delete_service(&namespace, "foreign").await;
    balancer(&cluster, &namespace, "away").await;
    let guarded = json!({"metadata": {"finalizers": [FINALIZER]}, "spec": {"type": "ClusterIP"}});
    cluster.patch_service(&namespace, "away", guarded).await;
    let _linker = Linker::in_cluster(plane, &target, &args);
    wait_for_finalizer(&cluster, &namespace, "foreign", false).await;
    assert_eq!(finalizers(&cluster, &namespace, "foreign").await.unwrap(), ["example.com/other"]);
    wait_until_deleted(&cluster, &target, &object("foreign")).await;
    wait_for_finalizer(&cluster, &namespace, "away", false).await;
    let free = json!({"metadata": {"finalizers": []}});
    cluster.patch_service(&namespace, "foreign", free).await;
    wait_until_deleted(&cluster, &namespace, "foreign").await;
}

#[tokio::test]
async fn service_waits_for_another_finalizer_of_its_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("guarded").await;
    grant_optional(plane, "finalizer", &namespace);
    let args = ["--upstream", "none", "--finalizer", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    balancer(&cluster, &namespace, "web").await;
    wait_for_finalizer(&cluster, &namespace, "web", true).await;
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    let held = json!({"metadata": {"finalizers": ["example.com/other"]}});
    cluster.patch_service(&target, &object, held).await;
    cluster.delete_service(&namespace, "web").await;
    linker.line(&format!("external target {target}/{object}: deleted, and held by example.com/other")).await;
    // When lb-linker has reconciled `later`, it has also reconciled `web`.
    balancer(&cluster, &namespace, "later").await;
    wait_for_finalizer(&cluster, &namespace, "later", true).await;
    wait_for_finalizer(&cluster, &namespace, "web", true).await;
    cluster.patch_service(&target, &object, json!({"metadata": {"finalizers": []}})).await;
    wait_until_deleted(&cluster, &target, &object).await;
    wait_until_deleted(&cluster, &namespace, "web").await;
}

#[tokio::test]
async fn retained_or_tombstoned_target_delays_no_service_deletion() {
    let (plane, cluster, target) = cluster_with_target().await;
    for (on_delete, left) in [("retain", "a.example.com"), ("tombstone", "deleted.lb.internal")] {
        let namespace = cluster.create_namespace("guarded").await;
        grant_optional(plane, "finalizer", &namespace);
        let args = ["--upstream", "none", "--finalizer", "--watch-namespaces", &namespace];
        let _linker = Linker::in_cluster(plane, &target, &[&args[..], &["--on-delete", on_delete]].concat());
        balancer(&cluster, &namespace, "web").await;
        wait_for_finalizer(&cluster, &namespace, "web", true).await;
        wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
        cluster.delete_service(&namespace, "web").await;
        wait_until_deleted(&cluster, &namespace, "web").await;
        wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), left).await;
    }
}

#[tokio::test]
async fn missing_finalizer_permission_is_logged_once() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("unguarded").await;
    let args = ["--upstream", "none", "--finalizer", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    for name in ["a", "b", "c"] {
        balancer(&cluster, &namespace, name).await;
        wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "a.example.com")
            .await;
    }
    linker.line("deploy/finalizer/").await;
    grant_optional(plane, "finalizer", &namespace);
    for name in ["a", "b", "c"] {
        wait_for_finalizer(&cluster, &namespace, name, true).await;
    }
    assert_eq!(linker.logged("deploy/finalizer/"), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn service_deletion_isnt_delayed_without_the_flag() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("plain").await;
    let mut linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    balancer(&cluster, &namespace, "web").await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
    linker.kill();
    assert_eq!(finalizers(&cluster, &namespace, "web").await.unwrap(), Vec::<String>::new());
    plane.kubectl(&["-n", &namespace, "delete", "service", "web", "--timeout=10s"]);
    assert!(cluster.get_service(&namespace, "web").await.is_none());
}
