//! The task of the snapshot: reads it at the start, lets DNS answer with it if the first list is late or refused, and
//! writes it once that list is complete.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::metrics::SnapshotMetrics;
use super::{serving, writer};
use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::store::Store;
use crate::sync::k8s::client::ClusterIdentity;
use crate::sync::source::first_list::FirstList;
use crate::sync::source::selection::Selection;
use crate::sync::task::supervisor::SyncError;

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

/// Runs until `stop`, and then finishes a pending write.
///
/// # Errors
/// If a task on another thread panics.
pub async fn run(context: SnapshotContext, stop: CancellationToken) -> Result<(), SyncError> {
    match stop.run_until_cancelled(serving::until_first_list(&context)).await {
        Some(has_overrides) => writer::run(&context, has_overrides?, &stop).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
