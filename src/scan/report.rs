//! The report of a scan: tables, and the commands that let Services follow their load balancer.

use std::collections::BTreeMap;

use super::findings::{Exact, Scan};
use crate::links::table::columns;

/// Returns the lines of the report. What needs a decision stands first.
#[must_use]
pub fn report(scan: &Scan) -> Vec<String> {
    let mut lines = Vec::new();
    let mut section = |title: &str, rows: Vec<Vec<&str>>| {
        if rows.len() > 1 {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.push(title.to_owned());
            lines.push(String::new());
            lines.extend(columns(&rows).into_iter().map(|line| format!("  {line}")));
        }
    };
    let mut rows = vec![vec!["NAMESPACE", "SERVICE", "EXTERNAL NAME", "DNS"]];
    rows.extend(scan.probable.iter().map(|it| vec![&*it.namespace, &it.service, &it.external_name, &it.dns]));
    section(
        "Probably stale: no load balancer has this hostname any more. Decide which load balancer is meant:",
        rows,
    );
    let load_balancers: Vec<String> = scan.ambiguous.iter().map(|it| it.load_balancers.join(",")).collect();
    let mut rows = vec![vec!["NAMESPACE", "SERVICE", "EXTERNAL NAME", "LOAD BALANCERS"]];
    rows.extend(
        scan.ambiguous
            .iter()
            .zip(&load_balancers)
            .map(|(it, owners)| vec![&*it.namespace, &it.service, &it.external_name, owners]),
    );
    section("Several load balancers have this hostname. Decide which one is meant:", rows);
    let found: Vec<[String; 3]> = scan
        .addresses
        .iter()
        .map(|it| [it.address.to_string(), it.load_balancer.clone(), it.replacement.clone()])
        .collect();
    let mut rows = vec![vec!["NAMESPACE", "KIND", "NAME", "ADDRESS", "LOAD BALANCER", "USE INSTEAD"]];
    rows.extend(scan.addresses.iter().zip(&found).map(|(it, [address, owner, replacement])| {
        vec![&*it.namespace, it.kind, &it.name, address, owner, replacement]
    }));
    section(
        "Objects with an address of a load balancer. The external target has its present addresses:",
        rows,
    );
    let mut rows = vec![vec!["NAMESPACE", "SERVICE", "EXTERNAL NAME", "LOAD BALANCER"]];
    rows.extend(
        scan.exact.iter().map(|it| vec![&*it.namespace, &it.service, &it.external_name, &it.load_balancer]),
    );
    section("These Services name a load balancer of this cluster, and can follow it:", rows);
    if scan.exact.is_empty() {
        lines.push("No ExternalName Service has the hostname of a load balancer of this cluster.".to_owned());
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

/// Returns the kubectl commands that let Services follow their load balancers: first the permissions of the load
/// balancers, then the annotations.
#[must_use]
pub fn commands(exact: &[Exact]) -> Vec<String> {
    let allowed = allow_from(exact).into_iter().map(|(load_balancer, namespaces)| {
        let (namespace, name) = load_balancer.split_once('/').unwrap_or_default();
        format!(
            "kubectl -n {namespace} annotate --overwrite service {name} linker.hsj.com/allow-from={}",
            namespaces.join(",")
        )
    });
    let followed = exact.iter().map(|it| {
        format!(
            "kubectl -n {} annotate service {} linker.hsj.com/source={}",
            it.namespace, it.service, it.load_balancer
        )
    });
    allowed.chain(followed).collect()
}

/// Returns the namespaces that each load balancer has to allow, those included that it allows already.
pub(super) fn allow_from(exact: &[Exact]) -> BTreeMap<&str, Vec<&str>> {
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in exact.iter().filter(|it| it.needs_allow_from) {
        let namespaces = wanted
            .entry(&it.load_balancer)
            .or_insert_with(|| it.allowed.iter().map(String::as_str).collect());
        if !namespaces.contains(&&*it.namespace) {
            namespaces.push(&it.namespace);
        }
    }
    wanted
}

#[cfg(test)]
mod tests;
