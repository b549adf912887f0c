//! Names of reverse zones: `in-addr.arpa` (RFC 1035 section 3.5) and `ip6.arpa` (RFC 3596 section 2.5).

use hickory_proto::rr::Name;
use ipnet::IpNet;

/// Splits a network into networks that are each a whole reverse zone.
pub(crate) fn split(net: IpNet) -> impl Iterator<Item = IpNet> {
    let length = net.prefix_len().next_multiple_of(label_bits(net));
    // `length` is at least the network's prefix length and at most the length of an address.
    net.trunc().subnets(length).into_iter().flatten()
}

/// Returns the reverse name of a network; its prefix must end at a label boundary.
pub(crate) fn reverse_name(net: IpNet) -> Name {
    let labels = net.prefix_len() / label_bits(net);
    // The first two labels are those of `in-addr.arpa` or `ip6.arpa`.
    Name::from(net.addr()).trim_to(2 + usize::from(labels))
}

/// Returns the number of address bits in one label: an octet, or a hexadecimal digit.
fn label_bits(net: IpNet) -> u8 {
    match net {
        IpNet::V4(_) => 8,
        IpNet::V6(_) => 4,
    }
}

pub(crate) fn is_address(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// Returns whether a zone is a reverse zone, or has all of them.
pub(crate) fn is_reverse(zone: &Name) -> bool {
    let text = format!(".{}", zone.to_ascii());
    text == ".arpa." || [".in-addr.arpa.", ".ip6.arpa."].iter().any(|arpa| text.ends_with(arpa))
}

/// Returns the origins of the reverse zones of a network: several zones if the prefix ends inside a label.
pub fn reverse_origins(net: IpNet) -> impl Iterator<Item = Name> {
    split(net).map(reverse_name)
}
