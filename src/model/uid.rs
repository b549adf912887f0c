//! What tells an object from another one of its name.

use std::fmt;

use uuid::Uuid;

/// `metadata.uid` of an object; empty where the source has none.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Uid(UidForm);

#[derive(Clone, PartialEq, Eq, Default)]
enum UidForm {
    #[default]
    None,
    /// What the API server gives: a third of its text.
    Uuid(Uuid),
    Other(Box<str>),
}

impl Uid {
    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == UidForm::None
    }
}

/// Returns the UUID that is written so, as Kubernetes writes them: it can be in several ways, and two of them are two
/// uids.
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
    fn a_uid_is_the_text_that_it_was_made_of_and_no_other() {
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
