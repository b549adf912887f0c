//! The source of links in a cluster: the watch of LoadBalancer Services.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tracing::{info, warn};

use super::desired::labelled_for;
use super::service::{LOAD_BALANCER, Service};
use super::trouble::{Trouble, explain_watch, watch_code};
use super::{SyncError, log_changes};
use crate::metrics::Metrics;
use crate::store::{Observed, ServiceKey, Store};

/// Objects a page: larger ones cost memory and save next to nothing.
const PAGE_SIZE: u32 = 100;
/// Seconds after which the API server ends a watch. A connection that died in silence is noticed
/// 5 s later, which keeps it below a minute.
const WATCH_SECONDS: u32 = 50;

/// What the watch of LoadBalancer Services needs.
#[derive(Clone)]
pub struct ClusterSource {
    /// The client.
    pub client: Client,
    /// The namespace of external targets: those are never links themselves.
    pub target_namespace: String,
    /// Where the links go.
    pub store: Arc<Store>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Watches all Services that `fields` selects, slim and guarded against undecodable ones, with
/// growing pauses after errors.
pub(super) fn services(
    api: Api<DeserializeGuard<Service>>,
    fields: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<DeserializeGuard<Service>>>> + Send + use<> {
    let mut config = watcher::Config::default().page_size(PAGE_SIZE).timeout(WATCH_SECONDS);
    if let Some(fields) = fields {
        config = config.fields(fields);
    }
    watcher::watcher(api, config).default_backoff()
}

impl ClusterSource {
    /// Keeps the store in step with the cluster.
    ///
    /// # Errors
    /// If the watch ends, which it never should.
    pub async fn run(self) -> Result<(), SyncError> {
        let fields = format!("spec.type={LOAD_BALANCER}");
        let mut events = Box::pin(services(Api::all(self.client.clone()), Some(&fields)));
        let mut trouble = Trouble::default();
        let mut list = List::default();
        while let Some(event) = events.next().await {
            match event {
                Err(error) => {
                    trouble.report(
                        watch_code(&error),
                        explain_watch(
                            &error,
                            "LoadBalancer Services in all namespaces",
                            "lb-linker needs the ClusterRole of deploy/",
                        ),
                    );
                    continue;
                }
                Ok(Event::Init) => list = List::default(),
                Ok(Event::InitApply(object)) => list.add(&self, object),
                Ok(Event::InitDone) => {
                    trouble.over("the API server answers again");
                    let first = !self.store.is_synced();
                    let List { seen, unreadable } = std::mem::take(&mut list);
                    let number = seen.len();
                    let changes = self.store.replace(seen, unreadable);
                    if first {
                        info!("{number} LoadBalancer Services listed: ready");
                        self.metrics.target_changes.inc_by(changes.len() as u64);
                    } else {
                        log_changes(&self.metrics, changes);
                    }
                }
                Ok(Event::Apply(object)) => {
                    trouble.over("the API server answers again");
                    self.apply(object);
                }
                // "Left the selection", with the object as it was before: only its key, uid and
                // version are news.
                Ok(Event::Delete(object)) => {
                    let meta = kube::Resource::meta(&object);
                    let key = key_of(&object);
                    let version = meta.resource_version.as_deref().and_then(|version| version.parse().ok());
                    let uid = meta.uid.clone().unwrap_or_default();
                    log_changes(&self.metrics, self.store.delete(&key, &uid, version));
                }
            }
            self.metrics.watch_events.inc();
        }
        Err(SyncError::WatchEnded)
    }

    fn apply(&self, object: DeserializeGuard<Service>) {
        let Some(service) = readable(object) else { return };
        let change = if self.selects(&service) {
            self.store.apply(observe(&service))
        } else {
            self.store.delete(&service.key(), service.uid(), service.version())
        };
        log_changes(&self.metrics, change);
    }

    fn selects(&self, service: &Service) -> bool {
        let external_target = service.metadata.namespace.as_deref() == Some(&*self.target_namespace)
            && labelled_for(service).is_some();
        service.is_living_load_balancer() && !external_target
    }
}

/// A list as it comes in, page by page.
#[derive(Debug, Default)]
struct List {
    seen: Vec<Observed>,
    unreadable: Vec<ServiceKey>,
}

impl List {
    fn add(&mut self, source: &ClusterSource, object: DeserializeGuard<Service>) {
        let key = key_of(&object);
        match readable(object) {
            Some(service) if source.selects(&service) => self.seen.push(observe(&service)),
            Some(_) => {}
            None => self.unreadable.push(key),
        }
    }
}

/// Returns the object, or reports it: one that can't be read must not stop the others.
pub(super) fn readable(object: DeserializeGuard<Service>) -> Option<Service> {
    let key = key_of(&object);
    object.0.inspect_err(|error| warn!("Service {key} can't be read and stays as it was: {error}")).ok()
}

/// Returns what the store needs to know of a Service, and logs what of it can't be served.
pub(super) fn observe(service: &Service) -> Observed {
    let (observed, unusable) = service.observe();
    for entry in unusable {
        warn!("Service {}: {entry}", observed.key);
    }
    observed
}

fn key_of(object: &DeserializeGuard<Service>) -> ServiceKey {
    ServiceKey::new(&object.namespace().unwrap_or_default(), &object.name_any())
}
