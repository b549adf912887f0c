//! `printf` with the verbs that records need. If a value doesn't fit its verb, this is an error, while Go writes
//! `%!d(string=x)` into the text.

use std::fmt::Write as _;

use super::value::Value;

/// The maximum length of the result of a template or of `printf`, in bytes: a message has at most 64 KiB (RFC 1035 section 4.2.2), and the text form
/// of an octet at most four characters.
pub(super) const MAX_LENGTH: usize = 4 * 65_536;
/// The maximum width and precision: no record needs more, and a template must not fill the memory with zeros.
const MAX_WIDTH: usize = 1000;

#[derive(Debug)]
pub(super) struct Format(Vec<Piece>);

#[derive(Debug)]
enum Piece {
    Text(String),
    Verb(Verb),
}

/// A verb with its flags, after a percent sign.
#[derive(Debug, Default)]
struct Verb {
    left: bool,
    zeros: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
    verb: char,
}

impl Format {
    /// Parses a format string.
    ///
    /// # Errors
    /// Fails if a verb or a flag isn't supported.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(percent) = rest.find('%') {
            pieces.push(Piece::Text(rest[..percent].to_owned()));
            rest = &rest[percent + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                pieces.push(Piece::Text("%".to_owned()));
                rest = after;
                continue;
            }
            let (verb, length) = Verb::parse(rest)?;
            pieces.push(Piece::Verb(verb));
            rest = &rest[length..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Returns the number of values that the format needs.
    pub(super) fn arguments(&self) -> usize {
        self.0.iter().filter(|piece| matches!(piece, Piece::Verb(_))).count()
    }

    /// Formats values.
    ///
    /// # Errors
    /// Fails if the number of values is wrong, if a value doesn't fit its verb, or if the text is longer than any
    /// record.
    pub(super) fn write(&self, values: &[Value<'_>]) -> Result<String, String> {
        if self.arguments() != values.len() {
            return Err(format!(
                "the format is for {} values, and here are {}",
                self.arguments(),
                values.len()
            ));
        }
        let mut values = values.iter();
        let mut written = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => written.push_str(text),
                Piece::Verb(verb) => written.push_str(&verb.write(values.next().unwrap_or(&Value::None))?),
            }
            // A template that doubles a variable in a loop must not fill the memory.
            if written.len() > MAX_LENGTH {
                return Err("the text is longer than any record".to_owned());
            }
        }
        Ok(written)
    }
}

impl Verb {
    /// Parses the text after a percent sign. Also returns the length of the verb in bytes.
    fn parse(text: &str) -> Result<(Self, usize), String> {
        let mut verb = Self::default();
        let rest = text.trim_start_matches(['-', '0', '+']);
        for flag in text[..text.len() - rest.len()].chars() {
            match flag {
                '-' => verb.left = true,
                '0' => verb.zeros = true,
                _ => verb.plus = true,
            }
        }
        let wrong = |what: String| {
            let end = text.find(|c: char| c.is_ascii_alphabetic()).map_or(text.len(), |at| at + 1);
            format!("{what} in %{} isn't supported by printf here", &text[..end])
        };
        let number = |text: &str| -> Result<(usize, usize), String> {
            let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let number = if length == 0 { Ok(0) } else { text[..length].parse() };
            match number {
                Ok(number) if number <= MAX_WIDTH => Ok((number, length)),
                _ => Err(wrong(format!("a width or precision of more than {MAX_WIDTH}"))),
            }
        };
        let (width, length) = number(rest)?;
        verb.width = width;
        let mut rest = &rest[length..];
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, length) = number(after)?;
            verb.precision = Some(precision);
            rest = &after[length..];
        }
        let Some(name) = rest.chars().next() else {
            return Err("a verb has to follow the % of a format".to_owned());
        };
        verb.verb = name;
        match name {
            's' | 'v' | 'q' | 'x' | 'X' if verb.plus => return Err(wrong("the flag +".to_owned())),
            'd' | 'q' | 'x' | 'X' | 'v' if verb.precision.is_some() => {
                return Err(wrong("a precision".to_owned()));
            }
            's' | 'v' | 'd' | 'q' | 'x' | 'X' => {}
            name => {
                let known =
                    "%s, %d, %v, %q, %x, %X and %%, with -, 0, + (of %d), a width, and a precision (of %s)";
                return Err(
                    format!("{} ; supported are {known}", wrong(format!("{name:?}"))).replace(" ;", ";")
                );
            }
        }
        Ok((verb, text.len() - rest.len() + name.len_utf8()))
    }

    fn write(&self, value: &Value<'_>) -> Result<String, String> {
        let text = match (self.verb, value) {
            ('d' | 'v' | 'x' | 'X', Value::Int(number)) => {
                let sign = if *number < 0 { "-" } else { self.plus() };
                return Ok(self.number(sign, number.unsigned_abs()));
            }
            ('d' | 'v' | 'x' | 'X', Value::Uint(number)) => return Ok(self.number(self.plus(), *number)),
            ('s' | 'v', Value::Str(text)) => match self.precision {
                Some(most) => text.chars().take(most).collect(),
                None => text.to_string(),
            },
            ('x' | 'X', Value::Str(text)) => {
                let mut hex = String::new();
                for byte in text.bytes() {
                    let _ =
                        if self.verb == 'x' { write!(hex, "{byte:02x}") } else { write!(hex, "{byte:02X}") };
                }
                hex
            }
            ('q', Value::Str(text)) => quoted(text),
            ('v', Value::Bool(is_true)) => is_true.to_string(),
            ('v', Value::None) => "<nil>".to_owned(),
            // The verb, the flags and the width apply to each element.
            (_, Value::Strings(list)) => {
                let elements: Vec<String> =
                    list.iter().map(|text| self.write(&Value::Str(text.into()))).collect::<Result<_, _>>()?;
                return Ok(format!("[{}]", elements.join(" ")));
            }
            (_, Value::Map(map)) => {
                let mut entries = Vec::new();
                for (key, text) in *map {
                    let (key, text) = (Value::Str(key.into()), Value::Str(text.into()));
                    entries.push(format!("{}:{}", self.write(&key)?, self.write(&text)?));
                }
                return Ok(format!("map[{}]", entries.join(" ")));
            }
            _ => return Err(format!("%{} isn't for {}", self.verb, value.kind_name())),
        };
        Ok(self.pad(&text))
    }

    fn plus(&self) -> &'static str {
        if self.plus { "+" } else { "" }
    }

    /// Formats a number; zeros go after the sign.
    fn number(&self, sign: &str, number: u64) -> String {
        let digits = match self.verb {
            'x' => format!("{number:x}"),
            'X' => format!("{number:X}"),
            _ => number.to_string(),
        };
        if self.zeros && !self.left {
            format!("{sign}{digits:0>width$}", width = self.width.saturating_sub(sign.len()))
        } else {
            self.pad(&format!("{sign}{digits}"))
        }
    }

    fn pad(&self, text: &str) -> String {
        let width = self.width;
        match (self.left, self.zeros) {
            (true, _) => format!("{text:<width$}"),
            (false, true) => format!("{text:0>width$}"),
            (false, false) => format!("{text:>width$}"),
        }
    }
}

/// Quotes a string like Go's `%q`.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\x07' => write!(quoted, "\\a"),
            '\x08' => write!(quoted, "\\b"),
            '\x0c' => write!(quoted, "\\f"),
            '\n' => write!(quoted, "\\n"),
            '\r' => write!(quoted, "\\r"),
            '\t' => write!(quoted, "\\t"),
            '\x0b' => write!(quoted, "\\v"),
            ' '..='~' => write!(quoted, "{c}"),
            ..='\x7f' => write!(quoted, "\\x{:02x}", u32::from(c)),
            c if is_printable(c) => write!(quoted, "{c}"),
            ..='\u{ffff}' => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => write!(quoted, "\\U{:08x}", u32::from(c)),
        };
    }
    quoted + "\""
}

/// Returns whether a non-ASCII character is printable by Rust's Unicode table, which has the same rules as Go's table.
fn is_printable(c: char) -> bool {
    // `escape_debug` escapes a combining character only at the start of a string.
    String::from_iter(['a', c]).escape_debug().nth(1) == Some(c)
}
