//! # Name
//!
//! *quic* - limits the streams of a DNS over QUIC server.
//!
//! # Description
//!
//! A block with an address that begins with `quic://` answers DNS over QUIC (RFC 9250), by default on UDP port 853,
//! and needs [*tls*](#tls): the certificate is the one there, with TLS 1.3. The line *quic* is optional. In other
//! blocks it has no effect.
//!
//! Each query has a stream of its own. A message with an id other than 0 or with the EDNS option edns-tcp-keepalive, a
//! stream with more or less than one query, and a stream whose end doesn't arrive within `read` of *timeouts* end the
//! connection with the error 2 (DOQ_PROTOCOL_ERROR). A query of more than 4,096 bytes, and one for which too many
//! others wait, gets the error 4 (DOQ_EXCESSIVE_LOAD); a query without an answer gets 1 (DOQ_INTERNAL_ERROR). A client
//! that doesn't read its answers within `write`, or sends 128 KiB beyond 4 KiB for each query, is disconnected with
//! the error 4; a stream that the client resets before its end counts for 8 KiB.
//!
//! *timeouts* applies as by TCP. 0-RTT isn't offered, because its queries can be replayed, and a client can't move to
//! another address. All listeners together have 1,000 connections at most, a client's address half of them: then the
//! connection that has been idle longest is closed, or the new one if none is idle. When 64 handshakes with new
//! addresses are under way, all connections are in use, or the client's address has an eighth of them, clients first
//! have to prove their address (Retry, RFC 9000 section 8.1), which takes a round trip: packets with forged addresses
//! keep no client out and close no connection. A closed connection takes no place of an open one; it stays in memory
//! for up to a minute, but only the 1,000 closed last. An idle connection takes about 60 KiB of memory.
//!
//! Differences from CoreDNS: answers aren't limited to the size that EDNS advertises, or to 512 bytes. Zones can be
//! transferred. The answer waits for the end of the query's stream; CoreDNS answers before it, and ignores what
//! follows the query. CoreDNS closes new connections of a listener that has 200, takes queries of 65,535 bytes, and
//! offers 0-RTT.
//!
//! # Syntax
//!
//! Syntax: `quic`. Options:
//!
//! - `max_streams MAXIMUM` sets how many queries a client may have at a time on a connection: 1 to 65535, 256 by
//!   default. Each connection takes some memory for all of these streams from its beginning on. If several blocks share
//!   the listener, the first one with *quic* counts.
//! - `worker_pool_size NUMBER` has no effect: the queries that wait are always limited, to 4,096 of all connections.
//!
//! # Examples
//!
//! ```text
//! quic://dns.example.org {
//!     tls tls.crt tls.key
//!     quic {
//!         max_streams 16
//!     }
//!     forward . 192.0.2.53
//! }
//! ```

use super::setup::Setup;
use crate::dns::corefile::CorefileError;

const NAME: &str = "quic";
const OPTIONS: [&str; 2] = ["max_streams", "worker_pool_size"];
const STREAMS: &str = "a number of streams from 1 to 65535";
const WORKERS: &str = "a number of workers, 1 or more";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let (mut streams, mut warning) = (None, None);
    for option in line.options() {
        option.no_block()?;
        let is_repeated = match option.name() {
            "max_streams" => {
                let max = option.single_argument(STREAMS)?.parse_in_range(1..=65535_u32, STREAMS)?;
                streams.replace(max).is_some()
            }
            "worker_pool_size" => {
                option.single_argument(WORKERS)?.parse_in_range(1..=i64::MAX, WORKERS)?;
                let instead = "has no effect here: the queries that wait are always limited";
                warning.replace(option.error(format!("worker_pool_size {instead}"))).is_some()
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        };
        if is_repeated {
            return Err(option.error(format!("{} can be there only once in quic", option.name())));
        }
    }
    setup.builder.quic_streams = streams;
    setup.builder.warnings.extend(warning);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn maximum_of_streams_is_parsed() {
        for (lines, expected) in [
            ("quic", None),
            ("quic {\n}", None),
            ("quic {\nmax_streams 16\nworker_pool_size 65536\n}", Some(16)),
            ("quic {\nmax_streams 65535\n}", Some(65535)),
        ] {
            let builder = TestServer::builder(lines);
            assert_eq!(builder.quic_streams, expected, "{lines}");
            assert_eq!(builder.warnings.len(), lines.matches("worker").count(), "{lines}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let what = "a number of streams from 1 to 65535";
        for (lines, error) in [
            ("quic 5", "2:6: quic takes no arguments, and here is \"5\"".to_owned()),
            ("quic {\nmax_streams\n}", format!("3:1: max_streams needs {what}")),
            ("quic {\nmax_streams 0\n}", format!("3:13: \"0\" isn't {what}")),
            ("quic {\nmax_streams 65536\n}", format!("3:13: \"65536\" isn't {what}")),
            ("quic {\nworker_pool_size 0\n}", "3:18: \"0\" isn't a number of workers, 1 or more".to_owned()),
            (
                "quic {\nmax_streams 1\nmax_streams 2\n}",
                "4:1: max_streams can be there only once in quic".to_owned(),
            ),
            (
                "quic {\nmax_connections 1\n}",
                "3:1: quic has no option \"max_connections\"; its options are max_streams, worker_pool_size"
                    .to_owned(),
            ),
            (
                "quic\nquic",
                "3:1: quic can be there only once in a block, and it is on line 2 already".to_owned(),
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
