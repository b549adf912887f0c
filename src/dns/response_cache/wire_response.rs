//! An answer in wire form, and what is changed in it when it is given again.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, RecordType};
use rand::{Rng, RngExt};
use tokio::time::Instant;

use crate::dns::message::encode::{RecordOffset, RecordOffsets};
use crate::dns::message::header::HEADER;
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{Section, Validity};
use crate::store::Store;

/// The longest answer that is kept.
pub const MAX_RESPONSE_BYTES: usize = 4096;

/// An answer that can be given again.
#[derive(Debug)]
pub struct WireResponse {
    /// The whole message.
    pub bytes: Box<[u8]>,
    /// What it rests on.
    pub repeat: Validity,
    /// The number of the server whose answer it is.
    pub server: u64,
    /// Whether it is the same however the question's name is spelled, but for the question itself. Else it is for the name
    /// in lower case.
    pub any_spelling: bool,
    ttls: Box<[TtlGroup]>,
    /// Where the serial is that is the store's.
    serial: Option<(usize, Arc<Store>)>,
    /// The addresses that may be in any order.
    addresses: Option<AddressOrder>,
}

/// TTLs that run down together.
#[derive(Debug)]
struct TtlGroup {
    since: Instant,
    ttl: u32,
    cap: u32,
    places: Box<[u16]>,
}

/// Records of the same size, one behind the other.
#[derive(Debug)]
struct AddressOrder {
    range: Range<usize>,
    size: usize,
}

impl WireResponse {
    /// Returns the answer to a question about a name, for another time, if there is to be one; nothing if it isn't one
    /// that can be changed as it would have to be.
    #[must_use]
    pub fn new(
        mut reply: Reply,
        asked: &Name,
        (bytes, layout): (&[u8], &RecordOffsets),
        server: u64,
    ) -> Option<Self> {
        let mut repeat = *reply.repeat.take()?;
        if bytes.len() > MAX_RESPONSE_BYTES {
            return None;
        }
        let any_spelling = !depends_on_spelling(&reply, asked);
        if !any_spelling && asked.iter().flatten().any(u8::is_ascii_uppercase) {
            return None;
        }
        let places = |section| match section {
            Section::Answer => &layout.sections[0],
            Section::Authority => &layout.sections[1],
            Section::Additional => &layout.sections[2],
        };
        let countdown = |countdown: crate::dns::message::validity::TtlCountdown| {
            // What there was no room for needs no change.
            let records = places(countdown.section).iter().enumerate();
            let of_these = records.filter(|(number, _)| countdown.records.contains(number));
            let places =
                of_these.map(|(_, place)| u16::try_from(place.ttl)).collect::<Result<Box<[u16]>, _>>();
            Some(TtlGroup {
                since: countdown.since,
                ttl: countdown.ttl,
                cap: countdown.cap,
                places: places.ok()?,
            })
        };
        let ttls: Option<Vec<TtlGroup>> =
            std::mem::take(&mut repeat.countdown).into_iter().map(countdown).collect();
        let mut ttls = ttls?;
        ttls.retain(|countdown| !countdown.places.is_empty());
        let serial = repeat.serial.take().and_then(|serial| {
            let place = places(serial.section).get(serial.record)?;
            // RFC 1035 section 3.3.13: five numbers of 32 bits are the end of an SOA record.
            Some((place.end - 20, serial.store))
        });
        // Records that were cut off have their turn, too.
        if repeat.shuffled && layout.sections[0].len() < reply.answers.len() {
            return None;
        }
        let addresses =
            if repeat.shuffled { Some(AddressOrder::of(bytes, &layout.sections[0])?) } else { None };
        Some(Self { bytes: bytes.into(), repeat, server, any_spelling, ttls: ttls.into(), serial, addresses })
    }

    /// Returns about how many bytes it takes in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        /// A name and what is around it.
        const CLIENTS: usize = 200;
        let Validity { links, kept, clients, .. } = &self.repeat;
        size_of::<Self>() + self.bytes.len() + CLIENTS * clients.len() + 32 * (links.len() + kept.len())
    }

    /// Returns whether it is for that client.
    #[must_use]
    pub fn is_for(&self, client: IpAddr) -> bool {
        self.repeat.clients.iter().all(|clients| (clients.0)(client))
    }

    /// Writes the answer to a question whose name has so many bytes on the wire. Returns its length; nothing if there
    /// is no room for it.
    pub fn write(
        &self,
        question: &[u8],
        name_length: usize,
        now: Instant,
        random: &mut impl Rng,
        out: &mut [u8],
    ) -> Option<usize> {
        let out = out.get_mut(..self.bytes.len())?;
        out.copy_from_slice(&self.bytes);
        out[..2].copy_from_slice(question.get(..2)?);
        let name = HEADER..HEADER + name_length;
        out.get_mut(name.clone())?.copy_from_slice(question.get(name)?);
        for countdown in &self.ttls {
            let age = now.duration_since(countdown.since).as_secs();
            let left =
                countdown.ttl.saturating_sub(u32::try_from(age).unwrap_or(u32::MAX)).min(countdown.cap);
            for place in &countdown.places {
                let place = usize::from(*place);
                out.get_mut(place..place + 4)?.copy_from_slice(&left.to_be_bytes());
            }
        }
        if let Some((place, store)) = &self.serial {
            out.get_mut(*place..*place + 4)?.copy_from_slice(&store.serial().to_be_bytes());
        }
        if let Some(addresses) = &self.addresses {
            addresses.shuffle(out.get_mut(addresses.range.clone())?, random);
        }
        Some(self.bytes.len())
    }
}

/// Returns whether other bytes would be written for a name that is spelled otherwise: other names may be compressed
/// against it, which goes by their spelling. An owner that is spelled as it was asked always is.
fn depends_on_spelling(reply: &Reply, asked: &Name) -> bool {
    // Names without a label in common have nothing to point at.
    let last = asked.iter().next_back();
    let may_point = |name: &Name| {
        name.iter().next_back().zip(last).is_some_and(|(label, last)| label.eq_ignore_ascii_case(last))
    };
    reply.sections().into_iter().flatten().any(|record| {
        let data_may_point = match &record.data {
            RData::A(_) | RData::AAAA(_) => false,
            RData::CNAME(CNAME(target)) => may_point(target),
            RData::SOA(soa) => may_point(&soa.mname) || may_point(&soa.rname),
            _ => true,
        };
        data_may_point || (!same_spelling(&record.name, asked) && may_point(&record.name))
    })
}

impl AddressOrder {
    /// Returns where the addresses are, all at the end of the answer section; nothing if they aren't of one size.
    fn of(bytes: &[u8], answers: &[RecordOffset]) -> Option<Self> {
        let is_address = |place: &&RecordOffset| {
            // The type is two bytes before the class, which is before the TTL.
            let qtype = bytes.get(place.ttl - 4..place.ttl - 2);
            [RecordType::A, RecordType::AAAA]
                .iter()
                .any(|kind| qtype == Some(&u16::from(*kind).to_be_bytes()))
        };
        let first = answers.iter().position(|place| is_address(&place))?;
        let addresses = &answers[first..];
        let (start, end) = (addresses.first()?.start, addresses.last()?.end);
        let size = addresses.first()?.end - start;
        // Each has a pointer to the one name: wherever the record is, that is before it.
        let owner = |place: &RecordOffset| bytes.get(place.start..place.start + 2);
        let is_pointer = owner(addresses.first()?)?[0] & 0xc0 == 0xc0;
        let same =
            |place: &RecordOffset| place.end - place.start == size && owner(place) == owner(&addresses[0]);
        (is_pointer && addresses.iter().all(|place| is_address(&place) && same(place)))
            .then_some(Self { range: start..end, size })
    }

    fn shuffle(&self, records: &mut [u8], random: &mut impl Rng) {
        // Fisher and Yates.
        for last in (1..records.len() / self.size).rev() {
            let other = random.random_range(0..=last);
            if other < last {
                let (before, rest) = records.split_at_mut(last * self.size);
                before[other * self.size..][..self.size].swap_with_slice(&mut rest[..self.size]);
            }
        }
    }
}
