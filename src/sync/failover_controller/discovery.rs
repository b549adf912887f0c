//! Whether the API server serves ExternalTargets. Discovery needs no permission.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;

/// The API group and version of ExternalTargets.
const GROUP_VERSION: &str = "linker.hsj.com/v1alpha1";
const PLURAL: &str = "externaltargets";

/// Asks the API server whether it serves ExternalTargets.
///
/// # Errors
/// If there is no answer, or another one than the list of resources or 404.
pub(super) async fn is_served(client: Client) -> kube::Result<bool> {
    match client.list_api_group_resources(GROUP_VERSION).await {
        Ok(list) => Ok(serves(&list)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// While a CRD is being deleted, its resource is listed without the verb `create`.
fn serves(list: &APIResourceList) -> bool {
    let mut resources = list.resources.iter();
    resources.any(|resource| resource.name == PLURAL && resource.verbs.iter().any(|verb| verb == "create"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn crd_that_is_being_deleted_is_not_served() {
        for (name, verbs, expected) in [
            (PLURAL, &["get", "list", "create"][..], true),
            (PLURAL, &["get", "list", "watch", "delete"], false),
            ("externaltargets/status", &["create"], false),
        ] {
            let resource = json!({"name": name, "singularName": "", "namespaced": true, "kind": "ExternalTarget",
                "verbs": verbs});
            let list = json!({"groupVersion": GROUP_VERSION, "resources": [resource]});
            assert_eq!(serves(&serde_json::from_value(list).unwrap()), expected, "{name} {verbs:?}");
        }
    }
}
