//! What the task of the snapshot works with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::metrics::SnapshotMetrics;
use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::store::Store;
use crate::sync::k8s::client::ClusterIdentity;
use crate::sync::source::first_list::FirstList;
use crate::sync::source::selection::Selection;

#[derive(Clone)]
pub struct SnapshotContext {
    /// The file (`--snapshot`).
    pub path: PathBuf,
    pub max_age: Duration,
    pub cluster: watch::Receiver<ClusterIdentity>,
    pub selection: Arc<Selection>,
    pub policy: watch::Receiver<Arc<HostnamePolicy>>,
    pub first_list: watch::Receiver<FirstList>,
    /// The store of the watched links.
    pub store: Arc<Store>,
    pub staleness: Arc<Staleness>,
    pub metrics: Arc<SnapshotMetrics>,
}
