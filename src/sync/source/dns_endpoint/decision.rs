//! What a DNSEndpoint asks for. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use indexmap::IndexSet;

use super::{DnsEndpoint, Entry};
use crate::model::hostname::{Hostname, host_name, to_presentation};
use crate::model::hostname_policy::in_stored_form;
use crate::model::link::{Annotations, Link, Target};
use crate::model::owner::{Source, Zone};
use crate::model::records::{RecordData, RecordKind, Records, smallest};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::Denied;
use crate::sync::k8s::annotations::{self, MANAGED, MAX_TTL, PREFIX};
use crate::sync::k8s::k8s_gateway::is_ignored;
use crate::sync::source::names::object::{Rules, created, created_at, uid, zone_of};
use crate::sync::source::names::shared::{Claim, MAX_SHARED};

/// Maximum number of entries of an object, and of targets of an entry, that count.
const MAX_ENTRIES: usize = 1000;
const MAX_TARGETS: usize = 100;
/// Maximum size of the targets of an entry in bytes.
const MAX_TARGET_BYTES: usize = 4 << 10;

/// What a DNSEndpoint asks for, and what of it doesn't count.
pub(super) struct Decision {
    /// The names, sorted, each once.
    pub(super) claims: Vec<Claim>,
    pub(super) unusable: Vec<Rejection>,
    /// Whether a CNAME leads to a name in zones of links: whether it is allowed depends on other objects.
    pub(super) is_dependent: bool,
}

/// The targets of an entry.
enum Parsed {
    Addresses(Vec<IpAddr>),
    Host(Hostname),
    Records(RecordKind, Vec<RecordData>),
}

/// What the entries of a name say.
#[derive(Default)]
struct Declared<'a> {
    /// The CNAME with the smallest setIdentifier, and the TTL of its entry.
    cname: Option<(&'a Entry, Hostname, Option<u32>)>,
    addresses: IndexSet<IpAddr>,
    /// The smallest TTL of the addresses' entries.
    ttl: Option<u32>,
    records: Records,
    /// The entries of other types than CNAME.
    others: Vec<&'a Entry>,
}

/// What of a DNSEndpoint doesn't count.
struct Unusable {
    names: Rejection,
    types: Rejection,
    ttls: Rejection,
    targets: Rejection,
    limits: Rejection,
    ignored_targets: usize,
}

impl DnsEndpoint {
    /// Returns what the object asks for. `before` are its claims before, sorted: what is behind a name stays as it
    /// is, if nothing has changed.
    pub(super) fn decide(&self, rules: &Rules, before: &[Claim]) -> Decision {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let mut unusable = Unusable::new();
        let mut all: BTreeMap<String, Declared<'_>> = BTreeMap::new();
        let mut is_dependent = false;
        for entry in self.spec.endpoints.iter().take(MAX_ENTRIES).flatten() {
            for name in entry.names(rules).into_iter().filter(|name| self.is_ours(name, rules)) {
                is_dependent |= entry.has_own_target(rules);
                if let Some(parsed) = entry.parse(namespace, &name, rules, &mut unusable) {
                    let ttl = entry.ttl(&name, &mut unusable);
                    let declared = all.entry(name.clone()).or_default();
                    declared.add(entry, parsed, ttl, &name, &mut unusable);
                }
            }
        }
        let ignored = self.spec.endpoints.len().saturating_sub(MAX_ENTRIES);
        unusable.limits.ignore(ignored, "the first 1000 count");
        let mut claims: Vec<Claim> = Vec::with_capacity(all.len());
        for (name, declared) in all {
            declared.report_others(&name, &mut unusable);
            let name = ServiceKey::new(namespace, &name);
            let known = before.binary_search_by(|known| known.name.cmp(&name)).ok();
            let target = self.link(&name, declared, known.map(|known| &before[known].target));
            claims.push(Claim { name, target });
        }
        let mut unusable = unusable.into_rejections();
        annotations::check_managed(&self.metadata, &mut unusable);
        unusable.extend(self.unknown_annotations());
        Decision { claims, unusable, is_dependent }
    }

    /// Returns what is behind a name, as far as this object decides.
    fn link(&self, name: &ServiceKey, declared: Declared<'_>, before: Option<&Arc<Link>>) -> Arc<Link> {
        let Declared { cname, addresses, ttl, mut records, .. } = declared;
        let (target, ttl) = match cname {
            Some((_, host, ttl)) => {
                records = Records::default();
                (Some(Target::Hostname(host)), ttl)
            }
            None if addresses.is_empty() => (None, ttl),
            None => (Some(Target::Addresses(addresses.into_iter().collect())), ttl),
        };
        records.shrink();
        let uid = uid(&self.metadata);
        let link = Link {
            created: created(&self.metadata),
            object_created: created_at(&self.metadata),
            target,
            annotations: Annotations { ttl, ..Annotations::default() },
            records: Some(Arc::new(records)),
            last_queried: before.map(|link| link.last_queried.clone()).unwrap_or_default(),
            // All versions of what is behind a name of the namespace have one key.
            ..Link::new(Source::DNS_ENDPOINTS.target_key(name), uid)
        };
        before.filter(|before| ***before == link).cloned().unwrap_or_else(|| Arc::new(link))
    }

    /// Returns whether a name lies in a zone with names of DNSEndpoints. Names elsewhere are those of other DNS servers.
    fn is_ours(&self, name: &str, rules: &Rules) -> bool {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let source = Source::DNS_ENDPOINTS.in_cluster_of(namespace);
        let has_names =
            |zone: &Zone| zone.has(&source) && (zone.k8s_gateway.is_none() || !is_ignored(&self.metadata));
        zone_of(name, &rules.zones).is_some_and(has_names)
    }

    fn unknown_annotations(&self) -> Option<Rejection> {
        let mut rejection = Rejection::new(RejectedField::Annotation, "the annotation");
        let all = self.metadata.annotations.iter().flatten().map(|(key, _)| key);
        for key in all.filter(|key| key.starts_with(PREFIX) && *key != MANAGED) {
            rejection.reject(key, &format!("DNSEndpoints have {MANAGED} alone"));
        }
        rejection.non_empty()
    }
}

impl Entry {
    /// Returns the name, or those below the zones of *k8s_gateway*.
    fn names(&self, rules: &Rules) -> Vec<String> {
        match Zone::k8s_gateway_names(&rules.zones, &self.dns_name) {
            names if names.is_empty() => vec![in_stored_form(&self.dns_name)],
            names => names,
        }
    }

    fn has_own_target(&self, rules: &Rules) -> bool {
        let host = self.targets.first().filter(|_| self.record_type == "CNAME");
        let host = host.and_then(|host| host_name(host).ok());
        host.is_some_and(|host| rules.policy.targets.zones.iter().any(|zone| zone.zone_of(&host)))
    }

    /// Returns the targets; `None` if the entry doesn't count.
    fn parse(&self, namespace: &str, name: &str, rules: &Rules, unusable: &mut Unusable) -> Option<Parsed> {
        if let Err(why) = rules.policy.check_granted_records(namespace, name) {
            unusable.names.reject(&self.dns_name, &why);
            return None;
        }
        let targets = self.targets_in_use(unusable);
        let of_type = |kind| records(&targets, kind).map(|data| Parsed::Records(kind, data));
        let parsed = match &*self.record_type {
            "A" => addresses(&targets, false, rules),
            "AAAA" => addresses(&targets, true, rules),
            "CNAME" => self.host(&targets, namespace, name, rules).map(Parsed::Host),
            "TXT" => of_type(RecordKind::Txt),
            "SRV" => of_type(RecordKind::Srv),
            "MX" => of_type(RecordKind::Mx),
            other => {
                let why = format!("{name}: the types are A, AAAA, CNAME, TXT, SRV and MX");
                unusable.types.reject(other, &why);
                return None;
            }
        };
        let parsed = match (&targets[..], &self.targets[..]) {
            ([], []) => Err(("", "the entry has no targets".to_owned())),
            ([], [first, ..]) => Err((&**first, format!("longer than {MAX_TARGET_BYTES} bytes"))),
            _ => parsed,
        };
        let refuse = |(target, why): (&str, String)| {
            unusable.targets.reject(target, &format!("{name} {}: {why}", self.record_type));
        };
        parsed.map_err(refuse).ok()
    }

    /// Returns the targets that count.
    fn targets_in_use(&self, unusable: &mut Unusable) -> Vec<&str> {
        let mut bytes = 0;
        let fits = |target: &&String| {
            bytes += target.len();
            bytes <= MAX_TARGET_BYTES
        };
        let in_use = self.targets.iter().take(MAX_TARGETS).take_while(fits);
        let in_use: Vec<&str> = in_use.map(String::as_str).collect();
        unusable.ignored_targets += self.targets.len() - in_use.len();
        in_use
    }

    fn first_target(&self) -> &str {
        self.targets.first().map_or("", String::as_str)
    }

    /// Returns the host of a CNAME.
    fn host<'a>(
        &self,
        targets: &[&'a str],
        namespace: &str,
        name: &str,
        rules: &Rules,
    ) -> Result<Hostname, (&'a str, String)> {
        let &[target] = targets else {
            let target = targets.get(1).copied().unwrap_or_default();
            return Err((target, "a CNAME has one target".to_owned()));
        };
        let host = host_name(target).map_err(|why| (target, why))?;
        let checked = match to_presentation(&host) == *name {
            true => Err(Denied::OwnName),
            false => rules.policy.targets.check_host(namespace, &host, |host| rules.store.link_of_host(host)),
        };
        checked.map_err(|denied| (target, denied.to_string()))?;
        Ok(Hostname::from(&host))
    }

    /// Returns the TTL, if it isn't the zone's.
    fn ttl(&self, name: &str, unusable: &mut Unusable) -> Option<u32> {
        let ttl = u32::try_from(self.record_ttl).ok().filter(|ttl| *ttl <= MAX_TTL);
        if ttl.is_none() {
            let why = format!("{name} {}: not 0 to {MAX_TTL}; the zone's TTL counts", self.record_type);
            unusable.ttls.reject(&self.record_ttl.to_string(), &why);
        }
        ttl.filter(|ttl| *ttl > 0)
    }
}

/// Returns the addresses of an entry.
fn addresses<'a>(targets: &[&'a str], is_ipv6: bool, rules: &Rules) -> Result<Parsed, (&'a str, String)> {
    let address = |target: &&'a str| {
        let parsed = target.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv6() == is_ipv6);
        let family = if is_ipv6 { "IPv6" } else { "IPv4" };
        let ip = parsed.ok_or_else(|| (*target, format!("not an {family} address")))?;
        rules.policy.targets.check_address(ip).map_err(|denied| (*target, denied.to_string()))?;
        // In an AAAA record, an IPv4-mapped address would be an IPv4 address.
        Some(ip)
            .filter(|ip| ip.to_canonical() == *ip)
            .ok_or_else(|| (*target, "an IPv4-mapped address".to_owned()))
    };
    targets.iter().map(address).collect::<Result<_, _>>().map(Parsed::Addresses)
}

/// Returns the TXT, SRV or MX records of an entry.
fn records<'a>(targets: &[&'a str], kind: RecordKind) -> Result<Vec<RecordData>, (&'a str, String)> {
    let parse = |target: &&'a str| RecordData::parse(kind, target).map_err(|why| (*target, why.into_owned()));
    targets.iter().map(parse).collect()
}

impl<'a> Declared<'a> {
    /// Adds an entry of the name. Equal types are united; of CNAMEs the one with the smallest setIdentifier counts.
    fn add(
        &mut self,
        entry: &'a Entry,
        parsed: Parsed,
        ttl: Option<u32>,
        name: &str,
        unusable: &mut Unusable,
    ) {
        let mut all_count = true;
        match parsed {
            Parsed::Host(host) => return self.add_cname(entry, host, ttl, name, unusable),
            Parsed::Addresses(addresses) => {
                for address in addresses {
                    if self.addresses.len() < MAX_SHARED {
                        self.addresses.insert(address);
                    } else {
                        all_count &= self.addresses.contains(&address);
                    }
                }
                self.ttl = smallest([self.ttl, ttl]);
            }
            Parsed::Records(kind, data) => {
                for data in data {
                    all_count &= self.records.add(kind, ttl, data);
                }
            }
        }
        self.others.push(entry);
        if !all_count {
            let why =
                format!("{name} {}: of a name and type 100 records and 16 KiB count", entry.record_type);
            unusable.targets.reject(entry.first_target(), &why);
        }
    }

    fn add_cname(
        &mut self,
        entry: &'a Entry,
        host: Hostname,
        ttl: Option<u32>,
        name: &str,
        unusable: &mut Unusable,
    ) {
        let loser = match &mut self.cname {
            None => {
                self.cname = Some((entry, host, ttl));
                return;
            }
            Some((_, known, known_ttl)) if *known == host => {
                *known_ttl = smallest([*known_ttl, ttl]);
                return;
            }
            Some(known) if entry.set_identifier < known.0.set_identifier => {
                std::mem::replace(known, (entry, host, ttl)).0
            }
            Some(_) => entry,
        };
        let why = format!("{name} CNAME: the CNAME with the smallest setIdentifier counts");
        unusable.targets.reject(loser.first_target(), &why);
    }

    /// Reports the entries beside which there is a CNAME (RFC 1034 section 3.6.2).
    fn report_others(&self, name: &str, unusable: &mut Unusable) {
        for entry in self.others.iter().filter(|_| self.cname.is_some()) {
            let why = format!("{name} {}: the name has a CNAME, which goes before", entry.record_type);
            unusable.targets.reject(entry.first_target(), &why);
        }
    }
}

impl Unusable {
    fn new() -> Self {
        let new = |field, text: &str| Rejection::new(field, text);
        Self {
            names: new(RejectedField::Hostname, "the dnsName"),
            types: new(RejectedField::Annotation, "an entry with the recordType"),
            ttls: new(RejectedField::Annotation, "the recordTTL"),
            targets: new(RejectedField::Target, "the target"),
            limits: new(RejectedField::Annotation, "spec.endpoints"),
            ignored_targets: 0,
        }
    }

    fn into_rejections(self) -> Vec<Rejection> {
        let Self { names, types, ttls, mut targets, limits, ignored_targets } = self;
        targets.ignore(ignored_targets, "of an entry the first 100 count, and 4 KiB of them");
        [names, types, ttls, targets, limits].into_iter().filter_map(Rejection::non_empty).collect()
    }
}
