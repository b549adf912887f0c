//! Metrics of links, computed at each scrape.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts};

use crate::model::link::LinkState;
use crate::store::Store;

pub struct LinkMetrics {
    store: Arc<Store>,
    links: IntGaugeVec,
    names: IntGaugeVec,
    names_lost: IntGauge,
    targets_refused: IntGauge,
    target_circles: IntGauge,
    snapshot_age: IntGauge,
}

impl LinkMetrics {
    /// # Errors
    /// If the name of a metric is invalid, which only a bug in lb-linker can cause.
    pub fn new(store: Arc<Store>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            store,
            links: IntGaugeVec::new(Opts::new("lb_linker_links", "Links by state."), &["state"])?,
            names: IntGaugeVec::new(
                Opts::new(
                    "lb_linker_names",
                    "DNS names that objects other than load balancers ask for, by source and cluster; no cluster is the own \
                     one.",
                ),
                &["source", "cluster"],
            )?,
            names_lost: IntGauge::new(
                "lb_linker_names_lost",
                "Links that lack one of their names because another link has or had it.",
            )?,
            targets_refused: IntGauge::new(
                "lb_linker_targets_refused",
                "Links whose Service has an invalid or denied target in its status, or whose StableName announces one.",
            )?,
            target_circles: IntGauge::new(
                "lb_linker_target_circles",
                "Links whose target leads in a circle, or through too many look-ups, so that DNS answers SERVFAIL.",
            )?,
            snapshot_age: IntGauge::new(
                "lb_linker_snapshot_age_seconds",
                "Age of the snapshot that DNS answers with until the load balancers are read; 0 if there is none.",
            )?,
        })
    }

    fn update(&self) {
        let mut count = [("live", 0), ("pending", 0), ("stale", 0), ("left_out", 0), ("gone", 0)];
        let (mut refused, mut lost, mut circular) = (0, 0, 0);
        for link in self.store.links() {
            refused += i64::from(link.refused);
            lost += i64::from(link.is_missing_name());
            circular += i64::from(self.store.last_of_chain(&link).is_err());
            let state = match (link.state, &link.target) {
                (LinkState::Live | LinkState::Recreated(_), Some(_)) => 0,
                (LinkState::Live | LinkState::Recreated(_), None) => 1,
                (LinkState::Stale, _) => 2,
                (LinkState::LeftOut, _) => 3,
                (LinkState::Gone(_), _) => 4,
            };
            count[state].1 += 1;
        }
        for (source, number) in self.store.numbers_of_owners() {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            let cluster = source.cluster.as_deref().unwrap_or_default();
            self.names.with_label_values(&[&*source.word(), cluster]).set(number);
        }
        self.targets_refused.set(refused);
        self.names_lost.set(lost);
        self.target_circles.set(circular);
        // At least 1: 0 means that there is no snapshot.
        let age = |age: std::time::Duration| i64::try_from(age.as_secs()).unwrap_or(i64::MAX).max(1);
        self.snapshot_age.set(self.store.fallback().map_or(0, |snapshot_links| age(snapshot_links.age())));
        for (state, number) in count {
            self.links.with_label_values(&[state]).set(number);
        }
    }
}

impl Collector for LinkMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let counts = [&self.names_lost, &self.targets_refused, &self.target_circles, &self.snapshot_age];
        let by_label = [&self.links, &self.names];
        let by_label = by_label.into_iter().flat_map(Collector::desc);
        counts.into_iter().flat_map(Collector::desc).chain(by_label).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.update();
        let counts = [&self.names_lost, &self.targets_refused, &self.target_circles, &self.snapshot_age];
        let by_label = [&self.links, &self.names];
        let by_label = by_label.into_iter().flat_map(Collector::collect);
        counts.into_iter().flat_map(Collector::collect).chain(by_label).collect()
    }
}
