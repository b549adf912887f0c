//! From the status of a StableName to the override of its link. Each replica does this, not only the leader.

use std::sync::Arc;

use super::object::{FormerSource, ObservedStableName, TrackedStableName};
use super::sources::Sources;
use super::status_format::from_stored;
use crate::model::excerpt::value;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::Annotations;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::uid::Uid;
use crate::sync::stable_name::decision::spec::{Refusal, RefusalReason};

/// Returns the override by a StableName. `present` is the current override of the link: until the StableName
/// is read, it comes from the external target.
pub(super) fn link_override(
    followed: &TrackedStableName,
    sources: &Sources<'_>,
    present: Option<&LinkOverride>,
) -> LinkOverride {
    let TrackedStableName { object, inherited, .. } = followed;
    let namespace = object.key.namespace();
    let status = from_stored(&object.status);
    let link_override = LinkOverride {
        uid: object.uid.clone(),
        created: object.created,
        annotations: annotations(object, sources.policy, inherited).0,
        ..LinkOverride::default()
    };
    if let Some(announced) = &status.target {
        let is_fixed = announced.uid.is_empty();
        let Some(target) = sources.allowed(&announced.target, is_fixed, namespace) else {
            return LinkOverride { announced: Announcement::Withdrawn, refused: true, ..link_override };
        };
        let mut services = followed.services().filter_map(|key| sources.service(&key, None));
        let in_use = services.find(|service| service.uid == announced.uid).map(|service| service.ports);
        // The Service may not be listed yet.
        let same = present.filter(|present| present.service_uid == announced.uid);
        let ports = in_use.or_else(|| Some(Arc::clone(&same?.ports)));
        return LinkOverride {
            announced: Announcement::Target(target),
            source: announced.source.as_str().into(),
            service_uid: announced.uid.clone(),
            ports: ports.unwrap_or_default(),
            ..link_override
        };
    }
    if object.status.target.is_some() {
        // A target that this version can't read.
        return LinkOverride { announced: Announcement::Withdrawn, refused: true, ..link_override };
    }
    if status.is_withdrawn() {
        return LinkOverride { announced: Announcement::Withdrawn, ..link_override };
    }
    match present.filter(|present| matches!(present.announced, Announcement::Target(_))) {
        // The status has no target yet, or is lost: keep the present target until the leader decides.
        Some(standing) => LinkOverride {
            uid: link_override.uid,
            created: link_override.created,
            is_provisional: true,
            ..standing.clone()
        },
        None => link_override,
    }
}

/// Returns the Service whose target is announced, if it isn't a source.
pub(super) fn former_source(followed: &TrackedStableName, sources: &Sources<'_>) -> Option<FormerSource> {
    let uid = followed.object.status.target.as_ref()?.service_uid.as_deref()?;
    let uid = Some(Uid::from(uid)).filter(|uid| !uid.is_empty())?;
    let is_it = |key| sources.service(&key, None).is_some_and(|known| known.uid == uid);
    if followed.object.services().any(is_it) {
        return None;
    }
    let known = followed.former_source.clone().filter(|known| known.uid == uid);
    if known.as_ref().is_some_and(|known| is_it(known.key.clone())) {
        return known;
    }
    // If no living Service has the uid, keep the last known name: the API server is asked for it before the target is
    // withdrawn.
    sources.key_of(&uid).map(|key| FormerSource { key, uid }).or(known)
}

/// Returns the settings of a StableName, and why custom hostnames are denied. Settings that the
/// spec omits are those of the Service of the same name while that Service is a source.
pub(super) fn annotations(
    object: &ObservedStableName,
    policy: &HostnamePolicy,
    inherited: &Annotations,
) -> (Annotations, Option<Refusal>) {
    let spec = &object.spec;
    let own = if object.has_own_service() { inherited.clone() } else { Annotations::default() };
    let mut refusals = Vec::new();
    let hostnames = spec.hostnames.as_ref().map(|names| {
        let mut granted: Vec<Arc<str>> = Vec::new();
        for name in names {
            match policy.check(&object.key, name) {
                Ok(Some(name)) if !granted.iter().any(|known| **known == *name) => granted.push(name.into()),
                Ok(_) => {}
                Err(why) => {
                    let message = format!("spec.hostnames: {}: {why}", value(name));
                    let reason = RefusalReason::HostnameRefused;
                    refusals.push(Refusal { reason, message });
                }
            }
        }
        granted.sort_unstable();
        granted.into()
    });
    let allow_from = spec.allow_from.as_ref().map(|names| {
        let mut namespaces: Vec<Arc<str>> = names.iter().map(|name| Arc::from(&**name)).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        namespaces.into()
    });
    let annotations = Annotations {
        ttl: spec.ttl_seconds.and_then(|ttl| u32::try_from(ttl).ok()).or(own.ttl),
        hostnames: hostnames.unwrap_or(own.hostnames),
        allow_from: allow_from.unwrap_or(own.allow_from),
        // These names stay with the Service.
        internal: None,
    };
    (annotations, Refusal::joined(refusals))
}
