//! A rule: what it changes in the question, and what is to be done to the answer for that.

use std::borrow::Cow;

use hickory_proto::op::Query;
use hickory_proto::rr::{DNSClass, RecordType};

use super::name_matcher::{NameMatcher, NameRenaming};
use super::names::renamed;
use super::response::ResponseRule;
use crate::dns::chain::plugin::PluginError;
use crate::dns::message::presentation::lower_name_text;

/// A rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) change: RuleChange,
    /// Whether those behind it aren't tried if it applies.
    pub(super) is_last: bool,
}

/// What a rule changes.
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
    /// The answers to questions for these names, or to all.
    Answers {
        names: Option<NameMatcher>,
        response_rule: ResponseRule,
    },
}

/// What changes the name of a question.
#[derive(Debug)]
pub(super) struct NameChange {
    pub(super) from: NameMatcher,
    pub(super) to: String,
    /// Whether the answer is changed back.
    pub(super) auto: bool,
    /// What else is done to the answer.
    pub(super) answers: Vec<ResponseRule>,
}

impl Rule {
    /// Changes the question, and adds what is to be done to the answer. Returns whether the rule was for it.
    ///
    /// # Errors
    /// If the name can't be one.
    pub(super) fn apply<'a>(
        &'a self,
        query: &mut Query,
        response_rule: &mut Vec<Cow<'a, ResponseRule>>,
    ) -> Result<bool, PluginError> {
        match &self.change {
            RuleChange::Name(change) => change.apply(query, response_rule),
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
            RuleChange::Answers { names, response_rule: what } => {
                let applies = names.as_ref().is_none_or(|names| names.matches(&matched(query)));
                if applies {
                    response_rule.push(Cow::Borrowed(what));
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
        response_rule: &mut Vec<Cow<'a, ResponseRule>>,
    ) -> Result<bool, PluginError> {
        let before = matched(query);
        let Some(after) = self.from.replace(&before, &self.to) else { return Ok(false) };
        query.set_name(renamed(&after)?);
        if self.auto {
            let back = NameRenaming::Tree { from: after, to: before };
            response_rule
                .extend([ResponseRule::Name(back.clone()), ResponseRule::Value(back)].map(Cow::Owned));
        }
        response_rule.extend(self.answers.iter().map(Cow::Borrowed));
        Ok(true)
    }
}

/// Returns the name of a question as it is matched.
fn matched(query: &Query) -> String {
    lower_name_text(query.name())
}
