//! Metrics of the snapshot's file. The age of the snapshot that is served is in `src/store/metrics.rs`.

use jiff::Timestamp;
use prometheus::{IntCounter, IntGauge, Registry};

use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub struct SnapshotMetrics {
    pub(super) links: IntGauge,
    pub(super) failures: IntCounter,
    last_write: IntGauge,
}

impl MetricGroup for SnapshotMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let links = IntGauge::new(
            "lb_linker_snapshot_links",
            "Links in the file of the snapshot; each object of another source of names counts as one.",
        );
        let failures = IntCounter::new(
            "lb_linker_snapshot_write_failures_total",
            "Writes of the snapshot that have failed.",
        );
        let last_write = IntGauge::new(
            "lb_linker_snapshot_last_write_timestamp_seconds",
            "Unix time of the last successful write of the snapshot; 0 before the first one.",
        );
        Ok(Self {
            links: registered(registry, links)?,
            failures: registered(registry, failures)?,
            last_write: registered(registry, last_write)?,
        })
    }
}

impl SnapshotMetrics {
    /// Records a successful write.
    pub(super) fn written(&self, links: usize) {
        self.links.set(i64::try_from(links).unwrap_or(i64::MAX));
        self.last_write.set(Timestamp::now().as_second());
    }
}
