//! The state of a watch of load balancers, and the list that is being received.

use std::collections::HashSet;
use std::sync::Arc;

use futures::stream::AbortHandle;
use tokio::time::Instant;

use super::ServiceWatcher;
use super::leaving::DepartedService;
use crate::metrics::staleness::LastActivity;
use crate::model::link::ObservedService;
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, WatchLog, explain_watch, in_place};
use crate::sync::k8s::forbidden::{LastingRefusal, REFUSED_AFTER};
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::{Event, WatchItem, key_of, readable};
use crate::sync::removal::facts::Membership;

/// The state of the watch of a namespace, or of all namespaces.
#[derive(Debug)]
pub(super) struct WatchState {
    pub(super) namespace: Option<String>,
    pub(super) list: PartialList,
    pub(super) listing: bool,
    /// Whether a list is complete since the beginning of the term and the last restore of etcd.
    pub(super) listed: bool,
    /// Whether a list or a watch has failed since the last complete list.
    pub(super) failed: bool,
    /// Whether another watch has noticed a restore of etcd, or the API server's address has changed, since the last
    /// complete list.
    pub(super) rewound: bool,
    /// The resourceVersion of the last list or event, which a new term compares its first list with.
    pub(super) newest: Option<u64>,
    /// The refusals by an authorizer since the last other answer, or, once they have lasted, since the last success.
    pub(super) refusal: LastingRefusal,
    /// Why the last list or watch was forbidden (403).
    pub(super) forbidden: Option<String>,
    pub(super) watch_log: WatchLog,
    /// The time of the list that has to confirm a suspicious one.
    pub(super) confirm_at: Option<Instant>,
    pub(super) activity: Option<Arc<LastActivity>>,
    /// Ends the stream of events.
    pub(super) end: Option<AbortHandle>,
}

impl WatchState {
    pub(super) fn new(namespace: Option<String>, availability: ApiAvailability, hint: &'static str) -> Self {
        let what = in_place("LoadBalancer Services", namespace.as_deref());
        let watch_log = WatchLog::new(availability, what, hint);
        Self {
            namespace,
            list: PartialList::default(),
            listing: false,
            listed: false,
            failed: false,
            rewound: false,
            newest: None,
            refusal: LastingRefusal::default(),
            forbidden: None,
            watch_log,
            confirm_at: None,
            activity: None,
            end: None,
        }
    }

    /// Returns whether a list is complete, or has failed, and none is being received.
    pub(super) fn is_settled(&self) -> bool {
        (self.listed || self.failed) && !self.listing
    }

    pub(super) fn contains(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| *key.namespace() == *namespace)
    }

    /// Returns whether an authorizer has refused every list and watch for [`REFUSED_AFTER`].
    pub(super) fn is_refused(&self) -> bool {
        self.refusal.has_lasted(REFUSED_AFTER)
    }

    /// Returns whether the list or the watch is forbidden, or was until now.
    pub(super) fn note_refusal(&mut self, item: &WatchItem<Service>) -> bool {
        let was_forbidden = self.forbidden.is_some();
        match item {
            Ok(Event::ListBegins) => {}
            Ok(_) => {
                self.refusal.note(false);
                self.forbidden = None;
            }
            Err(error) => {
                // Another error doesn't show that the lists are permitted again.
                self.refusal.note(error.is_refusal_of_services() || self.is_refused());
                if error.code() == 403 {
                    self.forbidden = Some(explain_watch(error, self.watch_log.what(), self.watch_log.hint()));
                }
            }
        }
        if let Some(activity) = &self.activity {
            activity.set_refused(self.is_refused());
        }
        was_forbidden || self.forbidden.is_some()
    }

    /// Records that a new list is due, and why. Nothing is written for these Services until that list is complete.
    pub(super) fn require_relist(&mut self, why: &str) {
        (self.listed, self.failed) = (false, false);
        let links = match &self.namespace {
            Some(namespace) => format!("links of namespace {namespace}"),
            None => "any link".to_owned(),
        };
        self.watch_log.set_waiting(Some(format!(
            "before that list is complete nothing is written for {links}: what is known of the Services is from before \
             {why}"
        )));
    }
}

#[derive(Debug, Default)]
pub(super) struct PartialList {
    pub(super) keys: HashSet<ServiceKey>,
    /// Boxed, so that each is freed when its link is stored: the list and the links aren't both whole in memory.
    #[expect(clippy::vec_box, reason = "a vector of the Services themselves is freed as a whole")]
    pub(super) seen: Vec<Box<ObservedService>>,
    pub(super) unreadable: Vec<ServiceKey>,
    /// Services with our finalizer that aren't links, with their uid.
    pub(super) terminating: Vec<(ServiceKey, Box<str>)>,
    /// Services with a living link that have left the selection, or whose successor isn't selected.
    pub(super) left_selection: Vec<(DepartedService, Membership)>,
    /// All load balancers that aren't selected.
    pub(super) unselected: Vec<ObservedService>,
}

impl PartialList {
    pub(super) fn add(
        &mut self,
        source: &ServiceWatcher,
        object: RawDeserializeGuard<Service>,
        object_errors: &mut ObjectErrors,
    ) {
        let key = key_of(&object);
        if !self.keys.insert(key.clone()) {
            self.drop_earlier(&key);
        }
        let Some(service) = readable(object, object_errors) else { return self.unreadable.push(key) };
        let membership = source.selection.membership(&service);
        if membership == Membership::Selected {
            let observed = source.observe_listed(&service, object_errors);
            return self.seen.push(Box::new(ObservedService { key, ..observed }));
        }
        object_errors.set(&key, None);
        if matches!(membership, Membership::NotSelected | Membership::OptedOut) {
            self.unselected.push(service.observe(&source.hostname_policy, &source.store).0);
        }
        if source.sets_finalizer && service.has_finalizer() {
            self.terminating.push((key.clone(), service.uid().into()));
        }
        let deleted = DepartedService { key, uid: service.uid().to_owned(), version: service.version() };
        if let Some(predecessor) = source.other_live_service(&deleted) {
            self.left_selection.push((predecessor, Membership::Gone));
        } else if source.is_followed(&deleted) {
            self.left_selection.push((deleted, membership));
        }
    }

    /// Removes an earlier version of an object: a streamed list may contain several versions, of which the last one
    /// counts.
    fn drop_earlier(&mut self, key: &ServiceKey) {
        self.seen.retain(|observed| observed.key != *key);
        self.unreadable.retain(|unreadable| unreadable != key);
        self.terminating.retain(|(terminating, _)| terminating != key);
        self.left_selection.retain(|(deleted, _)| deleted.key != *key);
        self.unselected.retain(|service| service.key != *key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube::core::Status;

    use super::*;
    use crate::sync::k8s::watch::WatchError;

    #[tokio::test(start_paused = true)]
    async fn only_an_answer_ends_a_refusal_that_has_lasted() {
        let error = |code, message| {
            let status = Status::failure(message, "").with_code(code);
            WatchError::List(kube::Error::Api(Box::new(status)))
        };
        let refused =
            "services is forbidden: User \"lb\" cannot list resource \"services\" in API group \"\"";
        let mut scope = WatchState::new(None, ApiAvailability::default(), WatchLog::READING);
        let mut note = |item| {
            scope.note_refusal(&item);
            scope.is_refused()
        };
        assert!(!note(Err(error(403, refused))));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!note(Err(error(500, "etcd has no leader"))));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!note(Err(error(403, refused))), "it begins anew");
        tokio::time::advance(REFUSED_AFTER).await;
        assert!(note(Err(error(403, refused))) && note(Err(error(500, "etcd has no leader"))));
        assert!(note(Err(error(403, refused))) && note(Ok(Event::ListBegins)));
        assert!(!note(Ok(Event::Resumed)));
    }
}
