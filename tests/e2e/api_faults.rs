//! Lost and wrong responses of the API server lose no update and don't bypass `--max-deletes`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::api_errors::create_overwriting_policy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::answers;
use crate::harness::linker::Linker;
use crate::harness::proxy::{ApiFault, ApiFaultInjector, FaultyApi};
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;
use crate::source::{follower, load_balancer, own_cluster, patch_count};

async fn balancer(cluster: &Cluster, namespace: &str, name: &str) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname("a.example.com")]).await;
}

fn start(api: &FaultyApi, namespace: &str, target: &str, more: &[&str]) -> Linker {
    let args = ["--kubeconfig", api.kubeconfig(), "--watch-namespaces", namespace, "--upstream", "none"];
    Linker::start([&args[..], &["--target-namespace", target], more].concat())
}

/// Returns an injector that applies `fault` to the first request for which `is_it` returns true.
fn first_match(is_it: impl Fn(&str) -> bool + Send + Sync + 'static, fault: ApiFault) -> ApiFaultInjector {
    let done = AtomicBool::new(false);
    Arc::new(
        move |line| {
            if is_it(line) && !done.swap(true, Ordering::Relaxed) { fault.clone() } else { ApiFault::Pass }
        },
    )
}

#[tokio::test]
async fn failed_first_list_still_restores_the_last_target() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("late").await;
    balancer(&cluster, &namespace, "web").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
    linker.stop();
    cluster.set_ingress(&namespace, "web", &[]).await;

    let list = format!("GET /api/v1/namespaces/{target}/services?");
    let api = FaultyApi::start(
        plane,
        first_match(move |line| line.starts_with(&list), ApiFault::Answer(503, "ServiceUnavailable")),
    )
    .await;
    let linker = start(&api, &namespace, &target, &[]);
    linker.ready().await;
    linker.line("503").await;
    answers(linker.dns, &format!("web.{namespace}.lb.internal. CNAME"), "a.example.com.").await;
    linker.counts("lb_linker_links{state=\"stale\"}", 1.0).await;
}

#[tokio::test]
async fn create_refused_by_an_unrelated_conflict_is_retried() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("conflict").await;
    let post = format!("POST /api/v1/namespaces/{target}/services?");
    let api = FaultyApi::start(
        plane,
        first_match(move |line| line.starts_with(&post), ApiFault::Answer(409, "Conflict")),
    )
    .await;
    let linker = start(&api, &namespace, &target, &[]);
    balancer(&cluster, &namespace, "web").await;
    linker.line("the API server answered 409 Conflict, says the test; next try in").await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
}

#[tokio::test]
async fn removals_with_lost_responses_count_for_max_deletes() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("lost").await;
    let lost = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lost);
    let injector = move |line: &str| {
        if !line.starts_with("DELETE ") {
            return ApiFault::Pass;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        ApiFault::LoseAnswer
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let linker = start(&api, &namespace, &target, &["--delete-delay", "0s", "--max-deletes", "2"]);
    for i in 0..8 {
        balancer(&cluster, &namespace, &format!("svc-{i}")).await;
        wait_for_external_target(&cluster, &target, &format!("svc-{i}-{namespace}-ext"), "a.example.com")
            .await;
    }
    for i in 0..8 {
        cluster.delete_service(&namespace, &format!("svc-{i}")).await;
    }
    let left = || async { cluster.services(&target).list(&Default::default()).await.unwrap().items.len() };
    eventually("two removals, and six that are held back", || async {
        let are_held = linker.metric("lb_linker_deletes_held") == Some(6.0);
        (are_held && lost.load(Ordering::Relaxed) >= 2 && left().await == 6).then_some(())
    })
    .await;
    assert_eq!(left().await, 6);
}

#[tokio::test]
async fn writes_with_lost_responses_cause_their_events() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("lost").await;
    let path = format!(" /api/v1/namespaces/{target}/services");
    let (seen, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&lost);
    // Loses the first answer to each kind of write.
    let injector = move |line: &str| {
        let verbs = ["POST", "PATCH", "DELETE"];
        let Some(verb) = verbs.iter().position(|verb| line.starts_with(&format!("{verb}{path}"))) else {
            return ApiFault::Pass;
        };
        if seen.fetch_or(1 << verb, Ordering::Relaxed) & (1 << verb) != 0 {
            return ApiFault::Pass;
        }
        counter.fetch_add(1, Ordering::Relaxed);
        ApiFault::LoseAnswer
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let linker = start(&api, &namespace, &target, &["--delete-delay", "0s", "--max-deletes", "unlimited"]);
    let object = format!("web-{namespace}-ext");
    let event = |reason: &'static str, note: String| {
        let events = ["-n", &namespace, "get", "events.events.k8s.io", "-o"];
        let columns = "custom-columns=REASON:.reason,NOTE:.note";
        let is_sent = move || {
            let listed = plane.kubectl(&[&events[..], &[columns]].concat());
            listed.lines().any(|line| line.starts_with(reason) && line.ends_with(&note)).then_some(())
        };
        async move { eventually(&format!("the Event {reason}"), || async { is_sent() }).await }
    };
    balancer(&cluster, &namespace, "web").await;
    event("ExternalTargetCreated", format!("{target}/{object} → a.example.com")).await;
    linker.line(&format!("external target {target}/{object}: created → a.example.com")).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    event("TargetChanged", "a.example.com → b.example.com".to_owned()).await;
    linker.line(&format!("external target {target}/{object}: changed → b.example.com")).await;
    cluster.delete_service(&namespace, "web").await;
    event("Removed", format!("{target}/{object}")).await;
    linker.line(&format!("external target {target}/{object}: removed")).await;
    assert_eq!(lost.load(Ordering::Relaxed), 3);
    for text in ["created →", "changed →", "removed"] {
        assert_eq!(linker.logged(&format!("{object}: {text}")), 1, "{:#?}", linker.log());
    }
}

#[tokio::test]
async fn only_one_follower_probes_an_absent_api_server() {
    let (plane, cluster) = own_cluster().await;
    let own = cluster.create_namespace("own").await;
    // The policy undoes each write. lb-linker repeats it after a pause, so followers become due without a watch event.
    create_overwriting_policy(&plane, &cluster, &own).await;
    // An instance without a Lease: otherwise the permission to write would end 10 s after the API server.
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none", "--instance", "own"]);
    load_balancer(&cluster, &own, "web", "a.example.com").await;
    for i in 0..20 {
        follower(&cluster, &own, &format!("db-{i}"), "web").await;
    }
    let undone = || async { (linker.logged("changes what is written") >= 20).then_some(()) };
    eventually("all to be undone", undone).await;
    plane.kill_apiserver();
    let unanswered = || {
        let code = "code=\"0\",kind=\"Service\",verb=\"patch\"";
        linker.metric(&format!("lb_linker_api_writes_total{{{code}}}")).unwrap_or_default()
    };
    eventually("a first try", || async { (unanswered() >= 1.0).then_some(()) }).await;
    // All twenty followers become due in this time. The absence of attempts can't be awaited, so the test sleeps.
    tokio::time::sleep(Duration::from_secs(4)).await;
    // Up to six requests may have been in flight at once; the pauses between further attempts double from 0.5 s.
    let away = unanswered();
    assert!(away <= 12.0, "{away} PATCHes without an answer");
    plane.start_apiserver();
    let before = patch_count(&plane, &own);
    eventually("the other followers", || async { (patch_count(&plane, &own) >= before + 20).then_some(()) })
        .await;
}
