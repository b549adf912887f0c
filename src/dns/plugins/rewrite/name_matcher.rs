//! Matches and replaces names.

use regex::Regex;

#[derive(Clone, Debug)]
pub(super) enum NameMatcher {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

impl NameMatcher {
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(whole) => name == whole,
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Suffix(suffix) => name.ends_with(suffix),
            Self::Substring(part) => name.contains(part),
            Self::Regex(regex) => regex.is_match(name),
        }
    }

    /// Returns the replacement of a name; `None` if the name doesn't match.
    pub(super) fn replace(&self, name: &str, to: &str) -> Option<String> {
        match self {
            Self::Exact(whole) => (name == whole).then(|| to.to_owned()),
            Self::Prefix(prefix) => name.strip_prefix(prefix.as_str()).map(|rest| format!("{to}{rest}")),
            Self::Suffix(suffix) => name.strip_suffix(suffix.as_str()).map(|rest| format!("{rest}{to}")),
            Self::Substring(part) => name.contains(part).then(|| name.replace(part, to)),
            Self::Regex(regex) => fill(regex, name, to),
        }
    }
}

/// Returns `to` with the groups of a match in place of `{0}`, `{1}`…
fn fill(regex: &Regex, name: &str, to: &str) -> Option<String> {
    let groups = regex.captures(name)?;
    let mut text = to.to_owned();
    for (number, group) in groups.iter().enumerate() {
        text = text.replace(&format!("{{{number}}}"), group.map_or("", |group| group.as_str()));
    }
    Some(text)
}

/// A change of names in answers.
#[derive(Clone, Debug)]
pub(super) enum NameRenaming {
    /// Replaces the matching part of a name; with a regular expression, the whole name.
    Match { from: NameMatcher, to: String },
    /// Replaces the name of a domain, also at the end of the names of its subdomains.
    Tree { from: String, to: String },
}

impl NameRenaming {
    /// Returns the changed name; `None` if the name stays.
    pub(super) fn apply(&self, name: &str) -> Option<String> {
        match self {
            Self::Match { from, to } => from.replace(name, to),
            Self::Tree { from, to } => {
                let above = name.strip_suffix(from.as_str())?;
                (above.is_empty() || above.ends_with('.')).then(|| format!("{above}{to}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_name_is_replaced() {
        let regex = |pattern| NameMatcher::Regex(Regex::new(pattern).unwrap());
        for (matching, name, to, becomes) in [
            (NameMatcher::Exact("a.b.".into()), "a.b.", "c.", Some("c.")),
            (NameMatcher::Exact("a.b.".into()), "x.a.b.", "c.", None),
            (NameMatcher::Prefix("foo.".into()), "foo.b.", "bar.", Some("bar.b.")),
            (NameMatcher::Prefix("foo.".into()), "foot.b.", "bar.", None),
            (NameMatcher::Prefix("foo.".into()), "b.foo.", "bar.", None),
            (NameMatcher::Suffix(".b.".into()), "a.b.", "c.d.", Some("ac.d.")),
            (NameMatcher::Suffix(".b.".into()), "b.", "c.", None),
            (NameMatcher::Substring("b.".into()), "a.b.c.b.", "x.", Some("a.x.c.x.")),
            (NameMatcher::Substring("b.".into()), "a.bc.", "x.", None),
            (regex(r"(.*)-(us-west-1)\.b"), "f-us-west-1.b.", "{1}.s.{2}.c.", Some("f.s.us-west-1.c.")),
            (regex("b"), "a.b.c.", "x{0}{1}$1.", Some("xb{1}$1.")),
            (regex("(x)?b"), "a.b.c.", "{1}y.", Some("y.")),
            (regex("^b"), "a.b.c.", "y.", None),
            // Groups are filled in one after the other: the text of a group may contain the placeholder of the next
            // group.
            (regex(r"(\{2\})(.)"), "{2}z", "{1}.", Some("z.")),
        ] {
            assert_eq!(matching.replace(name, to).as_deref(), becomes, "{matching:?} {name}");
            assert_eq!(matching.matches(name), becomes.is_some(), "{matching:?} {name}");
        }
    }

    #[test]
    fn domain_renaming_matches_the_name_and_its_subdomains() {
        let tree = NameRenaming::Tree { from: "b.c.".into(), to: "x.".into() };
        for (name, becomes) in [
            ("b.c.", Some("x.")),
            ("a.b.c.", Some("a.x.")),
            ("ab.c.", None),
            ("c.", None),
            ("b.c.d.", None),
            ("B.c.", None),
        ] {
            assert_eq!(tree.apply(name).as_deref(), becomes, "{name}");
        }
    }
}
