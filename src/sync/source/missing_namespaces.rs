//! Watched namespaces that don't exist, as after a typing error: their lists are empty, without an error.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::model::excerpt::examples;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a warning about the namespaces of `--watch-namespaces` that don't exist; `None` if all exist, or may not be
/// read, as by the ServiceAccount of `deploy/`.
pub async fn missing_namespaces(
    client: Client,
    watched: impl IntoIterator<Item = &String>,
) -> Option<String> {
    let api: Api<Namespace> = Api::all(client);
    let mut missing = Vec::new();
    for namespace in watched {
        if let Ok(Ok(None)) = timeout(REQUEST_TIMEOUT, api.get_metadata_opt(namespace)).await {
            missing.push(namespace);
        }
    }
    let (what, verb) = match missing.len() {
        0 => return None,
        1 => ("namespace", "doesn't"),
        _ => ("namespaces", "don't"),
    };
    Some(format!(
        "--watch-namespaces: {what} {} {verb} exist (yet): correct the flag, or create the {what}",
        examples(missing)
    ))
}
