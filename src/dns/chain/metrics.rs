//! Metrics of each query, with CoreDNS's names, labels and buckets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use parking_lot::{Mutex, RwLock};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};
use smallvec::SmallVec;

use crate::dns::message::presentation::rcode_text;
use crate::dns::message::validity::MetricDeltas;
use crate::dns::net::Protocol;
use crate::metrics::sharded::{
    DURATION_BUCKETS, DURATION_COUNTERS, ShardedCounters, counted, desc, duration_deltas, family, labelled,
};
use crate::metrics::{MetricGroup, registered};

/// The upper bounds of the size buckets, in bytes. The `+Inf` bucket follows them.
const SIZE_BUCKETS: [u32; 14] =
    [0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 64_000];

/// Indices of the counters in [`ZoneMetrics`]. A histogram has its buckets, the `+Inf` bucket, and the sum.
/// The durations come first, because the function `duration_deltas` returns indices from 0 on.
const REQUESTS_INDEX: usize = DURATION_COUNTERS;
const DO_INDEX: usize = REQUESTS_INDEX + 4 * (TYPES.len() + 1);
const REQUEST_SIZES_INDEX: usize = DO_INDEX + 1;
const RESPONSE_SIZES_INDEX: usize = REQUEST_SIZES_INDEX + 2 * SIZE_HISTOGRAM_COUNTERS;
const SIZE_HISTOGRAM_COUNTERS: usize = SIZE_BUCKETS.len() + 2;
const RESPONSES_INDEX: usize = RESPONSE_SIZES_INDEX + 2 * SIZE_HISTOGRAM_COUNTERS;
const COUNTERS: usize = RESPONSES_INDEX + MAX_RESPONSES;

/// The label values of CoreDNS.
const PROTOCOLS: [&str; 2] = ["udp", "tcp"];
const FAMILIES: [&str; 2] = ["1", "2"];

#[derive(Debug)]
pub struct ServerMetrics {
    all_zones: AllZoneMetrics,
    plugin_enabled: IntGaugeVec,
    /// The number of panics while answering queries.
    pub panics: IntCounter,
    /// The responses of DNS over HTTPS, by `server` and HTTP `status`.
    pub https_responses: IntCounterVec,
    /// The answers of DNS over QUIC, and the connections that ended by an error, by `server` and error code.
    pub quic_responses: IntCounterVec,
}

#[derive(Clone, Debug)]
struct AllZoneMetrics {
    descs: Arc<Descs>,
    all: Arc<Mutex<ByLabels>>,
}

/// Keyed by server, zone and view.
type ByLabels = HashMap<[String; 3], Arc<ZoneMetrics>>;

#[derive(Debug)]
struct Descs {
    requests: Desc,
    requests_with_do: Desc,
    request_size: Desc,
    responses: Desc,
    response_size: Desc,
    duration: Desc,
}

fn https_responses() -> Result<IntCounterVec, prometheus::Error> {
    let help = "Counter of DoH responses per server and http status code.";
    IntCounterVec::new(Opts::new("coredns_dns_https_responses_total", help), &["server", "status"])
}

fn quic_responses() -> Result<IntCounterVec, prometheus::Error> {
    let help = "Counter of DoQ responses per server and QUIC application code.";
    IntCounterVec::new(Opts::new("coredns_dns_quic_responses_total", help), &["server", "status"])
}

impl MetricGroup for ServerMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
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
        let descs = Descs {
            requests: desc(
                "coredns_dns_requests_total",
                "Counter of DNS requests made per zone, protocol and family.",
                &["server", "zone", "view", "proto", "family", "type"],
            )?,
            requests_with_do: desc(
                "coredns_dns_do_requests_total",
                "Counter of DNS requests with DO bit set per zone.",
                &["server", "zone", "view"],
            )?,
            request_size: desc(
                "coredns_dns_request_size_bytes",
                "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
                &["server", "zone", "view", "proto"],
            )?,
            responses: desc(
                "coredns_dns_responses_total",
                "Counter of response status codes.",
                &["server", "zone", "view", "rcode", "plugin"],
            )?,
            response_size: desc(
                "coredns_dns_response_size_bytes",
                "Size of the returned response in bytes.",
                &["server", "zone", "view", "proto"],
            )?,
            duration: desc(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                &["server", "zone", "view"],
            )?,
        };
        let all_zones = AllZoneMetrics { descs: Arc::new(descs), all: Arc::default() };
        registry.register(Box::new(all_zones.clone()))?;
        Ok(Self {
            all_zones,
            plugin_enabled: gauge(
                "coredns_plugin_enabled",
                "A metric that indicates whether a plugin is enabled on per server and zone basis.",
                &["server", "zone", "view", "name"],
            )?,
            panics: registered(registry, panics)?,
            https_responses: registered(registry, https_responses())?,
            quic_responses: registered(registry, quic_responses())?,
        })
    }
}

impl ServerMetrics {
    /// Sets the enabled plugins, each with server, zone and view.
    pub fn set_enabled(&self, plugins: Vec<([String; 3], &'static str)>) {
        self.plugin_enabled.reset();
        for ([server, zone, view], name) in plugins {
            self.plugin_enabled.with_label_values(&[&server, &zone, &view, name]).set(1);
        }
    }

    /// Returns the counters for the queries of a server in a zone and a view, whose name is empty for a block without
    /// one. The zone `dropped` stands for queries that reach no plugin: outside all blocks, or of a type or class that
    /// is never answered.
    #[must_use]
    pub fn zone_metrics(&self, server: &str, zone: &str, view: &str) -> Arc<ZoneMetrics> {
        let labels = [server, zone, view].map(str::to_owned);
        let mut all = self.all_zones.all.lock();
        let zone_metrics = all.entry(labels).or_insert_with_key(|labels| {
            Arc::new(ZoneMetrics {
                labels: labels.clone(),
                counters: Arc::new(ShardedCounters::new(COUNTERS)),
                responses: RwLock::default(),
            })
        });
        Arc::clone(zone_metrics)
    }
}

/// Counts the queries to a server for a zone. A metric is exported only if its count isn't 0.
#[derive(Debug)]
pub struct ZoneMetrics {
    /// Server, zone and view.
    labels: [String; 3],
    counters: Arc<ShardedCounters>,
    /// The pairs of rcode and plugin of the counters from [`RESPONSES_INDEX`] on, in order, and the counts of further
    /// pairs, which occur only if upstreams send unassigned rcodes.
    responses: RwLock<(Vec<Response>, HashMap<Response, u64>)>,
}

type Response = (ResponseCode, &'static str);

/// The counted properties of a query and its answer.
#[derive(Clone, Copy, Debug)]
pub struct RequestStats {
    pub protocol: Protocol,
    pub is_ipv6: bool,
    pub qtype: RecordType,
    /// Whether the query has the DO bit set.
    pub dnssec_ok: bool,
    /// The size of the query, in bytes.
    pub request_size: usize,
    /// The size of the answer, in bytes.
    pub response_size: usize,
    pub rcode: ResponseCode,
    pub plugin: &'static str,
    /// Whether the response cache may reuse the answer.
    pub is_reusable: bool,
}

impl ZoneMetrics {
    /// Counts a query; `since` is the start of its processing. Returns the increments, so that a reuse of the answer
    /// can be counted in the same way; `None` if the answer isn't reusable, or if there are too many pairs of rcode and
    /// plugin.
    pub fn count(&self, counted: &RequestStats, since: Instant) -> Option<MetricDeltas> {
        let by_tcp = usize::from(!counted.protocol.is_over_udp());
        let by_ipv6 = usize::from(counted.is_ipv6);
        let qtype = TYPES.iter().position(|known| *known == counted.qtype);
        let place = (by_tcp * 2 + by_ipv6) * (TYPES.len() + 1) + qtype.unwrap_or(TYPES.len());
        let response = self.response((counted.rcode, counted.plugin));
        let mut adds = SmallVec::<[_; 7]>::new();
        adds.push((REQUESTS_INDEX + place, 1));
        if counted.dnssec_ok {
            adds.push((DO_INDEX, 1));
        }
        adds.extend(response.map(|place| (RESPONSES_INDEX + place, 1)));
        for (histogram, size) in
            [(REQUEST_SIZES_INDEX, counted.request_size), (RESPONSE_SIZES_INDEX, counted.response_size)]
        {
            let start = histogram + by_tcp * SIZE_HISTOGRAM_COUNTERS;
            let bucket = SIZE_BUCKETS.partition_point(|bound| (*bound as usize) < size);
            adds.push((start + bucket, 1));
            adds.push((start + SIZE_HISTOGRAM_COUNTERS - 1, size as u64));
        }
        let duration = duration_deltas(since.elapsed());
        for (place, number) in adds.iter().chain(&duration) {
            self.counters.add(*place, *number);
        }
        if response.is_none() || !counted.is_reusable {
            return None;
        }
        Some(MetricDeltas { counters: Arc::clone(&self.counters), adds: adds.into_vec() })
    }

    /// Returns the index of a response's counter, counted from [`RESPONSES_INDEX`]. If the response has no counter,
    /// counts it in the map, and returns `None`.
    fn response(&self, response: Response) -> Option<usize> {
        let place = |known: &[Response]| known.iter().position(|known| *known == response);
        if let Some(place) = place(&self.responses.read().0) {
            return Some(place);
        }
        let mut responses = self.responses.write();
        let (known, others) = &mut *responses;
        if let Some(place) = place(known) {
            return Some(place);
        }
        if known.len() < MAX_RESPONSES {
            known.push(response);
            return Some(known.len() - 1);
        }
        *others.entry(response).or_default() += 1;
        None
    }
}

impl Collector for AllZoneMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let Descs { requests, requests_with_do, request_size, responses, response_size, duration } =
            &*self.descs;
        vec![requests, requests_with_do, request_size, responses, response_size, duration]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all_zones: Vec<Arc<ZoneMetrics>> = self.all.lock().values().cloned().collect();
        let all_zones: Vec<(Arc<ZoneMetrics>, Vec<u64>)> = all_zones
            .into_iter()
            .map(|zone_metrics| (Arc::clone(&zone_metrics), zone_metrics.counters.sums()))
            .collect();
        let all = |kind, desc: &Desc, of: &dyn Fn(&ZoneMetrics, &[u64]) -> Vec<Metric>| {
            family(
                desc,
                kind,
                all_zones.iter().flat_map(|(zone_metrics, sums)| of(zone_metrics, sums)).collect(),
            )
        };
        let descs = &*self.descs;
        let sizes = |desc, start| {
            all(MetricType::HISTOGRAM, desc, &|zone_metrics, sums| zone_metrics.sizes(desc, &sums[start..]))
        };
        [
            all(MetricType::COUNTER, &descs.requests, &|zone_metrics, sums| {
                zone_metrics.requests(&descs.requests, sums)
            }),
            all(MetricType::COUNTER, &descs.requests_with_do, &|zone_metrics, sums| {
                zone_metrics.counter(&descs.requests_with_do, &[], sums[DO_INDEX])
            }),
            sizes(&descs.request_size, REQUEST_SIZES_INDEX),
            all(MetricType::COUNTER, &descs.responses, &|zone_metrics, sums| {
                zone_metrics.responses(&descs.responses, sums)
            }),
            sizes(&descs.response_size, RESPONSE_SIZES_INDEX),
            all(MetricType::HISTOGRAM, &descs.duration, &|zone_metrics, sums| {
                zone_metrics.durations(&descs.duration, sums)
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl ZoneMetrics {
    fn labels<'a>(&'a self, further: &[&'a str]) -> Vec<&'a str> {
        self.labels.iter().map(|label| &**label).chain(further.iter().copied()).collect()
    }

    fn counter(&self, desc: &Desc, labels: &[&str], count: u64) -> Vec<Metric> {
        if count == 0 {
            return Vec::new();
        }
        vec![counted(labelled(desc, &self.labels(labels)), count)]
    }

    fn requests(&self, desc: &Desc, sums: &[u64]) -> Vec<Metric> {
        let mut places = sums[REQUESTS_INDEX..DO_INDEX].iter();
        let mut metrics = Vec::new();
        for protocol in PROTOCOLS {
            for family in FAMILIES {
                for (place, count) in places.by_ref().take(TYPES.len() + 1).enumerate() {
                    let qtype: &str = TYPES.get(place).map_or("other", |known| (*known).into());
                    metrics.extend(self.counter(desc, &[protocol, family, qtype], *count));
                }
            }
        }
        metrics
    }

    fn responses(&self, desc: &Desc, sums: &[u64]) -> Vec<Metric> {
        let responses = self.responses.read();
        let (known, others) = &*responses;
        let known = known.iter().zip(sums[RESPONSES_INDEX..].iter().copied());
        let others = others.iter().map(|(response, count)| (response, *count));
        known
            .chain(others)
            .flat_map(|((rcode, plugin), count)| self.counter(desc, &[&rcode_text(*rcode), plugin], count))
            .collect()
    }

    fn sizes(&self, desc: &Desc, sums: &[u64]) -> Vec<Metric> {
        let bounds: Vec<f64> = SIZE_BUCKETS.into_iter().map(f64::from).collect();
        let both = PROTOCOLS.into_iter().zip(sums.chunks(SIZE_HISTOGRAM_COUNTERS));
        both.filter_map(|(protocol, sums)| self.histogram(desc, &[protocol], &bounds, sums, 1.0)).collect()
    }

    fn durations(&self, desc: &Desc, sums: &[u64]) -> Vec<Metric> {
        let (first, factor, number) = DURATION_BUCKETS;
        let bounds = prometheus::exponential_buckets(first, factor, number).unwrap_or_default();
        self.histogram(desc, &[], &bounds, &sums[..DURATION_COUNTERS], 1e-9).into_iter().collect()
    }

    /// Builds a histogram. `sums` has the counts of the buckets, the count of the bucket without a bound, and the sum
    /// of the observed values as a multiple of `unit`. Returns `None` if nothing was observed.
    #[expect(clippy::cast_precision_loss, reason = "Prometheus has only floating-point numbers")]
    fn histogram(
        &self,
        desc: &Desc,
        labels: &[&str],
        bounds: &[f64],
        sums: &[u64],
        unit: f64,
    ) -> Option<Metric> {
        let (buckets, sum) = (&sums[..=bounds.len()], sums[bounds.len() + 1]);
        let count: u64 = buckets.iter().sum();
        let mut below = 0;
        let cumulated = bounds.iter().zip(buckets).map(|(bound, inside)| {
            below += inside;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(cumulated.collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum as f64 * unit);
        let mut metric = Metric::from_label(labelled(desc, &self.labels(labels)));
        metric.set_histogram(histogram);
        (count > 0).then_some(metric)
    }
}

/// The types that CoreDNS distinguishes: clients must not be able to add label values.
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

/// The maximum number of pairs of rcode and plugin with counters of their own.
const MAX_RESPONSES: usize = 64;
