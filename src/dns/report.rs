//! What is counted of each question, by CoreDNS's names, labels and buckets.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use hickory_server::net::xfer::Protocol;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use super::encode::wire_length;
use super::plugin::{Reply, Request};
use super::presentation::rcode_text;
use crate::metrics::{Family, registered};

/// The buckets of durations, in seconds: 0.25 ms doubled 16 times.
pub(super) const DURATIONS: (f64, f64, usize) = (0.000_25, 2.0, 16);
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
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>, labels: &[&str]| {
            let options = HistogramOpts::new(name, help).buckets(buckets);
            registered(registry, HistogramVec::new(options, labels))
        };
        let gauge = |name, help, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let build = gauge(
            "coredns_build_info",
            "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
            &["version", "revision", "goversion"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), "", ""]).set(1);
        let panics = IntCounter::new("coredns_panics_total", "A metrics that counts the number of panics.");
        Ok(Self {
            plugin_enabled: gauge(
                "coredns_plugin_enabled",
                "A metric that indicates whether a plugin is enabled on per server and zone basis.",
                &["server", "zone", "view", "name"],
            )?,
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
            panics: registered(registry, panics)?,
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

    /// Returns what counts the questions of a server for a zone, or for `dropped`.
    #[must_use]
    pub fn tally(self: &Arc<Self>, server: &str, zone: &str) -> Arc<Tally> {
        let (server, zone) = (server.to_owned(), zone.to_owned());
        Arc::new(Tally {
            report: Arc::clone(self),
            server,
            zone,
            requests: Default::default(),
            requests_with_do: OnceLock::new(),
            sizes: Default::default(),
            duration: OnceLock::new(),
            responses: RwLock::default(),
        })
    }
}

/// What counts the questions of a server for a zone. The counters are looked up by their labels once, and none is
/// shown before there is something to count.
#[derive(Debug)]
pub struct Tally {
    report: Arc<Report>,
    server: String,
    zone: String,
    /// By protocol, family and type.
    requests: [[[OnceLock<IntCounter>; TYPES.len() + 1]; 2]; 2],
    requests_with_do: OnceLock<IntCounter>,
    /// By protocol.
    sizes: [OnceLock<Sizes>; 2],
    duration: OnceLock<Histogram>,
    /// By response code and plugin: there are few.
    responses: RwLock<Vec<(ResponseCode, &'static str, IntCounter)>>,
}

#[derive(Debug)]
struct Sizes {
    request: Histogram,
    response: Histogram,
}

impl Tally {
    /// Counts a question that began to be answered then.
    pub fn count(&self, request: &Request, reply: &Reply, since: Instant) {
        let Self { report, server, zone, .. } = self;
        // CoreDNS knows UDP and TCP.
        let by_tcp = request.protocol != Protocol::Udp;
        let protocol = if by_tcp { "tcp" } else { "udp" };
        let by_ipv6 = request.client.is_ipv6();
        let qtype = TYPES.iter().position(|known| *known == request.query.query_type());
        let place = qtype.unwrap_or(TYPES.len());
        let requests = self.requests[usize::from(by_tcp)][usize::from(by_ipv6)][place].get_or_init(|| {
            let family = if by_ipv6 { "2" } else { "1" };
            let qtype: &str = qtype.map_or("other", |known| TYPES[known].into());
            report.requests.with_label_values(&[server, zone, "", protocol, family, qtype])
        });
        requests.inc();
        if request.dnssec_ok() {
            let labels = [&**server, zone, ""];
            self.requests_with_do.get_or_init(|| report.requests_with_do.with_label_values(&labels)).inc();
        }
        self.responses(reply).inc();
        let sizes = self.sizes[usize::from(by_tcp)].get_or_init(|| {
            let labels = [&**server, zone, "", protocol];
            Sizes {
                request: report.request_size.with_label_values(&labels),
                response: report.response_size.with_label_values(&labels),
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "no message has more than 64 KiB")]
        let size = |bytes: usize| bytes as f64;
        sizes.request.observe(size(request.size));
        sizes.response.observe(size(wire_length(reply, &request.query)));
        let duration =
            self.duration.get_or_init(|| report.duration.with_label_values(&[&**server, zone, ""]));
        duration.observe(since.elapsed().as_secs_f64());
    }

    fn responses(&self, reply: &Reply) -> IntCounter {
        let (rcode, plugin) = (reply.metadata.response_code, reply.plugin);
        let find = |known: &[(ResponseCode, &'static str, IntCounter)]| {
            let found = known.iter().find(|known| known.0 == rcode && known.1 == plugin);
            found.map(|(.., counter)| counter.clone())
        };
        if let Some(counter) = find(&self.responses.read().unwrap_or_else(PoisonError::into_inner)) {
            return counter;
        }
        let labels = [&*self.server, &self.zone, "", &rcode_text(rcode), plugin];
        let counter = self.report.responses.with_label_values(&labels);
        let mut known = self.responses.write().unwrap_or_else(PoisonError::into_inner);
        // There are 4,096 codes: who makes them up mustn't fill the memory.
        if known.len() < MAX_RESPONSES {
            known.push((rcode, plugin, counter.clone()));
        }
        counter
    }
}

/// The types that CoreDNS tells apart: the label must not grow with what clients make up.
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

/// Pairs of response code and plugin that are kept at hand.
const MAX_RESPONSES: usize = 64;
