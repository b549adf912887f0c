//! The time since the last sign of life of each watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::{MetricGroup, registered};

/// The time of the last event, bookmark or complete list of a watch.
#[derive(Debug)]
pub struct LastActivity(Mutex<Instant>);

impl LastActivity {
    /// Records an event, a bookmark or a complete list.
    pub fn note(&self) {
        *self.0.lock() = Instant::now();
    }

    fn age(&self) -> f64 {
        self.0.lock().elapsed().as_secs_f64()
    }
}

/// The metric `lb_linker_watch_staleness_seconds`, by watch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Staleness {
    gauge: GaugeVec,
    watches: Arc<Mutex<BTreeMap<String, Weak<LastActivity>>>>,
}

impl MetricGroup for Staleness {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "lb_linker_watch_staleness_seconds",
            "Seconds since the last event, bookmark or complete list of a watch.",
        );
        let staleness = Self { gauge: GaugeVec::new(opts, &["watch"])?, watches: Arc::default() };
        registered(registry, Ok(staleness))
    }
}

impl Collector for Staleness {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.show();
        self.gauge.collect()
    }
}

impl Staleness {
    /// Returns the recorder for the watch of this name. The age starts at 0, or continues if a watch of the same name
    /// still exists; the metric is exported as long as the recorder is held.
    pub fn watch(&self, name: &str) -> Arc<LastActivity> {
        let mut watches = self.watches.lock();
        let known = watches.get(name).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let sign = Arc::new(LastActivity(Mutex::new(Instant::now())));
            watches.insert(name.to_owned(), Arc::downgrade(&sign));
            sign
        })
    }

    /// Returns the earliest last activity of the watches with these names, for one namespace or for all; `None` without
    /// such a watch.
    #[must_use]
    pub fn least_recent(&self, names: &[&str]) -> Option<Instant> {
        let is_one = |watch: &str| names.contains(&watch.split('/').next().unwrap_or_default());
        let watches = self.watches.lock();
        let signs = watches.iter().filter(|(watch, _)| is_one(watch)).filter_map(|(_, sign)| sign.upgrade());
        signs.map(|sign| *sign.0.lock()).min()
    }

    /// Sets the metric to the current ages.
    fn show(&self) {
        let mut watches = self.watches.lock();
        watches.retain(|name, sign| {
            let sign = sign.upgrade();
            match &sign {
                Some(sign) => self.gauge.with_label_values(&[name]).set(sign.age()),
                // Removing the label values ends the export.
                None => drop(self.gauge.remove_label_values(&[name])),
            }
            sign.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_of_each_watch_is_exported_while_its_recorder_is_held() {
        let staleness = Staleness::register(&Registry::new()).unwrap();
        let shown = || staleness.collect().iter().map(|family| family.get_metric().len()).sum::<usize>();
        assert_eq!(shown(), 0);
        let (one, two) = (staleness.watch("one"), staleness.watch("two"));
        assert!(Arc::ptr_eq(&one, &staleness.watch("one")));
        assert_eq!(shown(), 2);
        assert!(staleness.gauge.with_label_values(&["one"]).get() >= 0.0);
        drop(two);
        assert_eq!(shown(), 1);
        one.note();
        assert!(one.age() < 60.0);
        let shop = staleness.watch("two/shop");
        one.note();
        assert_eq!(staleness.least_recent(&["two"]), Some(*shop.0.lock()));
        assert_eq!(staleness.least_recent(&["one", "two"]), Some(*shop.0.lock()));
        assert_eq!(staleness.least_recent(&["one", "three"]), Some(*one.0.lock()));
        assert_eq!(staleness.least_recent(&["three"]), None);
    }
}
