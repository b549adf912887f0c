//! The changes of ConfigMaps that add the zones to the cluster DNS, or remove them. Pure functions.

use std::collections::BTreeSet;

use indexmap::IndexSet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Forwarding;
use super::corefile::{Corefile, Listener, ZoneBlock, listeners, text_of_zones, zone_lines};
use super::platform::{
    COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, DnsComponent, KUBE_SYSTEM, LB_LINKER_DNS, Resolver,
    manager, value,
};
use super::zone_blocks::{Blocks, cluster_dns, stub_domains};
use crate::dns::corefile::CorefileError;
use crate::model::cluster_domain::{domain_name, overlap, own_domains};
use crate::model::hostname::to_presentation;

/// The key of lb-linker's blocks in [`COREDNS_CUSTOM`].
pub const SERVER_KEY: &str = "lb-linker.server";
/// The end of the key that keeps the value before the first change.
const BACKUP: &str = ".before-lb-linker";
/// The workload that mounts the ConfigMaps of CoreDNS, for kubectl.
const DEPLOYMENT: &str = "deployment coredns";
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
    /// lb-linker's own lines in the new value.
    pub lines: String,
    pub backup: Backup,
    /// The resourceVersion of the ConfigMap; `None` if it doesn't exist.
    pub version: Option<String>,
    /// The command that restarts the Pods, if they don't read a changed Corefile by themselves.
    pub restart: Option<String>,
}

/// What becomes of the key that keeps the value before the first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backup {
    /// It gets the present value.
    Set,
    Keep,
    Remove,
}

/// What is to be done with a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    Change(Change),
    /// Another tool manages the ConfigMap, and would undo the change.
    Managed {
        change: Change,
        by: String,
    },
    /// Nothing; the text says why.
    Done(String),
    /// The ConfigMap can't be changed; the text says why.
    Refused(String),
}

impl Change {
    #[must_use]
    pub fn backup_key(&self) -> String {
        format!("{}{BACKUP}", self.key)
    }

    /// Returns whether lb-linker's lines are taken out.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Returns what `--apply` does.
#[must_use]
pub fn to_apply(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<PlannedChange> {
    let (mut steps, mut is_by_hand) = (Vec::new(), false);
    for part in dns.parts() {
        match part {
            DnsComponent::Resolver(Resolver::CoreDns | Resolver::Eks | Resolver::Aks | Resolver::K3s) => {
                steps.extend(core_dns(dns, forwarding));
            }
            DnsComponent::Resolver(Resolver::NodeLocal) => steps.extend(node_local(dns, forwarding)),
            // The ConfigMaps of kubespray belong to the parts CoreDNS and NodeLocal.
            DnsComponent::Resolver(Resolver::Kubespray) => {}
            DnsComponent::Resolver(
                Resolver::GkeKubeDns | Resolver::OpenShift | Resolver::Dnsmasq | Resolver::SystemdResolved,
            )
            | DnsComponent::Unsupported(_) => is_by_hand = true,
        }
    }
    if steps.is_empty() && is_by_hand {
        steps.push(PlannedChange::Refused(
            "this cluster DNS isn't configured by a ConfigMap of CoreDNS; `lb-linker stub` prints what to do"
                .to_owned(),
        ));
    } else if steps.is_empty() {
        steps.push(PlannedChange::Refused(format!(
            "neither ConfigMap {KUBE_SYSTEM}/{COREDNS} nor one of NodeLocal DNSCache was found; `lb-linker stub` prints \
             what to do"
        )));
    }
    steps
}

/// Returns what is to be said where the cluster DNS is lb-linker itself: behind the Services of the cluster DNS, or with
/// CoreDNS's Corefile. Then nothing is added. `None` if it is another program.
#[must_use]
pub fn answered_by_lb_linker(dns: &ClusterDns, zones: &[String]) -> Option<PlannedChange> {
    let all = zones.join(", ");
    if !dns.selects_lb_linker() {
        let served = served_zones(&corefiles_of_core_dns(dns));
        let place = format!("ConfigMap {KUBE_SYSTEM}/{COREDNS} has lb_linker");
        return match missing(zones, &served) {
            _ if served.is_empty() => None,
            // The ConfigMap doesn't tell which program reads it.
            None => Some(PlannedChange::Done(format!(
                "{place} for {all}: with lb-linker's image nothing is to be added"
            ))),
            Some(missing) => Some(PlannedChange::Refused(format!(
                "{place}, but not for {missing}: with lb-linker's image add a block with it by hand, else take lb_linker out"
            ))),
        };
    }
    let place = format!("ConfigMap {KUBE_SYSTEM}/{LB_LINKER_DNS}");
    let Some(map) = dns.config_map(LB_LINKER_DNS) else {
        return Some(PlannedChange::Refused(format!(
            "the cluster DNS is lb-linker; whether it answers for {all} isn't known, because {place} doesn't exist or can't \
             be read"
        )));
    };
    let Some(text) = value(map, COREFILE) else { return Some(lacks_corefile(map)) };
    let served = match Corefile::parse(&file_name(map, COREFILE), text) {
        Ok(corefile) => served_zones(&[corefile]),
        Err(error) => return Some(PlannedChange::Refused(error.to_string())),
    };
    Some(match missing(zones, &served) {
        None => PlannedChange::Done(format!(
            "the cluster DNS is lb-linker and answers for {all} itself ({place}): nothing is to be added{}",
            lost_with_core_dns(dns, zones)
        )),
        Some(missing) => PlannedChange::Refused(format!(
            "the cluster DNS is lb-linker, and {place} has no lb_linker for {missing}: add a block with it to the Corefile \
             there by hand"
        )),
    })
}

/// Returns the zones of *lb_linker* and *k8s_gateway* on the port of DNS.
fn served_zones(corefiles: &[Corefile<'_>]) -> Vec<String> {
    let zones = corefiles
        .iter()
        .flat_map(|it| it.zones_of("lb_linker").into_iter().chain(it.zones_of("k8s_gateway")));
    zones.filter(|zone| zone.has_dns_port).map(|found| found.zone).collect()
}

fn missing(zones: &[String], known: &[String]) -> Option<String> {
    let missing: Vec<&str> = zones.iter().filter(|zone| !known.contains(zone)).map(String::as_str).collect();
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Returns the end of a sentence about zones for which CoreDNS has no block; empty if it has all, or isn't known.
fn lost_with_core_dns(dns: &ClusterDns, zones: &[String]) -> String {
    let own = dns.config_map(COREDNS_CUSTOM).and_then(|map| value(map, SERVER_KEY));
    let own = own.and_then(|text| Corefile::parse(SERVER_KEY, text).ok());
    let corefiles: Vec<_> = corefiles_of_core_dns(dns).into_iter().chain(own).collect();
    let blocks = corefiles.iter().flat_map(|corefile| corefile.blocks_of(zones, None));
    let blocks: Vec<String> = blocks.map(|block| block.zone).collect();
    match missing(zones, &blocks).filter(|_| !corefiles.is_empty()) {
        Some(missing) => format!(
            "; but CoreDNS has no block for {missing}: after the way back to it, these names aren't answered before \
             `lb-linker stub --apply --service {KUBE_SYSTEM}/{LB_LINKER_DNS} --zone {}`",
            missing.replace(", ", " --zone ")
        ),
        None => String::new(),
    }
}

/// Returns what is to be done with CoreDNS; `None` if its ConfigMap doesn't exist.
#[must_use]
pub fn core_dns(dns: &ClusterDns, forwarding: &Forwarding) -> Option<PlannedChange> {
    if let Some(step) = answered_by_lb_linker(dns, &forwarding.zones) {
        return Some(step);
    }
    let map = dns.config_map(COREDNS)?;
    Some(try_core_dns(dns, map, forwarding).unwrap_or_else(|error| PlannedChange::Refused(error.to_string())))
}

fn try_core_dns(
    dns: &ClusterDns,
    map: &ConfigMap,
    forwarding: &Forwarding,
) -> Result<PlannedChange, CorefileError> {
    let Some(text) = value(map, COREFILE) else { return Ok(lacks_corefile(map)) };
    let corefile = Corefile::parse(&file_name(map, COREFILE), text)?;
    corefile.check_imports(&forwarding.zones, true)?;
    if let Some(refused) = bind_of_override(dns, &corefile) {
        return Ok(PlannedChange::Refused(refused));
    }
    let imports = corefile.imports_servers();
    let imported = if imports { parse_imported(dns, &corefile)? } else { Vec::new() };
    let absent = config_map(COREDNS_CUSTOM);
    let custom = dns.config_map(COREDNS_CUSTOM).unwrap_or(&absent);
    let own_file = file_name(custom, SERVER_KEY);
    let own = value(custom, SERVER_KEY).filter(|_| imports).unwrap_or_default();
    let own = corefile.parse_imported(&own_file, own)?;
    own.check_imports(&forwarding.zones, false)?;
    let files = imported.iter().map(|(_, imported)| imported);
    let listeners = listeners([&corefile, &own].into_iter().chain(files))?;
    let ports = ports(&listeners);
    let restart = restart(&corefile, DEPLOYMENT);
    // Blocks that were added before the Corefile had the import stay where they are.
    let in_main = !imports || corefile.has_own(&forwarding.zones);
    let (main_file, map, key) =
        if in_main { (own_file, map, COREFILE) } else { (file_name(map, COREFILE), custom, SERVER_KEY) };
    let (target, other) = if in_main { (corefile, own) } else { (own, corefile) };
    let mut foreign = Blocks::default();
    foreign.extend(&main_file, other.blocks_of(&forwarding.zones, Some(&ports)));
    for (file, imported) in &imported {
        imported.check_imports(&forwarding.zones, false)?;
        foreign.extend(file, imported.blocks_of(&forwarding.zones, Some(&ports)));
    }
    step_to_add((map, key), &target, forwarding, (&listeners, foreign), false, restart)
}

/// Returns what is to be done with NodeLocal DNSCache; `None` if it has no ConfigMap.
#[must_use]
pub fn node_local(dns: &ClusterDns, forwarding: &Forwarding) -> Option<PlannedChange> {
    let map = dns.node_local()?;
    let step = || {
        let Some(text) = value(map, COREFILE) else { return Ok(lacks_corefile(map)) };
        let corefile = Corefile::parse(&file_name(map, COREFILE), text)?;
        corefile.check_imports(&forwarding.zones, false)?;
        let mut blocks = Blocks { accepted_upstreams: cluster_dns(dns, &corefile), ..Blocks::default() };
        // node-cache makes a block of its own for each of these domains.
        blocks.found.extend(stub_domains(dns, &forwarding.zones));
        let restart = restart(&corefile, &workload(map));
        step_to_add((map, COREFILE), &corefile, forwarding, (&listeners([&corefile])?, blocks), true, restart)
    };
    Some(step().unwrap_or_else(|error: CorefileError| PlannedChange::Refused(error.to_string())))
}

/// Returns what `--remove` does.
#[must_use]
pub fn to_remove(dns: &ClusterDns, zones: &[String]) -> Vec<PlannedChange> {
    let parse = |map, key| Corefile::parse(&file_name(map, key), value(map, key).unwrap_or_default());
    let absent = config_map(COREDNS);
    let core_dns = dns.config_map(COREDNS).unwrap_or(&absent);
    let mut places = Vec::new();
    for map in [Some(core_dns), dns.node_local()].into_iter().flatten() {
        let corefile = parse(map, COREFILE);
        let restart = corefile.as_ref().ok().and_then(|corefile| restart(corefile, &workload(map)));
        places.push((map, COREFILE, corefile, restart));
    }
    if let Some(map) = dns.config_map(COREDNS_CUSTOM) {
        let restart_core_dns = places[0].3.clone();
        places.push((map, SERVER_KEY, parse(map, SERVER_KEY), restart_core_dns));
    }
    let (mut steps, mut others) = (Vec::new(), BTreeSet::new());
    for (map, key, corefile, restart) in places {
        match corefile.and_then(|corefile| steps_to_remove(map, key, &corefile, zones, restart)) {
            Ok((found, of_others)) => {
                steps.extend(found);
                others.extend(of_others);
            }
            Err(error) => steps.push(PlannedChange::Refused(error.to_string())),
        }
    }
    if steps.is_empty() {
        steps.push(PlannedChange::Done(format!(
            "no ConfigMap of the cluster DNS has a block of lb-linker for {}; what was added by hand has to be taken out by \
             hand",
            zones.join(", ")
        )));
    }
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        let names = others.join(", ");
        let flags = others.iter().map(|zone| format!("--zone {zone}")).collect::<Vec<_>>().join(" ");
        steps.push(PlannedChange::Done(format!(
            "lb-linker's blocks for {names} stay: {flags} takes them out"
        )));
    }
    steps
}

/// Returns the steps for a key, and the zones for which lb-linker's blocks stay there.
fn steps_to_remove(
    map: &ConfigMap,
    key: &str,
    corefile: &Corefile<'_>,
    zones: &[String],
    restart: Option<String>,
) -> Result<(Vec<PlannedChange>, Vec<String>), CorefileError> {
    let backup = value(map, &format!("{key}{BACKUP}"));
    let removed = corefile.without(zones)?;
    let others: Vec<String> = corefile.own_zones().filter(|zone| !zones.contains(zone)).cloned().collect();
    let mut steps = Vec::new();
    if corefile.has_own(zones) || backup.is_some() && others.is_empty() {
        // The value before the first change may have had no final line break. A key that is missing is restored, and
        // one that has only lb-linker's lines, which an earlier version wrote in the place of the value.
        let is_former = |backup: &&str| {
            removed.trim().is_empty() || corefile.has_own(zones) && backup.trim_end() == removed.trim_end()
        };
        let former = backup.filter(|_| others.is_empty()).filter(is_former);
        let after = former.map_or_else(|| removed.clone(), ToOwned::to_owned);
        steps.push(step_of(map, key, after, String::new(), !others.is_empty(), restart));
    }
    // Without known ports, the blocks on all ports.
    let ports = listeners([corefile]).ok().map(|listeners| ports(&listeners));
    let (file, blocks) = (file_name(map, key), corefile.blocks_of(zones, ports.as_deref()).into_iter());
    steps.extend(blocks.filter(|block| !block.is_ours).map(|ZoneBlock { zone, line, .. }| {
        PlannedChange::Refused(format!(
            "{file}:{line}: the block of zone {zone} has no marker lines of lb-linker around it: remove it by hand"
        ))
    }));
    Ok((steps, others))
}

/// Returns a sentence about the first of these zones that would take names from the plugin *kubernetes* of the cluster
/// DNS; with `needs_all`, also about a zone of *kubernetes* that isn't known.
#[must_use]
pub fn kubernetes_conflict(dns: &ClusterDns, zones: &[String], needs_all: bool) -> Option<String> {
    let domains: Vec<_> =
        corefiles(dns).iter().flat_map(|corefile| corefile.zones_of("kubernetes")).collect();
    let unknown = domains.iter().find(|domain| needs_all && !domain.is_known()).map(|domain| {
        let error = domain.position.error(
            "the plugin kubernetes has an environment variable of CoreDNS here, whose value isn't known, and so it isn't \
             known which zones would hide names of the cluster: write the value instead",
        );
        error.to_string()
    });
    let known = domains.iter().filter(|domain| domain.is_known());
    let known = known.filter_map(|domain| Some((domain, own_domains(&domain_name(&domain.zone)?))));
    let own: Vec<_> = known.flat_map(|(domain, own)| own.into_iter().map(move |own| (domain, own))).collect();
    let conflict = zones.iter().find_map(|zone| {
        own.iter().find_map(|(domain, own)| {
            let verb = overlap(&domain_name(zone)?, own)?;
            let error = domain.position.error(format!(
                "the plugin kubernetes answers for {} here; --zone {zone} {verb} it, and would hide names of the cluster: \
                 give a zone outside of it",
                to_presentation(own)
            ));
            Some(error.to_string())
        })
    });
    conflict.or(unknown)
}

/// Returns a sentence for each line of the Corefiles whose plugin CoreDNS doesn't have.
#[must_use]
pub fn unknown_plugins(dns: &ClusterDns) -> Vec<String> {
    let effect = "unless the image was built with one of this name, CoreDNS loads no change of its Corefile";
    let main = dns.config_map(COREDNS).and_then(parsed).filter(Corefile::imports_overrides);
    let of_main = |main: &Corefile<'_>| -> Vec<CorefileError> {
        let of_file = |(key, text): (&String, &String)| {
            main.unknown_plugins_of_override(&format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}:{key}"), text)
        };
        overrides(dns).flat_map(of_file).collect()
    };
    let of_corefiles = corefiles(dns).into_iter().flat_map(|corefile| corefile.unknown_plugins());
    let unknown = of_corefiles.chain(main.iter().flat_map(of_main));
    // A snippet may be imported several times.
    let warnings: IndexSet<String> = unknown.map(|error| format!("{error}; {effect}")).collect();
    warnings.into_iter().collect()
}

/// Returns the Corefiles of CoreDNS and NodeLocal DNSCache. What can't be parsed is reported where it would be changed.
fn corefiles(dns: &ClusterDns) -> Vec<Corefile<'_>> {
    corefiles_of_core_dns(dns).into_iter().chain(of_node_local(dns)).collect()
}

fn of_node_local(dns: &ClusterDns) -> Option<Corefile<'_>> {
    dns.node_local().and_then(parsed)
}

/// Returns the Corefile of CoreDNS, and the files that it imports.
fn corefiles_of_core_dns(dns: &ClusterDns) -> Vec<Corefile<'_>> {
    let main = dns.config_map(COREDNS).and_then(parsed);
    // The imported files may use snippets of the main one.
    let of_imported = |(file, text): (String, _)| match &main {
        Some(main) => main.parse_imported(&file, text).ok(),
        None => Corefile::parse(&file, text).ok(),
    };
    let imported: Vec<_> = imported(dns).filter_map(of_imported).collect();
    main.into_iter().chain(imported).collect()
}

fn parsed(map: &ConfigMap) -> Option<Corefile<'_>> {
    Corefile::parse(&file_name(map, COREFILE), value(map, COREFILE)?).ok()
}

/// Returns the lines of a change as `diff` prints them, below the name of the key and above a note about the backup.
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
    match change.backup {
        Backup::Set => {
            diff.push(format!("The present value is kept under the key {}.", change.backup_key()));
        }
        Backup::Remove => {
            diff.push(format!("The key {} is removed.", change.backup_key()));
        }
        _ => {}
    }
    diff
}

/// Returns the other keys of [`COREDNS_CUSTOM`] that the Corefile of CoreDNS imports, with their names in messages.
fn parse_imported<'a>(
    dns: &'a ClusterDns,
    corefile: &Corefile<'_>,
) -> Result<Vec<(String, Corefile<'a>)>, CorefileError> {
    imported(dns).map(|(file, text)| Ok((file.clone(), corefile.parse_imported(&file, text)?))).collect()
}

/// Returns the keys of [`COREDNS_CUSTOM`] whose lines blocks of CoreDNS may import.
fn overrides(dns: &ClusterDns) -> impl Iterator<Item = (&String, &String)> {
    let data = dns.config_map(COREDNS_CUSTOM).and_then(|map| map.data.as_ref());
    data.into_iter().flatten().filter(|(key, _)| key.ends_with(".override"))
}

/// Returns a sentence about a `bind` that the blocks of a Corefile import, or about an import that may have one; it can't
/// be told for which blocks it is.
fn bind_of_override(dns: &ClusterDns, corefile: &Corefile<'_>) -> Option<String> {
    let what = |text: &str| {
        text.lines().find_map(|line| match line.split_whitespace().next() {
            Some("bind") => Some("a bind"),
            Some("import") => Some("an import"),
            _ => None,
        })
    };
    let (key, what) = overrides(dns).find_map(|(key, text)| Some((key, what(text)?)))?;
    corefile.imports_overrides().then(|| {
        format!(
            "{KUBE_SYSTEM}/{COREDNS_CUSTOM}:{key} has {what} for blocks that import it, and lb-linker doesn't know for \
             which bind: add the block for the zone by hand, with the bind of the block for all names"
        )
    })
}

/// Returns the ports of listeners, each once.
pub(super) fn ports(listeners: &[Listener]) -> Vec<u16> {
    let ports: BTreeSet<u16> = listeners.iter().map(|listener| listener.port).collect();
    ports.into_iter().collect()
}

/// Returns the name, as messages show it, and the text of each file that the Corefile of CoreDNS may import, except
/// lb-linker's own file.
pub(super) fn imported(dns: &ClusterDns) -> impl Iterator<Item = (String, &str)> {
    let data = dns.config_map(COREDNS_CUSTOM).and_then(|map| map.data.as_ref());
    let servers =
        data.into_iter().flatten().filter(|(key, _)| key.ends_with(".server") && *key != SERVER_KEY);
    servers.map(|(key, text)| (format!("{KUBE_SYSTEM}/{COREDNS_CUSTOM}:{key}"), text.as_str()))
}

/// Returns the file name of a key in messages, such as `kube-system/coredns:Corefile`.
pub(super) fn file_name(map: &ConfigMap, key: &str) -> String {
    format!("{KUBE_SYSTEM}/{}:{key}", name(map))
}

/// Returns an empty ConfigMap of `kube-system`.
pub(super) fn config_map(name: &str) -> ConfigMap {
    let metadata =
        ObjectMeta { name: Some(name.into()), namespace: Some(KUBE_SYSTEM.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// Returns the workload that mounts the ConfigMap, for kubectl: the DaemonSet of NodeLocal DNSCache has the name of its
/// ConfigMap.
fn workload(map: &ConfigMap) -> String {
    if name(map) == COREDNS { DEPLOYMENT.to_owned() } else { format!("daemonset {}", name(map)) }
}

fn name(map: &ConfigMap) -> &str {
    map.metadata.name.as_deref().unwrap_or_default()
}

fn lacks_corefile(map: &ConfigMap) -> PlannedChange {
    PlannedChange::Refused(format!("ConfigMap {KUBE_SYSTEM}/{} has no key {COREFILE}", name(map)))
}

/// Returns the step after which lb-linker's blocks in a key have the zones on each port of the listeners where no other
/// block has them.
fn step_to_add(
    (map, key): (&ConfigMap, &str),
    corefile: &Corefile<'_>,
    forwarding: &Forwarding,
    (listeners, mut blocks): (&[Listener], Blocks),
    is_node_local: bool,
    restart: Option<String>,
) -> Result<PlannedChange, CorefileError> {
    let mut of_corefile = corefile.blocks_of(&forwarding.zones, Some(&ports(listeners)));
    of_corefile.retain(|block| !block.is_ours);
    blocks.extend(&file_name(map, key), of_corefile);
    let wanted = match blocks.missing(forwarding, listeners) {
        Err(wrong) => return Ok(PlannedChange::Refused(wrong)),
        Ok(wanted) => wanted,
    };
    let lines = zone_lines(forwarding, &wanted, is_node_local);
    let after = corefile.with_lines(&lines)?;
    Ok(if value(map, key).unwrap_or_default() == after {
        let server = if key == SERVER_KEY { COREDNS } else { name(map) };
        done(&format!("{KUBE_SYSTEM}/{server}"), forwarding)
    } else {
        step_of(map, key, after, text_of_zones(&lines), true, restart)
    })
}

fn done(place: &str, forwarding: &Forwarding) -> PlannedChange {
    PlannedChange::Done(format!("ConfigMap {place} forwards {} already", forwarding.zones.join(", ")))
}

/// Returns the command that restarts the Pods, unless the Corefile has *reload*, which also reads imported files again.
fn restart(corefile: &Corefile<'_>, workload: &str) -> Option<String> {
    (!corefile.reloads()).then(|| format!("kubectl -n {KUBE_SYSTEM} rollout restart {workload}"))
}

/// Returns the step to a new value of a key. `has_blocks`: whether lb-linker's blocks are in it.
fn step_of(
    map: &ConfigMap,
    key: &str,
    after: String,
    lines: String,
    has_blocks: bool,
    restart: Option<String>,
) -> PlannedChange {
    let has_backup = value(map, &format!("{key}{BACKUP}")).is_some();
    let before = value(map, key).map(ToOwned::to_owned);
    let has_own = |text: &str| Corefile::parse(key, text).is_ok_and(|it| it.own_zones().next().is_some());
    let is_foreign = before.as_deref().is_some_and(|text| !has_own(text));
    let backup = match (has_blocks, has_backup) {
        (true, false) if is_foreign => Backup::Set,
        (false, true) => Backup::Remove,
        _ => Backup::Keep,
    };
    // A Corefile stays, even if it is empty.
    let after = Some(after).filter(|text| key == COREFILE || !text.trim().is_empty());
    let version = map.metadata.resource_version.clone();
    let change = Change {
        config_map: name(map).to_owned(),
        key: key.to_owned(),
        before,
        after,
        lines,
        backup,
        version,
        restart,
    };
    // A tool that sets the value back knows nothing of the backup.
    match manager(&map.metadata).filter(|_| change.before != change.after) {
        Some(by) => PlannedChange::Managed { change: Change { backup: Backup::Keep, ..change }, by },
        None => PlannedChange::Change(change),
    }
}

#[cfg(test)]
mod tests;
