//! When signatures are valid (RFC 4034 section 3.1). hickory hands them on as they are.

use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::rr::{RData, Record, RecordType};

/// From when to when a signature is valid, as in [`now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidityPeriod {
    inception: u32,
    expiration: u32,
}

impl ValidityPeriod {
    /// Returns that of a record, if it is a signature and isn't cut off.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let RData::Unknown { code: RecordType::RRSIG, rdata } = &record.data else { return None };
        // Behind type, algorithm, labels and TTL.
        let (expiration, rest) = rdata.anything.get(8..)?.split_first_chunk()?;
        let inception = rest.first_chunk()?;
        Some(Self { inception: u32::from_be_bytes(*inception), expiration: u32::from_be_bytes(*expiration) })
    }

    /// Returns whether the signature is valid then.
    pub(crate) fn holds(self, now: u32) -> bool {
        is_before(self.inception, now) && is_before(now, self.expiration)
    }
}

/// Returns the type of the RRset that a signature is of (RFC 4034 section 3.1.1); nothing of another record.
pub(crate) fn type_covered(record: &Record) -> Option<RecordType> {
    let RData::Unknown { code: RecordType::RRSIG, rdata } = &record.data else { return None };
    Some(u16::from_be_bytes(*rdata.anything.first_chunk()?).into())
}

/// Returns the time as signatures have it: in seconds since 1970, modulo 2^32 (RFC 4034 section 3.1.5).
pub(crate) fn now() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    #[expect(clippy::cast_possible_truncation, reason = "that is how they are counted")]
    let now = now as u32;
    now
}

/// RFC 1982 section 3.2: whichever is nearer.
fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) <= u32::MAX / 2
}
