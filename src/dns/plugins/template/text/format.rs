//! `printf` with the verbs that records need. If a value doesn't fit its verb, this is an error, while Go writes
//! `%!d(string=x)` into the text.

use std::fmt::Write as _;

use super::value::Value;

/// The maximum width: no record needs more, and a template must not fill the memory with zeros.
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
    /// Fails if the number of values is wrong, or if a value doesn't fit its verb.
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
                _ => Err(wrong(format!("a width of more than {MAX_WIDTH}"))),
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
        let wrong = || format!("%{} isn't for {}", self.verb, value.kind_name());
        let written = match (self.verb, value) {
            ('s' | 'v', Value::Str(text)) => match self.precision {
                Some(most) => text.chars().take(most).collect(),
                None => text.to_string(),
            },
            ('v', Value::Int(_) | Value::Uint(_)) | ('d', Value::Uint(_)) if !self.plus => {
                return Ok(self.pad_number(&value.print()?));
            }
            ('d', Value::Int(number)) if self.plus => return Ok(self.pad_number(&format!("{number:+}"))),
            ('d', Value::Uint(number)) => return Ok(self.pad_number(&format!("{number:+}"))),
            ('d', Value::Int(number)) => return Ok(self.pad_number(&number.to_string())),
            ('x' | 'X', Value::Int(number)) => {
                let sign = if *number < 0 { "-" } else { "" };
                return Ok(self.pad_number(&self.cased(format!("{sign}{:x}", number.unsigned_abs()))));
            }
            ('x' | 'X', Value::Uint(number)) => {
                return Ok(self.pad_number(&self.cased(format!("{number:x}"))));
            }
            ('x' | 'X', Value::Str(text)) => {
                let mut hex = String::new();
                for byte in text.bytes() {
                    let _ = write!(hex, "{byte:02x}");
                }
                self.cased(hex)
            }
            ('q', Value::Str(text)) => quoted(text),
            ('v', Value::Bool(_) | Value::Strings(_) | Value::Map(_)) if self.width == 0 => {
                value.print()?.into_owned()
            }
            _ => return Err(wrong()),
        };
        if self.zeros && !self.left && self.width > 0 {
            return Err(format!("zeros before {} aren't supported here", value.kind_name()));
        }
        Ok(self.pad(&written))
    }

    fn cased(&self, hex: String) -> String {
        if self.verb == 'X' { hex.to_ascii_uppercase() } else { hex }
    }

    /// Pads a number; zeros go after the sign.
    fn pad_number(&self, number: &str) -> String {
        if !self.zeros || self.left {
            return self.pad(number);
        }
        let digits = number.trim_start_matches(['-', '+']);
        let sign = &number[..number.len() - digits.len()];
        format!("{sign}{digits:0>width$}", width = self.width.saturating_sub(sign.len()))
    }

    fn pad(&self, text: &str) -> String {
        let width = self.width;
        if self.left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }
}

/// Quotes a string like Go's `%q`, for the characters in names and zone files.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
