//! Whether the API server serves ExternalTargets.

use kube::Client;

use crate::sync::k8s::discovery;

/// The API group and version of ExternalTargets.
const GROUP_VERSION: &str = "linker.hsj.com/v1alpha1";
const PLURAL: &str = "externaltargets";

/// Returns whether the API server serves ExternalTargets.
///
/// # Errors
/// If there is no answer, or another one than the list of resources or 404.
pub(super) async fn is_served(client: Client) -> kube::Result<bool> {
    discovery::is_served(client, GROUP_VERSION, PLURAL).await
}
