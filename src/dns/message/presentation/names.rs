//! Parses and formats names with escapes. Labels may contain any octets, whereas hickory's parser accepts only host
//! names.

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

/// The maximum length of a label in bytes (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// The maximum length of a name in bytes, with the length octets and the root (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;

/// Formats a name with its case unchanged, and with the final dot.
#[must_use]
pub fn name_text(name: &Name) -> String {
    let mut text = String::with_capacity(name.len() + 1);
    for label in name.iter() {
        for byte in label {
            match byte {
                b'.' | b' ' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\' => {
                    text.extend(['\\', char::from(*byte)]);
                }
                b'!'..=b'~' => text.push(char::from(*byte)),
                other => text.push_str(&format!("\\{other:03}")),
            }
        }
        text.push('.');
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

/// Formats a name in lower case, with the final dot.
#[must_use]
pub fn lower_name_text(name: &Name) -> String {
    let mut text = name_text(name);
    text.make_ascii_lowercase();
    text
}

/// Parses a name and keeps its case. The name is absolute, with or without the final dot.
#[must_use]
pub fn parse_name(text: &str) -> Option<Name> {
    let mut wire = Vec::with_capacity(text.len() + 2);
    write_name(text.as_bytes(), &[0], &mut wire)?;
    Name::read(&mut BinDecoder::new(&wire)).ok()
}

/// Appends a name in wire form, and keeps its case. A name without a dot at its end continues with `origin`, in wire
/// form. Returns `None`, and leaves the rest undefined, if a label or the name has a length that isn't allowed, or if an
/// escape isn't valid.
pub(crate) fn write_name(text: &[u8], origin: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let start = to.len();
    if text == b"." {
        to.push(0);
        return Some(());
    }
    let (mut rest, mut label, mut is_absolute) = (text, start, false);
    to.push(0);
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'.' => {
                end_label(to, label)?;
                is_absolute = rest.is_empty();
                label = to.len();
                to.push(0);
            }
            b'\\' => to.push(unescape(&mut rest)?),
            byte => to.push(*byte),
        }
    }
    if !is_absolute {
        end_label(to, label)?;
        to.extend(origin);
    }
    (to.len() - start <= MAX_NAME).then_some(())
}

/// Sets the length octet at `label` to the number of octets after it.
fn end_label(wire: &mut [u8], label: usize) -> Option<()> {
    let length = wire.len() - label - 1;
    wire[label] = u8::try_from(length).ok().filter(|_| (1..=MAX_LABEL).contains(&length))?;
    Some(())
}

/// Parses an escape after the backslash: an octet in three decimal digits, or a character (RFC 1035 section 5.1).
pub(crate) fn unescape(rest: &mut &[u8]) -> Option<u8> {
    if let [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', after @ ..] = rest {
        let digit = |byte: &u8| u16::from(byte - b'0');
        *rest = after;
        return u8::try_from(digit(a) * 100 + digit(b) * 10 + digit(c)).ok();
    }
    let (byte, after) = rest.split_first()?;
    *rest = after;
    Some(*byte)
}

/// Returns whether two names are equal octet by octet. [`Name::eq_case`] does the same; comparing label by label is
/// faster.
pub(crate) fn same_spelling(one: &Name, other: &Name) -> bool {
    one.len() == other.len() && one.is_fqdn() == other.is_fqdn() && one.iter().eq(other.iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_formatted_with_escapes() {
        for (text, expected) in [
            (".", Some(".")),
            ("example", Some("example.")),
            ("Example.ORG.", Some("Example.ORG.")),
            ("*.example.", Some("*.example.")),
            ("-a_b-.0.", Some("-a_b-.0.")),
            (r"a\.b.c", Some(r"a\.b.c.")),
            (r"\046\000\255.", Some(r"\.\000\255.")),
            (r"a\ b\@.", Some(r"a\ b\@.")),
            ("a@b", Some(r"a\@b.")),
            ("ä", Some(r"\195\164.")),
            ("", None),
            ("..", None),
            (".a", None),
            ("a..b", None),
            (r"\256", None),
            (r"a\", None),
        ] {
            assert_eq!(parse_name(text).map(|name| name_text(&name)).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn lower_name_text_is_lower_case_and_escaped() {
        let name = |labels: &[&[u8]]| lower_name_text(&Name::from_labels(labels.iter().copied()).unwrap());
        assert_eq!(name(&[b"WWW", b"Example"]), "www.example.");
        assert_eq!(name(&[]), ".");
        assert_eq!(name(&[b"a.b", b"\n[ERROR] ;\xff~"]), "a\\.b.\\010[error]\\ \\;\\255~.");
        assert_eq!(lower_name_text(&Name::from_ascii("relative").unwrap()), "relative.");
    }

    #[test]
    fn lengths_of_labels_and_names_are_limited() {
        let label = "a".repeat(63);
        assert!(parse_name(&label).is_some());
        assert!(parse_name(&format!("{label}a")).is_none());
        let three = format!("{label}.{label}.{label}");
        assert!(parse_name(&format!("{three}.{}", "a".repeat(61))).is_some());
        assert!(parse_name(&format!("{three}.{}", "a".repeat(62))).is_none());
    }

    #[test]
    fn same_spelling_agrees_with_hickory() {
        let names = [".", "a.", "A.", "a", "a.b.", "a.bc.", "ab.c.", "a.b.c.", "a\\.b.", "a.B."];
        let names = names.map(|name| Name::from_ascii(name).unwrap());
        for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (one, other))) {
            assert_eq!(same_spelling(one, other), one.eq_case(other), "{one} {other}");
        }
    }
}
