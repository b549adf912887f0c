//! The bounds: what is asked of lb-linker, measured against what ran beside it in the same rounds.

use crate::report::pooled;
use crate::rounds::{Measured, Sample};
use crate::servers::Server;
use crate::sets::Set;
use crate::spread::Spread;

/// A round counts for a bound by the floor only if the mean latency is no more than so many times the floor's: who
/// waits until a batch is full saves CPU.
const LATENCY: f64 = 1.2;
/// Rounds that the share of slow answers needs.
const ROUNDS: usize = 15;

/// CPU per query at saturation, as a ratio.
struct Bound {
    set: Set,
    of: Server,
    by: Server,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    /// A win counts only if it is larger than the spread.
    Below(f64),
    AtLeast(f64),
}

const BOUNDS: [Bound; 12] = {
    use Limit::{AtLeast, AtMost, Below};
    use Server::*;
    const fn bound(set: Set, of: Server, by: Server, limit: Limit) -> Bound {
        Bound { set, of, by, limit }
    }
    [
        bound(Set::Cname, Linker, Floor, AtMost(1.10)),
        bound(Set::Cname, Linker, Knot, Below(1.0)),
        bound(Set::Cname, Linker, Nsd, Below(1.0)),
        bound(Set::Cname, File, Linker, AtLeast(3.5)),
        bound(Set::Cname, FileBare, Linker, AtLeast(3.5)),
        bound(Set::CnameAnywhere, Linker, Floor, AtMost(1.15)),
        bound(Set::Chase, Linker, Floor, AtMost(1.25)),
        bound(Set::Chase, ForwardCache, Linker, AtLeast(2.0)),
        bound(Set::Cached, Linker, Floor, AtMost(1.25)),
        bound(Set::Cached, ForwardCache, Linker, AtLeast(2.0)),
        bound(Set::Uncached, Forward, Linker, AtLeast(2.0)),
        bound(Set::Tcp, Linker, Knot, AtMost(1.0)),
    ]
};

/// A line for each bound that was measured.
pub fn lines(all: &[Measured]) -> Vec<String> {
    let mut lines: Vec<String> = BOUNDS.iter().filter_map(|bound| bound.line(all)).collect();
    lines.extend(latency(all));
    lines
}

impl Bound {
    fn line(&self, all: &[Measured]) -> Option<String> {
        let measured = all.iter().find(|measured| measured.set == self.set)?;
        let (of, by) = (measured.rows.get(&self.of)?, measured.rows.get(&self.by)?);
        let rounds: Vec<(&Sample, &Sample)> = of.iter().zip(by).collect();
        let counted: Vec<_> = rounds.iter().copied().filter(|(of, by)| self.counts(of, by)).collect();
        let ratios = |rounds: &[(&Sample, &Sample)]| {
            Spread::of(rounds.iter().map(|(of, by)| of.saturated.cpu / by.saturated.cpu))
        };
        // Without a round that counts the ratio is still worth knowing.
        let spread = ratios(&counted).or_else(|| ratios(&rounds))?;
        let verdict = if counted.is_empty() { "falls short" } else { self.limit.verdict(spread) };
        let (of, by, set) = (self.of.name(), self.by.name(), self.set.name());
        Some(format!(
            "{verdict}: {set}: CPU per query, {of} : {by} = {:.2} ({:.2}-{:.2}), {}; {} of {} rounds count",
            spread.median,
            spread.low,
            spread.high,
            self.limit.text(),
            counted.len(),
            rounds.len(),
        ))
    }

    fn counts(&self, of: &Sample, by: &Sample) -> bool {
        let patient = self.by == Server::Floor && of.saturated.mean > LATENCY * by.saturated.mean;
        !patient && of.saturated.lost + by.saturated.lost == 0.0
    }
}

impl Limit {
    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit:.2}"),
            Self::Below(limit) => format!("below {limit:.2}"),
            Self::AtLeast(limit) => format!("at least {limit:.2}"),
        }
    }

    /// The median has to hold, and of a win also the middle half of the rounds.
    fn verdict(self, spread: Spread) -> &'static str {
        let (holds, near) = match self {
            Self::AtMost(limit) => (spread.median <= limit, spread.quarter <= limit),
            Self::Below(limit) => (spread.three_quarters < limit, spread.quarter < limit),
            Self::AtLeast(limit) => (spread.median >= limit, spread.three_quarters >= limit),
        };
        match (holds, near) {
            (true, _) => "holds",
            (false, true) => "within the spread",
            (false, false) => "falls short",
        }
    }
}

/// Latency without saturation, beside Knot's.
fn latency(all: &[Measured]) -> Vec<String> {
    let rows = all.iter().find(|measured| measured.set == Set::Cname).map(|measured| &measured.rows);
    let row = |server: Server| rows.and_then(|rows| rows.get(&server));
    let (Some(ours), Some(theirs)) = (row(Server::Linker), row(Server::Knot)) else { return Vec::new() };
    let (Some(our), Some(their)) = (pooled(ours), pooled(theirs)) else { return Vec::new() };
    let word = |holds: bool| if holds { "holds" } else { "falls short" };
    let ratio = our.median() / their.median();
    let points = (our.slow() - their.slow()) * 100.0;
    let few = if ours.len() < ROUNDS { format!(", which needs {ROUNDS}") } else { String::new() };
    let rounds = ours.len();
    vec![
        format!(
            "{}: cname at 20,000 q/s: p50, lb-linker : Knot = {ratio:.2} ({:.0} µs : {:.0} µs), at most 1.10",
            word(ratio <= 1.1),
            our.median(),
            their.median(),
        ),
        format!(
            "{}: cname at 20,000 q/s: share over 1 ms, lb-linker - Knot = {points:+.2} points, at most +0.50; {rounds} \
             rounds pooled{few}",
            word(points <= 0.5),
        ),
    ]
}
