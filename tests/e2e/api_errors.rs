//! API errors: each error is logged once, causes no damage, and DNS keeps answering.

use serde_json::json;

use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, ask_udp, query, show};
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually, grant};
use crate::recreation::wait_for_external_target;

#[tokio::test]
async fn unreachable_api_server_at_start_is_retried() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    plane.stop_apiserver();

    let linker = Linker::start(["--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", "none"]);
    let line = linker.line("the API server can't be reached: https://127.0.0.1:").await;
    assert!(line.contains(": Connection refused") && line.contains("retrying"), "{line}");
    // SERVFAIL with an extended DNS error (RFC 8914), because resolvers would cache NXDOMAIN.
    for question in ["web-default.lb.internal. A", "lb.internal. SOA", "nothing.lb.internal. A"] {
        let answer = ask_udp(linker.dns, &query(question)).await;
        assert_eq!(show(&answer), "Server Failure aa rd |  |  | ", "{question}");
        assert!(answer.edns.unwrap().options().as_ref().iter().any(|(code, _)| u16::from(*code) == 15));
    }
    let waiting = "lb_linker\nthe load balancers haven't been read yet: the API server doesn't answer";
    // The line may be of another watch, a moment before the watch of load balancers fails.
    eventually(waiting, || async { (linker.get_ready() == (503, waiting.to_owned())).then_some(()) }).await;
    assert_eq!(linker.get_health(), (200, "OK".to_owned()));

    plane.start_apiserver();
    linker.ready().await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;
    assert_eq!(linker.logged("Connection refused"), 1, "{:#?}", linker.log());
}

#[tokio::test]
async fn missing_permission_to_list_is_logged_and_retried() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("forbidden").await;
    plane.create_service_account(&namespace, "nobody");
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "nobody");
    let args =
        ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target, "--upstream", "none"];
    let linker = Linker::start(args);
    let line = linker.line("can't list LoadBalancer Services in all namespaces").await;
    assert!(line.contains("forbids") && line.contains("permissions of deploy/"), "{line}");
    let answer = ask_udp(linker.dns, &query("web-default.lb.internal. A")).await;
    assert_eq!(show(&answer), "Server Failure aa rd |  |  | ");

    let subject = format!("--serviceaccount={namespace}:nobody");
    plane.kubectl(&["create", "clusterrolebinding", &namespace, "--clusterrole=lb-linker", &subject]);
    linker.ready().await;
}

#[tokio::test]
async fn missing_target_namespace_is_reported_once() {
    let (plane, cluster, _) = cluster_with_target().await;
    let namespace = cluster.create_namespace("no-target").await;
    let target = format!("{namespace}-targets");
    for i in 0..10 {
        cluster.create_load_balancer(&namespace, &format!("svc-{i}")).await;
        cluster.set_ingress(&namespace, &format!("svc-{i}"), &[Ingress::Hostname("a.example.com")]).await;
    }
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    // The API server answers a ServiceAccount with 403 both for a missing namespace and for a missing Role.
    let line = linker.line(&format!("can't list EndpointSlices in namespace {target}")).await;
    assert!(line.contains("either the namespace doesn't exist or lb-linker has no Role in it"), "{line}");
    answers(linker.dns, &format!("svc-9-{namespace}.lb.internal. CNAME"), "a.example.com.").await;

    plane.create_namespace(&target);
    grant(plane, &target);
    for i in 0..10 {
        wait_for_external_target(&cluster, &target, &format!("svc-{i}-{namespace}-ext"), "a.example.com")
            .await;
    }
    assert_eq!(linker.logged("can't list EndpointSlices"), 1, "{:#?}", linker.log());
    linker.line(&format!("the EndpointSlices in namespace {target} can be followed again")).await;
}

#[tokio::test]
async fn missing_permission_to_write_is_reported_once() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("no-writes").await;
    let permit = |verbs: &[&str]| {
        let patch = json!([{"op": "replace", "path": "/rules/0/verbs", "value": verbs}]).to_string();
        plane.kubectl(&["-n", &target, "patch", "role", "lb-linker", "--type=json", "-p", &patch]);
    };
    permit(&["list", "watch"]);
    for i in 0..10 {
        cluster.create_load_balancer(&namespace, &format!("svc-{i}")).await;
        cluster.set_ingress(&namespace, &format!("svc-{i}"), &[Ingress::Hostname("a.example.com")]).await;
    }
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    let line = linker.line(&format!("can't create Services in namespace {target}")).await;
    assert!(line.contains("deploy/ has the Role that grants it"), "{line}");
    let is_noted = async |verb: &str| {
        let note =
            format!("now: lb-linker may not {verb} Services there; deploy/ has the Role that grants it");
        eventually(&note, || async { linker.get_ready().1.contains(&note).then_some(()) }).await;
    };
    is_noted("create").await;
    answers(linker.dns, &format!("svc-9-{namespace}.lb.internal. CNAME"), "a.example.com.").await;

    grant(plane, &target);
    for i in 0..10 {
        wait_for_external_target(&cluster, &target, &format!("svc-{i}-{namespace}-ext"), "a.example.com")
            .await;
    }
    assert_eq!(linker.logged("; retrying"), 1, "{:#?}", linker.log());
    linker.line("Services can be written again (create)").await;

    permit(&["list", "watch", "create", "delete"]);
    let change = async |host| cluster.set_ingress(&namespace, "svc-0", &[Ingress::Hostname(host)]).await;
    eventually("a refusal", || async {
        // The API server enforces a new Role after a short delay.
        for host in ["b.example.com", "c.example.com"] {
            change(host).await;
        }
        (linker.logged("can't patch Services in namespace") > 0).then_some(())
    })
    .await;
    is_noted("patch").await;
    assert_eq!(linker.logged("has no Role in it"), 0, "{:#?}", linker.log());
    grant(plane, &target);
    eventually("no note", || async { (linker.get_ready().1 == "OK").then_some(()) }).await;
}

#[tokio::test]
async fn foreign_object_is_left_alone_and_reported() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("conflict").await;
    let object = format!("web-{namespace}-ext");
    let labels = json!({"app.kubernetes.io/managed-by": "helm"});
    let theirs = json!({"metadata": {"name": object, "labels": labels},
        "spec": {"type": "ExternalName", "externalName": "theirs.example"}});
    let before = cluster.create_service(&target, theirs).await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let line = linker
        .line(&format!("external target {target}/{object} of link {namespace}/web is left alone"))
        .await;
    assert!(line.contains("managed-by says \"helm\""), "{line}");
    linker.counts("lb_linker_conflicts", 1.0).await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "a.example.com.").await;
    let after = cluster.get_service(&target, &object).await.unwrap();
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);

    // When the foreign object is deleted, lb-linker creates its own.
    cluster.delete_service(&target, &object).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    eventually("no conflict", || async { (linker.metric("lb_linker_conflicts") == Some(0.0)).then_some(()) })
        .await;
}

#[tokio::test]
async fn changed_or_deleted_external_target_is_repaired() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("drift").await;
    let object = format!("web-{namespace}-ext");
    let _linker = Linker::in_cluster(plane, &target, &["--upstream", "none"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;

    cluster.patch_service(&target, &object, json!({"metadata": {"annotations": {"their": "own"}}})).await;
    cluster.patch_service(&target, &object, json!({"spec": {"externalName": "wrong.example"}})).await;
    let repaired = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    assert_eq!(
        repaired.metadata.annotations.unwrap()["their"],
        "own",
        "the annotation of another client stays"
    );

    let headless = json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "externalName": null, "selector": {"a": "b"}}});
    cluster.patch_service(&target, &object, headless).await;
    let repaired = wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    assert_eq!(repaired.spec.unwrap().selector, None);

    cluster.delete_service(&target, &object).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
}

#[tokio::test]
async fn empty_status_keeps_the_target_and_type_change_removes_it() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("blank").await;
    let question = format!("web-{namespace}.lb.internal. CNAME");
    let object = format!("web-{namespace}-ext");
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--delete-delay", "0s"]);
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;

    cluster.set_ingress(&namespace, "web", &[]).await;
    linker.line(&format!("link {namespace}/web: a.example.com (kept: the Service's status is blank)")).await;
    answers(linker.dns, &question, "a.example.com.").await;

    cluster.patch_service(&namespace, "web", json!({"spec": {"type": "ClusterIP"}})).await;
    answers(linker.dns, &question, "Non-Existent Domain").await;
    eventually("the deletion of the external target", || async {
        cluster.get_service(&target, &object).await.is_none().then_some(())
    })
    .await;
}

/// Creates an admission policy that sets the `externalName` of all ExternalName Services in a namespace to
/// `stubborn.example`. The caller needs a separate control plane: the name of the policy is fixed, so a second policy
/// would replace it.
pub async fn create_overwriting_policy(plane: &ControlPlane, cluster: &Cluster, namespace: &str) {
    let condition =
        format!("object.metadata.namespace == '{namespace}' && object.spec.type == 'ExternalName'");
    let operations = &["CREATE", "UPDATE"];
    AdmissionPolicy { name: "stubborn", operations, condition: &condition }
        .mutate(plane, r#"Object{spec: Object.spec{externalName: "stubborn.example"}}"#);
    // The API server enforces a new policy after a short delay.
    eventually("the policy", || async {
        let probe = json!({"metadata": {"generateName": "probe-"}, "spec": {"type": "ExternalName", "externalName": "a.example"}});
        let made = cluster.create_service(namespace, probe).await;
        (made.spec.unwrap().external_name.as_deref() == Some("stubborn.example")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn policy_that_undoes_writes_causes_no_hot_loop() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    create_overwriting_policy(&plane, &cluster, "external-targets").await;
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none"]);
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    let line = linker.line("another client, or an admission policy, changes what is written").await;
    assert!(line.contains("external-targets/web-default-ext of link default/web"), "{line}");
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;
    // lb-linker makes some writes until it detects that they are undone, then pauses with growing delays.
    let writes = plane
        .audit_events()
        .into_iter()
        .filter(|event| event.is_write() && event.user.ends_with(":lb-linker:lb-linker"))
        .filter(|event| event.resource != "events")
        .count();
    assert!(writes <= 14, "{writes} writes");
}

#[tokio::test]
async fn sync_plan_logs_writes_and_makes_none() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("plan").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    let linker = Linker::in_cluster(plane, &target, &["--upstream", "none", "--sync", "plan"]);
    let object = format!("{target}/web-{namespace}-ext");
    linker.line(&format!("plan for link {namespace}/web: create EndpointSlice {object}-ipv4")).await;
    linker.line(&format!("plan for link {namespace}/web: create Service {object} → its addresses")).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    linker.line(&format!("plan for link {namespace}/web: create Service {object} → a.example.com")).await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "a.example.com.").await;
    assert!(cluster.get_service(&target, &format!("web-{namespace}-ext")).await.is_none());
}

#[tokio::test]
async fn sync_off_needs_only_the_permission_to_read_services() {
    let (plane, cluster, _) = cluster_with_target().await;
    let namespace = cluster.create_namespace("off").await;
    plane.create_service_account(&namespace, "reader");
    let subject = format!("--serviceaccount={namespace}:reader");
    plane.kubectl(&["create", "clusterrolebinding", &namespace, "--clusterrole=lb-linker", &subject]);
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "reader");
    // A target namespace in which the ServiceAccount has no permission.
    let args = [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--upstream",
        "none",
        "--sync",
        "off",
        "--target-namespace",
        "elsewhere",
    ];
    let linker = Linker::start(args);
    let question = format!("web-{namespace}.lb.internal. CNAME");
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    answers(linker.dns, &question, "a.example.com.").await;
    cluster.delete_service(&namespace, "web").await;
    answers(linker.dns, &question, "Non-Existent Domain").await;
}
