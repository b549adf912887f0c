//! The table of links, in the manner of kubectl.

use super::age::age;
use super::view::{LinkView, ViewState};
use crate::model::excerpt::printable;

/// What the table shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableOptions {
    /// Adds the column of the namespaces.
    pub with_namespace: bool,
    /// Adds all DNS names, the StableNames and the reasons.
    pub wide: bool,
    /// Colours the states for a terminal.
    pub color: bool,
    /// Leaves out the header.
    pub without_header: bool,
}

/// The text of an unknown or missing value, as in kubectl.
const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";
/// The spaces between two columns, as in kubectl.
const GAP: usize = 3;

/// Returns the lines of the table. `now` is in seconds since 1970.
#[must_use]
pub fn table(links: &[LinkView], now: i64, options: TableOptions) -> Vec<String> {
    let mut columns = vec!["SERVICE", "DNS NAME", "TARGET", "EXTERNAL TARGET", "STATE", "AGE"];
    if options.with_namespace {
        columns.insert(0, "NAMESPACE");
    }
    if options.wide {
        columns.extend(["DNS NAMES", "LED BY", "REASON"]);
    }
    // Escape control characters: the links may come from another program that listens at `--admin-listen`.
    let row = |link| columns.iter().map(|column| printable(&cell(link, column, now), &[])).collect();
    let rows: Vec<Vec<String>> = links.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([columns[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &[String], state: Option<ViewState>| {
        let mut line = String::new();
        for (i, (text, width)) in cells.iter().zip(&widths).enumerate() {
            let padding = if i + 1 == cells.len() { 0 } else { width + GAP - text.chars().count() };
            match state.filter(|_| options.color && columns[i] == "STATE") {
                Some(state) => line.push_str(&format!("\x1b[{}m{text}\x1b[0m", color(state))),
                None => line.push_str(text),
            }
            line.push_str(&" ".repeat(padding));
        }
        line
    };
    let header: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    let header = (!options.without_header).then(|| line(&header, None));
    header.into_iter().chain(rows.iter().zip(links).map(|(row, link)| line(row, Some(link.state)))).collect()
}

fn cell(link: &LinkView, column: &str, now: i64) -> String {
    match column {
        "NAMESPACE" => link.namespace.clone(),
        "SERVICE" => link.service.clone(),
        "DNS NAME" => link.dns_names.first().cloned().unwrap_or_else(|| NONE.to_owned()),
        "DNS NAMES" if link.dns_names.is_empty() => NONE.to_owned(),
        "DNS NAMES" => link.dns_names.join(","),
        "TARGET" => link.target.clone().unwrap_or_else(|| {
            let is_pending = link.state == ViewState::Pending;
            if is_pending { "<pending>" } else { NONE }.to_owned()
        }),
        "LED BY" => link.overridden_by.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string),
        "EXTERNAL TARGET" => link.external_target.clone().unwrap_or_else(|| NONE.to_owned()),
        "STATE" => link.state.to_string(),
        "AGE" => link.created.map_or_else(|| UNKNOWN.to_owned(), |created| age(now - created.as_second())),
        _ => link.reason.as_deref().unwrap_or(NONE).to_owned(),
    }
}

/// Returns the terminal's code (SGR) for green, yellow or red.
fn color(state: ViewState) -> u8 {
    match state {
        ViewState::Ready => 32,
        ViewState::Degraded
        | ViewState::Unnamed
        | ViewState::Pending
        | ViewState::Kept
        | ViewState::LeftOut
        | ViewState::Gone
        | ViewState::Removed => 33,
        ViewState::Unresolved | ViewState::Conflict | ViewState::Refused => 31,
    }
}

/// Returns one line for each row, with the cells aligned in columns.
#[must_use]
pub fn columns(rows: &[Vec<&str>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or_default() + GAP).collect();
    let line = |row: &Vec<&str>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
