//! Reverse zones: the links of an address (RFC 1035 section 3.5, RFC 3596 section 2.5).

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::link_names::LinkNames;
use super::lookup::Node;
use crate::dns::message::arpa::{is_address, reverse_name};
use crate::store::Store;

/// The names of a reverse zone.
#[derive(Clone, Debug)]
pub(super) struct Reverse {
    /// The network; its prefix ends at a label boundary.
    net: IpNet,
    /// The forward zone with the names in the PTR records.
    forward: LinkNames,
}

impl Reverse {
    pub(super) fn new(net: IpNet, forward: LinkNames) -> Self {
        Self { net, forward }
    }

    pub(super) fn forward(&self) -> &LinkNames {
        &self.forward
    }

    /// Returns the names that may have records, the origin among them.
    pub(super) fn names(&self, store: &Store) -> impl Iterator<Item = Name> {
        let addresses = store.addresses_in(self.net).into_iter().map(|ip| reverse_name(ip.into()));
        addresses.chain([reverse_name(self.net)])
    }

    /// Returns the node at a name; `relative` is its part below the origin.
    pub(super) fn find(&self, store: &Store, name: &Name, relative: &[u8]) -> Node {
        if relative.is_empty() {
            // The zone of a single address has only the apex.
            let links = if is_address(self.net) { store.links_at(self.net.addr()) } else { Vec::new() };
            return Node::Apex(links);
        }
        // `01` and `+1` parse as numbers, but aren't labels of reverse names.
        let Some(net) = name.parse_arpa_name().ok().filter(|net| reverse_name(*net) == *name) else {
            return Node::Reserved { exists: false };
        };
        if !is_address(net) {
            return if store.has_address_in(net) { Node::Empty } else { Node::Nothing };
        }
        let links = store.links_at(net.addr());
        if links.is_empty() { Node::Nothing } else { Node::Pointers(links) }
    }
}
