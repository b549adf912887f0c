use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Gauge, IntCounter, Registry};

use crate::metrics::{MetricGroup, registered};

/// Metrics of the watch of LoadBalancer Services.
#[derive(Debug)]
pub struct WatchMetrics {
    events: IntCounter,
    last_event: Gauge,
}

impl MetricGroup for WatchMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let events = IntCounter::new(
            "lb_linker_watch_events_total",
            "Events from the watch of LoadBalancer Services.",
        );
        let last_event = Gauge::new(
            "lb_linker_watch_last_event_timestamp_seconds",
            "Unix time of the last event from the watch of LoadBalancer Services.",
        );
        Ok(Self { events: registered(registry, events)?, last_event: registered(registry, last_event)? })
    }
}

impl WatchMetrics {
    /// Counts an event at the present time.
    pub fn event(&self) {
        self.events.inc();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_event.set(now.as_secs_f64());
    }
}
