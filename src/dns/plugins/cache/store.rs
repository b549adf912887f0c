//! What the plugin `cache` keeps: the answers of what is behind it, as long as they may be, with CoreDNS's bounds.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use tokio::time::Instant;

use crate::dns::message::query::QueryKey;
use crate::dns::message::reply::Reply;
use crate::dns::message::rrsig::now;
use crate::dns::message::validity::CacheEntryRef;
use crate::dns::plugins::cache::entry::CacheEntry;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::entry::weight;
use crate::dns::upstream::sharded_cache::ShardedCache;

/// CoreDNS's default for each of the two parts.
const MAX_ENTRIES: usize = 9984;
/// How many bytes each part may take, as far as they can be counted: more only with a higher capacity than
/// the default. CoreDNS counts answers alone, and one of 64 KB takes a megabyte.
const MAX_BYTES: usize = 32 << 20;
/// CoreDNS's bounds of TTLs, in seconds.
const MIN_TTL: u32 = 5;
const MAX_TTL: u32 = 3600;
const MAX_DENIAL_TTL: u32 = 1800;
/// How long it is cached that no upstream has answered, in seconds.
const NO_ANSWER_TTL: u32 = 1;

/// How answers of one kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// How many.
    pub capacity: usize,
    /// The shortest time, in seconds.
    pub min_ttl: u32,
    /// The longest time, in seconds.
    pub max_ttl: u32,
}

/// Which answers are asked for again before they expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// How often an answer has to have been given.
    pub amount: u32,
    /// The longest gap between two times.
    pub within: Duration,
    /// What is left of the TTL then, in percent.
    pub percentage: u32,
}

/// Expired answers are given (RFC 8767).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeStale {
    /// For how long after their end.
    pub up_to: Duration,
    /// How long is waited for a new one first, zero for as long as it takes; `None` to ask for it only afterwards.
    pub verify: Option<Duration>,
    /// Their TTL, in seconds.
    pub ttl: u32,
}

/// What a cache does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Answers that say something.
    pub success: CacheLimits,
    /// Answers that say that there is nothing.
    pub denial: CacheLimits,
    /// How long a failure is kept; zero for not at all.
    pub servfail: Duration,
    /// Which answers are asked for again before they expire.
    pub prefetch: Option<Prefetch>,
    /// Whether expired answers are given.
    pub serve_stale: Option<ServeStale>,
    /// How long an expired answer isn't asked for again when that has failed.
    pub recheck: Duration,
    /// Whether an expired answer that says something counts more than one that says that there is nothing.
    pub prefer_positive: bool,
    /// Whether answers are given with the TTL that they were stored with.
    pub keep_ttl: bool,
}

/// What an answer is worth to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cacheability {
    /// What it says.
    pub kind: ResponseKind,
    /// For how long, in seconds. All its records get that TTL when it has just come, too, so that it doesn't jump.
    pub ttl: u32,
}

/// The answers, and what is done with them.
#[derive(Debug)]
pub struct CacheStore {
    options: CacheOptions,
    success: ShardedCache<Arc<CacheEntry>>,
    denial: ShardedCache<Arc<CacheEntry>>,
}

/// What the cache has for a question.
#[derive(Clone, Debug)]
pub struct CacheHit {
    /// The answer, as it came.
    pub message: Arc<Message>,
    /// The TTL of all its records now.
    pub ttl: u32,
    /// What it says.
    pub kind: ResponseKind,
    /// How old it is.
    pub age: Duration,
    /// Whether it is still good.
    pub freshness: Freshness,
    item: Arc<CacheEntry>,
    recheck: Duration,
    /// When it isn't fresh any more, or is to be asked for again if it is popular.
    until: Instant,
    /// From when on and from what its TTL runs down, if it does.
    countdown: Option<(Instant, u32)>,
    /// The longest gap between two times at which a popular answer is given, if that counts.
    within: Option<Duration>,
}

/// A claimed refresh of an entry: there is one at a time. Dropped, it counts as failed, unless [`Refresh::succeed`] was
/// called.
#[derive(Debug)]
pub struct Refresh {
    item: Arc<CacheEntry>,
    pause: Duration,
}

/// Whether a cached answer is still good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It is.
    Fresh,
    /// It is, and is to be asked for again: it is popular and about to expire.
    Due,
    /// It has expired, and is to be asked for again: meanwhile, or before it is given, for so long.
    Stale(Option<Duration>),
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            success: CacheLimits { capacity: MAX_ENTRIES, min_ttl: MIN_TTL, max_ttl: MAX_TTL },
            denial: CacheLimits { capacity: MAX_ENTRIES, min_ttl: MIN_TTL, max_ttl: MAX_DENIAL_TTL },
            servfail: Duration::from_secs(MIN_TTL.into()),
            prefetch: None,
            serve_stale: None,
            recheck: Duration::ZERO,
            prefer_positive: false,
            keep_ttl: false,
        }
    }
}

impl CacheOptions {
    /// Returns the defaults with another longest time for both kinds of answers: `cache 30`.
    #[must_use]
    pub fn capped(ttl: u32) -> Self {
        let mut options = Self::default();
        options.success.max_ttl = ttl;
        options.denial.max_ttl = ttl;
        options
    }
}

impl CacheStore {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(options: CacheOptions) -> Self {
        let part = |bounds: CacheLimits| {
            ShardedCache::new(
                bounds.capacity,
                MAX_BYTES.max(bounds.capacity.saturating_mul(MAX_BYTES / MAX_ENTRIES)),
            )
        };
        Self { success: part(options.success), denial: part(options.denial), options }
    }

    /// Looks a question up. A failure never hides a good answer.
    #[must_use]
    pub fn get(&self, key: &QueryKey) -> Option<CacheHit> {
        let now = Instant::now();
        if self.options.prefer_positive
            && let Some(item) = self.success.get(key).and_then(CacheEntry::good)
            && let Some(found) = self.found(item, now)
        {
            return Some(found);
        }
        let denial = self.denial.get(key).and_then(|item| self.found(item, now));
        match denial {
            Some(denial) if denial.kind == ResponseKind::Denial => Some(denial),
            failure => self.success.get(key).and_then(|item| self.found(item, now)).or(failure),
        }
    }

    /// Returns the failure of the last look-up of a question, if that is still kept.
    #[must_use]
    pub fn failure(&self, key: &QueryKey) -> Option<CacheHit> {
        let item = self
            .denial
            .get(key)
            .filter(|item| matches!(item.kind, ResponseKind::Failure | ResponseKind::NoAnswer));
        item.and_then(|item| self.found(item, Instant::now()))
    }

    fn found(&self, item: Arc<CacheEntry>, now: Instant) -> Option<CacheHit> {
        let age = now.duration_since(item.stored);
        let left = item.ttl.saturating_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        let options = &self.options;
        let (ttl, freshness) = if left > 0 {
            let due = options.prefetch.is_some_and(|prefetch| item.is_due(&prefetch, left, now));
            (left, if due { Freshness::Due } else { Freshness::Fresh })
        } else {
            let stale = options.serve_stale?;
            let expired = age.saturating_sub(Duration::from_secs(item.ttl.into()));
            // A failure is no answer that could still be good.
            if expired >= stale.up_to || matches!(item.kind, ResponseKind::Failure | ResponseKind::NoAnswer) {
                return None;
            }
            (stale.ttl, Freshness::Stale(stale.verify))
        };
        let is_stale = matches!(freshness, Freshness::Stale(_));
        // A TTL that is set for expired answers alone is given with these all the same.
        let ttl = if options.keep_ttl && !(is_stale && ttl > 0) { item.ttl } else { ttl };
        let recheck = if is_stale { options.recheck } else { Duration::ZERO };
        let countdown = (!options.keep_ttl).then_some((item.stored, item.ttl));
        Some(CacheHit {
            until: item.stored + item.fresh_for(options.prefetch.as_ref()),
            countdown,
            within: options.prefetch.map(|prefetch| prefetch.within),
            message: Arc::clone(&item.message),
            ttl,
            kind: item.kind,
            age,
            freshness,
            item,
            recheck,
        })
    }

    /// Takes an answer in, if it is one that can be kept. Returns how many others had to go.
    pub fn put(&self, key: &QueryKey, message: &Arc<Message>, worth: Cacheability) -> usize {
        if is_kept(key, message, worth) { self.store(key, message, worth) } else { 0 }
    }

    /// Takes in that there was no answer: that isn't asked again at once (RFC 9520 section 3.2). Returns how many
    /// others had to go.
    pub fn put_silence(&self, key: &QueryKey) -> usize {
        let nothing = Arc::new(Message::response(0, OpCode::Query));
        let worth = Cacheability { kind: ResponseKind::NoAnswer, ttl: NO_ANSWER_TTL.min(self.servfail()) };
        if is_kept(key, &nothing, worth) { self.store(key, &nothing, worth) } else { 0 }
    }

    fn store(&self, key: &QueryKey, message: &Arc<Message>, worth: Cacheability) -> usize {
        let parts = [self.success.get(key), self.denial.get(key)];
        // What was popular stays so, if it is asked for again before a client has to wait.
        let hits = parts.iter().flatten().map(|before| before.inherited_hits()).max().unwrap_or(0);
        let [success, denial] = parts;
        let item = |last_good| Arc::new(CacheEntry::new(worth, Arc::clone(message), hits, last_good));
        match worth.kind {
            ResponseKind::Success => {
                let prefer = self.options.prefer_positive;
                let is_empty = message.answers.is_empty();
                let last_good = if prefer && is_empty { success.and_then(CacheEntry::good) } else { None };
                if !(prefer && is_empty) {
                    self.denial.remove(key);
                }
                let bytes = weight(message) + last_good.as_ref().map_or(0, |good| weight(&good.message));
                self.success.put(key.clone(), item(last_good), bytes)
            }
            ResponseKind::Denial => {
                if !self.options.prefer_positive {
                    self.success.remove(key);
                }
                self.denial.put(key.clone(), item(None), weight(message))
            }
            ResponseKind::Failure | ResponseKind::NoAnswer | ResponseKind::Other => {
                // Whatever is wrong now, what was known before may still be good.
                let denial = denial.filter(|before| before.kind == ResponseKind::Denial);
                if denial.is_some_and(|before| self.is_usable(&before)) {
                    return 0;
                }
                self.denial.put(key.clone(), item(None), weight(message))
            }
        }
    }

    /// Returns whether an answer is still given.
    fn is_usable(&self, item: &CacheEntry) -> bool {
        let stale = self.options.serve_stale.map_or(Duration::ZERO, |stale| stale.up_to);
        item.stored.elapsed() < Duration::from_secs(item.ttl.into()) + stale
    }

    /// Returns what an answer is worth, to a client that wants signatures or doesn't.
    #[must_use]
    pub fn classify(&self, message: &Message, dnssec_ok: bool) -> Cacheability {
        if dnssec_ok && crate::dns::plugins::cache::entry::has_expired_signature(message, now()) {
            return Cacheability { kind: ResponseKind::Other, ttl: self.options.success.hold(MIN_TTL) };
        }
        let kind = ResponseKind::of(message);
        let rcode = message.metadata.response_code;
        let is_absence = rcode == ResponseCode::NXDomain && message.answers.is_empty();
        let bounds = match kind {
            ResponseKind::Failure => return Cacheability { kind, ttl: self.servfail() },
            ResponseKind::Denial => self.options.denial,
            _ if is_absence => self.options.denial,
            ResponseKind::Success | ResponseKind::NoAnswer | ResponseKind::Other => self.options.success,
        };
        // As in CoreDNS, the records of no other answers count.
        let counts = is_absence
            || (rcode == ResponseCode::NoError && !crate::dns::plugins::cache::entry::is_referral(message));
        let lowest =
            crate::dns::plugins::cache::entry::lowest_ttl(message).filter(|_| counts).unwrap_or(MIN_TTL);
        Cacheability { kind, ttl: bounds.hold(lowest) }
    }

    fn servfail(&self) -> u32 {
        u32::try_from(self.options.servfail.as_secs()).unwrap_or(u32::MAX)
    }

    /// Forgets one answer.
    pub fn remove(&self, key: &QueryKey) {
        self.success.remove(key);
        self.denial.remove(key);
    }

    /// Forgets everything about a name.
    pub fn remove_name(&self, name: &[u8]) {
        self.success.remove_name(name);
        self.denial.remove_name(name);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.success.clear();
        self.denial.clear();
    }

    /// Returns how many answers there are, first positive ones, then negative ones.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.success.len(), self.denial.len())
    }
}

/// Moves the records of an answer to what is kept of it.
pub(crate) fn take_message(reply: &mut Reply, query: &Query) -> Message {
    let mut message = Message::response(0, OpCode::Query);
    message.metadata = reply.metadata;
    message.add_query(query.clone());
    message.answers = take(&mut reply.answers);
    message.authorities = take(&mut reply.authorities);
    message.additionals = take(&mut reply.additionals);
    message
}

/// Returns whether an answer to that question can be kept.
#[must_use]
pub fn is_kept(key: &QueryKey, message: &Message, worth: Cacheability) -> bool {
    worth.ttl > 0 && worth.kind != ResponseKind::Other && !message.metadata.truncation && key.is_for_cache()
}

impl CacheLimits {
    /// Returns a TTL within them.
    fn hold(self, ttl: u32) -> u32 {
        ttl.max(self.min_ttl).min(self.max_ttl)
    }
}

impl CacheHit {
    /// Returns what has to hold for the answer to be given again; nothing if it is to be looked for each time.
    #[must_use]
    pub fn kept(&self) -> Option<CacheEntryRef> {
        /// What is given again is counted once a second.
        const OFTEN: Duration = Duration::from_secs(2);
        let is_countable = self.within.is_none_or(|within| within >= OFTEN);
        let may_be =
            self.freshness == Freshness::Fresh && self.kind != ResponseKind::NoAnswer && is_countable;
        may_be.then(|| CacheEntryRef::new(&self.item.used, self.until, self.within))
    }

    /// Returns from when on and from how many seconds the TTL of its records runs down; nothing if it stays.
    #[must_use]
    pub fn countdown(&self) -> Option<(Instant, u32)> {
        self.countdown
    }

    /// Claims the refresh of the entry, unless a refresh is under way or has just failed.
    #[must_use]
    pub fn begin_refresh(&self) -> Option<Refresh> {
        let pause = self.recheck;
        self.item.begin_refresh().then(|| Refresh { item: Arc::clone(&self.item), pause })
    }
}

impl Refresh {
    /// Leaves the place with success.
    pub fn succeed(mut self) {
        self.pause = Duration::ZERO;
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.item.end_refresh(self.pause);
    }
}

#[cfg(test)]
mod tests;
