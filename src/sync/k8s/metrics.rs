use prometheus::{IntCounterVec, Opts, Registry};

use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub struct ApiMetrics {
    writes: IntCounterVec,
}

impl MetricGroup for ApiMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = Opts::new("lb_linker_api_writes_total", "Writes to the API server.");
        let writes = registered(registry, IntCounterVec::new(opts, &["verb", "kind", "code"]))?;
        Ok(Self { writes })
    }
}

impl ApiMetrics {
    /// Counts a write to an object of this kind that was answered with this HTTP code; 0 means no answer.
    pub fn count_write(&self, verb: &str, kind: &str, code: u16) {
        self.writes.with_label_values(&[verb, kind, &code.to_string()]).inc();
    }
}
