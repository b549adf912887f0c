//! Correctness of answers while targets change continuously, and while lb-linker starts.
//!
//! Rates depend on the machine; they are printed (`-- --nocapture`).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record};
use lb_linker::dns::chain::handler::Handler;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::dns::server::invalidation;
use lb_linker::dns::server::invalidation::Servers;
use lb_linker::dns::transport::udp;
use lb_linker::model::hostname::Hostname;
use lb_linker::model::link::{Annotations, Ingress as StoreIngress, IpFamily, ObservedService};
use lb_linker::model::service_key::ServiceKey;
use lb_linker::store::{Input, OnGone, Store};
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{FaultyUpstream, ede, error, query};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually};

const LINKS: u32 = 50;
/// The number of clients; each client sends one query at a time.
const CLIENTS: usize = 4;
const LOAD_DURATION: Duration = Duration::from_secs(10);
/// The delay before a client's next query after an answer without an address.
const RETRY: Duration = Duration::from_millis(10);

fn host(link: u32, generation: u32) -> String {
    format!("g{generation}.lb{link}.example.com")
}

fn ip(link: u32, generation: u32) -> [u8; 4] {
    [10, u8::try_from(link).unwrap(), (generation >> 8) as u8, (generation & 0xff) as u8]
}

/// Starts an upstream that knows the addresses of all targets in all generations.
async fn cloud() -> FaultyUpstream {
    FaultyUpstream::start(|asked, _| {
        let name = asked.queries[0].name().to_ascii();
        let mut answer = error(asked, ResponseCode::NoError);
        if let Some((link, generation)) = parse_host(&name) {
            let [a, b, c, d] = ip(link, generation);
            let owner = asked.queries[0].name().clone();
            answer.add_answer(Record::from_rdata(owner, 60, RData::A(A::new(a, b, c, d))));
        }
        vec![answer]
    })
    .await
}

fn parse_host(name: &str) -> Option<(u32, u32)> {
    let mut labels = name.split('.');
    let generation = labels.next()?.strip_prefix('g')?.parse().ok()?;
    Some((labels.next()?.strip_prefix("lb")?.parse().ok()?, generation))
}

/// The generations that answers may have, for each link, and counters of answers and changes.
#[derive(Default)]
struct Generations {
    /// The newest generation that an answer may have.
    newest: Vec<AtomicU32>,
    /// The oldest generation that an answer may have.
    oldest: Vec<AtomicU32>,
    answers: AtomicUsize,
    /// Answers without an address.
    without_address: AtomicUsize,
    changed: AtomicUsize,
    stop: AtomicBool,
}

impl Generations {
    fn new() -> Arc<Self> {
        let zeros = || (0..LINKS).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { newest: zeros(), oldest: zeros(), ..Self::default() })
    }

    /// Queries the addresses of all links in turn until `stop` is set. Checks that each answer has one target and its
    /// address, and that the target is no older than any target answered or delivered before the query, and no newer
    /// than the newest one. A SERVFAIL with the alias alone is only counted: see [`Self::check`].
    async fn ask(self: Arc<Self>, server: SocketAddr, namespace: String) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server).await.unwrap();
        let mut buffer = [0; 1232];
        let mut link = 0;
        while !self.stop.load(Ordering::SeqCst) {
            link = (link + 7) % LINKS;
            let at = link as usize;
            let question = query(&format!("svc-{link}-{namespace}.lb.internal. A"));
            let oldest = self.oldest[at].load(Ordering::SeqCst);
            socket.send(&question.to_vec().unwrap()).await.unwrap();
            let length = timeout(EVENT_TIMEOUT, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
            let newest = self.newest[at].load(Ordering::SeqCst);
            let answer = Message::from_vec(&buffer[..length]).unwrap();
            assert_eq!(answer.metadata.id, question.metadata.id);
            let Some(generation) = self.check(link, &answer) else {
                self.without_address.fetch_add(1, Ordering::SeqCst);
                sleep(RETRY).await;
                continue;
            };
            assert!(
                (oldest..=newest).contains(&generation),
                "link {link}: generation {generation} isn't between {oldest} and {newest}"
            );
            // After an answer with a generation, no later answer may have an older one.
            self.oldest[at].fetch_max(generation, Ordering::SeqCst);
            self.answers.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the generation of an answer, or `None` if the upstream, which shares the machine, was too slow to
    /// resolve the address.
    fn check(&self, link: u32, answer: &Message) -> Option<u32> {
        if answer.metadata.response_code == ResponseCode::ServFail {
            assert_eq!(answer.answers.len(), 1, "the alias alone: {answer}");
            return None;
        }
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError, "{answer}");
        let [alias, address] = &*answer.answers else { panic!("an alias and its address: {answer}") };
        let RData::CNAME(target) = &alias.data else { panic!("{answer}") };
        let (of, generation) = parse_host(&target.0.to_ascii()).expect("a target of ours");
        assert_eq!(of, link);
        assert_eq!(address.name, target.0, "a mix: {answer}");
        let [a, b, c, d] = ip(link, generation);
        assert_eq!(address.data, RData::A(A::new(a, b, c, d)), "a mix: {answer}");
        Some(generation)
    }

    /// Runs the clients while `change` changes the links in turn, at `rate` changes per second, then checks that the
    /// last target of each link is answered. `what` names the load in the output.
    async fn run(
        self: &Arc<Self>,
        what: &str,
        server: SocketAddr,
        namespace: &str,
        rate: u32,
        change: impl AsyncFn(u32, u32),
    ) {
        let mut clients = JoinSet::new();
        let spawn = |_| clients.spawn(Arc::clone(self).ask(server, namespace.to_owned()));
        let handles: Vec<_> = (0..CLIENTS).map(spawn).collect();
        let since = Instant::now();
        // Steps of 10 ms are long enough for a loaded machine to keep up.
        let mut step = interval(Duration::from_millis(10));
        step.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut next = 0;
        while since.elapsed() < LOAD_DURATION {
            step.tick().await;
            let changes = (next..next + rate / 100).map(|number| {
                let (link, generation) = (number % LINKS, number / LINKS + 1);
                self.newest[link as usize].store(generation, Ordering::SeqCst);
                change(link, generation)
            });
            self.changed.fetch_add(join_all(changes).await.len(), Ordering::SeqCst);
            next += rate / 100;
        }
        let seconds = since.elapsed().as_secs_f64();
        // Before `stop` is set, a client task ends only with a panic: at a wrong answer, or if an answer is missing.
        eventually("the last targets", || async {
            let last = |at: usize| self.newest[at].load(Ordering::SeqCst);
            let seen = |at: usize| self.oldest[at].load(Ordering::SeqCst);
            assert!(!handles.iter().any(|client| client.is_finished()), "a client task has panicked");
            (0..LINKS as usize).all(|at| last(at) == seen(at)).then_some(())
        })
        .await;
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = clients.join_next().await {
            ended.expect("every answer was right");
        }
        let rate = |count: &AtomicUsize| count.load(Ordering::SeqCst) as f64 / seconds;
        eprintln!(
            "storm: {what}: {:.0} changes/s, {:.0} answers/s, {:.1} answers/s without an address",
            rate(&self.changed),
            rate(&self.answers),
            rate(&self.without_address)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_never_mix_targets_or_return_an_older_one() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let namespace = cluster.create_namespace("storm").await;
    for link in 0..LINKS {
        cluster.create_load_balancer(&namespace, &format!("svc-{link}")).await;
        set_target(&cluster, &namespace, link, 0).await;
    }
    let cloud = cloud().await;
    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", &cloud.address.to_string()]);
    linker.ready().await;
    let change = async |link, generation| set_target(&cluster, &namespace, link, generation).await;
    let generations = Generations::new();
    generations.run("from the API server", linker.dns, &namespace, 200, change).await;
}

async fn set_target(cluster: &Cluster, namespace: &str, link: u32, generation: u32) {
    cluster
        .set_ingress(namespace, &format!("svc-{link}"), &[Ingress::Hostname(&host(link, generation))])
        .await;
}

fn observed(link: u32, generation: u32) -> ObservedService {
    let hostnames = vec![Hostname::from(&Name::from_ascii(format!("{}.", host(link, generation))).unwrap())];
    ObservedService {
        key: ServiceKey::new("storm", &format!("svc-{link}")),
        uid: "u".into(),
        created: None,
        resource_version: Some((generation * LINKS + link).into()),
        ingress: StoreIngress { hostnames, addresses: vec![] },
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn store_with_links(links: u32) -> Arc<Store> {
    let store = Store::new(OnGone::Kept);
    let all: Vec<_> = (0..links).map(|link| observed(link, 0)).collect();
    store.replace(None, all, vec![], &HashSet::default());
    store.set_known(Input::Services);
    Arc::new(store)
}

/// Returns a handler that answers for the links of a store, and for all other names with the plugins in `lines`.
fn handler(store: &Arc<Store>, lines: &str) -> Arc<Handler> {
    let text = format!("lb.internal {{\nprometheus\nlb_linker\n}}\n. {{\nprometheus\n{lines}\n}}\n");
    first_handler(&text, &ServerContext::silent(Arc::clone(store)).unwrap()).unwrap()
}

/// Runs the invalidation task, which passes changes of the store to a handler's caches.
fn run_invalidation(
    store: &Arc<Store>,
    handler: &Handler,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (_, servers) = watch::channel(Servers::from([handler.server.load_full()]));
    invalidation::run(Arc::clone(store), servers, Handle::current(), stop.clone(), false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_applies_at_once_at_1000_changes_per_second() {
    let cloud = cloud().await;
    let store = store_with_links(LINKS);
    let handler = handler(&store, &format!("cache 30\nforward . {}", cloud.address));
    let sockets = udp::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = sockets[0].local_addr().unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let until = stop.clone();
    tasks.spawn(run_invalidation(&store, &handler, &stop));
    tasks.spawn(async move { udp::serve(sockets, handler, until).await.unwrap() });

    let generations = Generations::new();
    let change = async |link: u32, generation| {
        store.apply(observed(link, generation));
        // Queries from now on must get the new generation.
        generations.oldest[link as usize].store(generation, Ordering::SeqCst);
    };
    generations.run("fed to the store", server, "storm", 1000, change).await;
    stop.cancel();
    while tasks.join_next().await.is_some() {}
}

#[tokio::test]
async fn at_most_64_targets_are_prefetched_at_once() {
    let silent = FaultyUpstream::start(|_, _| vec![]).await;
    let store = store_with_links(200);
    // Only targets of links that clients have queried are prefetched.
    store.links().iter().for_each(|link| link.last_queried.note(IpFamily::V4));
    let handler = handler(&store, &format!("forward . {}", silent.address));
    let stop = CancellationToken::new();
    let mut following = JoinSet::new();
    following.spawn(run_invalidation(&store, &handler, &stop));
    let asked = |link| silent.asked(&format!("{}. A", host(link, 1))).len();
    // Change a link until the invalidation task is running.
    eventually("a first look-up", || async {
        store.apply(observed(0, 0));
        store.apply(observed(0, 1));
        (asked(0) > 0).then_some(())
    })
    .await;
    for link in 0..200 {
        store.apply(observed(link, 1));
    }
    // The upstream never answers: when the first query is repeated, all first queries have been sent.
    let repeated = || async { (1..200).any(|link| asked(link) > 1).then_some(()) };
    eventually("a repeated question", repeated).await;
    let names = (0..200).filter(|link| asked(*link) > 0).count();
    assert!((32..=64).contains(&names), "{names}");
    stop.cancel();
    while following.join_next().await.is_some() {}
}

#[tokio::test]
async fn starting_replica_never_denies_an_existing_name() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let namespace = cluster.create_namespace("live").await;
    for link in 0..LINKS {
        cluster.create_load_balancer(&namespace, &format!("svc-{link}")).await;
        set_target(&cluster, &namespace, link, 0).await;
    }
    let mut count: HashMap<String, usize> = HashMap::new();
    for round in 0..6 {
        let args = ["--upstream", "none", "--delete-delay", "0s"];
        // The ports are open when `in_cluster` returns, and the store may still be empty.
        let mut linker = Linker::in_cluster(&plane, "external-targets", &args);
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(linker.dns).await.unwrap();
        let mut right = 0;
        while right < 3 * LINKS {
            let link = right % LINKS;
            let question = query(&format!("svc-{link}.{namespace}.lb.internal. CNAME"));
            socket.send(&question.to_vec().unwrap()).await.unwrap();
            let mut buffer = [0; 1232];
            let length = timeout(EVENT_TIMEOUT, socket.recv(&mut buffer)).await.expect("an answer").unwrap();
            let answer = Message::from_vec(&buffer[..length]).unwrap();
            let rcode = answer.metadata.response_code;
            *count.entry(rcode.to_string()).or_default() += 1;
            match rcode {
                ResponseCode::NoError => {
                    assert_eq!(answer.answers[0].data.to_string(), format!("{}.", host(link, 0)));
                    right += 1;
                }
                // Extended DNS error 14, Not Ready (RFC 8914 section 4.15).
                ResponseCode::ServFail => assert_eq!(ede(&answer), Some(14), "not ready"),
                rcode => panic!("{rcode} for an existing name"),
            }
        }
        if round % 2 == 0 {
            linker.kill();
        } else {
            assert!(linker.stop().success());
        }
    }
    eprintln!("restarts: answers by rcode: {count:?}");
}
