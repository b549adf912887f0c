//! The dependencies of the reconciler.

use std::sync::Arc;

use tokio::sync::watch;

use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::store::Store;
use crate::sync::election::Leadership;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::external_target::backend::Backend;
use crate::sync::external_target::decision::SyncPolicy;
use crate::sync::external_target::left_out::ServiceLookup;
use crate::sync::external_target::metrics::ReconcilerMetrics;
use crate::sync::external_target::states::ExternalTargetStates;
use crate::sync::k8s::listed::CompletedLists;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::source::persisted_targets::PersistedTargets;
use crate::sync::source::selection::Selection;

#[derive(Clone)]
pub struct ReconcilerContext {
    pub store: Arc<Store>,
    pub persisted: Arc<PersistedTargets>,
    /// The states of the external targets.
    pub external_target_states: Arc<ExternalTargetStates>,
    /// The storage of external targets.
    pub backend: Backend,
    /// Looks up which Services exist, regardless of the flags that select them.
    pub service_lookup: ServiceLookup,
    /// Whether Services without a link are looked up at a start: not with `--sync off`.
    pub looks_up: bool,
    /// Selects the Services that become links. External targets of Services in unwatched namespaces aren't changed.
    pub selection: Arc<Selection>,
    /// Decides which requested hostnames and targets are allowed.
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    /// The settings from the flags.
    pub policy: SyncPolicy,
    /// Logs, Events and metrics of links.
    pub link_reporter: LinkReporter,
    pub metrics: Arc<ReconcilerMetrics>,
    /// Metrics of requests to the API server.
    pub api: Arc<ApiMetrics>,
    /// The age of the data that the watches have delivered.
    pub staleness: Arc<Staleness>,
    /// Whether this replica may write, and in which term.
    pub leadership: Leadership,
    /// Counts restores of etcd to an earlier revision.
    pub rewinds: RestoreCounter,
    /// The namespaces with a complete list of load balancers.
    pub links_listed: watch::Receiver<CompletedLists>,
    /// The namespaces with a complete list of StableNames.
    pub overrides_listed: watch::Receiver<CompletedLists>,
}
