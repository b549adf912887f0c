//! Who resolves everything else: `--upstream`.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::str::FromStr;

use nix::net::if_::if_nametoindex;

use super::{ConfigError, DNS_PORT, Flags};

/// One value of `--upstream`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamSpec {
    /// Nobody: names outside the zones are refused.
    None,
    /// A resolver.
    Server(SocketAddr),
    /// A file like resolv.conf.
    File(PathBuf),
}

impl FromStr for UpstreamSpec {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            Ok(Self::None)
        } else if let Ok(ip) = text.parse::<IpAddr>() {
            Ok(Self::Server(SocketAddr::new(ip, DNS_PORT)))
        } else if let Some(address) = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0) {
            Ok(Self::Server(address))
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
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Flags {
    /// Returns the addresses of the upstream resolvers; none with `--upstream none`.
    ///
    /// # Errors
    /// If a file can't be used, or an upstream is one of our own listeners.
    pub fn upstreams(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let mut servers = Vec::new();
        for spec in &self.upstream {
            match spec {
                UpstreamSpec::None if self.upstream.len() > 1 => return Err(ConfigError::NoneAndOthers),
                UpstreamSpec::None => {}
                UpstreamSpec::Server(server) => servers.push(*server),
                UpstreamSpec::File(path) => servers.extend(
                    nameservers(path).map_err(|why| ConfigError::ResolvConf { path: path.clone(), why })?,
                ),
            }
        }
        for upstream in &servers {
            if let Some(listen) = self.listen.iter().find(|listen| reaches(**listen, *upstream)) {
                return Err(ConfigError::Ourselves { upstream: *upstream, listen: *listen });
            }
        }
        Ok(servers)
    }
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
    let (ours, theirs) = (listen.ip().to_canonical(), upstream.ip().to_canonical());
    // Only an address of this machine can be bound.
    let local = || std::net::UdpSocket::bind((theirs, 0)).is_ok();
    listen.port() == upstream.port() && (ours == theirs || ours.is_unspecified() && local())
}
