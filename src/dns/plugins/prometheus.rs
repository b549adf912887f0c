//! # Name
//!
//! *prometheus* - counts the queries of a block, and serves `/metrics`.
//!
//! # Description
//!
//! Names, labels and buckets are those of CoreDNS, so that its dashboards and alerts work. `/metrics` also has
//! lb-linker's own metrics (`lb_linker_*`), those of the other plugins, and those of the process (`process_*`). A block
//! needs its own line for its queries to be counted; blocks with the same address share the endpoint. Look-ups of
//! links' targets are counted in the block that answers them.
//!
//! # Syntax
//!
//! Syntax: `prometheus [ADDRESS]`: an IP address or `localhost`, and a port; `localhost:9153` by default. In a Pod use
//! `:9153`, which means all addresses. Option:
//!
//! - `tls FILE` serves `/metrics` by HTTPS, to all clients or only to clients with a certificate. **FILE** is a web
//!   configuration of Prometheus, in YAML, as Prometheus's exporters have it. Its path starts from the working
//!   directory.
//!
//! The flags have no `tls`: take the built-in Corefile, which `lb-linker check` prints, and set it in each `prometheus`
//! line. In Kubernetes, mount the Secret with the certificate beside the Corefile. Prometheus needs `scheme: https` and
//! `tls_config` in its scrape job (in a ServiceMonitor `scheme` and `tlsConfig`), with `server_name` (`serverName`) as
//! a name in the certificate, because it connects to the addresses of Pods.
//!
//! | key of `tls_server_config` | meaning |
//! |---|---|
//! | `cert_file`, `key_file`; or `cert`, `key` with the text | the certificate, followed by the intermediate ones, and its private key, in PEM. Relative paths start from the directory of **FILE** |
//! | `client_auth_type` | `NoClientCert`, the default: all clients. `RequestClientCert`: all clients, a certificate is requested and not verified. `RequireAnyClientCert`: those with a certificate of any CA. `VerifyClientCertIfGiven`: those with a certificate of the CA, or without one. `RequireAndVerifyClientCert`: those with a certificate of the CA |
//! | `client_ca_file`, or `client_ca` with the text | the CAs of clients' certificates, instead of the system's. Not with `NoClientCert` |
//! | `min_version`, `max_version` | `TLS12` or `TLS13`; both by default |
//! | `cipher_suites` | of TLS 1.2, by Go's names; those with AES-GCM and ChaCha20-Poly1305 |
//! | `curve_preferences` | `X25519`, `CurveP256` or `CurveP384` |
//! | `prefer_server_cipher_suites` | `false` prefers the client's order of cipher suites |
//!
//! The files are read with the Corefile: *reload* and SIGUSR1 also notice a renewed certificate. If a file is invalid,
//! lb-linker doesn't start, and at a reload the previous certificate stays in force. A file without a
//! `tls_server_config` causes a warning, and metrics are served without TLS. Clients get five seconds for the TLS
//! handshake.
//!
//! Differences of `tls` from CoreDNS: CoreDNS 1.14 starts without `/metrics` if a file is invalid, and reads the files
//! for each connection. Plugins with the same address, also in other blocks, need the same `tls`, or none; in CoreDNS
//! the first one counts. `/metrics` is served by HTTP/1.1 only: `http2` in `http_server_config` has no effect. TLS 1.0
//! and 1.1, `client_allowed_sans`, `headers` in `http_server_config`, `rate_limit` and `basic_auth_users` are rejected.

mod web_config;

use std::time::Instant;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;

use super::setup::{HttpKind, Setup};
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "prometheus";
const DEFAULT: &str = "localhost:9153";
const OPTIONS: [&str; 2] = ["runtime_metrics", "tls"];

#[derive(Debug)]
struct Prometheus;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let (mut file, mut warnings) = (None, Vec::new());
    for option in setup.only_line()?.options() {
        option.no_block()?;
        match option.name() {
            "tls" if file.is_some() => return Err(option.error("tls can be there only once in prometheus")),
            "tls" => {
                file = Some(option.single_argument("the file of a web configuration: tls FILE")?.clone())
            }
            "runtime_metrics" => {
                option.no_arguments()?;
                warnings.push(option.error(
                    "runtime_metrics has no effect here: its metrics are those of Go's runtime; process_* and \
                     lb_linker_* have the memory, the CPU time and the tasks",
                ));
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    setup.builder.warnings.append(&mut warnings);
    let tls = file.map(|word| web_config::read(setup, &word)).transpose()?.flatten();
    setup.serve_http(HttpKind::Metrics, DEFAULT, tls)?;
    setup.add_reusable(Prometheus);
    Ok(())
}

#[async_trait]
impl Plugin for Prometheus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.is_check() {
            return next.serve(request).await;
        }
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
            ("prometheus {\ntls\n}", "Corefile:3:1: tls needs the file of a web configuration: tls FILE"),
            ("prometheus {\ntls a b\n}", "Corefile:3:7: tls takes 1 argument at most, and here is \"b\""),
            ("prometheus {\ntls a {\n}\n}", "Corefile:3:1: tls takes no braces"),
            ("prometheus {\ntls a\ntls b\n}", "Corefile:4:1: tls can be there only once in prometheus"),
            (
                "prometheus {\nruntime_metrics all\n}",
                "Corefile:3:17: runtime_metrics takes no arguments, and here is \"all\"",
            ),
            (
                "prometheus {\nssl a\n}",
                "Corefile:3:1: prometheus has no option \"ssl\"; its options are runtime_metrics, tls",
            ),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
