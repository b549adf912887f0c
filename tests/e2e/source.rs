//! ExternalName Services that follow a load balancer by annotation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::api_errors::create_overwriting_policy;
use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::harness::{cluster_with_target, deploy, eventually, grant_optional};
use crate::recreation::wait_for_external_target;

const TARGETS: &str = "external-targets";

/// Returns a control plane for a single test, in which lb-linker may write in all namespaces. On the shared control
/// plane, every lb-linker would follow Services and record Events in the namespaces of all tests.
pub(crate) async fn own_cluster() -> (Lent, Cluster) {
    let plane = ControlPlane::lend();
    plane.apply_files(&deploy().join("source"));
    let cluster = plane.cluster().await;
    (plane, cluster)
}

/// Creates a load balancer that all namespaces may follow.
pub(crate) async fn load_balancer(cluster: &Cluster, namespace: &str, name: &str, host: &str) {
    cluster.create_load_balancer(namespace, name).await;
    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "*"}}});
    cluster.patch_service(namespace, name, allow).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
}

/// Returns the messages of the TargetRefused Events of a Service.
fn refusal_messages(plane: &ControlPlane, namespace: &str, name: &str) -> Vec<String> {
    let selector = format!("involvedObject.name={name},reason=TargetRefused");
    let events = plane.list(&format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}"));
    events.iter().map(|item| item["message"].as_str().unwrap().to_owned()).collect()
}

/// Waits for a TargetRefused Event of a Service, and returns its message. The Events of a namespace are sent in order,
/// so all earlier Events of the namespace have been sent, too.
async fn wait_for_refusal(plane: &ControlPlane, namespace: &str, name: &str) -> String {
    let look = || async { refusal_messages(plane, namespace, name).pop() };
    eventually(&format!("a Warning on {namespace}/{name}"), look).await
}

/// Returns the number of PATCH requests for Services of a namespace that lb-linker has sent.
pub(crate) fn patch_count(plane: &ControlPlane, namespace: &str) -> usize {
    let ours = |user: &str| user.ends_with(":lb-linker:lb-linker");
    let events = plane.audit_events_with(namespace).into_iter();
    events
        .filter(|event| event.verb == "patch" && event.resource == "services" && ours(&event.user))
        .filter(|event| event.namespace == namespace)
        .count()
}

pub(crate) async fn follower(cluster: &Cluster, namespace: &str, name: &str, source: &str) {
    let service = json!({
        "metadata": {"name": name, "annotations": {"linker.hsj.com/source": source}, "labels": {"team": "shop"}},
        "spec": {"type": "ExternalName", "externalName": "by-hand.example.com"},
    });
    cluster.create_service(namespace, service).await;
}

pub(crate) async fn wait_for_target(cluster: &Cluster, namespace: &str, name: &str, host: &str) {
    let look = || async {
        let spec = cluster.get_service(namespace, name).await?.spec?;
        (spec.external_name.as_deref() == Some(host)).then_some(())
    };
    eventually(&format!("{namespace}/{name} → {host}"), look).await;
}

/// Grants the permissions of `deploy/source/` in these namespaces only.
fn grant_source(plane: &ControlPlane, namespaces: &[&str]) {
    namespaces.iter().for_each(|namespace| grant_optional(plane, "source", namespace));
}

#[tokio::test]
async fn annotated_service_follows_a_link_that_allows_it() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    grant_source(plane, &[&own, &other]);
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    cluster.create_load_balancer(&own, "web").await;
    follower(&cluster, &own, "db", "web").await;
    follower(&cluster, &other, "db", &format!("{own}/web")).await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_target(&cluster, &own, "db", "a.example.com").await;
    linker.line(&format!("Service {other}/db: it may not follow {own}/web")).await;
    wait_for_target(&cluster, &other, "db", "by-hand.example.com").await;

    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": format!("x, {other}")}}});
    cluster.patch_service(&own, "web", allow).await;
    wait_for_target(&cluster, &other, "db", "a.example.com").await;
    cluster.set_ingress(&own, "web", &[Ingress::Ip("2001:db8::1"), Ingress::Ip("192.0.2.1")]).await;
    for namespace in [&own, &other] {
        wait_for_target(&cluster, namespace, "db", "192.0.2.1").await;
        let service = cluster.get_service(namespace, "db").await.unwrap();
        assert_eq!(service.metadata.labels.unwrap().len(), 1, "lb-linker changes no labels");
        assert_eq!(service.spec.unwrap().type_.as_deref(), Some("ExternalName"));
    }
    // A manual change is repaired, and a source with only an IPv6 address changes nothing.
    cluster.patch_service(&own, "db", json!({"spec": {"externalName": "wrong.example"}})).await;
    wait_for_target(&cluster, &own, "db", "192.0.2.1").await;
    cluster.set_ingress(&own, "web", &[Ingress::Ip("2001:db8::1")]).await;
    linker.line(&format!("Service {own}/db: {own}/web has no hostname and no IPv4 address")).await;

    // The load balancer is deleted, and the follower keeps its last target.
    cluster.delete_service(&own, "web").await;
    linker.line(&format!("link {own}/web: forgotten")).await;
    wait_for_target(&cluster, &own, "db", "192.0.2.1").await;
}

#[tokio::test]
async fn follower_of_a_tombstone_points_at_a_missing_name() {
    let (plane, cluster, target) = cluster_with_target().await;
    let own = cluster.create_namespace("own").await;
    grant_source(plane, &[&own]);
    let args = ["--upstream", "none", "--on-delete", "tombstone", "--watch-namespaces", &own];
    let _linker = Linker::in_cluster(plane, &target, &args);
    cluster.create_load_balancer(&own, "web").await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    follower(&cluster, &own, "db", "web").await;
    wait_for_target(&cluster, &own, "db", "a.example.com").await;
    // The lb-linker of another test may have written the follower before the lb-linker of this test lists Services.
    wait_for_external_target(&cluster, &target, &format!("web-{own}-ext"), "a.example.com").await;
    cluster.delete_service(&own, "web").await;
    wait_for_target(&cluster, &own, "db", "deleted.lb.internal").await;
}

#[tokio::test]
async fn annotation_takes_precedence_over_adoption() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    let object = format!("web-{own}-ext");
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    for (namespace, host) in [(&own, "own.example.com"), (&other, "other.example.com")] {
        cluster.create_load_balancer(namespace, "web").await;
        let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "*"}}});
        cluster.patch_service(namespace, "web", allow).await;
        if namespace == &own {
            follower(&cluster, &target, &object, &format!("{other}/web")).await;
        }
        cluster.set_ingress(namespace, "web", &[Ingress::Hostname(host)]).await;
    }
    wait_for_target(&cluster, &target, &object, "other.example.com").await;
    let line =
        linker.line(&format!("external target {target}/{object} of link {own}/web is left alone")).await;
    assert!(line.contains("follows what its annotation"), "{line}");
}

#[tokio::test]
async fn missing_permission_to_patch_followers_is_logged_once() {
    // A separate cluster, in which no lb-linker has the permission.
    let plane = &ControlPlane::lend();
    let cluster = plane.cluster().await;
    let own = cluster.create_namespace("own").await;
    let linker = Linker::in_cluster(plane, "external-targets", &["--upstream", "none"]);
    cluster.create_load_balancer(&own, "web").await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("a.example.com")]).await;
    for i in 0..5 {
        follower(&cluster, &own, &format!("db-{i}"), "web").await;
    }
    linker.line(&format!("can't patch Services in namespace {own}")).await;
    grant_source(plane, &[&own]);
    for i in 0..5 {
        wait_for_target(&cluster, &own, &format!("db-{i}"), "a.example.com").await;
    }
    assert_eq!(linker.logged("deploy/source/"), 1, "{:#?}", linker.log());
    let over = format!("Services in namespace {own} that follow a load balancer can be written again");
    linker.line(&over).await;
}

#[tokio::test]
async fn undone_writes_to_a_follower_cause_no_hot_loop() {
    let (plane, cluster) = own_cluster().await;
    let own = cluster.create_namespace("own").await;
    create_overwriting_policy(&plane, &cluster, &own).await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    load_balancer(&cluster, &own, "web", "a.example.com").await;
    load_balancer(&cluster, &own, "other", "b.example.com").await;
    follower(&cluster, &own, "db", "web").await;
    let line = linker.line("another client, or an admission policy, changes what is written").await;
    assert!(line.contains(&format!("Service {own}/db, which follows {own}/web")), "{line}");
    let before = patch_count(&plane, &own);
    assert!(before <= 14, "{before} PATCHes");
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("c.example.com")]).await;
    eventually("another PATCH", || async { (patch_count(&plane, &own) > before + 5).then_some(()) }).await;
}

#[tokio::test]
async fn unwritable_namespace_is_logged_once_and_only_probed() {
    let plane = &ControlPlane::lend();
    let cluster = plane.cluster().await;
    let (granted, refused) =
        (cluster.create_namespace("granted").await, cluster.create_namespace("refused").await);
    grant_source(plane, &[&granted]);
    load_balancer(&cluster, &granted, "web", "a.example.com").await;
    let source = format!("{granted}/web");
    for i in 0..30 {
        follower(&cluster, &refused, &format!("db-{i}"), &source).await;
    }
    follower(&cluster, &granted, "db", &source).await;
    let linker = Linker::in_cluster(plane, TARGETS, &["--upstream", "none"]);
    linker.line(&format!("can't patch Services in namespace {refused}")).await;
    // Successful writes in one namespace don't close the circuit breaker of another namespace.
    for host in ["b.example.com", "c.example.com", "d.example.com", "e.example.com"] {
        cluster.set_ingress(&granted, "web", &[Ingress::Hostname(host)]).await;
        wait_for_target(&cluster, &granted, "db", host).await;
    }
    assert_eq!(linker.logged("deploy/source/"), 1, "{:#?}", linker.log());
    // These are the requests that were in flight at the first refusal, and occasional probes of the circuit breaker.
    let tried = patch_count(plane, &refused);
    assert!(tried <= 16, "{tried} PATCHes");

    grant_optional(plane, "source", &refused);
    for i in 0..30 {
        wait_for_target(&cluster, &refused, &format!("db-{i}"), "e.example.com").await;
    }
    let over = format!("Services in namespace {refused} that follow a load balancer can be written again");
    linker.line(&over).await;
    assert_eq!(linker.logged("can be written again"), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn follower_error_is_logged_once_and_has_no_event_at_start() {
    let (plane, cluster) = own_cluster().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    load_balancer(&cluster, &own, "web", "a.example.com").await;
    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": null}}});
    cluster.patch_service(&own, "web", allow).await;
    let source = format!("{own}/web");
    follower(&cluster, &other, "old", &source).await;
    follower(&cluster, &other, "old-malformed", "a/b/c").await;
    follower(&cluster, &other, "old-typo", &format!("{own}/wbe")).await;
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    let refused = format!("it may not follow {source}");
    let malformed = "annotation linker.hsj.com/source \"a/b/c\" isn't [<namespace>/]<service>";
    let unknown = format!("names {own}/wbe, which is no load balancer that lb-linker follows");
    linker.line(&format!("Service {other}/old: {refused}")).await;
    linker.line(&format!("Service {other}/old-malformed: {malformed}")).await;
    let line = linker.line(&format!("Service {other}/old-typo: ")).await;
    assert!(line.contains(&unknown), "{line}");

    follower(&cluster, &other, "malformed", "a/b/c").await;
    assert_eq!(wait_for_refusal(&plane, &other, "malformed").await, malformed);
    follower(&cluster, &other, "typo", &format!("{own}/wbe")).await;
    assert!(wait_for_refusal(&plane, &other, "typo").await.contains(&unknown));
    // Other changes of these Services repeat no warning.
    for team in ["a", "b", "c"] {
        for name in ["malformed", "typo"] {
            let label = json!({"metadata": {"labels": {"team": team}}});
            cluster.patch_service(&other, name, label).await;
        }
    }
    // No warning is logged for a source that is created a moment later, or for a source that is deleted.
    follower(&cluster, &own, "early", "late").await;
    load_balancer(&cluster, &own, "late", "late.example.com").await;
    wait_for_target(&cluster, &own, "early", "late.example.com").await;
    cluster.delete_service(&own, "late").await;
    linker.line(&format!("link {own}/late: late.example.com → gone")).await;
    follower(&cluster, &other, "new", &source).await;
    assert!(wait_for_refusal(&plane, &other, "new").await.starts_with(&refused));

    for name in ["malformed", "typo", "new"] {
        linker.line(&format!("Service {other}/{name}: ")).await;
        assert_eq!(linker.logged(&format!("Service {other}/{name}: ")), 1, "{:#?}", linker.log());
        assert_eq!(refusal_messages(&plane, &other, name).len(), 1);
    }
    for name in ["old", "old-malformed", "old-typo"] {
        assert_eq!(refusal_messages(&plane, &other, name), Vec::<String>::new(), "{name}");
    }
    assert_eq!(linker.logged(&format!("Service {own}/early: ")), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn tombstone_is_written_to_former_followers_only() {
    let (plane, cluster) = own_cluster().await;
    let (own, other) = (cluster.create_namespace("own").await, cluster.create_namespace("other").await);
    let both = format!("{own},{other}");
    let tombstone = ["--on-delete", "tombstone", "--watch-namespaces", &both];
    let args = [&["--upstream", "none", "--ip-targets", "skip"], &tombstone[..]].concat();
    let mut linker = Linker::in_cluster(&plane, TARGETS, &args);
    for (name, ingress) in [("web", Ingress::Hostname("a.example.com")), ("ip", Ingress::Ip("192.0.2.1"))] {
        load_balancer(&cluster, &own, name, "unused.example.com").await;
        cluster.set_ingress(&own, name, &[ingress]).await;
        for namespace in [&own, &other] {
            follower(&cluster, namespace, &format!("follows-{name}"), &format!("{own}/{name}")).await;
        }
    }
    for namespace in [&own, &other] {
        wait_for_target(&cluster, namespace, "follows-web", "a.example.com").await;
        wait_for_target(&cluster, namespace, "follows-ip", "192.0.2.1").await;
    }
    // With `--ip-targets skip` a link with only IP addresses has no external target, so the reconciler forgets the
    // link at once.
    cluster.delete_service(&own, "ip").await;
    for namespace in [&own, &other] {
        wait_for_target(&cluster, namespace, "follows-ip", "deleted.lb.internal").await;
    }

    wait_for_external_target(&cluster, TARGETS, &format!("web-{own}-ext"), "a.example.com").await;
    // The load balancer is deleted while lb-linker is stopped, so its allow-from annotation isn't known any more.
    linker.stop();
    cluster.delete_service(&own, "web").await;
    follower(&cluster, &other, "never", &format!("{own}/web")).await;
    let _linker = Linker::in_cluster(&plane, TARGETS, &args);
    for namespace in [&own, &other] {
        wait_for_target(&cluster, namespace, "follows-web", "deleted.lb.internal").await;
    }
    wait_for_target(&cluster, &other, "never", "by-hand.example.com").await;
}

#[tokio::test]
async fn rejected_target_doesnt_delay_the_next_target() {
    let (plane, cluster) = own_cluster().await;
    let own = cluster.create_namespace("own").await;
    let condition = format!("object.metadata.namespace == '{own}' && object.spec.type == 'ExternalName'");
    let operations = &["CREATE", "UPDATE"];
    AdmissionPolicy { name: "picky", operations, condition: &condition }
        .validate(&plane, &json!({"expression": "object.spec.externalName != 'refused.example.com'"}));
    let linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    load_balancer(&cluster, &own, "web", "a.example.com").await;
    follower(&cluster, &own, "db", "web").await;
    wait_for_target(&cluster, &own, "db", "a.example.com").await;
    // The API server enforces a new policy after a short delay.
    eventually("the policy", || async {
        let probe = json!({"metadata": {"generateName": "probe-"}, "spec": {"type": "ExternalName",
            "externalName": "refused.example.com"}});
        let probe = serde_json::from_value(probe).unwrap();
        cluster.services(&own).create(&Default::default(), &probe).await.is_err().then_some(())
    })
    .await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("refused.example.com")]).await;
    // Wait until the retry delay is at least 15 s, longer than the 12 s in which the next target must be written.
    let pause = |line: &String| line.split_once("next try in ")?.1.strip_suffix('s')?.parse().ok();
    eventually("a long pause", || async {
        linker.log().iter().filter_map(pause).any(|seconds: f64| seconds >= 15.0).then_some(())
    })
    .await;
    cluster.set_ingress(&own, "web", &[Ingress::Hostname("b.example.com")]).await;
    let soon = Duration::from_secs(12);
    tokio::time::timeout(soon, wait_for_target(&cluster, &own, "db", "b.example.com"))
        .await
        .expect("at once");
}

#[tokio::test]
async fn forbidden_list_of_an_unused_feature_logs_no_warning() {
    let (plane, cluster, target) = cluster_with_target().await;
    let own = cluster.create_namespace("own").await;
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    let injector = move |line: &str| {
        if !line.contains("spec.type%3DExternalName") {
            return ApiFault::Pass;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        ApiFault::Answer(403, "Forbidden")
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", &target, "--upstream", "none"];
    let linker = Linker::start_with(&[], args.into_iter().chain(["--watch-namespaces", &own]));
    load_balancer(&cluster, &own, "web", "a.example.com").await;
    wait_for_external_target(&cluster, &target, &format!("web-{own}-ext"), "a.example.com").await;
    eventually("some refusals", || async { (refused.load(Ordering::SeqCst) > 2).then_some(()) }).await;
    let log = linker.log();
    assert!(!log.iter().any(|line| line.contains("WARN") && line.contains("ExternalName")), "{log:#?}");
}

#[tokio::test]
async fn hanging_writes_in_a_namespace_delay_no_other_namespace() {
    let (plane, cluster, target) = cluster_with_target().await;
    let mut namespaces = Vec::new();
    for name in ["hang-source", "hang-a", "hang-z"] {
        namespaces.push(cluster.create_namespace(name).await);
    }
    let [own, hanging, other] = &namespaces[..] else { unreachable!() };
    // `None` until writes hang; then the paths of the PATCH requests, in their order.
    let patched: Arc<Mutex<Option<Vec<String>>>> = Arc::default();
    let (record, slow) = (Arc::clone(&patched), format!("/namespaces/{hanging}/services/"));
    let injector = move |line: &str| {
        let mut record = record.lock().unwrap();
        let Some(paths) = record.as_mut().filter(|_| line.starts_with("PATCH ")) else {
            return ApiFault::Pass;
        };
        paths.push(line.to_owned());
        if line.contains(&slow) { ApiFault::Late(Duration::from_secs(3600)) } else { ApiFault::Pass }
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let args = ["--kubeconfig", api.kubeconfig(), "--target-namespace", &target, "--upstream", "none"];
    let watched = ["--watch-namespaces", &namespaces.join(",")];
    let _linker = Linker::start(args.into_iter().chain(watched));
    load_balancer(&cluster, own, "web", "a.example.com").await;
    let names: Vec<String> = (0..20).map(|number| format!("db-{number}")).collect();
    let followers: Vec<(&String, &str)> =
        names.iter().map(|name| (hanging, &**name)).chain([(other, "db")]).collect();
    for (namespace, name) in &followers {
        follower(&cluster, namespace, name, &format!("{own}/web")).await;
    }
    for (namespace, name) in &followers {
        wait_for_target(&cluster, namespace, name, "a.example.com").await;
    }
    *patched.lock().unwrap() = Some(Vec::new());
    cluster.set_ingress(own, "web", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_target(&cluster, other, "db", "b.example.com").await;
    let paths = patched.lock().unwrap().take().unwrap();
    let of_followers: Vec<&String> = paths.iter().filter(|path| !path.contains(&*target)).collect();
    let position = of_followers.iter().position(|path| path.contains(&**other)).unwrap();
    assert!(position < 8, "a first write of the eight at once: {of_followers:#?}");
}
