//! The number of writes for many changes at once and after restarts.
//!
//! Times depend on the machine: they are printed (`-- --nocapture`), not asserted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;

use crate::harness::audit::AuditEvent;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::short;
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually};

const SERVICES: usize = 2000;
const TARGETS: &str = "external-targets";

/// Returns the number of lb-linker's writes by verb, without Events.
fn writes(plane: &ControlPlane) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    let user = "system:serviceaccount:lb-linker:lb-linker";
    let by_linker = |event: &AuditEvent| event.user == user && event.is_write();
    let events = plane.audit_events_with(user).into_iter().filter(|event| event.resource != "events");
    for event in events.filter(by_linker) {
        *count.entry(event.verb).or_default() += 1;
    }
    count
}

/// Waits until the audit log has exactly these writes by lb-linker.
async fn wait_for_audit_log(plane: &ControlPlane, expected: &[(&str, usize)]) {
    let expected = expected.iter().map(|(verb, number)| ((*verb).to_owned(), *number)).collect();
    eventually(&format!("{expected:?} in the audit log, where {:?} is", writes(plane)), || async {
        (writes(plane) == expected).then_some(())
    })
    .await;
}

/// Returns the target and resource version of each object in the target namespace, by name.
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

/// Waits until lb-linker has made `number` writes, and prints the elapsed time. Polling the objects instead would
/// take CPU time from the measured processes.
async fn wait_for_writes(linker: &Linker, what: &str, number: usize, since: Instant) {
    let wanted = f64::from(u32::try_from(number).unwrap());
    while linker.writes() < wanted {
        assert!(since.elapsed() < 4 * EVENT_TIMEOUT, "{what}: waited in vain for {number} writes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seconds = since.elapsed().as_secs_f64();
    let links = f64::from(u32::try_from(SERVICES).unwrap());
    eprintln!("throughput: {what}: {SERVICES} in {seconds:.2} s, {:.0} writes/s", links / seconds);
}

async fn assert_converged(cluster: &Cluster, linker: &Linker, namespace: &str, generation: &str) {
    let objects = objects(cluster).await;
    for i in 0..SERVICES {
        let host = format!("lb-{i}.{generation}.example.com");
        assert_eq!(objects[&format!("svc-{i}-{namespace}-ext")].0.as_deref(), Some(&*host));
        let question = format!("svc-{i}-{namespace}.lb.internal. CNAME");
        assert_eq!(short(linker.dns, &question).await, format!("{host}."));
    }
}

#[tokio::test]
async fn two_thousand_changes_converge_with_one_write_each() {
    let plane = ControlPlane::lend();
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

    // Hostnames are set as fast as the API server accepts them beside lb-linker's writes.
    let since = Instant::now();
    point_all_at(&cluster, &namespace, "one").await;
    wait_for_writes(&linker, "created while the hostnames are given", SERVICES, since).await;
    assert_converged(&cluster, &linker, &namespace, "one").await;
    wait_for_audit_log(&plane, &[("create", SERVICES)]).await;

    // All changes at once: lb-linker is stopped until the last Service has changed.
    linker.signal(Signal::SIGSTOP);
    point_all_at(&cluster, &namespace, "two").await;
    let since = Instant::now();
    linker.signal(Signal::SIGCONT);
    wait_for_writes(&linker, "changed at once", 2 * SERVICES, since).await;
    assert_converged(&cluster, &linker, &namespace, "two").await;
    wait_for_audit_log(&plane, &[("create", SERVICES), ("patch", SERVICES)]).await;

    // Neither a graceful restart nor a restart after SIGKILL changes anything.
    let before = objects(&cluster).await;
    for kill in [false, true] {
        if kill {
            linker.kill();
        } else {
            assert!(linker.stop().success());
        }
        linker = Linker::in_cluster(&plane, TARGETS, &args);
        linker.ready().await;
        // A change after the start is written after any write that the start itself would cause.
        let host = format!("after-{kill}.example.com");
        cluster.create_load_balancer(&namespace, &format!("after-{kill}")).await;
        cluster.set_ingress(&namespace, &format!("after-{kill}"), &[Ingress::Hostname(&host)]).await;
        let name = format!("after-{kill}-{namespace}-ext");
        eventually(&name, || async { cluster.get_service(TARGETS, &name).await }).await;
    }
    let mut after = objects(&cluster).await;
    after.retain(|name, _| !name.starts_with("after-"));
    assert_eq!(after, before);
    wait_for_audit_log(&plane, &[("create", SERVICES + 2), ("patch", SERVICES)]).await;
}
