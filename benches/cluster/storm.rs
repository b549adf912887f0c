//! Many changes per second during many queries: their CPU cost, and the time until they are visible.

use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::dns::change_of;
use crate::figures::{Results, Spread, Table};
use crate::load::{Change, Load, Outcome};
use crate::objects::{link_question, status, status_patch};
use crate::plane::{LINKS, Plane};
use crate::process::Cpu;

pub const QUERIES: u32 = 20_000;
/// The number of links that are queried and changed.
pub const QUERIED_LINKS: usize = 1000;
pub const ROUND: Duration = Duration::from_secs(30);
/// The number of rounds without changes, and of rounds with changes; they alternate.
pub const ROUNDS: usize = 2;
/// Changes per second through the API server, and the number of connections for them.
const CHANGES: u32 = 200;
const CHANGERS: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Quiet,
    Changes,
    /// Changes without queries.
    ChangesOnly,
}

impl Kind {
    /// Returns rounds without and with changes in turns, then a round that measures the cost of changes alone.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::repeat_n([Self::Quiet, Self::Changes], ROUNDS).flatten().chain([Self::ChangesOnly])
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Changes => "changes",
            Self::ChangesOnly => "changes alone",
        }
    }
}

pub struct Round {
    kind: Kind,
    load: Outcome,
    /// The CPU time of the server.
    cpu: Cpu,
    changes: u64,
}

impl Round {
    /// Returns the CPU time in microseconds for each of `count` answers or changes.
    fn cost(&self, count: u64) -> f64 {
        self.cpu.total() * 1e6 / count as f64
    }
}

/// Sends queries for the duration of a round, while `change` makes changes until the given time and sends each of
/// them to its channel. `change` returns the number of changes.
pub fn round(
    server: SocketAddr,
    kind: Kind,
    cpu: impl Fn() -> Cpu,
    change: impl FnOnce(Sender<Change>, Instant) -> u64,
) -> Round {
    let (sender, made) = channel();
    let questions = (0..QUERIED_LINKS).map(link_question).collect();
    // Without queries, no change can be seen.
    let (rate, made) = if kind == Kind::ChangesOnly { (0, channel().1) } else { (QUERIES, made) };
    let load = Load::following(server, rate, questions, made);
    let (before, end) = (cpu(), Instant::now() + ROUND);
    let changes = if kind == Kind::Quiet { 0 } else { change(sender, end) };
    thread::sleep(end.saturating_duration_since(Instant::now()));
    let cpu = cpu().since(&before);
    Round { kind, load: load.stop(), cpu, changes }
}

/// Calls `work` `rate` times per second until `end`, and returns the number of calls.
pub fn paced(rate: u32, end: Instant, mut work: impl FnMut(u64)) -> u64 {
    let since = Instant::now();
    for number in 0.. {
        let due = since + Duration::from_secs_f64(number as f64 / f64::from(rate));
        if due >= end {
            return number;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        work(number);
    }
    0
}

/// Prints the rounds, and compares them with the bounds.
pub fn report(title: &str, rounds: &[Round], results: &mut Results) {
    let mut table = Table::new(&[
        "round",
        "changes/s",
        "answers/s",
        "lost",
        "p50 ms",
        "p99 ms",
        "CPU µs/query",
        "CPU µs/change",
        "seen p50 ms",
        "p99 ms",
        "max ms",
        "never",
    ]);
    for round in rounds {
        let Round { load, .. } = round;
        let rate = |count: u64| format!("{:.0}", count as f64 / ROUND.as_secs_f64());
        let two = |value: f64| if value.is_nan() { String::new() } else { format!("{value:.2}") };
        table.row(
            &format!("{title}: {}", round.kind.name()),
            [
                rate(round.changes),
                rate(load.answered),
                load.sent.saturating_sub(load.answered).to_string(),
                two(load.latency.at(0.5)),
                two(load.latency.at(0.99)),
                if round.kind == Kind::ChangesOnly { String::new() } else { two(round.cost(load.answered)) },
                if round.kind == Kind::ChangesOnly {
                    format!("{:.0}", round.cost(round.changes))
                } else {
                    String::new()
                },
                two(load.seen.at(0.5)),
                two(load.seen.at(0.99)),
                two(load.seen.at(1.0)),
                load.never.to_string(),
            ],
        );
    }
    results.table("Storms", table);
    let of = |kind: Kind| rounds.iter().filter(move |round| round.kind == kind);
    let p99 = |kind, spread: fn(&Outcome) -> &Spread| {
        Spread::pool(of(kind).map(|round| spread(&round.load))).at(0.99)
    };
    let alone = p99(Kind::Quiet, |load| &load.latency);
    let what = format!("{title}: change → answered, p99 (a question in quiet rounds: {alone:.2} ms)");
    results.at_most(&what, p99(Kind::Changes, |load| &load.seen), 20.0, "ms");
}

pub fn run(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    plane.grow_peers(1);
    let linker = plane.synced_linker();
    // Wait until the consequences of earlier changes have come to an end.
    thread::sleep(Duration::from_secs(5));
    let mut rounds = Vec::new();
    // Larger than the change numbers of other parts.
    let mut first = 1_000_000;
    for kind in Kind::all() {
        // Without queries, the CPU time of CoreDNS can be measured at the same time.
        let coredns = (kind == Kind::ChangesOnly).then(|| plane.coredns());
        if coredns.is_some() {
            thread::sleep(Duration::from_secs(5));
        }
        eprintln!("storm through the API server, a round of 30 s: {}", kind.name());
        let writes = linker.writes();
        let theirs = || coredns.as_ref().map_or_else(Cpu::default, |coredns| Cpu::of(coredns.id()));
        let before = theirs();
        let cpu = || Cpu::of(linker.id());
        let round = round(linker.dns, kind, cpu, |made, end| change(plane, first, &made, end));
        let writes = linker.writes() - writes;
        eprintln!("lb-linker made {writes:.0} writes meanwhile");
        if coredns.is_some() {
            let theirs = theirs().since(&before).total() * 1e6 / round.changes as f64;
            let each =
                [format!("{:.0}", round.cost(round.changes)), format!("{writes:.0}"), format!("{theirs:.0}")];
            let mut table = Table::new(&[
                "changes without queries",
                "lb-linker, CPU µs",
                "its writes",
                "CoreDNS, CPU µs",
            ]);
            table.row(&round.changes.to_string(), each);
            results.table("The cost of a change, beside CoreDNS's `kubernetes`, which writes nothing", table);
        }
        rounds.push(round);
        first += 1_000_000;
    }
    report("200 changes a second through the API server", &rounds, results);
}

/// Changes one link after the other, and sends each change to `made` when the benchmark's own watch reports it.
/// lb-linker gets the event at about the same time.
fn change(plane: &Plane, first: u64, made: &Sender<Change>, end: Instant) -> u64 {
    let watch = plane.access.watch("spec.type=LoadBalancer");
    thread::scope(|scope| {
        let changers: Vec<_> = (0..CHANGERS)
            .map(|changer| {
                scope.spawn(move || {
                    let mut api = plane.access.connect();
                    // Spread the connections' changes evenly over time.
                    thread::sleep(Duration::from_secs(1) * changer / CHANGES);
                    paced(CHANGES / CHANGERS, end, |number| {
                        let number = number * u64::from(CHANGERS) + u64::from(changer);
                        let link = number as usize % QUERIED_LINKS;
                        api.must("PATCH", &status(link), &status_patch(first + number, link));
                    })
                })
            })
            .collect();
        let tell = |timeout: Duration| {
            let Ok(seen) = watch.seen.recv_timeout(timeout) else { return false };
            if let Some(change) = change_of(&seen.target).filter(|change| *change >= first) {
                let question = link_question((change - first) as usize % QUERIED_LINKS);
                // Sending fails when the round is over.
                let _ = made.send(Change { at: seen.at, change, question });
            }
            true
        };
        // Waits for the changers, not for `end`: a slow API server delays them.
        while !changers.iter().all(|changer| changer.is_finished()) {
            tell(Duration::from_millis(50));
        }
        while tell(Duration::from_millis(200)) {}
        changers.into_iter().map(|changer| changer.join().expect("the API server takes changes")).sum()
    })
}
