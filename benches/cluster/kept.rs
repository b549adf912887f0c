//! The part `kept-answers`: how many questions a kept answer settles while other names come and go.

use std::thread;
use std::time::{Duration, Instant};

use lb_linker::dns::transport::metrics::TransportMetrics;
use lb_linker::model::service_key::ServiceKey;

use crate::dns::question;
use crate::fed::{FedServer, observed};
use crate::figures::{Results, Table};
use crate::load::{Load, Outcome};
use crate::objects::{link_question, namespace};
use crate::storm::paced;

/// The names that are asked for; a third of them doesn't exist.
const NAMES: usize = 2000;
const PRESENT: usize = NAMES * 2 / 3;
const QUERIES: u32 = 20_000;
/// The names that come each second; each goes after a second.
const COMING: u32 = 200;
/// Steps of five names: a wake-up for each name would cost more than the name.
const STEP: u32 = 5;
const ROUND: Duration = Duration::from_secs(20);
/// The time in which each name was asked for at each thread of the server.
const WARM_UP: Duration = Duration::from_secs(3);

pub fn run(results: &mut Results) {
    let fed = FedServer::start(PRESENT);
    let mut questions: Vec<Vec<u8>> = (0..PRESENT).map(link_question).collect();
    let absent = |number: usize| question(&format!("absent-{number}.{}.lb.internal", namespace(number)));
    questions.extend((PRESENT..NAMES).map(absent));
    let warm_up = Load::start(fed.address, QUERIES, questions.clone());
    thread::sleep(WARM_UP);
    warm_up.stop();
    let mut table = Table::new(&["2,000 names, a third absent", "answers/s", "lost", "kept, %"]);
    for (name, changes) in [("no other name changes", false), ("200 names a second come and go", true)] {
        eprintln!("kept answers, a round of 20 s: {name}");
        let (load, computed) = round(&fed, &questions, changes);
        let kept = 100.0 * (1.0 - computed as f64 / load.answered as f64);
        let rate = load.answered as f64 / load.seconds;
        let lost = load.sent.saturating_sub(load.answered);
        table.row(name, [format!("{rate:.0}"), lost.to_string(), format!("{kept:.3}")]);
        if changes {
            results.at_most(
                "questions without a kept answer, while 200 names a second come and go",
                100.0 - kept,
                1.0,
                "%",
            );
        }
    }
    results.table("Kept answers", table);
}

/// Asks for the duration of a round. Returns what was answered, and for how many questions no kept answer was current.
fn round(fed: &FedServer, questions: &[Vec<u8>], changes: bool) -> (Outcome, u64) {
    let metrics = fed.metrics.group::<TransportMetrics>().expect("metrics of UDP");
    let before = metrics.udp_computed.get();
    let load = Load::start(fed.address, QUERIES, questions.to_vec());
    let end = Instant::now() + ROUND;
    if changes {
        paced(COMING / STEP, end, |step| {
            let first = NAMES + step as usize * STEP as usize;
            for number in first..first + STEP as usize {
                fed.store.apply(observed(number, 0));
                if let Some(former) = number.checked_sub(COMING as usize).filter(|former| *former >= NAMES) {
                    let key = ServiceKey::new(&namespace(former), &format!("svc-{former}"));
                    fed.store.gone(&key, &format!("uid-{former}"), None, Instant::now());
                    fed.store.forget(&key);
                }
            }
        });
    }
    thread::sleep(end.saturating_duration_since(Instant::now()));
    (load.stop(), metrics.udp_computed.get() - before)
}
