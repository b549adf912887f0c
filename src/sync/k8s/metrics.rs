use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

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

/// The requests of the plugin *kubernetes* to API servers, by CoreDNS's names, labels and buckets.
#[derive(Debug)]
pub struct RequestMetrics {
    duration: HistogramVec,
    limiter: HistogramVec,
    requests: IntCounterVec,
}

impl MetricGroup for RequestMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let duration = HistogramOpts::new(
            "coredns_kubernetes_rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb and host.",
        );
        let limiter = HistogramOpts::new(
            "coredns_kubernetes_rest_client_rate_limiter_duration_seconds",
            "Client side rate limiter latency in seconds. Broken down by verb and host.",
        );
        let requests = Opts::new(
            "coredns_kubernetes_rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
        );
        Ok(Self {
            duration: registered(registry, HistogramVec::new(duration, &["verb", "host"]))?,
            limiter: registered(registry, HistogramVec::new(limiter, &["verb", "host"]))?,
            requests: registered(registry, IntCounterVec::new(requests, &["code", "method", "host"]))?,
        })
    }
}

impl RequestMetrics {
    /// Records how long a request has waited for limits.
    pub(crate) fn waited(&self, verb: &str, host: &str, time: Duration) {
        self.limiter.with_label_values(&[verb, host]).observe(time.as_secs_f64());
    }

    /// Records the HTTP code of a request, `None` without an answer, and the time until the answer began.
    pub(crate) fn answered(&self, verb: &str, host: &str, code: Option<u16>, time: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.duration.with_label_values(&[verb, host]).observe(time.as_secs_f64());
        self.requests.with_label_values(&[&code, verb, host]).inc();
    }
}
