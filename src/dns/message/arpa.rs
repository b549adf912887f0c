//! Names of the zones of addresses: `in-addr.arpa` (RFC 1035 section 3.5) and `ip6.arpa` (RFC 3596 section 2.5).

use hickory_proto::rr::Name;
use ipnet::IpNet;

/// Returns the networks that a network consists of, each of which is a whole reverse zone.
pub(crate) fn split(net: IpNet) -> impl Iterator<Item = IpNet> {
    let length = net.prefix_len().next_multiple_of(label_bits(net));
    // It is neither shorter than the network's own nor longer than an address.
    net.trunc().subnets(length).into_iter().flatten()
}

/// Returns the name that stands for a network whose prefix ends where a label does.
pub(crate) fn arpa(net: IpNet) -> Name {
    let labels = net.prefix_len() / label_bits(net);
    // Below `in-addr.arpa` and `ip6.arpa`.
    Name::from(net.addr()).trim_to(2 + usize::from(labels))
}

/// How many bits of an address one label stands for: an octet, or a hexadecimal digit.
fn label_bits(net: IpNet) -> u8 {
    match net {
        IpNet::V4(_) => 8,
        IpNet::V6(_) => 4,
    }
}

pub(crate) fn is_address(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// Returns the origins of the reverse zones that a network consists of: several, where its prefix ends in the
/// middle of a label.
pub fn reverse_origins(net: IpNet) -> impl Iterator<Item = Name> {
    split(net).map(arpa)
}
