//! Label selectors in the syntax of kubectl.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// The error message, with an example of the syntax.
const SELECTOR_ERROR: &str = "not a label selector such as app=web,tier!=db,env in (a,b),!legacy";

pub(crate) fn selector(text: &str) -> Result<Selector, &'static str> {
    let mut rest = text.trim();
    let mut expressions = Vec::new();
    while !rest.is_empty() {
        // A comma inside parentheses separates values, not requirements.
        let closed = rest.find('(').filter(|open| rest.find(',').is_none_or(|comma| *open < comma));
        let from = match closed {
            Some(open) => open + rest[open..].find(')').ok_or(SELECTOR_ERROR)?,
            None => 0,
        };
        let (requirement, tail) = match rest[from..].find(',') {
            Some(comma) => (&rest[..from + comma], Some(&rest[from + comma + 1..])),
            None => (rest, None),
        };
        expressions.push(expression(requirement.trim()).ok_or(SELECTOR_ERROR)?);
        rest = match tail {
            Some(tail) if tail.trim().is_empty() => return Err(SELECTOR_ERROR),
            Some(tail) => tail.trim(),
            None => "",
        };
    }
    Ok(expressions.into_iter().collect())
}

fn expression(text: &str) -> Option<Expression> {
    if let Some(name) = text.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key(name)?));
    }
    if let Some(open) = text.find('(') {
        let values = text[open + 1..].strip_suffix(')')?;
        let values = values.split(',').map(value).collect::<Option<BTreeSet<_>>>()?;
        let (name, operator) = text[..open].trim().rsplit_once(char::is_whitespace)?;
        return match operator {
            "in" => Some(Expression::In(key(name)?, values)),
            "notin" => Some(Expression::NotIn(key(name)?, values)),
            _ => None,
        };
    }
    if let Some((name, wanted)) = text.split_once("!=") {
        return Some(Expression::NotEqual(key(name)?, value(wanted)?));
    }
    if let Some((name, wanted)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Expression::Equal(key(name)?, value(wanted)?));
    }
    Some(Expression::Exists(key(text)?))
}

fn key(text: &str) -> Option<String> {
    let text = text.trim();
    is_label_key(text).then(|| text.to_owned())
}

/// Returns whether `text` is the key of a label or annotation, `[prefix/]name`: an optional DNS name, and the name of a
/// label.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').unwrap_or(("", text));
    let prefix_is_right = prefix.len() <= 253
        && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c));
    prefix_is_right && !name.is_empty() && is_label_text(name) && !text.starts_with('/')
}

fn value(text: &str) -> Option<String> {
    let text = text.trim();
    is_label_text(text).then(|| text.to_owned())
}

/// Returns whether `text` is empty, or consists of at most 63 letters, digits, `-`, `_` and `.` with a letter or digit
/// at both ends.
fn is_label_text(text: &str) -> bool {
    let outer = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && outer(text.chars().next())
        && outer(text.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_as_kubectl_reads_them() {
        for (text, expected) in [
            ("app=web", "app=web"),
            ("app==web, tier != db", "app=web,tier!=db"),
            ("env in (b, a),!legacy", "env in (a,b),!legacy"),
            ("a,example.com/b notin (x)", "a,example.com/b notin (x)"),
            ("empty=", "empty="),
            ("", ""),
        ] {
            assert_eq!(selector(text).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for text in [
            "app=we b",
            "=web",
            "a,,b",
            "a,",
            "env in a,b",
            "env on (a)",
            "env in (a",
            "-a=b",
            "/a=b",
            "a=b/c",
        ] {
            assert!(selector(text).is_err(), "{text}");
        }
    }
}
