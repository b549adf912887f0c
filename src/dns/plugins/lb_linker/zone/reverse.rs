//! Reverse zones: which links an address leads back to (RFC 1035 section 3.5, RFC 3596 section 2.5).

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::link_names::LinkNames;
use super::lookup::Node;
use crate::dns::message::arpa::{arpa, is_address};
use crate::store::Store;

/// Which names stand in a reverse zone.
#[derive(Clone, Debug)]
pub(super) struct Reverse {
    /// The network. Its prefix ends where a label does.
    net: IpNet,
    /// The zone that its pointers lead into.
    first: LinkNames,
}

impl Reverse {
    pub(super) fn new(net: IpNet, first: LinkNames) -> Self {
        Self { net, first }
    }

    /// Returns the zone that the pointers lead into.
    pub(super) fn first(&self) -> &LinkNames {
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
