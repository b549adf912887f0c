//! The addresses of this server, which the records of `ns.dns.<zone>` contain.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::LazyLock;

use tracing::warn;

use crate::dns::net::interfaces::interfaces;

/// The variables with the Pod's addresses: all of them, separated by commas (`status.podIPs`), or one.
const POD_IPS: [&str; 2] = ["POD_IPS", "POD_IP"];

/// Returns the addresses of a server that is bound to `bound`, sorted; an empty `bound` means all addresses.
pub(crate) fn of_this_server(bound: &[IpAddr]) -> Vec<IpAddr> {
    let mut bound: Vec<IpAddr> = bound.iter().map(IpAddr::to_canonical).collect();
    if bound.is_empty() {
        bound.push(Ipv6Addr::UNSPECIFIED.into());
    }
    choose(&bound, &POD_ADDRESSES, of_interfaces)
}

/// The addresses of the Pod. Each block asks for them, and a mistake is logged once.
static POD_ADDRESSES: LazyLock<Vec<IpAddr>> = LazyLock::new(|| {
    let value =
        |name: &&'static str| Some((*name, std::env::var(name).ok().filter(|text| !text.is_empty())?));
    POD_IPS.iter().find_map(value).map_or_else(Vec::new, |(name, text)| parse(name, &text))
});

fn parse(name: &str, text: &str) -> Vec<IpAddr> {
    let parse = |text: &str| {
        text.trim()
            .parse()
            .inspect_err(|_| warn!("{name}: {text:?} isn't an IP address, and is left out"))
            .ok()
    };
    text.split(',').filter(|text| !text.trim().is_empty()).filter_map(parse).collect()
}

/// Replaces an unspecified address by the Pod's addresses, or else by those of the host. Loopback addresses are left
/// out if there are other ones.
fn choose(bound: &[IpAddr], pod_ips: &[IpAddr], of_interfaces: impl Fn() -> Vec<IpAddr>) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in bound {
        let listened_to = |other: &IpAddr| ip.is_ipv6() || other.is_ipv4();
        let before = addresses.len();
        if ip.is_unspecified() {
            addresses.extend(pod_ips.iter().copied().filter(listened_to));
            if addresses.len() == before {
                addresses.extend(of_interfaces().into_iter().filter(listened_to));
            }
        } else {
            addresses.push(*ip);
        }
    }
    if addresses.iter().any(|ip| !ip.is_loopback()) {
        addresses.retain(|ip| !ip.is_loopback());
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Returns the addresses of the interfaces that are up, except link-local ones.
fn of_interfaces() -> Vec<IpAddr> {
    let interfaces = match interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            warn!("the addresses of this machine can't be read: {error}");
            return Vec::new();
        }
    };
    interfaces
        .into_iter()
        .filter(|interface| interface.is_up)
        .filter_map(|interface| interface.ip)
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split(' ').filter(|ip| !ip.is_empty()).map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_of_the_listener_else_pod_else_machine() {
        let machine = "127.0.0.1 10.0.0.5 ::1 2001:db8::5";
        for (bound, pod, machine, expected) in [
            ("192.0.2.53", "10.1.0.1", machine, "192.0.2.53"),
            ("127.0.0.1 ::1", "10.1.0.1", machine, "127.0.0.1 ::1"),
            ("127.0.0.1 192.0.2.53", "", machine, "192.0.2.53"),
            // A DNS cache on each node, such as NodeLocal DNSCache.
            ("169.254.20.10", "", machine, "169.254.20.10"),
            ("0.0.0.0", "10.1.0.1 2001:db8::1", machine, "10.1.0.1"),
            ("::", "10.1.0.1 2001:db8::1", machine, "10.1.0.1 2001:db8::1"),
            ("0.0.0.0", "2001:db8::1", machine, "10.0.0.5"),
            ("0.0.0.0", "", machine, "10.0.0.5"),
            ("::", "", machine, "10.0.0.5 2001:db8::5"),
            (":: 0.0.0.0 10.0.0.5", "", machine, "10.0.0.5 2001:db8::5"),
            (":: 127.0.0.1", "10.1.0.1", machine, "10.1.0.1"),
            ("::", "", "127.0.0.1 ::1", "127.0.0.1 ::1"),
            ("0.0.0.0", "", "127.0.0.1 ::1", "127.0.0.1"),
            ("0.0.0.0", "", "", ""),
        ] {
            let chosen = choose(&ips(bound), &ips(pod), || ips(machine));
            assert_eq!(chosen, ips(expected), "{bound} | {pod} | {machine}");
        }
    }

    #[test]
    fn invalid_pod_ips_are_ignored() {
        assert_eq!(parse("POD_IPS", "10.1.0.1, 2001:db8::1,,x"), ips("10.1.0.1 2001:db8::1"));
    }

    #[test]
    fn interfaces_have_loopback_but_no_unspecified_address() {
        let ips = of_interfaces();
        assert!(ips.iter().any(IpAddr::is_loopback), "{ips:?}");
        assert!(!ips.iter().any(IpAddr::is_unspecified), "{ips:?}");
    }
}
