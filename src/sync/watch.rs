//! The source of links in a cluster: the watch of LoadBalancer Services.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tracing::info;

use super::desired::labelled_for;
use super::service::{LOAD_BALANCER, Service};
use super::trouble::{Complaints, Trouble, explain_watch, watch_code};
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
        let mut complaints = Complaints::default();
        let mut list = List::default();
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
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
            };
            if !matches!(event, Event::Init) {
                trouble.over("the API server answers again");
            }
            self.metrics.watch_events.inc();
            match event {
                Event::Init => list = List::default(),
                Event::InitApply(object) => list.add(&self, object, &mut complaints),
                Event::InitDone => {
                    self.listed(std::mem::take(&mut list));
                    complaints.retain(|key| self.store.get(key).is_some());
                }
                Event::Apply(object) => self.applied(object, &mut complaints),
                // "Left the selection", with the object as it was before: only its key, uid and
                // version are news.
                Event::Delete(object) => {
                    let (key, uid) = (key_of(&object), object.uid().unwrap_or_default());
                    let version = object.resource_version().and_then(|version| version.parse().ok());
                    complaints.set(&key, None);
                    log_changes(&self.metrics, self.store.delete(&key, &uid, version));
                }
            }
        }
        Err(SyncError::WatchEnded)
    }

    fn listed(&self, List { seen, unreadable }: List) {
        let first = !self.store.is_synced();
        let number = seen.len();
        let changes = self.store.replace(seen, unreadable);
        if first {
            // One line a load balancer would bury everything else.
            info!("{number} LoadBalancer Services listed: ready");
            self.metrics.target_changes.inc_by(changes.len() as u64);
        } else {
            log_changes(&self.metrics, changes);
        }
    }

    fn applied(&self, object: DeserializeGuard<Service>, complaints: &mut Complaints) {
        let Some(service) = readable(object, complaints) else { return };
        let change = if self.selects(&service) {
            self.store.apply(observe(&service, complaints))
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
    fn add(
        &mut self,
        source: &ClusterSource,
        object: DeserializeGuard<Service>,
        complaints: &mut Complaints,
    ) {
        let key = key_of(&object);
        match readable(object, complaints) {
            Some(service) if source.selects(&service) => self.seen.push(observe(&service, complaints)),
            Some(_) => {}
            None => self.unreadable.push(key),
        }
    }
}

/// Returns the object, or reports it: one that can't be read must not stop the others.
pub(super) fn readable(object: DeserializeGuard<Service>, complaints: &mut Complaints) -> Option<Service> {
    let key = key_of(&object);
    let complain =
        |error| complaints.set(&key, Some(format!("it can't be read and counts as it was: {error}")));
    object.0.map_err(complain).ok()
}

/// Returns what the store needs to know of a Service, and reports what of it can't be served.
pub(super) fn observe(service: &Service, complaints: &mut Complaints) -> Observed {
    let (observed, unusable) = service.observe();
    let complaint = unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    complaints.set(&observed.key, (!complaint.is_empty()).then_some(complaint));
    observed
}

fn key_of(object: &DeserializeGuard<Service>) -> ServiceKey {
    ServiceKey::new(&object.namespace().unwrap_or_default(), &object.name_any())
}
