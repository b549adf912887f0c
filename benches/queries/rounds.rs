//! The rounds: each round measures every server once, so that a phase in which the machine is slow affects all servers.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::cpu::{self, Core};
use crate::dnsperf::{self, Outcome};
use crate::h2load;
use crate::latency::{self, Latencies};
use crate::load::LoadResult;
use crate::servers::{Running, Server};
use crate::sets::{NAMES, Set};

/// The maximum number of attempts at an undisturbed measurement; the least disturbed measurement is kept.
const TRIES: usize = 3;

/// The programs that make the load at saturation.
#[derive(Debug)]
pub struct Tools {
    pub dnsperf: PathBuf,
    /// Without it, DNS over HTTPS isn't measured.
    pub h2load: Option<PathBuf>,
}

impl Tools {
    fn load(&self, set: Set, running: &Running, time: Duration) -> Result<Outcome, String> {
        match &self.h2load {
            Some(h2load) if set == Set::Https => h2load::run(h2load, &running.data, time),
            _ => {
                let encrypted = set.encrypted_scheme().map(|_| running.encrypted);
                dnsperf::run(&self.dnsperf, encrypted.unwrap_or(running.address), &running.data, set, time)
            }
        }
    }
}

/// The measurements of a server in a round.
#[derive(Clone, Debug)]
pub struct Sample {
    pub saturated: LoadResult,
    /// Latencies at saturation.
    pub saturated_latencies: Option<Latencies>,
    /// The cost and the latencies at [`Set::rate`].
    pub paced: Option<(LoadResult, Latencies)>,
    /// Resident memory in kilobytes.
    pub resident: u64,
}

/// All rounds of a set.
#[derive(Debug)]
pub struct Measured {
    pub set: Set,
    /// The samples of each server by round, in the order of the table.
    pub rows: BTreeMap<Server, Vec<Sample>>,
    /// The reasons why servers are missing.
    pub problems: Vec<String>,
}

impl Measured {
    pub fn new(set: Set) -> Self {
        Self { set, rows: BTreeMap::new(), problems: Vec::new() }
    }

    /// Measures running servers. A server that fails is removed together with its earlier samples.
    pub fn run(&mut self, rounds: usize, time: Duration, tools: &Tools, mut running: Vec<Running>) {
        for round in 0..rounds {
            progress(&format!("{}: round {} of {rounds}", self.set.name(), round + 1));
            running.retain(|running| match measure(time, tools, self.set, running) {
                Ok(sample) => {
                    self.rows.entry(running.server).or_default().push(sample);
                    true
                }
                Err(problem) => {
                    self.rows.remove(&running.server);
                    self.leave_out(running.server, &problem);
                    false
                }
            });
            if running.is_empty() {
                break;
            }
            // Begin the next round with another server, so that no server is always the first or the last one.
            running.rotate_left(1);
        }
        progress("");
    }

    pub fn leave_out(&mut self, server: Server, problem: &str) {
        self.problems.push(format!("{} is left out of {}: {problem}", server.name(), self.set.name()));
    }
}

/// Prints the progress; on a terminal, each line replaces the previous line.
fn progress(text: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    } else if !text.is_empty() {
        eprintln!("{text}");
    }
}

fn measure(time: Duration, tools: &Tools, set: Set, running: &Running) -> Result<Sample, String> {
    let text = |error: std::io::Error| error.to_string();
    // Check the answers before each measurement, which also fills the caches.
    let first = &running.questions[..running.questions.len().min(NAMES)];
    Client::new(running.address).map_err(text)?.ask_all(first)?;
    let (saturated, good) = measure_undisturbed(|| {
        let meter = Meter::start(running);
        let outcome = tools.load(set, running, time)?;
        let load = meter.stop(outcome.answered, outcome.mean, outcome.lost);
        Ok((LoadResult { per_second: outcome.per_second, ..load }, outcome.good))
    })?;
    let wanted = first.iter().filter(|question| !question.is_absent()).count() as f64 / first.len() as f64;
    if (good - wanted).abs() > 0.01 {
        return Err(format!(
            "{:.1} % of the answers are NOERROR, but {:.1} % should be",
            good * 100.0,
            wanted * 100.0
        ));
    }
    let resident = cpu::resident(running.process.id());
    if set.is_connected() {
        return Ok(Sample { saturated, saturated_latencies: None, paced: None, resident });
    }
    let crowded = latency::saturated(running.address, &running.questions, time / 4).map_err(text)?;
    let paced = measure_undisturbed(|| {
        let meter = Meter::start(running);
        let paced = latency::paced(running.address, &running.questions, set.rate(), time).map_err(text)?;
        let load = meter.stop(paced.each.len() as f64, paced.mean(), paced.lost as f64);
        Ok((LoadResult { wanted: Some(set.rate()), ..load }, paced))
    })?;
    Ok(Sample { saturated, saturated_latencies: Some(crowded), paced: Some(paced), resident })
}

/// Measures until a measurement is undisturbed, at most [`TRIES`] times.
fn measure_undisturbed<T>(
    measure: impl Fn() -> Result<(LoadResult, T), String>,
) -> Result<(LoadResult, T), String> {
    let mut best = measure()?;
    for _ in 1..TRIES {
        if !best.0.is_disturbed() {
            break;
        }
        let again = measure()?;
        if !again.0.is_disturbed() || again.0.other_processes < best.0.other_processes {
            best = again;
        }
    }
    Ok(best)
}

/// Measures the CPU time of a server and of its core, from the readings at the start.
struct Meter {
    pid: u32,
    used: f64,
    core: Core,
    since: Instant,
}

impl Meter {
    fn start(running: &Running) -> Self {
        let pid = running.process.id();
        Self { pid, used: cpu::used(pid), core: Core::now(cpu::SERVER), since: Instant::now() }
    }

    fn stop(self, answered: f64, mean: f64, lost: f64) -> LoadResult {
        let used = cpu::used(self.pid) - self.used;
        let seconds = self.since.elapsed().as_secs_f64();
        let own = used / 1e6 / seconds;
        let core = Core::shares_since(self.core, cpu::SERVER);
        LoadResult {
            cpu: used / answered,
            own,
            other_processes: core.other_processes(own),
            per_second: answered / seconds,
            mean,
            answered,
            lost,
            wanted: None,
        }
    }
}
