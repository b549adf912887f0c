//! The bounds for lb-linker, relative to the servers that were measured in the same rounds.

use crate::latency::Latencies;
use crate::report::pool;
use crate::rounds::{Measured, Sample};
use crate::servers::Server;
use crate::sets::Set;
use crate::spread::Spread;

/// A round counts for a bound relative to the floor only if the server's mean latency is at most this multiple of the
/// floor's: a server that waits for full batches saves CPU time.
const LATENCY: f64 = 1.2;
/// The number of rounds that the comparison of latencies with Knot needs.
const ROUNDS: usize = 15;

/// A bound on the ratio of CPU time per query at saturation.
struct Bound {
    set: Set,
    server: Server,
    baseline: Server,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    /// Holds only if the upper quartile of the rounds is below the limit, too.
    Below(f64),
    AtLeast(f64),
}

const BOUNDS: [Bound; 27] = {
    use Limit::{AtLeast, AtMost, Below};
    use Server::*;
    const fn bound(set: Set, server: Server, baseline: Server, limit: Limit) -> Bound {
        Bound { set, server, baseline, limit }
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
        bound(Set::Cached, Linker, Dnsdist, AtMost(0.8)),
        bound(Set::Cached, Linker, Unbound, AtMost(0.8)),
        bound(Set::Uncached, Forward, Linker, AtLeast(2.0)),
        bound(Set::Uncached, Linker, Dnsdist, AtMost(1.3)),
        bound(Set::Tcp, Linker, Knot, AtMost(1.0)),
        bound(Set::Tls, File, Linker, AtLeast(2.0)),
        bound(Set::Https, File, Linker, AtLeast(2.0)),
        bound(Set::Zone, Linker, Floor, AtMost(1.10)),
        bound(Set::Zone, Linker, Knot, Below(1.0)),
        bound(Set::Zone, Linker, Nsd, Below(1.0)),
        bound(Set::LargeZone, Linker, Knot, AtMost(1.5)),
        bound(Set::LargeZone, File, Linker, AtLeast(5.0)),
        bound(Set::Cluster, Linker, Floor, AtMost(1.15)),
        bound(Set::Cluster, Kubernetes, Linker, AtLeast(4.0)),
        bound(Set::Cluster, KubernetesCache, Linker, AtLeast(2.5)),
        bound(Set::Search, Kubernetes, Linker, AtLeast(4.0)),
        bound(Set::LargeCluster, Kubernetes, Linker, AtLeast(2.0)),
    ]
};

/// Returns a line for each bound that was measured.
pub fn lines(all: &[Measured]) -> Vec<String> {
    let mut lines: Vec<String> = BOUNDS.iter().filter_map(|bound| bound.line(all)).collect();
    lines.extend(https(all));
    lines.extend(latency(all));
    lines.extend(forwarding_latency(all));
    lines
}

impl Bound {
    fn line(&self, all: &[Measured]) -> Option<String> {
        let measured = all.iter().find(|measured| measured.set == self.set)?;
        let (server, baseline) = (measured.rows.get(&self.server)?, measured.rows.get(&self.baseline)?);
        let rounds: Vec<(&Sample, &Sample)> = server.iter().zip(baseline).collect();
        let undisturbed: Vec<_> =
            rounds.iter().copied().filter(|(of, by)| is_undisturbed(of) && is_undisturbed(by)).collect();
        let counted: Vec<_> =
            undisturbed.iter().copied().filter(|(of, by)| self.answers_without_batching(of, by)).collect();
        let ratios = |rounds: &[(&Sample, &Sample)]| {
            Spread::of(rounds.iter().map(|(of, by)| of.saturated.cpu / by.saturated.cpu))
        };
        // Without counted rounds, report the ratio of the undisturbed rounds, or of all rounds.
        let spread = ratios(&counted).or_else(|| ratios(&undisturbed)).or_else(|| ratios(&rounds))?;
        let verdict = match (undisturbed.is_empty(), counted.is_empty()) {
            (true, _) => "not known",
            (false, true) => "falls short",
            (false, false) => self.limit.verdict(spread),
        };
        let (of, by, set) = (self.server.name(), self.baseline.name(), self.set.name());
        Some(format!(
            "{verdict}: {set}: CPU per query, {of} : {by} = {:.2} ({:.2}-{:.2}), {}; {} of {} rounds undisturbed, {} \
             count",
            spread.median,
            spread.low,
            spread.high,
            self.limit.text(),
            undisturbed.len(),
            rounds.len(),
            counted.len(),
        ))
    }

    /// Whether the server hasn't delayed answers to fill batches.
    fn answers_without_batching(&self, of: &Sample, by: &Sample) -> bool {
        self.baseline != Server::Floor || of.saturated.mean <= LATENCY * by.saturated.mean
    }
}

fn is_undisturbed(sample: &Sample) -> bool {
    !sample.saturated.is_disturbed()
}

impl Limit {
    fn text(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit:.2}"),
            Self::Below(limit) => format!("below {limit:.2}"),
            Self::AtLeast(limit) => format!("at least {limit:.2}"),
        }
    }

    /// Compares the median with the limit; for [`Limit::Below`] the upper quartile. If only the quartile on the better
    /// side reaches the limit, the verdict is "within the spread".
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

/// Returns the line about the CPU of DNS over HTTPS, compared with that of DNS over TLS.
fn https(all: &[Measured]) -> Option<String> {
    let cpu = |set: Set| {
        let rows = &all.iter().find(|measured| measured.set == set)?.rows;
        let samples = rows.get(&Server::Linker)?.iter().filter(|sample| is_undisturbed(sample));
        Spread::of(samples.map(|sample| sample.saturated.cpu)).map(|cpu| cpu.median)
    };
    let (https, tls) = (cpu(Set::Https)?, cpu(Set::Tls)?);
    let verdict = if https <= 3.0 * tls { "holds" } else { "falls short" };
    Some(format!(
        "{verdict}: CPU per query, lb-linker's https : tls = {:.2} ({https:.2} µs : {tls:.2} µs), at most 3.00",
        https / tls
    ))
}

/// Returns the lines about latency below saturation, compared with Knot.
fn latency(all: &[Measured]) -> Vec<String> {
    let rows = all.iter().find(|measured| measured.set == Set::Cname).map(|measured| &measured.rows);
    let row = |server: Server| rows.and_then(|rows| rows.get(&server));
    let (Some(ours), Some(theirs)) = (row(Server::Linker), row(Server::Knot)) else { return Vec::new() };
    let rounds: Vec<(&Latencies, &Latencies)> =
        ours.iter().zip(theirs).filter_map(|pair| undisturbed_latencies(pair)).collect();
    let all = (pool(rounds.iter().map(|(our, _)| *our)), pool(rounds.iter().map(|(_, their)| *their)));
    let (Some(our), Some(their)) = all else {
        return vec!["not known: cname at 20,000 q/s: other processes disturbed every round".to_owned()];
    };
    let word = |holds: bool| if holds { "holds" } else { "falls short" };
    let ratio = our.median() / their.median();
    let points = (our.slow() - their.slow()) * 100.0;
    let needed = if rounds.len() < ROUNDS { format!(" ({ROUNDS} are needed)") } else { String::new() };
    let pooled = format!("{} of {} rounds pooled{needed}", rounds.len(), ours.len());
    vec![
        format!(
            "{}: cname at 20,000 q/s: p50, lb-linker : Knot = {ratio:.2} ({:.1} µs : {:.1} µs), at most 1.10; {pooled}",
            word(ratio <= 1.1),
            our.median(),
            their.median(),
        ),
        format!(
            "{}: cname at 20,000 q/s: over 1 ms, lb-linker - Knot = {points:+.2} points ({:.2} % - {:.2} %), at most \
             +0.50; {pooled}",
            word(points <= 0.5),
            our.slow() * 100.0,
            their.slow() * 100.0,
        ),
    ]
}

/// Returns the lines about the latency of forwarded queries, compared with dnsdist.
fn forwarding_latency(all: &[Measured]) -> Vec<String> {
    let Some(measured) = all.iter().find(|measured| measured.set == Set::Uncached) else { return Vec::new() };
    let row = |server: Server| measured.rows.get(&server);
    let (Some(ours), Some(theirs)) = (row(Server::Linker), row(Server::Dnsdist)) else { return Vec::new() };
    let rounds: Vec<_> = ours.iter().zip(theirs).filter_map(undisturbed_latencies).collect();
    let all = (pool(rounds.iter().map(|(our, _)| *our)), pool(rounds.iter().map(|(_, their)| *their)));
    let rate = Set::Uncached.rate();
    let (Some(our), Some(their)) = all else {
        return vec![format!("not known: uncached at {rate} q/s: other processes disturbed every round")];
    };
    let line = |name: &str, part: f64| {
        let (our, their) = (our.quantile(part), their.quantile(part));
        let verdict = if our <= their { "holds" } else { "falls short" };
        format!(
            "{verdict}: uncached at {rate} q/s: {name}, lb-linker : dnsdist = {our:.1} µs : {their:.1} µs, no higher; \
             {} of {} rounds pooled",
            rounds.len(),
            ours.len(),
        )
    };
    vec![line("p50", 0.5), line("p99", 0.99)]
}

/// Returns the latencies of a round in which no other process disturbed the two servers.
fn undisturbed_latencies<'a>(
    (our, their): (&'a Sample, &'a Sample),
) -> Option<(&'a Latencies, &'a Latencies)> {
    let (our, their) = (our.paced.as_ref()?, their.paced.as_ref()?);
    (!our.0.is_disturbed() && !their.0.is_disturbed()).then_some((&our.1, &their.1))
}
