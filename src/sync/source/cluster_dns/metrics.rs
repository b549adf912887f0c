//! How long changes of endpoints take until DNS answers accordingly.

use jiff::Timestamp;
use prometheus::{HistogramOpts, HistogramVec, Registry, exponential_buckets};

use crate::metrics::{MetricGroup, registered};

/// By CoreDNS's name, labels and buckets.
#[derive(Debug)]
pub struct ProgrammingMetrics(HistogramVec);

impl MetricGroup for ProgrammingMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = HistogramOpts::new(
            "coredns_kubernetes_dns_programming_duration_seconds",
            "Histogram of the time (in seconds) it took to program a dns instance.",
        );
        let opts = opts.buckets(exponential_buckets(0.001, 2.0, 20)?);
        registered(registry, HistogramVec::new(opts, &["service_kind"])).map(Self)
    }
}

impl ProgrammingMetrics {
    /// Records that DNS answers by a change of that time.
    pub(super) fn answers(&self, is_headless: bool, changed: Timestamp) {
        let kind = if is_headless { "headless_with_selector" } else { "cluster_ip" };
        let time = Timestamp::now().duration_since(changed);
        self.0.with_label_values(&[kind]).observe(time.as_secs_f64());
    }
}
