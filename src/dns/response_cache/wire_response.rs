//! An answer in wire form, and the changes that each reuse makes in it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hickory_proto::op::Query;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData};
use rand::Rng;
use tokio::time::Instant;

use crate::dns::message::address_range::AddressRange;
use crate::dns::message::encode::RecordOffsets;
use crate::dns::message::header::HEADER;
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{Section, Validity};

pub const MAX_RESPONSE_BYTES: usize = 4096;

/// An answer in wire form that may be reused.
#[derive(Debug)]
pub struct WireResponse {
    pub bytes: Box<[u8]>,
    /// The conditions and side effects of a reuse.
    pub validity: Validity,
    /// The number of the server that gave the answer or, if it has views, of the block. The lowest 16 bits stay the same
    /// when the Corefile is reloaded.
    pub server: u64,
    /// Whether the answer, except the question section, is independent of the case of the question's name. Otherwise it
    /// is only valid for the name in lower case.
    pub is_case_independent: bool,
    ttls: Box<[TtlGroup]>,
    /// The offset of the SOA serial to replace by the current one.
    serial: Option<(usize, Arc<AtomicU64>)>,
    addresses: Option<AddressRange>,
}

/// The offsets of the TTL fields with the same start, TTL and cap.
#[derive(Debug)]
struct TtlGroup {
    since: Instant,
    ttl: u32,
    cap: u32,
    offsets: Box<[u16]>,
}

impl WireResponse {
    /// Returns the answer to a query in reusable form; `None` if the plugins forbid the reuse, if the answer is longer
    /// than [`MAX_RESPONSE_BYTES`], or if the changes for a reuse can't be made in wire form.
    #[must_use]
    pub fn new(
        mut reply: Reply,
        query: &Query,
        (bytes, offsets): (&[u8], &RecordOffsets),
        server: u64,
    ) -> Option<Self> {
        let mut validity = *reply.validity.take()?;
        // A countdown names records by their place in the reply, and a reordered message has them at other places.
        if bytes.len() > MAX_RESPONSE_BYTES || offsets.is_reordered {
            return None;
        }
        let any_spelling = !depends_on_spelling(&reply, query);
        if !any_spelling && query.name().iter().flatten().any(u8::is_ascii_uppercase) {
            return None;
        }
        let of_section = |section: Section| &offsets.sections[section as usize];
        let countdown = |countdown: crate::dns::message::validity::TtlCountdown| {
            // Records that didn't fit need no change.
            let records = of_section(countdown.section).iter().enumerate();
            let of_these = records.filter(|(number, _)| countdown.records.contains(number));
            let ttl_offsets =
                of_these.map(|(_, record)| u16::try_from(record.ttl)).collect::<Result<Box<[u16]>, _>>();
            Some(TtlGroup {
                since: countdown.since,
                ttl: countdown.ttl,
                cap: countdown.cap,
                offsets: ttl_offsets.ok()?,
            })
        };
        let ttls: Option<Vec<TtlGroup>> =
            std::mem::take(&mut validity.countdown).into_iter().map(countdown).collect();
        let mut ttls = ttls?;
        ttls.retain(|countdown| !countdown.offsets.is_empty());
        let serial = validity.serial.take().and_then(|serial| {
            let record = of_section(serial.section).get(serial.record)?;
            // RFC 1035 section 3.3.13: an SOA record ends with five 32-bit numbers, of which the serial is the first.
            Some((record.end - 20, serial.current))
        });
        // The full handler shuffles before it truncates; a reuse could only shuffle the records that fit.
        if validity.shuffled && offsets.sections[0].len() < reply.records.count(Section::Answer) {
            return None;
        }
        let addresses =
            if validity.shuffled { Some(AddressRange::of(bytes, &offsets.sections[0])?) } else { None };
        Some(Self {
            bytes: bytes.into(),
            validity,
            server,
            is_case_independent: any_spelling,
            ttls: ttls.into(),
            serial,
            addresses,
        })
    }

    /// Returns the approximate size in memory, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        /// The approximate size of a client scope, in bytes: a name and its allocations.
        const CLIENTS: usize = 200;
        let Validity { links, zones, cache_entries: entries, clients, .. } = &self.validity;
        size_of::<Self>()
            + self.bytes.len()
            + CLIENTS * clients.len()
            + 32 * (links.len() + zones.len() + entries.len())
    }

    #[must_use]
    pub fn is_for(&self, client: IpAddr) -> bool {
        self.validity.clients.iter().all(|clients| (clients.0)(client))
    }

    /// Writes the answer to a query with a name of `name_length` bytes in wire form. Returns the length of the
    /// answer in bytes; `None` if `out` is too small.
    pub fn write(
        &self,
        query: &[u8],
        name_length: usize,
        now: Instant,
        random: &mut impl Rng,
        out: &mut [u8],
    ) -> Option<usize> {
        let out = out.get_mut(..self.bytes.len())?;
        out.copy_from_slice(&self.bytes);
        out[..2].copy_from_slice(query.get(..2)?);
        let name = HEADER..HEADER + name_length;
        out.get_mut(name.clone())?.copy_from_slice(query.get(name)?);
        for countdown in &self.ttls {
            let age = now.duration_since(countdown.since).as_secs();
            let left =
                countdown.ttl.saturating_sub(u32::try_from(age).unwrap_or(u32::MAX)).min(countdown.cap);
            for offset in &countdown.offsets {
                let offset = usize::from(*offset);
                out.get_mut(offset..offset + 4)?.copy_from_slice(&left.to_be_bytes());
            }
        }
        if let Some((offset, serial)) = &self.serial {
            let serial = serial.load(Ordering::Relaxed).to_be_bytes();
            out.get_mut(*offset..*offset + 4)?.copy_from_slice(&serial[4..]);
        }
        if let Some(addresses) = &self.addresses {
            addresses.shuffle(out, random)?;
        }
        Some(self.bytes.len())
    }
}

/// Returns whether the encoding depends on the case of the question's name: names in the answer may be compressed
/// against it, and compression is case-sensitive. An owner with exactly the spelling of the question is always
/// compressed.
fn depends_on_spelling(reply: &Reply, query: &Query) -> bool {
    // Only the question has the client's spelling in an answer that is passed on in wire form.
    if reply.records.is_wire_for(query) {
        return false;
    }
    let qname = query.name();
    // Names without a common last label can't be compressed against each other.
    let last = qname.iter().next_back();
    let may_point = |name: &Name| {
        name.iter().next_back().zip(last).is_some_and(|(label, last)| label.eq_ignore_ascii_case(last))
    };
    reply.records.all().into_iter().flatten().any(|record| {
        let data_may_point = match &record.data {
            RData::A(_) | RData::AAAA(_) => false,
            RData::CNAME(CNAME(target)) => may_point(target),
            RData::SOA(soa) => may_point(&soa.mname) || may_point(&soa.rname),
            _ => true,
        };
        data_may_point || (!same_spelling(&record.name, qname) && may_point(&record.name))
    })
}
