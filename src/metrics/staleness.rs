//! The time since the last sign of life of each watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::{MetricGroup, registered};

/// The time of the last event, bookmark or complete list of a watch.
#[derive(Debug)]
pub struct LastActivity {
    at: Mutex<Instant>,
    /// The last time at which the connection of the watch was known to work. A watch of a state that was restored from a
    /// backup may be silent on a connection that works.
    connected: Mutex<Instant>,
    /// Whether the API server refuses the watch because lb-linker lacks a permission.
    is_refused: AtomicBool,
}

impl LastActivity {
    fn new() -> Self {
        let now = Instant::now();
        Self { at: Mutex::new(now), connected: Mutex::new(now), is_refused: AtomicBool::new(false) }
    }

    /// Records an event, a bookmark or a complete list.
    pub fn note(&self) {
        *self.at.lock() = Instant::now();
        self.note_connection();
        self.set_refused(false);
    }

    /// Records that the API server has begun to answer the watch, or that the watch has ended.
    pub fn note_connection(&self) {
        *self.connected.lock() = Instant::now();
    }

    /// Records whether the API server refuses the watch because lb-linker lacks a permission.
    pub fn set_refused(&self, is_refused: bool) {
        self.is_refused.store(is_refused, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn age_by(&self, time: Duration) {
        *self.at.lock() -= time;
        *self.connected.lock() -= time;
    }

    /// Returns the time since the last event, bookmark or complete list.
    pub(crate) fn age(&self) -> Duration {
        self.at.lock().elapsed()
    }
}

/// The metric `lb_linker_watch_staleness_seconds`, by watch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Staleness {
    gauge: GaugeVec,
    watches: Arc<Mutex<Watches>>,
}

/// The recorders by the names of their watches. Those of watches that have ended stay until a watch of the same name
/// begins.
type Watches = BTreeMap<String, Vec<Arc<LastActivity>>>;

/// Returns whether the watch of a recorder in [`Watches`] still goes on.
fn is_held(sign: &Arc<LastActivity>) -> bool {
    Arc::strong_count(sign) > 1
}

fn add(watches: &mut Watches, name: &str) -> Arc<LastActivity> {
    let sign = Arc::new(LastActivity::new());
    let signs = watches.entry(name.to_owned()).or_default();
    signs.retain(is_held);
    signs.push(Arc::clone(&sign));
    sign
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
        let known = watches.get(name).and_then(|signs| signs.iter().find(|sign| is_held(sign)).cloned());
        known.unwrap_or_else(|| add(&mut watches, name))
    }

    /// As [`Self::watch`], for one of several watches of this name. The metric shows the greatest age of them.
    pub fn one_of(&self, name: &str) -> Arc<LastActivity> {
        add(&mut self.watches.lock(), name)
    }

    /// Returns the earliest last activity of the watches named `<name>` or `<name>/<namespace>`, for each of these
    /// names; `None` if there was no such watch. A refused watch counts only if all watches of its name are refused, and
    /// one that has ended only if all of these names have ended: at a shutdown watches end before the listeners.
    #[must_use]
    pub fn least_recent(&self, names: &[&str]) -> Option<Instant> {
        self.earliest(names, |sign| *sign.at.lock())
    }

    /// As [`Self::least_recent`], for the last time at which the connections of the watches were known to work.
    #[must_use]
    pub fn least_recently_connected(&self, names: &[&str]) -> Option<Instant> {
        self.earliest(names, |sign| *sign.connected.lock())
    }

    fn earliest(&self, names: &[&str], time: impl Fn(&LastActivity) -> Instant) -> Option<Instant> {
        let watches = self.watches.lock();
        let earliest = |name: &str, counts: fn(&Arc<LastActivity>) -> bool| {
            let signs = watches.iter().filter(|(watch, _)| watch.split('/').next() == Some(name));
            let (refused, followed): (Vec<_>, Vec<_>) = signs
                .flat_map(|(_, signs)| signs)
                .filter(|sign| counts(sign))
                .partition(|sign| sign.is_refused.load(Ordering::Relaxed));
            let counting = if followed.is_empty() { refused } else { followed };
            counting.into_iter().map(|sign| time(sign)).min()
        };
        let of_all = |counts| names.iter().filter_map(|name| earliest(name, counts)).min();
        of_all(is_held).or_else(|| of_all(|_| true))
    }

    /// Sets the metric to the current ages.
    fn show(&self) {
        for (name, signs) in &*self.watches.lock() {
            let held = signs.iter().filter(|sign| is_held(sign));
            match held.map(|sign| sign.age().as_secs_f64()).reduce(f64::max) {
                Some(age) => self.gauge.with_label_values(&[name]).set(age),
                // Removing the label values ends the export.
                None => drop(self.gauge.remove_label_values(&[name])),
            }
        }
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
        assert!(one.age() < Duration::from_secs(60));
        let shop = staleness.watch("two/shop");
        one.note();
        assert_eq!(staleness.least_recent(&["two"]), Some(*shop.at.lock()));
        assert_eq!(staleness.least_recent(&["one", "two"]), Some(*shop.at.lock()));
        assert_eq!(staleness.least_recent(&["one", "three"]), Some(*one.at.lock()));
        assert_eq!(staleness.least_recent(&["three"]), None);
        let (at, connected) = (*one.at.lock(), *one.connected.lock());
        drop(one);
        assert_eq!(
            staleness.least_recent(&["one", "two"]),
            Some(*shop.at.lock()),
            "a watch that goes on counts"
        );
        drop(shop);
        assert_eq!(staleness.least_recent(&["one"]), Some(at), "all watches have ended");
        assert_eq!(staleness.least_recently_connected(&["one"]), Some(connected));
        assert_eq!(shown(), 0);
    }

    #[test]
    fn greatest_age_of_several_watches_of_a_name_is_exported() {
        let staleness = Staleness::register(&Registry::new()).unwrap();
        let (one, other) = (staleness.one_of("services"), staleness.one_of("services"));
        one.age_by(Duration::from_secs(100));
        let shown = || {
            staleness.show();
            staleness.gauge.with_label_values(&["services"]).get()
        };
        assert!(shown() >= 100.0);
        assert_eq!(staleness.least_recent(&["services"]), Some(*one.at.lock()));
        drop(one);
        assert!(shown() < 100.0);
        other.note();
        drop(other);
        drop(staleness.one_of("services"));
        assert_eq!(staleness.watches.lock()["services"].len(), 1, "the recorders before are forgotten");
        assert_eq!(staleness.collect().iter().map(|family| family.get_metric().len()).sum::<usize>(), 0);
    }

    #[test]
    fn refused_watches_count_only_if_all_are_refused() {
        let staleness = Staleness::register(&Registry::new()).unwrap();
        let (a, b, other) = (staleness.watch("one/a"), staleness.watch("one/b"), staleness.watch("two/b"));
        let (at, later) =
            (|sign: &LastActivity| *sign.at.lock(), Instant::now() + Duration::from_secs(90_000));
        for sign in [&a, &other] {
            *sign.at.lock() = later;
        }
        assert_eq!(staleness.least_recent(&["one", "two"]), Some(at(&b)));
        b.set_refused(true);
        assert_eq!(staleness.least_recent(&["one", "two"]), Some(later));
        a.set_refused(true);
        assert_eq!(staleness.least_recent(&["one", "two"]), Some(at(&b)), "all watches are refused");
        b.note();
        a.set_refused(false);
        *a.at.lock() = later;
        assert_eq!(staleness.least_recent(&["one"]), Some(at(&b)), "the watch isn't refused any more");
    }
}
