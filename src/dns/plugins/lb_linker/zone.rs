//! Answers queries in a zone as a pure function of the store, the name and the type.
//!
//! A forward zone contains the names of links, a reverse zone the addresses of their targets. This module has the
//! common parts: the apex, negative answers, and the mapping from names to answers.

mod dependencies;
mod link_names;
pub(crate) mod lookup;
mod records;
mod reverse;
mod srv;
pub(super) mod state;

use std::cmp;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::ProtoError;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{CNAME, NS, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::dns::message::arpa;
use crate::dns::message::ede::Ede;
use crate::dns::message::zone_set::absolute;
use crate::dns::plugins::lb_linker::zone::lookup::{Node, ZoneQuery};
use crate::model::link::{Link, Target};
use crate::model::names;
use crate::model::owner::{self, K8sGateway, Source};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::Denied;
use crate::store::change_time::ChangeSerial;
use crate::store::{Input, NameDependency, Store};
use dependencies::Lookups;
use link_names::{LinkNames, OwnNames};
use records::{addresses, declared, pointers, record};
use reverse::Reverse;

pub use dependencies::ZoneDependencies;

/// The default TTL of records and of negative answers (RFC 2308), in seconds.
pub const TTL: u32 = 5;
/// The TTL of SOA and NS records, and of negative answers, in zones of *k8s_gateway*, in seconds.
const K8S_GATEWAY_TTL: u32 = 60;
/// SOA timers for secondaries, in seconds: refresh, retry, expire (RFC 1035 section 3.3.13).
const SOA_TIMERS: (i32, i32, i32) = (7200, 1800, 86400);

#[derive(Clone, Debug)]
pub struct Zone {
    origin: Name,
    names: ZoneKind,
    authority: Authority,
    /// The zone with its sources, as the store has it. Reverse zones have the names of load balancers.
    configured: owner::Zone,
    /// The domains of remote clusters, as the store has them.
    domains: Arc<[owner::Zone]>,
    /// The serial of a zone that is transferred; others have that of the store.
    serial: Option<ChangeSerial>,
}

/// The options of a forward zone; its reverse zones share them.
#[derive(Clone, Debug)]
pub struct ZoneOptions {
    pub addresses: Vec<IpAddr>,
    /// The default TTL of the zone's records, and the negative TTL, in seconds.
    pub ttl: u32,
    /// The label below the origin that is reserved for the zone itself: the name server is `ns.<apex>.<zone>`. In a zone of
    /// *k8s_gateway* the name of the name server itself.
    pub apex: String,
    /// The sources in their order, and the classes of Ingresses and Gateways.
    pub sources: Vec<Source>,
    pub ingress_classes: Vec<Box<str>>,
    pub gateway_classes: Vec<Box<str>>,
    /// The remote clusters, each with a domain below the zone.
    pub remotes: Arc<[Arc<str>]>,
    /// What a zone of *k8s_gateway* has besides.
    pub k8s_gateway: Option<K8sGateway>,
}

/// The kind of a zone, with the names that it contains besides the apex.
#[derive(Clone, Debug)]
enum ZoneKind {
    LinkNames(LinkNames),
    Reverse(Reverse),
}

/// The name servers of a zone, and the TTLs of the zone in seconds.
#[derive(Clone, Debug)]
struct Authority {
    /// At least one.
    name_servers: Vec<Name>,
    hostmaster: Name,
    addresses: Vec<IpAddr>,
    /// The default TTL of records.
    ttl: u32,
    /// The TTL of SOA and NS records, and of negative answers.
    own_ttl: u32,
}

#[derive(Debug)]
pub struct ZoneAnswer {
    pub rcode: ResponseCode,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
    /// The target of the CNAME in the answer; `None` for queries of the types CNAME and ANY.
    pub target: Option<Name>,
    pub ede: Option<Ede>,
    /// The link that the queried name belongs to, or that has SRV records at the name.
    pub link: Option<Arc<Link>>,
    /// The names that lead to the host of the SRV or NS records in the answer, in order; the host is the last name.
    pub hops: Vec<Hop>,
    /// The data that the answer depends on; `None` if the answer must not be reused.
    pub dependencies: Option<ZoneDependencies>,
    /// The store of the snapshot, if the answer is from a snapshot.
    pub snapshot: Option<Arc<Store>>,
}

/// A name on the way to the host of an SRV or NS record.
#[derive(Clone, Debug)]
pub struct Hop {
    pub name: Name,
    /// The link that has the name as its target; `None` for the queried link's own name, and for a name of the zone
    /// itself.
    pub target_of: Option<Arc<Link>>,
}

// === impl ZoneOptions ===

impl Default for ZoneOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            ttl: TTL,
            apex: names::RESERVED_LABEL.to_owned(),
            sources: vec![Source::SERVICES],
            ingress_classes: Vec::new(),
            gateway_classes: Vec::new(),
            remotes: Arc::default(),
            k8s_gateway: None,
        }
    }
}

// === impl Zone ===

impl Zone {
    /// Returns the zone of an origin.
    ///
    /// # Errors
    /// Fails if the origin is too long for names below it, or if the apex isn't a label or, in a zone of *k8s_gateway*, a
    /// name.
    pub fn with_options(origin: &Name, options: ZoneOptions) -> Result<Self, ProtoError> {
        let ZoneOptions {
            addresses,
            ttl,
            apex,
            sources,
            ingress_classes,
            gateway_classes,
            k8s_gateway,
            remotes,
        } = options;
        let apex = apex.to_ascii_lowercase();
        let secondary = k8s_gateway.as_ref().and_then(|own| own.secondary.clone());
        let servers: Vec<&str> = std::iter::once(&*apex).chain(secondary.as_deref()).collect();
        if k8s_gateway.is_none() && !names::is_label(&apex) {
            return Err(ProtoError::from(format!("{apex:?} isn't a label")));
        }
        let origin = absolute(origin);
        let below =
            |labels: &mut dyn Iterator<Item = &str>| Name::from_labels(labels)?.append_domain(&origin);
        let of_server = |server: &&str| below(&mut server.split('.'));
        let wire_of = |server: &&str| {
            let wire = names::wire_of(server).map(Into::into);
            wire.ok_or_else(|| ProtoError::from(format!("{server:?} isn't a name")))
        };
        let (name_servers, hostmaster, own, own_ttl) = match &k8s_gateway {
            None => {
                let hostmaster = below(&mut ["hostmaster"].into_iter())?;
                let server = below(&mut ["ns", &*apex].into_iter())?;
                (vec![server], hostmaster, OwnNames::Below(apex.as_str().into()), ttl)
            }
            Some(_) => {
                let hostmaster = below(&mut ["hostmaster"].into_iter().chain(apex.split('.')))?;
                let own = servers.iter().map(wire_of).collect::<Result<_, _>>()?;
                let servers = servers.iter().map(of_server).collect::<Result<_, _>>()?;
                (servers, hostmaster, OwnNames::Services(own), K8S_GATEWAY_TTL)
            }
        };
        let apex = apex.into();
        let configured =
            owner::Zone { apex, sources, ingress_classes, gateway_classes, k8s_gateway, ..(&origin).into() };
        let mut all = configured.with_remotes(&remotes);
        let (configured, domains) = (all.remove(0), Arc::<[owner::Zone]>::from(all));
        let has_default_names = configured.has_default_names();
        let names = LinkNames::new(origin.clone(), own, has_default_names, Arc::clone(&domains));
        let authority = Authority { name_servers, hostmaster, addresses, ttl, own_ttl };
        Ok(Self { origin, names: ZoneKind::LinkNames(names), authority, configured, domains, serial: None })
    }

    /// Returns the reverse zones of a network: one zone, or several if the prefix ends within an octet or hexadecimal
    /// digit. Their PTR records name links in this zone, and they have the same name server.
    #[must_use]
    pub fn reverse(&self, net: ipnet::IpNet) -> Vec<Self> {
        let first = match &self.names {
            ZoneKind::LinkNames(forward) => forward,
            ZoneKind::Reverse(reverse) => reverse.forward(),
        };
        arpa::split(net)
            .map(|net| Self {
                origin: arpa::reverse_name(net),
                names: ZoneKind::Reverse(Reverse::new(net, first.clone())),
                authority: self.authority.clone(),
                configured: (&self.origin).into(),
                domains: Arc::default(),
                serial: None,
            })
            .collect()
    }

    /// Sets the serial of a zone that is transferred.
    pub fn set_serial(&mut self, serial: ChangeSerial) {
        self.serial = Some(serial);
    }

    /// Returns the serial of a zone that is transferred.
    #[must_use]
    pub fn serial(&self) -> Option<&ChangeSerial> {
        self.serial.as_ref()
    }

    #[must_use]
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// Returns the zone with its sources, as the store has it.
    #[must_use]
    pub fn configured(&self) -> &owner::Zone {
        &self.configured
    }

    /// Returns the TTL of negative answers in seconds, which is also the maximum negative TTL for the target of a CNAME of the
    /// zone.
    #[must_use]
    pub fn negative_ttl(&self) -> u32 {
        self.authority.own_ttl
    }

    /// Returns the part of `name` below the origin in the form of [`names::wire`], if `name` is in the zone.
    #[must_use]
    pub fn relative(&self, name: &Name) -> Option<Vec<u8>> {
        let labels: Vec<&[u8]> = name.iter().collect();
        let below = labels.len().checked_sub(self.origin.iter().count())?;
        let ends_in_origin = labels[below..]
            .iter()
            .zip(self.origin.iter())
            .all(|(label, origin)| label.eq_ignore_ascii_case(origin));
        if ends_in_origin { names::wire(labels[..below].iter().copied()) } else { None }
    }

    /// Answers a query of the type `qtype` for `name`, in the client's case; `relative` is the part of `name` that
    /// [`Self::relative`] returns.
    #[must_use]
    pub fn answer(&self, store: &Store, name: &Name, relative: &[u8], qtype: RecordType) -> ZoneAnswer {
        // Checked before the look-up: a name that is added in between must not get NXDOMAIN.
        let (mut synced, mut snapshot_links) = (store.is_known(Input::Services), None);
        while !synced && snapshot_links.is_none() {
            let present = store.fallback();
            let in_use = present.as_ref().map(|it| it.store.use_as_fallback());
            synced = store.is_known(Input::Services);
            // The dependency begins before this check: if the snapshot is removed later, the answer is outdated.
            let (Some(present), Some(in_use)) = (present, in_use) else { break };
            if store.fallback().is_some_and(|now| Arc::ptr_eq(&now, &present)) {
                snapshot_links = Some((in_use, Arc::clone(&present.store)));
            }
        }
        let domain = LinkNames::domain_of(&self.domains, relative);
        let configured = domain.unwrap_or(&self.configured);
        let unlisted = store.unlisted_source(configured);
        // The names of a remote cluster don't depend on the load balancers of the home cluster.
        let unlisted = unlisted.filter(|_| (synced || domain.is_some()) && !self.is_reverse());
        let may_lack =
            synced && domain.is_none() && !self.is_reverse() && store.may_lack(configured, relative);
        let mut lookups = Lookups::new(store);
        let node = self.find(&mut lookups, name, relative);
        if may_lack && matches!(node, Node::Nothing | Node::Empty)
            || unlisted.is_some_and(|source| self.may_have((configured, source), store, relative, &node))
        {
            let saved = self.answer_of_unlisted(store, name, relative, qtype);
            return saved
                .filter(|_| unlisted.is_some())
                .unwrap_or_else(|| ZoneAnswer::not_ready(store.is_known(Input::Services)));
        }
        let has_default_names = self.configured.has_default_names();
        let may_change = node.may_change(relative) || !has_default_names && matches!(node, Node::Link(_));
        let may_change = domain.is_none() && may_change;
        let is_incomplete =
            snapshot_links.as_ref().is_some_and(|(_, saved)| node.is_incomplete(saved, qtype));
        if !synced && (may_change || is_incomplete) {
            let saved = snapshot_links.and_then(|(in_use, store)| {
                let query = ZoneQuery { store: &store, name, relative, qtype };
                let answer = self.answer_from_snapshot(&query, &in_use)?;
                Some(ZoneAnswer { snapshot: Some(Arc::clone(&store)), ..answer })
            });
            if let Some(saved) = saved {
                return saved;
            }
            if may_change {
                return ZoneAnswer::not_ready(store.is_known(Input::Services));
            }
        }
        self.answer_with(&ZoneQuery { store, name, relative, qtype }, lookups, node)
    }

    /// Returns the answer from the names of a snapshot that have other sources than the load balancers, which are known.
    fn answer_of_unlisted(
        &self,
        store: &Store,
        name: &Name,
        relative: &[u8],
        qtype: RecordType,
    ) -> Option<ZoneAnswer> {
        let present = store.fallback()?;
        let in_use = present.store.use_as_fallback();
        // If the snapshot is removed after this check, the answer is outdated.
        store.fallback().filter(|now| Arc::ptr_eq(now, &present))?;
        let query = ZoneQuery { store: &present.store, name, relative, qtype };
        let answer = self.answer_from_snapshot(&query, &in_use)?;
        let is_of_other = answer.link.as_ref().is_some_and(|link| !Source::SERVICES.has_target(&link.key));
        is_of_other.then(|| ZoneAnswer { snapshot: Some(Arc::clone(&present.store)), ..answer })
    }

    /// Returns whether a name below the origin may belong to an object of a source that isn't listed, of the zone or of the
    /// domain of a remote cluster.
    fn may_have(
        &self,
        (zone, source): (&owner::Zone, &Source),
        store: &Store,
        relative: &[u8],
        node: &Node,
    ) -> bool {
        match node {
            // The name of a name server belongs to its Service alone.
            _ if zone.k8s_gateway.is_some() && zone.reserves(relative) => false,
            Node::Nothing | Node::Empty => true,
            Node::Link(link) if self.is_default_name(&link.key, relative) => false,
            Node::Link(link) => {
                zone.is_before_target(source, &link.key)
                    || !store.has_exactly(&[relative, &*self.configured.origin].concat())
            }
            _ => false,
        }
    }

    fn is_reverse(&self) -> bool {
        matches!(self.names, ZoneKind::Reverse(_))
    }

    fn is_default_name(&self, key: &ServiceKey, relative: &[u8]) -> bool {
        self.configured.has_default_names() && LinkNames::is_default_name(key, relative)
    }

    /// Returns the answer from the links of a snapshot; `None` for a name without data in the snapshot, because the
    /// name may have data by now. `in_use` is from before the check that the snapshot is still in use.
    fn answer_from_snapshot(
        &self,
        zone_query: &ZoneQuery<'_>,
        in_use: &NameDependency,
    ) -> Option<ZoneAnswer> {
        let ZoneQuery { store, name, relative, qtype } = *zone_query;
        let mut lookups = Lookups::new(store);
        let node = self.find(&mut lookups, name, relative);
        let is_reverse = self.is_reverse();
        let is_known = match &node {
            Node::Apex(links) => {
                !is_reverse || !links.is_empty() || matches!(qtype, RecordType::SOA | RecordType::NS)
            }
            node => node.has_data(),
        };
        if !is_known {
            return None;
        }
        let mut answer = self.answer_with(zone_query, lookups, node);
        answer.ede = Some(Ede::SNAPSHOT);
        if let Some(dependencies) = &mut answer.dependencies {
            let mut names = in_use.clone();
            if let Some(found) = &dependencies.names {
                names.add(found);
            }
            dependencies.names = Some(names);
        }
        Some(answer)
    }

    fn find(&self, lookups: &mut Lookups<'_>, name: &Name, relative: &[u8]) -> Node {
        match &self.names {
            ZoneKind::LinkNames(forward) => forward.find(lookups, relative),
            ZoneKind::Reverse(reverse) => reverse.find(lookups.store(), name, relative),
        }
    }

    fn answer_with(&self, zone_query: &ZoneQuery<'_>, mut lookups: Lookups<'_>, node: Node) -> ZoneAnswer {
        let ZoneQuery { store, name, qtype, .. } = *zone_query;
        let mut answer = ZoneAnswer::new(ResponseCode::NoError);
        match node {
            Node::Nothing | Node::Reserved { exists: false } => answer.rcode = ResponseCode::NXDomain,
            Node::Empty | Node::Reserved { exists: true } => {}
            Node::Apex(links) => self.apex(zone_query, &mut lookups, &links, &mut answer),
            Node::NameServer => {
                answer.answers = addresses(name, self.authority.ttl, &self.authority.addresses, qtype);
            }
            Node::Link(link) => {
                self.link(zone_query, &mut lookups, &link, &mut answer);
                answer.link = Some(link);
            }
            Node::Service { link, ports } => {
                if matches!(qtype, RecordType::SRV | RecordType::ANY) {
                    self.services(zone_query, &mut lookups, &link, &ports, &mut answer);
                }
                answer.link = Some(link);
            }
            Node::Pointers(links) => answer.answers = self.pointers(zone_query, &mut lookups, &links),
        }
        // Answers of reverse zones are never reused, because links gain and lose addresses without a change of names.
        if let ZoneKind::LinkNames(_) = &self.names {
            answer.dependencies = Some(lookups.into());
        }
        if answer.answers.is_empty() {
            // RFC 2308 sections 2.1 and 2.2: NXDOMAIN and NODATA have the SOA.
            answer.authorities.push(self.soa(store, &self.origin));
        }
        answer
    }

    fn apex(
        &self,
        zone_query: &ZoneQuery<'_>,
        lookups: &mut Lookups<'_>,
        links: &[Arc<Link>],
        answer: &mut ZoneAnswer,
    ) {
        match zone_query.qtype {
            RecordType::SOA | RecordType::ANY => {
                answer.answers.push(self.soa(zone_query.store, zone_query.name));
            }
            RecordType::NS => self.name_servers(zone_query, lookups, answer),
            _ => answer.answers = self.pointers(zone_query, lookups, links),
        }
    }

    fn name_servers(&self, zone_query: &ZoneQuery<'_>, lookups: &mut Lookups<'_>, answer: &mut ZoneAnswer) {
        let Authority { name_servers, addresses: ips, own_ttl, .. } = &self.authority;
        let forward = match &self.names {
            ZoneKind::LinkNames(forward) if self.configured.k8s_gateway.is_some() => Some(forward),
            _ => None,
        };
        for (number, name_server) in name_servers.iter().enumerate() {
            let data = RData::NS(NS(name_server.clone()));
            answer.answers.push(record(zone_query.name, *own_ttl, data));
            let link = forward.and_then(|forward| forward.link_of_server(lookups, number));
            let ips = match link.as_ref().map(|link| &link.target) {
                Some(Some(Target::Addresses(ips))) => &ips[..],
                None if forward.is_none() => &ips[..],
                _ => &[],
            };
            for qtype in [RecordType::A, RecordType::AAAA] {
                answer.additionals.extend(addresses(name_server, *own_ttl, ips, qtype));
            }
            answer.hops.push(Hop { name: name_server.clone(), target_of: None });
        }
    }

    fn link(
        &self,
        zone_query: &ZoneQuery<'_>,
        lookups: &mut Lookups<'_>,
        link: &Arc<Link>,
        answer: &mut ZoneAnswer,
    ) {
        let ZoneQuery { name, qtype, .. } = *zone_query;
        match &link.target {
            // RFC 1034 section 3.6.2: the CNAME answers all types. Queries for CNAME itself, and for ANY (RFC 8482),
            // don't need the target's records.
            Some(Target::Hostname(host)) => {
                let host = host.name();
                answer.answers.push(record(name, self.ttl_of(link), RData::CNAME(CNAME(host.clone()))));
                if !matches!(qtype, RecordType::CNAME | RecordType::ANY) {
                    answer.target = Some(host);
                }
            }
            // Only a link's default names have SRV records, not its custom hostnames.
            Some(Target::Addresses(_))
                if qtype == RecordType::SRV && self.is_default_name(&link.key, zone_query.relative) =>
            {
                let ports: Vec<u16> = link.ports.iter().map(|port| port.port).collect();
                self.services(zone_query, lookups, link, &ports, answer);
            }
            target => {
                if let Some(Target::Addresses(ips)) = target {
                    answer.answers = addresses(name, self.ttl_of(link), ips, qtype);
                }
                if let Some(records) = link.records.as_ref().filter(|_| answer.answers.is_empty()) {
                    answer.answers = declared(name, self.authority.ttl, records, qtype);
                }
            }
        }
    }

    /// Turns an answer into NODATA.
    pub fn clear(&self, store: &Store, answer: &mut ZoneAnswer) {
        answer.answers.clear();
        answer.additionals.clear();
        answer.authorities = vec![self.soa(store, &self.origin)];
    }

    fn pointers(
        &self,
        zone_query: &ZoneQuery<'_>,
        lookups: &mut Lookups<'_>,
        links: &[Arc<Link>],
    ) -> Vec<Record> {
        let ZoneKind::Reverse(reverse) = &self.names else { return Vec::new() };
        let mut named =
            |link: &Arc<Link>| Some((self.ttl_of(link), reverse.forward().name_of(lookups, link)?));
        pointers(zone_query.name, links.iter().filter_map(&mut named).collect(), zone_query.qtype)
    }

    fn ttl_of(&self, link: &Link) -> u32 {
        link.annotations.ttl.unwrap_or(self.authority.ttl)
    }

    fn soa(&self, store: &Store, owner: &Name) -> Record {
        let (refresh, retry, expire) = SOA_TIMERS;
        let Authority { name_servers, hostmaster, own_ttl, .. } = &self.authority;
        // RFC 2308 section 4: MINIMUM is the negative TTL.
        #[expect(clippy::cast_possible_truncation, reason = "DNS has the low 32 bits")]
        let serial = self.serial.as_ref().map_or_else(|| store.serial(), ChangeSerial::advance) as u32;
        let name_server = name_servers.first().cloned().unwrap_or_default();
        let soa = SOA::new(name_server, hostmaster.clone(), serial, refresh, retry, expire, *own_ttl);
        record(owner, *own_ttl, RData::SOA(soa))
    }
}

/// Sorts zones for look-ups: the most specific zones come first.
pub fn closest_first(zones: &mut [Zone]) {
    zones.sort_by_key(|zone| cmp::Reverse(zone.origin.iter().count()));
}

// === impl ZoneAnswer ===

impl ZoneAnswer {
    /// Returns whether the queried name may be the target of a load balancer in `namespace`. A name that belongs to no
    /// link may be a target only if the answer has no records.
    #[must_use]
    pub fn is_open_to(&self, namespace: &str) -> bool {
        self.link.as_ref().map_or(self.answers.is_empty(), |link| link.is_open_to(namespace))
    }

    /// Returns why the name isn't open to `namespace`.
    pub fn denied_to(&self, namespace: &str) -> String {
        self.link.as_ref().map_or_else(
            || "it belongs to the zone itself".to_owned(),
            |link| {
                let (owner, namespace) = (link.key.clone(), namespace.to_owned());
                Denied::OtherNamespace { owner, namespace }.to_string()
            },
        )
    }

    fn not_ready(knows_services: bool) -> Self {
        let ede = if knows_services { Ede::SOURCE_NOT_READY } else { Ede::NOT_READY };
        Self { ede: Some(ede), ..Self::new(ResponseCode::ServFail) }
    }

    fn new(rcode: ResponseCode) -> Self {
        Self {
            rcode,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            target: None,
            ede: None,
            link: None,
            hops: Vec::new(),
            dependencies: None,
            snapshot: None,
        }
    }
}

#[cfg(test)]
mod tests;
