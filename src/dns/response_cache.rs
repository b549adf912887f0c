//! Answers in wire form, kept by one thread that gives them again: nothing is decoded, nothing allocated, and no
//! lock is waited for.
//!
//! Everything else is the full handler's, which says for each answer what has to hold for it to be given again.

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
use crate::metrics::sharded::{LocalCounters, ShardedCounters, duration};
use key::WireKey;
use wire_response::WireResponse;

/// How many answers there may be in a set: where all are popular, one of them has to go.
const WAYS: usize = 4;
/// How many sets are looked through for one answer that needs room.
const MAX_CLOCK_STEPS: usize = 64;
/// How often it is told how popular an answer is.
const HIT_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How many answers are kept.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// So many sets of four, a power of two.
    pub sets: usize,
    /// And so many bytes, as far as they can be counted.
    pub bytes: usize,
}

/// The answers of one thread.
#[derive(Debug)]
pub struct ResponseCache {
    sets: Box<[[Option<Box<CacheSlot>>; WAYS]]>,
    max_bytes: usize,
    hasher: RandomState,
    key: WireKey,
    random: SmallRng,
    bytes: usize,
    /// The set that is looked through next where room is short.
    hand: usize,
    /// This thread's cells of all counters that answers count on, by where the counters are.
    cells: HashMap<usize, (Arc<ShardedCounters>, Arc<LocalCounters>)>,
    /// What an answer adds where it is counted how long one takes, as far as this is known.
    took: [(usize, u64); 2],
}

/// Why a question isn't answered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Nothing is known that would be its answer.
    Unknown,
    /// Its answer was known, and the links that it rested on have changed since: mostly the full handler has another one
    /// at once.
    Outdated,
}

#[derive(Debug)]
struct CacheSlot {
    key: Box<[u8]>,
    wire_response: WireResponse,
    deltas: ThreadDeltas,
    /// Whether it was given since room was looked for here.
    is_used: bool,
    /// The client that it was last for: mostly it is the same one.
    client: IpAddr,
    /// How often it was given since this was told, and when it was.
    unnoted: u32,
    noted: Instant,
}

/// Which counters, and how much.
type Adds = Box<[(u16, u64)]>;

/// What is counted when an answer is given.
#[derive(Debug, Default)]
struct ThreadDeltas {
    /// What is counted by one, or more, and where.
    adds: Box<[(Arc<LocalCounters>, Adds)]>,
    /// Where it is counted how long that takes.
    durations: Box<[Arc<LocalCounters>]>,
}

impl ResponseCache {
    /// Returns room for answers, with none in it.
    #[must_use]
    pub fn new(room: Capacity) -> Self {
        debug_assert!(room.sets.is_power_of_two(), "{room:?}");
        Self {
            sets: std::iter::repeat_with(Default::default).take(room.sets).collect(),
            max_bytes: room.bytes,
            hasher: RandomState::new(),
            key: WireKey::default(),
            random: SmallRng::from_rng(&mut rand::rng()),
            bytes: 0,
            hand: 0,
            cells: HashMap::new(),
            took: duration(Duration::ZERO),
        }
    }

    /// Returns what makes the last question the same as another; nothing if its answer isn't one to keep.
    #[must_use]
    pub fn last_key(&self) -> Option<&[u8]> {
        (!self.key.as_bytes().is_empty()).then(|| self.key.as_bytes())
    }

    /// Writes the answer to a question, if it is known what a server would say to that client. Returns its length.
    /// Several servers may share the answers of a thread, but not one that is asked by UDP and by TCP.
    ///
    /// # Errors
    /// If the full handler has to be asked.
    pub fn answer(
        &mut self,
        question: &[u8],
        client: IpAddr,
        server: u64,
        now: Instant,
        out: &mut [u8],
    ) -> Result<usize, Miss> {
        if !self.key.read(question, client.is_ipv6()) {
            return Err(Miss::Unknown);
        }
        let key = self.key.as_bytes();
        let set = &mut self.sets[place_of(&self.hasher, key, self.sets.len())];
        let is_it =
            |place: &&mut Option<Box<CacheSlot>>| place.as_ref().is_some_and(|e| e.is_of(key, server));
        let place = set.iter_mut().find(is_it).ok_or(Miss::Unknown)?;
        let entry = place.as_deref_mut().ok_or(Miss::Unknown)?;
        if !entry.wire_response.any_spelling && !self.key.is_spelled_so(question) {
            return Err(Miss::Unknown);
        }
        if !entry.wire_response.repeat.is_valid(now) {
            let miss = if entry.wire_response.repeat.is_outdated() { Miss::Outdated } else { Miss::Unknown };
            entry.note(now);
            self.bytes -= entry.weight();
            *place = None;
            return Err(miss);
        }
        if entry.client != client {
            if !entry.wire_response.is_for(client) {
                return Err(Miss::Unknown);
            }
            entry.client = client;
        }
        let written = entry.wire_response.write(question, self.key.name_length(), now, &mut self.random, out);
        let length = written.ok_or(Miss::Unknown)?;
        entry.record_hit(now, &self.took);
        Ok(length)
    }

    /// Takes in how long each answer of late has taken.
    pub fn set_took(&mut self, took: Duration) {
        self.took = duration(took);
    }

    /// Keeps the answer to a client's question of that key, for the next equal query.
    pub fn keep(&mut self, key: Box<[u8]>, client: IpAddr, mut wire_response: WireResponse, now: Instant) {
        let deltas = self.deltas(&mut wire_response);
        let entry = CacheSlot { key, wire_response, deltas, is_used: false, client, unnoted: 0, noted: now };
        let weight = entry.weight();
        self.make_room(weight, now);
        let place = place_of(&self.hasher, &entry.key, self.sets.len());
        let set = &mut self.sets[place];
        let is_same = |other: &CacheSlot| other.is_of(&entry.key, entry.wire_response.server);
        let same = set.iter().position(|place| place.as_deref().is_some_and(is_same));
        let free = || set.iter().position(Option::is_none);
        let at = same.or_else(free).unwrap_or_else(|| {
            // Not given since the last time; or else the first one.
            let unused = set.iter().position(|place| place.as_ref().is_some_and(|entry| !entry.is_used));
            set.iter_mut().flatten().for_each(|entry| entry.is_used = false);
            unused.unwrap_or_default()
        });
        let before = set[at].as_ref().map_or(0, |entry| entry.weight());
        if self.bytes - before + weight > self.max_bytes {
            return;
        }
        self.bytes = self.bytes - before + weight;
        set[at] = Some(Box::new(entry));
    }

    /// CLOCK eviction: removes answers that are invalid, or whose used bit is clear, until there is room.
    fn make_room(&mut self, weight: usize, now: Instant) {
        for _ in 0..MAX_CLOCK_STEPS {
            if self.bytes + weight <= self.max_bytes {
                return;
            }
            let hand = self.hand;
            self.hand = (hand + 1) % self.sets.len();
            for place in &mut self.sets[hand] {
                let Some(entry) = place else { continue };
                if entry.is_used && entry.wire_response.repeat.is_valid(now) {
                    entry.is_used = false;
                    continue;
                }
                entry.note(now);
                self.bytes -= entry.weight();
                *place = None;
            }
        }
    }

    fn deltas(&mut self, wire_response: &mut WireResponse) -> ThreadDeltas {
        let mut adds = Vec::new();
        let mut durations = Vec::new();
        for charge in std::mem::take(&mut wire_response.repeat.charges) {
            let cells = self.cells_of(&charge.counters);
            let places =
                charge.adds.iter().filter_map(|(at, number)| Some((u16::try_from(*at).ok()?, *number)));
            adds.push((Arc::clone(&cells), places.collect()));
            durations.push(cells);
        }
        for counter in std::mem::take(&mut wire_response.repeat.counts) {
            adds.push((self.cells_of(&counter), Box::from([(0, 1)])));
        }
        ThreadDeltas { adds: adds.into(), durations: durations.into() }
    }

    fn cells_of(&mut self, counters: &Arc<ShardedCounters>) -> Arc<LocalCounters> {
        let place = Arc::as_ptr(counters).addr();
        let (_, cells) = self.cells.entry(place).or_insert_with(|| (Arc::clone(counters), counters.own()));
        Arc::clone(cells)
    }
}

/// Returns the set that an answer may be in.
#[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
fn place_of(hasher: &RandomState, key: &[u8], sets: usize) -> usize {
    hasher.hash_one(key) as usize & (sets - 1)
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

    /// Counts that it is given.
    fn record_hit(&mut self, now: Instant, took: &[(usize, u64)]) {
        self.is_used = true;
        for (cells, adds) in &self.deltas.adds {
            adds.iter().for_each(|(at, number)| cells.add(usize::from(*at), *number));
        }
        for cells in &self.deltas.durations {
            took.iter().for_each(|(at, number)| cells.add(*at, *number));
        }
        let repeat = &self.wire_response.repeat;
        if let Some(family) = repeat.family {
            repeat.links.iter().for_each(|link| link.last_queried.note_at(family, now.into_std()));
        }
        if repeat.kept.iter().any(CacheEntryRef::is_counted) {
            self.unnoted += 1;
            if now.duration_since(self.noted) >= HIT_REPORT_INTERVAL {
                self.note(now);
            }
        }
    }

    /// Tells how often it was given.
    fn note(&mut self, now: Instant) {
        if self.unnoted > 0 {
            self.wire_response.repeat.kept.iter().for_each(|kept| kept.note(self.unnoted, now));
            (self.unnoted, self.noted) = (0, now);
        }
    }
}
