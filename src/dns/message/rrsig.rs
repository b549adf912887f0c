//! The validity periods of RRSIG records (RFC 4034 section 3.1), whose data hickory doesn't parse without DNSSEC
//! support.

use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::rr::{RData, Record, RecordType};

/// The validity period of a signature, in the time format of [`now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidityPeriod {
    inception: u32,
    expiration: u32,
}

impl ValidityPeriod {
    /// Returns the validity period of a record, if the record is a complete signature.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        let RData::Unknown { code: RecordType::RRSIG, rdata } = &record.data else { return None };
        Self::parse(&rdata.anything)
    }

    /// Returns the validity period in the data of a signature; `None` if the data is cut.
    pub(super) fn parse(rdata: &[u8]) -> Option<Self> {
        // Skips type, algorithm, labels and TTL.
        let (expiration, rest) = rdata.get(8..)?.split_first_chunk()?;
        let inception = rest.first_chunk()?;
        Some(Self { inception: u32::from_be_bytes(*inception), expiration: u32::from_be_bytes(*expiration) })
    }

    pub(crate) fn holds(self, now: u32) -> bool {
        is_at_or_before(self.inception, now) && is_at_or_before(now, self.expiration)
    }
}

/// Returns the type of the rrset that a signature covers (RFC 4034 section 3.1.1); `None` if the record isn't a
/// signature.
pub(crate) fn type_covered(record: &Record) -> Option<RecordType> {
    let RData::Unknown { code: RecordType::RRSIG, rdata } = &record.data else { return None };
    Some(u16::from_be_bytes(*rdata.anything.first_chunk()?).into())
}

/// Returns the current time in the format of signatures: seconds since 1970, modulo 2^32 (RFC 4034 section 3.1.5).
pub(crate) fn now() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    #[expect(clippy::cast_possible_truncation, reason = "signature times are modulo 2^32")]
    let now = now as u32;
    now
}

/// Returns whether `one` is at or before `other`, in serial number arithmetic (RFC 1982 section 3.2).
fn is_at_or_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one) <= u32::MAX / 2
}
