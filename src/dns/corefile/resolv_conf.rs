//! Parses resolv.conf files.

use std::net::{SocketAddr, SocketAddrV6};

use nix::net::if_::if_nametoindex;

use super::Scheme;

/// Returns the name servers of a resolv.conf file. Unknown lines and invalid addresses are ignored, as in glibc.
pub fn nameservers(text: &str) -> impl Iterator<Item = SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(|rest| nameserver(rest.split_whitespace().next()?))
}

/// Parses `192.0.2.1`, `2001:db8::1` or `fe80::1%eth0`.
fn nameserver(text: &str) -> Option<SocketAddr> {
    let port = Scheme::Dns.port();
    match text.split_once('%') {
        None => Some(SocketAddr::new(text.parse().ok()?, port)),
        Some((ip, zone)) => Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, scope(zone)?).into()),
    }
}

/// Returns the index of a network interface from the index or the name.
pub(crate) fn scope(zone: &str) -> Option<u32> {
    zone.parse().ok().or_else(|| if_nametoindex(zone).ok())
}
