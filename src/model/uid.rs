//! The uid of an object, which distinguishes it from other objects with the same name.

use std::fmt;

use uuid::Uuid;

/// `metadata.uid` of an object; empty if the source has none.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Uid(UidForm);

#[derive(Clone, PartialEq, Eq, Default)]
enum UidForm {
    #[default]
    None,
    /// The usual form of the API server, in a third of the size of its text.
    Uuid(Uuid),
    Other(Box<str>),
}

impl Uid {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == UidForm::None
    }
}

/// Parses a UUID in the spelling of Kubernetes. A UUID in another spelling is a different uid.
pub(crate) fn uuid(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok()?;
    (*uuid.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text).then_some(uuid)
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        if text.is_empty() {
            return Self(UidForm::None);
        }
        Self(uuid(text).map_or_else(|| UidForm::Other(text.into()), UidForm::Uuid))
    }
}

impl PartialEq<str> for Uid {
    fn eq(&self, text: &str) -> bool {
        match &self.0 {
            UidForm::None => text.is_empty(),
            UidForm::Uuid(uuid) => *uuid.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == *text,
            UidForm::Other(other) => **other == *text,
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            UidForm::None => Ok(()),
            UidForm::Uuid(uuid) => fmt::Display::fmt(uuid.as_hyphenated(), f),
            UidForm::Other(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_equals_only_its_own_text() {
        let texts = [
            "",
            "u",
            "8d5ff5e4-5a2c-4c5e-9f0e-0b5f2ad0c1f7",
            "8D5FF5E4-5A2C-4C5E-9F0E-0B5F2AD0C1F7",
            "8d5ff5e45a2c4c5e9f0e0b5f2ad0c1f7",
            "{8d5ff5e4-5a2c-4c5e-9f0e-0b5f2ad0c1f7}",
        ];
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(Uid::from(*text).to_string(), *text);
            assert_eq!(Uid::from(*text).is_empty(), text.is_empty());
            for (j, other) in texts.iter().enumerate() {
                let uid = Uid::from(*text);
                assert_eq!(uid == **other, i == j, "{text} {other}");
            }
        }
    }
}
