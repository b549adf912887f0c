//! Variables of the environment in words: `{$VAR}`, `{%VAR%}` and `{$VAR:default}`.

/// Replaces the variables in a word. One that isn't set, and has no default, is empty, as in CoreDNS; a
/// reference that isn't closed is left as it is.
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
        // Shells take an empty variable for one that isn't set, when there is a default.
        let value = variable(name).filter(|value| !value.is_empty());
        expanded.push_str(value.as_deref().unwrap_or(default));
        rest = &rest[end + skip..];
    }
    expanded + rest
}

/// Returns where the next reference begins, where its name ends, and how long its end is.
fn next(text: &str) -> Option<(usize, usize, usize)> {
    [("{$", "}"), ("{%", "%}")]
        .into_iter()
        .filter_map(|(open, close)| {
            let start = text.find(open)?;
            let length = text[start + 2..].find(close)?;
            // CoreDNS leaves a reference without a name alone.
            (length > 0).then_some((start, start + 2 + length, close.len()))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_what_is_none_is_left() {
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
            // What a variable holds is taken as it is.
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
