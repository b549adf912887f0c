//! A cache of answers in wire form, one for each thread: a hit decodes nothing, allocates nothing and waits for no
//! lock.
//!
//! The full handler answers all queries without a cached answer, and sets the conditions under which each answer may be
//! reused.
//!
//! # Why an answer isn't kept
//!
//! No metric tells the reason: read in this order. In the response cache, which holds answers in wire form:
//!
//! 1. `src/dns/message/reply.rs`: answers of *template*, *chaos*, *any*, *whoami*, of *forward* without *cache*, and the
//!    first answer after a miss of *cache* have no `Reply::validity`. *log* clears it for answers that it logs.
//!    *lb_linker* (with `hops.rs`) and *loadbalance* clear it where an answer depends on more than it can express,
//!    *prometheus* for pairs of rcode and plugin beyond the first 64 of a zone. `CacheHit::reusable_ref` in
//!    `src/dns/plugins/cache/store.rs` gives none for answers that are stale or due for a prefetch.
//! 2. `src/dns/message/validity.rs`: what an answer depends on: links, names, cache entries, a time, the client.
//! 3. `src/dns/chain/plugin.rs`: every plugin that the answer passed through must be added as reusable; *rewrite*,
//!    *erratic*, *forward* and *whoami* aren't. `src/dns/chain/handler.rs` leaves out answers of more than 1,232 bytes, or
//!    incomplete ones, if `bufsize` allows more.
//! 4. `src/dns/chain/server.rs`: if blocks of a listener are for views, a kept answer counts for one block, which is chosen
//!    for each query; an answer with the target of a CNAME from such a block isn't kept.
//! 5. `src/dns/response_cache/key.rs`: only queries with one question, and without options that change the answer.
//!    `src/dns/response_cache/wire_response.rs`: not more than 4,096 bytes, and not with a name in mixed case. A
//!    thread's cache has a fixed capacity, and a query from another port may go to another thread. The answer to the first
//!    query of a thread isn't kept (`key_to_keep` in this file).
//!
//! In the plugin *cache*: `src/dns/plugins/cache/state.rs` (`Reply::is_cacheable`, 64 KiB, `disable`, a change of the
//! target), `is_storable` and `classify` in `src/dns/plugins/cache/store.rs` (truncated, TTL 0, transfers, no RD,
//! signatures), and `src/dns/plugins/cache/entry.rs` (the kind of an answer: `Other` isn't kept).

pub mod key;
#[cfg(test)]
mod tests;
pub mod wire_response;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::Instant;

use crate::dns::message::validity::CacheEntryRef;
use crate::metrics::sharded::{LocalCounters, ShardedCounters, duration_deltas};
use key::WireKey;
use wire_response::WireResponse;

/// The number of answers in a set; a full set evicts one of its answers for a new one.
const WAYS: usize = 4;
/// The maximum number of sets that are searched for evictable answers to make room for one answer.
const MAX_CLOCK_STEPS: usize = 64;
/// The interval at which hits are reported to the entry of the plugin `cache`.
const HIT_REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// The number of sets of four answers, a power of two.
    pub sets: usize,
    /// The approximate memory limit, in bytes.
    pub bytes: usize,
}

#[derive(Debug)]
pub struct ResponseCache {
    sets: Box<[[Option<Box<CacheSlot>>; WAYS]]>,
    max_bytes: usize,
    hasher: RandomState,
    key: WireKey,
    /// Tags of the last queries without an answer here, in sets by hash, the last one first: an answer is kept from the
    /// second query on. A flood of names thus costs less, and evicts nothing.
    asked: Box<[[u16; WAYS]]>,
    /// Whether the answer to the last query is worth keeping.
    is_asked_again: bool,
    random: SmallRng,
    bytes: usize,
    /// The CLOCK hand: the set that is searched next for evictable answers.
    clock_hand: usize,
    /// This thread's shards of all counters that answers increment, keyed by the address of the counters.
    local_counters: HashMap<usize, (Arc<ShardedCounters>, Arc<LocalCounters>)>,
    /// The increments of the duration metrics for a hit, from the average duration of recent hits.
    hit_duration_deltas: [(usize, u64); 2],
}

/// The reason why a query has no cached answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The cache has no valid answer for this query and client.
    NotCached,
    /// The cached answer is outdated because the links that it depends on have changed; usually the full handler can
    /// answer anew without waiting.
    Outdated,
}

#[derive(Debug)]
struct CacheSlot {
    key: Box<[u8]>,
    wire_response: WireResponse,
    deltas: ThreadDeltas,
    /// The CLOCK used bit: whether the answer was used since the hand last passed.
    is_used: bool,
    /// The client of the last hit, which is usually also the client of the next hit.
    client: IpAddr,
    /// The number of hits since the last report, and the time of that report.
    unreported_hits: u32,
    reported_at: Instant,
}

/// The index of each counter, and the increment.
type CounterIncrements = Box<[(u16, u64)]>;

#[derive(Debug, Default)]
struct ThreadDeltas {
    adds: Box<[(Arc<LocalCounters>, CounterIncrements)]>,
    durations: Box<[Arc<LocalCounters>]>,
}

impl ResponseCache {
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        debug_assert!(capacity.sets.is_power_of_two(), "{capacity:?}");
        Self {
            sets: std::iter::repeat_with(Default::default).take(capacity.sets).collect(),
            max_bytes: capacity.bytes,
            hasher: RandomState::new(),
            key: WireKey::default(),
            asked: std::iter::repeat_n([0; WAYS], capacity.sets).collect(),
            is_asked_again: false,
            random: SmallRng::from_rng(&mut rand::rng()),
            bytes: 0,
            clock_hand: 0,
            local_counters: HashMap::new(),
            hit_duration_deltas: duration_deltas(Duration::ZERO),
        }
    }

    /// Returns the key under which the answer to the last query should be kept; `None` if the answer must not be kept, or
    /// if the query is asked for the first time.
    #[must_use]
    pub fn key_to_keep(&self) -> Option<&[u8]> {
        (self.is_asked_again && !self.key.as_bytes().is_empty()).then(|| self.key.as_bytes())
    }

    /// Writes the cached answer to a query, if it is valid for that client. Returns its length in bytes. `server` is the
    /// number of the server or, if it has views, of the block. Several servers may share a cache, but not servers with
    /// different transports.
    ///
    /// # Errors
    /// If the full handler has to answer.
    pub fn answer(
        &mut self,
        query: &[u8],
        client: IpAddr,
        server: u64,
        now: Instant,
        out: &mut [u8],
    ) -> Result<usize, Miss> {
        if !self.key.read(query, client.is_ipv6()) {
            return Err(Miss::NotCached);
        }
        let key = self.key.as_bytes();
        let hash = self.hash(key, server);
        let set = &mut self.sets[set_index(hash, self.sets.len())];
        let is_it =
            |place: &&mut Option<Box<CacheSlot>>| place.as_ref().is_some_and(|e| e.is_of(key, server));
        let Some(place) = set.iter_mut().find(is_it) else {
            self.is_asked_again = note_query(&mut self.asked, hash);
            return Err(Miss::NotCached);
        };
        self.is_asked_again = true;
        let entry = place.as_deref_mut().ok_or(Miss::NotCached)?;
        if !entry.wire_response.is_case_independent && !self.key.is_lower_case(query) {
            return Err(Miss::NotCached);
        }
        if !entry.wire_response.validity.is_valid(now) {
            let miss =
                if entry.wire_response.validity.is_outdated() { Miss::Outdated } else { Miss::NotCached };
            entry.report_hits(now);
            self.bytes -= entry.weight();
            *place = None;
            return Err(miss);
        }
        if entry.client != client {
            if !entry.wire_response.is_for(client) {
                return Err(Miss::NotCached);
            }
            entry.client = client;
        }
        let written = entry.wire_response.write(query, self.key.name_length(), now, &mut self.random, out);
        let length = written.ok_or(Miss::NotCached)?;
        entry.record_hit(now, &self.hit_duration_deltas);
        Ok(length)
    }

    /// Sets the average duration of recent hits, which later hits add to the metrics.
    pub fn set_hit_duration(&mut self, took: Duration) {
        self.hit_duration_deltas = duration_deltas(took);
    }

    /// Stores the answer to a client's query under the query's key, unless there is no room for the answer.
    pub fn insert(&mut self, key: Box<[u8]>, client: IpAddr, mut wire_response: WireResponse, now: Instant) {
        let deltas = self.deltas(&mut wire_response);
        let entry = CacheSlot {
            key,
            wire_response,
            deltas,
            is_used: false,
            client,
            unreported_hits: 0,
            reported_at: now,
        };
        let weight = entry.weight();
        self.make_room(weight, now);
        let place = set_index(self.hash(&entry.key, entry.wire_response.server), self.sets.len());
        let set = &mut self.sets[place];
        let is_same = |other: &CacheSlot| {
            other.key == entry.key
                && place_of(other.wire_response.server) == place_of(entry.wire_response.server)
        };
        let same = set.iter().position(|place| place.as_deref().is_some_and(is_same));
        let free = || set.iter().position(Option::is_none);
        let at = same.or_else(free).unwrap_or_else(|| {
            // The first answer with a clear used bit, or else the first answer of the set.
            let unused = set.iter().position(|place| place.as_ref().is_some_and(|entry| !entry.is_used));
            set.iter_mut().flatten().for_each(|entry| entry.is_used = false);
            unused.unwrap_or_default()
        });
        let before = set[at].as_ref().map_or(0, |entry| entry.weight());
        if self.bytes - before + weight > self.max_bytes {
            return;
        }
        self.bytes = self.bytes - before + weight;
        if let Some(mut replaced) = set[at].replace(Box::new(entry)) {
            replaced.report_hits(now);
        }
    }

    fn hash(&self, key: &[u8], server: u64) -> u64 {
        self.hasher.hash_one((key, place_of(server)))
    }

    /// CLOCK eviction: removes answers that are invalid or have a clear used bit, until there is room. Clears the used
    /// bits of the answers that stay.
    fn make_room(&mut self, weight: usize, now: Instant) {
        for _ in 0..MAX_CLOCK_STEPS {
            if self.bytes + weight <= self.max_bytes {
                return;
            }
            let clock_hand = self.clock_hand;
            self.clock_hand = (clock_hand + 1) % self.sets.len();
            for place in &mut self.sets[clock_hand] {
                let Some(entry) = place else { continue };
                if entry.is_used && entry.wire_response.validity.is_valid(now) {
                    entry.is_used = false;
                    continue;
                }
                entry.report_hits(now);
                self.bytes -= entry.weight();
                *place = None;
            }
        }
    }

    fn deltas(&mut self, wire_response: &mut WireResponse) -> ThreadDeltas {
        let mut adds = Vec::new();
        let mut durations = Vec::new();
        for deltas in std::mem::take(&mut wire_response.validity.query_metrics) {
            let local_counters = self.local_counters(&deltas.counters);
            let places =
                deltas.adds.iter().filter_map(|(at, number)| Some((u16::try_from(*at).ok()?, *number)));
            adds.push((Arc::clone(&local_counters), places.collect()));
            durations.push(local_counters);
        }
        for counter in std::mem::take(&mut wire_response.validity.counters) {
            adds.push((self.local_counters(&counter), Box::from([(0, 1)])));
        }
        ThreadDeltas { adds: adds.into(), durations: durations.into() }
    }

    fn local_counters(&mut self, counters: &Arc<ShardedCounters>) -> Arc<LocalCounters> {
        let place = Arc::as_ptr(counters).addr();
        let (_, local_counters) =
            self.local_counters.entry(place).or_insert_with(|| (Arc::clone(counters), counters.new_shard()));
        Arc::clone(local_counters)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
fn set_index(hash: u64, sets: usize) -> usize {
    hash as usize & (sets - 1)
}

/// Returns the part of a server's number that stays the same when the Corefile is reloaded.
#[expect(clippy::cast_possible_truncation, reason = "it is the lowest 16 bits")]
fn place_of(server: u64) -> u16 {
    server as u16
}

/// Notes a query, and returns whether it was among the last ones already.
fn note_query(asked: &mut [[u16; WAYS]], hash: u64) -> bool {
    let [.., a, b] = (hash >> 32).to_be_bytes();
    // 0 stands for no query.
    let tag = u16::from_be_bytes([a, b]).max(1);
    let set = &mut asked[set_index(hash, asked.len())];
    let is_known = set.contains(&tag);
    if !is_known {
        set.rotate_right(1);
        set[0] = tag;
    }
    is_known
}

impl CacheSlot {
    fn is_of(&self, key: &[u8], server: u64) -> bool {
        *self.key == *key && self.wire_response.server == server
    }

    fn weight(&self) -> usize {
        let adds: usize = self.deltas.adds.iter().map(|(_, adds)| 24 + 16 * adds.len()).sum();
        size_of::<Self>()
            + self.key.len()
            + self.wire_response.weight()
            + adds
            + 8 * self.deltas.durations.len()
    }

    /// Updates the metrics, the used bit and the hit counts for a hit.
    fn record_hit(&mut self, now: Instant, took: &[(usize, u64)]) {
        self.is_used = true;
        for (local_counters, adds) in &self.deltas.adds {
            adds.iter().for_each(|(at, number)| local_counters.add(usize::from(*at), *number));
        }
        for local_counters in &self.deltas.durations {
            took.iter().for_each(|(at, number)| local_counters.add(*at, *number));
        }
        let validity = &self.wire_response.validity;
        if let Some(family) = validity.family {
            validity.links.iter().for_each(|link| link.last_queried.note_at(family, now.into_std()));
        }
        if validity.cache_entries.iter().any(CacheEntryRef::is_counted) {
            self.unreported_hits += 1;
            if now.duration_since(self.reported_at) >= HIT_REPORT_INTERVAL {
                self.report_hits(now);
            }
        }
    }

    /// Reports the hits to the entries of the plugin `cache`.
    fn report_hits(&mut self, now: Instant) {
        if self.unreported_hits > 0 {
            self.wire_response
                .validity
                .cache_entries
                .iter()
                .for_each(|cached| cached.record_hits(self.unreported_hits, now));
            (self.unreported_hits, self.reported_at) = (0, now);
        }
    }
}
