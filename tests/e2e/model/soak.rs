//! Random operations and disturbances for an hour: `make soak`. A tenth of the queries reaches a replica by HTTPS, and a
//! secondary server transfers its zone.
//!
//! `LB_LINKER_SOAK_MINUTES` is the duration; without it, a small world has four disturbances.
//! `LB_LINKER_MODEL_SEED` repeats the choices.

mod downstream;
mod resources;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;

use super::disturbed::history::bound;
use super::disturbed::{Disturbance, Disturbed, Setup};
use super::from_env;
use crate::https::listener;
use downstream::Prepared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_answers_match_the_model() {
    let minutes = from_env("LB_LINKER_SOAK_MINUTES");
    let size = |full, short| if minutes.is_some() { full } else { short };
    let prepared = Prepared::new();
    let setup = Setup {
        services: size(150, 20),
        stable_names: size(10, 2),
        pause: Duration::from_millis(100),
        max_fault_duration: Duration::from_secs(15),
        keeps_replica_0: true,
        has_clocks: false,
        keeps_audit_log: minutes.is_none(),
        downstream: Some(prepared.lines()),
    };
    let rate = if minutes.is_some() { 2000 } else { 200 };
    let seed = from_env("LB_LINKER_MODEL_SEED").unwrap_or_else(|| minutes.map_or(5, |_| rand::random()));
    println!("soak: LB_LINKER_MODEL_SEED={seed} repeats these choices");
    let mut world = Disturbed::start(setup, seed).await;
    let shared = Arc::clone(&world.shared);
    let survivor = &world.replicas[0].linker;
    let (dns, upstream) = (survivor.dns, world.upstream.address);
    let https = listener(survivor, ", by HTTPS").await;
    let downstream = prepared.start(dns, https, upstream).await;
    *shared.by_https.lock().unwrap() = Some(downstream.forwarder.linker.dns);
    let load = world.start_load(rate, seed);
    let resources = resources::start(&shared, survivor.id(), survivor.metrics, minutes.is_some());
    let begun = Instant::now();
    let duration = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let mut rounds = 0;
    loop {
        let disturbance = match duration {
            // One disturbance each of the connections, the Corefile, the upstream and the API server.
            None => match [
                Disturbance::Cut,
                Disturbance::Reload,
                Disturbance::Servfail,
                Disturbance::StartWithoutApi,
            ]
            .get(rounds)
            {
                Some(disturbance) => *disturbance,
                None => break,
            },
            Some(duration) if begun.elapsed() >= duration => break,
            Some(_) => *Disturbance::ALL.choose(&mut world.random).expect("there are some"),
        };
        world.round(disturbance).await;
        downstream.converge(dns, &world.subjects()).await;
        rounds += 1;
        assert!(!load.is_finished(), "the load has ended");
    }
    shared.stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
    let verdict = resources.join().unwrap();
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let [asked, judged, wrong, lost, unresolved] =
        [&shared.asked, &shared.judged, &shared.wrong, &shared.lost, &shared.unresolved].map(count);
    println!(
        "soak: {rounds} rounds, {} operations, {asked} queries, {judged} answers judged, {wrong} wrong, {lost} lost, \
         {unresolved} without an address; slowest convergence {:.1} s; bound {} s",
        world.operations,
        world.slowest.as_secs_f64(),
        bound().as_secs()
    );
    println!("soak: {:?}", world.tally);
    println!("soak: {}", verdict.text);
    assert_eq!(wrong, 0, "wrong answers, LB_LINKER_MODEL_SEED={seed}");
    // On a busy machine the kernel may drop a datagram.
    assert!(lost <= 3 + asked / 100_000, "{lost} of {asked} queries without an answer");
    assert!(unresolved <= 20 + asked / 1000, "{unresolved} answers without an address");
    assert!(verdict.holds, "{}", verdict.text);
    downstream.stop();
    world.stop();
}
