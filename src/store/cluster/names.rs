//! The names of a zone that have records, for zone transfers. What is at a name is asked as any question is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

use super::Cluster;
use super::answer::{Rules, is_reverse};
use super::external::ExternalRules;
use super::index::Entry;
use super::objects::{Addressing, Port};
use super::records::name_below;
use crate::model::names;

/// Names in wire form with the root octet, in lower case, each once.
pub type ZoneNames = BTreeSet<Arc<[u8]>>;

impl Cluster {
    /// Returns the names in a zone of `rules` that may have records, without those of Pods and of topology zones.
    #[must_use]
    pub fn names(&self, rules: &Rules, zone: &[u8]) -> ZoneNames {
        let index = self.index.read();
        if is_reverse(zone) {
            return reverse_names(index.addresses(), zone);
        }
        let own = ["", "dns-version", "ns.dns"].into_iter().filter_map(|own| name_at(own, zone));
        let mut names: ZoneNames = own.collect();
        let mut add = |(key, entry): (&Arc<str>, &Entry)| {
            names.extend(names_of(entry, name_below([&**key, "svc"], zone)));
        };
        match rules.is_multicluster(zone) {
            true => index.imports().for_each(&mut add),
            false => index.services().for_each(&mut add),
        }
        names
    }

    /// As [`Self::names`], in a zone of `external`.
    #[must_use]
    pub fn external_names(&self, external: &ExternalRules, zone: &[u8]) -> ZoneNames {
        let index = self.index.read();
        if is_reverse(zone) {
            return reverse_names(index.external_addresses(), zone);
        }
        let server = format!("{}.{}", super::external::SERVER, external.apex);
        let mut names: ZoneNames = ["", &server].into_iter().filter_map(|own| name_at(own, zone)).collect();
        for (key, entry) in index.services() {
            let base = name_below([&**key], zone);
            // Any label below a Service with external addresses stands for these: only ports are listed.
            if index.externals(key).0.is_empty() {
                names.extend(names_of(entry, base.filter(|_| external.headless)));
            } else {
                let ports = entry.service.iter().flat_map(|service| &service.ports);
                names.extend(base.iter().flat_map(|base| port_names(ports.clone(), base)));
                names.extend(base);
            }
        }
        names
    }
}

/// Returns a name in a zone, which is the zone itself without labels.
fn name_at(labels: &str, zone: &[u8]) -> Option<Arc<[u8]>> {
    if labels.is_empty() { Some(zone.into()) } else { name_below([labels], zone) }
}

/// Returns the name of a Service and those below it.
fn names_of(entry: &Entry, base: Option<Arc<[u8]>>) -> Vec<Arc<[u8]>> {
    let (Some(service), Some(base)) = (&entry.service, base) else { return Vec::new() };
    let mut names: Vec<_> = port_names(&service.ports, &base).collect();
    for slice in &entry.slices {
        if service.addressing == Addressing::Headless {
            names.extend(port_names(&slice.ports, &base));
        }
        let above = match &*slice.cluster {
            "" => Some(Arc::clone(&base)),
            cluster => name_below([cluster], &base),
        };
        let Some(above) = above else { continue };
        names.extend(slice.endpoints().filter_map(|endpoint| name_below([&*endpoint.label()], &above)));
    }
    names.push(base);
    names
}

/// Returns the names `_<port>._<protocol>` below the name of a Service.
fn port_names<'a>(
    ports: impl IntoIterator<Item = &'a Port> + 'a,
    base: &'a [u8],
) -> impl Iterator<Item = Arc<[u8]>> + 'a {
    let named = |port: &&Port| !port.name.is_empty() && !port.protocol.label().is_empty();
    ports.into_iter().filter(named).filter_map(move |port| {
        name_below([&*format!("_{}", port.name), &format!("_{}", port.protocol.label())], base)
    })
}

/// Returns a reverse zone, and the names of these addresses in it.
fn reverse_names(addresses: impl Iterator<Item = IpAddr>, zone: &[u8]) -> ZoneNames {
    let reverse = |ip: IpAddr| -> Arc<[u8]> {
        let mut name = Vec::with_capacity(80);
        names::push_labels(&Name::from(ip), &mut name);
        name.push(0);
        name.into()
    };
    let names = addresses.map(reverse).filter(|name| names::below(name, zone).is_some());
    names.chain([zone.into()]).collect()
}
