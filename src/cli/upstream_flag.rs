//! `--upstream`: the resolvers for names outside the zones.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::ServerName;

use super::flags::{ConfigError, DNS_PORT, Flags};
use crate::dns::corefile::resolv_conf;
use crate::dns::server::config::is_own_listener;

/// The port of DNS over TLS (RFC 7858 section 3.1).
const TLS_PORT: u16 = 853;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamSpec {
    /// No resolver: names outside the zones are refused.
    None,
    Server(SocketAddr),
    /// A resolver that is reached by TLS, and the name that its certificate must have.
    Tls(SocketAddr, ServerName<'static>),
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
    /// Returns the resolvers that commands without listeners can ask by plain DNS.
    ///
    /// # Errors
    /// If a file can't be used.
    pub fn resolvers(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let plain = self.upstream.iter().filter(|spec| !matches!(spec, UpstreamSpec::Tls(..)));
        plain.map(addresses).collect::<Result<Vec<_>, _>>().map(|servers| servers.concat())
    }

    /// Returns the addresses of the upstream resolvers. There are none with `--upstream none`, or with a Corefile,
    /// which configures its own upstreams.
    ///
    /// # Errors
    /// If a file can't be used, if `none` stands beside other upstreams, or if an upstream is one of lb-linker's own
    /// listeners.
    pub fn upstreams(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        if self.corefile.is_some() {
            return Ok(Vec::new());
        }
        if self.upstream.len() > 1 && self.upstream.contains(&UpstreamSpec::None) {
            return Err(ConfigError::NoneAndOthers);
        }
        let servers = self.upstream.iter().map(addresses).collect::<Result<Vec<_>, _>>()?.concat();
        for upstream in &servers {
            if let Some(listen) = self.listen.iter().find(|listen| is_own_listener(**listen, *upstream)) {
                return Err(ConfigError::OwnListener { upstream: *upstream, listen: *listen });
            }
        }
        Ok(servers)
    }
}

fn addresses(spec: &UpstreamSpec) -> Result<Vec<SocketAddr>, ConfigError> {
    match spec {
        UpstreamSpec::None => Ok(Vec::new()),
        UpstreamSpec::Server(address) | UpstreamSpec::Tls(address, _) => Ok(vec![*address]),
        UpstreamSpec::File(path) => {
            nameservers(path).map_err(|why| ConfigError::ResolvConf { path: path.clone(), why })
        }
    }
}

/// Parses an address without a port; an IPv6 address may have brackets.
fn bare_ip(text: &str) -> Option<IpAddr> {
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match in_brackets {
        Some(text) => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Parses the text after `tls://`, in the syntax of CoreDNS's `forward`: `192.0.2.1%dns.example.com:853`.
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

/// Returns the name servers of a file like resolv.conf.
fn nameservers(path: &PathBuf) -> Result<Vec<SocketAddr>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let servers: Vec<SocketAddr> = resolv_conf::nameservers(&text).collect();
    if servers.is_empty() { Err("it names no nameserver".to_owned()) } else { Ok(servers) }
}
