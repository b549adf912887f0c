//! # Name
//!
//! *grpc* - forwards queries to upstream resolvers by gRPC.
//!
//! # Description
//!
//! As [*forward*](#forward), by the call `Query` of `coredns.dns.DnsService`, which `grpc://` blocks of CoreDNS answer.
//! Queries share connections of HTTP/2, as with *forward* by HTTPS. If an upstream is silent for 0.5 s, the next one is
//! asked, too. There are no health checks.
//!
//! Differences from CoreDNS: there an upstream is asked only after the one before has failed, for 5 s in all, and an
//! answer to another question is FORMERR, here a failure of the upstream. `unix://` isn't supported. Identical queries
//! share one look-up, which counts once for each client in `coredns_grpc_requests_total` and the other metrics, with
//! its whole duration, for its last upstream. The status NOT_FOUND counts there as NXDOMAIN; CoreDNS doesn't count it.
//! *forward* has the limits for clients and for upstream sockets, and its certificates must not have CA:TRUE, either.
//!
//! # Syntax
//!
//! Syntax: `grpc FROM TO...`, with the options below. **FROM** is the zone to forward, `.` for all names. **TO** is an
//! address with or without a port (`192.0.2.1:9005`; the default is 53), maybe after `dns://`, or a file with
//! `nameserver` lines; there can be 15. The plugin can be there once in a block.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `except ZONES...` | | names in these zones go to the next plugin; may be repeated |
//! | `tls [CERT KEY] [CA]` | no TLS | upstreams are asked with TLS, with up to three PEM files as for *forward* |
//! | `tls_servername NAME` | the address | upstreams are asked with TLS, and their certificates have to be valid for this name |
//! | `policy random\|round_robin\|sequential` | `random` | the upstream that is asked first, as for *forward* |
//! | `fallthrough [ZONES...]` | | after NXDOMAIN, or if no upstream answers, names in these zones, by default all names, go to the next plugin, *erratic* or *whoami*, if it is in the block |
//!
//! # Examples
//!
//! ```text
//! example.org {
//!     grpc . 192.0.2.1:9005 192.0.2.2:9005 {
//!         tls ca.pem
//!         tls_servername dns.example.net
//!     }
//! }
//! ```

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::Name;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use tokio::time::{Duration, Instant};

use super::client_tls::ClientTls;
use super::forward::Forward;
use super::forward::options::{MAX_TO, default_max_concurrent, policy, zone};
use super::forward::to::{AddressOrHost, destinations};
use super::setup::Setup;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::AccessRule;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token, addresses};
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::upstream::config::ForwardOptions;
use crate::dns::upstream::endpoint::{Transport, UpstreamEndpoint};
use crate::dns::upstream::group::UpstreamGroup;
use crate::dns::upstream::http::{HttpClient, HttpFormat};
use crate::dns::upstream::policy::SelectionPolicy;
use crate::metrics::sharded::DURATION_BUCKETS;
use crate::metrics::{MetricGroup, registered};

const NAME: &str = "grpc";
const OPTIONS: [&str; 5] = ["except", "fallthrough", "policy", "tls", "tls_servername"];
/// The plugins that may follow.
const FOLLOWING: [&str; 2] = ["erratic", "whoami"];
/// How long an upstream may take to answer. In CoreDNS it is the limit for all.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Grpc {
    forward: Forward,
    fallthrough: ZoneSet,
    metrics: Arc<GrpcMetrics>,
}

#[derive(Debug)]
struct GrpcMetrics {
    requests: IntCounterVec,
    responses: IntCounterVec,
    duration: HistogramVec,
}

#[derive(Default)]
struct Options {
    except: Vec<Name>,
    fallthrough: ZoneSet,
    policy: Option<SelectionPolicy>,
    has_tls: bool,
    tls: ClientTls,
}

impl MetricGroup for GrpcMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name, labels: &[&str]| {
            let options = Opts::new(name, "Counter of requests made per upstream.");
            registered(registry, IntCounterVec::new(options, labels))
        };
        let duration = HistogramOpts::new(
            "coredns_grpc_request_duration_seconds",
            "Histogram of the time each request took.",
        );
        let (start, factor, count) = DURATION_BUCKETS;
        let duration = duration.buckets(prometheus::exponential_buckets(start, factor, count)?);
        Ok(Self {
            requests: counter("coredns_grpc_requests_total", &["to"])?,
            responses: counter("coredns_grpc_responses_total", &["rcode", "to"])?,
            duration: registered(registry, HistogramVec::new(duration, &["to"]))?,
        })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    setup.only_line()?;
    let line = &setup.lines[0];
    let [from, to @ ..] = line.arguments() else {
        return Err(line.missing_argument("a zone, and the upstreams: grpc . 192.0.2.1:9005"));
    };
    if to.is_empty() {
        return Err(from.needs("an upstream after it, such as 192.0.2.1:9005"));
    }
    if let Some(word) = to.get(MAX_TO) {
        return Err(word.error(format!("grpc takes {MAX_TO} upstreams at most, and here are {}", to.len())));
    }
    let options = options(line, setup)?;
    let from = zone(from, setup)?;
    let mut endpoints: Vec<UpstreamEndpoint> = Vec::new();
    let mut connector = None;
    for word in to {
        let (tls, host) = if options.has_tls {
            let (tls, host) = options.tls.http_client(None, None, word, &mut connector)?;
            (Some(tls), host)
        } else {
            (None, None)
        };
        let transport = Transport::Http(HttpClient { tls, host, format: HttpFormat::Grpc });
        for address in upstreams(word, setup)? {
            if endpoints.iter().all(|known| known.address != address) {
                endpoints.push(UpstreamEndpoint::new(address, &transport));
            }
        }
    }
    let follows = setup.block.iter().any(|line| FOLLOWING.contains(&line.name()));
    let group = UpstreamGroup::new(
        endpoints,
        ForwardOptions {
            policy: options.policy.unwrap_or(SelectionPolicy::Random),
            max_fails: 0,
            read_timeout: READ_TIMEOUT,
            max_concurrent: default_max_concurrent(),
            sockets: Arc::clone(&setup.context.upstream_sockets),
            ..ForwardOptions::default()
        },
    );
    let loop_state = setup.builder.loop_state.clone();
    let plugin = Grpc {
        forward: Forward::new(from, ZoneSet::new(options.except), group, loop_state),
        fallthrough: if follows { options.fallthrough } else { ZoneSet::default() },
        metrics: setup.metrics()?,
    };
    setup.add_with_access_rule(plugin, ChainPlugin::new);
    Ok(())
}

/// Parses the options in braces.
fn options(line: &Directive, setup: &mut Setup<'_>) -> Result<Options, CorefileError> {
    let mut all = Options::default();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "except" => {
                for word in option.required_arguments("zones")? {
                    all.except.extend(addresses(word)?.into_iter().map(|address| address.zone));
                }
            }
            "fallthrough" => all.fallthrough = zones_or_all(option.arguments())?,
            "policy" => all.policy = Some(policy(option)?),
            "tls" => {
                all.tls.take(option, setup)?;
                all.has_tls = true;
            }
            "tls_servername" => {
                all.tls.take_name(option)?;
                all.has_tls = true;
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    Ok(all)
}

/// Returns the addresses of a word: several if the word is a file.
fn upstreams(word: &Token, setup: &mut Setup<'_>) -> Result<Vec<SocketAddr>, CorefileError> {
    const EXPECTED: &str = "an address such as 192.0.2.1:9005, or a file like /etc/resolv.conf";
    if word.text.contains("://") && !word.text.starts_with("dns://") {
        return Err(word.unexpected(EXPECTED));
    }
    let mut all = Vec::new();
    for destination in destinations(word, setup)? {
        let AddressOrHost::Address(address) = destination.at else { return Err(word.unexpected(EXPECTED)) };
        setup.builder.upstreams.push((address, word.position.clone()));
        all.push(address);
    }
    if all.is_empty() {
        return Err(word.error(format!("{:?} has no line such as: nameserver 192.0.2.1", word.text)));
    }
    Ok(all)
}

#[async_trait]
impl Plugin for Grpc {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if !self.forward.is_for(request.query.name()) {
            return next.serve(request).await;
        }
        let begun = Instant::now();
        let outcome = self.forward.serve(request, next).await;
        let falls_through = |request: &Request| self.fallthrough.contains(request.query.name());
        match outcome {
            Ok(mut reply) => {
                let rcode = reply.metadata.response_code;
                self.metrics.record(request, rcode, begun.elapsed());
                if rcode == ResponseCode::NXDomain && falls_through(request) {
                    return next.serve(request).await;
                }
                reply.plugin = NAME;
                Ok(reply)
            }
            Err(PluginError::Error { no_upstream: true, .. })
                if matches!(request.purpose, Purpose::Client) && falls_through(request) =>
            {
                next.serve(request).await
            }
            Err(error) => Err(error),
        }
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        self.forward.invalidate(name);
    }
}

impl AccessRule for Grpc {
    fn allows_recursion(&self, request: &Request, query: &Query) -> Option<bool> {
        self.forward.allows_recursion(request, query)
    }
}

impl GrpcMetrics {
    fn record(&self, request: &Request, rcode: ResponseCode, took: Duration) {
        let limiter = request.query_limiter.as_ref();
        let Some(to) = limiter.and_then(|limiter| limiter.upstream()) else { return };
        let to = to.to_string();
        self.requests.with_label_values(&[&to]).inc();
        self.responses.with_label_values(&[&*rcode_text(rcode), &to]).inc();
        self.duration.with_label_values(&[&to]).observe(took.as_secs_f64());
    }
}
