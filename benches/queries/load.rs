//! What a measurement says about the server, and about the machine. Pure.

/// The share of the servers' core that other processes may use, and the share of the load that may be missing.
const DISTURBED: f64 = 0.1;
/// The share of the queries that may be lost: at saturation some servers lose a few in 100,000.
const LOST: f64 = 0.0001;
/// A server with this share of its core is at its limit.
const FULL: f64 = 0.9;

/// How a core spent the time of a measurement, as shares of that time.
#[derive(Clone, Copy, Debug)]
pub struct CoreShares {
    /// The measured idle time. The kernel adds some of it late, and more than once: the part with outstanding I/O.
    pub idle: f64,
    /// The busy time that the kernel has sampled at its ticks, which miss processes that run for microseconds.
    pub sampled: f64,
}

impl CoreShares {
    /// Returns the share in which the core was busy; `own` is the measured share of the server.
    pub fn busy(self, own: f64) -> f64 {
        (1.0 - self.idle).clamp(own.min(1.0), 1.0)
    }

    /// Returns the share in which the core was busy with other processes than the server. Builds and the like have long
    /// time slices, so that the ticks don't miss them: idle time that is counted too low isn't their time.
    pub fn other_processes(self, own: f64) -> f64 {
        (self.busy(own) - own).min(self.sampled).max(0.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LoadResult {
    /// Microseconds of CPU per query.
    pub cpu: f64,
    /// The share of the time in which the core was busy with the server.
    pub own: f64,
    /// The share of the time in which the core was busy with other processes.
    pub other_processes: f64,
    pub per_second: f64,
    /// Mean latency in microseconds.
    pub mean: f64,
    pub answered: f64,
    pub lost: f64,
    /// The intended queries per second, if the load had a limit.
    pub wanted: Option<u32>,
}

impl LoadResult {
    /// Whether the measurement says something about the machine instead of the server: other processes used more than
    /// [`DISTURBED`] of the core; or more than this share of a limited load is missing, or more queries than [`LOST`]
    /// are lost, and not because the server was at its limit.
    pub fn is_disturbed(&self) -> bool {
        let at_limit = self.wanted.is_some() && self.own >= FULL;
        let late = self.wanted.is_some_and(|wanted| self.per_second < (1.0 - DISTURBED) * f64::from(wanted));
        let loses = self.lost > LOST * (self.answered + self.lost);
        self.other_processes > DISTURBED || !at_limit && (late || loses)
    }
}
