//! StableNames while replicas, the API server, lists and statuses fail, and with few permissions.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::A;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use lb_linker::api::status::SourceState;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::failover::{Shop, Upstream, assert_answer_stays, seoul_and_fixed, shortest_check};
use crate::harness::audit::AuditEvent;
use crate::harness::clock::{ClockStop, ShiftedClock};
use crate::harness::cluster::Ingress;
use crate::harness::dns::{FaultyUpstream, address, answers, short};
use crate::harness::linker::Linker;
use crate::harness::proxy::{ApiFault, ApiFaultInjector, FaultyApi};
use crate::harness::{LINKER, deploy, eventually, permission};
use crate::recreation::wait_for_external_target;

const QUESTION: &str = "web.shop.lb.internal. CNAME";

impl Shop {
    /// Returns the codes and the targets of the status writes of a ServiceAccount.
    fn status_writes(&self, account: &str) -> Vec<(u16, Value)> {
        let user = format!("system:serviceaccount:lb-linker:{account}");
        let is_ours = |event: &AuditEvent| event.user == user && event.resource == "stablenames";
        let events = self.plane.audit_events_with(&user).into_iter();
        let writes = events.filter(|event| is_ours(event) && event.is_write());
        writes
            .map(|event| (event.code, event.request.unwrap_or_default()["status"]["target"].clone()))
            .collect()
    }

    async fn set_host(&self, host: &str) {
        self.cluster.set_ingress("shop", "web", &[Ingress::Hostname(host)]).await;
    }
}

fn of_web() -> Value {
    json!({"sources": [{"name": "seoul", "service": {"name": "web"}}], "check": shortest_check()})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_stopped_in_a_cutover_writes_no_stale_status() {
    assert_no_stale_status(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_suspended_in_a_cutover_writes_no_stale_status() {
    assert_no_stale_status(Some(ClockStop::Suspend)).await;
}

/// Stops a leader while it waits for a target, lets another replica announce two further targets, and continues the
/// stopped leader.
async fn assert_no_stale_status(how: Option<ClockStop>) {
    let shop = Shop::open(&["new.example.com"]).await;
    shop.load_balancer("shop", "web", "old.example.com").await;
    let mut clock = ShiftedClock::new();
    let variables = clock.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
    let mut a = shop.replica("a", if how.is_some() { &variables } else { &[] });
    a.line("leading now as a_").await;
    let b = shop.replica("b", &[]);
    b.line(" leads").await;
    b.ready().await;
    shop.create("web", of_web()).await;
    shop.wait_until_announced("web", "old.example.com").await;
    shop.set_host("new.example.com").await;
    shop.condition("web", "Progressing", "True").await;

    match how {
        Some(_) => clock.stop(&mut a),
        None => a.signal(Signal::SIGSTOP),
    }
    shop.upstream.revive("new.example.com");
    b.line("leading now as b_").await;
    shop.wait_until_announced("web", "new.example.com").await;
    shop.set_host("newest.example.com").await;
    shop.wait_until_announced("web", "newest.example.com").await;
    shop.condition("web", "Ready", "True").await;
    let before = shop.status_writes("a").len();
    match how {
        Some(how) => clock.resume(&mut a, how),
        None => a.signal(Signal::SIGCONT),
    }
    let line = a.line(" leads").await;
    assert!(line.contains("INFO b_"), "{line}");
    answers(a.dns, QUESTION, "newest.example.com.").await;
    answers(b.dns, QUESTION, "newest.example.com.").await;
    assert_answer_stays(&[&a, &b], QUESTION, "newest.example.com.", 5).await;
    let stale = shop.status_writes("a").split_off(before);
    assert!(stale.iter().all(|(code, _)| *code >= 400), "{stale:#?}");
    assert_eq!(shop.wait_until_announced("web", "newest.example.com").await.history.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_leader_finishes_the_cutover_of_a_killed_leader() {
    let shop = Shop::open(&["new.example.com"]).await;
    shop.load_balancer("shop", "web", "old.example.com").await;
    let mut a = shop.replica("a", &[]);
    a.line("leading now as a_").await;
    let b = shop.replica("b", &[]);
    b.ready().await;
    shop.create("web", of_web()).await;
    shop.wait_until_announced("web", "old.example.com").await;
    shop.set_host("new.example.com").await;
    shop.condition("web", "Progressing", "True").await;
    a.kill();
    b.line("leading now as b_").await;
    assert_answer_stays(&[&b], QUESTION, "old.example.com.", 5).await;
    shop.upstream.revive("new.example.com");
    answers(b.dns, QUESTION, "new.example.com.").await;
    assert!(shop.wait_until_announced("web", "new.example.com").await.target.unwrap().verified);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tampered_status_is_corrected_by_a_check() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&[]).await;
    shop.create("web", of_web()).await;
    shop.wait_until_announced("web", "a.example.com").await;
    let name = "web-shop-ext";
    wait_for_external_target(&shop.cluster, "external-targets", name, "a.example.com").await;
    let tamper = async |target: Value| {
        let patch = Patch::Merge(json!({"status": {"target": target}}));
        shop.targets().patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    };
    tamper(json!({"hostname": "b.example.com", "display": "b.example.com"})).await;
    shop.wait_until_announced("web", "a.example.com").await;
    answers(linker.dns, QUESTION, "a.example.com.").await;
    // A target that the policy denies is never answered. While the checks of the Service's own target fail, that target
    // isn't announced instead.
    shop.upstream.kill("a.example.com");
    let is_unhealthy = || async {
        (shop.status("web").await.sources[0].state == Some(SourceState::Unhealthy)).then_some(())
    };
    eventually("an unhealthy source", is_unhealthy).await;
    tamper(json!({"hostname": "db.other.svc.cluster.local", "display": "db.other.svc.cluster.local"})).await;
    answers(linker.dns, QUESTION, "No Error").await;
    shop.upstream.revive("a.example.com");
    shop.wait_until_announced("web", "a.example.com").await;
    answers(linker.dns, QUESTION, "a.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", name, "a.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_waits_for_the_api_server() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "seoul.example.com").await;
    let linker = shop.linker(&[]).await;
    let sources = seoul_and_fixed("busan.example.com");
    shop.create("web", json!({"sources": sources, "check": shortest_check()})).await;
    shop.condition("web", "Ready", "True").await;
    shop.plane.stop_apiserver();
    shop.upstream.kill("seoul.example.com");
    assert_answer_stays(&[&linker], QUESTION, "seoul.example.com.", 15).await;
    shop.plane.start_apiserver();
    answers(linker.dns, QUESTION, "busan.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", "web-shop-ext", "busan.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_counts_once_it_is_written() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "seoul.example.com").await;
    let linker = shop.linker(&[]).await;
    let sources = seoul_and_fixed("busan.example.com");
    let failback = json!({"mode": "Manual"});
    shop.create("web", json!({"sources": sources, "check": shortest_check(), "failback": failback})).await;
    shop.condition("web", "Ready", "True").await;
    let metric = |name: &str| {
        linker.metric(&format!(
            r#"lb_linker_stable_name_{name}{{stable_name="web",stable_name_namespace="shop"}}"#
        ))
    };
    let all = || ["ready", "source", "changes_total"].map(metric);
    let eventually_all = async |expected: [f64; 3]| {
        let look = || async { (all() == expected.map(Some)).then_some(()) };
        eventually(&format!("the metrics {expected:?}"), look).await;
    };
    eventually_all([1.0, 0.0, 1.0]).await;
    let grant = |verb: &str| {
        let rules = json!([
            {"apiGroups": ["linker.hsj.com"], "resources": ["stablenames"], "verbs": ["list", "watch"]},
            {"apiGroups": ["linker.hsj.com"], "resources": ["stablenames/status"], "verbs": [verb]},
        ]);
        let patch = json!({"rules": rules}).to_string();
        shop.plane.kubectl(&["patch", "clusterrole", "lb-linker-crd", "--type=merge", "-p", &patch]);
    };
    grant("get");
    permission(&shop.plane, false, &["patch", "stablenames/status.linker.hsj.com", LINKER]).await;
    shop.upstream.kill("seoul.example.com");
    eventually_all([0.0, 0.0, 1.0]).await;
    // The other way round: a move back that isn't written either.
    shop.upstream.revive("seoul.example.com");
    shop.upstream.kill("busan.example.com");
    eventually_all([1.0, 0.0, 1.0]).await;
    shop.upstream.revive("busan.example.com");
    shop.upstream.kill("seoul.example.com");
    eventually_all([0.0, 0.0, 1.0]).await;
    assert_answer_stays(&[&linker], QUESTION, "seoul.example.com.", 5).await;
    let granted = Timestamp::now();
    grant("patch");
    let status = shop.wait_until_announced("web", "busan.example.com").await;
    let since = status.target.unwrap().since.unwrap().0;
    assert!(since.as_second() >= granted.as_second(), "{since} is before {granted}");
    assert_eq!(status.history.len(), 1);
    answers(linker.dns, QUESTION, "busan.example.com.").await;
    eventually_all([1.0, 1.0, 2.0]).await;
    assert_eq!(linker.logged("FailedOver"), 1, "{:#?}", linker.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_stays_although_a_list_lacks_its_service() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "lb", "a.example.com").await;
    let opt_out = json!({"metadata": {"annotations": {"linker.hsj.com/managed": "false"}}});
    shop.cluster.patch_service("shop", "lb", opt_out).await;
    let (is_faulty, fault) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (lists, listed) = (Arc::clone(&is_faulty), Arc::clone(&fault));
    let injector: ApiFaultInjector = Arc::new(move |line| {
        let is_list =
            line.contains("/services?") && line.contains("spec.type") && !line.contains("/namespaces/");
        if is_list && lists.load(Ordering::Relaxed) {
            listed.store(true, Ordering::Relaxed);
            return ApiFault::Garble(b"\"type\":\"LoadBalancer\"", b"\"type\":\"XoadBalancer\"");
        }
        ApiFault::Pass
    });
    let api = FaultyApi::start(&shop.plane, injector).await;
    let upstream = shop.upstream.resolver.address.to_string();
    let linker = Linker::start(["--kubeconfig", api.kubeconfig(), "--upstream", &upstream]);
    linker.ready().await;
    shop.create("web", json!({"sources": [{"name": "seoul", "service": {"name": "lb"}}]})).await;
    answers(linker.dns, QUESTION, "a.example.com.").await;

    is_faulty.store(true, Ordering::Relaxed);
    api.disconnect();
    let has_listed = || async { fault.load(Ordering::Relaxed).then_some(()) };
    eventually("a list without the Service", has_listed).await;
    assert_answer_stays(&[&linker], QUESTION, "a.example.com.", 10).await;
    is_faulty.store(false, Ordering::Relaxed);
    api.disconnect();
    shop.cluster.delete_service("shop", "lb").await;
    answers(linker.dns, QUESTION, "No Error").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_a_starting_api_server_withdraw_no_name() {
    let shop = Shop::open(&[]).await;
    // An API server that has just started refuses requests, because it hasn't read the roles yet.
    let (is_away, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let refused = Arc::new(Mutex::new(BTreeSet::new()));
    let (away, failing, paths) = (Arc::clone(&is_away), Arc::clone(&failed), Arc::clone(&refused));
    let injector: ApiFaultInjector = Arc::new(move |line| {
        let path = line.split(['?', ' ']).nth(1).unwrap_or_default().to_owned();
        let is_read = line.starts_with("GET /apis/linker.hsj.com/");
        if away.load(Ordering::Relaxed) {
            failing.fetch_add(usize::from(is_read), Ordering::Relaxed);
            return ApiFault::Answer(503, "ServiceUnavailable");
        }
        let is_first = is_read && paths.lock().unwrap().insert(path);
        if is_first { ApiFault::Answer(403, "Forbidden") } else { ApiFault::Pass }
    });
    let api = FaultyApi::start(&shop.plane, injector).await;
    let snapshot = tempfile::tempdir().unwrap();
    let (path, upstream) = (snapshot.path().join("links"), shop.upstream.resolver.address.to_string());
    let args =
        ["--kubeconfig", api.kubeconfig(), "--upstream", &upstream, "--snapshot", path.to_str().unwrap()];
    shop.create("web", json!({"sources": [{"name": "fixed", "hostname": "a.example.com"}]})).await;
    let linker = Linker::start(args);
    linker.ready().await;
    answers(linker.dns, QUESTION, "a.example.com.").await;
    let is_kept = || async { std::fs::read_to_string(&path).ok()?.contains("a.example.com").then_some(()) };
    eventually("a snapshot", is_kept).await;
    drop(linker);

    is_away.store(true, Ordering::Relaxed);
    let linker = Linker::start(args);
    linker.ready().await;
    let has_failed = || async { (failed.load(Ordering::Relaxed) >= 6).then_some(()) };
    eventually("failed requests for StableNames", has_failed).await;
    assert_eq!(short(linker.dns, QUESTION).await, "a.example.com.");
    refused.lock().unwrap().clear();
    is_away.store(false, Ordering::Relaxed);
    let end = linker.line("DNS doesn't use the snapshot");
    tokio::pin!(end);
    while futures::poll!(&mut end).is_pending() {
        assert_answer_stays(&[&linker], QUESTION, "a.example.com.", 1).await;
    }
    assert_answer_stays(&[&linker], QUESTION, "a.example.com.", 3).await;
    let refused = refused.lock().unwrap();
    let list = "/apis/linker.hsj.com/v1alpha1/stablenames";
    assert!(refused.contains("/apis/linker.hsj.com/v1alpha1") && refused.contains(list), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_port_of_the_target_is_checked() {
    let mut shop = Shop::open(&[]).await;
    shop.upstream = Upstream {
        resolver: FaultyUpstream::start(|asked, _| {
            let mut answer = address(asked, 1, 5);
            if let RData::A(address) = &mut answer.answers[0].data {
                *address = A(Ipv4Addr::LOCALHOST);
            } else {
                answer.answers.clear();
            }
            vec![answer]
        })
        .await,
        ..shop.upstream
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": port}]}});
    shop.cluster.create_service("shop", service).await;
    shop.set_host("a.example.com").await;
    let linker = shop.linker(&["--allowed-nets", "127.0.0.0/8"]).await;
    let with_port = |name: &str, source: Value, port: u16| {
        let check = json!({"periodSeconds": 5, "timeoutSeconds": 1, "failureThreshold": 2, "tcpPort": port});
        (name.to_owned(), json!({"sources": [source], "check": check}))
    };
    let of_service = json!({"name": "seoul", "service": {"name": "web"}});
    let fixed = json!({"name": "fixed", "hostname": "b.example.com"});
    let unknown = if port == 443 { 80 } else { 443 };
    for (name, spec) in [
        with_port("web", of_service.clone(), port),
        with_port("other", of_service, unknown),
        with_port("fixed", fixed, port),
    ] {
        shop.create(&name, spec).await;
    }
    shop.condition("web", "Ready", "True").await;
    for (name, expected) in [
        ("other", format!("source seoul: Service web has no TCP port {unknown}")),
        ("fixed", "source fixed: TCP checks of fixed targets need shop in --tcp-check-namespaces".to_owned()),
    ] {
        assert_eq!(shop.condition(name, "Accepted", "False").await, "CheckRefused");
        let conditions = shop.status(name).await.conditions;
        let accepted = conditions.iter().find(|condition| condition.type_ == "Accepted").unwrap();
        assert_eq!(accepted.message, expected);
    }
    drop(listener);
    assert_eq!(shop.condition("web", "Resolved", "False").await, "CheckFailed");
    answers(linker.dns, QUESTION, "a.example.com.").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_are_followed_without_writes_in_plan_and_off() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let planning = shop.linker(&["--sync", "plan"]).await;
    let off = shop.linker(&["--sync", "off"]).await;
    let sources = json!([
        {"name": "fixed", "hostname": "b.example.com"},
        {"name": "seoul", "service": {"name": "web"}},
    ]);
    shop.create("web", json!({"sources": sources})).await;
    planning.line("plan for StableName shop/web: status.target → ").await;
    for linker in [&planning, &off] {
        answers(linker.dns, QUESTION, "a.example.com.").await;
    }
    let target = json!({"source": "fixed", "hostname": "b.example.com", "display": "b.example.com",
        "since": "2026-01-01T00:00:00Z", "verified": true});
    let patch = Patch::Merge(json!({"status": {"target": target}}));
    shop.targets().patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    for linker in [&planning, &off] {
        answers(linker.dns, QUESTION, "b.example.com.").await;
    }
    assert_eq!(shop.status_writes("lb-linker"), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_in_the_watched_namespace_suffice() {
    let shop = Shop::open(&[]).await;
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker-crd"]);
    let account = "--serviceaccount=lb-linker:lb-linker";
    let binding = ["create", "rolebinding", "crd", "--clusterrole=lb-linker-crd", account];
    shop.plane.kubectl(&[&["-n", "shop"], &binding[..]].concat());
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&["--watch-namespaces", "shop"]).await;
    shop.create("web", of_web()).await;
    assert_eq!(shop.condition("web", "Ready", "True").await, "TargetVerified");
    answers(linker.dns, QUESTION, "a.example.com.").await;
    assert_eq!(linker.logged("forbidden"), 0, "{:#?}", linker.log());
}

/// While the Services of a namespace can't be listed, a StableName says so, and fails over to a source elsewhere.
async fn fail_over_from_a_refused_namespace(first: Value, second: Value, refused: &str) {
    let hosts = HashMap::from([("shop", "seoul.example.com"), ("shop-dr", "busan.example.com")]);
    let other = hosts.values().find(|host| **host != hosts[refused]).unwrap();
    let shop = Shop::open(&[]).await;
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker"]);
    let account = "--serviceaccount=lb-linker:lb-linker";
    for (namespace, host) in &hosts {
        let binding = ["create", "rolebinding", "lb-linker", "--clusterrole=lb-linker", account];
        shop.plane.kubectl(&[&["-n", namespace], &binding[..]].concat());
        shop.load_balancer(namespace, "web", host).await;
    }
    let grant = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "shop"}}});
    shop.cluster.patch_service("shop-dr", "web", grant).await;
    let mut linker = shop.linker(&["--watch-namespaces", "shop,shop-dr"]).await;
    // The namespace shop has no Service `far`: the StableName replaces no link of a Service.
    let question = "far.shop.lb.internal. CNAME";
    let sources = json!([first, second]);
    shop.create("far", json!({"sources": sources, "check": shortest_check()})).await;
    shop.wait_until_announced("far", hosts[refused]).await;
    wait_for_external_target(&shop.cluster, "external-targets", "far-shop-ext", hosts[refused]).await;
    assert!(linker.stop().success());

    shop.plane.kubectl(&["-n", refused, "delete", "rolebinding", "lb-linker"]);
    permission(&shop.plane, false, &["list", "services", "-n", refused, LINKER]).await;
    let linker = shop.linker(&["--watch-namespaces", "shop,shop-dr"]).await;
    // The leader keeps the target: without the permission it can't know whether the Service is deleted.
    assert_eq!(shop.condition("far", "Accepted", "False").await, "Forbidden");
    let replaces_a_link = refused == "shop";
    if replaces_a_link {
        shop.create("web", json!({"sources": sources})).await;
        assert_eq!(shop.condition("web", "Ready", "False").await, "Forbidden");
    }
    answers(linker.dns, question, &format!("{}.", hosts[refused])).await;
    shop.upstream.kill(hosts[refused]);
    shop.wait_until_announced("far", other).await;
    wait_for_external_target(&shop.cluster, "external-targets", "far-shop-ext", other).await;
    answers(linker.dns, question, &format!("{other}.")).await;
    if replaces_a_link {
        answers(linker.dns, QUESTION, &format!("{}.", hosts[refused])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_namespace_of_a_source_delays_no_failover() {
    let (own, foreign) = sources_of_two_namespaces();
    fail_over_from_a_refused_namespace(foreign, own, "shop-dr").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_own_namespace_delays_no_failover() {
    let (own, foreign) = sources_of_two_namespaces();
    fail_over_from_a_refused_namespace(own, foreign, "shop").await;
}

fn sources_of_two_namespaces() -> (Value, Value) {
    let foreign = json!({"name": "busan", "service": {"name": "web", "namespace": "shop-dr"}});
    (json!({"name": "seoul", "service": {"name": "web"}}), foreign)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clashing_names_get_external_targets_of_their_own() {
    let shop = Shop::open(&[]).await;
    for namespace in ["z", "y-z"] {
        shop.plane.create_namespace(namespace);
    }
    let linker = shop.linker(&[]).await;
    for (namespace, name, host) in [("z", "x-y", "a.example.com"), ("y-z", "x", "b.example.com")] {
        let object = json!({
            "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"sources": [{"name": "fixed", "hostname": host}]},
        });
        shop.plane.apply(&object.to_string());
    }
    answers(linker.dns, "x-y.z.lb.internal. CNAME", "a.example.com.").await;
    answers(linker.dns, "x.y-z.lb.internal. CNAME", "b.example.com.").await;
    let targets = || async {
        let services = shop.cluster.services("external-targets").list(&ListParams::default()).await.unwrap();
        let hosts = services.items.into_iter().filter_map(|service| service.spec?.external_name);
        let hosts: BTreeSet<String> = hosts.collect();
        (hosts.len() == 2).then_some(hosts)
    };
    let hosts = eventually("two external targets", targets).await;
    assert_eq!(hosts.into_iter().collect::<Vec<_>>(), ["a.example.com", "b.example.com"]);
}

/// Changes the target of every Service behind many StableNames at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_changes_cost_few_writes() {
    const OBJECTS: usize = 200;
    let shop = Shop::open(&[]).await;
    let linker = shop.linker(&[]).await;
    let services: Api<Service> = Api::namespaced(shop.cluster.client.clone(), "shop");
    let name = |number: usize| format!("svc-{number}");
    let create = async |number: usize| {
        shop.cluster.create_load_balancer("shop", &name(number)).await;
        let source = json!({"name": "seoul", "service": {"name": name(number)}});
        shop.create(&name(number), json!({"sources": [source]})).await;
    };
    let set = async |number: usize, host: &str| {
        let host = format!("{host}-{number}.example.com");
        let status = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": [{"hostname": host}]}}}));
        services.patch_status(&name(number), &PatchParams::default(), &status).await.unwrap();
    };
    let all_have = async |host: &str| {
        for number in 0..OBJECTS {
            let (object, host) = (format!("svc-{number}-shop-ext"), format!("{host}-{number}.example.com"));
            wait_for_external_target(&shop.cluster, "external-targets", &object, &host).await;
            answers(linker.dns, &format!("svc-{number}.shop.lb.internal. CNAME"), &format!("{host}.")).await;
            shop.condition(&name(number), "Ready", "True").await;
        }
    };
    let writes = || {
        let page = linker.metrics();
        let of = |kind: &str| {
            let lines = page.lines().filter(|line| line.starts_with("lb_linker_api_writes_total{"));
            let lines = lines.filter(|line| line.contains(&format!("kind=\"{kind}\"")));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as usize
        };
        (of("StableName"), of("Service"))
    };
    let all = || futures::stream::iter(0..OBJECTS);
    all().for_each_concurrent(16, create).await;
    all().for_each_concurrent(16, |number| set(number, "old")).await;
    all_have("old").await;

    let (before, since) = (writes(), Instant::now());
    all().for_each_concurrent(16, |number| set(number, "new")).await;
    all_have("new").await;
    let has_counted = || async {
        let after = writes();
        (after.0 >= before.0 + OBJECTS && after.1 >= before.1 + OBJECTS).then_some(())
    };
    eventually("the last writes to be counted", has_counted).await;
    let after = writes();
    // The new target of each object costs a write. If it takes longer than 10 s, so does the condition Ready. Other
    // writes of statuses are limited to 20 per second.
    let seconds = since.elapsed().as_secs() as usize + 1;
    let max = if seconds <= 10 { OBJECTS } else { 2 * OBJECTS } + 20 * seconds;
    let (statuses, targets) = (after.0 - before.0, after.1 - before.1);
    println!("{OBJECTS} changed targets: {statuses} writes of statuses, {targets} of external targets");
    assert!(statuses <= max && targets <= OBJECTS * 21 / 20, "{statuses}, {targets}");
    // A target that is announced and written causes no write later.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(writes(), after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_has_a_note_while_no_status_can_be_written() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&[]).await;
    shop.create("web", of_web()).await;
    shop.condition("web", "Ready", "True").await;
    let permit = |verb: &str| {
        let patch = json!([{"op": "replace", "path": "/rules/1/verbs", "value": [verb]}]).to_string();
        shop.plane.kubectl(&["patch", "clusterrole", "lb-linker-crd", "--type=json", "-p", &patch]);
    };
    let is_noted = async |note: &str| {
        eventually(note, || async { linker.get_ready().1.ends_with(note).then_some(()) }).await;
    };
    is_noted("OK").await;
    permit("get");
    let question = ["auth", "can-i", "patch", "stablenames.linker.hsj.com", "--subresource=status", LINKER];
    let is_refused = || async { shop.plane.try_kubectl(&question).is_err().then_some(()) };
    eventually("the permission to end", is_refused).await;
    shop.set_host("b.example.com").await;
    is_noted("StableNames that don't move, because their status can't be written: 1").await;
    permit("patch");
    is_noted("OK").await;
    shop.wait_until_announced("web", "b.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_services_are_a_note_until_granted_again() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&[]).await;
    answers(linker.dns, QUESTION, "a.example.com.").await;
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker"]);
    permission(&shop.plane, false, &["list", "services", "-A", LINKER]).await;
    shop.plane.stop_apiserver();
    shop.plane.start_apiserver();
    let is_noted = |is_expected: bool| {
        let linker = &linker;
        move || async move {
            let (code, note) = linker.get_ready();
            let is_noted = note
                .contains("LoadBalancer Services in all namespaces: the API server forbids it (")
                && note.contains("; DNS answers with the last targets of these Services");
            (code == 200 && is_noted == is_expected).then_some(())
        }
    };
    eventually("the note", is_noted(true)).await;
    assert_answer_stays(&[&linker], QUESTION, "a.example.com.", 2).await;
    shop.plane.apply_files(deploy());
    eventually("the end of the note", is_noted(false)).await;
}
