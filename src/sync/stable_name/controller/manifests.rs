//! StableNames of manifests. Without an API server there is no status to write and no leader that checks: a status
//! in the manifest is the decision. Without a status the pinned source is in use, or without a pin the first source
//! that has a target.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::metrics::FailoverMetrics;
use super::object::{ObservedStableName, TrackedStableName};
use super::overrides::{annotations, former_source, link_override};
use super::sources::Sources;
use crate::api::stable_name::{Source, StableName};
use crate::model::excerpt::sentence;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Annotations, Link, LinkChange, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::store::{Input, Store};
use crate::sync::events::findings::Findings;
use crate::sync::k8s::errors::ObjectErrors;
use crate::sync::k8s::listed::Reading;
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::{end_override, set_override};
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::stable_name::decision::spec::Offer;
use crate::sync::stable_name::decision::status::AnnouncedTarget;

/// The overrides by the StableNames of manifests.
pub struct ManifestOverrides {
    store: Arc<Store>,
    unselected: Arc<UnselectedServices>,
    selection: Arc<Selection>,
    metrics: Arc<FailoverMetrics>,
    known: Mutex<Known>,
    log: ObjectLog,
}

/// What is known of the StableNames from earlier versions of the manifests.
struct Known {
    /// The settings of the Services of the same names, as they were seen last as a source.
    inherited: HashMap<ServiceKey, Annotations>,
    object_errors: ObjectErrors,
}

impl ManifestOverrides {
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        unselected: Arc<UnselectedServices>,
        selection: Arc<Selection>,
        metrics: Arc<FailoverMetrics>,
        log: ObjectLog,
        findings: &Findings,
    ) -> Self {
        let object_errors = ObjectErrors::shown_in(&findings.stable_names, "StableName", log.clone());
        let known = Mutex::new(Known { inherited: HashMap::new(), object_errors });
        Self { store, unselected, selection, metrics, known, log }
    }

    fn report(&self, change: &LinkChange) {
        let source_of =
            |link: &Option<Arc<Link>>| Some(Arc::clone(&link.as_ref()?.active_override()?.source));
        let source = source_of(&change.after).filter(|source| !source.is_empty());
        if let Some(source) = source.filter(|source| source_of(&change.before).as_ref() != Some(source))
            && self.store.is_known(Input::Services)
        {
            let key = &change.owner.key;
            self.log.info(key, format_args!("StableName {key}: source {} is in use", sentence(&source)));
        }
    }

    /// Applies the overrides by these StableNames, of which no two have the same name, and ends all other
    /// overrides. Returns the changes of links.
    pub fn apply(&self, objects: &[Arc<StableName>], policy: &HostnamePolicy) -> Vec<LinkChange> {
        // Nothing is checked for manifests.
        let tcp_check_namespaces = BTreeSet::new();
        let sources = Sources {
            store: &self.store,
            unselected: &self.unselected,
            selection: &self.selection,
            policy,
            tcp_check_namespaces: &tcp_check_namespaces,
        };
        let mut known = self.known.lock();
        let mut keys = HashSet::new();
        let mut changes = Vec::new();
        let mut numbers = [("verified", 0), ("unverified", 0), ("none", 0)];
        for object in objects {
            let mut object = ObservedStableName::new(StableName::clone(object));
            // No source is refused because of a check that isn't made.
            object.spec.check = None;
            let key = object.key.clone();
            if object.has_own_service()
                && let Some(own) = sources.service(&key, None)
            {
                known.inherited.insert(key.clone(), own.annotations);
            }
            let inherited = known.inherited.get(&key).cloned().unwrap_or_default();
            let mut followed =
                TrackedStableName { object, inherited, former_source: None, logged_refusal: None };
            followed.former_source = former_source(&followed, &sources);
            let present = self.store.get(&key).and_then(|link| link.active_override().cloned());
            let (link_override, error) = decide(&followed, &sources, present.as_ref());
            known.object_errors.set(&key, error);
            let is_verified = followed.object.status.target.as_ref().is_some_and(|target| target.verified);
            let state = if is_target(&link_override) { usize::from(!is_verified) } else { 2 };
            numbers[state].1 += 1;
            if let Some(change) = set_override(&self.store, &key, link_override, None) {
                self.report(&change);
                changes.push(change);
            }
            keys.insert(key);
        }
        known.inherited.retain(|key, _| keys.contains(key));
        known.object_errors.retain(|key| keys.contains(key));
        for link in
            self.store.links().iter().filter(|link| link.overridden.is_some() && !keys.contains(&link.key))
        {
            if self.store.is_known(Input::Services) {
                self.log.info(&link.key, format_args!("StableName {}: its manifest is gone", link.key));
            }
            changes.extend(end_override(&self.store, &link.key, None, Instant::now()));
        }
        for (state, number) in numbers {
            self.metrics.targets.with_label_values(&[state]).set(number);
        }
        changes
    }
}

/// Returns the override by a StableName, and an error about the parts that can't be used. `present` is the
/// override so far.
fn decide(
    followed: &TrackedStableName,
    sources: &Sources<'_>,
    present: Option<&LinkOverride>,
) -> (LinkOverride, Option<String>) {
    let object = &followed.object;
    let link_override = link_override(followed, sources, None);
    let refused_name = annotations(object, sources.policy, &followed.inherited).1;
    let mut errors: Vec<String> = refused_name.into_iter().map(|refusal| refusal.message).collect();
    let link_override = match link_override.announced {
        Announcement::NotYet => {
            let offers = sources
                .offers(object, present.and_then(announced).as_ref(), |_: &ServiceKey| Reading::Permitted);
            for (source, offer) in object.sources().iter().zip(&offers) {
                errors.extend(offer.refusal.as_ref().map(|refusal| refusal.of_source(&source.name).message));
            }
            choose(followed, sources, &offers, present, link_override)
        }
        Announcement::Withdrawn | Announcement::Target(_) => link_override,
    };
    if link_override.refused {
        errors.push("the target in its status isn't allowed or can't be read".to_owned());
    }
    (link_override, (!errors.is_empty()).then(|| errors.join("; ")))
}

/// Returns `link_override`, which has no target, with the target of the pinned source, or without a pin of the first
/// source that has a target. If there is none, the source in use stays while it has a target; else the present target
/// is withdrawn.
fn choose(
    followed: &TrackedStableName,
    sources: &Sources<'_>,
    offers: &[Offer],
    present: Option<&LinkOverride>,
    link_override: LinkOverride,
) -> LinkOverride {
    let object = &followed.object;
    let pin = object.spec.pin.as_deref();
    let usable = || {
        let usable = object.sources().iter().zip(offers).filter(|(_, offer)| offer.refusal.is_none());
        usable.filter_map(|(source, offer)| {
            let kept = || {
                let kept = kept(source, offer, present?)?;
                sources.allowed(&kept, false, object.key.namespace())
            };
            Some((source, offer, offer.target.clone().or_else(kept)?))
        })
    };
    let in_use = |source: &Source| present.is_some_and(|present| *present.source == source.name);
    let preferred = usable().find(|(source, ..)| pin.is_none_or(|pin| pin == source.name));
    // Nothing moves while a pinned source has no target.
    match preferred.or_else(|| usable().find(|(source, ..)| in_use(source))) {
        Some((source, offer, target)) => {
            let service = object.service_of(source).and_then(|key| sources.service(&key, None));
            LinkOverride {
                announced: Announcement::Target(target),
                source: source.name.as_str().into(),
                service_uid: offer.uid.clone(),
                ports: service.map(|service| service.ports).unwrap_or_default(),
                ..link_override
            }
        }
        None if present.is_some() => LinkOverride { announced: Announcement::Withdrawn, ..link_override },
        None => link_override,
    }
}

/// Returns the target that a Service keeps while its status is blank.
fn kept(source: &Source, offer: &Offer, present: &LinkOverride) -> Option<Target> {
    let Announcement::Target(target) = &present.announced else { return None };
    let is_known = *present.source == source.name || present.is_provisional && !offer.uid.is_empty();
    let is_kept = source.service.is_some() && is_known && present.service_uid == offer.uid;
    is_kept.then(|| target.clone())
}

fn is_target(by: &LinkOverride) -> bool {
    matches!(by.announced, Announcement::Target(_))
}

fn announced(present: &LinkOverride) -> Option<AnnouncedTarget> {
    let Announcement::Target(target) = &present.announced else { return None };
    Some(AnnouncedTarget {
        source: present.source.to_string(),
        target: target.clone(),
        uid: present.service_uid.clone(),
        since: Timestamp::UNIX_EPOCH,
        verified: false,
    })
}

#[cfg(test)]
mod tests;
