//! Finds and removes the finalizer `lb-linker/finalizer` that the earlier operator, or lb-linker with `--finalizer`,
//! has left on Services.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use tracing::{Level, warn};

use crate::model::excerpt::{MAX_LINES, examples};
use crate::model::service_key::ServiceKey;
use crate::object_log;
use crate::store::{Input, Store};
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ApiAvailability, ListError, in_place, watch_scopes};
use crate::sync::k8s::labels::FIELD_MANAGER;
use crate::sync::k8s::service::{FINALIZER, Service};
use crate::sync::k8s::watch::{RequestQuery, list_pages};
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::insert_terminating;
use crate::sync::task::backoff::Backoff;
use crate::sync::task::supervisor::SyncError;

/// The first and the longest pause before the Services are listed again after an error.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The maximum time that the search waits for the first complete lists of the watches. DNS needs these lists, and the
/// search reads all Services once more.
const DNS_LISTS_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceWithFinalizer {
    pub key: ServiceKey,
    /// `metadata.uid`.
    pub uid: String,
    /// Whether the Service is being deleted: the finalizer blocks the deletion.
    pub blocks_deletion: bool,
    /// The Service's other finalizers as text: up to three, and the number of the remaining ones. Empty if there are
    /// none.
    pub other_finalizers: String,
    /// Whether the label selector of the flags selects the Service. The labels may be large, and aren't kept.
    pub is_selected: bool,
}

impl ServiceWithFinalizer {
    fn of(metadata: &ObjectMeta, selection: &Selection) -> Option<Self> {
        let finalizers = metadata.finalizers.iter().flatten();
        let (ours, other_finalizers): (Vec<_>, Vec<_>) =
            finalizers.partition(|finalizer| *finalizer == FINALIZER);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        (!ours.is_empty()).then(|| Self {
            key: ServiceKey::new(&text(&metadata.namespace), &text(&metadata.name)),
            uid: text(&metadata.uid),
            blocks_deletion: metadata.deletion_timestamp.is_some(),
            other_finalizers: if other_finalizers.is_empty() {
                String::new()
            } else {
                examples(other_finalizers)
            },
            is_selected: selection.matches_labels(metadata),
        })
    }

    /// Returns the kubectl command that removes this finalizer and keeps other finalizers.
    #[must_use]
    pub fn command(&self) -> String {
        let (namespace, name) = self.key.parts();
        format!("kubectl patch service {name} -n {namespace} --type strategic -p '{}'", removal())
    }
}

/// Returns the strategic merge patch that removes the finalizer from any position of the list.
fn removal() -> Value {
    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}})
}

/// Removes the finalizer from this Service, but not from a newer Service with the same name. Returns the Service after
/// the patch.
///
/// # Errors
/// If the API server doesn't respond, or refuses the patch: 404 if the Service is gone,
/// [`is_uid_mismatch`](crate::sync::k8s::errors::is_uid_mismatch) if another Service has its name.
pub async fn remove_finalizer(
    client: &Client,
    service: &ServiceWithFinalizer,
) -> kube::Result<PartialObjectMeta<Service>> {
    let api: Api<Service> = Api::namespaced(client.clone(), service.key.namespace());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let mut patch = removal();
    patch["metadata"]["uid"] = service.uid.as_str().into();
    api.patch_metadata(service.key.name(), &params, &Patch::Strategic(patch)).await
}

/// Lists the Services with the finalizer in the watched namespaces; calls `on_page` with the number of Services of
/// each page. There is no field selector for finalizers, so this reads the metadata of all Services.
///
/// # Errors
/// If a page can't be read.
pub async fn list_services_with_finalizer(
    client: &Client,
    selection: &Selection,
    mut on_page: impl FnMut(usize),
) -> Result<Vec<ServiceWithFinalizer>, ListError> {
    let mut found = Vec::new();
    for place in watch_scopes(&selection.namespaces) {
        found.extend(list_services_with_finalizer_in(client, place, selection, &mut on_page).await?);
    }
    sort(&mut found);
    Ok(found)
}

async fn list_services_with_finalizer_in(
    client: &Client,
    place: Option<&str>,
    selection: &Selection,
    on_page: &mut impl FnMut(usize),
) -> Result<Vec<ServiceWithFinalizer>, ListError> {
    let mut found = Vec::new();
    let query = RequestQuery {
        namespace: place.map(ToOwned::to_owned),
        metadata_only: true,
        ..RequestQuery::default()
    };
    let on_page = |page: Vec<RawDeserializeGuard<Service>>| {
        on_page(page.len());
        let metadata = page.iter().map(Resource::meta);
        found.extend(metadata.filter_map(|metadata| ServiceWithFinalizer::of(metadata, selection)));
    };
    list_pages(client.clone(), &query, on_page)
        .await
        .map_err(|source| ListError { what: in_place("Services", place), source: Box::new(source) })?;
    Ok(found)
}

/// Services with a blocked deletion come first.
fn sort(found: &mut [ServiceWithFinalizer]) {
    found.sort_by(|a, b| (Reverse(a.blocks_deletion), &a.key).cmp(&(Reverse(b.blocks_deletion), &b.key)));
}

/// Searches once for Services with the finalizer. Without `--finalizer`, logs these Services. With `--finalizer`
/// (`sets_finalizer`), adds the Services that aren't load balancers any more to the store, so that the reconciler
/// removes their finalizer. Failed lists are retried with backoff; each HTTP code is logged once. A namespace that the
/// API server refuses to list doesn't delay the other namespaces.
///
/// # Errors
/// Never; the type is that of a supervised task.
pub async fn search_finalizers(
    client: Client,
    availability: ApiAvailability,
    selection: Arc<Selection>,
    store: Arc<Store>,
    sets_finalizer: bool,
) -> Result<(), SyncError> {
    let _ = tokio::time::timeout(DNS_LISTS_TIMEOUT, store.known(Input::Services)).await;
    let mut pauses = Backoff::new(RETRY_BACKOFF);
    let mut logged_codes = BTreeSet::new();
    let mut places: Vec<Option<&str>> = watch_scopes(&selection.namespaces).collect();
    loop {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut waiting = places.iter();
        while let Some(place) = waiting.next() {
            let error = match list_services_with_finalizer_in(&client, *place, &selection, &mut |_| {}).await
            {
                Ok(blocked) => {
                    found.extend(blocked);
                    continue;
                }
                Err(error) => error,
            };
            missing.push(*place);
            match error.code() {
                // 410 Gone: the continue token has expired, and the next attempt begins a new list.
                410 => {}
                0 | 401 => availability.report_error(&error.source),
                code if logged_codes.insert(code) => {
                    let sentence = error.explain("lb-linker needs the permissions of deploy/ there");
                    warn!(
                        "looking for Services with a finalizer of lb-linker: {sentence}; trying again later"
                    );
                }
                _ => {}
            }
            // Other errors concern all namespaces.
            if error.code() != 403 {
                missing.extend(waiting.by_ref());
            }
        }
        sort(&mut found);
        process(&store, &found, sets_finalizer).await;
        if missing.is_empty() {
            return Ok(());
        }
        places = missing;
        tokio::time::sleep(pauses.next()).await;
    }
}

/// Without `sets_finalizer`, logs the Services with the finalizer. With `sets_finalizer`, adds to the store the
/// Services that this lb-linker manages, unless the store has them.
async fn process(store: &Store, found: &[ServiceWithFinalizer], sets_finalizer: bool) {
    if !sets_finalizer {
        for line in lines(found) {
            warn!("{line}");
        }
        return;
    }
    store.known(Input::Services).await;
    store.known(Input::ExternalTargets).await;
    // The finalizer may belong to another lb-linker with another label selector and another target namespace.
    let belongs =
        |service: &ServiceWithFinalizer| service.is_selected || store.has_external_target(&service.key);
    for service in found.iter().filter(|bound| belongs(bound)) {
        if let Some(change) = insert_terminating(store, &service.key, &service.uid, true) {
            let key = &change.owner.key;
            let line =
                format_args!("link {key}: it isn't a load balancer any more, and still has {FINALIZER}");
            object_log::write("Service", key, Level::INFO, &line);
        }
    }
}

/// Returns the lines for the log, at most about one screen.
fn lines(found: &[ServiceWithFinalizer]) -> Vec<String> {
    if found.is_empty() {
        return Vec::new();
    }
    let stuck = found.iter().filter(|bound| bound.blocks_deletion).count();
    let mut lines = vec![format!(
        "the finalizer {FINALIZER}, of the earlier operator or of --finalizer, was left behind: Services that carry \
         it: {}, stuck in deletion: {stuck}; `lb-linker takeover` frees them all (deploy/takeover/ runs it in the \
         cluster)",
        found.len()
    )];
    lines.extend(found.iter().take(MAX_LINES).map(|bound| {
        let state = if bound.blocks_deletion {
            format!("is stuck in deletion: it carries {FINALIZER}")
        } else {
            format!("carries {FINALIZER} and will get stuck when it is deleted")
        };
        let other_finalizers = match &*bound.other_finalizers {
            "" => String::new(),
            others => format!(" (other finalizers: {others})"),
        };
        format!("Service {} {state}{other_finalizers}; to free it: {}", bound.key, bound.command())
    }));
    if found.len() > MAX_LINES {
        lines.push(format!("and {} more Services with {FINALIZER}", found.len() - MAX_LINES));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;
    use crate::store::OnGone;
    use crate::sync::test_support;

    fn service(finalizers: &[&str], deleted: bool) -> PartialObjectMeta<Service> {
        let deletion = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u",
            "finalizers": finalizers, "deletionTimestamp": deletion}}))
        .unwrap()
    }

    fn blocked(finalizers: &[&str], deleted: bool) -> Option<ServiceWithFinalizer> {
        ServiceWithFinalizer::of(&service(finalizers, deleted).metadata, &Selection::default())
    }

    #[test]
    fn only_services_with_the_finalizer_are_found() {
        assert_eq!(blocked(&[], true), None);
        assert_eq!(blocked(&["lb-linker/other"], true), None);
        let bound = blocked(&["a/b", FINALIZER, "c/d"], true).unwrap();
        assert!(bound.blocks_deletion);
        assert_eq!(bound.other_finalizers, "a/b, c/d");
        assert!(bound.is_selected);
        assert!(!blocked(&[FINALIZER], false).unwrap().blocks_deletion);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_namespace_doesnt_delay_the_search_in_another() {
        let is_refused = Arc::new(AtomicBool::new(true));
        let refuses = Arc::clone(&is_refused);
        let client = test_support::client(move |request| {
            let namespace = if request.uri().path().contains("/a/") { "a" } else { "b" };
            if namespace == "a" && refuses.load(Ordering::Relaxed) {
                return test_support::status(403, "Forbidden", "services is forbidden");
            }
            let metadata =
                json!({"namespace": namespace, "name": "web", "uid": "u", "finalizers": [FINALIZER]});
            (200, json!({"metadata": {"resourceVersion": "5"}, "items": [{"metadata": metadata}]}))
        });
        let namespaces = ["a", "b"].map(ToOwned::to_owned).into();
        let selection = Arc::new(Selection { namespaces, ..Selection::default() });
        let store = Arc::new(Store::new(OnGone::Kept));
        store.set_known(Input::Services);
        store.set_known(Input::ExternalTargets);
        let (mut feed, availability) = (store.subscribe(), ApiAvailability::default());
        let search =
            tokio::spawn(search_finalizers(client, availability, selection, Arc::clone(&store), true));
        let mut next = async || {
            timeout(Duration::from_secs(60), feed.recv()).await.unwrap().unwrap()[0].owner.key.clone()
        };
        assert_eq!(next().await, ServiceKey::new("b", "web"));
        is_refused.store(false, Ordering::Relaxed);
        assert_eq!(next().await, ServiceKey::new("a", "web"));
        search.await.unwrap().unwrap();
    }

    #[test]
    fn log_names_services_with_commands_up_to_a_limit() {
        assert!(lines(&[]).is_empty());
        let found: Vec<ServiceWithFinalizer> =
            (0..45).filter_map(|i| blocked(&[FINALIZER], i % 2 == 0)).collect();
        let lines = lines(&found);
        assert_eq!(lines.len(), 22);
        assert!(lines[0].contains("carry it: 45, stuck in deletion: 23"), "{}", lines[0]);
        assert_eq!(
            lines[1],
            "Service shop/web is stuck in deletion: it carries lb-linker/finalizer; to free it: kubectl patch service \
             web -n shop --type strategic \
             -p '{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"lb-linker/finalizer\"]}}'"
        );
        assert_eq!(lines[21], "and 25 more Services with lb-linker/finalizer");
    }
}
