//! Repeated faults under load. `make chaos` runs the long forms.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;

use crate::harness::clock::ClockStop;
use crate::harness::faulty_link::ConnectionFault;
use crate::harness::scale::scaled;
use crate::model::disturbed::load::Shared;
use crate::model::disturbed::{Disturbance, Disturbed, Setup};

/// Returns the setup of two replicas, either of which may be killed.
fn setup() -> Setup {
    Setup {
        services: scaled(100, 20),
        stable_names: 2,
        pause: Duration::from_millis(scaled(50, 20)),
        max_fault_duration: Duration::from_secs(scaled(15, 2)),
        keeps_replica_0: false,
        has_clocks: false,
        keeps_audit_log: scaled(false, true),
        downstream: None,
    }
}

/// Ends the load. Returns its figures as text, and the number of failures: the wrong answers, plus the lost queries and
/// the answers without an address that exceed the tolerated number.
fn end_load(shared: &Shared, load: JoinHandle<()>) -> (String, usize) {
    shared.stop.store(true, Ordering::Relaxed);
    load.join().unwrap();
    let [asked, wrong, lost, unresolved] =
        [&shared.asked, &shared.wrong, &shared.lost, &shared.unresolved].map(|it| it.load(Ordering::Relaxed));
    let text = format!("{asked} queries, {wrong} wrong, {lost} lost, {unresolved} without an address");
    // In the short form other tests make the machine busy, and the kernel may drop datagrams.
    let tolerated = scaled(0, 20 + asked / 100);
    (text, wrong + (lost + unresolved).saturating_sub(tolerated))
}

fn longest(times: &[Duration]) -> f64 {
    times.iter().max().expect("at least one round ran").as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_api_server_loses_no_answer() {
    const SEED: u64 = 21;
    let mut world = Disturbed::start(setup(), SEED).await;
    world.round(Disturbance::Nothing).await;
    let shared = Arc::clone(&world.shared);
    let load = world.start_load(scaled(5000, 200), SEED);
    for _ in 0..scaled(20, 2) {
        world.round(Disturbance::ApiKill).await;
    }
    let (figures, failed) = end_load(&shared, load);
    let times = &world.converged_after_return;
    let converged = longest(times);
    println!(
        "chaos: API server killed {} times: {figures}; converged at most {converged:.2} s after its return",
        times.len()
    );
    assert_eq!(failed, 0, "{figures}");
    assert!(scaled(converged < 5.0, true), "{times:?}");
    world.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_lose_no_change_and_no_answer() {
    const SEED: u64 = 22;
    let mut world = Disturbed::start(setup(), SEED).await;
    world.round(Disturbance::Nothing).await;
    let shared = Arc::clone(&world.shared);
    let load = world.start_load(scaled(2000, 200), SEED);
    for _ in 0..scaled(10, 1) {
        world.round(Disturbance::LeaderKill).await;
    }
    let (figures, failed) = end_load(&shared, load);
    let took = longest(&world.take_overs);
    println!(
        "chaos: leader killed {} times: {} operations, all in external targets and DNS; {figures}; take-over after at \
         most {took:.1} s",
        world.take_overs.len(),
        world.operations
    );
    assert_eq!(failed, 0, "{figures}");
    assert!(scaled(took <= 17.0, true), "{:?}", world.take_overs);
    world.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_stopped_with_its_clocks_writes_nothing_stale() {
    const SEED: u64 = 23;
    let setup = Setup { has_clocks: true, keeps_audit_log: true, ..setup() };
    let mut world = Disturbed::start(setup, SEED).await;
    world.round(Disturbance::Nothing).await;
    let shared = Arc::clone(&world.shared);
    let load = world.start_load(500, SEED);
    let stops =
        scaled(&[ClockStop::Suspend, ClockStop::Pause, ClockStop::Suspend][..], &[ClockStop::Suspend][..]);
    for how in stops {
        let time = Duration::from_secs(scaled(30, 0));
        world.round(Disturbance::LeaderSuspend(*how, time)).await;
    }
    let (figures, failed) = end_load(&shared, load);
    let writes = world.audited_writes();
    println!(
        "chaos: leader stopped {} times: {} writes compared, {} stale, {} refused; {figures}",
        stops.len(),
        writes.compared,
        writes.stale.len(),
        writes.refused
    );
    assert!(writes.stale.is_empty(), "{:#?}", writes.stale);
    assert!(writes.compared > 20, "{writes:?}");
    assert_eq!(failed, 0, "{figures}");
    world.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_of_connections_lose_no_object() {
    const SEED: u64 = 24;
    let mut world = Disturbed::start(setup(), SEED).await;
    let shared = Arc::clone(&world.shared);
    let load = world.start_load(500, SEED);
    let begun = Instant::now();
    let mut rounds = 0;
    loop {
        let disturbances = [Disturbance::Cut, Disturbance::Reset, Disturbance::Delay, Disturbance::HalfOpen];
        let disturbance = match scaled(None, Some([Disturbance::Reset, Disturbance::HalfOpen].get(rounds))) {
            None if begun.elapsed() > Duration::from_secs(180) => break,
            None => *disturbances.choose(&mut world.random).expect("the list isn't empty"),
            Some(None) => break,
            Some(Some(disturbance)) => *disturbance,
        };
        world.round(disturbance).await;
        rounds += 1;
    }
    let slowest = world.slowest.as_secs_f64();
    let mut noticed = Duration::ZERO;
    if scaled(true, false) {
        world.shared.with(|history| history.begin_disturbance());
        world.replicas.iter().for_each(|replica| replica.link.inject(ConnectionFault::Silence));
        noticed = world.time_of_change().await;
        world.round(Disturbance::Nothing).await;
    }
    let (figures, failed) = end_load(&shared, load);
    println!(
        "chaos: {rounds} random faults of connections, {} operations: {figures}; converged after at most {slowest:.1} s; \
         silent death noticed after {:.1} s",
        world.operations,
        noticed.as_secs_f64()
    );
    assert_eq!(failed, 0, "{figures}");
    assert!(noticed < Duration::from_secs(150), "{noticed:?}");
    world.stop();
}
