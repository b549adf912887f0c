//! `lb-linker check`: looks whether everything is in place, and changes nothing.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::config::Flags;
use crate::dns::zone::Zone;
use crate::run::RunError;
use crate::sync::client::connect;
use crate::sync::election::Candidacy;
use crate::sync::manifests;
use crate::sync::plan::SyncMode;
use crate::sync::trouble::explain;

/// How long the API server may take to answer about one right.
const PATIENCE: Duration = Duration::from_secs(10);

const SERVICES: (&str, &str) = ("", "services");
const EVENTS: (&str, &str) = ("events.k8s.io", "events");
const ENDPOINT_SLICES: (&str, &str) = ("discovery.k8s.io", "endpointslices");
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");
const PODS: (&str, &str) = ("", "pods");

/// What a check found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Lines for people, in order.
    pub lines: Vec<String>,
    /// What is wrong with the input: flags and files.
    pub input: Vec<String>,
    /// What is wrong with the cluster: rights that are missing.
    pub cluster: Vec<String>,
}

/// Checks flags and files without opening a port, and with `ask_cluster` asks the API server for
/// every right that is needed.
///
/// # Errors
/// If the flags can't be used at all.
pub async fn check(flags: &Flags, ask_cluster: bool) -> Result<Findings, RunError> {
    flags.validate()?;
    flags.upstreams()?;
    for zone in &flags.zones {
        Zone::new(zone, Vec::new())
            .map_err(|source| RunError::Zone { zone: Box::new(zone.clone()), source })?;
    }
    let mut findings = Findings::default();
    let effective = flags.effective();
    let width = effective.iter().map(|(flag, _)| flag.len()).max().unwrap_or_default();
    findings.lines.extend(effective.iter().map(|(flag, value)| format!("{flag:width$}  {value}")));
    if let Some(directory) = &flags.manifests {
        let checked = manifests::check(directory, &flags.selection(), &flags.admission())
            .map_err(|source| RunError::Directory { flag: "manifests", source })?;
        findings.lines.push(format!("load balancers in {}: {}", directory.display(), checked.services));
        findings.lines.extend(checked.notices);
        findings.input.extend(checked.errors);
    } else if ask_cluster {
        let client = connect(flags.kubeconfig.clone(), flags.context.clone()).await?;
        let candidacy = flags.candidacy()?;
        rights(&mut findings, client, flags, candidacy.as_ref()).await;
    } else if flags.kubeconfig.is_some() || flags.context.is_some() {
        connect(flags.kubeconfig.clone(), flags.context.clone()).await?;
    }
    Ok(findings)
}

/// A right that lb-linker needs: a verb on objects of a kind, in one namespace or in all.
#[derive(Clone, Debug)]
struct Right<'a> {
    verb: &'static str,
    /// API group and plural.
    resource: (&'static str, &'static str),
    namespace: Option<&'a str>,
}

impl fmt::Display for Right<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            Some(namespace) => write!(f, "{} {} in namespace {namespace}", self.verb, self.resource.1),
            None => write!(f, "{} {} in all namespaces", self.verb, self.resource.1),
        }
    }
}

/// What an election needs.
fn to_lead(candidacy: &Candidacy) -> Vec<Right<'_>> {
    let right = |resource, verb| Right { verb, resource, namespace: Some(&candidacy.namespace) };
    let mut rights = ["get", "create", "update"].map(|verb| right(LEASES, verb)).to_vec();
    if candidacy.pod.is_some() {
        rights.extend([right(LEASES, "delete"), right(PODS, "get")]);
    }
    rights
}

async fn rights(findings: &mut Findings, client: Client, flags: &Flags, candidacy: Option<&Candidacy>) {
    let api: Api<SelfSubjectAccessReview> = Api::all(client);
    let watched: Vec<Option<&str>> = if flags.watch_namespaces.is_empty() {
        vec![None]
    } else {
        flags.watch_namespaces.iter().map(|namespace| Some(&**namespace)).collect()
    };
    let event_verbs: &[&str] = if flags.sync == SyncMode::On { &["create", "patch"] } else { &[] };
    let record: Vec<Right> = watched
        .iter()
        .flat_map(|namespace| {
            event_verbs.iter().map(|verb| Right { verb, resource: EVENTS, namespace: *namespace })
        })
        .collect();
    let read = watched
        .into_iter()
        .flat_map(|namespace| ["list", "watch"].map(|verb| Right { verb, resource: SERVICES, namespace }));
    let namespace = Some(&*flags.target_namespace);
    let verbs: &[&str] = match flags.sync {
        SyncMode::On => &["list", "watch", "create", "patch", "delete"],
        SyncMode::Plan => &["list", "watch"],
        SyncMode::Off => &[],
    };
    let write = [SERVICES, ENDPOINT_SLICES]
        .into_iter()
        .flat_map(|resource| verbs.iter().map(move |verb| Right { verb, resource, namespace }));
    for right in read.chain(write).chain(record).chain(candidacy.map(to_lead).unwrap_or_default()) {
        match tokio::time::timeout(PATIENCE, ask(&api, &right)).await {
            Ok(Ok(true)) => findings.lines.push(format!("yes  {right}")),
            Ok(Ok(false)) => {
                findings.lines.push(format!("NO   {right}"));
                findings.cluster.push(format!("the right to {right} is missing"));
            }
            Ok(Err(error)) => {
                findings.cluster.push(explain(&error, &format!("ask for the right to {right}"), ""));
                return;
            }
            Err(_) => {
                findings.cluster.push(format!("the API server hasn't answered within {PATIENCE:?}"));
                return;
            }
        }
    }
}

async fn ask(api: &Api<SelfSubjectAccessReview>, right: &Right<'_>) -> kube::Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                namespace: right.namespace.map(ToOwned::to_owned),
                group: Some(right.resource.0.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some(right.resource.1.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
