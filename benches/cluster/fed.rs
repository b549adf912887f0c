//! The part `storm-store`: the queries of the part `storm-api` without a cluster. This process applies changes to the
//! store, at a higher rate.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Instant;

use hickory_proto::rr::Name;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::dns::server::invalidation;
use lb_linker::dns::server::invalidation::Servers;
use lb_linker::dns::transport::udp;
use lb_linker::metrics::Metrics;
use lb_linker::model::hostname::Hostname;
use lb_linker::model::link::{Annotations, Ingress, ObservedService};
use lb_linker::model::service_key::ServiceKey;
use lb_linker::store::{Input, OnGone, Store};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dns::host;
use crate::figures::Results;
use crate::load::Change;
use crate::objects::{link_question, namespace};
use crate::plane::{LINKS, check};
use crate::process::Cpu;
use crate::storm::{Kind, QUERIED_LINKS, paced, report, round};

/// Changes per second, and changes per step: a wake-up for each change would cost more than the change.
const CHANGES: u32 = 1000;
const STEP: u64 = 5;
const COREFILE: &str = "lb.internal {\nprometheus\nlb_linker\n}\n. {\nprometheus\nerrors\n}\n";

/// A DNS server of this process, with a store and without a cluster.
pub struct FedServer {
    pub store: Arc<Store>,
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    stop: CancellationToken,
    _runtime: Runtime,
}

impl FedServer {
    /// Starts a server for a number of links.
    pub fn start(links: usize) -> Self {
        let store = Store::new(OnGone::Kept);
        store.replace(None, (0..links).map(|link| observed(link, 0)), vec![], &HashSet::default());
        store.set_known(Input::Services);
        let store = Arc::new(store);
        let site = ServerContext::silent(Arc::clone(&store)).expect("a server context");
        let handler = first_handler(COREFILE, &site).expect("a Corefile");
        let metrics = Arc::clone(&handler.metrics);
        let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("dns").enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (_, servers) = watch::channel(Servers::from([handler.server.load_full()]));
        let stop = CancellationToken::new();
        let ahead =
            invalidation::run(Arc::clone(&store), servers, runtime.handle().clone(), stop.clone(), false);
        runtime.spawn(ahead);
        let address = runtime.block_on(async {
            let sockets = udp::bind("127.0.0.1:0".parse().expect("an address")).expect("a socket");
            let address = sockets[0].local_addr().expect("an address of the socket");
            runtime.spawn(udp::serve(sockets, handler, stop.clone()));
            address
        });
        Self { store, address, metrics, stop, _runtime: runtime }
    }
}

impl Drop for FedServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves DNS from a store of this process, and measures rounds with and without changes of the store.
pub fn run(results: &mut Results) {
    let fed = FedServer::start(LINKS);
    check(fed.address, LINKS);
    // One thread makes the changes of all rounds, because the CPU time of an ended thread is no longer listed under
    // its name.
    let (jobs, inbox) = channel::<Box<dyn FnOnce() + Send>>();
    let run_jobs = move || inbox.into_iter().for_each(|job| job());
    Builder::new().name("feed".to_owned()).spawn(run_jobs).expect("a thread");
    let (mut rounds, mut first) = (Vec::new(), 1_000_000);
    for kind in Kind::all() {
        eprintln!("storm fed to the store, a round of 30 s: {}", kind.name());
        // All running threads of this process except the clients.
        let cpu = || Cpu::of(std::process::id()).without("bench").without("(ended)");
        rounds.push(round(fed.address, kind, cpu, |made, end| {
            let store = Arc::clone(&fed.store);
            let (sender, changes) = channel();
            let feed = move || sender.send(feed(&store, first, &made, end)).expect("the receiver exists");
            jobs.send(Box::new(feed)).expect("the thread runs");
            changes.recv().expect("the thread sends the number of changes")
        }));
        first += 1_000_000;
    }
    report("1,000 changes a second fed to the store", &rounds, results);
}

/// Applies one change after the other until `end`, and sends each change to `made` with its start time. Returns the
/// number of changes.
fn feed(store: &Store, first: u64, made: &Sender<Change>, end: Instant) -> u64 {
    let steps = paced(CHANGES / STEP as u32, end, |step| {
        for number in step * STEP..(step + 1) * STEP {
            let (link, change) = (number as usize % QUERIED_LINKS, first + number);
            let (observed, question) = (observed(link, change), link_question(link));
            let at = Instant::now();
            store.apply(observed);
            // Sending fails when the round is over.
            let _ = made.send(Change { at, change, question });
        }
    });
    steps * STEP
}

pub fn observed(link: usize, change: u64) -> ObservedService {
    let hostname = Name::from_ascii(format!("{}.", host(change, link))).expect("a name");
    ObservedService {
        key: ServiceKey::new(&namespace(link), &format!("svc-{link}")),
        uid: format!("uid-{link}").as_str().into(),
        created: None,
        resource_version: Some(change * LINKS as u64 + link as u64),
        ingress: Ingress { hostnames: vec![Hostname::from(&hostname)], addresses: vec![] },
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}
