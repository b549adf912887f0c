//! The rights that lb-linker needs, and their review by the API server.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use super::report::CheckReport;
use crate::cli::flags::Flags;
use crate::sync::election::ElectionConfig;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::errors::describe;

/// The timeout of the review of one right.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// API group and plural name.
type Resource = (&'static str, &'static str);

const SERVICES: Resource = ("", "services");
const EVENTS: Resource = ("events.k8s.io", "events");
const ENDPOINT_SLICES: Resource = ("discovery.k8s.io", "endpointslices");
const LEASES: Resource = ("coordination.k8s.io", "leases");
const PODS: Resource = ("", "pods");

/// A right: a verb on objects of a kind, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequiredPermission<'a> {
    verb: &'static str,
    resource: Resource,
    namespace: Option<&'a str>,
    /// The name of the only object that the right covers; `None` for all objects.
    name: Option<&'a str>,
    need: Requirement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    /// Required with the current flags; names the folder of the manifests that grant the right.
    Always(&'static str),
    /// Required only for an optional feature; describes the feature.
    Optional(&'static str),
}

impl fmt::Display for RequiredPermission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource.1)?;
        if let Some(name) = self.name {
            write!(f, "/{name}")?;
        }
        match self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => write!(f, " in all namespaces"),
        }
    }
}

/// Returns the rights that lb-linker needs with these flags.
pub(super) fn needed<'a>(
    flags: &'a Flags,
    election_config: Option<&'a ElectionConfig>,
) -> Vec<RequiredPermission<'a>> {
    let right = |resource, namespace, need| {
        move |verb: &&'static str| RequiredPermission { verb, resource, namespace, name: None, need }
    };
    let default = Requirement::Always("deploy/");
    let watched: Vec<Option<&str>> = if flags.watch_namespaces.is_empty() {
        vec![None]
    } else {
        flags.watch_namespaces.iter().map(|namespace| Some(&**namespace)).collect()
    };
    let verbs: &[&str] = match flags.sync_mode() {
        SyncMode::On => &["list", "watch", "create", "patch", "delete"],
        SyncMode::Plan => &["list", "watch"],
        SyncMode::Off => &[],
    };
    let target = Some(&*flags.target_namespace);
    let mut rights = Vec::new();
    for namespace in &watched {
        rights.extend(["list", "watch"].iter().map(right(SERVICES, *namespace, default)));
    }
    rights.extend(verbs.iter().map(right(SERVICES, target, default)));
    rights.extend(verbs.iter().map(right(ENDPOINT_SLICES, target, default)));
    if flags.sync_mode() == SyncMode::On {
        let patch = if flags.finalizer {
            Requirement::Always("deploy/finalizer/, for --finalizer")
        } else {
            Requirement::Optional("only for the annotation linker.hsj.com/source: deploy/source/")
        };
        for namespace in &watched {
            rights.extend(["create", "patch"].iter().map(right(EVENTS, *namespace, default)));
            rights.extend(["patch"].iter().map(right(SERVICES, *namespace, patch)));
        }
    }
    if let Some(election_config) = election_config {
        let own = Some(&*election_config.namespace);
        // RBAC can restrict these rights to the Lease's name, but not create: at creation the name isn't known yet.
        let lease = |right| RequiredPermission { name: Some(&*election_config.lease), ..right };
        rights.extend(["create"].iter().map(right(LEASES, own, default)));
        rights.extend(["get", "update"].iter().map(right(LEASES, own, default)).map(lease));
        if election_config.pod.is_some() {
            let life = Requirement::Always("deploy/life/, for --leader-election life");
            rights.extend(["delete"].iter().map(right(LEASES, own, life)).map(lease));
            rights.extend(["get"].iter().map(right(PODS, own, life)));
        }
    }
    rights
}

/// Asks the API server whether each right is granted.
pub(super) async fn review_access(
    check_report: &mut CheckReport,
    client: Client,
    rights: &[RequiredPermission<'_>],
) {
    let api: Api<SelfSubjectAccessReview> = Api::all(client);
    for right in rights {
        match tokio::time::timeout(REQUEST_TIMEOUT, is_granted(&api, right)).await {
            Ok(Ok(true)) => check_report.lines.push(format!("yes  {right}")),
            Ok(Ok(false)) => match right.need {
                Requirement::Always(folder) => {
                    check_report.lines.push(format!("NO   {right}"));
                    check_report.cluster.push(format!("the right to {right} is missing; it is in {folder}"));
                }
                Requirement::Optional(what) => check_report.lines.push(format!("no   {right} ({what})")),
            },
            Ok(Err(error)) => {
                check_report.cluster.push(describe(&error, &format!("ask for the right to {right}"), ""));
                return;
            }
            Err(_) => {
                check_report
                    .cluster
                    .push(format!("the API server hasn't answered within {REQUEST_TIMEOUT:?}"));
                return;
            }
        }
    }
}

async fn is_granted(
    api: &Api<SelfSubjectAccessReview>,
    right: &RequiredPermission<'_>,
) -> kube::Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                namespace: right.namespace.map(ToOwned::to_owned),
                group: Some(right.resource.0.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some(right.resource.1.to_owned()),
                name: right.name.map(ToOwned::to_owned),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
