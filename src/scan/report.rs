//! The report of a scan: tables, and the commands that let Services follow their load balancer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::json;

use super::findings::{ExactMatch, RemoteLoadBalancer, Scan};
use crate::links::table::columns;
use crate::model::rejection::MAX_ENTRIES;

const NOTHING_EXACT: &str =
    "No ExternalName Service names exactly one load balancer of this cluster that it doesn't follow already.";

/// A title, and the rows of a table without its head.
type Section<'a> = (&'static str, Vec<Vec<Cow<'a, str>>>);

/// Returns the lines of the report. Findings that need a decision come first.
#[must_use]
pub fn report(scan: &Scan) -> Vec<String> {
    let mut lines = Vec::new();
    for (title, rows) in
        [probable, ambiguous, sources, targets, remote, addresses, exact].into_iter().flat_map(|of| of(scan))
    {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(title.to_owned());
        lines.push(String::new());
        let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(|cell| &**cell).collect()).collect();
        lines.extend(columns(&rows).into_iter().map(|line| format!("  {line}")));
    }
    if scan.exact.is_empty() {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(NOTHING_EXACT.to_owned());
    } else {
        lines.push(String::new());
        lines.push("The commands for it (or run this command with --apply):".to_owned());
        lines.push(String::new());
        lines.extend(commands(&scan.exact).into_iter().map(|command| format!("  {command}")));
        lines.push(String::new());
        lines.push("lb-linker needs the permissions of deploy/source/ to change these Services.".to_owned());
    }
    lines
}

/// Returns a section; `None` if it has no rows.
fn section<'a, const COLUMNS: usize>(
    title: &'static str,
    head: [&'static str; COLUMNS],
    rows: impl Iterator<Item = [Cow<'a, str>; COLUMNS]>,
) -> Option<Section<'a>> {
    let rows: Vec<Vec<_>> = [head.map(Cow::from)].into_iter().chain(rows).map(Vec::from).collect();
    (rows.len() > 1).then_some((title, rows))
}

fn probable(scan: &Scan) -> Option<Section<'_>> {
    section(
        "Probably stale: no load balancer has this hostname any more. Decide which load balancer is meant:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "DNS"],
        scan.probable
            .iter()
            .map(|it| [&it.namespace, &it.service, &it.external_name, &it.dns].map(Cow::from)),
    )
}

fn ambiguous(scan: &Scan) -> Option<Section<'_>> {
    section(
        "Several load balancers have this hostname. Decide which one is meant:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "LOAD BALANCERS"],
        scan.ambiguous.iter().map(|it| {
            let owners = it.load_balancers.join(",").into();
            [(&it.namespace).into(), (&it.service).into(), (&it.external_name).into(), owners]
        }),
    )
}

fn sources(scan: &Scan) -> Option<Section<'_>> {
    section(
        "These Services name a source or a former target of a StableName. Decide whether they are to follow the \
         StableName:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "STABLENAMES"],
        scan.sources.iter().map(|it| {
            let owners = it.stable_names.join(",").into();
            [(&it.namespace).into(), (&it.service).into(), (&it.external_name).into(), owners]
        }),
    )
}

fn targets(scan: &Scan) -> Option<Section<'_>> {
    section(
        "These Services name the hostname of an Ingress or Gateway, and can't follow it. With --sources \
         service,ingress,gateway the hosts of Ingresses and routes are DNS names in the zones:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "OBJECTS"],
        scan.targets.iter().map(|it| {
            let objects = it.objects.join(",").into();
            [(&it.namespace).into(), (&it.service).into(), (&it.external_name).into(), objects]
        }),
    )
}

fn remote(scan: &Scan) -> Option<Section<'_>> {
    section(
        "These Services name a load balancer of a remote cluster, and can't follow it. Use the DNS name that lb-linker \
         gives it instead:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "CLUSTER", "LOAD BALANCER", "USE INSTEAD"],
        scan.remote.iter().map(|it| {
            let RemoteLoadBalancer { cluster, load_balancer, name } = &it.remote;
            [&it.namespace, &it.service, &it.external_name, cluster, load_balancer, name].map(Cow::from)
        }),
    )
}

fn addresses(scan: &Scan) -> Option<Section<'_>> {
    section(
        "Objects with an address of a load balancer. The last column names what has its present addresses:",
        ["NAMESPACE", "KIND", "NAME", "ADDRESS", "LOAD BALANCER", "USE INSTEAD"],
        scan.addresses.iter().map(|it| {
            let address = it.address.to_string().into();
            let (owner, replacement) = ((&it.load_balancer).into(), (&it.replacement).into());
            [(&it.namespace).into(), it.kind.into(), (&it.name).into(), address, owner, replacement]
        }),
    )
}

fn exact(scan: &Scan) -> Option<Section<'_>> {
    section(
        "These Services name a load balancer of this cluster, and can follow it:",
        ["NAMESPACE", "SERVICE", "EXTERNAL NAME", "LOAD BALANCER"],
        scan.exact.iter().map(|it| {
            let kind = if it.is_stable_name { "StableName " } else { "" };
            let owner = format!("{kind}{}", it.load_balancer).into();
            [(&it.namespace).into(), (&it.service).into(), (&it.external_name).into(), owner]
        }),
    )
}

/// Returns the kubectl commands that let Services follow their load balancers: first the permissions of the load
/// balancers, then the annotations.
#[must_use]
pub fn commands(exact: &[ExactMatch]) -> Vec<String> {
    let grants = allow_from(exact);
    let is_too_long = |grant: &Grant<'_>| grant.namespaces.len() > MAX_ENTRIES;
    let allowed = grants.iter().map(|(load_balancer, grant)| {
        if is_too_long(grant) {
            return format!(
                "# {load_balancer} would have to allow {} namespaces, more than the {MAX_ENTRIES} that lb-linker reads: allow \
                 all with *, or some by hand",
                grant.namespaces.len()
            );
        }
        let (namespace, name) = load_balancer.split_once('/').unwrap_or_default();
        if grant.is_stable_name {
            let patch = json!({"spec": {"allowFrom": grant.namespaces}});
            format!("kubectl -n {namespace} patch stablename {name} --type=merge -p '{patch}'")
        } else {
            format!(
                "kubectl -n {namespace} annotate --overwrite service {name} linker.hsj.com/allow-from={}",
                grant.namespaces.join(",")
            )
        }
    });
    let can_follow =
        |it: &&ExactMatch| !it.needs_allow_from || !grants.get(&*it.load_balancer).is_some_and(is_too_long);
    let followed = exact.iter().filter(can_follow).map(|it| {
        format!(
            "kubectl -n {} annotate service {} linker.hsj.com/source={}",
            it.namespace, it.service, it.load_balancer
        )
    });
    allowed.chain(followed).collect()
}

/// The namespaces that a load balancer has to allow.
#[derive(Debug, Default)]
pub(super) struct Grant<'a> {
    pub(super) is_stable_name: bool,
    /// Also the namespaces that are allowed already.
    pub(super) namespaces: Vec<&'a str>,
}

/// Returns the namespaces that each load balancer has to allow.
pub(super) fn allow_from(exact: &[ExactMatch]) -> BTreeMap<&str, Grant<'_>> {
    let mut wanted: BTreeMap<&str, Grant<'_>> = BTreeMap::new();
    for it in exact.iter().filter(|it| it.needs_allow_from) {
        let grant = wanted.entry(&it.load_balancer).or_insert_with(|| Grant {
            is_stable_name: it.is_stable_name,
            namespaces: it.allowed.iter().map(String::as_str).collect(),
        });
        if !grant.namespaces.contains(&&*it.namespace) {
            grant.namespaces.push(&it.namespace);
        }
    }
    wanted
}

#[cfg(test)]
mod tests;
