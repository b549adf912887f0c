//! The external targets that an earlier process left: those of all Services until the first complete list, afterwards
//! only those of Services that the list lacked or that can't be decoded.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;

use super::relist_guard::is_suspicious_removal;
use crate::model::link::{Annotations, Link, LinkChange, ObservedService, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::persisted_target::PersistedTarget;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::{Input, Store};
use crate::sync::source::service_links::{
    apply_persisted_target, insert_from_snapshot, insert_left_out, service_link, set_override,
};

#[derive(Debug, Default)]
pub struct PersistedTargets(Mutex<HashMap<ServiceKey, Box<PersistedTarget>>>);

impl PersistedTargets {
    /// Records an external target that an earlier process wrote. A Service with a blank status when it is first
    /// observed keeps this target, unless the external target was written for an earlier Service of the same name.
    /// `are_overrides_listed`: whether the StableNames of the namespace have been listed. Returns the change of the link, if the Services have been listed already: until then, DNS doesn't answer from
    /// it.
    pub(crate) fn record(
        &self,
        store: &Store,
        key: &ServiceKey,
        last: PersistedTarget,
        are_overrides_listed: bool,
    ) -> Option<LinkChange> {
        if let Some(uid) = &last.overridden_by {
            let change =
                if are_overrides_listed { None } else { override_provisionally(store, key, uid, &last) };
            return change.filter(|_| store.is_known(Input::Services));
        }
        if store.is_known(Input::Services) {
            return apply_persisted_target(store, key, last);
        }
        self.0.lock().insert(key.clone(), Box::new(last));
        None
    }

    /// Moves the external target of a Service that has no link yet into the observation.
    pub(crate) fn attach(&self, store: &Store, observed: &mut ObservedService) {
        if service_link(store, &observed.key).is_none() {
            observed.persisted = self.0.lock().remove(&observed.key);
        }
    }

    /// Returns the last target of a Service that was gone before this process started.
    pub(crate) fn target(&self, key: &ServiceKey) -> Option<Target> {
        self.0.lock().get(key)?.target.clone()
    }

    /// Processes the end of the first complete list, before DNS answers from it. With `keep`, the targets of Services that
    /// the list lacks are kept until it is certain whether the Services exist. The targets of the namespaces that an
    /// authorizer doesn't let lb-linker list (`refused`) are always kept.
    pub(crate) fn on_first_list(&self, store: &Store, keep: bool, refused: &BTreeSet<&str>) {
        let mut targets = self.0.lock();
        // Most entries have been moved into links.
        targets.shrink_to_fit();
        if !keep && refused.is_empty() {
            return;
        }
        // A Service outside the selection may have a link because of its finalizer.
        let is_unlisted = |key: &ServiceKey| store.get(key).is_none_or(|link| link.was_never_observed());
        let (in_refused_namespaces, unlisted): (Vec<_>, Vec<_>) = targets
            .iter()
            .filter(|(key, last)| last.is_removable && is_unlisted(key) && !store.is_unreadable(key))
            .partition(|(key, _)| refused.contains(key.namespace()));
        let links = store.links();
        let listed =
            links.iter().filter(|link| !link.is_gone() && store.has_external_target(&link.key)).count();
        let are_most = is_suspicious_removal(unlisted.len(), listed + unlisted.len());
        let is_kept = |key: &ServiceKey| keep && (are_most || store.get(key).is_none());
        keep_snapshot(store, refused, &targets);
        let kept = unlisted.into_iter().filter(|(key, _)| is_kept(key));
        for (key, last) in in_refused_namespaces.into_iter().chain(kept) {
            // Subscribers of the change feed get the change.
            let _ = insert_left_out(store, key, last.uid(), last.target.clone(), last.hostnames.to_vec());
        }
    }
}

/// Keeps the links of a snapshot in these namespaces, unless an external target records another Service.
fn keep_snapshot(
    store: &Store,
    namespaces: &BTreeSet<&str>,
    recorded: &HashMap<ServiceKey, Box<PersistedTarget>>,
) {
    let Some(snapshot) = store.fallback() else { return };
    let is_same = |link: &Link| recorded.get(&link.key).is_none_or(|last| last.uid() == link.uid);
    let links = snapshot.store.links();
    let kept = links.iter().filter(|link| namespaces.contains(link.key.namespace()) && link.target.is_some());
    for link in kept.filter(|link| is_same(link)) {
        let _ = insert_from_snapshot(store, link);
    }
}

/// Overrides the link with the present target of its external target until the StableNames are listed, so that DNS
/// answers in the meantime. Without a target, too: an existing StableName may lead the names, so that the external target
/// stays. Returns the change of the link.
fn override_provisionally(
    store: &Store,
    key: &ServiceKey,
    uid: &Uid,
    last: &PersistedTarget,
) -> Option<LinkChange> {
    if store.get(key).is_some_and(|link| link.active_override().is_some()) {
        return None;
    }
    let link_override = LinkOverride {
        uid: uid.clone(),
        announced: last.target.clone().map_or(Announcement::Withdrawn, Announcement::Target),
        service_uid: last.uid(),
        annotations: Annotations { hostnames: (*last.hostnames).into(), ..Annotations::default() },
        is_provisional: true,
        ..LinkOverride::default()
    };
    set_override(store, key, link_override, None)
}

#[cfg(test)]
pub(super) mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::link::Ingress;
    use crate::model::persisted_target::TargetOwner;
    use crate::store::OnGone;
    use crate::sync::removal::facts::ServiceState;
    use crate::sync::source::service_links::insert_terminating;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("default", name)
    }

    fn target() -> Target {
        Target::Hostname(Hostname::from(&Name::from_ascii("a.example.").unwrap()))
    }

    /// Returns the Service `default/<name>` with uid `1` and without targets.
    pub(in crate::sync::source) fn observed(name: &str) -> ObservedService {
        ObservedService {
            key: key(name),
            uid: "1".into(),
            created: None,
            resource_version: None,
            ingress: Ingress::default(),
            ports: [].into(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        }
    }

    #[test]
    fn provisional_override_is_news_only_after_the_first_list() {
        for is_synced in [false, true] {
            let (targets, store) = (PersistedTargets::default(), Store::new(OnGone::Kept));
            if is_synced {
                store.set_known(Input::Services);
            }
            let last = PersistedTarget { overridden_by: Some("s".into()), ..recorded(true) };
            assert!(targets.record(&store, &key("web"), last.clone(), true).is_none());
            assert_eq!(store.get(&key("web")), None, "the StableNames tell which links are overridden");
            assert_eq!(targets.record(&store, &key("web"), last, false).is_some(), is_synced);
            assert_eq!(store.get(&key("web")).unwrap().target, Some(target()));
        }
    }

    #[test]
    fn link_of_an_unread_stable_name_without_a_target_isnt_gone() {
        let (targets, store) = (PersistedTargets::default(), Store::new(OnGone::Kept));
        store.set_known(Input::Services);
        let last = PersistedTarget { target: None, overridden_by: Some("s".into()), ..recorded(true) };
        assert!(targets.record(&store, &key("web"), last, false).is_some());
        let link = store.get(&key("web")).unwrap();
        assert_eq!((&link.target, link.service_gone_since()), (&None, None));
        assert_eq!(ServiceState::of(&link), ServiceState::Provisional);
    }

    fn with_recorded(targets: &PersistedTargets, store: &Store, name: &str) -> ObservedService {
        let mut observed = observed(name);
        targets.attach(store, &mut observed);
        observed
    }

    fn recorded(is_removable: bool) -> PersistedTarget {
        let owner = TargetOwner::Uid("1".into());
        PersistedTarget {
            target: Some(target()),
            owner,
            hostnames: Box::default(),
            is_removable,
            overridden_by: None,
        }
    }

    /// Returns a store after the first complete list. Of five external targets, one has a listed Service, one has an
    /// undecodable Service, one has an unlisted Service with our finalizer, one has no Service, and one has no Service
    /// and isn't removed by lb-linker.
    fn after_first_list(keep: bool) -> (PersistedTargets, Store) {
        let (targets, store) = (PersistedTargets::default(), Store::new(OnGone::Kept));
        for name in ["listed", "gone", "guarded", "unreadable", "orphan"] {
            store.set_owner(&format!("{name}-default-ext"), Some(&key(name)), &[]);
            assert!(targets.record(&store, &key(name), recorded(name != "orphan"), false).is_none());
        }
        store.apply(with_recorded(&targets, &store, "listed"));
        store.apply(with_recorded(&targets, &store, "without"));
        store.set_unreadable(&key("unreadable"));
        // A Service with our finalizer isn't necessarily gone.
        insert_terminating(&store, &key("guarded"), "1", true);
        targets.on_first_list(&store, keep, &BTreeSet::new());
        store.set_known(Input::Services);
        (targets, store)
    }

    #[test]
    fn targets_of_unlisted_services_are_kept_only_with_keep() {
        for keep in [false, true] {
            let (_, store) = after_first_list(keep);
            let mut links = store.links();
            links.retain(|link| link.is_left_out());
            links.sort_by(|a, b| a.key.cmp(&b.key));
            let left_out: Vec<_> =
                links.iter().map(|link| (&link.key, &link.target, link.uid.clone())).collect();
            let (gone, guarded, target) = (key("gone"), key("guarded"), Some(target()));
            let expected = [(&gone, &target, "1".into()), (&guarded, &target, "1".into())];
            assert_eq!(left_out, if keep { &expected[..] } else { &[] });
        }
    }

    #[test]
    fn recorded_target_is_moved_into_the_first_link_of_its_service() {
        let (targets, store) = after_first_list(false);
        assert_eq!(store.get(&key("listed")).unwrap().target, Some(target()));
        assert_eq!(targets.target(&key("listed")), None);
        assert_eq!(targets.target(&key("gone")), Some(target()));
        assert_eq!(with_recorded(&targets, &store, "gone").persisted, Some(Box::new(recorded(true))));
        assert_eq!(targets.target(&key("gone")), None);
        // A link exists: its external target is compared when the link is reconciled.
        assert_eq!(with_recorded(&targets, &store, "guarded").persisted, None);

        // External targets may be observed later than the Services.
        assert!(targets.record(&store, &key("without"), recorded(true), false).is_some());
        assert_eq!(store.get(&key("without")).unwrap().target, Some(target()));
        assert_eq!(targets.target(&key("without")), None);
    }
}
