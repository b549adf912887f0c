//! # Name
//!
//! *prometheus* - counts the queries of a block, and serves `/metrics`.
//!
//! # Description
//!
//! Names, labels and buckets are those of CoreDNS, so that CoreDNS's dashboards and alerts work. `/metrics` also has
//! lb-linker's own metrics, which begin with `lb_linker_`, the metrics of the other plugins, and the metrics of the
//! process (`process_*`); there are no metrics of Go's runtime.
//!
//! A block needs its own line for its queries to be counted; blocks with the same address share the endpoint. Look-ups
//! of links' targets are counted in the block that answers them, as CoreDNS counts its own look-ups.
//!
//! # Syntax
//!
//! ```text
//! prometheus [ADDRESS]
//! ```
//!
//! - **ADDRESS** is an IP address or `localhost`, and a port; `localhost:9153` by default. In a Pod use `:9153`, which
//!   means all addresses.
//!
//! CoreDNS's options `tls` and `runtime_metrics` aren't supported.
//!
//! # Metrics
//!
//! - `coredns_build_info{version, revision, goversion}`: lb-linker's version; the other two labels are empty.
//! - `coredns_panics_total`: queries that caused a panic.
//! - `coredns_plugin_enabled{server, zone, view, name}`: 1 for each plugin of a block that takes part in answering;
//!   `zone` is the block's first zone.
//! - `coredns_dns_requests_total{server, zone, view, proto, family, type}`: queries.
//! - `coredns_dns_do_requests_total{server, zone, view}`: queries with DO set.
//! - `coredns_dns_request_size_bytes{server, zone, view, proto}`: the size of queries.
//! - `coredns_dns_request_duration_seconds{server, zone, view}`: the duration of queries.
//! - `coredns_dns_responses_total{server, zone, view, rcode, plugin}`: answers, by the plugin that has answered.
//! - `coredns_dns_response_size_bytes{server, zone, view, proto}`: the size of answers.
//!
//! The labels: `server` is the listener, such as `dns://:53`; `zone` is the zone of the block, or `dropped` for a query
//! that is refused before it reaches a block; `view` is always empty; `proto` is `udp`, or `tcp` with or without TLS;
//! `family` is 1 for IPv4 and 2 for IPv6.
//!
//! # Examples
//!
//! ```text
//! . {
//!     prometheus :9153
//!     whoami
//! }
//! ```

use std::time::Instant;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;

use super::setup::{HttpKind, Setup};
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "prometheus";
const DEFAULT: &str = "localhost:9153";

#[derive(Debug)]
struct Prometheus;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    if let Some(option) = setup.only_line()?.options().first() {
        return Err(match option.name() {
            "tls" | "runtime_metrics" => {
                option.error(format!("CoreDNS's option {} of prometheus isn't supported here", option.name()))
            }
            name => option.error(format!("prometheus takes no options here, and here is {name:?}")),
        });
    }
    setup.serve_http(HttpKind::Metrics, DEFAULT)?;
    setup.add_reusable(Prometheus);
    Ok(())
}

#[async_trait]
impl Plugin for Prometheus {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let since = Instant::now();
        let mut outcome = next.serve(request).await;
        match &mut outcome {
            Ok(reply) => {
                let deltas = request.zone_metrics.count(&request.stats(reply), since);
                match (&mut reply.validity, deltas) {
                    (Some(validity), Some(deltas)) => validity.query_metrics.push(deltas),
                    (validity, _) => *validity = None,
                }
            }
            Err(failure) => {
                let mut reply = request.reply("");
                if let PluginError::Error { rcode, .. } = failure {
                    reply.metadata.response_code = *rcode;
                } else {
                    reply.metadata.response_code = ResponseCode::NoError;
                }
                request.zone_metrics.count(&request.stats(&reply), since);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[tokio::test]
    async fn queries_are_counted_with_names_and_labels_of_coredns() {
        let context = TestServer::corefile("example.org {\nprometheus\nwhoami\n}\n");
        context.ask("www.example.org. A").await;
        context.clone().edns(1232).ask("www.example.org. NAPTR").await;
        context.ask("example.com. A").await;
        for line in [
            "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"A\",view=\"\",zone=\"example.org.\"} 1",
            "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"other\",view=\"\",zone=\"example.org.\"} 1",
            "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"A\",view=\"\",zone=\"dropped\"} 1",
            "coredns_dns_responses_total{plugin=\"whoami\",rcode=\"NOERROR\",server=\"dns://:53\",view=\"\",zone=\"example.org.\"} 2",
            "coredns_dns_responses_total{plugin=\"\",rcode=\"REFUSED\",server=\"dns://:53\",view=\"\",zone=\"dropped\"} 1",
            "coredns_dns_request_duration_seconds_count{server=\"dns://:53\",view=\"\",zone=\"example.org.\"} 2",
        ] {
            assert_eq!(context.metrics(line), [line]);
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            (
                "prometheus 9153",
                "Corefile:2:12: \"9153\" isn't an address and port such as :9153, localhost:9153 or 127.0.0.1:9153",
            ),
            (
                "prometheus {\ntls web.yml\n}",
                "Corefile:3:1: CoreDNS's option tls of prometheus isn't supported here",
            ),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
