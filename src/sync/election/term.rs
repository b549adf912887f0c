//! Terms: fencing tokens that distinguish a leader's writes from those of an earlier leader.
//!
//! No clock can do that: in a paused virtual machine all clocks stand still, and afterwards the process continues as if
//! its Lease were still valid. Each leader therefore takes a term above every term that it has seen, writes it into the
//! Lease before its first other write, and records it on each external target and EndpointSlice that it writes. A
//! process that finds a higher term there reads the Lease before it writes anything else.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation with the term: on the Lease that of the leader; on an external target or EndpointSlice that of the
/// leader that wrote the object last.
pub const TERM: &str = "linker.hsj.com/term";
/// How far a term may be ahead of the local clock, in seconds: terms begin as Unix time, and clocks differ. A term
/// further ahead is ignored, because a mistyped term would otherwise stop all leaders.
const MAX_TERM_AHEAD_SECONDS: u64 = 24 * 3600;

/// The term recorded in an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedTerm {
    /// No term: an earlier version of lb-linker or another client wrote the object.
    None,
    Term(u64),
    /// Not a number, or too far ahead of the clock.
    Unusable,
}

impl RecordedTerm {
    /// Reads the value of the annotation, if there is one, at `now` (Unix time in seconds).
    #[must_use]
    pub fn read(text: Option<&str>, now: u64) -> Self {
        let Some(text) = text else { return Self::None };
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(term) if is_number && term <= now.saturating_add(MAX_TERM_AHEAD_SECONDS) => Self::Term(term),
            _ => Self::Unusable,
        }
    }

    #[must_use]
    pub fn of(metadata: &ObjectMeta, now: u64) -> Self {
        Self::read(metadata.annotations.as_ref().and_then(|all| all.get(TERM)).map(String::as_str), now)
    }

    #[must_use]
    pub fn term(self) -> Option<u64> {
        match self {
            Self::Term(term) => Some(term),
            Self::None | Self::Unusable => None,
        }
    }
}

/// Returns a term above `highest`, and at least `now` (Unix time in seconds).
#[must_use]
pub fn next_term(highest: u64, now: u64) -> u64 {
    highest.saturating_add(1).max(now)
}

/// Returns the wall-clock time as Unix time in seconds.
#[must_use]
pub fn unix_now() -> u64 {
    unix(Timestamp::now())
}

/// Returns a time as Unix time in seconds.
#[must_use]
pub fn unix(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_up_to_a_day_ahead_are_terms() {
        let now = 1_790_000_000;
        let read = |text: &str| RecordedTerm::read(Some(text), now);
        assert_eq!(RecordedTerm::read(None, now), RecordedTerm::None);
        for (text, term) in [("0", 0), ("1790000000", now), ("1790086400", now + 86_400), ("007", 7)] {
            assert_eq!(read(text), RecordedTerm::Term(term), "{text}");
        }
        for text in [
            "",
            "+7",
            "-1",
            " 7",
            "7.0",
            "term",
            "1790086401",
            "18446744073709551615",
            "99999999999999999999",
        ] {
            assert_eq!(read(text), RecordedTerm::Unusable, "{text}");
        }
    }

    #[test]
    fn next_term_exceeds_seen_terms_and_is_not_below_the_clock() {
        assert_eq!(next_term(0, 1_790_000_000), 1_790_000_000);
        assert_eq!(next_term(1_790_000_000, 1_790_000_000), 1_790_000_001);
        assert_eq!(next_term(1_790_000_500, 1_790_000_000), 1_790_000_501);
        assert_eq!(next_term(u64::MAX, 0), u64::MAX);
    }
}
