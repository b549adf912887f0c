//! Stores the answers of the plugins after `cache`, with CoreDNS's limits.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use tokio::time::Instant;

use crate::dns::message::query::QueryKey;
use crate::dns::message::rrsig::now;
use crate::dns::message::validity::{CacheEntryRef, Section};
use crate::dns::plugins::cache::entry::{
    CacheEntry, Cacheability, CachedAnswer, Prefetch, ResponseKind, is_referral,
};
use crate::dns::plugins::ttl_limits::TtlRange;
use crate::dns::upstream::sharded_cache::ShardedCache;

/// CoreDNS's default capacity of each of the two parts.
const MAX_ENTRIES: usize = 9984;
/// The maximum size of each part in bytes at the default capacity; a higher capacity raises it in proportion. CoreDNS
/// limits only the number of answers, and each may have 64 KiB.
const MAX_BYTES: usize = 32 << 20;
/// CoreDNS's bounds of TTLs, in seconds.
const MIN_TTL: u32 = 5;
const MAX_TTL: u32 = 3600;
const MAX_DENIAL_TTL: u32 = 1800;
/// How long the failure of all upstreams is cached, in seconds.
const NO_ANSWER_TTL: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    pub capacity: usize,
    pub ttls: TtlRange,
}

/// The options for serving expired answers (RFC 8767).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeStale {
    /// How long an answer is served after it has expired.
    pub max_stale: Duration,
    /// The timeout of `serve_stale verify`, zero for no timeout; `None` serves the expired answer immediately.
    pub verify_timeout: Option<Duration>,
    /// The TTL of expired answers, in seconds.
    pub ttl: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    pub success: CacheLimits,
    /// The limits of denials and failures.
    pub denial: CacheLimits,
    /// How long a failure is kept; less than a second turns caching of failures off.
    pub servfail: Duration,
    pub prefetch: Option<Prefetch>,
    pub serve_stale: Option<ServeStale>,
    /// How long an expired answer isn't refreshed after a failed refresh.
    pub failure_recheck: Duration,
    /// Whether an expired positive answer is preferred to a denial.
    pub prefer_positive: bool,
    /// Whether answers are served with their original TTL.
    pub keep_ttl: bool,
}

/// The cached answers: one part for positive answers, one part for denials and failures.
#[derive(Debug)]
pub struct CacheStore {
    options: CacheOptions,
    success: ShardedCache<Arc<CacheEntry>>,
    denial: ShardedCache<Arc<CacheEntry>>,
}

#[derive(Clone, Debug)]
pub struct CacheHit {
    pub answer: CachedAnswer,
    /// The current TTL of all records, in seconds.
    pub ttl: u32,
    pub kind: ResponseKind,
    pub age: Duration,
    pub freshness: Freshness,
    entry: Arc<CacheEntry>,
    failure_recheck: Duration,
    /// The time at which the entry expires, or at which a prefetch may become due.
    fresh_until: Instant,
    /// The start time and the start value of the TTL countdown; `None` with `keepttl`.
    countdown: Option<(Instant, u32)>,
    /// The longest gap between two uses of a popular answer; `None` without `prefetch`.
    prefetch_window: Option<Duration>,
}

/// The claimed refresh of an entry; an entry has at most one refresh at a time. A refresh that is dropped without a
/// call of [`RefreshGuard::succeed`] counts as failed.
#[derive(Debug)]
pub struct RefreshGuard {
    entry: Arc<CacheEntry>,
    failure_recheck: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Fresh,
    /// The answer hasn't expired, but is popular and due for a prefetch.
    Due,
    /// The answer has expired and needs a refresh. With a timeout, that of `serve_stale verify`, the refresh comes
    /// first (zero means no timeout); with `None` the answer is served at once, and refreshed in the background.
    Stale(Option<Duration>),
}

impl Default for CacheOptions {
    fn default() -> Self {
        let limits = |max| CacheLimits { capacity: MAX_ENTRIES, ttls: TtlRange { min: MIN_TTL, max } };
        Self {
            success: limits(MAX_TTL),
            denial: limits(MAX_DENIAL_TTL),
            servfail: Duration::from_secs(MIN_TTL.into()),
            prefetch: None,
            serve_stale: None,
            failure_recheck: Duration::ZERO,
            prefer_positive: false,
            keep_ttl: false,
        }
    }
}

impl CacheOptions {
    /// Returns the defaults with another upper TTL bound in seconds for both parts: `cache 30`.
    #[must_use]
    pub fn capped(ttl: u32) -> Self {
        let mut options = Self::default();
        options.success.ttls.max = ttl;
        options.denial.ttls.max = ttl;
        options
    }
}

impl CacheStore {
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

    /// Returns the cached answer for a query. A failure never hides a good answer.
    #[must_use]
    pub fn get(&self, key: &QueryKey) -> Option<CacheHit> {
        let now = Instant::now();
        if self.options.prefer_positive
            && let Some(item) = self.success.get(key).and_then(CacheEntry::newest_with_data)
            && let Some(found) = self.to_hit(item, now)
        {
            return Some(found);
        }
        let denial = self.denial.get(key).and_then(|item| self.to_hit(item, now));
        match denial {
            Some(denial) if denial.kind == ResponseKind::Denial => Some(denial),
            failure => self.success.get(key).and_then(|item| self.to_hit(item, now)).or(failure),
        }
    }

    /// Returns the cached failure of a query's last look-up.
    #[must_use]
    pub fn failure(&self, key: &QueryKey) -> Option<CacheHit> {
        let item = self
            .denial
            .get(key)
            .filter(|item| matches!(item.kind, ResponseKind::Failure | ResponseKind::NoAnswer));
        item.and_then(|item| self.to_hit(item, Instant::now()))
    }

    fn to_hit(&self, item: Arc<CacheEntry>, now: Instant) -> Option<CacheHit> {
        if item.answer.is_outdated() {
            return None;
        }
        let age = now.duration_since(item.stored);
        let left = item.ttl.saturating_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        let options = &self.options;
        let (ttl, freshness) = if left > 0 {
            let due = options.prefetch.is_some_and(|prefetch| item.is_due(&prefetch, left, now));
            (left, if due { Freshness::Due } else { Freshness::Fresh })
        } else {
            let stale = options.serve_stale?;
            let expired = age.saturating_sub(Duration::from_secs(item.ttl.into()));
            // An expired failure is never served.
            if expired >= stale.max_stale
                || matches!(item.kind, ResponseKind::Failure | ResponseKind::NoAnswer)
            {
                return None;
            }
            (stale.ttl, Freshness::Stale(stale.verify_timeout))
        };
        let is_stale = matches!(freshness, Freshness::Stale(_));
        // An explicit TTL for expired answers overrides `keepttl`.
        let ttl = if options.keep_ttl && !(is_stale && ttl > 0) { item.ttl } else { ttl };
        let recheck = if is_stale { options.failure_recheck } else { Duration::ZERO };
        let countdown = (!options.keep_ttl).then_some((item.stored, item.ttl));
        Some(CacheHit {
            fresh_until: item.stored + item.fresh_for(options.prefetch.as_ref()),
            countdown,
            prefetch_window: options.prefetch.map(|prefetch| prefetch.window),
            answer: item.answer.clone(),
            ttl,
            kind: item.kind,
            age,
            freshness,
            entry: item,
            failure_recheck: recheck,
        })
    }

    /// Stores the failure of all upstreams, so that the query isn't retried at once (RFC 9520 section 3.2). Returns the
    /// number of evicted entries.
    pub fn put_no_answer(&self, key: &QueryKey) -> usize {
        let cacheability =
            Cacheability { kind: ResponseKind::NoAnswer, ttl: NO_ANSWER_TTL.min(self.servfail()) };
        let nothing = CachedAnswer::nothing(key).filter(|nothing| is_storable(key, nothing, cacheability));
        nothing.map_or(0, |nothing| self.put(key, &nothing, cacheability))
    }

    /// Stores an answer for which [`is_storable`] is true. Returns the number of evicted entries.
    pub fn put(&self, key: &QueryKey, answer: &CachedAnswer, cacheability: Cacheability) -> usize {
        let replaces_positive = cacheability.kind == ResponseKind::Denial && !self.options.prefer_positive;
        let success = if replaces_positive { self.success.remove(key) } else { self.success.get(key) };
        let replaces_denial = cacheability.kind == ResponseKind::Success;
        let denial = if replaces_denial { self.denial.remove(key) } else { self.denial.get(key) };
        // The result of a background refresh inherits the use count, so that a popular answer stays popular.
        let parts = [&success, &denial].into_iter().flatten();
        let hits = parts.map(|before| before.inherited_hits()).max().unwrap_or(0);
        let item =
            |last_with_data| Arc::new(CacheEntry::new(cacheability, answer.clone(), hits, last_with_data));
        match cacheability.kind {
            ResponseKind::Success => {
                let keeps_data = self.options.prefer_positive && answer.is_empty();
                let last_with_data =
                    if keeps_data { success.and_then(CacheEntry::newest_with_data) } else { None };
                let bytes = answer.memory_size()
                    + last_with_data.as_ref().map_or(0, |good| good.answer.memory_size());
                self.success.put(key.clone(), item(last_with_data), bytes)
            }
            ResponseKind::Denial => self.denial.put(key.clone(), item(None), answer.memory_size()),
            ResponseKind::Failure | ResponseKind::NoAnswer | ResponseKind::Other => {
                // A failure doesn't replace a denial that is still usable.
                let denial = denial.filter(|before| before.kind == ResponseKind::Denial);
                if denial.is_some_and(|before| self.is_usable(&before)) {
                    return 0;
                }
                self.denial.put(key.clone(), item(None), answer.memory_size())
            }
        }
    }

    fn is_usable(&self, item: &CacheEntry) -> bool {
        let stale = self.options.serve_stale.map_or(Duration::ZERO, |stale| stale.max_stale);
        !item.answer.is_outdated() && item.stored.elapsed() < Duration::from_secs(item.ttl.into()) + stale
    }

    /// Classifies an answer for clients with or without the DO flag.
    #[must_use]
    pub fn classify(&self, answer: &CachedAnswer, dnssec_ok: bool) -> Cacheability {
        let message = &answer.message;
        if dnssec_ok && message.has_invalid_signature(Section::Additional, now()) {
            return Cacheability { kind: ResponseKind::Other, ttl: self.options.success.ttls.clamp(MIN_TTL) };
        }
        let kind = ResponseKind::of(answer);
        let rcode = answer.metadata.response_code;
        let is_empty_nxdomain = rcode == ResponseCode::NXDomain && answer.is_empty();
        let bounds = match kind {
            ResponseKind::Failure => return Cacheability { kind, ttl: self.servfail() },
            ResponseKind::Denial => self.options.denial,
            _ if is_empty_nxdomain => self.options.denial,
            ResponseKind::Success | ResponseKind::NoAnswer | ResponseKind::Other => self.options.success,
        };
        // As in CoreDNS, the records' TTLs count only in NOERROR answers that aren't referrals, and in NXDOMAIN answers
        // with an empty answer section.
        let counts = is_empty_nxdomain || (rcode == ResponseCode::NoError && !is_referral(message));
        let lowest = message.lowest_ttl().filter(|_| counts).unwrap_or(MIN_TTL);
        let is_denial = kind == ResponseKind::Denial;
        let negative = message.negative_ttl().filter(|_| is_denial).unwrap_or(u32::MAX);
        Cacheability { kind, ttl: bounds.ttls.clamp(lowest.min(negative)) }
    }

    fn servfail(&self) -> u32 {
        u32::try_from(self.options.servfail.as_secs()).unwrap_or(u32::MAX)
    }

    pub fn remove(&self, key: &QueryKey) {
        self.success.remove(key);
        self.denial.remove(key);
    }

    pub fn remove_name(&self, name: &[u8]) {
        self.success.remove_name(name);
        self.denial.remove_name(name);
    }

    pub fn clear(&self) {
        self.success.clear();
        self.denial.clear();
    }

    /// Returns the number of positive answers, and the number of denials and failures.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.success.len(), self.denial.len())
    }
}

/// Returns whether an answer to a query can be stored.
#[must_use]
pub fn is_storable(key: &QueryKey, answer: &CachedAnswer, cacheability: Cacheability) -> bool {
    cacheability.ttl > 0
        && cacheability.kind != ResponseKind::Other
        && !answer.metadata.truncation
        && key.is_cacheable()
}

impl CacheHit {
    /// Returns the conditions for reusing the reply; `None` if each query needs a cache look-up.
    #[must_use]
    pub fn reusable_ref(&self) -> Option<CacheEntryRef> {
        /// The response cache counts uses once a second, which is too coarse for a shorter prefetch window.
        const MIN_MEASURABLE_WINDOW: Duration = Duration::from_secs(2);
        let is_countable = self.prefetch_window.is_none_or(|within| within >= MIN_MEASURABLE_WINDOW);
        let may_be =
            self.freshness == Freshness::Fresh && self.kind != ResponseKind::NoAnswer && is_countable;
        may_be.then(|| CacheEntryRef::new(&self.entry, self.fresh_until, self.prefetch_window))
    }

    /// Returns the start time and the start value in seconds of the TTL countdown; `None` if the TTL is constant.
    #[must_use]
    pub fn countdown(&self) -> Option<(Instant, u32)> {
        self.countdown
    }

    /// Claims the refresh of the entry, unless a refresh is under way or has just failed.
    #[must_use]
    pub fn begin_refresh(&self) -> Option<RefreshGuard> {
        let failure_recheck = self.failure_recheck;
        self.entry.begin_refresh().then(|| RefreshGuard { entry: Arc::clone(&self.entry), failure_recheck })
    }
}

impl RefreshGuard {
    pub fn succeed(mut self) {
        self.failure_recheck = Duration::ZERO;
    }
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        self.entry.end_refresh(self.failure_recheck);
    }
}

#[cfg(test)]
mod tests;
