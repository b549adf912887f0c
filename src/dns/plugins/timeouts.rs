//! # Name
//!
//! *timeouts* - sets timeouts and limits for connections by TCP, TLS, HTTPS, gRPC and QUIC.
//!
//! # Description
//!
//! A connection costs memory whether it is used or not. The defaults are too long if there are very many clients, and
//! too short on very slow paths. The limits apply to a listener: if several blocks share it, each limit is that of the
//! last block that sets it.
//!
//! Differences from CoreDNS: its defaults are 3 seconds for `read` and 10 for `idle`; RFC 7766 section 6.2.3 asks for
//! some seconds at least, and a cache that forwards to lb-linker saves the handshakes. In CoreDNS, `read` also limits
//! the wait for the first query, and `idle` the duration of all later queries; here, `idle` limits pauses, and `read`
//! limits each query, because a query that arrives byte by byte isn't a pause. `write` closes connections here; CoreDNS
//! accepts it without effect.
//!
//! # Syntax
//!
//! Syntax: `timeouts`, with at least one of these options. **DURATION** is from `1s` to `24h`; a number without a unit
//! is in seconds.
//!
//! - `read DURATION`: for the rest of a query after its first byte, and for the TLS handshake; by HTTPS for the headers
//!   of HTTP/1.1, and by HTTPS and gRPC for a body; by QUIC for the handshake and for each stream. 5s by default.
//! - `write DURATION`: for the client to receive about 4 KiB of answers, or one bigger answer; a client that reads
//!   steadily gets all answers. 5s by default.
//! - `idle DURATION`: from an answer, or the start of the connection, to the next query. 30s by default.
//! - `maxtcpqueries MAXIMUM`: the number of queries, 1 or more, after which a connection is closed, when they are
//!   answered. Clients then reconnect, so that a load balancer in front of several replicas can distribute them again.
//!   -1, the default, is no limit.

use std::time::Duration;

use super::setup::Setup;
use crate::dns::corefile::arguments::go_duration;
use crate::dns::corefile::{CorefileError, Token};
use crate::dns::transport::connections::Timeouts;

const NAME: &str = "timeouts";
const OPTIONS: [&str; 4] = ["read", "write", "idle", "maxtcpqueries"];
const DURATION: &str = "a duration from 1s to 24h";
const QUERIES: &str = "a number of queries, or -1 for any";
const MIN: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    if line.options().is_empty() {
        return Err(line.error(format!("timeouts needs at least one of {}, in braces", OPTIONS.join(", "))));
    }
    let mut timeouts = Timeouts::default();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "read" => timeouts.read = Some(duration(option.single_argument(DURATION)?)?),
            "write" => timeouts.write = Some(duration(option.single_argument(DURATION)?)?),
            "idle" => timeouts.idle = Some(duration(option.single_argument(DURATION)?)?),
            "maxtcpqueries" => timeouts.queries = Some(queries(option.single_argument(QUERIES)?)?),
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    setup.builder.timeouts = timeouts;
    Ok(())
}

fn duration(word: &Token) -> Result<Duration, CorefileError> {
    let seconds = word.text.parse().ok().map(Duration::from_secs);
    let duration = seconds.or_else(|| go_duration(&word.text));
    duration.filter(|duration| (MIN..=MAX).contains(duration)).ok_or_else(|| word.unexpected(DURATION))
}

fn queries(word: &Token) -> Result<u64, CorefileError> {
    if word.text == "-1" {
        return Ok(u64::MAX);
    }
    word.parse_in_range(1.., QUERIES)
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;
    use super::*;

    #[test]
    fn options_are_parsed_and_missing_options_stay_unset() {
        let seconds = |number| Some(Duration::from_secs(number));
        assert_eq!(
            TestServer::builder("timeouts {\nread 1s\nwrite 90\nidle 24h\nmaxtcpqueries 128\n}").timeouts,
            Timeouts { read: seconds(1), write: seconds(90), idle: seconds(86400), queries: Some(128) }
        );
        let unlimited = TestServer::builder("timeouts {\nmaxtcpqueries -1\n}").timeouts;
        assert_eq!(unlimited, Timeouts { queries: Some(u64::MAX), ..Timeouts::default() });
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        let least = "timeouts needs at least one of read, write, idle, maxtcpqueries, in braces";
        for (lines, error) in [
            ("timeouts 5s", "2:10: timeouts takes no arguments, and here is \"5s\""),
            ("timeouts", &format!("2:1: {least}")),
            ("timeouts {\n}", &format!("2:1: {least}")),
            ("timeouts {\nread\n}", "3:1: read needs a duration from 1s to 24h"),
            ("timeouts {\nread 1s 2s\n}", "3:9: read takes 1 argument at most, and here is \"2s\""),
            ("timeouts {\nread 1s {\n}\n}", "3:1: read takes no braces"),
            ("timeouts {\nwrite 999ms\n}", "3:7: \"999ms\" isn't a duration from 1s to 24h"),
            ("timeouts {\nidle 86401\n}", "3:6: \"86401\" isn't a duration from 1s to 24h"),
            ("timeouts {\nidle soon\n}", "3:6: \"soon\" isn't a duration from 1s to 24h"),
            ("timeouts {\nidle -5s\n}", "3:6: \"-5s\" isn't a duration from 1s to 24h"),
            ("timeouts {\nmaxtcpqueries 0\n}", "3:15: \"0\" isn't a number of queries, or -1 for any"),
            ("timeouts {\nmaxtcpqueries -2\n}", "3:15: \"-2\" isn't a number of queries, or -1 for any"),
            (
                "timeouts {\nlinger 5s\n}",
                "3:1: timeouts has no option \"linger\"; its options are read, write, idle, maxtcpqueries",
            ),
            (
                "timeouts {\nread 5s\n}\ntimeouts {\nread 5s\n}",
                "5:1: timeouts can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
        }
    }
}
