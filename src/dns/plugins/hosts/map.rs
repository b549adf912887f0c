//! What the lines of a hosts file say.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use hickory_proto::rr::Name;

use crate::dns::message::presentation::parse_name;
use crate::dns::message::query::wire_name;
use crate::dns::message::zone_set::ZoneSet;

/// Names by address, and addresses by name.
#[derive(Debug, Default)]
pub(super) struct HostsMap {
    /// By name, in wire form and lower case.
    names: [HashMap<Box<[u8]>, Vec<IpAddr>>; 2],
    /// The same of `*.NAME`, without the asterisk.
    wildcards: [HashMap<Box<[u8]>, Vec<IpAddr>>; 2],
    addresses: HashMap<IpAddr, Vec<Name>>,
}

impl HostsMap {
    /// Reads lines. Malformed lines are left out, as by other readers of such files.
    pub(super) fn parse(text: &str, zones: &ZoneSet, reverse: bool) -> Self {
        let mut map = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(address) = words.next().and_then(address) else { continue };
            for name in words.filter_map(parse_name) {
                if zones.hold(&name) {
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

    /// Returns the addresses of a name, in wire form: its own, or else those of the asterisk in its place, family
    /// by family.
    pub(super) fn addresses(&self, name: &[u8]) -> impl Iterator<Item = IpAddr> {
        let above = name.split_first().and_then(|(length, labels)| labels.get(usize::from(*length)..));
        let families = self.names.iter().zip(&self.wildcards);
        families
            .filter_map(move |(names, wildcards)| names.get(name).or_else(|| wildcards.get(above?)))
            .flatten()
            .copied()
    }

    /// Returns the names of an address.
    pub(super) fn names(&self, address: IpAddr) -> &[Name] {
        self.addresses.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Returns how many entries there are, in both directions.
    pub(super) fn len(&self) -> usize {
        let forward = self.names.iter().chain(&self.wildcards).flat_map(HashMap::values).map(Vec::len);
        forward.sum::<usize>() + self.addresses.values().map(Vec::len).sum::<usize>()
    }
}

/// Reads an address; the zone of an IPv6 address is of no use to others (RFC 4007 section 11).
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.split('%').next()?.parse().ok()?;
    Some(address.to_canonical())
}

/// Returns the address that a name in a reverse zone stands for (RFC 1035 section 3.5, RFC 3596 section 2.5).
pub(super) fn address_of(name: &Name) -> Option<IpAddr> {
    let address = name.parse_arpa_name().ok()?.addr();
    // `01` is a number, too, and half a name stands for a network.
    let canonical = |ip: IpAddr| Name::from(ip) == *name;
    let mapped = |ip: Ipv6Addr| IpAddr::V6(ip).to_canonical();
    match address {
        IpAddr::V4(_) => canonical(address).then_some(address),
        IpAddr::V6(ip) => canonical(address).then(|| mapped(ip)),
    }
}
