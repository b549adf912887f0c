//! A remote cluster, as it is configured.

use std::path::PathBuf;
use std::sync::Arc;

/// A remote cluster: its name, and where the address and the credentials of its API server are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteCluster {
    pub name: Arc<str>,
    pub kubeconfig: PathBuf,
    /// The context of the kubeconfig, if it isn't the current one.
    pub context: Option<String>,
}
