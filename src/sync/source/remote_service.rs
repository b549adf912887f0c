//! Names from the load balancers of a remote cluster. They have default names below `<cluster>.<zone>`, and no external
//! target.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::names::object::{has_own_target, has_room};
use super::names::shared::{Claim, ObjectId, Observation};
use super::names::source::{NameSource, Objects, WatchRequest, WatchedKind};
use super::names::state::NameState;
use super::unselected::UnselectedServices;
use crate::model::clusters;
use crate::model::link::{Annotations, Link, RANK_WITHOUT_CREATION_TIME};
use crate::model::names;
use crate::model::owner::{Source, Zone};
use crate::model::rejection::MAX_ENTRY_BYTES;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::service::{LOAD_BALANCER, Service};
use crate::sync::k8s::watch::LOAD_BALANCERS;

/// The source of names from the load balancers of a remote cluster.
pub struct RemoteServices {
    /// All load balancers, which StableNames may have as sources.
    known: Arc<UnselectedServices>,
    /// The load balancers with names whose targets depend on other objects.
    dependent: BTreeMap<ServiceKey, Service>,
}

impl RemoteServices {
    /// Returns the source. It records all load balancers in `known`, with names or not.
    #[must_use]
    pub fn new(known: Arc<UnselectedServices>) -> Self {
        Self { known, dependent: BTreeMap::new() }
    }

    fn observe(&mut self, service: Service, is_checked_again: bool, state: &mut NameState) {
        let id = ObjectId { key: service.key(), kind: RegardingKind::Service };
        if !service.is_living_load_balancer() {
            return self.remove(&id, state);
        }
        let (observed, unusable) = service.observe(&state.rules.policy, &state.rules.store);
        self.known.insert(observed.clone());
        if !state.selection().selects(&service) {
            self.dependent.remove(&id.key);
            return state.remove(&id);
        }
        let status = &service.status.load_balancer.ingress;
        let is_dependent = has_own_target(&service.metadata, status, &state.rules.policy);
        // The objects that its target depends on may not be listed yet.
        if !is_dependent || state.is_listed() || is_checked_again {
            state.report(&id, service.uid(), &unusable);
        }
        let mut names = default_names(&id.key, state.zones());
        names.extend(observed.annotations.hostnames.iter().map(ToString::to_string));
        let (created, uid) = (observed.created.unwrap_or(RANK_WITHOUT_CREATION_TIME), observed.uid.clone());
        let before = state.target(&id).cloned();
        let mut link = observed.link(before.as_deref(), false);
        // The names are claims, and cluster IPs aren't reached from another cluster.
        link.annotations = Annotations { hostnames: Arc::default(), internal: None, ..link.annotations };
        let link = before.filter(|before| **before == link).unwrap_or_else(|| Arc::new(link));
        let claim = |name: &String| Claim {
            name: ServiceKey::new(id.key.namespace(), name),
            target: Arc::<Link>::clone(&link),
        };
        let now = Observation::new(created, uid, names.iter().map(claim).collect());
        state.set_target(&id, Arc::clone(&link));
        state.note_version(&service.metadata);
        state.set_names(&id, now);
        if !is_dependent {
            self.dependent.remove(&id.key);
        } else if has_room(self.dependent.keys(), &id.key) {
            self.dependent.insert(id.key, service);
        }
    }
}

/// Returns the names `<service>.<namespace>.<cluster>.<zone>` of a load balancer, in each zone with load balancers.
fn default_names(key: &ServiceKey, zones: &[Zone]) -> Vec<String> {
    let (namespace, service) = key.parts();
    let (cluster, namespace) = clusters::split(namespace);
    let source = Source::SERVICES.in_cluster_of(key.namespace());
    let domains = zones.iter().filter(|zone| zone.cluster.as_deref() == cluster && zone.has(&source));
    let names = domains.map(|domain| format!("{service}.{namespace}.{}", names::text(&domain.origin)));
    names.filter(|name| name.len() <= MAX_ENTRY_BYTES).collect()
}

impl NameSource for RemoteServices {
    type Object = Service;
    const SOURCE: Source = Source::SERVICES;
    const MANY: &'static str = "load balancers";
    const KINDS: &'static [WatchedKind] = &[WatchedKind {
        kind: RegardingKind::Service,
        many: Self::MANY,
        watch: LOAD_BALANCERS,
        hint: "",
        versions: &[],
    }];

    fn watch(_: RegardingKind, mut request: WatchRequest) -> Objects<Service> {
        request.query.fields = format!("spec.type={LOAD_BALANCER}");
        request.objects(std::convert::identity)
    }

    fn keys(&self, _: RegardingKind, state: &NameState) -> HashSet<ServiceKey> {
        let cluster = state.source().cluster.as_deref();
        let of_cluster = |key: &ServiceKey| (key.cluster() == cluster).then(|| key.clone());
        self.known.uids_with(of_cluster).into_iter().map(|(_, key)| key).collect()
    }

    fn take(&mut self, service: Service, state: &mut NameState) {
        self.observe(service, false, state);
    }

    fn remove(&mut self, id: &ObjectId, state: &mut NameState) {
        self.known.remove(&id.key);
        self.dependent.remove(&id.key);
        state.remove(id);
    }

    fn uid(&self, id: &ObjectId, _: &NameState) -> Option<Uid> {
        Some(self.known.get(&id.key)?.observed.uid.clone())
    }

    fn has_dependent(&self) -> bool {
        !self.dependent.is_empty()
    }

    fn recheck(&mut self, state: &mut NameState) {
        let dependent: Vec<Service> = self.dependent.values().cloned().collect();
        dependent.into_iter().for_each(|service| self.observe(service, true, state));
    }
}
