//! Failing watches, restores of etcd, and lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::harness::{LINKER, cluster_with_target, eventually, permission};
use crate::links::{links_of, text};
use crate::recreation::wait_for_external_target;

pub const TARGETS: &str = "external-targets";
/// The harness's text for NXDOMAIN.
const ABSENT: &str = "Non-Existent Domain";

pub fn start(plane: &ControlPlane, args: &[&str]) -> Linker {
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let mut all = vec!["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", TARGETS];
    all.extend(["--upstream", "none", "--max-deletes", "unlimited"]);
    all.extend(args);
    Linker::start(all)
}

pub async fn set_target(cluster: &Cluster, name: &str, host: &str) {
    cluster.set_ingress("default", name, &[Ingress::Hostname(host)]).await;
}

async fn serial(linker: &Linker) -> u64 {
    let soa = short(linker.dns, "lb.internal. SOA").await;
    soa.split(' ').nth(2).and_then(|serial| serial.parse().ok()).unwrap_or_else(|| panic!("{soa:?}"))
}

#[tokio::test]
async fn etcd_restored_to_an_earlier_state_is_followed() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    for name in ["web", "api"] {
        cluster.create_load_balancer("default", name).await;
        set_target(&cluster, name, "old.example.com").await;
    }
    let linker = start(&plane, &["--delete-delay", "0s"]);
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "old.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "api-default-ext", "old.example.com").await;
    plane.back_up();
    let cluster = plane.cluster().await;
    let names = ["web-default-ext", "api-default-ext"];
    let mut before_restore = Vec::new();
    for name in names {
        before_restore.push(cluster.get_service(TARGETS, name).await.unwrap().metadata.uid);
    }
    cluster.create_load_balancer("default", "late").await;
    cluster.delete_service("default", "api").await;
    for number in 0..50 {
        set_target(&cluster, "late", &format!("late-{number}.example.com")).await;
        set_target(&cluster, "web", &format!("new-{number}.example.com")).await;
    }
    answers(linker.dns, "web-default.lb.internal. CNAME", "new-49.example.com.").await;
    answers(linker.dns, "late-default.lb.internal. CNAME", "late-49.example.com.").await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "new-49.example.com").await;
    answers(linker.dns, "api-default.lb.internal. CNAME", ABSENT).await;
    let before = serial(&linker).await;

    plane.restore();
    let cluster = plane.cluster().await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "old.example.com.").await;
    answers(linker.dns, "api-default.lb.internal. CNAME", "old.example.com.").await;
    answers(linker.dns, "late-default.lb.internal. CNAME", ABSENT).await;
    linker.line("etcd was probably restored").await;
    let restored = serial(&linker).await;
    assert!(restored > before, "{restored} after {before}: secondaries ignore a lower SOA serial");

    // After the restore, changes are handled as usual.
    set_target(&cluster, "web", "newest.example.com").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "newest.example.com.").await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "newest.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "api-default-ext", "old.example.com").await;
    assert!(serial(&linker).await > restored);
    assert!(cluster.get_service(TARGETS, "late-default-ext").await.is_none());
    for (name, uid) in names.iter().zip(before_restore) {
        let survivor = cluster.get_service(TARGETS, name).await.unwrap();
        let log = linker.log();
        assert_eq!(survivor.metadata.uid, uid, "{name} isn't recreated after the restore: {log:#?}");
    }
}

#[tokio::test]
async fn restored_load_balancer_keeps_its_external_target() {
    const RESTORED: &str = "etcd was probably restored";
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    for name in ["web", "api"] {
        cluster.create_load_balancer("default", name).await;
        set_target(&cluster, name, "old.example.com").await;
    }
    // The watches can't learn the newest resource version in time, and without leader election, for an instance without
    // a Lease, no new term relists.
    let restored = Arc::new(AtomicBool::new(false));
    let is_restored = Arc::clone(&restored);
    let injector = move |line: &str| {
        let is_list_of_one = line.contains("limit=1&") || line.contains("limit=1 ");
        let asks_newest = is_list_of_one && !line.contains("metadata.name");
        // The watch for followers would notice the restore, too.
        let may_tell = asks_newest || line.contains("spec.type%3DExternalName");
        if may_tell && is_restored.load(Ordering::SeqCst) {
            ApiFault::Answer(503, "ServiceUnavailable")
        } else {
            ApiFault::Pass
        }
    };
    let api = FaultyApi::start(&plane, Arc::new(injector)).await;
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", TARGETS, "--upstream", "none"];
    let rest = ["--max-deletes", "unlimited", "--delete-delay", "0s", "--instance", "own"];
    let linker = Linker::start(args.into_iter().chain(rest));
    for name in ["web-default-ext", "api-default-ext"] {
        wait_for_external_target(&cluster, TARGETS, name, "old.example.com").await;
    }
    plane.back_up();
    let cluster = plane.cluster().await;
    let uid = async |name| cluster.get_service(TARGETS, name).await.map(|service| service.metadata.uid);
    let before = uid("api-default-ext").await.unwrap();
    // An admission policy rejects deletions, so lb-linker retries the deletion. The backup doesn't have the policy.
    let condition = format!("oldObject.metadata.namespace == '{TARGETS}'");
    AdmissionPolicy { name: "keep", operations: &["DELETE"], condition: &condition }
        .validate(&plane, &json!({"expression": "false"}));
    eventually("the policy", || async {
        let probe = json!({"metadata": {"generateName": "probe-"}, "spec": {"type": "ExternalName",
            "externalName": "a.example.com"}});
        let probe = cluster.create_service(TARGETS, probe).await.metadata.name.unwrap();
        cluster.services(TARGETS).delete(&probe, &Default::default()).await.is_err().then_some(())
    })
    .await;
    // The last resource version of the watches is much newer than the backup.
    for number in 0..100 {
        set_target(&cluster, "web", &format!("new-{number}.example.com")).await;
    }
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "new-99.example.com").await;
    cluster.delete_service("default", "api").await;
    linker.line("of link default/api").await;

    restored.store(true, Ordering::SeqCst);
    plane.restore();
    let cluster = plane.cluster().await;
    let noticed = || async {
        let api = cluster.get_service(TARGETS, "api-default-ext").await;
        assert!(
            api.is_some_and(|api| api.metadata.uid == before),
            "the external target isn't recreated after the restore"
        );
        linker.log().into_iter().find(|line| line.contains(RESTORED))
    };
    let line = eventually("a look at the load balancer", noticed).await;
    assert!(line.contains("Service default/api counts as gone"), "{line}");
    restored.store(false, Ordering::SeqCst);
    answers(linker.dns, "api-default.lb.internal. CNAME", "old.example.com.").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "old.example.com.").await;
    set_target(&cluster, "web", "newest.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "newest.example.com").await;
    let api = cluster.get_service(TARGETS, "api-default-ext").await.unwrap();
    assert_eq!(api.metadata.uid, before, "{:#?}", linker.log());
    assert_eq!(linker.logged(RESTORED), 1);

    // A real deletion is still carried out.
    cluster.delete_service("default", "api").await;
    eventually("the end of the external target", || async {
        cluster.get_service(TARGETS, "api-default-ext").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn forbidden_namespace_delays_only_its_own_writes() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let closed = cluster.create_namespace("closed").await;
    let in_closed = async |cluster: &Cluster, host| {
        cluster.set_ingress(&closed, "web", &[Ingress::Hostname(host)]).await;
    };
    cluster.create_load_balancer("default", "web").await;
    set_target(&cluster, "web", "old.example.com").await;
    cluster.create_load_balancer(&closed, "web").await;
    in_closed(&cluster, "old.example.com").await;
    let is_closed = Arc::new(AtomicBool::new(false));
    let (closes, path) = (Arc::clone(&is_closed), format!("GET /api/v1/namespaces/{closed}/services"));
    let injector = move |line: &str| match closes.load(Ordering::SeqCst) && line.starts_with(&path) {
        true => ApiFault::Answer(403, "Forbidden"),
        false => ApiFault::Pass,
    };
    let api = FaultyApi::start(&plane, Arc::new(injector)).await;
    let namespaces = format!("default,{closed}");
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", TARGETS, "--upstream", "none"];
    let rest = ["--watch-namespaces", &namespaces, "--leader-election", "off"];
    let linker = Linker::start(args.into_iter().chain(rest));
    let waiting = format!("web-{closed}-ext");
    for name in ["web-default-ext", &waiting] {
        wait_for_external_target(&cluster, TARGETS, name, "old.example.com").await;
    }
    plane.back_up();
    let cluster = plane.cluster().await;
    for number in 0..50 {
        set_target(&cluster, "web", &format!("new-{number}.example.com")).await;
    }
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "new-49.example.com").await;

    is_closed.store(true, Ordering::SeqCst);
    plane.restore();
    let cluster = plane.cluster().await;
    in_closed(&cluster, "newest.example.com").await;
    linker.line(&format!("nothing is written for links of namespace {closed}")).await;
    set_target(&cluster, "web", "newest.example.com").await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "newest.example.com").await;
    wait_for_external_target(&cluster, TARGETS, &waiting, "old.example.com").await;
    is_closed.store(false, Ordering::SeqCst);
    wait_for_external_target(&cluster, TARGETS, &waiting, "newest.example.com").await;
}

#[tokio::test]
async fn namespace_forbidden_since_start_delays_no_other_namespace() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let closed = cluster.create_namespace("closed").await;
    let set_host = async |namespace: &str, host| {
        cluster.set_ingress(namespace, "web", &[Ingress::Hostname(host)]).await;
    };
    plane.kubectl(&["delete", "clusterrolebinding", "lb-linker"]);
    let grant = |namespace: &str| {
        let role = ["--clusterrole=lb-linker", "--serviceaccount=lb-linker:lb-linker"];
        plane.kubectl(&[&["create", "rolebinding", "lb-linker", "-n", namespace], &role[..]].concat());
    };
    for namespace in ["default", &closed] {
        grant(namespace);
        cluster.create_load_balancer(namespace, "web").await;
        set_host(namespace, "old.example.com").await;
    }
    let follower = json!({"metadata": {"name": "db", "annotations": {"linker.hsj.com/source": "web"}},
        "spec": {"type": "ExternalName", "externalName": "old.example.com"}});
    cluster.create_service("default", follower).await;
    let namespaces = format!("default,{closed}");
    let args = ["--watch-namespaces", &namespaces, "--leader-election", "off"];
    let linker = start(&plane, &args);
    let refused = format!("web-{closed}-ext");
    for name in ["web-default-ext", &refused] {
        wait_for_external_target(&cluster, TARGETS, name, "old.example.com").await;
    }
    drop(linker);

    plane.kubectl(&["delete", "rolebinding", "lb-linker", "-n", &closed]);
    permission(&plane, false, &["list", "services", "-n", &closed, LINKER]).await;
    for namespace in ["default", &closed] {
        set_host(namespace, "new.example.com").await;
    }
    let linker = start(&plane, &args);
    let name = format!("web-{closed}.lb.internal. CNAME");
    linker
        .line(&format!("has refused to list the load balancers of these namespaces for 60s: {closed};"))
        .await;
    linker.ready().await;
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "new.example.com").await;
    answers(linker.dns, &name, "old.example.com.").await;
    wait_for_external_target(&cluster, TARGETS, &refused, "old.example.com").await;
    answers(linker.dns, &format!("none-{closed}.lb.internal. CNAME"), "Server Failure").await;
    let admin = linker.admin().await;
    let notice = format!(
        "ExternalName Services may not be listed in namespace {closed}: those that follow are missing"
    );
    let are_listed = || async {
        let output = links_of(admin, &["--followers"]);
        let (table, errors) = (text(&output.stdout), text(&output.stderr));
        (table.contains("\ndefault     db ") && errors.contains(&notice)).then_some(())
    };
    eventually("the Services that follow in the other namespace", are_listed).await;
    grant(&closed);
    wait_for_external_target(&cluster, TARGETS, &refused, "new.example.com").await;
    answers(linker.dns, &name, "new.example.com.").await;
}

#[tokio::test]
async fn stale_cache_of_the_api_server_removes_nothing() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    set_target(&cluster, "web", "old.example.com").await;
    let linker = start(&plane, &["--delete-delay", "20s", "--leader-election", "off"]);
    wait_for_external_target(&cluster, TARGETS, "web-default-ext", "old.example.com").await;
    plane.back_up();
    let cluster = plane.cluster().await;
    let before = cluster.get_service(TARGETS, "web-default-ext").await.unwrap().metadata.uid;
    // The API server's cache is much newer than the backup.
    cluster.create_load_balancer("default", "late").await;
    for number in 0..100 {
        set_target(&cluster, "late", &format!("late-{number}.example.com")).await;
    }
    cluster.delete_service("default", "web").await;
    linker.line("link default/web: old.example.com → gone").await;
    plane.restore_etcd();
    // The API server's cache doesn't have the Service, and the cache's resource version doesn't exist in the restored
    // etcd.
    linker.line("Too large resource version").await;
    let kept = cluster.get_service(TARGETS, "web-default-ext").await;
    assert!(kept.is_some_and(|kept| kept.metadata.uid == before), "{:#?}", linker.log());

    plane.stop_apiserver();
    plane.start_apiserver();
    let cluster = plane.cluster().await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "old.example.com.").await;
    let kept = cluster.get_service(TARGETS, "web-default-ext").await;
    assert!(kept.is_some_and(|kept| kept.metadata.uid == before), "{:#?}", linker.log());
}

/// Returns how many watches lb-linker starts while each watch request gets `fault` and Services change.
async fn watches_while(fault: ApiFault) -> usize {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("refused").await;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let injector = move |line: &str| {
        if !line.contains("watch=true") {
            return ApiFault::Pass;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        fault.clone()
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", &target, "--upstream", "none"];
    cluster.create_load_balancer(&namespace, "web").await;
    let linker = Linker::start(args.into_iter().chain(["--watch-namespaces", &namespace]));
    linker.ready().await;
    for host in ["a.example.com", "b.example.com"] {
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname(host)]).await;
        answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), &format!("{host}.")).await;
        wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), host).await;
    }
    count.load(Ordering::SeqCst)
}

#[tokio::test]
async fn expired_watches_are_restarted_with_backoff() {
    let watches = watches_while(ApiFault::Answer(410, "Expired")).await;
    assert!(watches < 200, "{watches} watches, where 6,700 a second would be possible");
}

#[tokio::test]
async fn staleness_of_each_watch_is_reset_by_an_event() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("age").await;
    cluster.create_load_balancer(&namespace, "web").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    let load_balancers = format!("load-balancers/{namespace}");
    let watches = [load_balancers.as_str(), "external-targets", "endpoint-slices"];
    let age = |watch: &str| {
        let age = linker.metric(&format!("lb_linker_watch_staleness_seconds{{watch=\"{watch}\"}}"));
        age.unwrap_or_else(|| panic!("no age of {watch}"))
    };
    let mut before = Vec::new();
    for watch in watches {
        let grown = || async { Some(age(watch)).filter(|age| *age > 1.0) };
        before.push(eventually(&format!("the age of {watch}"), grown).await);
    }
    let writes = AtomicUsize::new(0);
    for (watch, before) in watches.into_iter().zip(before) {
        let falls = async || {
            // The change causes an event in each watch. The age may grow before the test reads it, so the change is
            // repeated.
            let address = format!("192.0.2.{}", writes.fetch_add(1, Ordering::SeqCst) % 250 + 1);
            cluster.set_ingress(&namespace, "web", &[Ingress::Ip(&address)]).await;
            (age(watch) < before).then_some(())
        };
        eventually(&format!("an event of the watch {watch}"), &falls).await;
    }
}

#[tokio::test]
async fn service_missing_from_a_list_is_read_by_name() {
    /// The states of the API server: all requests work, requests for the namespace fail, or its watches expire.
    const WORKS: usize = 0;
    const AWAY: usize = 1;
    const GONE: usize = 2;
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("missing").await;
    let state = Arc::new(AtomicUsize::new(WORKS));
    let (current, within) = (Arc::clone(&state), format!("/namespaces/{namespace}/"));
    let injector = move |line: &str| match current.load(Ordering::SeqCst) {
        AWAY if line.contains(&within) => ApiFault::Answer(503, "ServiceUnavailable"),
        GONE if line.contains(&within) && line.contains("watch=true") => ApiFault::Answer(410, "Expired"),
        _ => ApiFault::Pass,
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let names = ["left", "out", "deleted", "retyped", "back"];
    for name in names {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.patch_service(&namespace, name, json!({"metadata": {"labels": {"tier": "web"}}})).await;
        cluster.set_ingress(&namespace, name, &[Ingress::Hostname("a.example.com")]).await;
    }
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", &target, "--upstream", "none"];
    let more = ["--watch-namespaces", &namespace, "--service-selector", "tier=web", "--delete-delay", "1h"];
    let linker = Linker::start_with(&[], args.into_iter().chain(more));
    let object = |name: &str| format!("{name}-{namespace}-ext");
    let question = |name: &str| format!("{name}-{namespace}.lb.internal. CNAME");
    for name in names {
        wait_for_external_target(&cluster, &target, &object(name), "a.example.com").await;
    }

    state.store(AWAY, Ordering::SeqCst);
    api.disconnect();
    let change = async |name: &str, patch: serde_json::Value| {
        cluster.patch_service(&namespace, name, patch).await;
    };
    change("left", json!({"metadata": {"labels": {"tier": "db"}}})).await;
    let opted_out = json!({"labels": {"tier": "db"}, "annotations": {"linker.hsj.com/managed": "false"}});
    change("out", json!({"metadata": opted_out})).await;
    cluster.delete_service(&namespace, "deleted").await;
    change("retyped", json!({"spec": {"type": "ClusterIP"}})).await;
    // The watch can't resume, so lb-linker relists, and the list lacks all four Services.
    state.store(GONE, Ordering::SeqCst);

    let not_selected = |name: &str| format!("link {namespace}/{name}: its Service isn't selected any more");
    linker.line(&not_selected("left")).await;
    linker.line(&format!("Service {namespace}/retyped is of type \"ClusterIP\" now")).await;
    // The Service that opts out is removed at once, regardless of the delay.
    answers(linker.dns, &question("out"), ABSENT).await;
    eventually("the end of the external target", || async {
        cluster.get_service(&target, &object("out")).await.is_none().then_some(())
    })
    .await;
    for name in ["deleted", "retyped"] {
        answers(linker.dns, &question(name), "No Error").await;
        wait_for_external_target(&cluster, &target, &object(name), "a.example.com").await;
        assert_eq!(linker.logged(&not_selected(name)), 0, "{name}");
    }
    assert_eq!(short(linker.dns, &question("left")).await, "a.example.com.");
    wait_for_external_target(&cluster, &target, &object("left"), "a.example.com").await;
    assert_eq!(short(linker.dns, &question("back")).await, "a.example.com.");
}
