//! Conditions on a request, as an expression is compiled to. Types are checked before: each part has one type.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use regex::Regex;

use crate::dns::chain::request::Request;
use crate::dns::message::presentation::{class_text, lower_name_text, type_text};
use crate::dns::plugins::nets::unmapped;

#[derive(Debug)]
pub(super) enum Condition {
    Constant(bool),
    Do,
    Not(Box<Condition>),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    If(Box<[Condition; 3]>),
    Same(Box<[Condition; 2]>),
    Compare(Relation, Number, Number),
    CompareTexts(Relation, Text, Text),
    OneOf(Box<Condition>, Vec<Condition>),
    NumberIn(Number, Vec<Number>),
    TextIn(Text, Vec<Text>),
    Contains(Text, Text),
    StartsWith(Text, Text),
    EndsWith(Text, Text),
    Matches(Text, Regex),
    InNet(Address, Net),
}

#[derive(Debug)]
pub(super) enum Text {
    Constant(Box<str>),
    Class,
    ClientIp,
    Name,
    Port,
    Proto,
    ServerIp,
    ServerPort,
    Type,
    Metadata(Box<Text>),
    If(Box<(Condition, Text, Text)>),
}

#[derive(Debug)]
pub(super) enum Number {
    Constant(i64),
    Bufsize,
    Id,
    Opcode,
    Size,
    If(Box<(Condition, Number, Number)>),
}

#[derive(Debug)]
pub(super) enum Address {
    Constant(IpAddr),
    Client,
    Server,
    Text(Text),
}

#[derive(Debug)]
pub(super) enum Net {
    Constant(IpNet),
    Text(Text),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    Greater,
    LessOrEqual,
    GreaterOrEqual,
}

/// What conditions are about.
pub(super) struct Facts<'a> {
    request: &'a Request,
    label: &'a dyn Fn(&str) -> Option<String>,
    name: OnceCell<String>,
}

impl fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts").field("request", self.request).finish_non_exhaustive()
    }
}

impl<'a> Facts<'a> {
    pub(super) fn new(request: &'a Request, label: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { request, label, name: OnceCell::new() }
    }
}

impl Condition {
    /// Returns whether the condition is true; `None` if a text that it depends on isn't an address or a network.
    pub(super) fn holds(&self, facts: &Facts<'_>) -> Option<bool> {
        Some(match self {
            Self::Constant(value) => *value,
            Self::Do => facts.request.dnssec_ok(),
            Self::Not(inner) => !inner.holds(facts)?,
            Self::All(parts) => return first(parts, false, facts),
            Self::Any(parts) => return first(parts, true, facts),
            Self::If(parts) => {
                let [condition, then, otherwise] = &**parts;
                return if condition.holds(facts)? { then } else { otherwise }.holds(facts);
            }
            Self::Same(sides) => sides[0].holds(facts)? == sides[1].holds(facts)?,
            Self::Compare(relation, left, right) => {
                relation.holds(left.value(facts)?.cmp(&right.value(facts)?))
            }
            Self::CompareTexts(relation, left, right) => {
                relation.holds(left.value(facts)?.cmp(&right.value(facts)?))
            }
            Self::OneOf(value, list) => is_in(value.holds(facts)?, list, |part| part.holds(facts))?,
            Self::NumberIn(value, list) => is_in(value.value(facts)?, list, |part| part.value(facts))?,
            Self::TextIn(value, list) => is_in(value.value(facts)?, list, |part| part.value(facts))?,
            Self::Contains(text, part) => text.value(facts)?.contains(&*part.value(facts)?),
            Self::StartsWith(text, part) => text.value(facts)?.starts_with(&*part.value(facts)?),
            Self::EndsWith(text, part) => text.value(facts)?.ends_with(&*part.value(facts)?),
            Self::Matches(text, regex) => regex.is_match(&text.value(facts)?),
            Self::InNet(address, net) => {
                let address = address.value(facts);
                let net = net.value(facts);
                net?.contains(&address?)
            }
        })
    }
}

/// Returns `wanted` if a part has this value, and else the opposite. The parts behind it aren't looked at.
fn first(parts: &[Condition], wanted: bool, facts: &Facts<'_>) -> Option<bool> {
    for part in parts {
        if part.holds(facts)? == wanted {
            return Some(wanted);
        }
    }
    Some(!wanted)
}

/// Returns whether a list has a value. In CoreDNS, too, the whole list has to have values.
fn is_in<'a, T, V: PartialEq>(value: V, list: &'a [T], of: impl Fn(&'a T) -> Option<V>) -> Option<bool> {
    let list: Vec<V> = list.iter().map(of).collect::<Option<_>>()?;
    Some(list.contains(&value))
}

impl Text {
    fn value<'a>(&'a self, facts: &'a Facts<'_>) -> Option<Cow<'a, str>> {
        let request = facts.request;
        Some(match self {
            Self::Constant(text) => Cow::Borrowed(text),
            Self::Class => class_text(request.query.query_class()),
            Self::ClientIp => request.client.ip().to_canonical().to_string().into(),
            Self::Name => Cow::Borrowed(facts.name.get_or_init(|| lower_name_text(request.query.name()))),
            Self::Port => request.client.port().to_string().into(),
            Self::Proto => Cow::Borrowed(request.proto_text()),
            Self::ServerIp => request.local.ip().to_canonical().to_string().into(),
            Self::ServerPort => request.local.port().to_string().into(),
            Self::Type => type_text(request.query.query_type()),
            Self::Metadata(label) => (facts.label)(&label.value(facts)?).unwrap_or_default().into(),
            Self::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                return if condition.holds(facts)? { then } else { otherwise }.value(facts);
            }
        })
    }
}

impl Number {
    fn value(&self, facts: &Facts<'_>) -> Option<i64> {
        let request = facts.request;
        Some(match self {
            Self::Constant(number) => *number,
            Self::Bufsize => request.accepted_size().into(),
            Self::Id => request.metadata.id.into(),
            Self::Opcode => u8::from(request.metadata.op_code).into(),
            Self::Size => i64::try_from(request.length()).unwrap_or(i64::MAX),
            Self::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                return if condition.holds(facts)? { then } else { otherwise }.value(facts);
            }
        })
    }
}

impl Address {
    fn value(&self, facts: &Facts<'_>) -> Option<IpAddr> {
        let address = match self {
            Self::Constant(address) => *address,
            Self::Client => facts.request.client.ip(),
            Self::Server => facts.request.local.ip(),
            Self::Text(text) => text.value(facts)?.parse().ok()?,
        };
        Some(address.to_canonical())
    }
}

impl Net {
    fn value(&self, facts: &Facts<'_>) -> Option<IpNet> {
        match self {
            Self::Constant(net) => Some(*net),
            Self::Text(text) => text.value(facts)?.parse().ok().map(unmapped),
        }
    }
}

impl Relation {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::Greater => ordering.is_gt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}
