//! The TSIG record in wire form (RFC 8945 section 4.2).

use super::error::TsigError;
use super::key::Hashing;
use crate::dns::message::header::HEADER;
use crate::dns::message::wire_name;
use crate::model::names;

/// How far the clocks of two peers may differ, in seconds (RFC 8945 section 10).
pub(super) const FUDGE: u16 = 300;
const TSIG: u16 = 250;
/// Class ANY, and TTL 0.
const CLASS_AND_TTL: [u8; 6] = [0, 255, 0, 0, 0, 0];
/// Type, class, TTL and data length.
const FIXED: usize = 10;
/// The octets of the data beside the algorithm, the MAC and the other data.
const DATA_FIXED: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TsigRecord {
    /// In wire form, in lower case.
    pub(super) key: Vec<u8>,
    /// In wire form, in lower case.
    pub(super) algorithm: Vec<u8>,
    /// In seconds since 1970.
    pub(super) time: u64,
    /// In seconds.
    pub(super) fudge: u16,
    pub(super) mac: Vec<u8>,
    pub(super) original_id: u16,
    pub(super) error: u16,
    pub(super) other: Vec<u8>,
}

/// Returns whether a message has a TSIG record, or may have one that can't be read.
#[must_use]
pub fn is_signed(message: &[u8]) -> bool {
    !matches!(find(message), Ok(None))
}

/// Returns the TSIG record of a message, and where it begins; `None` if the message has none.
///
/// # Errors
/// If the message or the record is malformed, or if the record isn't the last one.
pub(super) fn find(message: &[u8]) -> Result<Option<(usize, TsigRecord)>, TsigError> {
    let (mut at, counts) = after_questions(message).ok_or(TsigError::Malformed)?;
    let [answers, authorities, additionals] = counts;
    let total = answers + authorities + additionals;
    for number in 1..=total {
        let start = at;
        let fixed = wire_name::end(message, start).ok_or(TsigError::Malformed)?;
        let data = fixed + FIXED;
        let [type_high, type_low, rest @ .., high, low] = *message
            .get(fixed..data)
            .and_then(|fixed| fixed.first_chunk::<FIXED>())
            .ok_or(TsigError::Malformed)?;
        at = data + usize::from(u16::from_be_bytes([high, low]));
        if u16::from_be_bytes([type_high, type_low]) != TSIG {
            continue;
        }
        let is_last = number == total && additionals > 0 && at == message.len();
        if !is_last || rest != CLASS_AND_TTL {
            return Err(TsigError::Malformed);
        }
        let record = read(message, start, data).ok_or(TsigError::Malformed)?;
        return Ok(Some((start, record)));
    }
    if at > message.len() { Err(TsigError::Malformed) } else { Ok(None) }
}

/// Returns where the records of a message begin, and their numbers in the three sections.
fn after_questions(message: &[u8]) -> Option<(usize, [usize; 3])> {
    let header = message.first_chunk::<HEADER>()?;
    let count = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let mut at = HEADER;
    for _ in 0..count(4) {
        at = wire_name::end(message, at)? + 4;
    }
    Some((at, [count(6), count(8), count(10)]))
}

/// Reads the record that begins at `start` and ends with the message.
fn read(message: &[u8], start: usize, data: usize) -> Option<TsigRecord> {
    let (key, _) = read_name(message, start)?;
    let (algorithm, end) = read_name(message, data)?;
    let (fixed, rest) = message.get(end..)?.split_first_chunk::<10>()?;
    let [t0, t1, t2, t3, t4, t5, f0, f1, m0, m1] = *fixed;
    let (mac, rest) = rest.split_at_checked(u16::from_be_bytes([m0, m1]).into())?;
    let ([i0, i1, e0, e1, o0, o1], other) = rest.split_first_chunk::<6>()?;
    (other.len() == usize::from(u16::from_be_bytes([*o0, *o1]))).then(|| TsigRecord {
        key,
        algorithm,
        time: u64::from_be_bytes([0, 0, t0, t1, t2, t3, t4, t5]),
        fudge: u16::from_be_bytes([f0, f1]),
        mac: mac.to_vec(),
        original_id: u16::from_be_bytes([*i0, *i1]),
        error: u16::from_be_bytes([*e0, *e1]),
        other: other.to_vec(),
    })
}

/// Returns the name at an offset, in wire form and in lower case, and where its octets end.
fn read_name(message: &[u8], at: usize) -> Option<(Vec<u8>, usize)> {
    let mut name = Vec::with_capacity(32);
    let read = wire_name::read(message, at, |_| true, |label| names::push_label(label, &mut name)).ok()?;
    name.make_ascii_lowercase();
    name.push(0);
    Some((name, read.end))
}

impl TsigRecord {
    /// Returns the number of octets that the record takes in a message with a MAC and other data of these lengths.
    pub(super) fn length_with(&self, mac: usize, other: usize) -> usize {
        self.key.len() + FIXED + self.algorithm.len() + DATA_FIXED + mac + other
    }

    /// Hashes what is signed beside the messages (RFC 8945 section 4.3.3).
    pub(super) fn hash(&self, hashing: &mut Hashing) {
        hashing.update(&self.key);
        hashing.update(&CLASS_AND_TTL);
        hashing.update(&self.algorithm);
        self.hash_timers(hashing);
        hashing.update(&self.error.to_be_bytes());
        hashing.update(&u16::try_from(self.other.len()).unwrap_or_default().to_be_bytes());
        hashing.update(&self.other);
    }

    /// Hashes what is signed in the second and the further messages of a reply (RFC 8945 section 5.3.1).
    pub(super) fn hash_timers(&self, hashing: &mut Hashing) {
        hashing.update(&time_octets(self.time));
        hashing.update(&self.fudge.to_be_bytes());
    }

    /// Appends the record to a message with a header.
    pub(super) fn push(&self, message: &mut Vec<u8>) {
        let length = |octets: usize| u16::try_from(octets).unwrap_or_default().to_be_bytes();
        let data = self.algorithm.len() + DATA_FIXED + self.mac.len() + self.other.len();
        message.extend(&self.key);
        message.extend(TSIG.to_be_bytes());
        message.extend(CLASS_AND_TTL);
        message.extend(length(data));
        message.extend(&self.algorithm);
        message.extend(time_octets(self.time));
        message.extend(self.fudge.to_be_bytes());
        message.extend(length(self.mac.len()));
        message.extend(&self.mac);
        message.extend(self.original_id.to_be_bytes());
        message.extend(self.error.to_be_bytes());
        message.extend(length(self.other.len()));
        message.extend(&self.other);
        add_to_additionals(message, 1);
    }
}

/// Removes the TSIG record that begins at `start`.
pub(super) fn remove(message: &mut Vec<u8>, start: usize) {
    message.truncate(start);
    add_to_additionals(message, -1);
}

/// Changes the number of additional records in the header.
fn add_to_additionals(message: &mut [u8], change: i16) {
    if let Some(count) = message.get_mut(10..12) {
        let changed = u16::from_be_bytes([count[0], count[1]]).saturating_add_signed(change);
        count.copy_from_slice(&changed.to_be_bytes());
    }
}

/// Returns a time as an unsigned integer of 48 bits.
pub(super) fn time_octets(time: u64) -> [u8; 6] {
    let [_, _, octets @ ..] = time.to_be_bytes();
    octets
}
