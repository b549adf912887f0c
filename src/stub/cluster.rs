//! Reads the objects that tell how the DNS of a cluster is configured.

use k8s_openapi::NamespaceResourceScope;
use std::fmt;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::platform::{
    COREDNS, COREDNS_CUSTOM, ClusterDns, DNS_SERVICES, KUBE_DNS, KUBE_SYSTEM, NODE_LOCAL, cluster_ips,
};
use super::{DNS_PORT, Forwarding};
use crate::sync::k8s::errors::describe;

/// The label of lb-linker's own Service.
const OWN_LABEL: &str = "app.kubernetes.io/name=lb-linker";
/// The label of nodes of EKS Auto Mode.
const EKS_AUTO_MODE: &str = "eks.amazonaws.com/compute-type=auto";
/// The maximum number of nodes that are listed.
const NODES: u32 = 50;
/// The maximum number of Services with lb-linker's label that are listed.
const OWN_SERVICES: u32 = 50;

/// The reason why lb-linker's Service can't be found.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("{0}")]
    Request(String),
    #[error(
        "no Service with the label {OWN_LABEL} and a port for DNS was found: install lb-linker first, or name its \
         Service by --service"
    )]
    NoService,
    #[error("several Services of lb-linker were found: name one by --service: {}", .0.join(", "))]
    SeveralServices(Vec<String>),
    #[error("Service {0} doesn't exist, has no cluster IP, or has no UDP port for DNS")]
    Unsuitable(String),
}

impl StubError {
    fn request(error: &kube::Error, doing: &str) -> Self {
        Self::Request(describe(error, doing, ""))
    }
}

/// Finds lb-linker's Service by this namespace and name (`--service`), or else by lb-linker's label.
///
/// # Errors
/// If no suitable Service is found, several are, or Services can't be listed.
pub async fn forwarding(
    client: &Client,
    name: Option<(&str, &str)>,
    zones: Vec<String>,
) -> Result<Forwarding, StubError> {
    let (services, params) = match name {
        // Lists instead of a get: lb-linker's own permissions don't include get.
        Some((namespace, name)) => (
            Api::namespaced(client.clone(), namespace),
            ListParams::default().fields(&format!("metadata.name={name}")),
        ),
        None => {
            (Api::<Service>::all(client.clone()), ListParams::default().labels(OWN_LABEL).limit(OWN_SERVICES))
        }
    };
    let found = services.list(&params).await.map_err(|error| StubError::request(&error, "list Services"))?;
    let key =
        |service: &Service| format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
    let suitable: Vec<(String, u16)> =
        found.items.iter().filter_map(|service| Some((key(service), dns_port(service)?))).collect();
    match (&*suitable, name) {
        ([(service, port)], _) => {
            let addresses =
                found.items.iter().filter(|it| key(it) == *service).flat_map(cluster_ips).collect();
            Ok(Forwarding { zones, service: service.clone(), addresses, port: *port })
        }
        ([], Some((namespace, name))) => Err(StubError::Unsuitable(format!("{namespace}/{name}"))),
        ([], None) => Err(StubError::NoService),
        (several, _) => {
            Err(StubError::SeveralServices(several.iter().map(|(service, _)| service.clone()).collect()))
        }
    }
}

/// Returns the UDP port for DNS of a Service: port 53, or the port named `dns`; `None` without such a port, or without
/// a cluster IP.
fn dns_port(service: &Service) -> Option<u16> {
    cluster_ips(service).next()?;
    let ports = service.spec.as_ref()?.ports.iter().flatten();
    let mut udp = ports.filter(|port| port.protocol.as_deref() == Some("UDP"));
    let port = udp.find(|port| port.port == i32::from(DNS_PORT) || port.name.as_deref() == Some("dns"))?;
    port.port.try_into().ok()
}

/// Reads the objects of the cluster DNS. Returns them with sentences about what couldn't be read. Deployments (GKE) and
/// nodes (GKE, EKS) are read only if `with_workloads`.
pub async fn read(client: &Client, with_workloads: bool) -> (ClusterDns, Vec<String>) {
    let mut reader = Reader { client, notices: Vec::new() };
    let mut dns = ClusterDns::default();
    match client.apiserver_version().await {
        Ok(version) => dns.server_version = version.git_version,
        Err(error) => reader.notices.push(describe(&error, "read the version of the API server", "")),
    }
    for name in [COREDNS, COREDNS_CUSTOM, NODE_LOCAL[0], NODE_LOCAL[1], KUBE_DNS] {
        dns.config_maps.extend(reader.get::<ConfigMap>(name, "deploy/stub/ grants the permissions").await);
    }
    for (namespace, name) in DNS_SERVICES {
        let services = Api::<Service>::namespaced(client.clone(), namespace);
        let found = services.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await;
        let found = reader.or_notice(found, &format!("list Services in namespace {namespace}"), "");
        dns.services.extend(found.into_iter().flatten());
    }
    let is_gke = dns.server_version.contains("-gke.");
    if with_workloads && is_gke {
        dns.deployments.extend(reader.get::<Deployment>(KUBE_DNS, "").await);
    }
    if with_workloads && (is_gke || dns.server_version.contains("-eks-")) {
        // On EKS, a single node of Auto Mode matters, and may be beyond the limit without the label selector.
        let params = if is_gke { ListParams::default() } else { ListParams::default().labels(EKS_AUTO_MODE) };
        let nodes = Api::<Node>::all(client.clone()).list(&params.limit(NODES)).await;
        dns.nodes.extend(reader.or_notice(nodes, "list nodes", "").into_iter().flatten());
    }
    let kind = ApiResource {
        group: "operator.openshift.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "operator.openshift.io/v1".to_owned(),
        kind: "DNS".to_owned(),
        plural: "dnses".to_owned(),
    };
    let operator = match Api::<DynamicObject>::all_with(client.clone(), &kind).get_opt("default").await {
        // Without OpenShift the kind doesn't exist. Without the permission the answer is 403 on any cluster.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        found => found,
    };
    dns.dns_operator = reader.or_notice(operator, "read dns.operator/default", "").flatten();
    (dns, reader.notices)
}

struct Reader<'a> {
    client: &'a Client,
    /// What couldn't be read, each sentence once.
    notices: Vec<String>,
}

impl Reader<'_> {
    async fn get<K>(&mut self, name: &str, hint: &str) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + fmt::Debug,
    {
        let found = Api::<K>::namespaced(self.client.clone(), KUBE_SYSTEM).get_opt(name).await;
        let what = format!("read {} {KUBE_SYSTEM}/{name}", K::kind(&()));
        self.or_notice(found, &what, hint).flatten()
    }

    fn or_notice<T>(&mut self, found: kube::Result<T>, doing: &str, hint: &str) -> Option<T> {
        let notice = |error: kube::Error| {
            let sentence = describe(&error, doing, hint);
            if !self.notices.contains(&sentence) {
                self.notices.push(sentence);
            }
        };
        found.map_err(notice).ok()
    }
}
