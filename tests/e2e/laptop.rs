//! Outside a Pod, lb-linker logs which cluster it uses, and writes only with an explicit flag or variable.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::answers;
use crate::harness::linker::{Linker, cluster_errors, run_to_end};
use crate::harness::{LINKER, cluster_with_target, eventually, permission};
use crate::links::{links_of, text};
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

/// Renews a Lease every 200 ms, as its holder does, until it is dropped.
fn renewing(leases: &Api<Lease>, name: &'static str, holder: &'static str) -> AbortOnDropHandle<()> {
    let leases = leases.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 3});
        let lease = json!({"metadata": {"name": name}, "spec": spec});
        let _ = leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await;
        loop {
            let spec = json!({"spec": {"holderIdentity": holder, "renewTime": MicroTime(Timestamp::now())}});
            leases.patch(name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
            sleep(Duration::from_millis(200)).await;
        }
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_without_election_leaves_writes_to_a_leader() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("led").await;
    balancer(&cluster, &namespace).await;
    let object = format!("web-{namespace}-ext");
    let set = async |host: &'static str| {
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname(host)]).await;
    };
    let written = async |host: &str| drop(wait_for_external_target(&cluster, &target, &object, host).await);
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let instance = format!("{namespace}/blue");
    let args = ["--kubeconfig", kubeconfig, "--target-namespace", &target, "--instance", &instance];
    let args = [&args[..], &["--watch-namespaces", &namespace, "--upstream", "none"]].concat();
    let unelected = [&args[..], &["--sync", "on"]].concat();

    // Without the permission to read the Lease.
    let linker = Linker::start_bare(&[], &unelected);
    let line = linker.line(&format!("can't get Lease {instance}")).await;
    assert!(line.contains("WARN") && line.contains("may write the same objects"), "{line}");
    written("a.example.com").await;
    drop(linker);

    let name = ["-n", &namespace, "create"];
    let role = ["role", "leases", "--verb=get,create,update", "--resource=leases"];
    plane.kubectl(&[&name[..], &role].concat());
    let account = "--serviceaccount=lb-linker:lb-linker";
    plane.kubectl(&[&name[..], &["rolebinding", "leases", "--role=leases", account]].concat());
    permission(plane, true, &["get", "leases.coordination.k8s.io", "-n", &namespace, LINKER]).await;
    let linker = Linker::start_bare(&[], &unelected);
    set("b.example.com").await;
    written("b.example.com").await;
    linker.counts("lb_linker_leader", 1.0).await;

    // A leader that comes later is noticed.
    let leases: Api<Lease> = Api::namespaced(plane.admin_client().await, &namespace);
    let leader = renewing(&leases, "blue", "pod-1");
    let line = linker.line(&format!("\"pod-1\" leads by Lease {instance}")).await;
    assert!(
        line.contains("WARN") && line.contains(&format!("--leader-election lease --instance {instance}"))
    );
    linker.counts("lb_linker_leader", 0.0).await;
    let admin = linker.admin().await;
    let told = text(&links_of(admin, &[]).stderr);
    assert!(told.contains(&format!("\"pod-1\" leads by Lease {instance}")), "{told}");
    assert!(told.ends_with("would write the same objects: it writes nothing meanwhile\n"), "{told}");
    set("c.example.com").await;
    answers(linker.dns, &format!("web-{namespace}.lb.internal. CNAME"), "c.example.com.").await;
    // A leader that is there at the start is found, too, also by `check`.
    let second = Linker::start_bare(&[], &unelected);
    second.line(&format!("\"pod-1\" leads by Lease {instance}")).await;
    let check = [&["check", "--cluster"], &unelected[..]].concat();
    let check: Vec<String> = check.into_iter().map(ToOwned::to_owned).collect();
    let check = tokio::task::spawn_blocking(|| run_to_end(check)).await.unwrap();
    let problems = cluster_errors(&check);
    assert!(problems.contains(&format!("\"pod-1\" leads by Lease {instance}")), "{problems}");
    assert_eq!((linker.writes(), second.writes()), (1.0, 0.0));
    drop(second);
    // With the flags that the warning names, a process takes part in the election of that leader.
    let elected = Linker::start_bare(&[], [&args[..], &["--leader-election", "lease"]].concat());
    elected.line("pod-1 leads").await;
    assert_eq!(elected.writes(), 0.0);
    drop(elected);
    let present = cluster.get_service(&target, &object).await.unwrap().spec.unwrap().external_name;
    assert_eq!(present.as_deref(), Some("b.example.com"));

    // The leader is gone: the process writes again.
    drop(leader);
    linker.line(&format!("no process leads by Lease {instance} any more")).await;
    assert_eq!(text(&links_of(admin, &[]).stderr).lines().count(), 1);
    written("c.example.com").await;
}

#[tokio::test]
async fn watched_namespace_that_is_missing_is_named() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("there").await;
    let (user, watched) = (plane.admin_kubeconfig(), format!("{namespace},{namespace}-typo"));
    let args = ["check", "--cluster", "--upstream=none", "--target-namespace", &target];
    let args =
        [&args[..], &["--watch-namespaces", &watched, "--kubeconfig", user.to_str().unwrap()]].concat();
    let printed = String::from_utf8(run_to_end(args).stdout).unwrap();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("doesn't exist")).collect();
    let expected = "doesn't exist (yet): correct the flag, or create the namespace";
    let warning = format!("--watch-namespaces: namespace {namespace}-typo {expected}");
    assert_eq!(lines, [&*warning]);
    let args = ["--watch-namespaces", &watched, "--kubeconfig", user.to_str().unwrap(), "--upstream", "none"];
    Linker::start_bare(&[], args).line(&format!("WARN {warning}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_noticed_after_a_start_in_an_outage() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    balancer(&cluster, "default").await;
    // With leader-for-life the Lease isn't renewed.
    let leases: Api<Lease> = Api::namespaced(plane.admin_client().await, "lb-linker");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": "1"});
    let lease = json!({"metadata": {"name": "lb-linker", "ownerReferences": [pod]},
        "spec": {"holderIdentity": "pod-1"}});
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    plane.stop_apiserver();
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--sync", "on", "--upstream", "none"];
    let linker = Linker::start_bare(&[], args);
    linker.line("can't be reached").await;
    assert_eq!(linker.metric("lb_linker_leader"), Some(0.0));
    plane.start_apiserver();
    linker.line("\"pod-1\" leads by Lease lb-linker/lb-linker").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;
    assert_eq!(linker.writes(), 0.0);
    leases.delete("lb-linker", &DeleteParams::default()).await.unwrap();
    wait_for_external_target(&cluster, "external-targets", "web-default-ext", "a.example.com").await;
}

#[tokio::test]
async fn higher_term_is_a_conflict_and_then_surpassed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("two-writers").await;
    balancer(&cluster, &namespace).await;
    let linker =
        Linker::in_cluster(plane, &target, &["--upstream", "none", "--watch-namespaces", &namespace]);
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    let shown_links =
        async || text(&links_of(linker.admin().await, &["-n", &namespace, "-o", "wide"]).stdout);
    let mut attempt = 0;
    // The conflict lasts for 10 s. A busy machine may need longer to see it.
    let (ahead, host) = loop {
        attempt += 1;
        // Another process without an election has taken a higher term, and ends.
        let ahead = Timestamp::now().as_second() + 4000 * attempt;
        let host = format!("b{attempt}.example.com");
        let annotations = json!({"metadata": {"annotations": {"linker.hsj.com/term": ahead.to_string()}}});
        cluster.patch_service(&target, &object, annotations).await;
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname(&host)]).await;
        let line = linker.line(&format!("says {ahead}, which is higher than the term of this process")).await;
        assert!(line.contains("--leader-election lease --instance lb-linker/lb-linker"), "{line}");
        let (conflicts, shown) = (linker.metric("lb_linker_conflicts"), shown_links().await);
        if conflicts == Some(1.0) && shown.contains(" Conflict ") && shown.contains("higher than the term") {
            break (ahead, host);
        }
        assert!(attempt < 5, "{conflicts:?}: {shown}");
        wait_for_external_target(&cluster, &target, &object, &host).await;
    };
    let is_sent =
        || async { plane.event_reasons(&namespace).iter().any(|sent| sent == "Conflict").then_some(()) };
    eventually("the Event Conflict", is_sent).await;
    let written = wait_for_external_target(&cluster, &target, &object, &host).await;
    let term = written.metadata.annotations.unwrap().remove("linker.hsj.com/term");
    assert_eq!(term, Some((ahead + 1).to_string()));
    linker.counts("lb_linker_conflicts", 0.0).await;
    let shown = shown_links().await;
    assert!(shown.contains(" Ready "), "{shown}");
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
