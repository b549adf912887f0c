//! Excerpts of untrusted text (annotations, statuses, replies of the API server) for the log, Events and errors: of
//! limited length, and without characters that would end the line or hide the text after them.

use std::fmt;
use std::fmt::Write;

/// The maximum size of a quoted value, in bytes. A DNS name may have up to 253, but seldom has that many.
const MAX_VALUE_BYTES: usize = 100;
const MAX_SENTENCE_BYTES: usize = 600;
const MAX_PARAGRAPH_BYTES: usize = 4_000;
const MAX_EXAMPLES: usize = 3;
const MORE: &str = "…";

/// A text that [`fmt::Display`] shortens and escapes.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<'a> {
    text: &'a str,
    most: usize,
    quoted: bool,
}

/// Returns a value, such as that of an annotation, in quotes: at most 100 bytes of it, counted before escaping.
#[must_use]
pub fn value(text: &str) -> Excerpt<'_> {
    Excerpt { text, most: MAX_VALUE_BYTES, quoted: true }
}

/// Returns the message of another program, such as an error: at most 600 bytes of it, counted before escaping.
#[must_use]
pub fn sentence(text: &str) -> Excerpt<'_> {
    Excerpt { text, most: MAX_SENTENCE_BYTES, quoted: false }
}

/// Returns a text of several sentences: at most 4,000 bytes of it, counted before escaping.
#[must_use]
pub fn paragraph(text: &str) -> Excerpt<'_> {
    Excerpt { text, most: MAX_PARAGRAPH_BYTES, quoted: false }
}

/// Returns the text with control characters escaped, which terminals would obey, except those in `kept`.
#[must_use]
pub fn printable(text: &str, kept: &[char]) -> String {
    let is_safe = |c: char| !c.is_control() || kept.contains(&c);
    text.chars().map(|c| if is_safe(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// Returns `place:line:column: message` for an error in a YAML file.
#[must_use]
pub fn located(place: &str, error: &serde_saphyr::Error) -> String {
    let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
    let text = error.without_snippet().to_string();
    // The first line of the error ends with the position.
    let text = text.lines().next().unwrap_or_default();
    let message = text.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(text);
    format!("{place}:{line}:{column}: {}", sentence(message))
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self.text.len() {
            length if length <= self.most => self.text,
            _ => &self.text[..self.text.floor_char_boundary(self.most)],
        };
        let quote = if self.quoted { "\"" } else { "" };
        f.write_str(quote)?;
        for c in shown.chars() {
            match c {
                '\'' => f.write_char(c)?,
                '"' | '\\' if !self.quoted => f.write_char(c)?,
                // Escapes control characters and characters that change the text direction, but not letters.
                _ => c.escape_debug().try_for_each(|c| f.write_char(c))?,
            }
        }
        if shown.len() < self.text.len() {
            f.write_str(MORE)?;
        }
        f.write_str(quote)
    }
}

/// Returns the first three items of a list, and the number of the remaining ones: `a, b, c and 97 more`.
pub fn examples<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut items = items.into_iter();
    let mut text = String::new();
    for (i, item) in items.by_ref().take(MAX_EXAMPLES).enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}{item}");
    }
    match items.count() {
        0 => {}
        more => drop(write!(text, " and {more} more")),
    }
    text
}

/// The maximum number of objects in a list for the user, one per line: about one screen.
pub(crate) const MAX_LINES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_cut_between_characters_and_quoted() {
        assert_eq!(value("shop.example").to_string(), "\"shop.example\"");
        assert_eq!(value(&"x".repeat(100)).to_string(), format!("\"{}\"", "x".repeat(100)));
        for filling in ["x", "é", "→", "🦀"] {
            let shown = value(&filling.repeat(100_000)).to_string();
            assert!(shown.len() <= 100 + "\"…\"".len() && shown.ends_with("…\""), "{shown}");
        }
    }

    #[test]
    fn control_characters_are_escaped_and_letters_arent() {
        let shown = value("a\nb\u{1b}[2J\"\\\u{202e}\u{2028}\0é").to_string();
        assert_eq!(shown, r#""a\nb\u{1b}[2J\"\\\u{202e}\u{2028}\0é""#);
        let shown = sentence("it's \"b\"\r\n\tand C:\\ — →").to_string();
        assert_eq!(shown, r#"it's "b"\r\n\tand C:\ — →"#);
        assert!(sentence(&"\0".repeat(5000)).to_string().len() < 1300, "escaping at most doubles \\0");
    }

    #[test]
    fn a_list_shows_three_items_and_a_count() {
        let shown = |number| examples((0..number).collect::<Vec<u32>>());
        assert_eq!(shown(0), "");
        assert_eq!(shown(1), "0");
        assert_eq!(shown(3), "0, 1, 2");
        assert_eq!(shown(4), "0, 1, 2 and 1 more");
        assert_eq!(shown(14_000), "0, 1, 2 and 13997 more");
    }

    #[test]
    fn control_characters_are_escaped_unless_kept() {
        assert_eq!(printable("a\u{1b}[2J\r\tb\n\u{9b}", &['\t']), "a\\u{1b}[2J\\r\tb\\n\\u{9b}");
        assert_eq!(printable("é", &[]), "é");
    }
}
