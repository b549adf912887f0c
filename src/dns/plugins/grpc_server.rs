//! # Name
//!
//! *grpc_server* - limits the connections of a DNS over gRPC server.
//!
//! # Description
//!
//! A block with an address that begins with `grpc://` answers the gRPC call `/coredns.dns.DnsService/Query`, by
//! default on port 443, for clients such as CoreDNS's plugin *grpc*. A request and its response are a `DnsPacket` of
//! CoreDNS's `pb/dns.proto`, with a DNS message in its field `msg`. The certificate is that of [*tls*](#tls). Without
//! *tls* the block answers HTTP/2 without TLS. The line *grpc_server* is optional. In other blocks it has no effect.
//!
//! A call without an answer gets a status, and a sentence that says what is wrong; more than 16 KiB of headers get HTTP
//! 431 alone:
//!
//! | `grpc-status` | reason |
//! |---|---|
//! | 3 (INVALID_ARGUMENT) | the message isn't a DNS query; with HTTP 415 another content type |
//! | 4 (DEADLINE_EXCEEDED) | the request doesn't arrive in time |
//! | 8 (RESOURCE_EXHAUSTED) | a query of more than 65,535 bytes |
//! | 12 (UNIMPLEMENTED) | another method or service, a compressed message, or a second one in the request |
//! | 13 (INTERNAL) | the request isn't a whole `DnsPacket`, or the query gets no answer; with HTTP 405 not POST |
//! | 14 (UNAVAILABLE) | too many queries wait, or the connection is about to end |
//!
//! `grpc-timeout` is ignored: a client that ends its call ends the query, too. *timeouts* and the limits of HTTP/2 are
//! as for [*https*](#https). Zone transfers get REFUSED.
//!
//! Differences from CoreDNS: a message that isn't a DNS query gets status 2 (UNKNOWN) there, and a query without an
//! answer itself as the answer. CoreDNS ignores a second message, takes any subtype of the content type, refuses
//! `grpc-encoding` even if the message isn't compressed, and ends calls after their `grpc-timeout`. At the maximum of
//! connections it accepts none until one ends; here the connection that has been idle longest is closed, or the new one
//! if none is idle.
//!
//! # Syntax
//!
//! Syntax: `grpc_server`. Options:
//!
//! - `max_streams MAXIMUM` sets the maximum number of queries at a time on a connection, 256 by default. More aren't
//!   possible: 0, which is no limit in CoreDNS, and larger numbers mean 256, with a warning.
//! - `max_connections MAXIMUM` sets the maximum number of connections of the listener, 200 by default, as for
//!   [*https*](#https). 0 leaves only the limits of all TCP connections.
//!
//! If several blocks share the listener, the first one with the option counts. For example, in a block
//! `grpc://dns.example.org`: `tls tls.crt tls.key` and `grpc_server` with `max_connections 1000`.

use super::setup::Setup;
use crate::dns::corefile::CorefileError;
use crate::dns::transport::connections::MAX_GRPC_STREAMS;

const NAME: &str = "grpc_server";
const OPTIONS: [&str; 2] = ["max_connections", "max_streams"];
const CONNECTIONS: &str = "a number of connections, or 0 for no limit of its own";
const STREAMS: &str = "a number of queries from 1 to 256";

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let (mut connections, mut streams, mut warnings) = (None, None, Vec::new());
    for option in line.options() {
        option.no_block()?;
        let name = option.name();
        let is_again = match name {
            "max_connections" => {
                let max: usize = option.single_argument(CONNECTIONS)?.parse(CONNECTIONS)?;
                connections.replace(if max == 0 { usize::MAX } else { max }).is_some()
            }
            "max_streams" => {
                let max: usize = option.single_argument(STREAMS)?.parse(STREAMS)?;
                let number = u32::try_from(max).ok().filter(|max| (1..=MAX_GRPC_STREAMS).contains(max));
                if number.is_none() {
                    let warning = format!("max_streams {max} means {MAX_GRPC_STREAMS} here, the maximum");
                    warnings.push(option.error(warning));
                }
                streams.replace(number.unwrap_or(MAX_GRPC_STREAMS)).is_some()
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        };
        if is_again {
            return Err(option.error(format!("{name} can be there only once in grpc_server")));
        }
    }
    setup.builder.warnings.extend(warnings);
    (setup.builder.grpc_connections, setup.builder.grpc_streams) = (connections, streams);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[test]
    fn maxima_are_parsed_and_zero_means_no_limit_of_its_own() {
        for (lines, connections, streams, warnings) in [
            ("grpc_server", None, None, 0),
            ("grpc_server {\nmax_connections 7\nmax_streams 8\n}", Some(7), Some(8), 0),
            ("grpc_server {\nmax_connections 0\n}", Some(usize::MAX), None, 0),
            ("grpc_server {\nmax_streams 0\n}", None, Some(256), 1),
            ("grpc_server {\nmax_streams 257\n}", None, Some(256), 1),
            ("grpc_server {\nmax_streams 99999999999\n}", None, Some(256), 1),
        ] {
            let builder = TestServer::builder(lines);
            let found = (builder.grpc_connections, builder.grpc_streams, builder.warnings.len());
            assert_eq!(found, (connections, streams, warnings), "{lines}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, error) in [
            ("grpc_server 5", "2:13: grpc_server takes no arguments, and here is \"5\""),
            (
                "grpc_server {\nmax_connections\n}",
                "3:1: max_connections needs a number of connections, or 0 for no limit of its own",
            ),
            ("grpc_server {\nmax_streams -1\n}", "3:13: \"-1\" isn't a number of queries from 1 to 256"),
            (
                "grpc_server {\nmax_streams 1\nmax_streams 2\n}",
                "4:1: max_streams can be there only once in grpc_server",
            ),
            (
                "grpc_server {\nmax_connections 1\nmax_connections 1\n}",
                "4:1: max_connections can be there only once in grpc_server",
            ),
            (
                "grpc_server {\nmax_stream 1\n}",
                "3:1: grpc_server has no option \"max_stream\"; is it max_streams?",
            ),
            (
                "grpc_server\ngrpc_server",
                "3:1: grpc_server can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
