//! The resources of a process, minute by minute.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::harness::linker::get;
use crate::model::disturbed::load::Shared;

/// The minute with which the end of the run is compared. Caches are full by then.
const BASE: usize = 10;

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The resident memory in KiB.
    memory: usize,
    /// The anonymous part of the resident memory in KiB. Pages of the program's file aren't part of it: they become
    /// resident when code runs for the first time.
    anonymous: usize,
    files: usize,
    threads: usize,
    tasks: usize,
}

impl Sample {
    fn of(pid: u32, metrics: SocketAddr) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap().trim().trim_end_matches(" kB").parse::<usize>().unwrap()
        };
        let (_, page) = get(metrics, "/metrics");
        let tasks = page.lines().filter_map(|line| line.strip_prefix("lb_linker_tasks{")?.rsplit(' ').next());
        Self {
            memory: field("VmRSS"),
            anonymous: field("RssAnon"),
            files: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: field("Threads"),
            tasks: tasks.filter_map(|number| number.parse::<f64>().ok()).sum::<f64>() as usize,
        }
    }
}

/// Whether the resources stay within the limits, and the measured values as text.
pub struct Verdict {
    pub holds: bool,
    pub text: String,
}

/// Measures a process each minute until the load stops. Prints a line for each minute if `prints`.
pub fn start(shared: &Arc<Shared>, pid: u32, metrics: SocketAddr, prints: bool) -> JoinHandle<Verdict> {
    let shared = Arc::clone(shared);
    let measure = move || {
        let (begun, mut samples) = (Instant::now(), Vec::new());
        loop {
            let next = Duration::from_secs(60 * (samples.len() as u64 + 1));
            while begun.elapsed() < next {
                if shared.stop.load(Ordering::Relaxed) {
                    return judge(&samples, Sample::of(pid, metrics));
                }
                thread::sleep(Duration::from_millis(100));
            }
            let sample = Sample::of(pid, metrics);
            samples.push(sample);
            let Sample { memory, anonymous, files, threads, tasks } = sample;
            let count = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed);
            if prints {
                println!(
                    "soak: minute {:3}: {:8} queries, {} wrong, {} lost, {} without an address; \
                     {memory} KiB resident ({anonymous} anonymous), {files} files, {threads} threads, {tasks} tasks",
                    samples.len(),
                    count(&shared.asked),
                    count(&shared.wrong),
                    count(&shared.lost),
                    count(&shared.unresolved)
                );
            }
        }
    };
    Builder::new().name("resources".to_owned()).spawn(measure).unwrap()
}

/// Compares the end with minute 10: the resident memory at the end, and the medians of open files, threads and tasks
/// over the last five minutes with those of minutes 6 to 10. A median, because an outage of the upstream, with its open
/// look-ups, falls into one or two samples, and a leak into each. A short run isn't judged.
fn judge(samples: &[Sample], last: Sample) -> Verdict {
    if samples.len() < BASE + 5 {
        return Verdict { holds: true, text: format!("too short to compare resources: {last:?}") };
    }
    let median = |samples: &[Sample], field: fn(&Sample) -> usize| {
        let mut values: Vec<_> = samples.iter().map(field).collect();
        values.sort_unstable();
        values[values.len() / 2] as f64
    };
    let (early, late) = (&samples[BASE - 5..BASE], &samples[samples.len() - 5..]);
    let memory = last.memory as f64 / samples[BASE - 1].memory as f64;
    let mut holds = memory <= 1.1;
    let mut text = format!(
        "resident memory {} KiB at minute {BASE}, {} KiB at the end: {memory:.2} times (at most 1.10); of it anonymous \
         {} and {} KiB",
        samples[BASE - 1].memory,
        last.memory,
        samples[BASE - 1].anonymous,
        last.anonymous
    );
    for name in ["open files", "threads", "tasks"] {
        let field = match name {
            "open files" => |sample: &Sample| sample.files,
            "threads" => |sample: &Sample| sample.threads,
            _ => |sample: &Sample| sample.tasks,
        };
        let (early, late) = (median(early, field), median(late, field));
        let most = early * 1.1 + 5.0;
        holds &= late <= most;
        text += &format!("; {name} {early} in minutes 6 to 10, {late} in the last 5 (at most {most:.1})");
    }
    Verdict { holds, text }
}
