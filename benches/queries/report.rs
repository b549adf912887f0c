//! The tables of the results.

use std::io::{IsTerminal, stderr};

use crate::latency::Latencies;
use crate::load::LoadResult;
use crate::rounds::{Measured, Sample};
use crate::servers::Server;
use crate::spread::Spread;

/// Prints the progress; on a terminal, each line replaces the previous line.
pub fn progress(text: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    } else if !text.is_empty() {
        eprintln!("{text}");
    }
}

/// The columns of the tables. Below saturation, memory isn't shown.
const HEAD: [&str; 11] = [
    "",
    "CPU µs/query",
    "range",
    "core busy",
    "by other processes",
    "q/s",
    "mean µs",
    "p50 µs",
    "over 1 ms",
    "lost",
    "MB",
];

/// Returns the tables of a set in aligned Markdown.
pub fn tables(measured: &Measured) -> String {
    let rounds = measured.rows.values().map(Vec::len).max().unwrap_or_default();
    let mut text = format!("### {}\n\nAt saturation, medians of {rounds} rounds:\n\n", measured.set);
    text += &table(&HEAD, measured.rows.iter().map(|(server, samples)| saturated(*server, samples)));
    if measured.rows.values().flatten().any(|sample| sample.paced.is_some()) {
        text += &format!("\nAt {} q/s, latencies of all rounds together:\n\n", measured.set.rate());
        text += &table(
            &HEAD[..HEAD.len() - 1],
            measured.rows.iter().map(|(server, samples)| paced(*server, samples)),
        );
    }
    text
}

fn saturated(server: Server, samples: &[Sample]) -> Vec<String> {
    let loads: Vec<LoadResult> = samples.iter().map(|sample| sample.saturated).collect();
    let crowded = pool(samples.iter().filter_map(|sample| sample.saturated_latencies.as_ref()));
    let mean = Spread::of(loads.iter().map(|load| load.mean)).map(|mean| mean.median);
    let mut cells = load(server, &loads);
    cells.push(whole(mean));
    cells.extend(latencies(crowded.as_ref()));
    cells.push(format!("{:.0}", loads.iter().map(|load| load.lost).sum::<f64>()));
    let resident = Spread::of(samples.iter().map(|sample| sample.resident as f64 / 1024.0));
    cells.push(resident.map_or_else(String::new, |resident| format!("{:.1}", resident.median)));
    cells
}

fn paced(server: Server, samples: &[Sample]) -> Vec<String> {
    let loads: Vec<LoadResult> = samples.iter().filter_map(|sample| Some(sample.paced.as_ref()?.0)).collect();
    let pooled = pool(samples.iter().filter_map(|sample| Some(&sample.paced.as_ref()?.1)));
    let mut cells = load(server, &loads);
    cells.push(whole(pooled.as_ref().map(Latencies::mean)));
    cells.extend(latencies(pooled.as_ref()));
    cells.push(format!("{:.0}", loads.iter().map(|load| load.lost).sum::<f64>()));
    cells
}

pub fn pool<'a>(rounds: impl Iterator<Item = &'a Latencies>) -> Option<Latencies> {
    let mut all: Option<Latencies> = None;
    rounds.for_each(|round| all.get_or_insert_default().extend(round));
    all
}

fn load(server: Server, loads: &[LoadResult]) -> Vec<String> {
    let median = |value: fn(&LoadResult) -> f64| Spread::of(loads.iter().map(value));
    let percent =
        |spread: Option<Spread>| spread.map_or_else(String::new, |s| format!("{:.0} %", s.median * 100.0));
    let cpu = median(|load| load.cpu);
    vec![
        server.name().to_owned(),
        cpu.map_or_else(String::new, |cpu| format!("{:.2}", cpu.median)),
        cpu.map_or_else(String::new, |cpu| format!("{:.2}-{:.2}", cpu.low, cpu.high)),
        percent(median(|load| load.busy)),
        percent(median(|load| load.other_processes)),
        whole(median(|load| load.per_second).map(|spread| spread.median)),
    ]
}

fn latencies(all: Option<&Latencies>) -> [String; 2] {
    let Some(all) = all else { return ["-", "-"].map(str::to_owned) };
    [whole(Some(all.median())), format!("{:.2} %", all.slow() * 100.0)]
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| format!("{value:.0}"))
}

/// Returns a Markdown table. The first column is left-aligned, the others are right-aligned.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| match column {
        0 => "-".repeat(width + 2),
        _ => format!("{}:", "-".repeat(width + 1)),
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    line(&rows[0]) + &rule + &rows[1..].iter().map(line).collect::<String>()
}
