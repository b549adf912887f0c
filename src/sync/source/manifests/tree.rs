//! A YAML document as a tree, with the position of each key and value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

#[derive(Debug)]
pub(super) enum Node {
    /// Neither an array nor an object; null is a scalar, too.
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    /// Keys may be of any type in documents of other kinds.
    Map(Vec<(Spanned<Self>, Spanned<Self>)>),
}

impl Node {
    /// Returns the value of a field of a map.
    pub(super) fn field(&self, name: &str) -> Option<&Spanned<Self>> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(key, _)| key.value.is_text(name)).map(|(_, value)| value)
    }

    pub(super) fn is_text(&self, text: &str) -> bool {
        matches!(self, Self::Scalar(Value::String(found)) if found == text)
    }

    /// Returns a field of a map, if it is a string.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match &self.field(name)?.value {
            Self::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// Returns the position of a value in its file. An alias is reported where it is used.
pub(super) fn place<T>(value: &Spanned<T>) -> Location {
    value.referenced
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML value")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Scalar(Value::Null))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Scalar(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Scalar(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Scalar(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Scalar(value.into()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Scalar(value.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }
        }

        deserializer.deserialize_any(All)
    }
}
