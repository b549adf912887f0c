//! Many changes at once, restarts, and what they cost the API server.

use std::collections::BTreeMap;

use futures::StreamExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;

use crate::harness::audit::AuditEvent;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::{apply_deploy, eventually};

const SERVICES: usize = 200;
const TARGETS: &str = "external-targets";

/// Writes that lb-linker made, by verb, without its Events.
fn writes(plane: &ControlPlane) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    let by_linker =
        |event: &AuditEvent| event.user == "system:serviceaccount:lb-linker:lb-linker" && event.is_write();
    let events = plane.audit_events().into_iter().filter(|event| event.resource != "events");
    for event in events.filter(by_linker) {
        *count.entry(event.verb).or_default() += 1;
    }
    count
}

/// What the target namespace holds: each object's name, target and version.
async fn objects(cluster: &Cluster) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let list = cluster.services(TARGETS).list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .map(|service| {
            let target = service.spec.and_then(|spec| spec.external_name);
            (service.metadata.name.unwrap(), (target, service.metadata.resource_version))
        })
        .collect()
}

async fn point_all_at(cluster: &Cluster, namespace: &str, generation: &str) {
    futures::stream::iter(0..SERVICES)
        .for_each_concurrent(16, |i| async move {
            let host = format!("lb-{i}.{generation}.example.com");
            cluster.set_ingress(namespace, &format!("svc-{i}"), &[Ingress::Hostname(&host)]).await;
        })
        .await;
}

async fn converged(cluster: &Cluster, namespace: &str, generation: &str) {
    let right = |objects: &BTreeMap<String, (Option<String>, Option<String>)>| {
        (0..SERVICES).all(|i| {
            objects
                .get(&format!("svc-{i}-{namespace}-ext"))
                .is_some_and(|(target, _)| *target == Some(format!("lb-{i}.{generation}.example.com")))
        })
    };
    eventually("all external targets", || async { right(&objects(cluster).await).then_some(()) }).await;
}

#[tokio::test]
async fn two_hundred_changes_at_once_converge_with_one_write_each_and_restarts_write_nothing() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    let namespace = cluster.create_namespace("many").await;
    futures::stream::iter(0..SERVICES)
        .for_each_concurrent(16, |i| {
            let (cluster, namespace) = (&cluster, &namespace);
            async move { drop(cluster.create_load_balancer(namespace, &format!("svc-{i}")).await) }
        })
        .await;
    let args = ["--upstream", "none", "--delete-delay", "0s"];
    let mut linker = Linker::in_cluster(&plane, TARGETS, &args);
    linker.ready().await;

    point_all_at(&cluster, &namespace, "one").await;
    converged(&cluster, &namespace, "one").await;
    let expected = BTreeMap::from([("create".to_owned(), SERVICES)]);
    eventually("the audit log", || async { (writes(&plane) == expected).then_some(()) }).await;

    point_all_at(&cluster, &namespace, "two").await;
    converged(&cluster, &namespace, "two").await;
    for i in 0..SERVICES {
        let question = format!("svc-{i}-{namespace}.lb.internal. CNAME");
        assert_eq!(short(linker.dns, &question).await, format!("lb-{i}.two.example.com."));
    }
    let expected = BTreeMap::from([("create".to_owned(), SERVICES), ("patch".to_owned(), SERVICES)]);
    eventually("the audit log", || async { (writes(&plane) == expected).then_some(()) }).await;

    // Neither a restart in good order nor one after kill -9 changes anything.
    let before = objects(&cluster).await;
    for kill in [false, true] {
        if kill {
            linker.kill();
        } else {
            assert!(linker.stop().success());
        }
        linker = Linker::in_cluster(&plane, TARGETS, &args);
        linker.ready().await;
        // A change made after the start is written after everything that the start itself would have.
        let host = format!("after-{kill}.example.com");
        cluster.create_load_balancer(&namespace, &format!("after-{kill}")).await;
        cluster.set_ingress(&namespace, &format!("after-{kill}"), &[Ingress::Hostname(&host)]).await;
        let name = format!("after-{kill}-{namespace}-ext");
        eventually(&name, || async { objects(&cluster).await.contains_key(&name).then_some(()) }).await;
    }
    let mut after = objects(&cluster).await;
    after.retain(|name, _| !name.starts_with("after-"));
    assert_eq!(after, before);
    let expected = BTreeMap::from([("create".to_owned(), SERVICES + 2), ("patch".to_owned(), SERVICES)]);
    eventually("the audit log", || async { (writes(&plane) == expected).then_some(()) }).await;
}

#[tokio::test]
async fn an_api_server_that_goes_away_and_comes_back_is_followed_again() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    cluster.create_load_balancer("default", "old").await;
    cluster.set_ingress("default", "old", &[Ingress::Hostname("old.example.com")]).await;
    let args = ["--upstream", "none", "--delete-delay", "0s"];
    let linker = Linker::in_cluster(&plane, TARGETS, &args);
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;

    plane.kill_apiserver();
    linker.line("the API server can't be reached").await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.com.");
    assert_eq!(linker.get_ready().0, 200, "ready doesn't depend on the API server");

    plane.start_apiserver();
    let cluster = plane.cluster().await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("b.example.com")]).await;
    cluster.delete_service("default", "old").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "b.example.com.").await;
    answers(linker.dns, "old-default.lb.internal. CNAME", "Non-Existent Domain").await;
    converged_to(&cluster, "web-default-ext", "b.example.com").await;
    eventually("the old object's end", || async {
        cluster.get_service(TARGETS, "old-default-ext").await.is_none().then_some(())
    })
    .await;
}

async fn converged_to(cluster: &Cluster, name: &str, host: &str) {
    let look = || async {
        let spec = cluster.get_service(TARGETS, name).await?.spec?;
        (spec.external_name.as_deref() == Some(host)).then_some(())
    };
    eventually(name, look).await;
}

#[tokio::test]
async fn an_api_server_that_falls_silent_doesnt_keep_lb_linker_from_stopping() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    let mut linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    plane.signal_apiserver(Signal::SIGSTOP);
    assert_eq!(short(linker.dns, "web-default.lb.internal. A").await, "No Error");
    assert!(linker.stop().success());
    plane.signal_apiserver(Signal::SIGCONT);
}
