//! What expressions are about: the question and what was found in it.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// What `.` is at the start of a template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    /// The zone of the template that the name is in.
    pub(crate) zone: String,
    /// The name, in lower case.
    pub(crate) name: String,
    /// The expression that matched.
    pub(crate) regex: String,
    /// The class: that of the template where the question's is ANY.
    pub(crate) class: String,
    /// The type: that of the template where the question's is ANY.
    pub(crate) rtype: String,
    /// What matched: the whole and each group.
    pub(crate) matches: Vec<String>,
    /// The same, by number and by name.
    pub(crate) group: BTreeMap<String, String>,
    /// The message.
    pub(crate) message: Message,
    /// The client's address.
    pub(crate) remote: String,
}

/// The message that holds the question.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    /// Its number.
    pub(crate) id: u16,
    /// What it is: 0 is a question.
    pub(crate) opcode: u8,
    /// AA.
    pub(crate) authoritative: bool,
    /// TC.
    pub(crate) truncated: bool,
    /// RD.
    pub(crate) recursion_desired: bool,
    /// RA.
    pub(crate) recursion_available: bool,
    /// AD.
    pub(crate) authentic_data: bool,
    /// CD.
    pub(crate) checking_disabled: bool,
    /// The one question.
    pub(crate) questions: [QuestionValue; 1],
}

/// A question.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuestionValue {
    /// The name, as it was asked.
    pub(crate) name: String,
    /// The number of the type.
    pub(crate) qtype: u16,
    /// The number of the class.
    pub(crate) qclass: u16,
}

/// The type of a value.
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

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// What a map has at a key that it doesn't have.
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
    /// As Go calls it.
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
    /// If there is no such field.
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
        if (self, name) == (Self::Data, "Meta") {
            return Err(".Meta needs CoreDNS's plugin metadata, which isn't supported here".to_owned());
        }
        fields.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind).ok_or_else(|| {
            let known: Vec<String> = fields.iter().map(|(known, _)| format!(".{known}")).collect();
            format!("{} has no field .{name} here; it has {}", self.name(), known.join(", "))
        })
    }

    /// Returns the types of what `range` gives: the number or key, and the value.
    ///
    /// # Errors
    /// If it isn't a list or a map.
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
    /// Returns its type; nothing has none.
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

    /// Returns a field.
    ///
    /// # Errors
    /// If there is no such field.
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
            // Answers are never answered, so this is a question, which has no code.
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

    /// Returns whether Go takes it for true: it isn't empty or zero.
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

    /// Returns it as Go prints it.
    ///
    /// # Errors
    /// If it is neither a string, a bool, a number nor a collection of strings.
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
