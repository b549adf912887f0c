//! The Corefile: CoreDNS's language, up to blocks and lines. What the lines mean is the plugins' to say, and
//! [`configuration`](super::server::config) puts the two together.
//!
//! Beside CoreDNS's own it knows `{$VAR:default}`, and arguments of snippets: `{args.0}` is the first word
//! behind the name in `import name word…`.

mod address;
pub(crate) mod arguments;
mod env;
mod os_sources;
mod parser;
pub mod resolv_conf;
mod tokens;

use std::fmt;

pub use address::{Address, Scheme, addresses, zones};
pub use parser::{BlockSource, Directive, FileSources, parse};
pub use tokens::{Position, Token, tokenize};

/// What is wrong in a Corefile, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorefileError {
    /// Where.
    pub place: Position,
    /// What, and what would be right.
    pub message: String,
}

impl fmt::Display for CorefileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { file, line, column } = &self.place;
        write!(f, "{}:{line}:{column}: {}", file.display(), self.message)
    }
}

impl std::error::Error for CorefileError {}

impl Position {
    /// Returns an error at this place.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        CorefileError { place: self.clone(), message: message.into() }
    }
}
