//! Protection against a wrong flag that would remove most external targets and their DNS names.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::harness::{cluster_with_target, eventually, grant_optional};
use crate::links::{links_of, text};

/// A target namespace, and a namespace with the load balancers `svc-0`, `svc-1`, … with the label `tier=web`.
struct Fixture {
    plane: &'static ControlPlane,
    cluster: Cluster,
    target: String,
    namespace: String,
}

impl Fixture {
    async fn new(number: usize) -> Self {
        let (plane, cluster, target) = cluster_with_target().await;
        let namespace = cluster.create_namespace("left-out").await;
        let stage = Self { plane, cluster, target, namespace };
        futures::stream::iter(0..number)
            .for_each_concurrent(8, |i| create_load_balancer(&stage.cluster, &stage.namespace, i))
            .await;
        stage
    }

    /// Creates the namespaces and Services like [`Fixture::new`], then runs an lb-linker with these flags until it has
    /// written all external targets.
    async fn with_external_targets(number: usize, args: &[&str]) -> Self {
        let stage = Self::new(number).await;
        let mut linker = stage.start(args);
        stage.wait_for_count(number).await;
        assert!(linker.stop().success());
        stage
    }

    /// Starts an lb-linker without a delete delay that watches the namespace of the load balancers, unless `args` has
    /// these flags.
    fn start(&self, args: &[&str]) -> Linker {
        let defaults = [["--delete-delay", "0s"], ["--watch-namespaces", &self.namespace]];
        let missing = defaults.iter().filter(|[flag, _]| !args.contains(flag)).flatten();
        let all: Vec<&str> = ["--upstream", "none"].iter().chain(missing).chain(args).copied().collect();
        Linker::in_cluster_as_given(self.plane, &self.target, &all)
    }

    async fn objects(&self) -> Vec<(String, String)> {
        let list = self.cluster.services(&self.target).list(&ListParams::default()).await.unwrap();
        list.iter().map(|object| (object.name_any(), object.resource_version().unwrap_or_default())).collect()
    }

    async fn wait_for_count(&self, number: usize) {
        eventually(&format!("{number} external targets"), || async {
            (self.objects().await.len() == number).then_some(())
        })
        .await;
    }

    fn question(&self, i: usize) -> String {
        format!("svc-{i}.{}.lb.internal. CNAME", self.namespace)
    }

    /// Asserts that DNS returns the last targets of these load balancers.
    async fn assert_answers(&self, linker: &Linker, which: impl Iterator<Item = usize>) {
        for i in which {
            assert_eq!(short(linker.dns, &self.question(i)).await, format!("svc-{i}.example.com."));
            let dashed = format!("svc-{i}-{}.lb.internal. CNAME", self.namespace);
            assert_eq!(short(linker.dns, &dashed).await, format!("svc-{i}.example.com."));
        }
    }

    /// Asserts that lb-linker makes no writes and that the external targets are unchanged.
    async fn assert_unchanged(&self, linker: &Linker, before: &[(String, String)]) {
        // Without a delete delay, a removal would happen within this time.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(self.objects().await, before);
        assert!((linker.writes() - 0.0).abs() < f64::EPSILON, "{}", linker.writes());
    }

    async fn wait_for_events(&self, reason: &str, at_least: usize) {
        eventually(&format!("{at_least} Events {reason}"), || async {
            let reasons = self.plane.event_reasons(&self.namespace);
            (reasons.iter().filter(|recorded| *recorded == reason).count() >= at_least).then_some(())
        })
        .await;
    }
}

async fn create_load_balancer(cluster: &Cluster, namespace: &str, i: usize) {
    let name = format!("svc-{i}");
    cluster
        .create_service(
            namespace,
            json!({
                "metadata": {"name": name, "labels": {"tier": "web"}},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false},
            }),
        )
        .await;
    cluster.set_ingress(namespace, &name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
}

const LEFT_OUT: &str = "lb_linker_left_out{flag=\"--service-selector\"}";

#[tokio::test]
async fn typo_in_selector_removes_no_object_and_no_name() {
    for number in [2, 3, 5, 30] {
        let stage = Fixture::with_external_targets(number, &["--service-selector", "tier=web"]).await;
        let before = stage.objects().await;
        let mut linker = stage.start(&["--service-selector", "tire=web"]);
        // The first answer after SERVFAIL is the last target, never NXDOMAIN or NODATA.
        loop {
            let answer = short(linker.dns, &stage.question(0)).await;
            if answer == "svc-0.example.com." {
                break;
            }
            assert_eq!(answer, "Server Failure", "not ready yet");
        }
        let line = linker.line("--service-selector leaves out their load balancers, which exist").await;
        assert!(line.contains("WARN"), "{line}");
        let counted = format!("{number} of {number} external targets would go; {number} of them because");
        assert!(line.contains(&counted), "{line}");
        assert!(line.contains("correct --service-selector, or give --max-deletes"), "{line}");
        linker.counts(LEFT_OUT, number as f64).await;
        assert_eq!(linker.metric("lb_linker_links{state=\"left_out\"}"), Some(number as f64));
        stage.assert_answers(&linker, 0..number).await;
        stage.wait_for_events("LeftOut", 2).await;
        stage.assert_unchanged(&linker, &before).await;
        stage.assert_answers(&linker, 0..number).await;
        assert_eq!(linker.logged("leaves out their load balancers"), 1);
        assert!(linker.stop().success());

        let linker = stage.start(&["--service-selector", "tire=web", "--max-deletes", "unlimited"]);
        stage.wait_for_count(0).await;
        answers(linker.dns, &stage.question(0), "Non-Existent Domain").await;
        assert_eq!(linker.metric(LEFT_OUT), Some(0.0));
    }
}

#[tokio::test]
async fn links_shows_left_out_services_without_a_running_process() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    stage.cluster.delete_service(&stage.namespace, "svc-2").await;
    let kubeconfig = stage.plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let links = |flags: &[&str]| {
        let common = ["links", "-o", "wide", "-n", &stage.namespace, "--watch-namespaces", &stage.namespace];
        let place = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &stage.target];
        let output = run_to_end([&common[..], &place, flags].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    for flags in [
        ["--service-selector", "app=x"],
        ["--selection", "annotated"],
        ["--load-balancer-classes", "service.k8s.aws/nlb"],
    ] {
        let table = links(&flags);
        let rows: Vec<&str> = table.lines().skip(1).collect();
        for (i, row) in rows[..2].iter().enumerate() {
            assert!(row.contains(&format!("svc-{i}.example.com ")), "{table}");
            assert!(
                row.contains("LeftOut") && row.contains(&format!("{} leaves it out", flags[0])),
                "{table}"
            );
        }
        assert!(rows[2].contains("Gone"), "{table}");
    }
    let of_another = links(&["--instance", "team/two"]);
    assert!(
        of_another.contains("Conflict") && of_another.contains("belongs to the lb-linker instance"),
        "{of_another}"
    );
    let off = links(&["--service-selector", "app=x", "--sync", "off"]);
    assert!(!off.contains("LeftOut"), "{off}");
}

#[tokio::test]
async fn max_deletes_number_allows_removal_of_left_out_targets() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    let linker = stage.start(&["--service-selector", "tire=web", "--max-deletes", "3"]);
    stage.wait_for_count(0).await;
    answers(linker.dns, &stage.question(0), "Non-Existent Domain").await;
}

#[tokio::test]
async fn targets_are_removed_if_half_of_the_services_are_left_out() {
    let stage = Fixture::with_external_targets(4, &[]).await;
    for i in 0..2 {
        let patch = json!({"metadata": {"labels": {"tier": "db"}}});
        stage.cluster.patch_service(&stage.namespace, &format!("svc-{i}"), patch).await;
    }
    let linker = stage.start(&["--service-selector", "tier=web"]);
    stage.wait_for_count(2).await;
    answers(linker.dns, &stage.question(0), "Non-Existent Domain").await;
    stage.assert_answers(&linker, 2..4).await;
}

#[tokio::test]
async fn half_of_the_services_left_out_stay_for_the_delete_delay() {
    let stage = Fixture::with_external_targets(6, &[]).await;
    let namespace = &*stage.namespace;
    for i in 0..2 {
        let patch = json!({"metadata": {"labels": {"tier": "db"}}});
        stage.cluster.patch_service(namespace, &format!("svc-{i}"), patch).await;
    }
    stage.cluster.delete_service(namespace, "svc-2").await;
    grant_optional(stage.plane, "source", namespace);
    let metadata = json!({"name": "follower", "annotations": {"linker.hsj.com/source": "svc-0"}});
    let spec = json!({"type": "ExternalName", "externalName": "svc-0.example.com"});
    stage.cluster.create_service(namespace, json!({"metadata": metadata, "spec": spec})).await;
    let before = stage.objects().await;

    // Neither a limit on deletion nor its absence changes the delay.
    for limit in [&[][..], &["--max-deletes", "unlimited"]] {
        let flags = ["--service-selector", "tier=web", "--delete-delay", "1h"];
        let mut linker = stage.start(&[&flags, limit].concat());
        // The first answer after SERVFAIL is the last target.
        loop {
            let answer = short(linker.dns, &stage.question(0)).await;
            if answer == "svc-0.example.com." {
                break;
            }
            assert_eq!(answer, "Server Failure", "not ready yet");
        }
        for i in 0..2 {
            linker.line(&format!("link {namespace}/svc-{i}: its Service isn't selected any more")).await;
        }
        answers(linker.dns, &stage.question(2), "No Error").await;
        stage.wait_for_events("LeftOut", 2).await;
        let admin = linker.admin().await;
        let states = || async {
            let shown = text(&links_of(admin, &["-n", namespace, "--followers"]).stdout);
            shown.contains("svc-0 isn't followed").then_some(())
        };
        eventually("the state of the follower", states).await;
        assert!(text(&links_of(admin, &["-n", namespace, "svc-0"]).stdout).contains("LeftOut"));
        assert_eq!(linker.metric(LEFT_OUT), Some(0.0), "it doesn't stay for good");
        stage.assert_answers(&linker, (0..2).chain(3..6)).await;
        stage.assert_unchanged(&linker, &before).await;
        assert!(linker.stop().success());
    }

    let linker = stage.start(&["--service-selector", "tier=web", "--delete-delay", "3s"]);
    answers(linker.dns, &stage.question(0), "svc-0.example.com.").await;
    stage.wait_for_count(3).await;
    answers(linker.dns, &stage.question(0), "Non-Existent Domain").await;
    stage.assert_answers(&linker, 3..6).await;
}

#[tokio::test]
async fn left_out_service_is_followed_again_once_it_is_selected() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    let mut linker = stage.start(&["--selection", "annotated"]);
    let left_out = "lb_linker_left_out{flag=\"--selection\"}";
    linker.counts(left_out, 3.0).await;
    let annotate = |i: usize, annotations: serde_json::Value| {
        let name = format!("svc-{i}");
        let stage = &stage;
        async move {
            let patch = json!({"metadata": {"annotations": annotations}});
            stage.cluster.patch_service(&stage.namespace, &name, patch).await;
        }
    };
    // Other changes of a left-out Service have no effect.
    for i in 0..3 {
        annotate(i, json!({"touched": "1"})).await;
    }
    annotate(0, json!({"linker.hsj.com/managed": "true"})).await;
    linker.counts(left_out, 2.0).await;
    stage.cluster.set_ingress(&stage.namespace, "svc-0", &[Ingress::Hostname("new.example.com")]).await;
    answers(linker.dns, &stage.question(0), "new.example.com.").await;
    stage.assert_answers(&linker, 1..3).await;
    stage.wait_for_count(3).await;
    // The external target of a left-out Service is removed when the Service opts out or is deleted.
    annotate(1, json!({"linker.hsj.com/managed": "false"})).await;
    stage.wait_for_count(2).await;
    stage.cluster.delete_service(&stage.namespace, "svc-2").await;
    stage.wait_for_count(1).await;
    linker.counts(left_out, 0.0).await;
    assert!(linker.stop().success());
}

#[tokio::test]
async fn dns_follows_the_external_target_of_a_left_out_service() {
    let stage = Fixture::with_external_targets(2, &[]).await;
    let linker = stage.start(&["--service-selector", "tire=web"]);
    linker.counts(LEFT_OUT, 2.0).await;
    let object = |i: usize| format!("svc-{i}-{}-ext", stage.namespace);
    let patch = json!({"spec": {"externalName": "other.example.com"}});
    stage.cluster.patch_service(&stage.target, &object(0), patch).await;
    answers(linker.dns, &stage.question(0), "other.example.com.").await;
    stage.cluster.delete_service(&stage.target, &object(1)).await;
    answers(linker.dns, &stage.question(1), "Non-Existent Domain").await;
    linker.counts(LEFT_OUT, 1.0).await;
    stage.wait_for_count(1).await;
}

#[tokio::test]
async fn watch_namespaces_typo_changes_no_answer() {
    let stage = Fixture::with_external_targets(2, &[]).await;
    let other = stage.cluster.create_namespace("watched").await;
    create_load_balancer(&stage.cluster, &other, 0).await;
    let both = format!("{},{other}", stage.namespace);
    let mut linker = stage.start(&["--watch-namespaces", &both]);
    stage.wait_for_count(3).await;
    assert!(linker.stop().success());
    let before = stage.objects().await;

    // First with the permission to list Services of all namespaces, then only of the watched namespace.
    let account = narrow_account(&stage, &other);
    let kubeconfig = stage.plane.kubeconfig_for_service_account(&other, &account);
    let narrow = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &stage.target];
    let args = ["--upstream", "none", "--delete-delay", "0s", "--watch-namespaces", &other];
    for narrow in [None, Some(narrow)] {
        let mut linker = match narrow {
            None => stage.start(&["--watch-namespaces", &other]),
            Some(narrow) => Linker::start([&narrow[..], &args].concat()),
        };
        let line = linker.line("--watch-namespaces leaves out their load balancers").await;
        assert!(line.contains("2 of 3 external targets would go"), "{line}");
        stage.assert_answers(&linker, 0..2).await;
        assert_eq!(
            short(linker.dns, &format!("svc-0.{other}.lb.internal. CNAME")).await,
            "svc-0.example.com."
        );
        linker.counts("lb_linker_left_out{flag=\"--watch-namespaces\"}", 2.0).await;
        stage.assert_unchanged(&linker, &before).await;
        assert!(linker.stop().success());
    }
}

/// Creates a ServiceAccount that may only read Services of its own namespace and write external targets.
fn narrow_account(stage: &Fixture, namespace: &str) -> String {
    let account = "narrow".to_owned();
    let subject = format!("--serviceaccount={namespace}:{account}");
    stage.plane.create_service_account(namespace, &account);
    for (place, role) in [(namespace, "--clusterrole=lb-linker"), (&*stage.target, "--role=lb-linker")] {
        stage.plane.kubectl(&["-n", place, "create", "rolebinding", "narrow", role, &subject]);
    }
    account
}

#[tokio::test]
async fn external_targets_of_deleted_services_stay_ten_minutes() {
    for number in [2, 30] {
        let stage = Fixture::with_external_targets(number, &[]).await;
        let before = stage.objects().await;
        futures::stream::iter(0..number)
            .for_each_concurrent(8, |i| {
                let (cluster, namespace) = (&stage.cluster, &stage.namespace);
                async move { cluster.delete_service(namespace, &format!("svc-{i}")).await }
            })
            .await;
        // A number in --max-deletes doesn't skip the ten minutes.
        for args in [&[][..], &["--max-deletes", "100"]] {
            let mut linker = stage.start(args);
            let line = linker.line("because their load balancers are gone").await;
            assert!(line.contains("they stay for ten minutes more than --delete-delay"), "{line}");
            answers(linker.dns, &stage.question(0), "No Error").await;
            stage.assert_unchanged(&linker, &before).await;
            assert_eq!(linker.metric("lb_linker_links{state=\"gone\"}"), Some(number as f64));
            assert_eq!(linker.metric("lb_linker_deletes_held"), Some(number as f64));
            let of_namespace = ["-n", &stage.namespace, "svc-0"];
            let shown = links_of(linker.admin().await, &of_namespace);
            assert!(text(&shown.stderr).contains("removal is held back, because they are many: "));
            assert!(text(&shown.stdout).contains("(MostGone)"), "{}", text(&shown.stdout));
            assert!(linker.stop().success());
        }
        let linker = stage.start(&["--max-deletes", "unlimited"]);
        stage.wait_for_count(0).await;
        answers(linker.dns, &stage.question(0), "Non-Existent Domain").await;
        assert_eq!(linker.logged("would go"), 0, "{:#?}", linker.log());
    }
}

#[tokio::test]
async fn deleted_namespace_and_typo_are_reported_separately() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    let other = stage.cluster.create_namespace("deleted").await;
    for i in 0..2 {
        create_load_balancer(&stage.cluster, &other, i).await;
    }
    let both = format!("{},{other}", stage.namespace);
    let mut linker = stage.start(&["--watch-namespaces", &both]);
    stage.wait_for_count(5).await;
    assert!(linker.stop().success());
    let before = stage.objects().await;
    // No namespace controller runs here, so the test deletes the Services itself.
    for i in 0..2 {
        stage.cluster.delete_service(&other, &format!("svc-{i}")).await;
    }
    stage.plane.kubectl(&["delete", "namespace", &other, "--wait=false"]);

    let linker = stage.start(&["--watch-namespaces", &both, "--service-selector", "tire=web"]);
    let line = linker.line("--service-selector leaves out their load balancers").await;
    assert!(line.contains("5 of 5 external targets would go; 3 of them"), "{line}");
    let line = linker.line("because their load balancers are gone").await;
    assert!(line.contains("5 of 5 external targets would go; 2 of them"), "{line}");
    stage.assert_answers(&linker, 0..3).await;
    for i in 0..2 {
        answers(linker.dns, &format!("svc-{i}.{other}.lb.internal. CNAME"), "No Error").await;
    }
    stage.assert_unchanged(&linker, &before).await;
}

#[tokio::test]
async fn recreated_services_count_as_gone_at_the_start() {
    let stage = Fixture::with_external_targets(2, &[]).await;
    let before = stage.objects().await;
    for i in 0..2 {
        let name = format!("svc-{i}");
        stage.cluster.delete_service(&stage.namespace, &name).await;
        stage.cluster.create_load_balancer(&stage.namespace, &name).await;
    }
    let linker = stage.start(&[]);
    let line = linker.line("because their load balancers are gone").await;
    assert!(line.contains("2 of 2 external targets would go"), "{line}");
    answers(linker.dns, &stage.question(0), "No Error").await;
    stage.assert_unchanged(&linker, &before).await;
    // A target that arrives within the delay keeps the object.
    stage.cluster.set_ingress(&stage.namespace, "svc-0", &[Ingress::Hostname("new.example.com")]).await;
    answers(linker.dns, &stage.question(0), "new.example.com.").await;
    stage.wait_for_count(2).await;
}

#[tokio::test]
async fn ip_targets_skip_removes_objects_only_with_max_deletes() {
    let stage = Fixture::new(2).await;
    for i in 0..2 {
        let name = format!("svc-{i}");
        stage
            .cluster
            .set_ingress(&stage.namespace, &name, &[Ingress::Ip(&format!("192.0.2.{}", i + 1))])
            .await;
    }
    let mut linker = stage.start(&[]);
    stage.wait_for_count(2).await;
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(stage.cluster.client.clone(), &stage.target);
    eventually("the EndpointSlices", || async {
        (slices.list(&ListParams::default()).await.unwrap().items.len() == 2).then_some(())
    })
    .await;
    assert!(linker.stop().success());
    let before = stage.objects().await;
    let mut linker = stage.start(&["--ip-targets", "skip"]);
    linker.line("2 of 2 external targets would go; 2 of them because --ip-targets").await;
    linker.counts("lb_linker_left_out{flag=\"--ip-targets\"}", 2.0).await;
    stage.assert_unchanged(&linker, &before).await;
    assert!(linker.stop().success());
    let _linker = stage.start(&["--ip-targets", "skip", "--max-deletes", "unlimited"]);
    stage.wait_for_count(0).await;
}

#[tokio::test]
async fn plan_logs_what_a_typo_would_remove() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    let before = stage.objects().await;
    let linker = stage.start(&["--service-selector", "tire=web", "--sync", "plan"]);
    linker.line("3 of 3 external targets would go; 3 of them because --service-selector leaves out").await;
    stage.assert_answers(&linker, 0..3).await;
    stage.assert_unchanged(&linker, &before).await;
    assert_eq!(linker.logged("plan for link"), 0, "{:#?}", linker.log());
    let linker =
        stage.start(&["--service-selector", "tire=web", "--sync", "plan", "--max-deletes", "unlimited"]);
    for i in 0..3 {
        linker.line(&format!("delete Service {}/svc-{i}-", stage.target)).await;
    }
}

#[tokio::test]
async fn failed_lookup_of_left_out_services_removes_nothing() {
    let stage = Fixture::with_external_targets(3, &[]).await;
    let before = stage.objects().await;
    stage.cluster.delete_service(&stage.namespace, "svc-0").await;
    let answers_it = Arc::new(AtomicBool::new(false));
    let injector = {
        let answers_it = Arc::clone(&answers_it);
        Arc::new(move |line: &str| {
            // Only the lookup of left-out Services lists the Services of all namespaces.
            let is_look_up = line.starts_with("GET /api/v1/services?");
            if is_look_up && !answers_it.load(Ordering::Relaxed) {
                ApiFault::Answer(500, "InternalError")
            } else {
                ApiFault::Pass
            }
        })
    };
    let api = FaultyApi::start(stage.plane, injector).await;
    let own = ["--kubeconfig", api.kubeconfig(), "--target-namespace", &stage.target, "--upstream", "none"];
    let flags = ["--watch-namespaces", &stage.namespace, "--delete-delay", "0s"];
    let typo = ["--service-selector", "tire=web"];
    let linker = Linker::start([&own[..], &flags, &typo].concat());
    linker.line("until then the external targets of unlisted load balancers stay as they are").await;
    stage.assert_answers(&linker, 0..3).await;
    stage.assert_unchanged(&linker, &before).await;
    answers_it.store(true, Ordering::Relaxed);
    linker.line("3 of 3 external targets would go; 2 of them because --service-selector").await;
    answers(linker.dns, &stage.question(0), "No Error").await;
    stage.assert_answers(&linker, 1..3).await;
    stage.assert_unchanged(&linker, &before).await;
}

#[tokio::test]
async fn finalizers_of_left_out_services_stay() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("left-out").await;
    grant_optional(plane, "finalizer", &namespace);
    let stage = Fixture { plane, cluster, target, namespace };
    for i in 0..2 {
        create_load_balancer(&stage.cluster, &stage.namespace, i).await;
    }
    let guarded = || async {
        let mut number = 0;
        for i in 0..2 {
            let service = stage.cluster.get_service(&stage.namespace, &format!("svc-{i}")).await.unwrap();
            number += usize::from(service.finalizers().contains(&"lb-linker/finalizer".to_owned()));
        }
        number
    };
    let mut linker = stage.start(&["--finalizer"]);
    stage.wait_for_count(2).await;
    eventually("the finalizers", || async { (guarded().await == 2).then_some(()) }).await;
    assert!(linker.stop().success());
    let before = stage.objects().await;
    let linker = stage.start(&["--finalizer", "--selection", "annotated"]);
    linker.line("2 of 2 external targets would go; 2 of them because --selection").await;
    stage.assert_answers(&linker, 0..2).await;
    stage.assert_unchanged(&linker, &before).await;
    assert_eq!(guarded().await, 2);
    // The finalizer doesn't block the deletion of a left-out Service.
    stage.cluster.delete_service(&stage.namespace, "svc-0").await;
    stage.wait_for_count(1).await;
    eventually("the deletion of svc-0", || async {
        stage.cluster.get_service(&stage.namespace, "svc-0").await.is_none().then_some(())
    })
    .await;
    stage.assert_answers(&linker, 1..2).await;
}

fn manifest(name: &str, tier: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, labels: {{tier: {tier}}}}}\n\
         spec: {{type: LoadBalancer}}\n\
         status: {{loadBalancer: {{ingress: [{{hostname: {name}.example.com}}]}}}}\n"
    )
}

fn start_with_manifests(directory: &Path, output: &Path, args: &[&str]) -> Linker {
    let (directory, output) = (directory.to_str().unwrap(), output.to_str().unwrap());
    let own = ["--manifests", directory, "--output", output, "--upstream", "none", "--delete-delay", "0s"];
    Linker::start([&own, args].concat())
}

#[tokio::test]
async fn empty_directory_or_typo_removes_no_files() {
    let (directory, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a", "b", "c"] {
        fs::write(directory.path().join(format!("{name}.yaml")), manifest(name, "web")).unwrap();
    }
    let files = || {
        let mut names: Vec<String> = fs::read_dir(output.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    };
    let there_are = |number: usize| {
        let files = &files;
        async move {
            eventually(&format!("{number} files"), || async { (files().len() == number).then_some(()) })
                .await;
        }
    };
    let mut linker = start_with_manifests(directory.path(), output.path(), &[]);
    there_are(3).await;
    assert!(linker.stop().success());

    let mut linker =
        start_with_manifests(directory.path(), output.path(), &["--service-selector", "tire=web"]);
    linker.line("3 of 3 external targets would go; 3 of them because --service-selector leaves out").await;
    assert_eq!(short(linker.dns, "a.default.lb.internal. CNAME").await, "a.example.com.");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(files().len(), 3);
    assert!(linker.stop().success());

    let empty = tempfile::tempdir().unwrap();
    let mut linker = start_with_manifests(empty.path(), output.path(), &[]);
    linker.line("3 of 3 external targets would go; 3 of them because their load balancers are gone").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(files().len(), 3);
    assert!(linker.stop().success());

    let _linker = start_with_manifests(empty.path(), output.path(), &["--max-deletes", "unlimited"]);
    there_are(0).await;
}
