//! Migration from the earlier operator: adoption of its objects, and removal of its finalizers and orphans.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, PostParams};
use lb_linker::model::names::{earlier_external_target, external_target};
use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::k8s::errors::is_uid_mismatch;
use lb_linker::takeover::finalizers::{ServiceWithFinalizer, remove_finalizer};
use serde_json::{Value, json};

use crate::harness::audit::AuditEvent;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, bare, run_to_end};
use crate::harness::port::HeldPort;
use crate::harness::{cluster_with_target, deploy, eventually, permission};
use crate::laptop::api_server;
use crate::recreation::wait_for_external_target as points_at;

const FINALIZER: &str = "lb-linker/finalizer";
const TARGETS: &str = "external-targets";

/// Creates an external target as the earlier operator did, with the operator's field manager `manager`.
async fn create_legacy_target(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    of: (&str, &str),
    host: &str,
) -> Service {
    let object = json!({
        "metadata": {"name": name, "labels": {
            "app.kubernetes.io/managed-by": "lb-linker-operator",
            "original-service-name": of.1, "original-service-namespace": of.0}},
        "spec": {"type": "ExternalName", "externalName": host},
    });
    let params = PostParams { field_manager: Some("manager".into()), ..Default::default() };
    let object = serde_json::from_value(object).unwrap();
    cluster.services(namespace).create(&params, &object).await.unwrap()
}

async fn load_balancer(cluster: &Cluster, namespace: &str, name: &str, ingress: Ingress<'_>) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[ingress]).await;
}

/// Sets the annotation that users set and the finalizers that the earlier operator's second stage set.
async fn add_finalizers(cluster: &Cluster, namespace: &str, name: &str, finalizers: &[&str]) {
    let metadata = json!({"annotations": {"linker.hsj.com/managed": "true"}, "finalizers": finalizers});
    cluster.patch_service(namespace, name, json!({"metadata": metadata})).await;
}

fn uid(service: &Service) -> String {
    service.metadata.uid.clone().unwrap()
}

fn target_of(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.external_name.as_deref()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn writes(plane: &ControlPlane) -> BTreeMap<String, usize> {
    let by_linker = |event: &AuditEvent| {
        let user = event.user == "system:serviceaccount:lb-linker:lb-linker";
        user && event.is_write() && event.resource != "events"
    };
    let mut count = BTreeMap::new();
    for event in plane.audit_events().into_iter().filter(by_linker) {
        *count.entry(format!("{} {}", event.verb, event.resource)).or_default() += 1;
    }
    count
}

/// Runs `lb-linker takeover` with the permissions of a ServiceAccount, and an empty standard input.
fn takeover(plane: &ControlPlane, account: &str, args: &[&str]) -> Output {
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", account);
    run_to_end([&["takeover", "--kubeconfig", kubeconfig.to_str().unwrap()], args].concat())
}

/// Returns what `lb-linker takeover` shows in a terminal, where both streams are one.
fn shown_by_takeover(kubeconfig: &str) -> String {
    let (mut shown, streams) = std::io::pipe().unwrap();
    let mut command = bare();
    command.args(["takeover", "--kubeconfig", kubeconfig]).stdin(Stdio::null());
    let mut child = command.stdout(streams.try_clone().unwrap()).stderr(streams).spawn().unwrap();
    // It has the other end of the pipe.
    drop(command);
    let text = std::io::read_to_string(&mut shown).unwrap();
    child.wait().unwrap();
    text
}

/// Runs a command from the log in a shell, as an administrator.
fn run_in_shell(plane: &ControlPlane, command: &str) {
    let kubectl = plane.kubectl_command();
    let directory = std::path::Path::new(kubectl.get_program()).parent().unwrap().to_owned();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env("PATH", directory);
    shell.envs(kubectl.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{command}: {}", text(&output.stderr));
}

/// Returns the command at the end of a line of the log.
fn command(line: &str) -> &str {
    line.rsplit_once("it: ").unwrap_or_else(|| panic!("no command in {line}")).1
}

async fn wait_for_deletion(cluster: &Cluster, namespace: &str, name: &str) {
    let what = format!("the end of {namespace}/{name}");
    eventually(&what, || async { cluster.get_service(namespace, name).await.is_none().then_some(()) }).await;
}

async fn finalizers(cluster: &Cluster, namespace: &str, name: &str) -> Vec<String> {
    cluster.get_service(namespace, name).await.unwrap().metadata.finalizers.unwrap_or_default()
}

/// The objects that all stages of the earlier operator have left.
struct LegacyObjects {
    /// External targets by name, with their UIDs and expected targets.
    objects: BTreeMap<String, (String, String)>,
    /// The name and the target of the external target that gets a name with a hash, because another Service already
    /// has the cut name.
    hashed: (String, &'static str),
    /// Objects with another owner.
    foreign: Vec<Service>,
}

async fn legacy(cluster: &Cluster) -> LegacyObjects {
    let mut objects = BTreeMap::new();
    let mut kept = |object: Service, target: &str| {
        objects.insert(object.metadata.name.clone().unwrap(), (uid(&object), target.to_owned()));
    };
    // The earlier operator's first stage wrote an object for every load balancer. One target has changed since, one
    // ends in a dot, and one is an IP address.
    for (name, was, is) in [
        ("plain", "plain.example.com", "plain.example.com"),
        ("stale", "old.example.com", "new.example.com"),
        ("dot", "dot.example.com.", "dot.example.com"),
    ] {
        load_balancer(cluster, "default", name, Ingress::Hostname(is)).await;
        let object = format!("{name}-default-ext");
        let made = create_legacy_target(cluster, TARGETS, &object, ("default", name), was).await;
        kept(made, if name == "dot" { was } else { is });
    }
    load_balancer(cluster, "default", "ip", Ingress::Ip("192.0.2.1")).await;
    create_legacy_target(cluster, TARGETS, "ip-default-ext", ("default", "ip"), "192.0.2.1").await;
    // Stage 2 wrote objects for annotated load balancers, and set a finalizer. Two of these Services were deleted
    // after the operator had stopped.
    for (name, others) in [
        ("opted", vec![]),
        ("stuck", vec![]),
        ("held", vec!["example.com/other"]),
        ("one", vec!["example.com/other"]),
    ] {
        load_balancer(cluster, "default", name, Ingress::Hostname("opted.example.com")).await;
        // The finalizer is in the middle of the list, at its end, or alone.
        let finalizers = others.iter().copied().chain([FINALIZER]);
        let finalizers: Vec<&str> = match name {
            "one" => finalizers.chain(["example.com/last"]).collect(),
            _ => finalizers.collect(),
        };
        add_finalizers(cluster, "default", name, &finalizers).await;
        let object = format!("{name}-default-ext");
        let made =
            create_legacy_target(cluster, TARGETS, &object, ("default", name), "opted.example.com").await;
        if ["stuck", "held"].contains(&name) {
            cluster.services("default").delete(name, &DeleteParams::default()).await.unwrap();
        } else {
            kept(made, "opted.example.com");
        }
    }
    // Stage 3 cut names at 63 characters. Two Services have the same cut name; the labels tell which Service the
    // object belongs to.
    let long = "long".repeat(15);
    let (one, other) = (cluster.create_namespace("alike").await, cluster.create_namespace("alike").await);
    load_balancer(cluster, &one, &long, Ingress::Hostname("one.example.com")).await;
    load_balancer(cluster, &other, &long, Ingress::Hostname("other.example.com")).await;
    let shared = earlier_external_target(&one, &long);
    assert_eq!(shared, earlier_external_target(&other, &long));
    let made = create_legacy_target(cluster, TARGETS, &shared, (&one, &long), "one.example.com").await;
    kept(made, "one.example.com");
    // The 63rd character is a hyphen, which the operator trimmed.
    let hyphen = "h".repeat(62);
    load_balancer(cluster, "default", &hyphen, Ingress::Hostname("hyphen.example.com")).await;
    let cut = earlier_external_target("default", &hyphen);
    assert_eq!(cut, hyphen);
    let made = create_legacy_target(cluster, TARGETS, &cut, ("default", &hyphen), "hyphen.example.com").await;
    kept(made, "hyphen.example.com");
    // An orphan of a deleted Service. The external targets of "stuck" and "held" are orphans, too, because these
    // Services are being deleted.
    create_legacy_target(cluster, TARGETS, "gone-default-ext", ("default", "gone"), "a.example.com").await;
    // Objects with another owner: the first has the name of a load balancer's external target, the second an
    // unrelated name.
    load_balancer(cluster, "default", "theirs", Ingress::Hostname("ours.example.com")).await;
    let mut strangers = Vec::new();
    for name in ["theirs-default-ext", "nobodys"] {
        let spec = json!({"type": "ExternalName", "externalName": "theirs.example.com"});
        let labels = json!({"app.kubernetes.io/managed-by": "helm"});
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        strangers.push(cluster.create_service(TARGETS, object).await);
    }
    // More Services than fit in the first page of a list; most of them are no load balancers.
    futures::stream::iter(0..150)
        .for_each_concurrent(16, |i| async move {
            let spec = json!({"type": "ExternalName", "externalName": "a.example.com"});
            let object = json!({"metadata": {"name": format!("other-{i}")}, "spec": spec});
            drop(cluster.create_service("default", object).await);
        })
        .await;
    LegacyObjects {
        objects,
        hashed: (external_target(&other, &long), "other.example.com"),
        foreign: strangers,
    }
}

#[tokio::test]
async fn migration_keeps_objects_and_writes_only_differences() {
    // A separate cluster, with the objects of the earlier operator.
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let legacy = legacy(&cluster).await;
    let mut linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;

    // Names and targets are correct, and the objects keep their UIDs.
    points_at(&cluster, TARGETS, &legacy.hashed.0, legacy.hashed.1).await;
    points_at(&cluster, TARGETS, "stale-default-ext", "new.example.com").await;
    let headless = || async {
        let spec = cluster.get_service(TARGETS, "ip-default-ext").await?.spec?;
        (spec.cluster_ip.as_deref() == Some("None")).then_some(())
    };
    eventually("the headless Service", headless).await;
    for (name, (uid_before, target)) in &legacy.objects {
        let object = cluster.get_service(TARGETS, name).await.unwrap();
        assert_eq!((target_of(&object), uid(&object)), (Some(&**target), uid_before.clone()), "{name}");
    }
    for (name, target) in [
        ("plain", "plain.example.com."),
        ("stale", "new.example.com."),
        ("opted", "opted.example.com."),
        ("theirs", "ours.example.com."),
        (&"h".repeat(62), "hyphen.example.com."),
    ] {
        answers(linker.dns, &format!("{name}.default.lb.internal. CNAME"), target).await;
    }
    assert_eq!(short(linker.dns, "ip-default.lb.internal. A").await, "192.0.2.1");
    for stranger in &legacy.foreign {
        let now = cluster.get_service(TARGETS, stranger.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(now.metadata.resource_version, stranger.metadata.resource_version);
    }
    let expected = BTreeMap::from([
        ("create endpointslices".to_owned(), 1),
        ("create services".to_owned(), 1),
        // The object with the stale target, and the object with an IP address.
        ("patch services".to_owned(), 2),
    ]);
    eventually("the audit log", || async { (writes(&plane) == expected).then_some(()) }).await;

    // lb-linker logs the finalizers and orphans of the earlier operator with a remedy.
    linker.line("Services that carry it: 4, stuck in deletion: 2; `lb-linker takeover`").await;
    for name in ["stuck", "held"] {
        linker.line(&format!("Service default/{name} is stuck in deletion: it carries {FINALIZER}")).await;
        linker.line(&format!("external target {TARGETS}/{name}-default-ext is an orphan")).await;
    }
    linker.line(&format!("Service default/opted carries {FINALIZER} and will get stuck")).await;
    let orphan = linker.line(&format!("external target {TARGETS}/gone-default-ext is an orphan")).await;
    assert!(orphan.contains("the load balancer default/gone that it was made for is gone"), "{orphan}");
    linker.counts("lb_linker_orphans", 3.0).await;
    let lists: Vec<String> = plane
        .audit_events()
        .into_iter()
        .filter(|event| event.user.ends_with(":lb-linker") && event.uri.starts_with("/api/v1/services?"))
        .filter(|event| event.verb == "list" && !event.uri.contains("fieldSelector"))
        .map(|event| event.uri)
        .collect();
    assert!(lists.len() >= 2 && lists.iter().all(|uri| uri.contains("limit=")), "{lists:?}");

    // The logged command removes the finalizer of one Service.
    let one = linker.line(&format!("Service default/one carries {FINALIZER} and will get stuck")).await;
    run_in_shell(&plane, command(&one));
    assert_eq!(finalizers(&cluster, "default", "one").await, ["example.com/other", "example.com/last"]);

    // The permissions of lb-linker itself don't allow `takeover` to remove the other finalizers, and `takeover`
    // reports that.
    let refused = takeover(&plane, "lb-linker", &["--yes"]);
    let (out, err) = (text(&refused.stdout), text(&refused.stderr));
    assert_eq!(refused.status.code(), Some(1), "{err}");
    for name in ["opted", "stuck", "held"] {
        let reason = "NOT freed: no permission to patch Services in namespace default";
        assert!(out.lines().any(|line| line.contains(name) && line.contains(reason)), "{out}");
    }
    assert!(err.contains("Services that couldn't be freed: 3 of 3"), "{err}");
    assert_eq!(err.matches("deploy/takeover/ grants the permissions").count(), 1, "{err}");

    plane.apply_files(&deploy().join("takeover"));
    for verb in ["list", "patch"] {
        let account = "--as=system:serviceaccount:lb-linker:lb-linker-takeover";
        permission(&plane, true, &[verb, "services", "-A", account]).await;
    }
    let dry = takeover(&plane, "lb-linker-takeover", &["--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", text(&dry.stderr));
    assert_eq!(text(&dry.stdout).matches("would be freed").count(), 3);
    assert!(cluster.get_service("default", "stuck").await.is_some());

    let asked = takeover(&plane, "lb-linker-takeover", &[]);
    let (out, err) = (text(&asked.stdout), text(&asked.stderr));
    assert_eq!((asked.status.code(), out.matches("would be freed").count()), (Some(1), 3), "{out}{err}");
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker-takeover");
    let shown = shown_by_takeover(kubeconfig.to_str().unwrap());
    let (table, question) = shown.split_once("Change Service default/").unwrap();
    assert_eq!(table.matches("would be freed").count(), 3, "{shown}");
    assert!(!question.contains("freed") && question.contains("? [y/N] \n"), "{shown}");
    let server = api_server(kubeconfig.to_str().unwrap());
    assert!(
        err.contains("Change Service default/") && err.contains(&format!(" at {server}? [y/N] ")),
        "{err}"
    );
    assert!(err.contains("lb-linker: nothing was changed; --yes leaves out the question\n"), "{err}");
    assert!(cluster.get_service("default", "stuck").await.is_some());

    let done = takeover(&plane, "lb-linker-takeover", &["--yes"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    for (name, was, now) in [
        ("default/opted", "in use", "freed"),
        ("default/stuck", "stuck in deletion", "freed, and gone"),
        ("default/held", "stuck in deletion", "freed, and still held by example.com/other"),
    ] {
        let row = |line: &str| line.starts_with(name) && line.contains(was) && line.ends_with(now);
        assert!(out.lines().any(row), "{name} in {out}");
    }
    for orphan in ["gone-default-ext", "held-default-ext", "stuck-default-ext"] {
        assert!(out.lines().any(|line| line.starts_with(orphan)), "{out}");
    }
    assert!(
        out.contains("kubectl delete service -n external-targets gone-default-ext held-default-ext"),
        "{out}"
    );
    assert!(cluster.get_service("default", "stuck").await.is_none());
    assert_eq!(finalizers(&cluster, "default", "held").await, ["example.com/other"]);
    // Nothing is asked if nothing would be changed.
    let again = takeover(&plane, "lb-linker-takeover", &[]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(
        text(&again.stdout)
            .contains(&format!("no Service in all namespaces carries the finalizer {FINALIZER}"))
    );

    // Without the finalizer, a deletion completes.
    cluster.delete_service("default", "opted").await;
    wait_for_deletion(&cluster, "default", "opted").await;
    assert!(linker.stop().success());

    // Orphans are removed by the logged command or by --prune. The object of "opted" is an orphan to the next
    // process, because lb-linker has never written to that object.
    run_in_shell(&plane, command(&orphan));
    assert!(cluster.get_service(TARGETS, "gone-default-ext").await.is_none());
    let linker =
        Linker::in_cluster(&plane, TARGETS, &["--upstream", "none", "--prune", "--delete-delay", "0s"]);
    for name in ["stuck", "held", "opted"] {
        wait_for_deletion(&cluster, TARGETS, &format!("{name}-default-ext")).await;
    }
    for stranger in &legacy.foreign {
        let now = cluster.get_service(TARGETS, stranger.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(now.metadata.resource_version, stranger.metadata.resource_version);
    }
    assert_eq!(linker.metric("lb_linker_orphans"), Some(0.0));
    assert_eq!(linker.logged("get stuck"), 0);
}

#[tokio::test]
async fn adopted_object_is_removed_with_its_load_balancer() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("taken-over").await;
    let object = format!("web-{namespace}-ext");
    load_balancer(&cluster, &namespace, "web", Ingress::Hostname("a.example.com")).await;
    create_legacy_target(&cluster, &target, &object, (&namespace, "web"), "a.example.com").await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    linker.ready().await;
    cluster.delete_service(&namespace, "web").await;
    wait_for_deletion(&cluster, &target, &object).await;
    assert_eq!(linker.logged("is an orphan"), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn only_objects_that_lb_linker_wrote_are_removed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("left").await;
    let (theirs, ours) = (format!("web-{namespace}-ext"), format!("{namespace}-ours"));
    let of = (&*namespace, "web");
    let made = create_legacy_target(&cluster, &target, &theirs, of, "a.example.com").await;
    let mut copy = Service { spec: made.spec.clone(), ..Default::default() };
    copy.metadata.name = Some(ours.clone());
    copy.metadata.labels = made.metadata.labels.clone();
    let by_us = PostParams { field_manager: Some("lb-linker".into()), ..Default::default() };
    cluster.services(&target).create(&by_us, &copy).await.unwrap();
    for on_delete in ["tombstone", "delete"] {
        let watched = ["--watch-namespaces", &namespace];
        let args = ["--upstream", "none", "--delete-delay", "0s", "--on-delete", on_delete];
        let args = [args.as_slice(), &watched].concat();
        let linker = Linker::in_cluster(plane, &target, &args);
        wait_for_deletion(&cluster, &target, &ours).await;
        linker.line(&format!("external target {target}/{theirs} is an orphan")).await;
        assert_eq!(linker.logged(&theirs), 1, "{:#?}", linker.log());
        let now = cluster.get_service(&target, &theirs).await.unwrap();
        assert_eq!(now.metadata.resource_version, made.metadata.resource_version);
    }
}

#[tokio::test]
async fn ip_targets_external_name_keeps_an_address_as_it_is() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("address").await;
    let object = format!("web-{namespace}-ext");
    load_balancer(&cluster, &namespace, "web", Ingress::Ip("192.0.2.1")).await;
    let made = create_legacy_target(&cluster, &target, &object, (&namespace, "web"), "192.0.2.1").await;
    let args = ["--upstream", "none", "--ip-targets", "external-name"];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    // Links are reconciled in order: when `later` has its external target, `web` has been reconciled, too.
    load_balancer(&cluster, &namespace, "later", Ingress::Ip("192.0.2.2")).await;
    points_at(&cluster, &target, &format!("later-{namespace}-ext"), "192.0.2.2").await;
    let now = cluster.get_service(&target, &object).await.unwrap();
    assert_eq!(now.metadata.resource_version, made.metadata.resource_version);
}

#[tokio::test]
async fn external_target_isnt_an_orphan_once_it_has_a_link() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("unselected").await;
    let object = format!("web-{namespace}-ext");
    load_balancer(&cluster, &namespace, "web", Ingress::Hostname("a.example.com")).await;
    let made = create_legacy_target(&cluster, &target, &object, (&namespace, "web"), "a.example.com").await;
    let args = ["--upstream", "none", "--delete-delay", "0s", "--selection", "annotated"];
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.line(&format!("external target {target}/{object} is an orphan")).await;
    linker.counts("lb_linker_orphans", 1.0).await;
    // `takeover` reports the same orphans.
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let flags = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target];
    let look = |selection: &str| {
        let more = ["--watch-namespaces", &namespace, "--selection", selection];
        text(&run_to_end([&["takeover"], &flags[..], &more].concat()).stdout)
    };
    assert!(look("annotated").contains(&format!("kubectl delete service -n {target} {object}")));
    assert!(look("all").contains(&format!("no orphans in namespace {target}")));

    let annotate = |value: &'static str| {
        let patch = json!({"metadata": {"annotations": {"linker.hsj.com/managed": value}}});
        cluster.patch_service(&namespace, "web", patch)
    };
    annotate("true").await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "a.example.com.").await;
    eventually("no orphan", || async { (linker.metric("lb_linker_orphans") == Some(0.0)).then_some(()) })
        .await;
    let now = cluster.get_service(&target, &object).await.unwrap();
    assert_eq!(now.metadata.resource_version, made.metadata.resource_version);
}

#[tokio::test]
async fn unwatched_namespaces_are_left_alone() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (watched, other) =
        (cluster.create_namespace("watched").await, cluster.create_namespace("unwatched").await);
    for namespace in [&watched, &other] {
        load_balancer(&cluster, namespace, "web", Ingress::Hostname("a.example.com")).await;
        add_finalizers(&cluster, namespace, "web", &[FINALIZER]).await;
        let name = format!("gone-{namespace}-ext");
        create_legacy_target(&cluster, &target, &name, (namespace, "gone"), "a.example.com").await;
    }
    // The ServiceAccount has permissions only in the watched namespace and in the target namespace.
    plane.apply_files(&deploy().join("takeover"));
    plane.create_service_account(&watched, "narrow");
    let subject = format!("--serviceaccount={watched}:narrow");
    for (namespace, role) in [
        (&watched, "--clusterrole=lb-linker"),
        (&watched, "--clusterrole=lb-linker-takeover"),
        (&target, "--role=lb-linker"),
    ] {
        let name = role.split_once('=').unwrap().1;
        plane.kubectl(&["-n", namespace, "create", "rolebinding", &format!("narrow-{name}"), role, &subject]);
    }
    for namespace in [&watched, &target] {
        let account = format!("--as=system:serviceaccount:{watched}:narrow");
        permission(plane, true, &["list", "services", "-n", namespace, &account]).await;
    }
    let kubeconfig = plane.kubeconfig_for_service_account(&watched, "narrow");
    let flags = [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--target-namespace",
        &target,
        "--watch-namespaces",
        &watched,
    ];
    let linker =
        Linker::start([&flags[..], &["--upstream", "none", "--prune", "--delete-delay", "0s"]].concat());
    linker.line(&format!("Service {watched}/web carries {FINALIZER} and will get stuck")).await;
    wait_for_deletion(&cluster, &target, &format!("gone-{watched}-ext")).await;
    assert!(cluster.get_service(&target, &format!("gone-{other}-ext")).await.is_some());
    assert_eq!(linker.logged(&other), 0, "{:#?}", linker.log());
    assert_eq!(linker.logged("forbids"), linker.logged("can't get Lease"), "{:#?}", linker.log());

    let done = run_to_end([&["takeover", "--yes"], &flags[..]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(!text(&done.stdout).contains(&other));
    assert!(finalizers(&cluster, &watched, "web").await.is_empty());
    assert_eq!(finalizers(&cluster, &other, "web").await, [FINALIZER]);
    cluster.patch_service(&other, "web", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn missing_permission_to_list_services_is_logged_once() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("unseen").await;
    load_balancer(&cluster, &namespace, "web", Ingress::Hostname("a.example.com")).await;
    add_finalizers(&cluster, &namespace, "web", &[FINALIZER]).await;
    plane.create_service_account(&namespace, "nobody");
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "nobody");
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target];
    let watched = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::start([&args[..], &watched].concat());
    let line = linker
        .line("looking for Services with a finalizer of lb-linker: can't list Services in namespace")
        .await;
    assert!(line.contains("permissions of deploy/"), "{line}");

    let subject = format!("--serviceaccount={namespace}:nobody");
    let bind = ["-n", &namespace, "create", "rolebinding", "nobody", "--clusterrole=lb-linker", &subject];
    plane.kubectl(&bind);
    linker.line(&format!("Service {namespace}/web carries {FINALIZER} and will get stuck")).await;
    assert_eq!(linker.logged("looking for Services with a finalizer of lb-linker"), 1, "{:#?}", linker.log());
    cluster.patch_service(&namespace, "web", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn finalizer_of_a_recreated_service_isnt_removed() {
    let (_, cluster, _) = cluster_with_target().await;
    let namespace = cluster.create_namespace("successor").await;
    cluster.create_load_balancer(&namespace, "web").await;
    add_finalizers(&cluster, &namespace, "web", &["example.com/first", FINALIZER, "example.com/last"]).await;
    let uid = uid(&cluster.get_service(&namespace, "web").await.unwrap());
    let bound = |uid: &str| ServiceWithFinalizer {
        key: ServiceKey::new(&namespace, "web"),
        uid: uid.to_owned(),
        blocks_deletion: false,
        other_finalizers: String::new(),
        is_selected: true,
    };
    let refused = remove_finalizer(&cluster.client, &bound("another")).await.unwrap_err();
    assert!(is_uid_mismatch(&refused), "{refused}");
    assert_eq!(finalizers(&cluster, &namespace, "web").await.len(), 3);
    // Removing the finalizer again has no effect.
    for _ in 0..2 {
        remove_finalizer(&cluster.client, &bound(&uid)).await.unwrap();
        let left = finalizers(&cluster, &namespace, "web").await;
        assert_eq!(left, ["example.com/first", "example.com/last"]);
    }
    cluster.patch_service(&namespace, "web", json!({"metadata": {"finalizers": null}})).await;
}

#[test]
fn takeover_without_a_cluster_is_a_usage_error() {
    for (args, sentence) in [
        (["takeover", "--manifests", "."], "leave out --manifests"),
        (["takeover", "--kubeconfig", "/nonexistent"], "kubeconfig /nonexistent: No such file"),
    ] {
        let output = run_to_end(args);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(sentence), "{}", text(&output.stderr));
    }
}

#[test]
fn takeover_fails_if_the_api_server_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let port = HeldPort::take().unwrap();
    let path = directory.path().join("kubeconfig");
    let kubeconfig: Value = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": format!("http://{}", port.local())}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let output = run_to_end(["takeover", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("can't list Services in all namespaces: Connection refused"));
}
