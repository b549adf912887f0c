//! Parses the lines of `acl`.

use hickory_proto::rr::RecordType;

use super::{AclRule, Action, NAME, RuleList};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::presentation::parse_type;
use crate::dns::plugins::nets::{Nets, net};
use crate::dns::plugins::setup::Setup;

const ACTIONS: [&str; 4] = ["allow", "block", "filter", "drop"];
const ALL: &str = "*";

pub(super) fn list(setup: &Setup<'_>, line: &Directive) -> Result<RuleList, CorefileError> {
    let zones = setup.zones_or_own(line.arguments())?;
    let rules = line.options().iter().map(rule).collect::<Result<_, _>>()?;
    Ok(RuleList { zones, rules })
}

fn rule(line: &Directive) -> Result<AclRule, CorefileError> {
    line.no_block()?;
    let action = match &*line.name().to_ascii_lowercase() {
        "allow" => Action::Allow,
        "block" => Action::Block,
        "filter" => Action::Filter,
        "drop" => Action::Drop,
        _ => return Err(line.unknown(NAME, &ACTIONS)),
    };
    let (mut types, mut nets) = (ParsedList::Missing, ParsedList::Missing);
    let mut rest = line.arguments();
    while let Some((key, behind)) = rest.split_first() {
        let Some(is_types) = keyword(key) else { return Err(key.unexpected("type or net")) };
        let end = behind.iter().position(|word| keyword(word).is_some()).unwrap_or(behind.len());
        let (words, next) = behind.split_at(end);
        if is_types {
            types.extend(words, key, "record types such as A, or *", qtype)?;
        } else {
            nets.extend(words, key, "addresses, networks such as 10.0.0.0/8, or *", net)?;
        }
        rest = next;
    }
    Ok(AclRule { action, types: types.some(), nets: nets.some().as_ref().map(Nets::new) })
}

/// Returns `true` for the keyword `type`, `false` for `net`, and `None` for other words.
fn keyword(word: &Token) -> Option<bool> {
    match &*word.text.to_ascii_lowercase() {
        "type" => Some(true),
        "net" => Some(false),
        _ => None,
    }
}

/// The types or the networks of a rule, merged from all its `type` or `net` keywords.
enum ParsedList<T> {
    Missing,
    Some(Vec<T>),
    All,
}

impl<T> ParsedList<T> {
    fn extend(
        &mut self,
        words: &[Token],
        key: &Token,
        what: &str,
        parse: fn(&Token) -> Result<T, CorefileError>,
    ) -> Result<(), CorefileError> {
        if words.is_empty() {
            return Err(key.needs(what));
        }
        for word in words {
            if word.text == ALL {
                *self = Self::All;
                continue;
            }
            let item = parse(word)?;
            match self {
                Self::Missing => *self = Self::Some(vec![item]),
                Self::Some(items) => items.push(item),
                Self::All => {}
            }
        }
        Ok(())
    }

    /// Returns the listed types or networks; `None` if the rule matches all of them.
    fn some(self) -> Option<Vec<T>> {
        match self {
            Self::Some(items) => Some(items),
            Self::Missing | Self::All => None,
        }
    }
}

fn qtype(word: &Token) -> Result<RecordType, CorefileError> {
    // "None" and "Reserved" aren't types of queries.
    let asked = parse_type(&word.text).filter(|qtype| !matches!(u16::from(*qtype), 0 | u16::MAX));
    asked.ok_or_else(|| word.unexpected("a record type, in capitals, such as AAAA"))
}
