//! Rejected values of a Service, in a report of limited size.

use std::fmt;

use super::excerpt::{sentence, value};

/// The maximum number of entries in the list of an annotation.
pub const MAX_ENTRIES: usize = 100;
/// The maximum size of an entry in bytes: the longest DNS name as text (255 bytes in wire form, RFC 1035 section 3.1).
pub const MAX_ENTRY_BYTES: usize = 253;
const MAX_EXAMPLES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedField {
    Target,
    Hostname,
    /// Any other annotation.
    Annotation,
}

/// The rejected values of one field or annotation of a Service, and the reasons: three examples and a count. They don't
/// depend on the order of the values, which a load balancer may change at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub kind: RejectedField,
    field: String,
    /// The first rejected values in alphabetical order, as they are displayed, and the reason for each.
    examples: Vec<(String, String)>,
    refused: usize,
    /// The number of ignored entries, and the text of the limit.
    ignored: (usize, &'static str),
}

impl Rejection {
    /// Returns an empty rejection for a field or annotation.
    #[must_use]
    pub fn new(kind: RejectedField, field: impl Into<String>) -> Self {
        Self { kind, field: field.into(), examples: Vec::new(), refused: 0, ignored: (0, "") }
    }

    pub fn reject(&mut self, text: &str, why: &str) {
        self.refused += 1;
        let example = (value(text).to_string(), sentence(why).to_string());
        let position = self.examples.partition_point(|known| *known <= example);
        if position < MAX_EXAMPLES {
            self.examples.truncate(MAX_EXAMPLES - 1);
            self.examples.insert(position, example);
        }
    }

    /// Sets the number of entries that weren't checked; `limit` describes the entries that count.
    pub fn ignore(&mut self, entries: usize, limit: &'static str) {
        self.ignored = (entries, limit);
    }

    #[must_use]
    pub fn has_rejected(&self) -> bool {
        self.refused > 0
    }

    #[must_use]
    pub fn non_empty(self) -> Option<Self> {
        (self.refused > 0 || self.ignored.0 > 0).then_some(self)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        for (i, (value, why)) in self.examples.iter().enumerate() {
            let start = if i == 0 { "" } else { ";" };
            let what = if self.kind == RejectedField::Annotation { "is ignored" } else { "isn't served" };
            write!(f, "{start} {value} {what}: {why}")?;
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

/// The entries of a comma-separated list in an annotation.
#[derive(Debug, PartialEq, Eq)]
pub struct ListEntries<'a> {
    /// The first [`MAX_ENTRIES`] entries, without surrounding white space, except entries of more than
    /// [`MAX_ENTRY_BYTES`] bytes.
    pub accepted: Vec<&'a str>,
    /// The number of the remaining entries, without empty entries.
    pub ignored: usize,
}

impl<'a> ListEntries<'a> {
    /// The limits, as a text for the user.
    pub const LIMIT: &'static str = "the first 100 count, of at most 253 bytes each";

    /// Splits the value of an annotation. Skips empty entries.
    #[must_use]
    pub fn of(text: &'a str) -> Self {
        let (mut accepted, mut ignored) = (Vec::new(), 0);
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        for (i, entry) in entries.enumerate() {
            // The final dot of an absolute name doesn't count.
            let length = entry.strip_suffix('.').unwrap_or(entry).len();
            if i < MAX_ENTRIES && length <= MAX_ENTRY_BYTES {
                accepted.push(entry);
            } else {
                ignored += 1;
            }
        }
        Self { accepted, ignored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_limited_to_100_entries_of_253_bytes() {
        let name = |length: usize| "x".repeat(length);
        let text = format!(" a ,,{}, {}.,{}", name(253), name(253), name(254));
        let absolute = format!("{}.", name(253));
        let longest = name(253);
        let expected = ListEntries { accepted: vec!["a", &longest, &absolute], ignored: 1 };
        assert_eq!(ListEntries::of(&text), expected);
        let many = (0..14_000).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let entries = ListEntries::of(&many);
        assert_eq!((entries.accepted.len(), entries.ignored), (100, 13_900));
        assert_eq!(entries.accepted[99], "99");
        let long_first = format!("{},{many}", name(300));
        assert_eq!(ListEntries::of(&long_first).accepted.len(), 99, "the first 100, whatever they are");
        assert_eq!(ListEntries::of(&",".repeat(200_000)).ignored, 0);
    }

    #[test]
    fn rejection_doesnt_depend_on_the_order_of_the_values() {
        let of = |values: &[&str]| {
            let mut rejection = Rejection::new(RejectedField::Target, "the ip");
            values.iter().for_each(|value| rejection.reject(value, "denied"));
            rejection.to_string()
        };
        let text = of(&["d", "c", "b", "a"]);
        assert!(text.contains("\"a\"") && text.contains("\"c\"") && text.ends_with("; and 1 more"), "{text}");
        assert_eq!(of(&["b", "a", "d", "c"]), text);
    }

    #[test]
    fn rejection_has_three_examples_and_a_count() {
        let mut rejection = Rejection::new(RejectedField::Hostname, "the annotation");
        assert_eq!(rejection.clone().non_empty(), None);
        rejection.reject("a", "no");
        assert_eq!(rejection.to_string(), "the annotation \"a\" isn't served: no");
        for _ in 0..10_000 {
            rejection.reject(&"\n".repeat(250_000), &"y".repeat(250_000));
        }
        let text = rejection.to_string();
        assert!(text.ends_with("; and 9998 more") && text.len() < 4000, "{text}");
        assert!(!text.contains('\n'), "{text}");
        let mut ignored = Rejection::new(RejectedField::Annotation, "the annotation");
        ignored.ignore(7, ListEntries::LIMIT);
        let expected =
            "the annotation: entries that are ignored: 7; the first 100 count, of at most 253 bytes each";
        assert_eq!(ignored.non_empty().unwrap().to_string(), expected);
    }
}
