//! Runs sync, and restarts sync when the zones of the Corefile change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::names_of;
use super::sync_metrics::SyncMetrics;
use super::sync_tasks::SyncSource;
use crate::cli::flags::Flags;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::store::Store;

/// The pause before the source is opened again after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Everything that sync needs to run and to restart.
pub(super) struct SyncTasks {
    pub(super) flags: Flags,
    pub(super) store: Arc<Store>,
    pub(super) metrics: SyncMetrics,
    /// The zones of links; a reload of the Corefile may change them.
    pub(super) zones: watch::Receiver<Vec<LinkZone>>,
}

impl SyncTasks {
    /// Syncs until `stop`. A change of the zones restarts sync, because the zones decide which names are granted to
    /// Services; meanwhile DNS answers from the store.
    pub(super) async fn run(mut self, source: SyncSource, stop: CancellationToken) {
        let mut source = source;
        loop {
            let until = stop.child_token();
            let mut tasks = JoinSet::new();
            source.start(&mut tasks, &self.flags, &self.store, &self.metrics, &until);
            let changed = stop.run_until_cancelled(self.zones.changed()).await;
            if !matches!(changed, Some(Ok(()))) {
                stop.cancelled().await;
            }
            until.cancel();
            while tasks.join_next().await.is_some() {}
            let zones = self.zones.borrow_and_update().clone();
            match self.open_again(&zones, &stop).await {
                Some(again) => source = again,
                None => return,
            }
        }
    }

    /// Opens the source for `zones`, retrying until this succeeds; `None` at shutdown.
    async fn open_again(&mut self, zones: &[LinkZone], stop: &CancellationToken) -> Option<SyncSource> {
        while !stop.is_cancelled() {
            // The reload has already checked that the flags accept these zones.
            let opened = match self.flags.set_zones(zones) {
                Ok(()) => SyncSource::open(&self.flags).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match opened {
                Ok(source) => {
                    info!("links are in {} now; Services are listed again", names_of(zones));
                    self.store.set_zones(&self.flags.zones);
                    return Some(source);
                }
                Err(problem) => {
                    error!("the zones have changed, and Services can't be listed again yet: {problem}");
                    stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await;
                }
            }
        }
        None
    }
}
