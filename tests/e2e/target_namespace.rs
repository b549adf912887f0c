//! The target namespace is deleted and created again.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually, grant};
use crate::links::links_of;
use crate::recreation::wait_for_external_target;

/// Marks a namespace for deletion. No namespace controller runs here: the test removes the contents, in the order of
/// `resources`, and the finalizer.
pub async fn delete_namespace(plane: &ControlPlane, name: &str, resources: &[&str]) {
    plane.kubectl(&["delete", "namespace", name, "--wait=false"]);
    for resource in resources {
        plane.kubectl(&["-n", name, "delete", resource, "--all"]);
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
        "spec": {"finalizers": []}});
    let path = format!("/api/v1/namespaces/{name}/finalize");
    plane.kubectl_stdin(&["replace", "--raw", &path, "-f", "-"], &namespace.to_string());
    eventually("the end of the namespace", || async {
        plane.try_kubectl(&["get", "namespace", name]).is_err().then_some(())
    })
    .await;
}

/// Creates load balancers with hostnames and with addresses, and returns the names of their external targets.
async fn balancers(cluster: &Cluster, namespace: &str) -> Vec<String> {
    let mut objects = Vec::new();
    for number in 0..8 {
        let name = format!("svc-{number}");
        cluster.create_load_balancer(namespace, &name).await;
        let ingress = match number % 2 {
            0 => Ingress::Hostname("a.example.com"),
            _ => Ingress::Ip("192.0.2.1"),
        };
        cluster.set_ingress(namespace, &name, &[ingress]).await;
        objects.push(format!("{name}-{namespace}-ext"));
    }
    objects
}

async fn wait_for_all(plane: &ControlPlane, target: &str, objects: &[String]) {
    eventually("all external targets", || async {
        let list = |resource| plane.kubectl(&["-n", target, "get", resource, "-o", "name"]);
        let (services, slices) = (list("services"), list("endpointslices"));
        let are_there = objects.iter().enumerate().all(|(number, object)| {
            services.contains(&format!("service/{object}\n"))
                && (number % 2 == 0 || slices.contains(&format!("/{object}-ipv4\n")))
        });
        are_there.then_some(())
    })
    .await;
}

/// Returns when lb-linker's writes of this resource to the namespace were refused.
fn refused_writes(plane: &ControlPlane, target: &str, resource: &str) -> Vec<jiff::Timestamp> {
    let mut events = plane.audit_events_with(target);
    events
        .retain(|event| event.namespace == target && event.is_write() && event.user.ends_with(":lb-linker"));
    events.retain(|event| event.code >= 400 && event.resource == resource);
    events.iter().map(|event| event.completed).collect()
}

async fn is_noted(linker: &Linker, text: &str) {
    eventually(&format!("{text:?} in /ready"), || async {
        let (code, body) = linker.get_ready();
        assert_eq!(code, 200, "{body}");
        body.contains(text).then_some(())
    })
    .await;
}

/// Waits until `lb-linker links` shows all links in this state, with this text in the reason.
async fn are_shown(linker: &Linker, state: &str, reason: &str) {
    let admin = linker.admin().await;
    eventually(&format!("state {state} with {reason:?}"), || async {
        let listed: Value = serde_json::from_slice(&links_of(admin, &["-o", "json"]).stdout).unwrap();
        let is_shown = |link: &Value| {
            link["state"] == state && link["reason"].as_str().unwrap_or_default().contains(reason)
        };
        listed["items"].as_array().unwrap().iter().all(is_shown).then_some(())
    })
    .await;
}

#[tokio::test]
async fn external_targets_are_back_after_the_namespace() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("outlives").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let objects = balancers(&cluster, &namespace).await;
    wait_for_all(plane, &target, &objects).await;
    linker.ready().await;
    assert_eq!(linker.get_ready(), (200, "OK".to_owned()));

    delete_namespace(plane, &target, &["services", "endpointslices", "rolebindings", "roles"]).await;
    let missing = format!("external targets can't be written to namespace {target} now: ");
    is_noted(&linker, &missing).await;
    let line = linker.line(&format!("can't create Services in namespace {target}")).await;
    assert!(line.contains("WARN"), "{line}");
    // Of each kind only one object is tried, every five seconds. Once the namespace is gone, both kinds share the tries.
    let kinds = ["services", "endpointslices"];
    let refused = |kind| refused_writes(plane, &target, kind);
    let since = kinds.map(|kind| refused(kind).len());
    let tries = || async {
        let mut tries = kinds.map(refused).into_iter().zip(since);
        tries.find(|(tries, since)| tries.len() >= since + 6).map(|(tries, _)| tries)
    };
    let tries = eventually("six more tries of a kind", tries).await;
    let (first, last) = (tries[tries.len() - 3], tries[tries.len() - 1]);
    let most = last.duration_since(first).as_secs() / 5 + 2;
    for kind in kinds {
        let tries = refused(kind);
        let number = tries.iter().filter(|at| (first..=last).contains(*at)).count();
        assert!(number as i64 <= most, "{number} of {kind}, {most} at most: {tries:?}");
    }
    answers(linker.dns, &format!("svc-0-{namespace}.lb.internal. CNAME"), "a.example.com.").await;
    is_noted(&linker, &missing).await;
    are_shown(&linker, "Degraded", "its external target doesn't exist: ").await;

    plane.create_namespace(&target);
    grant(plane, &target);
    let start = Instant::now();
    wait_for_all(plane, &target, &objects).await;
    println!("external targets are back after {:.1?}; tries: {}", start.elapsed(), tries.len());
    is_noted(&linker, "OK").await;
    // The new namespace is watched, too.
    cluster.delete_service(&target, &objects[0]).await;
    wait_for_external_target(&cluster, &target, &objects[0], "a.example.com").await;
}

#[tokio::test]
async fn start_without_the_namespace_waits_for_it() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("outlives").await;
    let objects = balancers(&cluster, &namespace).await;
    delete_namespace(plane, &target, &["rolebindings", "roles"]).await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.line(&format!("can't list EndpointSlices in namespace {target}")).await;
    linker.ready().await;
    is_noted(&linker, &format!("namespace {target} now: either the namespace doesn't exist or")).await;
    are_shown(&linker, "Degraded", "its external target isn't known: external targets can't be written")
        .await;
    let tries = ["services", "endpointslices"].map(|resource| refused_writes(plane, &target, resource));
    assert!(tries.iter().all(Vec::is_empty), "{tries:?}: nothing is written before the first list");
    plane.create_namespace(&target);
    grant(plane, &target);
    let start = Instant::now();
    wait_for_all(plane, &target, &objects).await;
    println!("external targets are there after {:.1?}", start.elapsed());
    is_noted(&linker, "OK").await;
    are_shown(&linker, "Ready", "").await;
}
