//! Percentiles, tables, and the comparison with the bounds.

use std::fmt::Write;
use std::time::Instant;

/// Returns the time between two moments in milliseconds; negative if `to` is earlier.
pub fn millis(from: Instant, to: Instant) -> f64 {
    let forth = to.saturating_duration_since(from).as_secs_f64();
    let back = from.saturating_duration_since(to).as_secs_f64();
    (forth - back) * 1000.0
}

/// Sorted values.
pub struct Spread(Vec<f64>);

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// Returns all values of several spreads.
    pub fn pool<'a>(spreads: impl Iterator<Item = &'a Self>) -> Self {
        Self::of(spreads.flat_map(|spread| spread.0.iter().copied()).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the quantile `share`, from 0 to 1.
    pub fn at(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Returns the number of values, p50, p90, p99 and the maximum as table cells.
    pub fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.len().to_string()];
        cells.extend([0.5, 0.9, 0.99, 1.0].map(|share| format!("{:.2}", self.at(share))));
        cells
    }
}

/// A text table. The first column is left-aligned, the others are right-aligned.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }

    pub fn print(&self, title: &str) {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        println!("\n{title}");
        for row in &self.rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ =
                    if at == 0 { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
            }
            println!("{}", line.trim_end());
        }
    }
}

/// The results of the comparisons with bounds. Each result is printed at once, and again at the end.
#[derive(Default)]
pub struct Verdicts(Vec<String>);

impl Verdicts {
    pub fn at_most(&mut self, what: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value <= bound { "holds" } else { "FALLS SHORT" };
        let line = format!("{verdict:<11}  {what}: {value:.2} {unit}, bound {bound:.2} {unit}");
        println!("{line}");
        self.0.push(line);
    }

    pub fn print(&self) {
        println!("\nBounds");
        for line in &self.0 {
            println!("  {line}");
        }
    }
}
