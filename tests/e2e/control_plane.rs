//! Tests of the test control plane.

use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use nix::sys::signal::Signal;

use crate::harness::clients::client;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::programs::programs;
use crate::harness::{LINKER, permission};

#[tokio::test]
async fn load_balancer_gets_an_ingress_and_is_deleted() {
    let cluster = ControlPlane::shared().cluster().await;
    let namespace = cluster.create_namespace("smoke").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.patch_service(&namespace, "web", serde_json::json!({"metadata": {"labels": {"a": "b"}}})).await;

    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example"), Ingress::Ip("192.0.2.1")]).await;
    let service = cluster.get_service(&namespace, "web").await.unwrap();
    let ingress = service.status.unwrap().load_balancer.unwrap().ingress.unwrap();
    assert_eq!(ingress[0].hostname.as_deref(), Some("a.example"));
    assert_eq!(ingress[1].ip.as_deref(), Some("192.0.2.1"));

    let service = cluster.set_ingress(&namespace, "web", &[]).await;
    assert_eq!(service.status.unwrap().load_balancer.unwrap().ingress, None);
    cluster.delete_service(&namespace, "web").await;
    assert!(cluster.get_service(&namespace, "web").await.is_none());
}

#[tokio::test]
async fn service_account_has_only_its_permissions() {
    let plane = ControlPlane::shared();
    let namespace = plane.cluster().await.create_namespace("smoke").await;
    plane.kubectl(&["create", "serviceaccount", "reader", "-n", &namespace]);
    plane.kubectl(&["create", "role", "reader", "-n", &namespace, "--verb=get", "--resource=services"]);
    let account = format!("--serviceaccount={namespace}:reader");
    plane.kubectl(&["create", "rolebinding", "reader", "-n", &namespace, "--role=reader", &account]);

    let user = format!("--as=system:serviceaccount:{namespace}:reader");
    permission(plane, true, &["get", "services", "-n", &namespace, &user]).await;
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "reader");
    let reader = client(&kubeconfig).await;
    assert!(Cluster::new(reader.clone()).get_service(&namespace, "none").await.is_none());
    let secrets = Api::<Secret>::namespaced(reader, &namespace).list(&ListParams::default()).await;
    assert!(matches!(secrets, Err(kube::Error::Api(status)) if status.code == 403));
}

#[test]
fn kubectl_applies_manifests_and_reports_errors() {
    let plane = ControlPlane::shared();
    assert!(plane.kubectl(&["version"]).contains("Server Version: v1."));
    let applied = plane.kubectl_stdin(
        &["apply", "-f", "-"],
        r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "applied"}}"#,
    );
    assert_eq!(applied, "namespace/applied created\n");
    let error = plane.try_kubectl(&["get", "service", "none", "-n", "applied"]).unwrap_err();
    assert!(error.contains("NotFound"), "{error}");
}

#[test]
fn coredns_is_a_1_14_release() {
    let output = Command::new(&programs().coredns).arg("-version").output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap();
    assert!(version.starts_with("CoreDNS-1.14."), "{version}");
}

#[tokio::test]
async fn api_server_restarts_with_its_data() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let namespace = cluster.create_namespace("smoke").await;
    cluster.create_load_balancer(&namespace, "web").await;

    plane.stop_apiserver();
    assert!(cluster.services(&namespace).get_opt("web").await.is_err());
    plane.start_apiserver();
    assert!(cluster.get_service(&namespace, "web").await.is_some());

    plane.kill_apiserver();
    plane.start_apiserver();
    assert!(cluster.get_service(&namespace, "web").await.is_some());

    plane.signal_apiserver(Signal::SIGSTOP);
    let read = tokio::time::timeout(Duration::from_millis(500), cluster.get_service(&namespace, "web")).await;
    assert!(read.is_err());
    plane.signal_apiserver(Signal::SIGCONT);
    assert!(cluster.get_service(&namespace, "web").await.is_some());
}

#[tokio::test]
async fn lent_control_plane_is_as_new() {
    for _ in 0..3 {
        let plane = ControlPlane::lend();
        assert!(plane.audit_events().is_empty());
        let listing = ["list", "services", "-A", LINKER];
        plane.kubectl(&[&["auth", "can-i"], &listing[..]].concat());
        let cluster = plane.cluster().await;
        assert!(cluster.get_service("lb-linker", "lb-linker").await.is_some());

        plane.create_namespace("shop");
        cluster.create_load_balancer("shop", "web").await;
        cluster.delete_service("lb-linker", "lb-linker").await;
        plane.kubectl(&["delete", "clusterrolebinding", "lb-linker"]);
        permission(&plane, false, &listing).await;
    }
}

#[tokio::test]
async fn audit_log_contains_requests_and_users() {
    let plane = ControlPlane::shared();
    let cluster = plane.cluster().await;
    let namespace = cluster.create_namespace("smoke").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    plane.kubectl(&["get", "service", "web", "-n", &namespace]);
    // The API server may log a request shortly after its answer.
    let mut events = Vec::new();
    for _ in 0..100 {
        events = plane.audit_events_with(&namespace);
        events.retain(|event| event.resource == "services" && event.namespace == namespace);
        if events.len() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen: Vec<_> =
        events.iter().map(|event| (&*event.verb, &*event.subresource, &*event.name, event.code)).collect();
    assert_eq!(seen, [("create", "", "web", 201), ("patch", "status", "web", 200), ("get", "", "web", 200)]);
    assert_eq!(events.iter().filter(|event| event.is_write()).count(), 2);
    assert_eq!(events[0].api_group, "");
    assert!(
        events[0].uri.starts_with(&format!("/api/v1/namespaces/{namespace}/services")),
        "{}",
        events[0].uri
    );
    let patch = &events[1];
    assert_eq!(patch.user, "admin");
    assert_eq!(patch.request.as_ref().unwrap()["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    assert!(events[2].user_agent.starts_with("kubectl/v1."), "{}", events[2].user_agent);
    assert!(events[2].request.is_none());
}
