//! What lb-linker counts, and how it is shown to Prometheus.

use std::sync::Arc;

use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::store::{State, Store};

/// CoreDNS's buckets for the duration of a request, in seconds: 0.25 ms doubled 16 times.
const DURATION_BUCKETS: (f64, f64, usize) = (0.000_25, 2.0, 16);

/// The metrics of one process. Those of DNS bear CoreDNS's names and labels, so that its
/// dashboards work.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    links: IntGaugeVec,
    /// Targets of links that changed.
    pub target_changes: IntCounter,
    /// Writes to the API server, by `verb`, `kind` and HTTP `code` (0: no answer).
    pub api_writes: IntCounterVec,
    /// Links whose external target's name is taken by an object that isn't ours.
    pub conflicts: IntGauge,
    /// 1 while this process may write external targets.
    pub leader: IntGauge,
    /// Events that the watch of LoadBalancer Services delivered.
    pub watch_events: IntCounter,
    /// Sync tasks that ended and were started again, by `task`.
    pub sync_restarts: IntCounterVec,
    /// DNS requests, by `server`, `zone`, `view`, `proto`, `family` and `type`.
    pub dns_requests: IntCounterVec,
    /// DNS responses, by `server`, `zone`, `view`, `rcode` and `plugin`.
    pub dns_responses: IntCounterVec,
    /// Seconds from a DNS request to its response, by `server`, `zone` and `view`.
    pub dns_duration: HistogramVec,
    /// Questions whose answering panicked.
    pub panics: IntCounter,
    /// TCP connections that were refused because there were too many.
    pub tcp_refused: IntCounter,
}

impl Metrics {
    /// Returns the metrics of this process, all zero.
    ///
    /// # Errors
    /// Only if two of them had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let buckets =
            prometheus::exponential_buckets(DURATION_BUCKETS.0, DURATION_BUCKETS.1, DURATION_BUCKETS.2)?;
        let metrics = Self {
            links: IntGaugeVec::new(Opts::new("lb_linker_links", "Links by state."), &["state"])?,
            target_changes: IntCounter::new("lb_linker_target_changes_total", "Changes of links' targets.")?,
            api_writes: IntCounterVec::new(
                Opts::new("lb_linker_api_writes_total", "Writes to the API server."),
                &["verb", "kind", "code"],
            )?,
            conflicts: IntGauge::new(
                "lb_linker_conflicts",
                "Links whose external target's name is taken by an object of somebody else.",
            )?,
            leader: IntGauge::new("lb_linker_leader", "1 while this instance leads: it alone writes.")?,
            watch_events: IntCounter::new(
                "lb_linker_watch_events_total",
                "Events from the watch of LoadBalancer Services.",
            )?,
            sync_restarts: IntCounterVec::new(
                Opts::new("lb_linker_sync_restarts_total", "Sync tasks that ended and were started again."),
                &["task"],
            )?,
            dns_requests: IntCounterVec::new(
                Opts::new(
                    "coredns_dns_requests_total",
                    "Counter of DNS requests made per zone, protocol and family.",
                ),
                &["server", "zone", "view", "proto", "family", "type"],
            )?,
            dns_responses: IntCounterVec::new(
                Opts::new("coredns_dns_responses_total", "Counter of response status codes."),
                &["server", "zone", "view", "rcode", "plugin"],
            )?,
            dns_duration: HistogramVec::new(
                HistogramOpts::new(
                    "coredns_dns_request_duration_seconds",
                    "Histogram of the time (in seconds) each request took per zone.",
                )
                .buckets(buckets),
                &["server", "zone", "view"],
            )?,
            panics: IntCounter::new("coredns_panics_total", "A metrics that counts the number of panics.")?,
            tcp_refused: IntCounter::new(
                "lb_linker_dns_tcp_refused_total",
                "TCP connections that were refused because there were too many.",
            )?,
            registry,
        };
        let build = IntGaugeVec::new(Opts::new("lb_linker_build_info", "Always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let registry = &metrics.registry;
        registry.register(Box::new(build))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        registry.register(Box::new(metrics.links.clone()))?;
        registry.register(Box::new(metrics.target_changes.clone()))?;
        registry.register(Box::new(metrics.api_writes.clone()))?;
        registry.register(Box::new(metrics.conflicts.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        registry.register(Box::new(metrics.watch_events.clone()))?;
        registry.register(Box::new(metrics.sync_restarts.clone()))?;
        registry.register(Box::new(metrics.dns_requests.clone()))?;
        registry.register(Box::new(metrics.dns_responses.clone()))?;
        registry.register(Box::new(metrics.dns_duration.clone()))?;
        registry.register(Box::new(metrics.panics.clone()))?;
        registry.register(Box::new(metrics.tcp_refused.clone()))?;
        Ok(metrics)
    }

    /// Returns the page that Prometheus scrapes, in its text format 0.0.4.
    ///
    /// # Errors
    /// If a metric can't be written, which only a defect of ours can cause.
    pub fn render(&self, store: &Arc<Store>) -> Result<String, prometheus::Error> {
        let mut count = [("live", 0), ("pending", 0), ("stale", 0), ("gone", 0)];
        for link in store.links() {
            let state = match (link.state, &link.target) {
                (State::Live, Some(_)) => 0,
                (State::Live, None) => 1,
                (State::Stale, _) => 2,
                (State::Gone(_), _) => 3,
            };
            count[state].1 += 1;
        }
        for (state, number) in count {
            self.links.with_label_values(&[state]).set(number);
        }
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        String::from_utf8(page).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}
