//! The TTLs that `ttl` leaves as they are.

use crate::dns::corefile::{CorefileError, Token};

/// What CoreDNS takes for no upper bound (RFC 2181 section 8).
const MAX_TTL: u32 = 0x7fff_ffff;

/// A range of TTLs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    min: u32,
    max: u32,
}

impl Range {
    /// Returns the closest TTL in the range.
    pub(super) fn closest(self, ttl: u32) -> u32 {
        ttl.clamp(self.min, self.max)
    }

    /// Reads `30`, `30-300`, `30-` or `-300`.
    pub(super) fn parse(word: &Token) -> Result<Self, CorefileError> {
        let (min, max) = match word.text.split_once('-') {
            None => (number(&word.text), number(&word.text)),
            Some(("", "")) => (None, None),
            Some(("", max)) => (Some(0), number(max)),
            Some((min, "")) => (number(min), Some(MAX_TTL)),
            Some((min, max)) => (number(min), number(max)),
        };
        match (min, max) {
            (Some(min), Some(max)) if min <= max => Ok(Self { min, max }),
            _ => Err(word.isnt("a TTL in seconds such as 30, or a range such as 30-300, 30- or -300")),
        }
    }
}

/// Only digits: Go takes no sign here.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
