//! CPU time and memory of a server, and the load of its core.

use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::load::CoreShares;

/// The core of the measured servers.
pub const SERVER: usize = 0;
/// The core of the clients and of the upstreams.
pub const LOAD: usize = 1;

/// Pins a thread and its future children to a core. Id 0 is the current thread.
pub fn pin(thread: Pid, core: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(thread, &set)
}

/// Pins all threads of a process to a core. Knot changes the affinity of its threads after its start.
pub fn pin_threads(pid: u32, core: usize) -> io::Result<()> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = thread?.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        pin(Pid::from_raw(id), core)?;
    }
    Ok(())
}

/// Returns the CPU time (user and system) of a process and its descendants in microseconds. The clock has nanosecond
/// resolution and includes ended threads.
pub fn used(pid: u32) -> f64 {
    let clocks = family(pid).into_iter().filter_map(|pid| {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.try_into().ok()?)).ok()?;
        clock.now().ok()
    });
    clocks.map(|time| time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3).sum()
}

/// Returns the resident memory of a process and its descendants in kilobytes.
pub fn resident(pid: u32) -> u64 {
    let sizes = family(pid).into_iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().split(' ').next()?.parse::<u64>().ok()
    });
    sizes.sum()
}

/// Returns a process and its descendants: NSD has several processes.
fn family(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&pid) = pids.get(next) {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    pids
}

/// The idle and the busy time of a core so far.
///
/// The kernel measures idle time, but samples busy time only at ticks: a server that wakes up for each query and
/// sleeps at every tick would count as idle.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    idle: Duration,
    sampled: Duration,
    since: Instant,
}

impl Core {
    pub fn now(core: usize) -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("/proc is mounted");
        let name = format!("cpu{core} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name)).expect("the core exists");
        // proc(5): user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let time =
            |fields: &[usize]| Duration::from_millis(fields.iter().map(|field| ticks[*field] * 10).sum());
        Self { idle: time(&[3, 4, 7]), sampled: time(&[0, 1, 2, 5, 6]), since: Instant::now() }
    }

    /// Returns how the core spent the time since `then`. iowait may decrease (proc(5)).
    pub fn shares_since(then: Self, core: usize) -> CoreShares {
        let now = Self::now(core);
        let share = |now_: Duration, then_: Duration| {
            now_.saturating_sub(then_).as_secs_f64() / (now.since - then.since).as_secs_f64()
        };
        CoreShares { idle: share(now.idle, then.idle), sampled: share(now.sampled, then.sampled) }
    }
}
