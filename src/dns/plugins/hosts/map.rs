//! Parses the lines of a hosts file.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use hickory_proto::rr::Name;

use crate::dns::message::presentation::parse_name;
use crate::dns::message::query::wire_name;
use crate::dns::message::zone_set::ZoneSet;

#[derive(Debug, Default)]
pub(super) struct HostsMap {
    /// The addresses by name, in wire form and lower case; the IPv4 map comes first.
    names: [HashMap<Box<[u8]>, Vec<IpAddr>>; 2],
    /// The addresses of `*.NAME`, by `NAME`.
    wildcards: [HashMap<Box<[u8]>, Vec<IpAddr>>; 2],
    addresses: HashMap<IpAddr, Vec<Name>>,
}

impl HostsMap {
    /// Parses lines. Malformed lines are ignored, as other readers of such files do. With `reverse`, addresses get PTR
    /// records.
    pub(super) fn parse(text: &str, zones: &ZoneSet, reverse: bool) -> Self {
        let mut map = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(address) = words.next().and_then(address) else { continue };
            for name in words.filter_map(parse_name) {
                if zones.contains(&name) {
                    map.add(address, &name.to_lowercase(), reverse);
                }
            }
        }
        map
    }

    fn add(&mut self, address: IpAddr, name: &Name, reverse: bool) {
        let family = usize::from(address.is_ipv6());
        if name.is_wildcard() {
            let below = wire_name(&name.base_name());
            self.wildcards[family].entry(below).or_default().push(address);
            return;
        }
        self.names[family].entry(wire_name(name)).or_default().push(address);
        if reverse {
            self.addresses.entry(address).or_default().push(name.clone());
        }
    }

    /// Returns the addresses of a name in wire form. For each family, the name's own addresses take precedence over the
    /// wildcard's.
    pub(super) fn addresses(&self, name: &[u8]) -> impl Iterator<Item = IpAddr> {
        let above = name.split_first().and_then(|(length, labels)| labels.get(usize::from(*length)..));
        let families = self.names.iter().zip(&self.wildcards);
        families
            .filter_map(move |(names, wildcards)| names.get(name).or_else(|| wildcards.get(above?)))
            .flatten()
            .copied()
    }

    pub(super) fn names(&self, address: IpAddr) -> &[Name] {
        self.addresses.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of entries, in both directions.
    pub(super) fn len(&self) -> usize {
        let forward = self.names.iter().chain(&self.wildcards).flat_map(HashMap::values).map(Vec::len);
        forward.sum::<usize>() + self.addresses.values().map(Vec::len).sum::<usize>()
    }
}

/// Parses an address, and drops its zone (`%eth0`), which is only valid on this machine (RFC 4007 section 11).
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.split('%').next()?.parse().ok()?;
    Some(address.to_canonical())
}

/// Returns the address that a reverse name stands for (RFC 1035 section 3.5, RFC 3596 section 2.5).
pub(super) fn address_of(name: &Name) -> Option<IpAddr> {
    let address = name.parse_arpa_name().ok()?.addr();
    // `01` parses as a number, too, and an incomplete name stands for a network.
    let canonical = |ip: IpAddr| Name::from(ip) == *name;
    let mapped = |ip: Ipv6Addr| IpAddr::V6(ip).to_canonical();
    match address {
        IpAddr::V4(_) => canonical(address).then_some(address),
        IpAddr::V6(ip) => canonical(address).then(|| mapped(ip)),
    }
}
