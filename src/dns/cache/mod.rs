//! Answers of upstreams, kept as long as they may be, with CoreDNS's bounds.

mod item;

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, OpCode};
use tokio::time::Instant;

use super::bounded::Bounded;
use super::question::Key;
use item::Item;
pub use item::Kind;
pub(super) use item::{plain_ttl, weight};

/// CoreDNS's default for each of the two parts.
const CAPACITY: usize = 9984;
/// How many bytes each part may take, as far as they can be counted. CoreDNS counts answers alone, and one
/// of 64 KB takes a megabyte.
const BYTES: usize = 32 << 20;
/// CoreDNS's bounds of TTLs, in seconds.
const MIN_TTL: u32 = 5;
const MAX_TTL: u32 = 3600;
const MAX_DENIAL_TTL: u32 = 1800;
/// How long it is known that no upstream has answered, in seconds.
const SILENCE_TTL: u32 = 1;

/// How answers of one kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
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
    /// How long the upstream is given first; `None` to ask it only afterwards.
    pub verify: Option<Duration>,
    /// Their TTL, in seconds.
    pub ttl: u32,
}

/// What a cache does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Answers that say something.
    pub success: Bounds,
    /// Answers that say that there is nothing.
    pub denial: Bounds,
    /// How long a failure is kept; zero for not at all.
    pub servfail: Duration,
    /// Which answers are asked for again before they expire.
    pub prefetch: Option<Prefetch>,
    /// Whether expired answers are given.
    pub serve_stale: Option<ServeStale>,
}

/// The answers, and what is done with them.
#[derive(Debug)]
pub struct Cache {
    options: CacheOptions,
    success: Bounded<Arc<Item>>,
    denial: Bounded<Arc<Item>>,
}

/// What the cache has for a question.
#[derive(Clone, Debug)]
pub struct Found {
    /// The answer, as it came from the upstream.
    pub message: Arc<Message>,
    /// The TTL of all its records now.
    pub ttl: u32,
    /// What it says.
    pub kind: Kind,
    /// How old it is.
    pub age: Duration,
    /// Whether it is still good.
    pub freshness: Freshness,
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
            success: Bounds { capacity: CAPACITY, min_ttl: MIN_TTL, max_ttl: MAX_TTL },
            denial: Bounds { capacity: CAPACITY, min_ttl: MIN_TTL, max_ttl: MAX_DENIAL_TTL },
            servfail: Duration::from_secs(MIN_TTL.into()),
            prefetch: None,
            serve_stale: None,
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

impl Cache {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(options: CacheOptions) -> Self {
        Self {
            success: Bounded::new(options.success.capacity, BYTES),
            denial: Bounded::new(options.denial.capacity, BYTES),
            options,
        }
    }

    /// Looks a question up. A failure never hides a good answer.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Found> {
        let now = Instant::now();
        let denial = self.denial.get(key).and_then(|item| self.found(&item, now));
        match denial {
            Some(denial) if denial.kind == Kind::Denial => Some(denial),
            failure => self.success.get(key).and_then(|item| self.found(&item, now)).or(failure),
        }
    }

    /// Returns whether the last look-up of a question has failed just now.
    #[must_use]
    pub fn is_failing(&self, key: &Key) -> bool {
        let item = self.denial.get(key).filter(|item| matches!(item.kind, Kind::Failure | Kind::Silence));
        item.is_some_and(|item| item.stored.elapsed() < Duration::from_secs(item.ttl.into()))
    }

    fn found(&self, item: &Item, now: Instant) -> Option<Found> {
        let age = now.duration_since(item.stored);
        let left = item.ttl.saturating_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        let (ttl, freshness) = if left > 0 {
            let due = self.options.prefetch.is_some_and(|prefetch| item.is_due(&prefetch, left, now));
            (left, if due { Freshness::Due } else { Freshness::Fresh })
        } else {
            let stale = self.options.serve_stale?;
            let expired = age.saturating_sub(Duration::from_secs(item.ttl.into()));
            // A failure is no answer that could still be good.
            if expired >= stale.up_to || matches!(item.kind, Kind::Failure | Kind::Silence) {
                return None;
            }
            (stale.ttl, Freshness::Stale(stale.verify))
        };
        Some(Found { message: Arc::clone(&item.message), ttl, kind: item.kind, age, freshness })
    }

    /// Takes an answer in, if it is one that can be kept.
    pub fn put(&self, key: &Key, message: &Arc<Message>) {
        let (kind, ttl) = self.sort(message);
        if kind != Kind::Other && !message.metadata.truncation {
            self.store(key, message, kind, ttl);
        }
    }

    /// Takes in that there was no answer: that isn't asked again at once (RFC 9520 section 3.2).
    pub fn put_silence(&self, key: &Key) {
        let nothing = Arc::new(Message::response(0, OpCode::Query));
        self.store(key, &nothing, Kind::Silence, SILENCE_TTL.min(self.servfail()));
    }

    fn store(&self, key: &Key, message: &Arc<Message>, kind: Kind, ttl: u32) {
        if ttl == 0 || !key.is_for_cache() {
            return;
        }
        // What was popular stays so.
        let hits = self.success.get(key).map_or(0, |before| before.hits());
        let item = Arc::new(Item::new(kind, Arc::clone(message), ttl, hits));
        let (part, other) = match kind {
            Kind::Success => (&self.success, Some(&self.denial)),
            Kind::Denial => (&self.denial, Some(&self.success)),
            // Whatever is wrong now, what was known before may still be good.
            Kind::Failure | Kind::Silence | Kind::Other => (&self.denial, None),
        };
        part.put(key.clone(), item, weight(message));
        if let Some(other) = other {
            other.remove(key);
        }
    }

    /// Returns the TTL, in seconds, that all records of an answer get that has just come: the same as
    /// later from the cache, so that it doesn't jump.
    #[must_use]
    pub fn ttl(&self, message: &Message) -> u32 {
        self.sort(message).1
    }

    fn servfail(&self) -> u32 {
        u32::try_from(self.options.servfail.as_secs()).unwrap_or(u32::MAX)
    }

    /// Returns what an answer says, and how long it may be kept, in seconds.
    fn sort(&self, message: &Message) -> (Kind, u32) {
        let kind = Kind::of(message);
        let bounds = match kind {
            Kind::Failure => return (kind, self.servfail()),
            Kind::Denial => self.options.denial,
            Kind::Success | Kind::Silence | Kind::Other => self.options.success,
        };
        // An answer without an answer, such as a referral, isn't worth more whatever comes with it.
        let is_empty = kind == Kind::Success && message.answers.is_empty();
        let lowest = item::lowest_ttl(message).filter(|_| !is_empty).unwrap_or(MIN_TTL);
        (kind, lowest.max(bounds.min_ttl).min(bounds.max_ttl))
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

    /// Returns how many answers there are, those that say something and those that say that there is
    /// nothing.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.success.len(), self.denial.len())
    }
}

#[cfg(test)]
mod tests;
