//! Parses rules.

use std::sync::Arc;

use hickory_proto::rr::{DNSClass, RecordType};
use regex::{Regex, RegexBuilder};

use super::cname::CnameRule;
use super::edns0::Edns0Rule;
use super::name_matcher::{NameMatcher, NameRenaming};
use super::rcode::{self, RcodeRule};
use super::response::ResponseRule;
use super::rule::{NameChange, Rule, RuleChange};
use super::{NAME, names};
use crate::dns::corefile::arguments::{MAX_REGEX, regex_error_text};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::presentation::{parse_class, parse_type};
use crate::dns::plugins::ttl_limits::TtlRange;

const RULES: &str = "name, type, class, ttl, rcode, cname, edns0";
/// The number of groups that CoreDNS looks for in a text.
const MAX_GROUPS: usize = 101;

/// Parses the rule of a line, or of the lines in its braces.
pub(super) fn rule(line: &Directive) -> Result<Rule, CorefileError> {
    let words = words(line)?;
    let is = |word: &Token, text| word.text.eq_ignore_ascii_case(text);
    let (is_last, words) = match &words[..] {
        [first, words @ ..] if is(first, "continue") => (false, words),
        [first, words @ ..] if is(first, "stop") => (true, words),
        words => (true, words),
    };
    let [kind, arguments @ ..] = words else {
        return Err(line.missing_argument(&format!("a rule, which begins with one of {RULES}")));
    };
    let change = match &*kind.text.to_lowercase() {
        "name" => name(kind, arguments)?,
        "type" => {
            let [from, to] = from_and_to(kind, arguments)?;
            RuleChange::Type { from: qtype(from)?, to: qtype(to)? }
        }
        "class" => {
            let [from, to] = from_and_to(kind, arguments)?;
            RuleChange::Class { from: class(from)?, to: class(to)? }
        }
        "ttl" => {
            let (names, [ttl]) = matcher_and_rest(kind, arguments, "a name and a TTL")?;
            RuleChange::Answers {
                names: Some(names),
                response_rule: ResponseRule::Ttl(TtlRange::parse(ttl)?),
            }
        }
        "rcode" => {
            let (names, [old, new]) = matcher_and_rest(kind, arguments, "a name and two RCODEs")?;
            let recode = RcodeRule { old: rcode::parse(old)?, new: rcode::parse(new)? };
            RuleChange::Answers { names: Some(names), response_rule: ResponseRule::Rcode(recode) }
        }
        "cname" => RuleChange::Answers { names: None, response_rule: cname(kind, arguments)? },
        "answer" => {
            return Err(
                kind.error("answer has to follow a name rule: name regex FROM TO answer name FROM TO")
            );
        }
        "edns0" => RuleChange::Edns0(Edns0Rule::parse(kind, arguments)?),
        _ => return Err(kind.error(format!("{NAME} has no rule {:?}; it has {RULES}", kind.text))),
    };
    Ok(Rule { change, is_last })
}

/// Returns the words of a rule: the arguments of the line, followed by the words of the lines in its braces.
fn words(line: &Directive) -> Result<Vec<&Token>, CorefileError> {
    let mut words: Vec<&Token> = line.arguments().iter().collect();
    if line.block.is_some() && words.len() > 1 {
        return Err(
            line.error(format!("braces can follow {NAME}, {NAME} continue and {NAME} stop, nothing else"))
        );
    }
    for option in line.options() {
        option.no_block()?;
        words.extend(&option.tokens);
    }
    Ok(words)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchKind {
    Exact,
    Prefix,
    Suffix,
    Substring,
    Regex,
}

impl MatchKind {
    fn parse(word: &Token) -> Result<Self, CorefileError> {
        match &*word.text.to_lowercase() {
            "exact" => Ok(Self::Exact),
            "prefix" => Ok(Self::Prefix),
            "suffix" => Ok(Self::Suffix),
            "substring" => Ok(Self::Substring),
            "regex" => Ok(Self::Regex),
            _ => Err(word.error(format!(
                "{:?} isn't exact, prefix, suffix, substring or regex; with this number of words, the first has to \
                 be one of these",
                word.text
            ))),
        }
    }

    fn of(self, text: String, word: &Token) -> Result<NameMatcher, CorefileError> {
        Ok(match self {
            Self::Exact => NameMatcher::Exact(text),
            Self::Prefix => NameMatcher::Prefix(text),
            Self::Suffix => NameMatcher::Suffix(text),
            Self::Substring => NameMatcher::Substring(text),
            Self::Regex => NameMatcher::Regex(regex(&text, word)?),
        })
    }

    fn of_names(self, word: &Token) -> Result<NameMatcher, CorefileError> {
        let text = if self == Self::Regex { word.text.clone() } else { names::normalize(&word.text) };
        self.of(text, word)
    }
}

fn from_and_to<'a>(kind: &Token, arguments: &[&'a Token]) -> Result<[&'a Token; 2], CorefileError> {
    match arguments {
        [from, to] => Ok([from, to]),
        [_, _, more, ..] => Err(superfluous_word(kind, more)),
        _ => Err(kind.needs("FROM and TO")),
    }
}

/// Splits arguments into the kind of match, the name, and N more words.
fn split_match_kind<'a, const N: usize>(
    kind: &Token,
    arguments: &[&'a Token],
    what: &str,
) -> Result<(MatchKind, &'a Token, [&'a Token; N]), CorefileError> {
    if let [name, rest @ ..] = arguments
        && let Ok(rest) = rest.try_into()
    {
        return Ok((MatchKind::Exact, name, rest));
    }
    match arguments {
        [how, name, rest @ ..] if rest.len() >= N => {
            let how = MatchKind::parse(how)?;
            if let Some(more) = rest.get(N) {
                return Err(superfluous_word(kind, more));
            }
            let rest = rest.try_into().map_err(|_| kind.needs(what))?;
            Ok((how, name, rest))
        }
        _ => Err(kind.needs(what)),
    }
}

/// Parses a matcher for names in queries, and N more words.
fn matcher_and_rest<'a, const N: usize>(
    kind: &Token,
    arguments: &[&'a Token],
    what: &str,
) -> Result<(NameMatcher, [&'a Token; N]), CorefileError> {
    let (how, name, rest) = split_match_kind(kind, arguments, what)?;
    Ok((how.of_names(name)?, rest))
}

/// Parses a type, ignoring case.
fn qtype(word: &Token) -> Result<RecordType, CorefileError> {
    parse_type(&word.text.to_ascii_uppercase())
        .ok_or_else(|| word.unexpected("a type such as A, AAAA or ANY"))
}

/// Parses a class, ignoring case.
fn class(word: &Token) -> Result<DNSClass, CorefileError> {
    let class = parse_class(&word.text.to_ascii_uppercase());
    class.ok_or_else(|| word.unexpected("a class: IN, CS, CH, HS, NONE or ANY"))
}

fn superfluous_word(kind: &Token, more: &Token) -> CorefileError {
    more.error(format!(
        "{:?} is one word too many for {}: each rule has a line or braces of its own",
        more.text, kind.text
    ))
}

fn name(kind: &Token, arguments: &[&Token]) -> Result<RuleChange, CorefileError> {
    let (how, from, to, rest) = match arguments {
        [from, to] => (MatchKind::Exact, from, to, &[][..]),
        [how, from, to, rest @ ..] => (MatchKind::parse(how)?, from, to, rest),
        _ => return Err(kind.needs("FROM and TO")),
    };
    let matching = how.of_names(from)?;
    if let NameMatcher::Regex(regex) = &matching {
        check_groups(regex, to)?;
    }
    let to = names::normalize(&to.text);
    let (mut renames_back, mut answers) = answers_of(rest)?;
    match &matching {
        NameMatcher::Exact(_) => renames_back = true,
        // The change back applies to all names with this suffix, not only to the name in the query.
        NameMatcher::Suffix(suffix) if renames_back => {
            renames_back = false;
            let back = NameRenaming::Match { from: NameMatcher::Suffix(to.clone()), to: suffix.clone() };
            answers.splice(..0, [ResponseRule::Name(back.clone()), ResponseRule::Value(back)]);
        }
        _ => {}
    }
    Ok(RuleChange::Name(NameChange { from: matching, to, renames_back, answers }))
}

/// Parses the words after FROM and TO of a name rule. Returns whether names in the answer are changed back (`auto`),
/// and the other changes of the answer.
fn answers_of(mut words: &[&Token]) -> Result<(bool, Vec<ResponseRule>), CorefileError> {
    let (mut auto, mut name) = (None, false);
    let mut answers = Vec::new();
    let mut is_first = true;
    while let [word, behind @ ..] = words {
        let (what, behind) = match (&*word.text, behind) {
            ("answer", [what, behind @ ..]) => (what, behind),
            ("answer", []) => return Err(word.needs("auto, name FROM TO or value FROM TO")),
            _ if is_first => {
                return Err(word.error(format!(
                    "only answer can follow FROM and TO, and here is {:?}; each rule has a line or braces of its own",
                    word.text
                )));
            }
            _ => (word, behind),
        };
        is_first = false;
        words = match (&*what.text, behind) {
            ("auto", _) => {
                auto = Some(what);
                behind
            }
            (kind @ ("name" | "value"), [from, to, behind @ ..]) => {
                let regex = regex(&from.text, from)?;
                check_groups(&regex, to)?;
                let renaming =
                    NameRenaming::Match { from: NameMatcher::Regex(regex), to: names::normalize(&to.text) };
                name |= kind == "name";
                answers.push(if kind == "name" {
                    ResponseRule::Name(renaming)
                } else {
                    ResponseRule::Value(renaming)
                });
                behind
            }
            ("name" | "value", _) => {
                return Err(what.error(format!("answer {} needs FROM and TO", what.text)));
            }
            _ => return Err(what.unexpected("auto, name or value, which can follow answer")),
        };
    }
    match auto {
        Some(word) if name => Err(word.error("answer auto and answer name exclude each other")),
        auto => Ok((auto.is_some(), answers)),
    }
}

fn cname(kind: &Token, arguments: &[&Token]) -> Result<ResponseRule, CorefileError> {
    let (how, from, [to]) = split_match_kind(kind, arguments, "FROM and TO")?;
    for word in [from, to] {
        if word.text.is_empty() {
            return Err(word.unexpected("a name, or a part of one"));
        }
    }
    let normal = |word: &Token| match how {
        MatchKind::Exact => names::normalize(&word.text),
        _ => word.text.to_lowercase(),
    };
    let from = how.of(normal(from), from)?;
    Ok(ResponseRule::Cname(CnameRule { from, to: normal(to), failures: Arc::default() }))
}

fn regex(text: &str, word: &Token) -> Result<Regex, CorefileError> {
    if text.len() > MAX_REGEX {
        return Err(word.error(format!(
            "a regular expression has {MAX_REGEX} bytes at most, and this one has {}",
            text.len()
        )));
    }
    // Go's regular expressions have octal escapes such as \123.
    RegexBuilder::new(text).octal(true).build().map_err(|error| {
        word.error(format!("{text:?} isn't a regular expression: {}", regex_error_text(&error)))
    })
}

/// Checks that `to` uses no more groups than the regular expression has. Counts the used groups as CoreDNS does: `{0}`
/// counts, and the numbers of the groups aren't checked.
fn check_groups(regex: &Regex, to: &Token) -> Result<(), CorefileError> {
    let used = (0..MAX_GROUPS).filter(|number| to.text.contains(&format!("{{{number}}}"))).count();
    // The first group is the whole match.
    let groups = regex.captures_len() - 1;
    if used > groups {
        return Err(to.error(format!(
            "{:?} uses {used} group{}, and the regular expression {:?} has {groups}",
            to.text,
            if used == 1 { "" } else { "s" },
            regex.as_str()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
