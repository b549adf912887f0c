//! ExternalName Services that follow a load balancer by annotation.

use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::linker::Linker;
use crate::harness::{apply_deploy, cluster_with_target, deploy, eventually};

/// Makes an ExternalName Service that follows `source`.
async fn follower(cluster: &Cluster, namespace: &str, name: &str, source: &str) {
    let service = json!({
        "metadata": {"name": name, "annotations": {"linker.hsj.com/source": source}, "labels": {"team": "shop"}},
        "spec": {"type": "ExternalName", "externalName": "by-hand.example.com"},
    });
    cluster.create_service(namespace, service).await;
}

async fn points_at(cluster: &Cluster, namespace: &str, name: &str, host: &str) {
    let look = || async {
        let spec = cluster.get_service(namespace, name).await?.spec?;
        (spec.external_name.as_deref() == Some(host)).then_some(())
    };
    eventually(&format!("{namespace}/{name} → {host}"), look).await;
}

/// Gives the rights of `deploy/source/` in these namespaces alone, by RoleBindings, as its comment says.
fn grant_source(plane: &ControlPlane, namespaces: &[&str]) {
    let rights = std::fs::read_to_string(deploy().join("source/rbac.yaml")).unwrap();
    let role = rights.split("---").next().unwrap();
    plane.kubectl_stdin(&["apply", "-f", "-"], role);
    for namespace in namespaces {
        plane.kubectl(&[
            "-n",
            namespace,
            "create",
            "rolebinding",
            "lb-linker-source",
            "--clusterrole=lb-linker-source",
            "--serviceaccount=lb-linker:lb-linker",
        ]);
    }
}

#[tokio::test]
async fn a_service_with_the_annotation_follows_a_link_of_its_namespace_and_others_that_allow_it() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    grant_source(plane, &[&own, &other]);
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    cluster.create_load_balancer(&own, "web").await;
    follower(&cluster, &own, "db", "web").await;
    follower(&cluster, &other, "db", &format!("{own}/web")).await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    points_at(&cluster, &own, "db", "a.example.com").await;
    linker.line(&format!("Service {other}/db: it may not follow {own}/web")).await;
    points_at(&cluster, &other, "db", "by-hand.example.com").await;

    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": format!("x, {other}")}}});
    cluster.patch_service(&own, "web", allow).await;
    points_at(&cluster, &other, "db", "a.example.com").await;
    cluster.set_ingress(&own, "web", &[Ingress::Ip("2001:db8::1"), Ingress::Ip("192.0.2.1")]).await;
    for namespace in [&own, &other] {
        points_at(&cluster, namespace, "db", "192.0.2.1").await;
        let service = cluster.get_service(namespace, "db").await.unwrap();
        assert_eq!(service.metadata.labels.unwrap().len(), 1, "labels aren't ours to write");
        assert_eq!(service.spec.unwrap().type_.as_deref(), Some("ExternalName"));
    }
    // What somebody writes by hand is repaired, and an IPv6 address alone isn't written.
    cluster.patch_service(&own, "db", json!({"spec": {"externalName": "wrong.example"}})).await;
    points_at(&cluster, &own, "db", "192.0.2.1").await;
    cluster.set_ingress(&own, "web", &[Ingress::Ip("2001:db8::1")]).await;
    linker.line(&format!("Service {own}/db: {own}/web has no hostname and no IPv4 address")).await;

    // The load balancer goes, and what follows it stays.
    cluster.delete_service(&own, "web").await;
    linker.line(&format!("link {own}/web: forgotten")).await;
    points_at(&cluster, &own, "db", "192.0.2.1").await;
}

#[tokio::test]
async fn what_follows_a_tombstone_points_at_what_doesnt_exist() {
    let (plane, cluster, target) = cluster_with_target().await;
    let own = cluster.create_namespace("own").await;
    grant_source(plane, &[&own]);
    let _linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--on-delete", "tombstone"]);
    cluster.create_load_balancer(&own, "web").await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    follower(&cluster, &own, "db", "web").await;
    points_at(&cluster, &own, "db", "a.example.com").await;
    cluster.delete_service(&own, "web").await;
    points_at(&cluster, &own, "db", "deleted.lb.internal").await;
}

#[tokio::test]
async fn the_annotation_wins_over_adoption() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    let object = format!("web-{own}-ext");
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    for (namespace, host) in [(&own, "own.example.com"), (&other, "other.example.com")] {
        cluster.create_load_balancer(namespace, "web").await;
        let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "*"}}});
        cluster.patch_service(namespace, "web", allow).await;
        if namespace == &own {
            follower(&cluster, &target, &object, &format!("{other}/web")).await;
        }
        cluster.set_ingress(namespace, "web", &[Ingress::Hostname(host)]).await;
    }
    points_at(&cluster, &target, &object, "other.example.com").await;
    let line =
        linker.line(&format!("external target {target}/{object} of link {own}/web is left alone")).await;
    assert!(line.contains("follows what its annotation"), "{line}");
}

#[tokio::test]
async fn without_the_right_to_write_the_file_that_grants_it_is_named_once() {
    // A cluster of its own: every lb-linker in it misses the right.
    let plane = &ControlPlane::start(Options::default());
    apply_deploy(plane);
    let cluster = plane.cluster().await;
    let own = cluster.create_namespace("own").await;
    let linker = Linker::in_cluster(plane, "external-targets", &["--upstream", "none"]);
    cluster.create_load_balancer(&own, "web").await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    for i in 0..5 {
        follower(&cluster, &own, &format!("db-{i}"), "web").await;
    }
    linker.line(&format!("can't patch Services in namespace {own}")).await;
    grant_source(plane, &[&own]);
    for i in 0..5 {
        points_at(&cluster, &own, &format!("db-{i}"), "a.example.com").await;
    }
    assert_eq!(linker.logged("deploy/source/"), 1, "{:#?}", linker.log());
    linker.line("Services that follow a load balancer can be written again").await;
}
