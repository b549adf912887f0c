//! What of a Service can't be served, or isn't granted: bounded, whatever the Service says.

use std::fmt;

use super::excerpt::{sentence, value};

/// How many entries of a list in an annotation count.
pub const MAX_ENTRIES: usize = 100;
/// The most bytes of one of them: a DNS name has no more characters (RFC 1035 section 3.1).
pub const MAX_ENTRY_BYTES: usize = 253;
/// How many examples a complaint has.
const MAX_EXAMPLES: usize = 3;

/// What a wish is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedField {
    /// The target.
    Target,
    /// A DNS name.
    Hostname,
    /// Anything else.
    Other,
}

/// What one field or annotation of a Service says that can't be served, or isn't granted, and why: one complaint, with
/// three examples and a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What it is about.
    pub subject: RejectedField,
    field: String,
    /// Values as they are shown, and why each can't be served.
    examples: Vec<(String, String)>,
    /// How many values there are in all.
    refused: usize,
    /// How many entries are ignored, and which ones count.
    ignored: (usize, &'static str),
}

impl Rejection {
    /// Returns that nothing is wrong with a field or annotation yet.
    #[must_use]
    pub fn new(subject: RejectedField, field: impl Into<String>) -> Self {
        Self { subject, field: field.into(), examples: Vec::new(), refused: 0, ignored: (0, "") }
    }

    /// Takes over that a value can't be served.
    pub fn refuse(&mut self, text: &str, why: &str) {
        self.refused += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push((value(text).to_string(), sentence(why).to_string()));
        }
    }

    /// Takes over that so many entries weren't looked at; `limit` says which ones count.
    pub fn ignore(&mut self, entries: usize, limit: &'static str) {
        self.ignored = (entries, limit);
    }

    /// Returns whether a value was looked at that can't be served.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.refused > 0
    }

    /// Returns this if anything is wrong.
    #[must_use]
    pub fn into_complaint(self) -> Option<Self> {
        (self.refused > 0 || self.ignored.0 > 0).then_some(self)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        for (i, (value, why)) in self.examples.iter().enumerate() {
            let start = if i == 0 { "" } else { ";" };
            write!(f, "{start} {value} isn't served: {why}")?;
        }
        if self.refused > self.examples.len() {
            write!(f, "; and {} more", self.refused - self.examples.len())?;
        }
        let (ignored, limit) = self.ignored;
        if ignored > 0 {
            let start = if self.refused == 0 { ":" } else { ";" };
            write!(f, "{start} entries that are ignored: {ignored}; {limit}")?;
        }
        Ok(())
    }
}

/// The entries of a list in an annotation, separated by commas, that count.
#[derive(Debug, PartialEq, Eq)]
pub struct ListEntries<'a> {
    /// Those of the first [`MAX_ENTRIES`] that have at most [`MAX_ENTRY_BYTES`] bytes, without white space around them.
    pub counted: Vec<&'a str>,
    /// How many others there are.
    pub ignored: usize,
}

impl<'a> ListEntries<'a> {
    /// Which entries count, for people.
    pub const LIMIT: &'static str = "the first 100 count, of at most 253 bytes each";

    /// Splits the text of an annotation. Empty entries are none.
    #[must_use]
    pub fn of(text: &'a str) -> Self {
        let (mut counted, mut ignored) = (Vec::new(), 0);
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        for (i, entry) in entries.enumerate() {
            // The dot behind an absolute name is no part of it.
            let length = entry.strip_suffix('.').unwrap_or(entry).len();
            if i < MAX_ENTRIES && length <= MAX_ENTRY_BYTES {
                counted.push(entry);
            } else {
                ignored += 1;
            }
        }
        Self { counted, ignored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_100_entries_count_of_253_bytes_each() {
        let name = |length: usize| "x".repeat(length);
        let text = format!(" a ,,{}, {}.,{}", name(253), name(253), name(254));
        let absolute = format!("{}.", name(253));
        let longest = name(253);
        let expected = ListEntries { counted: vec!["a", &longest, &absolute], ignored: 1 };
        assert_eq!(ListEntries::of(&text), expected);
        let many = (0..14_000).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let entries = ListEntries::of(&many);
        assert_eq!((entries.counted.len(), entries.ignored), (100, 13_900));
        assert_eq!(entries.counted[99], "99");
        let long_first = format!("{},{many}", name(300));
        assert_eq!(ListEntries::of(&long_first).counted.len(), 99, "the first 100, whatever they are");
        assert_eq!(ListEntries::of(&",".repeat(200_000)).ignored, 0);
    }

    #[test]
    fn a_complaint_has_three_examples_and_a_count() {
        let mut complaint = Rejection::new(RejectedField::Hostname, "the annotation");
        assert_eq!(complaint.clone().into_complaint(), None);
        complaint.refuse("a", "no");
        assert_eq!(complaint.to_string(), "the annotation \"a\" isn't served: no");
        for _ in 0..10_000 {
            complaint.refuse(&"\n".repeat(250_000), &"y".repeat(250_000));
        }
        let text = complaint.to_string();
        assert!(text.ends_with("; and 9998 more") && text.len() < 2500, "{text}");
        assert!(!text.contains('\n'), "{text}");
        let mut ignored = Rejection::new(RejectedField::Other, "the annotation");
        ignored.ignore(7, ListEntries::LIMIT);
        let expected =
            "the annotation: entries that are ignored: 7; the first 100 count, of at most 253 bytes each";
        assert_eq!(ignored.into_complaint().unwrap().to_string(), expected);
    }
}
