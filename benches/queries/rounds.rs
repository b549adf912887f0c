//! The rounds: in each of them every server once, so that what slows the machine slows all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::client::Client;
use crate::cpu::{self, Core};
use crate::dnsperf;
use crate::plan::Plan;
use crate::servers::{Running, Server};
use crate::sets::{NAMES, Set};

/// What one server did in one round.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Microseconds of CPU per query.
    pub cpu: f64,
    pub busy: f64,
    pub per_second: f64,
    pub mean: f64,
    pub resident: f64,
    pub lost: f64,
}

/// All rounds of a set.
pub struct Measured {
    pub set: Set,
    /// In the order of the table, by round.
    pub rows: BTreeMap<Server, Vec<Sample>>,
}

pub fn run(plan: &Plan, dnsperf: &Path, set: Set, mut running: Vec<Running>) -> Result<Measured, String> {
    let mut rows = BTreeMap::<Server, Vec<Sample>>::new();
    for round in 0..plan.rounds {
        eprint!("\r\x1b[K{}: round {} of {}", set.name(), round + 1, plan.rounds);
        // Nobody always comes after the same one.
        running.rotate_left(1);
        for running in &running {
            let sample = measure(plan.time, dnsperf, set, running);
            let sample = sample.map_err(|problem| format!("\n{}: {problem}", running.server.name()))?;
            rows.entry(running.server).or_default().push(sample);
        }
    }
    eprint!("\r\x1b[K");
    Ok(Measured { set, rows })
}

fn measure(time: Duration, dnsperf: &Path, set: Set, running: &Running) -> Result<Sample, String> {
    // The answers are looked at each time, and what is to be cached is.
    let first = &running.questions[..running.questions.len().min(NAMES)];
    let client = Client::new(running.address).map_err(|error| error.to_string())?;
    client.ask_all(first)?;
    let (core, used) = (Core::now(cpu::SERVER), cpu::used(running.process.id()));
    let outcome = dnsperf::run(dnsperf, running.address, &running.data, set == Set::Tcp, time)?;
    let used = cpu::used(running.process.id()) - used;
    let good = first.iter().filter(|question| !question.is_absent()).count() as f64 / first.len() as f64;
    if (outcome.good - good).abs() > 0.01 {
        return Err(format!(
            "{:.1} % are NOERROR, and {:.1} % should be",
            outcome.good * 100.0,
            good * 100.0
        ));
    }
    Ok(Sample {
        cpu: used / outcome.answered,
        busy: Core::busy_since(core, cpu::SERVER),
        per_second: outcome.per_second,
        mean: outcome.mean,
        resident: cpu::resident(running.process.id()) as f64,
        lost: outcome.lost,
    })
}
