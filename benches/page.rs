//! The measured parts of docs/performance.md, shared by the benchmarks.

use std::fs;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");

/// Whether BENCH_WRITE asks for [`write`].
pub fn is_written() -> bool {
    std::env::var("BENCH_WRITE").is_ok_and(|value| !value.is_empty() && value != "0")
}

/// Replaces the text between the marks of a part.
///
/// # Errors
/// If the page can't be read or written, or has no such marks.
pub fn write(part: &str, text: &str) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let (begin, end) = (format!("<!-- measured: {part} -->\n"), format!("<!-- end of {part} -->\n"));
    let missing = || format!("{PAGE}: the marks of the part {part} are missing");
    let (before, rest) = page.split_once(&begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
    fs::write(PAGE, format!("{before}{begin}\n{text}\n{end}{after}"))
        .map_err(|error| format!("{PAGE}: {error}"))
}

/// Returns a paragraph about the day, the machine, lb-linker's commit, and other versions.
pub fn measured_with(versions: impl IntoIterator<Item = String>) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = said(
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    let ours = format!("lb-linker at {}", commit.lines().next().unwrap_or("an unknown commit"));
    let versions: Vec<String> = std::iter::once(ours).chain(versions).collect();
    format!(
        "Measured on {}, on {} ({cores} cores), Linux {}: {}.\n",
        jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date(),
        model.map_or("an unknown processor", |(_, model)| model),
        kernel.trim(),
        versions.join(", "),
    )
}

/// Returns what a program has printed, its errors last; nothing if it can't be run.
pub fn said(command: &mut Command) -> String {
    let Ok(output) = command.output() else { return String::new() };
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
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
