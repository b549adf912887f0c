//! Index of annotated Services, built from the watches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;
use tracing::info;

use super::decision::{AnnotatedService, MalformedAnnotation, is_unknown_annotation};
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, WatchLog};
use crate::sync::k8s::labels::{MANAGED_BY, SOURCE};
use crate::sync::k8s::service::{EXTERNAL_NAME, Service};
use crate::sync::k8s::watch::{Event, RequestQuery, WatchItem, key_of, readable};
use crate::sync::source::selection::Selection;

/// The manifest that grants the permission to list.
const PERMISSION_HINT: &str = "lb-linker needs the permissions of deploy/ there";
/// Time for which a 403 may come from an API server that has just started and hasn't loaded all permissions yet.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of retries for forbidden lists of Services, while no use of the annotation is known.
pub(super) const FORBIDDEN_RETRY: Duration = Duration::from_secs(600);

/// Returns whether an annotation makes a Service follow, or may be meant to.
fn concerns(key: &str) -> bool {
    key == SOURCE || is_unknown_annotation(key)
}

/// The meaning of a watch event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IndexEvent {
    /// An annotated Service is new or has changed.
    Follower(ServiceKey),
    /// The annotation of a Service is malformed.
    Malformed { key: ServiceKey, uid: Box<str>, annotation: MalformedAnnotation },
    /// A Service is gone, was recreated, has no annotation, or names another link than before.
    NoFollower(ServiceKey),
    /// The list of these objects is older than earlier data: etcd was restored.
    Rewound(String),
    /// The API server has answered.
    Answered,
    /// The annotation is used in a scope with metadata-only lists: its Services have to be listed in full.
    AnnotationFound,
    /// The list of the Services has been forbidden for [`STARTUP_TIMEOUT`] or longer, and no use of the annotation is
    /// known.
    Forbidden,
}

/// The scope of a watch. The target namespace has its own watch, which leaves out the external targets: they are
/// numerous and have no source annotation.
#[derive(Clone, Debug)]
pub(super) enum WatchScope {
    All,
    AllBut(String),
    /// A namespace, and whether it is the target namespace.
    Only(String, bool),
}

impl WatchScope {
    /// Returns the scopes to watch for annotated Services.
    fn of(selection: &Selection) -> Vec<Self> {
        let target = selection.target_namespace.as_ref();
        let only = |namespace: &String| Self::Only(namespace.clone(), target == Some(namespace));
        match target {
            _ if !selection.namespaces.is_empty() => selection.namespaces.iter().map(only).collect(),
            Some(target) => vec![Self::AllBut(target.clone()), only(target)],
            None => vec![Self::All],
        }
    }

    /// Returns the namespace to watch; `None` for all.
    fn namespace(&self) -> Option<&str> {
        match self {
            Self::All | Self::AllBut(_) => None,
            Self::Only(namespace, _) => Some(namespace),
        }
    }

    fn query(&self, metadata_only: bool) -> RequestQuery {
        let mut fields = format!("spec.type={EXTERNAL_NAME}");
        if let Self::AllBut(namespace) = self {
            fields.push_str(&format!(",metadata.namespace!={namespace}"));
        }
        let (label, ours) = MANAGED_BY;
        let labels =
            if matches!(self, Self::Only(_, true)) { format!("{label}!={ours}") } else { String::new() };
        let namespace = self.namespace().map(ToOwned::to_owned);
        RequestQuery { namespace, fields, labels, metadata_only, ..RequestQuery::default() }
    }

    fn contains(&self, key: &ServiceKey) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(namespace) => key.namespace() != namespace,
            Self::Only(namespace, _) => key.namespace() == namespace,
        }
    }
}

impl fmt::Display for WatchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all namespaces"),
            Self::AllBut(namespace) => write!(f, "all namespaces but {namespace}"),
            Self::Only(namespace, _) => write!(f, "namespace {namespace}"),
        }
    }
}

/// The state of the watch of a scope.
struct IndexWatchState {
    within: WatchScope,
    watch_log: WatchLog,
    /// The annotated Services of the list that is being received.
    list: BTreeMap<ServiceKey, ObservedAnnotation>,
    /// The Services of that list that can't be decoded.
    unreadable: HashSet<ServiceKey>,
    listed: bool,
    /// Whether the last answer was a 403.
    is_refused: bool,
    /// Whether no annotated Service is known in this scope: then metadata are sufficient.
    unused: bool,
    /// The time since which the list has been forbidden, and whether that was logged.
    forbidden: Option<(Instant, bool)>,
}

impl IndexWatchState {
    /// Processes a 403. If the feature isn't used, this isn't an error: installations without it needn't grant its
    /// permissions.
    fn forbid(&mut self, now: Instant) -> Vec<IndexEvent> {
        let (since, was_said) = *self.forbidden.get_or_insert((now, false));
        if now.duration_since(since) < STARTUP_TIMEOUT {
            return Vec::new();
        }
        if !was_said {
            info!(
                "the API server doesn't let lb-linker list ExternalName Services in {}: the annotation {SOURCE} isn't \
                 followed there; {PERMISSION_HINT}, and asks again every {} minutes",
                self.within,
                FORBIDDEN_RETRY.as_secs() / 60
            );
        }
        self.forbidden = Some((since, true));
        vec![IndexEvent::Forbidden]
    }

    /// Returns the event of an item, or what the item means without its object.
    fn receive(
        &mut self,
        item: WatchItem<Service>,
    ) -> Result<Event<RawDeserializeGuard<Service>>, Vec<IndexEvent>> {
        let is_refused = item.as_ref().is_err_and(|error| error.code() == 403);
        if !matches!(item, Ok(Event::ListBegins)) {
            self.is_refused = is_refused;
        }
        if self.unused && is_refused {
            return Err(self.forbid(Instant::now()));
        }
        let event = self.watch_log.log_failure(item).ok_or_else(Vec::new)?;
        if !matches!(event, Event::ListBegins) {
            self.allow();
        }
        let (Event::Listed(object) | Event::Applied(object)) = &event else { return Ok(event) };
        if !self.unused {
            return Ok(event);
        }
        let mut index_events = vec![IndexEvent::Answered];
        if object.annotations().keys().any(|key| concerns(key)) {
            // The watch begins again with whole objects instead of metadata.
            self.unused = false;
            index_events.insert(0, IndexEvent::AnnotationFound);
        }
        Err(index_events)
    }

    /// Records that the Services can be listed.
    fn allow(&mut self) {
        if let Some((_, true)) = self.forbidden.take() {
            info!("ExternalName Services in {} can be listed again", self.within);
        }
    }
}

/// The parts of a Service that the index needs. The whole Service, with all its annotations, isn't kept.
struct ObservedAnnotation {
    key: ServiceKey,
    uid: Box<str>,
    follower: Option<Result<AnnotatedService, MalformedAnnotation>>,
}

impl ObservedAnnotation {
    fn of(service: &Service, target_namespace: Option<&str>) -> Self {
        let follower = AnnotatedService::of(service, target_namespace);
        Self { key: service.key(), uid: service.uid().into(), follower }
    }
}

pub(super) struct AnnotatedServices {
    target_namespace: Option<String>,
    scopes: Vec<IndexWatchState>,
    known: HashMap<ServiceKey, AnnotatedService>,
    by_source: HashMap<ServiceKey, BTreeSet<ServiceKey>>,
}

impl AnnotatedServices {
    pub(super) fn new(selection: &Selection, availability: &ApiAvailability) -> Self {
        let scope = |within: WatchScope| {
            let what = format!("ExternalName Services in {within}");
            let watch_log = WatchLog::new(availability.clone(), what, PERMISSION_HINT);
            IndexWatchState {
                within,
                watch_log,
                list: BTreeMap::new(),
                unreadable: HashSet::new(),
                listed: false,
                is_refused: false,
                unused: true,
                forbidden: None,
            }
        };
        Self {
            target_namespace: selection.target_namespace.clone(),
            scopes: WatchScope::of(selection).into_iter().map(scope).collect(),
            known: HashMap::new(),
            by_source: HashMap::new(),
        }
    }

    pub(super) fn number_of_scopes(&self) -> usize {
        self.scopes.len()
    }

    /// Returns the query for a scope: only metadata, until an annotated Service is found there.
    pub(super) fn query(&self, number: usize) -> RequestQuery {
        let IndexWatchState { within, unused, .. } = &self.scopes[number];
        within.query(*unused)
    }

    /// Returns whether a scope has been listed completely.
    pub(super) fn is_listed(&self, number: usize) -> bool {
        self.scopes[number].listed
    }

    /// Returns the scopes that are refused, if a scope and all that aren't refused have been listed completely.
    pub(super) fn unread(&self) -> Option<Vec<String>> {
        let is_read = self.scopes.iter().any(|scope| scope.listed)
            && self.scopes.iter().all(|scope| scope.listed || scope.is_refused);
        let refused = self.scopes.iter().filter(|scope| scope.is_refused);
        is_read.then(|| refused.map(|scope| scope.within.to_string()).collect())
    }

    /// Returns the annotated Services of a scope.
    pub(super) fn within(&self, number: usize) -> impl Iterator<Item = &ServiceKey> {
        let within = &self.scopes[number].within;
        self.known.keys().filter(|key| within.contains(key))
    }

    pub(super) fn get(&self, key: &ServiceKey) -> Option<&AnnotatedService> {
        self.known.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &ServiceKey) -> Option<&mut AnnotatedService> {
        self.known.get_mut(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.known.keys()
    }

    pub(super) fn of(&self, source: &ServiceKey) -> impl Iterator<Item = &ServiceKey> {
        self.by_source.get(source).into_iter().flatten()
    }

    /// Processes an item of the watch of a scope.
    pub(super) fn on_watch_item(
        &mut self,
        number: usize,
        event: WatchItem<Service>,
        object_errors: &mut ObjectErrors,
    ) -> Vec<IndexEvent> {
        let scope = &mut self.scopes[number];
        let event = match scope.receive(event) {
            Ok(event) => event,
            Err(index_events) => return index_events,
        };
        let mut index_events = Vec::new();
        match event {
            Event::ListBegins => {
                scope.list.clear();
                scope.unreadable.clear();
                return index_events;
            }
            Event::Resumed => {}
            Event::Listed(object) => {
                let key = key_of(&object);
                // A streamed list may contain several versions of a Service; the last version counts.
                scope.list.remove(&key);
                scope.unreadable.remove(&key);
                match readable(object, object_errors) {
                    None => drop(scope.unreadable.insert(key)),
                    // Keep only Services with such an annotation: they are few.
                    Some(service) if service.annotations().keys().any(|key| concerns(key)) => {
                        scope
                            .list
                            .insert(key, ObservedAnnotation::of(&service, self.target_namespace.as_deref()));
                    }
                    Some(_) => {}
                }
            }
            // Everything is listed again, so this list isn't needed.
            Event::ListEnds { rewound: true, .. } => {
                index_events.push(IndexEvent::Rewound(scope.watch_log.what().to_owned()));
            }
            Event::ListEnds { rewound: false, .. } => {
                self.take_list(number, object_errors, &mut index_events);
            }
            Event::Applied(object) => {
                if let Some(service) = readable(object, object_errors) {
                    self.seen(
                        ObservedAnnotation::of(&service, self.target_namespace.as_deref()),
                        &mut index_events,
                    );
                }
            }
            Event::Deleted(object) => {
                let key = key_of(&object);
                // The deletion of an earlier Service of the same name doesn't concern its successor.
                let is_another = |known: &AnnotatedService| known.version.uid != object.uid();
                if !self.known.get(&key).is_some_and(is_another) {
                    self.forget(&key);
                    index_events.push(IndexEvent::NoFollower(key));
                }
            }
        }
        index_events.push(IndexEvent::Answered);
        index_events
    }

    fn take_list(
        &mut self,
        number: usize,
        object_errors: &mut ObjectErrors,
        index_events: &mut Vec<IndexEvent>,
    ) {
        let scope = &mut self.scopes[number];
        scope.listed = true;
        let (list, unreadable) = (std::mem::take(&mut scope.list), std::mem::take(&mut scope.unreadable));
        let within = scope.within.clone();
        let mut listed: HashSet<ServiceKey> = list.keys().cloned().collect();
        // An undecodable Service stays as it was.
        listed.extend(unreadable);
        let is_gone = |key: &&ServiceKey| within.contains(key) && !listed.contains(key);
        let gone: Vec<ServiceKey> = self.known.keys().filter(is_gone).cloned().collect();
        for key in gone {
            self.forget(&key);
            index_events.push(IndexEvent::NoFollower(key));
        }
        object_errors.retain(|key| !within.contains(key) || listed.contains(key));
        for seen in list.into_values() {
            self.seen(seen, index_events);
        }
    }

    fn seen(
        &mut self,
        ObservedAnnotation { key, uid, follower }: ObservedAnnotation,
        index_events: &mut Vec<IndexEvent>,
    ) {
        match follower {
            Some(Ok(follower)) => {
                if self.known.get(&key).is_some_and(|known| {
                    known.source != follower.source || known.version.uid != follower.version.uid
                }) {
                    self.forget(&key);
                    index_events.push(IndexEvent::NoFollower(key.clone()));
                }
                self.by_source.entry(follower.source.clone()).or_default().insert(key.clone());
                self.known.insert(key.clone(), follower);
                index_events.push(IndexEvent::Follower(key));
            }
            Some(Err(annotation)) => {
                self.forget(&key);
                index_events.push(IndexEvent::Malformed { uid, key, annotation });
            }
            None => {
                self.forget(&key);
                index_events.push(IndexEvent::NoFollower(key));
            }
        }
    }

    fn forget(&mut self, key: &ServiceKey) {
        if let Some(follower) = self.known.remove(key)
            && let Some(keys) = self.by_source.get_mut(&follower.source)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_source.remove(&follower.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::k8s::watch::WatchError;

    fn annotated(namespaces: &[&str]) -> AnnotatedServices {
        let namespaces = namespaces.iter().map(|namespace| (*namespace).to_owned()).collect();
        AnnotatedServices::new(&Selection { namespaces, ..Default::default() }, &ApiAvailability::default())
    }

    fn service(name: &str, source: &str) -> Value {
        json!({"metadata": {"namespace": "a", "name": name, "uid": name, "annotations": {SOURCE: source}},
            "spec": {"type": "ExternalName", "externalName": "old.example"}})
    }

    fn object(service: Value) -> RawDeserializeGuard<Service> {
        serde_json::from_str(&service.to_string()).unwrap()
    }

    fn list(annotated: &mut AnnotatedServices, number: usize, services: Vec<Value>) -> Vec<IndexEvent> {
        annotated.scopes[number].unused = false;
        let mut object_errors = ObjectErrors::default();
        let mut on_event = |event| annotated.on_watch_item(number, Ok(event), &mut object_errors);
        on_event(Event::ListBegins);
        for service in services {
            on_event(Event::Listed(object(service)));
        }
        on_event(Event::ListEnds { version: None, rewound: false })
    }

    fn forbidden() -> WatchItem<Service> {
        let status = kube::core::Status::failure("services is forbidden: no", "Forbidden").with_code(403);
        Err(WatchError::List(kube::Error::Api(status.boxed())))
    }

    #[test]
    fn refused_scope_is_unread_and_the_others_are_known() {
        let mut annotated = annotated(&["a", "b"]);
        let refuse = |annotated: &mut AnnotatedServices, number| {
            annotated.on_watch_item(number, forbidden(), &mut ObjectErrors::default());
        };
        refuse(&mut annotated, 1);
        assert_eq!(annotated.unread(), None, "namespace a isn't listed yet");
        list(&mut annotated, 0, vec![service("db", "web")]);
        assert_eq!(annotated.unread(), Some(vec!["namespace b".to_owned()]));
        list(&mut annotated, 1, vec![]);
        assert_eq!(annotated.unread(), Some(Vec::new()));
        refuse(&mut annotated, 0);
        assert_eq!(annotated.unread(), Some(vec!["namespace a".to_owned()]));
    }

    #[test]
    fn misspelled_annotation_is_found_in_metadata() {
        let mut annotated = annotated(&[]);
        let mut misspelled = service("db", "web");
        misspelled["metadata"]["annotations"] = json!({"linker.hsj.com/sorce": "web"});
        let mut errors = ObjectErrors::default();
        let found = annotated.on_watch_item(0, Ok(Event::Listed(object(misspelled.clone()))), &mut errors);
        assert_eq!(found, [IndexEvent::AnnotationFound, IndexEvent::Answered]);
        let listed = list(&mut annotated, 0, vec![misspelled]);
        assert!(matches!(&listed[..], [IndexEvent::Malformed { .. }, IndexEvent::Answered]), "{listed:?}");
    }

    #[test]
    fn scope_is_listed_after_its_own_list() {
        let mut annotated = annotated(&["a", "b"]);
        list(&mut annotated, 1, vec![]);
        assert!(!annotated.is_listed(0) && annotated.is_listed(1));
        list(&mut annotated, 0, vec![service("db", "web")]);
        assert!(annotated.is_listed(0));
        assert_eq!((annotated.within(0).count(), annotated.within(1).count()), (1, 0));
        assert_eq!(annotated.of(&ServiceKey::new("a", "web")).count(), 1);
    }

    #[test]
    fn missing_service_is_removed_and_undecodable_kept() {
        let mut annotated = annotated(&[]);
        list(&mut annotated, 0, ["db", "gone", "bad"].map(|name| service(name, "web")).into());
        let mut bad = service("bad", "web");
        bad["spec"]["type"] = 5.into();
        let index_events = list(&mut annotated, 0, vec![service("db", "web"), bad]);
        let key = |name| ServiceKey::new("a", name);
        assert_eq!(
            index_events,
            [IndexEvent::NoFollower(key("gone")), IndexEvent::Follower(key("db")), IndexEvent::Answered]
        );
        assert_eq!(annotated.of(&key("web")).count(), 2);
    }

    #[test]
    fn last_version_of_a_listed_service_counts() {
        let mut annotated = annotated(&[]);
        let mut without = service("db", "web");
        without["metadata"]["annotations"] = json!({});
        let mut bad = service("db", "web");
        bad["spec"]["type"] = 5.into();
        let key = ServiceKey::new("a", "db");
        let index_events = list(&mut annotated, 0, vec![service("db", "web"), without.clone()]);
        assert_eq!(index_events, [IndexEvent::Answered]);
        let index_events = list(&mut annotated, 0, vec![without.clone(), bad.clone(), service("db", "web")]);
        assert_eq!(index_events, [IndexEvent::Follower(key.clone()), IndexEvent::Answered]);
        assert_eq!(list(&mut annotated, 0, vec![service("db", "api"), bad]), [IndexEvent::Answered]);
        assert_eq!(annotated.of(&ServiceKey::new("a", "web")).count(), 1, "it can't be read and stays");
        let index_events = list(&mut annotated, 0, vec![service("db", "web"), without]);
        assert_eq!(index_events, [IndexEvent::NoFollower(key), IndexEvent::Answered]);
    }

    #[test]
    fn only_metadata_are_listed_until_the_annotation_is_used() {
        let mut annotated = annotated(&["a", "b"]);
        let mut object_errors = ObjectErrors::default();
        let metadata = |source: Option<&str>| {
            let annotations = source.map(|source| json!({SOURCE: source}));
            object(json!({"metadata": {"namespace": "a", "name": "db", "annotations": annotations}}))
        };
        let mut on_event = |event| annotated.on_watch_item(0, Ok(event), &mut object_errors);
        on_event(Event::ListBegins);
        assert_eq!(on_event(Event::Listed(metadata(None))), [IndexEvent::Answered]);
        assert_eq!(on_event(Event::ListEnds { version: None, rewound: false }), [IndexEvent::Answered]);
        assert_eq!(on_event(Event::Applied(metadata(None))), [IndexEvent::Answered]);
        assert_eq!(
            on_event(Event::Applied(metadata(Some("web")))),
            [IndexEvent::AnnotationFound, IndexEvent::Answered]
        );
        assert!(!annotated.query(0).metadata_only && annotated.query(1).metadata_only);
        assert_eq!(annotated.keys().count(), 0, "the Service isn't known before it is listed in full");
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_list_is_an_error_only_if_the_annotation_is_used() {
        let mut annotated = annotated(&["a", "b"]);
        let mut heed = |number, item| annotated.on_watch_item(number, item, &mut ObjectErrors::default());
        let ends = || Ok(Event::ListEnds { version: None, rewound: false });
        assert_eq!(heed(0, ends()), [IndexEvent::Answered]);
        assert_eq!(heed(1, forbidden()), []);
        tokio::time::advance(STARTUP_TIMEOUT).await;
        assert_eq!(heed(1, forbidden()), [IndexEvent::Forbidden]);
        assert_eq!(heed(1, forbidden()), [IndexEvent::Forbidden]);
        assert_eq!(heed(1, ends()), [IndexEvent::Answered]);
        assert_eq!(heed(1, forbidden()), [], "the time without permission starts anew");
        assert!(annotated.is_listed(0));
        annotated.scopes[1].unused = false;
        tokio::time::advance(STARTUP_TIMEOUT).await;
        assert_eq!(
            annotated.on_watch_item(1, forbidden(), &mut ObjectErrors::default()),
            [],
            "the watch is retried as usual"
        );
    }

    #[test]
    fn new_source_restarts_following_and_malformed_source_ends_it() {
        let mut annotated = annotated(&[]);
        list(&mut annotated, 0, vec![service("db", "web")]);
        let key = ServiceKey::new("a", "db");
        annotated.scopes[0].unused = false;
        let mut apply = |source| {
            annotated.on_watch_item(
                0,
                Ok(Event::Applied(object(service("db", source)))),
                &mut ObjectErrors::default(),
            )
        };
        let anew =
            [IndexEvent::NoFollower(key.clone()), IndexEvent::Follower(key.clone()), IndexEvent::Answered];
        assert_eq!(apply("b/web"), anew);
        assert_eq!(apply("b/web"), [IndexEvent::Follower(key.clone()), IndexEvent::Answered]);
        assert!(matches!(&apply("a/b/c")[..], [IndexEvent::Malformed { .. }, IndexEvent::Answered]));
        assert_eq!(annotated.by_source.len(), 0);
    }
}
