//! Names as CoreDNS's rules see them: text, as the library miekg/dns writes it.

use std::fmt::Write;

use hickory_proto::rr::Name;

use crate::dns::plugin::Failure;

/// Returns the text of a name: with a dot at the end, its case kept, special characters behind a backslash, others
/// that aren't printable as `\DDD`.
pub(super) fn text(name: &Name) -> String {
    let mut text = String::new();
    for label in name {
        for &byte in label {
            match byte {
                b'.' | b' ' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\' => {
                    text.push('\\');
                    text.push(char::from(byte));
                }
                b'!'..=b'~' => text.push(char::from(byte)),
                // A String takes whatever is written.
                _ => write!(text, "\\{byte:03}").unwrap_or_default(),
            }
        }
        text.push('.');
    }
    if text.is_empty() { ".".to_owned() } else { text }
}

/// Returns the name that a text stands for.
///
/// # Errors
/// If it stands for none: RFC 1035 section 2.3.4.
pub(super) fn parse(text: &str) -> Result<Name, Failure> {
    labels(text)
        .and_then(|labels| Name::from_labels(labels).ok())
        .ok_or_else(|| Failure::servfail(format!("invalid name after rewrite: {text}")))
}

/// Splits a text into labels; those may be none.
fn labels(text: &str) -> Option<Vec<Vec<u8>>> {
    if text == "." {
        return Some(Vec::new());
    }
    let mut labels = Vec::new();
    let mut label = Vec::new();
    let mut rest = text.strip_suffix('.').filter(|_| is_absolute(text)).unwrap_or(text).as_bytes();
    loop {
        rest = match rest {
            [] => break,
            [b'\\', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', behind @ ..] => {
                let number = [a, b, c].into_iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
                label.push(u8::try_from(number).ok()?);
                behind
            }
            [b'\\', byte, behind @ ..] => {
                label.push(*byte);
                behind
            }
            [b'\\'] => return None,
            [b'.', behind @ ..] => {
                labels.push(std::mem::take(&mut label));
                behind
            }
            [byte, behind @ ..] => {
                label.push(*byte);
                behind
            }
        };
    }
    labels.push(label);
    Some(labels)
}

/// Returns a text as names are matched: in lower case, with a dot at the end.
pub(super) fn normal(text: &str) -> String {
    let dot = if is_absolute(text) { "" } else { "." };
    format!("{}{dot}", text.to_lowercase())
}

/// Returns whether the text of a name ends with a dot that isn't part of a label.
fn is_absolute(text: &str) -> bool {
    text.strip_suffix('.')
        .is_some_and(|rest| (rest.len() - rest.trim_end_matches('\\').len()).is_multiple_of(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_text_and_back() {
        let long = format!("{}.", "x".repeat(63));
        for text_of in [
            ".",
            "a.",
            "Www.Example.org.",
            r"a\.b.example.",
            r#"a\@b\ c\'\;\(\)\"\\.example."#,
            r"\000\200.",
            "*._tcp.",
            &long,
            &format!("{long}{long}{long}{}.", "x".repeat(61)),
        ] {
            let name = parse(text_of).unwrap_or_else(|_| panic!("{text_of}"));
            assert_eq!(text(&name), text_of);
            assert!(name.is_fqdn());
        }
        for (written, meant) in [("a.b", "a.b."), (r"\097.", "a."), (r"a\.", r"a\.."), ("ü.", r"\195\188.")]
        {
            assert_eq!(text(&parse(written).unwrap()), meant);
        }
    }

    #[test]
    fn what_cant_be_a_name_isnt_one() {
        let label = format!("{}.", "x".repeat(64));
        let name = format!("{}{}.", format!("{}.", "x".repeat(63)).repeat(3), "x".repeat(62));
        for text in ["", "..", ".a.", "a..b.", "a..", r"a\", r"\999.", &label, &name] {
            let why = format!("invalid name after rewrite: {text}");
            assert_eq!(parse(text), Err(Failure::servfail(why)));
        }
    }

    #[test]
    fn a_name_is_matched_in_lower_case_and_with_a_dot() {
        for (text, meant) in [("", "."), ("A.b", "a.b."), ("a.", "a."), (r"a\.", r"a\.."), (r"a\\.", r"a\\.")]
        {
            assert_eq!(normal(text), meant);
        }
    }
}
