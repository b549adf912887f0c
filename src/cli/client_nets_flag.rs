//! The clients for which names outside the zones are resolved: `--client-nets`.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;

use super::parsers::net;

/// The default: RFC 1918, shared address space (RFC 6598), benchmarking (RFC 2544), link-local, loopback, unique local
/// (RFC 4193). Attackers abuse open resolvers on the Internet for reflection attacks (RFC 5358).
pub(crate) const PRIVATE_NETS: &str = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,198.18.0.0/15,\
                                       169.254.0.0/16,127.0.0.0/8,fc00::/7,fe80::/10,::1/128";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNet {
    Any,
    Net(IpNet),
}

impl FromStr for ClientNet {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "any" {
            return Ok(Self::Any);
        }
        net(text)
            .map(Self::Net)
            .map_err(|_| "not a network such as 192.0.2.0/24 or 2001:db8::/32, nor \"any\"")
    }
}

impl fmt::Display for ClientNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Net(net) => net.fmt(f),
        }
    }
}
