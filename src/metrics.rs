//! The registry of metrics, and their export to Prometheus.

pub mod sharded;
pub mod staleness;
pub mod tasks;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, IntGaugeVec, Opts, Registry, TextEncoder};

/// Metrics that are registered together, when they are first needed.
pub trait MetricGroup: Send + Sync + Sized + 'static {
    /// Registers the metrics with the value 0.
    ///
    /// # Errors
    /// If a metric has the name of a registered one.
    fn register(registry: &Registry) -> Result<Self, prometheus::Error>;
}

/// Registers a metric of a [`MetricGroup`].
///
/// # Errors
/// If the metric is invalid, or has the name of a registered one.
pub fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: Result<M, prometheus::Error>,
) -> Result<M, prometheus::Error> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// The metrics of the process. The DNS metrics have CoreDNS's names and labels, so that dashboards made for
/// CoreDNS work. Each module registers its own metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    groups: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Metrics {
    /// Returns a registry with the metrics of the process itself.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let build = IntGaugeVec::new(Opts::new("lb_linker_build_info", "Always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(build))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self { registry, groups: Mutex::default() })
    }

    /// Registers a collector that computes its metrics at each scrape.
    ///
    /// # Errors
    /// If a metric has the name of a registered one.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(collector))
    }

    /// Returns a group of metrics, registered at the first call; every caller gets the same group.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub fn group<G: MetricGroup>(&self) -> Result<Arc<G>, prometheus::Error> {
        let mut groups = self.groups.lock();
        let known = groups.get(&TypeId::of::<G>()).cloned();
        if let Some(group) = known.and_then(|group| group.downcast().ok()) {
            return Ok(group);
        }
        let group = Arc::new(G::register(&self.registry)?);
        groups.insert(TypeId::of::<G>(), Arc::clone(&group) as Arc<dyn Any + Send + Sync>);
        Ok(group)
    }

    /// Returns the metrics in Prometheus's text format 0.0.4.
    ///
    /// # Errors
    /// If a metric can't be encoded, which only a bug in lb-linker can cause.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        String::from_utf8(page).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}
