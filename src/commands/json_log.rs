//! The log with `--log-format json`: the shape of the lines of the plugins *log* and *errors*.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};

use jiff::Timestamp;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::model::excerpt::sentence;

/// Writes each event as an object with `time`, `level` and `message`. A line about a Kubernetes object also has its
/// `namespace`, and its name in a field with the name of its kind, such as `service` or `stable_name`.
pub(super) struct JsonLines;

#[derive(Serialize)]
struct Line<'a> {
    time: Timestamp,
    level: &'static str,
    message: &'a str,
    #[serde(flatten)]
    object: BTreeMap<String, String>,
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
        let object = match text.kind {
            Some(kind) => [("namespace".to_owned(), text.namespace), (field_of(&kind), text.name)].into(),
            None => BTreeMap::new(),
        };
        let line = Line { time: Timestamp::now(), level, message: &message, object };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// The message of an event, the object that it is about, and its other fields, which only events of libraries have.
#[derive(Default)]
struct Text {
    message: String,
    kind: Option<String>,
    namespace: String,
    name: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            // Those of `object_log::write`.
            "log.kind" => self.kind = Some(value.to_owned()),
            "log.namespace" => self.namespace = sentence(value).to_string(),
            "log.name" => self.name = sentence(value).to_string(),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string never fails.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            // The place in the source, of events of the crate log.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Returns a kind as the name of a field: `stable_name` for `StableName`.
fn field_of(kind: &str) -> String {
    let mut field = String::new();
    for c in kind.chars() {
        if c.is_ascii_uppercase() && !field.is_empty() {
            field.push('_');
        }
        field.push(c.to_ascii_lowercase());
    }
    field
}
