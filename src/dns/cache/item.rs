//! One cached answer: what it says, how long it may be kept, how often it was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::time::Instant;

use super::Prefetch;
use crate::dns::chase::MAX_ALIASES;

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for.
    Success,
    /// That there is no such name, or no such data.
    Denial,
    /// That the server can't.
    Failure,
    /// Nothing: no server has answered.
    Silence,
    /// Something that isn't kept.
    Other,
}

impl Kind {
    /// Sorts an answer (RFC 2308 sections 2, 5 and 7.1).
    #[must_use]
    pub fn of(message: &Message) -> Self {
        let has = |qtype| message.authorities.iter().any(|record| record.record_type() == qtype);
        match message.metadata.response_code {
            // Without an SOA nobody says for how long.
            ResponseCode::NXDomain if !has(RecordType::SOA) => Self::Other,
            ResponseCode::NXDomain => Self::Denial,
            ResponseCode::NoError if answers(message) => Self::Success,
            ResponseCode::NoError if has(RecordType::SOA) => Self::Denial,
            // A chain that leads nowhere; an empty answer may still be one, as for CoreDNS.
            ResponseCode::NoError if message.answers.is_empty() => Self::Success,
            ResponseCode::ServFail | ResponseCode::NotImp => Self::Failure,
            _ => Self::Other,
        }
    }
}

/// Returns whether the end of the chain has what was asked for.
fn answers(message: &Message) -> bool {
    let [query] = &*message.queries else { return false };
    let mut owner: &Name = query.name();
    for _ in 0..=MAX_ALIASES {
        let here = || {
            let of_class = message.answers.iter().filter(|record| record.dns_class == query.query_class());
            of_class.filter(|record| record.name == *owner)
        };
        let wanted = |found: RecordType| found == query.query_type() || query.query_type() == RecordType::ANY;
        if here().any(|record| wanted(record.record_type())) {
            return true;
        }
        let alias = here().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        });
        let Some(target) = alias else { return false };
        owner = target;
    }
    false
}

/// Returns the lowest TTL of all records but OPT, if there are any: an answer is kept as a whole.
pub(super) fn lowest_ttl(message: &Message) -> Option<u32> {
    let sections = [&message.answers, &message.authorities, &message.additionals];
    sections.into_iter().flatten().map(|record| plain_ttl(record.ttl)).min()
}

/// Returns about how many bytes an answer takes in memory.
pub(in crate::dns) fn weight(message: &Message) -> usize {
    /// A record beside its data; most data is in there, too.
    const RECORD: usize = 300;
    let records = message.answers.len() + message.authorities.len() + message.additionals.len();
    let wire = message.to_vec().map_or(0, |bytes| bytes.len());
    RECORD * (records + 1) + 2 * wire
}

/// RFC 2181 section 8: a TTL with the top bit set is zero.
pub(in crate::dns) fn plain_ttl(ttl: u32) -> u32 {
    if i32::try_from(ttl).is_ok() { ttl } else { 0 }
}

/// A cached answer.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) message: Arc<Message>,
    /// Seconds from `stored` on.
    pub(super) ttl: u32,
    pub(super) stored: Instant,
    /// How often it was given, without a long gap.
    hits: AtomicU32,
    /// When last, in milliseconds after `stored`.
    last_hit: AtomicU64,
}

impl Item {
    /// Returns an item that is stored now; `hits` is how popular the one before it was.
    pub(super) fn new(kind: Kind, message: Arc<Message>, ttl: u32, hits: u32) -> Self {
        let stored = Instant::now();
        Self { kind, message, ttl, stored, hits: AtomicU32::new(hits), last_hit: AtomicU64::new(0) }
    }

    pub(super) fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Counts that it is given with `left` seconds to live, and returns whether it should be asked for
    /// again.
    pub(super) fn is_due(&self, prefetch: &Prefetch, left: u32, now: Instant) -> bool {
        let at = u64::try_from(now.duration_since(self.stored).as_millis()).unwrap_or(u64::MAX);
        let gap = at.saturating_sub(self.last_hit.swap(at, Ordering::Relaxed));
        let hits = if u128::from(gap) > prefetch.within.as_millis() {
            self.hits.store(1, Ordering::Relaxed);
            1
        } else {
            self.hits.fetch_add(1, Ordering::Relaxed).saturating_add(1)
        };
        let threshold = (u64::from(self.ttl) * u64::from(prefetch.percentage)).div_ceil(100);
        hits >= prefetch.amount && u64::from(left) <= threshold
    }
}
