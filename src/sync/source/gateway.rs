//! Names from routes at Gateways.
//!
//! A Gateway decides about a target, and each of its routes about names with that target. `decision` says which names a
//! route has; a change of a Gateway or ListenerSet is applied to its routes in parts.

pub mod decision;
pub mod types;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names::object::{Rules, Targeted, has_own_target, has_room, id_of, uid};
use super::names::shared::{Claim, ObjectId, Observation};
use super::names::source::{NameSource, Objects, WatchRequest, WatchedKind};
use super::names::state::NameState;
use super::selection::Selection;
use crate::model::clusters;
use crate::model::link::{Annotations, Link};
use crate::model::owner::{Source, Zone};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::sync::controller::turns::Turns;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations::{self, TARGET, TargetEntries};
use crate::sync::k8s::service::IngressEntry;
use crate::sync::k8s::watch::{GATEWAYS, GRPC_ROUTES, HTTP_ROUTES, LISTENER_SETS, TLS_ROUTES};
use decision::{Decision, Listeners, Route, parent};
use types::{Gateway, GrpcRoute, HttpRoute, ListenerSet, Object, RouteObject, TlsRoute};

/// How long the routes of changed Gateways are worked on before other changes get their turn.
const TURN: Duration = Duration::from_millis(5);
const HINT: &str = "deploy/sources/ grants the permission";

/// The source of names from routes.
#[derive(Default)]
pub struct Gateways {
    gateways: HashMap<ObjectId, Gateway>,
    listener_sets: HashMap<ObjectId, ListenerSet>,
    routes: HashMap<ObjectId, KnownRoute>,
    /// The routes and ListenerSets of Gateways, and the routes of ListenerSets.
    children: HashMap<ObjectId, BTreeSet<ObjectId>>,
    /// The routes that don't have a change of their Gateway or ListenerSet yet: what has changed, and their number
    /// among those of their namespace.
    waiting: HashMap<ObjectId, (Change, u64)>,
    /// The same routes in their order.
    turns: Turns<ObjectId>,
    last_number: u64,
    /// The Gateways and ListenerSets whose targets depend on other objects.
    dependent: BTreeSet<ObjectId>,
    /// The rules under which all routes were decided.
    rules: Option<Rules>,
}

/// What has changed for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// The addresses of a Gateway or ListenerSet.
    Target,
    Listeners,
}

/// A route, and the targets that it has for itself, by the Gateway or ListenerSet that decides about them.
struct KnownRoute {
    route: Route,
    own: Vec<(ObjectId, Arc<Link>)>,
}

impl Gateways {
    fn take_gateway(&mut self, gateway: Gateway, state: &mut NameState) {
        let id = id_of(RegardingKind::Gateway, &gateway.metadata);
        let before = self.gateways.get(&id);
        let has_same_listeners = before.is_some_and(|before| before.spec == gateway.spec);
        self.gateways.insert(id.clone(), gateway);
        if is_evaluated(state) {
            let has_same_target = self.observe_target(&id, state.is_listed(), state);
            match (has_same_listeners, has_same_target) {
                (true, true) => {}
                (true, false) => self.mark(&id, Change::Target),
                (false, _) => self.mark(&id, Change::Listeners),
            }
        }
    }

    /// Takes what is behind the names of routes at a Gateway, or at a ListenerSet with a target of its own. Returns
    /// whether that is as before.
    fn observe_target(&mut self, id: &ObjectId, is_reported: bool, state: &mut NameState) -> bool {
        let before = state.target(id).cloned();
        let (metadata, addresses) = match (self.gateways.get(id), self.listener_sets.get(id)) {
            (Some(gateway), _) => (&gateway.metadata, gateway.addresses()),
            (None, Some(set)) if has_target(set, &state.rules) => (&set.metadata, Vec::new()),
            _ => {
                self.dependent.remove(id);
                state.remove_target(id);
                return before.is_none();
            }
        };
        let (link, unusable) = observe(id, metadata, &addresses, &state.rules, before.as_ref());
        let is_dependent = has_own_target(metadata, &addresses, &state.rules.policy);
        // The objects that its target depends on may not be listed yet.
        if !is_dependent || is_reported {
            state.report(id, uid(metadata), &unusable);
        }
        if !is_dependent {
            self.dependent.remove(id);
        } else if has_room(self.dependent.iter().map(|id| &id.key), &id.key) {
            self.dependent.insert(id.clone());
        }
        let is_same = before.is_some_and(|before| Arc::ptr_eq(&before, &link));
        state.set_target(id, link);
        is_same
    }

    fn take_listener_set(&mut self, set: ListenerSet, state: &mut NameState) {
        let id = id_of(RegardingKind::ListenerSet, &set.metadata);
        self.leave(&id);
        if let Some(gateway) = gateway_of(&set) {
            self.children.entry(gateway).or_default().insert(id.clone());
        }
        let now = (set.spec.clone(), set.is_accepted());
        let before = self.listener_sets.insert(id.clone(), set);
        let has_same_listeners =
            before.is_some_and(|before| (before.spec.clone(), before.is_accepted()) == now);
        let had_target = state.target(&id).is_some();
        if is_evaluated(state) {
            let has_same_target = self.observe_target(&id, state.is_listed(), state);
            let has_target = state.target(&id).is_some();
            match (has_same_listeners && had_target == has_target, has_same_target) {
                (true, true) => {}
                (true, false) => self.mark(&id, Change::Target),
                (false, _) => self.mark(&id, Change::Listeners),
            }
        }
    }

    fn take_route(&mut self, kind: RegardingKind, object: RouteObject, state: &mut NameState) {
        let id = id_of(kind, &object.metadata);
        self.leave(&id);
        let route = Route::new(object, &state.rules.policy);
        for attachment in &route.accepted {
            self.children.entry(attachment.parent.clone()).or_default().insert(id.clone());
        }
        let own = self.routes.remove(&id).map(|before| before.own).unwrap_or_default();
        self.routes.insert(id.clone(), KnownRoute { route, own });
        if is_evaluated(state) {
            self.evaluate(&id, state);
        }
    }

    /// Removes an object from those of its parents.
    fn leave(&mut self, id: &ObjectId) {
        let parents: Vec<ObjectId> = match id.kind {
            RegardingKind::ListenerSet => {
                self.listener_sets.get(id).and_then(gateway_of).into_iter().collect()
            }
            _ => {
                let accepted = self.routes.get(id).map(|known| &known.route.accepted[..]).unwrap_or_default();
                accepted.iter().map(|attachment| attachment.parent.clone()).collect()
            }
        };
        for parent in parents {
            if let Some(children) = self.children.get_mut(&parent) {
                children.remove(id);
                if children.is_empty() {
                    self.children.remove(&parent);
                }
            }
        }
    }

    /// Records that the routes of a Gateway or ListenerSet don't have a change of it yet.
    fn mark(&mut self, parent: &ObjectId, change: Change) {
        let Self { children, waiting, turns, last_number, .. } = self;
        let children = |parent: &ObjectId| children.get(parent).into_iter().flatten();
        let is_set = |child: &&ObjectId| child.kind == RegardingKind::ListenerSet;
        let routes = children(parent).chain(children(parent).filter(is_set).flat_map(children));
        for route in routes.filter(|child| !is_set(child)) {
            let known = waiting.entry(route.clone()).or_insert_with(|| {
                *last_number += 1;
                turns.add(route.key.namespace(), *last_number, route.clone());
                (change, *last_number)
            });
            known.0 = known.0.max(change);
        }
    }

    fn stop_waiting(&mut self, id: &ObjectId) {
        if let Some((_, number)) = self.waiting.remove(id) {
            self.turns.remove(id.key.namespace(), number);
        }
    }

    /// Returns the listeners of the parents that have accepted a route.
    fn listeners<'a>(&'a self, route: &'a Route, rules: &Rules) -> Vec<Listeners<'a>> {
        let mut all = Vec::new();
        for attachment in &route.accepted {
            let set = self.listener_sets.get_key_value(&attachment.parent);
            let set = set.filter(|(_, set)| set.is_accepted());
            let parent = match attachment.parent.kind {
                RegardingKind::ListenerSet => set.and_then(|(_, set)| gateway_of(set)),
                _ => Some(attachment.parent.clone()),
            };
            let Some((gateway, object)) = parent.and_then(|id| self.gateways.get_key_value(&id)) else {
                continue;
            };
            let target = set.filter(|(_, set)| has_target(set, rules)).map_or(gateway, |(id, _)| id);
            let listeners = set.map_or(&object.spec.listeners, |(_, set)| &set.spec.listeners);
            all.push(Listeners { attachment, listeners, target, class: &object.spec.gateway_class_name });
        }
        all
    }

    /// Decides about the names of a route.
    fn evaluate(&mut self, id: &ObjectId, state: &mut NameState) {
        self.stop_waiting(id);
        let Some(KnownRoute { route, own }) = self.routes.get(id) else { return };
        let Decision { names, settings, mut unusable } =
            route.decide(id, &self.listeners(route, &state.rules), &state.rules);
        unusable.extend(unwatched(route, state.selection()));
        let mut now: Vec<(ObjectId, Arc<Link>)> = Vec::new();
        let mut claims = Vec::with_capacity(names.len());
        for (name, parent) in names {
            let Some(target) = state.target(parent) else { continue };
            let known = now.iter().find(|(known, _)| known == parent).map(|(_, link)| Arc::clone(link));
            let target = known.unwrap_or_else(|| {
                let before = own.iter().find(|(known, _)| known == parent).map(|(_, link)| link);
                let link = with_settings(id, target, &settings, before);
                now.push((parent.clone(), Arc::clone(&link)));
                link
            });
            claims.push(Claim { name, target });
        }
        let uid = route.uid.clone();
        state.report(id, &uid.to_string(), &unusable);
        state.set_names(id, Observation::new(route.created, uid, claims));
        now.retain(|_| settings != Annotations::default());
        if let Some(known) = self.routes.get_mut(id) {
            known.own = now;
        }
    }

    /// Gives the names of a route the present addresses of its Gateways and ListenerSets.
    fn update_targets(&self, id: &ObjectId, state: &mut NameState) {
        let Some(KnownRoute { route, .. }) = self.routes.get(id) else { return };
        for Listeners { target, .. } in self.listeners(route, &state.rules) {
            if let Some(target) = state.target(target).cloned() {
                state.update_target(id, &target);
            }
        }
    }
}

/// Returns what is behind the names of routes at a Gateway or ListenerSet, and what of it is invalid or denied. `before`
/// is what was behind them before.
fn observe(
    id: &ObjectId,
    metadata: &ObjectMeta,
    addresses: &[IngressEntry],
    rules: &Rules,
    before: Option<&Arc<Link>>,
) -> (Arc<Link>, Vec<Rejection>) {
    let mut unusable = Vec::new();
    let (namespace, name) = id.key.parts();
    let key = match id.kind {
        // No Gateway has a name with `_`.
        RegardingKind::ListenerSet => ServiceKey::new(namespace, &format!("{name}._listenerset")),
        _ => id.key.clone(),
    };
    let key = Source::GATEWAYS.target_key(&key);
    let targeted = Targeted { key, metadata, status: addresses, names: &[], before };
    let link = targeted.target(Annotations::default(), rules, &mut unusable);
    unusable.extend(annotations::unknown(metadata, &[], "Gateways and ListenerSets", &[TARGET]));
    (link, unusable)
}

/// Returns whether a ListenerSet has a target in place of its Gateway's.
fn has_target(set: &ListenerSet, rules: &Rules) -> bool {
    TargetEntries::of(&set.metadata, &rules.policy.annotation_prefixes, &[]).annotated.is_some()
}

/// Returns for each of these objects whether it has names in the zones, and what of it is denied or ignored.
#[must_use]
pub fn check(
    objects: Vec<Object>,
    selection: &Selection,
    rules: &Rules,
) -> Vec<(ObjectId, bool, Vec<Rejection>)> {
    let mut all = Gateways::default();
    let watched =
        |object: &Object| selection.watches(id_of(object.kind(), object.metadata()).key.namespace());
    for object in objects.into_iter().filter(watched) {
        let id = id_of(object.kind(), object.metadata());
        match object {
            Object::Gateway(gateway) => drop(all.gateways.insert(id, gateway)),
            Object::ListenerSet(set) => drop(all.listener_sets.insert(id, set)),
            Object::Route(_, route) if selection.takes(&route.metadata) => {
                let route = Route::new(route, &rules.policy);
                all.routes.insert(id, KnownRoute { route, own: Vec::new() });
            }
            Object::Route(..) => {}
        }
    }
    let gateways = all.gateways.iter().map(|(id, gateway)| (id, &gateway.metadata, gateway.addresses()));
    let sets = all.listener_sets.iter().filter(|(_, set)| has_target(set, rules));
    let targets = gateways.chain(sets.map(|(id, set)| (id, &set.metadata, Vec::new())));
    // Whether a target in our zones is allowed depends on the objects of all files.
    let plain =
        targets.filter(|(_, metadata, addresses)| !has_own_target(metadata, addresses, &rules.policy)).map(
            |(id, metadata, addresses)| (id.clone(), false, observe(id, metadata, &addresses, rules, None).1),
        );
    let routes = all.routes.iter().map(|(id, KnownRoute { route, .. })| {
        let Decision { names, mut unusable, .. } = route.decide(id, &all.listeners(route, rules), rules);
        unusable.extend(unwatched(route, selection));
        (id.clone(), !names.is_empty(), unusable)
    });
    let mut found: Vec<_> = plain.chain(routes).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

/// Returns whether names follow from the objects that are known: before the first lists are complete some aren't.
fn is_evaluated(state: &NameState) -> bool {
    state.is_listed() || state.is_complete()
}

fn gateway_of(set: &ListenerSet) -> Option<ObjectId> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or("default");
    parent(&set.spec.parent_ref, namespace).filter(|parent| parent.kind == RegardingKind::Gateway)
}

/// Returns what is behind the names of a route at a Gateway: the Gateway's target, or a version of it with the settings
/// of the route, if it has some.
fn with_settings(
    id: &ObjectId,
    gateway: &Arc<Link>,
    settings: &Annotations,
    before: Option<&Arc<Link>>,
) -> Arc<Link> {
    if *settings == Annotations::default() {
        return Arc::clone(gateway);
    }
    let (namespace, name) = gateway.key.parts();
    let (object, word) = name.rsplit_once('.').unwrap_or((name, ""));
    // The cluster is that of the Gateway.
    let (route_namespace, route) = (clusters::split(id.key.namespace()).1, id.key.name());
    let kind = id.kind.api().1.to_ascii_lowercase();
    let link = Link {
        // No object has a name with `_`.
        key: ServiceKey::new(namespace, &format!("{object}._{kind}.{route_namespace}.{route}.{word}")),
        annotations: settings.clone(),
        last_queried: before.unwrap_or(gateway).last_queried.clone(),
        ..Link::clone(gateway)
    };
    before.filter(|before| ***before == link).cloned().unwrap_or_else(|| Arc::new(link))
}

/// Returns the Gateways and ListenerSets of a route whose namespaces aren't read.
fn unwatched(route: &Route, selection: &Selection) -> Option<Rejection> {
    let mut rejection = Rejection::new(RejectedField::Target, "the parent");
    let parents = route.accepted.iter().map(|attachment| &attachment.parent);
    for ObjectId { key, kind } in parents.filter(|parent| !selection.watches(parent.key.namespace())) {
        rejection.reject(&format!("{} {key}", kind.api().1), "--watch-namespaces doesn't have its namespace");
    }
    rejection.non_empty()
}

const fn kind(
    kind: RegardingKind,
    many: &'static str,
    watch: &'static str,
    versions: &'static [&'static str],
) -> WatchedKind {
    WatchedKind { kind, many, watch, hint: HINT, versions }
}

impl NameSource for Gateways {
    type Object = Object;
    const SOURCE: Source = Source::GATEWAYS;
    const MANY: &'static str = "routes";
    const KINDS: &'static [WatchedKind] = &[
        kind(RegardingKind::Gateway, "Gateways", GATEWAYS, &["v1", "v1beta1", "v1alpha2"]),
        kind(RegardingKind::ListenerSet, "ListenerSets", LISTENER_SETS, &["v1"]),
        kind(RegardingKind::HttpRoute, "HTTPRoutes", HTTP_ROUTES, &["v1", "v1beta1", "v1alpha2"]),
        kind(RegardingKind::GrpcRoute, "GRPCRoutes", GRPC_ROUTES, &["v1", "v1alpha2"]),
        kind(RegardingKind::TlsRoute, "TLSRoutes", TLS_ROUTES, &["v1", "v1alpha3", "v1alpha2"]),
    ];

    fn reads(kind: RegardingKind, zones: &[Zone]) -> bool {
        let routes = Source { kind: kind.api().1.into(), ..Source::GATEWAYS };
        matches!(kind, RegardingKind::Gateway | RegardingKind::ListenerSet)
            || zones.iter().any(|zone| zone.has(&routes))
    }

    fn watch(kind: RegardingKind, request: WatchRequest) -> Objects<Object> {
        match kind {
            RegardingKind::Gateway => request.objects(Object::Gateway),
            RegardingKind::ListenerSet => request.objects(Object::ListenerSet),
            RegardingKind::GrpcRoute => {
                request.objects(|route: GrpcRoute| Object::Route(RegardingKind::GrpcRoute, route.into()))
            }
            RegardingKind::TlsRoute => {
                request.objects(|route: TlsRoute| Object::Route(RegardingKind::TlsRoute, route.into()))
            }
            _ => request.objects(|route: HttpRoute| Object::Route(RegardingKind::HttpRoute, route.into())),
        }
    }

    fn keys(&self, kind: RegardingKind, _: &NameState) -> HashSet<ServiceKey> {
        match kind {
            RegardingKind::Gateway => self.gateways.keys().map(|id| id.key.clone()).collect(),
            RegardingKind::ListenerSet => self.listener_sets.keys().map(|id| id.key.clone()).collect(),
            _ => self.routes.keys().filter(|id| id.kind == kind).map(|id| id.key.clone()).collect(),
        }
    }

    /// Gateways and ListenerSets weigh as many as they have routes.
    fn weight(&self, id: &ObjectId, state: &NameState) -> usize {
        let children = |id: &ObjectId| self.children.get(id).into_iter().flatten();
        let of_sets = children(id).map(|child| children(child).count());
        (state.number_of_names(id) + children(id).count() + of_sets.sum::<usize>()).max(1)
    }

    fn take(&mut self, object: Object, state: &mut NameState) {
        let metadata = object.metadata();
        state.note_version(metadata);
        let id = id_of(object.kind(), metadata);
        // Gateways and ListenerSets neither opt in nor out.
        let is_selected = match object {
            Object::Route(..) => state.selection().takes(metadata),
            _ => state.selection().watches(id.key.namespace()),
        };
        if metadata.deletion_timestamp.is_some() || !is_selected {
            return self.remove(&id, state);
        }
        match object {
            Object::Gateway(gateway) => self.take_gateway(gateway, state),
            Object::ListenerSet(set) => self.take_listener_set(set, state),
            Object::Route(kind, route) => self.take_route(kind, route, state),
        }
    }

    fn remove(&mut self, id: &ObjectId, state: &mut NameState) {
        self.leave(id);
        match id.kind {
            RegardingKind::Gateway => drop(self.gateways.remove(id)),
            RegardingKind::ListenerSet => drop(self.listener_sets.remove(id)),
            _ => {
                self.routes.remove(id);
                self.stop_waiting(id);
            }
        }
        self.dependent.remove(id);
        state.remove(id);
        if is_evaluated(state) {
            self.mark(id, Change::Listeners);
        }
    }

    fn end_lists(&mut self, state: &mut NameState) {
        let is_same = |rules: &Rules| {
            Arc::ptr_eq(&rules.zones, &state.rules.zones) && Arc::ptr_eq(&rules.policy, &state.rules.policy)
        };
        if self.rules.as_ref().is_some_and(is_same) {
            return;
        }
        self.rules = Some(state.rules.clone());
        let parents: Vec<ObjectId> = self.gateways.keys().chain(self.listener_sets.keys()).cloned().collect();
        for id in parents {
            self.observe_target(&id, state.is_listed(), state);
        }
        let routes: Vec<ObjectId> = self.routes.keys().cloned().collect();
        routes.iter().for_each(|id| self.evaluate(id, state));
    }

    fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn work(&mut self, state: &mut NameState) {
        let begun = Instant::now();
        while let Some((_, id)) = self.turns.take(|_| true) {
            match self.waiting.remove(&id) {
                Some((Change::Target, _))
                    if self.routes.get(&id).is_some_and(|known| known.own.is_empty()) =>
                {
                    self.update_targets(&id, state);
                }
                _ => self.evaluate(&id, state),
            }
            if begun.elapsed() >= TURN {
                break;
            }
        }
    }

    fn has_dependent(&self) -> bool {
        !self.dependent.is_empty()
    }

    fn recheck(&mut self, state: &mut NameState) {
        for id in self.dependent.clone() {
            if !self.observe_target(&id, true, state) {
                self.mark(&id, Change::Target);
            }
        }
    }
}

#[cfg(test)]
mod tests;
