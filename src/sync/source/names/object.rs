//! What an object of a source asks for, and what is behind its names. Pure.

use std::sync::Arc;

use hickory_proto::rr::Name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;

use super::shared::{ObjectId, Observation};
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
use crate::sync::k8s::service::{IngressEntry, entries_in_use, host_name, usable};

/// A kind of objects with names.
pub trait NamedObject: Resource<DynamicType = ()> + DeserializeOwned + Clone + Send + 'static {
    const SOURCE: Source;
    const KIND: RegardingKind;
    /// An object, and the objects, in sentences.
    const ONE: &'static str;
    const MANY: &'static str;
    /// The name of the watch in metrics.
    const WATCH: &'static str;
    /// How a missing permission is granted.
    const HINT: &'static str;

    /// Returns the hostnames of the object's spec.
    fn hosts(&self) -> Vec<&str>;

    /// Returns whether the object is of a class that has names in a zone of its source.
    fn has_class_of(&self, zone: &Zone) -> bool;

    /// Returns what is behind the names.
    fn status(&self) -> &[IngressEntry];
}

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

#[must_use]
pub fn id_of<K: NamedObject>(metadata: &ObjectMeta) -> ObjectId {
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let key = ServiceKey::new(namespace, metadata.name.as_deref().unwrap_or_default());
    ObjectId { key, kind: K::KIND }
}

/// Returns what is observed of an object, and what of it is invalid or denied. `before` is what was behind the names of
/// the object before.
#[must_use]
pub fn observe<K: NamedObject>(
    object: &K,
    rules: &Rules,
    before: Option<&Arc<Link>>,
) -> (Observation, Vec<Rejection>) {
    let (metadata, ObjectId { key, .. }) = (object.meta(), id_of::<K>(object.meta()));
    let (names, mut unusable) = hostnames(object, &key, rules);
    let (ingress, refused) = usable(object.status(), &rules.policy.targets, |targets, host| {
        let text = to_presentation(host);
        if names.iter().any(|name| **name == *text) {
            return Err(Denied::OwnName);
        }
        targets.check_host(key.namespace(), host, |host| rules.store.link_of_host(host))
    });
    let is_refused = refused.iter().any(Rejection::has_rejected);
    unusable.extend(refused);
    let ttl = annotations::ttl(metadata, &mut unusable);
    annotations::check_managed(metadata, &mut unusable);
    let (allow_from, refused_namespaces) = annotations::allow_from(metadata);
    unusable.extend(refused_namespaces);
    unusable.extend(annotations::unknown(metadata, &rules.policy.hostname_annotations, K::MANY));
    let uid = metadata.uid.as_deref().unwrap_or_default();
    // A recreated object doesn't inherit the target of its predecessor.
    let same = before.filter(|link| link.uid == *uid);
    let in_use = same.and_then(|link| link.target.clone());
    // The hostname doesn't depend on the history: all replicas choose the same one.
    let chosen = ingress.choose(None);
    let state = if chosen.is_none() && in_use.is_some() { LinkState::Stale } else { LinkState::Live };
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    let link = Link {
        created: created.unwrap_or(RANK_WITHOUT_CREATION_TIME),
        object_created: created,
        target: chosen.or(in_use),
        annotations: Annotations { ttl, hostnames: Arc::default(), allow_from },
        last_queried: same.map(|link| link.last_queried.clone()).unwrap_or_default(),
        refused: is_refused,
        state,
        ..Link::new(before.map_or_else(|| K::SOURCE.target_key(&key), |before| before.key.clone()), uid)
    };
    let link = before.filter(|before| ***before == link).cloned().unwrap_or_else(|| Arc::new(link));
    let names = names.iter().map(|name| ServiceKey::new(key.namespace(), name)).collect();
    (Observation { names, link }, unusable)
}

/// Returns whether a target of the object lies in a zone of links: whether it is allowed depends on other objects.
#[must_use]
pub fn has_own_target<K: NamedObject>(object: &K, policy: &HostnamePolicy) -> bool {
    let is_own = |host: Name| policy.targets.zones.iter().any(|zone| zone.zone_of(&host));
    let hosts = entries_in_use(object.status()).into_iter().filter_map(|entry| entry.hostname.as_deref());
    hosts.filter_map(|host| host_name(host).ok()).any(is_own)
}

/// Returns the hostnames that the object has, if no other owner has them, and what of its names is denied. The hosts of
/// its spec may be names of any zone in the world: those outside of our zones aren't reported.
fn hostnames<K: NamedObject>(object: &K, key: &ServiceKey, rules: &Rules) -> (Vec<Arc<str>>, Vec<Rejection>) {
    let place = |name: &str| place_of(object, name, &rules.zones);
    let own = object.hosts().into_iter().filter(|host| place(&in_stored_form(host)) == Place::Own);
    let hosts = RequestedNames { field: "the host".to_owned(), names: own.collect(), ignored: 0 };
    let annotated = rules.policy.annotated_names(|name| annotations::annotation(object.meta(), name));
    let requested = std::iter::once(hosts).chain(annotated);
    let check = |name: &str| match place(name) {
        Place::Other => Err(format!("its zone doesn't have the names of {}, or not of this class", K::MANY)),
        Place::Own | Place::Outside => rules.policy.check_granted(key.namespace(), name),
    };
    rules.policy.granted(K::ONE, requested, check, |_| false)
}

fn place_of<K: NamedObject>(object: &K, name: &str, zones: &[Zone]) -> Place {
    let zone = names::wire_of(name).and_then(|wire| Zone::closest(zones, &wire));
    match zone {
        Some(zone) if zone.has(&K::SOURCE) && object.has_class_of(zone) => Place::Own,
        Some(_) => Place::Other,
        None => Place::Outside,
    }
}

#[cfg(test)]
mod tests;
