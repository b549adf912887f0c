//! What is counted of each question, by CoreDNS's names, labels and buckets.

use std::time::Instant;

use hickory_proto::rr::RecordType;
use hickory_server::net::xfer::Protocol;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::encode::wire_length;
use super::plugin::{Reply, Request};
use super::wire::rcode_label;
use crate::metrics::Family;

/// The buckets of durations, in seconds: 0.25 ms doubled 16 times.
const DURATIONS: (f64, f64, usize) = (0.000_25, 2.0, 16);
/// The buckets of sizes, in bytes.
const SIZES: [f64; 14] =
    [0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3];

/// The counters of questions and answers.
#[derive(Debug)]
pub struct Report {
    requests: IntCounterVec,
    requests_with_do: IntCounterVec,
    request_size: HistogramVec,
    responses: IntCounterVec,
    response_size: HistogramVec,
    duration: HistogramVec,
    plugin_enabled: IntGaugeVec,
    /// Questions whose answering panicked.
    pub panics: IntCounter,
}

impl Family for Report {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name, help, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>, labels: &[&str]| {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let panics = IntCounter::new("coredns_panics_total", "A metrics that counts the number of panics.")?;
        registry.register(Box::new(panics.clone()))?;
        let build = IntGaugeVec::new(
            Opts::new(
                "coredns_build_info",
                "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
            ),
            &["version", "revision", "goversion"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), "", ""]).set(1);
        registry.register(Box::new(build))?;
        let plugin_enabled = IntGaugeVec::new(
            Opts::new(
                "coredns_plugin_enabled",
                "A metric that indicates whether a plugin is enabled on per server and zone basis.",
            ),
            &["server", "zone", "view", "name"],
        )?;
        registry.register(Box::new(plugin_enabled.clone()))?;
        Ok(Self {
            plugin_enabled,
            requests: counter(
                "coredns_dns_requests_total",
                "Counter of DNS requests made per zone, protocol and family.",
                &["server", "zone", "view", "proto", "family", "type"],
            )?,
            requests_with_do: counter(
                "coredns_dns_do_requests_total",
                "Counter of DNS requests with DO bit set per zone.",
                &["server", "zone", "view"],
            )?,
            request_size: histogram(
                "coredns_dns_request_size_bytes",
                "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
                SIZES.to_vec(),
                &["server", "zone", "view", "proto"],
            )?,
            responses: counter(
                "coredns_dns_responses_total",
                "Counter of response status codes.",
                &["server", "zone", "view", "rcode", "plugin"],
            )?,
            response_size: histogram(
                "coredns_dns_response_size_bytes",
                "Size of the returned response in bytes.",
                SIZES.to_vec(),
                &["server", "zone", "view", "proto"],
            )?,
            duration: histogram(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                prometheus::exponential_buckets(DURATIONS.0, DURATIONS.1, DURATIONS.2)?,
                &["server", "zone", "view"],
            )?,
            panics,
        })
    }
}

impl Report {
    /// Sets which plugins are at work: `server`, `zone`, `name`.
    pub fn set_enabled(&self, plugins: Vec<(String, String, &'static str)>) {
        self.plugin_enabled.reset();
        for (server, zone, name) in plugins {
            self.plugin_enabled.with_label_values(&[&server, &zone, "", name]).set(1);
        }
    }

    /// Counts a question that began to be answered then. `zone` is that of the block, or `dropped`.
    pub fn count(&self, request: &Request, reply: &Reply, zone: &str, since: Instant) {
        let server = &*request.server.label;
        // CoreDNS knows UDP and TCP.
        let protocol = if request.protocol == Protocol::Udp { "udp" } else { "tcp" };
        let family = if request.client.is_ipv4() { "1" } else { "2" };
        let qtype = type_label(request.query.query_type());
        let rcode = rcode_label(reply.metadata.response_code);
        self.requests.with_label_values(&[server, zone, "", protocol, family, qtype]).inc();
        if request.dnssec_ok() {
            self.requests_with_do.with_label_values(&[server, zone, ""]).inc();
        }
        self.responses.with_label_values(&[server, zone, "", &rcode, reply.plugin]).inc();
        #[expect(clippy::cast_precision_loss, reason = "no message has more than 64 KiB")]
        let observe = |sizes: &HistogramVec, size: usize| {
            sizes.with_label_values(&[server, zone, "", protocol]).observe(size as f64);
        };
        observe(&self.request_size, request.length());
        observe(&self.response_size, wire_length(reply, &request.query));
        self.duration.with_label_values(&[server, zone, ""]).observe(since.elapsed().as_secs_f64());
    }
}

/// The types that CoreDNS tells apart: the label must not grow with what clients make up.
fn type_label(qtype: RecordType) -> &'static str {
    const TYPES: [RecordType; 19] = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::ANY,
        RecordType::AXFR,
        RecordType::CNAME,
        RecordType::DNSKEY,
        RecordType::DS,
        RecordType::HTTPS,
        RecordType::IXFR,
        RecordType::MX,
        RecordType::NS,
        RecordType::NSEC,
        RecordType::NSEC3,
        RecordType::PTR,
        RecordType::RRSIG,
        RecordType::SOA,
        RecordType::SRV,
        RecordType::SVCB,
        RecordType::TXT,
    ];
    if TYPES.contains(&qtype) { qtype.into() } else { "other" }
}
