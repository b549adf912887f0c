//! Addresses that are denied as targets by default: those of the client itself, of all hosts of a network (multicast
//! and broadcast), or of a cloud's metadata service, which returns credentials.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Denied IPv4 networks, each with a description. More specific networks come first.
const IPV4: [(Ipv4Net, &str); 8] = [
    // RFC 1122 section 3.2.1.3.
    (ipv4([0, 0, 0, 0], 32), "unspecified"),
    (ipv4([0, 0, 0, 0], 8), "\"this network\""),
    (ipv4([127, 0, 0, 0], 8), "loopback"),
    (ipv4([169, 254, 0, 0], 16), "link-local"),
    (ipv4([224, 0, 0, 0], 4), "multicast"),
    (ipv4([255, 255, 255, 255], 32), "broadcast"),
    // Azure and Alibaba. Most other clouds use link-local addresses.
    (ipv4([168, 63, 129, 16], 32), CLOUD),
    (ipv4([100, 100, 100, 200], 32), CLOUD),
];

/// Denied IPv6 networks, each with a description.
const IPV6: [(Ipv6Net, &str); 7] = [
    (ipv6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (ipv6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    // RFC 4291 section 2.5.5.1.
    (ipv6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible"),
    (ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (ipv6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
    // AWS and Google.
    (ipv6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), CLOUD),
    (ipv6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), CLOUD),
];

const CLOUD: &str = "cloud metadata";

/// NAT64 prefixes (RFC 6052 section 2.1, RFC 8215). The last 32 bits of an address are read as the IPv4 address: the
/// form for prefixes of 96 bits (RFC 6052 section 2.2).
const NAT64: [Ipv6Net; 2] =
    [ipv6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96), ipv6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48)];
/// The 6to4 prefix, which is followed by the 32 bits of an IPv4 address (RFC 3056 section 2).
const SIX_TO_FOUR: Ipv6Net = ipv6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);

const fn ipv4([a, b, c, d]: [u8; 4], length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length)
}

const fn ipv6([a, b, c, d, e, f, g, h]: [u16; 8], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length)
}

/// Returns the description of a canonical address that is denied; `None` if it is in no denied network. Doesn't check
/// an embedded address.
pub(super) fn denied_kind(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(ip) => IPV4.iter().find(|(net, _)| net.contains(&ip)).map(|(_, kind)| *kind),
        IpAddr::V6(ip) => IPV6.iter().find(|(net, _)| net.contains(&ip)).map(|(_, kind)| *kind),
    }
}

/// Returns the IPv4 address that a canonical address reaches through a translator or a tunnel.
pub(super) fn embedded(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else { return None };
    let octets = ip.octets();
    let at = if NAT64.iter().any(|net| net.contains(&ip)) {
        12
    } else if SIX_TO_FOUR.contains(&ip) {
        2
    } else {
        return None;
    };
    let ipv4: [u8; 4] = *octets.get(at..)?.first_chunk()?;
    Some(IpAddr::V4(ipv4.into()))
}
