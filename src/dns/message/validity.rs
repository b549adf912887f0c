//! What has to hold for an answer to be given again without asking the plugins.
//!
//! The plugin that answers says what the answer depends on; the plugins before it add to that, or say that the answer
//! may not be reused.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::sharded::ShardedCounters;
use crate::model::link::{IpFamily, Link};
use crate::store::{NameSetVersion, Store};

/// What an answer rests on, and what giving it again brings with it.
#[derive(Clone, Debug, Default)]
pub struct Validity {
    /// When it ends, whatever happens.
    pub until: Option<Instant>,
    /// The links that it is about, as they were.
    pub links: Vec<Arc<Link>>,
    /// Which names there were.
    pub names: Option<NameSetVersion>,
    /// The cached answers that it was made of.
    pub kept: Vec<CacheEntryRef>,
    /// What clients have to be for it.
    pub clients: Vec<ClientScope>,
    /// The records whose TTL runs down. All others stay as they are.
    pub countdown: Vec<TtlCountdown>,
    /// The record with the serial of our zone.
    pub serial: Option<Serial>,
    /// Whether its addresses are given in any order.
    pub shuffled: bool,
    /// What is counted of a question.
    pub charges: Vec<MetricDeltas>,
    /// What is counted beside that.
    pub counts: Vec<Arc<ShardedCounters>>,
    /// The family of addresses that was asked for: the link notes when it was last queried for it.
    pub family: Option<IpFamily>,
}

/// How often an entry of a cache was given, without a long gap, and when last.
#[derive(Debug)]
pub struct CacheEntryUse {
    stored: Instant,
    hits: AtomicU32,
    /// In milliseconds after `stored`.
    last_hit: AtomicU64,
}

/// An entry of a cache that is given again without a look into the cache, as long as it is there.
#[derive(Clone, Debug)]
pub struct CacheEntryRef {
    used: Weak<CacheEntryUse>,
    until: Instant,
    /// The longest gap between two times at which a popular entry is given; `None` where hits aren't counted.
    within: Option<Duration>,
}

/// A section of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The answer section.
    Answer,
    /// The authority section.
    Authority,
    /// The additional section.
    Additional,
}

/// Records whose TTL runs down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtlCountdown {
    /// Where they are.
    pub section: Section,
    /// Which of them.
    pub records: Range<usize>,
    /// Since when.
    pub since: Instant,
    /// From how many seconds.
    pub ttl: u32,
    /// How many are shown at most.
    pub cap: u32,
}

/// The SOA record of our zone: its serial is the store's.
#[derive(Clone, Debug)]
pub struct Serial {
    /// Where it is.
    pub section: Section,
    /// Which record it is.
    pub record: usize,
    /// The store, which has the serial.
    pub store: Arc<Store>,
}

/// Those clients that get an answer.
#[derive(Clone)]
pub struct ClientScope(pub Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for ClientScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clients")
    }
}

impl CacheEntryUse {
    /// Returns the count of an entry that is stored now; `hits` are taken over from the entry before it.
    #[must_use]
    pub fn new(stored: Instant, hits: u32) -> Self {
        Self { stored, hits: AtomicU32::new(hits), last_hit: AtomicU64::new(0) }
    }

    /// Returns how often the entry was given.
    #[must_use]
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Counts that the entry was given so many times up to `now`, and returns how often it was in all. A gap longer
    /// than `within` starts the count anew.
    pub fn note(&self, times: u32, within: Duration, now: Instant) -> u32 {
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
    /// Returns an entry with this count that may be given again until then. `within` is the longest gap between two
    /// times at which a popular entry is given; `None` where hits aren't counted.
    #[must_use]
    pub fn new(used: &Arc<CacheEntryUse>, until: Instant, within: Option<Duration>) -> Self {
        Self { used: Arc::downgrade(used), until, within }
    }

    /// Returns until when it may be given again.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns whether the cache has it still. Nothing else holds on to an entry for longer than a moment.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.used.strong_count() > 0
    }

    /// Returns whether its hits are counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.within.is_some()
    }

    /// Takes in that it was given again so many times, the last of them now.
    pub fn note(&self, times: u32, now: Instant) {
        if let (Some(within), Some(used)) = (self.within, self.used.upgrade()) {
            used.note(times, within, now);
        }
    }
}

impl Validity {
    /// Returns what a cached answer with so many records in its sections rests on.
    #[must_use]
    pub fn of_cached(kept: CacheEntryRef, countdown: Option<(Instant, u32)>, sections: [usize; 3]) -> Self {
        let all = [Section::Answer, Section::Authority, Section::Additional].into_iter().zip(sections);
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
            until: Some(kept.until()),
            kept: vec![kept],
            countdown: countdown.map(all_of).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Adds what another answer rests on that this one is made of. Where its records are isn't known here.
    pub fn depends_on(&mut self, other: &Self) {
        self.end_by(other.until);
        self.links.extend(other.links.iter().cloned());
        self.kept.extend(other.kept.iter().cloned());
        self.clients.extend(other.clients.iter().cloned());
        self.charges.extend(other.charges.iter().cloned());
        self.counts.extend(other.counts.iter().cloned());
        self.rest_on_names(other.names.clone());
    }

    /// Takes in which names there were at a look-up. Of several the first counts: what has changed since is noticed.
    pub fn rest_on_names(&mut self, names: Option<NameSetVersion>) {
        if self.names.is_none() {
            self.names = names;
        }
    }

    /// Takes in that the authority section is another one, with so many records. They run down as given, if they do, and
    /// no more than `cap` seconds are shown.
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

    /// Has it end then, if not before.
    pub fn end_by(&mut self, until: Option<Instant>) {
        self.until = match (self.until, until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// Returns from when on and from how many seconds all records run down that do, if that is the same.
    #[must_use]
    pub fn runs_down(&self) -> Option<Option<(Instant, u32)>> {
        let Some(first) = self.countdown.first() else { return Some(None) };
        let same = |countdown: &TtlCountdown| {
            countdown.since == first.since && countdown.ttl == first.ttl && countdown.cap == u32::MAX
        };
        self.countdown.iter().all(same).then_some(Some((first.since, first.ttl)))
    }

    /// Returns whether nothing has changed that it rests on.
    #[must_use]
    pub fn is_valid(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
            && !self.is_outdated()
            && self.kept.iter().all(CacheEntryRef::is_there)
    }

    /// Returns whether links have changed that it rests on, or which names there are.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.links.iter().any(|link| link.is_outdated())
            || !self.names.as_ref().is_none_or(NameSetVersion::is_current)
    }
}

/// What a question adds to a tally, but for how long it took.
#[derive(Clone, Debug)]
pub struct MetricDeltas {
    /// The counters of the tally.
    pub counters: Arc<ShardedCounters>,
    /// Which of them, and how much.
    pub adds: Vec<(usize, u64)>,
}
