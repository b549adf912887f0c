//! The names of all fields that a type deserializes, for tests.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

/// Returns the paths of all fields of a type that is derived from an API of Kubernetes, with `[]` for a list.
pub(super) fn fields_of<T: DeserializeOwned>() -> BTreeSet<String> {
    let found = RefCell::default();
    T::deserialize(Probe { path: String::new(), found: &found }).map(drop).unwrap();
    found.into_inner()
}

/// Gives each type what it asks for: an object all fields that it knows, and a list one item.
struct Probe<'a> {
    path: String,
    found: &'a RefCell<BTreeSet<String>>,
}

impl<'a> Probe<'a> {
    fn below(&self, name: &str) -> Self {
        Self { path: format!("{}{name}", self.path), found: self.found }
    }

    fn text(&self) -> &'static str {
        match self.path.as_str() {
            ".apiVersion" => "v1",
            ".kind" => "Service",
            _ => "2026-01-01T00:00:00Z",
        }
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Once(Some(self.below("[]"))))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Fields { names: [].iter(), name: "", of: self })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.found.borrow_mut().extend(names.iter().map(|name| format!("{}.{name}", self.path)));
        visitor.visit_map(Fields { names: names.iter(), name: "", of: self })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum
        identifier ignored_any
    }
}

struct Once<'a>(Option<Probe<'a>>);

impl<'de> SeqAccess<'de> for Once<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.take().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Fields<'a> {
    names: std::slice::Iter<'static, &'static str>,
    name: &'static str,
    of: Probe<'a>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        self.name = name;
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.of.below(&format!(".{}", self.name)))
    }
}
