//! What an object of a source asks for, and what is behind its names. Pure.

use std::sync::Arc;

use hickory_proto::rr::Name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::shared::ObjectId;
use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::{HostnamePolicy, RequestedNames, in_stored_form};
use crate::model::link::{Annotations, Link, LinkState, RANK_WITHOUT_CREATION_TIME};
use crate::model::names;
use crate::model::owner::{Source, Zone};
use crate::model::rejection::Rejection;
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::Denied;
use crate::store::Store;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations;
use crate::sync::k8s::annotations::{HostnameSource, TargetEntries};
use crate::sync::k8s::service::{IngressEntry, usable};

/// Maximum numbers of objects of a source that are checked again when other objects change, in all and per namespace.
const MAX_DEPENDENT: usize = 1000;
const MAX_DEPENDENT_OF_NAMESPACE: usize = 100;

/// What decides about names and targets, beside the objects.
#[derive(Clone)]
pub struct Rules {
    pub zones: Arc<[Zone]>,
    pub policy: Arc<HostnamePolicy>,
    pub store: Arc<Store>,
}

/// Where a name lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a zone that has the object's names.
    Own,
    /// In a zone that doesn't have the names of the source, or of the object's class.
    Other,
    Outside,
}

/// An object of a source, as it asks for names.
pub struct Asking<'a> {
    pub source: Source,
    /// An object, and the objects, in sentences.
    pub one: &'static str,
    pub many: &'static str,
    /// Why a name isn't served in a zone without names of the source, or of the object's class.
    pub other_zone: &'static str,
    pub metadata: &'a ObjectMeta,
    /// The hostnames of the object's spec.
    pub hosts: Vec<&'a str>,
    /// Whether the object has opted out of the zones of *k8s_gateway*.
    pub is_ignored: bool,
    /// Which of the hostnames count.
    pub(crate) counting: HostnameSource,
    /// The annotations of ours that such objects have.
    pub annotations: &'static [&'static str],
    /// Whether the object has a name with a class that has names in the name's zone, which is of its source.
    pub has_class_of: &'a dyn Fn(&str, &Zone) -> bool,
    /// Whether another namespace hands a name on to the object.
    pub is_handed_on: &'a dyn Fn(&str) -> bool,
}

/// An object with a status that names its target.
pub struct Targeted<'a> {
    /// The key of the target in the store.
    pub key: ServiceKey,
    pub metadata: &'a ObjectMeta,
    pub status: &'a [IngressEntry],
    /// The object's own names, which its target can't be.
    pub names: &'a [Arc<str>],
    /// What was behind the names before.
    pub before: Option<&'a Arc<Link>>,
}

#[must_use]
pub fn id_of(kind: RegardingKind, metadata: &ObjectMeta) -> ObjectId {
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    ObjectId { key: ServiceKey::new(namespace, metadata.name.as_deref().unwrap_or_default()), kind }
}

/// Returns when an object was created, in seconds since 1970, as its rank for names.
#[must_use]
pub fn created(metadata: &ObjectMeta) -> i64 {
    created_at(metadata).unwrap_or(RANK_WITHOUT_CREATION_TIME)
}

pub(in crate::sync::source) fn created_at(metadata: &ObjectMeta) -> Option<i64> {
    metadata.creation_timestamp.as_ref().map(|time| time.0.as_second())
}

#[must_use]
pub fn uid(metadata: &ObjectMeta) -> &str {
    metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the zone of a name in stored form.
#[must_use]
pub fn zone_of<'a>(name: &str, zones: &'a [Zone]) -> Option<&'a Zone> {
    Zone::closest(zones, &names::wire_of(name)?)
}

impl Asking<'_> {
    /// Returns the hostnames that the object has, if no other owner has them, and adds what of its names is denied to
    /// `unusable`. The hosts of its spec may be names of any zone in the world: hosts outside of our zones aren't reported.
    #[must_use]
    pub fn hostnames(&self, rules: &Rules, unusable: &mut Vec<Rejection>) -> Vec<Arc<str>> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or("default");
        let place = |name: &str| self.place(name, &rules.zones);
        let own = self.hosts.iter().copied().filter(|host| place(&in_stored_form(host)) == Place::Own);
        let hosts = RequestedNames { field: "the host".to_owned(), names: own.collect(), ignored: 0 };
        let annotated = rules.policy.annotated_names(|name| annotations::annotation(self.metadata, name));
        let hosts = Some(hosts).filter(|_| self.counting != HostnameSource::Annotations);
        let requested = hosts.into_iter().chain(annotated.filter(|_| self.counting != HostnameSource::Spec));
        let check = |name: &str| match place(name) {
            Place::Other => Err(self.other_zone.to_owned()),
            Place::Own if (self.is_handed_on)(name) => Ok(()),
            Place::Own | Place::Outside => rules.policy.check_granted(namespace, name),
        };
        let (names, denied) = rules.policy.granted(self.one, requested, check, |_| false);
        unusable.extend(denied);
        names
    }

    fn place(&self, name: &str, zones: &[Zone]) -> Place {
        match zone_of(name, zones) {
            Some(zone) if self.is_ignored && zone.k8s_gateway.is_some() => Place::Other,
            Some(zone) if zone.has(&self.source) && (self.has_class_of)(name, zone) => Place::Own,
            Some(_) => Place::Other,
            None => Place::Outside,
        }
    }

    /// Returns the settings of the object's annotations, and adds what of them is invalid or unknown to `unusable`.
    #[must_use]
    pub fn settings(&self, rules: &Rules, unusable: &mut Vec<Rejection>) -> Annotations {
        let policy = &rules.policy;
        let ttl = annotations::ttl(self.metadata, &policy.annotation_prefixes, unusable);
        annotations::check_managed(self.metadata, unusable);
        let (allow_from, refused_namespaces) = annotations::allow_from(self.metadata, &policy.home);
        unusable.extend(refused_namespaces);
        let known = &policy.hostname_annotations;
        unusable.extend(annotations::unknown(self.metadata, known, self.many, self.annotations));
        Annotations { ttl, allow_from, ..Annotations::default() }
    }
}

impl Targeted<'_> {
    /// Returns what is behind the names of the object, and adds what of its status, or of the annotation in its place, is
    /// invalid or denied to `unusable`.
    #[must_use]
    pub fn target(&self, settings: Annotations, rules: &Rules, unusable: &mut Vec<Rejection>) -> Arc<Link> {
        let policy = &rules.policy;
        let entries = TargetEntries::of(self.metadata, &policy.annotation_prefixes, self.status);
        let (ingress, refused) = usable(&entries, &policy.targets, |targets, host| {
            let text = to_presentation(host);
            if self.names.iter().any(|name| **name == *text) {
                return Err(Denied::OwnName);
            }
            targets.check_host_of(&self.key, host, |host| rules.store.link_of_host(host))
        });
        let is_refused = refused.iter().any(Rejection::has_rejected);
        unusable.extend(refused);
        let uid = uid(self.metadata);
        // A recreated object doesn't inherit the target of its predecessor.
        let same = self.before.filter(|link| link.uid == *uid);
        let in_use = same.and_then(|link| link.target.clone());
        // The hostname doesn't depend on the history: all replicas choose the same one.
        let chosen = ingress.choose(None);
        let state = if chosen.is_none() && in_use.is_some() { LinkState::Stale } else { LinkState::Live };
        let link = Link {
            created: created(self.metadata),
            object_created: created_at(self.metadata),
            target: chosen.or(in_use),
            annotations: settings,
            last_queried: same.map(|link| link.last_queried.clone()).unwrap_or_default(),
            refused: is_refused,
            state,
            ..Link::new(self.before.map_or_else(|| self.key.clone(), |before| before.key.clone()), uid)
        };
        self.before.filter(|before| ***before == link).cloned().unwrap_or_else(|| Arc::new(link))
    }
}

/// Returns whether an object is kept beside these, in any order, to be checked again when other objects change, because
/// its target is in a zone of links. Other ones are checked when they change themselves; DNS checks `allow-from` for each
/// answer anyway.
#[must_use]
pub fn has_room<'a>(known: impl Iterator<Item = &'a ServiceKey>, key: &ServiceKey) -> bool {
    let (mut all, mut of_namespace) = (0, 0);
    for known in known {
        if known == key {
            return true;
        }
        all += 1;
        of_namespace += usize::from(known.namespace() == key.namespace());
    }
    all < MAX_DEPENDENT && of_namespace < MAX_DEPENDENT_OF_NAMESPACE
}

/// Returns whether a target of an object with this status lies in a zone of links: whether it is allowed depends on other
/// objects.
#[must_use]
pub fn has_own_target(metadata: &ObjectMeta, status: &[IngressEntry], policy: &HostnamePolicy) -> bool {
    let is_own = |host: Name| policy.targets.zones.iter().any(|zone| zone.zone_of(&host));
    TargetEntries::of(metadata, &policy.annotation_prefixes, status).hosts().any(is_own)
}

#[cfg(test)]
mod tests;
