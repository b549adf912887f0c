//! Reads an object of a manifest by its schema, as strictly as kubectl and the API server do.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value};
use serde_saphyr::{Location, Spanned};

use super::schema::{Field, Schema};
use super::strings::{SourceText, boolean, is_plain, is_same_key, length, misread_string};
use super::tree::{Node, place};
use crate::model::excerpt::{sentence, value};
use crate::model::names;

/// Maximum number of errors that are reported for a file.
pub(super) const MAX_ERRORS: usize = 20;

/// A part of a manifest that is refused.
#[derive(Debug)]
pub(super) struct FieldError {
    pub(super) position: Location,
    /// The field and the reason.
    pub(super) message: String,
}

type Entry = (Spanned<Node>, Spanned<Node>);

/// Collects what the schema of an object refuses.
pub(super) struct Reader<'a> {
    content: &'a SourceText<'a>,
    /// The position of the object.
    object: Location,
    refused: Vec<FieldError>,
    /// The positions of the fields.
    places: HashMap<String, Location>,
}

impl<'a> Reader<'a> {
    /// Returns a reader that has read the object, and the fields that the schema knows.
    ///
    /// # Errors
    /// All fields that the schema refuses.
    pub(super) fn read(
        content: &'a SourceText<'a>,
        schema: &Schema,
        object: &Spanned<Node>,
    ) -> Result<(Self, Value), Vec<FieldError>> {
        let place = place(object);
        let mut reader = Self { content, object: place, refused: Vec::new(), places: HashMap::new() };
        let tree = reader.take("", schema, object).unwrap_or_default();
        match reader.refused.is_empty() {
            true => Ok((reader, tree)),
            false => Err(reader.refused),
        }
    }

    /// Returns the object that was read, unless something is refused.
    pub(super) fn finish<T>(self, object: T) -> Result<T, Vec<FieldError>> {
        if self.refused.is_empty() { Ok(object) } else { Err(self.refused) }
    }

    /// Refuses the field at a path, at the position of the nearest field around it that exists.
    pub(super) fn refuse_field(&mut self, path: &str, why: impl Into<String>) {
        self.refuse(self.place_of(path).unwrap_or(self.object), why);
    }

    /// Refuses a name or namespace that isn't a DNS label.
    pub(super) fn check_label(&mut self, path: &str, label: &str) {
        if !names::is_label(label) {
            let label = value(label);
            self.refuse_field(
                path,
                format!("{path} {label} isn't 1 to 63 lower-case letters, digits and hyphens"),
            );
        }
    }

    fn refuse(&mut self, position: Location, why: impl Into<String>) {
        if self.refused.len() < MAX_ERRORS {
            self.refused.push(FieldError { position, message: why.into() });
        }
    }

    fn place_of(&self, mut path: &str) -> Option<Location> {
        loop {
            if let Some(place) = self.places.get(path) {
                return Some(*place);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Returns the value of a field. Returns `None` for a value that isn't read, or that is refused.
    fn take(&mut self, path: &str, schema: &Schema, node: &Spanned<Node>) -> Option<Value> {
        let place = place(node);
        self.places.insert(path.to_owned(), place);
        let expected = match (schema, &node.value) {
            (Schema::Any, _) => return None,
            (Schema::Object(fields), Node::Map(entries)) => {
                return Some(self.take_object(path, fields, entries, place));
            }
            (Schema::Texts, Node::Map(entries)) => return Some(self.take_texts(path, entries)),
            (Schema::List(schema), Node::List(items)) => {
                let items = items.iter().enumerate();
                return Some(
                    items.filter_map(|(i, item)| self.take(&format!("{path}[{i}]"), schema, item)).collect(),
                );
            }
            (Schema::Text | Schema::Time, Node::Scalar(scalar)) if !scalar.is_null() => {
                let text = self.take_text(path, scalar, node);
                let is_valid = !matches!(schema, Schema::Time) || is_time(&text);
                if is_valid {
                    return Some(text);
                }
                "a time, such as 2026-11-27T10:20:00Z"
            }
            (Schema::Integer | Schema::Port, Node::Scalar(Value::Number(number))) if number.is_i64() => {
                return self.take_integer(path, schema, number, node);
            }
            (Schema::Integer | Schema::Port, Node::Scalar(Value::String(text)))
                if text.parse::<i64>().is_ok() && !is_plain(self.content, text, node.defined) =>
            {
                let text = sentence(text).to_string();
                self.refuse(
                    place,
                    format!("{path}: \"{text}\" is a string, and has to be a number: write {text}"),
                );
                return None;
            }
            (Schema::Boolean, Node::Scalar(Value::Bool(is))) => return Some((*is).into()),
            (Schema::Boolean, Node::Scalar(Value::String(text)))
                if is_plain(self.content, text, node.defined) && boolean(text).is_some() =>
            {
                return boolean(text).map(Value::from);
            }
            _ => schema.name(),
        };
        self.refuse(place, format!("{}: must be {expected}", sentence(path)));
        None
    }

    fn take_integer(
        &mut self,
        path: &str,
        schema: &Schema,
        number: &serde_json::Number,
        node: &Spanned<Node>,
    ) -> Option<Value> {
        // YAML 1.1 reads other spellings, such as 017, as another number.
        if length(node.defined) != number.to_string().len() {
            let spelled = sentence(self.content.spelled(node.defined)).to_string();
            self.refuse(place(node), format!("{path}: {spelled} must be written as {number}"));
        }
        let is_port = || number.as_u64().is_some_and(|port| (1..=u16::MAX.into()).contains(&port));
        if matches!(schema, Schema::Port) && !is_port() {
            self.refuse(
                place(node),
                format!("{path}: {number} isn't a port: write a number from 1 to 65535"),
            );
        }
        Some(number.clone().into())
    }

    fn take_object(
        &mut self,
        path: &str,
        fields: &[Field],
        entries: &[Entry],
        object_place: Location,
    ) -> Value {
        let mut object = Map::new();
        for (key, value_) in entries {
            let name = self.key(key);
            let path = join(path, name);
            match fields.iter().find(|field| field.name == name) {
                None => self.refuse(place(key), format!("unknown field {}", value(&path))),
                // As in the API server, null means that the field is missing.
                Some(_) if is_null(value_) => {}
                Some(field) => {
                    if let Some(taken) = self.take(&path, &field.schema, value_) {
                        object.insert(name.to_owned(), taken);
                    }
                }
            }
        }
        let has = |name| entries.iter().any(|(key, value)| key.value.is_text(name) && !is_null(value));
        for field in fields.iter().filter(|field| field.is_required && !has(field.name)) {
            self.refuse(object_place, format!("{}: must be given", join(path, field.name)));
        }
        object.into()
    }

    fn take_texts(&mut self, path: &str, entries: &[Entry]) -> Value {
        let mut object = Map::new();
        for (key, value) in entries {
            let name = self.key(key);
            let path = join(path, name);
            let misread = misread_string(self.content, &path, name, key.defined);
            if let Some(why) = misread.filter(|_| !is_same_key(name)) {
                self.refuse(place(key), why);
            }
            if !is_null(value)
                && let Some(taken) = self.take(&path, &Schema::Text, value)
            {
                object.insert(name.to_owned(), taken);
            }
        }
        object.into()
    }

    /// Returns the name of a field: of a key that isn't a string, its spelling.
    fn key<'k>(&self, key: &'k Spanned<Node>) -> &'k str
    where
        'a: 'k,
    {
        match &key.value {
            Node::Scalar(Value::String(text)) => text,
            _ => self.content.spelled(key.defined),
        }
    }

    fn take_text(&mut self, path: &str, scalar: &Value, node: &Spanned<Node>) -> Value {
        let spelled = self.content.spelled(node.defined);
        let text: &str = match scalar {
            // The parser changes the spelling of infinity and NaN; in quotes they are ordinary texts.
            Value::String(text) if spelled.trim_start_matches('+').eq_ignore_ascii_case(text) => spelled,
            Value::String(text) => text,
            _ => spelled,
        };
        if let Some(why) = misread_string(self.content, path, text, node.defined) {
            self.refuse(place(node), why);
        }
        text.into()
    }
}

impl Schema {
    fn name(&self) -> &'static str {
        match self {
            Self::Any => "a value",
            Self::Text | Self::Time => "of type string",
            Self::Boolean => "of type boolean",
            Self::Integer | Self::Port => "of type integer",
            Self::List(_) => "of type array",
            Self::Texts | Self::Object(_) => "of type object",
        }
    }
}

fn is_time(text: &Value) -> bool {
    serde_json::from_value::<Time>(text.clone()).is_ok()
}

fn is_null(node: &Spanned<Node>) -> bool {
    matches!(node.value, Node::Scalar(Value::Null))
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
