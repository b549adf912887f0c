//! Limits of a tenant's Services: memory, log lines, Kubernetes Events.

use std::collections::HashMap;
use std::time::Instant;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::failover::Shop;
use crate::harness::audit::AuditEvent;
use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::eventually;
use crate::harness::linker::Linker;

/// The number of Services that a tenant changes, and the number of changes of each.
const SERVICES: usize = 10;
const ROUNDS: usize = 12;
/// The size of a large annotation in bytes. The API server allows 256 KiB for all annotations of an object together.
const ANNOTATION: usize = 250_000;
/// The upper bound of the resident memory, in KiB. `deploy/` allows 256 MiB.
const MEMORY_LIMIT: usize = 96 * 1024;

/// Returns about 14,000 names that no load balancer may have, different in each round.
fn names(round: usize) -> String {
    let mut text = String::new();
    for i in 0.. {
        let name = format!("r{round}-{i}\u{1b}.example,");
        if text.len() + name.len() > ANNOTATION {
            break;
        }
        text.push_str(&name);
    }
    text
}

/// Returns the numbers of Events that lb-linker has recorded in a namespace, by Service and reason.
fn events(plane: &ControlPlane, namespace: &str) -> HashMap<(String, String), usize> {
    let mut number = HashMap::new();
    for item in plane.list(&format!("/api/v1/namespaces/{namespace}/events")) {
        if item["reportingComponent"] == "lb-linker" {
            let note = item["message"].as_str().unwrap();
            assert!(note.len() <= 1024 && !note.chars().any(char::is_control), "{note:?}");
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            *number.entry((text(&item["involvedObject"]["name"]), text(&item["reason"]))).or_default() += 1;
        }
    }
    number
}

#[tokio::test]
async fn huge_annotations_cost_bounded_memory_log_and_events() {
    // A separate control plane, because Events of other lb-linkers would be counted, too.
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let (tenant, other) = (cluster.create_namespace("tenant").await, cluster.create_namespace("other").await);
    cluster.create_load_balancer(&other, "web").await;
    for i in 0..SERVICES {
        cluster.create_load_balancer(&tenant, &format!("svc-{i}")).await;
    }
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none"]);
    linker.ready().await;
    for round in 0..ROUNDS {
        let annotations = json!({
            "linker.hsj.com/hostname": names(round), "linker.hsj.com/ttl": null, "linker.hsj.com/allow-from": null,
        });
        for i in 0..SERVICES {
            let mut annotations = annotations.clone();
            if i == 0 {
                // This Service has the names in one of two other annotations instead, alternately.
                annotations["linker.hsj.com/hostname"] = Value::Null;
                let field = if round % 2 == 0 { "linker.hsj.com/ttl" } else { "linker.hsj.com/allow-from" };
                annotations[field] = names(round).into();
            }
            let patch = json!({"metadata": {"annotations": annotations}});
            cluster.patch_service(&tenant, &format!("svc-{i}"), patch).await;
        }
        // The changes don't delay the change of a Service in another namespace.
        let host = format!("round-{round}.example.com");
        cluster.set_ingress(&other, "web", &[Ingress::Hostname(&host)]).await;
        answers(linker.dns, &format!("web-{other}.lb.internal. CNAME"), &format!("{host}.")).await;
    }
    // The external target of `web` is updated, too. By then the tenant's last change has been processed.
    crate::recreation::wait_for_external_target(
        &cluster,
        "external-targets",
        &format!("web-{other}-ext"),
        &format!("round-{}.example.com", ROUNDS - 1),
    )
    .await;
    eventually("the Events of all Services", || async {
        let events = events(&plane, &tenant);
        let each = |i| events.get(&(format!("svc-{i}"), "HostnameRefused".to_owned())).copied();
        (1..SERVICES).all(|i| each(i) == Some(10)).then_some(())
    })
    .await;
    let events = events(&plane, &tenant);
    assert!(events.values().all(|number| *number <= 10), "{events:?}");
    let log = linker.log();
    let (bytes, longest) =
        (log.iter().map(String::len).sum::<usize>(), log.iter().map(String::len).max().unwrap());
    assert!(bytes < 200_000 && longest < 4000, "{bytes} bytes in {} lines of up to {longest}", log.len());
    assert!(!log.iter().any(|line| line.chars().any(char::is_control)), "{log:#?}");
    let line = linker.line("and 97 more; entries that are ignored: ").await;
    assert!(line.contains("the first 100 count, of at most 253 bytes each"), "{line}");
    let peak = linker.memory("VmHWM");
    println!("peak resident memory: {peak} KiB");
    assert!(peak < MEMORY_LIMIT, "{peak} KiB");
}

/// Returns the lines about an object, its external target included.
fn lines_about(linker: &Linker, name: &str) -> Vec<String> {
    let (key, external_target) = (format!("shop/{name}:"), format!("/{name}-shop-ext:"));
    let is_about = |line: &String| line.contains(&key) || line.contains(&external_target);
    linker.log().into_iter().filter(is_about).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooding_stable_name_has_a_share_of_the_log() {
    const CHANGES: usize = 60;
    const LINES_PER_MINUTE: usize = 20;
    let shop = Shop::open(&[]).await;
    let linker = shop.linker(&[]).await;
    let spec =
        |last: usize| json!({"sources": [{"name": "fixed", "addresses": [format!("192.0.2.{last}")]}]});
    for name in ["flood", "quiet"] {
        shop.create(name, spec(1)).await;
        shop.wait_until_announced(name, "192.0.2.1").await;
    }
    let targets = shop.targets();
    let set = async |name: &str, last: usize| {
        let patch = Patch::Merge(json!({"spec": spec(last)}));
        targets.patch(name, &PatchParams::default(), &patch).await.unwrap();
    };
    let started = Instant::now();
    // Each change is awaited: a watch may show several changes as one.
    for change in 0..CHANGES {
        set("flood", 2 + change).await;
        answers(linker.dns, "flood.shop.lb.internal. A", &format!("192.0.2.{}", 2 + change)).await;
    }
    set("quiet", 2).await;
    // The change of the other object is logged in full.
    linker.line("StableName shop/quiet: TargetChanged: fixed 192.0.2.1 → fixed 192.0.2.2").await;
    linker.line("link shop/quiet: 192.0.2.1 → 192.0.2.2").await;
    shop.wait_until_announced("flood", &format!("192.0.2.{}", 1 + CHANGES)).await;
    let line = linker.line("further lines about objects of namespace shop in the last minute").await;
    let minutes = started.elapsed().as_secs() as usize / 60 + 2;
    let lines = lines_about(&linker, "flood");
    assert!(lines.len() <= minutes * LINES_PER_MINUTE, "{} lines in {minutes} minutes", lines.len());
    let is_write = |event: &&AuditEvent| event.resource == "stablenames" && event.subresource == "status";
    let events = shop.plane.audit_events();
    let writes = events.iter().filter(is_write).filter(|event| event.name == "flood").count();
    let changes = lines.iter().filter(|line| line.contains("TargetChanged")).count();
    println!(
        "{CHANGES} changes: {writes} writes, {} lines, {changes} of them TargetChanged; {line}",
        lines.len()
    );
    assert!(changes <= writes, "{changes} changes are logged, {writes} were written");
    assert!(
        lines.iter().any(|line| line.contains("TargetChanged: fixed 192.0.2.1 → fixed 192.0.2.")),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn only_the_first_100_hostnames_of_a_service_are_served() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("names").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    let zone = format!("{namespace}.lb.internal");
    let names: Vec<String> = (0..1000).map(|i| format!("n{i}.{zone}")).collect();
    let annotations = json!({"linker.hsj.com/hostname": names.join(", ")});
    cluster.patch_service(&namespace, "web", json!({"metadata": {"annotations": annotations}})).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    answers(linker.dns, &format!("n99.{zone}. CNAME"), "a.example.com.").await;
    answers(linker.dns, &format!("n100.{zone}. CNAME"), "Non-Existent Domain").await;
    let noted = || async {
        let service = cluster.get_service(&target, &format!("web-{namespace}-ext")).await?;
        Some(service.metadata.annotations?.get("linker.hsj.com/hostname")?.split(',').count())
    };
    assert_eq!(eventually("the external target", noted).await, 100);
}

#[tokio::test]
async fn only_the_first_1000_ingress_entries_are_used() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("ingress").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    // The alphabetical order is the numerical one.
    let addresses: Vec<String> =
        (0..3000).map(|i| format!("192.{}.2.{}", 100 + i / 150, 100 + i % 150)).collect();
    let entries: Vec<Ingress<'_>> = addresses.iter().map(|address| Ingress::Ip(address)).collect();
    cluster.set_ingress(&namespace, "web", &entries).await;
    let line = linker.line("the status: entries that are ignored: 2000").await;
    assert!(line.contains(&format!("Service {namespace}/web: ")), "{line}");
    let line = linker.line(&format!("link {namespace}/web: pending → ")).await;
    assert!(line.ends_with("192.100.2.107 and 992 more"), "{line}");
    // An EndpointSlice holds at most 1000 endpoints.
    let slice = format!("web-{namespace}-ext-ipv4");
    let written = || async {
        let ips =
            ["get", "endpointslice", "-n", &target, &slice, "-o", "jsonpath={.endpoints[*].addresses[0]}"];
        Some(plane.try_kubectl(&ips).ok()?.split_whitespace().count())
    };
    assert_eq!(eventually("the EndpointSlice", written).await, 1000);
}
