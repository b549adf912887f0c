//! What is counted of upstreams, by CoreDNS's names, labels and buckets.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use crate::dns::presentation::rcode_name;
use crate::dns::report::DURATIONS;
use crate::metrics::{Family, registered};

/// The label `proxy_name`: other plugins of CoreDNS have upstreams, too.
const PROXY: &str = "forward";

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
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help| registered(registry, IntCounter::new(name, help));
        let duration = HistogramOpts::new(
            "coredns_proxy_request_duration_seconds",
            "Histogram of the time each request took.",
        );
        let duration =
            duration.buckets(prometheus::exponential_buckets(DURATIONS.0, DURATIONS.1, DURATIONS.2)?);
        Ok(Self {
            duration: registered(registry, HistogramVec::new(duration, &["proxy_name", "to", "rcode"]))?,
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
        let rcode = rcode_name(rcode).map_or_else(|| u16::from(rcode).to_string(), str::to_owned);
        let labels = [PROXY, &to.to_string(), &rcode];
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
