//! Memory and requests while large Services are listed.

use std::collections::BTreeMap;

use futures::StreamExt;
use serde_json::json;

use crate::api_watches::{TARGETS, set_target, start};
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::answers;
use crate::harness::{apply_deploy, eventually};
use crate::recreation::wait_for_external_target;

/// Returns how many streamed lists and how many pages of lists of Services lb-linker has requested.
async fn list_request_counts(plane: &ControlPlane) -> (usize, usize) {
    let user = "system:serviceaccount:lb-linker:lb-linker";
    let events = plane.audit_events_with(user).into_iter();
    let events: Vec<_> = events.filter(|event| event.user == user && event.resource == "services").collect();
    let streams = events.iter().filter(|event| event.uri.contains("sendInitialEvents=true")).count();
    let pages =
        events.iter().filter(|event| event.verb == "list" && event.uri.contains("fieldSelector=spec.type"));
    (streams, pages.count())
}

/// Creates a Service of about 900 KB. The API server limits annotations to 256 KB but not the number of labels, and
/// repeats each label key in `managedFields`.
async fn create_large(cluster: &Cluster, name: &str) {
    let prefix = |number: usize| format!("{number:04}{}.{}", "a".repeat(59), "b".repeat(63));
    let label =
        |number: usize| (format!("{}.{}/{}", prefix(number), "c".repeat(63), "d".repeat(63)), "e".repeat(63));
    let labels: BTreeMap<String, String> = (0..1100).map(label).collect();
    let annotations = BTreeMap::from([("note".to_owned(), "x".repeat(250_000))]);
    let service = json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false},
    });
    cluster.create_service("default", service).await;
}

#[tokio::test]
async fn lists_of_large_services_take_little_memory() {
    const SERVICES: usize = 100;
    let gate = |streams: bool| {
        let gate = format!("--feature-gates=WatchList={streams}");
        Options { apiserver_args: vec![gate], ..Options::default() }
    };
    let mut plane = ControlPlane::start(gate(true));
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    futures::stream::iter(0..SERVICES)
        .for_each_concurrent(4, |number| {
            let cluster = &cluster;
            async move {
                let name = format!("web-{number}");
                create_large(cluster, &name).await;
                set_target(cluster, &name, "a.example.com").await;
            }
        })
        .await;
    let bound = json!({"metadata": {"name": "bound", "finalizers": ["lb-linker/finalizer"]},
        "spec": {"type": "ExternalName", "externalName": "a.example.com"}});
    cluster.create_service("default", bound).await;
    let service = cluster.get_service("default", "web-0").await.unwrap();
    let bytes = serde_json::to_vec(&service).unwrap().len();
    assert!(bytes > 880_000, "{bytes}");
    for streams in [true, false] {
        if !streams {
            plane.restart_apiserver(gate(false));
        }
        let cluster = plane.cluster().await;
        let linker = start(&plane, &[]);
        linker.ready().await;
        for number in 0..SERVICES {
            wait_for_external_target(
                &cluster,
                TARGETS,
                &format!("web-{number}-default-ext"),
                "a.example.com",
            )
            .await;
        }
        set_target(&cluster, "web-7", "b.example.com").await;
        answers(linker.dns, "web-7-default.lb.internal. CNAME", "b.example.com.").await;
        // This line comes after all lists, including the list for finalizers of the earlier operator.
        linker.line("Service default/bound carries lb-linker/finalizer").await;
        let peak = linker.memory("VmHWM");
        eprintln!("memory: {SERVICES} Services of {bytes} bytes, streamed: {streams}: peak {peak} KiB");
        assert!(peak < 128 * 1024, "{peak} KiB, streamed: {streams}");
        // The API server writes the audit log shortly after its response.
        eventually("the requests in the log", || async {
            let (streamed, pages) = list_request_counts(&plane).await;
            if streams { streamed > 0 && pages == 0 } else { streamed > 0 && pages > 1 }.then_some(())
        })
        .await;

        // The next round begins in the same state.
        drop(linker);
        set_target(&cluster, "web-7", "a.example.com").await;
        for number in 0..SERVICES {
            cluster.delete_service(TARGETS, &format!("web-{number}-default-ext")).await;
        }
    }
}
