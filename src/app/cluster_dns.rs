//! Starts and stops the watches of the objects that the plugin *kubernetes* answers for, as the Corefile demands.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::error::RunError;
use super::sync_runtime::SyncRuntime;
use crate::cli::flags::Flags;
use crate::dns::plugins::setup::ServerContext;
use crate::metrics::staleness::Staleness;
use crate::object_log::ObjectLog;
use crate::store::cluster::Cluster;
use crate::store::cluster::registry::{ClusterRegistry, Connection};
use crate::sync::k8s::client::limits::limited;
use crate::sync::k8s::client::{ClientConnection, ClientError, connect_before_credentials, connect_to};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::metrics::RequestMetrics;
use crate::sync::source::cluster_dns::ClusterWatcher;
use crate::sync::source::cluster_dns::metrics::ProgrammingMetrics;
use crate::sync::task::supervisor::{SupervisorMetrics, SyncError, supervise};

/// How long the objects of a block that isn't served any more are kept: a reload may replace it by one that needs them.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct ClusterDns {
    clusters: ClusterRegistry,
    /// lb-linker's own connection, if it has one already.
    own: Option<(Client, ApiAvailability)>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    staleness: Arc<Staleness>,
    requests: Arc<RequestMetrics>,
    programming: Arc<ProgrammingMetrics>,
    supervisor: Arc<SupervisorMetrics>,
    log: ObjectLog,
}

/// The watches of a cluster. Dropping this value ends them.
struct RunningWatches {
    cluster: Arc<Cluster>,
    end: CancellationToken,
}

impl Drop for RunningWatches {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl ClusterDns {
    /// # Errors
    /// If two metrics have the same name.
    pub(super) fn new(flags: &Flags, context: &ServerContext) -> Result<Self, prometheus::Error> {
        Ok(Self {
            clusters: context.clusters.clone(),
            own: None,
            kubeconfig: flags.kubeconfig.clone(),
            context: flags.context.clone(),
            staleness: context.metrics.group()?,
            requests: context.metrics.group()?,
            programming: context.metrics.group()?,
            supervisor: context.metrics.group()?,
            log: ObjectLog::default(),
        })
    }

    /// Sets lb-linker's own connection. Without one, makes one if a block needs it.
    ///
    /// # Errors
    /// If no client for the cluster can be made.
    pub(super) async fn with_own(
        self,
        own: Option<(Client, ApiAvailability)>,
        sync: &SyncRuntime,
    ) -> Result<Self, RunError> {
        if own.is_some() || !self.clusters.has_own() {
            return Ok(Self { own, ..self });
        }
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let connect = async {
            let connected = connect_before_credentials(kubeconfig, context).await;
            Ok(of_connection(connected.map_err(ClientError::of_cluster_dns)?))
        };
        Ok(Self { own: Some(sync.run(connect).await?), ..self })
    }

    /// Keeps the objects of all served clusters up to date until `stop` is cancelled.
    ///
    /// # Errors
    /// If the server of blocks has ended, which should never happen before.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<(), SyncError> {
        let mut served = self.clusters.served();
        let (mut running, mut tasks): (Vec<RunningWatches>, JoinSet<()>) = (Vec::new(), JoinSet::new());
        loop {
            let wanted = served.borrow_and_update().clone();
            for cluster in &wanted {
                if !running.iter().any(|known| Arc::ptr_eq(&known.cluster, cluster)) {
                    running.push(self.start(cluster, &mut tasks));
                }
            }
            let is_wanted =
                |known: &RunningWatches| wanted.iter().any(|cluster| Arc::ptr_eq(&known.cluster, cluster));
            let has_unwanted = !running.iter().all(is_wanted);
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(LINGER), if has_unwanted => {
                    // A reload under way may have built a block that answers from these objects.
                    running.retain(|known| {
                        let is_kept = is_wanted(known) || known.cluster.has_blocks();
                        if !is_kept {
                            self.clusters.forget(&known.cluster);
                        }
                        is_kept
                    });
                }
                changed = served.changed() => changed.map_err(|_| SyncError::WatchEnded)?,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            }
        }
        drop(running);
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    fn start(&self, cluster: &Arc<Cluster>, tasks: &mut JoinSet<()>) -> RunningWatches {
        let end = CancellationToken::new();
        let (parts, watched, until) = (self.clone(), Arc::clone(cluster), end.clone());
        let watches = move || {
            let (parts, cluster, until) = (parts.clone(), Arc::clone(&watched), until.clone());
            async move {
                let Some(watcher) = until.run_until_cancelled(parts.watcher(cluster)).await else {
                    return Ok(());
                };
                watcher.map_err(|error| SyncError::Source(error.into()))?.run(until).await
            }
        };
        let supervisor = Arc::clone(&self.supervisor);
        tasks.spawn(supervise("the watches for kubernetes", end.clone(), supervisor, watches));
        RunningWatches { cluster: Arc::clone(cluster), end }
    }

    async fn watcher(self, cluster: Arc<Cluster>) -> Result<ClusterWatcher, ClientError> {
        let Self { own, kubeconfig, context, staleness, requests, programming, log, .. } = self;
        let spec = cluster.spec();
        let (client, availability) = match (&spec.connection, own) {
            (Connection::Own, Some(own)) => own,
            (Connection::Own, None) => of_connection(connect_before_credentials(kubeconfig, context).await?),
            (Connection::Kubeconfig { path, context }, _) => {
                of_connection(connect_before_credentials(Some(path.clone()), context.clone()).await?)
            }
            (Connection::Endpoint { url, tls }, _) => of_connection(connect_to(url, tls.as_ref()).await?),
        };
        let client = limited(client, &spec.limits, availability.clone(), requests);
        Ok(ClusterWatcher { cluster, client, availability, staleness, programming, log })
    }
}

fn of_connection(
    ClientConnection { client, server, identity }: ClientConnection,
) -> (Client, ApiAvailability) {
    info!("kubernetes: API server {server}");
    (client, ApiAvailability::of(move || identity.borrow().server.clone()))
}
