//! Names from ExternalDNS's DNSEndpoints.

mod decision;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::names::object::{Rules, created, has_room, id_of, uid};
use super::names::shared::{Claim, ObjectId, Observation};
use super::names::source::{NameSource, Objects, WatchRequest, WatchedKind};
use super::names::state::NameState;
use crate::model::excerpt::examples;
use crate::model::owner::Source;
use crate::model::rejection::Rejection;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::service::{null_is_default, slim_metadata};
use crate::sync::k8s::slim_resource::slim_resource;
use crate::sync::k8s::watch::DNS_ENDPOINTS;
use decision::Decision;

/// Maximum number of bytes of the DNSEndpoints that are checked again when other objects change.
const MAX_DEPENDENT_BYTES: usize = 4 << 20;

slim_resource!(
    DnsEndpoint,
    NamespaceResourceScope,
    "DNSEndpoint",
    "externaldns.k8s.io",
    "dnsendpoints",
    "v1alpha1"
);

/// A DNSEndpoint, with only the fields that names need.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DnsEndpoint {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(default, deserialize_with = "null_is_default")]
    endpoints: Vec<Option<Entry>>,
}

/// The records of a name and type.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default, deserialize_with = "null_is_default", rename = "dnsName")]
    dns_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    record_type: String,
    #[serde(default, deserialize_with = "null_is_default")]
    targets: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    set_identifier: String,
    /// In seconds; 0 for the TTL of the zone.
    #[serde(default, deserialize_with = "null_is_default", rename = "recordTTL")]
    record_ttl: i64,
}

impl DnsEndpoint {
    #[must_use]
    pub fn id(&self) -> ObjectId {
        id_of(RegardingKind::DnsEndpoint, &self.metadata)
    }

    /// Returns whether the object has names, and what of it doesn't count, as far as it doesn't depend on other objects.
    #[must_use]
    pub fn check(&self, rules: &Rules) -> (bool, Vec<Rejection>) {
        let Decision { claims, mut unusable, is_dependent } = self.decide(rules, &[]);
        unusable.retain(|_| !is_dependent);
        (!claims.is_empty(), unusable)
    }

    /// Returns the size of the entries in bytes, roughly.
    fn size(&self) -> usize {
        let of_entry = |entry: &Entry| {
            let targets = entry.targets.iter().map(|target| size_of::<String>() + target.len());
            size_of::<Entry>() + entry.dns_name.len() + entry.set_identifier.len() + targets.sum::<usize>()
        };
        self.spec.endpoints.iter().flatten().map(of_entry).sum()
    }
}

/// The source of names from DNSEndpoints.
#[derive(Default)]
pub struct DnsEndpoints {
    /// The DNSEndpoints whose targets depend on other objects, and the size of their entries.
    dependent: BTreeMap<ServiceKey, (DnsEndpoint, usize)>,
    dependent_bytes: usize,
}

impl DnsEndpoints {
    fn observe(&mut self, object: DnsEndpoint, is_checked_again: bool, state: &mut NameState) {
        let id = object.id();
        if !is_checked_again {
            state.note_version(&object.metadata);
        }
        // With a deletionTimestamp an object counts as gone, as load balancers do.
        if object.metadata.deletion_timestamp.is_some() || !state.selection().takes(&object.metadata) {
            return self.remove(&id, state);
        }
        let before = state.claims(&id);
        let decision = object.decide(&state.rules, &before);
        // The objects that its targets depend on may not be listed yet.
        if !decision.is_dependent || state.is_listed() || is_checked_again {
            state.report(&id, uid(&object.metadata), &decision.unusable);
        }
        let now =
            Observation::new(created(&object.metadata), Uid::from(uid(&object.metadata)), decision.claims);
        state.set_names(&id, now);
        let now = state.claims(&id);
        let changed = changed(&before, &now);
        if !changed.is_empty() {
            state.log_names(&id, &format!("new or changed DNS names: {}", examples(changed)));
        }
        self.forget_dependent(&id.key);
        let bytes = object.size();
        let has_room = || {
            has_room(self.dependent.keys(), &id.key) && self.dependent_bytes + bytes <= MAX_DEPENDENT_BYTES
        };
        if decision.is_dependent && has_room() {
            self.dependent_bytes += bytes;
            self.dependent.insert(id.key, (object, bytes));
        }
    }

    fn forget_dependent(&mut self, key: &ServiceKey) {
        if let Some((_, bytes)) = self.dependent.remove(key) {
            self.dependent_bytes -= bytes;
        }
    }
}

/// Returns the names that are new, have other records, or have ended, in their order.
fn changed<'a>(before: &'a [Claim], now: &'a [Claim]) -> Vec<&'a str> {
    let lacks = |claims: &[Claim], one: &Claim| {
        let known = claims.binary_search_by(|known| known.name.cmp(&one.name));
        !known.is_ok_and(|known| Arc::ptr_eq(&claims[known].target, &one.target))
    };
    let ended = before.iter().filter(|one| lacks(now, one));
    let new = now.iter().filter(|one| lacks(before, one));
    let mut names: Vec<&str> = ended.chain(new).map(|claim| claim.name.name()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl NameSource for DnsEndpoints {
    type Object = DnsEndpoint;
    const SOURCE: Source = Source::DNS_ENDPOINTS;
    const MANY: &'static str = "DNSEndpoints";
    const KINDS: &'static [WatchedKind] = &[WatchedKind {
        kind: RegardingKind::DnsEndpoint,
        many: Self::MANY,
        watch: DNS_ENDPOINTS,
        hint: "deploy/sources/ grants the permission",
        versions: &["v1alpha1"],
    }];

    fn watch(_: RegardingKind, request: WatchRequest) -> Objects<DnsEndpoint> {
        request.objects(std::convert::identity)
    }

    fn keys(&self, _: RegardingKind, state: &NameState) -> HashSet<ServiceKey> {
        state.objects()
    }

    fn take(&mut self, object: DnsEndpoint, state: &mut NameState) {
        self.observe(object, false, state);
    }

    fn remove(&mut self, id: &ObjectId, state: &mut NameState) {
        self.forget_dependent(&id.key);
        let claims = state.claims(id);
        if !claims.is_empty() {
            let names = examples(claims.iter().map(|claim| claim.name.name()));
            state.log_names(id, &format!("gone, with the DNS names {names}"));
        }
        state.remove(id);
    }

    fn has_dependent(&self) -> bool {
        !self.dependent.is_empty()
    }

    fn recheck(&mut self, state: &mut NameState) {
        let dependent: Vec<DnsEndpoint> = self.dependent.values().map(|(object, _)| object.clone()).collect();
        dependent.into_iter().for_each(|object| self.observe(object, true, state));
    }
}

#[cfg(test)]
mod tests;
