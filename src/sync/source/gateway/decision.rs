//! Which names a route has, and at which Gateways. Pure.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use smallvec::SmallVec;

use super::types::{GROUP, Host, Listener, ParentRef, RouteObject};
use crate::model::clusters;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::Annotations;
use crate::model::owner::{Source, Zone};
use crate::model::rejection::{MAX_ENTRIES, RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations::{HostnameSource, OF_ROUTES};
use crate::sync::k8s::k8s_gateway::is_ignored;
use crate::sync::source::names::object::{Asking, Rules, created, id_of, uid, zone_of};
use crate::sync::source::names::shared::ObjectId;

/// Maximum number of references of a route to its parents that count, and of its statuses, as in the CRDs.
const MAX_PARENTS: usize = 32;
/// Maximum number of listeners of an object that count, as in the CRDs.
const MAX_LISTENERS: usize = 64;
/// Maximum number of listeners of a route's parents that count: each is compared with each of its hostnames.
const MAX_OF_ROUTE: usize = 256;

/// What is kept of a route.
#[derive(Debug)]
pub struct Route {
    pub uid: Uid,
    pub created: i64,
    hostnames: Box<[Host]>,
    /// The annotations that may matter for names.
    annotations: BTreeMap<String, String>,
    /// Whether the route has opted out of the zones of *k8s_gateway*.
    is_ignored: bool,
    /// Where the route is accepted.
    pub accepted: Box<[Attachment]>,
    /// A parent that has refused it.
    refused: Option<ObjectId>,
}

/// The part of a Gateway or ListenerSet at which a route is accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    pub parent: ObjectId,
    section: Option<Box<str>>,
    port: Option<i32>,
}

/// The listeners of a Gateway or ListenerSet, as a route finds them.
#[derive(Clone, Copy, Debug)]
pub struct Listeners<'a> {
    pub attachment: &'a Attachment,
    pub listeners: &'a [Listener],
    /// The Gateway or ListenerSet that decides about the target.
    pub target: &'a ObjectId,
    pub class: &'a str,
}

/// What a route asks for.
#[derive(Debug)]
pub struct Decision<'a> {
    /// The names, each with a namespace whose objects share it, and the Gateway or ListenerSet that decides about its
    /// target.
    pub names: Vec<(ServiceKey, &'a ObjectId)>,
    pub settings: Annotations,
    pub unusable: Vec<Rejection>,
}

/// Where a route may have a name.
#[derive(Debug)]
struct Place<'a> {
    /// The namespace of the listener.
    namespace: &'a str,
    target: &'a ObjectId,
    class: &'a str,
    /// Whether the route may have what the namespace of the listener may.
    hands_on: bool,
}

type Places<'a> = SmallVec<[Place<'a>; 1]>;

// === impl Route ===

impl Route {
    /// Takes what is needed of an object; `policy` says which annotations have names.
    #[must_use]
    pub fn new(object: RouteObject, policy: &HostnamePolicy) -> Self {
        let RouteObject { metadata, spec, status } = object;
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let refs = &spec.parent_refs[..spec.parent_refs.len().min(MAX_PARENTS)];
        let wanted: Vec<Attachment> =
            refs.iter().filter_map(|parent| attachment(parent, namespace)).collect();
        let (mut accepted, mut refused) = (Vec::new(), None);
        for status in status.parents.iter().take(MAX_PARENTS) {
            let found = attachment(&status.parent_ref, namespace).filter(|found| wanted.contains(found));
            match (found, status.is_accepted()) {
                (Some(found), Some(true)) if !accepted.contains(&found) => accepted.push(found),
                (Some(found), Some(false)) => refused = Some(found.parent),
                _ => {}
            }
        }
        let is_used = |key: &String| policy.may_count(key);
        Self {
            uid: uid(&metadata).into(),
            created: created(&metadata),
            is_ignored: is_ignored(&metadata),
            hostnames: spec.hostnames.into(),
            annotations: metadata.annotations.into_iter().flatten().filter(|(key, _)| is_used(key)).collect(),
            accepted: accepted.into(),
            refused,
        }
    }

    /// Returns what the route asks for, given the listeners of the parents that have accepted it.
    #[must_use]
    pub fn decide<'a>(&'a self, id: &ObjectId, parents: &[Listeners<'a>], rules: &Rules) -> Decision<'a> {
        let metadata = self.metadata(id);
        let mut all = parents.iter().flat_map(|parent| parent.places(id));
        let listeners: Vec<(&Listener, Place<'a>)> = all.by_ref().take(MAX_OF_ROUTE).collect();
        let mut ignored = Rejection::new(RejectedField::Hostname, "the listeners of its parents");
        ignored.ignore(all.count(), "the first 256 count");
        let mut unusable: Vec<Rejection> = ignored.non_empty().into_iter().collect();
        let prefixes = &rules.policy.annotation_prefixes;
        let counting = HostnameSource::of(&metadata, "gateway-hostname-source", prefixes, &mut unusable);
        let mut wanted = self.wanted(&listeners, counting, rules, id.key.namespace(), &mut unusable);
        let of_k8s_gateway = self.names_of_k8s_gateway(counting, rules);
        for parent in parents {
            of_k8s_gateway.iter().for_each(|name| add(&mut wanted, name, &parent.place()));
        }
        unusable.extend(self.unaccepted(&of_k8s_gateway));
        let places = |name: &str| match wanted.get(name) {
            Some(places) => places.iter().collect(),
            // A name of an annotation.
            None => containing(name, &listeners),
        };
        let has_class = |place: &Place<'_>, name: &str| {
            zone_of(name, &rules.zones).is_some_and(|zone| place.has_class_of(zone))
        };
        let hands_on = |place: &Place<'_>, name: &str| {
            place.hands_on && rules.policy.check_granted(place.namespace, name).is_ok()
        };
        let asking = Asking {
            source: Source { kind: id.kind.api().1.into(), ..Source::GATEWAYS }
                .in_cluster_of(id.key.namespace()),
            one: "a route",
            many: "routes",
            metadata: &metadata,
            hosts: wanted.keys().copied().collect(),
            is_ignored: self.is_ignored,
            counting,
            annotations: &OF_ROUTES,
            other_zone: "its zone doesn't have the names of routes, or not of Gateways of this class; or no \
                         listener at which the route is accepted has this name",
            has_class_of: &|name, zone| places(name).iter().any(|place| place.has_class_of(zone)),
            is_handed_on: &|name| {
                places(name).iter().any(|place| has_class(place, name) && hands_on(place, name))
            },
        };
        let granted = asking.hostnames(rules, &mut unusable);
        let settings = asking.settings(rules, &mut unusable);
        let mut names = Vec::new();
        for name in &granted {
            let is_own = rules.policy.check_granted(id.key.namespace(), name).is_ok();
            let first = names.len();
            for place in places(name) {
                if has_class(place, name) && (is_own || hands_on(place, name)) {
                    let found = (ServiceKey::new(place.namespace, name), place.target);
                    if !names[first..].contains(&found) {
                        names.push(found);
                    }
                }
            }
        }
        Decision { names, settings, unusable }
    }

    /// Returns what is kept of the metadata.
    fn metadata(&self, id: &ObjectId) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(id.key.namespace().to_owned()),
            annotations: Some(self.annotations.clone()),
            ..ObjectMeta::default()
        }
    }

    /// Returns the names in zones of *k8s_gateway*: the route's hostnames, whatever those of listeners are.
    fn names_of_k8s_gateway(&self, counting: HostnameSource, rules: &Rules) -> Vec<String> {
        let hostnames = self.hostnames.iter().filter(|_| counting != HostnameSource::Annotations);
        let names = hostnames.flat_map(|host| Zone::k8s_gateway_names(&rules.zones, host));
        names.take(MAX_ENTRIES + 1).collect()
    }

    /// Returns that these names aren't served, if a parent has refused the route and none has accepted it.
    fn unaccepted(&self, names: &[String]) -> Option<Rejection> {
        let parent = self.refused.as_ref().filter(|_| self.accepted.is_empty())?;
        let mut rejection = Rejection::new(RejectedField::Hostname, "the hostname");
        let why = not_accepted(parent);
        names.iter().for_each(|name| rejection.reject(name, &why));
        rejection.non_empty()
    }

    /// Returns the hostnames that route and listeners have in common, as far as they count, and adds hostnames of our zones
    /// to `unusable` that no listener has.
    fn wanted<'a>(
        &'a self,
        listeners: &[(&'a Listener, Place<'a>)],
        counting: HostnameSource,
        rules: &Rules,
        namespace: &str,
        unusable: &mut Vec<Rejection>,
    ) -> IndexMap<&'a str, Places<'a>> {
        let mut wanted = IndexMap::new();
        let is_of_k8s_gateway =
            |host: &str| zone_of(host, &rules.zones).is_some_and(|zone| zone.k8s_gateway.is_some());
        // The hostnames of listeners aren't those of the route's spec.
        let has_none = counting == HostnameSource::Spec && self.hostnames.is_empty();
        if has_none || counting == HostnameSource::Annotations {
            return wanted;
        }
        if self.hostnames.is_empty() {
            for (listener, place) in listeners {
                let host = hostname(listener).filter(|host| !is_of_k8s_gateway(host));
                host.into_iter().for_each(|host| add(&mut wanted, host, place));
            }
            return wanted;
        }
        let mut rejection = Rejection::new(RejectedField::Hostname, "the hostname");
        let source = Source::GATEWAYS.in_cluster_of(namespace);
        let is_ours = |host: &Host| zone_of(host, &rules.zones).is_some_and(|zone| zone.has(&source));
        let hostnames = self.hostnames.iter().filter(|host| !is_of_k8s_gateway(host));
        let mut ours = hostnames.filter(|host| host.starts_with('*') || is_ours(host));
        for host in ours.by_ref().take(MAX_ENTRIES) {
            let mut is_found = false;
            for (listener, place) in listeners {
                let name = hostname(listener).map_or(Some(&**host), |listener| overlap(host, listener));
                let name = name.filter(|name| !is_of_k8s_gateway(name));
                is_found |= name.is_some();
                name.into_iter().for_each(|name| add(&mut wanted, name, place));
            }
            let why = match (&self.refused, listeners.is_empty()) {
                (Some(parent), true) if self.accepted.is_empty() => not_accepted(parent),
                (_, false) => "no listener at which the route is accepted has it".to_owned(),
                _ => continue,
            };
            if !is_found && is_ours(host) {
                rejection.reject(host, &why);
            }
        }
        rejection.ignore(ours.count(), "the first 100 in lb-linker's zones count");
        unusable.extend(rejection.non_empty());
        wanted
    }
}

// === impl Listeners ===

impl<'a> Listeners<'a> {
    /// Returns where a route has names whatever the hostnames of listeners are.
    fn place(&self) -> Place<'a> {
        let Self { attachment: Attachment { parent, .. }, target, class, .. } = *self;
        Place { namespace: parent.key.namespace(), target, class, hands_on: false }
    }

    /// Returns the listeners that a route is attached to.
    fn places(&self, route: &ObjectId) -> impl Iterator<Item = (&'a Listener, Place<'a>)> + use<'a> {
        let Self { attachment: Attachment { parent, section, port }, target, class, .. } = *self;
        let namespace = parent.key.namespace();
        let fits = |listener: &&Listener| {
            section.as_deref().is_none_or(|section| listener.name == *section)
                && port.is_none_or(|port| listener.port == Some(port))
                && allows_kind(listener, route.kind)
                && may_allow_namespace(listener, namespace == route.key.namespace())
        };
        let fitting: Vec<&'a Listener> = self.listeners.iter().take(MAX_LISTENERS).filter(fits).collect();
        // One listener suffices for `Accepted`. A selector isn't evaluated here: the route has passed it if no listener
        // with another one may have accepted the route.
        let namespaces = |listener: &'a Listener| &listener.allowed_routes.namespaces;
        let is_alone = fitting.iter().all(|listener| namespaces(listener) == namespaces(fitting[0]));
        fitting.into_iter().map(move |listener| {
            let is_selected = namespaces(listener).from.as_deref() != Some("Selector") || is_alone;
            let hands_on = is_selected && hostname(listener).is_some();
            (listener, Place { namespace, target, class, hands_on })
        })
    }
}

impl Place<'_> {
    fn has_class_of(&self, zone: &Zone) -> bool {
        let classes = &zone.gateway_classes;
        classes.is_empty() || classes.iter().any(|class| **class == *self.class)
    }
}

fn not_accepted(parent: &ObjectId) -> String {
    format!("{} {} hasn't accepted the route", parent.kind.api().1, parent.key)
}

/// Returns the part of a Gateway or ListenerSet that a reference names; `None` for an object of another kind.
fn attachment(reference: &ParentRef, namespace: &str) -> Option<Attachment> {
    let ParentRef { name, section_name, port, .. } = reference;
    let parent = parent(reference, namespace)?;
    let section = section_name.as_deref().filter(|section| !section.is_empty()).map(Into::into);
    (!name.is_empty()).then_some(Attachment { parent, section, port: *port })
}

/// Returns the Gateway or ListenerSet that an object in this namespace refers to.
#[must_use]
pub fn parent(reference: &ParentRef, namespace: &str) -> Option<ObjectId> {
    let kind = match (reference.group.as_deref().unwrap_or(GROUP), reference.kind.as_deref()) {
        (GROUP, None | Some("Gateway")) => RegardingKind::Gateway,
        (GROUP, Some("ListenerSet")) => RegardingKind::ListenerSet,
        _ => return None,
    };
    let of_cluster = |named| clusters::in_cluster(clusters::cluster_of(namespace), named);
    let namespace = reference.namespace.as_deref().map_or(namespace.into(), of_cluster);
    let metadata = ObjectMeta {
        namespace: Some(namespace.into_owned()),
        name: Some(reference.name.clone()),
        ..ObjectMeta::default()
    };
    // In a remote cluster the text of a reference may be any.
    Some(id_of(kind, &metadata)).filter(|id| id.key.cluster().is_none() || id.key.is_well_formed())
}

/// Returns whether routes of a kind may be attached to a listener: a TLSRoute only to one of protocol TLS.
fn allows_kind(listener: &Listener, kind: RegardingKind) -> bool {
    let fits = match &*listener.protocol {
        "HTTP" | "HTTPS" => kind != RegardingKind::TlsRoute,
        "TLS" => kind == RegardingKind::TlsRoute,
        _ => false,
    };
    let kinds = &listener.allowed_routes.kinds;
    let is_allowed = kinds
        .iter()
        .any(|allowed| allowed.group.as_deref().unwrap_or(GROUP) == GROUP && allowed.kind == kind.api().1);
    fits && (kinds.is_empty() || is_allowed)
}

/// Returns whether a listener may allow routes of a namespace, as far as that is known without its labels.
fn may_allow_namespace(listener: &Listener, is_own: bool) -> bool {
    match listener.allowed_routes.namespaces.from.as_deref() {
        None | Some("Same") => is_own,
        Some("All" | "Selector") => true,
        Some(_) => false,
    }
}

fn hostname(listener: &Listener) -> Option<&str> {
    listener.hostname.as_deref().filter(|host| !host.is_empty())
}

/// Returns the narrower one of two hostnames; `None` if they have no name in common.
fn overlap<'a>(one: &'a str, other: &'a str) -> Option<&'a str> {
    match contains(one, other) {
        true => Some(other),
        false => contains(other, one).then_some(one),
    }
}

/// Returns whether a hostname equals another one, or is a wildcard for it: at any depth, unlike in certificates.
fn contains(wide: &str, narrow: &str) -> bool {
    wide == narrow || wide.strip_prefix('*').is_some_and(|suffix| narrow.ends_with(suffix))
}

/// Returns where a name lies within the hostname of a listener.
fn containing<'a, 'b>(
    name: &str,
    listeners: &'b [(&'a Listener, Place<'a>)],
) -> SmallVec<[&'b Place<'a>; 1]> {
    let has = |listener: &Listener| hostname(listener).is_none_or(|host| contains(host, name));
    listeners.iter().filter(|(listener, _)| has(listener)).map(|(_, place)| place).collect()
}

fn add<'n, 'a>(wanted: &mut IndexMap<&'n str, Places<'a>>, name: &'n str, place: &Place<'a>) {
    let Place { namespace, target, class, hands_on } = *place;
    let places = wanted.entry(name).or_default();
    let known = places.iter_mut().find(|known| known.namespace == namespace && known.target == target);
    match known {
        Some(known) => known.hands_on |= hands_on,
        None => places.push(Place { namespace, target, class, hands_on }),
    }
}

#[cfg(test)]
mod tests;
