//! The cache's metrics, with CoreDNS's names and labels.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use crate::dns::plugins::cache::entry::ResponseKind;
use crate::metrics::sharded::{ShardedCounterVec, ShardedCounters};
use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub(super) struct CacheMetrics {
    entries: IntGaugeVec,
    requests: ShardedCounterVec,
    hits: ShardedCounterVec,
    misses: ShardedCounterVec,
    prefetch: ShardedCounterVec,
    served_stale: ShardedCounterVec,
    evictions: ShardedCounterVec,
}

/// The metrics of one cache at its listeners.
#[derive(Debug)]
pub(super) struct AllCacheCounters {
    metrics: Arc<CacheMetrics>,
    zones: String,
    view: Option<Arc<str>>,
    listeners: ArcSwap<Vec<Arc<CacheCounters>>>,
}

/// The metrics of one cache at one listener. They are looked up by their labels once.
#[derive(Debug)]
pub(super) struct CacheCounters {
    server: String,
    requests: Arc<ShardedCounters>,
    misses: Arc<ShardedCounters>,
    prefetch: Arc<ShardedCounters>,
    served_stale: Arc<ShardedCounters>,
    /// Of the parts, as the gauges of their sizes, which are exported from the first answer on.
    hits: [Arc<ShardedCounters>; 2],
    evictions: [Arc<ShardedCounters>; 2],
    entries: OnceLock<[IntGauge; 2]>,
}

/// The labels of the parts.
const PARTS: [&str; 2] = ["success", "denial"];

impl MetricGroup for CacheMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        const COMMON: &[&str] = &["server", "zones", "view"];
        const TYPED: &[&str] = &["server", "type", "zones", "view"];
        let counter = |name, help, labels: &[&str]| ShardedCounterVec::register(registry, name, help, labels);
        let entries = Opts::new("coredns_cache_entries", "The number of elements in the cache.");
        Ok(Self {
            entries: registered(registry, IntGaugeVec::new(entries, TYPED))?,
            requests: counter("coredns_cache_requests_total", "The count of cache requests.", COMMON)?,
            hits: counter("coredns_cache_hits_total", "The count of cache hits.", TYPED)?,
            misses: counter(
                "coredns_cache_misses_total",
                "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.",
                COMMON,
            )?,
            prefetch: counter(
                "coredns_cache_prefetch_total",
                "The number of times the cache has prefetched a cached item.",
                COMMON,
            )?,
            served_stale: counter(
                "coredns_cache_served_stale_total",
                "The number of requests served from stale cache entries.",
                COMMON,
            )?,
            evictions: counter("coredns_cache_evictions_total", "The count of cache evictions.", TYPED)?,
        })
    }
}

impl AllCacheCounters {
    pub(super) fn new(metrics: Arc<CacheMetrics>, zones: String, view: Option<Arc<str>>) -> Self {
        Self { metrics, zones, view, listeners: ArcSwap::default() }
    }

    pub(super) fn at(&self, server: &str) -> Arc<CacheCounters> {
        if let Some(known) = self.listeners.load().iter().find(|known| known.server == server) {
            return Arc::clone(known);
        }
        let Self { metrics, zones, .. } = self;
        let view = self.view.as_deref().unwrap_or_default();
        let common = |counters: &ShardedCounterVec| counters.with(&[server, zones, view]);
        let typed =
            |counters: &ShardedCounterVec| PARTS.map(|part| counters.with(&[server, part, zones, view]));
        let counters = Arc::new(CacheCounters {
            server: server.to_owned(),
            requests: common(&metrics.requests),
            misses: common(&metrics.misses),
            prefetch: common(&metrics.prefetch),
            served_stale: common(&metrics.served_stale),
            hits: typed(&metrics.hits),
            evictions: typed(&metrics.evictions),
            entries: OnceLock::new(),
        });
        self.listeners.rcu(|known| [&known[..], &[Arc::clone(&counters)]].concat());
        counters
    }

    /// Counts evictions, and sets the gauges to the present sizes.
    pub(super) fn stored(
        &self,
        counters: &CacheCounters,
        kind: ResponseKind,
        evicted: usize,
        (success, denial): (usize, usize),
    ) {
        if evicted > 0 {
            counters.evictions[part(kind)].add(0, evicted as u64);
        }
        let view = self.view.as_deref().unwrap_or_default();
        let gauge =
            |part| self.metrics.entries.with_label_values(&[&*counters.server, part, &self.zones, view]);
        let gauges = counters.entries.get_or_init(|| PARTS.map(gauge));
        for (gauge, entries) in gauges.iter().zip([success, denial]) {
            gauge.set(i64::try_from(entries).unwrap_or(i64::MAX));
        }
    }
}

impl CacheCounters {
    /// Counts a hit or a miss, and returns the incremented counters.
    pub(super) fn answered(&self, found: Option<ResponseKind>) -> [&Arc<ShardedCounters>; 2] {
        let counted = [&self.requests, found.map_or(&self.misses, |kind| &self.hits[part(kind)])];
        counted.iter().for_each(|counter| counter.add(0, 1));
        counted
    }

    pub(super) fn prefetch(&self) {
        self.prefetch.add(0, 1);
    }

    pub(super) fn served_stale(&self) {
        self.served_stale.add(0, 1);
    }
}

/// Returns the index of the part.
fn part(kind: ResponseKind) -> usize {
    usize::from(kind != ResponseKind::Success)
}
