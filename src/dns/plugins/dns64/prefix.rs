//! Prefixes of IPv6 addresses with an embedded IPv4 address (RFC 6052 section 2.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;
use ipnet::{IpNet, Ipv6Net};

use crate::dns::corefile::{CorefileError, Token};

pub(super) const WHAT: &str = "an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits, such as 64:ff9b::/96";
/// The octet that is 0 in all addresses with a prefix of at most 64 bits.
const ZERO_OCTET: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix(Ipv6Net);

impl Prefix {
    pub(super) const WELL_KNOWN: Self =
        Self(Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96));

    pub(super) fn parse(word: &Token) -> Result<Self, CorefileError> {
        let net: Ipv6Net = word.parse(WHAT)?;
        let is_length = matches!(net.prefix_len(), 32 | 40 | 48 | 56 | 64 | 96);
        if is_length { Ok(Self(net.trunc())) } else { Err(word.unexpected(WHAT)) }
    }

    /// Returns the IPv6 address that contains an IPv4 address.
    pub(super) fn embed(self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.0.addr().octets();
        for (at, octet) in self.places().zip(address.octets()) {
            octets[at] = octet;
        }
        octets.into()
    }

    /// Returns the name in `in-addr.arpa` of the IPv4 address in the IPv6 address whose reverse name this is; `None` if
    /// it isn't an address with this prefix.
    pub(super) fn reverse_name(self, name: &Name) -> Option<Name> {
        let IpNet::V6(net) = name.parse_arpa_name().ok()? else { return None };
        if net.prefix_len() < 128 || !self.0.contains(&net.addr()) {
            return None;
        }
        let octets = net.addr().octets();
        let mut address = [0; 4];
        for (at, octet) in self.places().zip(&mut address) {
            *octet = octets[at];
        }
        (self.embed(address.into()) == net.addr()).then(|| Name::from(IpAddr::V4(address.into())))
    }

    /// Returns the indices of the octets of the IPv4 address.
    fn places(self) -> impl Iterator<Item = usize> {
        (usize::from(self.0.prefix_len()) / 8..16).filter(|at| *at != ZERO_OCTET).take(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_embedded_as_in_rfc_6052() {
        // The table of section 2.4.
        for (prefix, expected) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let prefix = Prefix(prefix.parse().unwrap());
            let address: Ipv6Addr = expected.parse().unwrap();
            assert_eq!(prefix.embed([192, 0, 2, 33].into()), address, "{prefix:?}");
            let name = prefix.reverse_name(&Name::from(IpAddr::V6(address)));
            assert_eq!(name.unwrap().to_string(), "33.2.0.192.in-addr.arpa.", "{prefix:?}");
        }
    }

    #[test]
    fn other_names_have_no_embedded_address() {
        let prefix = Prefix("2001:db8::/32".parse().unwrap());
        for other in ["2001:db9::", "2001:db8:c000:221:100::", "2001:db8:c000:221::1"] {
            let name = Name::from(IpAddr::V6(other.parse().unwrap()));
            assert_eq!(prefix.reverse_name(&name), None, "{other}");
        }
        for other in ["8.b.d.0.1.0.0.2.ip6.arpa.", "33.2.0.192.in-addr.arpa.", "a.example."] {
            assert_eq!(prefix.reverse_name(&Name::from_ascii(other).unwrap()), None, "{other}");
        }
    }
}
