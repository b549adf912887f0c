//! The changes of ConfigMaps that add the zones to the cluster DNS, or remove them. Pure functions.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Forwarding;
use super::corefile::{Corefile, Wiring, lines};
use super::platform::{
    COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, KUBE_DNS, KUBE_SYSTEM, Part, Resolver, manager,
};
use crate::dns::corefile::CorefileError;

/// The key of lb-linker's block in [`COREDNS_CUSTOM`].
pub const SERVER_KEY: &str = "lb-linker.server";
/// The end of the key that keeps the value before the last change.
pub const BACKUP: &str = ".before-lb-linker";
/// What node-cache replaces by the address of CoreDNS.
const CLUSTER_DNS_PLACEHOLDER: &str = "__PILLAR__CLUSTER__DNS__";
/// The number of equal lines around a change that a diff shows.
const CONTEXT: usize = 2;

/// A change of one key of a ConfigMap in `kube-system`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub config_map: String,
    pub key: String,
    /// The present value, if the key exists.
    pub before: Option<String>,
    /// The new value; `None` removes the key.
    pub after: Option<String>,
    /// The value that is kept under `<key>.before-lb-linker`; `None` removes that key.
    pub backup: Option<String>,
    /// The resourceVersion of the ConfigMap; `None` if it doesn't exist.
    pub version: Option<String>,
    /// Whether CoreDNS notices the change by itself.
    pub reloads: bool,
}

/// What is to be done with a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Change(Change),
    /// Nothing; the text says why.
    Done(String),
    /// The ConfigMap can't be changed; the text says why.
    Refused(String),
}

/// Returns what `--apply` does.
#[must_use]
pub fn to_apply(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in dns.parts() {
        steps.push(match part {
            Part::Resolver(Resolver::CoreDns | Resolver::Eks | Resolver::Aks | Resolver::K3s) => {
                match dns.config_map(COREDNS) {
                    Some(map) => or_refused(core_dns(dns, map, forwarding)),
                    None => refused(format!("ConfigMap {KUBE_SYSTEM}/{COREDNS} doesn't exist")),
                }
            }
            Part::Resolver(Resolver::NodeLocal) => match dns.node_local() {
                Some(map) => or_refused(with_block(map, forwarding, true, &cluster_dns(dns))),
                None => continue,
            },
            // Its ConfigMaps are the parts CoreDNS and NodeLocal.
            Part::Resolver(Resolver::Kubespray) => continue,
            _ => refused("this cluster DNS isn't configured by a ConfigMap of CoreDNS".to_owned()),
        });
    }
    if steps.is_empty() {
        steps.push(refused(format!(
            "neither ConfigMap {KUBE_SYSTEM}/{COREDNS} nor one of NodeLocal DNSCache was found"
        )));
    }
    steps
}

/// Returns what `--remove` does.
#[must_use]
pub fn to_remove(dns: &ClusterDns) -> Vec<Step> {
    let mut steps = Vec::new();
    for map in [dns.config_map(COREDNS), dns.node_local()].into_iter().flatten() {
        let Some(before) = value(map, COREFILE) else { continue };
        let name = place(map);
        let removed =
            Corefile::parse(&name, before).and_then(|corefile| Ok((corefile.without()?, corefile.reloads())));
        match removed {
            Ok((text, _)) if text == before => {}
            Ok((text, reloads)) => steps.push(change(map, COREFILE, Some(text), true, reloads)),
            Err(error) => steps.push(Step::Refused(error.to_string())),
        }
    }
    if let Some(map) = dns.config_map(COREDNS_CUSTOM)
        && value(map, SERVER_KEY).is_some()
    {
        steps.push(change(map, SERVER_KEY, None, true, false));
    }
    if steps.is_empty() {
        steps.push(Step::Done("no ConfigMap of the cluster DNS has a block of lb-linker".to_owned()));
    }
    steps
}

/// Returns the lines of a change as `diff` prints them.
#[must_use]
pub fn diff(change: &Change) -> Vec<String> {
    let of = |text: &Option<String>| -> Vec<String> {
        text.iter().flat_map(|text| text.lines().map(ToOwned::to_owned)).collect()
    };
    let (before, after) = (of(&change.before), of(&change.after));
    let equal = |(a, b): &(&String, &String)| a == b;
    let start = before.iter().zip(&after).take_while(equal).count();
    let rest = before.len().min(after.len()) - start;
    let end = before.iter().rev().zip(after.iter().rev()).take(rest).take_while(equal).count();
    let (removed, added) = (&before[start..before.len() - end], &after[start..after.len() - end]);
    let mut diff = vec![format!("ConfigMap {KUBE_SYSTEM}/{}, key {}:", change.config_map, change.key)];
    let mut push = |sign: char, lines: &[String]| {
        diff.extend(lines.iter().map(|line| format!("{sign} {line}").trim_end().to_owned()));
    };
    push(' ', &before[start.saturating_sub(CONTEXT)..start]);
    push('-', removed);
    push('+', added);
    push(' ', &before[before.len() - end..][..end.min(CONTEXT)]);
    diff
}

/// Returns the addresses of CoreDNS as NodeLocal DNSCache names them.
pub(super) fn cluster_dns(dns: &ClusterDns) -> Vec<String> {
    let services = [KUBE_DNS, COREDNS, "kube-dns-upstream"];
    let addresses = services.iter().flat_map(|service| dns.cluster_ips(service));
    addresses.map(|address| address.to_string()).chain([CLUSTER_DNS_PLACEHOLDER.to_owned()]).collect()
}

/// Returns `kube-system/coredns:Corefile`, for positions in it.
pub(super) fn place(map: &ConfigMap) -> String {
    format!("{KUBE_SYSTEM}/{}:{COREFILE}", name(map))
}

pub(super) fn value<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

fn name(map: &ConfigMap) -> &str {
    map.metadata.name.as_deref().unwrap_or_default()
}

fn refused(reason: String) -> Step {
    Step::Refused(format!("{reason}; `lb-linker stub` prints what to do"))
}

fn or_refused(step: Result<Step, CorefileError>) -> Step {
    step.unwrap_or_else(|error| Step::Refused(error.to_string()))
}

fn core_dns(dns: &ClusterDns, map: &ConfigMap, forwarding: &Forwarding) -> Result<Step, CorefileError> {
    let corefile = Corefile::parse(&place(map), value(map, COREFILE).unwrap_or_default())?;
    if !corefile.imports_servers() {
        return with_block(map, forwarding, false, &[]);
    }
    let absent = config_map(COREDNS_CUSTOM);
    let custom = dns.config_map(COREDNS_CUSTOM).unwrap_or(&absent);
    for (key, text) in custom.data.iter().flatten() {
        if key == SERVER_KEY || !key.ends_with(".server") {
            continue;
        }
        let file = format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}:{key}");
        match Corefile::parse(&file, text)?.wiring(forwarding, &[]) {
            Wiring::Missing => {}
            Wiring::Complete => {
                return Ok(done(&format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}, key {key}"), forwarding));
            }
            Wiring::Elsewhere { zone, line, .. } => {
                return Ok(Step::Refused(format!(
                    "{file}:{line}: the zone {zone} has this block, which lb-linker didn't add: correct it by hand, \
                     or remove it"
                )));
            }
        }
    }
    let text = lines(forwarding, "53", &corefile.bind(), false);
    Ok(if value(custom, SERVER_KEY) == Some(&text) {
        done(&format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}, key {SERVER_KEY}"), forwarding)
    } else {
        // CoreDNS's reload doesn't read imported files again.
        change(custom, SERVER_KEY, Some(text), false, false)
    })
}

fn with_block(
    map: &ConfigMap,
    forwarding: &Forwarding,
    by_tcp: bool,
    also: &[String],
) -> Result<Step, CorefileError> {
    let before = value(map, COREFILE).unwrap_or_default();
    let corefile = Corefile::parse(&place(map), before)?;
    let text = match corefile.with(&corefile.lines_to_add(forwarding, by_tcp), &forwarding.zones) {
        Ok(text) => text,
        Err(_) if corefile.wiring(forwarding, also) == Wiring::Complete => before.to_owned(),
        Err(error) => return Err(error),
    };
    Ok(if text == before {
        done(&format!("{KUBE_SYSTEM}/{}", name(map)), forwarding)
    } else {
        change(map, COREFILE, Some(text), false, corefile.reloads())
    })
}

fn done(place: &str, forwarding: &Forwarding) -> Step {
    Step::Done(format!("ConfigMap {place} forwards {} already", forwarding.zones.join(", ")))
}

fn change(map: &ConfigMap, key: &str, after: Option<String>, is_removal: bool, reloads: bool) -> Step {
    if let Some(manager) = manager(&map.metadata) {
        return refused(format!(
            "ConfigMap {KUBE_SYSTEM}/{} is managed by {manager}, which would undo a change",
            name(map)
        ));
    }
    let before = value(map, key).map(ToOwned::to_owned);
    Step::Change(Change {
        config_map: name(map).to_owned(),
        key: key.to_owned(),
        backup: if is_removal { None } else { before.clone() },
        before,
        after,
        version: map.metadata.resource_version.clone(),
        reloads,
    })
}

/// Returns an empty ConfigMap of `kube-system`.
pub(super) fn config_map(name: &str) -> ConfigMap {
    let metadata =
        ObjectMeta { name: Some(name.into()), namespace: Some(KUBE_SYSTEM.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

#[cfg(test)]
mod tests;
