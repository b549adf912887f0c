//! What lb-linker counts, and how it is shown to Prometheus.

pub mod sharded;
pub mod staleness;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, IntGaugeVec, Opts, Registry, TextEncoder};

/// Metrics that belong together, and are shown from when they are first needed.
pub trait MetricGroup: Send + Sync + Sized + 'static {
    /// Registers them, all zero.
    ///
    /// # Errors
    /// If one of that name is there already.
    fn register(registry: &Registry) -> Result<Self, prometheus::Error>;
}

/// Registers a metric of a [`MetricGroup`].
///
/// # Errors
/// If it can't be one, or one of that name is there already.
pub fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: Result<M, prometheus::Error>,
) -> Result<M, prometheus::Error> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// The metrics of one process. Those of DNS bear CoreDNS's names and labels, so that its
/// dashboards work. Each module registers its own.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Metrics {
    /// Returns the metrics of the process itself.
    ///
    /// # Errors
    /// Only if two of them had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let build = IntGaugeVec::new(Opts::new("lb_linker_build_info", "Always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(build))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self { registry, families: Mutex::default() })
    }

    /// Registers metrics that are computed when Prometheus asks.
    ///
    /// # Errors
    /// If one of that name is there already.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(collector))
    }

    /// Returns metrics that belong together; every caller gets the same.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn family<F: MetricGroup>(&self) -> Result<Arc<F>, prometheus::Error> {
        let mut families = self.families.lock();
        let known = families.get(&TypeId::of::<F>()).cloned();
        if let Some(family) = known.and_then(|family| family.downcast().ok()) {
            return Ok(family);
        }
        let family = Arc::new(F::register(&self.registry)?);
        families.insert(TypeId::of::<F>(), Arc::clone(&family) as Arc<dyn Any + Send + Sync>);
        Ok(family)
    }

    /// Returns the page that Prometheus scrapes, in its text format 0.0.4.
    ///
    /// # Errors
    /// If a metric can't be written, which only a defect of lb-linker can cause.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        String::from_utf8(page).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}
