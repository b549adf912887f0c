//! Observation of the target namespace and of DNS answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lb_linker::model::service_key::ServiceKey;

use super::rules::Observed;
use super::world::{Slice, TargetService};
use crate::harness::cluster::Cluster;
use crate::harness::dns::{ask_udp, query};

const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "lb-linker-operator");
const OWNER_NAME: &str = "original-service-name";
const OWNER_NAMESPACE: &str = "original-service-namespace";

/// Reads the target namespace and the targets of the followers.
pub async fn observe(cluster: &Cluster, target: &str, followers: &[ServiceKey]) -> Observed {
    let services = cluster.services(target);
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), target);
    let params = ListParams::default();
    let (services, slices) = tokio::join!(services.list(&params), slices.list(&params));
    let mut observed = Observed::default();
    for service in services.unwrap() {
        let name = service.name_any();
        observed.versions.insert(name.clone(), version(&service));
        let written_for = service.annotations().get("linker.hsj.com/service-uid");
        if let (Some(owner), Some(uid)) = (owner(&service), written_for) {
            observed.written_for.insert(owner, uid.clone());
        }
        match owner(&service) {
            Some(owner) => {
                observed.ours.entry((name, owner)).or_default().service = Some(target_service(&service))
            }
            None => drop(observed.foreign.insert(name, version(&service))),
        }
    }
    for slice in slices.unwrap() {
        let name = slice.name_any();
        observed.versions.insert(format!("EndpointSlice {name}"), version(&slice));
        match (owner(&slice), name.strip_suffix("-ipv4"), name.strip_suffix("-ipv6")) {
            (Some(owner), Some(of), _) => {
                let shape = observed.ours.entry((of.to_owned(), owner)).or_default();
                shape.ipv4 = Some(content(&slice, of, "IPv4"));
            }
            (Some(owner), _, Some(of)) => {
                let shape = observed.ours.entry((of.to_owned(), owner)).or_default();
                shape.ipv6 = Some(content(&slice, of, "IPv6"));
            }
            _ => drop(observed.foreign.insert(format!("EndpointSlice {name}"), version(&slice))),
        }
    }
    for key in followers {
        let follower = cluster.get_service(key.namespace(), key.name()).await.expect("the follower exists");
        let target = follower.spec.and_then(|spec| spec.external_name).unwrap_or_default();
        observed.followers.insert(key.clone(), target);
    }
    observed
}

/// Returns the UID and resourceVersion of an object.
pub fn version(object: &impl ResourceExt) -> String {
    let uid = object.uid().unwrap_or_default();
    format!("{uid}@{}", object.resource_version().unwrap_or_default())
}

/// Returns the link in an object's labels if the labels mark the object as managed by lb-linker.
pub fn owner(object: &impl ResourceExt) -> Option<ServiceKey> {
    let labels = object.labels();
    (labels.get(MANAGED_BY.0)? == MANAGED_BY.1)
        .then(|| Some(ServiceKey::new(labels.get(OWNER_NAMESPACE)?, labels.get(OWNER_NAME)?)))
        .flatten()
}

/// Classifies the Service of an external target. Any unexpected field makes the Service a [`TargetService::Other`].
fn target_service(service: &Service) -> TargetService {
    let spec = service.spec.clone().unwrap_or_default();
    let odd = || {
        let target = spec.external_name.clone().filter(|_| spec.type_.as_deref() == Some("ExternalName"));
        TargetService::Other(format!("{:?} {spec:?}", service.labels()), target)
    };
    if service.labels().len() != 3 || spec.selector.is_some() || service.metadata.deletion_timestamp.is_some()
    {
        return odd();
    }
    let ports = spec.ports.as_deref().unwrap_or_default();
    match (spec.type_.as_deref(), &spec.external_name, spec.cluster_ip.as_deref(), ports) {
        (Some("ExternalName"), Some(host), None, []) => TargetService::ExternalName(host.clone()),
        (Some("ClusterIP"), None, Some("None"), [port]) => {
            let number = u16::try_from(port.port).unwrap_or(0);
            let right = port.name == Some(format!("p{number}")) && port.protocol.as_deref() == Some("TCP");
            if right { TargetService::Headless(number) } else { odd() }
        }
        _ => odd(),
    }
}

/// Returns the addresses and the port of an EndpointSlice, with port 0 if anything in the EndpointSlice is wrong.
fn content(slice: &EndpointSlice, of: &str, family: &str) -> Slice {
    let labels = slice.labels();
    let right = slice.address_type == family
        && labels.len() == 5
        && labels.get("kubernetes.io/service-name").is_some_and(|name| name == of)
        && labels.get("endpointslice.kubernetes.io/managed-by").is_some_and(|name| name == "lb-linker");
    let port = match slice.ports.as_deref() {
        Some([port]) => {
            let number = port.port.and_then(|port| u16::try_from(port).ok());
            number.filter(|number| right && port.name == Some(format!("p{number}")))
        }
        _ => None,
    };
    let ready = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
    };
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    let ips: Vec<IpAddr> = endpoints
        .iter()
        .filter(|endpoint| endpoint.addresses.len() == 1 && ready(endpoint))
        .filter_map(|endpoint| endpoint.addresses[0].parse().ok())
        .collect();
    // No expected port is 0, so a wrong EndpointSlice never matches.
    if ips.len() == endpoints.len() { (ips, port.unwrap_or(0)) } else { (Vec::new(), 0) }
}

/// Sends all queries, and returns the differences from the expected answers.
pub async fn wrong_answers(server: SocketAddr, expected: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    futures::stream::iter(expected)
        .map(|(question, expected)| async move {
            let answer = ask_udp(server, &query(&question)).await;
            let mut data: BTreeSet<String> =
                answer.answers.iter().map(|record| record.data.to_string()).collect();
            if data.is_empty() {
                data.insert(answer.metadata.response_code.to_string());
            }
            (data != expected).then(|| format!("{question}: should be {expected:?} and is {data:?}"))
        })
        .buffer_unordered(16)
        .filter_map(std::future::ready)
        .collect()
        .await
}
