//! Names from Ingresses.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::names::object::{Asking, Rules, Targeted, created, has_own_target, has_room, id_of, uid, zone_of};
use super::names::shared::{Claim, ObjectId, Observation};
use super::names::source::{NameSource, Objects, WatchRequest, WatchedKind};
use super::names::state::NameState;
use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::{HostnamePolicy, in_stored_form};
use crate::model::link::Link;
use crate::model::owner::{Source, Zone};
use crate::model::rejection::Rejection;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations::{HostnameSource, OF_TARGETS, TargetEntries, annotation};
use crate::sync::k8s::k8s_gateway::is_ignored;
use crate::sync::k8s::service::{IngressEntry, Status, null_is_default, slim_metadata};
use crate::sync::k8s::slim_resource::slim_resource;
use crate::sync::k8s::watch::INGRESSES;

/// The annotation with the class of an Ingress without `spec.ingressClassName`.
const CLASS: &str = "kubernetes.io/ingress.class";

slim_resource!(Ingress, NamespaceResourceScope, "Ingress", "networking.k8s.io", "ingresses");

/// An Ingress, with only the fields that names need.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ingress {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    ingress_class_name: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    rules: Vec<Rule>,
    #[serde(default, deserialize_with = "null_is_default")]
    tls: Vec<Tls>,
}

#[derive(Clone, Debug, Deserialize)]
struct Rule {
    host: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Tls {
    #[serde(default, deserialize_with = "null_is_default")]
    hosts: Vec<String>,
}

impl Ingress {
    /// Returns the hosts of rules and of `tls`; in zones of *k8s_gateway* those of rules alone, also without the zone.
    fn hosts(&self, zones: &[Zone]) -> Vec<Cow<'_, str>> {
        let Spec { rules, tls, .. } = &self.spec;
        let of_rules = || rules.iter().filter_map(|rule| rule.host.as_deref());
        let of_tls = tls.iter().flat_map(|tls| &tls.hosts).map(String::as_str);
        let is_plain =
            |host: &&str| zone_of(&in_stored_form(host), zones).is_none_or(|zone| zone.k8s_gateway.is_none());
        let plain = of_rules().chain(of_tls).filter(is_plain).map(Cow::from);
        let of_k8s_gateway = of_rules().flat_map(|host| Zone::k8s_gateway_names(zones, host)).map(Cow::from);
        let mut seen = HashSet::new();
        let all = plain.chain(of_k8s_gateway);
        all.filter(|host| !host.is_empty() && seen.insert(host.clone())).collect()
    }

    fn has_class_of(&self, zone: &Zone) -> bool {
        let class = self.spec.ingress_class_name.as_deref().or_else(|| annotation(&self.metadata, CLASS));
        let classes = &zone.ingress_classes;
        classes.is_empty() || class.is_some_and(|class| classes.iter().any(|known| **known == *class))
    }

    fn status(&self) -> &[IngressEntry] {
        &self.status.load_balancer.ingress
    }

    #[must_use]
    pub fn id(&self) -> ObjectId {
        id_of(RegardingKind::Ingress, &self.metadata)
    }

    /// Returns the hostnames that the Ingress names as its target, without the trailing dot.
    #[must_use]
    pub fn target_hosts(&self, prefixes: &[String]) -> Vec<String> {
        let entries = TargetEntries::of(&self.metadata, prefixes, self.status());
        entries.hosts().map(|host| to_presentation(&host)).collect()
    }

    /// Returns whether the target is a name of another object.
    #[must_use]
    pub fn has_own_target(&self, policy: &HostnamePolicy) -> bool {
        has_own_target(&self.metadata, self.status(), policy)
    }

    /// Returns the names that the Ingress asks for, what is behind them, and what of it is invalid or denied. `before` is
    /// what was behind the names before.
    #[must_use]
    pub fn observe(
        &self,
        rules: &Rules,
        before: Option<&Arc<Link>>,
    ) -> (Vec<Arc<str>>, Arc<Link>, Vec<Rejection>) {
        let mut unusable = Vec::new();
        let prefixes = &rules.policy.annotation_prefixes;
        let counting = HostnameSource::of(&self.metadata, "ingress-hostname-source", prefixes, &mut unusable);
        let hosts = self.hosts(&rules.zones);
        let asking = Asking {
            source: Source::INGRESSES.in_cluster_of(self.id().key.namespace()),
            one: "an Ingress",
            many: Ingresses::MANY,
            metadata: &self.metadata,
            other_zone: "its zone doesn't have the names of Ingresses, or not of this class",
            hosts: hosts.iter().map(|host| &**host).collect(),
            is_ignored: is_ignored(&self.metadata),
            counting,
            annotations: &OF_TARGETS,
            has_class_of: &|_, zone| self.has_class_of(zone),
            is_handed_on: &|_| false,
        };
        let names = asking.hostnames(rules, &mut unusable);
        let settings = asking.settings(rules, &mut unusable);
        let targeted = Targeted {
            key: Source::INGRESSES.target_key(&self.id().key),
            metadata: &self.metadata,
            status: self.status(),
            names: &names,
            before,
        };
        let link = targeted.target(settings, rules, &mut unusable);
        (names, link, unusable)
    }
}

/// The source of names from Ingresses.
#[derive(Default)]
pub struct Ingresses {
    /// The Ingresses whose targets depend on other objects.
    dependent: BTreeMap<ServiceKey, Ingress>,
}

impl Ingresses {
    fn observe(&mut self, ingress: Ingress, is_checked_again: bool, state: &mut NameState) {
        let id = ingress.id();
        // With a deletionTimestamp an object counts as gone, as load balancers do.
        if ingress.metadata.deletion_timestamp.is_some() || !state.selection().takes(&ingress.metadata) {
            return self.remove(&id, state);
        }
        let (names, link, unusable) = ingress.observe(&state.rules, state.target(&id));
        let is_dependent = ingress.has_own_target(&state.rules.policy);
        // The objects that its target depends on may not be listed yet.
        if !is_dependent || state.is_listed() || is_checked_again {
            state.report(&id, uid(&ingress.metadata), &unusable);
        }
        let claim = |name: &Arc<str>| Claim {
            name: ServiceKey::new(id.key.namespace(), name),
            target: Arc::clone(&link),
        };
        let uid = Uid::from(uid(&ingress.metadata));
        let now = Observation::new(created(&ingress.metadata), uid, names.iter().map(claim).collect());
        state.set_target(&id, link);
        state.note_version(&ingress.metadata);
        state.set_names(&id, now);
        if !is_dependent {
            self.dependent.remove(&id.key);
        } else if has_room(self.dependent.keys(), &id.key) {
            self.dependent.insert(id.key, ingress);
        }
    }
}

impl NameSource for Ingresses {
    type Object = Ingress;
    const SOURCE: Source = Source::INGRESSES;
    const MANY: &'static str = "Ingresses";
    const KINDS: &'static [WatchedKind] = &[WatchedKind {
        kind: RegardingKind::Ingress,
        many: Self::MANY,
        watch: INGRESSES,
        hint: "deploy/sources/ grants the permission",
        versions: &[],
    }];

    fn watch(_: RegardingKind, request: WatchRequest) -> Objects<Ingress> {
        request.objects(std::convert::identity)
    }

    fn keys(&self, _: RegardingKind, state: &NameState) -> HashSet<ServiceKey> {
        state.targets().map(|id| id.key.clone()).collect()
    }

    fn take(&mut self, ingress: Ingress, state: &mut NameState) {
        self.observe(ingress, false, state);
    }

    fn remove(&mut self, id: &ObjectId, state: &mut NameState) {
        self.dependent.remove(&id.key);
        state.remove(id);
    }

    fn has_dependent(&self) -> bool {
        !self.dependent.is_empty()
    }

    fn recheck(&mut self, state: &mut NameState) {
        let dependent: Vec<Ingress> = self.dependent.values().cloned().collect();
        dependent.into_iter().for_each(|ingress| self.observe(ingress, true, state));
    }
}
