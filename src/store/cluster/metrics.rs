//! Metrics of clusters' objects, computed at each scrape.

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::registry::ClusterRegistry;

pub struct ClusterMetrics {
    clusters: ClusterRegistry,
    objects: IntGaugeVec,
    collecting: Mutex<()>,
}

impl ClusterMetrics {
    /// # Errors
    /// If the name of a metric is invalid, which only a bug in lb-linker can cause.
    pub fn new(clusters: ClusterRegistry) -> Result<Self, prometheus::Error> {
        let opts = Opts::new("lb_linker_cluster_objects", "Objects that the plugin kubernetes answers from.");
        Ok(Self { clusters, objects: IntGaugeVec::new(opts, &["kind"])?, collecting: Mutex::default() })
    }
}

impl Collector for ClusterMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.objects.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let numbers = self.clusters.numbers();
        // Scrapes may coincide.
        let _alone = self.collecting.lock();
        self.objects.reset();
        for (kind, number) in numbers {
            self.objects.with_label_values(&[kind]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.objects.collect()
    }
}
