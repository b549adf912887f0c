//! Metrics of upstreams, with CoreDNS's names, labels and buckets.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

use crate::dns::message::presentation::rcode_name;
use crate::metrics::sharded::DURATION_BUCKETS;
use crate::metrics::{MetricGroup, registered};

/// The value of the label `proxy_name`, which CoreDNS has because other plugins also have upstreams.
const PROXY: &str = "forward";

#[derive(Debug)]
pub struct ForwardMetrics {
    duration: HistogramVec,
    check_failures: IntCounterVec,
    hits: IntCounterVec,
    misses: IntCounterVec,
    ignored_replies: IntCounterVec,
    /// Look-ups for which all upstreams were down.
    pub(crate) all_down: IntCounter,
    /// Look-ups that were refused because of `max_concurrent`, also those of targets.
    pub rejects: IntCounter,
    refused: [IntCounter; 3],
}

/// The limit that caused the refusal of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupLimit {
    /// The client's share of the look-ups.
    Client,
    /// The look-ups of all clients together.
    All,
    Sockets,
}

/// The labels of the limits, in their order.
const LIMITS: [&str; 3] = ["client", "all", "sockets"];

impl ForwardMetrics {
    pub(crate) fn refused(&self, bound: LookupLimit) {
        self.refused[bound as usize].inc();
    }
}

impl MetricGroup for ForwardMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help| registered(registry, IntCounter::new(name, help));
        let duration = HistogramOpts::new(
            "coredns_proxy_request_duration_seconds",
            "Histogram of the time each request took.",
        );
        let refused = counters(
            "lb_linker_dns_lookups_refused_total",
            "Look-ups that were refused, by bound: the share of the client, all look-ups (max_concurrent), or sockets.",
            &["bound"],
        )?;
        let duration = duration.buckets(prometheus::exponential_buckets(
            DURATION_BUCKETS.0,
            DURATION_BUCKETS.1,
            DURATION_BUCKETS.2,
        )?);
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
            ignored_replies: counters(
                "lb_linker_dns_upstream_ignored_replies_total",
                "Datagrams from an upstream's address that answer no query that waits: late, repeated or forged.",
                &["to"],
            )?,
            all_down: counter(
                "coredns_forward_healthcheck_broken_total",
                "Counter of the number of complete failures of the healthchecks.",
            )?,
            rejects: counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
            )?,
            refused: LIMITS.map(|bound| refused.with_label_values(&[bound])),
        })
    }
}

/// The metrics of one upstream, with cached handles for the metrics that almost every query needs.
#[derive(Debug)]
pub(crate) struct UpstreamCounters {
    all: Arc<ForwardMetrics>,
    to: String,
    /// Counters of reused and of new UDP sockets.
    udp: OnceLock<[IntCounter; 2]>,
    /// Of NOERROR, FORMERR, SERVFAIL and NXDOMAIN.
    durations: [OnceLock<Histogram>; 4],
}

impl UpstreamCounters {
    pub(crate) fn new(all: Arc<ForwardMetrics>, to: SocketAddr) -> Self {
        Self { all, to: to.to_string(), udp: OnceLock::new(), durations: Default::default() }
    }

    pub(crate) fn record_answer(&self, rcode: ResponseCode, after: Duration) {
        let histogram = || {
            let rcode = rcode_name(rcode).map_or_else(|| u16::from(rcode).to_string(), str::to_owned);
            self.all.duration.with_label_values(&[PROXY, &self.to, &rcode])
        };
        let after = after.as_secs_f64();
        match self.durations.get(usize::from(u16::from(rcode))) {
            Some(duration) => duration.get_or_init(histogram).observe(after),
            None => histogram().observe(after),
        }
    }

    pub(crate) fn record_failed_check(&self) {
        self.all.check_failures.with_label_values(&[PROXY, &self.to]).inc();
    }

    /// Counts a datagram that answers no query.
    pub(crate) fn record_ignored_reply(&self) {
        self.all.ignored_replies.with_label_values(&[&self.to]).inc();
    }

    /// Counts the use of an open or a new socket. Both counters are exported from the first use on.
    pub(crate) fn record_socket(&self, protocol: &str, was_open: bool) {
        let labels = [PROXY, &self.to, protocol];
        let counters = || [&self.all.hits, &self.all.misses].map(|all| all.with_label_values(&labels));
        let count = |[hits, misses]: &[IntCounter; 2]| if was_open { hits.inc() } else { misses.inc() };
        match protocol {
            "udp" => count(self.udp.get_or_init(counters)),
            _ => count(&counters()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_counts_under_its_own_label() {
        let registry = Registry::new();
        let metrics = ForwardMetrics::register(&registry).unwrap();
        let limits =
            [(LookupLimit::Client, "client"), (LookupLimit::All, "all"), (LookupLimit::Sockets, "sockets")];
        for (number, (limit, _)) in (1..).zip(limits) {
            (0..number).for_each(|_| metrics.refused(limit));
        }
        let families = registry.gather();
        let refused = families.iter().find(|family| family.name() == "lb_linker_dns_lookups_refused_total");
        for (number, (_, label)) in (1..).zip(limits) {
            let metric = refused.unwrap().get_metric().iter().find(|it| it.get_label()[0].value() == label);
            assert_eq!(metric.unwrap().get_counter().get_value(), f64::from(number), "{label}");
        }
    }
}
