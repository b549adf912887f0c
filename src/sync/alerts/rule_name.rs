//! The names of PrometheusRules.

use crate::model::names::hash_of;

/// Start of the name of each PrometheusRule.
const PREFIX: &str = "lb-linker-";
/// Maximum length of the name of an object.
const MAX_NAME: usize = 253;
/// The digits of the hash in a name that was cut.
const HASH_DIGITS: usize = 16;

/// Returns the name of the PrometheusRule of a StableName with this name. A name that would be too long is cut,
/// and ends in a hash.
pub(crate) fn rule_name(name: &str) -> String {
    let whole = format!("{PREFIX}{name}");
    if whole.len() <= MAX_NAME {
        return whole;
    }
    let hash = &hash_of(name)[..HASH_DIGITS];
    let cut: String = whole.chars().take(MAX_NAME - 1 - HASH_DIGITS).collect();
    format!("{}-{hash}", cut.trim_end_matches(['-', '.']))
}

/// Returns the name of the StableName whose PrometheusRule has this name; `None` without the prefix. For a cut name
/// the result isn't the name of any StableName.
pub(super) fn target_name(rule: &str) -> Option<&str> {
    rule.strip_prefix(PREFIX)
}
