//! Orphans: external targets that lb-linker has never written, with the labels of a load balancer that is gone or isn't
//! selected. Either the earlier operator wrote them, or a user set the labels: only the user knows whether they may be
//! removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tracing::{Level, warn};

use super::backend::Backend;
use super::desired::{has_our_field_manager, link_of_labels};
use crate::model::excerpt::MAX_LINES;
use crate::model::service_key::ServiceKey;
use crate::object_log;
use crate::sync::external_target::metrics::ReconcilerMetrics;
use crate::sync::k8s::instance::other_instance;
use crate::sync::source::selection::Selection;

/// Time window of the log limit: many orphans may appear one by one.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the load balancer that a Service in the target namespace is labelled for, if the Service is an orphan as
/// soon as this load balancer is gone. A Service is never an orphan if it is labelled for an unwatched namespace,
/// belongs to another instance than `own`, was written by lb-linker, or is being deleted.
#[must_use]
pub fn orphan_of(metadata: &ObjectMeta, selection: &Selection, own: Option<&str>) -> Option<ServiceKey> {
    link_of_labels(metadata).filter(|key| {
        selection.watches(key.namespace())
            && other_instance(metadata, own).is_none()
            && !has_our_field_manager(metadata)
            && metadata.deletion_timestamp.is_none()
    })
}

#[must_use]
pub fn removal_command(namespace: &str, objects: &[&str]) -> String {
    format!("kubectl delete service -n {namespace} {}", objects.join(" "))
}

/// The present orphans, and the state of their log lines.
pub(crate) struct Orphans {
    metrics: Arc<ReconcilerMetrics>,
    known: BTreeMap<ServiceKey, Vec<String>>,
    unlogged: Vec<(ServiceKey, String)>,
    /// The start of the time window, and the number of lines in it.
    logged: (Instant, usize),
}

impl Orphans {
    pub(crate) fn new(metrics: Arc<ReconcilerMetrics>) -> Self {
        metrics.orphans.set(0);
        Self { metrics, known: BTreeMap::new(), unlogged: Vec::new(), logged: (Instant::now(), 0) }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.known.keys()
    }

    pub(crate) fn set(&mut self, key: &ServiceKey, objects: Vec<String>) {
        if objects.is_empty() && !self.known.contains_key(key) {
            return;
        }
        let before = self.known.remove(key).unwrap_or_default();
        let new = objects.iter().filter(|object| !before.contains(object));
        self.unlogged.extend(new.map(|object| (key.clone(), object.clone())));
        if !objects.is_empty() {
            self.known.insert(key.clone(), objects);
        }
        let number: usize = self.known.values().map(Vec::len).sum();
        self.metrics.orphans.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    pub(crate) fn report(&mut self, backend: &Backend) {
        let (lines, more) = self.take_unlogged(Instant::now());
        for (key, object) in &lines {
            let remove = match backend {
                Backend::Namespace { namespace, .. } => removal_command(namespace, &[object]),
                Backend::Directory(_) => format!("rm {}", backend.describe(object)),
            };
            let line = format!(
                "external target {} is an orphan: the load balancer {key} that it was made for is gone or isn't \
                 followed, and lb-linker hasn't written it; it is left alone; --prune removes such orphans as if \
                 lb-linker had written them; to remove it: {remove}",
                backend.describe(object)
            );
            object_log::write("Service", key, Level::WARN, &line);
        }
        if !lines.is_empty() && more > 0 {
            warn!("and {more} more orphans");
        }
    }

    /// Returns the new orphans to log, and the number of new orphans that exceed the limit of log lines.
    fn take_unlogged(&mut self, now: Instant) -> (Vec<(ServiceKey, String)>, usize) {
        if self.unlogged.is_empty() {
            return (Vec::new(), 0);
        }
        if now.duration_since(self.logged.0) > LOG_INTERVAL {
            self.logged = (now, 0);
        }
        let mut unlogged = std::mem::take(&mut self.unlogged);
        let more = unlogged.split_off(unlogged.len().min(MAX_LINES.saturating_sub(self.logged.1)));
        self.logged.1 += unlogged.len();
        (unlogged, more.len())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::k8s::labels::{MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE};

    fn key(i: usize) -> ServiceKey {
        ServiceKey::new("shop", &format!("svc-{i}"))
    }

    fn logged(orphans: &mut Orphans, now: Instant) -> (usize, usize) {
        let (lines, more) = orphans.take_unlogged(now);
        (lines.len(), more)
    }

    #[test]
    fn orphan_is_logged_once_and_at_most_20_a_minute() {
        let mut orphans = Orphans::new(crate::sync::test_support::metrics());
        let now = Instant::now();
        assert_eq!(logged(&mut orphans, now), (0, 0));
        for _ in 0..2 {
            for i in 0..50 {
                orphans.set(&key(i), vec![format!("svc-{i}-shop-ext")]);
            }
        }
        assert_eq!(orphans.metrics.orphans.get(), 50);
        assert_eq!(logged(&mut orphans, now), (20, 30));
        assert_eq!(logged(&mut orphans, now), (0, 0));
        orphans.set(&key(50), vec!["another".to_owned()]);
        assert_eq!(logged(&mut orphans, now), (0, 1), "enough for this minute");
        orphans.set(&key(0), vec![]);
        orphans.set(&key(0), vec!["svc-0-shop-ext".to_owned()]);
        assert_eq!(logged(&mut orphans, now + 2 * LOG_INTERVAL), (1, 0), "an orphan again");
        for key in orphans.links().cloned().collect::<Vec<_>>() {
            orphans.set(&key, vec![]);
        }
        assert_eq!(orphans.metrics.orphans.get(), 0);
    }

    #[test]
    fn own_and_unwatched_objects_are_no_orphans() {
        let metadata = |managers: &[&str], more: Value| -> ObjectMeta {
            let managers: Vec<Value> = managers.iter().map(|name| json!({"manager": name})).collect();
            let mut metadata = json!({"name": "web-shop-ext", "managedFields": managers, "labels": {
                MANAGED_BY.0: MANAGED_BY.1, ORIGINAL_NAME: "web", ORIGINAL_NAMESPACE: "shop"}});
            metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(metadata).unwrap()
        };
        let all = Selection::default();
        let elsewhere = Selection { namespaces: ["other".to_owned()].into(), ..Default::default() };
        let theirs = metadata(&["manager"], json!({}));
        let orphan_of = |metadata: &ObjectMeta, selection| orphan_of(metadata, selection, Some("own"));
        assert_eq!(orphan_of(&theirs, &all), Some(ServiceKey::new("shop", "web")));
        assert_eq!(orphan_of(&theirs, &elsewhere), None);
        assert_eq!(orphan_of(&metadata(&["manager", "lb-linker"], json!({})), &all), None);
        assert_eq!(orphan_of(&metadata(&["manager"], json!({"labels": {}})), &all), None);
        let of =
            |instance| metadata(&["manager"], json!({"annotations": {"linker.hsj.com/instance": instance}}));
        assert_eq!(orphan_of(&of("other"), &all), None);
        assert!(orphan_of(&of("own"), &all).is_some());
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(orphan_of(&metadata(&["manager"], deleted), &all), None);
    }
}
