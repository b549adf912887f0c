//! Counters that several threads increment without sharing a cache line.

use std::collections::HashMap;
use std::hash::RandomState;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use hashbrown::Equivalent;
use parking_lot::{Mutex, MutexGuard, RwLock};
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

/// The buckets of durations, 0.25 ms and its doublings: the first bound in seconds, the factor, and the number of
/// buckets.
pub(crate) const DURATION_BUCKETS: (f64, f64, usize) = (0.000_25, 2.0, 16);
/// The number of counters of a duration histogram: its buckets, the bucket `+Inf`, and the sum in nanoseconds.
pub(crate) const DURATION_COUNTERS: usize = DURATION_BUCKETS.2 + 2;

/// Returns the increments for a duration, each with the index of its counter. The first `DURATION_COUNTERS` counters
/// of the group have to be the duration histogram.
#[must_use]
pub fn duration_deltas(took: Duration) -> [(usize, u64); 2] {
    /// The first bound, in nanoseconds.
    const FIRST: u64 = 250_000;
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let bucket =
        (0..DURATION_BUCKETS.2).position(|bucket| nanos <= FIRST << bucket).unwrap_or(DURATION_BUCKETS.2);
    [(bucket, 1), (DURATION_COUNTERS - 1, nanos)]
}

/// A group of counters, sharded by thread. Reading adds up the shards.
#[derive(Debug)]
pub struct ShardedCounters {
    shared: LocalCounters,
    shards: Mutex<Vec<Arc<LocalCounters>>>,
}

/// The counters of one thread, or the shared counters of all threads without a shard of their own.
#[derive(Debug)]
pub struct LocalCounters(Box<[CacheLine]>);

/// Eight counters that fill a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine([AtomicU64; LINE]);

const LINE: usize = 8;

impl LocalCounters {
    fn new(number: usize) -> Self {
        Self(iter::repeat_with(CacheLine::default).take(number.div_ceil(LINE)).collect())
    }

    /// Adds a number to the counter at `index`. Only the thread that owns these counters may call this.
    pub fn add(&self, index: usize, delta: u64) {
        let cell = self.at(index);
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Relaxed);
    }

    fn at(&self, at: usize) -> &AtomicU64 {
        &self.0[at / LINE].0[at % LINE]
    }

    fn get(&self, at: usize) -> u64 {
        self.at(at).load(Ordering::Relaxed)
    }

    fn len(&self) -> usize {
        self.0.len() * LINE
    }
}

impl ShardedCounters {
    #[must_use]
    pub fn new(number: usize) -> Self {
        Self { shared: LocalCounters::new(number), shards: Mutex::default() }
    }

    /// Adds a number to the counter at `index`, from any thread.
    pub fn add(&self, index: usize, delta: u64) {
        self.shared.at(index).fetch_add(delta, Ordering::Relaxed);
    }

    /// Returns a new shard for one thread. The counts remain after the thread has dropped the shard.
    #[must_use]
    pub fn new_shard(&self) -> Arc<LocalCounters> {
        let cells = Arc::new(LocalCounters::new(self.shared.len()));
        self.lock().push(Arc::clone(&cells));
        cells
    }

    /// Returns the sum of each counter over all shards.
    #[must_use]
    pub fn sums(&self) -> Vec<u64> {
        let mut shards = self.lock();
        shards.retain(|cells| {
            let in_use = Arc::strong_count(cells) > 1;
            if !in_use {
                // Synchronizes with the drop of the shard by its thread, so that all its counts are visible.
                fence(Ordering::Acquire);
                (0..cells.len()).for_each(|at| self.add(at, cells.get(at)));
            }
            in_use
        });
        let sum = |at| shards.iter().map(|cells| cells.get(at)).sum::<u64>();
        (0..self.shared.len()).map(|at| self.shared.get(at) + sum(at)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LocalCounters>>> {
        self.shards.lock()
    }
}

/// Counters with labels, each a [`ShardedCounters`] with one counter.
#[derive(Clone, Debug)]
pub struct ShardedCounterVec(Arc<VecState>);

#[derive(Debug)]
struct VecState {
    desc: Desc,
    counters: RwLock<hashbrown::HashMap<Vec<String>, Arc<ShardedCounters>, RandomState>>,
}

/// Borrowed values of labels, with the hash of owned ones.
#[derive(Hash)]
struct LabelValues<'a>(&'a [&'a str]);

impl Equivalent<Vec<String>> for LabelValues<'_> {
    fn equivalent(&self, values: &Vec<String>) -> bool {
        values == self.0
    }
}

impl ShardedCounterVec {
    /// Registers a counter vector without any values.
    ///
    /// # Errors
    /// If a metric has the name of a registered one.
    pub fn register(
        registry: &Registry,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<Self, prometheus::Error> {
        let counters =
            Self(Arc::new(VecState { desc: desc(name, help, labels)?, counters: RwLock::default() }));
        registry.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    #[must_use]
    pub fn with(&self, values: &[&str]) -> Arc<ShardedCounters> {
        if let Some(counter) = self.0.counters.read().get(&LabelValues(values)) {
            return Arc::clone(counter);
        }
        let values = values.iter().map(ToString::to_string).collect();
        let mut counters = self.0.counters.write();
        Arc::clone(counters.entry(values).or_insert_with(|| Arc::new(ShardedCounters::new(1))))
    }
}

impl Collector for ShardedCounterVec {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counters = self.0.counters.read();
        let shown = counters.iter().filter_map(|(values, counter)| {
            let count = counter.sums()[0];
            (count > 0).then(|| counted(labelled(&self.0.desc, values), count))
        });
        family(&self.0.desc, MetricType::COUNTER, shown.collect()).into_iter().collect()
    }
}

/// Returns the descriptor of a metric that its collector builds by itself.
///
/// # Errors
/// If a name is invalid.
pub fn desc(name: &str, help: &str, labels: &[&str]) -> Result<Desc, prometheus::Error> {
    let labels = labels.iter().map(ToString::to_string).collect();
    Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
}

#[must_use]
pub fn labelled(desc: &Desc, values: &[impl AsRef<str>]) -> Vec<LabelPair> {
    let pair = |(name, value): (&String, &dyn AsRef<str>)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.clone());
        pair.set_value(value.as_ref().to_owned());
        pair
    };
    let values = values.iter().map(|value| value as &dyn AsRef<str>);
    let mut labels: Vec<LabelPair> = desc.variable_labels.iter().zip(values).map(pair).collect();
    labels.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    labels
}

#[must_use]
#[expect(clippy::cast_precision_loss, reason = "Prometheus has only floating-point values")]
pub fn counted(labels: Vec<LabelPair>, count: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(count as f64);
    let mut metric = Metric::from_label(labels);
    metric.set_counter(counter);
    metric
}

/// Returns the family with the metrics of one descriptor; `None` if `metrics` is empty.
#[must_use]
pub fn family(desc: &Desc, kind: MetricType, metrics: Vec<Metric>) -> Option<MetricFamily> {
    if metrics.is_empty() {
        return None;
    }
    let mut family = MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(kind);
    family.set_metric(metrics);
    Some(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_threads_are_summed_and_outlive_the_threads() {
        let spread = ShardedCounters::new(10);
        let (one, other) = (spread.new_shard(), spread.new_shard());
        spread.add(0, 1);
        one.add(0, 2);
        other.add(9, 4);
        let sums = |spread: &ShardedCounters| (spread.sums()[0], spread.sums()[9]);
        assert_eq!(sums(&spread), (3, 4));
        drop(one);
        assert_eq!(sums(&spread), (3, 4));
        assert_eq!(spread.lock().len(), 1);
        other.add(0, 1);
        assert_eq!(sums(&spread), (4, 4));
    }

    #[test]
    fn counters_are_exported_unless_they_are_zero() {
        let registry = Registry::new();
        let counters =
            ShardedCounterVec::register(&registry, "asked_total", "Asked.", &["zone", "kind"]).unwrap();
        let counter = counters.with(&["z", "k"]);
        assert!(registry.gather().is_empty());
        counter.add(0, 2);
        counters.with(&["z", "k"]).new_shard().add(0, 3);
        let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(page.contains("asked_total{kind=\"k\",zone=\"z\"} 5\n"), "{page}");
    }
}
