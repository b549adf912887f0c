//! The blocks that forward the zones already, and where the cluster DNS has them. Pure functions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::corefile::{Bind, Corefile, Listener, ZoneBlock};
use super::platform::{ClusterDns, DNS_SERVICES, KUBE_DNS, KUBE_SYSTEM, value};
use super::{DNS_PORT, Forwarding};

/// The name of lb-linker's entry in `spec.servers` of OpenShift's DNS operator. Further ones have a number at the end.
pub(super) const OPERATOR_SERVER: &str = "lb-linker";
/// What node-cache replaces by the address of CoreDNS.
const CLUSTER_DNS_PLACEHOLDER: &str = "__PILLAR__CLUSTER__DNS__";

/// The blocks of the zones, with the places where they stand.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) found: Vec<(String, ZoneBlock)>,
    /// Upstreams that are right besides lb-linker's Service.
    pub(super) accepted_upstreams: Vec<String>,
}

impl Blocks {
    pub(super) fn extend(&mut self, file: &str, blocks: Vec<ZoneBlock>) {
        self.found.extend(blocks.into_iter().map(|block| (format!("{file}:{}", block.line), block)));
    }

    /// Returns a sentence about each block that forwards elsewhere.
    pub(super) fn wrong(&self, forwarding: &Forwarding) -> impl Iterator<Item = String> {
        self.wrong_blocks(forwarding).map(|(_, wrong)| wrong)
    }

    fn wrong_blocks(&self, forwarding: &Forwarding) -> impl Iterator<Item = (&ZoneBlock, String)> {
        self.found.iter().filter_map(move |(place, block)| {
            Some((block, wrong_upstreams(place, block, forwarding, &self.accepted_upstreams)?))
        })
    }

    fn at(&self, zone: &str, port: u16) -> impl Iterator<Item = &(String, ZoneBlock)> {
        self.found.iter().filter(move |(_, block)| block.zone == zone && block.ports.contains(&port))
    }

    /// Returns whether blocks have a zone at all addresses of a listener.
    pub(super) fn has(&self, zone: &str, listener: &Listener) -> bool {
        let has = |is_there: &dyn Fn(&Bind) -> bool| {
            self.at(zone, listener.port).any(|(_, block)| block.bind.as_ref().is_none_or(is_there))
        };
        match &*listener.bind.addresses {
            [] => has(&|bind| bind.addresses.is_empty()),
            addresses => addresses.iter().all(|address| has(&|bind| bind.addresses.contains(address))),
        }
    }

    /// Returns a sentence about a block beside which CoreDNS may not accept one of the same zone with the `bind` of a
    /// listener.
    pub(super) fn in_the_way(&self, zone: &str, listener: &Listener) -> Option<String> {
        let Listener { port, bind: wanted } = listener;
        self.at(zone, *port).find_map(|(place, block)| {
            let bind = block.bind.as_ref().filter(|bind| !bind.is_apart_from(wanted))?;
            Some(format!(
                "{place}: {zone} on port {port} has {bind}, but the block for all names has {wanted}, so that queries may \
                 not reach it"
            ))
        })
    }

    /// Returns the zones for which lb-linker adds a block, with the port and the `bind` of each.
    ///
    /// # Errors
    /// If a block forwards elsewhere, or prevents another one, with a sentence about it.
    pub(super) fn missing(
        &self,
        forwarding: &Forwarding,
        listeners: &[Listener],
    ) -> Result<Vec<(String, Listener)>, String> {
        let all = listeners.iter().flat_map(|listener| {
            let zones = forwarding.zones.iter().filter(|zone| !self.has(zone, listener));
            zones.map(|zone| (zone.clone(), listener.clone()))
        });
        let all: Vec<_> = all.collect();
        let mut in_the_way = all.iter().filter_map(|(zone, listener)| self.in_the_way(zone, listener));
        // This block is in a key of the ConfigMap that isn't changed.
        if let Some((ZoneBlock { zone, .. }, wrong)) =
            self.wrong_blocks(forwarding).find(|(block, _)| block.is_ours)
        {
            return Err(format!("{wrong}; give this zone alone, by --zone {zone}"));
        }
        match self.wrong(forwarding).next().or_else(|| in_the_way.next()) {
            Some(wrong) => {
                Err(format!("{wrong}; lb-linker didn't add this block: correct it by hand, or remove it"))
            }
            None => Ok(all),
        }
    }
}

/// Returns the zones in the key `stubDomains` of kube-dns, with the place of each.
pub(super) fn stub_domains(dns: &ClusterDns, zones: &[String]) -> Vec<(String, ZoneBlock)> {
    let text = dns.config_map(KUBE_DNS).and_then(|map| value(map, "stubDomains")).unwrap_or_default();
    let domains: BTreeMap<String, Vec<String>> = serde_json::from_str(text).unwrap_or_default();
    let place = format!("{KUBE_SYSTEM}/{KUBE_DNS}:stubDomains");
    let of_zones = domains.into_iter().filter(|(domain, _)| zones.contains(domain));
    of_zones
        .map(|(zone, upstreams)| {
            let ports = vec![DNS_PORT];
            (place.clone(), ZoneBlock { zone, ports, bind: None, line: 1, upstreams, is_ours: false })
        })
        .collect()
}

/// Returns the zones in `spec.servers` of OpenShift's DNS operator, with the place of each. Those of the server
/// `lb-linker` are lb-linker's own.
pub(super) fn operator_zones(dns: &ClusterDns, zones: &[String]) -> Vec<(String, ZoneBlock)> {
    let servers =
        dns.dns_operator.as_ref().and_then(|operator| operator.data.pointer("/spec/servers")?.as_array());
    let of_server = |server: &Value| {
        let upstreams = texts(&server["forwardPlugin"]["upstreams"]);
        let name = server["name"].as_str().unwrap_or_default().to_owned();
        let of_zones = texts(&server["zones"]).into_iter().filter(|zone| zones.contains(zone));
        let block = |zone| ZoneBlock {
            zone,
            ports: vec![DNS_PORT],
            bind: None,
            line: 1,
            upstreams: upstreams.clone(),
            is_ours: is_own_server(&name),
        };
        of_zones.map(|zone| (format!("dns.operator/default, server {name}"), block(zone))).collect::<Vec<_>>()
    };
    servers.into_iter().flatten().flat_map(of_server).collect()
}

/// Returns whether a server of OpenShift's DNS operator is one of lb-linker's own.
pub(super) fn is_own_server(name: &str) -> bool {
    let is_number = |rest: &str| rest.strip_prefix('-').is_some_and(|number| number.parse::<u32>().is_ok());
    name.strip_prefix(OPERATOR_SERVER).is_some_and(|rest| rest.is_empty() || is_number(rest))
}

/// Returns the texts in a list.
pub(super) fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

/// Returns what is wrong with the block at a place; `None` if it forwards to lb-linker, or to one of `also`.
pub(super) fn wrong_upstreams(
    place: &str,
    block: &ZoneBlock,
    forwarding: &Forwarding,
    also: &[String],
) -> Option<String> {
    let ZoneBlock { zone, upstreams, .. } = block;
    let is_right = |upstream: &String| forwarding.is_upstream(upstream) || also.contains(upstream);
    (upstreams.is_empty() || !upstreams.iter().all(is_right)).then(|| {
        let upstreams = if upstreams.is_empty() { "no address".to_owned() } else { upstreams.join(" ") };
        format!(
            "{place}: {zone} is forwarded to {upstreams}, and Service {} has the address {}",
            forwarding.service,
            forwarding.upstream()
        )
    })
}

/// Returns the upstreams with which a block of NodeLocal DNSCache reaches CoreDNS: the cluster IPs, except those at
/// which NodeLocal DNSCache itself answers, and the placeholder.
pub(super) fn cluster_dns(dns: &ClusterDns, node_local: &Corefile<'_>) -> Vec<String> {
    let addresses = DNS_SERVICES.iter().flat_map(|(_, service)| dns.cluster_ips(service));
    let addresses = addresses.map(|address| address.to_string());
    let own = node_local.bind();
    let upstream = addresses.filter(|address| !own.contains(address));
    upstream.chain([CLUSTER_DNS_PLACEHOLDER.to_owned()]).collect()
}
