//! # Name
//!
//! *log* - logs queries and their answers.
//!
//! # Description
//!
//! Each query that this block answers is a line on standard output, in CoreDNS's format, so that parsers of it work.
//! Look-ups that lb-linker makes itself, of the target of a link for instance, are separate lines, as in CoreDNS.
//! Logging never blocks a query: lines that standard output doesn't accept in time are dropped and counted.
//!
//! ```text
//! [INFO] 10.0.0.1:5353 - 1234 "A IN example.org. udp 41 false 4096" NOERROR qr,aa,rd,ra 106 0.000307024s
//! ```
//!
//! With `--log-format json` each line is an object with `time`, `level`, the whole line as `message`, and a field for
//! each placeholder of the format, by its name: `"name":"example.org."`, `"id":1234`, `"do":false`,
//! `"duration":0.000307024`. An IPv6 address has no brackets in JSON, and a missing value is `null`.
//!
//! Differences from CoreDNS: the flag `tc` is shown if the client really gets less than the whole answer. If *forward*
//! answers without *cache*, `{rsize}` doesn't include the upstream's OPT record. The reserved bit `z` of answers is
//! never shown, because it is never sent.
//!
//! # Syntax
//!
//! Syntax: `log [NAMES...] [FORMAT]`, with the option `class CLASSES...`.
//!
//! **NAMES** are logged with all names below them; all names by default. **FORMAT** has to follow a name:
//! `log . FORMAT`. The plugin may be repeated: only the first line with a matching name counts. `class` selects the
//! answers that are logged: `success` (data, a delegation, or an empty NOERROR without an SOA record), `denial`
//! (NXDOMAIN, or NOERROR with an SOA record, both without records in the answer section), `error` (everything else,
//! such as SERVFAIL, REFUSED, an answer with expired signatures, or none), or `all`, the default.
//!
//! | placeholder | stands for (other text is written unchanged) |
//! |---|---|
//! | `{type}`, `{name}`, `{class}` | the question; the name in lower case |
//! | `{proto}` | `udp` or `tcp`; TLS is `tcp`, too |
//! | `{size}`, `{rsize}` | the size of the query in bytes, and of the whole answer without name compression |
//! | `{remote}`, `{port}`, `{local}` | the client's address (IPv6 in brackets) and port, and the local address that received the query |
//! | `{>id}`, `{>opcode}` | the ID and the opcode of the query, as numbers |
//! | `{>do}` | whether the client wants DNSSEC records, `true` or `false` |
//! | `{>bufsize}` | the maximum size of a UDP answer that the client accepts, 512 without EDNS; 65535 by TCP |
//! | `{rcode}`, `{>rflags}` | the response code by name, and the flags of the answer, such as `qr,aa,rd`; `-` without an answer |
//! | `{duration}` | the duration of the query in seconds |
//! | `{common}`, the default | `{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" {rcode} {>rflags} {rsize} {duration}` |
//! | `{/LABEL}` | a label of the plugin *metadata*; `-` if it isn't known |
//! | `{combined}` | the same, followed by `"{>opcode}"` |
//!
//! For example, `log example.org "{remote} {type} {name} {rcode} {duration}"` with `class denial error`.

mod class;
pub(super) mod format;

use async_trait::async_trait;
use hickory_proto::op::Metadata;
use tokio::time::Instant;

use super::metadata::missing_for;
use super::setup::{BlockBuilder, Setup};
use crate::dns::chain::labels;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::presentation::lower_name_text;
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::query_log::{Level, QueryLog};
use class::Class;
use format::{Format, LogEntry};

const NAME: &str = "log";
const OPTIONS: [&str; 1] = ["class"];
const CLASSES: &str = "success, denial, error, all";

#[derive(Debug)]
struct LogPlugin {
    rules: Vec<LogRule>,
    lines: QueryLog,
}

#[derive(Debug)]
struct LogRule {
    names: ZoneSet,
    format: Format,
    classes: Vec<Class>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let (lines, block) = (setup.lines, setup.block);
    let rules = lines.iter().map(|line| rule(line, block, setup.builder)).collect::<Result<_, _>>()?;
    let lines = setup.context.query_log.clone();
    setup.add_reusable(LogPlugin { rules, lines });
    Ok(())
}

fn rule(line: &Directive, block: &[Directive], builder: &mut BlockBuilder) -> Result<LogRule, CorefileError> {
    let (names, format) = match line.arguments() {
        [only] if only.text.contains('{') => {
            return Err(only.error(format!("a format needs a name before it: log . {:?}", only.text)));
        }
        [names @ .., format] if format.text.contains('{') => (names, Some(format)),
        names => (names, None),
    };
    let format = match format {
        None => Format::common(),
        Some(word) => parse_format(word, block, builder),
    };
    Ok(LogRule { names: zones_or_all(names)?, format, classes: classes(line)? })
}

/// Parses a format, and warns of labels that never have a value in the block.
pub(super) fn parse_format(word: &Token, block: &[Directive], builder: &mut BlockBuilder) -> Format {
    let format = Format::parse(&word.text);
    let has_metadata = !builder.labeled.all().is_empty();
    let warning = format
        .metadata()
        .find_map(|label| labels::warning(label, has_metadata, |label| missing_for(label, block)));
    builder.warnings.extend(warning.map(|warning| word.error(warning)));
    format
}

fn classes(line: &Directive) -> Result<Vec<Class>, CorefileError> {
    let mut classes = Vec::new();
    for option in line.options() {
        option.no_block()?;
        if option.name() != "class" {
            return Err(option.unknown(NAME, &OPTIONS));
        }
        for word in option.required_arguments(&format!("one or more of {CLASSES}"))? {
            match &*word.text {
                "success" => classes.push(Class::Success),
                "denial" => classes.push(Class::Denial),
                "error" => classes.push(Class::Error),
                "all" => classes.extend(Class::ALL),
                _ => return Err(word.unexpected(&format!("one of {CLASSES}"))),
            }
        }
    }
    Ok(if classes.is_empty() { Class::ALL.to_vec() } else { classes })
}

#[async_trait]
impl Plugin for LogPlugin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.is_check() {
            return next.serve(request).await;
        }
        let Some(rule) = self.rules.iter().find(|rule| rule.names.contains(request.query.name())) else {
            return next.serve(request).await;
        };
        // The log shows the original name, even if a plugin rewrites it.
        let (name, began) = (lower_name_text(request.query.name()), Instant::now());
        let mut outcome = next.serve(request).await;
        let failed = match &outcome {
            Err(PluginError::Error { rcode, .. }) => {
                let mut metadata = Metadata::response_from_request(&request.metadata);
                metadata.response_code = *rcode;
                Some(Reply::new(metadata, ""))
            }
            _ => None,
        };
        let reply = outcome.as_ref().ok().or(failed.as_ref());
        if rule.classes.contains(&Class::of(request, reply)) {
            let seen = LogEntry { request, name: &name, reply, duration: Some(began.elapsed()) };
            self.lines.write(Level::Info, &rule.format.text(&seen), || rule.format.parts(&seen));
            if let Ok(reply) = &mut outcome {
                // Each of these answers has its line.
                reply.validity = None;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
