//! Writes that the API server rejects for single objects: by an admission policy, a quota, or a terminating
//! namespace. These rejections delay no other write.

use serde_json::json;

use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually, grant_optional};
use crate::recreation::wait_for_external_target;

/// The number of rejected objects in each test.
const REFUSED: usize = 20;

/// Creates an admission policy that rejects ExternalName Services of a namespace with the target
/// `denied.example.com`. The policy's message looks like the API server's message for a missing permission.
async fn create_denying_policy(plane: &ControlPlane, cluster: &Cluster, namespace: &str) {
    let condition =
        format!("object.metadata.namespace == '{namespace}' && object.spec.type == 'ExternalName'");
    let operations = &["CREATE", "UPDATE"];
    let policy = AdmissionPolicy { name: namespace, operations, condition: &condition };
    let message = format!(
        "it cannot be written: services is forbidden: User \"x\" cannot create resource \"services\" in API group \"\" \
         in the namespace \"{namespace}\""
    );
    let expression = "object.spec.externalName != 'denied.example.com'";
    policy.validate(plane, &json!({"expression": expression, "reason": "Forbidden", "message": message}));
    // The API server enforces a new policy after a short delay.
    eventually("the policy", || async {
        let probe = json!({"metadata": {"generateName": "probe-"}, "spec": {"type": "ExternalName",
            "externalName": "denied.example.com"}});
        let probe = serde_json::from_value(probe).unwrap();
        let refused = cluster.services(namespace).create(&Default::default(), &probe).await;
        matches!(refused, Err(kube::Error::Api(status)) if status.code == 403).then_some(())
    })
    .await;
}

async fn balancer(cluster: &Cluster, namespace: &str, name: &str, host: &str) {
    cluster.create_load_balancer(namespace, name).await;
    cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
}

/// Returns the number of Service writes that lb-linker has counted with this verb and status code.
fn writes(linker: &Linker, verb: &str, code: u16) -> f64 {
    let labels = format!("code=\"{code}\",kind=\"Service\",verb=\"{verb}\"");
    linker.metric(&format!("lb_linker_api_writes_total{{{labels}}}")).unwrap_or_default()
}

/// Waits until at least `number` Service writes were rejected with 403.
async fn wait_for_rejections(linker: &Linker, verb: &str, number: usize) {
    let least = number as f64;
    let counted = || async { (writes(linker, verb, 403) >= least).then_some(()) };
    eventually(&format!("{number} refusals"), counted).await;
}

#[tokio::test]
async fn objects_denied_by_a_policy_delay_no_other_object() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("denied").await;
    create_denying_policy(plane, &cluster, &target).await;
    for i in 0..REFUSED {
        balancer(&cluster, &namespace, &format!("denied-{i}"), "denied.example.com").await;
    }
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    wait_for_rejections(&linker, "create", REFUSED).await;
    let reported = || async {
        let reasons = plane.event_reasons(&namespace);
        (reasons.iter().filter(|reason| *reason == "Forbidden").count() == REFUSED).then_some(())
    };
    eventually("an Event of each refused Service", reported).await;
    for i in 0..3 {
        let (name, host) = (format!("healthy-{i}"), format!("{i}.example.com"));
        balancer(&cluster, &namespace, &name, &host).await;
        wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), &host).await;
    }
    // The first retry of an object comes after 0.5 s to 1 s, later retries after longer pauses. Without these pauses
    // there would be many more rejected writes.
    let tried = writes(&linker, "create", 403);
    assert!(tried < 15.0 * REFUSED as f64, "{tried} rejected writes");
    assert_eq!(linker.logged("the Role that grants it"), 0, "{:#?}", linker.log());
    let line = linker.line("ValidatingAdmissionPolicy").await;
    assert!(line.contains("next try in"), "{line}");

    // An object that is no longer denied is written.
    let name = "denied-7";
    cluster.set_ingress(&namespace, name, &[Ingress::Hostname("allowed.example.com")]).await;
    wait_for_external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "allowed.example.com")
        .await;
}

#[tokio::test]
async fn followers_denied_by_a_policy_delay_no_other_follower() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("denied").await;
    grant_optional(plane, "source", &namespace);
    create_denying_policy(plane, &cluster, &namespace).await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    balancer(&cluster, &namespace, "denied", "denied.example.com").await;
    balancer(&cluster, &namespace, "healthy", "a.example.com").await;
    let follow = async |name: &str, source: &str| {
        let follower = json!({
            "metadata": {"name": name, "annotations": {"linker.hsj.com/source": source}},
            "spec": {"type": "ExternalName", "externalName": "by-hand.example.com"},
        });
        cluster.create_service(&namespace, follower).await;
    };
    for i in 0..REFUSED {
        follow(&format!("a-{i}"), "denied").await;
    }
    wait_for_rejections(&linker, "patch", REFUSED).await;
    for host in ["b.example.com", "c.example.com"] {
        cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname(host)]).await;
        follow(&format!("follows-{}", &host[..1]), "healthy").await;
        wait_for_external_target(&cluster, &namespace, &format!("follows-{}", &host[..1]), host).await;
    }
    assert_eq!(linker.logged("deploy/source/"), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn creates_over_quota_are_retried_and_delay_no_update() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("quota").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let object = |name: &str| format!("{name}-{namespace}-ext");
    balancer(&cluster, &namespace, "healthy", "a.example.com").await;
    wait_for_external_target(&cluster, &target, &object("healthy"), "a.example.com").await;

    plane.kubectl(&["create", "quota", "none", "--hard=services=0", "-n", &target]);
    // The quota controller, which doesn't run here, would set this status.
    let status = r#"{"status": {"hard": {"services": "0"}, "used": {"services": "0"}}}"#;
    let patch =
        ["patch", "quota", "none", "--subresource=status", "--type=merge", "-p", status, "-n", &target];
    plane.kubectl(&patch);
    eventually("the quota to be in force", || async {
        let probe = json!({"metadata": {"generateName": "probe-"},
            "spec": {"type": "ExternalName", "externalName": "a.example"}});
        let probe = serde_json::from_value(probe).unwrap();
        cluster.services(&target).create(&Default::default(), &probe).await.is_err().then_some(())
    })
    .await;
    for i in 0..REFUSED {
        balancer(&cluster, &namespace, &format!("svc-{i}"), "a.example.com").await;
    }
    wait_for_rejections(&linker, "create", REFUSED).await;
    cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object("healthy"), "b.example.com").await;
    let line = linker.line("exceeded quota").await;
    assert!(line.contains(&format!("of link {namespace}/svc-")), "{line}");
    assert_eq!(linker.logged("the Role that grants it"), 0, "{:#?}", linker.log());

    plane.kubectl(&["delete", "quota", "none", "-n", &target]);
    for i in 0..REFUSED {
        wait_for_external_target(&cluster, &target, &object(&format!("svc-{i}")), "a.example.com").await;
    }
}

#[tokio::test]
async fn terminating_target_namespace_delays_no_update() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("terminating").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let object = format!("healthy-{namespace}-ext");
    balancer(&cluster, &namespace, "healthy", "a.example.com").await;
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    // No namespace controller runs here, so the namespace stays in Terminating.
    plane.kubectl(&["delete", "namespace", &target, "--wait=false"]);
    for i in 0..REFUSED {
        balancer(&cluster, &namespace, &format!("svc-{i}"), "a.example.com").await;
    }
    // One object asks for all: the others wait until its Service can be created.
    wait_for_rejections(&linker, "create", 1).await;
    cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname("b.example.com")]).await;
    wait_for_external_target(&cluster, &target, &object, "b.example.com").await;
    let line = linker.line("is being terminated").await;
    assert!(line.contains("retrying"), "{line}");
    assert_eq!(linker.logged("the Role that grants it"), 0, "{:#?}", linker.log());
}
