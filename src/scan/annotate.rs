//! `lb-linker scan --apply`: sets the annotations that let Services follow their load balancer.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::findings::Exact;
use super::report::allow_from;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::labels::SOURCE;
use crate::sync::k8s::service::{ALLOW_FROM, Service};

/// Not lb-linker's own field manager, which marks what a running lb-linker has written.
const FIELD_MANAGER: &str = "lb-linker-scan";

/// Sets the annotations; `progress` gets a line for each Service. Returns what has failed.
pub async fn annotate(client: &Client, exact: &[Exact], progress: impl Fn(&str)) -> Vec<String> {
    let mut problems = Vec::new();
    for (load_balancer, namespaces) in allow_from(exact) {
        match allow(client, load_balancer, &namespaces).await {
            Ok(text) => progress(&format!("{load_balancer}: {ALLOW_FROM}={text}")),
            Err(problem) => problems.push(problem),
        }
    }
    for it in exact {
        // The Service is annotated only as it was read: another client may have changed it since.
        let metadata = json!({"annotations": {SOURCE: it.load_balancer}, "resourceVersion": it.version});
        let key = format!("{}/{}", it.namespace, it.service);
        match patch(client, &key, metadata).await {
            Ok(()) => progress(&format!("{key}: {SOURCE}={}", it.load_balancer)),
            Err(problem) => problems.push(problem),
        }
    }
    problems
}

/// Adds namespaces to those that a load balancer allows. Returns the new value of the annotation.
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
    let version = metadata.resource_version;
    patch(client, load_balancer, json!({"annotations": {ALLOW_FROM: text}, "resourceVersion": version}))
        .await?;
    Ok(text)
}

async fn patch(client: &Client, key: &str, metadata: Value) -> Result<(), String> {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    match services.patch_metadata(name, &params, &Patch::Merge(json!({"metadata": metadata}))).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Err(format!("Service {key} has changed since it was read: run the scan again"))
        }
        Err(error) => Err(describe(&error, &format!("annotate Service {key}"), "")),
    }
}
