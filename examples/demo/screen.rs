//! The output of the demo, and its recording.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

pub const BOLD: &str = "\x1b[1m";
pub const DIM: &str = "\x1b[2m";
pub const RED: &str = "\x1b[31m";
pub const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

/// Standard output, coloured if it is a terminal or is recorded.
#[derive(Debug)]
pub struct Screen {
    coloured: bool,
    printed: String,
}

impl Screen {
    pub fn new(is_recorded: bool) -> Self {
        let unwanted =
            std::env::var_os("NO_COLOR").is_some() || std::env::var("TERM").is_ok_and(|term| term == "dumb");
        Self { coloured: is_recorded || io::stdout().is_terminal() && !unwanted, printed: String::new() }
    }

    /// Prints a line.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.printed += text;
        self.printed.push('\n');
        let mut out = io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    pub fn paint(&self, colour: &str, text: &str) -> String {
        if self.coloured { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    /// Writes what was printed as a picture.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save_svg(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, anstyle_svg::Term::new().render_svg(&self.printed))
    }
}
