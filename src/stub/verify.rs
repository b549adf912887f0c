//! `lb-linker stub --verify`: asks each resolver on the way to lb-linker for a name, and tells the first wrong answer.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, RecordType};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::timeout;

use super::changes::{PlannedChange, SERVER_KEY, answered_by_lb_linker, file_name, imported, ports};
use super::corefile::{Corefile, Listener, listeners};
use super::platform::{COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, DNS_SERVICES, value};
use super::zone_blocks::{Blocks, cluster_dns, operator_zones, stub_domains};
use super::{DNS_PORT, Forwarding};
use crate::dns::corefile::resolv_conf::nameservers;
use crate::dns::message::presentation::{rcode_text, type_text};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::links::table::columns;
use crate::links::view::{LinkView, ViewState};
use crate::model::hostname::to_presentation;
use crate::query::{QueryError, Question};

const LB_LINKER: &str = "lb-linker";
const SOA: &str = "SOA";
/// The time for lb-linker's answers about its zones.
const UNSERVED_TIMEOUT: Duration = Duration::from_secs(1);

/// A resolver on the way from a Pod to lb-linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverHop {
    pub name: &'static str,
    pub server: SocketAddr,
}

/// A name, and what lb-linker has to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub name: Name,
    pub qtype: RecordType,
    /// The record data: the target's hostname or addresses. If the zone has no link with a target: its SOA record.
    pub data: Vec<String>,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, qtype) = (to_presentation(&self.name), type_text(self.qtype));
        match self.qtype {
            RecordType::SOA => {
                write!(f, "{name} {qtype}: no load balancer has a target, so the zone itself is asked for")
            }
            _ => write!(f, "{name} {qtype}: the load balancer is {}", self.data.join(",")),
        }
    }
}

/// What a resolver has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverAnswer {
    pub rcode: ResponseCode,
    /// The data of the records of the name.
    pub data: Vec<String>,
    /// The TTL of the first record of the answer, or of the SOA record of a negative answer.
    pub ttl: Option<u32>,
}

/// A resolver with its answer, or the reason why there is none.
pub type QueriedResolver = (ResolverHop, Result<ResolverAnswer, String>);

/// Returns the resolvers in the order from lb-linker to a Pod. `resolv_conf` is the text of `/etc/resolv.conf`, which
/// names a resolver of Pods only if it has the search domains of Pods.
#[must_use]
pub fn resolver_hops(dns: &ClusterDns, forwarding: &Forwarding, resolv_conf: &str) -> Vec<ResolverHop> {
    let hop = |name, address: IpAddr, port| ResolverHop { name, server: SocketAddr::new(address, port) };
    let mut hops: Vec<ResolverHop> =
        forwarding.addresses.iter().map(|&address| hop(LB_LINKER, address, forwarding.port)).collect();
    let node_local: Vec<IpAddr> = dns
        .node_local()
        .and_then(|map| Corefile::parse(&file_name(map, COREFILE), value(map, COREFILE)?).ok())
        .map(|corefile| corefile.bind().iter().filter_map(|address| address.parse().ok()).collect())
        .unwrap_or_default();
    let asked = node_local.iter().find(|address| !address.is_unspecified());
    // NodeLocal DNSCache may answer at the address of CoreDNS's Service on its nodes.
    let core_dns = DNS_SERVICES.iter().find_map(|(_, service)| {
        let found: Vec<IpAddr> = dns.cluster_ips(service).filter(|ip| !node_local.contains(ip)).collect();
        (!found.is_empty()).then_some(found)
    });
    hops.extend(core_dns.into_iter().flatten().map(|address| hop("cluster DNS", address, DNS_PORT)));
    hops.extend(asked.map(|&address| hop("NodeLocal DNSCache", address, DNS_PORT)));
    let has_pod_domains = resolv_conf.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("search") && words.any(|domain| domain.starts_with("svc."))
    });
    if has_pod_domains {
        hops.extend(
            nameservers(resolv_conf).map(|server| ResolverHop { name: "resolver of this Pod", server }),
        );
    }
    hops
}

/// Returns the name in a zone that the resolvers are asked for, with its type and target: a DNS name of the first ready
/// link with a name in the zone, or else the zone itself.
#[must_use]
pub fn expected(links: &[LinkView], zone: &LinkZone) -> Expected {
    let LinkZone { origin, .. } = zone;
    let of_link = links.iter().filter(|link| link.state == ViewState::Ready).find_map(|link| {
        let names = link.dns_names.iter().filter_map(|name| Name::from_ascii(name).ok());
        let mut name = names.into_iter().find(|name| origin.zone_of(name) && !name.is_wildcard())?;
        name.set_fqdn(true);
        let target: Vec<String> = link.target.as_ref()?.split(',').map(|it| it.trim().to_owned()).collect();
        let addresses: Vec<IpAddr> = target.iter().filter_map(|address| address.parse().ok()).collect();
        // Of many addresses, the view has only some.
        if addresses.len() != target.len() && target.len() > 1 {
            return None;
        }
        let is_ipv6 = !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6);
        let qtype = if is_ipv6 { RecordType::AAAA } else { RecordType::A };
        Some(Expected { name, qtype, data: target })
    });
    of_link.unwrap_or_else(|| {
        let data = vec![format!("{SOA} {}", zone.name_server())];
        Expected { name: origin.clone(), qtype: RecordType::SOA, data }
    })
}

/// Asks all resolvers for a name, at the same time.
pub async fn ask(hops: Vec<ResolverHop>, expected: &Expected) -> Vec<QueriedResolver> {
    join_all(hops.into_iter().map(|hop| async move {
        let question = Question { server: hop.server, name: expected.name.clone(), qtype: expected.qtype };
        let seen = match question.ask().await {
            Ok(answer) => {
                let sections = answer.sections();
                let first = sections.answers.first().or(sections.authorities.first());
                let of_name = sections.answers.iter().filter(|record| record.name == expected.name);
                let data: Vec<String> = of_name.filter_map(|record| text(&record.data)).collect();
                match answer.truncated().filter(|_| data.is_empty()) {
                    Some(why) => Err(why),
                    None => Ok(ResolverAnswer {
                        rcode: answer.rcode(),
                        data,
                        ttl: first.map(|record| record.ttl),
                    }),
                }
            }
            Err(error @ (QueryError::Timeout { .. } | QueryError::Io { .. })) => Err(error.reason()),
            Err(error) => Err(error.to_string()),
        };
        (hop, seen)
    }))
    .await
}

/// Asks lb-linker's Service for each zone. Returns a sentence about the zones that it doesn't serve; `None` if there are
/// none, or without an answer.
pub async fn unserved(forwarding: &Forwarding) -> Option<String> {
    let server = SocketAddr::new(*forwarding.addresses.first()?, forwarding.port);
    let asked = join_all(forwarding.zones.iter().map(|zone| async move {
        let mut name = Name::from_ascii(zone).ok()?;
        name.set_fqdn(true);
        let expected = Expected { name, qtype: RecordType::SOA, data: Vec::new() };
        let hops = vec![ResolverHop { name: LB_LINKER, server }];
        let asked = timeout(UNSERVED_TIMEOUT, ask(hops, &expected)).await.ok()?;
        let (_, seen) = asked.into_iter().next()?;
        let is_served =
            seen.ok()?.data.iter().any(|data| data.starts_with(SOA) && data.ends_with(&format!(".{zone}")));
        (!is_served).then(|| zone.clone())
    }));
    let unserved: Vec<String> = asked.await.into_iter().flatten().collect();
    (!unserved.is_empty()).then(|| {
        format!(
            "Service {} at {} doesn't serve {}: start lb-linker with the same --zone, or with a Corefile that has it",
            forwarding.service,
            address(server),
            unserved.join(", ")
        )
    })
}

/// Returns record data as a link's target is written; `None` for types that no target has.
fn text(data: &RData) -> Option<String> {
    match data {
        RData::CNAME(CNAME(name)) => Some(to_presentation(name)),
        RData::A(address) => Some(address.to_string()),
        RData::AAAA(address) => Some(address.to_string()),
        RData::SOA(soa) => Some(format!("{SOA} {}", to_presentation(&soa.mname))),
        _ => None,
    }
}

/// Returns the lines of the table of answers.
#[must_use]
pub fn table(asked: &[QueriedResolver]) -> Vec<String> {
    let cells: Vec<[String; 3]> = asked
        .iter()
        .map(|(tier, seen)| {
            let ttl = seen.as_ref().ok().and_then(|seen| seen.ttl);
            let ttl = ttl.map_or_else(|| "-".to_owned(), |ttl| ttl.to_string());
            [address(tier.server), answer(seen), ttl]
        })
        .collect();
    let mut rows = vec![vec!["RESOLVER", "ADDRESS", "ANSWER", "TTL"]];
    let names = asked.iter().map(|(tier, _)| tier.name);
    rows.extend(names.zip(&cells).map(|(name, [address, answer, ttl])| vec![name, address, answer, ttl]));
    columns(&rows)
}

/// Returns what is wrong: the first wrong answer on the way from lb-linker to a Pod.
#[must_use]
pub fn problem(expected: &Expected, asked: &[QueriedResolver]) -> Option<String> {
    if asked.iter().all(|(_, seen)| seen.is_err()) {
        return Some(
            "none of these addresses answers from here: run the command in a Pod, such as by kubectl -n lb-linker exec \
             deployment/lb-linker -- /lb-linker stub --verify"
                .to_owned(),
        );
    }
    let Some((tier, seen)) = asked.iter().find(|(_, seen)| !is_right(expected, seen)) else {
        return asked
            .iter()
            .all(|(tier, _)| tier.name == LB_LINKER)
            .then(|| "no resolver of this cluster was found to ask besides lb-linker".to_owned());
    };
    let ttl =
        seen.as_ref().ok().and_then(|seen| seen.ttl).map_or_else(String::new, |ttl| format!(", TTL {ttl}"));
    let advice = match tier.name {
        LB_LINKER => {
            "; resolvers that forward to lb-linker can't be right before it is: see its Pods and its --zone"
        }
        _ => "",
    };
    Some(format!("{} at {} answers wrongly: {}{ttl}{advice}", tier.name, address(tier.server), answer(seen)))
}

fn is_right(expected: &Expected, seen: &Result<ResolverAnswer, String>) -> bool {
    let Ok(seen) = seen else { return false };
    let known = |data: &String| expected.data.iter().any(|one| one.eq_ignore_ascii_case(data));
    !seen.data.is_empty() && seen.data.iter().all(known)
}

fn answer(seen: &Result<ResolverAnswer, String>) -> String {
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

/// Returns a sentence for each error in the configuration of the cluster DNS: a Corefile that can't be parsed, and a
/// zone that is forwarded to an address that lb-linker's Service doesn't have. If `with_missing`, also for each zone
/// without a block: that is an error only if a resolver answers wrongly.
#[must_use]
pub fn wrong_blocks(dns: &ClusterDns, forwarding: &Forwarding, with_missing: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let own = dns
        .config_map(COREDNS_CUSTOM)
        .and_then(|map| Some((file_name(map, SERVER_KEY), value(map, SERVER_KEY)?)));
    let answered = answered_by_lb_linker(dns, &forwarding.zones);
    let core_dns = dns.config_map(COREDNS).and_then(corefile_of).filter(|_| answered.is_none());
    if let Some(PlannedChange::Refused(why)) = answered {
        wrong.extend(Some(why).filter(|_| with_missing));
    }
    let node_local = dns.node_local().and_then(corefile_of);
    let imported: Vec<(String, &str)> = imported(dns).chain(own).collect();
    for (is_node_local, (file, text)) in [(false, core_dns), (true, node_local)]
        .into_iter()
        .filter_map(|(is_node_local, corefile)| Some((is_node_local, corefile?)))
    {
        let corefile = match Corefile::parse(&file, text) {
            Ok(corefile) => corefile,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let imports = !is_node_local && corefile.imports_servers();
        let mut parts = vec![(file.clone(), corefile)];
        for (file, text) in imported.iter().filter(|_| imports) {
            match parts[0].1.parse_imported(file, text) {
                Ok(imported) => parts.push((file.clone(), imported)),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        // If an environment variable decides the ports, blocks on all ports.
        let listeners = listeners(parts.iter().map(|(_, part)| part)).ok();
        let ports = listeners.as_deref().map(ports);
        let mut blocks = Blocks::default();
        for (file, part) in &parts {
            blocks.extend(file, part.blocks_of(&forwarding.zones, ports.as_deref()));
        }
        if is_node_local {
            blocks.accepted_upstreams = cluster_dns(dns, &parts[0].1);
            blocks.found.extend(stub_domains(dns, &forwarding.zones));
        }
        if with_missing {
            let unknown = parts.iter().enumerate().find_map(|(index, (_, part))| {
                part.check_imports(&forwarding.zones, index == 0 && !is_node_local).err()
            });
            match unknown {
                Some(error) => wrong.push(error.to_string()),
                None => wrong.extend(missing(&blocks, &file, &forwarding.zones, listeners.as_deref())),
            }
        }
        wrong.extend(blocks.wrong(forwarding));
    }
    let mut blocks = Blocks { found: operator_zones(dns, &forwarding.zones), ..Blocks::default() };
    if dns.node_local().is_none() {
        blocks.found.extend(stub_domains(dns, &forwarding.zones));
    }
    wrong.extend(blocks.wrong(forwarding));
    wrong
}

/// Returns a sentence for each zone that has no block for a listener; if the listeners aren't known, no block at all.
fn missing(blocks: &Blocks, file: &str, zones: &[String], listeners: Option<&[Listener]>) -> Vec<String> {
    let mut missing = Vec::new();
    for zone in zones {
        let no_block = |port: u16| {
            let port = if port == DNS_PORT { String::new() } else { format!(":{port}") };
            format!("{file} has no block for {zone}{port}")
        };
        match listeners {
            Some(listeners) => {
                let without = listeners.iter().filter(|listener| !blocks.has(zone, listener));
                missing.extend(without.map(|listener| {
                    blocks.in_the_way(zone, listener).unwrap_or_else(|| no_block(listener.port))
                }));
            }
            None if blocks.found.iter().any(|(_, block)| block.zone == *zone) => {}
            None => missing.push(no_block(DNS_PORT)),
        }
    }
    missing.dedup();
    missing
}

fn corefile_of(map: &ConfigMap) -> Option<(String, &str)> {
    Some((file_name(map, COREFILE), value(map, COREFILE)?))
}

#[cfg(test)]
mod tests;
