//! Who resolves everything else: `--upstream`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::str::FromStr;

use nix::net::if_::if_nametoindex;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::{ConfigError, DNS_PORT, Flags};
use crate::dns::forward::{Endpoint, TlsClient, Transport};
use crate::dns::tls;

/// The port of DNS over TLS (RFC 7858 section 3.1).
const TLS_PORT: u16 = 853;

/// One value of `--upstream`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamSpec {
    /// Nobody: names outside the zones are refused.
    None,
    /// A resolver.
    Server(SocketAddr),
    /// A resolver that is asked by TLS, and the name that it has to prove.
    Tls(SocketAddr, ServerName<'static>),
    /// A file like resolv.conf.
    File(PathBuf),
}

impl FromStr for UpstreamSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            Ok(Self::None)
        } else if let Some(ip) = bare_ip(text) {
            Ok(Self::Server(SocketAddr::new(ip, DNS_PORT)))
        } else if let Some(address) = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0) {
            Ok(Self::Server(address))
        } else if let Some(rest) = text.strip_prefix("tls://") {
            tls_server(rest).ok_or(
                "after tls:// comes an address, then % and the name in its certificate, then the port if it isn't \
                 853: tls://192.0.2.1%dns.example.com:853",
            )
        } else if text.contains("://") {
            Err("the only scheme is tls://; an address alone is asked by UDP and TCP")
        } else if text.contains('/') {
            Ok(Self::File(text.into()))
        } else {
            Err(
                "neither an address such as 192.0.2.1 or 192.0.2.1:53, nor a file's path with a slash in it, nor \
                 \"none\"",
            )
        }
    }
}

impl fmt::Display for UpstreamSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Server(address) => address.fmt(f),
            Self::Tls(address, name) if *name == ServerName::from(address.ip()) => {
                write!(f, "tls://{address}")
            }
            Self::Tls(address, name) => {
                let address = address.to_string();
                let (ip, port) = address.rsplit_once(':').unwrap_or((&address, ""));
                write!(f, "tls://{ip}%{}:{port}", name.to_str())
            }
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Flags {
    /// Returns the upstream resolvers; none with `--upstream none`.
    ///
    /// # Errors
    /// If a file can't be used, an upstream is one of our own listeners, or nobody is trusted.
    pub fn upstreams(&self) -> Result<Vec<Endpoint>, ConfigError> {
        let plain = |address| Endpoint { address, transport: Transport::Udp };
        let mut connector = None;
        let mut servers = Vec::new();
        for spec in &self.upstream {
            match spec {
                UpstreamSpec::None if self.upstream.len() > 1 => return Err(ConfigError::NoneAndOthers),
                UpstreamSpec::None => {}
                UpstreamSpec::Server(address) => servers.push(plain(*address)),
                UpstreamSpec::Tls(address, name) => {
                    let connector = match &connector {
                        Some(connector) => TlsConnector::clone(connector),
                        None => connector.insert(tls::connector(None)?).clone(),
                    };
                    let client = TlsClient { connector, name: name.clone() };
                    servers.push(Endpoint { address: *address, transport: Transport::Tls(client) });
                }
                UpstreamSpec::File(path) => {
                    let found = nameservers(path)
                        .map_err(|why| ConfigError::ResolvConf { path: path.clone(), why })?;
                    servers.extend(found.into_iter().map(plain));
                }
            }
        }
        for Endpoint { address, .. } in &servers {
            if let Some(listen) = self.listen.iter().find(|listen| reaches(**listen, *address)) {
                return Err(ConfigError::Ourselves { upstream: *address, listen: *listen });
            }
        }
        Ok(servers)
    }
}

/// Parses an address without a port; IPv6 may stand in brackets.
fn bare_ip(text: &str) -> Option<IpAddr> {
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match in_brackets {
        Some(text) => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Parses what follows `tls://`, as CoreDNS's `forward` writes it: `192.0.2.1%dns.example.com:853`.
fn tls_server(text: &str) -> Option<UpstreamSpec> {
    let (address, name) = if let Some((address, rest)) = text.split_once('%') {
        let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
        let port = port.map_or(Some(TLS_PORT), |port| port.parse().ok())?;
        (SocketAddr::new(bare_ip(address)?, port), ServerName::try_from(name.to_owned()).ok()?)
    } else {
        let without_port = || Some(SocketAddr::new(bare_ip(text)?, TLS_PORT));
        let address = text.parse().ok().or_else(without_port)?;
        (address, ServerName::from(address.ip()))
    };
    (address.port() != 0).then_some(UpstreamSpec::Tls(address, name))
}

/// Returns the name servers of a file like resolv.conf. As in resolv.conf(5), what isn't understood
/// is passed over.
fn nameservers(path: &PathBuf) -> Result<Vec<SocketAddr>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let servers: Vec<SocketAddr> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(|rest| nameserver(rest.split_whitespace().next()?))
        .collect();
    if servers.is_empty() { Err("it names no nameserver".to_owned()) } else { Ok(servers) }
}

/// Parses `192.0.2.1`, `2001:db8::1` or `fe80::1%eth0`.
fn nameserver(text: &str) -> Option<SocketAddr> {
    let (address, scope) =
        text.split_once('%').map_or((text, None), |(address, scope)| (address, Some(scope)));
    match (address.parse().ok()?, scope) {
        (IpAddr::V6(ip), Some(scope)) => {
            let scope = scope.parse().ok().or_else(|| if_nametoindex(scope).ok())?;
            Some(SocketAddrV6::new(ip, DNS_PORT, 0, scope).into())
        }
        (ip, _) => Some(SocketAddr::new(ip, DNS_PORT)),
    }
}

/// Whether what is sent to `upstream` arrives at `listen`.
fn reaches(listen: SocketAddr, upstream: SocketAddr) -> bool {
    let loopback = |ip: IpAddr| match ip.to_canonical() {
        // What is sent to no address in particular goes to this machine.
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (ours, theirs) = (listen.ip().to_canonical(), loopback(upstream.ip()));
    // Only an address of this machine can be bound.
    let local = || std::net::UdpSocket::bind((theirs, 0)).is_ok();
    listen.port() == upstream.port() && (ours == theirs || ours.is_unspecified() && local())
}
