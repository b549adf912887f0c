//! SRV records (RFC 2782): the ports of a link's services.

use std::collections::HashSet;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{RData, RecordType};

use super::dependencies::Lookups;
use super::link_names::LinkNames;
use super::lookup::{Node, ZoneQuery};
use super::records::{addresses, record};
use super::{Hop, Zone, ZoneAnswer, ZoneKind};
use crate::model::link::{Link, Target};

/// A link has only one host, so priority and weight have no effect. CoreDNS uses the same values.
const PRIORITY: u16 = 0;
const WEIGHT: u16 = 100;

/// The maximum number of ports of a link that get a record. The API allows any number; a message holds some 1,300
/// records, depending on the name of the host.
const MAX_PORTS: usize = 1000;

/// The maximum number of links in a chain of aliases, the same as the limit of a query's look-ups.
const MAX_LINK_ALIASES: usize = 8;

impl Zone {
    /// Adds the SRV records for these ports of a link.
    pub(super) fn services(
        &self,
        zone_query: &ZoneQuery<'_>,
        lookups: &mut Lookups<'_>,
        link: &Arc<Link>,
        ports: &[u16],
        answer: &mut ZoneAnswer,
    ) {
        let (Some(target), ZoneKind::LinkNames(forward)) = (&link.target, &self.names) else { return };
        let ttl = self.ttl_of(link);
        let end = match target {
            Target::Hostname(host) => {
                let first = Hop { target_of: Some(Arc::clone(link)), name: host.name() };
                self.end_of_aliases(forward, lookups, first, ttl)
            }
            Target::Addresses(ips) => match forward.name_of(lookups, link) {
                Some(name) => {
                    let own = Hop { target_of: None, name };
                    SrvTarget { aliases: Vec::new(), host: own, ips: ips.to_vec(), own_ttl: ttl, ttl }
                }
                None => return,
            },
        };
        let host = &end.host.name;
        // RFC 2181 section 5: the same port for TCP and UDP is one record.
        let mut known = HashSet::new();
        for port in ports.iter().filter(|port| known.insert(**port)).take(MAX_PORTS) {
            let service = SRV::new(PRIORITY, WEIGHT, *port, host.clone());
            answer.answers.push(record(zone_query.name, end.ttl, RData::SRV(service)));
        }
        // RFC 2782, "Usage rules": with the host's addresses in the reply, the client needn't query them.
        if !answer.answers.is_empty() {
            for qtype in [RecordType::A, RecordType::AAAA] {
                answer.additionals.extend(addresses(host, end.own_ttl, &end.ips, qtype));
            }
        }
        answer.hops = end.aliases;
        answer.hops.push(end.host);
    }

    /// Follows the aliases of a link's hostname within this zone, because an SRV target must not be an alias (RFC 2782,
    /// "Target").
    fn end_of_aliases(
        &self,
        forward: &LinkNames,
        lookups: &mut Lookups<'_>,
        host: Hop,
        ttl: u32,
    ) -> SrvTarget {
        let mut end = SrvTarget { aliases: Vec::new(), host, ips: Vec::new(), own_ttl: ttl, ttl };
        for _ in 0..MAX_LINK_ALIASES {
            let Some(relative) = self.relative(&end.host.name) else { break };
            let Node::Link(link) = forward.find(lookups, &relative) else { break };
            end.own_ttl = self.ttl_of(&link);
            match &link.target {
                Some(Target::Hostname(next)) => {
                    let next = Hop { name: next.name(), target_of: Some(Arc::clone(&link)) };
                    end.aliases.push(mem::replace(&mut end.host, next));
                    end.ttl = end.ttl.min(end.own_ttl);
                }
                Some(Target::Addresses(ips)) => {
                    end.ips = ips.to_vec();
                    break;
                }
                None => break,
            }
        }
        end
    }
}

/// The host of SRV records, at the end of a chain of aliases.
struct SrvTarget {
    host: Hop,
    /// The names that lead to the host, in order.
    aliases: Vec<Hop>,
    /// The host's addresses if the host is a name in this zone, and their TTL in seconds.
    ips: Vec<IpAddr>,
    own_ttl: u32,
    /// The TTL of the SRV records: the lowest TTL of the queried link and of the aliases.
    ttl: u32,
}
