//! Looks up the kernel's routes to find the interface that reaches an address without a router.

use std::io;
use std::net::IpAddr;

use super::netlink::{Attributes, Netlink, attribute, message, messages, u32_at};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTN_UNICAST: u8 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// The address of a router, in the family of the route or in another one.
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
/// The size of `struct rtmsg`, in bytes.
const ROUTE: usize = 12;

/// Returns the index of the interface for packets to an address, if no router is in between. The kernel looks up one
/// route, and takes no lock on the network configuration (Linux 4.14 and later).
///
/// # Errors
/// If the kernel doesn't answer.
pub(super) fn direct_interface(kernel: &Netlink, address: IpAddr) -> io::Result<Option<u32>> {
    let (family, destination) = match address {
        IpAddr::V4(ipv4) => (nix::libc::AF_INET, ipv4.octets().to_vec()),
        IpAddr::V6(ipv6) => (nix::libc::AF_INET6, ipv6.octets().to_vec()),
    };
    let mut question = vec![family as u8, 8 * destination.len() as u8];
    question.resize(ROUTE, 0);
    question.extend(attribute(RTA_DST, &destination));
    kernel.send(&message(RTM_GETROUTE, 0, &question))?;
    let answer = kernel.receive()?;
    let route = messages(&answer).find(|(kind, _)| *kind == RTM_NEWROUTE);
    Ok(route.and_then(|(_, route)| interface(route)))
}

/// Parses a `struct rtmsg` and its attributes.
fn interface(route: &[u8]) -> Option<u32> {
    let attributes = || Attributes(route.get(ROUTE..).unwrap_or_default());
    let is_direct = !attributes().any(|(kind, _)| matches!(kind, RTA_GATEWAY | RTA_VIA));
    let (_, interface) = attributes().find(|(kind, _)| *kind == RTA_OIF)?;
    u32_at(interface, 0).filter(|_| is_direct && route.get(7) == Some(&RTN_UNICAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_address_has_no_direct_interface() {
        let kernel = Netlink::open().unwrap();
        for _ in 0..2 {
            assert_eq!(direct_interface(&kernel, IpAddr::from([127, 0, 0, 1])).unwrap(), None);
        }
    }

    #[test]
    fn route_through_a_router_isnt_direct() {
        let route = |kind: u8, attributes: &[u8]| {
            let fixed = [&[2, 32, 0, 0, 254, 0, 0, kind][..], &[0; 4]].concat();
            interface(&[&fixed, attributes].concat())
        };
        let leaves = attribute(RTA_OIF, &7_u32.to_ne_bytes());
        let router = attribute(RTA_GATEWAY, &[192, 0, 2, 1]);
        assert_eq!(route(RTN_UNICAST, &leaves), Some(7));
        assert_eq!(route(RTN_UNICAST, &[leaves.clone(), router].concat()), None);
        // RTN_LOCAL.
        assert_eq!(route(2, &leaves), None);
        for cut in 0..ROUTE + leaves.len() {
            let whole = [&[0; ROUTE][..], &leaves].concat();
            assert_eq!(interface(&whole[..cut]), None);
        }
    }
}
