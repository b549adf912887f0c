//! Percentiles, tables, and the comparison with the bounds.

use std::time::Instant;

use crate::page;

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

/// A table. The first column is left-aligned, the others are right-aligned.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
}

/// Tables, and comparisons with bounds. [`Results::text`] has all of them; each comparison is printed at once, too.
#[derive(Default)]
pub struct Results {
    /// With their titles.
    tables: Vec<(String, Table)>,
    verdicts: String,
}

impl Results {
    /// Adds a table, or its rows to the table that has the title already.
    pub fn table(&mut self, title: &str, table: Table) {
        match self.tables.iter_mut().find(|(known, _)| known == title) {
            Some((_, known)) => known.rows.extend(table.rows),
            None => self.tables.push((title.to_owned(), table)),
        }
    }

    pub fn at_most(&mut self, what: &str, value: f64, bound: f64, unit: &str) {
        let verdict = if value <= bound { "holds" } else { "falls short" };
        let line = format!("- {verdict}: {what}: {value:.2} {unit}, at most {bound:.2} {unit}\n");
        eprint!("{line}");
        self.verdicts += &line;
    }

    /// Returns all of it as Markdown.
    pub fn text(&self) -> String {
        let text = |(title, table): &(String, Table)| {
            let head: Vec<&str> = table.head.iter().map(String::as_str).collect();
            format!("{title}:\n\n{}\n\n", page::table(&head, table.rows.iter().cloned()).trim_end())
        };
        let tables: String = self.tables.iter().map(text).collect();
        format!("{tables}### Bounds of the cluster\n\n{}", self.verdicts)
    }
}
