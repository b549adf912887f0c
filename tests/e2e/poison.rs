//! One object that can't be decoded, or brings a defect of lb-linker to light, costs no other anything.

use std::sync::Arc;

use serde_json::json;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::proxy::{MeddledApi, Meddling};
use crate::story::external_target;

#[tokio::test]
async fn a_reconcile_that_panics_stops_no_other_and_dns_doesnt_notice() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("panic").await;
    let poisoned = format!("{namespace}/poisoned");
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let linker = Linker::start_with(
        &[("LB_LINKER_TEST_PANIC", &poisoned)],
        ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target, "--upstream", "none"],
    );
    for name in ["before", "poisoned", "zafter"] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
    }
    for name in ["before", "zafter"] {
        let object = format!("{name}-{namespace}-ext");
        external_target(&cluster, &target, &object, &format!("{name}.example.com")).await;
    }
    linker.line(&format!("link {poisoned}: its reconciling has panicked, a defect of lb-linker")).await;
    let question = format!("poisoned.{namespace}.lb.internal. CNAME");
    assert_eq!(short(linker.dns, &question).await, "poisoned.example.com.");
    cluster.set_ingress(&namespace, "poisoned", &[Ingress::Hostname("new.example.com")]).await;
    cluster.set_ingress(&namespace, "before", &[Ingress::Hostname("new.example.com")]).await;
    answers(linker.dns, &question, "new.example.com.").await;
    external_target(&cluster, &target, &format!("before-{namespace}-ext"), "new.example.com").await;
    assert!(cluster.get_service(&target, &format!("poisoned-{namespace}-ext")).await.is_none());
    let restarts = "lb_linker_sync_restarts_total{task=\"the reconciler\"}";
    assert_eq!(linker.metric(restarts), None, "the task itself went on");
}

/// The port that the poisoned Service has, and what is made of it on its way: as long, and no port at all.
const PORT: (&[u8], &[u8]) = (b"\"port\":54321", b"\"port\":94321");

#[tokio::test]
async fn a_service_that_cant_be_decoded_stays_as_it_was_and_stops_no_other() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("garbled").await;
    let api = MeddledApi::start(plane, Arc::new(|_| Meddling::Garble(PORT.0, PORT.1))).await;
    for name in ["good", "bad"] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
    }
    let linker = Linker::start([
        "--kubeconfig",
        api.kubeconfig(),
        "--target-namespace",
        &target,
        "--watch-namespaces",
        &namespace,
        "--upstream",
        "none",
    ]);
    for name in ["good", "bad"] {
        let object = format!("{name}-{namespace}-ext");
        external_target(&cluster, &target, &object, &format!("{name}.example.com")).await;
    }
    // From here on nobody can read it; what it says now isn't known.
    let ports = json!({"spec": {"ports": [{"port": 54321}]}});
    cluster.patch_service(&namespace, "bad", ports).await;
    linker.line(&format!("Service {namespace}/bad: it can't be read and counts as it was")).await;
    cluster.set_ingress(&namespace, "bad", &[Ingress::Hostname("unread.example.com")]).await;
    cluster.set_ingress(&namespace, "good", &[Ingress::Hostname("new.example.com")]).await;
    external_target(&cluster, &target, &format!("good-{namespace}-ext"), "new.example.com").await;
    external_target(&cluster, &target, &format!("bad-{namespace}-ext"), "bad.example.com").await;
    assert_eq!(short(linker.dns, &format!("bad.{namespace}.lb.internal. CNAME")).await, "bad.example.com.");
    assert_eq!(short(linker.dns, &format!("good.{namespace}.lb.internal. CNAME")).await, "new.example.com.");
}
