//! `lb-linker stub`.

use std::io::Write;
use std::process::ExitCode;

use hickory_proto::rr::Name;
use kube::Client;

use crate::app::error::RunError;
use crate::app::link_reader::{LinkReader, zones_of_links};
use crate::cli::flags::Flags;
use crate::links::LinkFilter;
use crate::links::view::views;
use crate::model::excerpt::printable;
use crate::model::hostname::to_presentation;
use crate::stub::apply::write;
use crate::stub::changes::{
    Change, PlannedChange, answered_by_lb_linker, diff, kubernetes_conflict, to_apply, to_remove,
    unknown_plugins,
};
use crate::stub::cluster::read;
use crate::stub::own_service::{StubError, forwarding};
use crate::stub::platform::{ClusterDns, KUBE_SYSTEM, LB_LINKER_DNS, Resolver};
use crate::stub::report::report;
use crate::stub::{Forwarding, served_zones, verify};
use crate::sync::k8s::client::{ClientConnection, connect};

use super::output::{BAD_INPUT, FAILED, exit_with_error, fail, log_warnings, permit, print_problem};

/// What `lb-linker stub` does.
pub enum StubAction {
    /// Prints what to add for one resolver, or for all that the cluster has.
    Print(Option<Resolver>),
    Apply {
        ask: bool,
    },
    Remove {
        ask: bool,
    },
    Verify,
}

/// Prints, writes or verifies the configuration of the cluster DNS.
pub async fn stub(flags: Flags, service: Option<&str>, action: StubAction) -> ExitCode {
    let name = match service_name(&flags, service) {
        Ok(name) => name,
        Err(wrong) => return exit_with_error(wrong, BAD_INPUT),
    };
    log_warnings();
    let zones: Vec<String> = match zones_for(&action, &flags) {
        Ok(zones) => zones.iter().map(to_presentation).collect(),
        Err(error) => return fail(&error),
    };
    let connection = match connect(flags.kubeconfig.clone(), flags.context.clone()).await {
        Ok(connection) => connection,
        Err(error) => return fail(&error.into()),
    };
    let client = connection.client.clone();
    let (dns, notices) = match read(&client, !matches!(action, StubAction::Verify)).await {
        Ok(found) => found,
        Err(error) => {
            return exit_with_error(&format!("API server {}: {error}", connection.server), FAILED);
        }
    };
    for notice in &notices {
        print_problem(notice);
    }
    if !notices.is_empty() && matches!(action, StubAction::Apply { .. } | StubAction::Remove { .. }) {
        return exit_with_error("nothing was changed, because not all objects could be read", FAILED);
    }
    let conflict = kubernetes_conflict(&dns, &zones, matches!(action, StubAction::Apply { .. }));
    if let Some(conflict) = conflict.filter(|_| !matches!(action, StubAction::Remove { .. })) {
        return exit_with_error(&conflict, BAD_INPUT);
    }
    // Then lb-linker needs no Service to which a zone could be forwarded.
    if matches!(action, StubAction::Print(_) | StubAction::Apply { .. })
        && dns.node_local().is_none()
        && let Some(step) = answered_by_lb_linker(&dns, &zones)
    {
        return write_steps(&connection, &dns, vec![step], false).await;
    }
    let is_complete = notices.is_empty();
    let own_namespace = flags.own_namespace();
    let forwarding = own_service(&client, name, own_namespace.as_deref(), &zones, &dns).await;
    if let (StubAction::Print(_) | StubAction::Apply { .. }, Ok(forwarding)) = (&action, &forwarding) {
        // From outside of the cluster another machine may answer at the Service's address.
        let warning = match own_namespace {
            Some(_) => verify::unserved(forwarding).await,
            None => served_zones::unserved(&client, forwarding).await,
        };
        warning.iter().for_each(|warning| print_problem(warning));
    }
    match (action, forwarding) {
        // lb-linker's Service may be gone already.
        (StubAction::Remove { ask }, _) => write_steps(&connection, &dns, to_remove(&dns, &zones), ask).await,
        (_, Err(error)) => exit_with_error(&error.to_string(), FAILED),
        (StubAction::Print(resolver), Ok(forwarding)) => {
            print_report(&dns, &forwarding, resolver, is_complete)
        }
        (StubAction::Apply { ask }, Ok(forwarding)) => {
            write_steps(&connection, &dns, to_apply(&dns, &forwarding), ask).await
        }
        (StubAction::Verify, Ok(forwarding)) => verify_zones(flags, &dns, &forwarding, is_complete).await,
    }
}

/// Finds lb-linker's Service, which may be that of `deploy/cluster-dns/` alone.
async fn own_service(
    client: &Client,
    name: Option<(&str, &str)>,
    own_namespace: Option<&str>,
    zones: &[String],
    dns: &ClusterDns,
) -> Result<Forwarding, StubError> {
    match forwarding(client, name, own_namespace, zones.to_vec()).await {
        Err(StubError::NoService(why)) => {
            match forwarding(client, Some((KUBE_SYSTEM, LB_LINKER_DNS)), None, zones.to_vec()).await {
                Ok(_) if !dns.selects_lb_linker() => Err(StubError::OnlyClusterDns(why)),
                Err(_) if !dns.selects_lb_linker() => Err(StubError::NoService(why)),
                found => found,
            }
        }
        found => found,
    }
}

/// Returns the namespace and the name of `--service`.
fn service_name<'a>(
    flags: &Flags,
    service: Option<&'a str>,
) -> Result<Option<(&'a str, &'a str)>, &'static str> {
    if flags.manifests.is_some() {
        return Err("stub is about a cluster: leave out --manifests");
    }
    let name = service.map(|service| service.split_once('/').unwrap_or_default());
    match name {
        Some((namespace, name)) if namespace.is_empty() || name.is_empty() || name.contains('/') => {
            Err("--service needs a namespace and a name, such as lb-linker/lb-linker")
        }
        name => Ok(name),
    }
}

/// Returns the zones that an action is about.
fn zones_for(action: &StubAction, flags: &Flags) -> Result<Vec<Name>, RunError> {
    match action {
        // Whatever the zones are: a block that does harm has to go, too.
        StubAction::Remove { .. } if flags.corefile.is_none() => Ok(flags.zones.clone()),
        StubAction::Remove { .. } => {
            let mut flags = flags.clone();
            flags.hostname_policy.cluster_domain = Name::root();
            zones_of_links(&flags)
        }
        _ => zones_of_links(flags),
    }
}

/// Prints a line, which may have text of ConfigMaps and DNS answers.
fn print(line: &str) {
    // Ignore EPIPE: stdout may be closed (`| head`).
    let _ = writeln!(std::io::stdout(), "{}", printable(line, &['\t']));
}

/// Prints what has to forward the zones. `is_complete`: whether all objects of the cluster DNS could be read.
fn print_report(
    dns: &ClusterDns,
    forwarding: &Forwarding,
    resolver: Option<Resolver>,
    is_complete: bool,
) -> ExitCode {
    unknown_plugins(dns).iter().for_each(|warning| print_problem(warning));
    report(dns, forwarding, resolver, is_complete).iter().for_each(|line| print(line));
    ExitCode::SUCCESS
}

/// Prints the changes as differences, asks for a confirmation if `ask` is true, and writes the changes.
async fn write_steps(
    connection: &ClientConnection,
    dns: &ClusterDns,
    steps: Vec<PlannedChange>,
    ask: bool,
) -> ExitCode {
    let unloadable = unknown_plugins(dns);
    unloadable.iter().for_each(|warning| print_problem(warning));
    let mut changes = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for step in steps {
        match step {
            PlannedChange::Change(change) => {
                diff(&change).iter().for_each(|line| print(line));
                changes.push(change);
            }
            PlannedChange::Managed { change, by } => {
                let how = if change.is_removal() {
                    diff(&change).iter().for_each(|line| print(line));
                    format!("take these lines out of what {by} installs")
                } else {
                    format!("change what {by} installs; `lb-linker stub` prints the block")
                };
                let place = format!("ConfigMap {KUBE_SYSTEM}/{}", change.config_map);
                let why = format!("{place} is managed by {by}, which would undo a change: {how}");
                code = exit_with_error(&why, FAILED);
            }
            PlannedChange::Done(text) => print(&text),
            PlannedChange::Refused(text) => code = exit_with_error(&text, FAILED),
        }
    }
    if changes.is_empty() {
        return code;
    }
    let object = |change: &Change| format!("ConfigMap {KUBE_SYSTEM}/{}", change.config_map);
    let objects: Vec<String> = changes.iter().map(object).collect();
    if let Err(refusal) = permit(ask, &objects, &connection.server) {
        return exit_with_error(refusal, FAILED);
    }
    for change in &changes {
        let name = format!("{KUBE_SYSTEM}/{}", change.config_map);
        match write(&connection.client, change).await {
            Ok(()) if !unloadable.is_empty() => {
                print(&format!(
                    "ConfigMap {name} is changed, but CoreDNS loads it only without the errors above"
                ));
            }
            Ok(()) if change.before == change.after => {
                print(&format!("ConfigMap {name} has no copy of the former value any more"));
            }
            Ok(()) => print(&match &change.restart {
                None => format!("ConfigMap {name} is changed; its Pods read it within about two minutes"),
                Some(restart) => {
                    format!("ConfigMap {name} is changed; its Pods have to be restarted: {restart}")
                }
            }),
            Err(problem) => code = exit_with_error(&problem, FAILED),
        }
    }
    code
}

/// Asks all resolvers for a name of each zone. `is_complete`: whether all objects of the cluster DNS could be read. If
/// not, resolvers may be missing.
async fn verify_zones(
    flags: Flags,
    dns: &ClusterDns,
    forwarding: &Forwarding,
    is_complete: bool,
) -> ExitCode {
    let target_namespace = flags.target_namespace.clone();
    let reader = match LinkReader::open(flags).await {
        Ok(reader) => reader,
        Err(error) => return fail(&error),
    };
    let links = views(&reader.store, &target_namespace, &LinkFilter::default());
    let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let mut problems = Vec::new();
    for zone in &reader.zones {
        let expected = verify::expected(&links, zone);
        print(&expected.to_string());
        let asked = verify::ask(verify::resolver_hops(dns, forwarding, &resolv_conf), &expected).await;
        verify::table(&asked).iter().for_each(|line| print(line));
        problems.extend(verify::problem(&expected, &asked));
    }
    let answers_wrongly = !problems.is_empty();
    problems.extend(verify::wrong_blocks(dns, forwarding, answers_wrongly));
    if answers_wrongly {
        problems.extend(unknown_plugins(dns));
    }
    if !is_complete {
        problems.push("some resolvers may be missing, because not all objects could be read".to_owned());
    }
    for problem in &problems {
        print_problem(problem);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}
