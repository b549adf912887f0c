//! StableNames: failover, failback, and changes of the target, which wait until the new target resolves.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use lb_linker::api::stable_name::StableName;
use lb_linker::api::status::{SourceState, StableNameStatus};
use serde_json::{Value, json};
use tokio::time::interval;

use crate::harness::audit::AuditEvent;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{FaultyUpstream, absence, address, answers, error, short};
use crate::harness::linker::{Linker, run_to_end, run_to_end_with};
use crate::harness::pool::{Base, Lent};
use crate::harness::{LINKER, apply_stable_names, deploy, eventually, permission};
use crate::links::{links_of, text};
use crate::recreation::wait_for_external_target;

/// An upstream resolver whose names can be switched off.
pub(crate) struct Upstream {
    pub(crate) resolver: FaultyUpstream,
    pub(crate) dead: Arc<Mutex<HashSet<String>>>,
}

impl Upstream {
    /// Starts the resolver. All names have the address 192.0.2.1, except the names in `dead`, which don't exist. With
    /// `*` in `dead` the resolver answers SERVFAIL.
    pub(crate) async fn start(dead: &[&str]) -> Self {
        let dead: Arc<Mutex<HashSet<String>>> =
            Arc::new(Mutex::new(dead.iter().map(ToString::to_string).collect()));
        let names = Arc::clone(&dead);
        let resolver = FaultyUpstream::start(move |asked, _| {
            let name = asked.queries[0].name().to_string();
            let dead = names.lock().unwrap();
            vec![match () {
                () if dead.contains("*") => error(asked, ResponseCode::ServFail),
                () if dead.contains(name.trim_end_matches('.')) => absence(asked, ResponseCode::NXDomain),
                () => address(asked, 1, 5),
            }]
        })
        .await;
        Self { resolver, dead }
    }

    pub(crate) fn kill(&self, name: &str) {
        self.dead.lock().unwrap().insert(name.to_owned());
    }

    pub(crate) fn revive(&self, name: &str) {
        self.dead.lock().unwrap().remove(name);
    }
}

/// A control plane for one test alone with StableNames, and namespaces shop and shop-dr.
pub(crate) struct Shop {
    pub(crate) plane: Lent,
    pub(crate) cluster: Cluster,
    pub(crate) upstream: Upstream,
}

impl Shop {
    pub(crate) async fn open(dead: &[&str]) -> Self {
        let plane = ControlPlane::lend_with(Base::StableNames);
        for namespace in ["shop", "shop-dr"] {
            plane.create_namespace(namespace);
        }
        let (cluster, upstream) = (plane.cluster().await, Upstream::start(dead).await);
        Self { plane, cluster, upstream }
    }

    pub(crate) async fn linker(&self, args: &[&str]) -> Linker {
        let upstream = self.upstream.resolver.address.to_string();
        let linker =
            Linker::in_cluster(&self.plane, "external-targets", &[&["--upstream", &upstream], args].concat());
        linker.ready().await;
        linker
    }

    /// Starts a replica with a ServiceAccount of its own.
    pub(crate) fn replica(&self, name: &str, variables: &[(&str, &str)]) -> Linker {
        Linker::start_with(variables, self.replica_args(name))
    }

    /// Creates a ServiceAccount of this name with the permissions of `deploy/` and `deploy/crd/`, so that the audit log
    /// distinguishes the replicas. Returns the arguments of a replica with it.
    pub(crate) fn replica_args(&self, name: &str) -> Vec<String> {
        self.plane.create_service_account("lb-linker", name);
        let mut objects = Vec::new();
        for file in ["10-rbac.yaml", "crd/rbac.yaml"] {
            let text = std::fs::read_to_string(deploy().join(file)).unwrap();
            for mut object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                let kind = object["kind"].as_str().unwrap().to_owned();
                let is_for_the_lease = object["metadata"]["namespace"] == "lb-linker";
                if !(kind.ends_with("Binding") || kind == "Role" && is_for_the_lease) {
                    continue;
                }
                let role = object["metadata"]["name"].as_str().unwrap().to_owned();
                object["metadata"]["name"] = json!(format!("{role}-{name}"));
                if is_for_the_lease {
                    // Outside a Pod the Lease is in the target namespace.
                    object["metadata"]["namespace"] = json!("external-targets");
                    object["metadata"]["name"] = json!(format!("{role}-lease-{name}"));
                }
                if kind.ends_with("Binding") {
                    object["subjects"][0]["name"] = json!(name);
                }
                if kind == "RoleBinding" && is_for_the_lease {
                    object["roleRef"]["name"] = object["metadata"]["name"].clone();
                }
                objects.push(serde_json::from_value(object).unwrap());
            }
        }
        self.plane.apply_objects(&objects);
        let kubeconfig = self.plane.kubeconfig_for_service_account("lb-linker", name);
        let upstream = self.upstream.resolver.address.to_string();
        let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", &upstream];
        let args = [&args[..], &["--identity", name, "--leader-election", "lease"]].concat();
        args.into_iter().map(ToOwned::to_owned).collect()
    }

    pub(crate) async fn load_balancer(&self, namespace: &str, name: &str, host: &str) {
        self.cluster.create_load_balancer(namespace, name).await;
        self.cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await;
    }

    pub(crate) fn targets(&self) -> Api<StableName> {
        Api::namespaced(self.cluster.client.clone(), "shop")
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) {
        let object = StableName::new(name, serde_json::from_value(spec).unwrap());
        self.targets().create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn status(&self, name: &str) -> StableNameStatus {
        self.targets().get(name).await.unwrap().status.unwrap_or_default()
    }

    /// Waits until a StableName announces this target.
    pub(crate) async fn wait_until_announced(&self, name: &str, display: &str) -> StableNameStatus {
        let look = || async {
            let status = self.status(name).await;
            let target = status.target.as_ref().map(|target| target.display.as_str());
            (target == Some(display)).then_some(status)
        };
        eventually(&format!("StableName {name} announces {display}"), look).await
    }

    /// Waits until a condition has this status, and returns its reason.
    pub(crate) async fn condition(&self, name: &str, kind: &str, status: &str) -> String {
        let look = || async {
            let conditions = self.status(name).await.conditions;
            let condition = conditions.into_iter().find(|condition| condition.type_ == kind)?;
            (condition.status == status).then_some(condition.reason)
        };
        eventually(&format!("condition {kind} of {name} is {status}"), look).await
    }

    async fn all_sources_are_healthy(&self, name: &str) {
        let look = || async {
            let sources = self.status(name).await.sources;
            sources.iter().all(|source| source.state == Some(SourceState::Healthy)).then_some(())
        };
        eventually(&format!("all sources of {name} are healthy"), look).await;
    }

    async fn uid_of_external_target(&self, name: &str) -> String {
        let service = self.cluster.get_service("external-targets", name).await.unwrap();
        service.metadata.uid.unwrap()
    }
}

/// Checks for this number of seconds that all of `linkers` give the expected answer.
pub(crate) async fn assert_answer_stays(linkers: &[&Linker], question: &str, expected: &str, seconds: u64) {
    let (end, mut tick) =
        (Instant::now() + Duration::from_secs(seconds), interval(Duration::from_millis(200)));
    while Instant::now() < end {
        tick.tick().await;
        for linker in linkers {
            assert_eq!(short(linker.dns, question).await, expected);
        }
    }
}

/// A check with the shortest period.
pub(crate) fn shortest_check() -> Value {
    json!({"periodSeconds": 5, "timeoutSeconds": 1, "failureThreshold": 2, "successThreshold": 1})
}

/// Sources: the Service web, then a fixed hostname.
pub(crate) fn seoul_and_fixed(hostname: &str) -> Value {
    json!([{"name": "seoul", "service": {"name": "web"}}, {"name": "fixed", "hostname": hostname}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_keeps_a_stable_name_ready() {
    let shop = Shop::open(&[]).await;
    shop.create("web", json!({"sources": [{"name": "fixed", "hostname": "a.example.com"}]})).await;
    let mut linker = shop.linker(&[]).await;
    assert_eq!(shop.condition("web", "Ready", "True").await, "TargetVerified");
    linker.stop();
    let version = shop.targets().get("web").await.unwrap().metadata.resource_version.unwrap();
    let mut later = shop.targets().watch(&WatchParams::default(), &version).await.unwrap().boxed();
    let linker = shop.linker(&[]).await;
    let series = r#"lb_linker_stable_name_ready{stable_name="web",stable_name_namespace="shop"}"#;
    eventually("a decision", || async { (linker.metric(series) == Some(1.0)).then_some(()) }).await;
    shop.targets().delete("web", &DeleteParams::default()).await.unwrap();
    while let Some(event) = later.next().await {
        let status = match event.unwrap() {
            WatchEvent::Deleted(_) => break,
            WatchEvent::Modified(object) => object.status.unwrap_or_default(),
            _ => continue,
        };
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "TargetVerified"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crd_installed_while_lb_linker_runs_takes_effect() {
    let plane = ControlPlane::lend();
    plane.create_namespace("shop");
    let upstream = Upstream::start(&[]).await;
    let address = upstream.resolver.address.to_string();
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", &address]);
    linker.ready().await;
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("shop", "web").await;
    cluster.set_ingress("shop", "web", &[Ingress::Hostname("a.example.com")]).await;
    answers(linker.dns, "web-shop.lb.internal. CNAME", "a.example.com.").await;
    let asked = |event: &AuditEvent| {
        let uri = event.uri.split('?').next().unwrap_or_default().to_owned();
        let is_ours = uri.contains("linker.hsj.com") && event.user.contains("lb-linker");
        is_ours.then(|| (event.verb.clone(), uri))
    };
    let asked = || plane.audit_events().iter().filter_map(asked).collect::<HashSet<_>>();
    eventually("discovery", || async { (!asked().is_empty()).then_some(()) }).await;
    assert_eq!(asked(), [("get".to_owned(), "/apis/linker.hsj.com/v1alpha1".to_owned())].into());

    apply_stable_names(&plane);
    let shop = Shop { cluster, upstream, plane };
    shop.create("web", json!({"sources": [{"name": "seoul", "service": {"name": "web"}}]})).await;
    let waited = Instant::now();
    let ready =
        shop.plane.try_kubectl(&["wait", "--for=condition=Ready", "--timeout=45s", "sn/web", "-n", "shop"]);
    if ready.is_err() {
        panic!("{:#?}", shop.status("web").await);
    }
    println!("Ready after {:?}", waited.elapsed());
    let table = shop.plane.kubectl(&["get", "sn", "-n", "shop", "-o", "wide"]);
    println!("{table}");
    assert!(table.lines().nth(1).unwrap().contains("external-targets/web-shop-ext"), "{table}");
    let status = shop.status("web").await;
    assert_eq!(status.service, "external-targets/web-shop-ext");
    assert_eq!(status.dns_names, ["web-shop.lb.internal", "web.shop.lb.internal"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn override_and_its_end_keep_the_external_target() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&[]).await;
    let name = "web-shop-ext";
    wait_for_external_target(&shop.cluster, "external-targets", name, "a.example.com").await;
    let uid = shop.uid_of_external_target(name).await;

    let asking = async {
        let mut tick = interval(Duration::from_millis(1));
        loop {
            tick.tick().await;
            let answer = short(linker.dns, "web.shop.lb.internal. CNAME").await;
            assert!(["a.example.com.", "b.example.com."].contains(&&*answer), "{answer}");
        }
    };
    let moving = async {
        let sources = seoul_and_fixed("b.example.com");
        shop.create("web", json!({"sources": sources, "check": shortest_check()})).await;
        shop.wait_until_announced("web", "a.example.com").await;
        assert_eq!(shop.condition("web", "Ready", "True").await, "TargetVerified");
        let pin = Patch::Merge(json!({"spec": {"pin": "fixed"}}));
        shop.targets().patch("web", &PatchParams::default(), &pin).await.unwrap();
        shop.wait_until_announced("web", "b.example.com").await;
        wait_for_external_target(&shop.cluster, "external-targets", name, "b.example.com").await;
        let service = shop.cluster.get_service("external-targets", name).await.unwrap();
        assert!(service.metadata.annotations.unwrap().contains_key("linker.hsj.com/stable-name-uid"));
        shop.targets().delete("web", &DeleteParams::default()).await.unwrap();
        wait_for_external_target(&shop.cluster, "external-targets", name, "a.example.com").await;
        answers(linker.dns, "web.shop.lb.internal. CNAME", "a.example.com.").await;
    };
    tokio::select! {
        () = moving => {}
        () = asking => {}
    }
    assert_eq!(shop.uid_of_external_target(name).await, uid);
    let service = shop.cluster.get_service("external-targets", name).await.unwrap();
    assert!(!service.metadata.annotations.unwrap().contains_key("linker.hsj.com/stable-name-uid"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_target_is_announced_when_it_resolves() {
    let shop = Shop::open(&["new.example.com"]).await;
    shop.load_balancer("shop", "web", "old.example.com").await;
    let first = shop.replica("a", &[]);
    first.line("leading now as a_").await;
    let second = shop.replica("b", &[]);
    second.line(" leads").await;
    second.ready().await;
    let both = [&first, &second];
    shop.create("web", json!({"sources": [{"name": "seoul", "service": {"name": "web"}}]})).await;
    shop.wait_until_announced("web", "old.example.com").await;
    shop.condition("web", "Ready", "True").await;
    for linker in both {
        linker.counts("lb_linker_stable_names{state=\"verified\"}", 1.0).await;
    }

    shop.cluster.set_ingress("shop", "web", &[Ingress::Hostname("new.example.com")]).await;
    let question = "web.shop.lb.internal. CNAME";
    assert_answer_stays(&both, question, "old.example.com.", 12).await;
    assert_eq!(shop.condition("web", "Progressing", "True").await, "WaitsForTarget");
    let object = shop.cluster.get_service("external-targets", "web-shop-ext").await.unwrap();
    assert_eq!(object.spec.unwrap().external_name.as_deref(), Some("old.example.com"));
    shop.upstream.revive("new.example.com");
    let revived = Instant::now();
    for linker in both {
        answers(linker.dns, question, "new.example.com.").await;
    }
    wait_for_external_target(&shop.cluster, "external-targets", "web-shop-ext", "new.example.com").await;
    println!("announced after {:?}", revived.elapsed());
    let status = shop.wait_until_announced("web", "new.example.com").await;
    assert!(status.target.unwrap().verified);
    assert_eq!(
        (&*status.history[0].display, &*status.history[0].reason),
        ("old.example.com", "TargetChanged")
    );

    // With the old target dead as well, the new one is announced unverified after maxWaitSeconds.
    let patch = Patch::Merge(json!({"spec": {"cutover": {"maxWaitSeconds": 10}, "check": shortest_check()}}));
    shop.targets().patch("web", &PatchParams::default(), &patch).await.unwrap();
    for name in ["new.example.com", "newer.example.com"] {
        shop.upstream.kill(name);
    }
    let begun = Instant::now();
    shop.cluster.set_ingress("shop", "web", &[Ingress::Hostname("newer.example.com")]).await;
    let status = shop.wait_until_announced("web", "newer.example.com").await;
    println!("announced unverified after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_secs(9));
    assert!(!status.target.unwrap().verified);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_target_is_replaced_until_it_works_again() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "seoul.example.com").await;
    shop.load_balancer("shop-dr", "web", "busan.example.com").await;
    let linker = shop.linker(&[]).await;
    let sources = json!([
        {"name": "seoul", "service": {"name": "web"}},
        {"name": "busan", "service": {"name": "web", "namespace": "shop-dr"}},
    ]);
    let failback = json!({"afterSeconds": 2});
    shop.create("web", json!({"sources": sources, "check": shortest_check(), "failback": failback})).await;
    shop.wait_until_announced("web", "seoul.example.com").await;
    assert_eq!(shop.condition("web", "Accepted", "False").await, "RefNotPermitted");
    let grant = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "shop"}}});
    shop.cluster.patch_service("shop-dr", "web", grant).await;
    shop.condition("web", "Accepted", "True").await;
    shop.all_sources_are_healthy("web").await;

    let killed = Instant::now();
    shop.upstream.kill("seoul.example.com");
    shop.wait_until_announced("web", "busan.example.com").await;
    println!("failed over after {:?}", killed.elapsed());
    answers(linker.dns, "web.shop.lb.internal. CNAME", "busan.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", "web-shop-ext", "busan.example.com").await;
    assert_eq!(shop.condition("web", "Degraded", "True").await, "FailedOver");
    let is_sent =
        || async { shop.plane.event_reasons("shop").contains(&"FailedOver".to_owned()).then_some(()) };
    eventually("the Event FailedOver", is_sent).await;

    shop.upstream.revive("seoul.example.com");
    // A failback is allowed a minute after the failover.
    shop.wait_until_announced("web", "seoul.example.com").await;
    println!("failed back after {:?}", killed.elapsed());
    shop.upstream.kill("*");
    answers(linker.dns, "web.shop.lb.internal. CNAME", "seoul.example.com.").await;
    assert_answer_stays(&[&linker], "web.shop.lb.internal. CNAME", "seoul.example.com.", 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loop_of_one_object_fails_no_check_of_another_one() {
    let mut shop = Shop::open(&[]).await;
    shop.upstream.resolver = FaultyUpstream::start_with_delay(Duration::from_millis(200), |asked, _| {
        let name = asked.queries[0].name().clone();
        if name.to_string() != "alias.example.com." {
            return vec![address(asked, 1, 5)];
        }
        let back = CNAME(Name::from_ascii("web.shop.lb.internal.").unwrap());
        let mut answer = error(asked, ResponseCode::NoError);
        answer.add_answer(Record::from_rdata(name, 5, RData::CNAME(back)));
        vec![answer]
    })
    .await;
    shop.load_balancer("shop", "web", "seoul.example.com").await;
    let alias = json!({"name": "alias", "hostname": "alias.example.com"});
    let sources = json!([{"name": "seoul", "service": {"name": "web"}}, alias]);
    // The first message of a state stays, so the checks wait long for a reply.
    let check =
        json!({"periodSeconds": 5, "timeoutSeconds": 30, "failureThreshold": 2, "successThreshold": 1});
    shop.create("web", json!({"sources": sources, "check": check})).await;
    shop.create("other", json!({"sources": [alias], "check": check})).await;
    let _linker = shop.linker(&[]).await;

    let state = async |name: &str| {
        let sources = shop.status(name).await.sources;
        sources.into_iter().find(|source| source.name == "alias").map(|source| (source.state, source.message))
    };
    let looped = Some((Some(SourceState::Unhealthy), "leads back to the StableName".to_owned()));
    let is_unhealthy = || async { (state("web").await == looped).then_some(()) };
    eventually("the alias leads back to web", is_unhealthy).await;
    shop.wait_until_announced("other", "alias.example.com").await;
    shop.condition("other", "Ready", "True").await;
    let checks = || shop.upstream.resolver.asked("alias.example.com. A").len();
    let before = checks();
    let are_more = || async {
        // Both StableNames use the same checks of alias.example.com.
        assert_eq!(state("web").await, looped);
        assert_eq!(state("other").await, Some((Some(SourceState::Healthy), String::new())));
        (checks() >= before + 4).then_some(())
    };
    eventually("further checks", are_more).await;
    assert_eq!(shop.condition("other", "Ready", "True").await, "TargetVerified");
    assert!(!shop.plane.event_reasons("shop").contains(&"NoHealthySource".to_owned()));
}

/// The owner of a source's hostname turns it into a CNAME to the link of another tenant, which doesn't allow that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_that_leads_to_another_tenant_fails_over() {
    let mut shop = Shop::open(&[]).await;
    let is_turned = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_turned);
    shop.upstream.resolver = FaultyUpstream::start(move |asked, _| {
        let name = asked.queries[0].name().clone();
        if name.to_string() != "seoul.example.com." || !seen.load(Ordering::Relaxed) {
            return vec![address(asked, 1, 5)];
        }
        let elsewhere = CNAME(Name::from_ascii("bank.shop-dr.lb.internal.").unwrap());
        let mut answer = error(asked, ResponseCode::NoError);
        answer.add_answer(Record::from_rdata(name, 5, RData::CNAME(elsewhere)));
        vec![answer]
    })
    .await;
    shop.load_balancer("shop-dr", "bank", "bank.example.com").await;
    let linker = shop.linker(&[]).await;
    let source = |name: &str| json!({"name": name, "hostname": format!("{name}.example.com")});
    let spec = json!({"sources": [source("seoul"), source("busan")], "check": shortest_check()});
    shop.create("web", spec.clone()).await;
    let own = Api::<StableName>::namespaced(shop.cluster.client.clone(), "shop-dr");
    let object = StableName::new("own", serde_json::from_value(spec).unwrap());
    own.create(&PostParams::default(), &object).await.unwrap();
    shop.wait_until_announced("web", "seoul.example.com").await;
    shop.all_sources_are_healthy("web").await;
    answers(linker.dns, "web.shop.lb.internal. A", "seoul.example.com. 192.0.2.1").await;
    answers(linker.dns, "own.shop-dr.lb.internal. A", "seoul.example.com. 192.0.2.1").await;

    is_turned.store(true, Ordering::Relaxed);
    shop.wait_until_announced("web", "busan.example.com").await;
    answers(linker.dns, "web.shop.lb.internal. A", "busan.example.com. 192.0.2.1").await;
    let message = "leads to bank.shop-dr.lb.internal: it lies in lb-linker's own zone and belongs to Service \
                   shop-dr/bank, whose annotation linker.hsj.com/allow-from doesn't list namespace shop";
    let seoul = shop.status("web").await.sources.remove(0);
    assert_eq!((seoul.state, &*seoul.message), (Some(SourceState::Unhealthy), message));
    // For the namespace of that link, the same hostname is healthy.
    let own = own.get("own").await.unwrap().status.unwrap_or_default();
    assert_eq!(own.sources[0].state, Some(SourceState::Healthy), "{own:#?}");
    let chain = "seoul.example.com. bank.shop-dr.lb.internal. bank.example.com. 192.0.2.1";
    answers(linker.dns, "own.shop-dr.lb.internal. A", chain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_from_a_deleted_service_is_ready_and_degraded() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "seoul.example.com").await;
    let mut linker = shop.linker(&[]).await;
    let sources = seoul_and_fixed("busan.example.com");
    shop.create("web", json!({"sources": sources, "check": shortest_check()})).await;
    shop.wait_until_announced("web", "seoul.example.com").await;
    shop.all_sources_are_healthy("web").await;

    shop.cluster.delete_service("shop", "web").await;
    shop.wait_until_announced("web", "busan.example.com").await;
    assert_eq!(shop.condition("web", "Degraded", "True").await, "FailedOver");
    assert_eq!(shop.condition("web", "Accepted", "False").await, "RefNotPermitted");
    assert_eq!(shop.condition("web", "Ready", "True").await, "TargetVerified");
    let seoul = shop.status("web").await.sources.remove(0);
    assert_eq!(seoul.state, Some(SourceState::Refused), "{}", seoul.message);
    let series = r#"lb_linker_stable_name_ready{stable_name="web",stable_name_namespace="shop"}"#;
    linker.counts(series, 1.0).await;
    let admin = linker.admin().await.to_string();
    let output =
        run_to_end_with(&[("LB_LINKER_ADMIN_LISTEN", &*admin)], ["links", "-n", "shop", "-o", "wide"]);
    let table = String::from_utf8(output.stdout).unwrap();
    let why = "FailedOver: leads to fixed instead of seoul: ";
    assert!(table.lines().any(|line| line.contains(" Degraded ") && line.contains(why)), "{table}");
    let moved = "FailedOver: seoul seoul.example.com → fixed busan.example.com: its Service is gone";
    linker.line(moved).await;
    let is_sent =
        || async { shop.plane.event_reasons("shop").contains(&"FailedOver".to_owned()).then_some(()) };
    eventually("the Event FailedOver", is_sent).await;

    // A start records nothing about a refusal that hasn't changed.
    let number =
        |reason: &str| shop.plane.event_reasons("shop").iter().filter(|sent| *sent == reason).count();
    let is_sent = || async { (number("RefNotPermitted") == 1).then_some(()) };
    eventually("the Event RefNotPermitted", is_sent).await;
    linker.stop();
    let linker = shop.linker(&[]).await;
    linker.line("StableName shop/web: RefNotPermitted: ").await;
    let created = number("ExternalTargetCreated");
    shop.load_balancer("shop", "marker", "a.example.com").await;
    let is_later = || async { (number("ExternalTargetCreated") > created).then_some(()) };
    eventually("the Event of the marker", is_later).await;
    assert_eq!(number("RefNotPermitted"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_grant_and_deletion_remove_the_external_target() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop-dr", "web", "busan.example.com").await;
    let grant = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "shop"}}});
    shop.cluster.patch_service("shop-dr", "web", grant).await;
    let linker = shop.linker(&["--delete-delay", "1s"]).await;
    let sources = json!([{"name": "busan", "service": {"name": "web", "namespace": "shop-dr"}}]);
    shop.create("web", json!({"sources": sources})).await;
    let question = "web.shop.lb.internal. CNAME";
    answers(linker.dns, question, "busan.example.com.").await;
    let name = "web-shop-ext";
    wait_for_external_target(&shop.cluster, "external-targets", name, "busan.example.com").await;

    let revoke = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": null}}});
    shop.cluster.patch_service("shop-dr", "web", revoke).await;
    answers(linker.dns, question, "No Error").await;
    let is_gone =
        || async { shop.cluster.get_service("external-targets", name).await.is_none().then_some(()) };
    eventually("the external target is removed", is_gone).await;
    assert_eq!(shop.condition("web", "Ready", "False").await, "RefNotPermitted");

    let grant = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "shop"}}});
    shop.cluster.patch_service("shop-dr", "web", grant).await;
    answers(linker.dns, question, "busan.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", name, "busan.example.com").await;
    shop.targets().delete("web", &DeleteParams::default()).await.unwrap();
    eventually("the external target is removed", is_gone).await;
    answers(linker.dns, question, "Non-Existent Domain").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn left_out_service_keeps_its_target_until_it_is_deleted() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    shop.load_balancer("shop-dr", "web", "b.example.com").await;
    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "shop"}}});
    shop.cluster.patch_service("shop-dr", "web", allow).await;
    let mut linker = shop.linker(&[]).await;
    shop.create("web", json!({"sources": [{"name": "seoul", "service": {"name": "web"}}]})).await;
    let of_dr = json!({"name": "web", "namespace": "shop-dr"});
    shop.create("far", json!({"sources": [{"name": "busan", "service": of_dr}]})).await;
    shop.wait_until_announced("web", "a.example.com").await;
    shop.wait_until_announced("far", "b.example.com").await;
    assert!(linker.stop().success());

    let linker = shop.linker(&["--service-selector", "tier=web", "--watch-namespaces", "shop"]).await;
    linker.line("there is no LoadBalancer Service web with the labels of --service-selector").await;
    linker.line("--watch-namespaces leaves out namespace shop-dr, so its Services").await;
    let replicas = [&linker];
    tokio::join!(
        assert_answer_stays(&replicas, "web.shop.lb.internal. CNAME", "a.example.com.", 10),
        assert_answer_stays(&replicas, "far.shop.lb.internal. CNAME", "b.example.com.", 10),
    );
    let revoke = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": null}}});
    shop.cluster.patch_service("shop-dr", "web", revoke).await;
    shop.cluster.delete_service("shop", "web").await;
    for name in ["web", "far"] {
        let look = || async { shop.status(name).await.target.is_none().then_some(()) };
        eventually(&format!("StableName {name} announces nothing"), look).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_stays_when_the_status_is_lost() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = shop.linker(&[]).await;
    shop.create("web", json!({"sources": seoul_and_fixed("b.example.com"), "pin": "fixed"})).await;
    let question = "web.shop.lb.internal. CNAME";
    answers(linker.dns, question, "b.example.com.").await;
    let unpin = Patch::Merge(json!({"spec": {"pin": null}}));
    shop.targets().patch("web", &PatchParams::default(), &unpin).await.unwrap();
    // All checks fail, because the resolver answers SERVFAIL.
    shop.upstream.kill("*");
    let lost = Patch::Merge(json!({"status": null}));
    shop.targets().patch_status("web", &PatchParams::default(), &lost).await.unwrap();
    assert_answer_stays(&[&linker], question, "b.example.com.", 5).await;
    shop.wait_until_announced("web", "b.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_status_is_told_before_and_after_a_restart() {
    let shop = Shop::open(&[]).await;
    for (service, host) in [("web", "a.example.com"), ("plain", "b.example.com")] {
        shop.load_balancer("shop", service, host).await;
    }
    let unmanaged = json!({"metadata": {"annotations": {"linker.hsj.com/managed": "false"}}});
    shop.cluster.patch_service("shop", "plain", unmanaged).await;
    let mut linker = shop.linker(&[]).await;
    let names = [
        ("web", "web", "a.example.com"),
        ("far", "web", "a.example.com"),
        ("next", "plain", "b.example.com"),
    ];
    for (name, service, host) in names {
        let sources = json!([{"name": "seoul", "service": {"name": service}}]);
        shop.create(name, json!({"sources": sources, "check": shortest_check()})).await;
        shop.wait_until_announced(name, host).await;
        shop.all_sources_are_healthy(name).await;
    }
    for service in ["web", "plain"] {
        shop.cluster.set_ingress("shop", service, &[]).await;
    }
    let why = "TargetKept: seoul: the status of its Service is blank, and its last target counts";
    let mut known = Vec::new();
    for marker in ["before", "after"] {
        for (name, ..) in names {
            assert_eq!(shop.condition(name, "Degraded", "True").await, "TargetKept");
            assert_eq!(shop.condition(name, "Ready", "True").await, "TargetVerified");
        }
        // The leader of this process has decided.
        shop.create(marker, json!({"sources": [{"name": "fixed", "hostname": "c.example.com"}]})).await;
        shop.wait_until_announced(marker, "c.example.com").await;
        let admin = linker.admin().await.to_string();
        let told = || async {
            let args = ["links", "-n", "shop", "-o", "wide"];
            let output = run_to_end_with(&[("LB_LINKER_ADMIN_LISTEN", &*admin)], args);
            let table = String::from_utf8(output.stdout).unwrap();
            let rows = table.lines().filter(|line| line.contains(" Degraded ") && line.ends_with(why));
            (rows.count() == names.len()).then_some(())
        };
        eventually("links tells each blank status", told).await;
        let mut statuses = Vec::new();
        for (name, _, host) in names {
            answers(linker.dns, &format!("{name}.shop.lb.internal. CNAME"), &format!("{host}.")).await;
            let StableNameStatus { target, sources, conditions, .. } = shop.status(name).await;
            statuses.push(json!([target, sources, conditions]));
        }
        if marker == "before" {
            linker.stop();
            linker = shop.linker(&[]).await;
            known = statuses;
        } else {
            assert_eq!(statuses, known);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_stays_if_only_stable_names_stay_forbidden() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let mut linker = shop.linker(&[]).await;
    shop.create("web", json!({"sources": seoul_and_fixed("b.example.com"), "pin": "fixed"})).await;
    let (question, name) = ("web.shop.lb.internal. CNAME", "web-shop-ext");
    wait_for_external_target(&shop.cluster, "external-targets", name, "b.example.com").await;
    let before = shop.cluster.get_service("external-targets", name).await;
    linker.stop();

    // Nothing may be read at the start; later everything but StableNames.
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker", "lb-linker-crd"]);
    shop.plane.kubectl(&["delete", "rolebinding", "lb-linker", "-n", "external-targets"]);
    permission(&shop.plane, false, &["list", "stablenames.linker.hsj.com", "-A", LINKER]).await;
    permission(&shop.plane, false, &["list", "services", "-A", LINKER]).await;
    permission(&shop.plane, false, &["list", "services", "-n", "external-targets", LINKER]).await;
    let upstream = shop.upstream.resolver.address.to_string();
    let linker = Linker::in_cluster(&shop.plane, "external-targets", &["--upstream", &upstream]);
    linker.line("can't list StableNames").await;
    shop.plane.apply_files(deploy());
    linker.ready().await;
    answers(linker.dns, question, "b.example.com.").await;
    assert_answer_stays(&[&linker], question, "b.example.com.", 5).await;
    assert_eq!(shop.cluster.get_service("external-targets", name).await, before);
    let links = links_of(linker.admin().await, &["web", "-n", "shop"]);
    let shown = text(&links.stdout);
    assert!(shown.contains("State:            Degraded"), "{shown}");
    assert!(shown.contains("no target of its StableName has been read"), "{shown}");
    assert!(text(&links.stderr).contains("can't list StableNames"), "{}", text(&links.stderr));
    let user = shop.plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let read = run_to_end(["links", "--upstream=none", "--kubeconfig", user.to_str().unwrap()]);
    let said = text(&read.stderr);
    assert_eq!(said.matches("can't list StableNames").count(), 1, "{said}");

    // The StableName is read in the end.
    apply_stable_names(&shop.plane);
    linker.ready().await;
    let is_ready = || async {
        let shown = text(&links_of(linker.admin().await, &["web", "-n", "shop"]).stdout);
        (!shown.contains("has been read")).then_some(())
    };
    eventually("the StableName is read", is_ready).await;
    linker.line("StableNames can be listed again").await;
    assert_answer_stays(&[&linker], question, "b.example.com.", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_stays_without_permission_and_goes_with_the_crd() {
    let shop = Shop::open(&[]).await;
    let mut linker = shop.linker(&["--delete-delay", "5s"]).await;
    shop.create("web", json!({"sources": [{"name": "fixed", "hostname": "a.example.com"}]})).await;
    let (question, name) = ("web.shop.lb.internal. CNAME", "web-shop-ext");
    answers(linker.dns, question, "a.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", name, "a.example.com").await;
    let uid = shop.uid_of_external_target(name).await;

    // Without the permission to list StableNames, DNS answers the hostname of the external target.
    linker.stop();
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker-crd"]);
    permission(&shop.plane, false, &["list", "stablenames.linker.hsj.com", "-A", LINKER]).await;
    let linker = shop.linker(&["--delete-delay", "15s"]).await;
    linker.line("deploy/crd/").await;
    assert_answer_stays(&[&linker], question, "a.example.com.", 17).await;
    assert_eq!(shop.uid_of_external_target(name).await, uid);

    apply_stable_names(&shop.plane);
    shop.plane.kubectl(&["delete", "crd", "stablenames.linker.hsj.com"]);
    linker.line("the StableNames went with their CRD, stablenames.linker.hsj.com").await;
    let admin = linker.admin().await;
    let shown = || text(&links_of(admin, &["web", "-n", "shop"]).stdout);
    let standing = shown();
    assert!(standing.starts_with("Led by:           StableName shop/web"), "{standing}");
    assert!(standing.contains("State:            Degraded"), "{standing}");
    let why = "the StableNames went with their CRD, stablenames.linker.hsj.com: the last targets stay for --delete-delay";
    assert!(standing.contains(why), "{standing}");
    assert_answer_stays(&[&linker], question, "a.example.com.", 3).await;
    let is_gone =
        || async { shop.cluster.get_service("external-targets", name).await.is_none().then_some(()) };
    eventually("the external target is removed", is_gone).await;
    assert!(!shown().contains("StableName shop/web"), "{}", shown());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_without_a_slice_stays_without_permission() {
    let shop = Shop::open(&[]).await;
    let mut linker = shop.linker(&[]).await;
    shop.create("web", json!({"sources": [{"name": "fixed", "addresses": ["192.0.2.1"]}]})).await;
    let (question, name) = ("web.shop.lb.internal. A", "web-shop-ext");
    answers(linker.dns, question, "192.0.2.1").await;
    linker.line(&format!("{name}: created")).await;
    linker.stop();
    let uid = shop.uid_of_external_target(name).await;
    shop.plane.kubectl(&["-n", "external-targets", "delete", "endpointslice", "--all"]);
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker-crd"]);
    permission(&shop.plane, false, &["list", "stablenames.linker.hsj.com", "-A", LINKER]).await;

    let linker = shop.linker(&["--delete-delay", "2s"]).await;
    linker.line("can't list StableNames").await;
    linker.ready().await;
    assert_answer_stays(&[&linker], question, "No Error", 6).await;
    assert_eq!(shop.uid_of_external_target(name).await, uid);
    let shown = text(&links_of(linker.admin().await, &["web", "-n", "shop"]).stdout);
    let why = "its StableName hasn't been read, and its external target has no target";
    assert!(shown.contains("State:            Pending") && shown.contains(why), "{shown}");

    apply_stable_names(&shop.plane);
    answers(linker.dns, question, "192.0.2.1").await;
    assert_eq!(shop.uid_of_external_target(name).await, uid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_stay_if_the_crd_is_applied_again() {
    let shop = Shop::open(&[]).await;
    let linker = shop.linker(&[]).await;
    let create = async |host: &str| {
        shop.create("web", json!({"sources": [{"name": "fixed", "hostname": host}]})).await;
    };
    create("a.example.com").await;
    let question = "web.shop.lb.internal. CNAME";
    answers(linker.dns, question, "a.example.com.").await;
    shop.plane.kubectl(&["delete", "crd", "stablenames.linker.hsj.com"]);
    linker.line("the StableNames went with their CRD, stablenames.linker.hsj.com").await;
    apply_stable_names(&shop.plane);
    linker.line("the API server serves StableNames again").await;
    assert_answer_stays(&[&linker], question, "a.example.com.", 5).await;
    let admin = linker.admin().await;
    let is_noted = || text(&links_of(admin, &["web", "-n", "shop"]).stderr).contains("went with their CRD");
    assert!(is_noted());
    create("b.example.com").await;
    answers(linker.dns, question, "b.example.com.").await;
    assert!(!is_noted());
}
