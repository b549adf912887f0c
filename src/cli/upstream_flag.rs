//! The values of `--upstream`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::ServerName;

/// The port of DNS (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;
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
