//! # Name
//!
//! *erratic* - answers erratically, for tests of clients: A with 192.0.2.53, AAAA with 2001:db8::53, the TTL 0 and AA
//! set, other types with SERVFAIL. A block counts its queries from 0; an option applies to multiples of its `AMOUNT`, 2
//! by default, or to none with 0.
//!
//! Differences from CoreDNS: `truncate` applies as its manual says, where it selects other queries by mistake, and so
//! does `drop` without `AMOUNT` beside other options. Transfers are refused, and the plugin is always ready.
//!
//! # Syntax
//!
//! Syntax: `erratic`, with the options `drop [AMOUNT]`: no answer, the default without other options than `large`;
//! `truncate [AMOUNT]`: TC is set; `delay [AMOUNT [DURATION]]`: after **DURATION**, by default `100ms`; `large`: 30 A
//! records.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::rr::{RData, Record, RecordType};
use tokio::time::sleep;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::{CorefileError, Directive, Token};

const NAME: &str = "erratic";
const AMOUNT: u64 = 2;
const DELAY: Duration = Duration::from_millis(100);
const IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53);

#[derive(Debug, Default)]
struct Erratic {
    queries: AtomicU64,
    /// Of these amounts, 0 means never.
    drop: u64,
    truncate: u64,
    delay: u64,
    duration: Duration,
    /// The number of A records.
    addresses: usize,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let mut erratic = Erratic { addresses: 1, ..Erratic::default() };
    let mut drop = None;
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "drop" => drop = Some(amount(option.at_most(1)?)?),
            "truncate" => erratic.truncate = amount(option.at_most(1)?)?,
            "delay" => {
                erratic.delay = amount(option.at_most(2)?)?;
                erratic.duration = option.arguments().get(1).map_or(Ok(DELAY), Token::duration)?;
            }
            "large" => {
                option.no_arguments()?;
                erratic.addresses = 30;
            }
            _ => return Err(option.unknown(NAME, &["drop", "truncate", "delay", "large"])),
        }
    }
    let is_only_large = line.options().iter().map(Directive::name).all(|name| name == "large");
    erratic.drop = drop.unwrap_or(if is_only_large { AMOUNT } else { 0 });
    setup.add(erratic);
    Ok(())
}

fn amount(arguments: &[Token]) -> Result<u64, CorefileError> {
    let parse = |word: &Token| {
        word.parse_in_range(0..=i32::MAX.unsigned_abs().into(), "a number from 0 to 2147483647")
    };
    arguments.first().map_or(Ok(AMOUNT), parse)
}

#[async_trait]
impl Plugin for Erratic {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
        let number = self.queries.fetch_add(1, Ordering::Relaxed);
        let is_one_of = |amount: u64| amount > 0 && number.is_multiple_of(amount);
        if is_one_of(self.drop) {
            return Err(PluginError::Drop);
        }
        if is_one_of(self.delay) {
            sleep(self.duration).await;
        }
        let records = match request.query.query_type() {
            RecordType::A => vec![RData::A(IPV4.into()); self.addresses],
            RecordType::AAAA => vec![RData::AAAA(IPV6.into())],
            _ => return Err(PluginError::servfail("")),
        };
        let mut reply = request.reply(NAME);
        reply.metadata.authoritative = true;
        reply.metadata.truncation = is_one_of(self.truncate);
        let record = |data| Record::from_rdata(request.query.name().clone(), 0, data);
        reply.records.answers = records.into_iter().map(record).collect();
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::tests::support::TestServer;

    const A: &str = "example.org. 0 IN A 192.0.2.53";

    async fn answers(lines: &str, number: usize) -> Vec<String> {
        let server = TestServer::block(lines);
        let mut answers = Vec::new();
        for _ in 0..number {
            answers.push(server.ask("example.org. A").await);
        }
        answers
    }

    #[tokio::test(start_paused = true)]
    async fn options_apply_to_each_nth_query() {
        let (silence, whole, cut) =
            ("silence".to_owned(), format!("NOERROR aa | {A} | |"), format!("NOERROR aa,tc | {A} | |"));
        for (lines, expected) in [
            ("erratic", [&silence, &whole, &silence]),
            ("erratic {\ndrop 3\n}", [&silence, &whole, &whole]),
            ("erratic {\ntruncate\n}", [&cut, &whole, &cut]),
            ("erratic {\ntruncate 1\ndrop\n}", [&silence, &cut, &silence]),
            ("erratic {\ndelay 0\n}", [&whole; 3]),
        ] {
            assert_eq!(answers(lines, 3).await.iter().collect::<Vec<_>>(), expected, "{lines}");
        }
        for (lines, millis) in [("erratic {\ndelay\n}", 200), ("erratic {\ndelay 3 1s\n}", 1000)] {
            let since = Instant::now();
            answers(lines, 3).await;
            assert_eq!(since.elapsed(), Duration::from_millis(millis), "{lines}");
        }
    }

    #[tokio::test]
    async fn only_address_queries_are_answered() {
        let server = TestServer::block("erratic {\nlarge\ndrop 0\n}");
        assert_eq!(server.ask("example.org. A").await.matches(A).count(), 30);
        assert_eq!(
            server.ask("Example.org. AAAA").await,
            "NOERROR aa | Example.org. 0 IN AAAA 2001:db8::53 | |"
        );
        assert_eq!(server.ask("example.org. TXT").await, "SERVFAIL | | |");
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("erratic x", "2:9: erratic takes no arguments, and here is \"x\""),
            (
                "erratic {\nflip\n}",
                "3:1: erratic has no option \"flip\"; its options are drop, truncate, delay, large",
            ),
            ("erratic {\ndrop -1\n}", "3:6: \"-1\" isn't a number from 0 to 2147483647"),
            ("erratic {\ndelay 1 5\n}", "3:9: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("erratic {\ntruncate 1 2\n}", "3:12: truncate takes 1 argument at most, and here is \"2\""),
            ("erratic {\nlarge 1\n}", "3:7: large takes no arguments, and here is \"1\""),
        ] {
            assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
        }
    }
}
