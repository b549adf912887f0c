//! Outside a Pod, lb-linker logs which cluster it uses, and writes only with an explicit flag or variable.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;

async fn balancer(cluster: &Cluster, namespace: &str) {
    cluster.create_load_balancer(namespace, "web").await;
    cluster.set_ingress(namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
}

/// Returns the API server's URL and the context in the format of the log.
pub(crate) fn api_server(kubeconfig: &str) -> String {
    // The harness writes kubeconfigs in JSON.
    let config: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    let (url, context) = (&config["clusters"][0]["cluster"]["server"], &config["current-context"]);
    format!("API server {} (context {context} of {kubeconfig})", url.as_str().unwrap())
}

#[tokio::test]
async fn outside_a_pod_writes_are_logged_and_not_made() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("laptop").await;
    balancer(&cluster, &namespace).await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let object = format!("web-{namespace}-ext");
    let args = ["--kubeconfig", kubeconfig, "--target-namespace", &target, "--watch-namespaces", &namespace];
    let args = [&args[..], &["--upstream", "none"]].concat();
    for _ in 0..2 {
        let linker = Linker::start_bare(&[], &args);
        let line = linker.line("--sync on makes them").await;
        assert!(line.contains("WARN") && line.contains("nothing is written"), "{line}");
        linker.line(&api_server(kubeconfig)).await;
        linker.line(&format!("plan for link {namespace}/web: create Service {target}/{object}")).await;
        answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "a.example.com.").await;
        assert_eq!(linker.writes(), 0.0);
        assert_eq!(linker.metric("lb_linker_sync_enabled"), Some(0.0));
    }
    assert!(cluster.get_service(&target, &object).await.is_none());

    let check = run_to_end([&["check"], &args[..]].concat());
    let printed = String::from_utf8(check.stdout).unwrap();
    assert!(printed.contains(&api_server(kubeconfig)), "{printed}");
    assert!(printed.contains("--sync on makes them"), "{printed}");
    let plan = printed.lines().any(|line| line.starts_with("--sync ") && line.ends_with(" plan"));
    assert!(plan, "{printed}");
}

#[tokio::test]
async fn plan_names_present_and_future_targets() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("plan").await;
    balancer(&cluster, &namespace).await;
    cluster.create_load_balancer(&namespace, "db").await;
    cluster.set_ingress(&namespace, "db", &[Ingress::Hostname("b.example.com")]).await;
    for (service, present) in [("web", "old.example.com"), ("db", "b.example.com")] {
        plane.apply(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {service}-{namespace}-ext, namespace: {target}}}\n\
             spec: {{type: ExternalName, externalName: {present}}}\n"
        ));
    }
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let args = ["--kubeconfig", kubeconfig, "--target-namespace", &target, "--upstream", "none"];
    let linker = Linker::start_bare(&[], [&args[..], &["--sync", "plan"]].concat());
    let plan = |service: &str, change: &str| {
        format!(
            "plan for link {namespace}/{service}: patch Service {target}/{service}-{namespace}-ext{change}"
        )
    };
    linker.line(&plan("web", ": old.example.com → a.example.com")).await;
    linker.line(&plan("db", " → b.example.com, as now")).await;
    assert_eq!(linker.writes(), 0.0);
}

#[tokio::test]
async fn pod_or_explicit_flag_enables_writes() {
    let (plane, cluster, target) = cluster_with_target().await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let in_pod = [("KUBERNETES_SERVICE_HOST", "127.0.0.1")];
    let election = [("LB_LINKER_LEADER_ELECTION", "off")];
    for (variables, more) in [
        (&in_pod[..], &[][..]),
        (&election, &[]),
        (&[], &["--leader-election", "off"]),
        (&[], &["--sync", "on"]),
    ] {
        let namespace = cluster.create_namespace("writes").await;
        let args = ["--kubeconfig", kubeconfig, "--target-namespace", &target, "--upstream", "none"];
        let args = [&args[..], &["--watch-namespaces", &namespace], more].concat();
        let linker = Linker::start_bare(variables, args);
        balancer(&cluster, &namespace).await;
        let object = format!("web-{namespace}-ext");
        wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
        assert_eq!(linker.logged("nothing is written"), 0, "{:#?}", linker.log());
        // deploy/ goes on with the objects of a workstation.
        let annotations = cluster.get_service(&target, &object).await.unwrap().metadata.annotations;
        assert_eq!(annotations.unwrap()["linker.hsj.com/instance"], "lb-linker/lb-linker");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_beside_a_leader_in_the_cluster_are_refused() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("led").await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let instance = format!("{namespace}/blue");
    let args =
        ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target, "--upstream", "none"];
    let args =
        [&args[..], &["--watch-namespaces", &namespace, "--instance", &instance, "--sync", "on"]].concat();
    let starts = async || Linker::start_bare(&[], &args).ready().await;
    starts().await;

    let leases: Api<Lease> = Api::namespaced(plane.admin_client().await, &namespace);
    let lease =
        json!({"metadata": {"name": "blue"}, "spec": {"holderIdentity": "pod-1", "leaseDurationSeconds": 3}});
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let renew = async |holder: &str| {
        let spec = json!({"spec": {"holderIdentity": holder, "renewTime": MicroTime(Timestamp::now())}});
        leases.patch("blue", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    };
    let refused = async || {
        let args = args.clone().into_iter().map(ToOwned::to_owned).collect::<Vec<String>>();
        let run = tokio::task::spawn_blocking(|| run_to_end(args));
        let renewing = async {
            loop {
                renew("pod-1").await;
                sleep(Duration::from_millis(200)).await;
            }
        };
        let output = tokio::select! {
            output = run => output.unwrap(),
            () = renewing => unreachable!(),
        };
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    // Without the permission to read the Lease.
    starts().await;
    let name = ["-n", &namespace, "create"];
    plane.kubectl(&[&name[..], &["role", "leases", "--verb=get", "--resource=leases"]].concat());
    let account = "--serviceaccount=lb-linker:lb-linker";
    plane.kubectl(&[&name[..], &["rolebinding", "leases", "--role=leases", account]].concat());
    let error = refused().await;
    let expected =
        format!("\"pod-1\" leads by Lease {instance}, and this process, which takes part in no election");
    assert!(error.contains(&expected), "{error}");
    // The Lease isn't renewed any more, and then it is released.
    starts().await;
    renew("").await;
    starts().await;
}

#[tokio::test]
async fn manifests_mode_writes_files_without_sync_on() {
    let (manifests, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, \
                   spec: {type: LoadBalancer}, status: {loadBalancer: {ingress: [{hostname: a.example.com}]}}}";
    std::fs::write(manifests.path().join("web.yaml"), service).unwrap();
    let (from, to) = (manifests.path().to_str().unwrap(), output.path().to_str().unwrap());
    let linker = Linker::start_bare(&[], ["--manifests", from, "--output", to, "--upstream", "none"]);
    let written = || async { output.path().join("web-shop-ext.yaml").exists().then_some(()) };
    eventually("the external target", written).await;
    let text = std::fs::read_to_string(output.path().join("web-shop-ext.yaml")).unwrap();
    assert!(text.contains("namespace: external-targets\n"), "{text}");
    assert_eq!(linker.logged("nothing is written"), 0, "{:#?}", linker.log());
    assert_eq!(linker.logged("API server"), 0, "{:#?}", linker.log());
}
