//! One cached answer: what it says, how long it may be kept, how often it was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::time::Instant;

use super::store::{Cacheability, Prefetch};
use crate::dns::message::rrsig::ValidityPeriod;
use crate::dns::message::validity::CacheEntryUse;
use crate::dns::plugins::lb_linker::chase::MAX_ALIASES;

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// What was asked for.
    Success,
    /// That there is no such name, or no such data.
    Denial,
    /// That the server can't.
    Failure,
    /// Nothing: no server has answered.
    NoAnswer,
    /// Something that isn't kept.
    Other,
}

impl ResponseKind {
    /// Sorts an answer (RFC 2308 sections 2, 5 and 7.1).
    #[must_use]
    pub fn of(message: &Message) -> Self {
        let has = |qtype| message.authorities.iter().any(|record| record.record_type() == qtype);
        match message.metadata.response_code {
            // Without an SOA there is no negative TTL (RFC 2308 section 5); CoreDNS keeps no SOA that comes with an alias.
            ResponseCode::NXDomain if has(RecordType::SOA) && message.answers.is_empty() => Self::Denial,
            ResponseCode::NXDomain => Self::Other,
            ResponseCode::NoError if answers(message) => Self::Success,
            ResponseCode::NoError if has(RecordType::SOA) => Self::Denial,
            // A chain that leads nowhere; an empty answer may still be one, as for CoreDNS.
            ResponseCode::NoError if message.answers.is_empty() => Self::Success,
            ResponseCode::ServFail | ResponseCode::NotImp => Self::Failure,
            _ => Self::Other,
        }
    }
}

/// Returns whether the end of the chain has what was asked for. An alias with two targets has none (RFC 2181
/// section 10.1).
fn answers(message: &Message) -> bool {
    let [query] = &*message.queries else { return false };
    let (qtype, class) = (query.query_type(), query.query_class());
    let mut owner: &Name = query.name();
    for _ in 0..=MAX_ALIASES {
        let here = || {
            let of_class = message.answers.iter();
            let of_class = of_class.filter(|found| class == DNSClass::ANY || found.dns_class == class);
            of_class.filter(|record| record.name == *owner)
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

/// Returns whether an answer sends the client elsewhere.
pub(crate) fn is_referral(message: &Message) -> bool {
    let has = |qtype| message.authorities.iter().any(|record| record.record_type() == qtype);
    message.answers.is_empty() && has(RecordType::NS) && !has(RecordType::SOA)
}

/// Returns whether an answer has a signature that isn't valid at that time (RFC 4035 section 5.3.1).
pub(crate) fn has_expired_signature(message: &Message, now: u32) -> bool {
    let is_signature = |data: &RData| matches!(data, RData::Unknown { code: RecordType::RRSIG, .. });
    let sections = [&message.answers, &message.authorities, &message.additionals];
    sections.into_iter().flatten().any(|record| {
        is_signature(&record.data) && !ValidityPeriod::of(record).is_some_and(|validity| validity.holds(now))
    })
}

/// Returns the lowest TTL of all records but OPT, if there are any: an answer is kept as a whole.
pub(crate) fn lowest_ttl(message: &Message) -> Option<u32> {
    let sections = [&message.answers, &message.authorities, &message.additionals];
    sections.into_iter().flatten().map(|record| plain_ttl(record.ttl)).min()
}

/// Returns about how many bytes an answer takes in memory.
pub(crate) fn weight(message: &Message) -> usize {
    /// A record beside its data; most data is in there, too.
    const RECORD: usize = 300;
    let records = message.answers.len() + message.authorities.len() + message.additionals.len();
    let wire = message.to_vec().map_or(0, |bytes| bytes.len());
    RECORD * (records + 1) + 2 * wire
}

/// RFC 2181 section 8: a TTL with the top bit set is zero.
pub(crate) fn plain_ttl(ttl: u32) -> u32 {
    if i32::try_from(ttl).is_ok() { ttl } else { 0 }
}

/// A cached answer.
#[derive(Debug)]
pub(crate) struct CacheEntry {
    pub(crate) kind: ResponseKind,
    pub(crate) message: Arc<Message>,
    /// Seconds from `stored` on.
    pub(crate) ttl: u32,
    pub(crate) stored: Instant,
    /// The last answer that said something, where this one only seems to.
    last_good: Option<Arc<Self>>,
    /// How often it is given.
    pub(crate) used: Arc<CacheEntryUse>,
    /// Whether it is being asked for again.
    refreshing: AtomicBool,
    /// From when on it may be asked for again, in milliseconds after `stored`.
    retry: AtomicU64,
}

impl CacheEntry {
    /// Returns an item that is stored now; `hits` is how popular the one before it was.
    pub(crate) fn new(
        worth: Cacheability,
        message: Arc<Message>,
        hits: u32,
        last_good: Option<Arc<Self>>,
    ) -> Self {
        let stored = Instant::now();
        Self {
            kind: worth.kind,
            message,
            ttl: worth.ttl,
            stored,
            last_good,
            used: Arc::new(CacheEntryUse::new(stored, hits)),
            refreshing: AtomicBool::new(false),
            retry: AtomicU64::new(0),
        }
    }

    /// Returns how popular the answer is that comes next: as this one, if that is asked for already.
    pub(crate) fn inherited_hits(&self) -> u32 {
        if self.refreshing.load(Ordering::Relaxed) { self.used.hits() } else { 0 }
    }

    /// Returns whether it has what was asked for.
    pub(crate) fn says_something(&self) -> bool {
        self.kind == ResponseKind::Success && !self.message.answers.is_empty()
    }

    /// Returns this item, or the one before it, whichever has what was asked for.
    pub(crate) fn good(self: Arc<Self>) -> Option<Arc<Self>> {
        if self.says_something() { Some(self) } else { self.last_good.clone() }
    }

    /// Counts that it is given with `left` seconds to live, and returns whether it should be asked for
    /// again.
    pub(crate) fn is_due(&self, prefetch: &Prefetch, left: u32, now: Instant) -> bool {
        let hits = self.used.note(1, prefetch.within, now);
        hits >= prefetch.amount && left <= self.threshold(prefetch)
    }

    /// Returns for how long it is neither expired nor to be asked for again, however popular it is.
    pub(crate) fn fresh_for(&self, prefetch: Option<&Prefetch>) -> Duration {
        let threshold = prefetch.map_or(0, |prefetch| self.threshold(prefetch));
        Duration::from_secs(self.ttl.saturating_sub(threshold).into())
    }

    /// Returns how many seconds are left when it is due.
    fn threshold(&self, prefetch: &Prefetch) -> u32 {
        let threshold = (u64::from(self.ttl) * u64::from(prefetch.percentage)).div_ceil(100);
        u32::try_from(threshold).unwrap_or(u32::MAX)
    }

    /// Claims the refresh of the entry, unless a refresh is under way or has just failed.
    pub(crate) fn begin_refresh(&self) -> bool {
        self.millis(Instant::now()) >= self.retry.load(Ordering::Relaxed)
            && !self.refreshing.swap(true, Ordering::AcqRel)
    }

    /// Gives that place back; the next one gets it after such a pause.
    pub(crate) fn end_refresh(&self, pause: Duration) {
        self.retry.store(self.millis(Instant::now() + pause), Ordering::Relaxed);
        self.refreshing.store(false, Ordering::Release);
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.stored).as_millis()).unwrap_or(u64::MAX)
    }
}
