//! The log with `--log-format json`: the shape of the lines of the plugins *log* and *errors*.

use std::fmt::{self, Debug, Write};

use jiff::Timestamp;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes each event as an object with `time`, `level` and `message`.
pub(super) struct JsonLines;

#[derive(Serialize)]
struct Line<'a> {
    time: Timestamp,
    level: &'static str,
    message: &'a str,
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::WARN => "WARNING",
            level => level.as_str(),
        };
        let message = format!("{}{}", text.message, text.fields);
        let line = Line { time: Timestamp::now(), level, message: &message };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// The message of an event, and its other fields, which only events of libraries have.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string never fails.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
