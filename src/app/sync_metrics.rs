//! The metrics of the sync tasks.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::metrics::staleness::Staleness;
use crate::snapshot::metrics::SnapshotMetrics;
use crate::sync::election::ElectionMetrics;
use crate::sync::events::metrics::EventMetrics;
use crate::sync::external_target::metrics::ReconcilerMetrics;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::source::metrics::WatchMetrics;
use crate::sync::source_annotation::followers::Followers;
use crate::sync::stable_name::controller::metrics::FailoverMetrics;
use crate::sync::task::supervisor::SupervisorMetrics;

/// All of these metrics are exported from the start, whichever sync tasks run.
#[derive(Clone)]
pub(super) struct SyncMetrics {
    pub(super) api: Arc<ApiMetrics>,
    pub(super) election: Arc<ElectionMetrics>,
    pub(super) events: Arc<EventMetrics>,
    pub(super) failover: Arc<FailoverMetrics>,
    pub(super) followers: Arc<Followers>,
    pub(super) reconciler: Arc<ReconcilerMetrics>,
    pub(super) snapshot: Arc<SnapshotMetrics>,
    pub(super) staleness: Arc<Staleness>,
    pub(super) supervisor: Arc<SupervisorMetrics>,
    pub(super) watch: Arc<WatchMetrics>,
}

impl SyncMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If two metrics have the same name.
    pub(super) fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        Ok(Self {
            api: metrics.group()?,
            election: metrics.group()?,
            events: metrics.group()?,
            failover: metrics.group()?,
            followers: metrics.group()?,
            reconciler: metrics.group()?,
            snapshot: metrics.group()?,
            staleness: metrics.group()?,
            supervisor: metrics.group()?,
            watch: metrics.group()?,
        })
    }
}
