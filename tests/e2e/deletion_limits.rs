//! Limits that keep a mistake from removing everything at once.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually};
use crate::links::{links_of, text};
use crate::recreation::wait_for_external_target;

async fn balancers(cluster: &Cluster, namespace: &str, number: usize) {
    futures::stream::iter(0..number)
        .for_each_concurrent(8, |i| async move {
            let name = format!("svc-{i}");
            cluster.create_load_balancer(namespace, &name).await;
            cluster.set_ingress(namespace, &name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
        })
        .await;
}

async fn external_targets(cluster: &Cluster, target: &str) -> usize {
    cluster.services(target).list(&ListParams::default()).await.unwrap().items.len()
}

async fn wait_for_external_targets(cluster: &Cluster, target: &str, number: usize) {
    eventually(&format!("{number} external targets"), || async {
        (external_targets(cluster, target).await == number).then_some(())
    })
    .await;
}

/// Returns flags that allow the removal of three external targets of a namespace, without delay.
fn three_removals(namespace: &str) -> [&str; 8] {
    ["--upstream", "none", "--watch-namespaces", namespace, "--delete-delay", "0s", "--max-deletes", "3"]
}

#[tokio::test]
async fn removals_are_limited_by_max_deletes() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("brake").await;
    balancers(&cluster, &namespace, 8).await;
    let args = three_removals(&namespace);
    let linker = Linker::in_cluster(plane, &target, &args);
    wait_for_external_targets(&cluster, &target, 8).await;
    for i in 0..8 {
        cluster.delete_service(&namespace, &format!("svc-{i}")).await;
    }
    wait_for_external_targets(&cluster, &target, 5).await;
    eventually("held removals", || async {
        (linker.metric("lb_linker_deletes_held") == Some(5.0)).then_some(())
    })
    .await;
    let line = linker.line("no more external targets are removed for now").await;
    assert!(line.contains("--max-deletes allows 3 in ten minutes"), "{line}");
    assert_eq!(linker.logged("no more external targets are removed"), 1);
    let notice = text(&links_of(linker.admin().await, &[]).stderr);
    assert!(notice.contains("whose removal is held back, because they are many: 5; "), "{notice}");
    let reasons = || async {
        let reasons = plane.event_reasons(&namespace);
        (reasons.iter().filter(|reason| *reason == "RemovalHeld").count() >= 5).then_some(())
    };
    eventually("the Events", reasons).await;
    assert_eq!(external_targets(&cluster, &target).await, 5);
    // When a deleted load balancer is recreated, its DNS name and its external target stay, and one removal fewer is
    // held back.
    let left = cluster.services(&target).list(&ListParams::default()).await.unwrap();
    let kept = left.items[0].metadata.labels.clone().unwrap()["original-service-name"].clone();
    let question = format!("{kept}.{namespace}.lb.internal. CNAME");
    assert_eq!(short(linker.dns, &question).await, "No Error");
    cluster.create_load_balancer(&namespace, &kept).await;
    cluster.set_ingress(&namespace, &kept, &[Ingress::Hostname("back.example.com")]).await;
    answers(linker.dns, &question, "back.example.com.").await;
    eventually("one held removal fewer", || async {
        (linker.metric("lb_linker_deletes_held") == Some(4.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn removals_in_a_namespace_hold_back_none_in_another_one() {
    let (plane, cluster, target) = cluster_with_target().await;
    let busy = cluster.create_namespace("busy").await;
    let quiet = cluster.create_namespace("quiet").await;
    cluster.create_load_balancer(&busy, "web").await;
    balancers(&cluster, &quiet, 3).await;
    let namespaces = format!("{busy},{quiet}");
    let linker = Linker::in_cluster(plane, &target, &three_removals(&namespaces));
    let set_managed = |managed: Value| {
        let patch = json!({"metadata": {"annotations": {"linker.hsj.com/managed": managed}}});
        cluster.patch_service(&busy, "web", patch)
    };
    // Each opt-out removes the external target of `web` once more.
    for round in 0..4 {
        set_managed(Value::Null).await;
        cluster.set_ingress(&busy, "web", &[Ingress::Hostname("web.example.com")]).await;
        wait_for_external_targets(&cluster, &target, 4).await;
        set_managed(json!("false")).await;
        if round < 3 {
            wait_for_external_targets(&cluster, &target, 3).await;
        }
    }
    let held = |number| {
        let linker = &linker;
        eventually("held removals", move || async move {
            (linker.metric("lb_linker_deletes_held") == Some(number)).then_some(())
        })
    };
    held(1.0).await;
    cluster.delete_service(&quiet, "svc-0").await;
    wait_for_external_targets(&cluster, &target, 3).await;
    // For `quiet`, the three removals in `busy` count as two (half of the limit, rounded up). Together with the removal
    // of svc-0 the limit is reached.
    cluster.delete_service(&quiet, "svc-1").await;
    held(2.0).await;
    assert_eq!(external_targets(&cluster, &target).await, 3);
}

#[tokio::test]
async fn repeated_restarts_dont_exceed_max_deletes() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("brake").await;
    // Fewer than half of the external targets are removed: at a start that would remove most of them, lb-linker first
    // looks up the Services.
    balancers(&cluster, &namespace, 20).await;
    let args = three_removals(&namespace);
    let mut linker = Linker::in_cluster(plane, &target, &args);
    wait_for_external_targets(&cluster, &target, 20).await;
    for i in 0..8 {
        cluster.delete_service(&namespace, &format!("svc-{i}")).await;
    }
    wait_for_external_targets(&cluster, &target, 17).await;
    for _ in 0..2 {
        linker.kill();
        linker = Linker::in_cluster(plane, &target, &args);
        eventually("held removals", || async {
            (linker.metric("lb_linker_deletes_held") == Some(5.0)).then_some(())
        })
        .await;
        assert_eq!(external_targets(&cluster, &target).await, 17);
    }
}

/// Creates a load balancer `web` with an external target for `a.example.com`, and returns the namespace and the
/// object's name.
async fn linked(cluster: &Cluster, target: &str) -> (String, String) {
    let namespace = cluster.create_namespace("recreated").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(cluster, target, &object, "a.example.com").await;
    (namespace, object)
}

async fn recreate(cluster: &Cluster, namespace: &str) {
    cluster.delete_service(namespace, "web").await;
    cluster.create_load_balancer(namespace, "web").await;
}

#[tokio::test]
async fn pending_service_loses_its_predecessors_external_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    // With a delay, a running lb-linker observes the new Service long before the delay ends.
    for (running, args) in [
        (false, ["--upstream", "none", "--delete-delay", "0s"]),
        (true, ["--upstream", "none", "--delete-delay", "3s"]),
    ] {
        let mut linker = Linker::in_cluster(plane, &target, &args);
        let (namespace, object) = linked(&cluster, &target).await;
        let uid = cluster.get_service(&target, &object).await.unwrap().metadata.uid;
        if !running {
            linker.kill();
        }
        recreate(&cluster, &namespace).await;
        if !running {
            linker = Linker::in_cluster(plane, &target, &args);
        }
        eventually("the end of its external target", || async {
            cluster.get_service(&target, &object).await.is_none().then_some(())
        })
        .await;
        linker.line(&format!("external target {target}/{object}: removed")).await;
        // If the Service counted as gone, its name wouldn't exist any more.
        let question = format!("web.{namespace}.lb.internal. CNAME");
        answers(linker.dns, &question, "No Error").await;
        // The new Service's own target gets a new external target.
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
        wait_for_external_target(&cluster, &target, &object, "b.example.com").await;
        answers(linker.dns, &question, "b.example.com.").await;
        assert_ne!(cluster.get_service(&target, &object).await.unwrap().metadata.uid, uid);
        assert!(linker.stop().success());
        cluster.delete_service(&namespace, "web").await;
    }
}

#[tokio::test]
async fn target_within_the_delay_keeps_the_external_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    for running in [false, true] {
        let args = ["--upstream", "none", "--delete-delay", "1h"];
        let mut linker = Linker::in_cluster(plane, &target, &args);
        let (namespace, object) = linked(&cluster, &target).await;
        let before = cluster.get_service(&target, &object).await.unwrap().metadata.uid;
        if !running {
            linker.kill();
        }
        recreate(&cluster, &namespace).await;
        if !running {
            linker = Linker::in_cluster(plane, &target, &args);
            linker.ready().await;
        }
        let question = format!("web.{namespace}.lb.internal. CNAME");
        answers(linker.dns, &question, "No Error").await;
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
        wait_for_external_target(&cluster, &target, &object, "b.example.com").await;
        assert_eq!(cluster.get_service(&target, &object).await.unwrap().metadata.uid, before);
        assert!(linker.stop().success());
        cluster.delete_service(&namespace, "web").await;
    }
}

#[tokio::test]
async fn tombstone_replaces_the_target_of_a_recreated_service() {
    let (plane, cluster, target) = cluster_with_target().await;
    let mut linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    let (namespace, object) = linked(&cluster, &target).await;
    linker.kill();
    recreate(&cluster, &namespace).await;
    let args = ["--upstream", "none", "--on-delete", "tombstone", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    wait_for_external_target(&cluster, &target, &object, "deleted.lb.internal").await;
    let question = format!("web.{namespace}.lb.internal. CNAME");
    answers(linker.dns, &question, "No Error").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "b.example.com").await;
}

async fn label(cluster: &Cluster, namespace: &str, names: impl Iterator<Item = usize>, value: Option<&str>) {
    for i in names {
        let patch = json!({"metadata": {"labels": {"tier": value}}});
        cluster.patch_service(namespace, &format!("svc-{i}"), patch).await;
    }
}

#[tokio::test]
async fn suspicious_list_is_ignored_until_a_second_list_agrees() {
    // A separate control plane, because the API server is restarted.
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    balancers(&cluster, "default", 15).await;
    label(&cluster, "default", 0..15, Some("web")).await;
    let args = ["--upstream", "none", "--delete-delay", "0s", "--max-deletes", "unlimited"];
    let args = [&args[..], &["--service-selector", "tier=web"]].concat();
    let mut linker = Linker::in_cluster(&plane, "external-targets", &args);
    wait_for_external_targets(&cluster, "external-targets", 15).await;

    // Remove the labels while lb-linker can't watch. A restarted API server has no history, so lb-linker has to list
    // next.
    plane.kill_apiserver();
    linker.line("the API server can't be reached").await;
    linker.signal(Signal::SIGSTOP);
    plane.start_apiserver();
    let cluster = plane.cluster().await;
    label(&cluster, "default", 0..12, None).await;
    plane.kill_apiserver();
    plane.start_apiserver();
    let cluster = plane.cluster().await;
    let continued = Instant::now();
    linker.signal(Signal::SIGCONT);
    let line = linker.line("12 of 15 load balancers are missing from a new list of the API server").await;
    assert!(line.contains("is ignored until a second list"), "{line}");
    for i in 0..15 {
        let question = format!("svc-{i}.default.lb.internal. CNAME");
        assert_eq!(short(linker.dns, &question).await, format!("svc-{i}.example.com."));
    }
    assert_eq!(external_targets(&cluster, "external-targets").await, 15);
    tokio::time::timeout(Duration::from_secs(60), async {
        while external_targets(&cluster, "external-targets").await != 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the targets are removed after a second list agrees");
    assert!(continued.elapsed() > Duration::from_secs(30), "nothing is removed before the second list");
}
