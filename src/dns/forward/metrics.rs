//! What is counted of upstreams, by CoreDNS's names, labels and buckets.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use super::rcode::label;
use crate::metrics::Family;

/// The label `proxy_name`: other plugins of CoreDNS have upstreams, too.
const PROXY: &str = "forward";
/// The buckets of durations, in seconds: 0.25 ms doubled 16 times.
const DURATIONS: (f64, f64, usize) = (0.000_25, 2.0, 16);

/// The counters of upstreams.
pub struct ForwardMetrics {
    duration: HistogramVec,
    check_failures: IntCounterVec,
    hits: IntCounterVec,
    misses: IntCounterVec,
    /// Questions for which all upstreams were down.
    pub(super) all_down: IntCounter,
    /// Questions that were refused because too many were under way.
    pub rejects: IntCounter,
}

impl fmt::Debug for ForwardMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForwardMetrics")
    }
}

impl Family for ForwardMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let counter = |name, help| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
            )
            .buckets(prometheus::exponential_buckets(DURATIONS.0, DURATIONS.1, DURATIONS.2)?),
            &["proxy_name", "to", "rcode"],
        )?;
        registry.register(Box::new(duration.clone()))?;
        Ok(Self {
            duration,
            check_failures: counters(
                "coredns_proxy_healthcheck_failures_total",
                "Counter of the number of failed healthchecks.",
                &["proxy_name", "to"],
            )?,
            hits: counters(
                "coredns_proxy_conn_cache_hits_total",
                "Counter of connection cache hits per upstream and protocol.",
                &["proxy_name", "to", "proto"],
            )?,
            misses: counters(
                "coredns_proxy_conn_cache_misses_total",
                "Counter of connection cache misses per upstream and protocol.",
                &["proxy_name", "to", "proto"],
            )?,
            all_down: counter(
                "coredns_forward_healthcheck_broken_total",
                "Counter of the number of complete failures of the healthchecks.",
            )?,
            rejects: counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
            )?,
        })
    }
}

impl ForwardMetrics {
    pub(super) fn answered(&self, to: SocketAddr, rcode: ResponseCode, after: Duration) {
        let labels = [PROXY, &to.to_string(), &label(rcode)];
        self.duration.with_label_values(&labels).observe(after.as_secs_f64());
    }

    pub(super) fn check_failed(&self, to: SocketAddr) {
        self.check_failures.with_label_values(&[PROXY, &to.to_string()]).inc();
    }

    /// Counts that a socket was needed: one was open already, or not. Both are shown from the first on.
    pub(super) fn socket(&self, to: SocketAddr, protocol: &str, was_open: bool) {
        let labels = [PROXY, &to.to_string(), protocol];
        let (hits, misses) = (self.hits.with_label_values(&labels), self.misses.with_label_values(&labels));
        if was_open { hits.inc() } else { misses.inc() }
    }
}
