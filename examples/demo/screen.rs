//! The output of the demo, and its recording.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

pub const BOLD: &str = "\x1b[1m";
pub const DIM: &str = "\x1b[2m";
pub const RED: &str = "\x1b[31m";
pub const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

/// Styles of the picture that are hard to read on black (WCAG 2.2 asks for a contrast of 4.5), and their replacements.
const READABLE: [(&str, &str); 2] = [
    (".dimmed { opacity: 0.4; }", ".dimmed { opacity: 0.75; }"),
    (".fg-red { fill: #AA0000 }", ".fg-red { fill: #FF5555 }"),
];

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
        let mut picture = anstyle_svg::Term::new().render_svg(&self.printed);
        for (dark, readable) in READABLE {
            picture = picture.replace(dark, readable);
        }
        std::fs::write(path, picture)
    }
}
