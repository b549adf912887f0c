//! The number of tasks of each runtime.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};
use tokio::runtime::Handle;

/// The metric `lb_linker_tasks`, computed at each scrape.
pub struct TaskMetrics {
    gauge: IntGaugeVec,
    runtimes: Vec<(&'static str, Handle)>,
}

impl TaskMetrics {
    /// Takes the runtimes with the values of the label `runtime`.
    ///
    /// # Errors
    /// If the name of the metric is invalid, which only a bug in lb-linker can cause.
    pub fn new(runtimes: Vec<(&'static str, Handle)>) -> Result<Self, prometheus::Error> {
        let opts = Opts::new("lb_linker_tasks", "Tasks that haven't ended, by runtime.");
        Ok(Self { gauge: IntGaugeVec::new(opts, &["runtime"])?, runtimes })
    }
}

impl Collector for TaskMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (name, runtime) in &self.runtimes {
            let number = runtime.metrics().num_alive_tasks();
            self.gauge.with_label_values(&[name]).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.gauge.collect()
    }
}
