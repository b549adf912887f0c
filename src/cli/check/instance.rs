//! Whether most objects of the target namespace belong to another instance.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::report::CheckReport;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::instance::{OtherOwner, instance_of};
use crate::sync::k8s::labels::MANAGED_BY;

/// The timeout for all pages of both lists.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of objects in a page of a list; only the objects' metadata is read.
const PAGE_SIZE: u32 = 500;

/// Adds a finding if another instance owns most external targets and EndpointSlices. Missing permissions are
/// reported by [`super::permissions`].
pub(super) async fn check_owners(check_report: &mut CheckReport, client: Client, namespace: &str, own: &str) {
    let lists = async {
        let mut instances = instances::<Service>(&client, namespace).await?;
        instances.extend(self::instances::<EndpointSlice>(&client, namespace).await?);
        Ok::<_, kube::Error>(instances)
    };
    match tokio::time::timeout(LIST_TIMEOUT, lists).await {
        Ok(Ok(instances)) => {
            let other = OtherOwner::find(namespace, own, instances.into_iter());
            check_report.cluster_errors.extend(other.map(|other| other.to_string()));
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404) => {}
        Ok(Err(error)) => {
            let doing = format!("list the external targets in namespace {namespace}");
            check_report.lines.push(describe(&error, &doing, ""));
        }
        Err(_) => check_report.lines.push(format!(
            "no answer within {LIST_TIMEOUT:?} to lists of the objects in namespace {namespace}"
        )),
    }
}

/// Returns the instance of each object that has the managed-by label of lb-linker.
async fn instances<K>(client: &Client, namespace: &str) -> kube::Result<Vec<Option<String>>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let labels = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let mut params = ListParams::default().labels(&labels).limit(PAGE_SIZE);
    let mut instances = Vec::new();
    loop {
        let page = api.list_metadata(&params).await?;
        instances
            .extend(page.items.iter().map(|object| instance_of(&object.metadata).map(ToOwned::to_owned)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(instances),
        }
    }
}
