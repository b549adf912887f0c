//! Reverse zones: which links an address leads back to (RFC 1035 section 3.5, RFC 3596 section 2.5).

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::Node;
use super::link_names::Forward;
use crate::store::Store;

/// Which names stand in a reverse zone.
#[derive(Clone, Debug)]
pub(super) struct Reverse {
    /// The network. Its prefix ends where a label does.
    net: IpNet,
    /// The zone that its pointers lead into.
    first: Forward,
}

impl Reverse {
    pub(super) fn new(net: IpNet, first: Forward) -> Self {
        Self { net, first }
    }

    /// Returns the zone that the pointers lead into.
    pub(super) fn first(&self) -> &Forward {
        &self.first
    }

    /// Returns what there is at a name, given also as the part below the origin.
    pub(super) fn find(&self, store: &Store, name: &Name, relative: &[u8]) -> Node {
        if relative.is_empty() {
            // Of a single address its zone has nothing but the apex.
            let links = if is_address(self.net) { store.links_at(self.net.addr()) } else { Vec::new() };
            return Node::Apex(links);
        }
        // `01` and `+1` are numbers, but not the labels of one.
        let Some(net) = name.parse_arpa_name().ok().filter(|net| arpa(*net) == *name) else {
            return Node::Reserved { exists: false };
        };
        if !is_address(net) {
            return if store.has_address_in(net) { Node::Empty } else { Node::Nothing };
        }
        let links = store.links_at(net.addr());
        if links.is_empty() { Node::Nothing } else { Node::Pointers(links) }
    }
}

/// Returns the networks that a network consists of, each of which is a whole reverse zone.
pub(super) fn split(net: IpNet) -> impl Iterator<Item = IpNet> {
    let length = net.prefix_len().next_multiple_of(label_bits(net));
    // It is neither shorter than the network's own nor longer than an address.
    net.trunc().subnets(length).into_iter().flatten()
}

/// Returns the name that stands for a network whose prefix ends where a label does.
pub(super) fn arpa(net: IpNet) -> Name {
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

fn is_address(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}
