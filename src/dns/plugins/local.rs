//! # Name
//!
//! *local* - answers for `localhost` and the addresses of the client's own host. Queries for these names have no
//! meaning for other servers, and shouldn't reach them:
//!
//! - `localhost`, and all names below it: A is 127.0.0.1, AAAA is ::1, other types have no records.
//! - Names that begin with the label `localhost`, such as `localhost.example.org`: the same. Stub resolvers that append
//!   their search domains ask for them, RFC 6761 doesn't include them. Each such query is logged, with its client, at
//!   the level debug.
//! - `0.in-addr.arpa`, `127.in-addr.arpa`, `255.in-addr.arpa`: empty zones, except for `1.0.0.127.in-addr.arpa`, which
//!   has the PTR record `localhost`. Other names in these zones don't exist. There is no answer for zones below
//!   `ip6.arpa`.
//!
//! The four zones have an SOA record, and NS records with the name `localhost`. The TTL of all records is 604800, a
//! week.
//!
//! # Syntax
//!
//! Syntax: `local`, with the option `localhost_prefix on|off` for names that begin with `localhost`: `on` by default;
//! `off` passes them to the next plugins.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{NS, PTR, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use prometheus::{IntCounter, Registry};
use tracing::debug;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::ZoneSet;
use crate::metrics::{MetricGroup, registered};

const NAME: &str = "local";
const LOCALHOST: &str = "localhost";
/// A week in seconds.
const TTL: u32 = 604_800;

#[derive(Debug)]
struct Local {
    zones: ZoneSet,
    localhost: Name,
    /// `1.0.0.127.in-addr.arpa`.
    loopback: Name,
    soa: SOA,
    /// Whether the plugin answers for names that begin with `localhost`.
    answers_localhost_prefix: bool,
    counts: Arc<LocalhostCounters>,
}

#[derive(Debug)]
struct LocalhostCounters {
    requests: IntCounter,
}

impl MetricGroup for LocalhostCounters {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounter::new(
            "coredns_local_localhost_requests_total",
            "Counter of special localhost subdomain requests.",
        );
        Ok(Self { requests: registered(registry, requests)? })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments()?;
    let mut answers_localhost_prefix = true;
    for option in line.options() {
        answers_localhost_prefix = match option.name() {
            "localhost_prefix" => on_or_off(option)?,
            _ => return Err(option.unknown(NAME, &["localhost_prefix"])),
        };
    }
    let name =
        |text: &str| Name::from_ascii(text).map_err(|_| line.error(format!("{text:?} isn't a DNS name")));
    let localhost = name("localhost.")?;
    let empty = ["0.in-addr.arpa.", "127.in-addr.arpa.", "255.in-addr.arpa."].map(name);
    let zones = empty.into_iter().chain([Ok(localhost.clone())]).collect::<Result<Vec<_>, _>>()?;
    let plugin = Local {
        zones: ZoneSet::new(zones),
        soa: SOA::new(localhost.clone(), name("root.localhost.")?, 1, 0, 0, 0, TTL),
        localhost,
        loopback: name("1.0.0.127.in-addr.arpa.")?,
        answers_localhost_prefix,
        counts: setup.metrics()?,
    };
    setup.add_reusable(plugin);
    Ok(())
}

fn on_or_off(option: &Directive) -> Result<bool, CorefileError> {
    option.no_block()?;
    let word = option.single_argument("on or off")?;
    match &*word.text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(word.unexpected("on or off")),
    }
}

#[async_trait]
impl Plugin for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = request.query.name();
        if self.is_like_localhost(name) {
            debug!("{} asks for {name} {}", request.client.ip(), request.query.query_type());
            self.counts.requests.inc();
            return Ok(self.answer(request, name));
        }
        match self.zones.closest(name) {
            Some(zone) => Ok(self.answer(request, zone)),
            None => next.serve(request).await,
        }
    }
}

impl Local {
    /// Returns whether a name is below `localhost`, or begins with the label `localhost` if `localhost_prefix` is on.
    fn is_like_localhost(&self, name: &Name) -> bool {
        let begins_so =
            || name.iter().next().is_some_and(|label| label.eq_ignore_ascii_case(LOCALHOST.as_bytes()));
        name.iter().len() > 1
            && (self.localhost.zone_of(name) || (self.answers_localhost_prefix && begins_so()))
    }

    /// Answers a query for a name in `zone`. For a name like `localhost`, `zone` is the name itself.
    fn answer(&self, request: &Request, zone: &Name) -> Reply {
        let name = request.query.name();
        // The origin keeps the case of the query.
        let origin = name.trim_to(zone.iter().len());
        let is_apex = self.zones.all().contains(name);
        let has_addresses = *name == self.localhost || self.is_like_localhost(name);
        let answer = match request.query.query_type() {
            RecordType::A if has_addresses => Some(RData::A(Ipv4Addr::LOCALHOST.into())),
            RecordType::AAAA if has_addresses => Some(RData::AAAA(Ipv6Addr::LOCALHOST.into())),
            RecordType::SOA if is_apex => Some(RData::SOA(self.soa.clone())),
            RecordType::NS if is_apex => Some(RData::NS(NS(self.localhost.clone()))),
            RecordType::PTR if *name == self.loopback => Some(RData::PTR(PTR(self.localhost.clone()))),
            _ => None,
        };
        let mut reply = request.reply(NAME);
        if let Some(data) = answer {
            reply.records.answers.push(Record::from_rdata(name.clone(), TTL, data));
        } else {
            if !is_apex && !has_addresses && *name != self.loopback {
                reply.metadata.response_code = ResponseCode::NXDomain;
            }
            reply.records.authorities.push(Record::from_rdata(origin, TTL, RData::SOA(self.soa.clone())));
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    const SOA: &str = "604800 IN SOA localhost. root.localhost. 1 0 0 0 604800";

    #[tokio::test]
    async fn local_names_are_answered_and_other_names_pass() {
        let context = TestServer::block("local\nwhoami");
        let nodata = |owner: &str| format!("NOERROR | | {owner} {SOA} |");
        let nothing = |owner: &str| format!("NXDOMAIN | | {owner} {SOA} |");
        let answer = |record: &str| format!("NOERROR | {record} | |");
        for (question, expected) in [
            ("Localhost. A", answer("Localhost. 604800 IN A 127.0.0.1")),
            ("localhost. AAAA", answer("localhost. 604800 IN AAAA ::1")),
            ("localhost. SOA", answer(&format!("localhost. {SOA}"))),
            ("localhost. NS", answer("localhost. 604800 IN NS localhost.")),
            ("localhost. MX", nodata("localhost.")),
            ("a.b.localhost. A", answer("a.b.localhost. 604800 IN A 127.0.0.1")),
            ("*.localhost. A", answer("*.localhost. 604800 IN A 127.0.0.1")),
            ("*.localhost. MX", nodata("*.localhost.")),
            ("a.Localhost. SOA", nodata("a.Localhost.")),
            ("LocalHost.example.org. AAAA", answer("LocalHost.example.org. 604800 IN AAAA ::1")),
            ("localhost.example.org. MX", nodata("localhost.example.org.")),
            ("localhost.127.in-addr.arpa. A", answer("localhost.127.in-addr.arpa. 604800 IN A 127.0.0.1")),
            ("127.in-addr.arpa. A", nodata("127.in-addr.arpa.")),
            ("0.in-addr.arpa. NS", answer("0.in-addr.arpa. 604800 IN NS localhost.")),
            ("255.in-addr.arpa. SOA", answer(&format!("255.in-addr.arpa. {SOA}"))),
            ("1.0.0.127.in-addr.arpa. PTR", answer("1.0.0.127.in-addr.arpa. 604800 IN PTR localhost.")),
            ("1.0.0.127.in-addr.arpa. A", nodata("127.in-addr.arpa.")),
            ("2.0.0.127.In-Addr.arpa. PTR", nothing("127.In-Addr.arpa.")),
            ("255.255.255.255.in-addr.arpa. PTR", nothing("255.in-addr.arpa.")),
        ] {
            assert_eq!(context.ask(question).await, expected, "{question}");
        }
        for question in ["example.org. A", "localhosts.example.org. A", "a.localhost.example. A", ". A"] {
            assert!(context.ask(question).await.starts_with("NOERROR aa"), "{question}");
        }
        assert_eq!(context.metrics("coredns_local"), ["coredns_local_localhost_requests_total 7"]);
    }

    #[tokio::test]
    async fn localhost_prefix_off_passes_prefixed_names_to_next_plugin() {
        let context = TestServer::block("local {\nlocalhost_prefix off\n}\nwhoami");
        assert!(context.ask("localhost.example.org. A").await.starts_with("NOERROR aa"));
        for question in ["localhost. A", "a.localhost. A"] {
            assert!(context.ask(question).await.ends_with("604800 IN A 127.0.0.1 | |"), "{question}");
        }
        assert_eq!(context.metrics("coredns_local"), ["coredns_local_localhost_requests_total 1"]);
        let context = TestServer::block("local {\nlocalhost_prefix on\n}\nwhoami");
        assert!(context.ask("localhost.example.org. A").await.ends_with("127.0.0.1 | |"));
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("local x", "Corefile:2:7: local takes no arguments, and here is \"x\""),
            (
                "local {\nprefix\n}",
                "Corefile:3:1: local has no option \"prefix\"; its option is localhost_prefix",
            ),
            ("local {\nlocalhost_prefix\n}", "Corefile:3:1: localhost_prefix needs on or off"),
            ("local {\nlocalhost_prefix ON\n}", "Corefile:3:18: \"ON\" isn't on or off"),
            (
                "local {\nlocalhost_prefix on off\n}",
                "Corefile:3:21: localhost_prefix takes 1 argument at most, and here is \"off\"",
            ),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
