//! The kinds of names in a zone of links.

use std::sync::Arc;

use hickory_proto::rr::{Name, RecordType};

use crate::model::link::{Link, Port};
use crate::model::names::MAX_LABEL;
use crate::model::service_key::ServiceKey;
use crate::store::Store;

/// A query for a name in a zone, and the store that has the answer.
pub(super) struct ZoneQuery<'a> {
    pub(super) store: &'a Store,
    /// The name as the client wrote it.
    pub(super) name: &'a Name,
    /// The part of the name below the origin, as `model::names::wire` writes it.
    pub(super) relative: &'a [u8],
    pub(super) qtype: RecordType,
}

/// A name in a zone, with its data.
#[derive(Debug)]
pub(super) enum Node {
    /// The apex, with the zone's own records. In the reverse zone of a single address, also the PTR records of these
    /// links.
    Apex(Vec<Arc<Link>>),
    /// The zone's name server.
    NameServer,
    /// A name of a link.
    Link(Arc<Link>),
    /// An SRV name `_<port>._<protocol>` of a link, with the numbers of the matching ports.
    Service { link: Arc<Link>, ports: Vec<u16> },
    /// A reverse name, with the links that have this address.
    Pointers(Vec<Arc<Link>>),
    /// An empty non-terminal: a name without data that exists because of the names below it (RFC 4592 section 2.2.2).
    Empty,
    /// A name that doesn't exist.
    Nothing,
    /// A reserved name, whose existence depends on no link.
    Reserved { exists: bool },
}

// === impl Node ===

impl Node {
    /// Returns whether the owner or the data of the name may change once all links are known, except that PTR records
    /// may be added. `<service>.<namespace>` always belongs to its Service; the owner of any other name is certain only
    /// once all links are known.
    pub(super) fn may_change(&self, relative: &[u8]) -> bool {
        match self {
            Self::Apex(_) | Self::Empty | Self::Nothing => true,
            Self::Link(link) => !has_known_data(link) || !is_unambiguous(&link.key, relative),
            Self::Service { link, .. } => !has_known_data(link),
            Self::NameServer | Self::Reserved { .. } | Self::Pointers(_) => false,
        }
    }

    /// Returns whether the snapshot `saved` has to answer instead of a link with an override. A StableName, or the
    /// external target that an earlier process wrote, may be read before the Service: the link then has a target, but
    /// not the ports and the TTL of the Service, which the snapshot has. If the two targets differ, the target of the
    /// override is newer and is used, except for SRV queries: their answer would have no ports.
    pub(super) fn is_incomplete(&self, saved: &Store, qtype: RecordType) -> bool {
        let (Self::Link(link) | Self::Service { link, .. }) = self else { return false };
        link.active_override().is_some()
            && saved.get(&link.key).is_some_and(|saved| {
                let lacks_ports = link.ports.is_empty() && !saved.ports.is_empty();
                saved.target == link.target || lacks_ports && qtype == RecordType::SRV
            })
    }

    /// Returns whether the name belongs to a link with a known target or records, or is a reverse name with links.
    pub(super) fn has_data(&self) -> bool {
        match self {
            Self::Link(link) | Self::Service { link, .. } => has_known_data(link),
            Self::Pointers(_) => true,
            Self::Apex(_) | Self::NameServer | Self::Empty | Self::Nothing | Self::Reserved { .. } => false,
        }
    }
}

/// Returns whether the target or the records of a link are known, and its Service isn't gone.
fn has_known_data(link: &Link) -> bool {
    link.has_data() && !link.is_gone()
}

/// Returns whether a name below the origin is `<service>.<namespace>`, which no other link can have.
fn is_unambiguous(key: &ServiceKey, relative: &[u8]) -> bool {
    key.dotted().is_some_and(|own| own == relative)
}

/// Returns whether a label names a port or a protocol, not a host (RFC 8552 section 1.1).
pub(super) fn is_service_label(label: &[u8]) -> bool {
    label.starts_with(b"_")
}

/// Returns the node `_<port>._<protocol>` below a link's name, or `_<protocol>` if `port` is `None`.
pub(super) fn service_node(link: Arc<Link>, protocol: &[u8], port: Option<&[u8]>) -> Node {
    let is = |label: &[u8], text: &str| label[1..].eq_ignore_ascii_case(text.as_bytes());
    let named = |candidate: &&Port| match &candidate.name {
        // The label is `_` and the name: a longer name can't be queried.
        Some(name) if name.len() < MAX_LABEL => {
            is(protocol, &candidate.protocol) && port.is_none_or(|port| is(port, name))
        }
        _ => false,
    };
    let ports: Vec<u16> = link.ports.iter().filter(named).map(|port| port.port).collect();
    match (ports.is_empty(), port) {
        (true, _) => Node::Nothing,
        (false, None) => Node::Empty,
        (false, Some(_)) => Node::Service { link, ports },
    }
}
