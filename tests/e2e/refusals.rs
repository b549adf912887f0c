//! Writes that the API server refuses one object at a time: by a policy, a quota, or the end of the namespace. They
//! delay no other write.

use serde_json::json;

use crate::harness::admission::AdmissionPolicy;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::linker::Linker;
use crate::harness::{cluster_with_target, eventually, grant_optional};
use crate::story::external_target;

/// How many objects are refused beside a healthy one.
const REFUSED: usize = 20;

/// Has the API server refuse ExternalName Services of a namespace that point at `denied.example.com`, in the words
/// that it has for a missing right.
async fn deny(plane: &ControlPlane, cluster: &Cluster, namespace: &str) {
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
    // The policy is in force when it shows.
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

/// How many writes of Services lb-linker has counted with this verb and code.
fn writes(linker: &Linker, verb: &str, code: u16) -> f64 {
    let labels = format!("code=\"{code}\",kind=\"Service\",verb=\"{verb}\"");
    linker.metric(&format!("lb_linker_api_writes_total{{{labels}}}")).unwrap_or_default()
}

/// Waits until this many writes of Services were refused.
async fn refused(linker: &Linker, verb: &str, number: usize) {
    let least = number as f64;
    let counted = || async { (writes(linker, verb, 403) >= least).then_some(()) };
    eventually(&format!("{number} refusals"), counted).await;
}

#[tokio::test]
async fn objects_that_a_policy_denies_delay_no_other_one() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("denied").await;
    deny(plane, &cluster, &target).await;
    for i in 0..REFUSED {
        balancer(&cluster, &namespace, &format!("denied-{i}"), "denied.example.com").await;
    }
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    refused(&linker, "create", REFUSED).await;
    for i in 0..3 {
        let (name, host) = (format!("healthy-{i}"), format!("{i}.example.com"));
        balancer(&cluster, &namespace, &name, &host).await;
        external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), &host).await;
    }
    // Each is tried again after half a second to a second at first: a try of all of them between any two writes of
    // the healthy ones would show in this number.
    let tried = writes(&linker, "create", 403);
    assert!(tried < 15.0 * REFUSED as f64, "{tried} tries");
    assert_eq!(linker.logged("has no Role in it"), 0, "{:#?}", linker.log());
    let line = linker.line("ValidatingAdmissionPolicy").await;
    assert!(line.contains("next try in"), "{line}");

    // One that isn't denied any more is written when its turn comes.
    let name = "denied-7";
    cluster.set_ingress(&namespace, name, &[Ingress::Hostname("allowed.example.com")]).await;
    external_target(&cluster, &target, &format!("{name}-{namespace}-ext"), "allowed.example.com").await;
}

#[tokio::test]
async fn followers_that_a_policy_denies_delay_no_other_one() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("denied").await;
    grant_optional(plane, "source", &namespace);
    deny(plane, &cluster, &namespace).await;
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
    refused(&linker, "patch", REFUSED).await;
    for host in ["b.example.com", "c.example.com"] {
        cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname(host)]).await;
        follow(&format!("follows-{}", &host[..1]), "healthy").await;
        external_target(&cluster, &namespace, &format!("follows-{}", &host[..1]), host).await;
    }
    assert_eq!(linker.logged("deploy/source/"), 0, "{:#?}", linker.log());
}

#[tokio::test]
async fn a_quota_delays_no_change_and_its_end_is_noticed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("quota").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let object = |name: &str| format!("{name}-{namespace}-ext");
    balancer(&cluster, &namespace, "healthy", "a.example.com").await;
    external_target(&cluster, &target, &object("healthy"), "a.example.com").await;

    plane.kubectl(&["create", "quota", "none", "--hard=services=0", "-n", &target]);
    // A controller that doesn't run here would do this.
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
    refused(&linker, "create", REFUSED).await;
    cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname("b.example.com")]).await;
    external_target(&cluster, &target, &object("healthy"), "b.example.com").await;
    let line = linker.line("exceeded quota").await;
    assert!(line.contains(&format!("of link {namespace}/svc-")), "{line}");
    assert_eq!(linker.logged("has no Role in it"), 0, "{:#?}", linker.log());

    plane.kubectl(&["delete", "quota", "none", "-n", &target]);
    for i in 0..REFUSED {
        external_target(&cluster, &target, &object(&format!("svc-{i}")), "a.example.com").await;
    }
}

#[tokio::test]
async fn a_terminating_target_namespace_delays_no_change() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("terminating").await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let linker = Linker::in_cluster(plane, &target, &args);
    let object = format!("healthy-{namespace}-ext");
    balancer(&cluster, &namespace, "healthy", "a.example.com").await;
    external_target(&cluster, &target, &object, "a.example.com").await;
    // No controller removes what is in it: it stays in Terminating.
    plane.kubectl(&["delete", "namespace", &target, "--wait=false"]);
    for i in 0..REFUSED {
        balancer(&cluster, &namespace, &format!("svc-{i}"), "a.example.com").await;
    }
    refused(&linker, "create", REFUSED).await;
    cluster.set_ingress(&namespace, "healthy", &[Ingress::Hostname("b.example.com")]).await;
    external_target(&cluster, &target, &object, "b.example.com").await;
    let line = linker.line("is being terminated").await;
    assert!(line.contains("next try in"), "{line}");
    assert_eq!(linker.logged("has no Role in it"), 0, "{:#?}", linker.log());
}
