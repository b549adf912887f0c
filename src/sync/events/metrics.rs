//! What is counted of Kubernetes Events and of the changes that they tell.

use prometheus::{IntCounter, Registry};

use crate::metrics::{MetricGroup, registered};

/// What is counted of Kubernetes Events and of the changes that they tell.
#[derive(Debug)]
pub struct EventMetrics {
    /// Kubernetes Events that were dropped.
    pub dropped: IntCounter,
    /// Targets of links that changed.
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
