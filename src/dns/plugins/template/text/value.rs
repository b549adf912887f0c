//! Values of expressions: the query, and the groups of the match.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dns::chain::labels::Labels;

/// The initial value of `.` in a template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    pub(crate) zone: String,
    /// The name, in lower case.
    pub(crate) name: String,
    pub(crate) regex: String,
    /// The class; for queries of the class ANY, the class of the template.
    pub(crate) class: String,
    /// The type; for queries of the type ANY, the type of the template.
    pub(crate) rtype: String,
    /// The whole match, and each group.
    pub(crate) matches: Vec<String>,
    /// The groups of `matches`, by number and by name.
    pub(crate) group: BTreeMap<String, String>,
    pub(crate) message: Message,
    pub(crate) remote: String,
    /// Unknown without the plugin *metadata*.
    pub(crate) labels: Option<Arc<Labels>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) id: u16,
    /// The opcode: 0 is QUERY.
    pub(crate) opcode: u8,
    pub(crate) authoritative: bool,
    pub(crate) truncated: bool,
    pub(crate) recursion_desired: bool,
    pub(crate) recursion_available: bool,
    pub(crate) authentic_data: bool,
    pub(crate) checking_disabled: bool,
    pub(crate) questions: [QuestionValue; 1],
}

#[derive(Clone, Debug, Default)]
pub(crate) struct QuestionValue {
    /// The name in the case of the query.
    pub(crate) name: String,
    pub(crate) qtype: u16,
    pub(crate) qclass: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Data,
    Message,
    Question,
    Questions,
    Strings,
    Map,
    Str,
    Bool,
    Int,
    Uint,
}

#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// The value of a missing key of a map.
    None,
    Data(&'a Data),
    Message(&'a Message),
    Question(&'a QuestionValue),
    Questions(&'a [QuestionValue]),
    Strings(&'a [String]),
    Map(&'a BTreeMap<String, String>),
    Str(Cow<'a, str>),
    Bool(bool),
    Int(i64),
    Uint(u64),
}

impl ValueKind {
    /// Returns the name of the type in error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Data => "the data of templates",
            Self::Message => "the message",
            Self::Question => "the question",
            Self::Questions => "the list of questions",
            Self::Strings => "a list of strings",
            Self::Map => "a map of strings",
            Self::Str => "a string",
            Self::Bool => "a bool",
            Self::Int => "an int",
            Self::Uint => "an unsigned int",
        }
    }

    /// Returns the type of a field.
    ///
    /// # Errors
    /// Fails if there is no such field.
    pub(super) fn field(self, name: &str) -> Result<Self, String> {
        let fields: &[(&str, Self)] = match self {
            Self::Map => return Ok(Self::Str),
            Self::Data => &[
                ("Zone", Self::Str),
                ("Name", Self::Str),
                ("Class", Self::Str),
                ("Type", Self::Str),
                ("Match", Self::Strings),
                ("Group", Self::Map),
                ("Regex", Self::Str),
                ("Message", Self::Message),
                ("Question", Self::Question),
                ("Remote", Self::Str),
            ],
            Self::Message => &[
                ("Id", Self::Uint),
                ("Response", Self::Bool),
                ("Opcode", Self::Int),
                ("Authoritative", Self::Bool),
                ("Truncated", Self::Bool),
                ("RecursionDesired", Self::Bool),
                ("RecursionAvailable", Self::Bool),
                ("AuthenticatedData", Self::Bool),
                ("CheckingDisabled", Self::Bool),
                ("Rcode", Self::Int),
                ("Question", Self::Questions),
            ],
            Self::Question => &[("Name", Self::Str), ("Qtype", Self::Uint), ("Qclass", Self::Uint)],
            other => return Err(format!("{} has no fields, and here is .{name}", other.name())),
        };
        fields.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| {
            let known: Vec<String> = fields.iter().map(|(known, _)| format!(".{known}")).collect();
            format!("{} has no field .{name} here; it has {}", self.name(), known.join(", "))
        })
    }

    /// Returns the types of the index or key and of the value in a `range`.
    ///
    /// # Errors
    /// Fails if the type is neither a list nor a map.
    pub(super) fn elements(self) -> Result<(Self, Self), String> {
        match self {
            Self::Strings => Ok((Self::Int, Self::Str)),
            Self::Questions => Ok((Self::Int, Self::Question)),
            Self::Map => Ok((Self::Str, Self::Str)),
            other => Err(format!(
                "range goes over .Match, .Group and .Message.Question, and this is {}",
                other.name()
            )),
        }
    }
}

impl<'a> Value<'a> {
    /// Returns the type of the value; `None` for a missing value.
    pub(super) fn kind(&self) -> Option<ValueKind> {
        Some(match self {
            Self::None => return None,
            Self::Data(_) => ValueKind::Data,
            Self::Message(_) => ValueKind::Message,
            Self::Question(_) => ValueKind::Question,
            Self::Questions(_) => ValueKind::Questions,
            Self::Strings(_) => ValueKind::Strings,
            Self::Map(_) => ValueKind::Map,
            Self::Str(_) => ValueKind::Str,
            Self::Bool(_) => ValueKind::Bool,
            Self::Int(_) => ValueKind::Int,
            Self::Uint(_) => ValueKind::Uint,
        })
    }

    pub(super) fn kind_name(&self) -> &'static str {
        self.kind().map_or("no value", ValueKind::name)
    }

    /// Returns the field `.name` of a value. A missing key of a map gives [`Self::None`].
    ///
    /// # Errors
    /// Fails if a value of this type has no such field.
    pub(super) fn field(&self, name: &str) -> Result<Self, String> {
        match self {
            Self::None => return Ok(Self::None),
            Self::Data(data) => return Self::of_data(data, name),
            Self::Message(message) => return Self::of_message(message, name),
            Self::Question(question) => match name {
                "Name" => return Ok(Self::Str((&question.name).into())),
                "Qtype" => return Ok(Self::Uint(question.qtype.into())),
                "Qclass" => return Ok(Self::Uint(question.qclass.into())),
                _ => {}
            },
            Self::Map(map) => return Ok(map.get(name).map_or(Self::None, |value| Self::Str(value.into()))),
            _ => {}
        }
        Err(self.no_field(name))
    }

    fn of_data(data: &'a Data, name: &str) -> Result<Self, String> {
        Ok(match name {
            "Zone" => Self::Str((&data.zone).into()),
            "Name" => Self::Str((&data.name).into()),
            "Class" => Self::Str((&data.class).into()),
            "Type" => Self::Str((&data.rtype).into()),
            "Match" => Self::Strings(&data.matches),
            "Group" => Self::Map(&data.group),
            "Regex" => Self::Str((&data.regex).into()),
            "Message" => Self::Message(&data.message),
            "Question" => Self::Question(&data.message.questions[0]),
            "Remote" => Self::Str((&data.remote).into()),
            _ => return Err(Self::Data(data).no_field(name)),
        })
    }

    fn of_message(message: &'a Message, name: &str) -> Result<Self, String> {
        Ok(match name {
            "Id" => Self::Uint(message.id.into()),
            "Opcode" => Self::Int(message.opcode.into()),
            "Authoritative" => Self::Bool(message.authoritative),
            "Truncated" => Self::Bool(message.truncated),
            "RecursionDesired" => Self::Bool(message.recursion_desired),
            "RecursionAvailable" => Self::Bool(message.recursion_available),
            "AuthenticatedData" => Self::Bool(message.authentic_data),
            "CheckingDisabled" => Self::Bool(message.checking_disabled),
            // The message is always a query, which has no response code.
            "Response" => Self::Bool(false),
            "Rcode" => Self::Int(0),
            "Question" => Self::Questions(&message.questions),
            _ => return Err(Self::Message(message).no_field(name)),
        })
    }

    fn no_field(&self, name: &str) -> String {
        self.kind()
            .and_then(|kind| kind.field(name).err())
            .unwrap_or_else(|| format!("{} has no field .{name}", self.kind_name()))
    }

    /// Returns whether Go treats the value as true: not empty and not zero.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::None => false,
            Self::Data(_) | Self::Message(_) | Self::Question(_) => true,
            Self::Questions(list) => !list.is_empty(),
            Self::Strings(list) => !list.is_empty(),
            Self::Map(map) => !map.is_empty(),
            Self::Str(text) => !text.is_empty(),
            Self::Bool(is_true) => *is_true,
            Self::Int(number) => *number != 0,
            Self::Uint(number) => *number != 0,
        }
    }

    /// Formats the value as Go does.
    ///
    /// # Errors
    /// Fails for the data of templates, the message, a question and the list of questions.
    pub(super) fn print(&self) -> Result<Cow<'a, str>, String> {
        Ok(match self {
            Self::None => "<no value>".into(),
            Self::Str(text) => text.clone(),
            Self::Bool(is_true) => is_true.to_string().into(),
            Self::Int(number) => number.to_string().into(),
            Self::Uint(number) => number.to_string().into(),
            Self::Strings(list) => format!("[{}]", list.join(" ")).into(),
            Self::Map(map) => {
                let entries: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{value}")).collect();
                format!("map[{}]", entries.join(" ")).into()
            }
            other => return Err(format!("{} can't be written: take a field of it", other.kind_name())),
        })
    }
}
