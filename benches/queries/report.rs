//! The tables of the results.

use crate::latency::Latencies;
use crate::load::LoadResult;
use crate::page::table;
use crate::rounds::{Measured, Sample};
use crate::servers::Server;
use crate::spread::Spread;

/// Returns the table of a set in aligned Markdown: a column for each load where a figure is of one load only.
pub fn table_of(measured: &Measured) -> String {
    let rate = measured.set.rate();
    let head = [
        "",
        "CPU µs/query",
        "q/s",
        "p50 µs",
        &format!("CPU µs/query at {rate} q/s"),
        "p50 µs",
        "over 1 ms",
        "lost",
        "MB",
    ];
    let rows = measured.rows.iter().map(|(server, samples)| row(*server, samples));
    format!("### {}\n\n{}", measured.set, table(&head, rows))
}

fn row(server: Server, samples: &[Sample]) -> Vec<String> {
    let saturated = || samples.iter().map(|sample| sample.saturated);
    let paced = || samples.iter().filter_map(|sample| Some(sample.paced.as_ref()?.0));
    let crowded = pool(samples.iter().filter_map(|sample| sample.saturated_latencies.as_ref()));
    let pooled = pool(samples.iter().filter_map(|sample| Some(&sample.paced.as_ref()?.1)));
    let median = |latencies: Option<&Latencies>| cell(latencies.map(Latencies::median), 0);
    vec![
        server.name().to_owned(),
        cpu(saturated()),
        cell(Spread::of(saturated().map(|load| load.per_second)).map(|spread| spread.median), 0),
        median(crowded.as_ref()),
        cpu(paced()),
        median(pooled.as_ref()),
        pooled.map_or_else(|| "-".to_owned(), |all| format!("{:.2} %", all.slow() * 100.0)),
        format!("{:.0}", saturated().chain(paced()).map(|load| load.lost).sum::<f64>()),
        cell(Spread::of(samples.iter().map(|sample| sample.resident as f64 / 1024.0)).map(|mb| mb.median), 1),
    ]
}

/// Returns the median and the range of the CPU time per query.
fn cpu(loads: impl Iterator<Item = LoadResult>) -> String {
    Spread::of(loads.map(|load| load.cpu))
        .map_or_else(|| "-".to_owned(), |cpu| format!("{:.2} ({:.2}-{:.2})", cpu.median, cpu.low, cpu.high))
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

pub fn pool<'a>(rounds: impl Iterator<Item = &'a Latencies>) -> Option<Latencies> {
    let mut all: Option<Latencies> = None;
    rounds.for_each(|round| all.get_or_insert_default().extend(round));
    all
}
