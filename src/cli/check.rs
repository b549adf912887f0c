//! `lb-linker check`: verifies flags, files and permissions, and changes nothing.

mod dry_run;
mod instance;
mod permissions;
mod remotes;
pub(crate) mod report;

use std::path::Path;
use std::sync::Arc;

use kube::Client;

use crate::cli::check::report::CheckReport;
use crate::cli::error::InputError;
use crate::cli::flags::{Flags, without_links};
use crate::cli::mistyped_variables::mistyped_variables;
use crate::dns::corefile::CorefileError;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::corefile_source::{CorefileSource, CorefileZones, LoadedCorefile};
use crate::dns::server::error::ServerError;
use crate::dns::server::sockets::http_conflict;
use crate::model::owner::Zone;
use crate::snapshot::file::check_path;
use crate::store::cluster::registry::{ClusterSpec, Connection};
use crate::store::{OnGone, Store};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::output_dir;
use crate::sync::k8s::client::{ClientConnection, ClientError, connect, connect_to};
use crate::sync::source::manifests;
use crate::sync::source::missing_namespaces::missing_namespaces;

/// The line about a cluster without the CRD.
const WITHOUT_STABLE_NAMES: &str = "StableNames aren't used, because their CRD isn't installed: deploy/crd/";

/// Checks flags and files without opening a port. With `ask_cluster`, also asks the API server whether each required
/// permission is granted, looks for another leader, tries a dry-run creation, and looks for the objects of another
/// instance; in remote clusters, whether they grant what is needed.
///
/// # Errors
/// If the flags, the Corefile or the directory of manifests can't be used, or no client for the cluster can be made.
pub async fn check(flags: &Flags, ask_cluster: bool) -> Result<CheckReport, InputError> {
    flags.validate()?;
    flags.upstreams()?;
    let mut check_report = CheckReport::default();
    let corefile = CorefileSource::new(flags.corefile.clone(), || flags.built_in_corefile()).read()?;
    let ValidCorefile { zones, warnings, clusters, port_conflict } = &match check_corefile(flags, &corefile)?
    {
        Ok(checked) => checked,
        Err(errors) => {
            check_report.input_errors.extend(errors.iter().map(ToString::to_string));
            return Ok(check_report);
        }
    };
    let flags = &flags.clone().with_connection_of(&zones.links);
    check_report.input_errors.extend(mistyped_variables(corefile.variables()));
    check_report.input_errors.extend(port_conflict.iter().map(ToString::to_string));
    let effective = flags.effective();
    let width = effective.iter().map(|(flag, _)| flag.len()).max().unwrap_or_default();
    check_report.lines.extend(effective.iter().map(|(flag, value)| format!("{flag:width$}  {value}")));
    if let Some(path) = &flags.snapshot {
        check_report.input_errors.extend(check_path(path).err().map(|error| format!("--snapshot {error}")));
    }
    let has_cluster_dns = corefile.has_plugin("kubernetes");
    let reads_links = flags.reads_links(&zones.links, has_cluster_dns);
    let notice = if reads_links { flags.sync_notice() } else { Some(without_links(has_cluster_dns)) };
    let notices = notice.into_iter().chain(flags.upstream_notice().filter(|_| reads_links));
    check_report.lines.extend(notices.map(ToOwned::to_owned));
    check_report.warnings.extend(warnings.iter().map(ToString::to_string));
    check_report.lines.push(String::new());
    check_report.lines.extend(corefile.text().lines().map(str::to_owned));
    let needs_cluster = reads_links || clusters.iter().any(|spec| spec.connection == Connection::Own);
    let remotes = if needs_cluster { &*flags.remote.remotes } else { &[] };
    // Before the API server is asked for anything.
    let remotes = remotes::connect_remotes(remotes).await?;
    if let Some(directory) = &flags.manifests {
        check_manifests(&mut check_report, flags, directory, zones)?;
    } else if !needs_cluster {
        // Without links and names of this cluster no permission is needed.
    } else if ask_cluster {
        let of_links = reads_links.then_some(&*zones.links);
        let home = connect_own(flags, clusters).await?;
        let server = format!("API server {}", home.server);
        check_report.lines.push(server.clone());
        check_cluster(&mut check_report, flags, (&home.client, &server), of_links, clusters).await?;
        remotes::check_remotes(&mut check_report, &remotes, &zones.links, Some(&home), true).await;
    } else {
        let home = connect_own(flags, clusters).await;
        let is_named = flags.kubeconfig.is_some() || flags.context.is_some();
        // Flags and files can be checked without a cluster.
        let home = if is_named { Ok(home?) } else { home };
        check_report.lines.push(match &home {
            Ok(home) => format!("API server {}", home.server),
            Err(error) => format!("API server unknown: {error}"),
        });
        let home = home.as_ref().ok();
        remotes::check_remotes(&mut check_report, &remotes, &zones.links, home, false).await;
    }
    if ask_cluster {
        check_clusters_of_plugin(&mut check_report, clusters).await;
    }
    Ok(check_report)
}

/// Returns the connection to the cluster of the flags.
async fn connect_own(flags: &Flags, clusters: &[ClusterSpec]) -> Result<ClientConnection, ClientError> {
    let connected = connect(flags.kubeconfig.clone(), flags.context.clone()).await;
    match clusters.iter().any(|spec| spec.connection == Connection::Own) {
        true => connected.map_err(ClientError::of_cluster_dns),
        false => connected,
    }
}

/// Checks the directory of manifests, and that of external targets.
fn check_manifests(
    check_report: &mut CheckReport,
    flags: &Flags,
    directory: &Path,
    zones: &CorefileZones,
) -> Result<(), InputError> {
    let (policy, of_links) =
        (flags.hostname_policy(zones), zones.links.iter().map(Zone::from).collect::<Vec<_>>());
    let checked = manifests::check(directory, &flags.selection(), Some((&policy, &of_links)))
        .map_err(|source| InputError::Directory { flag: "manifests", source })?;
    check_report.lines.push(format!("load balancers in {}: {}", directory.display(), checked.services));
    if checked.stable_names > 0 {
        let stable_names = checked.stable_names;
        check_report.lines.push(format!("StableNames in {}: {stable_names}", directory.display()));
    }
    for (many, number) in checked.of_sources {
        check_report.lines.push(format!("{many} with names in {}: {number}", directory.display()));
    }
    check_report.lines.extend(checked.notices);
    check_report.lines.extend(checked.rejections);
    check_report.input_errors.extend(checked.errors);
    if let Some(output) = &flags.output {
        output_dir::check(output).map_err(|source| InputError::Directory { flag: "output", source })?;
    }
    Ok(())
}

/// Asks each API server that blocks of *kubernetes* name for the permissions of these blocks.
async fn check_clusters_of_plugin(check_report: &mut CheckReport, clusters: &[ClusterSpec]) {
    for (index, ClusterSpec { connection, .. }) in clusters.iter().enumerate() {
        if clusters[..index].iter().any(|spec| spec.connection == *connection) {
            continue;
        }
        let connected = match connection {
            Connection::Own => continue,
            Connection::Kubeconfig { path, context } => connect(Some(path.clone()), context.clone()).await,
            Connection::Endpoint { url, tls } => connect_to(url, tls.as_ref()).await,
        };
        let ClientConnection { client, server, .. } = match connected {
            Ok(connected) => connected,
            Err(error) => {
                check_report.input_errors.push(format!("kubernetes: {error}"));
                continue;
            }
        };
        let server = format!("kubernetes: API server {server}");
        check_report.lines.push(server.clone());
        let mut needed = Vec::new();
        for spec in clusters.iter().filter(|spec| spec.connection == *connection) {
            permissions::add_for_cluster_dns(&mut needed, spec);
        }
        permissions::review_access(check_report, client, &server, &needed).await;
    }
}

/// Asks the API server for permissions, and for links, with these zones, looks for another leader, tries an external
/// target, and looks for another instance. Ends with the first request that has no usable answer.
async fn check_cluster(
    check_report: &mut CheckReport,
    flags: &Flags,
    (client, server): (&Client, &str),
    zones: Option<&[LinkZone]>,
    clusters: &[ClusterSpec],
) -> Result<(), InputError> {
    let reads_links = zones.is_some();
    let election_config = flags.election_config()?;
    let own: Vec<_> = clusters.iter().filter(|spec| spec.connection == Connection::Own).collect();
    let folder = permissions::folder(flags, !own.is_empty());
    let mut needed =
        if reads_links { permissions::needed(flags, folder, election_config.as_ref()) } else { Vec::new() };
    own.into_iter().for_each(|spec| permissions::add_for_cluster_dns(&mut needed, spec));
    needed.extend(permissions::for_sources(flags, zones.unwrap_or_default().iter()));
    if !permissions::review_access(check_report, client.clone(), server, &needed).await || !reads_links {
        return Ok(());
    }
    check_report.lines.extend(missing_namespaces(client.clone(), &flags.watch_namespaces).await);
    match permissions::has_external_targets(check_report, client).await {
        Some(true) => {
            let mut needed = permissions::for_stable_names(flags, folder);
            if permissions::has_prometheus_rules(check_report, client).await == Some(true) {
                needed.extend(permissions::for_alerts(flags));
            }
            if !permissions::review_access(check_report, client.clone(), server, &needed).await {
                return Ok(());
            }
        }
        Some(false) => check_report.lines.push(WITHOUT_STABLE_NAMES.to_owned()),
        None => {}
    }
    if let Some(lease) = flags.foreign_lease() {
        match lease.find_leader(client).await {
            Ok(leader) => check_report.cluster_errors.extend(leader),
            Err(why) => check_report.lines.push(format!("{why}; so a leader in the cluster isn't noticed")),
        }
    }
    if flags.sync_mode() != SyncMode::Off {
        let (namespace, sync) = (&flags.target_namespace, flags.sync_mode());
        dry_run::dry_run_create(check_report, client.clone(), namespace, sync).await;
    }
    if flags.sync_mode() != SyncMode::Off {
        instance::check_owners(check_report, client.clone(), &flags.target_namespace, &flags.instance())
            .await;
    }
    Ok(())
}

struct ValidCorefile {
    zones: CorefileZones,
    warnings: Vec<CorefileError>,
    /// What the plugin *kubernetes* reads.
    clusters: Vec<ClusterSpec>,
    port_conflict: Option<ServerError>,
}

/// Returns the zones and the warnings of the Corefile, or all its errors, in the order of their positions. Builds
/// the configuration, and discards it.
fn check_corefile(
    flags: &Flags,
    corefile: &LoadedCorefile,
) -> Result<Result<ValidCorefile, Vec<CorefileError>>, InputError> {
    let zones = corefile.zones(&flags.hostname_policy.cluster_domain);
    let origins = zones.iter().flat_map(|zones| &zones.links).map(|zone| &zone.origin);
    let mut context = ServerContext::silent(Arc::new(Store::new(OnGone::Dropped).with_zones(origins)))?;
    context.has_own_cluster = flags.manifests.is_none();
    let mut errors = match (zones, corefile.check(&context)) {
        (Ok(zones), Ok(configuration)) => {
            flags.clone().with_connection_of(&zones.links).check_zones(&zones.links)?;
            let clusters = context.clusters.known().iter().map(|cluster| cluster.spec().clone()).collect();
            let port_conflict = http_conflict(&configuration);
            let blocks = configuration.blocks.into_iter();
            let warnings = blocks.flat_map(|built| built.builder.warnings).collect();
            return Ok(Ok(ValidCorefile { zones, warnings, clusters, port_conflict }));
        }
        (zones, configuration) => {
            configuration.err().into_iter().flatten().chain(zones.err()).collect::<Vec<_>>()
        }
    };
    errors.sort_by_key(|CorefileError { position, .. }| {
        (Arc::clone(&position.file), position.line, position.column)
    });
    errors.dedup();
    Ok(Err(errors))
}
