//! Shuffles the addresses of an answer in wire form.

use std::ops::Range;

use hickory_proto::rr::RecordType;
use rand::{Rng, RngExt};

use super::compress::RecordOffset;

/// The adjacent address records at the end of an answer section, all of one size.
#[derive(Debug)]
pub(crate) struct AddressRange {
    range: Range<usize>,
    size: usize,
}

impl AddressRange {
    /// Returns the position of the address records; `None` if there are none, if other records follow them, or if the
    /// address records differ in size or aren't all owned by the same compression pointer.
    pub(crate) fn of(bytes: &[u8], answers: &[RecordOffset]) -> Option<Self> {
        let is_address = |record: &&RecordOffset| {
            // The type precedes the class, which precedes the TTL; each has two bytes.
            let rtype = bytes.get(record.ttl - 4..record.ttl - 2);
            [RecordType::A, RecordType::AAAA]
                .iter()
                .any(|kind| rtype == Some(&u16::from(*kind).to_be_bytes()))
        };
        let first = answers.iter().position(|record| is_address(&record))?;
        let addresses = &answers[first..];
        let (start, end) = (addresses.first()?.start, addresses.last()?.end);
        let size = addresses.first()?.end - start;
        // All owners are the same compression pointer, which stays valid when records change places.
        let owner = |record: &RecordOffset| bytes.get(record.start..record.start + 2);
        let is_pointer = owner(addresses.first()?)?[0] & 0xc0 == 0xc0;
        let same = |record: &RecordOffset| {
            record.end - record.start == size && owner(record) == owner(&addresses[0])
        };
        (is_pointer && addresses.iter().all(|record| is_address(&record) && same(record)))
            .then_some(Self { range: start..end, size })
    }

    /// Shuffles the addresses of `answer`; `None` if `answer` ends before the last address record.
    pub(crate) fn shuffle(&self, answer: &mut [u8], random: &mut impl Rng) -> Option<()> {
        let records = answer.get_mut(self.range.clone())?;
        // Fisher-Yates shuffle.
        for last in (1..records.len() / self.size).rev() {
            let other = random.random_range(0..=last);
            if other < last {
                let (before, rest) = records.split_at_mut(last * self.size);
                before[other * self.size..][..self.size].swap_with_slice(&mut rest[..self.size]);
            }
        }
        Some(())
    }
}
