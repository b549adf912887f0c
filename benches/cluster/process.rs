//! Memory and CPU time of a process from proc(5).

use std::collections::BTreeMap;
use std::fs;

/// Memory in MB (2^20 bytes).
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub resident: f64,
    pub anonymous: f64,
    pub file: f64,
    /// The peak of `resident`.
    pub peak: f64,
}

pub fn memory(pid: u32) -> Memory {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs");
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = value.and_then(|value| value.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    };
    Memory {
        resident: field("VmRSS"),
        anonymous: field("RssAnon"),
        file: field("RssFile"),
        peak: field("VmHWM"),
    }
}

/// The CPU time (user and system) of each group of threads, in seconds. The threads of a group have the same name
/// except for a number at its end.
#[derive(Clone, Debug, Default)]
pub struct Cpu(BTreeMap<String, f64>);

impl Cpu {
    /// Reads the CPU times from the scheduler, which counts in nanoseconds.
    pub fn of(pid: u32) -> Self {
        let mut groups: BTreeMap<String, f64> = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs").flatten() {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let name =
                read("comm").trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
            let nanos: f64 = read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
            *groups.entry(name).or_default() += nanos / 1e9;
        }
        // The CPU time of ended threads is only in the process's total, which counts in units of 10 ms.
        let alive: f64 = groups.values().sum();
        groups.insert("(ended)".to_owned(), ticks(pid) / 100.0 - alive);
        Self(groups)
    }

    /// Returns the difference from an earlier measurement.
    pub fn since(&self, before: &Self) -> Self {
        let added = |(name, seconds): (&String, &f64)| {
            (name.clone(), seconds - before.0.get(name).copied().unwrap_or(0.0))
        };
        Self(self.0.iter().map(added).collect())
    }

    /// Returns all groups except those with names that begin with `prefix`.
    pub fn without(&self, prefix: &str) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(name, _)| !name.starts_with(prefix))
                .map(|(n, s)| (n.clone(), *s))
                .collect(),
        )
    }

    pub fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

/// Returns `utime` plus `stime` in units of 10 ms: fields 14 and 15 of the file. Field 2 is a name in parentheses,
/// which may have spaces.
fn ticks(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process that runs");
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum()
}
