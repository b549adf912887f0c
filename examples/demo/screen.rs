//! The output of the demo: headings, sentences, lb-linker's log, tables.

use std::io::{self, IsTerminal, Write};

/// A row of a table: the first column, and the lines of the second column.
pub type Row = (String, Vec<String>);

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[1;32m";
const PLAIN: &str = "\x1b[0m";

/// Standard output, coloured if it is a terminal.
#[derive(Debug)]
pub struct Screen {
    coloured: bool,
}

impl Screen {
    pub fn new() -> Self {
        let unwanted =
            std::env::var_os("NO_COLOR").is_some() || std::env::var("TERM").is_ok_and(|term| term == "dumb");
        Self { coloured: io::stdout().is_terminal() && !unwanted }
    }

    pub fn heading(&self, text: &str) -> io::Result<()> {
        print(&format!("\n{}\n", self.paint(BOLD, &format!("== {text}"))))
    }

    pub fn say(&self, text: &str) -> io::Result<()> {
        print(&format!("{text}\n"))
    }

    pub fn command(&self, text: &str) -> io::Result<()> {
        print(&format!("  $ {}\n", text.replace('\n', "\n    ")))
    }

    pub fn file(&self, text: &str) -> io::Result<()> {
        let lines: String = text.lines().map(|line| format!("    {line}\n")).collect();
        print(&lines)
    }

    /// Prints a line of lb-linker's log, without its time, to keep the line short.
    pub fn log(&self, line: &str) -> io::Result<()> {
        let event = line.split_once("Z ").map_or(line, |(_, event)| event).trim_start();
        print(&format!("{}\n", self.paint(DIM, &format!("  lb-linker | {event}"))))
    }

    /// Prints a table. Rows that differ from `before` are marked.
    pub fn table(&self, heads: [&str; 2], rows: &[Row], before: Option<&[Row]>) -> io::Result<()> {
        let is_new = |row: &Row| before.is_some_and(|before| !before.contains(row));
        let left = |row: &&Row| !rows.iter().any(|(key, _)| *key == row.0);
        let removed: Vec<Row> = before
            .into_iter()
            .flatten()
            .filter(left)
            .map(|(key, _)| (key.clone(), vec!["(removed)".to_owned()]))
            .collect();
        let width = rows.iter().chain(&removed).map(|(key, _)| key.len()).chain([heads[0].len()]).max();
        let width = width.unwrap_or_default();

        let mut text = format!("    {}\n", self.paint(DIM, &format!("{:width$}  {}", heads[0], heads[1])));
        let marked = rows.iter().map(|row| (row, is_new(row))).chain(removed.iter().map(|row| (row, true)));
        for ((key, lines), new) in marked {
            for (i, line) in lines.iter().enumerate() {
                let (mark, key) =
                    if i == 0 { (if new { "*" } else { " " }, key.as_str()) } else { (" ", "") };
                let row = format!("  {mark} {key:width$}  {line}");
                text += &format!("{}\n", if new { self.paint(GREEN, &row) } else { row });
            }
        }
        print(&text)
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.coloured { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }
}

/// Prints while holding the lock of stdout, so that the text isn't interrupted.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
