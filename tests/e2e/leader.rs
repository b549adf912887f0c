//! Leader election between replicas: only the leader writes, and all replicas answer DNS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::audit::AuditEvent;
use crate::harness::clock::{ClockStop, ShiftedClock};
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, cluster_errors, get_from, run_to_end_with};
use crate::harness::{cluster_with_target, deploy, eventually, grant_optional};
use crate::links::links_of;
use crate::recreation::wait_for_external_target;

/// A namespace with load balancers, a target namespace, and one ServiceAccount per replica, so that the audit log
/// distinguishes the replicas.
struct Fixture {
    plane: &'static ControlPlane,
    cluster: Cluster,
    target: String,
    namespace: String,
}

impl Fixture {
    async fn new(prefix: &str) -> Self {
        let (plane, cluster, target) = cluster_with_target().await;
        let namespace = cluster.create_namespace(prefix).await;
        for account in ["a", "b", "c"] {
            plane.create_service_account(&namespace, account);
        }
        Self { plane, cluster, target, namespace }
    }

    /// Grants the accounts the permissions in these files of deploy/. The permissions on the Lease apply in namespace
    /// `home`.
    fn grant(&self, files: &[&str], home: &str) {
        let subjects = ["a", "b", "c"]
            .map(|name| json!({"kind": "ServiceAccount", "name": name, "namespace": self.namespace}));
        let mut granted = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(deploy().join(file)).unwrap();
            for mut object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                let kind = object["kind"].as_str().unwrap().to_owned();
                let metadata = &mut object["metadata"];
                if kind == "ClusterRoleBinding" {
                    metadata["name"] = json!(self.namespace);
                } else if kind == "Role" || kind == "RoleBinding" {
                    // Two Roles of the same name may end up in one namespace.
                    let ours = metadata["namespace"] == "lb-linker";
                    let name = format!("{}-in-{}", metadata["name"].as_str().unwrap(), metadata["namespace"]);
                    let name = name.replace('"', "");
                    metadata["name"] = json!(name);
                    metadata["namespace"] = json!(if ours { home } else { &self.target });
                    if kind == "RoleBinding" {
                        object["roleRef"]["name"] = json!(name);
                    }
                } else {
                    continue;
                }
                if kind != "Role" {
                    object["subjects"] = json!(subjects);
                }
                granted.push(object);
            }
        }
        let granted: Vec<_> = granted.into_iter().map(|it| serde_json::from_value(it).unwrap()).collect();
        self.plane.apply_objects(&granted);
    }

    /// Starts a replica with this ServiceAccount and `--identity`.
    fn replica(&self, account: &str, variables: &[(&str, &str)], args: &[&str]) -> Linker {
        let kubeconfig = self.plane.kubeconfig_for_service_account(&self.namespace, account);
        let kubeconfig = kubeconfig.to_str().unwrap();
        let mut all = vec!["--kubeconfig", kubeconfig, "--target-namespace", &self.target];
        all.extend(["--watch-namespaces", &self.namespace, "--identity", account]);
        if !args.contains(&"--corefile") {
            all.extend(["--upstream", "none"]);
        }
        all.extend(args);
        Linker::start_with(variables, all)
    }

    /// Starts two replicas with a Lease in the target namespace; `a` is the leader.
    async fn start_leader_and_follower(&self, args: &[&str]) -> (Linker, Linker) {
        self.grant(&["10-rbac.yaml"], &self.target);
        let args = [&["--leader-election", "lease"], args].concat();
        let a = self.replica("a", &[], &args);
        a.line("leading now as a_").await;
        let b = self.replica("b", &[], &args);
        let line = b.line(" leads").await;
        assert!(line.contains("INFO a_"), "{line}");
        b.ready().await;
        (a, b)
    }

    async fn set_hostname(&self, name: &str, host: &str) {
        if self.cluster.get_service(&self.namespace, name).await.is_none() {
            self.cluster.create_load_balancer(&self.namespace, name).await;
        }
        self.cluster.set_ingress(&self.namespace, name, &[Ingress::Hostname(host)]).await;
    }

    fn object(&self, name: &str) -> String {
        format!("{name}-{}-ext", self.namespace)
    }

    async fn wait_for_target(&self, name: &str, host: &str) {
        wait_for_external_target(&self.cluster, &self.target, &self.object(name), host).await;
    }

    async fn wait_for_answer(&self, linker: &Linker, name: &str, answer: &str) {
        answers(linker.dns, &format!("{name}-{}.lb.internal. CNAME", self.namespace), answer).await;
    }

    /// Returns the audit events of an account.
    fn requests(&self, account: &str) -> Vec<AuditEvent> {
        let user = format!("system:serviceaccount:{}:{account}", self.namespace);
        self.plane.audit_events_with(&user).into_iter().filter(|event| event.user == user).collect()
    }

    /// Returns the audit events of an account in a namespace.
    fn requests_in(&self, account: &str, namespace: &str) -> Vec<AuditEvent> {
        let mut events = self.requests(account);
        events.retain(|event| event.namespace == namespace);
        events
    }

    /// Returns the attempted writes of an account in the target namespace, except writes of the Lease.
    fn writes(&self, account: &str) -> Vec<AuditEvent> {
        let mut events = self.requests_in(account, &self.target);
        events.retain(|event| event.is_write() && event.resource != "leases");
        events
    }

    /// Returns the attempted writes of an account in all namespaces, including Events and excluding Leases.
    fn all_writes(&self, account: &str) -> Vec<AuditEvent> {
        let mut events = self.requests(account);
        events.retain(|event| event.is_write() && event.resource != "leases");
        events
    }

    /// Returns when the successful writes of the Lease by an account were complete.
    fn lease_writes(&self, account: &str) -> Vec<Timestamp> {
        let events = self.requests_in(account, &self.target).into_iter();
        let writes =
            events.filter(|event| event.is_write() && event.resource == "leases" && event.code < 300);
        writes.map(|event| event.completed).collect()
    }

    /// Waits until the audit log has `number` writes of external targets by an account, and asserts that it has no
    /// more.
    async fn wait_for_writes(&self, account: &str, number: usize) {
        let enough = || async { (self.writes(account).len() >= number).then_some(()) };
        eventually(&format!("{number} writes of {account}"), enough).await;
        let writes = self.writes(account);
        assert_eq!(writes.len(), number, "{writes:#?}");
    }

    fn leases(&self, namespace: &str) -> Api<Lease> {
        Api::namespaced(self.cluster.client.clone(), namespace)
    }

    async fn lease(&self, namespace: &str) -> Lease {
        self.leases(namespace).get("lb-linker").await.unwrap()
    }

    /// Patches the Lease's spec like a user of kubectl.
    async fn patch_lease(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.leases(&self.target).patch("lb-linker", &PatchParams::default(), &patch).await.unwrap();
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().unwrap().holder_identity.as_deref().unwrap()
}

/// Waits until the log has at least `times` lines that contain `text`.
async fn wait_for_log_lines(linker: &Linker, text: &str, times: usize) {
    let enough = || async { (linker.logged(text) >= times).then_some(()) };
    eventually(&format!("{times} times {text:?} in {:#?}", linker.log()), enough).await;
}

#[tokio::test]
async fn reload_with_other_zones_keeps_leader_and_lease() {
    let stage = Fixture::new("zones").await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("Corefile");
    let write_zones = |zones: &str| {
        let http = "prometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0";
        let corefile = format!(".:0 {{\nbind 127.0.0.1\n{http}\nlb_linker {zones}\n}}\n");
        std::fs::write(&path, corefile).unwrap();
    };
    write_zones("lb.internal");
    let args = ["--leader-election", "lease", "--on-delete", "tombstone", "--delete-delay", "0s"];
    let mut linker = stage.replica("a", &[], &[&args[..], &["--corefile", path.to_str().unwrap()]].concat());
    linker.line("leading now as a_").await;
    for name in ["web", "gone"] {
        stage.set_hostname(name, "one.example.com").await;
        stage.wait_for_target(name, "one.example.com").await;
    }
    let shop = format!("shop.{}.second.internal", stage.namespace);
    let patch = json!({"metadata": {"annotations": {"linker.hsj.com/hostname": shop}}});
    stage.cluster.patch_service(&stage.namespace, "web", patch).await;
    linker.line(&format!("{shop:?} isn't served")).await;
    let question = format!("{shop}. CNAME");
    answers(linker.dns, &question, "Server Failure").await;
    let before = stage.lease(&stage.target).await.spec.unwrap();

    write_zones("second.internal lb.internal");
    linker.signal(Signal::SIGUSR1);
    linker.line("links are in second.internal lb.internal now").await;
    answers(linker.dns, &question, "one.example.com.").await;
    stage.wait_for_answer(&linker, "web", "one.example.com.").await;
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_target("web", "two.example.com").await;
    answers(linker.dns, &question, "two.example.com.").await;
    // The tombstone is a name in the first zone.
    stage.cluster.delete_service(&stage.namespace, "gone").await;
    stage.wait_for_target("gone", "deleted.second.internal").await;

    write_zones("lb.internal");
    linker.signal(Signal::SIGUSR1);
    linker.line("links are in lb.internal now").await;
    answers(linker.dns, &question, "Server Failure").await;
    stage.wait_for_answer(&linker, "web", "two.example.com.").await;
    stage.wait_for_target("gone", "deleted.lb.internal").await;
    let after = stage.lease(&stage.target).await.spec.unwrap();
    let of = |spec: LeaseSpec| (spec.holder_identity, spec.lease_transitions, spec.acquire_time);
    assert_eq!(of(after), of(before));
    assert_eq!(linker.logged("leading now as"), 1);
    assert_eq!(linker.logged("API server http"), 1, "a reload keeps the API client: {:#?}", linker.log());
}

#[tokio::test]
async fn stopping_leader_hands_over_at_once() {
    let stage = Fixture::new("hand-over").await;
    let (mut a, b) = stage.start_leader_and_follower(&["--delete-delay", "0s"]).await;
    assert_eq!(a.metric("lb_linker_leader"), Some(1.0));
    assert_eq!(b.metric("lb_linker_leader"), Some(0.0));
    assert_eq!([&a, &b].map(|linker| linker.metric("lb_linker_sync_enabled")), [Some(1.0); 2]);
    for name in ["web", "gone"] {
        stage.set_hostname(name, "one.example.com").await;
        stage.wait_for_target(name, "one.example.com").await;
        for linker in [&a, &b] {
            stage.wait_for_answer(linker, name, "one.example.com.").await;
        }
    }
    // The leader deletes the external target, and both replicas forget the link.
    stage.cluster.delete_service(&stage.namespace, "gone").await;
    for linker in [&a, &b] {
        stage.wait_for_answer(linker, "gone", "Non-Existent Domain").await;
    }
    assert_eq!(stage.writes("b").len(), 0, "{:#?}", stage.writes("b"));
    assert_eq!(stage.lease(&stage.target).await.spec.unwrap().lease_transitions, Some(0));

    assert!(a.stop().success());
    a.line("not leading any more: lb-linker is stopping").await;
    b.line("leading now as b_").await;
    // Without the release of the Lease, `b` would write it 13 s after the last write of `a` at the earliest.
    let released = stage.lease_writes("a").pop().unwrap();
    let taken = || async { stage.lease_writes("b").into_iter().next() };
    let taken = eventually("the Lease written by b", taken).await;
    let took = taken.duration_since(released);
    assert!(took < SignedDuration::from_secs(10), "{took:?}");
    assert_eq!(b.metric("lb_linker_leader"), Some(1.0));
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_target("web", "two.example.com").await;
    let lease = stage.lease(&stage.target).await;
    assert!(holder(&lease).starts_with("b_"), "{lease:?}");
    let spec = lease.spec.unwrap();
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(1)));
    // The new leader writes only the object that differs.
    stage.wait_for_writes("b", 1).await;
}

#[tokio::test]
async fn dead_leader_is_succeeded_when_its_lease_has_ended() {
    let stage = Fixture::new("killed").await;
    let (mut a, b) = stage.start_leader_and_follower(&["--delete-delay", "0s"]).await;
    for name in ["web", "gone"] {
        stage.set_hostname(name, "one.example.com").await;
        stage.wait_for_target(name, "one.example.com").await;
    }
    stage.wait_for_answer(&b, "gone", "one.example.com.").await;
    a.kill();
    // A changed Lease isn't free before another 15 s, so that no replica leads until the last change.
    let (is_done, mut changed) = (AtomicBool::new(false), Instant::now());
    let change = async {
        for number in 0.. {
            changed = Instant::now();
            let patch = json!({"metadata": {"annotations": {"test": number.to_string()}}});
            let leases = stage.leases(&stage.target);
            leases.patch("lb-linker", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            if is_done.load(Ordering::SeqCst) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    };
    let without_leader = async {
        stage.set_hostname("web", "two.example.com").await;
        stage.wait_for_answer(&b, "web", "two.example.com.").await;
        stage.cluster.delete_service(&stage.namespace, "gone").await;
        stage.wait_for_answer(&b, "gone", "No Error").await;
        // A replica that starts while there is no leader gives the same answer.
        let c = stage.replica("c", &[], &["--leader-election", "lease", "--delete-delay", "0s"]);
        c.line(&format!("link {}/gone: its Service is gone", stage.namespace)).await;
        stage.wait_for_answer(&c, "gone", "No Error").await;
        assert_eq!(stage.writes("b").len() + stage.writes("c").len(), 0);
        is_done.store(true, Ordering::SeqCst);
        c
    };
    let ((), c) = tokio::join!(change, without_leader);

    stage.wait_for_target("web", "two.example.com").await;
    let took = changed.elapsed();
    assert!(took > Duration::from_secs(14), "{took:?}");
    for linker in [&b, &c] {
        stage.wait_for_answer(linker, "gone", "Non-Existent Domain").await;
    }
    assert_eq!(b.logged("leading now") + c.logged("leading now"), 1);
    let leaders = [stage.writes("b"), stage.writes("c")];
    assert_eq!(leaders.iter().filter(|writes| !writes.is_empty()).count(), 1, "{leaders:#?}");
}

#[tokio::test]
async fn leader_stopped_past_its_lease_writes_nothing_afterwards() {
    const LINKS: usize = 20;
    let stage = Fixture::new("stopped").await;
    let (mut a, mut b) = stage.start_leader_and_follower(&[]).await;
    let name = |i: usize| format!("svc-{i}");
    let all = async |host: &str| {
        for i in 0..LINKS {
            stage.set_hostname(&name(i), host).await;
        }
    };
    let all_written = async |host: &str| {
        for i in 0..LINKS {
            stage.wait_for_target(&name(i), host).await;
        }
    };
    all("one.example.com").await;
    all_written("one.example.com").await;
    stage.wait_for_answer(&a, &name(LINKS - 1), "one.example.com.").await;

    a.signal(Signal::SIGSTOP);
    all("two.example.com").await;
    b.line("leading now as b_").await;
    all_written("two.example.com").await;
    all("three.example.com").await;
    all_written("three.example.com").await;
    let before = LINKS;
    stage.wait_for_writes("a", before).await;
    let all_before = stage.all_writes("a").len();
    a.signal(Signal::SIGCONT);
    a.line("not leading any more: the Lease couldn't be renewed for 10 s").await;
    let line = a.line(" leads").await;
    assert!(line.contains("INFO b_"), "{line}");
    // Wait until `a` has received all changes.
    for i in 0..LINKS {
        stage.wait_for_answer(&a, &name(i), "three.example.com.").await;
    }
    assert_eq!(a.metric("lb_linker_leader"), Some(0.0));
    let tried = stage.writes("a");
    assert_eq!(tried.len(), before, "{:#?}", &tried[before..]);
    let mut tried = stage.all_writes("a").split_off(all_before);
    // One Event may already have been handed to the connection, which checks no Lease.
    if let Some(place) = tried.iter().position(|event| event.resource == "events") {
        tried.remove(place);
    }
    assert!(tried.is_empty(), "{tried:#?}");

    // `a` leads again: it relists before its first write, and writes only current targets.
    let earlier = stage.requests("a").len();
    assert!(b.stop().success());
    // The targets change before or just after the next term begins, so the next leader has something to write.
    all("four.example.com").await;
    wait_for_log_lines(&a, "leading now as a_", 2).await;
    all_written("four.example.com").await;
    stage.wait_for_writes("a", 2 * LINKS).await;
    stage.wait_for_writes("b", 2 * LINKS).await;
    let since = stage.requests("a").split_off(earlier);
    let first = since.iter().position(|event| event.is_write() && event.resource != "leases").unwrap();
    for (resource, namespace) in
        [("services", &stage.target), ("endpointslices", &stage.target), ("services", &stage.namespace)]
    {
        let is_it = |event: &AuditEvent| {
            event.is_list() && event.resource == resource && event.namespace == *namespace
        };
        assert!(since[..first].iter().any(is_it), "{resource} in {namespace}: {since:#?}");
    }
    let mut hosts: Vec<String> = stage.writes("a")[before..]
        .iter()
        .map(|event| event.request.as_ref().unwrap()["spec"]["externalName"].as_str().unwrap().to_owned())
        .collect();
    hosts.dedup();
    assert_eq!(hosts, ["four.example.com"]);
}

#[tokio::test]
async fn leader_stopped_amid_writes_writes_nothing_stale_afterwards() {
    const LINKS: usize = 150;
    let stage = Fixture::new("amid").await;
    let (mut a, b) = stage.start_leader_and_follower(&[]).await;
    let name = |i: usize| format!("svc-{i}");
    let all = async |host: &str| {
        let change = async |i: usize| stage.set_hostname(&name(i), host).await;
        futures::stream::iter(0..LINKS).for_each_concurrent(8, change).await;
    };
    let written = |events: &[AuditEvent], host: &str| {
        let is_it = |event: &&AuditEvent| {
            event.code < 300
                && event.request.as_ref().is_some_and(|sent| sent["spec"]["externalName"] == host)
        };
        events.iter().filter(is_it).count()
    };
    all("one.example.com").await;
    eventually("the first targets", || async {
        (written(&stage.writes("a"), "one.example.com") == LINKS).then_some(())
    })
    .await;

    let stop = async {
        eventually("the first write", || async {
            (written(&stage.writes("a"), "two.example.com") > 0).then_some(())
        })
        .await;
        a.signal(Signal::SIGSTOP);
    };
    tokio::join!(all("two.example.com"), stop);
    b.line("leading now as b_").await;
    all("three.example.com").await;
    eventually("the last targets", || async {
        (written(&stage.writes("b"), "three.example.com") == LINKS).then_some(())
    })
    .await;
    let before = stage.writes("a");
    let half = written(&before, "two.example.com");
    assert!(half < LINKS, "`a` must be stopped before it has written all targets");
    let dropped = "lb_linker_events_dropped_total";
    let all_before = stage.all_writes("a");
    let events = |all: &[AuditEvent]| all.iter().filter(|event| event.resource == "events").count();
    a.signal(Signal::SIGCONT);
    let line = a.line(" leads").await;
    assert!(line.contains("INFO b_"), "{line}");
    for i in 0..LINKS {
        stage.wait_for_answer(&a, &name(i), "three.example.com.").await;
    }
    // The API server rejects requests that were in flight: the objects have changed since (409), or the request body
    // arrived too late (504).
    let tried = stage.writes("a").split_off(before.len());
    assert!(tried.iter().all(|event| matches!(event.code, 409 | 504)), "{tried:#?}");
    assert!(tried.len() <= 16, "no more than were under way at once: {}", tried.len());
    // The API server accepts late Events, so lb-linker drops queued Events itself. On a busy machine all Events of
    // the first targets may have been sent already.
    let waiting = LINKS.saturating_sub(events(&all_before));
    let given_up = || async { (a.metric(dropped)? >= waiting as f64).then_some(()) };
    eventually("the Events that waited to be dropped", given_up).await;
    let sent = events(&stage.all_writes("a")) - events(&all_before);
    // Events are sent one at a time: one Event may already have been handed to the connection, which checks no Lease.
    assert!(sent <= 1, "{sent} Events of a term that is over");
    for i in 0..LINKS {
        stage.wait_for_target(&name(i), "three.example.com").await;
    }
}

#[tokio::test]
async fn leader_writes_nothing_stale_after_a_suspend() {
    assert_nothing_stale_after("suspended", ClockStop::Suspend).await;
}

#[tokio::test]
async fn leader_writes_nothing_stale_after_a_vm_pause() {
    assert_nothing_stale_after("paused", ClockStop::Pause).await;
}

/// Stops a leader and its clocks for longer than the Lease duration while targets change and Services are deleted and
/// created. Then resumes the leader, and asserts that its delayed writes change nothing.
async fn assert_nothing_stale_after(prefix: &str, how: ClockStop) {
    const LINKS: usize = 30;
    const COMING: usize = 8;
    let stage = Fixture::new(prefix).await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    grant_optional(stage.plane, "source", &stage.namespace);
    for account in ["a", "b"] {
        let subject = format!("--serviceaccount={}:{account}", stage.namespace);
        let role = ["create", "rolebinding", account, "--clusterrole=lb-linker-source", &subject];
        stage.plane.kubectl(&[&["-n", &stage.namespace], &role[..]].concat());
    }
    let args = ["--leader-election", "lease", "--delete-delay", "0s", "--max-deletes", "unlimited"];
    let mut clock = ShiftedClock::new();
    let variables = clock.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
    let mut a = stage.replica("a", &variables, &args);
    a.line("leading now as a_").await;
    let b = stage.replica("b", &[], &args);
    b.line(" leads").await;
    b.ready().await;

    let all = async |prefix: &str, number: usize, host: &str| {
        let change = async |i: usize| stage.set_hostname(&format!("{prefix}-{i}"), host).await;
        futures::stream::iter(0..number).for_each_concurrent(8, change).await;
    };
    let all_written = async |prefix: &str, number: usize, host: &str| {
        for i in 0..number {
            stage.wait_for_target(&format!("{prefix}-{i}"), host).await;
        }
    };
    let delete = async |prefix: &str, number: usize| {
        for i in 0..number {
            stage.cluster.delete_service(&stage.namespace, &format!("{prefix}-{i}")).await;
        }
    };
    let all_gone = async |prefix: &str, number: usize| {
        for i in 0..number {
            let object = stage.object(&format!("{prefix}-{i}"));
            let look =
                || async { stage.cluster.get_service(&stage.target, &object).await.is_none().then_some(()) };
            eventually(&format!("the end of {object}"), look).await;
        }
    };
    let follower = json!({
        "metadata": {"name": "follower", "annotations": {"linker.hsj.com/source": "svc-0"}},
        "spec": {"type": "ExternalName", "externalName": "none.example.com"},
    });
    stage.cluster.create_service(&stage.namespace, follower).await;
    all("svc", LINKS, "one.example.com").await;
    all("going", COMING, "one.example.com").await;
    all_written("svc", LINKS, "one.example.com").await;
    all_written("going", COMING, "one.example.com").await;
    wait_for_external_target(&stage.cluster, &stage.namespace, "follower", "one.example.com").await;

    clock.stop(&mut a);
    all("svc", LINKS, "two.example.com").await;
    delete("going", COMING).await;
    all("coming", COMING, "two.example.com").await;
    b.line("leading now as b_").await;
    all_written("svc", LINKS, "two.example.com").await;
    all_written("coming", COMING, "two.example.com").await;
    all_gone("going", COMING).await;
    all("svc", LINKS, "three.example.com").await;
    all_written("svc", LINKS, "three.example.com").await;
    wait_for_external_target(&stage.cluster, &stage.namespace, "follower", "three.example.com").await;
    delete("coming", COMING).await;
    all_gone("coming", COMING).await;
    let before = stage.all_writes("a").len();

    clock.resume(&mut a, how);
    let line = a.line(" leads").await;
    assert!(line.contains("INFO b_"), "{line}");
    for i in 0..LINKS {
        stage.wait_for_answer(&a, &format!("svc-{i}"), "three.example.com.").await;
    }
    // `b` writes another target: by then the audit log has every request that `a` had begun.
    stage.set_hostname("last", "last.example.com").await;
    stage.wait_for_target("last", "last.example.com").await;
    let tried = stage.all_writes("a").split_off(before);
    let (events, stale): (Vec<_>, Vec<_>) =
        tried.iter().filter(|event| event.code < 300).partition(|event| event.resource == "events");
    assert!(stale.is_empty(), "{stale:#?}");
    // Events are sent one at a time: one Event may have been handed to the connection when the process was stopped.
    assert!(events.len() <= 1, "{events:#?}");
    all_written("svc", LINKS, "three.example.com").await;
    wait_for_external_target(&stage.cluster, &stage.namespace, "follower", "three.example.com").await;
    all_gone("going", COMING).await;
    all_gone("coming", COMING).await;
}

/// Returns the term in the annotations of an object or a Lease.
fn term(annotations: Option<&std::collections::BTreeMap<String, String>>) -> Option<u64> {
    annotations?.get("linker.hsj.com/term").map(|term| term.parse().unwrap())
}

#[tokio::test]
async fn each_leader_writes_a_higher_term_without_extra_writes() {
    let stage = Fixture::new("terms").await;
    let (mut a, b) = stage.start_leader_and_follower(&["--delete-delay", "0s"]).await;
    stage.cluster.create_load_balancer(&stage.namespace, "ip").await;
    stage.cluster.set_ingress(&stage.namespace, "ip", &[Ingress::Ip("192.0.2.1")]).await;
    for name in ["web", "kept"] {
        stage.set_hostname(name, "one.example.com").await;
        stage.wait_for_target(name, "one.example.com").await;
    }
    let term_of = async |name: &str| {
        let object = stage.cluster.get_service(&stage.target, &stage.object(name)).await.unwrap();
        term(object.metadata.annotations.as_ref())
    };
    let lease_term = async || term(stage.lease(&stage.target).await.metadata.annotations.as_ref());
    let first = lease_term().await;
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(first.is_some_and(|first| first <= unix && first + 600 > unix), "{first:?} at {unix}");
    // Three Services and one EndpointSlice.
    stage.wait_for_writes("a", 4).await;
    for name in ["web", "kept", "ip"] {
        assert_eq!(term_of(name).await, first, "{name}");
    }
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(stage.cluster.client.clone(), &stage.target);
    let slice = slices.get(&format!("{}-ipv4", stage.object("ip"))).await.unwrap();
    assert_eq!(term(slice.metadata.annotations.as_ref()), first);
    // The leader writes its term to the Lease before it writes any Service.
    let asked = stage.requests_in("a", &stage.target);
    let claim = asked.iter().position(|event| event.resource == "leases" && event.is_write()).unwrap();
    let write = asked.iter().position(|event| event.resource == "services" && event.is_write()).unwrap();
    assert!(claim < write, "{asked:#?}");

    assert!(a.stop().success());
    b.line("leading now as b_").await;
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_target("web", "two.example.com").await;
    let second = lease_term().await;
    assert!(second > first, "{second:?} {first:?}");
    assert_eq!((term_of("web").await, term_of("kept").await), (second, first));
    stage.wait_for_writes("b", 1).await;
}

#[tokio::test]
async fn status_pages_of_all_replicas_name_the_leader() {
    let stage = Fixture::new("named").await;
    let (a, b) = stage.start_leader_and_follower(&[]).await;
    for (replica, leads) in [(&a, true), (&b, false)] {
        let (status, instance) = get_from(replica.admin().await, "localhost", "/api/instance");
        let instance: Value = serde_json::from_str(&instance).unwrap();
        assert_eq!((status, &instance["leads"]), (200, &Value::Bool(leads)), "{instance}");
        assert!(instance["leader"].as_str().unwrap().starts_with("a_"), "{instance}");
    }
}

#[tokio::test]
async fn replicas_without_a_leader_say_so() {
    let stage = Fixture::new("leaderless").await;
    let (a, b) = stage.start_leader_and_follower(&[]).await;
    stage.set_hostname("web", "one.example.com").await;
    stage.wait_for_target("web", "one.example.com").await;
    let admins = [a.admin().await, b.admin().await];
    let instance =
        |admin| -> Value { serde_json::from_str(&get_from(admin, "localhost", "/api/instance").1).unwrap() };
    let leader = instance(admins[1])["leader"].as_str().unwrap().to_owned();
    assert!(leader.starts_with("a_"), "{leader}");
    assert_eq!([&a, &b].map(Linker::get_ready), [(200, "OK".to_owned()), (200, "OK".to_owned())]);

    stage.plane.kubectl(&["-n", &stage.target, "delete", "rolebinding", "lb-linker-in-lb-linker"]);
    for linker in [&a, &b] {
        eventually("the note about the leader", || async {
            let (code, body) = linker.get_ready();
            assert_eq!(code, 200, "{body}");
            (body.contains("no replica leads") && body.contains("cannot get resource")).then_some(())
        })
        .await;
    }
    stage.set_hostname("web", "two.example.com").await;
    for admin in admins {
        let state = instance(admin);
        assert_eq!((state.get("leader"), &state["leads"]), (None, &json!(false)), "{state}");
        let reason = "its external target still points at one.example.com: no replica leads";
        eventually("the reason of the link", || async {
            let listed = links_of(admin, &["-o", "wide"]);
            let warned = String::from_utf8(listed.stderr).unwrap();
            assert!(
                warned.contains("no replica leads, as far as this one knows: nothing is written"),
                "{warned}"
            );
            String::from_utf8(listed.stdout).unwrap().contains(reason).then_some(())
        })
        .await;
    }

    stage.grant(&["10-rbac.yaml"], &stage.target);
    for linker in [&a, &b] {
        eventually("a leader", || async { (linker.get_ready() == (200, "OK".to_owned())).then_some(()) })
            .await;
    }
    stage.wait_for_target("web", "two.example.com").await;
    assert!(admins.iter().all(|admin| instance(*admin)["leader"].is_string()));
}

#[tokio::test]
async fn higher_term_set_by_hand_is_adopted_if_plausible() {
    let stage = Fixture::new("by-hand").await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    let a = stage.replica("a", &[], &["--leader-election", "lease"]);
    stage.set_hostname("web", "one.example.com").await;
    stage.wait_for_target("web", "one.example.com").await;
    let (web, lease) = (stage.object("web"), || stage.lease(&stage.target));
    let lease_term = async || term(lease().await.metadata.annotations.as_ref()).unwrap();
    let set = async |value: &str| {
        let patch = json!({"metadata": {"annotations": {"linker.hsj.com/term": value}}});
        stage.cluster.patch_service(&stage.target, &web, patch).await;
    };
    let first = lease_term().await;
    // The Lease still names this process, so the process continues in a higher term.
    set(&(first + 1000).to_string()).await;
    a.line(&format!("it continues in term {}", first + 1001)).await;
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_target("web", "two.example.com").await;
    assert_eq!(lease_term().await, first + 1001);
    assert_eq!(a.logged("not leading any more"), 0);

    // An unusable term is overwritten and doesn't change the Lease's term.
    for value in ["nonsense".to_owned(), "-1".to_owned(), (first + 200_000).to_string()] {
        set(&value).await;
        let repaired = || async {
            let object = stage.cluster.get_service(&stage.target, &web).await?;
            (object.metadata.annotations?["linker.hsj.com/term"] == (first + 1001).to_string()).then_some(())
        };
        eventually(&format!("the repair of {value}"), repaired).await;
    }
    assert_eq!(lease_term().await, first + 1001);

    // A process stops leading when another process has taken the Lease, even before its own lease duration ends.
    let taken = json!({"metadata": {"annotations": {"linker.hsj.com/term": (first + 5000).to_string()}},
        "spec": {"holderIdentity": "another"}});
    let patch = Patch::Merge(taken);
    stage.leases(&stage.target).patch("lb-linker", &PatchParams::default(), &patch).await.unwrap();
    set(&(first + 5000).to_string()).await;
    a.line("not leading any more: another has taken the Lease").await;
}

#[tokio::test]
async fn stale_leaders_object_without_a_link_is_deleted_at_once() {
    let stage = Fixture::new("former").await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    let a = stage.replica("a", &[], &["--leader-election", "lease", "--max-deletes", "0"]);
    stage.set_hostname("web", "one.example.com").await;
    stage.wait_for_target("web", "one.example.com").await;
    let lease = stage.lease(&stage.target).await;
    let own = term(lease.metadata.annotations.as_ref()).unwrap();
    let create = async |name: &str, term: Option<u64>| {
        let instance = format!("{}/lb-linker", stage.target);
        let mut annotations = json!({"linker.hsj.com/instance": instance});
        if let Some(term) = term {
            annotations["linker.hsj.com/term"] = json!(term.to_string());
        }
        let object = json!({
            "metadata": {"name": stage.object(name), "annotations": annotations, "labels": {
                "app.kubernetes.io/managed-by": "lb-linker-operator",
                "original-service-name": name, "original-service-namespace": stage.namespace}},
            "spec": {"type": "ExternalName", "externalName": "stale.example.com"},
        });
        let object = serde_json::from_value(object).unwrap();
        let post = PostParams { field_manager: Some("lb-linker".to_owned()), ..Default::default() };
        stage.cluster.services(&stage.target).create(&post, &object).await.unwrap();
    };
    create("undated", None).await;
    create("current", Some(own)).await;
    create("stale", Some(own - 1)).await;
    let object = stage.object("stale");
    let look = || async { stage.cluster.get_service(&stage.target, &object).await.is_none().then_some(()) };
    eventually("the removal of the object of the former leader", look).await;
    a.line(&format!("a former leader has created it in term {}", own - 1)).await;
    // Objects with the current term or without a term wait for --delete-delay and --max-deletes, like any object of a
    // deleted Service.
    for name in ["undated", "current"] {
        assert!(stage.cluster.get_service(&stage.target, &stage.object(name)).await.is_some(), "{name}");
    }
    // A deleted external target of an existing Service is recreated.
    stage
        .cluster
        .services(&stage.target)
        .delete(&stage.object("web"), &DeleteParams::default())
        .await
        .unwrap();
    stage.wait_for_target("web", "one.example.com").await;
    assert_eq!(a.metric("lb_linker_deletes_held"), Some(0.0));
}

#[tokio::test]
async fn term_without_election_starts_above_terms_of_objects() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("no-election").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("one.example.com")]).await;
    let object = format!("web-{namespace}-ext");
    let first = wait_for_external_target(&cluster, &target, &object, "one.example.com").await;
    let first = term(first.metadata.annotations.as_ref()).unwrap();
    assert!(linker.stop().success());
    let ahead = json!({"metadata": {"annotations": {"linker.hsj.com/term": (first + 3000).to_string()}}});
    cluster.patch_service(&target, &object, ahead).await;
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("two.example.com")]).await;
    let second = wait_for_external_target(&cluster, &target, &object, "two.example.com").await;
    assert_eq!(term(second.metadata.annotations.as_ref()), Some(first + 3001));
    // After the start, a higher term may belong to another process: the object is left alone and logged.
    let ahead = json!({"metadata": {"annotations": {"linker.hsj.com/term": (first + 4000).to_string()}}});
    cluster.patch_service(&target, &object, ahead).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("three.example.com")]).await;
    linker.line("which is higher than the term of this process").await;
    let kept = cluster.get_service(&target, &object).await.unwrap().spec.unwrap().external_name;
    assert_eq!(kept.as_deref(), Some("two.example.com"));
    let removed = json!({"metadata": {"annotations": {"linker.hsj.com/term": null}}});
    cluster.patch_service(&target, &object, removed).await;
    wait_for_external_target(&cluster, &target, &object, "three.example.com").await;
}

#[tokio::test]
async fn leader_recreates_its_deleted_lease() {
    let stage = Fixture::new("deleted").await;
    let (mut a, b) = stage.start_leader_and_follower(&[]).await;
    for times in 2..5 {
        stage.leases(&stage.target).delete("lb-linker", &DeleteParams::default()).await.unwrap();
        wait_for_log_lines(&a, "leading now as a_", times).await;
    }
    assert_eq!(b.logged("leading now"), 0, "{:#?}", b.log());
    let seen = || {
        let asked = stage.requests_in("b", &stage.target);
        asked.iter().filter(|event| event.resource == "leases" && event.code == 200).count()
    };
    let before = seen();
    eventually("b to see the new Lease", || async { (seen() > before).then_some(()) }).await;

    // The stopped leader can't know that its Lease is deleted, so no other replica leads before that Lease would have
    // expired.
    a.signal(Signal::SIGSTOP);
    let deleted = Instant::now();
    stage.leases(&stage.target).delete("lb-linker", &DeleteParams::default()).await.unwrap();
    b.line("the Lease of a_").await;
    b.line("leading now as b_").await;
    let took = deleted.elapsed();
    assert!(took > Duration::from_secs(14), "{took:?}");
    a.signal(Signal::SIGCONT);
    let line = a.line(" leads").await;
    assert!(line.contains("INFO b_"), "{line}");
    let count = |linker: &Linker, verb: &str, code: u16| {
        let metric = format!("lb_linker_api_writes_total{{code=\"{code}\",kind=\"Lease\",verb=\"{verb}\"}}");
        linker.metric(&metric).unwrap_or_default()
    };
    assert_eq!((count(&a, "create", 201), count(&b, "create", 201)), (4.0, 1.0));
    assert!(count(&a, "update", 409) >= 3.0, "a deleted Lease isn't renewed");
    assert!(count(&b, "update", 409) == 0.0, "a follower writes nothing");
}

#[tokio::test]
async fn losing_the_lease_stops_only_the_writes() {
    let stage = Fixture::new("taken").await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    let a = stage.replica("a", &[], &["--leader-election", "lease"]);
    stage.set_hostname("web", "one.example.com").await;
    stage.wait_for_target("web", "one.example.com").await;

    stage.patch_lease(json!({"holderIdentity": "somebody"})).await;
    a.line("not leading any more: somebody has taken the Lease").await;
    a.line("INFO somebody leads").await;
    stage.wait_for_writes("a", 1).await;
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_answer(&a, "web", "two.example.com.").await;
    stage.wait_for_target("web", "one.example.com").await;
    // A second change of the holder doesn't make `a` write either.
    stage.patch_lease(json!({"holderIdentity": "another"})).await;
    a.line("INFO another leads").await;
    assert_eq!(stage.writes("a").len(), 1);
    stage.wait_for_target("web", "one.example.com").await;

    stage.patch_lease(json!({"holderIdentity": ""})).await;
    wait_for_log_lines(&a, "leading now as a_", 2).await;
    stage.wait_for_target("web", "two.example.com").await;

    stage.leases(&stage.target).delete("lb-linker", &DeleteParams::default()).await.unwrap();
    a.line("not leading any more: the Lease was deleted").await;
    wait_for_log_lines(&a, "leading now as a_", 3).await;
    assert!(holder(&stage.lease(&stage.target).await).starts_with("a_"));
    stage.set_hostname("web", "three.example.com").await;
    stage.wait_for_target("web", "three.example.com").await;
}

#[tokio::test]
async fn missing_permission_for_the_lease_is_logged_once() {
    let stage = Fixture::new("no-lease").await;
    // The accounts have no permission on the Lease in the target namespace.
    stage.grant(&["10-rbac.yaml"], &stage.namespace);
    stage.set_hostname("web", "one.example.com").await;
    let a = stage.replica("a", &[], &["--leader-election", "lease"]);
    let line = a.line(&format!("can't get Lease {}/lb-linker", stage.target)).await;
    assert!(line.contains("needs get, create and update on leases there, as the Role of deploy/"), "{line}");
    assert!(line.contains("give --instance lb-linker/lb-linker; retrying"), "{line}");
    stage.wait_for_answer(&a, "web", "one.example.com.").await;
    let about_leases =
        || stage.requests_in("a", &stage.target).iter().filter(|event| event.resource == "leases").count();
    eventually("a second try", || async { (about_leases() >= 2).then_some(()) }).await;
    assert!(stage.cluster.get_service(&stage.target, &stage.object("web")).await.is_none());

    let kubeconfig = stage.plane.kubeconfig_for_service_account(&stage.namespace, "a");
    let check = ["check", "--cluster", "--upstream", "none", "--leader-election", "lease", "--kubeconfig"];
    let check = [&check[..], &[kubeconfig.to_str().unwrap(), "--target-namespace", &stage.target]].concat();
    let output = run_to_end_with(&[], &check);
    let complaints = cluster_errors(&output);
    assert_eq!(output.status.code(), Some(1), "{complaints}");
    let missing = |right: &str, place: &str| {
        let namespace = &stage.target;
        format!(
            "the permission to {right} in namespace {namespace} is missing; it is in deploy/, for the Lease {place}\n"
        )
    };
    let rights = ["create leases", "get leases/lb-linker", "update leases/lb-linker"];
    let place =
        "in its own namespace: to take part in the election of deploy/, give --instance lb-linker/lb-linker";
    assert_eq!(complaints, rights.map(|right| missing(right, place)).concat());

    stage.grant(&["10-rbac.yaml"], &stage.target);
    stage.wait_for_target("web", "one.example.com").await;
    assert_eq!(a.logged("; retrying"), 1, "{:#?}", a.log());
    a.line("can be used again").await;
    assert!(about_leases() < 20, "a hot loop: {}", about_leases());
    assert_eq!(run_to_end_with(&[], &check).status.code(), Some(0));
    // The permissions cover one Lease name.
    let instance = format!("{}/lb-linker", stage.target);
    let other = [("LB_LINKER_LEASE_NAME", "other"), ("LB_LINKER_INSTANCE", &*instance)];
    let output = run_to_end_with(&other, &check);
    let complaints = cluster_errors(&output);
    assert_eq!(
        complaints,
        ["get leases/other", "update leases/other"]
            .map(|right| missing(right, "in the namespace of --instance"))
            .concat(),
        "RBAC can't limit a create to a name"
    );
}

#[tokio::test]
async fn leader_for_life_is_succeeded_when_its_pod_ends() {
    let stage = Fixture::new("life").await;
    stage.grant(&["10-rbac.yaml", "life/rbac.yaml"], &stage.namespace);
    let pods: Api<Pod> = Api::namespaced(stage.cluster.client.clone(), &stage.namespace);
    let make = async |name: &str| {
        let spec = json!({"containers": [{"name": "lb-linker", "image": "lb-linker"}]});
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        pods.patch_status(name, &PatchParams::default(), &running).await.unwrap();
        pod.metadata.uid.unwrap()
    };
    let remove = async |name: &str| {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        pods.delete(name, &at_once).await.unwrap();
    };
    let in_pod = |account: &str, pod: &str| {
        let variables = [("POD_NAME", pod), ("POD_NAMESPACE", &*stage.namespace)];
        stage.replica(account, &variables, &["--leader-election", "life"])
    };
    let uid = make("pod-a").await;
    make("pod-b").await;
    make("pod-c").await;
    let mut a = in_pod("a", "pod-a");
    a.line("leading now as a_").await;
    let lease = stage.lease(&stage.namespace).await;
    let owner = &lease.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Pod", "pod-a", &*uid));
    stage.set_hostname("web", "one.example.com").await;
    stage.wait_for_target("web", "one.example.com").await;

    // The process dies and its Pod stays: the next process in that Pod leads.
    let b = in_pod("b", "pod-b");
    b.line("INFO a_").await;
    a.kill();
    let looks = || {
        let asked = stage.requests_in("b", &stage.namespace);
        asked.iter().filter(|event| event.resource == "pods" && event.name == "pod-a").count()
    };
    let before = looks();
    eventually("some looks at the Pod", || async { (looks() >= before + 3).then_some(()) }).await;
    assert_eq!(b.logged("leading now"), 0);
    let mut a = in_pod("a", "pod-a");
    a.line("leading now as a_").await;
    stage.set_hostname("web", "two.example.com").await;
    stage.wait_for_target("web", "two.example.com").await;

    a.kill();
    let evicted = Patch::Merge(json!({"status": {"phase": "Failed", "reason": "Evicted"}}));
    pods.patch_status("pod-a", &PatchParams::default(), &evicted).await.unwrap();
    b.line("leading now as b_").await;

    // The leader's Pod is force-deleted while its process keeps running: the process stops leading.
    let mut c = in_pod("c", "pod-c");
    c.line("INFO b_").await;
    remove("pod-b").await;
    c.line("leading now as c_").await;
    // The Lease is deleted and recreated: `b` may report either change.
    b.line("not leading any more").await;
    stage.set_hostname("web", "three.example.com").await;
    stage.wait_for_target("web", "three.example.com").await;
    stage.wait_for_answer(&b, "web", "three.example.com.").await;

    // A new Pod has the same name as the leader's deleted Pod.
    c.kill();
    remove("pod-c").await;
    make("pod-c").await;
    make("pod-d").await;
    let mut d = in_pod("a", "pod-d");
    wait_for_log_lines(&d, "leading now as a_", 1).await;
    // A leader that shuts down releases the Lease at once, even though its Pod still exists.
    let e = in_pod("c", "pod-c");
    e.line("INFO a_").await;
    assert!(d.stop().success());
    e.line("leading now as c_").await;
    stage.set_hostname("web", "four.example.com").await;
    stage.wait_for_target("web", "four.example.com").await;
}

#[tokio::test]
async fn leader_for_life_needs_a_pod_and_permissions() {
    let stage = Fixture::new("no-pod").await;
    let kubeconfig = stage.plane.kubeconfig_for_service_account(&stage.namespace, "a");
    let run = |command: &'static [&'static str], variables: &[(&str, &str)]| {
        let args = ["--upstream", "none", "--leader-election", "life", "--kubeconfig"];
        let args =
            [command, &args, &[kubeconfig.to_str().unwrap(), "--target-namespace", &stage.target]].concat();
        let output = run_to_end_with(variables, args);
        let found = cluster_errors(&output);
        (output.status.code(), String::from_utf8(output.stderr).unwrap() + &found)
    };
    for command in [&["run"][..], &["check"], &["check", "--cluster"]] {
        let (code, complaint) = run(command, &[("POD_NAME", "pod")]);
        assert_eq!(code, Some(2), "{complaint}");
        assert!(
            complaint.starts_with("lb-linker: --leader-election life works in a Pod only"),
            "{complaint}"
        );
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    stage.grant(&["10-rbac.yaml"], &stage.namespace);
    let pod = [("POD_NAME", "pod"), ("POD_NAMESPACE", &*stage.namespace)];
    let missing = |what| {
        format!(
            "the permission to {what} in namespace {} is missing; it is in deploy/life/, for --leader-election life\n",
            stage.namespace
        )
    };
    // The API server applies new permissions a moment later.
    let complaints = async |expected: (Option<i32>, String)| {
        let look = || async { (run(&["check", "--cluster"], &pod) == expected).then_some(()) };
        eventually(&format!("{expected:?}"), look).await;
    };
    let expected = ["delete leases/lb-linker", "get pods"].map(missing).concat();
    complaints((Some(1), expected)).await;
    stage.grant(&["life/rbac.yaml"], &stage.namespace);
    complaints((Some(0), String::new())).await;
}

#[tokio::test]
async fn new_leader_keeps_targets_that_a_typo_leaves_out() {
    let stage = Fixture::new("left-out").await;
    let names = ["one", "two", "three"];
    for name in names {
        stage.set_hostname(name, &format!("{name}.example.com")).await;
    }
    let (mut a, mut b) = stage.start_leader_and_follower(&["--delete-delay", "0s"]).await;
    for name in names {
        stage.wait_for_target(name, &format!("{name}.example.com")).await;
    }
    assert!(b.stop().success() && a.stop().success());
    stage.wait_for_writes("a", names.len()).await;

    let (mut a, b) =
        stage.start_leader_and_follower(&["--delete-delay", "0s", "--service-selector", "tire=web"]).await;
    for linker in [&a, &b] {
        let line = linker.line("--service-selector leaves out their load balancers").await;
        assert!(line.contains("3 of 3 external targets would go"), "{line}");
        for name in names {
            stage.wait_for_answer(linker, name, &format!("{name}.example.com.")).await;
        }
    }
    a.kill();
    b.line("leading now as b_").await;
    eventually("the new leader's Events", || async {
        let recorded = stage.all_writes("b");
        (recorded.iter().any(|event| event.resource == "events")
            && stage.plane.event_reasons(&stage.namespace).iter().any(|reason| reason == "LeftOut"))
        .then_some(())
    })
    .await;
    for name in names {
        stage.wait_for_target(name, &format!("{name}.example.com")).await;
        stage.wait_for_answer(&b, name, &format!("{name}.example.com.")).await;
    }
    assert_eq!(stage.writes("b").len(), 0, "{:#?}", stage.writes("b"));
    assert_eq!(stage.writes("a").len(), names.len(), "{:#?}", stage.writes("a"));
    assert!(
        (b.metric("lb_linker_left_out{flag=\"--service-selector\"}").unwrap() - 3.0).abs() < f64::EPSILON
    );
}

#[tokio::test]
async fn follower_with_a_typo_answers_but_removes_nothing() {
    let stage = Fixture::new("left-out").await;
    stage.grant(&["10-rbac.yaml"], &stage.target);
    let args = ["--leader-election", "lease", "--delete-delay", "0s"];
    let mut a = stage.replica("a", &[], &args);
    a.line("leading now as a_").await;
    for name in ["one", "two"] {
        stage.set_hostname(name, &format!("{name}.example.com")).await;
        stage.wait_for_target(name, &format!("{name}.example.com")).await;
    }
    let b = stage.replica("b", &[], &[&args[..], &["--service-selector", "tire=web"]].concat());
    b.line("2 of 2 external targets would go").await;
    for name in ["one", "two"] {
        stage.wait_for_answer(&b, name, &format!("{name}.example.com.")).await;
    }
    // `b` answers with the targets in the external targets that `a` writes, and with NODATA for a new Service that `b`
    // doesn't select.
    stage.set_hostname("one", "new.example.com").await;
    stage.wait_for_answer(&b, "one", "new.example.com.").await;
    stage.set_hostname("three", "three.example.com").await;
    stage.wait_for_target("three", "three.example.com").await;
    stage.wait_for_answer(&b, "three", "No Error").await;
    a.kill();
    b.line("leading now as b_").await;
    b.line("3 of 3 external targets would go; 1 of them because --service-selector").await;
    stage.wait_for_answer(&b, "three", "three.example.com.").await;
    for (name, host) in [("one", "new"), ("two", "two"), ("three", "three")] {
        stage.wait_for_target(name, &format!("{host}.example.com")).await;
        stage.wait_for_answer(&b, name, &format!("{host}.example.com.")).await;
    }
    assert_eq!(stage.writes("b").len(), 0, "{:#?}", stage.writes("b"));
}
