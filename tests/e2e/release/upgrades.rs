//! Rolling upgrades from the last version without StableNames, and rollbacks to that version, under load.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use kube::ResourceExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout_at};

use crate::failover::Shop;
use crate::harness::audit::AuditEvent;
use crate::harness::dns::{IN_CLIENT_TIMEOUT, answers, query, short};
use crate::harness::eventually;
use crate::harness::linker::Linker;
use crate::harness::programs::previous;
use crate::harness::scale::scaled;
use crate::recreation::wait_for_external_target;

const REPLICAS: usize = 3;
const SERVICES: usize = 20;
/// The Service whose link a StableName moves to another target.
const MOVED: usize = 1;
/// The time after which a query counts as lost; long enough for a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after SIGTERM for which a replica still gets queries: until kube-proxy has seen that its Pod ends.
const PROPAGATION: Duration = Duration::from_secs(1);

fn host(service: usize) -> String {
    format!("a{service}.example.com")
}

/// The replicas that get queries, and the counts of answers.
#[derive(Default)]
struct Load {
    /// The ready replicas, as kube-proxy knows them.
    endpoints: Mutex<Vec<SocketAddr>>,
    answers: AtomicU64,
    /// Queries without an answer, and wrong answers.
    failures: Mutex<Vec<String>>,
    /// The number of late answers without an address.
    late: AtomicUsize,
    stop: AtomicBool,
}

impl Load {
    /// Sends `rate` queries a second, spread over the ready replicas, until `stop` is set.
    async fn run(self: Arc<Self>, rate: usize) {
        let clients = (rate / 100).clamp(3, 50);
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let load = Arc::clone(&self);
            tasks.spawn(
                load.ask(client, Duration::from_secs(1) * u32::try_from(clients).unwrap() / rate as u32),
            );
        }
        tasks.join_all().await;
    }

    async fn ask(self: Arc<Self>, client: usize, pause: Duration) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut tick = interval(pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut number = client;
        while !self.stop.load(Ordering::SeqCst) {
            tick.tick().await;
            number += 1;
            let service = number % SERVICES;
            let endpoint = {
                let endpoints = self.endpoints.lock().unwrap();
                // Each replica is asked for all Services.
                endpoints[number / SERVICES % endpoints.len()]
            };
            match self.exchange(&socket, endpoint, service).await {
                Ok(()) => drop(self.answers.fetch_add(1, Ordering::SeqCst)),
                Err(why) => self.failures.lock().unwrap().push(format!("svc-{service} at {endpoint}: {why}")),
            }
        }
    }

    /// Asks a replica for the address of a Service. Returns why the answer isn't right.
    async fn exchange(&self, socket: &UdpSocket, replica: SocketAddr, service: usize) -> Result<(), String> {
        let question = query(&format!("svc-{service}.shop.lb.internal. A"));
        let begun = Instant::now();
        socket.send_to(&question.to_vec().unwrap(), replica).await.map_err(|error| error.to_string())?;
        let deadline = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        let mut buffer = [0; 1232];
        let answer = loop {
            let received = timeout_at(deadline, socket.recv_from(&mut buffer)).await;
            let received = received.map_err(|_| "no answer".to_owned())?;
            // An ICMP error of an earlier query.
            let Ok((length, from)) = received else { continue };
            let answer = Message::from_vec(&buffer[..length]).map_err(|error| error.to_string())?;
            if from == replica && answer.metadata.id == question.metadata.id {
                break answer;
            }
        };
        let data: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
        let is_expected = |host: &str| data == [format!("{host}."), "192.0.2.1".to_owned()];
        let is_right = is_expected(&host(service)) || service == MOVED && is_expected("moved.example.com");
        // If the upstream, which runs in this process, pauses, a first look-up ends without an address after 1.8 s.
        let is_late = begun.elapsed() >= IN_CLIENT_TIMEOUT && data == [format!("{}.", host(service))];
        if is_late {
            self.late.fetch_add(1, Ordering::SeqCst);
        }
        if is_right || is_late { Ok(()) } else { Err(format!("{} {data:?}", answer.metadata.response_code)) }
    }
}

/// A rolling update, as a Deployment with `maxSurge: 1` and `maxUnavailable: 0` does it.
async fn replace_all(shop: &Shop, load: &Load, old: Vec<Linker>, version: &Version<'_>) -> Vec<Linker> {
    let mut new = Vec::new();
    let mut ending = Vec::new();
    for (number, mut old) in old.into_iter().enumerate() {
        let started = version.start(shop, number).await;
        load.endpoints.lock().unwrap().push(started.dns);
        new.push(started);
        old.signal(Signal::SIGTERM);
        sleep(PROPAGATION).await;
        load.endpoints.lock().unwrap().retain(|endpoint| *endpoint != old.dns);
        ending.push(old);
    }
    for mut old in ending {
        assert!(old.ended().await.success());
    }
    eventually("a leader of the new version", || async {
        new.iter().any(|linker| linker.logged("leading now as") > 0).then_some(())
    })
    .await;
    new
}

/// A version of the program, and the prefix of its replicas' names.
struct Version<'a> {
    program: Option<&'a Path>,
    prefix: &'static str,
}

impl Version<'_> {
    async fn start(&self, shop: &Shop, number: usize) -> Linker {
        let name = format!("{}-{number}", self.prefix);
        let args = shop.replica_args(&name);
        let linker = match self.program {
            Some(program) => Linker::start_version(program, args),
            None => Linker::start(args),
        };
        linker.ready().await;
        linker
    }
}

/// Returns the uid and the spec of each external target.
async fn external_targets(shop: &Shop) -> BTreeMap<String, (String, Value)> {
    let services = shop.cluster.services("external-targets").list(&ListParams::default()).await.unwrap();
    let entry = |service: k8s_openapi::api::core::v1::Service| {
        let uid = service.uid().unwrap();
        (service.name_any(), (uid, serde_json::to_value(&service.spec).unwrap()))
    };
    services.into_iter().map(entry).collect()
}

/// Returns the writes of external targets and of their EndpointSlices by replicas with this prefix.
fn writes(shop: &Shop, prefix: &str) -> Vec<AuditEvent> {
    let users = format!("system:serviceaccount:lb-linker:{prefix}-");
    let is_write = |event: &AuditEvent| {
        event.is_write()
            && event.namespace == "external-targets"
            && ["services", "endpointslices"].contains(&&*event.resource)
            && event.user.starts_with(&users)
    };
    shop.plane.audit_events().into_iter().filter(is_write).collect()
}

/// Returns user, verb, name, and the `externalName` that the request sets.
fn summary(event: &AuditEvent) -> (String, String, String, Option<String>) {
    let request = event.request.clone().unwrap_or_default();
    let spec = request["spec"]["externalName"].as_str().map(ToOwned::to_owned);
    let user = event.user.rsplit(':').next().unwrap_or_default();
    (user.to_owned(), event.verb.clone(), event.name.clone(), spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_and_rollback_lose_no_query_and_no_name() {
    let shop = Shop::open(&[]).await;
    for service in 0..SERVICES {
        shop.load_balancer("shop", &format!("svc-{service}"), &host(service)).await;
    }
    let older = Version { program: Some(previous()), prefix: "old" };
    let mut old = Vec::new();
    for number in 0..REPLICAS {
        old.push(older.start(&shop, number).await);
    }
    let target = |service: usize| format!("svc-{service}-shop-ext");
    for service in 0..SERVICES {
        wait_for_external_target(&shop.cluster, "external-targets", &target(service), &host(service)).await;
    }
    let at_first = external_targets(&shop).await;
    assert_eq!(at_first.len(), SERVICES);

    let load = Arc::new(Load::default());
    load.endpoints.lock().unwrap().extend(old.iter().map(|linker| linker.dns));
    let (begun, rate) = (Instant::now(), scaled(5000, 300));
    let running = tokio::spawn(Arc::clone(&load).run(rate));
    let new = replace_all(&shop, &load, old, &Version { program: None, prefix: "new" }).await;
    // An upgrade alone writes nothing.
    let after_upgrade: Vec<_> = writes(&shop, "new").iter().map(summary).collect();
    assert_eq!(after_upgrade, []);
    assert_eq!(writes(&shop, "old").iter().filter(|event| event.code < 300).count(), SERVICES);
    assert_eq!(external_targets(&shop).await, at_first);

    // One StableName keeps the target of its Service, one has another target, one has no Service.
    let own = |service: usize| json!({"name": "own", "service": {"name": format!("svc-{service}")}});
    let fixed = json!({"name": "fixed", "hostname": "moved.example.com"});
    shop.create("svc-0", json!({"sources": [own(0)]})).await;
    shop.create(&format!("svc-{MOVED}"), json!({"sources": [own(MOVED), fixed], "pin": "fixed"})).await;
    shop.create("alone", json!({"sources": [{"name": "fixed", "hostname": "alone.example.com"}]})).await;
    for (name, host) in
        [(target(MOVED), "moved.example.com"), ("alone-shop-ext".to_owned(), "alone.example.com")]
    {
        wait_for_external_target(&shop.cluster, "external-targets", &name, host).await;
    }
    shop.wait_until_announced("svc-0", &host(0)).await;
    eventually("the annotation of the newer version", || async {
        let service = shop.cluster.get_service("external-targets", &target(0)).await?;
        service.annotations().contains_key("linker.hsj.com/stable-name-uid").then_some(())
    })
    .await;
    let decided = external_targets(&shop).await;
    // The new targets of `svc-MOVED` and `alone`, and the annotation of `svc-0`.
    eventually("writes for the StableNames", || async { (writes(&shop, "new").len() >= 3).then_some(()) })
        .await;

    let old = replace_all(&shop, &load, new, &Version { prefix: "back", ..older }).await;
    // The older version doesn't know StableNames: the Service's own target is the right one.
    wait_for_external_target(&shop.cluster, "external-targets", &target(MOVED), &host(MOVED)).await;
    for linker in &old {
        answers(linker.dns, &format!("svc-{MOVED}.shop.lb.internal. CNAME"), &format!("{}.", host(MOVED)))
            .await;
        answers(linker.dns, "svc-0.shop.lb.internal. CNAME", &format!("{}.", host(0))).await;
    }
    let is_any = || async { (!writes(&shop, "back").is_empty()).then_some(()) };
    eventually("a write by the older version", is_any).await;
    let back: Vec<_> = writes(&shop, "back").iter().map(summary).collect();
    assert!(back.len() == 1 && back[0].2 == target(MOVED), "{back:#?}");
    assert_eq!(writes(&shop, "new").iter().filter(|event| event.code < 300).count(), 3);
    let now = external_targets(&shop).await;
    for (name, (uid, spec)) in &decided {
        assert_eq!(&now[name].0, uid, "{name}");
        assert!(now[name].1 == *spec || *name == target(MOVED), "{name}: {}", now[name].1);
    }
    for (name, before) in &at_first {
        assert_eq!(&now[name], before, "{name}");
    }

    load.stop.store(true, Ordering::SeqCst);
    running.await.unwrap();
    let (answers, failures) = (load.answers.load(Ordering::SeqCst), load.failures.lock().unwrap().clone());
    let late = load.late.load(Ordering::SeqCst);
    assert!(late <= SERVICES, "{late} late answers without an address");
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "chaos: upgrade and rollback: {answers} answers in {seconds:.0} s ({:.0} a second), {} lost; \
         external targets written: 0 by the upgrade, {} by the rollback",
        answers as f64 / seconds,
        failures.len(),
        back.len()
    );
    assert!(
        failures.is_empty(),
        "{} of {answers}: {:#?}",
        failures.len(),
        &failures[..failures.len().min(10)]
    );

    // The decisions are in the API server: the next upgrade finds them.
    for mut replica in old {
        replica.stop();
    }
    let _again = Version { program: None, prefix: "again" }.start(&shop, 0).await;
    wait_for_external_target(&shop.cluster, "external-targets", &target(MOVED), "moved.example.com").await;
    assert_eq!(external_targets(&shop).await, decided);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollback_ends_names_without_a_service_until_the_upgrade() {
    let shop = Shop::open(&[]).await;
    let mut newer = Version { program: None, prefix: "new" }.start(&shop, 0).await;
    shop.create("alone", json!({"sources": [{"name": "fixed", "hostname": "alone.example.com"}]})).await;
    let (name, question) = ("alone-shop-ext", "alone.shop.lb.internal. CNAME");
    wait_for_external_target(&shop.cluster, "external-targets", name, "alone.example.com").await;
    newer.stop();

    // For the older version, `alone-shop-ext` is the external target of a deleted Service.
    let args = [&shop.replica_args("old")[..], &["--delete-delay", "3s"].map(ToOwned::to_owned)].concat();
    let mut older = Linker::start_version(previous(), args);
    older.ready().await;
    // NODATA while the external target exists, then NXDOMAIN.
    let answer = short(older.dns, question).await;
    assert!(["No Error", "Non-Existent Domain"].contains(&&*answer), "{answer}");
    eventually("the end of the external target", || async {
        shop.cluster.get_service("external-targets", name).await.is_none().then_some(())
    })
    .await;
    answers(older.dns, question, "Non-Existent Domain").await;
    older.stop();

    let newer = Version { program: None, prefix: "again" }.start(&shop, 0).await;
    answers(newer.dns, question, "alone.example.com.").await;
    wait_for_external_target(&shop.cluster, "external-targets", name, "alone.example.com").await;
}
