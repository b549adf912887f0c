//! Event handlers of the reconciler, for objects in the target namespace and for links.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::reconciler::Reconciler;
use super::reconciler::context::ReconcilerContext;
use super::write::removal_of;
use crate::model::hostname_policy::{HOSTNAME, recorded_hostnames};
use crate::model::link::{Link, LinkChange, LinkState, Target};
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::Input;
use crate::sync::events::link_log::log_changes;
use crate::sync::external_target::backend::ObjectEvent;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::desired::{current_target, placeholder_name};
use crate::sync::external_target::object_cache::{ObjectCache, external_target};
use crate::sync::external_target::observed_object::ObservedObject;
use crate::sync::external_target::orphans::orphan_of;
use crate::sync::k8s::labels::{SERVICE_UID, STABLE_NAME_UID};
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::service::Spec;
use crate::sync::source::service_links::is_present;

fn are_all(kinds: &HashSet<ObjectKind>) -> bool {
    kinds.contains(&ObjectKind::Service) && kinds.contains(&ObjectKind::EndpointSlice)
}

impl Reconciler {
    pub(crate) fn is_listed(&self) -> bool {
        are_all(&self.listed)
    }

    pub(crate) fn on_object_event(&mut self, event: ObjectEvent) {
        match event {
            ObjectEvent::ListBegins(kind) => self.objects.list_begins(kind),
            // Another watch has noticed the restore already.
            ObjectEvent::Rewound(_) if self.rewinds != self.context.rewinds.count() => {}
            ObjectEvent::Rewound(kind) => {
                self.context.rewinds.record_restore(&format!("{kind}s in the target namespace"));
            }
            ObjectEvent::Listed(kind, list) => self.on_list(kind, list),
            ObjectEvent::Unseen(code) => {
                // 401 says nothing about the namespace, and is shown for all requests together.
                self.is_list_refused |= code != 401;
                self.context.store.set_known(Input::ExternalTargets);
                if self.context.policy.sync == SyncMode::Off {
                    // With `--sync off` nothing is written: don't wait for objects that can't be read.
                    self.listed.extend([ObjectKind::Service, ObjectKind::EndpointSlice]);
                }
            }
            ObjectEvent::Applied(object) => {
                let id = object.id();
                // Skip a version that the answer to our own write has contained already.
                if self.objects.changes_cache(&object) {
                    let is_new = self.objects.get(&id).is_none_or(|known| known.uid != *object.uid());
                    self.change_object(&id, |objects| objects.apply(&object));
                    self.report_lost_answer(&id);
                    self.process_object_term(&object, is_new);
                }
            }
            ObjectEvent::Deleted { id, uid } => {
                self.count_observed_removal(&id, &uid);
                self.unwanted.forget(&uid);
                self.change_object(&id, |objects| objects.remove(&id, &uid));
                self.report_lost_answer(&id);
            }
        }
    }

    /// Counts the removal of the external target of a gone Service, perhaps by an earlier leader. A Service that a flag
    /// leaves out may count as gone earlier there.
    fn count_observed_removal(&mut self, id: &ObjectId, uid: &str) {
        let holder = self.objects.get(id).and_then(|object| self.objects.owner_of(object));
        let may_be_gone = |link: Arc<Link>| link.service_gone_since().is_some() || link.is_left_out();
        let is_service_gone = |key: &ServiceKey| self.context.store.get(key).is_some_and(may_be_gone);
        if id.kind == ObjectKind::Service
            && !self.unwanted.contains(uid)
            && let Some(key) = holder.filter(is_service_gone)
        {
            let (object, now) = (removal_of(&id.name, uid), Instant::now());
            self.deletion_budget.lock().record_observed_removal(key.namespace(), &object, now);
        }
    }

    /// Counts the removals that a list shows: the watch may have ended before it reported them.
    fn count_unlisted_removals(&mut self, kind: ObjectKind, list: &[ObservedObject]) {
        if kind != ObjectKind::Service {
            return;
        }
        let listed: HashSet<(&ObjectId, &Uid)> =
            list.iter().map(|object| (&object.id, &object.uid)).collect();
        let is_removed =
            |object: &&ObservedObject| object.id.kind == kind && !listed.contains(&(&object.id, &object.uid));
        let removed = self.objects.iter().filter(is_removed);
        let removed: Vec<_> = removed.map(|object| (object.id.clone(), object.uid.clone())).collect();
        for (id, uid) in &removed {
            self.count_observed_removal(id, &uid.to_string());
        }
    }

    fn on_list(&mut self, kind: ObjectKind, list: Vec<ObservedObject>) {
        let (was_listed, could_write) = (self.is_listed(), self.may_write());
        let is_first = self.read.insert(kind) && are_all(&self.read);
        self.count_unlisted_removals(kind, &list);
        let gone = self.objects.replace(kind, list);
        self.listed.insert(kind);
        self.listed_in_term.insert(kind);
        self.process_all_terms();
        for id in self.lost_answers.of_kind(kind) {
            self.report_lost_answer(&id);
        }
        for id in &gone {
            self.report_owner(id);
        }
        if !self.is_listed() {
            return;
        }
        for object in self.objects.iter().filter(|object| object.id.kind == ObjectKind::Service) {
            if is_first {
                self.publish_persisted_target(object);
            }
            self.report_owner(&object.id);
        }
        self.report
            .other_owner(self.objects.number_of_foreign(), |namespace| self.objects.other_owner(namespace));
        self.context.store.set_known(Input::ExternalTargets);
        if was_listed {
            self.restore_deleted(false);
            self.runtime.queue.resume();
            self.queue_all();
        }
        if !could_write {
            self.resume_writing();
        }
    }

    pub(crate) fn on_link_change(&mut self, change: &LinkChange) {
        let Some(key) = change.service() else { return };
        if let (Some(before), Some(after)) = (&change.before, &change.after)
            && before.external_target_override != after.external_target_override
        {
            let (before, after) = (&before.external_target(), &after.external_target());
            let line = format_args!("link {key}: its external target is {after} from now on, not {before}");
            self.context.link_reporter.log.info(key, line);
        }
        if self.may_write() {
            self.report.record_target_change(key, change);
        }
        if change.target_change().is_some() {
            // Earlier failures concern the old target.
            self.runtime.queue.changed(key);
        }
        self.runtime.queue.add(key);
    }

    /// Passes the owner of an external target to the store.
    fn report_owner(&self, id: &ObjectId) {
        if id.kind == ObjectKind::Service {
            let object = self.objects.get(id);
            let holder = object.and_then(|object| self.objects.owner_of(object));
            let recorded = object.filter(|_| holder.is_some()).and_then(|object| object.annotation(HOSTNAME));
            self.context.store.set_owner(&id.name, holder.as_ref(), &recorded_hostnames(recorded));
        }
    }

    /// Returns the custom hostnames recorded for a link that are still allowed.
    pub(crate) fn recorded_hostnames(&self, key: &ServiceKey) -> Vec<Arc<str>> {
        let objects = self.objects.of_link(key).into_iter();
        let services = objects.filter(|object| object.id.kind == ObjectKind::Service);
        let mut recorded: Vec<Arc<str>> = Vec::new();
        // While its external target is renamed, a link has two external targets.
        for name in services.flat_map(|object| recorded_hostnames(object.annotation(HOSTNAME))) {
            if !recorded.contains(&name) {
                recorded.push(name);
            }
        }
        self.context.hostname_policy.borrow().still_granted(key.namespace(), recorded)
    }

    /// Tells the store which target an earlier process has written into an external target.
    fn publish_persisted_target(&self, object: &ObservedObject) {
        let Some(holder) = self.objects.owner_of(object) else { return };
        let written_for = match (object.annotation(SERVICE_UID), object.created) {
            (Some(uid), _) => TargetOwner::Uid(uid.into()),
            // A fixed target of a StableName belongs to no Service.
            _ if object.annotation(STABLE_NAME_UID).is_some() => TargetOwner::Uid(Uid::default()),
            (None, Some(created)) => TargetOwner::CreatedUntil(created),
            (None, None) => TargetOwner::Unknown,
        };
        let recorded = recorded_hostnames(object.annotation(HOSTNAME));
        let hostnames = self.context.hostname_policy.borrow().still_granted(holder.namespace(), recorded);
        let is_watched = self.context.selection.watches(holder.namespace());
        let last = PersistedTarget {
            target: self.target_of(&holder, object),
            owner: written_for,
            hostnames: hostnames.into(),
            is_removable: self.is_own_object(&holder, object.has_our_field_manager),
            overridden_by: object.annotation(STABLE_NAME_UID).filter(|_| is_watched).map(Uid::from),
        };
        let ReconcilerContext { store, persisted, link_reporter, .. } = &self.context;
        // Without permission for them the StableNames count as known, so that nothing waits for them.
        let are_overrides_listed = store.is_known(Input::StableNames)
            && self.context.overrides_listed.borrow().covers_rewinds(holder.namespace(), self.rewinds);
        log_changes(link_reporter, persisted.record(store, &holder, last, are_overrides_listed));
    }

    /// Returns the target that the external target of a link records, if it is still allowed.
    pub(crate) fn recorded_target(&self, key: &ServiceKey) -> Option<Target> {
        self.objects.of_link(key).into_iter().find_map(|object| self.target_of(key, object))
    }

    /// Returns the present target of a link's external target, if this target is still allowed. `service` is the
    /// Service in the target namespace.
    fn target_of(&self, key: &ServiceKey, service: &ObservedObject) -> Option<Target> {
        let objects = self.objects.of_link(key).into_iter();
        let objects: Vec<Object> = objects.map(ObservedObject::to_object).collect();
        let slices = objects.iter().filter_map(Object::as_slice);
        let mut recorded = service.to_object().as_service()?.clone();
        if recorded.spec.external_name == Some(placeholder_name(&service.id.name)) {
            // During a change of the clusterIP, the EndpointSlices are already right.
            recorded.spec = Spec::default();
        }
        let target = current_target(&recorded, slices)
            .filter(|target| target.to_string() != self.context.policy.tombstone);
        // Drop targets that the policy now denies. Targets in our zones are checked by DNS for each answer.
        target.and_then(|target| self.context.hostname_policy.borrow().targets.allowed(target))
    }

    /// Changes the cached state of an object, and queues the links that the object concerned before and concerns now.
    pub(crate) fn change_object(&mut self, id: &ObjectId, change: impl FnOnce(&mut ObjectCache)) {
        self.queue_affected_links(id);
        change(&mut self.objects);
        self.context.metrics.set_objects_of_others(self.objects.number_of_foreign());
        self.report_owner(id);
        self.queue_affected_links(id);
    }

    fn queue_affected_links(&mut self, id: &ObjectId) {
        if !self.is_listed() {
            return;
        }
        let labelled = self.objects.get(id).and_then(|object| self.objects.owner_of(object));
        let claimant_keys =
            external_target(id).map(|name| self.context.store.claimants(name)).unwrap_or_default();
        for key in labelled.iter().chain(&claimant_keys) {
            self.runtime.queue.add(key);
        }
    }

    /// Checks the external targets, adds links for external targets without a Service, and updates the orphans.
    /// `begins` is whether this is the start.
    pub(crate) fn restore_deleted(&mut self, begins: bool) {
        let unknown = self.objects.links().filter(|key| !is_present(&self.context.store, key));
        let mut keys: BTreeSet<ServiceKey> = unknown.collect();
        self.check_external_targets(begins);
        keys.extend(self.orphans.links().cloned());
        for key in &keys {
            self.update_orphans(key);
        }
    }

    /// Returns whether a link of a watched namespace has an object that is ours to remove.
    pub(crate) fn has_removable_object(&self, key: &ServiceKey) -> bool {
        self.context.selection.watches(key.namespace())
            && self.objects.of_link(key).iter().any(|object| self.is_removable(object.has_our_field_manager))
    }

    /// Returns whether an object may be removed once its load balancer is gone: lb-linker has written it, or `--prune`
    /// is set.
    pub(crate) fn is_removable(&self, has_our_field_manager: bool) -> bool {
        self.context.policy.prune || has_our_field_manager
    }

    pub(crate) fn update_orphans(&mut self, key: &ServiceKey) {
        let ReconcilerContext { store, selection, policy, .. } = &self.context;
        let own = policy.instance.as_deref();
        let mut orphans = Vec::new();
        // A recreated Service may have an orphan of its predecessor.
        let recreated = || store.get(key).is_some_and(|link| matches!(link.state, LinkState::Recreated(_)));
        if policy.sync != SyncMode::Off && !policy.prune && (!is_present(store, key) || recreated()) {
            let objects = self.objects.of_link(key).into_iter();
            let services = objects.filter(|object| object.id.kind == ObjectKind::Service);
            let services =
                services.filter(|object| orphan_of(object.to_object().meta(), selection, own).is_some());
            orphans.extend(services.map(|object| object.id.name.clone()));
        }
        self.orphans.set(key, orphans);
    }
}
