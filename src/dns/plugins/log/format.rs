//! Formats of log lines: text with placeholders, as in CoreDNS's package `replacer`.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use crate::dns::chain::request::Request;
use crate::dns::message::encode::{encode, uncompressed_length};
use crate::dns::message::header::OPT_LENGTH;
use crate::dns::message::presentation::{class_text, rcode_name, type_text};
use crate::dns::message::reply::Reply;
use crate::dns::query_log::JsonField;

const COMMON: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" \
                      {rcode} {>rflags} {rsize} {duration}";

/// The placeholders, with their names in JSON.
const LABELS: [(&str, &str, Label); 16] = [
    ("{type}", "type", Label::Type),
    ("{name}", "name", Label::Name),
    ("{class}", "class", Label::Class),
    ("{proto}", "proto", Label::Proto),
    ("{size}", "size", Label::Size),
    ("{remote}", "remote", Label::Remote),
    ("{port}", "port", Label::Port),
    ("{local}", "local", Label::Local),
    ("{>id}", "id", Label::Id),
    ("{>opcode}", "opcode", Label::Opcode),
    ("{>do}", "do", Label::Do),
    ("{>bufsize}", "bufsize", Label::Bufsize),
    ("{rcode}", "rcode", Label::Rcode),
    ("{rsize}", "rsize", Label::Rsize),
    ("{duration}", "duration", Label::Duration),
    ("{>rflags}", "rflags", Label::Rflags),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Type,
    Name,
    Class,
    Proto,
    Size,
    Remote,
    Port,
    Local,
    Id,
    Opcode,
    Do,
    Bufsize,
    Rcode,
    Rsize,
    Duration,
    Rflags,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dns::plugins) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// A placeholder, with its name in JSON.
    Label(&'static str, Label),
    /// The name of a label of the plugin *metadata*.
    Metadata(String),
}

/// The data of a log line.
#[derive(Clone, Copy, Debug)]
pub(in crate::dns::plugins) struct LogEntry<'a> {
    pub request: &'a Request,
    /// The name in the original query, in lower case.
    pub name: &'a str,
    pub reply: Option<&'a Reply>,
    /// `None` before the answer: what is known only then is `-`.
    pub duration: Option<Duration>,
}

/// The value of a placeholder.
#[derive(Clone, Debug, PartialEq)]
enum LogValue<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Flag(bool),
    Address(IpAddr),
    Seconds(f64),
    Nothing,
}

// === impl Format ===

impl Format {
    pub fn common() -> Self {
        Self::parse(COMMON)
    }

    /// Parses a format. Unknown placeholders are literal text.
    pub fn parse(text: &str) -> Self {
        let combined = format!("{COMMON} \"{{>opcode}}\"");
        let text = text.replace("{common}", COMMON).replace("{combined}", &combined);
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), &*text);
        // Pair a closing brace with the last opening brace before it, so that `{ {name} }` contains a placeholder.
        while let Some((before, behind)) = rest.split_once('}') {
            let start = before.rfind('{').unwrap_or(before.len());
            let placeholder = &rest[start..=before.len()];
            let known = LABELS.iter().find(|(known, ..)| *known == placeholder);
            let metadata = placeholder.strip_prefix("{/").and_then(|label| label.strip_suffix('}'));
            let piece = match (known, metadata) {
                (Some((_, name, label)), _) => Some(Piece::Label(name, *label)),
                (None, label) => label.map(|label| Piece::Metadata(label.to_owned())),
            };
            match piece {
                Some(piece) => {
                    literal.push_str(&before[..start]);
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                    pieces.push(piece);
                }
                None => literal.push_str(&rest[..=before.len()]),
            }
            rest = behind;
        }
        literal.push_str(rest);
        pieces.push(Piece::Literal(literal));
        Self(pieces)
    }

    /// Returns the names of the labels of the plugin *metadata*.
    pub fn metadata(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Metadata(label) => Some(&**label),
            Piece::Literal(_) | Piece::Label(..) => None,
        })
    }

    pub fn text(&self, entry: &LogEntry<'_>) -> String {
        let mut text = String::with_capacity(128);
        for piece in &self.0 {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                // Writing to a string can't fail.
                Piece::Label(_, label) => drop(write!(text, "{}", entry.show(*label))),
                Piece::Metadata(label) => text.push_str(entry.request.label(label).as_deref().unwrap_or("-")),
            }
        }
        text
    }

    /// Returns the values of the placeholders, for JSON.
    pub fn parts(&self, entry: &LogEntry<'_>) -> Vec<JsonField> {
        let labels = self.0.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Label(name, label) => Some(((*name).into(), entry.show(*label).into())),
            Piece::Metadata(label) => Some((label.clone().into(), entry.request.label(label).into())),
        });
        labels.collect()
    }
}

// === impl LogEntry ===

impl<'a> LogEntry<'a> {
    fn show(&self, label: Label) -> LogValue<'a> {
        let Self { request, name, reply, duration } = *self;
        let number = |number: usize| LogValue::Number(number as u64);
        match label {
            Label::Type => LogValue::Text(type_text(request.query.query_type())),
            Label::Name => LogValue::Text(name.into()),
            Label::Class => LogValue::Text(class_text(request.query.query_class())),
            Label::Proto => LogValue::Text(request.proto_text().into()),
            Label::Size => number(request.length()),
            Label::Remote => LogValue::Address(request.client.ip().to_canonical()),
            Label::Port => LogValue::Number(request.client.port().into()),
            Label::Local => LogValue::Address(request.local.ip().to_canonical()),
            Label::Id => LogValue::Number(request.metadata.id.into()),
            Label::Opcode => LogValue::Number(u8::from(request.metadata.op_code).into()),
            Label::Do => LogValue::Flag(request.dnssec_ok()),
            Label::Bufsize => LogValue::Number(request.accepted_size().into()),
            Label::Rcode => reply.map_or(LogValue::Nothing, |reply| {
                let rcode = reply.metadata.response_code;
                rcode_name(rcode)
                    .map_or(LogValue::Number(u16::from(rcode).into()), |name| LogValue::Text(name.into()))
            }),
            Label::Rsize if duration.is_none() => LogValue::Nothing,
            Label::Rsize => number(reply.map_or(0, |reply| uncompressed_length(reply, &request.query))),
            Label::Duration => {
                duration.map_or(LogValue::Nothing, |duration| LogValue::Seconds(duration.as_secs_f64()))
            }
            Label::Rflags => {
                reply.map_or(LogValue::Nothing, |reply| LogValue::Text(flags(request, reply).into()))
            }
        }
    }
}

fn flags(request: &Request, reply: &Reply) -> String {
    let metadata = &reply.metadata;
    let flags = [
        (true, "qr"),
        (metadata.authoritative, "aa"),
        (metadata.truncation || is_cut(request, reply), "tc"),
        (metadata.recursion_desired, "rd"),
        (metadata.recursion_available, "ra"),
        (metadata.authentic_data, "ad"),
        (metadata.checking_disabled, "cd"),
    ];
    let set: Vec<&str> = flags.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect();
    set.join(",")
}

/// Returns whether the answer is truncated for this client.
fn is_cut(request: &Request, reply: &Reply) -> bool {
    let limit = request.limit();
    let has_options = !reply.options.is_empty() || reply.ede.is_some();
    if !has_options && uncompressed_length(reply, &request.query) + OPT_LENGTH <= usize::from(limit) {
        return false;
    }
    let encoded = encode(reply, &request.query, request.response_edns(reply).as_ref(), limit);
    // The TC flag (RFC 1035 section 4.1.1).
    encoded.is_ok_and(|(bytes, _)| bytes.get(2).is_some_and(|byte| byte & 2 != 0))
}

// === impl LogValue ===

/// Formats the value as CoreDNS does.
impl fmt::Display for LogValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Seconds(seconds) => write!(f, "{seconds}s"),
            Self::Nothing => f.write_str("-"),
        }
    }
}

impl From<LogValue<'_>> for Value {
    fn from(shown: LogValue<'_>) -> Self {
        match shown {
            LogValue::Text(text) => text.into(),
            LogValue::Number(number) => number.into(),
            LogValue::Flag(flag) => flag.into(),
            LogValue::Address(address) => address.to_string().into(),
            LogValue::Seconds(seconds) => seconds.into(),
            LogValue::Nothing => Self::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> Piece {
        Piece::Literal(text.to_owned())
    }

    #[test]
    fn formats_are_parsed_as_in_coredns() {
        let name = Piece::Label("name", Label::Name);
        for (text, pieces) in [
            ("", vec![literal("")]),
            ("none", vec![literal("none")]),
            ("{name}", vec![literal(""), name.clone(), literal("")]),
            ("a {name} b", vec![literal("a "), name.clone(), literal(" b")]),
            ("{ {name} }", vec![literal("{ "), name.clone(), literal(" }")]),
            ("} {x} {name}{", vec![literal("} {x} "), name.clone(), literal("{")]),
            ("{NAME} {>name} {{name}", vec![literal("{NAME} {>name} {"), name, literal("")]),
        ] {
            assert_eq!(Format::parse(text), Format(pieces), "{text}");
        }
        assert_eq!(Format::parse("{common}"), Format::common());
        let format = Format::parse("a{/log/class} b{/c}");
        let label = |text: &str| Piece::Metadata(text.to_owned());
        let pieces = vec![literal("a"), label("log/class"), literal(" b"), label("c"), literal("")];
        assert_eq!(format, Format(pieces));
        assert_eq!(format.metadata().collect::<Vec<_>>(), ["log/class", "c"]);
    }

    #[test]
    fn every_placeholder_is_parsed_and_has_its_json_name() {
        for (placeholder, name, label) in LABELS {
            assert_eq!(Format::parse(placeholder).0[1], Piece::Label(name, label));
            assert_eq!(placeholder.trim_matches(['{', '>', '}']), name);
        }
    }
}
