//! `lb-linker scan --apply`: sets the annotations that let Services follow their load balancer.

use std::collections::BTreeSet;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::findings::ExactMatch;
use super::report::{Grant, allow_from};
use crate::api::stable_name::StableName;
use crate::model::rejection::{ListEntries, MAX_ENTRIES};
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::labels::SOURCE;
use crate::sync::k8s::service::{ALLOW_FROM, Service};

/// Not lb-linker's own field manager, which marks what a running lb-linker has written.
const FIELD_MANAGER: &str = "lb-linker-scan";

/// Lets load balancers and StableNames allow the namespaces, then annotates the Services. `progress` gets a line
/// for each changed object. Returns a sentence for each failure.
pub async fn annotate(client: &Client, exact: &[ExactMatch], progress: impl Fn(&str)) -> Vec<String> {
    let mut problems = Vec::new();
    let mut refused = BTreeSet::new();
    for (load_balancer, Grant { is_stable_name, namespaces }) in allow_from(exact) {
        let (field, allowed) = match is_stable_name {
            true => ("spec.allowFrom", allow_in_spec(client, load_balancer, &namespaces).await),
            false => (ALLOW_FROM, allow(client, load_balancer, &namespaces).await),
        };
        match allowed {
            Ok(text) => progress(&format!("{load_balancer}: {field}={text}")),
            Err(problem) => {
                problems.push(problem);
                refused.insert(load_balancer);
            }
        }
    }
    for it in exact {
        if it.needs_allow_from && refused.contains(&*it.load_balancer) {
            let ExactMatch { namespace, service, load_balancer, .. } = it;
            problems.push(format!(
                "Service {namespace}/{service} isn't annotated, because {load_balancer} doesn't allow its namespace"
            ));
            continue;
        }
        // The patch fails if another client has changed the Service since it was read.
        let metadata = json!({"annotations": {SOURCE: it.load_balancer}, "resourceVersion": it.version});
        let key = format!("{}/{}", it.namespace, it.service);
        match patch(client, &key, metadata).await {
            Ok(()) => progress(&format!("{key}: {SOURCE}={}", it.load_balancer)),
            Err(problem) => problems.push(problem),
        }
    }
    problems
}

/// Returns the objects that [`annotate`] changes, each with its kind, in its order.
#[must_use]
pub fn changed_objects(exact: &[ExactMatch]) -> Vec<String> {
    let services = exact.iter().map(|it| format!("Service {}/{}", it.namespace, it.service));
    let targets = allow_from(exact)
        .into_iter()
        .map(|(key, grant)| format!("{} {key}", if grant.is_stable_name { "StableName" } else { "Service" }));
    targets.chain(services).collect()
}

/// Adds namespaces to the annotation [`ALLOW_FROM`] of a load balancer. Returns the new value of the annotation.
async fn allow(client: &Client, load_balancer: &str, namespaces: &[&str]) -> Result<String, String> {
    let (namespace, name) = load_balancer.split_once('/').unwrap_or_default();
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let read = services.get_metadata(name).await;
    let metadata =
        read.map_err(|error| describe(&error, &format!("read Service {load_balancer}"), ""))?.metadata;
    let known = metadata.annotations.unwrap_or_default().remove(ALLOW_FROM).unwrap_or_default();
    let mut all: Vec<&str> = known.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let missing: Vec<&str> =
        namespaces.iter().copied().filter(|namespace| !all.contains(namespace)).collect();
    all.extend(missing);
    let text = all.join(",");
    let counted = ListEntries::of(&text).accepted;
    if !namespaces.iter().all(|namespace| counted.contains(namespace)) {
        return Err(format!(
            "Service {load_balancer}: {ALLOW_FROM} would have {} entries, and lb-linker ignores all but the first \
             {MAX_ENTRIES}: take out some, or replace all by *",
            all.len()
        ));
    }
    let version = metadata.resource_version;
    patch(client, load_balancer, json!({"annotations": {ALLOW_FROM: text}, "resourceVersion": version}))
        .await?;
    Ok(text)
}

/// Adds namespaces to `spec.allowFrom` of a StableName. Once the spec has this field, the annotation of the
/// Service of the same name doesn't apply any more; therefore `namespaces` has the namespaces of that annotation, too.
/// Returns the new value, separated by commas.
async fn allow_in_spec(client: &Client, key: &str, namespaces: &[&str]) -> Result<String, String> {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let objects: Api<StableName> = Api::namespaced(client.clone(), namespace);
    let read = objects.get(name).await;
    let object = read.map_err(|error| describe(&error, &format!("read StableName {key}"), ""))?;
    let mut all = object.spec.allow_from.unwrap_or_default();
    for wanted in namespaces {
        if !all.iter().any(|known| known == wanted) {
            all.push((*wanted).to_owned());
        }
    }
    let version = object.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"allowFrom": all}});
    match objects.patch(name, &params(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(all.join(",")),
        Err(error) => Err(failed(&error, "change", &format!("StableName {key}"))),
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

fn failed(error: &kube::Error, verb: &str, object: &str) -> String {
    match error {
        kube::Error::Api(status) if status.code == 409 => {
            format!("{object} has changed since it was read: run the scan again")
        }
        error => describe(error, &format!("{verb} {object}"), ""),
    }
}

async fn patch(client: &Client, key: &str, metadata: Value) -> Result<(), String> {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    match services.patch_metadata(name, &params(), &Patch::Merge(json!({"metadata": metadata}))).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(&error, "annotate", &format!("Service {key}"))),
    }
}
