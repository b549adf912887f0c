//! Whose questions about names outside the zones are answered.

use std::net::IpAddr;

use ipnet::{Ipv4Net, Ipv6Net};

/// RFC 1918, shared address space (RFC 6598), benchmarking (RFC 2544), link-local, loopback.
const PRIVATE_V4: [(u32, u8); 7] = [
    (0x0a00_0000, 8),
    (0xac10_0000, 12),
    (0xc0a8_0000, 16),
    (0x6440_0000, 10),
    (0xc612_0000, 15),
    (0xa9fe_0000, 16),
    (0x7f00_0000, 8),
];

/// Unique local (RFC 4193), link-local, loopback.
const PRIVATE_V6: [(u128, u8); 3] = [(0xfc00 << 112, 7), (0xfe80 << 112, 10), (1, 128)];

/// Returns whether `client` may recurse: an open resolver on the Internet is a weapon (RFC 5358).
#[must_use]
pub fn may_recurse(client: IpAddr) -> bool {
    match client.to_canonical() {
        IpAddr::V4(ip) => PRIVATE_V4
            .iter()
            .any(|(net, length)| Ipv4Net::new((*net).into(), *length).is_ok_and(|net| net.contains(&ip))),
        IpAddr::V6(ip) => PRIVATE_V6
            .iter()
            .any(|(net, length)| Ipv6Net::new((*net).into(), *length).is_ok_and(|net| net.contains(&ip))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_clients_may_recurse_and_others_not() {
        for (client, expected) in [
            ("10.1.2.3", true),
            ("172.31.255.255", true),
            ("172.32.0.1", false),
            ("192.168.0.1", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("198.19.0.1", true),
            ("169.254.20.10", true),
            ("127.0.0.53", true),
            ("192.0.2.1", false),
            ("::1", true),
            ("::2", false),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:192.0.2.1", false),
        ] {
            assert_eq!(may_recurse(client.parse().unwrap()), expected, "{client}");
        }
    }
}
