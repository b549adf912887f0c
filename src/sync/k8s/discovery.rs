//! Whether the API server serves a resource. The default ClusterRole `system:discovery` permits discovery to all
//! authenticated clients.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;

/// Returns whether the API server serves the resource `plural` of an API group and version.
///
/// # Errors
/// If there is no answer, or the answer is neither the list of resources nor 404.
pub(crate) async fn is_served(client: Client, group_version: &str, plural: &str) -> kube::Result<bool> {
    match client.list_api_group_resources(group_version).await {
        Ok(list) => Ok(serves(&list, plural)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// While a CRD is being deleted, its resource is listed without the verb `create`.
fn serves(list: &APIResourceList, plural: &str) -> bool {
    let mut resources = list.resources.iter();
    resources.any(|resource| resource.name == plural && resource.verbs.iter().any(|verb| verb == "create"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLURAL: &str = "stablenames";

    #[test]
    fn crd_that_is_being_deleted_is_not_served() {
        for (name, verbs, expected) in [
            (PLURAL, &["get", "list", "create"][..], true),
            (PLURAL, &["get", "list", "watch", "delete"], false),
            ("stablenames/status", &["create"], false),
        ] {
            let resource = json!({"name": name, "singularName": "", "namespaced": true, "kind": "StableName",
                "verbs": verbs});
            let list = json!({"groupVersion": "linker.hsj.com/v1alpha1", "resources": [resource]});
            assert_eq!(serves(&serde_json::from_value(list).unwrap(), PLURAL), expected, "{name} {verbs:?}");
        }
    }
}
