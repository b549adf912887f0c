//! What a source of names adds to the common parts.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::core::error_boundary::InvalidObject;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::shared::ObjectId;
use super::state::NameState;
use crate::metrics::staleness::LastActivity;
use crate::model::clusters;
use crate::model::excerpt::sentence;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::LinkChange;
use crate::model::owner::{Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::Store;
use crate::sync::events::RegardingKind;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::watch::item::WatchError;
use crate::sync::k8s::watch::{Event, RequestQuery, key_of, list_watch};
use crate::sync::source::selection::Selection;

/// A kind of objects that a source reads.
#[derive(Debug)]
pub struct WatchedKind {
    pub kind: RegardingKind,
    /// The objects, in sentences.
    pub many: &'static str,
    /// The name of the watch in metrics.
    pub watch: &'static str,
    /// How a missing permission is granted in the home cluster.
    pub hint: &'static str,
    /// The versions of a resource of a CRD, the newest first: the first that is served is read, and a missing CRD is an empty
    /// list. Empty for a resource that is always there.
    pub versions: &'static [&'static str],
}

/// The kinds of objects of a source, and what they mean for its names.
pub trait NameSource: Send + 'static {
    /// An object of one of the kinds.
    type Object: Send + 'static;
    /// The source in the home cluster.
    const SOURCE: Source;
    /// The objects that ask for names, in sentences.
    const MANY: &'static str;
    const KINDS: &'static [WatchedKind];

    /// Starts to list and watch the objects of a kind.
    fn watch(kind: RegardingKind, request: WatchRequest) -> Objects<Self::Object>;

    /// Returns whether objects of a kind matter for names in these zones.
    fn reads(_: RegardingKind, _: &[Zone]) -> bool {
        true
    }

    /// Returns the known objects of a kind.
    fn keys(&self, kind: RegardingKind, state: &NameState) -> HashSet<ServiceKey>;

    /// Returns how many names end with an object, 1 at least: a list that lacks it isn't trusted at once if they are many.
    fn weight(&self, id: &ObjectId, state: &NameState) -> usize {
        state.number_of_names(id).max(1)
    }

    /// Takes a version of an object.
    fn take(&mut self, object: Self::Object, state: &mut NameState);

    /// Takes the end of an object.
    fn remove(&mut self, id: &ObjectId, state: &mut NameState);

    /// Returns the uid of a known object.
    fn uid(&self, id: &ObjectId, state: &NameState) -> Option<Uid> {
        state.uid(id)
    }

    /// Takes the end of the lists of all kinds, before the names are published.
    fn end_lists(&mut self, _: &mut NameState) {}

    /// Returns whether a change of an object concerns other ones that don't have it yet.
    fn has_work(&self) -> bool {
        false
    }

    /// Applies such changes, for some milliseconds at most.
    fn work(&mut self, _: &mut NameState) {}

    /// Returns whether the targets of some objects are names of other objects, which may change.
    fn has_dependent(&self) -> bool;

    /// Checks these objects again.
    fn recheck(&mut self, state: &mut NameState);
}

/// The request of a list and watch, as [`list_watch`] takes it.
pub struct WatchRequest {
    /// The remote cluster; `None` for the home cluster.
    pub cluster: Option<Arc<str>>,
    pub client: Client,
    pub query: RequestQuery,
    pub activity: Arc<LastActivity>,
    pub availability: ApiAvailability,
}

/// A version of an object, or why it can't be decoded.
pub struct Seen<O> {
    pub key: ServiceKey,
    pub uid: Uid,
    pub object: Result<O, InvalidObject>,
}

/// The events of a watch, with objects of a source.
pub type Objects<O> = BoxStream<'static, Result<Event<Seen<O>>, WatchError>>;

impl WatchRequest {
    /// Lists and watches objects of one kind.
    pub fn objects<K, O: Send + 'static>(self, of_source: fn(K) -> O) -> Objects<O>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    {
        let Self { cluster, client, query, activity, availability } = self;
        let seen = move |mut object: RawDeserializeGuard<K>| {
            // From here on the namespace has its cluster.
            if cluster.is_some() {
                let plain = object.namespace().unwrap_or_default();
                object.meta_mut().namespace =
                    Some(clusters::in_cluster(cluster.as_deref(), &plain).into_owned());
            }
            let uid = object.uid().unwrap_or_default().as_str().into();
            Seen { key: key_of(&object), uid, object: object.0.map(of_source) }
        };
        let items = list_watch::<K>(client, query, activity, availability);
        let mut is_told = false;
        let mut is_possible = move |item: &Result<Event<Seen<O>>, WatchError>| {
            let Ok(Event::Listed(seen) | Event::Applied(seen) | Event::Deleted(seen)) = item else {
                return true;
            };
            let is_possible = seen.key.cluster().is_none() || seen.key.is_well_formed();
            if !is_possible && !std::mem::replace(&mut is_told, true) {
                warn!(
                    "an object of cluster {} is passed over, as are others like it: Kubernetes allows no such namespace or \
                     name: {}",
                    seen.key.cluster().unwrap_or_default(),
                    sentence(&seen.key.to_string())
                );
            }
            is_possible
        };
        let seen = items.map(move |item| item.map(|event| event.map(&seen)));
        seen.filter(move |item| std::future::ready(is_possible(item))).boxed()
    }
}

/// A source with what is known of its names.
pub struct Names<S> {
    pub source: S,
    pub state: NameState,
    ending: Option<Ending>,
}

/// How often targets are checked after the end of all lists: names of a source may lead on to each other. DNS doesn't
/// follow a longer chain.
const MAX_CHECKS: usize = 8;

/// What is still to be done after the end of all lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// What waits has to be published. Targets may be among these names: they have to be checked, this many times at
    /// most.
    Publish(usize),
    /// The names are as they stay.
    Last,
}

impl<S: NameSource> Names<S> {
    #[must_use]
    pub fn new(
        source: S,
        cluster: Option<Arc<str>>,
        store: Arc<Store>,
        selection: Arc<Selection>,
        link_reporter: LinkReporter,
    ) -> Self {
        let names = (Source { cluster, ..S::SOURCE }, S::MANY);
        let state = NameState::new(names, store, selection, link_reporter);
        Self { source, state, ending: None }
    }

    /// Changes the rules. All objects have to be listed again.
    pub fn set_rules(&mut self, zones: Arc<[Zone]>, policy: Arc<HostnamePolicy>) {
        self.state.set_rules(zones, policy);
        self.ending = None;
    }

    /// Returns whether these zones have the same names of the source as the present ones.
    #[must_use]
    pub fn has_zones(&self, zones: &[Zone]) -> bool {
        let of_source = |zones: &[Zone]| -> Vec<Zone> {
            zones.iter().filter(|zone| zone.has(self.state.source())).cloned().collect()
        };
        of_source(self.state.zones()) == of_source(zones)
    }

    /// Takes a version of an object. Its names are published by [`Self::work`].
    pub fn take(&mut self, object: S::Object) {
        self.source.take(object, &mut self.state);
    }

    /// As [`Self::take`], for an object that may not be decodable: what is known of such an object stays.
    pub fn take_seen(&mut self, id: &ObjectId, object: Result<S::Object, InvalidObject>) {
        match object {
            Ok(object) => self.take(object),
            Err(invalid) => self.state.set_unreadable(id, &invalid.error),
        }
    }

    /// Takes the end of an object.
    pub fn remove(&mut self, id: &ObjectId) {
        self.source.remove(id, &mut self.state);
    }

    /// As [`Self::remove`], for an object with this uid. A streamed list reports deletions after a successor of the same
    /// name, which stays.
    pub fn remove_seen(&mut self, id: &ObjectId, uid: &Uid) {
        if self.source.uid(id, &self.state).is_none_or(|known| known == *uid) {
            self.remove(id);
        }
    }

    /// Takes the end of the lists of all objects. Their names follow by [`Self::work`].
    pub fn complete(&mut self) {
        self.state.complete();
        self.source.end_lists(&mut self.state);
        self.ending = Some(Ending::Publish(MAX_CHECKS));
    }

    /// Takes the end of the lists of all objects, and publishes their names.
    pub fn end_lists(&mut self) {
        self.complete();
        while self.has_work() {
            self.work();
        }
    }

    /// Returns whether there is a part of the work to be done.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.state.has_unpublished() || self.source.has_work() || self.ending.is_some()
    }

    /// Publishes names, or applies changes that concern many objects: in parts, so that other changes don't wait.
    pub fn work(&mut self) {
        if self.state.has_unpublished() {
            self.state.publish_part();
        } else if self.source.has_work() {
            self.source.work(&mut self.state);
        } else {
            self.ending = match self.ending {
                Some(Ending::Publish(checks @ 1..)) => {
                    self.recheck();
                    let is_same = !self.state.has_unpublished() && !self.source.has_work();
                    Some(Ending::Publish(if is_same { 0 } else { checks - 1 }))
                }
                Some(Ending::Publish(0)) => {
                    self.state.publish_refused();
                    self.state.forget_unknown();
                    Some(Ending::Last)
                }
                Some(Ending::Last) => {
                    self.state.set_listed();
                    None
                }
                None => None,
            };
        }
    }

    /// Takes changes of the store.
    pub fn on_changes(&mut self, changes: &[LinkChange]) {
        for change in changes {
            self.state.on_change(change, self.source.has_dependent());
        }
    }

    /// Checks the objects again whose targets depend on other objects.
    pub fn recheck(&mut self) {
        self.state.recheck_at = None;
        self.source.recheck(&mut self.state);
        self.state.forget_version();
    }

    /// Makes up for changes of the store that were missed.
    pub fn check_all(&mut self) {
        self.state.check_all();
        self.recheck();
    }
}

#[cfg(test)]
mod tests;
