//! Watches the objects that a cluster's own DNS is about, for the plugin *kubernetes*.

mod kinds;
pub mod metrics;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::relist_guard::{CONFIRM_AFTER, GuardedList, ListEnd, RelistGuard};
use crate::metrics::staleness::{LastActivity, Staleness};
use crate::model::excerpt::value;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::store::cluster::Cluster;
use crate::store::cluster::objects::Kind;
use crate::store::cluster::registry::Connection;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, WatchLog, explain_watch, in_place};
use crate::sync::k8s::watch::item::WatchError;
use crate::sync::k8s::watch::{
    Event, RequestQuery, WatchItem, WatchStream, key_of, list_watch, readable, sleep_until_opt,
};
use crate::sync::task::supervisor::SyncError;
use kinds::{ClusterImport, ClusterNamespace, ClusterObject, ClusterPod, ClusterService, ClusterSlice};
use metrics::ProgrammingMetrics;

/// The longest pause before the first list is requested again: no name is known without it.
const FIRST_LIST_PAUSE: Duration = Duration::from_secs(2);

/// Keeps the objects of a cluster up to date.
#[derive(Clone)]
pub struct ClusterWatcher {
    pub cluster: Arc<Cluster>,
    pub client: Client,
    pub availability: ApiAvailability,
    pub staleness: Arc<Staleness>,
    pub programming: Arc<ProgrammingMetrics>,
    pub log: ObjectLog,
}

impl ClusterWatcher {
    /// Watches until `stop` is cancelled.
    ///
    /// # Errors
    /// If a watch ends, which should never happen.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SyncError> {
        let has = |kind| self.cluster.spec().has(kind);
        let watches = async {
            tokio::select! {
                () = self.follow::<ClusterService>() => {}
                () = self.follow::<ClusterNamespace>() => {}
                () = self.follow::<ClusterSlice>(), if has(Kind::Slices) => {}
                () = self.follow::<ClusterPod>(), if has(Kind::Pods) => {}
                () = self.follow::<ClusterImport>(), if has(Kind::Imports) => {}
            }
            Err(SyncError::WatchEnded)
        };
        stop.run_until_cancelled(watches).await.unwrap_or(Ok(()))
    }

    async fn follow<K: ClusterObject>(&self) {
        let mut watch = KindWatch::<K>::new(self);
        let mut events = watch.begin();
        loop {
            tokio::select! {
                item = events.next() => match item {
                    Some(Err(error)) if K::IS_OPTIONAL && error.code() == 404 => {
                        watch.on_missing();
                        events = futures::stream::pending().boxed();
                    }
                    Some(item) => watch.on_item(item),
                    None => return,
                },
                () = sleep_until_opt(watch.list.confirm_at) => {
                    watch.list.confirm_at = None;
                    events = watch.begin();
                }
            }
        }
    }
}

/// The watch of one kind.
struct KindWatch<'a, K> {
    watcher: &'a ClusterWatcher,
    /// The objects in sentences.
    what: String,
    activity: Arc<LastActivity>,
    log: WatchLog,
    object_errors: ObjectErrors,
    /// The list that has begun. It is confirmed, or a missing resource is asked for again, at its `confirm_at`.
    list: GuardedList,
    guard: RelistGuard,
    /// Whether the API server doesn't serve the resource.
    is_missing: bool,
    kind: std::marker::PhantomData<fn() -> K>,
}

impl<'a, K: ClusterObject> KindWatch<'a, K> {
    fn new(watcher: &'a ClusterWatcher) -> Self {
        let what = in_cluster(K::WHAT, watcher);
        Self {
            watcher,
            activity: watcher.staleness.one_of(K::WATCH),
            log: WatchLog::new(watcher.availability.clone(), in_place(&what, None), K::HINT),
            what,
            object_errors: ObjectErrors::of_kind(K::NAME, watcher.log.clone()),
            list: GuardedList::default(),
            guard: RelistGuard::default(),
            is_missing: false,
            kind: std::marker::PhantomData,
        }
    }

    /// Begins with a list.
    fn begin(&self) -> WatchStream<K> {
        let spec = self.watcher.cluster.spec();
        let labels = match K::KIND {
            Kind::Namespaces => &spec.namespace_labels,
            // Their namespaces choose them.
            Kind::Imports => "",
            _ => &spec.labels,
        };
        let of_imports = Some(kinds::IMPORT_NAME).filter(|_| K::KIND == Kind::Slices && !spec.has_endpoints);
        let labels: Vec<&str> =
            of_imports.into_iter().chain([labels]).filter(|label| !label.is_empty()).collect();
        let query = RequestQuery {
            fields: K::FIELDS.to_owned(),
            labels: labels.join(","),
            first_list_pause: Some(FIRST_LIST_PAUSE),
            ..RequestQuery::default()
        };
        let (client, availability) = (self.watcher.client.clone(), self.watcher.availability.clone());
        list_watch(client, query, Arc::clone(&self.activity), availability)
    }

    fn on_item(&mut self, item: WatchItem<K>) {
        if let Err(error) = &item {
            self.note_failure(error);
        }
        let Some(event) = self.log.log_failure(item) else { return };
        match event {
            Event::ListBegins => self.list.begin(),
            Event::Listed(object) => {
                self.list.see(key_of(&object));
                self.apply(object);
            }
            Event::ListEnds { rewound, .. } => self.on_list_end(rewound),
            Event::Resumed => self.watcher.cluster.set_failure(K::KIND, None),
            Event::Applied(object) => {
                let change = change_of(&object);
                self.apply(object);
                self.observe(change);
            }
            Event::Deleted(object) => {
                self.remove(&key_of(&object));
                self.observe(change_of(&object));
            }
        }
    }

    /// Records how long a change has taken, as CoreDNS does: if its Service is known.
    fn observe(&self, change: Option<(ServiceKey, Timestamp)>) {
        let Some((service, at)) = change else { return };
        if let Some(is_headless) = self.watcher.cluster.is_headless(&service) {
            self.watcher.programming.answers(is_headless, at);
        }
    }

    /// Takes the missing resource for an empty list, and lists again later.
    fn on_missing(&mut self) {
        self.activity.note();
        self.list.begin();
        if !std::mem::replace(&mut self.is_missing, true) {
            info!(
                "{} aren't served by the API server (no CRD); asked for again every {} s",
                self.what,
                CONFIRM_AFTER.as_secs()
            );
        }
        self.replace(false);
        self.list.confirm_at = Some(Instant::now() + CONFIRM_AFTER);
    }

    fn note_failure(&self, error: &WatchError) {
        let why = match error.code() {
            // The state before stays as it is, and a new list follows.
            410 => return,
            0 => format!("the {} can't be read: the API server doesn't answer", self.what),
            _ => explain_watch(error, &in_place(&self.what, None), K::HINT),
        };
        self.activity.set_refused(error.code() == 403);
        self.watcher.cluster.set_failure(K::KIND, Some(&why));
    }

    fn apply(&mut self, object: RawDeserializeGuard<K>) {
        let key = key_of(&object);
        if let Some(object) = readable(object, &mut self.object_errors) {
            let wrong = object.apply(&key, &self.watcher.cluster);
            self.object_errors.set_parts(&key, &wrong);
        }
    }

    fn remove(&mut self, key: &ServiceKey) {
        self.object_errors.set(key, None);
        self.watcher.cluster.remove(K::KIND, key);
    }

    fn on_list_end(&mut self, is_rewound: bool) {
        let was_missing = std::mem::take(&mut self.is_missing);
        let is_first = was_missing || !self.watcher.cluster.is_listed();
        self.replace(is_rewound);
        if is_first {
            info!("{} for DNS: {}", self.what, self.watcher.cluster.number(K::KIND));
        }
    }

    /// Removes what the list lacks, unless that is suspiciously much.
    fn replace(&mut self, is_rewound: bool) {
        let cluster = Arc::clone(&self.watcher.cluster);
        let guard = K::IS_GUARDED.then_some((&mut self.guard, |_: &ServiceKey| 1));
        let ListEnd { seen, gone, is_confirmed } =
            self.list.end(&self.what, &cluster.keys(K::KIND), |_| true, is_rewound, guard);
        for key in &gone {
            self.remove(key);
        }
        if is_confirmed {
            // Objects that are in no index have errors, too.
            self.object_errors.retain(|key| seen.contains(key));
        }
        let was_listed = cluster.is_listed();
        cluster.set_listed(K::KIND);
        if !was_listed && cluster.is_listed() {
            info!("ready: {}", in_cluster("names of kubernetes", self.watcher));
        }
    }
}

/// Returns the objects in sentences, with the API server if it isn't lb-linker's own.
fn in_cluster(objects: &str, watcher: &ClusterWatcher) -> String {
    let place = match &watcher.cluster.spec().connection {
        Connection::Own => return objects.to_owned(),
        Connection::Kubeconfig { path, context: None } => format!("kubeconfig {}", path.display()),
        Connection::Kubeconfig { path, context: Some(context) } => {
            format!("context {} of kubeconfig {}", value(context), path.display())
        }
        Connection::Endpoint { .. } => watcher.availability.host(),
    };
    format!("{objects} of {place}")
}

fn change_of<K: ClusterObject>(object: &RawDeserializeGuard<K>) -> Option<(ServiceKey, Timestamp)> {
    let (service, at) = object.0.as_ref().ok()?.last_change()?;
    Some((ServiceKey::new(key_of(object).namespace(), service), at))
}
