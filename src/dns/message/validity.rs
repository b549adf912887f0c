//! The conditions for reusing an answer without calling the plugins.
//!
//! The plugin that answers sets what the answer depends on; the preceding plugins add conditions, or forbid the reuse.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::metrics::sharded::ShardedCounters;
use crate::model::link::{IpFamily, Link};
pub use crate::model::outdated::OutdatedFlag;
use crate::store::NameDependency;

/// What an answer depends on, and the side effects of reusing it.
#[derive(Clone, Debug, Default)]
pub struct Validity {
    /// The latest time at which the answer may be reused.
    pub until: Option<Instant>,
    /// The links that the answer is made of, in their versions at the time of the answer.
    pub links: Vec<Arc<Link>>,
    /// The flags of the zones, the sets of zones, and the objects of a cluster that the answer depends on.
    pub zones: Vec<OutdatedFlag>,
    /// The names that the answer rests on, beside those of its links.
    pub names: Option<NameDependency>,
    pub cache_entries: Vec<CacheEntryRef>,
    /// The answer may be reused for clients in all of these scopes; empty means all clients.
    pub clients: Vec<ClientScope>,
    /// The records with a TTL that counts down; the TTLs of all other records are constant.
    pub countdown: Vec<TtlCountdown>,
    pub serial: Option<Serial>,
    /// Whether the order of the answer's addresses is randomized.
    pub shuffled: bool,
    /// The metrics of a query, without its duration.
    pub query_metrics: Vec<MetricDeltas>,
    /// Further counters that each reuse increments.
    pub counters: Vec<Arc<ShardedCounters>>,
    /// The address family of the query: each reuse updates the time at which the links were last queried for it.
    pub family: Option<IpFamily>,
}

/// What has to stay as it is while *cache* gives an answer, beside its TTL.
#[derive(Clone, Debug, Default)]
pub struct RestsOn {
    pub flags: Vec<OutdatedFlag>,
    pub names: SmallVec<[NameDependency; 1]>,
}

/// The number of hits of a cache entry without a long gap between them, and the time of the last hit.
#[derive(Debug)]
pub struct CacheEntryUse {
    stored: Instant,
    hits: AtomicU32,
    /// In milliseconds after `stored`.
    last_hit: AtomicU64,
}

/// An entry of the plugin *cache*.
pub trait CacheEntry: fmt::Debug + Send + Sync {
    fn usage(&self) -> &CacheEntryUse;
}

/// A reference to a cache entry: an answer made of the entry may be reused as long as the cache holds the entry.
#[derive(Clone, Debug)]
pub struct CacheEntryRef {
    entry: Weak<dyn CacheEntry>,
    until: Instant,
    /// The longest gap between two hits of a popular entry; `None` if hits aren't counted.
    max_gap: Option<Duration>,
}

/// A section of a message, in the order of the sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtlCountdown {
    pub section: Section,
    pub records: Range<usize>,
    /// The time at which the countdown begins.
    pub since: Instant,
    /// The TTL at `since`, in seconds.
    pub ttl: u32,
    /// The maximum TTL in an answer, in seconds.
    pub cap: u32,
}

/// The position of the SOA record of a zone, and its current serial, of which DNS has the low 32 bits.
#[derive(Clone, Debug)]
pub struct Serial {
    pub section: Section,
    pub record: usize,
    pub current: Arc<AtomicU64>,
}

/// The clients that may get an answer, as a predicate on addresses.
#[derive(Clone)]
pub struct ClientScope(pub Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for ClientScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientScope")
    }
}

impl Section {
    pub const ALL: [Self; 3] = [Self::Answer, Self::Authority, Self::Additional];
}

impl CacheEntryUse {
    /// Returns the use of an entry that is stored at `stored`; `hits` is the number of hits of the replaced entry, or
    /// 0.
    #[must_use]
    pub fn new(stored: Instant, hits: u32) -> Self {
        Self { stored, hits: AtomicU32::new(hits), last_hit: AtomicU64::new(0) }
    }

    #[must_use]
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Adds `times` hits up to `now`, and returns the total. A gap longer than `within` resets the total.
    pub fn record_hits(&self, times: u32, within: Duration, now: Instant) -> u32 {
        let at = u64::try_from(now.duration_since(self.stored).as_millis()).unwrap_or(u64::MAX);
        let gap = at.saturating_sub(self.last_hit.swap(at, Ordering::Relaxed));
        if u128::from(gap) > within.as_millis() {
            self.hits.store(times, Ordering::Relaxed);
            times
        } else {
            self.hits.fetch_add(times, Ordering::Relaxed).saturating_add(times)
        }
    }
}

impl CacheEntryRef {
    /// Returns a reference to an entry that may be reused until `until`. `within` is the longest gap between two hits
    /// of a popular entry; `None` if hits aren't counted.
    #[must_use]
    pub fn new(entry: &Arc<impl CacheEntry + 'static>, until: Instant, within: Option<Duration>) -> Self {
        let entry = Arc::downgrade(entry);
        Self { entry, until, max_gap: within }
    }

    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns whether the cache still holds the entry. Other strong references are short-lived.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.entry.strong_count() > 0
    }

    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.max_gap.is_some()
    }

    /// Adds `times` hits up to `now`.
    pub fn record_hits(&self, times: u32, now: Instant) {
        if let (Some(within), Some(entry)) = (self.max_gap, self.entry.upgrade()) {
            entry.usage().record_hits(times, within, now);
        }
    }
}

impl RestsOn {
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.flags.iter().any(OutdatedFlag::is_set) || !self.names.iter().all(NameDependency::is_current)
    }

    pub fn add(&mut self, other: &Self) {
        self.flags.extend(other.flags.iter().cloned());
        self.names.extend(other.names.iter().cloned());
    }

    /// Returns the approximate memory, in bytes.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        /// A flag, and the reference to it.
        const FLAG: usize = 32;
        let names: usize = self.names.iter().map(NameDependency::memory_size).sum();
        size_of::<Self>() + FLAG * self.flags.len() + names
    }
}

impl Validity {
    /// Returns the validity of a cached answer with these numbers of records in its sections. `countdown` is the start
    /// of the countdown of all TTLs and the TTL at the start, in seconds; `None` keeps the TTLs constant.
    #[must_use]
    pub fn of_cached(entry: CacheEntryRef, countdown: Option<(Instant, u32)>, sections: [usize; 3]) -> Self {
        let all = Section::ALL.into_iter().zip(sections);
        let all_of = |(since, ttl)| {
            let of = move |(section, number)| TtlCountdown {
                section,
                records: 0..number,
                since,
                ttl,
                cap: u32::MAX,
            };
            all.map(of).collect()
        };
        Self {
            until: Some(entry.until()),
            cache_entries: vec![entry],
            countdown: countdown.map(all_of).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Adds the dependencies of another answer that this answer is made of. The positions of its records aren't added.
    pub fn add_dependencies(&mut self, other: &Self) {
        self.limit_until(other.until);
        self.links.extend(other.links.iter().cloned());
        self.zones.extend(other.zones.iter().cloned());
        self.cache_entries.extend(other.cache_entries.iter().cloned());
        self.clients.extend(other.clients.iter().cloned());
        self.query_metrics.extend(other.query_metrics.iter().cloned());
        self.counters.extend(other.counters.iter().cloned());
        self.add_names(other.names.clone());
    }

    /// Adds what a cached answer rests on.
    pub fn add_rests_on(&mut self, other: &RestsOn) {
        self.zones.extend(other.flags.iter().cloned());
        other.names.iter().for_each(|names| self.add_names(Some(names.clone())));
    }

    /// Adds the names that a part of the answer rests on. An answer from two stores, one of them a snapshot, can't be
    /// reused.
    pub fn add_names(&mut self, names: Option<NameDependency>) {
        match (&mut self.names, names) {
            (None, names) => self.names = names,
            (Some(known), Some(names)) if known.is_of_same_store(&names) => known.add(&names),
            (Some(_), Some(_)) => self.limit_until(Some(Instant::now())),
            (Some(_), None) => {}
        }
    }

    /// Adapts the validity to a replaced authority section of `number` records. `runs_down` is the start of the
    /// countdown of their TTLs and the TTL at the start; `None` keeps the TTLs constant. `cap` is the maximum TTL in an
    /// answer, in seconds.
    pub fn replace_authority(&mut self, number: usize, runs_down: Option<(Instant, u32)>, cap: u32) {
        self.countdown.retain(|countdown| countdown.section != Section::Authority);
        self.serial.take_if(|serial| serial.section == Section::Authority);
        if let Some((since, ttl)) = runs_down {
            self.countdown.push(TtlCountdown {
                section: Section::Authority,
                records: 0..number,
                since,
                ttl,
                cap,
            });
        }
    }

    /// Ends the validity at `until`, unless it ends earlier.
    pub fn limit_until(&mut self, until: Option<Instant>) {
        self.until = match (self.until, until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// Returns `Some(None)` if no TTL counts down. If all TTLs that count down have the same start and the same TTL at
    /// the start, and none is capped, returns `Some(Some((start, ttl)))`; otherwise `None`.
    #[must_use]
    pub fn common_countdown(&self) -> Option<Option<(Instant, u32)>> {
        let Some(first) = self.countdown.first() else { return Some(None) };
        let same = |countdown: &TtlCountdown| {
            countdown.since == first.since && countdown.ttl == first.ttl && countdown.cap == u32::MAX
        };
        self.countdown.iter().all(same).then_some(Some((first.since, first.ttl)))
    }

    /// Returns whether the answer may still be reused at `now`: its time isn't over, and nothing that it depends on has
    /// changed.
    #[must_use]
    pub fn is_valid(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
            && !self.is_outdated()
            && self.cache_entries.iter().all(CacheEntryRef::is_cached)
    }

    /// Returns whether the links or the zones have changed since the answer, or names that it rests on.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.links.iter().any(|link| link.is_outdated())
            || self.zones.iter().any(OutdatedFlag::is_set)
            || !self.names.as_ref().is_none_or(NameDependency::is_current)
    }
}

/// The increments of a query's counters, without its duration.
#[derive(Clone, Debug)]
pub struct MetricDeltas {
    pub counters: Arc<ShardedCounters>,
    /// The index of each counter, and the increment.
    pub adds: Vec<(usize, u64)>,
}
