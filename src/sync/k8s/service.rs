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
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::{Denied, TargetPolicy};
use crate::store::Store;
pub use crate::sync::k8s::annotations::MANAGED;
use crate::sync::k8s::annotations::{self, shared};
pub(crate) use crate::sync::k8s::annotations::{ALLOW_FROM, MAX_TTL, PREFIX, TTL};

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
        let (ingress, mut unusable) =
            usable(&self.status.load_balancer.ingress, &hostname_policy.targets, |targets, host| {
                targets.check_host_of(&key, host, |host| store.link_of_host(host))
            });
        let refused = unusable.iter().any(Rejection::has_rejected);
        let ttl = annotations::ttl(&self.metadata, &mut unusable);
        annotations::check_managed(&self.metadata, &mut unusable);
        let (mut hostnames, refused_names) =
            hostname_policy.hostnames(&self.key(), |name| self.annotation(name));
        hostnames.sort_unstable();
        unusable.extend(refused_names);
        let (allow_from, refused_namespaces) = self.allow_from();
        unusable.extend(refused_namespaces);
        let known = &hostname_policy.hostname_annotations;
        unusable.extend(annotations::unknown(&self.metadata, known, "load balancers"));
        let annotations = Annotations { ttl, hostnames: shared(hostnames), allow_from };
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
    /// Returns the namespaces that may follow this Service, sorted and without duplicates, and the invalid part of the
    /// annotation.
    pub(crate) fn allow_from(&self) -> (Arc<[Arc<str>]>, Option<Rejection>) {
        annotations::allow_from(&self.metadata)
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

/// Returns the usable entries of a status. `check_host` checks a hostname.
pub(crate) fn usable(
    entries: &[IngressEntry],
    targets: &TargetPolicy,
    check_host: impl Fn(&TargetPolicy, &Name) -> Result<(), Denied>,
) -> (Ingress, Vec<Rejection>) {
    let mut ingress = Ingress::default();
    let mut hosts = Rejection::new(RejectedField::Target, "the load balancer's hostname");
    let mut addresses = Rejection::new(RejectedField::Target, "the load balancer's ip");
    let mut rest = Rejection::new(RejectedField::Target, "status.loadBalancer.ingress");
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
                Err(why) => hosts.reject(text, &why),
            }
        }
        if let Some(text) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
            let parsed = text.parse::<IpAddr>().map_err(|_| "not an IPv4 or IPv6 address".to_owned());
            let checked = parsed.and_then(|ip| {
                targets.check_address(ip).map_err(|refusal| refusal.to_string())?;
                // An IPv4-mapped address is an IPv4 address, and EndpointSlices accept no other form.
                Ok(ip.to_canonical())
            });
            match checked {
                Ok(ip) if known_addresses.insert(ip) => ingress.addresses.push(ip),
                Ok(_) => {}
                Err(why) => addresses.reject(text, &why),
            }
        }
    }
    // Many Services are kept in memory until their list is complete, and most have a single entry.
    ingress.hostnames.shrink_to_fit();
    ingress.addresses.shrink_to_fit();
    let unusable = [hosts, addresses, rest].into_iter().filter_map(Rejection::non_empty).collect();
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::hostname_policy::HOSTNAME;
    use crate::model::link::Target;
    use crate::store::OnGone;

    #[test]
    fn needed_fields_are_decoded_and_null_means_absent() {
        let service: Service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "12",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]
            },
            "spec": {"type": "LoadBalancer", "selector": null, "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [
                {"hostname": "A.Example", "ip": null}, {"ip": "2001:DB8::1"}, {"ip": "2001:db8::1"},
                {"ip": "nonsense"}, {"hostname": format!("{}.example", "x".repeat(64))}, {}
            ]}}
        }))
        .unwrap();
        assert!(service.is_living_load_balancer());
        let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
        assert_eq!(observed.key, ServiceKey::new("default", "web"));
        assert_eq!((observed.resource_version, observed.created), (Some(12), Some(1_767_225_600)));
        assert_eq!(observed.ingress.hostnames, [Hostname::from(&Name::from_ascii("a.example.").unwrap())]);
        assert_eq!(observed.ingress.addresses, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
        assert_eq!(unusable.len(), 2, "{unusable:?}");
        assert!(unusable[1].to_string().contains("ip \"nonsense\" isn't served: not an IPv4"));
    }

    fn observe(service: serde_json::Value) -> (ObservedService, String) {
        let service: Service = serde_json::from_value(service).unwrap();
        let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
        (observed, unusable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn ingress_entries_and_their_rejections_are_bounded() {
        let entry = |i: usize| match i {
            0..=2000 => json!({"ip": format!("192.0.{}.{}", i / 250, i % 250)}),
            _ => json!({"ip": "x".repeat(i), "hostname": "y".repeat(i)}),
        };
        let ingress: Vec<_> = (0..3000).map(entry).collect();
        let addresses: Vec<_> = ingress.iter().map(|entry| json!({"ip": entry["ip"]})).collect();
        let (observed, rejection) = observe(json!({"status": {"loadBalancer": {"ingress": addresses}}}));
        assert_eq!(observed.ingress.addresses.len(), 1000);
        assert!(!observed.refused);
        let expected = "status.loadBalancer.ingress: entries that are ignored: 2000; the first 1000 count: hostnames \
                        first, each in alphabetical order";
        assert_eq!(rejection, expected);
        let reversed: Vec<_> = addresses.iter().rev().collect();
        let (other, _) = observe(json!({"status": {"loadBalancer": {"ingress": reversed}}}));
        assert_eq!(other.ingress.choose(None), observed.ingress.choose(None), "their order means nothing");
        let (observed, rejection) =
            observe(json!({"status": {"loadBalancer": {"ingress": ingress[2000..]}}}));
        assert!(observed.refused && rejection.len() < 2048, "{rejection}");
        assert!(rejection.contains("; and 996 more"), "{rejection}");
    }

    #[test]
    fn hostname_counts_among_too_many_addresses() {
        for with_hostname in [None, Some("")] {
            let ip = |i| json!({"ip": format!("192.0.{}.{}", i / 250, i % 250), "hostname": with_hostname});
            let mut ingress: Vec<_> = (0..1000).map(ip).collect();
            ingress.extend(["b.example", "a.example"].map(|host| json!({"hostname": host})));
            let (observed, _) = observe(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
            assert_eq!(observed.ingress.addresses.len(), 998);
            let first = Hostname::from(&Name::from_ascii("a.example.").unwrap());
            assert_eq!(observed.ingress.choose(None), Some(Target::Hostname(first)));
        }
    }

    #[test]
    fn allow_from_reads_only_the_first_100_entries() {
        let mut namespaces: Vec<String> = (0..14_000).map(|i| format!("ns-{i}")).collect();
        namespaces[0] = "*".to_owned();
        namespaces[1] = "Not One".to_owned();
        namespaces[2] = "ns-3".to_owned();
        let annotations = json!({ALLOW_FROM: namespaces.join(", "), TTL: "\n".repeat(250_000)});
        let (observed, rejection) = observe(json!({"metadata": {"annotations": annotations}}));
        assert_eq!(observed.annotations.allow_from.len(), 98);
        assert!(observed.annotations.allows("ns-99"));
        assert!(
            rejection.contains("\"Not One\" is ignored: neither the name of a namespace nor *"),
            "{rejection}"
        );
        assert!(rejection.contains("entries that are ignored: 13900;"), "{rejection}");
        assert!(rejection.len() < 1024 && !rejection.contains('\n'), "{rejection}");
    }

    #[test]
    fn order_of_addresses_names_and_ports_means_nothing() {
        let service = |ips: [&str; 3], names: [&str; 2], ports: [u16; 2]| {
            let ips = ips.map(|ip| json!({"ip": ip}));
            let ports = ports.map(|port| json!({"name": format!("p{port}"), "port": port}));
            observe(json!({
                "metadata": {"name": "web", "namespace": "web",
                    "annotations": {HOSTNAME: names.join(","), ALLOW_FROM: names.join(",")}},
                "spec": {"ports": ports},
                "status": {"loadBalancer": {"ingress": ips}},
            }))
        };
        let (one, rejected) = service(["192.0.2.1", "127.0.0.1", "127.0.0.2"], ["a", "b"], [1, 2]);
        let (other, rejected_too) = service(["127.0.0.2", "127.0.0.1", "192.0.2.1"], ["b", "a"], [2, 1]);
        assert_eq!((one.annotations, one.ports), (other.annotations, other.ports));
        assert_eq!(one.ingress.choose(None), other.ingress.choose(None));
        assert_eq!(rejected, rejected_too);
        assert!(rejected.contains("127.0.0.1"), "{rejected}");
    }

    #[test]
    fn unknown_annotations_with_our_prefix_are_reported() {
        let annotations = json!({"linker.hsj.com/hostnam": "a.lb.internal", TTL: "5", "a.example/b": "c"});
        let (_, rejection) = observe(json!({"metadata": {"annotations": annotations}}));
        let expected = "the annotation \"linker.hsj.com/hostnam\" is ignored: load balancers have \
                        linker.hsj.com/allow-from, linker.hsj.com/hostname, linker.hsj.com/managed, \
                        linker.hsj.com/ttl";
        assert_eq!(rejection, expected);
        let many: BTreeMap<String, String> =
            (0..10_000).map(|i| (format!("{PREFIX}{i}"), String::new())).collect();
        let (_, rejection) = observe(json!({"metadata": {"annotations": many}}));
        assert!(rejection.ends_with("; and 9997 more") && rejection.len() < 1024, "{rejection}");
    }

    #[test]
    fn managed_annotation_is_true_or_false() {
        let rejections = |text: &str| {
            let metadata = json!({"namespace": "shop", "name": "web", "annotations": {MANAGED: text}});
            observe(json!({"metadata": metadata})).1
        };
        assert_eq!((rejections("true"), rejections("false")), (String::new(), String::new()));
        for text in ["no", "False", ""] {
            assert!(rejections(text).contains("neither true nor false"), "{text:?}");
        }
    }

    #[test]
    fn terminating_service_isnt_living() {
        let mut service = Service::default();
        service.spec.type_ = Some(LOAD_BALANCER.into());
        assert!(service.is_living_load_balancer());
        service.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(!service.is_living_load_balancer());
    }

    #[test]
    fn ttl_annotation_accepts_0_to_3600_seconds() {
        for (text, expected) in
            [("0", Some(0)), ("3600", Some(3600)), ("3601", None), ("5m", None), ("-1", None)]
        {
            let service: Service =
                serde_json::from_value(json!({"metadata": {"name": "web", "annotations": {TTL: text}}}))
                    .unwrap();
            let (observed, unusable) = service.observe(&HostnamePolicy::default(), &Store::new(OnGone::Kept));
            assert_eq!(observed.annotations.ttl, expected, "{text}");
            assert_eq!(unusable.len(), usize::from(expected.is_none()));
        }
    }
}
