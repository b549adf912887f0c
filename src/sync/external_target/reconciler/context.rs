//! What the reconciler is given at its start.

use std::sync::Arc;

use tokio::sync::watch;

use crate::metrics::staleness::Staleness;
use crate::model::hostname_policy::HostnamePolicy;
use crate::store::Store;
use crate::sync::election::Leadership;
use crate::sync::events::link_log::Telemetry;
use crate::sync::external_target::backend::Backend;
use crate::sync::external_target::decision::SyncPolicy;
use crate::sync::external_target::left_out::Registry;
use crate::sync::external_target::metrics::ReconcilerMetrics;
use crate::sync::k8s::listed::LinkLists;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::rewinds::Rewinds;
use crate::sync::source::selection::Selection;

/// What the reconciler needs.
#[derive(Clone)]
pub struct ReconcilerContext {
    /// Where the links are.
    pub store: Arc<Store>,
    /// Where the external targets are.
    pub backend: Backend,
    /// Where it can be looked up which Services exist.
    pub registry: Registry,
    /// Which Services become links: the external targets of others aren't ours to touch.
    pub selection: Arc<Selection>,
    /// What of their wishes is granted.
    pub hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    /// What the user has decided.
    pub policy: SyncPolicy,
    /// Where what happens is told.
    pub news: Telemetry,
    /// What is counted of its work.
    pub metrics: Arc<ReconcilerMetrics>,
    /// What is counted of its writes.
    pub api: Arc<ApiMetrics>,
    /// How old what its watches have heard is.
    pub staleness: Arc<Staleness>,
    /// Whether it may write.
    pub leadership: Leadership,
    /// How often etcd was restored.
    pub rewinds: Rewinds,
    /// Which lists of load balancers are complete.
    pub links_listed: watch::Receiver<LinkLists>,
}
