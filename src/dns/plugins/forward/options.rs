//! Parses a `forward` line.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;
use tokio_rustls::TlsConnector;

use super::NAME;
use super::to::{AddressOrHost, Destination, destinations};
use crate::dns::corefile::{CorefileError, Directive, Position, Scheme, Token, addresses};
use crate::dns::message::presentation::parse_rcode;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::max_files;
use crate::dns::plugins::client_tls::ClientTls;
use crate::dns::plugins::setup::Setup;
use crate::dns::upstream::bootstrap::UpstreamAddr;
use crate::dns::upstream::config::{ForwardOptions, HealthCheck, PoolConfig};
use crate::dns::upstream::endpoint::Transport;
use crate::dns::upstream::http::{HttpClient, HttpFormat};
use crate::dns::upstream::metrics::ForwardMetrics;
use crate::dns::upstream::policy::SelectionPolicy;

/// The maximum number of upstreams of a line, as in CoreDNS.
pub(in crate::dns::plugins) const MAX_TO: usize = 15;
/// The lower and the upper bound of the default of `max_concurrent`.
const MAX_CONCURRENT: (usize, usize) = (1000, 10_000);

const OPTIONS: [&str; 21] = [
    "doh_method",
    "except",
    "expire",
    "failfast_all_unhealthy_upstreams",
    "failover",
    "force_tcp",
    "health_check",
    "max_age",
    "max_concurrent",
    "max_connect_attempts",
    "max_fails",
    "max_idle_conns",
    "next",
    "next_on_nodata",
    "policy",
    "prefer_udp",
    "read_timeout",
    "resolver",
    "source_address",
    "tls",
    "tls_servername",
];

pub(super) struct ParsedOptions {
    pub(super) from: Name,
    pub(super) to: Vec<UpstreamAddr>,
    pub(super) except: ZoneSet,
    pub(super) next: Vec<ResponseCode>,
    pub(super) next_on_nodata: bool,
    pub(super) resolvers: Vec<SocketAddr>,
    pub(super) options: ForwardOptions,
    /// The upstreams that are given by address, with their positions in the Corefile.
    pub(super) addresses: Vec<(SocketAddr, Position)>,
}

/// The options in braces during parsing.
struct OptionsParser {
    except: Vec<Name>,
    next: Vec<ResponseCode>,
    next_on_nodata: bool,
    resolvers: Vec<SocketAddr>,
    force_tcp: bool,
    doh_by_get: bool,
    tls: ClientTls,
    options: ForwardOptions,
}

/// Returns the default of `max_concurrent`: about the number of sockets for client queries (see
/// [`SocketBudget`](crate::dns::upstream::socket_budget::SocketBudget)). For targets of links, which have fewer
/// sockets, the number of sockets is the limit.
pub(in crate::dns::plugins) fn default_max_concurrent() -> usize {
    (max_files() / 4).clamp(MAX_CONCURRENT.0, MAX_CONCURRENT.1)
}

pub(super) fn parse(
    line: &Directive,
    setup: &mut Setup<'_>,
    metrics: Arc<ForwardMetrics>,
) -> Result<ParsedOptions, CorefileError> {
    let [from, to @ ..] = line.arguments() else {
        return Err(line.missing_argument("a zone, and the upstreams: forward . 192.0.2.1"));
    };
    let Some(first) = to.first() else {
        let text = &from.text;
        let address = text.split_once("://").map_or(&**text, |(_, address)| address);
        let is_upstream = address.parse::<IpAddr>().is_ok() || address.parse::<SocketAddr>().is_ok();
        let example = match is_upstream {
            true => format!("a zone before the upstream: forward . {text}"),
            false => format!("an upstream after the zone {text:?}: forward {text} 192.0.2.1"),
        };
        return Err(from.error(format!("forward needs {example}")));
    };
    if let Some(word) = to.get(MAX_TO) {
        return Err(
            word.error(format!("forward takes {MAX_TO} upstreams at most, and here are {}", to.len()))
        );
    }
    let mut parser = OptionsParser::new(setup, metrics);
    for option in line.options() {
        option.no_block()?;
        parser.take(option, setup)?;
    }
    let pool_config = parser.options.pool_config;
    if pool_config.age.is_some_and(|age| age < pool_config.idle) {
        return Err(line.error(format!(
            "max_age ({:?}) has to be at least as long as expire ({:?})",
            pool_config.age.unwrap_or_default(),
            pool_config.idle
        )));
    }
    let from = zone(from, setup)?;
    let (mut upstreams, mut addresses) = (Vec::new(), Vec::new());
    let (mut connector, mut seen) = (None, Vec::new());
    for word in to {
        for destination in destinations(word, setup)? {
            warn_of_another_way(&seen, &destination, word, setup);
            seen.push(destination.clone());
            if let AddressOrHost::Address(address) = destination.at {
                addresses.push((address, word.position.clone()));
            }
            upstreams.push(parser.upstream(destination, word, &mut connector)?);
        }
    }
    if upstreams.is_empty() {
        return Err(first.error(format!("{:?} has no line such as: nameserver 192.0.2.1", first.text)));
    }
    let OptionsParser { except, next, next_on_nodata, resolvers, options, .. } = parser;
    Ok(ParsedOptions {
        from,
        to: upstreams,
        except: ZoneSet::new(except),
        next,
        next_on_nodata,
        resolvers,
        options,
        addresses,
    })
}

/// Warns of an upstream that is left out, because an upstream before it has the same address or host and the same port.
fn warn_of_another_way(before: &[Destination], to: &Destination, word: &Token, setup: &mut Setup<'_>) {
    if before.iter().find(|other| other.at == to.at).is_some_and(|other| other != to) {
        setup.builder.warnings.push(word.error(format!(
            "{:?} isn't asked: an upstream before it has the same address and port, and is asked in another way",
            word.text
        )));
    }
}

/// Returns the zone to forward; as in CoreDNS, the first zone of a network that stands for several zones.
pub(in crate::dns::plugins) fn zone(word: &Token, setup: &mut Setup<'_>) -> Result<Name, CorefileError> {
    let zones = addresses(word)?;
    let [first, rest @ ..] = &zones[..] else { return Err(word.unexpected("a zone")) };
    if !rest.is_empty() {
        let (number, first) = (zones.len(), &first.zone);
        setup.builder.warnings.push(word.error(format!(
            "{:?} stands for {number} zones, and only {first} is forwarded, as by CoreDNS",
            word.text
        )));
    }
    Ok(first.zone.clone())
}

impl OptionsParser {
    fn new(setup: &Setup<'_>, metrics: Arc<ForwardMetrics>) -> Self {
        let options = ForwardOptions {
            max_concurrent: default_max_concurrent(),
            sockets: Arc::clone(&setup.context.upstream_sockets),
            metrics: Some(metrics),
            ..ForwardOptions::default()
        };
        Self {
            except: Vec::new(),
            next: Vec::new(),
            next_on_nodata: false,
            resolvers: Vec::new(),
            force_tcp: false,
            doh_by_get: false,
            tls: ClientTls::default(),
            options,
        }
    }

    fn take(&mut self, line: &Directive, setup: &mut Setup<'_>) -> Result<(), CorefileError> {
        let options = &mut self.options;
        match line.name() {
            "except" => {
                for word in line.required_arguments("zones")? {
                    self.except.extend(addresses(word)?.into_iter().map(|address| address.zone));
                }
            }
            "force_tcp" => {
                line.no_arguments()?;
                self.force_tcp = true;
            }
            "prefer_udp" => {
                line.no_arguments()?;
                options.prefer_udp = true;
            }
            "expire" => options.pool_config.idle = duration(line)?,
            "max_age" => options.pool_config.age = Some(duration(line)?).filter(|age| !age.is_zero()),
            "max_idle_conns" => {
                options.pool_config.max_idle_connections = max_idle(line)?;
            }
            "read_timeout" => options.read_timeout = read_timeout(line)?,
            "max_fails" => options.max_fails = number(line)?,
            "max_connect_attempts" => options.max_attempts = Some(number::<u32>(line)? as usize),
            "max_concurrent" => {
                let number: usize = number(line)?;
                options.max_concurrent = if number == 0 { default_max_concurrent() } else { number };
            }
            "tls" => self.tls.take(line, setup)?,
            "tls_servername" => self.tls.take_name(line)?,
            "policy" => options.policy = policy(line)?,
            "health_check" => options.health_check = health_check(line)?,
            "next" => self.next.extend(rcodes(line)?),
            "next_on_nodata" => {
                line.no_arguments()?;
                self.next_on_nodata = true;
            }
            "failfast_all_unhealthy_upstreams" => {
                line.no_arguments()?;
                options.fail_fast = true;
            }
            "failover" => options.failover.extend(failover(line)?),
            "source_address" => {
                options.source =
                    Some(line.single_argument("an address of this machine")?.parse("an IP address")?);
            }
            "resolver" => {
                self.resolvers =
                    line.required_arguments("addresses")?.iter().map(resolver).collect::<Result<_, _>>()?;
            }
            "doh_method" => self.doh_by_get = is_get(line)?,
            _ => return Err(line.unknown(NAME, &OPTIONS)),
        }
        Ok(())
    }

    fn upstream(
        &self,
        destination: Destination,
        word: &Token,
        connector: &mut Option<TlsConnector>,
    ) -> Result<UpstreamAddr, CorefileError> {
        let Destination { scheme, at, server_name, path } = destination;
        let transport = match scheme {
            Scheme::Tls => Transport::Tls(self.tls.client(server_name, word, connector)?),
            Scheme::Https => {
                let host = match &at {
                    AddressOrHost::Host(host, _) => Some(host.trim_end_matches('.')),
                    AddressOrHost::Address(_) => None,
                };
                let (tls, host) = self.tls.http_client(server_name, host, word, connector)?;
                let format = HttpFormat::Dns { path, by_get: self.doh_by_get };
                Transport::Http(HttpClient { tls: Some(tls), host, format })
            }
            _ if self.force_tcp => Transport::Tcp,
            _ => Transport::Udp,
        };
        Ok(match at {
            AddressOrHost::Address(address) => UpstreamAddr::Address(address, transport),
            AddressOrHost::Host(host, port) => UpstreamAddr::Host(host, port, transport),
        })
    }
}

/// Parses `doh_method`.
fn is_get(line: &Directive) -> Result<bool, CorefileError> {
    const METHODS: &str = "GET or POST";
    let word = line.single_argument(METHODS)?;
    match &*word.text {
        "GET" => Ok(true),
        "POST" => Ok(false),
        _ => Err(word.unexpected(METHODS)),
    }
}

fn duration(line: &Directive) -> Result<Duration, CorefileError> {
    line.single_argument("a duration such as 10s")?.duration()
}

fn number<N: std::str::FromStr>(line: &Directive) -> Result<N, CorefileError> {
    line.single_argument("a number")?.parse("a number from 0 on")
}

/// Returns the maximum number of idle connections.
fn max_idle(line: &Directive) -> Result<usize, CorefileError> {
    let number = number(line)?;
    Ok(if number == 0 { PoolConfig::default().max_idle_connections } else { number })
}

fn read_timeout(line: &Directive) -> Result<Duration, CorefileError> {
    let timeout = duration(line)?;
    if timeout.is_zero() {
        return Err(line.arguments()[0].error("read_timeout has to be longer than 0"));
    }
    Ok(timeout)
}

pub(in crate::dns::plugins) fn policy(line: &Directive) -> Result<SelectionPolicy, CorefileError> {
    let word = line.single_argument("random, round_robin or sequential")?;
    match &*word.text {
        "random" => Ok(SelectionPolicy::Random),
        "round_robin" => Ok(SelectionPolicy::RoundRobin),
        "sequential" => Ok(SelectionPolicy::Sequential),
        _ => Err(word.unexpected("a policy: random, round_robin or sequential")),
    }
}

fn rcodes(line: &Directive) -> Result<Vec<ResponseCode>, CorefileError> {
    let code = |word: &Token| {
        parse_rcode(&word.text.to_ascii_uppercase())
            .ok_or_else(|| word.unexpected("a response code such as NXDOMAIN or SERVFAIL"))
    };
    line.required_arguments("response codes")?.iter().map(code).collect()
}

fn failover(line: &Directive) -> Result<Vec<ResponseCode>, CorefileError> {
    let codes = rcodes(line)?;
    match codes.iter().position(|code| *code == ResponseCode::NoError) {
        Some(at) => Err(line.arguments()[at].error("failover can't name NOERROR, which isn't an error")),
        None => Ok(codes),
    }
}

/// Parses `health_check DURATION [no_rec] [domain NAME]`.
fn health_check(line: &Directive) -> Result<HealthCheck, CorefileError> {
    let [pause, rest @ ..] = line.arguments() else {
        return Err(line.missing_argument("a duration such as 500ms"));
    };
    let mut wanted = HealthCheck { pause: pause.duration()?, ..HealthCheck::default() };
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match &*word.text {
            "no_rec" => wanted.recursion_desired = false,
            "domain" => {
                let name = rest.next().ok_or_else(|| word.error("domain needs a name"))?;
                let mut domain =
                    Name::from_ascii(&name.text).map_err(|_| name.unexpected("a domain name"))?;
                domain.set_fqdn(true);
                wanted.domain = domain;
            }
            _ => return Err(word.unexpected("an option of health_check: no_rec, or domain and a name")),
        }
    }
    Ok(wanted)
}

/// Parses `IP` or `IP:PORT`.
fn resolver(word: &Token) -> Result<SocketAddr, CorefileError> {
    let bare = || word.text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, Scheme::Dns.port()));
    word.text
        .parse()
        .or_else(|_| bare())
        .map_err(|_| word.unexpected("an address such as 192.0.2.1 or 192.0.2.1:53"))
}
