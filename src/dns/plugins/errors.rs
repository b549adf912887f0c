//! # Name
//!
//! *errors* - logs the reasons of failed queries.
//!
//! # Description
//!
//! Each error that a plugin after this one reports with a reason is a line on standard output, in CoreDNS's format:
//! `[ERROR] plugin/errors:`, response code, name and type of the query, and the reason. Frequent errors can be
//! consolidated: counted for a period, and then logged as a single line. What was counted when the block ends, by a
//! reload or with the process, is logged then.
//!
//! With `--log-format json` each line is an object with `time`, `level`, `rcode` (its name), `name`, `type`, `error`,
//! and the whole line as `message`; a line for several errors has `errors` (their number), `pattern` and `seconds`
//! instead. Logging never blocks a query: lines that standard output doesn't accept in time are dropped and counted.
//!
//! Differences from CoreDNS: most reasons are worded differently. Lines of the level `debug` need *debug* in the same
//! block.
//!
//! # Syntax
//!
//! Syntax: `errors [stdout]`; `stdout` is the default output. Option, which may be repeated:
//!
//! - `consolidate DURATION REGEXP [LEVEL] [show_first]`: errors with a reason that **REGEXP** matches, anywhere unless
//!   it has `^` or `$`, are counted; a line reports their number when **DURATION** has passed since the first one. The
//!   first **REGEXP** that matches counts. **LEVEL** is the level of the line: `debug`, `info`, `warning`, or `error`,
//!   the default. With `show_first` the first error is logged at once, with that level, and the number only if there
//!   were more.
//!
//! # Examples
//!
//! ```text
//! . {
//!     errors {
//!         consolidate 5m ".* i/o timeout$" warning show_first
//!         consolidate 30s "^no upstream"
//!     }
//!     forward . 192.0.2.53
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use regex::Regex;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::arguments::{MAX_REGEX, regex_error_text};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::presentation::{lower_name_text, rcode_name, type_text};
use crate::dns::query_log::{JsonField, Level, QueryLog};

const NAME: &str = "errors";
const OPTIONS: [&str; 2] = ["consolidate", "stacktrace"];
const CONSOLIDATE: &str =
    "DURATION REGEXP [LEVEL] [show_first], such as: consolidate 5m \" i/o timeout$\" warning";
const LEVELS: [(&str, Level); 4] =
    [("warning", Level::Warning), ("error", Level::Error), ("info", Level::Info), ("debug", Level::Debug)];

#[derive(Debug)]
struct Errors {
    patterns: Arc<[Pattern]>,
    log: ErrorLog,
}

#[derive(Clone, Debug)]
struct ErrorLog {
    lines: QueryLog,
    debug: bool,
}

/// A `consolidate` option, with the errors that it counts.
#[derive(Debug)]
struct Pattern {
    pattern: Regex,
    period: Duration,
    level: Level,
    show_first: bool,
    /// The number of errors since the last line.
    count: AtomicU64,
    /// Notified by the first error since the last line.
    first: Notify,
    /// Whether the task that waits for the first error has ended.
    ended: AtomicBool,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    if let [place, ..] = line.at_most(1)?
        && place.text != "stdout"
    {
        return Err(place.unexpected("stdout: errors are logged nowhere else"));
    }
    let (mut patterns, mut warnings) = (Vec::new(), Vec::new());
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "consolidate" => patterns.push(pattern(option)?),
            "stacktrace" => {
                option.no_arguments()?;
                warnings.push(option.error(
                    "stacktrace has no effect here: a panic is logged with its place in the source, and \
                     RUST_BACKTRACE=1 in the environment adds the backtrace",
                ));
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    let patterns: Arc<[Pattern]> = patterns.into();
    setup.builder.warnings.append(&mut warnings);
    let log = ErrorLog { lines: setup.context.query_log.clone(), debug: setup.builder.debug };
    if !patterns.is_empty() {
        let (patterns, log) = (Arc::clone(&patterns), log.clone());
        setup.add_task(|_, stop| async move {
            futures::future::join_all(patterns.iter().map(|pattern| pattern.run(&log, &stop))).await;
        });
    }
    setup.add_reusable(Errors { patterns, log });
    Ok(())
}

fn pattern(option: &Directive) -> Result<Pattern, CorefileError> {
    let [period, expression, rest @ ..] = option.at_most(4)? else {
        return Err(option.missing_argument(CONSOLIDATE));
    };
    let period = period.duration()?;
    if expression.text.len() > MAX_REGEX {
        return Err(expression.error(format!(
            "a regular expression has {MAX_REGEX} bytes at most, and this has {}",
            expression.text.len()
        )));
    }
    let pattern = Regex::new(&expression.text).map_err(|error| {
        expression.error(format!("not a regular expression: {}", regex_error_text(&error)))
    })?;
    let (mut level, mut show_first) = (None, false);
    for word in rest {
        match LEVELS.iter().find(|(name, _)| *name == word.text) {
            Some(_) if level.is_some() => {
                return Err(word.error("consolidate has one level, and this is a second"));
            }
            Some(_) if show_first => return Err(word.error("the level has to stand before show_first")),
            Some((_, found)) => level = Some(*found),
            None if word.text == "show_first" => show_first = true,
            None => return Err(word.unexpected("one of warning, error, info, debug, show_first")),
        }
    }
    let (count, first, ended) = Default::default();
    Ok(Pattern { pattern, period, level: level.unwrap_or(Level::Error), show_first, count, first, ended })
}

#[async_trait]
impl Plugin for Errors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let outcome = next.serve(request).await;
        if let Err(PluginError::Error { rcode, why, .. }) = &outcome
            && !why.is_empty()
        {
            self.log_error(request, *rcode, why);
        }
        outcome
    }
}

impl Errors {
    fn log_error(&self, request: &Request, rcode: ResponseCode, why: &str) {
        let pattern = self.patterns.iter().find(|pattern| pattern.pattern.is_match(why));
        if pattern.is_some_and(|pattern| pattern.consolidates(&self.log)) {
            return;
        }
        let level = pattern.map_or(Level::Error, |pattern| pattern.level);
        let (name, qtype) = (lower_name_text(request.query.name()), type_text(request.query.query_type()));
        let text = format!("{} {name} {qtype}: {why}", u16::from(rcode));
        self.log.write(level, &text, || {
            let rcode = rcode_name(rcode).map_or_else(|| u16::from(rcode).into(), Into::into);
            vec![
                ("rcode".into(), rcode),
                ("name".into(), name.as_str().into()),
                ("type".into(), (*qtype).into()),
                ("error".into(), why.into()),
            ]
        });
    }
}

impl ErrorLog {
    fn write(&self, level: Level, text: &str, parts: impl FnOnce() -> Vec<JsonField>) {
        if level != Level::Debug || self.debug {
            self.lines.write(level, &format!("plugin/errors: {text}"), parts);
        }
    }
}

impl Pattern {
    /// Counts an error; returns whether the error needs no line of its own.
    fn consolidates(&self, log: &ErrorLog) -> bool {
        if self.ended.load(Ordering::SeqCst) {
            return false;
        }
        let is_first = self.count.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first {
            self.first.notify_one();
        }
        // If the task has ended in between, only this call can log the count.
        if self.ended.load(Ordering::SeqCst) {
            self.log_count(log);
        }
        !(is_first && self.show_first)
    }

    /// Logs the number of errors at the end of each period.
    async fn run(&self, log: &ErrorLog, stop: &CancellationToken) {
        let telling = async {
            loop {
                self.first.notified().await;
                sleep(self.period).await;
                self.log_count(log);
            }
        };
        stop.run_until_cancelled(telling).await;
        self.ended.store(true, Ordering::SeqCst);
        self.log_count(log);
    }

    fn log_count(&self, log: &ErrorLog) {
        let count = self.count.swap(0, Ordering::SeqCst);
        if count == 0 || (count == 1 && self.show_first) {
            return;
        }
        let (pattern, period) = (self.pattern.as_str(), format_go_duration(self.period));
        let text = format!("{count} errors like '{pattern}' occurred in last {period}");
        log.write(self.level, &text, || {
            vec![
                ("errors".into(), count.into()),
                ("pattern".into(), pattern.into()),
                ("seconds".into(), self.period.as_secs_f64().into()),
            ]
        });
    }
}

/// Formats a duration as Go does: `5m0s`, `1.5s`, `250ms`.
fn format_go_duration(duration: Duration) -> String {
    let (nanos, seconds) = (duration.as_nanos(), duration.as_secs());
    #[expect(clippy::cast_precision_loss, reason = "a minute has fewer than 2^53 nanoseconds")]
    let in_units = |unit: u128| (nanos % 60_000_000_000) as f64 / unit as f64;
    let rest = in_units(1_000_000_000);
    match (nanos, seconds) {
        (0, _) => "0s".to_owned(),
        (..1_000, _) => format!("{nanos}ns"),
        (..1_000_000, _) => format!("{}µs", in_units(1_000)),
        (..1_000_000_000, _) => format!("{}ms", in_units(1_000_000)),
        (_, ..60) => format!("{rest}s"),
        (_, ..3600) => format!("{}m{rest}s", seconds / 60),
        _ => format!("{}h{}m{rest}s", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests;
