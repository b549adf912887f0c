//! # Name
//!
//! *view* - limits a block to the queries for which expressions are true, for example to those of a network (split
//! DNS).
//!
//! # Description
//!
//! Blocks may share a zone and a port if their *views* have different names; at most one of them has no *view*. Of the
//! blocks with the longest zone that contains the queried name, the first one in the Corefile answers that has no
//! *view*, or whose expressions are all true. If there is none, the blocks of the next shorter zone are tried. The
//! query is refused if no block is left. A *view* without expressions has all queries. So a block with such a *view*,
//! or without one, comes last; a warning names blocks behind it.
//!
//! Each *view* has a cache of its own. Its name is the label `view` of the metrics, and the label `view/name` of
//! *metadata*, for example `{/view/name}` in a format of *log*.
//!
//! The look-up of a CNAME's target for a client, for example by *file* or *template*, goes through the blocks like a
//! query of this client, but with the target's name and the same type (*dns64* also looks up A, and PTR); such an
//! answer isn't kept if a block for the target has a *view*. Targets of links of *lb_linker* and *k8s_gateway*, which
//! clients share, stay in their *view*: they are looked up in blocks with a *view* of the same name, or in blocks
//! without one; if the links are in a block without a *view*, only in blocks without one. If a target has no such
//! block, it isn't resolved; a warning says so if all blocks for `.` have another *view*. If all blocks of a port have
//! the same *view*, lb-linker's own look-ups go there.
//!
//! A zone transfer comes from the block that has the query; NOTIFY is sent by each block for its own zones. NOTIFY that
//! a server sends for a zone of *secondary* reaches one block alone, to which a query would go: other blocks with
//! this zone find a change when they ask after `refresh`.
//!
//! # Syntax
//!
//! Syntax: `view NAME`, and in braces lines with `expr EXPRESSION`. **EXPRESSION** is a subset of the language of
//! [expr](https://expr-lang.org/docs/language-definition), with 10000 bytes and 64 levels of nesting at most:
//!
//! - strings in `'` or `` ` ``, with escapes such as `\\` and `\u00e9`, but not in `` ` ``; use single quotes, because
//!   the Corefile removes `"`, unless it is written `\"` in a word in quotes; whole numbers such as 53 or 0x35; `true`
//!   and `false`
//! - `==` and `!=` between values of one type, `<`, `>`, `<=` and `>=` between strings or numbers
//! - `&&` or `and`, `||` or `or`, `!` or `not`, `CONDITION ? VALUE : VALUE`, and parentheses
//! - `in` with a list, as in `type() in ['A', 'AAAA']`; `not in` negates it, as `not` does with the words below
//! - `contains`, `startsWith` and `endsWith` between strings; `matches` with a **REGEXP** in quotes, of which a
//!   backslash is written twice
//!
//! | function | value |
//! |---|---|
//! | `client_ip()`, `port()` | the client's address and port, as strings |
//! | `server_ip()`, `server_port()` | the address and port that the query was sent to, as strings |
//! | `name()`, `type()`, `class()` | the question: the name in lower case with a dot at its end, the type such as `AAAA`, and the class such as `IN` |
//! | `proto()` | `udp`, also with QUIC, or `tcp`, also with TLS, HTTPS and gRPC |
//! | `id()`, `opcode()`, `size()` | numbers: the ID, the opcode and the length of the query |
//! | `bufsize()`, `do()` | the size of UDP answers that the client accepts, as a number (65535 with TCP), and whether it wants DNSSEC records, a boolean |
//! | `incidr(ADDRESS, NETWORK)` | whether an address is in a network, such as `'10.0.0.0/8'` |
//! | `metadata(LABEL)` | the value of a label of *metadata* in the block of the *view*; empty if it isn't known |
//!
//! If a value from *metadata* is no address or no network for `incidr`, the query isn't one of the *view*.
//!
//! Differences from CoreDNS: an expression that isn't a boolean is an error, and so is a constant for `incidr` that
//! isn't an address or a network; CoreDNS's *view* then has no queries. Other operators and functions of expr,
//! arithmetic, numbers with a point, maps, `let`, `if`, comments, a pattern of `matches` that isn't a constant, and an
//! empty name of a *view* are rejected, and so are blocks that have a zone, a port and the name of the *view* in
//! common. `client_ip()` has no zone such as `%eth0`. `metadata` knows no label of the blocks before. If several blocks
//! of one zone have a query for a DS record, CoreDNS asks the last one, and lb-linker the first one.
//!
//! # Examples
//!
//! Other addresses for clients in 10.0.0.0/8, and one server for names such as `abc.x.example.com`:
//!
//! ```text
//! example.org {
//!     view office {
//!         expr incidr(client_ip(), '10.0.0.0/8') && name() != 'public.example.org.'
//!     }
//!     file db.example.org.office
//! }
//! example.org {
//!     file db.example.org
//! }
//! . {
//!     view abc {
//!         expr name() matches '^abc\\..*\\.example\\.com\\.$'
//!         expr type() in ['A', 'AAAA']
//!     }
//!     forward . 10.0.0.2
//! }
//! . {
//!     forward . 10.0.0.1
//! }
//! ```

mod condition;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;

use super::setup::Setup;
use crate::dns::chain::labels::{self, LabelSubject};
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::{CorefileError, Directive, Position, Token};
use condition::{Condition, Facts};

const NAME: &str = "view";
const OPTIONS: [&str; 1] = ["expr"];
/// The maximum length of an expression, in bytes.
const MAX_EXPRESSION: usize = 10_000;

#[derive(Debug)]
struct View {
    name: Arc<str>,
    /// All of them have to be true.
    conditions: Vec<Condition>,
}

/// An error in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExpressionError {
    /// The place, in characters from the start of the expression.
    at: usize,
    message: String,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let what = "a name: view NAME";
    let word = line.single_argument(what)?;
    if word.text.is_empty() {
        return Err(word.needs(what));
    }
    let (name, mut conditions, mut warnings) = (word.text.as_str().into(), Vec::new(), Vec::new());
    for option in line.options() {
        option.no_block()?;
        if option.name() != "expr" {
            return Err(option.unknown(NAME, &OPTIONS));
        }
        let (condition, uses_labels) = expression(option)?;
        if uses_labels && setup.builder.labeled.all().is_empty() {
            warnings.push(option.error("metadata() has no effect here: the block has no metadata"));
        }
        conditions.push(condition);
    }
    setup.builder.warnings.extend(warnings);
    setup.builder.has_expressions = !conditions.is_empty();
    setup.add_reusable(View { name, conditions });
    Ok(())
}

/// Returns why the label of `view` is never known in a block.
pub(super) fn missing_for(label: &str, block: &[Directive]) -> Option<&'static str> {
    let is_missing = label == labels::VIEW && !block.iter().any(|line| line.name() == NAME);
    is_missing.then_some("the block has no view")
}

/// Returns the condition of a line, and whether it depends on labels.
fn expression(option: &Directive) -> Result<(Condition, bool), CorefileError> {
    let words = option.required_arguments("an expression such as incidr(client_ip(), '10.0.0.0/8')")?;
    // As CoreDNS reads it.
    let text = words.iter().map(|word| &*word.text).collect::<Vec<_>>().join(" ");
    if text.len() > MAX_EXPRESSION {
        return Err(option.error(format!(
            "an expression has {MAX_EXPRESSION} bytes at most, and this one has {}",
            text.len()
        )));
    }
    parser::parse(&text).map_err(|error| {
        position(words, error.at).unwrap_or_else(|| option.position().clone()).error(error.message)
    })
}

/// Returns the position of a character of the expression that some words make.
fn position(words: &[Token], mut at: usize) -> Option<Position> {
    for word in words {
        let length = word.text.chars().count();
        if at > length {
            at -= length + 1;
            continue;
        }
        let before: String = word.text.chars().take(at).collect();
        let start = &word.position;
        let quote = usize::from(word.is_quoted);
        let (line, column) = match before.rsplit_once('\n') {
            Some((_, last)) => (start.line + before.matches('\n').count(), last.chars().count() + 1),
            None => (start.line, start.column + quote + at),
        };
        return Some(Position { line, column, ..start.clone() });
    }
    None
}

#[async_trait]
impl Plugin for View {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        next.serve(request).await
    }

    fn view(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.name))
    }

    fn admits(&self, request: &Request, label: &dyn Fn(&str) -> Option<String>) -> bool {
        let facts = Facts::new(request, label);
        self.conditions.iter().all(|condition| condition.holds(&facts) == Some(true))
    }

    fn label(&self, label: &str, _subject: &LabelSubject) -> Option<String> {
        (label == labels::VIEW).then(|| self.name.as_ref().to_owned())
    }
}
