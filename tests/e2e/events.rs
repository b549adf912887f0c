//! Kubernetes Events in `kubectl`, and lb-linker without the permission to record Events.
//!
//! Each test has its own control plane: on the shared one every lb-linker would record Events on the load balancers of
//! all tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use serde_json::{Value, json};

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::{LINKER, deploy, eventually, permission};
use crate::recreation::wait_for_external_target;

const TARGETS: &str = "external-targets";

async fn own_cluster() -> (Lent, Cluster) {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    (plane, cluster)
}

/// An Event in the form of `kubectl get events`.
#[derive(Clone, Debug, PartialEq)]
struct ObservedEvent {
    /// Type, reason and note, such as `Normal TargetChanged: a → b`.
    text: String,
    uid: String,
    count: u64,
}

/// Returns lb-linker's Events on Services of this name in a namespace, in the order in which they happened.
fn events(plane: &ControlPlane, namespace: &str, name: &str) -> Vec<ObservedEvent> {
    let selector = format!("involvedObject.name={name},involvedObject.kind=Service");
    let mut items = plane.list(&format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}"));
    // The API server records Events of its own, about clusterIPs that it finds unallocated soon after a start.
    items.retain(|item| item["reportingComponent"] == "lb-linker");
    items.sort_by_key(|item| item["eventTime"].as_str().unwrap().to_owned());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items
        .iter()
        .map(|item| ObservedEvent {
            text: format!("{} {}: {}", text(&item["type"]), text(&item["reason"]), text(&item["message"])),
            uid: text(&item["involvedObject"]["uid"]),
            count: item["series"]["count"].as_u64().unwrap_or(1),
        })
        .collect()
}

fn texts(plane: &ControlPlane, namespace: &str, name: &str) -> Vec<String> {
    events(plane, namespace, name).into_iter().map(|event| event.text).collect()
}

/// Waits for an Event. Events are sent in order, so all earlier ones have been sent, too.
async fn wait_for_event(plane: &ControlPlane, namespace: &str, name: &str, text: &str) -> ObservedEvent {
    let look = || async { events(plane, namespace, name).into_iter().find(|event| event.text == text) };
    eventually(&format!("{text:?} on {namespace}/{name}"), look).await
}

async fn load_balancer(cluster: &Cluster, namespace: &str, name: &str, host: &str) -> String {
    let service = cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
    service.metadata.uid.unwrap()
}

#[tokio::test]
async fn events_show_the_history_of_a_load_balancer() {
    let (plane, cluster) = own_cluster().await;
    let (here, there) = (cluster.create_namespace("here").await, cluster.create_namespace("there").await);
    let mut linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    let uid = load_balancer(&cluster, &here, "web", "a.example.com").await;
    let object = format!("web-{here}-ext");
    let created = format!("Normal ExternalTargetCreated: {TARGETS}/{object} → a.example.com");
    assert_eq!(wait_for_event(&plane, &here, "web", &created).await.uid, uid);

    let mut expected = vec![created];
    for (from, to) in [("a", "b"), ("b", "c")] {
        cluster.set_ingress(&here, "web", &[Ingress::Hostname(&format!("{to}.example.com"))]).await;
        expected.push(format!("Normal TargetChanged: {from}.example.com → {to}.example.com"));
        wait_for_event(&plane, &here, "web", expected.last().unwrap()).await;
    }
    cluster.set_ingress(&here, "web", &[]).await;
    expected.push("Warning TargetStale: the status is blank; c.example.com stays the target".to_owned());
    assert_eq!(wait_for_event(&plane, &here, "web", expected.last().unwrap()).await.uid, uid);
    assert_eq!(texts(&plane, &here, "web"), expected);

    // The Event of the recreated Service contains its predecessor's target.
    wait_for_external_target(&cluster, TARGETS, &object, "c.example.com").await;
    cluster.delete_service(&here, "web").await;
    let uid = load_balancer(&cluster, &here, "web", "d.example.com").await;
    expected.push("Normal TargetChanged: c.example.com → d.example.com".to_owned());
    assert_eq!(wait_for_event(&plane, &here, "web", expected.last().unwrap()).await.uid, uid);
    assert_eq!(texts(&plane, &here, "web"), expected);
    let described = plane.kubectl(&["describe", "service", "web", "-n", &here]);
    let line = described
        .lines()
        .find(|line| line.contains("TargetChanged"))
        .unwrap_or_else(|| panic!("{described}"));
    assert!(line.contains("lb-linker") && line.ends_with("c.example.com → d.example.com"), "{line}");

    // A restart causes no Events.
    assert!(linker.stop().success());
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none", "--delete-delay", "0s"]);
    linker.ready().await;
    load_balancer(&cluster, &there, "web", "there.example.com").await;
    let marker = format!("Normal ExternalTargetCreated: {TARGETS}/web-{there}-ext → there.example.com");
    wait_for_event(&plane, &there, "web", &marker).await;
    assert_eq!(texts(&plane, &here, "web"), expected);
    assert_eq!(texts(&plane, &there, "web"), [marker], "each namespace has its own Events");

    cluster.delete_service(&here, "web").await;
    expected.push(format!("Normal Removed: {TARGETS}/{object}"));
    assert_eq!(
        wait_for_event(&plane, &here, "web", expected.last().unwrap()).await.uid,
        uid,
        "the Event is on the deleted Service"
    );
    assert_eq!(texts(&plane, &here, "web"), expected);
    assert!(texts(&plane, TARGETS, &object).is_empty());
    assert_eq!(linker.metric("lb_linker_events_dropped_total"), Some(0.0));
}

#[tokio::test]
async fn repeated_event_is_counted_in_a_series() {
    let (plane, cluster) = own_cluster().await;
    let _linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    load_balancer(&cluster, "default", "web", "a.example.com").await;
    let created = format!("Normal ExternalTargetCreated: {TARGETS}/web-default-ext → a.example.com");
    wait_for_event(&plane, "default", "web", &created).await;
    // The external target is deleted by hand, and recreated.
    cluster.delete_service(TARGETS, "web-default-ext").await;
    let count = || async { (events(&plane, "default", "web").first()?.count == 2).then_some(()) };
    eventually("a series", count).await;
    assert_eq!(texts(&plane, "default", "web"), std::slice::from_ref(&created));

    // Delete the Events, as the API server does after an hour: the next occurrence is a new Event.
    plane.kubectl(&["delete", "events", "--all", "-n", "default"]);
    assert!(texts(&plane, "default", "web").is_empty());
    // Each change waits for the Event of the previous change, because changes during a write are merged.
    let change = async |host: &str| {
        cluster.set_ingress("default", "web", &[Ingress::Hostname(&format!("{host}.example.com"))]).await;
    };
    let (there, back) = (
        "Normal TargetChanged: a.example.com → b.example.com",
        "Normal TargetChanged: b.example.com → a.example.com",
    );
    change("b").await;
    wait_for_event(&plane, "default", "web", there).await;
    change("a").await;
    wait_for_event(&plane, "default", "web", back).await;
    change("b").await;
    let again = || async {
        let events = events(&plane, "default", "web");
        (events.len() == 2 && events[0].count == 2).then_some(())
    };
    eventually("two Events, one of them with the count 2", again).await;
    plane.kubectl(&["delete", "events", "--all", "-n", "default"]);
    // lb-linker has sent "b → a" once, and sends the second occurrence as a PATCH of that Event. The Event is deleted,
    // so lb-linker has to create another one.
    change("a").await;
    wait_for_event(&plane, "default", "web", back).await;
}

#[tokio::test]
async fn foreign_object_and_lost_name_cause_conflict_events() {
    let (plane, cluster) = own_cluster().await;
    let theirs = json!({
        "metadata": {"name": "web-default-ext", "labels": {"app.kubernetes.io/managed-by": "somebody"}},
        "spec": {"type": "ClusterIP", "ports": [{"port": 80}]},
    });
    cluster.create_service(TARGETS, theirs).await;
    let mut linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    let uid = load_balancer(&cluster, "default", "web", "a.example.com").await;
    let conflict = format!(
        "Warning Conflict: {TARGETS}/web-default-ext is left alone: its label app.kubernetes.io/managed-by says \
         \"somebody\"; delete it, or label it app.kubernetes.io/managed-by=lb-linker-operator \
         original-service-name=web original-service-namespace=default"
    );
    assert_eq!(wait_for_event(&plane, "default", "web", &conflict).await.uid, uid);

    // Service x-y in z, and Service x in y-z: both claim x-y-z-ext.
    for namespace in ["z", "y-z"] {
        plane.create_namespace(namespace);
    }
    load_balancer(&cluster, "z", "x-y", "a.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "x-y-z-ext", "a.example.com").await;
    load_balancer(&cluster, "y-z", "x", "b.example.com").await;
    let hashed = lb_linker::model::names::external_target_hashed("y-z", "x", 8);
    let lost = format!(
        "Warning Conflict: the external target is {TARGETS}/{hashed}, not {TARGETS}/x-y-z-ext: link z/x-y has it"
    );
    wait_for_event(&plane, "y-z", "x", &lost).await;
    let created = format!("Normal ExternalTargetCreated: {TARGETS}/{hashed} → b.example.com");
    wait_for_event(&plane, "y-z", "x", &created).await;
    linker.counts("lb_linker_conflicts", 1.0).await;
    linker.counts("lb_linker_names_lost", 1.0).await;
    assert!(linker.metric("lb_linker_reconciles_total{result=\"conflict\"}").unwrap() >= 1.0);

    // After a restart these conflicts are logged without further Events. A collision from before the start has one.
    linker.kill();
    for namespace in ["t", "s-t"] {
        plane.create_namespace(namespace);
    }
    load_balancer(&cluster, "s-t", "r", "b.example.com").await;
    load_balancer(&cluster, "t", "r-s", "a.example.com").await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.line("external target external-targets/web-default-ext of link default/web is left alone").await;
    linker.line(&format!("link y-z/x: its external target is {TARGETS}/{hashed}, not ")).await;
    let loser =
        match linker.line(&format!("not {TARGETS}/r-s-t-ext: link ")).await.contains("link s-t/r has it") {
            true => ("t", "r-s"),
            false => ("s-t", "r"),
        };
    eventually("the Event of the collision at the start", || async {
        let texts = texts(&plane, loser.0, loser.1);
        texts.iter().any(|text| text.starts_with("Warning Conflict: the external target is")).then_some(())
    })
    .await;
    assert_eq!(linker.logged("from now on"), 0);
    load_balancer(&cluster, "default", "marker", "a.example.com").await;
    let marker = format!("Normal ExternalTargetCreated: {TARGETS}/marker-default-ext → a.example.com");
    wait_for_event(&plane, "default", "marker", &marker).await;
    let seen: Vec<u64> = events(&plane, "default", "web").iter().map(|event| event.count).collect();
    assert_eq!(seen, [1]);
    assert_eq!(texts(&plane, "y-z", "x"), [lost, created]);
    linker.counts("lb_linker_names_lost", 2.0).await;
}

#[tokio::test]
async fn missing_permission_for_events_is_logged_once() {
    let (plane, cluster) = own_cluster().await;
    let rights = std::fs::read_to_string(deploy().join("10-rbac.yaml")).unwrap();
    let without = rights.replace("resources: [events]", "resources: [others]");
    assert_ne!(without, rights);
    plane.apply(&without);
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    for i in 0..10 {
        load_balancer(&cluster, "default", &format!("svc-{i}"), "a.example.com").await;
    }
    let line = linker.line("can't create Events in namespace default").await;
    assert!(line.contains("forbids") && line.contains("permissions of deploy/"), "{line}");
    for i in 0..10 {
        wait_for_external_target(&cluster, TARGETS, &format!("svc-{i}-default-ext"), "a.example.com").await;
        answers(linker.dns, &format!("svc-{i}-default.lb.internal. CNAME"), "a.example.com.").await;
    }
    let dropped = || async { (linker.metric("lb_linker_events_dropped_total") == Some(10.0)).then_some(()) };
    eventually("the Events to be dropped", dropped).await;
    assert_eq!(linker.logged("can't create Events"), 1, "{:#?}", linker.log());
    assert!(!line.contains("retrying"), "a refused Event is dropped: {line}");
    let asked = linker.metric("lb_linker_api_writes_total{code=\"403\",kind=\"Event\",verb=\"create\"}");
    assert!(asked >= Some(1.0) && asked < Some(10.0), "fewer requests than Events: {asked:?}");

    plane.apply(&rights);
    permission(&plane, true, &["create", "events.events.k8s.io", LINKER]).await;
    change_until_event(&plane, &cluster, "default", "svc-0").await;
    linker.line("Events can be recorded again in namespace default").await;
}

/// Changes a target until there is an Event: after a 403, lb-linker sends no Events in the namespace for a while.
async fn change_until_event(plane: &ControlPlane, cluster: &Cluster, namespace: &str, name: &str) {
    let number = AtomicUsize::new(0);
    eventually("an Event", || async {
        let host = format!("{}.example.com", number.fetch_add(1, Ordering::Relaxed));
        cluster.set_ingress(namespace, name, &[Ingress::Hostname(&host)]).await;
        texts(plane, namespace, name).iter().any(|text| text.contains("TargetChanged")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn permission_missing_in_some_namespaces_is_logged_once_each() {
    let (plane, cluster) = own_cluster().await;
    let rights = std::fs::read_to_string(deploy().join("10-rbac.yaml")).unwrap();
    plane.apply(&rights.replace("resources: [events]", "resources: [others]"));
    let mut namespaces = Vec::new();
    for prefix in ["granted", "refused", "refused"] {
        let namespace = cluster.create_namespace(prefix).await;
        load_balancer(&cluster, &namespace, "web", "a.example.com").await;
        namespaces.push(namespace);
    }
    let account = "--serviceaccount=lb-linker:lb-linker";
    let allow = |namespace: &str| {
        let rule = ["--verb=create,patch", "--resource=events.events.k8s.io"];
        let role = ["create", "role", "events", "-n", namespace];
        plane.kubectl(&[&role[..], &rule].concat());
        plane.kubectl(&["create", "rolebinding", "events", "-n", namespace, "--role=events", account]);
    };
    allow(&namespaces[0]);
    permission(&plane, true, &["create", "events.events.k8s.io", "-n", &namespaces[0], LINKER]).await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    for refused in &namespaces[1..] {
        linker.line(&format!("can't create Events in namespace {refused}")).await;
    }
    // Change the targets of all namespaces in turn, for longer than the first pauses after a 403.
    change_until_event(&plane, &cluster, &namespaces[0], "web").await;
    let start = Instant::now();
    let mut round = 0;
    while start.elapsed() < Duration::from_secs(4) || round < 20 {
        round += 1;
        for namespace in &namespaces {
            let host = format!("round-{round}.example.com");
            cluster.set_ingress(namespace, "web", &[Ingress::Hostname(&host)]).await;
            wait_for_external_target(&cluster, TARGETS, &format!("web-{namespace}-ext"), &host).await;
        }
    }
    let refusals = || {
        let audit = plane.audit_events().into_iter();
        audit.filter(|event| event.resource == "events" && event.code == 403).count()
    };
    eventually("another refusal", || async { (refusals() >= 3).then_some(()) }).await;
    assert!(refusals() < 2 * round && refusals() < 14, "{} in {round} rounds", refusals());
    for refused in &namespaces[1..] {
        let complaints = linker.logged(&format!("can't create Events in namespace {refused}"));
        assert_eq!(complaints, 1, "{:#?}", linker.log());
    }
    assert_eq!(linker.logged("can be recorded again"), 0, "{:#?}", linker.log());
    allow(&namespaces[1]);
    change_until_event(&plane, &cluster, &namespaces[1], "web").await;
    linker.line(&format!("Events can be recorded again in namespace {}", namespaces[1])).await;
    assert_eq!(linker.logged("can be recorded again"), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn events_at_shutdown_are_sent_or_counted() {
    // FEW exceeds the burst of 50 Events. The remaining 25 are sent at 20 per second, so the two seconds at shutdown
    // suffice.
    const FEW: usize = 75;
    const TOO_MANY: usize = 250;
    for (prefix, services) in [("few", FEW), ("many", TOO_MANY)] {
        // External targets of other namespaces would cause Events LeftOut, too.
        let (plane, cluster) = own_cluster().await;
        let namespace = &cluster.create_namespace(prefix).await;
        let make = |i: usize| {
            let cluster = &cluster;
            async move { load_balancer(cluster, namespace, &format!("svc-{i}"), "a.example.com").await }
        };
        futures::stream::iter(0..services).map(make).buffer_unordered(8).collect::<Vec<_>>().await;
        let args = ["--upstream", "none", "--leader-election", "off", "--watch-namespaces", namespace];
        let since = Instant::now();
        let mut linker = Linker::in_cluster(&plane, TARGETS, &args);
        let written = || async {
            let all = cluster.services(TARGETS).list(&Default::default()).await.unwrap();
            let suffix = format!("-{namespace}-ext");
            let ours =
                all.items.iter().filter(|service| service.metadata.name.as_ref().unwrap().ends_with(&suffix));
            (ours.count() == services).then_some(())
        };
        eventually("the external targets", written).await;
        assert!(linker.stop().success());
        let audit = plane.audit_events().into_iter();
        let sent = audit.filter(|event| {
            event.resource == "events"
                && event.namespace == *namespace
                && event.verb == "create"
                && event.code == 201
        });
        let sent = sent.count();
        let left = services - sent;
        let most = 50 + 20 * (since.elapsed().as_secs() as usize + 1);
        assert!(sent <= most, "{sent} are more than the limits allow");
        // A busy API server accepts fewer than 20 Events per second: then some of the FEW Events are left, too.
        if left > 0 {
            let line = linker.line("Kubernetes Events haven't been sent").await;
            // If the response to the last request is missing, lb-linker counts its Event as not sent.
            let said = [left, left + 1].map(|number| format!("stopping although {number} Kubernetes Events"));
            assert!(said.iter().any(|said| line.contains(said)), "{left} Events weren't sent: {line}");
        }
    }
}

#[tokio::test]
async fn events_refused_by_a_terminating_namespace_arent_logged() {
    let (plane, cluster) = own_cluster().await;
    let going = cluster.create_namespace("going").await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    load_balancer(&cluster, &going, "web", "a.example.com").await;
    let created = format!("Normal ExternalTargetCreated: {TARGETS}/web-{going}-ext → a.example.com");
    wait_for_event(&plane, &going, "web", &created).await;
    // No controller finishes the deletion here: the namespace stays in Terminating.
    plane.kubectl(&["delete", "namespace", &going, "--wait=false"]);
    cluster.set_ingress(&going, "web", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, TARGETS, &format!("web-{going}-ext"), "b.example.com").await;

    load_balancer(&cluster, "default", "web", "a.example.com").await;
    let marker = format!("Normal ExternalTargetCreated: {TARGETS}/web-default-ext → a.example.com");
    wait_for_event(&plane, "default", "web", &marker).await;
    assert_eq!(texts(&plane, &going, "web"), [created]);
    linker.counts("lb_linker_events_dropped_total", 1.0).await;
    assert_eq!(linker.logged(" Events "), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn sync_plan_and_off_record_no_events() {
    let (plane, cluster) = own_cluster().await;
    for mode in ["plan", "off"] {
        let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none", "--sync", mode]);
        linker.ready().await;
        load_balancer(&cluster, "default", mode, "a.example.com").await;
        answers(linker.dns, &format!("{mode}-default.lb.internal. CNAME"), "a.example.com.").await;
        cluster.set_ingress("default", mode, &[Ingress::Hostname("b.example.com")]).await;
        answers(linker.dns, &format!("{mode}-default.lb.internal. CNAME"), "b.example.com.").await;
        cluster.set_ingress("default", mode, &[]).await;
        linker.line("(kept: the Service's status is blank)").await;
        assert_eq!(linker.metric("lb_linker_events_dropped_total"), Some(0.0));
    }
    let writes = plane.audit_events().into_iter().filter(|event| event.resource == "events");
    assert_eq!(writes.filter(|event| event.user.ends_with(":lb-linker:lb-linker")).count(), 0);
}

#[tokio::test]
async fn reconciliations_are_counted_and_timed() {
    let (plane, cluster) = own_cluster().await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    for gauge in ["lb_linker_targets_refused", "lb_linker_deletes_held", "lb_linker_names_lost"] {
        assert_eq!(linker.metric(gauge), Some(0.0), "{gauge}");
    }
    let result = |result: &str| linker.metric(&format!("lb_linker_reconciles_total{{result=\"{result}\"}}"));
    for name in ["unchanged", "written", "waiting", "conflict", "failed"] {
        assert_eq!(result(name), Some(0.0), "{name}");
    }
    load_balancer(&cluster, "default", "web", "a.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "a.example.com").await;
    eventually("a write", || async { (result("written") == Some(1.0)).then_some(()) }).await;
    // The watch delivers the written object, which causes another reconciliation.
    eventually("a reconciliation without a write", || async { (result("unchanged")? > 0.0).then_some(()) })
        .await;
    cluster.delete_service("default", "web").await;
    eventually("the delay", || async { (result("waiting")? > 0.0).then_some(()) }).await;
    // The counters are read one by one, and may change in between.
    eventually("as many durations as reconciliations", || async {
        let all = ["unchanged", "written", "waiting", "conflict", "failed"].into_iter().filter_map(result);
        (linker.metric("lb_linker_reconcile_duration_seconds_count") == Some(all.sum())).then_some(())
    })
    .await;
    assert!(linker.metric("lb_linker_reconcile_duration_seconds_sum").unwrap() > 0.0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let last = linker.metric("lb_linker_watch_last_event_timestamp_seconds").unwrap();
    assert!(last > now - 60.0 && last <= now, "{last}, and it is {now}");
}
