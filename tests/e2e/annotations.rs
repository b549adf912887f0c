//! DNS names that load balancers request by annotation, targets that the target policy denies, and the adoption of
//! ExternalName Services.

use std::time::Duration;

use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;

async fn request_hostnames(cluster: &Cluster, namespace: &str, name: &str, hostnames: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {"linker.hsj.com/hostname": hostnames}}});
    cluster.patch_service(namespace, name, patch).await;
}

async fn balancer(cluster: &Cluster, namespace: &str, name: &str, host: &str) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
}

#[tokio::test]
async fn load_balancer_has_the_dns_names_of_its_annotation() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("names").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    linker.ready().await;
    balancer(&cluster, &namespace, "web", "a.example.com").await;
    let zone = format!("{namespace}.lb.internal");
    request_hostnames(
        &cluster,
        &namespace,
        "web",
        Some(&format!("shop.{zone},*.apps.{zone},shop.example.com")),
    )
    .await;
    answers(linker.dns, &format!("shop.{zone}. CNAME"), "a.example.com.").await;
    answers(linker.dns, &format!("x.apps.{zone}. CNAME"), "a.example.com.").await;
    assert_eq!(short(linker.dns, &format!("apps.{zone}. CNAME")).await, "No Error");
    assert_eq!(short(linker.dns, &format!("y.{zone}. CNAME")).await, "Non-Existent Domain");
    let line = linker.line("\"shop.example.com\" isn't served").await;
    assert!(line.contains("it lies in none of lb-linker's zones"), "{line}");

    // The custom names follow a new target, and are removed with the annotation.
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    answers(linker.dns, &format!("shop.{zone}. CNAME"), "b.example.com.").await;
    request_hostnames(&cluster, &namespace, "web", None).await;
    answers(linker.dns, &format!("shop.{zone}. CNAME"), "Non-Existent Domain").await;
    assert_eq!(short(linker.dns, &format!("x.apps.{zone}. CNAME")).await, "Non-Existent Domain");
}

#[tokio::test]
async fn owner_keeps_its_custom_name_over_restarts() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("names").await;
    let other = cluster.create_namespace("names").await;
    let zone = format!("{namespace}.lb.internal");
    let both = format!("{namespace},{other}");
    let args = ["--upstream", "none", "--hostname-namespaces", "*", "--watch-namespaces", &both];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    balancer(&cluster, &namespace, "old", "old.example.com").await;
    balancer(&cluster, &namespace, "web", "web.example.com").await;
    // creationTimestamp has a resolution of 1 s.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    balancer(&cluster, &other, "young", "young.example.com").await;
    let wanted = format!("shop.{zone},web.{zone},old-{zone}");
    request_hostnames(&cluster, &other, "young", Some(&wanted)).await;
    answers(linker.dns, &format!("shop.{zone}. CNAME"), "young.example.com.").await;
    assert_eq!(short(linker.dns, &format!("web.{zone}. CNAME")).await, "web.example.com.");
    assert_eq!(short(linker.dns, &format!("old-{zone}. CNAME")).await, "old.example.com.");
    // The external target's annotation records the custom name, but not requested names that belong to other load
    // balancers.
    let object = format!("young-{other}-ext");
    let noted = |names: Option<&str>| {
        let (cluster, target, object) = (&cluster, &target, &object);
        let names = names.map(ToOwned::to_owned);
        eventually("the annotation of the external target", move || {
            let names = names.clone();
            async move {
                let service = cluster.get_service(target, object).await?;
                let noted = service.metadata.annotations.unwrap_or_default();
                (noted.get("linker.hsj.com/hostname") == names.as_ref()).then_some(())
            }
        })
    };
    linker.line(&format!("link {other}/young: it doesn't get DNS names that another object has")).await;
    noted(Some(&format!("shop.{zone}"))).await;
    // An older load balancer that requests the name later doesn't get it, before and after a restart.
    request_hostnames(&cluster, &namespace, "old", Some(&format!("shop.{zone}"))).await;
    eventually("two load balancers that lack a requested name", || async {
        (linker.metric("lb_linker_names_lost") == Some(2.0)).then_some(())
    })
    .await;
    for _ in 0..2 {
        assert_eq!(short(linker.dns, &format!("shop.{zone}. CNAME")).await, "young.example.com.");
        linker.stop();
        linker = Linker::in_cluster(plane, &target, &args);
        linker.ready().await;
    }
    // When the owner no longer requests the name, the other load balancer gets it.
    request_hostnames(&cluster, &other, "young", None).await;
    answers(linker.dns, &format!("shop.{zone}. CNAME"), "old.example.com.").await;
    noted(None).await;
}

#[tokio::test]
async fn unlisted_namespace_gets_names_in_its_own_domain_only() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (listed, plain) = (cluster.create_namespace("listed").await, cluster.create_namespace("plain").await);
    let args = ["--upstream", "none", "--hostname-namespaces", &listed];
    let args = [&args[..], &["--hostname-annotations", "coredns.io/hostname"]].concat();
    let linker = Linker::in_cluster(plane, &target, &args);
    balancer(&cluster, &plain, "web", "plain.example.com").await;
    request_hostnames(&cluster, &plain, "web", Some(&format!("x.{listed}.lb.internal"))).await;
    let line = linker.line(&format!("Service {plain}/web: the DNS name in annotation")).await;
    assert!(line.contains("--hostname-namespaces"), "{line}");
    balancer(&cluster, &listed, "web", "listed.example.com").await;
    let theirs =
        json!({"metadata": {"annotations": {"coredns.io/hostname": format!("{listed}-top.lb.internal")}}});
    cluster.patch_service(&listed, "web", theirs).await;
    answers(linker.dns, &format!("{listed}-top.lb.internal. CNAME"), "listed.example.com.").await;
    assert_eq!(short(linker.dns, &format!("x.{listed}.lb.internal. CNAME")).await, "Non-Existent Domain");
}

#[tokio::test]
async fn denied_target_leaves_the_previous_target_in_force() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("refused").await;
    let args = ["--upstream", "none", "--target-domains", "example.com", "--target-nets", "192.0.2.0/24"];
    // Without this flag, the metric would count the links of other tests, too.
    let args = [&args[..], &["--watch-namespaces", &namespace]].concat();
    let mut linker = Linker::in_cluster(plane, &target, &args);
    balancer(&cluster, &namespace, "web", "a.example.com").await;
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    let version = cluster.get_service(&target, &object).await.unwrap().metadata.resource_version;
    let question = format!("web.{namespace}.lb.internal. CNAME");
    for (ingress, why) in [
        (Ingress::Hostname("kubernetes.default.svc.cluster.local"), "the cluster's own domain"),
        (Ingress::Hostname("localhost"), "localhost would be the client's own host"),
        (Ingress::Hostname("intranet"), "a single label"),
        (Ingress::Hostname("web.other.lb.internal"), "lb-linker's own zone"),
        (Ingress::Hostname("evil.example"), "--target-domains"),
        (Ingress::Ip("127.0.0.1"), "loopback"),
        (Ingress::Ip("169.254.169.254"), "link-local"),
        (Ingress::Ip("198.51.100.1"), "--target-nets"),
    ] {
        cluster.set_ingress(&namespace, "web", &[ingress]).await;
        linker.line(why).await;
        assert_eq!(short(linker.dns, &question).await, "a.example.com.", "{why}");
        linker.counts("lb_linker_targets_refused", 1.0).await;
    }
    // A restart doesn't apply the denied target either.
    linker.stop();
    linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    assert_eq!(short(linker.dns, &question).await, "a.example.com.");
    let after = cluster.get_service(&target, &object).await.unwrap();
    assert_eq!(after.metadata.resource_version, version, "nothing was written");
    let reasons = plane.event_reasons(&namespace);
    assert!(reasons.iter().any(|reason| reason == "TargetRefused"), "{reasons:?}");
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.7")]).await;
    answers(linker.dns, &format!("web.{namespace}.lb.internal. A"), "192.0.2.7").await;
    assert_eq!(linker.metric("lb_linker_targets_refused"), Some(0.0));
}

#[tokio::test]
async fn manual_external_name_service_is_adopted_in_place() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("adopted").await;
    let object = format!("web-{namespace}-ext");
    let made = cluster
        .create_service(
            &target,
            json!({"metadata": {"name": object, "labels": {"team": "shop"}},
                "spec": {"type": "ExternalName", "externalName": "by-hand.example.com"}}),
        )
        .await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    balancer(&cluster, &namespace, "web", "a.example.com").await;
    let adopted = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    assert_eq!(adopted.metadata.uid, made.metadata.uid);
    assert_eq!(adopted.metadata.labels.unwrap()["team"], "shop");
    linker.line(&format!("external target {target}/{object}: adopted → a.example.com")).await;
    let reason =
        || async { plane.event_reasons(&namespace).iter().any(|reason| reason == "Adopted").then_some(()) };
    eventually("the Event", reason).await;

    // lb-linker still owns the Service after its label `managed-by` was removed.
    let stripped = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    cluster.patch_service(&target, &object, stripped).await;
    eventually("the label", || async {
        let labels = cluster.get_service(&target, &object).await?.metadata.labels?;
        labels.contains_key("app.kubernetes.io/managed-by").then_some(())
    })
    .await;
    cluster.delete_service(&namespace, "web").await;
    eventually("the deletion of the external target", || async {
        cluster.get_service(&target, &object).await.is_none().then_some(())
    })
    .await;
}
