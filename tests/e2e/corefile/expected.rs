//! The differences that stay, and why.

/// A difference that stays.
pub struct Expected {
    pub reason: &'static str,
    /// Group, question as in its table, and fields. `*` stands for anything; a question that is asked the second time
    /// ends in ` #2`.
    pub at: &'static [(&'static str, &'static str, &'static str)],
}

/// All of them.
pub const EXPECTED: &[Expected] = &[];

/// Where in [`EXPECTED`] a line stands.
pub type At = (usize, usize);

/// Every line of [`EXPECTED`].
pub fn all() -> impl Iterator<Item = (At, (&'static str, &'static str, &'static str))> {
    EXPECTED.iter().enumerate().flat_map(|(entry, expected)| {
        expected.at.iter().enumerate().map(move |(line, at)| ((entry, line), *at))
    })
}

/// The lines that a difference is expected by.
pub fn matching(group: &str, question: &str, field: &str) -> Vec<At> {
    all()
        .filter(|(_, (in_group, of_question, fields))| {
            *in_group == group && glob(of_question, question) && fields.split(' ').any(|known| known == field)
        })
        .map(|(at, _)| at)
        .collect()
}

pub fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            rest.is_empty() || (0..=text.len()).any(|at| text.is_char_boundary(at) && glob(rest, &text[at..]))
        }),
    }
}

#[test]
fn a_star_stands_for_anything() {
    for (pattern, text, matches) in [
        ("a. A", "a. A", true),
        ("a. A", "a. A tcp", false),
        ("a. A*", "a. A tcp", true),
        ("*", "", true),
        ("* A #2", "b. A #2", true),
        ("* A #2", "b. A #3", false),
    ] {
        assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
    }
}
