//! The kinds of objects that a cluster's own DNS is about, with only the fields that it needs.

use std::collections::HashMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::Cluster;
use crate::store::cluster::objects::{
    Addressing, EndpointZones, External, Kind, Port, Protocol, Service, Slice,
};
use crate::store::cluster::registry::ClusterSpec;
use crate::sync::k8s::errors::WatchLog;
use crate::sync::k8s::service::{EXTERNAL_NAME, IngressEntry, Status, host_name, null_is_default};
use crate::sync::k8s::slim_resource::slim_resource;

/// Maximum number of ports of a Service or an EndpointSlice that count.
const MAX_PORTS: usize = 1000;
/// Maximum number of addresses of an EndpointSlice that count: the API allows 1,000 endpoints.
const MAX_ADDRESSES: usize = 10_000;
/// Maximum number of addresses of a Pod, and of cluster IPs of a Service, that count.
const MAX_IPS: usize = 16;
/// Maximum number of external addresses of a Service that count.
const MAX_EXTERNALS: usize = 100;
/// `clusterIP` of a headless Service.
const NONE: &str = "None";

/// A kind of watched objects.
pub(super) trait ClusterObject:
    Resource<DynamicType = ()> + DeserializeOwned + Send + 'static
{
    const KIND: Kind;
    /// The kind in log lines.
    const NAME: &'static str;
    /// The name of the watch in metrics.
    const WATCH: &'static str;
    /// The objects in sentences.
    const WHAT: &'static str;
    /// How a missing permission is granted.
    const HINT: &'static str;
    const FIELDS: &'static str = "";
    /// Whether a list that lacks many objects has to be confirmed.
    const IS_GUARDED: bool = true;
    /// Whether the API server may not have the resource.
    const IS_OPTIONAL: bool = false;

    /// Puts the object in the place of its former version. Returns what is wrong with it, as clauses.
    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String>;

    /// Returns the Service of the object, and when what led to this version of it has changed.
    fn last_change(&self) -> Option<(&str, Timestamp)> {
        None
    }
}

slim_resource!(ClusterService, NamespaceResourceScope, "Service", "", "services");
slim_resource!(ClusterSlice, NamespaceResourceScope, "EndpointSlice", "discovery.k8s.io", "endpointslices");
slim_resource!(ClusterNamespace, ClusterResourceScope, "Namespace", "", "namespaces");
slim_resource!(
    ClusterImport,
    NamespaceResourceScope,
    "ServiceImport",
    "multicluster.x-k8s.io",
    "serviceimports",
    "v1alpha1"
);
slim_resource!(ClusterPod, NamespaceResourceScope, "Pod", "", "pods");

// === Services ===

#[derive(Debug, Deserialize)]
pub(super) struct ClusterService {
    #[serde(default, deserialize_with = "bare_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: ServiceSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
struct ServiceSpec {
    #[serde(rename = "type")]
    type_: Option<String>,
    #[serde(rename = "externalName")]
    external_name: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs", default, deserialize_with = "null_is_default")]
    cluster_ips: Vec<String>,
    #[serde(rename = "externalIPs", default, deserialize_with = "null_is_default")]
    external_ips: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    ports: Vec<ObjectPort>,
}

/// A port of a Service or of an EndpointSlice.
#[derive(Debug, Deserialize)]
struct ObjectPort {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<i32>,
}

impl ClusterObject for ClusterService {
    const KIND: Kind = Kind::Services;
    const NAME: &'static str = "Service";
    const WATCH: &'static str = "cluster-services";
    const WHAT: &'static str = "Services";
    const HINT: &'static str = WatchLog::CLUSTER_DNS;

    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String> {
        if !names::is_label(key.name()) {
            cluster.set_service(key, None, &[]);
            return vec!["DNS leaves it out: its name isn't a DNS label".to_owned()];
        }
        let mut wrong = Vec::new();
        let ports = ports_of(&self.spec.ports, &mut wrong);
        let addressing = self.spec.addressing(&mut wrong);
        let externals = self.externals(&mut wrong);
        cluster.set_service(key, Some(Service { addressing, ports }), &externals);
        wrong
    }
}

impl ClusterService {
    /// Returns the external addresses and hostnames. Each counts for the weight of SRV records as often as it is there.
    fn externals(&self, wrong: &mut Vec<String>) -> Vec<External> {
        let of_spec = self.spec.external_ips.iter().map(String::as_str);
        let of_balancer =
            self.status.load_balancer.ingress.iter().filter_map(|IngressEntry { ip, hostname }| {
                let set = |text: &&str| !text.is_empty();
                ip.as_deref().filter(set).or(hostname.as_deref().filter(set))
            });
        let (mut found, mut invalid, mut excess) = (Vec::new(), 0, 0);
        for text in of_spec.chain(of_balancer) {
            match external(text) {
                None => invalid += 1,
                Some(_) if found.len() >= MAX_EXTERNALS => excess += 1,
                Some(external) => found.push(external),
            }
        }
        report(invalid, "external addresses that are neither addresses nor hostnames", wrong);
        report(excess, &format!("external addresses beyond the first {MAX_EXTERNALS}"), wrong);
        found
    }
}

impl ServiceSpec {
    fn addressing(&self, wrong: &mut Vec<String>) -> Addressing {
        if self.type_.as_deref() == Some(EXTERNAL_NAME) {
            return self.alias(wrong);
        }
        let ips: Vec<&str> = match &*self.cluster_ips {
            [] => self.cluster_ip.iter().map(String::as_str).collect(),
            ips => ips.iter().map(String::as_str).collect(),
        };
        if ips.first() == Some(&NONE) {
            return Addressing::Headless;
        }
        Addressing::ClusterIps(addresses(ips.into_iter(), MAX_IPS, "cluster IPs", wrong).into())
    }

    fn alias(&self, wrong: &mut Vec<String>) -> Addressing {
        let host = self.external_name.as_deref().unwrap_or_default();
        if host.parse::<IpAddr>().is_ok() {
            wrong.push("its name doesn't exist in DNS: an IP address can't be an externalName".to_owned());
            return Addressing::Unusable;
        }
        match wire_host(host) {
            Ok(Some(wire)) => Addressing::Alias(wire),
            Ok(None) => Addressing::Unusable,
            Err(why) => {
                wrong.push(format!("its name doesn't exist in DNS: its externalName is {why}"));
                Addressing::Unusable
            }
        }
    }
}

/// Returns a hostname in wire form with the root octet; `None` if it is too long.
fn wire_host(host: &str) -> Result<Option<Box<[u8]>>, String> {
    let wire = names::wire(host_name(host)?.iter());
    Ok(wire.map(|wire| [&*wire, &[0]].concat().into()))
}

/// Returns what an external address or hostname means.
fn external(text: &str) -> Option<External> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(External::Address(ip.to_canonical())),
        Err(_) => wire_host(text).ok().flatten().map(External::Host),
    }
}

/// Returns the addresses among texts; others, and those beyond the limit, are reported.
fn addresses<'a>(
    texts: impl Iterator<Item = &'a str>,
    most: usize,
    what: &str,
    wrong: &mut Vec<String>,
) -> Vec<IpAddr> {
    let (mut found, mut invalid, mut excess) = (Vec::new(), 0_usize, 0_usize);
    for text in texts.filter(|text| !text.is_empty()) {
        match text.parse::<IpAddr>() {
            Err(_) => invalid += 1,
            Ok(_) if found.len() >= most => excess += 1,
            Ok(ip) => found.push(ip.to_canonical()),
        }
    }
    report(invalid, &format!("{what} that aren't addresses"), wrong);
    report(excess, &format!("{what} beyond the first {most}"), wrong);
    found
}

fn report(number: usize, what: &str, wrong: &mut Vec<String>) {
    if number > 0 {
        wrong.push(format!("DNS leaves out {number} {what}"));
    }
}

fn ports_of(ports: &[ObjectPort], wrong: &mut Vec<String>) -> Box<[Port]> {
    report(ports.len().saturating_sub(MAX_PORTS), &format!("ports beyond the first {MAX_PORTS}"), wrong);
    // No query can ask for a longer name.
    let is_label = |name: &&str| name.len() <= names::MAX_LABEL;
    let port = |port: &ObjectPort| Port {
        name: port.name.as_deref().filter(is_label).unwrap_or_default().to_ascii_lowercase().into(),
        protocol: Protocol::of(port.protocol.as_deref().unwrap_or_default()),
        number: port.port.and_then(|number| u16::try_from(number).ok()),
    };
    ports.iter().take(MAX_PORTS).map(port).collect()
}

// === EndpointSlices ===

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterSlice {
    #[serde(default, deserialize_with = "slice_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    address_type: String,
    #[serde(default, deserialize_with = "null_is_default")]
    endpoints: Vec<SliceEndpoint>,
    #[serde(default, deserialize_with = "null_is_default")]
    ports: Vec<ObjectPort>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceEndpoint {
    #[serde(default, deserialize_with = "null_is_default")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    conditions: Conditions,
    hostname: Option<String>,
    target_ref: Option<TargetRef>,
    zone: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    name: Option<String>,
}

/// The label with the name of a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The annotation with the time of the change that the controller has made a slice for.
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The labels with the name of a slice's ServiceImport, and with the cluster of its endpoints.
pub(super) const IMPORT_NAME: &str = "multicluster.kubernetes.io/service-name";
const SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
/// The `addressType` of slices with names, which DNS leaves out.
const FQDN: &str = "FQDN";

impl ClusterObject for ClusterSlice {
    const KIND: Kind = Kind::Slices;
    const NAME: &'static str = "EndpointSlice";
    const WATCH: &'static str = "cluster-endpointslices";
    const WHAT: &'static str = "EndpointSlices";
    const HINT: &'static str = WatchLog::CLUSTER_DNS;

    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String> {
        let spec = cluster.spec();
        let label = |label: &str| {
            let text = self.metadata.labels.as_ref()?.get(label)?;
            Some(&**text).filter(|text| names::is_label(text) && self.address_type != FQDN)
        };
        let service = label(SERVICE_NAME).filter(|_| spec.has_endpoints);
        let import = label(IMPORT_NAME).filter(|_| spec.has_imports);
        let mut wrong = Vec::new();
        let import = import.and_then(|import| Some((import, self.source_cluster(&mut wrong)?)));
        let slice =
            (service.is_some() || import.is_some()).then(|| self.packed(key.name(), spec, &mut wrong));
        // Copied only for both: a slice may be large.
        let (slice, of_import) = match (service, &import) {
            (_, None) => (slice, None),
            (None, Some(_)) => (None, slice),
            (Some(_), Some(_)) => (slice.clone(), slice),
        };
        if spec.has_imports {
            let of_import = import.zip(of_import);
            let of_import = of_import.map(|((import, cluster), slice)| (import, Slice { cluster, ..slice }));
            cluster.set_import_slice(key, of_import);
        }
        cluster.set_slice(key, service.zip(slice));
        wrong
    }

    fn last_change(&self) -> Option<(&str, Timestamp)> {
        let at = self.metadata.annotations.as_ref()?.get(LAST_CHANGE)?.parse().ok()?;
        Some((self.service()?, at))
    }
}

impl ClusterSlice {
    fn service(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(SERVICE_NAME).map(String::as_str)
    }

    /// Returns the cluster of the endpoints of a ServiceImport, empty for this one; `None` if no name can have it.
    fn source_cluster(&self, wrong: &mut Vec<String>) -> Option<Box<str>> {
        let labels = self.metadata.labels.as_ref();
        let text =
            labels.and_then(|labels| labels.get(SOURCE_CLUSTER)).map(String::as_str).unwrap_or_default();
        if text.len() > names::MAX_LABEL || text.contains('.') {
            wrong.push(format!("DNS leaves it out: its label {SOURCE_CLUSTER} has to be one DNS label"));
            return None;
        }
        Some(text.to_ascii_lowercase().into())
    }

    fn packed(&self, name: &str, spec: &ClusterSpec, wrong: &mut Vec<String>) -> Slice {
        let mut names: Vec<(u32, Box<str>)> = Vec::new();
        let mut found: Vec<IpAddr> = Vec::with_capacity(self.endpoints.len().min(MAX_ADDRESSES));
        let (mut invalid, mut excess) = (0, 0);
        // A readiness that isn't known counts as ready, as the API says.
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
        for endpoint in ready {
            let name = endpoint.name(spec.names_endpoints_by_pods);
            for text in &endpoint.addresses {
                match text.parse::<IpAddr>() {
                    Err(_) => invalid += 1,
                    Ok(_) if found.len() >= MAX_ADDRESSES => excess += 1,
                    Ok(ip) => {
                        let place = u32::try_from(found.len()).unwrap_or(u32::MAX);
                        names.extend(name.map(|name| (place, name.into())));
                        found.push(ip.to_canonical());
                    }
                }
            }
        }
        report(invalid, "endpoints that aren't addresses", wrong);
        report(excess, &format!("endpoints beyond the first {MAX_ADDRESSES}"), wrong);
        Slice {
            name: name.into(),
            ports: ports_of(&self.ports, wrong),
            zones: spec.has_zones.then(|| self.zones(&found)).flatten(),
            addresses: found.into(),
            cluster: Box::default(),
            names: names.into(),
        }
    }
}

impl ClusterSlice {
    /// Returns the topology zones of addresses; the last endpoint with an address and a zone counts, as in CoreDNS.
    fn zones(&self, addresses: &[IpAddr]) -> Option<Box<EndpointZones>> {
        let mut by_address: HashMap<IpAddr, &str> = HashMap::new();
        for endpoint in self.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false)) {
            let ips = endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
            by_address.extend(ips.filter_map(|ip| Some((ip.to_canonical(), endpoint.zone.as_deref()?))));
        }
        EndpointZones::of(addresses.iter().map(|ip| by_address.get(ip).and_then(|zone| names::wire_of(zone))))
    }
}

impl SliceEndpoint {
    /// Returns the name that the endpoint has instead of its dashed address.
    fn name(&self, by_pods: bool) -> Option<&str> {
        let hostname = self.hostname.as_deref().filter(|name| names::is_label(&name.to_ascii_lowercase()));
        let pod = || self.target_ref.as_ref()?.name.as_deref();
        let usable = |name: &&str| (1..=names::MAX_LABEL).contains(&name.len());
        hostname.or_else(|| pod().filter(|_| by_pods).filter(usable))
    }
}

// === ServiceImports ===

#[derive(Debug, Deserialize)]
pub(super) struct ClusterImport {
    #[serde(default, deserialize_with = "bare_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: ImportSpec,
}

#[derive(Debug, Default, Deserialize)]
struct ImportSpec {
    #[serde(rename = "type")]
    type_: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    ips: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    ports: Vec<ObjectPort>,
}

impl ClusterObject for ClusterImport {
    const KIND: Kind = Kind::Imports;
    const NAME: &'static str = "ServiceImport";
    const WATCH: &'static str = "cluster-serviceimports";
    const WHAT: &'static str = "ServiceImports";
    const HINT: &'static str = "deploy/cluster-dns/serviceimports/ grants the permission, for `multicluster`";
    const IS_OPTIONAL: bool = true;

    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String> {
        if !names::is_label(key.name()) {
            cluster.set_import(key, None);
            return vec!["DNS leaves it out: its name isn't a DNS label".to_owned()];
        }
        let mut wrong = Vec::new();
        let ports = ports_of(&self.spec.ports, &mut wrong);
        let ips = self.spec.ips.iter().map(String::as_str);
        let addressing = match self.spec.type_.as_deref() {
            Some("Headless") => Addressing::Headless,
            _ => Addressing::ClusterIps(addresses(ips, MAX_IPS, "IPs", &mut wrong).into()),
        };
        cluster.set_import(key, Some(Service { addressing, ports }));
        wrong
    }
}

// === Namespaces ===

#[derive(Debug, Deserialize)]
pub(super) struct ClusterNamespace {
    #[serde(default, deserialize_with = "bare_metadata")]
    metadata: ObjectMeta,
}

impl ClusterObject for ClusterNamespace {
    const KIND: Kind = Kind::Namespaces;
    const NAME: &'static str = "Namespace";
    const WATCH: &'static str = "cluster-namespaces";
    const WHAT: &'static str = "Namespaces";
    const HINT: &'static str = WatchLog::CLUSTER_DNS;

    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String> {
        cluster.set_namespace(key.name(), true);
        Vec::new()
    }
}

// === Pods ===

#[derive(Debug, Deserialize)]
pub(super) struct ClusterPod {
    #[serde(default, deserialize_with = "bare_metadata")]
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs", default, deserialize_with = "null_is_default")]
    pod_ips: Vec<PodIp>,
}

#[derive(Debug, Deserialize)]
struct PodIp {
    ip: Option<String>,
}

impl ClusterObject for ClusterPod {
    const KIND: Kind = Kind::Pods;
    const NAME: &'static str = "Pod";
    const WATCH: &'static str = "cluster-pods";
    const WHAT: &'static str = "Pods";
    const HINT: &'static str = "deploy/cluster-dns/pods/ grants the permission, for `pods verified`";
    // As CoreDNS selects them.
    const FIELDS: &'static str = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown";
    const IS_GUARDED: bool = false;

    fn apply(&self, key: &ServiceKey, cluster: &Cluster) -> Vec<String> {
        // A Pod that terminates keeps the addresses that it had.
        if self.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let all = self.status.pod_ips.iter().filter_map(|ip| ip.ip.as_deref());
        let mut wrong = Vec::new();
        let mut ips = addresses(all.chain(self.status.pod_ip.as_deref()), MAX_IPS, "Pod IPs", &mut wrong);
        ips.sort_unstable();
        ips.dedup();
        cluster.set_pod(key, &ips);
        wrong
    }
}

// === metadata ===

/// Reads what identifies an object, and whether it terminates.
fn bare_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Bare {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<Time>,
    }

    let Bare { name, namespace, uid, resource_version, deletion_timestamp } =
        Bare::deserialize(deserializer)?;
    Ok(ObjectMeta { name, namespace, uid, resource_version, deletion_timestamp, ..ObjectMeta::default() })
}

/// As [`bare_metadata`], with the labels that name the Service, the ServiceImport and the cluster, and the annotation with
/// the time of the last change.
fn slice_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    struct Labels {
        #[serde(rename = "kubernetes.io/service-name")]
        service: Option<String>,
        #[serde(rename = "multicluster.kubernetes.io/service-name")]
        import: Option<String>,
        #[serde(rename = "multicluster.kubernetes.io/source-cluster")]
        cluster: Option<String>,
    }

    #[derive(Default, Deserialize)]
    struct Annotations {
        #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
        last_change: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct OfSlice {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        #[serde(default, deserialize_with = "null_is_default")]
        labels: Labels,
        #[serde(default, deserialize_with = "null_is_default")]
        annotations: Annotations,
    }

    let OfSlice { name, namespace, uid, resource_version, labels, annotations } =
        OfSlice::deserialize(deserializer)?;
    let labels =
        [(SERVICE_NAME, labels.service), (IMPORT_NAME, labels.import), (SOURCE_CLUSTER, labels.cluster)];
    let labels = labels.into_iter().filter_map(|(label, text)| Some((label.to_owned(), text?))).collect();
    let annotations = annotations.last_change.map(|at| [(LAST_CHANGE.to_owned(), at)].into());
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        labels: Some(labels),
        annotations,
        ..ObjectMeta::default()
    })
}
