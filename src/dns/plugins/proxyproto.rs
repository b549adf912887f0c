//! # Name
//!
//! *proxyproto* - takes the clients' addresses from PROXY headers.
//!
//! # Description
//!
//! A load balancer or proxy in front of the server hides the addresses of the clients, unless it puts a header of the
//! PROXY protocol before what it passes on: version 1 or 2 at the beginning of a connection by TCP, TLS (before the
//! handshake), HTTPS or gRPC, version 2 in front of each UDP datagram. Blocks `quic://` can't have this plugin. The
//! address and port in the header then count as those of the client everywhere: in *acl*, *clients*, logs and metrics,
//! and in the limits for single clients. The answer to a datagram goes to its sender. TLVs in a header are skipped.
//!
//! The sender itself is the client if there is no header, or one with LOCAL, UNKNOWN, 0.0.0.0, `::` or addresses that
//! aren't IP, such as that of a health check. It also counts for the limit of connections of a client until the header
//! is there, at most for the timeout `read` of *timeouts* after the first byte. So a proxy without headers is one
//! client, which may have half of `max_connections` of [*https*](#https) and [*grpc_server*](#grpc_server). A port 0 in
//! a header is replaced by the sender's.
//!
//! A connection with an invalid header is closed, a datagram dropped; a log line, at most one a minute, and the metric
//! `lb_linker_dns_proxy_headers_refused_total` count them. A header has at most 2048 bytes after its fixed part.
//!
//! All blocks of a listener have the *proxyproto* of the first one with such a line; a warning names a listener whose
//! blocks have different ones. Listeners without it pass a header on as a query, which is malformed. The source of a
//! datagram can be forged: let only the proxies' networks reach the port by UDP.
//!
//! Differences from CoreDNS: `allow` is mandatory, because any client could choose its address without it; it also
//! takes single addresses. A header of UDP may name any transport protocol, because proxies pass on queries that they
//! got by TCP or HTTPS. The destination in a header has no effect; by TCP, CoreDNS takes the server's address from it.
//! A datagram with LOCAL is answered; CoreDNS drops it. `udp_session_tracking`, for headers in a datagram of their own,
//! isn't supported.
//!
//! # Syntax
//!
//! ```text
//! proxyproto {
//!     allow NETWORKS...
//!     default use|ignore|reject|skip
//! }
//! ```
//!
//! - `allow` names the networks and addresses of the proxies; it may be repeated.
//! - `default` says what is done with headers of all others: `ignore`, the default, discards them; `reject` closes the
//!   connection or drops the datagram, but serves both without a header; `skip` doesn't look for them; `use` trusts
//!   them, so that every client chooses its address, and a warning says so.
//!
//! # Examples
//!
//! ```text
//! . {
//!     proxyproto {
//!         allow 10.0.0.0/24 192.0.2.7
//!         default reject
//!     }
//!     forward . 198.51.100.1
//! }
//! ```

use std::sync::Arc;

use super::nets::{Nets, net};
use super::setup::Setup;
use crate::dns::chain::proxy_sources::{ProxyPolicy, ProxySources};
use crate::dns::corefile::{CorefileError, Token};

const NAME: &str = "proxyproto";
const OPTIONS: [&str; 2] = ["allow", "default"];
const NETWORKS: &str = "the networks of the proxies, such as 10.0.0.0/24";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let (mut allowed, mut others) = (Vec::new(), ProxyPolicy::Ignore);
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "allow" => {
                for word in option.required_arguments(NETWORKS)? {
                    allowed.push(net(word)?);
                }
            }
            "default" => others = policy(option.single_argument("use, ignore, reject or skip")?)?,
            "udp_session_tracking" => return Err(option.unsupported(NAME, &OPTIONS)),
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    if allowed.is_empty() {
        return Err(line.error(format!(
            "{NAME} needs the option allow with {NETWORKS}: otherwise any client could choose its address"
        )));
    }
    if others == ProxyPolicy::Use {
        let warning = line.error("default use lets every client choose its address: ignore is safe");
        setup.builder.warnings.push(warning);
    }
    let allowed = Nets::new(&allowed).all().to_vec();
    setup.builder.proxies = Some(Arc::new(ProxySources { allowed, others }));
    Ok(())
}

fn policy(word: &Token) -> Result<ProxyPolicy, CorefileError> {
    match &*word.text.to_lowercase() {
        "use" => Ok(ProxyPolicy::Use),
        "ignore" => Ok(ProxyPolicy::Ignore),
        "reject" => Ok(ProxyPolicy::Reject),
        "skip" => Ok(ProxyPolicy::Skip),
        _ => Err(word.unexpected("use, ignore, reject or skip")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;
    use crate::dns::chain::proxy_sources::ProxyStep;
    use crate::dns::message::proxy_header::{ProxyHeader, parse};

    const HEADER: &[u8] = b"PROXY TCP4 198.51.100.1 192.0.2.53 4711 53\r\n";

    fn client(client: &str, length: usize) -> ProxyStep {
        ProxyStep::Serve { client: client.parse().unwrap(), length }
    }

    #[test]
    fn header_counts_by_its_source() {
        let refused = ProxyStep::Refuse("its source isn't allowed to send one");
        let own = "203.0.113.9:999";
        let length = HEADER.len();
        for (default, of_others) in [
            ("", client(own, length)),
            ("default ignore", client(own, length)),
            ("default REJECT", refused),
            ("default skip", client(own, 0)),
            ("default use", client("198.51.100.1:4711", length)),
        ] {
            let lines =
                format!("proxyproto {{\nallow 192.0.2.0/24 2001:db8::7\nallow 10.0.0.1\n{default}\n}}");
            let sources = TestServer::builder(&lines).proxies.unwrap();
            for proxy in ["192.0.2.1:1", "[2001:db8::7]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
                let step = sources.step(proxy.parse().unwrap(), parse(HEADER));
                assert_eq!(step, client("198.51.100.1:4711", length), "{proxy}");
            }
            let other = own.parse().unwrap();
            assert_eq!(sources.step(other, parse(HEADER)), of_others, "{default}");
            assert_eq!(sources.step(other, ProxyHeader::Absent), client(own, 0), "{default}");
            let invalid = sources.step(other, ProxyHeader::Invalid("why"));
            let is_read = default != "default skip";
            assert_eq!(invalid, if is_read { ProxyStep::Refuse("why") } else { client(own, 0) }, "{default}");
        }
    }

    #[test]
    fn sender_stands_for_what_a_header_lacks() {
        let sources = TestServer::builder("proxyproto {\nallow 192.0.2.0/24\n}").proxies.unwrap();
        let step = |client: Option<&str>| {
            let client = client.map(|client| client.parse().unwrap());
            sources.step("192.0.2.1:77".parse().unwrap(), ProxyHeader::Present { length: 9, client })
        };
        assert_eq!(step(None), client("192.0.2.1:77", 9));
        assert_eq!(
            step(Some("127.0.0.1:0")),
            client("127.0.0.1:77", 9),
            "port 0 is that of internal requests"
        );
        assert_eq!(step(Some("[::ffff:10.0.0.1]:5")), client("10.0.0.1:5", 9));
        for unspecified in ["0.0.0.0:5", "[::]:5", "[::ffff:0.0.0.0]:5"] {
            assert_eq!(step(Some(unspecified)), client("192.0.2.1:77", 9), "{unspecified}");
        }
    }

    #[test]
    fn only_trust_in_all_clients_is_warned_of() {
        let warnings = |default: &str| -> Vec<String> {
            let lines = format!("proxyproto {{\nallow 10.0.0.1\ndefault {default}\n}}");
            TestServer::builder(&lines).warnings.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            warnings("use"),
            ["Corefile:2:1: default use lets every client choose its address: ignore is safe"]
        );
        assert!(warnings("reject").is_empty());
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let needs = "2:1: proxyproto needs the option allow with the networks of the proxies, such as 10.0.0.0/24: \
                     otherwise any client could choose its address";
        for (lines, error) in [
            ("proxyproto", needs),
            ("proxyproto {\ndefault reject\n}", needs),
            ("proxyproto x", "2:12: proxyproto takes no arguments, and here is \"x\""),
            ("proxyproto {\nallow\n}", "3:1: allow needs the networks of the proxies, such as 10.0.0.0/24"),
            (
                "proxyproto {\nallow 10.0.0.0/33\n}",
                "3:7: \"10.0.0.0/33\" isn't an address, or a network such as 10.0.0.0/8",
            ),
            ("proxyproto {\ndefault deny\n}", "3:9: \"deny\" isn't use, ignore, reject or skip"),
            (
                "proxyproto {\nudp_session_tracking 28s\n}",
                "3:1: CoreDNS's option \"udp_session_tracking\" of proxyproto isn't supported here; supported are allow, \
                 default",
            ),
            (
                "proxyproto {\nallow 10.0.0.1\n}\nproxyproto",
                "5:1: proxyproto can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
