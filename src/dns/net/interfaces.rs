//! The network interfaces of this host, and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub is_up: bool,
    /// The address; `None` for an interface without an address.
    pub ip: Option<IpAddr>,
}

/// Returns all interfaces, with one item for each address.
///
/// # Errors
/// If the interfaces can't be listed.
pub fn interfaces() -> nix::Result<Vec<Interface>> {
    let interface = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address.as_ref();
        let ipv4 = address.and_then(|address| address.as_sockaddr_in()).map(|address| address.ip().into());
        let ipv6 =
            || address.and_then(|address| address.as_sockaddr_in6()).map(|address| address.ip().into());
        let is_up = found.flags.contains(InterfaceFlags::IFF_UP);
        let ip = ipv4.or_else(ipv6);
        Interface { name: found.interface_name, is_up, ip }
    };
    Ok(getifaddrs()?.map(interface).collect())
}

#[must_use]
pub fn is_own(ip: IpAddr) -> bool {
    // All of 127.0.0.0/8 is local, but the interfaces list only one address of it.
    ip.is_loopback() || interfaces().is_ok_and(|all| all.iter().any(|interface| interface.ip == Some(ip)))
}

/// Returns whether packets for `upstream` arrive at `listen`.
#[must_use]
pub fn is_own_listener(listen: SocketAddr, upstream: SocketAddr) -> bool {
    let loopback = |ip: IpAddr| match ip.to_canonical() {
        // The kernel sends packets for the unspecified address to the local host.
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (ours, theirs) = (listen.ip().to_canonical(), loopback(upstream.ip()));
    let of_all = ours.is_unspecified() && (ours.is_ipv6() || theirs.is_ipv4());
    listen.port() == upstream.port() && (ours == theirs || of_all && is_own(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_at_own_listener_is_recognized() {
        for (listen, upstream, expected) in [
            ("[::]:53", "127.0.0.1:53", true),
            ("[::]:53", "0.0.0.0:53", true),
            ("0.0.0.0:53", "127.0.0.1:53", true),
            ("0.0.0.0:53", "[::1]:53", false),
            ("[::]:53", "127.0.0.1:54", false),
            ("[::]:53", "192.0.2.1:53", false),
            ("127.0.0.1:53", "127.0.0.2:53", false),
        ] {
            assert_eq!(
                is_own_listener(listen.parse().unwrap(), upstream.parse().unwrap()),
                expected,
                "{listen} {upstream}"
            );
        }
    }
}
