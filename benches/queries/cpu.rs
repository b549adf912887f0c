//! What a server costs, and what else its core did meanwhile.

use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::ClockId;
use nix::unistd::Pid;

/// The core of the servers that are measured.
pub const SERVER: usize = 0;
/// The core of all that asks them, and of all that they ask.
pub const LOAD: usize = 1;

/// Has this thread, or a thread with that id, and what it starts run on one core.
pub fn pin(thread: Pid, core: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    sched_setaffinity(thread, &set)
}

/// Has all threads of a process run on one core: Knot moves its own elsewhere once it is started.
pub fn pin_threads(pid: u32, core: usize) -> io::Result<()> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = thread?.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        pin(Pid::from_raw(id), core)?;
    }
    Ok(())
}

/// Microseconds that a process and those that it has started have computed so far, in user and system mode. The
/// clock counts in nanoseconds, and threads that have ended are part of it.
pub fn used(pid: u32) -> f64 {
    let clocks = family(pid).into_iter().filter_map(|pid| {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.try_into().ok()?)).ok()?;
        clock.now().ok()
    });
    clocks.map(|time| time.tv_sec() as f64 * 1e6 + time.tv_nsec() as f64 / 1e3).sum()
}

/// Kilobytes that they have in memory.
pub fn resident(pid: u32) -> u64 {
    let sizes = family(pid).into_iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().split(' ').next()?.parse::<u64>().ok()
    });
    sizes.sum()
}

/// A process and all that come from it: NSD is several.
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

/// How long a core has had nothing to do so far.
///
/// The kernel measures that, where it only samples at ticks what a core does: a server that wakes up for each question
/// and sleeps at every tick isn't there.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    idle: Duration,
    since: Instant,
}

impl Core {
    pub fn now(core: usize) -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("/proc is mounted");
        let name = format!("cpu{core} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name)).expect("the core is there");
        // proc(5): user, nice, system, idle, iowait, irq, softirq, steal, in hundredths of a second.
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        Self { idle: Duration::from_millis((ticks[3] + ticks[4] + ticks[7]) * 10), since: Instant::now() }
    }

    /// The share of the time since then in which it computed, for whomever.
    pub fn busy_since(then: Self, core: usize) -> f64 {
        let now = Self::now(core);
        let idle = (now.idle - then.idle).as_secs_f64() / (now.since - then.since).as_secs_f64();
        (1.0 - idle).clamp(0.0, 1.0)
    }
}
