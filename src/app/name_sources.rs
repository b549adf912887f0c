//! Starts and stops the reading of sources of names, as the zones demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::model::owner::{Source, Zone};
use crate::sync::source::dns_endpoint::DnsEndpoints;
use crate::sync::source::gateway::Gateways;
use crate::sync::source::ingress::Ingresses;
use crate::sync::source::names::watch::NameWatcher;
use crate::sync::task::supervisor::{SupervisorMetrics, SyncError, supervise};

#[derive(Clone)]
pub(super) struct NameSources {
    pub(super) watcher: NameWatcher,
    pub(super) supervisor: Arc<SupervisorMetrics>,
}

/// Reads the sources of the store's zones, apart from the load balancers, until `stop` is cancelled.
///
/// # Errors
/// If the store has ended, which should never happen before.
pub(super) async fn run(sources: NameSources, stop: CancellationToken) -> Result<(), SyncError> {
    let NameSources { watcher, supervisor } = sources;
    let mut zones = watcher.store.watch_zones();
    let mut running: BTreeMap<Source, (CancellationToken, AbortOnDropHandle<()>)> = BTreeMap::new();
    loop {
        let wanted = wanted(&zones.borrow_and_update());
        for source in wanted.iter().filter(|source| !running.contains_key(*source)).collect::<Vec<_>>() {
            let until = stop.child_token();
            let task = tokio::spawn(follow(watcher.clone(), source.clone(), until.clone(), &supervisor));
            running.insert(source.clone(), (until, AbortOnDropHandle::new(task)));
        }
        let ended: Vec<Source> = running.keys().filter(|source| !wanted.contains(source)).cloned().collect();
        for source in ended {
            let Some((until, task)) = running.remove(&source) else { continue };
            until.cancel();
            // It has only been cancelled.
            let _ = task.await;
            watcher.store.forget_source(&source);
            watcher.link_reporter.findings.readiness.forget_source(&source);
        }
        tokio::select! {
            () = stop.cancelled() => break,
            changed = zones.changed() => changed.map_err(|_| SyncError::WatchEnded)?,
        }
    }
    for (_, task) in running.into_values() {
        let _ = task.await;
    }
    Ok(())
}

fn wanted(zones: &[Zone]) -> Vec<Source> {
    let mut wanted: Vec<Source> = zones.iter().flat_map(Zone::read_sources).collect();
    wanted.retain(|source| *source != Source::SERVICES);
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

fn follow(
    watcher: NameWatcher,
    source: Source,
    until: CancellationToken,
    supervisor: &Arc<SupervisorMetrics>,
) -> impl Future<Output = ()> + Send + 'static {
    let stop = until.clone();
    supervise("the names of a source", stop, Arc::clone(supervisor), move || {
        let (watcher, source, until) = (watcher.clone(), source.clone(), until.clone());
        async move {
            let followed = async {
                match &source {
                    source if *source == Source::INGRESSES => watcher.follow(Ingresses::default()).await,
                    source if *source == Source::GATEWAYS => watcher.follow(Gateways::default()).await,
                    source if *source == Source::DNS_ENDPOINTS => {
                        watcher.follow(DnsEndpoints::default()).await
                    }
                    _ => std::future::pending().await,
                }
            };
            until.run_until_cancelled(followed).await.unwrap_or(Ok(()))
        }
    })
}
