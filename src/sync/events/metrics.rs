use prometheus::{IntCounter, Registry};

use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub struct EventMetrics {
    pub dropped: IntCounter,
    pub target_changes: IntCounter,
}

impl MetricGroup for EventMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let dropped = IntCounter::new(
            "lb_linker_events_dropped_total",
            "Kubernetes Events that were dropped: too many, refused, or not answered.",
        );
        let changes = IntCounter::new("lb_linker_target_changes_total", "Changes of links' targets.");
        Ok(Self { dropped: registered(registry, dropped)?, target_changes: registered(registry, changes)? })
    }
}
