//! The permissions that lb-linker needs, and their review by the API server.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Resource as _};

use super::report::CheckReport;
use crate::api::stable_name::StableName;
use crate::cli::flags::Flags;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::model::owner::{Source, Zone};
use crate::store::cluster::objects::Kind;
use crate::store::cluster::registry::ClusterSpec;
use crate::sync::election::ElectionConfig;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::discovery::is_served;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::remotes::KUBE_SYSTEM;

/// What to do if the API server doesn't answer.
const NO_ANSWER: &str =
    "; look whether it runs, and whether the kubeconfig and the context are the right ones";
/// The timeout of the review of one permission.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// API group, version and plural name; for a subresource followed by `/` and the name of the subresource.
type Resource = (&'static str, &'static str, &'static str);

const SERVICES: Resource = ("", "v1", "services");
const NAMESPACES: Resource = ("", "v1", "namespaces");
const EVENTS: Resource = ("events.k8s.io", "v1", "events");
const ENDPOINT_SLICES: Resource = ("discovery.k8s.io", "v1", "endpointslices");
const LEASES: Resource = ("coordination.k8s.io", "v1", "leases");
const PODS: Resource = ("", "v1", "pods");
const SERVICE_IMPORTS: Resource = ("multicluster.x-k8s.io", "v1alpha1", "serviceimports");
const STABLE_NAMES: Resource = ("linker.hsj.com", "v1alpha1", "stablenames");
const STABLE_NAME_STATUS: Resource = ("linker.hsj.com", "v1alpha1", "stablenames/status");
const INGRESSES: Resource = ("networking.k8s.io", "v1", "ingresses");
const DNS_ENDPOINTS: Resource = ("externaldns.k8s.io", "v1alpha1", "dnsendpoints");
/// The resources of Gateway API that names come from.
const OF_GATEWAYS: [Resource; 5] = [
    ("gateway.networking.k8s.io", "v1", "gateways"),
    ("gateway.networking.k8s.io", "v1", "listenersets"),
    ("gateway.networking.k8s.io", "v1", "httproutes"),
    ("gateway.networking.k8s.io", "v1", "grpcroutes"),
    ("gateway.networking.k8s.io", "v1", "tlsroutes"),
];
const PROMETHEUS_RULES: Resource = ("monitoring.coreos.com", "v1", "prometheusrules");

/// A permission: a verb on objects of a kind, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequiredPermission<'a> {
    verb: &'static str,
    resource: Resource,
    /// The remote cluster; `None` for the home cluster.
    cluster: Option<&'a str>,
    namespace: Option<&'a str>,
    /// The name of the only object that the permission covers; `None` for all objects.
    name: Option<&'a str>,
    need: Requirement,
}

impl<'a> RequiredPermission<'a> {
    /// Returns a permission in the home cluster, for all objects of a namespace (`None`: of all namespaces).
    fn new(verb: &'static str, resource: Resource, namespace: Option<&'a str>, need: Requirement) -> Self {
        Self { verb, resource, cluster: None, namespace, name: None, need }
    }

    fn place(&self) -> String {
        self.cluster.map(|cluster| format!(" of cluster {cluster}")).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    /// Required with the current flags; names the folder of the manifests that grant the permission.
    Always(&'static str),
    /// Required only for an optional feature; describes the feature.
    Optional(&'static str),
}

impl fmt::Display for RequiredPermission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource.2)?;
        if let Some(name) = self.name {
            write!(f, "/{name}")?;
        }
        match self.namespace {
            _ if self.resource == NAMESPACES && self.name.is_some() => {}
            Some(namespace) => write!(f, " in namespace {namespace}")?,
            None => write!(f, " in all namespaces")?,
        }
        f.write_str(&self.place())
    }
}

/// The folder with the ServiceAccount of an lb-linker that answers for the cluster's names.
const CLUSTER_DNS: &str = "deploy/cluster-dns/";
/// The folder with the ServiceAccount of other ones.
const DEPLOY: &str = "deploy/";

/// Returns the folder with the ServiceAccount that these flags are for.
pub(super) fn folder(flags: &Flags, has_cluster_dns: bool) -> &'static str {
    if flags.is_cluster_dns(has_cluster_dns) { CLUSTER_DNS } else { DEPLOY }
}

/// Returns the permissions that lb-linker needs with these flags.
pub(super) fn needed<'a>(
    flags: &'a Flags,
    folder: &'static str,
    election_config: Option<&'a ElectionConfig>,
) -> Vec<RequiredPermission<'a>> {
    let permission = |resource, namespace, need| {
        move |verb: &&'static str| RequiredPermission::new(verb, resource, namespace, need)
    };
    let default = Requirement::Always(folder);
    let watched = watched(flags);
    let verbs: &[&str] = match flags.sync_mode() {
        SyncMode::On => &["list", "watch", "create", "patch", "delete"],
        SyncMode::Plan => &["list", "watch"],
        SyncMode::Off => &[],
    };
    let target = Some(&*flags.target_namespace);
    let mut permissions = Vec::new();
    for namespace in &watched {
        permissions.extend(["list", "watch"].iter().map(permission(SERVICES, *namespace, default)));
    }
    permissions.extend(verbs.iter().map(permission(SERVICES, target, default)));
    permissions.extend(verbs.iter().map(permission(ENDPOINT_SLICES, target, default)));
    if flags.sync_mode() == SyncMode::On {
        let patch = if flags.finalizer {
            Requirement::Always("deploy/finalizer/, for --finalizer")
        } else {
            Requirement::Optional("only for the annotation linker.hsj.com/source: deploy/source/")
        };
        for namespace in &watched {
            permissions.extend(["create", "patch"].iter().map(permission(EVENTS, *namespace, default)));
            permissions.extend(["patch"].iter().map(permission(SERVICES, *namespace, patch)));
        }
    }
    if !flags.remote.remotes.is_empty() {
        permissions.push(reading_kube_system(None, "deploy/remote/home/, for --remote"));
    }
    if let Some(election_config) = election_config {
        let own = Some(&*election_config.namespace);
        // RBAC can limit get, update and delete to the Lease's name, but not create: when a creation is authorized, the
        // name isn't known yet.
        let lease = |permission| RequiredPermission { name: Some(&*election_config.lease), ..permission };
        let of_instance = Requirement::Always(if election_config.is_default_outside {
            "deploy/, for the Lease in its own namespace: to take part in the election of deploy/, give --instance \
             lb-linker/lb-linker"
        } else {
            "deploy/, for the Lease in the namespace of --instance"
        });
        permissions.extend(["create"].iter().map(permission(LEASES, own, of_instance)));
        permissions.extend(["get", "update"].iter().map(permission(LEASES, own, of_instance)).map(lease));
        if election_config.pod.is_some() {
            let life = Requirement::Always("deploy/life/, for --leader-election life");
            permissions.extend(["delete"].iter().map(permission(LEASES, own, life)).map(lease));
            permissions.extend(["get"].iter().map(permission(PODS, own, life)));
        }
    }
    permissions
}

/// Adds the permissions that the plugin *kubernetes* needs for the objects of a cluster, unless they are there already.
pub(super) fn add_for_cluster_dns(permissions: &mut Vec<RequiredPermission<'_>>, spec: &ClusterSpec) {
    let of_pods = "deploy/cluster-dns/pods/, for `pods verified`";
    let of_imports = "deploy/cluster-dns/serviceimports/, for `multicluster`";
    for (kind, resource, folder) in [
        (Kind::Services, SERVICES, CLUSTER_DNS),
        (Kind::Namespaces, NAMESPACES, CLUSTER_DNS),
        (Kind::Slices, ENDPOINT_SLICES, CLUSTER_DNS),
        (Kind::Pods, PODS, of_pods),
        (Kind::Imports, SERVICE_IMPORTS, of_imports),
    ] {
        for verb in ["list", "watch"].into_iter().filter(|_| spec.has(kind)) {
            let need = Requirement::Always(folder);
            let permission = RequiredPermission::new(verb, resource, None, need);
            if !permissions.iter().any(|known| RequiredPermission { need, ..known.clone() } == permission) {
                permissions.push(permission);
            }
        }
    }
}

/// Returns the permissions for StableNames, which are required as soon as the API server serves StableNames.
pub(super) fn for_stable_names<'a>(flags: &'a Flags, folder: &str) -> Vec<RequiredPermission<'a>> {
    let need = Requirement::Always(if folder == DEPLOY { "deploy/crd/" } else { CLUSTER_DNS });
    let mut verbs = vec![("list", STABLE_NAMES), ("watch", STABLE_NAMES)];
    if flags.sync_mode() == SyncMode::On {
        verbs.push(("patch", STABLE_NAME_STATUS));
    }
    in_watched_namespaces(flags, &verbs, need)
}

/// Returns the permissions for the sources of these zones.
pub(super) fn for_sources<'a>(
    flags: &'a Flags,
    zones: impl Iterator<Item = &'a LinkZone> + Clone,
) -> Vec<RequiredPermission<'a>> {
    let mut permissions = Vec::new();
    for (resources, need) in resources_of_sources(zones) {
        let verbs = resources.into_iter().flat_map(|resource| [("list", resource), ("watch", resource)]);
        let verbs: Vec<_> = verbs.collect();
        permissions.extend(in_watched_namespaces(flags, &verbs, Requirement::Always(need)));
    }
    permissions
}

/// Returns the permissions in a remote cluster for the names in these zones.
pub(super) fn in_remote_cluster<'a>(
    cluster: &'a str,
    zones: impl Iterator<Item = &'a LinkZone> + Clone,
) -> Vec<RequiredPermission<'a>> {
    // A zone of *k8s_gateway* has names of the home cluster alone.
    let zones = zones.filter(|zone| zone.k8s_gateway.is_none());
    let of_sources = resources_of_sources(zones).into_iter().flat_map(|(resources, _)| resources);
    let first = reading_kube_system(Some(cluster), "deploy/remote/, for that cluster");
    let list_and_watch = |resource: Resource| {
        let (cluster, need) = (first.cluster, first.need);
        ["list", "watch"]
            .map(|verb| RequiredPermission { cluster, ..RequiredPermission::new(verb, resource, None, need) })
    };
    let others = std::iter::once(SERVICES).chain(of_sources).flat_map(list_and_watch).collect::<Vec<_>>();
    std::iter::once(first).chain(others).collect()
}

/// Returns the permission to tell clusters apart.
pub(super) fn reading_kube_system<'a>(
    cluster: Option<&'a str>,
    folder: &'static str,
) -> RequiredPermission<'a> {
    let need = Requirement::Always(folder);
    let permission = RequiredPermission::new("get", NAMESPACES, Some(KUBE_SYSTEM), need);
    RequiredPermission { cluster, name: Some(KUBE_SYSTEM), ..permission }
}

/// Returns the resources of the sources of these zones, each with the folder that grants them in the home cluster.
fn resources_of_sources<'a>(
    zones: impl Iterator<Item = &'a LinkZone> + Clone,
) -> Vec<(Vec<Resource>, &'static str)> {
    let mut found = Vec::new();
    for (source, resources, need) in [
        (Source::INGRESSES, &[INGRESSES][..], "deploy/sources/, for the source ingress"),
        (Source::GATEWAYS, &OF_GATEWAYS, "deploy/sources/, for the source gateway"),
        (Source::DNS_ENDPOINTS, &[DNS_ENDPOINTS], "deploy/sources/, for the source dnsendpoint"),
    ] {
        if zones.clone().any(|zone| zone.sources.iter().any(|listed| listed.general() == source)) {
            let is_read = |(_, _, plural): &&Resource| {
                let routes = [Source::HTTP_ROUTES, Source::GRPC_ROUTES, Source::TLS_ROUTES];
                let of_kind = routes.iter().find(|routes| format!("{}s", routes.word()) == *plural);
                of_kind.is_none_or(|routes| zones.clone().any(|zone| Zone::from(zone).has(routes)))
            };
            found.push((resources.iter().filter(is_read).copied().collect(), need));
        }
    }
    found
}

/// Returns the permissions for the PrometheusRules of StableNames.
pub(super) fn for_alerts(flags: &Flags) -> Vec<RequiredPermission<'_>> {
    let need = Requirement::Optional("only for spec.alerts of StableNames: deploy/alerts/");
    let verbs: &[&'static str] = match flags.sync_mode() {
        SyncMode::On => &["list", "watch", "create", "patch", "delete"],
        SyncMode::Plan => &["list", "watch"],
        SyncMode::Off => &[],
    };
    let verbs: Vec<_> = verbs.iter().map(|verb| (*verb, PROMETHEUS_RULES)).collect();
    in_watched_namespaces(flags, &verbs, need)
}

fn in_watched_namespaces<'a>(
    flags: &'a Flags,
    verbs: &[(&'static str, Resource)],
    need: Requirement,
) -> Vec<RequiredPermission<'a>> {
    let in_namespace = |namespace| {
        let permission = move |&(verb, resource)| RequiredPermission::new(verb, resource, namespace, need);
        verbs.iter().map(permission).collect::<Vec<_>>()
    };
    watched(flags).into_iter().flat_map(in_namespace).collect()
}

/// Returns the namespaces of the load balancers; `None` for all.
fn watched(flags: &Flags) -> Vec<Option<&str>> {
    if flags.watch_namespaces.is_empty() {
        vec![None]
    } else {
        flags.watch_namespaces.iter().map(|namespace| Some(&**namespace)).collect()
    }
}

/// Asks the API server whether the CRD of StableNames is installed. Without an answer, returns `None` and adds the
/// reason to the report.
pub(super) async fn has_external_targets(check_report: &mut CheckReport, client: &Client) -> Option<bool> {
    let (group_version, plural) = (StableName::api_version(&()), StableName::plural(&()));
    is_installed(check_report, client, &group_version, &plural, "StableNames").await
}

/// Asks the API server whether the CRD of PrometheusRules is installed. Without an answer, returns `None` and adds the
/// reason to the report.
pub(super) async fn has_prometheus_rules(check_report: &mut CheckReport, client: &Client) -> Option<bool> {
    let (group, version, plural) = PROMETHEUS_RULES;
    is_installed(check_report, client, &format!("{group}/{version}"), plural, "PrometheusRules").await
}

async fn is_installed(
    check_report: &mut CheckReport,
    client: &Client,
    group_version: &str,
    plural: &str,
    what: &str,
) -> Option<bool> {
    let doing = format!("ask whether the API server serves {what}");
    let discovery = is_served(client.clone(), group_version, plural);
    let error = match tokio::time::timeout(REQUEST_TIMEOUT, discovery).await {
        Ok(Ok(served)) => return Some(served),
        Ok(Err(error)) => describe(&error, &doing, ""),
        Err(_) => format!("can't {doing}: no answer within {REQUEST_TIMEOUT:?}"),
    };
    check_report.lines.push(error);
    None
}

/// Asks the API server whether each permission is granted. Returns whether it has answered. `server` names it in errors.
pub(super) async fn review_access(
    check_report: &mut CheckReport,
    client: Client,
    server: &str,
    permissions: &[RequiredPermission<'_>],
) -> bool {
    let api: Api<SelfSubjectAccessReview> = Api::all(client);
    for permission in permissions {
        match tokio::time::timeout(REQUEST_TIMEOUT, is_granted(&api, permission)).await {
            Ok(Ok(true)) => check_report.lines.push(format!("yes  {permission}")),
            Ok(Ok(false)) => match permission.need {
                Requirement::Always(folder) => {
                    check_report.lines.push(format!("NO   {permission}"));
                    check_report
                        .cluster_errors
                        .push(format!("the permission to {permission} is missing; it is in {folder}"));
                }
                Requirement::Optional(what) => check_report.lines.push(format!("no   {permission} ({what})")),
            },
            Ok(Err(error)) => {
                let why = describe(&error, &format!("review the permission to {permission}"), "");
                let remedy = if matches!(error, kube::Error::Api(_)) { "" } else { NO_ANSWER };
                check_report.cluster_errors.push(format!("{server}: {why}{remedy}"));
                return false;
            }
            Err(_) => {
                check_report.cluster_errors.push(format!(
                    "{server}: can't review permissions: no answer within {REQUEST_TIMEOUT:?}{NO_ANSWER}"
                ));
                return false;
            }
        }
    }
    true
}

async fn is_granted(
    api: &Api<SelfSubjectAccessReview>,
    permission: &RequiredPermission<'_>,
) -> kube::Result<bool> {
    let (group, version, resource) = permission.resource;
    let (resource, subresource) =
        resource.split_once('/').map_or((resource, None), |(resource, part)| (resource, Some(part)));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(permission.verb.to_owned()),
                namespace: permission.namespace.map(ToOwned::to_owned),
                group: Some(group.to_owned()),
                version: Some(version.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: subresource.map(ToOwned::to_owned),
                name: permission.name.map(ToOwned::to_owned),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
