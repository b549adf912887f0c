//! Finds strings in manifests that kubectl reads as another type: it reads YAML 1.1, in which a plain `n` is a boolean
//! and `1e3` is a number. A manifest that kubectl would read differently is rejected with the position.

use serde_saphyr::Location;

use crate::model::excerpt::sentence;

/// The type as which kubectl reads a plain scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScalarKind {
    String,
    Boolean,
    Number,
    Null,
}

/// The text of a file, in which the parser counts characters.
#[derive(Debug)]
pub(super) struct SourceText<'a> {
    /// Without a byte order mark, which the parser doesn't count.
    text: &'a str,
    /// The byte offset of each [`STEP`]th character.
    offsets: Vec<usize>,
}

/// The distance in characters between two offsets of [`SourceText`].
const STEP: usize = 256;

impl<'a> SourceText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { text, offsets: text.char_indices().step_by(STEP).map(|(at, _)| at).collect() }
    }

    /// Returns the text of a scalar as the file spells it.
    pub(super) fn spelled(&self, scalar: Location) -> &'a str {
        let (start, end) = (scalar.span().offset(), scalar.span().offset() + scalar.span().len());
        self.text.get(self.byte_offset(start)..self.byte_offset(end)).unwrap_or_default()
    }

    fn before(&self, scalar: Location) -> &'a str {
        self.text.get(..self.byte_offset(scalar.span().offset())).unwrap_or_default()
    }

    fn byte_offset(&self, chars: u64) -> usize {
        let chars = usize::try_from(chars).unwrap_or(usize::MAX);
        let Some(&near) = self.offsets.get(chars / STEP) else { return self.text.len() };
        let mut rest = self.text[near..].char_indices().map(|(at, _)| near + at);
        rest.nth(chars % STEP).unwrap_or(self.text.len())
    }
}

/// Returns the error for a scalar that has to be a string, if kubectl reads it as another type, because it has neither
/// quotes nor a tag. `value` is the text of the scalar.
pub(super) fn misread_string(
    content: &SourceText<'_>,
    field: &str,
    value: &str,
    defined: Location,
) -> Option<String> {
    let kind = kind(value);
    (kind != ScalarKind::String && is_plain(content, value, defined)).then(|| {
        let (field, value, kind) = (sentence(field), sentence(value), kind.name());
        format!(
            "{field}: {value} is {kind} to kubectl, which reads YAML 1.1, and has to be a string: write \
             \"{value}\""
        )
    })
}

/// Returns whether a scalar with this text has neither quotes nor a tag.
pub(super) fn is_plain(content: &SourceText<'_>, text: &str, defined: Location) -> bool {
    length(defined) == text.chars().count() && !is_tagged(content, defined)
}

/// Returns the boolean as which kubectl reads a plain scalar.
pub(super) fn boolean(plain: &str) -> Option<bool> {
    (kind(plain) == ScalarKind::Boolean)
        .then(|| matches!(&*plain.to_ascii_lowercase(), "y" | "yes" | "true" | "on"))
}

/// Returns whether a tag, or the header of a block scalar, precedes a scalar, perhaps with an anchor in between.
fn is_tagged(content: &SourceText<'_>, scalar: Location) -> bool {
    let mut words = content.before(scalar).split_whitespace().rev().filter(|word| !word.starts_with('&'));
    let before = words.next().unwrap_or_default().trim_start_matches(['[', '{', ',']);
    before.starts_with(['!', '|', '>'])
}

impl ScalarKind {
    fn name(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Null => "null",
        }
    }
}

/// Returns the number of characters of a scalar in the file, including quotes.
pub(super) fn length(scalar: Location) -> usize {
    usize::try_from(scalar.span().len()).unwrap_or(usize::MAX)
}

/// Returns whether kubectl converts a plain key to the same string.
pub(super) fn is_same_key(key: &str) -> bool {
    match kind(key) {
        ScalarKind::String => true,
        ScalarKind::Boolean => matches!(key, "true" | "false"),
        ScalarKind::Number => key.parse::<i64>().is_ok_and(|number| number.to_string() == key),
        ScalarKind::Null => false,
    }
}

/// Returns the type as which kubectl reads a plain scalar, like `resolve` of go-yaml v2, which sigs.k8s.io/yaml uses.
/// A date counts as a string: go-yaml resolves it as a timestamp, but decodes it as a string.
fn kind(plain: &str) -> ScalarKind {
    match plain {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" | "n" | "N"
        | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => ScalarKind::Boolean,
        "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => ScalarKind::Number,
        _ => {
            let is_number = match plain.as_bytes()[0] {
                b'.' => has_digits_around_underscores(plain) && is_float(&plain.replace('_', "")),
                b'+' | b'-' | b'0'..=b'9' => {
                    let plain = plain.replace('_', "");
                    is_integer(&plain) || is_float(&plain)
                }
                _ => false,
            };
            if is_number { ScalarKind::Number } else { ScalarKind::String }
        }
    }
}

/// Returns whether Go's `strconv.ParseInt` or `ParseUint` accepts the text, with base 0 and 64 bits.
fn is_integer(text: &str) -> bool {
    let (digits, largest) = match text.as_bytes().first() {
        Some(b'-') => (&text[1..], 1 << 63),
        Some(b'+') => (&text[1..], u128::from(i64::MAX.unsigned_abs())),
        _ => (text, u128::from(u64::MAX)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let is_digits = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    is_digits && u128::from_str_radix(digits, radix).is_ok_and(|number| number <= largest)
}

/// Returns whether the text is a finite decimal number of 64 bits, such as `1.5`, `.5`, `1.` or `1e3`.
fn is_float(text: &str) -> bool {
    let only = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes().all(only) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns whether each underscore stands between two digits, as Go's `strconv.ParseFloat` requires.
fn has_digits_around_underscores(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut underscores = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    underscores.all(|(at, _)| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)))
}

#[cfg(test)]
mod tests {
    use serde_saphyr::Spanned;

    use super::super::reader::FieldError;
    use super::super::services;
    use super::super::tree::Node;
    use super::*;

    /// Returns the error for a Service with this value of the annotation `k`.
    fn misread(value: &str) -> Option<String> {
        let content = format!("metadata:\n  name: a\n  annotations:\n    \u{e4}: \u{f6}\n    k: {value}\n");
        let document = serde_saphyr::read::<_, Spanned<Node>>(&mut content.as_bytes()).next()?.ok()?;
        let refused = services::read(&SourceText::new(&content), &document).err()?;
        let [FieldError { position, message }] = &refused[..] else { panic!("{refused:?}") };
        Some(format!("{}:{}: {message}", position.line(), position.column()))
    }

    #[test]
    fn plain_scalars_have_the_type_that_kubectl_reads() {
        for (kind_, scalars) in [
            (
                ScalarKind::Boolean,
                "n N no No NO y Y yes Yes YES on On ON off Off OFF true True TRUE false False FALSE",
            ),
            (ScalarKind::Null, "~ null Null NULL"),
            (
                ScalarKind::Number,
                "1 -1 +1 0 -0 00 017 08 0o17 0O17 0x1f 0X1F 0b11 0B11 -0b11 1_000 1_ 1__0 0_7 0x_1f 0b_1 0o_7 -1_0 1e3 \
                 1E3 1e+3 1e3_0 1_000.5 1.5 1. 0. .5 .5_0 +.5 12345678901234567890 123456789012345678901234567890 .inf \
                 .Inf .INF +.inf -.inf .nan .NaN .NAN",
            ),
            (
                ScalarKind::String,
                "yEs nO oN oFF tRUE nULL .iNF +.nan nan NaN inf Infinity +inf _1 _ . + 1e 1e3.5 1e400 0x 0xg 0o8 0b12 \
                 0x1.8p1 0x1p-2 0xfffffffffffffffff .5_ .5__0 1.2.3 1.2.3.4 2001-01-01 2001-1-1 2001-01-01T00:00:00Z \
                 12:30:45 190:20:30 1:2 1,000 << = a web-1",
            ),
        ] {
            for scalar in scalars.split_whitespace() {
                assert_eq!(kind(scalar), kind_, "{scalar}");
            }
        }
        assert_eq!(kind(""), ScalarKind::Null);
    }

    #[test]
    fn only_plain_scalars_are_misread() {
        for value in
            ["\"n\"", "'n'", "!!str n", "!!str &a 1e3", "&a !!str n", "|-\n      n", ">\n      n", "~", "web"]
        {
            assert_eq!(misread(value), None, "{value}");
        }
        for value in ["n", "&a n"] {
            let found = misread(value).unwrap();
            let column = 4 + value.len() + 3;
            assert_eq!(
                found,
                format!(
                    "5:{column}: metadata.annotations.k: n is a boolean to kubectl, which reads YAML 1.1, and has to be a \
                     string: write \"n\""
                )
            );
        }
        assert!(misread("1e3").unwrap().contains(": 1e3 is a number to kubectl"));
    }

    #[test]
    fn keys_are_misread_if_kubectl_changes_them() {
        for (key, same) in
            [("on", false), ("017", false), ("1e3", false), ("true", true), ("17", true), ("a", true)]
        {
            assert_eq!(is_same_key(key), same, "{key}");
        }
    }
}
