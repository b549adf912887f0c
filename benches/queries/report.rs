//! The tables and the verdicts.

use crate::rounds::{Measured, Sample};

/// The middle and both ends.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Some(Self { low: values[0], median, high: values[values.len() - 1] })
    }
}

pub fn print(measured: &Measured) {
    println!("\n{}", measured.set);
    println!(
        "  {:26} {:>22} {:>6} {:>9} {:>9} {:>9} {:>5}",
        "", "µs CPU per query", "busy", "q/s", "mean µs", "MB", "lost"
    );
    for (server, samples) in &measured.rows {
        let spread = |value: fn(&Sample) -> f64| Spread::of(samples.iter().map(value)).expect("a round");
        let cpu = spread(|sample| sample.cpu);
        let range = format!("{:.2}-{:.2}", cpu.low, cpu.high);
        println!(
            "  {:26} {:>8.2} {:>13} {:>5.0}% {:>9.0} {:>9.0} {:>9.1} {:>5.0}",
            server.name(),
            cpu.median,
            range,
            spread(|sample| sample.busy).median * 100.0,
            spread(|sample| sample.per_second).median,
            spread(|sample| sample.mean).median,
            spread(|sample| sample.resident).median / 1024.0,
            spread(|sample| sample.lost).high,
        );
    }
}

pub fn verdicts(_all: &[Measured]) {}
