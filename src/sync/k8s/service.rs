//! A Service with only the fields that lb-linker reads and writes.
//!
//! The full type takes ten times the memory, and each further field that can't be decoded would make the whole object
//! undecodable.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::hostname::Hostname;
pub(crate) use crate::model::hostname::host_name;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::Port;
use crate::model::link::{Annotations, Ingress, InternalNames, ObservedService};
use crate::model::names;
use crate::model::owner::Zone;
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::{Denied, TargetPolicy};
use crate::store::Store;
pub use crate::sync::k8s::annotations::MANAGED;
use crate::sync::k8s::annotations::{self, OF_LOAD_BALANCERS, TargetEntries, shared};
pub(crate) use crate::sync::k8s::annotations::{ALLOW_FROM, MAX_TTL, PREFIX};
use crate::sync::k8s::k8s_gateway;

/// `spec.type` of the Services that lb-linker watches.
pub const LOAD_BALANCER: &str = "LoadBalancer";
/// `spec.type` of an external target for a hostname.
pub const EXTERNAL_NAME: &str = "ExternalName";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    #[serde(skip_deserializing)]
    pub api_version: ApiVersion,
    #[serde(skip_deserializing)]
    pub kind: ServiceKind,
    /// The fields of `metadata` that lb-linker needs; of `managedFields` only `manager`.
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: Spec,
    #[serde(default, deserialize_with = "null_is_default", skip_serializing)]
    pub status: Status,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ApiVersion {
    #[default]
    #[serde(rename = "v1")]
    V1,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ServiceKind {
    #[default]
    Service,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The API server sets `ClusterIP` by default.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_name: Option<String>,
    #[serde(rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// The cluster IPs of both families, if the API server has set them.
    #[serde(rename = "clusterIPs", default, deserialize_with = "null_is_default", skip_serializing)]
    pub cluster_ips: Vec<String>,
    #[serde(skip_serializing)]
    pub load_balancer_class: Option<String>,
    /// The ports, without the fields that only kube-proxy needs.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
}

impl Spec {
    /// Returns the spec of an ExternalName Service.
    #[must_use]
    pub fn external_name(host: &str) -> Self {
        Self { type_: Some(EXTERNAL_NAME.into()), external_name: Some(host.into()), ..Default::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default, deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct LoadBalancerStatus {
    #[serde(default, deserialize_with = "null_is_default")]
    pub ingress: Vec<IngressEntry>,
}

/// An entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct IngressEntry {
    pub hostname: Option<String>,
    pub ip: Option<String>,
}

/// The finalizer that keeps a load balancer until its external target is gone.
pub const FINALIZER: &str = "lb-linker/finalizer";
/// Maximum number of entries of `status.loadBalancer.ingress` that are read: an EndpointSlice holds no more addresses.
pub(crate) const MAX_INGRESS: usize = 1000;
/// Maximum number of cluster IPs of a Service: one for each family.
const MAX_CLUSTER_IPS: usize = 2;

impl Service {
    /// Returns the key of the Service; the namespace is `default` if missing, as in kubectl.
    #[must_use]
    pub fn key(&self) -> ServiceKey {
        ServiceKey::new(
            self.metadata.namespace.as_deref().unwrap_or("default"),
            self.metadata.name.as_deref().unwrap_or_default(),
        )
    }

    /// Returns `metadata.uid`, or an empty string.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change: etcd's revisions always have,
    /// and Kubernetes 1.35 guarantees it.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.metadata.resource_version.as_deref()?.parse().ok()
    }

    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        annotations::annotation(&self.metadata, key)
    }

    /// Returns whether the Service is a load balancer that isn't being deleted: with a `deletionTimestamp` it counts as
    /// gone.
    #[must_use]
    pub fn is_living_load_balancer(&self) -> bool {
        self.spec.type_.as_deref() == Some(LOAD_BALANCER) && self.metadata.deletion_timestamp.is_none()
    }

    /// Returns whether the Service has our finalizer.
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
    }

    /// Returns the observation for the store, and the parts of the Service that are invalid or denied.
    #[must_use]
    pub fn observe(
        &self,
        hostname_policy: &HostnamePolicy,
        store: &Store,
    ) -> (ObservedService, Vec<Rejection>) {
        let key = self.key();
        let entries = self.target_entries(hostname_policy);
        let (ingress, mut unusable) = usable(&entries, &hostname_policy.targets, |targets, host| {
            targets.check_host_of(&key, host, |host| store.link_of_host(host))
        });
        let refused = unusable.iter().any(Rejection::has_rejected);
        if !ingress.hostnames.is_empty() {
            unusable.extend(self.name_servers_without_address(&hostname_policy.zones));
        }
        let annotations = self.settings(hostname_policy, &mut unusable);
        let mut ports = self.spec.ports.clone();
        ports.sort_unstable();
        let observed = ObservedService {
            key,
            uid: self.uid().into(),
            created: self.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            resource_version: self.version(),
            ingress,
            ports: ports.into(),
            annotations,
            refused,
            has_finalizer: self.has_finalizer(),
            persisted: None,
        };
        (observed, unusable)
    }
}

impl Service {
    /// Returns what the Service names as its target, in its annotation or its status.
    pub(crate) fn target_entries(&self, policy: &HostnamePolicy) -> TargetEntries<'_> {
        TargetEntries::of(&self.metadata, &policy.annotation_prefixes, &self.status.load_balancer.ingress)
    }

    /// Returns the name servers that have the target of the Service. It is a hostname, so each is a CNAME, which NS records
    /// can't lead to (RFC 2181 section 10.3).
    fn name_servers_without_address(&self, zones: &[Zone]) -> Option<Rejection> {
        let (key, mut rejection) =
            (self.key(), Rejection::new(RejectedField::Target, "the address of the name server"));
        let (namespace, name) = key.parts();
        let own = format!("{name}.{namespace}");
        for zone in zones.iter().filter(|zone| zone.name_servers().any(|server| server == own)) {
            let why = format!(
                "its load balancer has a hostname, and NS records can't lead to a CNAME (RFC 2181): give it addresses, \
                 by its status or the annotation {PREFIX}target"
            );
            rejection.reject(&format!("{own}.{}", names::text(&zone.origin)), &why);
        }
        rejection.non_empty()
    }

    /// Returns the granted settings of the annotations, and adds what of them is invalid, denied or unknown to `unusable`.
    fn settings(&self, policy: &HostnamePolicy, unusable: &mut Vec<Rejection>) -> Annotations {
        let ttl = annotations::ttl(&self.metadata, &policy.annotation_prefixes, unusable);
        annotations::check_managed(&self.metadata, unusable);
        let has_names = |zone: &&Zone| k8s_gateway::has_names_of_service(zone, &self.metadata);
        let selected: Vec<&Zone> = policy.zones.iter().filter(has_names).collect();
        let annotation = |name: &str| self.annotation(name);
        let (mut hostnames, refused_names) = policy.hostnames(&self.key(), annotation, &selected);
        unusable.extend(refused_names);
        let (further, refused_names) = policy.k8s_gateway_names(&self.key(), annotation, &selected);
        unusable.extend(refused_names);
        hostnames.extend(further);
        hostnames.sort_unstable();
        hostnames.dedup();
        let internal = self.internal_names(policy, &hostnames, &selected, unusable);
        let (allow_from, refused_namespaces) = self.allow_from(&policy.home);
        unusable.extend(refused_namespaces);
        let known = &policy.hostname_annotations;
        unusable.extend(annotations::unknown(&self.metadata, known, "load balancers", &OF_LOAD_BALANCERS));
        Annotations { ttl, hostnames: shared(hostnames), allow_from, internal }
    }

    /// Returns the internal hostnames that the Service may have, with the cluster IPs behind them. `hostnames` are its other
    /// custom hostnames, and `selected` the zones of *k8s_gateway* in which it has names.
    fn internal_names(
        &self,
        policy: &HostnamePolicy,
        hostnames: &[Arc<str>],
        selected: &[&Zone],
        unusable: &mut Vec<Rejection>,
    ) -> Option<Arc<InternalNames>> {
        let (mut names, refused_names) =
            policy.internal_hostnames(&self.key(), hostnames, |name| self.annotation(name), selected);
        unusable.extend(refused_names);
        if names.is_empty() {
            return None;
        }
        names.sort_unstable();
        let listed = if self.spec.cluster_ips.is_empty() {
            self.spec.cluster_ip.as_slice()
        } else {
            &self.spec.cluster_ips
        };
        let listed = listed.iter().filter(|ip| !["", "None"].contains(&&***ip)).take(MAX_CLUSTER_IPS);
        let (mut addresses, mut denied) =
            (Vec::new(), Rejection::new(RejectedField::Target, "the load balancer's cluster IP"));
        for text in listed {
            match allowed_address(text, &policy.targets) {
                Ok(ip) => addresses.push(ip),
                Err(why) => denied.reject(text, &why),
            }
        }
        if addresses.is_empty() && !denied.has_rejected() {
            let mut absent = Rejection::new(RejectedField::Hostname, "the internal DNS name");
            names.iter().for_each(|name| absent.reject(name, "the load balancer has no cluster IP"));
            unusable.push(absent);
        }
        let refused = denied.has_rejected();
        unusable.extend(denied.non_empty());
        Some(InternalNames { hostnames: shared(names), addresses: addresses.into(), refused }.into())
    }

    /// Returns the namespaces that may follow this Service, as the cluster of the name `home` writes them, sorted and without duplicates, and the invalid part of the
    /// annotation.
    pub(crate) fn allow_from(&self, home: &str) -> (Arc<[Arc<str>]>, Option<Rejection>) {
        annotations::allow_from(&self.metadata, home)
    }
}

/// Returns the entries that are read. Of too many the order in the status doesn't decide: it may change each time.
pub(crate) fn entries_in_use(entries: &[IngressEntry]) -> Vec<&IngressEntry> {
    let mut in_use: Vec<_> = entries.iter().collect();
    if in_use.len() > MAX_INGRESS {
        in_use.sort_unstable_by_key(|&IngressEntry { hostname, ip }| {
            (hostname.as_deref().is_none_or(str::is_empty), hostname, ip)
        });
        in_use.truncate(MAX_INGRESS);
    }
    in_use
}

/// Returns an address that is valid and allowed. An IPv4-mapped address is an IPv4 address, and EndpointSlices accept no
/// other form.
fn allowed_address(text: &str, targets: &TargetPolicy) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| "not an IPv4 or IPv6 address".to_owned())?;
    targets.check_address(ip).map_err(|refusal| refusal.to_string())?;
    Ok(ip.to_canonical())
}

/// Returns the usable entries of a status, or of the annotation in its place. `check_host` checks a hostname.
pub(crate) fn usable(
    TargetEntries { entries, annotated }: &TargetEntries<'_>,
    targets: &TargetPolicy,
    check_host: impl Fn(&TargetPolicy, &Name) -> Result<(), Denied>,
) -> (Ingress, Vec<Rejection>) {
    let mut ingress = Ingress::default();
    let mut hosts = Rejection::new(RejectedField::Target, "the hostname in the status");
    let mut addresses = Rejection::new(RejectedField::Target, "the address in the status");
    let mut rest = Rejection::new(RejectedField::Target, "the status");
    let mut annotated = annotated.clone();
    let ignored = entries.len().saturating_sub(MAX_INGRESS);
    rest.ignore(ignored, "the first 1000 count: hostnames first, each in alphabetical order");
    let (mut known_hosts, mut known_addresses) = (HashSet::new(), HashSet::new());
    for entry in entries_in_use(entries) {
        if let Some(text) = entry.hostname.as_deref().filter(|host| !host.is_empty()) {
            let checked = host_name(text).and_then(|host| {
                check_host(targets, &host).map_err(|refusal| refusal.to_string())?;
                Ok(Hostname::from(&host))
            });
            match checked {
                Ok(name) if known_hosts.insert(name.clone()) => ingress.hostnames.push(name),
                Ok(_) => {}
                Err(why) => annotated.as_mut().unwrap_or(&mut hosts).reject(text, &why),
            }
        }
        if let Some(text) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
            match allowed_address(text, targets) {
                Ok(ip) if known_addresses.insert(ip) => ingress.addresses.push(ip),
                Ok(_) => {}
                Err(why) => annotated.as_mut().unwrap_or(&mut addresses).reject(text, &why),
            }
        }
    }
    // Many Services are kept in memory until their list is complete, and most have a single entry.
    ingress.hostnames.shrink_to_fit();
    ingress.addresses.shrink_to_fit();
    let all = [hosts, addresses, rest].into_iter().chain(annotated);
    let unusable = all.filter_map(Rejection::non_empty).collect();
    (ingress, unusable)
}

impl Resource for Service {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Service".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "services".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Kubernetes treats an explicit `null` as absent everywhere.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub(crate) fn slim_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    struct Manager {
        manager: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        managed_fields: Option<Vec<Manager>>,
        owner_references: Option<Vec<OwnerReference>>,
        finalizers: Option<Vec<String>>,
    }

    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        labels: slim.labels,
        annotations: slim.annotations,
        owner_references: slim.owner_references,
        finalizers: slim.finalizers,
        managed_fields: slim.managed_fields.map(|entries| {
            entries
                .into_iter()
                .map(|Manager { manager }| ManagedFieldsEntry { manager, ..Default::default() })
                .collect()
        }),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests;
