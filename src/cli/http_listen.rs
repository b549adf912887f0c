//! The addresses of the HTTP ports, each of which can be switched off.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::parsers::{listen, loopback_listen};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpListen {
    /// The port isn't opened.
    None,
    At(SocketAddr),
}

impl HttpListen {
    /// Returns the default of a port that probes and Prometheus ask: all addresses in a Pod. Elsewhere only this machine
    /// asks it.
    pub(crate) fn by_default(port: u16, in_pod: bool) -> Self {
        let ip = if in_pod { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::LOCALHOST.into() };
        Self::At(SocketAddr::new(ip, port))
    }

    /// Returns the address of the port; `None` if it isn't opened.
    #[must_use]
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::None => None,
            Self::At(address) => Some(address),
        }
    }
}

impl fmt::Display for HttpListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Parses an address like [`listen`], or `none`.
pub(crate) fn http_listen(text: &str) -> Result<HttpListen, &'static str> {
    const WRONG: &str = "not an address and port such as 127.0.0.1:9153, [::1]:9153 or :9153, nor \"none\"";
    if text == "none" { Ok(HttpListen::None) } else { listen(text).map(HttpListen::At).map_err(|_| WRONG) }
}

/// Parses a loopback address, or `none`.
pub(crate) fn loopback_http_listen(text: &str) -> Result<HttpListen, &'static str> {
    const WRONG: &str = "not a loopback address and port such as 127.0.0.1:8053 or [::1]:8053, nor \"none\"";
    if text == "none" {
        Ok(HttpListen::None)
    } else {
        loopback_listen(text).map(HttpListen::At).map_err(|_| WRONG)
    }
}
