//! What DNS and the external target have from an ExternalTarget: the link follows the status, on every replica.

use std::sync::Arc;

use super::object::{Followed, FormerSource, ObservedExternalTarget};
use super::sources::Sources;
use super::status_format::from_stored;
use crate::model::excerpt::value;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::lead::{Announcement, Lead};
use crate::model::link::Annotations;
use crate::model::uid::Uid;
use crate::sync::failover::spec::{Refusal, RefusalReason};

/// Returns the lead of an ExternalTarget. `present` is the lead so far, which the external target may have given.
pub(super) fn lead(followed: &Followed, sources: &Sources<'_>, present: Option<&Lead>) -> Lead {
    let Followed { object, inherited, .. } = followed;
    let namespace = object.key.namespace();
    let status = from_stored(&object.status);
    let lead = Lead {
        uid: object.uid.clone(),
        created: object.created,
        annotations: annotations(object, sources.policy, inherited).0,
        ..Lead::default()
    };
    if let Some(announced) = &status.target {
        let is_fixed = announced.uid.is_empty();
        let Some(target) = sources.allowed(&announced.target, is_fixed, namespace) else {
            return Lead { announced: Announcement::Withdrawn, refused: true, ..lead };
        };
        let mut services = followed.services().filter_map(|key| sources.service(&key, None));
        let in_use = services.find(|service| service.uid == announced.uid).map(|service| service.ports);
        // The Service may not be listed yet.
        let same = present.filter(|present| present.service_uid == announced.uid);
        let ports = in_use.or_else(|| Some(Arc::clone(&same?.ports)));
        return Lead {
            announced: Announcement::Target(target),
            source: announced.source.as_str().into(),
            service_uid: announced.uid.clone(),
            ports: ports.unwrap_or_default(),
            ..lead
        };
    }
    if object.status.target.is_some() {
        // A target that this version can't read.
        return Lead { announced: Announcement::Withdrawn, refused: true, ..lead };
    }
    if status.is_withdrawn() {
        return Lead { announced: Announcement::Withdrawn, ..lead };
    }
    match present.filter(|present| matches!(present.announced, Announcement::Target(_))) {
        // The external target stands until the leader has decided.
        Some(standing) => {
            Lead { uid: lead.uid, created: lead.created, is_provisional: true, ..standing.clone() }
        }
        None => lead,
    }
}

/// Returns the Service whose target is announced, if it isn't a source.
pub(super) fn former_source(followed: &Followed, sources: &Sources<'_>) -> Option<FormerSource> {
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

/// Returns the settings of an ExternalTarget, and why some of its DNS names are denied. Settings that the spec omits are
/// those of the Service of the same name while it is a source.
pub(super) fn annotations(
    object: &ObservedExternalTarget,
    policy: &HostnamePolicy,
    inherited: &Annotations,
) -> (Annotations, Option<Refusal>) {
    let spec = &object.spec;
    let own = if object.has_own_service() { inherited.clone() } else { Annotations::default() };
    let mut refusal = None;
    let hostnames = spec.hostnames.as_ref().map(|names| {
        let mut granted: Vec<Arc<str>> = Vec::new();
        for name in names {
            match policy.check(&object.key, name) {
                Ok(true) if !granted.iter().any(|known| **known == **name) => {
                    granted.push(name.as_str().into())
                }
                Ok(_) => {}
                Err(why) => {
                    let message = format!("spec.hostnames: {}: {why}", value(name));
                    let reason = RefusalReason::HostnameRefused;
                    refusal.get_or_insert(Refusal { reason, message });
                }
            }
        }
        granted.into()
    });
    let allow_from = spec.allow_from.as_ref();
    let allow_from = allow_from.map(|names| names.iter().map(|name| Arc::from(&**name)).collect());
    let annotations = Annotations {
        ttl: spec.ttl_seconds.and_then(|ttl| u32::try_from(ttl).ok()).or(own.ttl),
        hostnames: hostnames.unwrap_or(own.hostnames),
        allow_from: allow_from.unwrap_or(own.allow_from),
    };
    (annotations, refusal)
}
