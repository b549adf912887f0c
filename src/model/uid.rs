//! The uid of an object, which distinguishes it from other objects with the same name.

use std::fmt;

/// `metadata.uid` of an object; empty if the source has none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Uid(Box<str>);

impl Uid {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Uid {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
