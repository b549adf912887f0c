//! The subset of Go's `text/template` that records need. A template is parsed once, and errors that affect every query
//! are detected then: Go detects an unknown field only when the template runs.
//!
//! The crate gotmpl (0.6.1) isn't used, because it fails the differential test: it accepts an `if` without `end`,
//! ignores the text after a stray `end`, accepts unknown fields, functions and variables, its `printf "%.3d"` writes no
//! zeros, and its errors don't name the failing expression.

mod format;
mod functions;
mod literal;
mod node;
mod parse;
mod pipes;
mod run;
mod value;

use std::fmt;

use node::{Node, write_list};
use parse::Parser;
use run::Runner;
pub(super) use value::{Data, Message, QuestionValue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    nodes: Vec<Node>,
    /// Whether it has `.Meta`.
    pub(super) uses_labels: bool,
    /// Whether it has `.Meta`, `.Remote` or `.Message.Id`.
    pub(super) depends_on_client: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParseError {
    /// The position, in characters from 1.
    pub(super) at: usize,
    pub(super) message: String,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser::new(text);
        match parser.template() {
            Ok(nodes) => {
                let Parser { uses_labels, depends_on_client, .. } = parser;
                Ok(Self { nodes, uses_labels, depends_on_client })
            }
            Err(message) => {
                let before = text.get(..parser.place()).unwrap_or(text);
                Err(ParseError { at: before.chars().count() + 1, message })
            }
        }
    }

    /// Returns the text that the template generates for a query.
    ///
    /// # Errors
    /// Returns the failing expression and the reason.
    pub(super) fn run(&self, data: &Data) -> Result<String, String> {
        Runner::new(data).run(&self.nodes)
    }
}

/// Writes the template in Go's normalized form.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.nodes)
    }
}

#[cfg(test)]
mod tests;
