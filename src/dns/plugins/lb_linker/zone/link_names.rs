//! The names of a forward zone: the names of links, and the zone's own names.

use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::rr::Name;

use super::dependencies::Lookups;
use super::lookup::{Node, is_service_label, service_node};
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::model::{names, owner};
use crate::store::{Lookup, Store};

/// The names of a forward zone. Names below the origin are in the form of [`names::wire`].
#[derive(Clone, Debug)]
pub(super) struct LinkNames {
    origin: Name,
    /// The origin in wire form, as in the store's index.
    wire: Box<[u8]>,
    own: OwnNames,
    /// Whether load balancers have their default names here.
    has_default_names: bool,
    /// The domains of remote clusters.
    domains: Arc<[owner::Zone]>,
}

/// The names of the zone itself.
#[derive(Clone, Debug)]
pub(super) enum OwnNames {
    /// Those at and below a label directly below the origin; the name server is `ns.<label>`.
    Below(Box<str>),
    /// The name servers of a zone of *k8s_gateway*, in wire form and without the origin: they have the targets of the
    /// Services with these names.
    Services(Vec<Box<[u8]>>),
}

impl LinkNames {
    pub(super) fn new(
        origin: Name,
        own: OwnNames,
        has_default_names: bool,
        domains: Arc<[owner::Zone]>,
    ) -> Self {
        let wire = names::wire(origin.iter()).unwrap_or_default().into();
        Self { origin, wire, own, has_default_names, domains }
    }

    /// Returns the domain of a remote cluster that has a name below the origin.
    pub(super) fn domain_of<'a>(domains: &'a [owner::Zone], relative: &[u8]) -> Option<&'a owner::Zone> {
        let top = names::labels(relative).last().filter(|_| !domains.is_empty())?;
        domains.iter().find(|domain| domain.cluster.as_ref().is_some_and(|cluster| cluster.as_bytes() == top))
    }

    /// Looks up a name below the origin. No wildcard of the zone matches a name in the domain of a remote cluster, which
    /// exists without names, too.
    fn look_up(&self, lookups: &mut Lookups<'_>, relative: &[u8]) -> Lookup {
        let Some(domain) = Self::domain_of(&self.domains, relative) else {
            return lookups.find(relative, &self.wire, self.has_default_names);
        };
        let below = relative.len() - (domain.origin.len() - self.wire.len());
        match below {
            0 => Lookup::EmptyNonTerminal,
            _ => lookups.find(&relative[..below], &domain.origin, false),
        }
    }

    /// Returns the node at a name; `relative` is the part of the name below the origin, empty for the origin itself.
    pub(super) fn find(&self, lookups: &mut Lookups<'_>, relative: &[u8]) -> Node {
        let Some(top) = names::labels(relative).last() else { return Node::Apex(Vec::new()) };
        if let Some(own) = self.find_own(lookups, relative, top) {
            return own;
        }
        let found = match self.look_up(lookups, relative) {
            Lookup::Link(link) => Node::Link(link),
            Lookup::EmptyNonTerminal => Node::Empty,
            Lookup::Nothing => return self.find_service(lookups, relative),
        };
        // The SRV names of load balancers go before the names of other objects, as all default names do.
        match self.find_service(lookups, relative) {
            service @ Node::Service { .. } => service,
            _ => found,
        }
    }

    /// Returns the node at a reserved name, whose label directly below the origin is `top`.
    fn find_own(&self, lookups: &mut Lookups<'_>, relative: &[u8], top: &[u8]) -> Option<Node> {
        match &self.own {
            OwnNames::Below(apex) if names::is_reserved(top, apex.as_bytes()) => {
                let below = &relative[..relative.len() - 1 - top.len()];
                Some(match (top == apex.as_bytes(), below) {
                    (true, b"\x02ns") => Node::NameServer,
                    (is_apex, below) => Node::Reserved { exists: is_apex && below.is_empty() },
                })
            }
            OwnNames::Services(servers) => {
                let position = servers.iter().position(|server| names::below(relative, server).is_some());
                let Some(number) = position else {
                    let is_deleted = top == names::DELETED.as_bytes();
                    return is_deleted.then_some(Node::Reserved { exists: false });
                };
                let exists = *servers[number] == *relative;
                if !exists {
                    return Some(Node::Reserved { exists });
                }
                // The name exists without its Service, too.
                Some(self.link_of_server(lookups, number).map_or(Node::Empty, Node::Link))
            }
            OwnNames::Below(_) => None,
        }
    }

    /// Returns the link of the Service with the name of a name server of a zone of *k8s_gateway*, given by its number:
    /// `<service>.<namespace>`.
    pub(super) fn link_of_server(&self, lookups: &mut Lookups<'_>, number: usize) -> Option<Arc<Link>> {
        let OwnNames::Services(servers) = &self.own else { return None };
        let server = servers.get(number)?;
        match lookups.find(server, &self.wire, true) {
            Lookup::Link(link) if link.key.dotted().is_some_and(|own| *own == **server) => Some(link),
            _ => None,
        }
    }

    /// Returns the node at `_<port>._<protocol>.<service>.<namespace>`, or at `_<protocol>.<service>.<namespace>`.
    fn find_service(&self, lookups: &mut Lookups<'_>, relative: &[u8]) -> Node {
        let is_service = |(label, _): &(&[u8], &[u8])| self.has_default_names && is_service_label(label);
        let Some((first, rest)) = names::split(relative).filter(is_service) else { return Node::Nothing };
        let (port, protocol, service) = match names::split(rest) {
            Some((second, rest)) if is_service_label(second) => (Some(first), second, rest),
            _ => (None, first, rest),
        };
        match self.look_up(lookups, service) {
            Lookup::Link(link) if link.key.dotted().as_deref() == Some(service) => {
                service_node(link, protocol, port)
            }
            _ => Node::Nothing,
        }
    }

    /// Returns whether a name below the origin is one of a link's two default names, and not a custom hostname.
    pub(super) fn is_default_name(key: &ServiceKey, relative: &[u8]) -> bool {
        [key.dotted(), dashed(key)].iter().flatten().any(|own| own == relative)
    }

    /// Returns a name that belongs to this link: `<service>.<namespace>.<zone>`, or `<service>-<namespace>.<zone>` if
    /// the first name is reserved. `None` if the link has neither name.
    pub(super) fn name_of(&self, lookups: &mut Lookups<'_>, link: &Link) -> Option<Name> {
        let OwnNames::Below(apex) = &self.own else { return None };
        let mut leads_back = |relative: &Vec<u8>| {
            let top = names::labels(relative).last();
            let is_reserved = top.is_none_or(|top| names::is_reserved(top, apex.as_bytes()));
            !is_reserved
                && matches!(
                    lookups.find(relative, &self.wire, self.has_default_names),
                    Lookup::Link(found) if found.key == link.key
                )
        };
        if !self.has_default_names {
            return None;
        }
        let relative = [link.key.dotted(), dashed(&link.key)].into_iter().flatten().find(&mut leads_back)?;
        self.absolute(&relative)
    }

    pub(super) fn absolute(&self, relative: &[u8]) -> Option<Name> {
        Name::from_labels(names::labels(relative)).ok()?.append_domain(&self.origin).ok()
    }

    /// Returns the names that may have records, as the parts below the origin.
    pub(super) fn names(&self, store: &Store) -> BTreeSet<Vec<u8>> {
        let mut all = store.names_below(&self.wire, self.has_default_names);
        all.insert(Vec::new());
        match &self.own {
            OwnNames::Below(apex) => all.extend(names::wire(["ns", &**apex].map(str::as_bytes))),
            OwnNames::Services(servers) => all.extend(servers.iter().map(|server| server.to_vec())),
        }
        let links = if self.has_default_names { store.links() } else { Vec::new() };
        for link in links {
            let Some(dotted) = link.key.dotted() else { continue };
            for (name, protocol) in
                link.ports.iter().filter_map(|port| Some((port.name.as_ref()?, &port.protocol)))
            {
                let labels = [name, protocol].map(|label| format!("_{label}"));
                let Some(service) = names::wire(labels.iter().map(String::as_bytes)) else { continue };
                all.insert([service, dotted.clone()].concat());
            }
        }
        all
    }
}

fn dashed(key: &ServiceKey) -> Option<Vec<u8>> {
    key.label().filter(|_| key.cluster().is_none())
}
