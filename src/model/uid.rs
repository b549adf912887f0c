//! The uid of an object, which distinguishes it from other objects with the same name.

use std::fmt;

/// `metadata.uid` of an object; empty if the source has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
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
