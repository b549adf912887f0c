//! The range of TTLs in a `ttl` rule.

use crate::dns::corefile::{CorefileError, Token};
use crate::dns::plugins::ttl_limits::TtlRange;

/// The maximum if there is no upper bound, as in CoreDNS (RFC 2181 section 8).
const MAX_TTL: u32 = 0x7fff_ffff;

impl TtlRange {
    /// Parses `30`, `30-300`, `30-` or `-300`.
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
            _ => Err(word.unexpected("a TTL in seconds such as 30, or a range such as 30-300, 30- or -300")),
        }
    }
}

/// Parses a number of 32 bits in digits without a sign, as CoreDNS does with Go's `strconv.ParseUint`.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
