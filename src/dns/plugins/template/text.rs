//! Templates: as much of Go's `text/template` as records need. A template is parsed once, and whatever would
//! fail for every question alike is found then: Go finds a field that isn't there only when it runs.

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

/// A template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    nodes: Vec<Node>,
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParseError {
    /// The character where, from 1.
    pub(super) at: usize,
    /// What, and what would be right.
    pub(super) message: String,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// At the first place that isn't right.
    pub(super) fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser::new(text);
        match parser.template() {
            Ok(nodes) => Ok(Self { nodes }),
            Err(message) => {
                let before = text.get(..parser.place()).unwrap_or(text);
                Err(ParseError { at: before.chars().count() + 1, message })
            }
        }
    }

    /// Returns what it makes of a question.
    ///
    /// # Errors
    /// If it fails, with the expression that does.
    pub(super) fn run(&self, data: &Data) -> Result<String, String> {
        Runner::new(data).run(&self.nodes)
    }
}

/// As Go writes it, without what makes no difference.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, &self.nodes)
    }
}

#[cfg(test)]
mod tests;
