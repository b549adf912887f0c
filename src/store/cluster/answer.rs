//! Answers, as the DNS specification of Kubernetes and CoreDNS's plugin *kubernetes* define them. Pure.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::endpoints::{Endpoint, WantedEndpoint, address_text};
use super::index::{Entry, Index, Touched, Tree};
use super::objects::{Addressing, Port, Service, Slice};
use super::question::{Below, Branch, Grammar, Question, address_of};
use super::records::{
    A, AAAA, Group, MAX_RECORDS, NS, PTR, RecordSet, SOA, SRV, TXT, Ttls, address, name_below, pointer,
};
use crate::model::outdated::OutdatedFlag;
use crate::store::NameDependency;
use crate::store::name_slots::NameSlots;

pub use super::question::is_reverse;
pub use super::records::Record;

/// The version of the specification, and the TTL of its record in seconds.
const SCHEMA: (&[u8], u32) = (b"\x051.1.0", 28_800);
/// Maximum number of addresses of name servers.
pub(super) const MAX_SERVERS: usize = 100;
/// The number of Pods with one address that count.
const MAX_PODS: usize = 1000;

/// How names of Pods are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodMode {
    #[default]
    Disabled,
    /// Each address is that of a Pod.
    Insecure,
    Verified,
}

/// How names are answered.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The zones, in wire form with the root octet, in lower case.
    pub zones: Vec<Box<[u8]>>,
    /// The zone of the targets of PTR records.
    pub primary: Box<[u8]>,
    pub pods: PodMode,
    /// Whether headless Services have names for topology zones.
    pub zonal: bool,
    /// The zones whose names are those of ServiceImports, and of names below.
    pub multicluster: Vec<Box<[u8]>>,
    /// In seconds.
    pub ttl: u32,
    /// Whether Services without a ready endpoint don't exist, but for headless ones and ExternalNames.
    pub ignores_empty: bool,
    /// The namespaces whose names exist; `None` for all that there are.
    pub namespaces: Option<BTreeSet<Box<str>>>,
    /// Whether the namespaces are a selection, which PTR records follow, too.
    pub selects_namespaces: bool,
    /// The addresses of this server.
    pub own_addresses: Vec<IpAddr>,
}

impl Rules {
    /// Returns whether the names of a zone are those of ServiceImports.
    #[must_use]
    pub fn is_multicluster(&self, zone: &[u8]) -> bool {
        !self.multicluster.is_empty() && zone_of(&self.multicluster, zone).is_some()
    }
}

/// Returns the longest zone that contains a name, all in wire form with the root octet, in lower case.
#[must_use]
pub fn zone_of<'a>(zones: &'a [Box<[u8]>], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = name;
    loop {
        if let Some(zone) = zones.iter().find(|zone| &***zone == rest) {
            return Some(zone);
        }
        let (length, labels) = rest.split_first().filter(|(length, _)| **length > 0)?;
        rest = labels.get(usize::from(*length)..)?;
    }
}

/// An answer, and what it rests on.
#[derive(Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Whether CoreDNS says that the name doesn't exist: `fallthrough` passes it on.
    pub is_passed: bool,
    pub flags: Vec<OutdatedFlag>,
    pub names: Option<NameDependency>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The name doesn't exist.
    Absent,
    /// The name has no records of this type.
    Empty,
    /// The SOA record of the zone.
    Soa,
    Records {
        records: Vec<Record>,
        /// Whether records were left out.
        is_cut: bool,
        /// The targets of SRV records outside of the cluster, in wire form with the root octet.
        hosts: Vec<Box<[u8]>>,
    },
    /// The name is an alias of this one, in wire form with the root octet.
    Alias(Box<[u8]>),
}

/// A look-up in one zone.
pub(super) struct LookUp<'a> {
    pub(super) index: &'a Index,
    names: &'a Arc<NameSlots>,
    pub(super) rules: &'a Rules,
    pub(super) zone: &'a [u8],
    /// Whether all objects are known.
    pub(super) is_listed: bool,
    /// Whether CoreDNS denies the name for this type, though it exists for others or has names below.
    pub(super) is_denied: bool,
    pub(super) flags: Vec<OutdatedFlag>,
    pub(super) touched: Touched<'a>,
}

impl<'a> LookUp<'a> {
    pub(super) fn new(
        index: &'a Index,
        names: &'a Arc<NameSlots>,
        rules: &'a Rules,
        zone: &'a [u8],
        is_listed: bool,
    ) -> Self {
        let (flags, touched) = (Vec::new(), Touched::new(names));
        Self { index, names, rules, zone, is_listed, is_denied: false, flags, touched }
    }

    pub(super) fn answer(mut self, name: &[u8], qtype: u16) -> Answer {
        let outcome = self.outcome(name, qtype);
        // CoreDNS denies the SOA record of no name.
        let is_passed = outcome == Outcome::Absent || self.is_denied && qtype != SOA;
        self.finish(outcome, is_passed)
    }

    pub(super) fn finish(self, outcome: Outcome, is_passed: bool) -> Answer {
        let slots = self.touched.into_slots();
        let (all, changes) = NameDependency::on_all(self.names);
        let names = (!slots.is_empty()).then(|| all.with_slots(slots, changes));
        Answer { outcome, is_passed, flags: self.flags, names }
    }

    fn outcome(&mut self, name: &[u8], qtype: u16) -> Outcome {
        let owner: Arc<[u8]> = name.into();
        if let Some(ip) = address_of(name) {
            let pointers = self.pointers(ip, &owner);
            match (pointers.records.is_empty(), qtype) {
                (false, PTR) => return outcome_of(pointers),
                (false, _) if name != self.zone => return self.denied(),
                (true, _) if name != self.zone => return Outcome::Absent,
                _ => {}
            }
        }
        let below = name.strip_suffix(self.zone).unwrap_or_default();
        let groups = match Question::parse(below, self.grammar()) {
            Question::Apex if qtype == SOA => return Outcome::Soa,
            Question::Apex if qtype == NS => return outcome_of(self.name_servers(&owner)),
            Question::Apex | Question::Branch if qtype == TXT => return self.denied(),
            Question::Apex | Question::Branch => return Outcome::Empty,
            Question::Version if qtype == TXT => return version(&owner),
            Question::Version | Question::AboveNameServer => return self.denied(),
            Question::NameServer if matches!(qtype, TXT | PTR) => return self.denied(),
            Question::NameServer => vec![self.name_server(&owner)],
            Question::Nothing => return Outcome::Absent,
            Question::Namespace(..) | Question::Object { .. } if is_reverse(self.zone) => {
                return Outcome::Absent;
            }
            Question::Namespace(branch, namespace) => {
                return match self.has(branch) && self.exposes(namespace) {
                    true if qtype == TXT => self.denied(),
                    true => Outcome::Empty,
                    false => Outcome::Absent,
                };
            }
            Question::Object { branch: Branch::Services, namespace, name, below } => {
                match self.service(namespace, name, below) {
                    Ok(groups) => groups,
                    Err(outcome) => return outcome,
                }
            }
            Question::Object { branch: Branch::Pods, namespace, name, .. } => {
                match self.pod(namespace, name) {
                    Some(group) => vec![group],
                    None => return Outcome::Absent,
                }
            }
        };
        let ttl = self.rules.ttl;
        match qtype {
            A | AAAA => outcome_of(RecordSet::addresses(&groups, &owner, qtype, ttl)),
            // CoreDNS denies a TXT record where it finds no address.
            TXT if groups.iter().all(|group| group.targets.is_empty()) => self.denied(),
            SRV => outcome_of(RecordSet::services(&groups, &owner, Ttls { record: ttl, glue: ttl })),
            _ => Outcome::Empty,
        }
    }

    fn grammar(&self) -> Grammar {
        match self.rules.is_multicluster(self.zone) {
            true => Grammar::Multicluster,
            false if self.rules.zonal => Grammar::Zonal,
            false => Grammar::Plain,
        }
    }

    /// The name has no records of the type, and CoreDNS says that it doesn't exist.
    pub(super) fn denied(&mut self) -> Outcome {
        self.is_denied = true;
        Outcome::Empty
    }

    /// Returns the addresses of the name server of the zone.
    fn name_server(&mut self, owner: &Arc<[u8]>) -> Group<'a> {
        let addresses = self.servers().into_iter().map(|(_, ip)| Endpoint { ip, name: None });
        Group {
            ports: [None].into_iter().collect(),
            targets: addresses.collect(),
            owner: Arc::clone(owner),
            ..Group::default()
        }
    }

    fn has(&self, branch: Branch) -> bool {
        branch == Branch::Services || self.rules.pods != PodMode::Disabled
    }

    /// Returns whether the names of a namespace exist.
    pub(super) fn exposes(&mut self, namespace: &str) -> bool {
        if self.rules.namespaces.as_ref().is_some_and(|names| !names.contains(namespace)) {
            return false;
        }
        match self.index.namespace(namespace) {
            Some(flag) => self.flags.push(flag.get()),
            None => self.touched.add(Tree::Namespace, namespace.as_bytes()),
        }
        self.index.namespace(namespace).is_some()
    }

    /// Returns whether PTR records lead to a Service, given as `<service>.<namespace>`.
    pub(super) fn shows(&mut self, key: &str) -> bool {
        let namespace = key.split_once('.').map(|(_, namespace)| namespace).unwrap_or_default();
        !self.rules.selects_namespaces || self.exposes(namespace)
    }

    /// Returns what the name of a Service, or a name below, leads to.
    fn service(&mut self, namespace: &str, name: &str, below: Below<'_>) -> Result<Vec<Group<'a>>, Outcome> {
        if !self.exposes(namespace) {
            return Err(Outcome::Absent);
        }
        let key = format!("{name}.{namespace}");
        let is_import = self.grammar() == Grammar::Multicluster;
        let (found, tree) = match is_import {
            true => (self.index.import(&key), Tree::Import),
            false => (self.index.entry(&key), Tree::Service),
        };
        let Some(entry) = found else {
            self.touched.add(tree, key.as_bytes());
            return Err(Outcome::Absent);
        };
        self.flags.push(entry.flag());
        let service = entry.service.as_ref().ok_or(Outcome::Absent)?;
        let owner = name_below([name, namespace, "svc"], self.zone).ok_or(Outcome::Absent)?;
        match below {
            Below::Zone { .. } | Below::AboveZone if service.addressing != Addressing::Headless => {
                return Err(Outcome::Absent);
            }
            Below::AboveZone => return Err(self.denied()),
            Below::Zone { is_pin, .. } => {
                let mut groups = of_endpoints(entry, below, &owner);
                if groups.is_empty() && !is_pin {
                    groups = of_endpoints(entry, Below::Itself, &owner);
                }
                return if groups.is_empty() { Err(Outcome::Empty) } else { Ok(groups) };
            }
            _ => {}
        }
        let is_empty = || entry.slices.iter().all(|slice| slice.addresses.is_empty());
        let groups = match &service.addressing {
            Addressing::Alias(target) if below == Below::Itself => {
                return Err(Outcome::Alias(target.clone()));
            }
            Addressing::Alias(_) | Addressing::Unusable => Vec::new(),
            Addressing::ClusterIps(_) if self.rules.ignores_empty && is_empty() => Vec::new(),
            // As in CoreDNS, a ServiceImport needs ports.
            Addressing::ClusterIps(_) if is_import && service.ports.is_empty() && !has_endpoint(below) => {
                Vec::new()
            }
            Addressing::ClusterIps(ips) if !has_endpoint(below) => {
                let targets = ips.iter().map(|ip| Endpoint { ip: *ip, name: None }).collect();
                let ports = matching(&service.ports, below);
                vec![Group { ports, targets, owner, ..Group::default() }]
            }
            Addressing::ClusterIps(_) | Addressing::Headless => of_endpoints(entry, below, &owner),
        };
        let groups: Vec<Group<'a>> = groups.into_iter().filter(|group| !group.ports.is_empty()).collect();
        match below {
            _ if !groups.is_empty() => Ok(groups),
            Below::Endpoint(label) if has_cluster(entry, label) => Err(self.denied()),
            Below::Endpoint(label) if has_ports_below(entry, service, label) => Err(self.denied()),
            _ => Err(Outcome::Absent),
        }
    }

    /// Returns the address that the name of a Pod, or any name one or two labels below, stands for.
    fn pod(&mut self, namespace: &str, name: &str) -> Option<Group<'a>> {
        if !self.has(Branch::Pods) || !self.exposes(namespace) {
            return None;
        }
        let text = address_text(name);
        let written: IpAddr = text.parse().ok()?;
        let ip = written.to_canonical();
        let number = match self.rules.pods {
            PodMode::Disabled => 0,
            PodMode::Insecure => 1,
            // The address has one text.
            PodMode::Verified if written.to_string() != text => 0,
            PodMode::Verified => {
                self.touched.add_address(Tree::Pod, ip);
                self.index.pods_at(ip, namespace).min(MAX_PODS)
            }
        };
        let owner = name_below([name, namespace, "pod"], self.zone)?;
        let targets = vec![Endpoint { ip, name: None }; number];
        let group = Group { ports: [Some(0)].into_iter().collect(), targets, owner, ..Group::default() };
        (number > 0).then_some(group)
    }

    /// Returns the PTR records of an address: of the Service with this cluster IP, else of all endpoints.
    fn pointers(&mut self, ip: IpAddr, owner: &Arc<[u8]>) -> RecordSet {
        self.touched.add_address(Tree::Address, ip);
        let index = self.index;
        let mut set = RecordSet::default();
        let exposed: Vec<_> = index.at(ip).filter(|(key, _)| self.shows(key)).collect();
        let (ttl, primary) = (self.rules.ttl, &*self.rules.primary);
        if let Some((key, _)) = exposed.iter().find(|(_, entry)| entry.cluster_ips().contains(&ip)) {
            let target = name_below([&***key, "svc"], primary);
            set.records.extend(target.map(|target| pointer(owner, PTR, &target, ttl)));
            return set;
        }
        let mut seen = HashSet::new();
        for (key, entry) in exposed {
            let endpoints = entry.slices.iter().flat_map(|slice| slice.endpoints());
            for endpoint in endpoints.filter(|endpoint| endpoint.ip == ip) {
                let Some(target) = name_below([&*endpoint.label(), &**key, "svc"], primary) else { continue };
                if set.records.len() == MAX_RECORDS {
                    set.is_cut = true;
                    return set;
                }
                if seen.insert(Arc::clone(&target)) {
                    set.records.push(pointer(owner, PTR, &target, ttl));
                }
            }
        }
        set
    }

    /// Returns the NS records of the zone, with the addresses of the servers.
    fn name_servers(&mut self, owner: &Arc<[u8]>) -> RecordSet {
        let (mut set, mut seen) = (RecordSet::default(), HashSet::new());
        let ttl = self.rules.ttl;
        for (server, ip) in self.servers() {
            if seen.insert(Arc::clone(&server)) {
                set.records.push(pointer(owner, NS, &server, ttl));
            }
            set.records.push(address(&server, ip, ttl, true));
        }
        set
    }

    /// Returns the names and addresses of the name servers: of the Services in front of this server, or else its own
    /// addresses.
    fn servers(&mut self) -> Vec<(Arc<[u8]>, IpAddr)> {
        let zone = if is_reverse(self.zone) { &*self.rules.primary } else { self.zone };
        let mut servers: Vec<(Arc<[u8]>, IpAddr)> = Vec::new();
        let mut is_behind_service = false;
        for own in &self.rules.own_addresses {
            self.touched.add_address(Tree::Address, *own);
            for (key, entry) in self.index.at(*own) {
                for slice in entry.slices.iter().filter(|slice| slice.has(*own)) {
                    is_behind_service = true;
                    self.flags.push(entry.flag());
                    let Some(service) = name_below([&**key, "svc"], zone) else { continue };
                    if matches!(&entry.service, Some(Service { addressing: Addressing::Headless, .. })) {
                        let of = |endpoint: Endpoint<'_>| {
                            Some((name_below([&*endpoint.label()], &service)?, endpoint.ip))
                        };
                        servers.extend(slice.endpoints().take(MAX_SERVERS).filter_map(of));
                    } else {
                        servers.extend(entry.cluster_ips().iter().map(|ip| (Arc::clone(&service), *ip)));
                    }
                }
            }
        }
        // Until all is listed, a Service in front of this server isn't known yet.
        if !is_behind_service
            && self.is_listed
            && let Some(name) = name_below(["ns.dns"], zone)
        {
            servers.extend(self.rules.own_addresses.iter().map(|ip| (Arc::clone(&name), *ip)));
        }
        let mut seen = HashSet::new();
        servers.retain(|server| seen.len() < MAX_SERVERS && seen.insert(server.clone()));
        servers
    }
}

pub(super) fn outcome_of(RecordSet { records, is_cut, hosts }: RecordSet) -> Outcome {
    if records.is_empty() { Outcome::Empty } else { Outcome::Records { records, is_cut, hosts } }
}

fn version(owner: &Arc<[u8]>) -> Outcome {
    let (text, ttl) = SCHEMA;
    outcome_of(RecordSet { records: vec![pointer(owner, TXT, text, ttl)], ..RecordSet::default() })
}

/// Returns the ports of a Service or a slice that a question is about. One without ports has one that any question fits
/// which names none.
pub(super) fn matching(ports: &[Port], below: Below<'_>) -> smallvec::SmallVec<[Option<u16>; 4]> {
    let Below::Port { port, protocol } = below else {
        return if ports.is_empty() {
            [None].into_iter().collect()
        } else {
            ports.iter().map(|port| port.number).collect()
        };
    };
    let is = |wanted: &[u8], text: &str| wanted.is_empty() || wanted.eq_ignore_ascii_case(text.as_bytes());
    if ports.is_empty() && port.is_empty() && protocol.is_empty() {
        return [None].into_iter().collect();
    }
    let is_wanted = |known: &&Port| is(port, &known.name) && is(protocol, known.protocol.label());
    ports.iter().filter(is_wanted).map(|port| port.number).collect()
}

/// Returns the endpoints of a Service that a question is about, by slice.
pub(super) fn of_endpoints<'a>(entry: &'a Entry, below: Below<'_>, owner: &Arc<[u8]>) -> Vec<Group<'a>> {
    let wanted = match below {
        Below::Endpoint(label) => Some(("".as_bytes(), WantedEndpoint::new(label))),
        Below::EndpointIn { cluster, endpoint } => Some((cluster, WantedEndpoint::new(endpoint))),
        _ => None,
    };
    let is_wanted = |slice: &Slice, place: usize, endpoint: &Endpoint<'_>| {
        let zones = || slice.zones.as_ref();
        let is_named = wanted.as_ref().is_none_or(|(cluster, wanted)| {
            slice.cluster.as_bytes().eq_ignore_ascii_case(cluster) && wanted.is(endpoint)
        });
        is_named
            && !matches!(below, Below::Zone { zone, .. } if !zones().is_some_and(|zones| zones.has(place, zone)))
    };
    let group = |slice: &'a Slice| Group {
        ports: matching(&slice.ports, below),
        targets: slice
            .endpoints()
            .enumerate()
            .filter(|(place, endpoint)| is_wanted(slice, *place, endpoint))
            .map(|(_, endpoint)| endpoint)
            .collect(),
        owner: match &*slice.cluster {
            "" => Arc::clone(owner),
            cluster => name_below([cluster], owner).unwrap_or_else(|| Arc::clone(owner)),
        },
        is_named: true,
        ..Group::default()
    };
    entry.slices.iter().map(group).filter(|group| !group.targets.is_empty()).collect()
}

/// Returns whether a name is that of an endpoint.
fn has_endpoint(below: Below<'_>) -> bool {
    matches!(below, Below::Endpoint(_) | Below::EndpointIn { .. })
}

/// Returns whether a ServiceImport has endpoints in a cluster.
fn has_cluster(entry: &Entry, label: &[u8]) -> bool {
    let is_in =
        |slice: &Slice| !slice.cluster.is_empty() && slice.cluster.as_bytes().eq_ignore_ascii_case(label);
    entry.slices.iter().any(|slice| !slice.addresses.is_empty() && is_in(slice))
}

/// Returns whether a Service has ports with names below the label of a protocol, such as `_tcp`.
pub(super) fn has_ports_below(entry: &Entry, service: &Service, label: &[u8]) -> bool {
    let Some(protocol) = label.strip_prefix(b"_") else { return false };
    let is_below = |port: &Port| {
        !port.name.is_empty() && port.protocol.label().as_bytes().eq_ignore_ascii_case(protocol)
    };
    match service.addressing {
        Addressing::ClusterIps(_) => service.ports.iter().any(is_below),
        Addressing::Headless => {
            let ready = entry.slices.iter().filter(|slice| !slice.addresses.is_empty());
            ready.flat_map(|slice| &slice.ports).any(is_below)
        }
        Addressing::Alias(_) | Addressing::Unusable => false,
    }
}
