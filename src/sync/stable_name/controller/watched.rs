//! The watch of StableNames: every replica gives their links what `status.target` says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{AbortHandle, BoxStream, abortable};
use kube::ResourceExt;
use tracing::{debug, info, warn};

use super::alerts::request_rule;
use super::object::{ObservedStableName, TrackedStableName};
use super::overrides::{annotations, former_source, link_override};
use super::pending_deletions::{REFUSALS_UNTIL_FORBIDDEN, deadline_after};
use super::status_format::problem;
use super::{DISCOVERY_INTERVAL, FailoverContext, FailoverController, sources_of};
use crate::api::stable_name::StableName;
use crate::model::link::{Annotations, Link, LinkChange};
use crate::model::link_override::LinkOverride;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::readiness::{ForbiddenLists, Readiness};
use crate::store::Input;
use crate::sync::events::findings::Findings;
use crate::sync::events::link_log::log_change;
use crate::sync::events::{Reason, Regarding};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{
    ApiAvailability, ObjectErrors, WatchLog, describe, explain_watch, in_place, watch_scopes,
};
use crate::sync::k8s::listed::ListEpoch;
use crate::sync::k8s::watch::{
    Event, RequestQuery, STABLE_NAMES, WatchError, WatchItem, key_of, list_watch, readable, version_of,
    watch_name,
};
use crate::sync::removal::facts::{Facts, Lists, ServiceState, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Question, Verdict, may_remove};
use crate::sync::source::relist_guard::CONFIRM_AFTER;
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::{end_override, set_override};
use crate::sync::stable_name::decision::spec::Refusal;

pub(super) type ScopedEvents = BoxStream<'static, (usize, WatchItem<StableName>)>;

/// The watch of a namespace, or of all namespaces.
#[derive(Debug)]
pub(super) struct Scope {
    namespace: Option<String>,
    log: WatchLog,
    list: HashMap<ServiceKey, Option<ObservedStableName>>,
    is_listed: bool,
    /// The newest resourceVersion of a list or an event. An older list shows that etcd was restored.
    newest: Option<u64>,
    /// Why the permission to list counts as missing: [`REFUSALS_UNTIL_FORBIDDEN`] or more tries in a row were refused.
    forbidden: Option<String>,
    /// The number of refused tries in a row.
    refusals: u32,
    /// The time of the list that has to confirm a suspicious one.
    pub(super) confirm_at: Option<tokio::time::Instant>,
    /// Ends the stream of events.
    end: Option<AbortHandle>,
}

impl Scope {
    pub(super) fn of(selection: &Selection, availability: &ApiAvailability, hint: &'static str) -> Vec<Self> {
        let scope = |namespace: Option<&str>| {
            let what = in_place("StableNames", namespace);
            Self {
                namespace: namespace.map(ToOwned::to_owned),
                log: WatchLog::new(availability.clone(), what, hint),
                list: HashMap::new(),
                is_listed: false,
                newest: None,
                forbidden: None,
                refusals: 0,
                confirm_at: None,
                end: None,
            }
        };
        watch_scopes(&selection.namespaces).map(scope).collect()
    }

    fn contains(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| key.namespace() == namespace)
    }

    fn stop(&mut self) {
        if let Some(end) = self.end.take() {
            end.abort();
        }
        self.list.clear();
        self.confirm_at = None;
    }
}

impl FailoverController {
    /// Returns whether all StableNames are listed, except in namespaces where this process may not list them.
    pub(super) fn is_listed(&self) -> bool {
        self.scopes.iter().all(|scope| scope.is_listed || scope.forbidden.is_some())
    }

    /// Lists everything again: a term begins, or etcd was restored.
    pub(super) fn relist(&mut self) {
        let (term, rewinds) = (self.context.leadership.term(), self.context.rewinds.count());
        let before = std::mem::replace(&mut self.lists, ListEpoch { term, rewinds });
        for number in 0..self.scopes.len() {
            self.scopes[number].newest.take_if(|_| before.rewinds != rewinds);
            if self.scopes[number].end.is_some() {
                self.watch(number);
            }
        }
        if before.rewinds != rewinds {
            // The restored objects may have earlier versions.
            self.objects.values_mut().for_each(|followed| followed.object.version.clear());
            self.leader.absences.clear();
        }
        self.pending_deletions.restart_discovery(&self.context.client);
        self.refresh_term();
    }

    /// Publishes that the list of a scope is complete, or that it has failed.
    fn note_list(&self, number: usize, is_complete: bool) {
        let namespace = self.scopes[number].namespace.as_deref();
        self.context.overrides_listed.send_if_modified(|all| all.note(namespace, self.lists, is_complete));
    }

    /// Publishes for all scopes that the list is complete, because the CRD isn't served, or that discovery has failed.
    fn note_all_lists(&self, is_complete: bool) {
        (0..self.scopes.len()).for_each(|number| self.note_list(number, is_complete));
    }

    /// Processes the answer of discovery.
    pub(super) fn on_discovery(&mut self, served: kube::Result<bool>) {
        if served.is_ok() {
            self.context.availability.report_available();
            self.error_log.recovered("the API server tells again whether it serves StableNames");
        }
        match served {
            Ok(true) => {
                if self.pending_deletions.is_unserved() && self.readiness().crd.load().is_some() {
                    info!("the API server serves StableNames again");
                }
                for (key, deletion) in self.pending_deletions.served() {
                    self.end_override(&key, &deletion.uid, deletion.since);
                }
                let idle = |number: &usize| self.scopes[*number].end.is_none();
                let idle: Vec<usize> = (0..self.scopes.len()).filter(idle).collect();
                idle.into_iter().for_each(|number| self.watch(number));
            }
            Ok(false) => {
                for scope in &mut self.scopes {
                    scope.stop();
                    (scope.is_listed, scope.forbidden) = (false, None);
                }
                self.readiness().stable_names.store(None);
                if self.pending_deletions.unserved(self.context.policy.withdrawal_delay) {
                    self.readiness().crd.store(None);
                }
                for key in self.objects.keys().cloned().collect::<Vec<_>>() {
                    self.forget(&key);
                }
                self.report_crd_gone();
                self.context.store.set_known(Input::StableNames);
                self.note_all_lists(true);
            }
            Err(error) => {
                self.note_all_lists(false);
                let sentence = describe(&error, "ask whether the API server serves StableNames", "");
                self.context.availability.report_error(&error);
                let kube::Error::Api(status) = &error else { return };
                let is_forbidden = self.pending_deletions.is_forbidden();
                // An API server that has just started forbids everything for a moment.
                if status.code == 403 && !is_forbidden {
                    debug!("{sentence}");
                } else {
                    self.error_log.report(status.code, &sentence);
                }
                // Without the permission for discovery, StableNames are never listed.
                if is_forbidden {
                    self.context.store.set_known(Input::StableNames);
                }
            }
        }
    }

    /// Starts to list and watch a scope.
    fn watch(&mut self, number: usize) {
        let scope = &mut self.scopes[number];
        scope.stop();
        let query = RequestQuery { namespace: scope.namespace.clone(), ..RequestQuery::default() };
        let name = watch_name(STABLE_NAMES, scope.namespace.as_deref());
        let activity = self.context.staleness.watch(&name);
        let FailoverContext { client, availability, .. } = &self.context;
        let events = list_watch::<StableName>(client.clone(), query, activity, availability.clone());
        let (events, end) = abortable(events.map(move |item| (number, item)));
        scope.end = Some(end);
        self.events.push(events.boxed());
    }

    pub(super) fn confirm_lists(&mut self) {
        let now = tokio::time::Instant::now();
        for number in 0..self.scopes.len() {
            if self.scopes[number].confirm_at.take_if(|at| *at <= now).is_some() {
                self.watch(number);
            }
        }
    }

    pub(super) fn on_watch_item(&mut self, number: usize, item: WatchItem<StableName>) {
        if let Err(error) = &item
            && error.code() == 403
        {
            return self.forbidden(number, error);
        }
        let Some(event) = self.scopes[number].log.log_failure(item) else {
            self.scopes[number].refusals = 0;
            return self.note_list(number, false);
        };
        match event {
            Event::ListBegins => self.scopes[number].list.clear(),
            Event::Resumed => self.scopes[number].refusals = 0,
            Event::Listed(object) => {
                let key = key_of(&object);
                let object = observed(object, &mut self.object_errors);
                self.scopes[number].list.insert(key, object);
            }
            Event::ListEnds { version, rewound } => {
                let scope = &mut self.scopes[number];
                if rewound || version.is_some() && version < scope.newest {
                    // Everything is listed again, so this list isn't needed.
                    if self.context.rewinds.count() == self.lists.rewinds {
                        self.context.rewinds.record_restore(scope.log.what());
                    }
                    return;
                }
                scope.newest = version.or(scope.newest);
                self.take_list(number);
            }
            Event::Applied(object) => {
                let key = key_of(&object);
                self.note_version(number, &object);
                self.pending_deletions.cancel(&key);
                self.end_wait_if_all_are_back();
                // The answer to our own write may have contained a later version.
                if let Some(object) = observed(object, &mut self.object_errors)
                    && !self.is_outdated(&object)
                {
                    self.applied(object);
                }
            }
            Event::Deleted(object) => {
                let key = key_of(&object);
                self.note_version(number, &object);
                let uid = Uid::from(object.uid().unwrap_or_default().as_str());
                let is_replaced = self.objects.get(&key).is_some_and(|known| known.object.uid != uid);
                if !is_replaced {
                    // The garbage collector deletes the PrometheusRule.
                    self.context.rules.forget(&key);
                    self.pending_deletions.add(key, uid, &self.context.client);
                }
            }
        }
    }

    /// Stops the watch of a scope until the next discovery request. From the fourth refusal in a row on the permission
    /// counts as missing, which is logged once.
    fn forbidden(&mut self, number: usize, error: &WatchError) {
        let scope = &mut self.scopes[number];
        scope.stop();
        scope.refusals = scope.refusals.saturating_add(1);
        if scope.refusals < REFUSALS_UNTIL_FORBIDDEN {
            self.note_list(number, false);
            return self.pending_deletions.retry_soon();
        }
        scope.forbidden = Some(explain_watch(error, scope.log.what(), scope.log.hint()));
        self.report_forbidden();
        self.note_list(number, false);
        self.on_lists_changed();
    }

    /// Applies a complete list. If it lacks too many StableNames, their targets stay until another list lacks them,
    /// too.
    fn take_list(&mut self, number: usize) {
        let list = std::mem::take(&mut self.scopes[number].list);
        let scope = &mut self.scopes[number];
        (scope.is_listed, scope.forbidden, scope.refusals) = (true, None, 0);
        self.report_forbidden();
        let links = self.context.store.links();
        let overridden = links.iter().filter(|link| link.overridden.is_some()).map(|link| link.key.clone());
        let known: HashSet<ServiceKey> = self.objects.keys().cloned().chain(overridden).collect();
        let mut missing: HashSet<ServiceKey> = known
            .iter()
            .filter(|key| self.scopes[number].contains(key) && !list.contains_key(*key))
            .cloned()
            .collect();
        missing.retain(|key| self.objects.contains_key(key) || !self.pending_deletions.await_return(key));
        let scope = &mut self.scopes[number];
        let within = |key: &ServiceKey| scope.contains(key);
        let kept = self.relist_guard.keeps(known.len(), &missing, within, Instant::now());
        scope.confirm_at = deadline_after(CONFIRM_AFTER).filter(|_| !kept.is_empty());
        if !kept.is_empty() {
            warn!(
                "{} of {} StableNames are missing from a new list of the API server: their absence is ignored \
                 until a second list, {CONFIRM_AFTER:?} later, confirms it ({})",
                kept.len(),
                known.len(),
                RemovalReason::SuspiciousList
            );
        }
        for (key, object) in list {
            // An object that can't be decoded exists.
            self.pending_deletions.cancel(&key);
            // The list may have begun before our own write.
            if let Some(object) = object
                && !self.is_outdated(&object)
            {
                self.applied(object);
            }
        }
        for key in &missing {
            let lists = Some(if kept.contains(key) { Lists::Suspicious } else { Lists::Complete });
            let facts = Facts { lists, ..Facts::of(Subject::Override, ServiceState::Unlisted) };
            if may_remove(&facts, Instant::now()) != Verdict::Ask(Question::Crd) {
                continue;
            }
            let uid = self.objects.get(key).map(|known| known.object.uid.clone());
            let of_override = || {
                self.context.store.get(key)?.overridden.as_ref().map(|overridden| overridden.by.uid.clone())
            };
            let uid = uid.or_else(of_override).unwrap_or_default();
            self.pending_deletions.add(key.clone(), uid, &self.context.client);
        }
        self.note_list(number, true);
        self.on_lists_changed();
    }

    fn note_version(&mut self, number: usize, object: &RawDeserializeGuard<StableName>) {
        let newest = &mut self.scopes[number].newest;
        *newest = (*newest).max(version_of(object));
    }

    fn on_lists_changed(&mut self) {
        if self.is_listed() && !self.context.store.is_known(Input::StableNames) {
            if !self.objects.is_empty() {
                info!("ready: StableNames: {}", self.objects.len());
            }
            self.context.store.set_known(Input::StableNames);
        }
        self.end_wait_if_all_are_back();
        self.refresh_term();
    }

    fn is_outdated(&self, object: &ObservedStableName) -> bool {
        let known = self.objects.get(&object.key).map(|followed| &followed.object);
        known.is_some_and(|known| known.uid == object.uid && object.revision() < known.revision())
    }

    /// Processes a version of a StableName that isn't outdated.
    pub(super) fn applied(&mut self, object: ObservedStableName) {
        let key = object.key.clone();
        let before = self.objects.remove(&key);
        if let Some(before) = &before {
            self.unindex(before);
            self.context.metrics.targets.with_label_values(&[state(&before.object)]).dec();
        }
        let is_same = before.as_ref().is_some_and(|before| before.object.uid == object.uid);
        if !is_same {
            self.leader.forget(&key);
        }
        self.leader.observed(&object, before.as_ref().filter(|_| is_same).map(|before| &before.object));
        self.context.metrics.targets.with_label_values(&[state(&object)]).inc();
        // Without a leader that writes the status, this replica's policy tells.
        let refused_names = || {
            let policy = self.context.hostname_policy.borrow();
            let Refusal { reason, message } = annotations(&object, &policy, &Annotations::default()).1?;
            Some(format!("{}: {message}", reason.as_str()))
        };
        let of_status = problem(&object.status);
        let is_told = |why: &String| of_status.as_ref().is_some_and(|told| told.contains(why));
        let own = refused_names().filter(|why| !is_told(why));
        let problem = of_status.into_iter().chain(own).reduce(|all, next| format!("{all}; {next}"));
        self.context.link_reporter.findings.stable_names.set(&key, problem.as_deref());
        let followed = match before.filter(|_| is_same) {
            Some(before) => TrackedStableName { object, ..before },
            // The external target records the DNS names of a Service that may be gone by now.
            None => TrackedStableName {
                object,
                inherited: self.present(&key).map(|by| by.annotations).unwrap_or_default(),
                former_source: None,
                logged_refusal: None,
            },
        };
        self.objects.insert(key.clone(), followed);
        self.set_override(&key);
        self.index(&key);
        if let Some(followed) = self.objects.get(&key) {
            request_rule(&self.context.rules, &followed.object);
        }
        self.leader.changed(&key);
        self.queue(&key);
    }

    /// Returns the present override of the link of a key. A StableName that has lost its status begins with that
    /// override.
    pub(super) fn present(&self, key: &ServiceKey) -> Option<LinkOverride> {
        self.context.store.get(key)?.active_override().cloned()
    }

    fn index(&mut self, key: &ServiceKey) {
        let Some(followed) = self.objects.get(key) else { return };
        for service in followed.services() {
            self.by_service.entry(service).or_default().insert(key.clone());
        }
    }

    fn unindex(&mut self, followed: &TrackedStableName) {
        for service in followed.services() {
            self.remove_from_index(&service, &followed.object.key);
        }
    }

    fn remove_from_index(&mut self, service: &ServiceKey, object: &ServiceKey) {
        if let Some(objects) = self.by_service.get_mut(service) {
            objects.remove(object);
            if objects.is_empty() {
                self.by_service.remove(service);
            }
        }
    }

    /// Sets the override of the link of a StableName from the status of the StableName.
    pub(super) fn set_override(&mut self, key: &ServiceKey) {
        let present = self.present(key);
        let Some(followed) = self.objects.get_mut(key) else { return };
        let policy = Arc::clone(&self.context.hostname_policy.borrow());
        let sources = sources_of(&self.context, &policy);
        if followed.object.has_own_service()
            && let Some(own) = sources.service(key, None)
        {
            followed.inherited = own.annotations;
        }
        let former = former_source(followed, &sources);
        let before = std::mem::replace(&mut followed.former_source, former);
        let link_override = link_override(followed, &sources, present.as_ref());
        let version = followed.object.revision();
        if before != followed.former_source {
            let before = before.map(|before| before.key);
            if let Some(before) = before.filter(|before| followed.services().all(|key| key != *before)) {
                self.remove_from_index(&before, key);
            }
            self.index(key);
        }
        if let Some(change) = set_override(&self.context.store, key, link_override, version) {
            self.report(&change);
        }
    }

    fn report(&self, change: &LinkChange) {
        if !self.context.store.is_known(Input::Services) {
            // A line for each link of the first list would bury everything else.
            return debug!("{change}");
        }
        log_change(&self.context.link_reporter, change);
        let is_overridden =
            |link: &Option<Arc<Link>>| link.as_ref().is_some_and(|link| link.active_override().is_some());
        let key = &change.owner.key;
        let service = change.after.as_ref().and_then(|link| link.service_link().cloned());
        if let Some(service) = service.filter(|service| !service.uid.is_empty() && !service.is_gone())
            && is_overridden(&change.after)
            && !is_overridden(&change.before)
        {
            let note = format!("StableName {key} leads the link of this Service from now on");
            let regarding = Regarding::new(key, &service.uid.to_string());
            self.context.link_reporter.recorder.record(regarding, Reason::Led, &note);
        }
    }

    /// Ends the override by a StableName that is deleted.
    fn end_override(&mut self, key: &ServiceKey, uid: &Uid, since: Instant) {
        if self.objects.get(key).is_some_and(|known| known.object.uid != *uid) {
            return;
        }
        self.forget(key);
        if let Some(change) = end_override(&self.context.store, key, None, since) {
            self.report(&change);
        }
    }

    fn readiness(&self) -> &Readiness {
        &self.context.link_reporter.findings.readiness
    }

    /// Reports why the overrides stand although there are no StableNames any more.
    fn report_crd_gone(&self) {
        let links = self.context.store.links();
        let mut led = links.iter().filter(|link| link.overridden.is_some()).peekable();
        if self.pending_deletions.unserved_until().is_none() || led.peek().is_none() {
            return;
        }
        let why = self.readiness().crd.load_full().unwrap_or_else(|| {
            // True also while the CRD is back without its objects. Each replica has an end of its own.
            let why = format!(
                "the StableNames went with their CRD, stablenames.linker.hsj.com: the last targets stay for \
                 --delete-delay ({})",
                RemovalReason::CrdGone
            );
            warn!("{why}");
            Arc::new(why)
        });
        let Findings { stable_names, .. } = &self.context.link_reporter.findings;
        led.for_each(|link| _ = stable_names.set(&link.key, Some(&why)));
        self.readiness().crd.store(Some(why));
    }

    /// Ends the notice about the CRD, which is there again, when no StableName is missing.
    fn end_wait_if_all_are_back(&mut self) {
        if self.pending_deletions.are_all_back() && self.is_listed() {
            self.pending_deletions.forget_unserved();
            self.forget_crd_gone();
        }
    }

    fn forget_crd_gone(&self) {
        let Findings { stable_names, readiness, .. } = &self.context.link_reporter.findings;
        readiness.crd.store(None);
        stable_names.retain(|key| self.objects.contains_key(key));
    }

    /// Reports which lists are forbidden: the first one in full.
    fn report_forbidden(&self) {
        // What was listed in the present term goes on.
        let [known, unknown] = [
            "their changes aren't seen, and DNS answers with the targets that are known",
            match self.context.policy.sync {
                SyncMode::Off => "their targets are those of their external targets",
                _ => "their external targets, and the Services that follow them, stay as they are",
            },
        ]
        .map(|effect| format!("{effect}; lb-linker tries again every {DISCOVERY_INTERVAL:?}"));
        let listed = self.context.overrides_listed.borrow().clone();
        let effect = |namespace: Option<&str>| match listed.covers(namespace.unwrap_or_default(), self.lists)
        {
            true => &*known,
            false => &*unknown,
        };
        let forbidden = self.scopes.iter().filter_map(|scope| {
            let namespace = scope.namespace.as_deref();
            Some((namespace, &**scope.forbidden.as_ref()?, effect(namespace)))
        });
        let forbidden = ForbiddenLists::of(forbidden);
        let note = forbidden.as_ref().map(|forbidden| forbidden.note.clone());
        let before = self.readiness().stable_names.swap(forbidden.map(Arc::new));
        match (before, note) {
            (None, Some(note)) => warn!("{note}"),
            (Some(_), None) => info!("StableNames can be listed again"),
            _ => {}
        }
    }

    /// Ends the time for which the last targets of StableNames stay. Without the CRD all overrides end. If it is back,
    /// the next lists tell which StableNames are.
    pub(super) fn end_crd_wait(&mut self) {
        if !self.pending_deletions.is_unserved() {
            self.pending_deletions.forget_unserved();
            self.forget_crd_gone();
            let watched = (0..self.scopes.len()).filter(|number| self.scopes[*number].end.is_some());
            return watched.collect::<Vec<_>>().into_iter().for_each(|number| self.watch(number));
        }
        let Some(since) = self.pending_deletions.end_wait() else { return };
        self.forget_crd_gone();
        for link in self.context.store.links().iter().filter(|link| link.overridden.is_some()) {
            if let Some(change) = end_override(&self.context.store, &link.key, None, since) {
                self.report(&change);
            }
        }
    }

    /// Forgets a StableName; its override stays.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        if let Some(followed) = self.objects.remove(key) {
            self.unindex(&followed);
            self.context.metrics.targets.with_label_values(&[state(&followed.object)]).dec();
        }
        self.object_errors.set(key, None);
        let Findings { stable_names, readiness, .. } = &self.context.link_reporter.findings;
        stable_names.set(key, None);
        readiness.unwritten.set(key, None);
        self.context.rules.forget(key);
        self.leader.forget(key);
        self.context.metrics.remove(key);
    }
}

/// Returns the label of the metric that counts StableNames by what they announce.
fn state(object: &ObservedStableName) -> &'static str {
    match &object.status.target {
        Some(target) if target.verified => "verified",
        Some(_) => "unverified",
        None => "none",
    }
}

/// Returns the object, or reports why it can't be read: then the version that was read last stays. Also reports an
/// invalid spec.
fn observed(
    object: RawDeserializeGuard<StableName>,
    object_errors: &mut ObjectErrors,
) -> Option<ObservedStableName> {
    let key = key_of(&object);
    let object = ObservedStableName::new(readable(object, object_errors)?);
    object_errors.set(&key, object.invalid.as_ref().map(|invalid| invalid.message.clone()));
    Some(object)
}
