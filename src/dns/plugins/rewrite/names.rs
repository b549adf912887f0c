//! Names as text: rules are applied to names in this form.

use hickory_proto::rr::Name;

use crate::dns::chain::plugin::PluginError;
use crate::dns::message::presentation::parse_name;

/// Parses a name that a rule has produced.
///
/// # Errors
/// Fails if the name is invalid (RFC 1035 section 2.3.4).
pub(super) fn parse_rewritten(text: &str) -> Result<Name, PluginError> {
    parse_name(text).ok_or_else(|| PluginError::servfail(format!("invalid name after rewrite: {text}")))
}

/// Returns a name in the form in which rules match names: in lower case, with a dot at the end.
pub(super) fn normalize(text: &str) -> String {
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
    use crate::dns::message::presentation::name_text;

    #[test]
    fn name_text_round_trips() {
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
            let name = parse_rewritten(text_of).unwrap_or_else(|_| panic!("{text_of}"));
            assert_eq!(name_text(&name), text_of);
            assert!(name.is_fqdn());
        }
        for (written, meant) in [("a.b", "a.b."), (r"\097.", "a."), (r"a\.", r"a\.."), ("ü.", r"\195\188.")]
        {
            assert_eq!(name_text(&parse_rewritten(written).unwrap()), meant);
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        let label = format!("{}.", "x".repeat(64));
        let name = format!("{}{}.", format!("{}.", "x".repeat(63)).repeat(3), "x".repeat(62));
        for text in ["", "..", ".a.", "a..b.", "a..", r"a\", r"\999.", &label, &name] {
            let why = format!("invalid name after rewrite: {text}");
            assert_eq!(parse_rewritten(text), Err(PluginError::servfail(why)));
        }
    }

    #[test]
    fn normal_form_is_lower_case_with_a_dot() {
        for (text, meant) in [("", "."), ("A.b", "a.b."), ("a.", "a."), (r"a\.", r"a\.."), (r"a\\.", r"a\\.")]
        {
            assert_eq!(normalize(text), meant);
        }
    }
}
