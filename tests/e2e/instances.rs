//! Several lb-linker installations that keep their external targets in one namespace.

use std::process::Output;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, cluster_errors, run_to_end};
use crate::harness::{cluster_with_target, eventually};
use crate::links::text;
use crate::recreation::wait_for_external_target;

const INSTANCE: &str = "linker.hsj.com/instance";
const OTHER_INSTANCES_METRIC: &str = "lb_linker_objects_of_other_instances";

/// Starts the instance of a team, which follows the load balancers with that team's label.
fn instance(plane: &ControlPlane, target: &str, namespaces: &str, team: &str, more: &[&str]) -> Linker {
    let selector = format!("team={team}");
    let name = format!("of/{team}");
    let args = ["--upstream", "none", "--watch-namespaces", namespaces, "--service-selector", &selector];
    let args = [&args[..], &["--instance", &name, "--delete-delay", "0s"], more].concat();
    Linker::in_cluster(plane, target, &args)
}

async fn load_balancer(cluster: &Cluster, namespace: &str, name: &str, team: &str, ingress: &[Ingress<'_>]) {
    let service = json!({
        "metadata": {"name": name, "labels": {"team": team}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false},
    });
    cluster.create_service(namespace, service).await;
    cluster.set_ingress(namespace, name, ingress).await;
}

/// Returns the name and the instance annotation of each Service and EndpointSlice in the target namespace.
fn instances(plane: &ControlPlane, target: &str) -> Vec<(String, String)> {
    let mut objects = plane.list(&format!("/api/v1/namespaces/{target}/services"));
    objects.extend(plane.list(&format!("/apis/discovery.k8s.io/v1/namespaces/{target}/endpointslices")));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of =
        |item: &Value| (text(&item["metadata"]["name"]), text(&item["metadata"]["annotations"][INSTANCE]));
    let mut found: Vec<_> = objects.iter().map(of).collect();
    found.sort();
    found
}

fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, instance)| ((*name).to_owned(), (*instance).to_owned())).collect()
}

async fn versions(cluster: &Cluster, target: &str) -> Vec<Option<String>> {
    let list = cluster.services(target).list(&ListParams::default()).await.unwrap();
    list.into_iter().map(|service| service.metadata.resource_version).collect()
}

/// Waits until lb-linker has counted `number` writes, and asserts that it has counted no more. A write is counted
/// shortly after it is visible.
async fn wait_for_writes(linker: &Linker, number: f64) {
    eventually(&format!("{number} writes"), || async { (linker.writes() >= number).then_some(()) }).await;
    assert!((linker.writes() - number).abs() < 0.5, "{} writes: {:#?}", linker.writes(), linker.log());
}

#[tokio::test]
async fn instances_dont_touch_each_others_objects() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("shared").await;
    let host = |name: &'static str| [Ingress::Hostname(name)];
    load_balancer(&cluster, &namespace, "one", "a", &host("one.example.com")).await;
    load_balancer(&cluster, &namespace, "two", "b", &[Ingress::Ip("192.0.2.2")]).await;
    let a = instance(plane, &target, &namespace, "a", &[]);
    let (one, two) = (format!("one-{namespace}-ext"), format!("two-{namespace}-ext"));
    wait_for_external_target(&cluster, &target, &one, "one.example.com").await;
    let b = instance(plane, &target, &namespace, "b", &[]);
    let slice = format!("{two}-ipv4");
    let both = owned(&[(&one, "of/a"), (&two, "of/b"), (&slice, "of/b")]);
    eventually("both objects", || async { (instances(plane, &target) == both).then_some(()) }).await;
    drop((a, b));

    // Neither the first lists nor later watch events make an instance remove another instance's objects: each new
    // process makes exactly one write.
    let (a, b) =
        (instance(plane, &target, &namespace, "a", &[]), instance(plane, &target, &namespace, "b", &[]));
    for (linker, name, team) in [(&a, "three", "a"), (&b, "four", "b")] {
        load_balancer(&cluster, &namespace, name, team, &host("later.example.com")).await;
        wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "later.example.com")
            .await;
        wait_for_writes(linker, 1.0).await;
    }
    a.counts(OTHER_INSTANCES_METRIC, 3.0).await;
    b.counts(OTHER_INSTANCES_METRIC, 2.0).await;

    cluster.delete_service(&namespace, "one").await;
    let gone = || async { cluster.get_service(&target, &one).await.is_none().then_some(()) };
    eventually("the removal of the external target of one", gone).await;
    answers(b.dns, &format!("two.{namespace}.lb.internal. A"), "192.0.2.2").await;
    answers(a.dns, &format!("two.{namespace}.lb.internal. A"), "Non-Existent Domain").await;
    let (three, four) = (format!("three-{namespace}-ext"), format!("four-{namespace}-ext"));
    let left = owned(&[(&four, "of/b"), (&three, "of/a"), (&two, "of/b"), (&slice, "of/b")]);
    assert_eq!(instances(plane, &target), left);
    wait_for_writes(&a, 2.0).await;
    wait_for_writes(&b, 1.0).await;
}

#[tokio::test]
async fn name_held_by_another_instance_is_a_conflict() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("clash").await;
    let other = format!("y-{namespace}");
    plane.create_namespace(&other);
    let both = format!("{namespace},{other}");
    // Both Services have the default name x-y-NAMESPACE-ext.
    load_balancer(&cluster, &other, "x", "a", &[Ingress::Hostname("a.example.com")]).await;
    let a = instance(plane, &target, &both, "a", &[]);
    let name = format!("x-y-{namespace}-ext");
    let first = wait_for_external_target(&cluster, &target, &name, "a.example.com").await;
    let b = instance(plane, &target, &both, "b", &[]);
    // Conflicts that are found before the first write cause no Event.
    load_balancer(&cluster, &namespace, "z", "b", &[Ingress::Hostname("z.example.com")]).await;
    let own = format!("z-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &own, "z.example.com").await;
    load_balancer(&cluster, &namespace, "x-y", "b", &[Ingress::Hostname("b.example.com")]).await;
    let line =
        b.line(&format!("external target {target}/{name} of link {namespace}/x-y is left alone")).await;
    assert!(line.contains(r#"it belongs to the lb-linker instance "of/a""#), "{line}");
    assert!(line.contains("another --target-namespace") && !line.contains("delete it"), "{line}");
    let conflict =
        || async { plane.event_reasons(&namespace).iter().any(|reason| reason == "Conflict").then_some(()) };
    eventually("the Event", conflict).await;
    assert_eq!(b.metric("lb_linker_conflicts"), Some(1.0));
    answers(b.dns, &format!("x-y.{namespace}.lb.internal. CNAME"), "b.example.com.").await;
    assert_eq!(cluster.get_service(&target, &name).await, Some(first));
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    for own in [["--instance", "of/b"], ["--sync", "off"]] {
        let args = ["links", "-n", &namespace, "--watch-namespaces", &namespace, "-o", "wide"];
        let from = ["--target-namespace", &target, "--kubeconfig", kubeconfig.to_str().unwrap()];
        let table = text(&run_to_end([&args[..], &from, &own].concat()).stdout);
        assert!(table.contains(r#"left alone: it belongs to the lb-linker instance "of/a""#), "{table}");
    }
    let off = Linker::in_cluster(
        plane,
        &target,
        &["--upstream", "none", "--sync", "off", "--watch-namespaces", &namespace],
    );
    let line =
        off.line(&format!("external target {target}/{name} of link {namespace}/x-y is left alone")).await;
    assert!(line.contains("another --target-namespace") && !line.contains("delete it"), "{line}");
    wait_for_writes(&a, 1.0).await;
    wait_for_writes(&b, 1.0).await;

    // The owner releases the name.
    cluster.delete_service(&other, "x").await;
    wait_for_external_target(&cluster, &target, &name, "b.example.com").await;
    assert_eq!(instances(plane, &target), owned(&[(&name, "of/b"), (&own, "of/b")]));
}

#[tokio::test]
async fn objects_without_an_instance_are_adopted_slowly() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("upgrade").await;
    load_balancer(&cluster, &namespace, "host", "a", &[Ingress::Hostname("a.example.com")]).await;
    load_balancer(&cluster, &namespace, "ip", "a", &[Ingress::Ip("192.0.2.2")]).await;
    let mut before = instance(plane, &target, &namespace, "a", &[]);
    let (host, ip) = (format!("host-{namespace}-ext"), format!("ip-{namespace}-ext"));
    let slice = format!("{ip}-ipv4");
    let all = |instance| owned(&[(&host, instance), (&ip, instance), (&slice, instance)]);
    eventually("the objects", || async { (instances(plane, &target) == all("of/a")).then_some(()) }).await;
    assert!(before.stop().success());
    // Removes the annotation, which earlier versions didn't write.
    let objects = ["-n", &target, "annotate", "services,endpointslices", "--all"];
    plane.kubectl(&[&objects[..], &[&format!("{INSTANCE}-")]].concat());
    assert_eq!(instances(plane, &target), all(""));

    let started = Instant::now();
    let a = instance(plane, &target, &namespace, "a", &[]);
    a.ready().await;
    load_balancer(&cluster, &namespace, "later", "a", &[Ingress::Hostname("later.example.com")]).await;
    wait_for_external_target(&cluster, &target, &format!("later-{namespace}-ext"), "later.example.com").await;
    // Only the new object is written at once.
    wait_for_writes(&a, 1.0).await;
    let deadline = started + Duration::from_secs(180);
    while a.writes() < 4.0 {
        assert!(Instant::now() < deadline, "{:#?}", instances(plane, &target));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(started.elapsed() > Duration::from_secs(60), "{:?}", started.elapsed());
    let adopted =
        || async { instances(plane, &target).iter().all(|(_, instance)| instance == "of/a").then_some(()) };
    eventually("the annotations of the instance", adopted).await;
    wait_for_writes(&a, 4.0).await;
    let warnings = a.warnings();
    assert!(warnings.iter().all(|line| line.contains("can't get Lease of/a")), "{warnings:#?}");
}

#[tokio::test]
async fn instance_mismatch_is_logged_with_both_remedies() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("renamed").await;
    for name in ["one", "two", "three"] {
        load_balancer(&cluster, &namespace, name, "a", &[Ingress::Hostname("a.example.com")]).await;
    }
    let mut before = instance(plane, &target, &namespace, "a", &[]);
    let objects = || async { (instances(plane, &target).len() == 3).then_some(()) };
    eventually("the objects", objects).await;
    assert!(before.stop().success());
    let versions_before = versions(&cluster, &target).await;

    let renamed = |name: &str| {
        let args = ["--upstream", "none", "--watch-namespaces", &namespace, "--instance", name];
        Linker::in_cluster(plane, &target, &args)
    };
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let check = |name: &str| -> Output {
        let args = ["check", "--cluster", "--upstream", "none", "--target-namespace", &target];
        run_to_end([&args[..], &["--instance", name, "--kubeconfig", kubeconfig.to_str().unwrap()]].concat())
    };
    let linker = renamed("new");
    let line = linker.line("belong to the lb-linker instance of/a").await;
    assert!(line.contains("WARN") && line.contains("3 of 3 external targets"), "{line}");
    let remedies = [
        "--instance=of/a;".to_owned(),
        format!("kubectl -n {target} annotate services,endpointslices --all linker.hsj.com/instance-"),
    ];
    assert!(remedies.iter().all(|remedy| line.contains(remedy)), "{line}");
    linker.counts(OTHER_INSTANCES_METRIC, 3.0).await;
    linker.counts("lb_linker_conflicts", 3.0).await;
    assert_eq!(linker.logged("belong to the lb-linker instance"), 1);
    assert_eq!(linker.writes(), 0.0);
    let output = check("new");
    let complaint = cluster_errors(&output);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(remedies.iter().all(|remedy| complaint.contains(remedy)), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    drop(linker);

    // First remedy: the instance gets its old name again.
    assert_eq!(check("of/a").status.code(), Some(0));
    let linker = renamed("of/a");
    linker.ready().await;
    linker.counts(OTHER_INSTANCES_METRIC, 0.0).await;
    load_balancer(&cluster, &namespace, "four", "a", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &format!("four-{namespace}-ext"), "a.example.com").await;
    wait_for_writes(&linker, 1.0).await;
    assert_eq!(linker.logged("belong to"), 0, "{:#?}", linker.log());
    drop(linker);
    assert_eq!(versions(&cluster, &target).await.iter().filter(|it| versions_before.contains(it)).count(), 3);

    // Second remedy: objects without the annotation belong to the renamed instance, which writes the annotation
    // together with the next target.
    let linker = renamed("new");
    linker.line("belong to the lb-linker instance of/a").await;
    let (_, command) = remedies[1].split_once(' ').unwrap();
    plane.kubectl(&command.split(' ').collect::<Vec<_>>());
    linker.counts(OTHER_INSTANCES_METRIC, 0.0).await;
    futures::stream::iter(["one", "two", "three", "four"])
        .for_each_concurrent(4, async |name| {
            cluster.set_ingress(&namespace, name, &[Ingress::Hostname("b.example.com")]).await;
            wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "b.example.com")
                .await;
        })
        .await;
    assert!(instances(plane, &target).iter().all(|(_, instance)| instance == "new"));
    assert_eq!(check("new").status.code(), Some(0));
}

#[tokio::test]
async fn with_sync_off_the_objects_of_all_instances_are_read() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("off").await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let state = |name: &str, more: &[&str]| {
        let args = ["links", name, "-n", &namespace, "--watch-namespaces", &namespace, "-o", "json"];
        let from = ["--target-namespace", &target, "--kubeconfig", kubeconfig.to_str().unwrap()];
        let listed: Value =
            serde_json::from_slice(&run_to_end([&args[..], &from, more].concat()).stdout).unwrap();
        listed["items"][0]["state"].as_str().unwrap().to_owned()
    };
    for (name, team) in [("one", "a"), ("two", "b")] {
        load_balancer(&cluster, &namespace, name, team, &[Ingress::Hostname("kept.example.com")]).await;
        let linker = instance(plane, &target, &namespace, team, &[]);
        wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "kept.example.com")
            .await;
        drop(linker);
        // A command that reads has the instance that `run` would have.
        assert_eq!(state(name, &[]), "Conflict");
        assert_eq!(
            [state(name, &["--instance", &format!("of/{team}")]), state(name, &["--sync", "off"])],
            ["Ready"; 2]
        );
        cluster.set_ingress(&namespace, name, &[]).await;
    }
    let args = ["--upstream", "none", "--watch-namespaces", &namespace, "--sync", "off"];
    let linker = Linker::in_cluster(plane, &target, &args);
    for name in ["one", "two"] {
        answers(linker.dns, &format!("{name}.{namespace}.lb.internal. CNAME"), "kept.example.com.").await;
    }
    // An instance with sync on restores the last targets of its own objects only.
    let args = ["--upstream", "none", "--watch-namespaces", &namespace, "--instance", "of/a"];
    let a = Linker::in_cluster(plane, &target, &args);
    answers(a.dns, &format!("one.{namespace}.lb.internal. CNAME"), "kept.example.com.").await;
    answers(a.dns, &format!("two.{namespace}.lb.internal. CNAME"), "No Error").await;
}

#[tokio::test]
async fn ambiguous_name_is_answered_alike_by_its_record() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("alike").await;
    let other = format!("y-{namespace}");
    plane.create_namespace(&other);
    let (watched, question) = (format!("{namespace},{other}"), format!("x-y-{namespace}.lb.internal. CNAME"));
    let start = |target: &str, more: &[&str]| {
        let args = [&["--upstream", "none", "--watch-namespaces", &watched][..], more].concat();
        Linker::in_cluster(plane, target, &args)
    };
    let service = |name: &str, annotations: Value| {
        json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false}})
    };
    // The older Service opts in after the younger one has the name.
    cluster.create_service(&other, service("x", json!({"linker.hsj.com/managed": "false"}))).await;
    cluster.set_ingress(&other, "x", &[Ingress::Hostname("old.example.com")]).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cluster.create_service(&namespace, service("x-y", json!({}))).await;
    cluster.set_ingress(&namespace, "x-y", &[Ingress::Hostname("young.example.com")]).await;
    let (writer, before) = (start(&target, &[]), start(&target, &["--sync", "off"]));
    let name = format!("x-y-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &name, "young.example.com").await;
    answers(before.dns, &question, "young.example.com.").await;
    let opt_in = json!({"metadata": {"annotations": {"linker.hsj.com/managed": null}}});
    cluster.patch_service(&other, "x", opt_in).await;
    let after = start(&target, &["--sync", "off"]);
    for linker in [&writer, &before, &after] {
        answers(linker.dns, &format!("x.{other}.lb.internal. CNAME"), "old.example.com.").await;
        answers(linker.dns, &question, "young.example.com.").await;
    }
    // Without these records the older Service has the name.
    let elsewhere = cluster.create_namespace("alike-else").await;
    answers(start(&elsewhere, &["--sync", "off"]).dns, &question, "old.example.com.").await;
}

#[tokio::test]
async fn takeover_lists_no_orphans_of_other_instances() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("none").await;
    for (name, annotations) in [("unmarked", json!({})), ("theirs", json!({ INSTANCE: "of/b" }))] {
        let labels = json!({"app.kubernetes.io/managed-by": "lb-linker-operator",
            "original-service-name": "gone", "original-service-namespace": namespace});
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        let spec = json!({"type": "ExternalName", "externalName": "old.example.com"});
        cluster.create_service(&target, json!({"metadata": metadata, "spec": spec})).await;
    }
    let kubeconfig = plane.admin_kubeconfig();
    let args = ["takeover", "--target-namespace", &target, "--watch-namespaces", &namespace, "--kubeconfig"];
    let output = run_to_end([&args[..], &[kubeconfig.to_str().unwrap()]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("unmarked") && !text.contains("theirs"), "{text}");
    // --prune doesn't remove the object of another instance either.
    let args = ["--watch-namespaces", &namespace, "--upstream", "none", "--prune", "--delete-delay", "0s"];
    let linker = Linker::in_cluster(plane, &target, &args);
    let gone = || async { cluster.get_service(&target, "unmarked").await.is_none().then_some(()) };
    eventually("the removal of the orphan", gone).await;
    assert!(cluster.get_service(&target, "theirs").await.is_some());
    linker.counts("lb_linker_orphans", 0.0).await;
    wait_for_writes(&linker, 1.0).await;
}
