//! `lb-linker stub --verify`: asks each resolver on the way to lb-linker for a name, and tells the first wrong answer.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use futures::future::join_all;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, RecordType};

use super::changes::{SERVER_KEY, cluster_dns, place, value};
use super::corefile::{Corefile, Wiring};
use super::platform::{COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, KUBE_DNS, KUBE_SYSTEM};
use super::{DNS_PORT, Forwarding};
use crate::dns::corefile::resolv_conf::nameservers;
use crate::dns::message::presentation::{rcode_text, type_text};
use crate::links::view::{LinkView, ViewState};
use crate::model::hostname::to_presentation;
use crate::query::Question;

/// The spaces between two columns, as in kubectl.
const GAP: usize = 3;
/// Services of the cluster DNS, that which reaches CoreDNS also on nodes with NodeLocal DNSCache first.
const CORE_DNS_SERVICES: [&str; 4] = ["kube-dns-upstream", KUBE_DNS, COREDNS, "rke2-coredns-rke2-coredns"];

/// A resolver on the way from a Pod to lb-linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    pub name: &'static str,
    pub server: SocketAddr,
}

/// A name, and what lb-linker has to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub name: Name,
    pub qtype: RecordType,
    /// The target: a hostname, or addresses. Empty if the zone has no link with a target: then any SOA record is right.
    pub target: Vec<String>,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", to_presentation(&self.name), type_text(self.qtype))?;
        match &*self.target {
            [] => f.write_str(": no load balancer has a target, so the zone itself is asked for"),
            target => write!(f, ": the load balancer is {}", target.join(",")),
        }
    }
}

/// What a resolver has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub rcode: ResponseCode,
    /// The data of the records of the name.
    pub data: Vec<String>,
    /// The TTL of the first record of the answer, or of the SOA record of a negative answer.
    pub ttl: Option<u32>,
}

/// A resolver with its answer, or the reason why there is none.
pub type Asked = (Tier, Result<Seen, String>);

/// Returns the resolvers in the order from lb-linker to a Pod. `resolv_conf` is the text of `/etc/resolv.conf`, which
/// names a resolver of Pods only if it has the search domains of Pods.
#[must_use]
pub fn tiers(dns: &ClusterDns, forwarding: &Forwarding, resolv_conf: &str) -> Vec<Tier> {
    let tier = |name, address: IpAddr, port| Tier { name, server: SocketAddr::new(address, port) };
    let mut tiers: Vec<Tier> =
        forwarding.addresses.iter().map(|&address| tier("lb-linker", address, forwarding.port)).collect();
    let node_local: Vec<IpAddr> = dns
        .node_local()
        .and_then(|map| Corefile::parse(&place(map), value(map, COREFILE)?).ok())
        .map(|corefile| corefile.bind().iter().filter_map(|address| address.parse().ok()).collect())
        .unwrap_or_default();
    // On nodes with NodeLocal DNSCache, it may answer at the address of CoreDNS's Service.
    let core_dns = CORE_DNS_SERVICES.iter().find_map(|service| {
        let found: Vec<IpAddr> = dns.cluster_ips(service).filter(|ip| !node_local.contains(ip)).collect();
        (!found.is_empty()).then_some(found)
    });
    tiers.extend(core_dns.into_iter().flatten().map(|address| tier("CoreDNS", address, DNS_PORT)));
    tiers.extend(node_local.first().map(|&address| tier("NodeLocal DNSCache", address, DNS_PORT)));
    let has_pod_domains = resolv_conf.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("search") && words.any(|domain| domain.starts_with("svc."))
    });
    if has_pod_domains {
        tiers.extend(nameservers(resolv_conf).map(|server| Tier { name: "resolver of this Pod", server }));
    }
    tiers
}

/// Returns the name in a zone that the resolvers are asked for: that of the first link with a target, else the zone.
#[must_use]
pub fn expected(links: &[LinkView], zone: &Name) -> Expected {
    let of_link = links.iter().filter(|link| link.state == ViewState::Ready).find_map(|link| {
        let names = link.dns_names.iter().filter_map(|name| Name::from_ascii(name).ok());
        let mut name = names.into_iter().find(|name| zone.zone_of(name) && !name.is_wildcard())?;
        name.set_fqdn(true);
        let target: Vec<String> = link.target.as_ref()?.split(',').map(|it| it.trim().to_owned()).collect();
        let addresses: Vec<IpAddr> = target.iter().filter_map(|address| address.parse().ok()).collect();
        let is_ipv6 = !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6);
        let qtype = if is_ipv6 { RecordType::AAAA } else { RecordType::A };
        Some(Expected { name, qtype, target })
    });
    of_link.unwrap_or_else(|| Expected { name: zone.clone(), qtype: RecordType::SOA, target: Vec::new() })
}

/// Asks all resolvers for a name, at the same time.
pub async fn ask(tiers: Vec<Tier>, expected: &Expected) -> Vec<Asked> {
    join_all(tiers.into_iter().map(|tier| async move {
        let question = Question { server: tier.server, name: expected.name.clone(), qtype: expected.qtype };
        let seen = match question.ask().await {
            Ok(answer) => {
                let sections = answer.sections();
                let first = sections.answers.first().or(sections.authorities.first());
                let of_name = sections.answers.iter().filter(|record| record.name == expected.name);
                let data = of_name.filter_map(|record| text(&record.data)).collect();
                Ok(Seen { rcode: answer.rcode(), data, ttl: first.map(|record| record.ttl) })
            }
            Err(error) => Err(error.to_string()),
        };
        (tier, seen)
    }))
    .await
}

/// Returns record data as a link's target is written; `None` for types that no target has.
fn text(data: &RData) -> Option<String> {
    match data {
        RData::CNAME(CNAME(name)) => Some(to_presentation(name)),
        RData::A(address) => Some(address.to_string()),
        RData::AAAA(address) => Some(address.to_string()),
        RData::SOA(soa) => Some(format!("SOA {}", soa.serial)),
        _ => None,
    }
}

/// Returns the lines of the table of answers.
#[must_use]
pub fn table(asked: &[Asked]) -> Vec<String> {
    let mut rows = vec![["RESOLVER", "ADDRESS", "ANSWER", "TTL"].map(ToOwned::to_owned)];
    rows.extend(asked.iter().map(|(tier, seen)| {
        let ttl = seen.as_ref().ok().and_then(|seen| seen.ttl);
        let ttl = ttl.map_or_else(|| "-".to_owned(), |ttl| ttl.to_string());
        [tier.name.to_owned(), address(tier.server), answer(seen), ttl]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..4).map(|column| width(column) + GAP).collect();
    let line = |row: &[String; 4]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns what is wrong: the first wrong answer on the way from lb-linker to a Pod.
#[must_use]
pub fn problem(expected: &Expected, asked: &[Asked]) -> Option<String> {
    if asked.iter().all(|(_, seen)| seen.is_err()) {
        return Some(
            "none of these addresses answers from here: run the command in a Pod, such as by kubectl -n lb-linker exec \
             deployment/lb-linker -- /lb-linker stub --verify"
                .to_owned(),
        );
    }
    let (tier, seen) = asked.iter().find(|(_, seen)| !is_right(expected, seen))?;
    let ttl =
        seen.as_ref().ok().and_then(|seen| seen.ttl).map_or_else(String::new, |ttl| format!(", TTL {ttl}"));
    Some(format!("{} at {} answers wrongly: {}{ttl}", tier.name, address(tier.server), answer(seen)))
}

fn is_right(expected: &Expected, seen: &Result<Seen, String>) -> bool {
    let Ok(seen) = seen else { return false };
    let known = |data: &String| {
        expected.target.is_empty() || expected.target.iter().any(|target| target.eq_ignore_ascii_case(data))
    };
    !seen.data.is_empty() && seen.data.iter().all(known)
}

fn answer(seen: &Result<Seen, String>) -> String {
    match seen {
        Ok(seen) if !seen.data.is_empty() => seen.data.join(","),
        Ok(seen) if seen.rcode == ResponseCode::NoError => "no records".to_owned(),
        Ok(seen) => rcode_text(seen.rcode).into_owned(),
        Err(error) => error.clone(),
    }
}

fn address(server: SocketAddr) -> String {
    if server.port() == DNS_PORT { server.ip().to_string() } else { server.to_string() }
}

/// Returns what is wrong in the Corefiles of the cluster DNS, such as a block that forwards to an address that
/// lb-linker's Service doesn't have.
#[must_use]
pub fn wrong_blocks(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let (service, zones) = (&forwarding.service, forwarding.zones.join(", "));
    let mut wrong = Vec::new();
    let mut check =
        |file: &str, text: &str, also: &[String], needs_block: bool| match Corefile::parse(file, text)
            .map(|corefile| corefile.wiring(forwarding, also))
        {
            Ok(Wiring::Missing) if needs_block => wrong.push(format!("{file} has no block for {zones}")),
            Ok(Wiring::Complete | Wiring::Missing) => {}
            Ok(Wiring::Elsewhere { zone, line, upstreams, .. }) => wrong.push(format!(
                "{file}:{line}: {zone} is forwarded to {}, and Service {service} has the address {}",
                if upstreams.is_empty() { "no address".to_owned() } else { upstreams.join(" ") },
                forwarding.upstream()
            )),
            Err(error) => wrong.push(error.to_string()),
        };
    let custom = dns.config_map(COREDNS_CUSTOM).and_then(|map| map.data.as_ref());
    let servers = || custom.into_iter().flatten().filter(|(key, _)| key.ends_with(".server"));
    if let Some(map) = dns.config_map(COREDNS)
        && let Some(text) = value(map, COREFILE)
    {
        let imports = Corefile::parse(&place(map), text).is_ok_and(|corefile| corefile.imports_servers());
        check(&place(map), text, &[], !imports);
        if imports {
            let file = |key: &str| format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}:{key}");
            let is_wired = servers().any(|(key, text)| {
                Corefile::parse(&file(key), text)
                    .is_ok_and(|corefile| corefile.wiring(forwarding, &[]) != Wiring::Missing)
            });
            servers().for_each(|(key, text)| check(&file(key), text, &[], false));
            if !is_wired {
                check(&file(SERVER_KEY), "", &[], true);
            }
        }
    }
    if let Some(map) = dns.node_local()
        && let Some(text) = value(map, COREFILE)
    {
        check(&place(map), text, &cluster_dns(dns), true);
    }
    wrong
}

#[cfg(test)]
mod tests;
