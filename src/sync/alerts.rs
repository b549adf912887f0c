//! Keeps the PrometheusRules of StableNames with `spec.alerts` up to date, on the leader.
//!
//! Without such a StableName, and without a PrometheusRule that has to be removed, no request about
//! PrometheusRules is sent, not even discovery. A missing CRD, a missing permission or a name conflict changes only the
//! condition AlertsReady.

mod controller;
pub mod desired;
pub mod requests;
mod rule;
pub(crate) mod rule_name;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use futures::StreamExt;
use kube::Client;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::election::Leadership;
use super::external_target::decision::SyncMode;
use super::k8s::errors::ApiAvailability;
use super::k8s::listed::CompletedLists;
use super::k8s::metrics::ApiMetrics;
use super::k8s::rewinds::RestoreCounter;
use super::source::selection::Selection;
use super::task::supervisor::SyncError;
use crate::metrics::staleness::Staleness;
use crate::object_log::ObjectLog;
use controller::{AlertsController, DISCOVERY_INTERVAL};
use requests::RuleRequests;

#[derive(Clone)]
pub struct AlertsContext {
    pub client: Client,
    /// Reports an unreachable API server.
    pub availability: ApiAvailability,
    /// Selects the namespaces.
    pub selection: Arc<Selection>,
    pub sync: SyncMode,
    /// The requests for PrometheusRules, and the states of these PrometheusRules.
    pub rules: Arc<RuleRequests>,
    /// Metrics of requests to the API server.
    pub api: Arc<ApiMetrics>,
    /// The age of the data that the watches have delivered.
    pub staleness: Arc<Staleness>,
    /// Whether this replica may write, and in which term.
    pub leadership: Leadership,
    /// Counts restores of etcd to an earlier revision.
    pub rewinds: RestoreCounter,
    /// The namespaces with a complete list of StableNames.
    pub overrides_listed: watch::Receiver<CompletedLists>,
    pub log: ObjectLog,
}

/// Keeps PrometheusRules up to date until `stop` is cancelled.
///
/// # Errors
/// If a feed ends or a task panics, which should never happen.
pub async fn run(context: AlertsContext, stop: CancellationToken) -> Result<(), SyncError> {
    let mut requests = context.rules.subscribe_requests();
    let mut leadership = context.leadership.clone();
    let mut overrides_listed = context.overrides_listed.clone();
    let mut tick = interval(DISCOVERY_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut controller = AlertsController::new(context);
    controller.on_leadership();
    loop {
        controller.drain();
        tokio::select! {
            () = stop.cancelled() => break,
            _ = tick.tick() => controller.on_tick(),
            Some(served) = controller.discoveries.join_next() => controller.on_discovery(served?),
            Some((number, item)) = controller.events.next(), if !controller.events.is_empty() => {
                controller.on_watch_item(number, item);
            }
            key = requests.recv() => match key {
                Ok(key) => controller.on_request(&key),
                Err(RecvError::Lagged(_)) => controller.on_any_request(),
                Err(RecvError::Closed) => return Err(SyncError::WatchEnded),
            },
            () = leadership.changed() => controller.on_leadership(),
            Ok(()) = overrides_listed.changed() => controller.queue_all(),
            ended = controller.runtime.event() => ended?.into_iter().for_each(|ended| controller.written(ended)),
        }
    }
    while let Some(ended) = controller.runtime.drained().await? {
        controller.written(ended);
    }
    Ok(())
}
