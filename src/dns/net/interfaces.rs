//! The network interfaces of this host, and their addresses.

use std::net::IpAddr;

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
