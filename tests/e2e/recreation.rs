//! The main use case: a load balancer is deleted and recreated with another hostname, and its stable name follows.

use std::path::Path;

use k8s_openapi::api::core::v1::Service;
use kube::api::DeleteParams;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{CoreDns, answers, ask_udp, query, short};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually};

const A: &str = "default-my-sample-lb-4-fb5d0-106068410-da3dbf030d4a.kr.lb.example-cloud.com";
const B: &str = "default-my-sample-lb-7-0c4e1-120331176-9b0a1d0f2c3e.kr.lb.example-cloud.com";

/// Waits until the external target exists and points at `host`.
pub async fn wait_for_external_target(cluster: &Cluster, namespace: &str, name: &str, host: &str) -> Service {
    let look = || async {
        let service = cluster.get_service(namespace, name).await?;
        let spec = service.spec.as_ref()?;
        (spec.external_name.as_deref() == Some(host)).then(|| service.clone())
    };
    eventually(&format!("{namespace}/{name} → {host}"), look).await
}

#[tokio::test]
async fn name_and_object_follow_a_recreated_load_balancer() {
    // A separate cluster, because the test uses the namespaces `default` and `external-targets`.
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let upstream = CoreDns::cloud().await;
    cluster.create_load_balancer("default", "before").await;
    cluster.set_ingress("default", "before", &[Ingress::Hostname("a.example.com")]).await;

    let upstream = upstream.address.to_string();
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", &upstream]);
    linker.ready().await;

    // A load balancer that existed before lb-linker started is picked up.
    wait_for_external_target(&cluster, "external-targets", "before-default-ext", "a.example.com").await;
    answers(linker.dns, "before-default.lb.internal. A", "a.example.com. 192.0.2.10").await;

    cluster.create_load_balancer("default", "my-sample-lb").await;
    cluster.set_ingress("default", "my-sample-lb", &[Ingress::Hostname(A)]).await;
    let first = wait_for_external_target(&cluster, "external-targets", "my-sample-lb-default-ext", A).await;
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", &format!("{A}.")).await;
    answers(linker.dns, "my-sample-lb.default.lb.internal. CNAME", &format!("{A}.")).await;
    let labels = first.metadata.labels.unwrap();
    assert_eq!(labels["app.kubernetes.io/managed-by"], "lb-linker-operator");
    assert_eq!(labels["original-service-name"], "my-sample-lb");
    assert_eq!(labels["original-service-namespace"], "default");

    // my-sample-lb is deleted and recreated with hostname B.
    cluster.delete_service("default", "my-sample-lb").await;
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", "No Error").await;
    cluster.create_load_balancer("default", "my-sample-lb").await;
    cluster.set_ingress("default", "my-sample-lb", &[Ingress::Hostname(B)]).await;
    let second = wait_for_external_target(&cluster, "external-targets", "my-sample-lb-default-ext", B).await;
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", &format!("{B}.")).await;
    answers(linker.dns, "my-sample-lb.default.lb.internal. CNAME", &format!("{B}.")).await;
    assert_eq!(first.metadata.uid, second.metadata.uid, "the object must be the same one");

    plane.create_namespace("elk");
    cluster.create_load_balancer("elk", "kibana").await;
    cluster.set_ingress("elk", "kibana", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, "external-targets", "kibana-elk-ext", "b.example.com").await;
    answers(linker.dns, "kibana-elk.lb.internal. AAAA", "b.example.com. 2001:db8::20").await;
}

#[tokio::test]
async fn recreated_load_balancer_is_followed_in_manifests() {
    let manifests = tempfile::tempdir().unwrap();
    let output = tempfile::tempdir().unwrap();
    let upstream = CoreDns::cloud().await;
    write(manifests.path(), "before", "default", "a.example.com");
    let linker = Linker::start([
        "--manifests",
        manifests.path().to_str().unwrap(),
        "--output",
        output.path().to_str().unwrap(),
        "--upstream",
        &upstream.address.to_string(),
    ]);
    linker.ready().await;
    wait_for_file(output.path(), "before-default-ext", Some("a.example.com")).await;
    answers(linker.dns, "before-default.lb.internal. A", "a.example.com. 192.0.2.10").await;

    write(manifests.path(), "my-sample-lb", "default", A);
    wait_for_file(output.path(), "my-sample-lb-default-ext", Some(A)).await;
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", &format!("{A}.")).await;

    std::fs::remove_file(manifests.path().join("my-sample-lb.yaml")).unwrap();
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", "No Error").await;
    wait_for_file(output.path(), "my-sample-lb-default-ext", Some(A)).await;
    write(manifests.path(), "my-sample-lb", "default", B);
    wait_for_file(output.path(), "my-sample-lb-default-ext", Some(B)).await;
    answers(linker.dns, "my-sample-lb-default.lb.internal. CNAME", &format!("{B}.")).await;

    write(manifests.path(), "kibana", "elk", "b.example.com");
    wait_for_file(output.path(), "kibana-elk-ext", Some("b.example.com")).await;
    answers(linker.dns, "kibana-elk.lb.internal. AAAA", "b.example.com. 2001:db8::20").await;
}

#[tokio::test]
async fn external_target_and_name_are_removed_after_the_delay() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("delay").await;
    let question = format!("web-{namespace}.lb.internal. CNAME");
    let object = format!("web-{namespace}-ext");
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "12s"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;

    cluster.delete_service(&namespace, "web").await;
    answers(linker.dns, &question, "No Error").await;
    assert!(
        cluster.get_service(&target, &object).await.is_some(),
        "the external target stays until the delay ends"
    );
    answers(linker.dns, &question, "Non-Existent Domain").await;
    assert!(
        cluster.get_service(&target, &object).await.is_none(),
        "the name outlives the object, never the reverse"
    );
}

#[tokio::test]
async fn service_deleted_while_lb_linker_is_down_is_cleaned_up() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("away").await;
    let object = format!("web-{namespace}-ext");
    let args = ["--upstream", "none", "--delete-delay", "0s"];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    linker.kill();
    cluster.delete_service(&namespace, "web").await;
    let _linker = Linker::in_cluster(plane, &target, &args);
    eventually("the removal of the external target", || async {
        cluster.get_service(&target, &object).await.is_none().then_some(())
    })
    .await;
}

fn write(directory: &Path, name: &str, namespace: &str, host: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\n\
         spec:\n  type: LoadBalancer\nstatus:\n  loadBalancer:\n    ingress:\n    - hostname: {host}\n"
    );
    std::fs::write(directory.join(format!("{name}.yaml")), text).unwrap();
}

async fn wait_for_file(directory: &Path, name: &str, host: Option<&str>) {
    let path = directory.join(format!("{name}.yaml"));
    let look = || async {
        let text = std::fs::read_to_string(&path).ok();
        let found = text.as_deref().and_then(|text| text.split_once("externalName: ")?.1.lines().next());
        (found == host).then_some(())
    };
    eventually(&format!("{} → {host:?}", path.display()), look).await;
}

#[tokio::test]
async fn owner_keeps_its_name_through_recreation_and_restart() {
    let (plane, cluster, target) = cluster_with_target().await;
    // Service x-y in namespace z and Service x in namespace y-z have the same default name x-y-z-ext.
    let z = cluster.create_namespace("z").await;
    let y_z = format!("y-{z}");
    plane.create_namespace(&y_z);
    let args = ["--upstream", "none"];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    let shared = format!("x-y-{z}-ext");
    let question = format!("x-y-{z}.lb.internal. CNAME");
    cluster.create_load_balancer(&z, "x-y").await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("a.example.com")]).await;
    let first = wait_for_external_target(&cluster, &target, &shared, "a.example.com").await;
    cluster.create_load_balancer(&y_z, "x").await;
    cluster.set_ingress(&y_z, "x", &[Ingress::Hostname("b.example.com")]).await;
    let hashed = lb_linker::model::names::external_target_hashed(&y_z, "x", 8);
    wait_for_external_target(&cluster, &target, &hashed, "b.example.com").await;
    answers(linker.dns, &question, "a.example.com.").await;
    answers(linker.dns, &format!("x.{y_z}.lb.internal. CNAME"), "b.example.com.").await;

    // The owner of the name is recreated and is now younger than the other Service; lb-linker restarts in between.
    cluster.delete_service(&z, "x-y").await;
    answers(linker.dns, &question, "No Error").await;
    linker.kill();
    cluster.create_load_balancer(&z, "x-y").await;
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("c.example.com")]).await;
    let second = wait_for_external_target(&cluster, &target, &shared, "c.example.com").await;
    assert_eq!(first.metadata.uid, second.metadata.uid);
    answers(linker.dns, &question, "c.example.com.").await;
    wait_for_external_target(&cluster, &target, &hashed, "b.example.com").await;
}

#[tokio::test]
async fn hashed_name_stays_until_it_is_deleted_by_hand() {
    let (plane, cluster, target) = cluster_with_target().await;
    let z = cluster.create_namespace("z").await;
    let y_z = format!("y-{z}");
    plane.create_namespace(&y_z);
    let args = ["--upstream", "none", "--delete-delay", "0s"];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    let shared = format!("x-y-{z}-ext");
    let question = format!("x-y-{z}.lb.internal. CNAME");
    let hashed = lb_linker::model::names::external_target_hashed(&y_z, "x", 8);
    cluster.create_load_balancer(&z, "x-y").await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &shared, "a.example.com").await;
    cluster.create_load_balancer(&y_z, "x").await;
    cluster.set_ingress(&y_z, "x", &[Ingress::Hostname("b.example.com")]).await;
    let first = wait_for_external_target(&cluster, &target, &hashed, "b.example.com").await;
    let rival_goes = || async {
        cluster.delete_service(&z, "x-y").await;
        eventually("the removal of the rival's external target", || async {
            cluster.get_service(&target, &shared).await.is_none().then_some(())
        })
        .await;
    };

    rival_goes().await;
    answers(linker.dns, &question, "Non-Existent Domain").await;
    cluster.set_ingress(&y_z, "x", &[Ingress::Hostname("c.example.com")]).await;
    wait_for_external_target(&cluster, &target, &hashed, "c.example.com").await;
    linker.kill();
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    cluster.set_ingress(&y_z, "x", &[Ingress::Hostname("d.example.com")]).await;
    let second = wait_for_external_target(&cluster, &target, &hashed, "d.example.com").await;
    assert_eq!(first.metadata.uid, second.metadata.uid);

    // The rival comes back to its names, and goes again.
    cluster.create_load_balancer(&z, "x-y").await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("e.example.com")]).await;
    wait_for_external_target(&cluster, &target, &shared, "e.example.com").await;
    answers(linker.dns, &question, "e.example.com.").await;
    rival_goes().await;

    cluster.services(&target).delete(&hashed, &DeleteParams::default()).await.unwrap();
    wait_for_external_target(&cluster, &target, &shared, "d.example.com").await;
    answers(linker.dns, &question, "d.example.com.").await;
    assert!(cluster.get_service(&target, &hashed).await.is_none());
}

#[tokio::test]
async fn leftover_object_takes_no_name_from_a_service() {
    let (plane, cluster, target) = cluster_with_target().await;
    let z = cluster.create_namespace("z").await;
    let y_z = format!("y-{z}");
    plane.create_namespace(&y_z);
    let args = ["--upstream", "none", "--delete-delay", "1h"];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    let shared = format!("x-y-{z}-ext");
    let hashed = lb_linker::model::names::external_target_hashed(&y_z, "x", 8);
    cluster.create_load_balancer(&z, "x-y").await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("a.example.com")]).await;
    let before = wait_for_external_target(&cluster, &target, &shared, "a.example.com").await;
    cluster.create_load_balancer(&y_z, "x").await;
    cluster.set_ingress(&y_z, "x", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, &target, &hashed, "b.example.com").await;
    linker.kill();
    cluster.delete_service(&y_z, "x").await;
    // The status of the existing Service is empty, too.
    cluster.set_ingress(&z, "x-y", &[]).await;

    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    linker.line(&format!("link {y_z}/x: its Service is gone, its external target is still there")).await;
    answers(linker.dns, &format!("x-y-{z}.lb.internal. CNAME"), "a.example.com.").await;
    cluster.set_ingress(&z, "x-y", &[Ingress::Hostname("c.example.com")]).await;
    let after = wait_for_external_target(&cluster, &target, &shared, "c.example.com").await;
    assert_eq!(before.metadata.uid, after.metadata.uid);
    wait_for_external_target(&cluster, &target, &hashed, "b.example.com").await;
}

#[tokio::test]
async fn on_delete_retains_the_object_or_makes_a_tombstone() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("kept").await;
    let (object, question) = (format!("web-{namespace}-ext"), format!("web-{namespace}.lb.internal. CNAME"));
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--on-delete", "retain"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let first = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    cluster.delete_service(&namespace, "web").await;
    answers(linker.dns, &question, "No Error").await;
    let retained = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    assert_eq!(retained.metadata.resource_version, first.metadata.resource_version);
    drop(linker);

    let args = ["--upstream", "none", "--on-delete", "tombstone", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    wait_for_external_target(&cluster, &target, &object, "deleted.lb.internal").await;
    answers(linker.dns, &question, "No Error").await;
    answers(linker.dns, "deleted.lb.internal. A", "Non-Existent Domain").await;
    // The target of a tombstone isn't restored when the Service is recreated.
    drop(linker);
    cluster.create_load_balancer(&namespace, "web").await;
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    assert_eq!(short(linker.dns, &question).await, "No Error");
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    let last = wait_for_external_target(&cluster, &target, &object, "b.example.com").await;
    assert_eq!(last.metadata.uid, first.metadata.uid);
}

#[tokio::test]
async fn ttl_annotation_sets_the_ttl_of_the_records() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("ttl").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let question = query(&format!("web-{namespace}.lb.internal. CNAME"));
    let ttl = || async { ask_udp(linker.dns, &question).await.answers.first().map(|record| record.ttl) };
    eventually("the zone's TTL", || async { (ttl().await == Some(5)).then_some(()) }).await;
    let annotate = |value: &'static str| {
        let patch = serde_json::json!({"metadata": {"annotations": {"linker.hsj.com/ttl": value}}});
        cluster.patch_service(&namespace, "web", patch)
    };
    annotate("60").await;
    eventually("the TTL of the annotation", || async { (ttl().await == Some(60)).then_some(()) }).await;
    annotate("soon").await;
    let line = linker.line(&format!("Service {namespace}/web: annotation linker.hsj.com/ttl \"soon\"")).await;
    assert!(line.contains("not a number of seconds from 0 to 3600"), "{line}");
    // The warning is logged before the TTL changes.
    eventually("the zone's TTL again", || async { (ttl().await == Some(5)).then_some(()) }).await;
}
