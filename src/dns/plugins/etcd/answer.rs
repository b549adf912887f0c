//! What the keys say about a question, as CoreDNS's `plugin/backend_lookup.go` defines it. Targets outside of the zone
//! are looked up by the caller.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::rr::rdata::{A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::time::Instant;

use super::index::{Entry, Index, KeyRange};
use super::record::{Host, Service, strings};
use crate::dns::message::presentation::parse_name;
use crate::model::excerpt::value;

/// The maximum number of keys that a question may find, those of CNAME targets in the zone included.
const MAX_FOUND: usize = 4096;
/// The maximum number of keys that are read for a question, and for one whose name stands for other names.
const MAX_READ: usize = 1 << 15;
const MAX_READ_FOR_WILDCARD: usize = 4096;
/// CoreDNS's maximum of CNAME records before another one.
const MAX_CHAIN: usize = 10;
/// The TTL of a record that has none, in seconds.
const TTL: u32 = 300;
/// The weight of a record that has none.
const WEIGHT: u32 = 100;
/// The TTL of the SOA record, and of names that don't exist, in seconds.
const SOA_TTL: u32 = 30;

/// The bounds of TTLs that leases set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTtls {
    pub min: u32,
    pub max: u32,
}

/// A question for a name in a zone.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub zone: &'a Name,
    pub name: &'a Name,
    pub qtype: RecordType,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Record(Record),
    Outside(Outside),
}

/// A name outside of the zone, whose records are looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    pub target: Name,
    pub qtype: RecordType,
    /// The record that leads there; without an answer to the look-up it isn't part of the answer.
    pub alias: Option<Record>,
    /// Whether CNAME records of the answer are part of it already.
    pub without_aliases: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Parts {
        answers: Vec<Part>,
        additionals: Vec<Part>,
    },
    /// The SOA record of the zone.
    Soa,
    /// The name has no records of the type.
    Empty,
    /// No key is at the place that counts for the type, though the name may exist.
    Missing {
        exists: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub outcome: Outcome,
    /// Whether a TTL depends on the time that is left of a lease.
    pub runs_down: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the name has more than {MAX_FOUND} keys")]
    TooMany,
    #[error("the key {} is left out, see the log", value(.0))]
    LeftOut(String),
    #[error("the host {} of a name server isn't an IP address", value(.0))]
    NameServer(String),
}

/// Why a step finds no records.
enum Stop {
    Missing,
    Failed(Failure),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Exact,
    Below,
}

/// A record that was found.
#[derive(Clone, Copy)]
struct Found<'a> {
    key: &'a [u8],
    service: &'a Service,
    ttl: u32,
    /// The number of parts of its key, as far as groups depend on it.
    length: usize,
}

/// Finds the group of the records that are answered, while they are read.
#[derive(Default)]
struct GroupFinder<'a> {
    /// The group of the shortest key, and the number of parts of that key.
    group: Option<(&'a str, usize)>,
    has_ended: bool,
}

struct Search<'a> {
    index: &'a Index,
    range: &'a KeyRange,
    lease_ttls: LeaseTtls,
    zone: &'a Name,
    now: Instant,
    reads_left: usize,
    found_left: usize,
    runs_down: bool,
}

/// Answers a question.
///
/// # Errors
/// If the keys can't be answered from.
pub fn answer(
    index: &Index,
    range: &KeyRange,
    lease_ttls: LeaseTtls,
    question: Question<'_>,
    now: Instant,
) -> Result<Answer, Failure> {
    let Question { zone, name, .. } = question;
    if question.qtype == RecordType::SOA && zone == name {
        return Ok(Answer { outcome: Outcome::Soa, runs_down: false });
    }
    let is_wildcard = range.path(name).is_some_and(|path| path.before_wildcard.is_some());
    let reads_left = if is_wildcard { MAX_READ_FOR_WILDCARD } else { MAX_READ };
    let found_left = MAX_FOUND;
    let mut search = Search { index, range, lease_ttls, zone, now, reads_left, found_left, runs_down: false };
    let outcome = match search.parts(question) {
        Ok((answers, _)) if answers.is_empty() => Outcome::Empty,
        Ok((answers, additionals)) => Outcome::Parts { answers, additionals },
        Err(Stop::Missing) => Outcome::Missing { exists: zone == name || search.exists(name) },
        Err(Stop::Failed(failure)) => return Err(failure),
    };
    Ok(Answer { outcome, runs_down: search.runs_down })
}

/// Returns the SOA record of a zone.
#[must_use]
pub fn soa(zone: &Name, serial: u32) -> Option<Record> {
    let name = |labels: [&[u8]; 2]| {
        let labels = labels.into_iter().filter(|label| !label.is_empty()).chain(zone.iter());
        Name::from_labels(labels).ok()
    };
    let (server, mailbox) = (name([b"ns", b"dns"])?, name([b"hostmaster", b""])?);
    let soa = SOA::new(server, mailbox, serial, 7200, 1800, 86400, SOA_TTL);
    Some(Record::from_rdata(zone.clone(), SOA_TTL, RData::SOA(soa)))
}

impl<'a> Search<'a> {
    fn parts(&mut self, question: Question<'_>) -> Result<(Vec<Part>, Vec<Part>), Stop> {
        let Question { zone, name, qtype } = question;
        let records = |records: Vec<Record>| records.into_iter().map(Part::Record).collect();
        let answers = match qtype {
            RecordType::A | RecordType::AAAA | RecordType::TXT => {
                self.aliased(name, name, qtype, &mut Vec::new())?
            }
            RecordType::CNAME => records(self.cname(name)?),
            RecordType::PTR => records(self.ptr(name)?),
            RecordType::SRV => return self.srv(name),
            RecordType::MX => return self.mx(name),
            RecordType::NS if name == zone => {
                let (servers, addresses) = self.ns(name)?;
                return Ok((records(servers), records(addresses)));
            }
            _ if self.exists(name) => Vec::new(),
            _ => {
                // The name may stand for other names.
                self.services(name, RecordType::A, Reach::Below)?;
                Vec::new()
            }
        };
        Ok((answers, Vec::new()))
    }

    /// Returns whether there is a key at or below the path of a name.
    fn exists(&self, name: &Name) -> bool {
        self.range.path(name).is_some_and(|path| self.index.at_or_below(&path.text).next().is_some())
    }

    /// Returns the records of a name that count for a type.
    fn services(&mut self, name: &Name, qtype: RecordType, reach: Reach) -> Result<Vec<Found<'a>>, Stop> {
        let Some(path) = self.range.path(name) else { return Err(Stop::Missing) };
        let from = path.before_wildcard.map_or(&*path.text, |end| &path.text[..end]);
        let parts: Option<Vec<&[u8]>> =
            path.before_wildcard.map(|_| path.text.split('/').map(str::as_bytes).collect());
        let (mut found, mut left_out, mut is_missing) = (Vec::new(), None, true);
        let mut groups = GroupFinder::default();
        let index = self.index;
        let (exact, below) = match reach {
            Reach::Exact => (index.at(from), None),
            Reach::Below => (None, Some(index.at_or_below(from))),
        };
        for entry in exact.into_iter().chain(below.into_iter().flatten()) {
            is_missing = false;
            take(&mut self.reads_left)?;
            if parts.as_ref().is_some_and(|parts| !matches_key(parts, &entry.key)) {
                continue;
            }
            match &entry.service {
                None => left_out = Some(&entry.key),
                Some(service) if counts_for(service, qtype) => {
                    let length = groups.add(service, &entry.key);
                    if has_records(service, qtype) || !service.group.is_empty() {
                        take(&mut self.found_left)?;
                        found.push(Found { key: &entry.key, service, ttl: self.ttl(entry, service), length });
                    }
                }
                Some(_) => {}
            }
        }
        match left_out {
            _ if is_missing => Err(Stop::Missing),
            Some(key) if groups.group.is_none() => {
                Err(Stop::Failed(Failure::LeftOut(String::from_utf8_lossy(key).into_owned())))
            }
            _ => Ok(groups.choose(found)),
        }
    }

    /// Returns the records of a name, and for the zone those of `apex.dns` in it, if there are any.
    fn services_or_apex(&mut self, name: &Name, qtype: RecordType) -> Result<Vec<Found<'a>>, Stop> {
        if name == self.zone
            && let Some(apex) = self.in_dns(b"apex")
        {
            match self.services(&apex, qtype, Reach::Below) {
                Err(Stop::Missing) => {}
                found => return found,
            }
        }
        self.services(name, qtype, Reach::Below)
    }

    /// Returns the name `<label>.dns` in the zone.
    fn in_dns(&self, label: &[u8]) -> Option<Name> {
        Name::from_labels([label, b"dns"].into_iter().chain(self.zone.iter())).ok()
    }

    /// Returns the TTL: the lower one of the record's and of what is left of its lease.
    fn ttl(&mut self, entry: &Entry, service: &Service) -> u32 {
        let set = Some(service.ttl).filter(|ttl| *ttl > 0);
        let of_lease = (entry.lease != 0).then(|| {
            let left = self.index.lease_left(entry.lease, self.now);
            let left = u32::try_from((left + Duration::from_millis(500)).as_secs()).unwrap_or(u32::MAX);
            left.max(self.lease_ttls.min).min(self.lease_ttls.max.max(self.lease_ttls.min))
        });
        self.runs_down |= of_lease.is_some();
        match (set, of_lease) {
            (Some(set), Some(of_lease)) => set.min(of_lease),
            (set, of_lease) => set.or(of_lease).unwrap_or(TTL),
        }
    }

    /// Returns the addresses or texts of a name, also of names that it is an alias of. `owner` is its spelling in
    /// records.
    fn aliased(
        &mut self,
        name: &Name,
        owner: &Name,
        qtype: RecordType,
        chain: &mut Vec<Name>,
    ) -> Result<Vec<Part>, Stop> {
        let found = match qtype {
            RecordType::TXT => self.services(name, qtype, Reach::Below)?,
            _ => self.services_or_apex(name, qtype)?,
        };
        let (mut parts, mut known) = (Vec::new(), HashSet::new());
        for found in found {
            match &found.service.host {
                // A text makes it a TXT record.
                Host::None | Host::Name(_) if !found.service.text.is_empty() => {
                    if qtype == RecordType::TXT && known.insert(found.service.text.as_bytes().to_vec()) {
                        parts.push(found.record(owner, RData::TXT(text(found.service))));
                    }
                }
                Host::Name(host) => {
                    if let Some(target) = parse_name(host) {
                        self.follow(name, found.alias(owner, &target), target, qtype, chain, &mut parts)?;
                    }
                }
                Host::Address(ip) => {
                    let data = match (ip, qtype) {
                        (IpAddr::V4(ip), RecordType::A) => RData::A(A(*ip)),
                        (IpAddr::V6(ip), RecordType::AAAA) => RData::AAAA(AAAA(*ip)),
                        _ => continue,
                    };
                    if known.insert(ip.to_string().into_bytes()) {
                        parts.push(found.record(owner, data));
                    }
                }
                Host::None => {}
            }
        }
        Ok(parts)
    }

    /// Adds a CNAME record and what is behind it.
    fn follow(
        &mut self,
        name: &Name,
        alias: Record,
        target: Name,
        qtype: RecordType,
        chain: &mut Vec<Name>,
        parts: &mut Vec<Part>,
    ) -> Result<(), Stop> {
        // A name below the queried name would be found again.
        if name.zone_of(&target) || chain.len() > MAX_CHAIN || chain.contains(&target) {
            return Ok(());
        }
        if !self.zone.zone_of(&target) {
            let alias = Some(alias);
            parts.push(Part::Outside(Outside { target, qtype, alias, without_aliases: false }));
            return Ok(());
        }
        chain.push(target.clone());
        let behind = self.aliased(&target, &target, qtype, chain);
        chain.pop();
        match behind {
            Ok(behind) if !behind.is_empty() => {
                parts.push(Part::Record(alias));
                parts.extend(behind);
            }
            Err(stop @ Stop::Failed(Failure::TooMany)) => return Err(stop),
            // Other records of the name are answered.
            _ => {}
        }
        Ok(())
    }

    fn cname(&mut self, name: &Name) -> Result<Vec<Record>, Stop> {
        let found = self.services(name, RecordType::CNAME, Reach::Exact)?;
        let target = |found: &Found<'_>| Some(found.alias(name, &found.target()?));
        Ok(found.first().and_then(target).into_iter().collect())
    }

    fn ptr(&mut self, name: &Name) -> Result<Vec<Record>, Stop> {
        let found = self.services(name, RecordType::PTR, Reach::Exact)?;
        let mut known = HashSet::new();
        let targets = found.iter().filter_map(|found| Some((found, found.target()?)));
        let new = targets.filter(|(_, target)| known.insert(target.clone()));
        Ok(new.map(|(found, target)| found.plain(name, RData::PTR(PTR(target)))).collect())
    }

    /// Returns the name servers of the zone, whose records are below `ns.dns`, and their addresses.
    fn ns(&mut self, name: &Name) -> Result<(Vec<Record>, Vec<Record>), Stop> {
        let place = self.in_dns(b"ns").ok_or(Stop::Missing)?;
        let (mut servers, mut addresses, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for found in self.services(&place, RecordType::NS, Reach::Below)? {
            match &found.service.host {
                Host::Name(host) if found.service.text.is_empty() => {
                    return Err(Stop::Failed(Failure::NameServer(host.to_string())));
                }
                Host::Address(ip) => {
                    let Some(server) = self.range.name(found.key).map(|name| found.stripped(name)) else {
                        continue;
                    };
                    addresses.push(found.address(&server, *ip));
                    if known.insert(server.clone()) {
                        servers.push(found.plain(name, RData::NS(NS(server))));
                    }
                }
                _ => {}
            }
        }
        Ok((servers, addresses))
    }

    fn srv(&mut self, name: &Name) -> Result<(Vec<Part>, Vec<Part>), Stop> {
        let all = self.services(name, RecordType::SRV, Reach::Below)?;
        let mut totals: BTreeMap<u16, f64> = BTreeMap::new();
        let weight = |service: &Service| if service.weight == 0 { WEIGHT } else { service.weight };
        for found in &all {
            *totals.entry(found.service.priority).or_default() += f64::from(weight(found.service));
        }
        let mut targets = Targets::default();
        for found in all {
            let Service { port: Some(port), priority, .. } = *found.service else { continue };
            let share = 100.0 / totals[&priority] * f64::from(weight(found.service));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is from 0 to 100"
            )]
            let share = (share as u16).max(1);
            let data = |target: &Name| RData::SRV(SRV::new(priority, share, port, target.clone()));
            self.add_target(name, found, port, data, &mut targets);
        }
        Ok((targets.answers, targets.additionals))
    }

    fn mx(&mut self, name: &Name) -> Result<(Vec<Part>, Vec<Part>), Stop> {
        let all = self.services(name, RecordType::MX, Reach::Below)?;
        let mut targets = Targets::default();
        for found in all.into_iter().filter(|found| found.service.mail) {
            let preference = found.service.priority;
            let data = |target: &Name| RData::MX(MX::new(preference, target.clone()));
            self.add_target(name, found, preference, data, &mut targets);
        }
        Ok((targets.answers, targets.additionals))
    }

    /// Adds an SRV or MX record, and the addresses of its target. `number` is the port or the preference: an address
    /// has one record for each.
    fn add_target(
        &mut self,
        name: &Name,
        found: Found<'_>,
        number: u16,
        data: impl Fn(&Name) -> RData,
        to: &mut Targets,
    ) {
        match &found.service.host {
            Host::Name(host) if found.service.text.is_empty() => {
                let Some(target) = parse_name(host).map(|name| found.stripped(name)) else { return };
                to.answers.push(found.record(name, data(&target)));
                if !to.looked_up.insert(target.clone()) {
                    return;
                }
                if self.zone.zone_of(&target) {
                    let addresses = self.aliased(&target, &target, RecordType::A, &mut Vec::new());
                    to.additionals.extend(addresses.unwrap_or_default());
                    return;
                }
                for qtype in [RecordType::A, RecordType::AAAA] {
                    let (target, without_aliases) = (target.clone(), qtype == RecordType::AAAA);
                    to.additionals.push(Part::Outside(Outside {
                        target,
                        qtype,
                        alias: None,
                        without_aliases,
                    }));
                }
            }
            Host::Address(ip) => {
                let Some(own) = self.range.name(found.key) else { return };
                let target = found.stripped(own);
                if to.numbers.insert((target.clone(), number)) {
                    to.answers.push(found.record(name, data(&target)));
                }
                if to.addresses.insert((target.clone(), *ip)) {
                    to.additionals.push(Part::Record(found.address(&target, *ip)));
                }
            }
            _ => {}
        }
    }
}

/// The records of an answer with targets.
#[derive(Default)]
struct Targets {
    answers: Vec<Part>,
    additionals: Vec<Part>,
    looked_up: HashSet<Name>,
    numbers: HashSet<(Name, u16)>,
    addresses: HashSet<(Name, IpAddr)>,
}

impl Found<'_> {
    fn plain(&self, owner: &Name, data: RData) -> Record {
        Record::from_rdata(owner.clone(), self.ttl, data)
    }

    fn record(&self, owner: &Name, data: RData) -> Part {
        Part::Record(self.plain(owner, data))
    }

    fn alias(&self, owner: &Name, target: &Name) -> Record {
        self.plain(owner, RData::CNAME(CNAME(target.clone())))
    }

    fn address(&self, owner: &Name, ip: IpAddr) -> Record {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        self.plain(owner, data)
    }

    /// Returns the host, if it is a name.
    fn target(&self) -> Option<Name> {
        let Host::Name(host) = &self.service.host else { return None };
        parse_name(host)
    }

    /// Returns a name without its first `targetstrip` labels, unless it has no more labels.
    fn stripped(&self, name: Name) -> Name {
        let labels = name.iter().len();
        let strip = self.service.target_strip;
        if strip < labels { name.trim_to(labels - strip) } else { name }
    }
}

/// Returns whether a record counts for a type: the others may have only a text.
fn counts_for(service: &Service, qtype: RecordType) -> bool {
    service.host != Host::None || qtype == RecordType::TXT && !service.text.is_empty()
}

/// Returns whether a key begins with the parts of a path, some of which stand for any part.
fn matches_key(parts: &[&[u8]], key: &[u8]) -> bool {
    let mut of_key = key.split(|byte| *byte == b'/');
    parts.iter().all(|part| of_key.next().is_some_and(|own| matches!(*part, b"*" | b"any") || *part == own))
}

/// Returns whether a record that counts for a type may have an answer for it.
fn has_records(service: &Service, qtype: RecordType) -> bool {
    let is_alias = matches!(service.host, Host::Name(_));
    match qtype {
        RecordType::A => is_alias || matches!(service.host, Host::Address(IpAddr::V4(_))),
        RecordType::AAAA => is_alias || matches!(service.host, Host::Address(IpAddr::V6(_))),
        RecordType::TXT => is_alias || !service.text.is_empty(),
        RecordType::MX => service.mail,
        _ => true,
    }
}

fn take(left: &mut usize) -> Result<(), Stop> {
    *left = left.checked_sub(1).ok_or(Stop::Failed(Failure::TooMany))?;
    Ok(())
}

impl<'a> GroupFinder<'a> {
    /// Adds a record, and returns the number of parts of its key. As in CoreDNS, a shorter key without a group ends
    /// the search, and the lengths of the keys after it don't count.
    fn add(&mut self, service: &'a Service, key: &[u8]) -> usize {
        if self.has_ended {
            return 0;
        }
        let length = key.iter().filter(|byte| **byte == b'/').count();
        match self.group {
            Some((_, shortest)) if length >= shortest => {}
            Some(_) if service.group.is_empty() => self.has_ended = true,
            _ => self.group = Some((&*service.group, length)),
        }
        length
    }

    /// Returns the records of the group, and those without a group. Without a group, or with several groups of the
    /// shortest keys, returns all.
    fn choose(&self, mut all: Vec<Found<'a>>) -> Vec<Found<'a>> {
        let Some((group, shortest)) = self.group.filter(|(group, _)| !group.is_empty()) else { return all };
        let is_other = |found: &Found<'_>| !found.service.group.is_empty() && *found.service.group != *group;
        if !all.iter().any(|found| found.length == shortest && is_other(found)) {
            all.retain(|found| !is_other(found));
        }
        all
    }
}

fn text(service: &Service) -> TXT {
    TXT::from_bytes(strings(&service.text).iter().map(Vec::as_slice).collect())
}
