//! A cache entry: the kind of its answer, its TTL and its use count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hickory_proto::op::{Metadata, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use tokio::time::Instant;

use crate::dns::message::query::QueryKey;
use crate::dns::message::reply::MAX_CNAMES_IN_ANSWER;
use crate::dns::message::validity::{self, CacheEntryUse, RestsOn, Section};
use crate::dns::message::wire::WireMessage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// A positive answer.
    Success,
    /// NXDOMAIN or NODATA.
    Denial,
    /// SERVFAIL or NOTIMP.
    Failure,
    /// No answer: no upstream has responded.
    NoAnswer,
    /// An answer that isn't cached.
    Other,
}

impl ResponseKind {
    /// Classifies an answer (RFC 2308 sections 2, 5 and 7.1).
    #[must_use]
    pub fn of(answer: &CachedAnswer) -> Self {
        let message = &*answer.message;
        let has = |rtype| message.has(Section::Authority, rtype);
        let is_empty = answer.is_empty();
        match answer.metadata.response_code {
            // Without an SOA there is no negative TTL (RFC 2308 section 5). As in CoreDNS, NXDOMAIN with records in the
            // answer section isn't cached.
            ResponseCode::NXDomain if has(RecordType::SOA) && is_empty => Self::Denial,
            ResponseCode::NXDomain => Self::Other,
            ResponseCode::NoError if has_answer(message) => Self::Success,
            ResponseCode::NoError if has(RecordType::SOA) => Self::Denial,
            // As in CoreDNS, an empty answer without an SOA is a success. A CNAME chain without data at its end is
            // `Other`.
            ResponseCode::NoError if is_empty => Self::Success,
            ResponseCode::ServFail | ResponseCode::NotImp => Self::Failure,
            _ => Self::Other,
        }
    }
}

/// Returns whether the end of the CNAME chain has records of the queried type. A chain with two different targets of
/// one alias is no answer (RFC 2181 section 10.1), except to a query for ANY.
fn has_answer(message: &WireMessage) -> bool {
    if message.has_direct_answer() {
        return true;
    }
    let Some(query) = message.question() else { return false };
    let answers = message.decode_until(None, Section::Answer).answers;
    let (qtype, class) = (query.query_type(), query.query_class());
    let mut owner: &Name = query.name();
    for _ in 0..=MAX_CNAMES_IN_ANSWER {
        let here = || {
            let is_of_class = |found: &&Record| class == DNSClass::ANY || found.dns_class == class;
            answers.iter().filter(is_of_class).filter(|record| record.name == *owner)
        };
        let mut targets = here().filter_map(|record| match &record.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        });
        let target = targets.next();
        if target.is_some_and(|target| targets.any(|other| other != target)) {
            return qtype == RecordType::ANY;
        }
        match target {
            Some(target) if !matches!(qtype, RecordType::CNAME | RecordType::ANY) => owner = target,
            _ => return here().any(|record| qtype == RecordType::ANY || record.record_type() == qtype),
        }
    }
    false
}

/// Returns whether an answer is a referral: without answers and SOA, but with NS records (RFC 2308 section 2.2).
pub(crate) fn is_referral(message: &WireMessage) -> bool {
    let has = |rtype| message.has(Section::Authority, rtype);
    message.count(Section::Answer) == 0 && has(RecordType::NS) && !has(RecordType::SOA)
}

/// Whether, and for how long, an answer can be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cacheability {
    pub kind: ResponseKind,
    /// The TTL in seconds. The first client also gets the answer with this TTL, so that the cached answers continue its
    /// countdown.
    pub ttl: u32,
}

/// The conditions for refreshing an entry before it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The minimum number of uses.
    pub min_hits: u32,
    /// The longest gap between two uses; a longer gap resets the use count.
    pub window: Duration,
    /// The remaining part of the TTL at which the refresh starts, in percent.
    pub ttl_percent: u32,
}

/// An answer as it is cached: for all clients, and in wire form.
#[derive(Clone, Debug)]
pub struct CachedAnswer {
    /// The fields of the answer's header; the header of `message` is ignored.
    pub metadata: Metadata,
    pub message: Arc<WireMessage>,
    /// What has to stay as it is while the answer is given.
    pub rests_on: Option<Arc<RestsOn>>,
}

impl CachedAnswer {
    /// Returns an answer without records, whose message is the query; `None` if the query can't be read.
    pub(crate) fn nothing(key: &QueryKey) -> Option<Self> {
        let message = WireMessage::new(&key.encode(false)).ok()?;
        Some(Self { metadata: message.metadata, message: Arc::new(message), rests_on: None })
    }

    /// Returns the approximate memory of an entry with this answer, in bytes.
    pub(crate) fn memory_size(&self) -> usize {
        /// The size of the allocations beside the message: the key and the entry.
        const ENTRY: usize = 300;
        let rests_on = self.rests_on.as_ref().map_or(0, |rests_on| rests_on.memory_size());
        ENTRY + self.message.memory_size() + rests_on
    }

    /// Returns whether what the answer rests on has changed.
    pub(crate) fn is_outdated(&self) -> bool {
        self.rests_on.as_ref().is_some_and(|rests_on| rests_on.is_outdated())
    }

    /// Returns whether the answer section is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.message.count(Section::Answer) == 0
    }
}

#[derive(Debug)]
pub(crate) struct CacheEntry {
    pub(crate) kind: ResponseKind,
    pub(crate) answer: CachedAnswer,
    /// The time to live in seconds, from `stored` on.
    pub(crate) ttl: u32,
    pub(crate) stored: Instant,
    /// The last positive answer with data, if this entry is an empty answer that counts as a success.
    last_with_data: Option<Arc<Self>>,
    pub(crate) usage: CacheEntryUse,
    /// Whether a refresh is under way.
    refreshing: AtomicBool,
    /// The earliest time of the next refresh, in milliseconds after `stored`.
    retry_at_ms: AtomicU64,
}

impl validity::CacheEntry for CacheEntry {
    fn usage(&self) -> &CacheEntryUse {
        &self.usage
    }
}

impl CacheEntry {
    /// Returns an entry that is stored now; `hits` is the use count that it inherits from the entry before.
    pub(crate) fn new(
        cacheability: Cacheability,
        answer: CachedAnswer,
        hits: u32,
        last_with_data: Option<Arc<Self>>,
    ) -> Self {
        let stored = Instant::now();
        Self {
            kind: cacheability.kind,
            answer,
            ttl: cacheability.ttl,
            stored,
            last_with_data,
            usage: CacheEntryUse::new(stored, hits),
            refreshing: AtomicBool::new(false),
            retry_at_ms: AtomicU64::new(0),
        }
    }

    /// Returns the use count that the next entry inherits: this entry's if a refresh is under way, otherwise 0.
    pub(crate) fn inherited_hits(&self) -> u32 {
        if self.refreshing.load(Ordering::Relaxed) { self.usage.hits() } else { 0 }
    }

    /// Returns whether the answer is positive and has data.
    pub(crate) fn has_data(&self) -> bool {
        self.kind == ResponseKind::Success && !self.answer.is_empty()
    }

    /// Returns this entry if it has data, otherwise the last entry with data.
    pub(crate) fn newest_with_data(self: Arc<Self>) -> Option<Arc<Self>> {
        if self.has_data() { Some(self) } else { self.last_with_data.clone() }
    }

    /// Counts a use with `left` seconds to live, and returns whether to prefetch the entry.
    pub(crate) fn is_due(&self, prefetch: &Prefetch, left: u32, now: Instant) -> bool {
        let hits = self.usage.record_hits(1, prefetch.window, now);
        hits >= prefetch.min_hits && left <= self.threshold(prefetch)
    }

    /// Returns how long after `stored` the entry is neither expired nor due for a prefetch, even if it is popular.
    pub(crate) fn fresh_for(&self, prefetch: Option<&Prefetch>) -> Duration {
        let threshold = prefetch.map_or(0, |prefetch| self.threshold(prefetch));
        Duration::from_secs(self.ttl.saturating_sub(threshold).into())
    }

    /// Returns the remaining TTL in seconds at which a prefetch is due.
    fn threshold(&self, prefetch: &Prefetch) -> u32 {
        let threshold = (u64::from(self.ttl) * u64::from(prefetch.ttl_percent)).div_ceil(100);
        u32::try_from(threshold).unwrap_or(u32::MAX)
    }

    /// Claims the refresh of the entry; returns `false` if a refresh is under way or has just failed.
    pub(crate) fn begin_refresh(&self) -> bool {
        self.millis(Instant::now()) >= self.retry_at_ms.load(Ordering::Relaxed)
            && !self.refreshing.swap(true, Ordering::AcqRel)
    }

    /// Ends the refresh; the next refresh may begin after `pause`.
    pub(crate) fn end_refresh(&self, pause: Duration) {
        self.retry_at_ms.store(self.millis(Instant::now() + pause), Ordering::Relaxed);
        self.refreshing.store(false, Ordering::Release);
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.stored).as_millis()).unwrap_or(u64::MAX)
    }
}
