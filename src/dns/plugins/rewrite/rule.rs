//! A rule: its change of the query, and the resulting changes of the answer.

use std::borrow::Cow;

use hickory_proto::op::Query;
use hickory_proto::rr::{DNSClass, RecordType};

use super::edns0::{AddedOptions, Edns0Rule};
use super::name_matcher::{NameMatcher, NameRenaming};
use super::names::parse_rewritten;
use super::response::ResponseRule;
use crate::dns::chain::plugin::PluginError;
use crate::dns::chain::request::Request;
use crate::dns::message::presentation::lower_name_text;

#[derive(Debug)]
pub(super) struct Rule {
    pub(super) change: RuleChange,
    /// Whether no further rule is tried if this rule matches.
    pub(super) is_last: bool,
}

/// A query as rules have changed it.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) query: Query,
    pub(super) options: AddedOptions,
}

#[derive(Debug)]
pub(super) enum RuleChange {
    Name(NameChange),
    Type {
        from: RecordType,
        to: RecordType,
    },
    Class {
        from: DNSClass,
        to: DNSClass,
    },
    Edns0(Edns0Rule),
    /// A change of the answers to queries for these names, or for all names.
    Answers {
        names: Option<NameMatcher>,
        response_rule: ResponseRule,
    },
}

#[derive(Debug)]
pub(super) struct NameChange {
    pub(super) from: NameMatcher,
    pub(super) to: String,
    /// Whether the new name is changed back in the answer. A `suffix` rule with `answer auto` has its changes back in
    /// `answers` instead.
    pub(super) renames_back: bool,
    pub(super) answers: Vec<ResponseRule>,
}

impl Rule {
    /// Returns the label of *metadata* that the rule uses.
    pub(super) fn label(&self) -> Option<&str> {
        match &self.change {
            RuleChange::Edns0(rule) => rule.label(),
            _ => None,
        }
    }

    /// Changes the query, and adds the changes of the answer. Returns whether the rule matches the query.
    ///
    /// # Errors
    /// Fails if the new name is invalid.
    pub(super) fn apply<'a>(
        &'a self,
        request: &Request,
        rewritten: &mut Rewritten,
        response_rules: &mut Vec<Cow<'a, ResponseRule>>,
    ) -> Result<bool, PluginError> {
        let Rewritten { query, options } = rewritten;
        match &self.change {
            RuleChange::Name(change) => change.apply(query, response_rules),
            RuleChange::Type { from, to } => {
                let applies = query.query_type() == *from;
                if applies {
                    query.set_query_type(*to);
                }
                Ok(applies)
            }
            RuleChange::Class { from, to } => {
                let applies = query.query_class() == *from;
                if applies {
                    query.set_query_class(*to);
                }
                Ok(applies)
            }
            RuleChange::Edns0(rule) => Ok(rule.apply(request, query, options)),
            RuleChange::Answers { names, response_rule: what } => {
                let applies = names.as_ref().is_none_or(|names| names.matches(&matched(query)));
                if applies {
                    response_rules.push(Cow::Borrowed(what));
                }
                Ok(applies)
            }
        }
    }
}

impl NameChange {
    fn apply<'a>(
        &'a self,
        query: &mut Query,
        response_rules: &mut Vec<Cow<'a, ResponseRule>>,
    ) -> Result<bool, PluginError> {
        let before = matched(query);
        let Some(after) = self.from.replace(&before, &self.to) else { return Ok(false) };
        query.set_name(parse_rewritten(&after)?);
        if self.renames_back {
            let back = NameRenaming::Tree { from: after, to: before };
            response_rules
                .extend([ResponseRule::Name(back.clone()), ResponseRule::Value(back)].map(Cow::Owned));
        }
        response_rules.extend(self.answers.iter().map(Cow::Borrowed));
        Ok(true)
    }
}

/// Returns the query's name as text in lower case, as name matchers need it.
fn matched(query: &Query) -> String {
    lower_name_text(query.name())
}
