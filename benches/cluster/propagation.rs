//! The latency of a change: from the API server's response to the PATCH until DNS answers with the new target, and
//! until the ExternalName is written. CoreDNS's `kubernetes` is measured for comparison.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::api::{Seen, Watch};
use crate::dns::{SerialClient, change_of, host};
use crate::figures::{Results, Spread, Table, millis};
use crate::load::Load;
use crate::objects::{
    PEER, TARGETS, link_question, namespace, peer_question, services, status, status_patch,
};
use crate::plane::{LINKS, Plane};

/// The number of Services that CoreDNS serves.
pub const PEERS: usize = 250;
/// The time after which a change counts as lost.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two changes, in which the consequences of a change, such as Events and watch events, come to an
/// end.
const PAUSE: Duration = Duration::from_millis(10);
/// Queries per second to each of the two servers in the second round.
const QUERIES: u32 = 3000;
/// The number of names in the queries to lb-linker; those to CoreDNS have [`PEERS`] names.
const ASKED: usize = 1000;

/// The measurements of all changes, in milliseconds.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    written: Vec<f64>,
    coredns: Vec<f64>,
    /// From the response to a PATCH until the benchmark's watch reports the change: of a load balancer, and of an
    /// ExternalName Service.
    watch_events: [Vec<f64>; 2],
}

/// Measures without and with other queries.
pub fn run(plane: &mut Plane, changes: usize, results: &mut Results) {
    plane.grow(LINKS);
    plane.grow_peers(PEERS);
    let linker = plane.synced_linker();
    let coredns = plane.coredns();
    let mut change = 0;
    for rate in [0, QUERIES] {
        let what = if rate == 0 { "quiet" } else { "both are asked 3,000 times a second" };
        eprintln!("propagation, {what}: {changes} changes of each");
        let load = (rate > 0).then(|| {
            let ours = (0..ASKED).map(link_question).collect();
            let theirs = (0..PEERS).map(peer_question).collect();
            [Load::start(linker.dns, rate, ours), Load::start(coredns.address, rate, theirs)]
        });
        let mut times = Times::default();
        let watches =
            ["LoadBalancer", "ExternalName"].map(|kind| plane.access.watch(&format!("spec.type={kind}")));
        let servers = [SerialClient::new(linker.dns), SerialClient::new(coredns.address)];
        measure(plane, changes, &mut change, servers, &watches, &mut times);
        drop(watches);
        for (name, load) in ["lb-linker", "CoreDNS"].iter().zip(load.into_iter().flatten()) {
            eprintln!("{name} meanwhile: {}", load.stop());
        }
        report(what, times, results);
    }
}

fn measure(
    plane: &Plane,
    changes: usize,
    change: &mut u64,
    [mut ours, mut theirs]: [SerialClient; 2],
    [balancers, names]: &[Watch; 2],
    times: &mut Times,
) {
    let mut api = plane.access.connect();
    for number in 0..changes {
        // The two servers take turns, and each is first equally often.
        for coredns in if number % 2 == 0 { [false, true] } else { [true, false] } {
            *change += 1;
            if coredns {
                let peer = number % PEERS;
                let path = format!("{}/ext-{peer}", services(PEER));
                let patch = serde_json::json!({"spec": {"externalName": host(*change, peer)}}).to_string();
                let answered = api.must("PATCH", &path, &patch);
                let seen = theirs.until(&mut peer_question(peer), *change, EVENT_TIMEOUT);
                let seen = seen.expect("CoreDNS answers the new target");
                times.coredns.push(millis(answered, seen));
                times.watch_events[1].push(millis(answered, wait_for_event(&names.seen, PEER, *change)));
            } else {
                // Spread the changes over all links.
                let link = number * 37 % LINKS;
                let answered = api.must("PATCH", &status(link), &status_patch(*change, link));
                let seen = ours.until(&mut link_question(link), *change, EVENT_TIMEOUT);
                let seen = seen.expect("lb-linker answers the new target");
                times.ours.push(millis(answered, seen));
                times.watch_events[0]
                    .push(millis(answered, wait_for_event(&balancers.seen, &namespace(link), *change)));
                times.written.push(millis(answered, wait_for_event(&names.seen, TARGETS, *change)));
            }
            thread::sleep(PAUSE);
        }
        if (number + 1) % 100 == 0 {
            eprintln!("{} of {changes}", number + 1);
        }
    }
}

/// Waits until the watch reports a change in a namespace, and returns the time of the event.
fn wait_for_event(seen: &Receiver<Seen>, namespace: &str, change: u64) -> Instant {
    loop {
        match seen.recv_timeout(EVENT_TIMEOUT) {
            Ok(seen) if seen.namespace == namespace && change_of(&seen.target) == Some(change) => {
                return seen.at;
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                panic!("the watch reports no change {change} in namespace {namespace}")
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the watch has ended"),
        }
    }
}

fn report(what: &str, times: Times, results: &mut Results) {
    let [balancers, names] = times.watch_events;
    let rows = [
        ("PATCH answered → lb-linker answers the new target", Spread::of(times.ours)),
        ("PATCH answered → CoreDNS answers the new target", Spread::of(times.coredns)),
        ("PATCH answered → ExternalName written", Spread::of(times.written)),
        ("PATCH answered → a watch tells of the load balancer", Spread::of(balancers)),
        ("PATCH answered → a watch tells of CoreDNS's Service", Spread::of(names)),
    ];
    let mut table = Table::new(&["milliseconds", "changes", "p50", "p90", "p99", "max"]);
    let mut spreads = HashMap::new();
    for (name, spread) in rows {
        table.row(&format!("{what}: {name}"), spread.cells());
        spreads.insert(name, spread);
    }
    results.table(&format!("Propagation, {LINKS} links"), table);
    let at = |name: &str, share| spreads[name].at(share);
    let written = "PATCH answered → ExternalName written";
    results.at_most(&format!("{written}, p50, {what}"), at(written, 0.5), 5.0, "ms");
    results.at_most(&format!("{written}, p99, {what}"), at(written, 0.99), 25.0, "ms");
}
