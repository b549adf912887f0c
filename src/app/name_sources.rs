//! Starts and stops the reading of sources of names, as the zones demand, in the home cluster and in remote ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, warn};

use crate::model::owner::{Source, Zone};
use crate::sync::k8s::remotes::uid_of_cluster;
use crate::sync::source::dns_endpoint::DnsEndpoints;
use crate::sync::source::gateway::Gateways;
use crate::sync::source::ingress::Ingresses;
use crate::sync::source::names::watch::NameWatcher;
use crate::sync::source::remote_service::RemoteServices;
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::task::supervisor::{SupervisorMetrics, SyncError, supervise};

/// The pause between two attempts to tell whether a remote cluster is the home cluster.
const COMPARE_AFTER: Duration = Duration::from_secs(30);

/// Stands for all kinds of objects of a source.
const ALL_KINDS: &str = "";

#[derive(Clone)]
pub(super) struct NameSources {
    /// The watchers of the clusters, that of the home cluster first.
    pub(super) watchers: Arc<[NameWatcher]>,
    /// Where the load balancers of remote clusters are recorded.
    pub(super) services: Arc<UnselectedServices>,
    pub(super) supervisor: Arc<SupervisorMetrics>,
}

/// Reads the sources of the store's zones, apart from the home cluster's load balancers, until `stop` is cancelled.
///
/// # Errors
/// If the store has ended, which should never happen before.
pub(super) async fn run(sources: NameSources, stop: CancellationToken) -> Result<(), SyncError> {
    let [home, remotes @ ..] = &*sources.watchers else { return Ok(()) };
    let mut zones = home.store.watch_zones();
    let mut comparisons: JoinSet<Arc<str>> =
        remotes.iter().map(|remote| wait_if_home(home.client.clone(), remote.clone())).collect();
    // The remote clusters that are the home cluster.
    let mut refused: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut running: BTreeMap<Source, (CancellationToken, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let mut wanted = wanted(&zones.borrow_and_update(), remotes);
        wanted.retain(|source| source.cluster.as_ref().is_none_or(|cluster| !refused.contains(cluster)));
        for source in wanted.iter().filter(|source| !running.contains_key(*source)).collect::<Vec<_>>() {
            let Some(watcher) = sources.watchers.iter().find(|watcher| watcher.cluster == source.cluster)
            else {
                continue;
            };
            let until = stop.child_token();
            let task = tokio::spawn(follow(&sources, watcher.clone(), source.clone(), until.clone()));
            running.insert(source.clone(), (until, AbortOnDropHandle::new(task)));
        }
        let ended: Vec<Source> = running.keys().filter(|source| !wanted.contains(source)).cloned().collect();
        for source in ended {
            let Some((until, task)) = running.remove(&source) else { continue };
            until.cancel();
            // It has only been cancelled.
            let _ = task.await;
            home.store.forget_source(&source);
            let readiness = &home.link_reporter.findings.readiness;
            readiness.forget_source(&source);
            if let Some(cluster) = source.cluster.clone().filter(|cluster| refused.contains(cluster)) {
                let note = format!(
                    "the {} objects of cluster {cluster} aren't read: it is this cluster itself",
                    source.kind
                );
                readiness.sources.lock().insert((source, ALL_KINDS, None), note);
            }
        }
        tokio::select! {
            () = stop.cancelled() => break,
            changed = zones.changed() => changed.map_err(|_| SyncError::WatchEnded)?,
            Some(Ok(cluster)) = comparisons.join_next() => {
                error!(
                    "remote cluster {cluster} is this cluster itself (its namespace kube-system has the same uid): its \
                     objects aren't read. Correct the kubeconfig or the context of --remote {cluster}, or leave it out"
                );
                // Sources of StableNames may not lead there, either.
                sources.services.forget_cluster(&cluster);
                refused.insert(cluster);
            }
        }
    }
    for (_, task) in running.into_values() {
        let _ = task.await;
    }
    Ok(())
}

/// Ends only if the remote cluster turns out to be the home cluster, with its name.
async fn wait_if_home(home: Client, remote: NameWatcher) -> Arc<str> {
    let Some(cluster) = remote.cluster else { return std::future::pending().await };
    let (mut home_uid, mut is_told) = (None, false);
    loop {
        let (of_home, of_remote) = match &home_uid {
            None => (uid_of_cluster(&home).await, uid_of_cluster(&remote.client).await),
            known => (Ok(known.clone()), uid_of_cluster(&remote.client).await),
        };
        for (refused, place) in [(&of_home, "here"), (&of_remote, "there")] {
            if matches!(refused, Err(kube::Error::Api(status)) if status.code == 403)
                && !std::mem::replace(&mut is_told, true)
            {
                warn!(
                    "whether remote cluster {cluster} is this cluster itself can't be told: reading the namespace \
                     kube-system is forbidden {place}; deploy/remote/ and deploy/remote/home/ grant it"
                );
            }
        }
        home_uid = of_home.ok().flatten();
        match (&home_uid, of_remote) {
            (Some(home), Ok(Some(uid))) if *home == uid => return cluster,
            (Some(_), Ok(Some(_))) => return std::future::pending().await,
            _ => sleep(COMPARE_AFTER).await,
        }
    }
}

/// Returns the sources to be read. The load balancers of remote clusters always are: StableNames may lead to them.
fn wanted(zones: &[Zone], remotes: &[NameWatcher]) -> Vec<Source> {
    let mut wanted: Vec<Source> = zones.iter().flat_map(Zone::read_sources).collect();
    wanted
        .extend(remotes.iter().map(|remote| Source { cluster: remote.cluster.clone(), ..Source::SERVICES }));
    wanted.retain(|source| *source != Source::SERVICES);
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

fn follow(
    sources: &NameSources,
    watcher: NameWatcher,
    source: Source,
    until: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let (stop, services) = (until.clone(), Arc::clone(&sources.services));
    supervise("the names of a source", stop, Arc::clone(&sources.supervisor), move || {
        let (watcher, source, until) = (watcher.clone(), source.clone(), until.clone());
        let services = Arc::clone(&services);
        async move {
            let followed = async {
                match &source {
                    source if source.is_like(&Source::INGRESSES) => {
                        watcher.follow(Ingresses::default()).await
                    }
                    source if source.is_like(&Source::GATEWAYS) => watcher.follow(Gateways::default()).await,
                    source if source.is_like(&Source::DNS_ENDPOINTS) => {
                        watcher.follow(DnsEndpoints::default()).await
                    }
                    source if source.is_like(&Source::SERVICES) && source.cluster.is_some() => {
                        watcher.follow(RemoteServices::new(services)).await
                    }
                    _ => std::future::pending().await,
                }
            };
            until.run_until_cancelled(followed).await.unwrap_or(Ok(()))
        }
    })
}
