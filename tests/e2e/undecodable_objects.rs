//! A Service that can't be decoded keeps its last state and doesn't block other Services.

use std::sync::Arc;

use serde_json::json;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::dns::short;
use crate::harness::linker::Linker;
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::recreation::wait_for_external_target;

/// The port of the undecodable Service, and the invalid port of the same length with which the proxy replaces it.
const GARBLED_PORT: (&[u8], &[u8]) = (b"\"port\":54321", b"\"port\":94321");

#[tokio::test]
async fn undecodable_service_keeps_its_state_and_blocks_nothing() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("garbled").await;
    let api = FaultyApi::start(plane, Arc::new(|_| ApiFault::Garble(GARBLED_PORT.0, GARBLED_PORT.1))).await;
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
        wait_for_external_target(&cluster, &target, &object, &format!("{name}.example.com")).await;
    }
    // From here on lb-linker can't decode the Service and doesn't know its current state.
    let ports = json!({"spec": {"ports": [{"port": 54321}]}});
    cluster.patch_service(&namespace, "bad", ports).await;
    linker.line(&format!("Service {namespace}/bad: it can't be read and counts as it was")).await;
    cluster.set_ingress(&namespace, "bad", &[Ingress::Hostname("unread.example.com")]).await;
    cluster.set_ingress(&namespace, "good", &[Ingress::Hostname("new.example.com")]).await;
    wait_for_external_target(&cluster, &target, &format!("good-{namespace}-ext"), "new.example.com").await;
    wait_for_external_target(&cluster, &target, &format!("bad-{namespace}-ext"), "bad.example.com").await;
    assert_eq!(short(linker.dns, &format!("bad.{namespace}.lb.internal. CNAME")).await, "bad.example.com.");
    assert_eq!(short(linker.dns, &format!("good.{namespace}.lb.internal. CNAME")).await, "new.example.com.");
}
