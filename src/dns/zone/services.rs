//! SRV records (RFC 2782): at which ports the services of a link are.

use std::sync::Arc;

use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{RData, RecordType};

use super::records::{addresses, record};
use super::{Asked, Names, Node, Zone, ZoneAnswer};
use crate::names::MAX_LABEL;
use crate::store::{Link, Port, Target};

/// A link is reached in one place: there is nothing to choose between. The values are CoreDNS's.
const PRIORITY: u16 = 0;
const WEIGHT: u16 = 100;

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

impl Zone {
    /// Adds the SRV records for these ports of a link.
    pub(super) fn services(&self, asked: &Asked<'_>, link: &Link, ports: &[u16], answer: &mut ZoneAnswer) {
        let (Some(target), Names::OfLinks(forward)) = (&link.target, &self.names) else { return };
        let host = match target {
            // RFC 2782, "Target": no alias, which the link's own name would be.
            Target::Hostname(host) => Some(host.clone()),
            Target::Addresses(_) => forward.name_of(asked.store, link),
        };
        let Some(host) = host else { return };
        for (i, port) in ports.iter().enumerate() {
            // RFC 2181 section 5: the same port for TCP and UDP is one record.
            if !ports[..i].contains(port) {
                let service = SRV::new(PRIORITY, WEIGHT, *port, host.clone());
                answer.answers.push(record(asked.name, self.ttl_of(link), RData::SRV(service)));
            }
        }
        // RFC 2782, "Usage rules": a client that gets the addresses needn't ask for them.
        if let Target::Addresses(ips) = target
            && !answer.answers.is_empty()
        {
            for qtype in [RecordType::A, RecordType::AAAA] {
                answer.additionals.extend(addresses(&host, self.ttl_of(link), ips, qtype));
            }
        }
    }
}
