//! Counters that several threads count on without a cache line in common.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

/// The buckets of durations, in seconds: 0.25 ms doubled 16 times.
pub(crate) const DURATION_BUCKETS: (f64, f64, usize) = (0.000_25, 2.0, 16);
/// The counters of a histogram of durations: its buckets, the one without a bound, and the sum in nanoseconds.
pub(crate) const DURATION_COUNTERS: usize = DURATION_BUCKETS.2 + 2;

/// Returns what a duration adds to counters that begin with a histogram of durations.
#[must_use]
pub fn duration(took: Duration) -> [(usize, u64); 2] {
    /// In nanoseconds.
    const FIRST: u64 = 250_000;
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let bucket =
        (0..DURATION_BUCKETS.2).position(|bucket| nanos <= FIRST << bucket).unwrap_or(DURATION_BUCKETS.2);
    [(bucket, 1), (DURATION_COUNTERS - 1, nanos)]
}

/// Some counters. The cells of all threads are added up when the sums are read.
#[derive(Debug)]
pub struct ShardedCounters {
    shared: LocalCounters,
    own: Mutex<Vec<Arc<LocalCounters>>>,
}

/// The counters of one thread, or those of all threads without cells of their own.
#[derive(Debug)]
pub struct LocalCounters(Box<[CacheLine]>);

/// Eight counters, on a cache line that nothing else is on.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine([AtomicU64; LINE]);

const LINE: usize = 8;

impl LocalCounters {
    fn new(number: usize) -> Self {
        Self(iter::repeat_with(CacheLine::default).take(number.div_ceil(LINE)).collect())
    }

    /// Counts, in the one thread whose cells these are.
    pub fn add(&self, at: usize, number: u64) {
        let cell = self.at(at);
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
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
    /// Returns so many counters, all zero.
    #[must_use]
    pub fn new(number: usize) -> Self {
        Self { shared: LocalCounters::new(number), own: Mutex::default() }
    }

    /// Counts, in whatever thread.
    pub fn add(&self, at: usize, number: u64) {
        self.shared.at(at).fetch_add(number, Ordering::Relaxed);
    }

    /// Returns cells for one thread. When it has dropped them, their counts stay.
    #[must_use]
    pub fn own(&self) -> Arc<LocalCounters> {
        let cells = Arc::new(LocalCounters::new(self.shared.len()));
        self.lock().push(Arc::clone(&cells));
        cells
    }

    /// Returns how often each was counted.
    #[must_use]
    pub fn sums(&self) -> Vec<u64> {
        let mut own = self.lock();
        own.retain(|cells| {
            let in_use = Arc::strong_count(cells) > 1;
            if !in_use {
                // What the thread has counted before it let go of them.
                fence(Ordering::Acquire);
                (0..cells.len()).for_each(|at| self.add(at, cells.get(at)));
            }
            in_use
        });
        let sum = |at| own.iter().map(|cells| cells.get(at)).sum::<u64>();
        (0..self.shared.len()).map(|at| self.shared.get(at) + sum(at)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LocalCounters>>> {
        self.own.lock()
    }
}

/// Counters by labels, each a [`ShardedCounters`] of one.
#[derive(Clone, Debug)]
pub struct ShardedCounterVec(Arc<VecState>);

#[derive(Debug)]
struct VecState {
    desc: Desc,
    counters: RwLock<HashMap<Vec<String>, Arc<ShardedCounters>>>,
}

impl ShardedCounterVec {
    /// Registers counters of that name, none of them there yet.
    ///
    /// # Errors
    /// If there are some of that name already.
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

    /// Returns the counter with these values of the labels.
    #[must_use]
    pub fn with(&self, values: &[&str]) -> Arc<ShardedCounters> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        if let Some(counter) = self.0.counters.read().get(&values) {
            return Arc::clone(counter);
        }
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

/// Describes a metric that is collected by hand.
///
/// # Errors
/// If a name isn't one.
pub fn desc(name: &str, help: &str, labels: &[&str]) -> Result<Desc, prometheus::Error> {
    let labels = labels.iter().map(ToString::to_string).collect();
    Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
}

/// Returns the labels of a metric with these values.
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

/// Returns a counter with its value.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "Prometheus knows floating-point numbers alone")]
pub fn counted(labels: Vec<LabelPair>, count: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(count as f64);
    let mut metric = Metric::from_label(labels);
    metric.set_counter(counter);
    metric
}

/// Returns all metrics of a name; nothing if there are none.
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
    fn what_each_thread_has_counted_is_added_up_and_stays_when_it_ends() {
        let spread = ShardedCounters::new(10);
        let (one, other) = (spread.own(), spread.own());
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
    fn counters_are_shown_by_their_labels_once_there_is_something_to_count() {
        let registry = Registry::new();
        let counters =
            ShardedCounterVec::register(&registry, "asked_total", "Asked.", &["zone", "kind"]).unwrap();
        let counter = counters.with(&["z", "k"]);
        assert!(registry.gather().is_empty());
        counter.add(0, 2);
        counters.with(&["z", "k"]).own().add(0, 3);
        let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(page.contains("asked_total{kind=\"k\",zone=\"z\"} 5\n"), "{page}");
    }
}
