//! The syntax of the Corefile, up to blocks and directives. [`config`](super::server::config) interprets the directives
//! with the plugins.
//!
//! Extensions of CoreDNS's syntax: `{$VAR:default}`, and arguments of snippets: `{args.0}` is the first token after the
//! name in `import name token…`.

mod address;
pub(crate) mod arguments;
mod env;
mod os_sources;
mod parser;
pub mod resolv_conf;
mod tokens;

use std::fmt;

pub use address::{Address, Scheme, addresses, zones};
pub use parser::{BlockSource, Directive, FileSources, Snippets, parse, parse_with_snippets};
pub use tokens::{Position, Token, tokenize};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorefileError {
    pub position: Position,
    /// What is wrong, and a valid alternative.
    pub message: String,
}

impl fmt::Display for CorefileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { file, line, column } = &self.position;
        write!(f, "{}:", file.display())?;
        if *line > 0 {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl std::error::Error for CorefileError {}

impl Position {
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        CorefileError { position: self.clone(), message: message.into() }
    }
}
