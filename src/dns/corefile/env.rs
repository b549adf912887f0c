//! Environment variables in tokens: `{$VAR}`, `{%VAR%}` and `{$VAR:default}`.

/// Replaces the variables in a token. A variable that is unset and has no default is empty, as in CoreDNS; a reference
/// that isn't closed stays unchanged.
pub(super) fn expand(text: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((start, end, skip)) = next(rest) {
        let reference = &rest[start + 2..end];
        let (name, default) = match reference.split_once(':') {
            Some((name, default)) if skip == 1 => (name, default),
            _ => (reference, ""),
        };
        expanded.push_str(&rest[..start]);
        // As in shells, a default also replaces an empty variable.
        let value = variable(name).filter(|value| !value.is_empty());
        expanded.push_str(value.as_deref().unwrap_or(default));
        rest = &rest[end + skip..];
    }
    expanded + rest
}

/// Returns the position of the next reference, the position of its closing delimiter, and the length of that delimiter.
fn next(text: &str) -> Option<(usize, usize, usize)> {
    [("{$", "}"), ("{%", "%}")]
        .into_iter()
        .filter_map(|(open, close)| {
            let start = text.find(open)?;
            let length = text[start + 2..].find(close)?;
            // As in CoreDNS, a reference without a name stays unchanged.
            (length > 0).then_some((start, start + 2 + length, close.len()))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_other_text_is_kept() {
        let variable = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "B" => Some("{$A}".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, expected) in [
            ("{$A}", "one"),
            ("{%A%}", "one"),
            ("x{$A}y{%A%}z", "xoneyonez"),
            ("{$NONE}", ""),
            ("{$NONE:two}", "two"),
            ("{$EMPTY:two}", "two"),
            ("{$A:two}", "one"),
            ("{$NONE:}", ""),
            ("{$NONE:a:b}", "a:b"),
            ("{%NONE:two%}", ""),
            // The value of a variable isn't expanded again.
            ("{$B}", "{$A}"),
            ("{$A", "{$A"),
            ("{$}", "{$}"),
            ("{", "{"),
            ("$A", "$A"),
        ] {
            assert_eq!(expand(text, variable), expected, "{text}");
        }
    }
}
