//! The cache's metrics, with CoreDNS's names and labels.

use std::sync::Arc;

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::dns::plugins::cache::entry::ResponseKind;
use crate::metrics::sharded::{ShardedCounterVec, ShardedCounters};
use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub(super) struct CacheMetrics {
    entries: IntGaugeVec,
    requests: ShardedCounterVec,
    hits: ShardedCounterVec,
    misses: ShardedCounterVec,
    prefetch: IntCounterVec,
    served_stale: IntCounterVec,
    evictions: IntCounterVec,
}

/// The metrics of one cache at one listener.
#[derive(Clone, Copy)]
pub(super) struct CacheCounters<'a> {
    pub(super) metrics: &'a CacheMetrics,
    pub(super) server: &'a str,
    pub(super) zones: &'a str,
}

impl MetricGroup for CacheMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        const COMMON: &[&str] = &["server", "zones", "view"];
        const TYPED: &[&str] = &["server", "type", "zones", "view"];
        let counter = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let sharded = |name, help, labels: &[&str]| ShardedCounterVec::register(registry, name, help, labels);
        let entries = Opts::new("coredns_cache_entries", "The number of elements in the cache.");
        Ok(Self {
            entries: registered(registry, IntGaugeVec::new(entries, TYPED))?,
            requests: sharded("coredns_cache_requests_total", "The count of cache requests.", COMMON)?,
            hits: sharded("coredns_cache_hits_total", "The count of cache hits.", TYPED)?,
            misses: sharded(
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

impl CacheCounters<'_> {
    /// Counts a hit or a miss, and returns the incremented counters.
    pub(super) fn answered(self, found: Option<ResponseKind>) -> [Arc<ShardedCounters>; 2] {
        let common = [self.server, self.zones, ""];
        let how = match found {
            Some(kind) => self.metrics.hits.with(&self.labels_of_type(part(kind))),
            None => self.metrics.misses.with(&common),
        };
        let counted = [self.metrics.requests.with(&common), how];
        counted.iter().for_each(|counter| counter.add(0, 1));
        counted
    }

    pub(super) fn prefetch(self) {
        self.count(&self.metrics.prefetch);
    }

    pub(super) fn served_stale(self) {
        self.count(&self.metrics.served_stale);
    }

    /// Counts evictions, and sets the gauges to the present sizes.
    pub(super) fn stored(self, kind: ResponseKind, evicted: usize, (success, denial): (usize, usize)) {
        if evicted > 0 {
            self.metrics.evictions.with_label_values(&self.labels_of_type(part(kind))).inc_by(evicted as u64);
        }
        for (part, entries) in [("success", success), ("denial", denial)] {
            let entries = i64::try_from(entries).unwrap_or(i64::MAX);
            self.metrics.entries.with_label_values(&self.labels_of_type(part)).set(entries);
        }
    }

    fn count(self, counter: &IntCounterVec) {
        counter.with_label_values(&[self.server, self.zones, ""]).inc();
    }

    fn labels_of_type<'a>(&'a self, part: &'a str) -> [&'a str; 4] {
        [self.server, part, self.zones, ""]
    }
}

fn part(kind: ResponseKind) -> &'static str {
    if kind == ResponseKind::Success { "success" } else { "denial" }
}
