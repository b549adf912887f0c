//! What a name of a zone stands for.

use std::sync::Arc;

use hickory_proto::rr::{Name, RecordType};

use crate::dns::plugins::lb_linker::zone::link_names::LinkNames;
use crate::model::link::{Link, Port};
use crate::model::names::MAX_LABEL;
use crate::store::Store;

/// A question, and where its answer is known.
pub(super) struct ZoneQuery<'a> {
    pub(super) store: &'a Store,
    /// The name as the client wrote it.
    pub(super) name: &'a Name,
    /// Its part below the origin, as `model::names::wire` writes it.
    pub(super) relative: &'a [u8],
    pub(super) qtype: RecordType,
}

/// What there is at a name.
#[derive(Debug)]
pub(super) enum Node {
    /// The zone's own records. In a reverse zone of one address it has pointers, too.
    Apex(Vec<Arc<Link>>),
    /// The zone's name server.
    NameServer,
    /// What a link has: its target, and at the names that are its own also its services.
    Link(Arc<Link>),
    /// A service of a link, at these ports.
    Service { link: Arc<Link>, ports: Vec<u16> },
    /// Links that have an address.
    Pointers(Vec<Arc<Link>>),
    /// Nothing, but there are names below it (RFC 8020 section 2: it exists).
    Empty,
    /// No such name.
    Nothing,
    /// What no link can change: whether such a name exists.
    Reserved { exists: bool },
}

// === impl Node ===

impl Node {
    /// Whether the name may be another's, or have something else, once all links are known. An unambiguous
    /// name of a Service is its own; other names belong to the owners noted on external targets.
    pub(super) fn may_change(&self, relative: &[u8]) -> bool {
        let is_final = |link: &Link| link.target.is_some() && !link.is_gone();
        match self {
            Self::Apex(_) | Self::Empty | Self::Nothing => true,
            Self::Link(link) => !is_final(link) || !LinkNames::is_unambiguous(&link.key, relative),
            Self::Service { link, .. } => !is_final(link),
            Self::NameServer | Self::Reserved { .. } | Self::Pointers(_) => false,
        }
    }
}

/// Returns whether a label is that of a port or a protocol (RFC 8552 section 1.1): no host's.
pub(super) fn is_service_label(label: &[u8]) -> bool {
    label.starts_with(b"_")
}

/// Returns what there is at `_<port>._<protocol>` below a link's name, or at `_<protocol>`.
pub(super) fn find(link: Arc<Link>, protocol: &[u8], port: Option<&[u8]>) -> Node {
    let is = |label: &[u8], text: &str| label[1..].eq_ignore_ascii_case(text.as_bytes());
    let named = |candidate: &&Port| match &candidate.name {
        // A name that its label has no room for is none that can be asked for.
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
