//! # Name
//!
//! *https* - limits the connections of a DNS over HTTPS server.
//!
//! # Description
//!
//! A block with an address that begins with `https://` answers DNS over HTTPS (RFC 8484) at the path `/dns-query`, by
//! default on port 443: GET with the parameter `dns`, and POST, by HTTP/2 and HTTP/1.1. The certificate is that of
//! [*tls*](#tls). Without *tls* the block answers plain HTTP, for a proxy in front of it. The line *https* is
//! optional. In other blocks it has no effect.
//!
//! `Cache-Control` has the smallest TTL of an answer, or that of the SOA record of a negative one, and `private`: HTTP
//! caches that clients share keep no answer, because answers can depend on the client's address. Errors have
//! `no-store`, and a sentence that says what is wrong, except 431:
//!
//! | status | reason |
//! |---|---|
//! | 400 | the request isn't a DNS query |
//! | 404 | another path |
//! | 405 | another method |
//! | 408 | the body doesn't arrive in time |
//! | 413 | a query of more than 65,535 bytes |
//! | 415 | another content type |
//! | 431 | more than 16 KiB of headers |
//! | 500 | the query gets no answer |
//! | 503 | too many queries wait, or the connection is about to end |
//!
//! The client's address is that of the connection, so behind a proxy without *proxyproto* that of the proxy:
//! `X-Forwarded-For` and similar headers are ignored, because any client can set them. *timeouts* applies as by TCP;
//! `read` also limits the time for the body of a request, and HTTP/2 allows 100 queries at a time on a connection. A
//! client that sends 128 KiB by HTTP/2 beyond 4 KiB for each request is disconnected. A connection of HTTP/2 may hold
//! 2 MiB of what it has received. What exceeds 128 KiB comes from 64 MiB that all connections share; a connection
//! without a share ends after its answers.
//!
//! Differences from CoreDNS: methods other than GET and POST, and too large a body, get 400 there, any content type is
//! taken, and errors have no sentence; HEAD is answered here. There all HTTP caches may keep an answer, for an hour at
//! most, one without a TTL and an error for 5 seconds, and the TTLs of all sections count. HTTP/2 needs TLS there. At
//! the maximum of connections CoreDNS accepts none until one ends; here the connection that has been idle longest is
//! closed, or the new one if none is idle. A parameter `dns` with `%2D` or `%5F`, or whose unused last bits aren't
//! zero, gets 400 here, and an answer there.
//!
//! # Syntax
//!
//! Syntax: `https`. Option:
//!
//! - `max_connections MAXIMUM` sets the maximum number of connections of the listener, 200 by default. 0 leaves only
//!   the [limits](reference.md#limits) of all TCP connections; an idle connection takes about 25 KiB of memory, without
//!   TLS. With *tls* or *proxyproto* a client's address may have half of the maximum. Without them a proxy is one
//!   client, and has only the limit of a client by TCP. If several blocks share the listener, the first one with
//!   *https* counts.
//!
//! # Examples
//!
//! ```text
//! https://dns.example.org {
//!     tls tls.crt tls.key
//!     https {
//!         max_connections 1000
//!     }
//!     forward . 192.0.2.53
//! }
//! ```
//!
//! To measure, use h2load, or dnsperf with no more queries outstanding than connections (`-m doh -c 4 -q 4`): dnsperf reads
//! one answer of each TLS record, and counts further ones as lost.

use super::setup::Setup;
use crate::dns::corefile::CorefileError;

const NAME: &str = "https";
const OPTIONS: [&str; 1] = ["max_connections"];
const CONNECTIONS: &str = "a number of connections, or 0 for no limit of its own";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let mut connections = None;
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "max_connections" if connections.is_some() => {
                return Err(option.error("max_connections can be there only once in https"));
            }
            "max_connections" => {
                let max: usize = option.single_argument(CONNECTIONS)?.parse(CONNECTIONS)?;
                connections = Some(if max == 0 { usize::MAX } else { max });
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    setup.builder.https_connections = connections;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn maximum_is_parsed_and_zero_means_no_limit() {
        for (lines, expected) in [
            ("https", None),
            ("https {\n}", None),
            ("https {\nmax_connections 7\n}", Some(7)),
            ("https {\nmax_connections 0\n}", Some(usize::MAX)),
        ] {
            assert_eq!(TestServer::builder(lines).https_connections, expected, "{lines}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let what = "a number of connections, or 0 for no limit of its own";
        for (lines, error) in [
            ("https 5", "2:7: https takes no arguments, and here is \"5\"".to_owned()),
            ("https {\nmax_connections\n}", format!("3:1: max_connections needs {what}")),
            ("https {\nmax_connections -1\n}", format!("3:17: \"-1\" isn't {what}")),
            ("https {\nmax_connections many\n}", format!("3:17: \"many\" isn't {what}")),
            (
                "https {\nmax_connections 1\nmax_connections 2\n}",
                "4:1: max_connections can be there only once in https".to_owned(),
            ),
            (
                "https {\nmax_streams 1\n}",
                "3:1: https has no option \"max_streams\"; its option is max_connections".to_owned(),
            ),
            (
                "https\nhttps",
                "3:1: https can be there only once in a block, and it is on line 2 already".to_owned(),
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
