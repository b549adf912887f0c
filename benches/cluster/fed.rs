//! The same storm without a cluster: changes are given to the store, in this process.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use hickory_proto::rr::Name;
use lb_linker::dns::ahead::{self, Servers};
use lb_linker::dns::configuration::first_handler;
use lb_linker::dns::plugins::setup::Site;
use lb_linker::dns::udp;
use lb_linker::store::{Departed, Ingress, Observed, ServiceKey, Store, Wishes};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dns::host;
use crate::figures::Verdicts;
use crate::follow::Made;
use crate::plane::{LINKS, check, link_question, namespace};
use crate::process::Cpu;
use crate::storm::{ASKED, ROUNDS, report, round};

/// Changes a second.
const CHANGES: u32 = 1000;
const COREFILE: &str = "lb.internal {\nprometheus\nlb_linker\n}\n. {\nprometheus\nerrors\n}\n";

/// Serves a store on threads of its own, and changes it.
pub fn run(verdicts: &mut Verdicts) {
    let store = Store::new(Departed::Kept);
    store.replace(None, (0..LINKS).map(|link| observed(link, 0)).collect(), vec![], &HashSet::default());
    store.set_synced();
    let store = Arc::new(store);
    let site = Site::silent(Arc::clone(&store)).expect("a site");
    let handler = first_handler(COREFILE, &site).expect("a Corefile");
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("dns").enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (_, servers) = watch::channel(Servers::from([handler.server.load_full()]));
    let stop = CancellationToken::new();
    runtime.spawn(ahead::run(Arc::clone(&store), servers, stop.clone()));
    let server = runtime.block_on(async {
        let socket = udp::bind("127.0.0.1:0".parse().expect("an address"), false).expect("a socket");
        let server = socket.local_addr().expect("its address");
        runtime.spawn(udp::serve(socket, handler, stop.clone()));
        server
    });
    check(server, LINKS);
    let (mut rounds, mut first) = (Vec::new(), 1_000_000);
    for number in 0..2 * ROUNDS {
        eprintln!("storm fed to the store, round {} of {}", number + 1, 2 * ROUNDS);
        // All of this process but for the one who asks.
        let cpu = || Cpu::of(std::process::id()).without("bench");
        rounds.push(round(server, number % 2 == 1, cpu, |made, end| {
            let store = Arc::clone(&store);
            let feed = move || feed(&store, first, &made, end);
            let feeder = Builder::new().name("feed".to_owned()).spawn(feed).expect("a thread");
            feeder.join().expect("the store takes changes")
        }));
        first += 1_000_000;
    }
    stop.cancel();
    report("1,000 changes a second fed to the store", &rounds, verdicts);
}

/// Gives the store one change after the other, and tells of each when it begins to.
fn feed(store: &Store, first: u64, made: &Sender<Made>, end: Instant) -> u64 {
    let since = Instant::now();
    for number in 0.. {
        let due = since + Duration::from_secs_f64(number as f64 / f64::from(CHANGES));
        if due >= end {
            return number;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let (link, change) = (number as usize % ASKED, first + number);
        let (change_of_link, question) = (observed(link, change), link_question(link));
        let at = Instant::now();
        store.apply(change_of_link);
        // Nobody follows any more: then the round is over.
        let _ = made.send(Made { at, change, question });
    }
    0
}

fn observed(link: usize, change: u64) -> Observed {
    let hostname = Name::from_ascii(format!("{}.", host(change, link))).expect("a name");
    Observed {
        key: ServiceKey::new(&namespace(link), &format!("svc-{link}")),
        uid: format!("uid-{link}").into(),
        created: None,
        resource_version: Some(change * LINKS as u64 + link as u64),
        ingress: Ingress { hostnames: vec![hostname], addresses: vec![] },
        ports: vec![],
        wishes: Wishes::default(),
        refused: false,
        guarded: false,
    }
}
