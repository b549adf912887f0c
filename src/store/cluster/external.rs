//! Answers for the external addresses of Services, as CoreDNS's plugin *k8s_external* gives them. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::answer::{
    Answer, LookUp, MAX_SERVERS, Outcome, has_ports_below, matching, of_endpoints, outcome_of,
};
use super::endpoints::Endpoint;
use super::index::Tree;
use super::objects::{Addressing, External};
use super::question::{Below, address_of, stripped};
use super::records::{
    A, AAAA, Group, MAX_RECORDS, NS, PTR, RecordSet, SOA, SRV, Ttls, address, name_below, pointer,
};
use crate::model::names;

/// How external names are answered.
#[derive(Clone, Debug)]
pub struct ExternalRules {
    /// The zones, in wire form with the root octet, in lower case. PTR records lead to the first one.
    pub zones: Vec<Box<[u8]>>,
    /// The name of the zone's own names in the zone, in lower case: one label, or more.
    pub apex: Box<str>,
    /// In seconds.
    pub ttl: u32,
    /// Whether headless Services without external addresses, and endpoints, have names, too.
    pub headless: bool,
}

/// The label of the name server below that of the apex.
pub(super) const SERVER: &str = "ns1";

impl<'a> LookUp<'a> {
    pub(super) fn external(mut self, rules: &ExternalRules, name: &[u8], qtype: u16) -> Answer {
        let below = name.strip_suffix(self.zone).unwrap_or_default();
        let mut labels: Vec<&[u8]> = names::labels(below).collect();
        labels.reverse();
        let apex = rules.apex.rsplit('.').map(str::as_bytes);
        let depth =
            labels.iter().copied().zip(apex.clone()).take_while(|(label, of_apex)| label == of_apex).count();
        let owner: Arc<[u8]> = name.into();
        if labels.is_empty() || depth == apex.count() {
            let below = (!labels.is_empty()).then(|| &labels[depth..]);
            let outcome = self.of_zone(rules, below, &owner, qtype);
            return self.finish(outcome, false);
        }
        let outcome = self.of_objects(rules, &labels, &owner, qtype);
        let is_passed = outcome == Outcome::Absent || self.is_denied;
        self.finish(outcome, is_passed)
    }

    /// Returns what the zone itself has, or a name of its own, given by the labels below the apex.
    fn of_zone(
        &mut self,
        rules: &ExternalRules,
        below: Option<&[&[u8]]>,
        owner: &Arc<[u8]>,
        qtype: u16,
    ) -> Outcome {
        let ttl = rules.ttl;
        match below {
            None if qtype == SOA => Outcome::Soa,
            None if qtype == NS => {
                if !self.is_listed {
                    return Outcome::Empty;
                }
                let Some(server) = name_below([SERVER, &rules.apex], owner) else { return Outcome::Empty };
                let ips = self.external_servers(rules).into_iter();
                let glue = ips.map(|ip| address(&server, ip, ttl, true));
                let records = [pointer(owner, NS, &server, ttl)].into_iter().chain(glue).collect();
                outcome_of(RecordSet { records, ..RecordSet::default() })
            }
            None | Some([]) => Outcome::Empty,
            Some([server]) if *server == SERVER.as_bytes() => {
                let ips = self.external_servers(rules).into_iter();
                let of_type = ips.filter(|ip| qtype == if ip.is_ipv4() { A } else { AAAA });
                let records = of_type.map(|ip| address(owner, ip, ttl, false)).collect();
                outcome_of(RecordSet { records, ..RecordSet::default() })
            }
            Some(_) => Outcome::Absent,
        }
    }

    fn of_objects(
        &mut self,
        rules: &ExternalRules,
        labels: &[&[u8]],
        owner: &Arc<[u8]>,
        qtype: u16,
    ) -> Outcome {
        if let Some(ip) = address_of(owner) {
            let pointers = self.external_pointers(rules, ip, owner);
            return match pointers.records.is_empty() {
                true => Outcome::Absent,
                false if qtype == PTR => outcome_of(pointers),
                false => self.denied(),
            };
        }
        let texts: Option<Vec<&str>> =
            labels.iter().take(2).map(|label| std::str::from_utf8(label).ok()).collect();
        let Some([namespace, names @ ..]) = texts.as_deref() else { return Outcome::Absent };
        if !self.exposes(namespace) {
            return Outcome::Absent;
        }
        let [name] = names else { return Outcome::Empty };
        let below = match labels[2..] {
            [] => Below::Itself,
            [label] if stripped(label).is_empty() => Below::Itself,
            [label] => Below::Endpoint(label),
            [protocol, port] => Below::Port { port: stripped(port), protocol: stripped(protocol) },
            _ => return Outcome::Absent,
        };
        let groups = match self.external_groups(rules, namespace, name, below) {
            Ok(groups) => groups,
            Err(outcome) => return outcome,
        };
        // A name has one CNAME record, and an address goes before it.
        let is_wanted = |ip: IpAddr| !matches!(qtype, A | AAAA) || ip.is_ipv4() == (qtype == A);
        let has_address = groups.iter().flat_map(|group| &group.targets).any(|target| is_wanted(target.ip));
        let host = groups.iter().flat_map(|group| &group.hosts).next().filter(|_| !has_address);
        match (qtype, host) {
            (SRV, _) => {
                let ttls = Ttls { record: self.rules.ttl, glue: rules.ttl };
                outcome_of(RecordSet::services(&groups, owner, ttls))
            }
            (_, Some(host)) => Outcome::Alias((*host).into()),
            (A | AAAA, None) => outcome_of(RecordSet::addresses(&groups, owner, qtype, rules.ttl)),
            _ => Outcome::Empty,
        }
    }

    /// Returns what the name of a Service, or a name below, leads to.
    fn external_groups(
        &mut self,
        rules: &ExternalRules,
        namespace: &str,
        name: &str,
        below: Below<'_>,
    ) -> Result<Vec<Group<'a>>, Outcome> {
        let key = format!("{name}.{namespace}");
        let Some(entry) = self.index.entry(&key) else {
            self.touched.add(Tree::Service, key.as_bytes());
            return Err(Outcome::Absent);
        };
        self.flags.push(entry.flag());
        let service = entry.service.as_ref().ok_or(Outcome::Absent)?;
        let owner = name_below([name, namespace], self.zone).ok_or(Outcome::Absent)?;
        let externals = self.externals(&key);
        let is_headless = service.addressing == Addressing::Headless;
        let by_endpoints = rules.headless && externals.is_empty();
        let groups = match below {
            Below::Endpoint(label) if by_endpoints => {
                of_endpoints(entry, Below::Endpoint(stripped(label)), &owner)
            }
            _ if by_endpoints && is_headless => of_endpoints(entry, below, &owner),
            _ if externals.is_empty() => Vec::new(),
            _ => {
                let targets = addresses(externals).map(|ip| Endpoint { ip, name: None }).collect();
                let hosts = externals.iter().filter_map(|external| match external {
                    External::Host(host) => Some(&**host),
                    External::Address(_) => None,
                });
                let ports = matching(&service.ports, below);
                vec![Group { ports, targets, hosts: hosts.collect(), owner, is_named: false }]
            }
        };
        let groups: Vec<Group<'a>> = groups.into_iter().filter(|group| !group.ports.is_empty()).collect();
        match below {
            _ if !groups.is_empty() => Ok(groups),
            Below::Endpoint(label)
                if by_endpoints && is_headless && has_ports_below(entry, service, label) =>
            {
                Err(self.denied())
            }
            _ => Err(Outcome::Absent),
        }
    }

    /// Returns the external addresses and hostnames of a Service.
    fn externals(&mut self, key: &str) -> &'a [External] {
        let (externals, flag) = self.index.externals(key);
        match flag {
            Some(flag) => self.flags.push(flag),
            None => self.touched.add(Tree::External, key.as_bytes()),
        }
        externals
    }

    /// Returns the PTR records of an external address.
    fn external_pointers(&mut self, rules: &ExternalRules, ip: IpAddr, owner: &Arc<[u8]>) -> RecordSet {
        self.touched.add_address(Tree::ExternalAddress, ip);
        let mut set = RecordSet::default();
        let Some(zone) = rules.zones.first() else { return set };
        let index = self.index;
        for key in index.externals_at(ip) {
            if !self.shows(key) {
                continue;
            }
            if set.records.len() == MAX_RECORDS {
                set.is_cut = true;
                break;
            }
            set.records
                .extend(name_below([&**key], zone).map(|target| pointer(owner, PTR, &target, rules.ttl)));
        }
        set
    }

    /// Returns the addresses of the name server: the external ones of the Services in front of this server, or else its
    /// own.
    fn external_servers(&mut self, rules: &ExternalRules) -> Vec<IpAddr> {
        let (mut found, mut is_behind_service): (SmallVec<[IpAddr; 4]>, bool) = (SmallVec::new(), false);
        for own in &self.rules.own_addresses {
            self.touched.add_address(Tree::Address, *own);
            for (key, entry) in self.index.at(*own) {
                for slice in entry.slices.iter().filter(|slice| slice.has(*own)) {
                    is_behind_service = true;
                    self.flags.push(entry.flag());
                    match &entry.service {
                        Some(service) if rules.headless && service.addressing == Addressing::Headless => {
                            found.extend(slice.addresses.iter().take(MAX_SERVERS).copied());
                        }
                        Some(_) => found.extend(addresses(self.externals(key)).take(MAX_SERVERS)),
                        None => {}
                    }
                }
            }
        }
        if !is_behind_service && self.is_listed {
            found.extend_from_slice(&self.rules.own_addresses);
        }
        let mut servers: Vec<IpAddr> = Vec::new();
        for ip in found {
            if servers.len() < MAX_SERVERS && !servers.contains(&ip) {
                servers.push(ip);
            }
        }
        servers
    }
}

fn addresses(externals: &[External]) -> impl Iterator<Item = IpAddr> {
    externals.iter().filter_map(|external| match external {
        External::Address(ip) => Some(*ip),
        External::Host(_) => None,
    })
}
