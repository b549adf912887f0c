//! Recognizes the DNS of a cluster by the cluster's objects. Pure functions.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::DynamicObject;

use super::corefile::Corefile;

pub const KUBE_SYSTEM: &str = "kube-system";
/// The key of a Corefile in a ConfigMap.
pub const COREFILE: &str = "Corefile";
pub const COREDNS: &str = "coredns";
/// The ConfigMap with the keys `*.server`, which the Corefiles of AKS and k3s import.
pub const COREDNS_CUSTOM: &str = "coredns-custom";
/// The ConfigMap of NodeLocal DNSCache, in its own manifest and with kubespray.
pub const NODE_LOCAL: [&str; 2] = ["node-local-dns", "nodelocaldns"];
pub const KUBE_DNS: &str = "kube-dns";
/// The namespace of OpenShift's CoreDNS.
pub const OPENSHIFT_DNS: &str = "openshift-dns";
/// The name of lb-linker's objects in `deploy/cluster-dns/`, and the value of [`DNS_LABELS`] of its Pods there.
pub const LB_LINKER_DNS: &str = "lb-linker-cluster-dns";
/// The labels of the Pods of `deploy/cluster-dns/`. By the first, the Services of most clusters select the cluster DNS.
pub const DNS_LABELS: [&str; 2] = ["k8s-app", "app.kubernetes.io/name"];
/// The label of nodes that tells the mode of EKS.
const EKS_COMPUTE_TYPE: &str = "eks.amazonaws.com/compute-type";
/// Services that the DNS of a cluster may have, by namespace and name. The first reaches CoreDNS also on nodes with
/// NodeLocal DNSCache.
pub const DNS_SERVICES: [(&str, &str); 5] = [
    (KUBE_SYSTEM, "kube-dns-upstream"),
    (KUBE_SYSTEM, KUBE_DNS),
    (KUBE_SYSTEM, COREDNS),
    (KUBE_SYSTEM, "rke2-coredns-rke2-coredns"),
    (OPENSHIFT_DNS, "dns-default"),
];

/// The objects that tell how the DNS of a cluster is configured.
#[derive(Clone, Debug, Default)]
pub struct ClusterDns {
    /// The version of the API server, such as `v1.33.1+k3s1`.
    pub server_version: String,
    /// ConfigMaps of the namespace `kube-system`.
    pub config_maps: Vec<ConfigMap>,
    /// Services of the cluster DNS.
    pub services: Vec<Service>,
    /// The Deployment `kube-dns`, if it exists. Decoding the whole type would add half a megabyte to the program.
    pub deployments: Vec<DynamicObject>,
    /// What [`identifying`] keeps of the nodes.
    pub nodes: Vec<ObjectMeta>,
    /// OpenShift's `dns.operator/default`.
    pub dns_operator: Option<DynamicObject>,
}

/// A resolver that can forward the zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolver {
    CoreDns,
    NodeLocal,
    Eks,
    Aks,
    K3s,
    GkeKubeDns,
    OpenShift,
    Kubespray,
    Dnsmasq,
    SystemdResolved,
}

/// A cluster DNS that can't forward a zone to an address in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    GkeCloudDns,
    GkeAutopilot,
    EksAutoMode,
}

/// A part of the DNS of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsComponent {
    Resolver(Resolver),
    Unsupported(Unsupported),
}

impl ClusterDns {
    /// Returns a ConfigMap of `kube-system`.
    #[must_use]
    pub fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.iter().find(|map| map.name_any() == name)
    }

    /// Returns the ConfigMap of NodeLocal DNSCache.
    #[must_use]
    pub fn node_local(&self) -> Option<&ConfigMap> {
        NODE_LOCAL.iter().find_map(|name| self.config_map(name))
    }

    /// Returns the cluster IPs of a Service of the cluster DNS.
    pub fn cluster_ips(&self, name: &str) -> impl Iterator<Item = IpAddr> {
        self.services.iter().filter(move |service| service.name_any() == name).flat_map(cluster_ips)
    }

    /// Returns whether the Services of the cluster DNS lead to the Pods of `deploy/cluster-dns/`.
    #[must_use]
    pub fn selects_lb_linker(&self) -> bool {
        let is_ours =
            |(key, value): (&String, &String)| DNS_LABELS.contains(&&**key) && value == LB_LINKER_DNS;
        let selects = |service: &Service| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|labels| !labels.is_empty() && labels.iter().all(is_ours))
        };
        !self.services.is_empty() && self.services.iter().all(selects)
    }

    /// Returns the parts of the DNS of this cluster; empty if none is known.
    #[must_use]
    pub fn parts(&self) -> Vec<DnsComponent> {
        if self.dns_operator.is_some() {
            return vec![DnsComponent::Resolver(Resolver::OpenShift)];
        }
        if self.server_version.contains("-gke.") {
            return self.gke();
        }
        let core_dns = self.config_map(COREDNS);
        let imports = core_dns.and_then(|map| value(map, COREFILE)).is_some_and(|text| {
            Corefile::parse(COREFILE, text).is_ok_and(|corefile| corefile.imports_servers())
        });
        let mut parts = Vec::new();
        if self.server_version.contains("-eks-") {
            if core_dns.is_some() {
                parts.push(DnsComponent::Resolver(Resolver::Eks));
            }
            if core_dns.is_none() || self.nodes.iter().any(is_eks_auto_mode) {
                parts.push(DnsComponent::Unsupported(Unsupported::EksAutoMode));
            }
        } else if self.server_version.contains("+k3s") {
            parts.push(DnsComponent::Resolver(Resolver::K3s));
        } else if imports && core_dns.is_some_and(|map| is_reconciled(&map.metadata)) {
            parts.push(DnsComponent::Resolver(Resolver::Aks));
        } else {
            if self.config_map(NODE_LOCAL[1]).is_some() {
                parts.push(DnsComponent::Resolver(Resolver::Kubespray));
            }
            if core_dns.is_some() {
                parts.push(DnsComponent::Resolver(Resolver::CoreDns));
            }
        }
        if self.node_local().is_some() {
            parts.push(DnsComponent::Resolver(Resolver::NodeLocal));
        }
        parts
    }

    fn gke(&self) -> Vec<DnsComponent> {
        // Nodes of Autopilot are named gk3-….
        if !self.nodes.is_empty() && self.nodes.iter().all(is_autopilot) {
            return vec![DnsComponent::Unsupported(Unsupported::GkeAutopilot)];
        }
        let replicas = |it: &DynamicObject| it.data["spec"]["replicas"].as_i64().unwrap_or(1);
        let is_stopped = |it: &DynamicObject| it.name_any() == KUBE_DNS && replicas(it) == 0;
        let cloud_dns = DnsComponent::Unsupported(Unsupported::GkeCloudDns);
        if self.deployments.iter().any(is_stopped) {
            return vec![cloud_dns];
        }
        // With Cloud DNS, kube-dns usually keeps running: no object tells which of the two resolvers the Pods use.
        vec![DnsComponent::Resolver(Resolver::GkeKubeDns), cloud_dns]
    }
}

/// Returns the value of a key of a ConfigMap.
pub(super) fn value<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

/// Returns the cluster IPs of a Service, in the order of `spec.clusterIPs`.
pub fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.cluster_ips.as_ref()).into_iter().flatten().filter_map(|ip| ip.parse().ok())
}

/// Returns the name of a node, and its label that [`ClusterDns::parts`] reads: there may be many nodes.
#[must_use]
pub fn identifying(node: &ObjectMeta) -> ObjectMeta {
    let labels = node.labels.iter().flatten().filter(|(key, _)| *key == EKS_COMPUTE_TYPE);
    let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    ObjectMeta { name: node.name.clone(), labels: Some(labels), ..ObjectMeta::default() }
}

fn is_eks_auto_mode(node: &ObjectMeta) -> bool {
    let mut labels = node.labels.iter().flatten();
    labels.any(|(key, value)| key == EKS_COMPUTE_TYPE && value == "auto")
}

fn is_autopilot(node: &ObjectMeta) -> bool {
    node.name.as_deref().is_some_and(|name| name.starts_with("gk3-"))
}

/// Returns whether the addon manager sets an object back to its own manifest.
fn is_reconciled(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.iter().flatten();
    labels.into_iter().any(|(key, value)| key == "addonmanager.kubernetes.io/mode" && value == "Reconcile")
}

/// Returns which tool manages an object and would undo changes of it; `None` if none is known.
#[must_use]
pub fn manager(metadata: &ObjectMeta) -> Option<String> {
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let annotation = |key: &str| metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
    let writes = |name: &str| {
        let managers = metadata.managed_fields.iter().flatten().filter_map(|it| it.manager.as_deref());
        managers.into_iter().any(|manager| manager.starts_with(name))
    };
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let known = if label("eks.amazonaws.com/component").is_some() || writes("eks") {
        "the EKS add-on"
    } else if label("argocd.argoproj.io/instance").is_some()
        || annotation("argocd.argoproj.io/tracking-id")
        || writes("argocd")
    {
        "Argo CD"
    } else if label("kustomize.toolkit.fluxcd.io/name").is_some()
        || label("helm.toolkit.fluxcd.io/name").is_some()
        || writes("kustomize-controller")
    {
        "Flux"
    } else if annotation("meta.helm.sh/release-name") || writes("helm") {
        "Helm"
    } else if annotation("configmanagement.gke.io/managed") {
        "Config Sync"
    } else if writes("Terraform") {
        "Terraform"
    } else if label("kapp.k14s.io/app").is_some() {
        "kapp"
    } else if is_reconciled(metadata) {
        "the addon manager"
    } else if label("addon.kops.k8s.io/name").is_some() {
        "kOps"
    } else if annotation("objectset.rio.cattle.io/id") {
        "the deploy controller of k3s or RKE2"
    } else if let Some(owner) = owner {
        return Some(format!("{} {}", owner.kind, owner.name));
    } else {
        return label("app.kubernetes.io/managed-by").filter(|by| *by != "kubectl").cloned();
    };
    Some(known.to_owned())
}

#[cfg(test)]
mod tests;
