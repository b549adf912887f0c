//! The desired external target of a link: a pure function of the link.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::model::hostname::Hostname;
use crate::model::hostname_policy::HOSTNAME;
use crate::model::link::{Link, Port, Target, has_same_entries};
use crate::model::link_override::LinkOverride;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::election::term::TERM;
use crate::sync::k8s::endpoint_slice::{Conditions, Endpoint, EndpointSlice};
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::labels::{
    FIELD_MANAGER, MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE, SERVICE_NAME, SERVICE_UID,
    SLICE_MANAGED_BY, STABLE_NAME_UID,
};
use crate::sync::k8s::object::Object;
use crate::sync::k8s::service::{EXTERNAL_NAME, Service, Spec, host_name};

/// `spec.type` and `spec.clusterIP` of a headless Service.
pub(crate) const HEADLESS: (&str, &str) = ("ClusterIP", "None");

/// The name suffix of EndpointSlices with IPv4 addresses.
pub const IPV4: &str = "ipv4";
/// The name suffix of EndpointSlices with IPv6 addresses.
pub const IPV6: &str = "ipv6";

/// Returns the name of an external target's EndpointSlice for an address family.
#[must_use]
pub fn slice_name(external_target: &str, family: &str) -> String {
    format!("{external_target}-{family}")
}

/// The kind of external target for a load balancer with addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpTargets {
    /// A headless Service with an EndpointSlice for each address family.
    Headless,
    /// An ExternalName Service with the first IPv4 address as name, as the earlier operator wrote it.
    ExternalName,
    /// No external target.
    Skip,
}

/// The desired objects of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    pub service: Option<Service>,
    pub slices: Vec<EndpointSlice>,
}

impl Desired {
    /// Returns the desired objects of a link with this target. `in_use` is the present `spec`: of several addresses an
    /// ExternalName keeps the one that it has, and ports stay while the ports of the Service in use aren't known.
    #[must_use]
    pub fn of(link: &Link, target: &Target, ip_targets: IpTargets, in_use: Option<&Spec>) -> Self {
        let lacks_ports = link.active_override().is_some_and(LinkOverride::lacks_ports);
        let ports = in_use.filter(|_| lacks_ports).map_or(&*link.ports, |in_use| &in_use.ports[..]);
        let alone = |service| Self { service, slices: Vec::new() };
        match (target, ip_targets) {
            (Target::Hostname(host), _) => alone(Some(external_name(link, &host.to_string()))),
            (Target::Addresses(_), IpTargets::Skip) => alone(None),
            (Target::Addresses(ips), IpTargets::ExternalName) => {
                let in_use = in_use.and_then(|in_use| in_use.external_name.as_deref());
                alone(ipv4_name(ips, in_use).map(|ip| external_name(link, &ip)))
            }
            (Target::Addresses(ips), IpTargets::Headless) => {
                let families = [(IPV4, "IPv4", true), (IPV6, "IPv6", false)];
                let slices = families.map(|(end, address_type, ipv4)| {
                    let ips = ips.iter().filter(|ip| ip.is_ipv4() == ipv4 && fits_slice(ip));
                    slice(link, end, (address_type, ips), ports)
                });
                Self {
                    service: Some(headless(link, ports)),
                    slices: slices.into_iter().filter(|slice| !slice.endpoints.is_empty()).collect(),
                }
            }
        }
    }

    /// As [`Self::of`], for a link with a target and without an external target.
    #[cfg(test)]
    pub(crate) fn first(link: &Link, ip_targets: IpTargets) -> Self {
        Self::of(link, link.target.as_ref().unwrap(), ip_targets, None)
    }

    /// Returns the desired objects of a link after the end of its Service: an ExternalName with a name that doesn't
    /// exist.
    #[must_use]
    pub fn tombstone(link: &Link, name: &str) -> Self {
        Self { service: Some(external_name(link, name)), slices: Vec::new() }
    }
}

/// Returns the IPv4 address that an ExternalName has for a target: the one in use, else the first one.
pub(crate) fn ipv4_name(ips: &[IpAddr], in_use: Option<&str>) -> Option<String> {
    let in_use = in_use.map(|name| name.trim_end_matches('.'));
    let mut names = ips.iter().filter(|ip| ip.is_ipv4()).map(ToString::to_string);
    let first = names.clone().next();
    names.find(|name| Some(&**name) == in_use).or(first)
}

fn external_name(link: &Link, host: &str) -> Service {
    Service { metadata: service_metadata(link), spec: Spec::external_name(host), ..Default::default() }
}

fn headless(link: &Link, ports: &[Port]) -> Service {
    let (type_, cluster_ip) = HEADLESS;
    Service {
        metadata: service_metadata(link),
        spec: Spec {
            type_: Some(type_.into()),
            cluster_ip: Some(cluster_ip.into()),
            ports: ports.to_vec(),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Returns whether an external target with EndpointSlices for this target has no address.
#[must_use]
pub fn lacks_address(target: &Target) -> bool {
    matches!(target, Target::Addresses(ips) if !ips.iter().any(fits_slice))
}

/// Returns whether the API server accepts an address in an EndpointSlice. Most addresses that it rejects are also
/// denied by the target policy; if a flag allows them, they are only in DNS answers.
fn fits_slice(ip: &IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.octets()[0] == 0xff && ip.octets()[1] & 0xf == 2,
    };
    !(is_special || ip.is_unspecified() || ip.is_loopback())
}

fn slice<'a>(
    link: &Link,
    end: &str,
    (address_type, ips): (&str, impl Iterator<Item = &'a IpAddr>),
    ports: &[Port],
) -> EndpointSlice {
    let external_target = link.external_target();
    let mut metadata = metadata(link, &slice_name(&external_target, end));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(SERVICE_NAME.into(), external_target.into_owned());
    labels.insert(SLICE_MANAGED_BY.0.into(), SLICE_MANAGED_BY.1.into());
    let endpoint = |ip: &IpAddr| Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Conditions { ready: Some(true) },
    };
    EndpointSlice {
        metadata,
        address_type: address_type.into(),
        endpoints: ips.map(endpoint).collect(),
        ports: ports.iter().map(Into::into).collect(),
        ..Default::default()
    }
}

/// Returns the metadata of an external target. Its annotations record the custom hostnames of the link, so that the
/// link keeps them after a restart, and the uid of its Service, because a recreated Service has another target. For an
/// overridden link they record the uids of the Service in use and of the StableName.
fn service_metadata(link: &Link) -> ObjectMeta {
    let hostnames = (!link.hostnames.is_empty()).then(|| (HOSTNAME.to_owned(), link.hostnames.join(",")));
    let uid =
        |annotation: &str, uid: &Uid| (!uid.is_empty()).then(|| (annotation.to_owned(), uid.to_string()));
    let service = uid(SERVICE_UID, link.active_override().map_or(&link.uid, |by| &by.service_uid));
    let external_target = link.active_override().and_then(|by| uid(STABLE_NAME_UID, &by.uid));
    let recorded: BTreeMap<String, String> =
        hostnames.into_iter().chain(service).chain(external_target).collect();
    ObjectMeta {
        annotations: (!recorded.is_empty()).then_some(recorded),
        ..metadata(link, &link.external_target())
    }
}

fn metadata(link: &Link, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), labels: Some(link_labels(&link.key)), ..Default::default() }
}

/// Returns the labels of every object of a link.
pub(crate) fn link_labels(key: &ServiceKey) -> BTreeMap<String, String> {
    let labels = [MANAGED_BY, (ORIGINAL_NAME, key.name()), (ORIGINAL_NAMESPACE, key.namespace())];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the temporary `externalName` of an external target that changes from an allocated clusterIP, which is
/// immutable, to a headless Service: a name that never exists (RFC 6761 section 6.4).
pub(crate) fn placeholder_name(external_target: &str) -> String {
    format!("{external_target}.invalid")
}

/// Returns whether an object lacks a desired label.
fn lacks_labels(actual: &ObjectMeta, desired: &ObjectMeta) -> bool {
    let has = |key, value| actual.labels.as_ref().and_then(|labels| labels.get(key)) == Some(value);
    !desired.labels.iter().flatten().all(|(key, value)| has(key, value))
}

/// Returns whether a Service differs from the desired one, in the fields that are ours.
#[must_use]
pub fn service_differs(actual: &Service, desired: &Service) -> bool {
    // The API server keeps a trailing dot that another client has written.
    let name = |spec: &Spec| spec.external_name.as_deref().map(|name| name.trim_end_matches('.').to_owned());
    let ip = |spec: &Spec| spec.cluster_ip.clone().filter(|ip| !ip.is_empty());
    let hostnames = |service: &'_ Service| -> Option<Vec<String>> {
        Some(service.annotation(HOSTNAME)?.split(',').map(ToOwned::to_owned).collect())
    };
    let are_alike = |one: &Option<Vec<String>>, other: &Option<Vec<String>>| match (one, other) {
        (Some(one), Some(other)) => has_same_entries(one, other),
        (one, other) => one == other,
    };
    let overridden_by = desired.annotation(STABLE_NAME_UID);
    let other_uid = match (actual.annotation(SERVICE_UID), desired.annotation(SERVICE_UID)) {
        (Some(actual), Some(desired)) => actual != desired,
        (actual, desired) if overridden_by.is_some() => actual != desired,
        // A missing uid annotation alone causes no write: another client may have written the object.
        _ => false,
    };
    lacks_labels(&actual.metadata, &desired.metadata)
        || !are_alike(&hostnames(actual), &hostnames(desired))
        || actual.annotation(STABLE_NAME_UID) != overridden_by
        || other_uid
        || actual.spec.type_ != desired.spec.type_
        || name(&actual.spec) != name(&desired.spec)
        || ip(&actual.spec) != ip(&desired.spec)
        || !has_same_entries(&actual.spec.ports, &desired.spec.ports)
        || !actual.spec.selector.is_empty()
}

/// Returns whether an EndpointSlice differs from the desired one, in the fields that are ours.
#[must_use]
pub fn slice_differs(actual: &EndpointSlice, desired: &EndpointSlice) -> bool {
    lacks_labels(&actual.metadata, &desired.metadata)
        || !has_same_entries(&actual.endpoints, &desired.endpoints)
        || !has_same_entries(&actual.ports, &desired.ports)
}

/// The version of an object that a write is meant for: the API server refuses the write for any other version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

impl Precondition {
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() }
    }
}

/// The annotations that every write leaves on an external target or EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The name of this instance, if there are instances.
    pub instance: Option<String>,
    /// The term of this leader, if there are terms.
    pub term: Option<u64>,
}

impl Stamp {
    fn annotations(&self) -> BTreeMap<String, String> {
        let instance = self.instance.iter().map(|instance| (INSTANCE.to_owned(), instance.clone()));
        instance.chain(self.term.map(|term| (TERM.to_owned(), term.to_string()))).collect()
    }

    /// Adds the annotations to an object that is to be created.
    pub(crate) fn put_on(&self, object: &mut Object) {
        let annotations = self.annotations();
        if !annotations.is_empty() {
            object.meta_mut().annotations.get_or_insert_default().extend(annotations);
        }
    }

    /// Returns the JSON merge patch (RFC 7396) that sets only these annotations, with its precondition.
    #[must_use]
    pub fn patch(&self, precondition: &Precondition) -> Value {
        json!({"metadata": {
            "uid": precondition.uid,
            "resourceVersion": precondition.resource_version,
            "annotations": self.annotations(),
        }})
    }
}

/// Returns the JSON merge patch (RFC 7396) that sets all fields that are ours, and removes the fields that the desired
/// object must not have. The patch includes its precondition: the API server refuses it for another uid (422) and
/// another resourceVersion (409).
#[must_use]
pub fn merge_patch(desired: &Object, precondition: &Precondition, stamp: &Stamp) -> Value {
    let mut metadata = json!({
        "uid": precondition.uid,
        "resourceVersion": precondition.resource_version,
        "labels": desired.meta().labels,
        "annotations": stamp.annotations(),
    });
    match desired {
        Object::Service(service) => {
            metadata["annotations"][HOSTNAME] = service.annotation(HOSTNAME).into();
            let (uid, overridden_by) = (service.annotation(SERVICE_UID), service.annotation(STABLE_NAME_UID));
            metadata["annotations"][STABLE_NAME_UID] = overridden_by.into();
            if uid.or(overridden_by).is_some() {
                metadata["annotations"][SERVICE_UID] = uid.into();
            }
            let Spec { type_, external_name, cluster_ip, ports, .. } = &service.spec;
            let mut spec = json!({
                "type": type_,
                "externalName": external_name,
                "clusterIP": cluster_ip,
                "ports": (!ports.is_empty()).then_some(ports),
                "selector": null,
                // Only a LoadBalancer may have this field; its other fields are removed by the API server.
                "loadBalancerSourceRanges": null,
            });
            if cluster_ip.is_none() {
                spec["clusterIPs"] = Value::Null;
            }
            json!({"metadata": metadata, "spec": spec})
        }
        Object::EndpointSlice(slice) => {
            json!({"metadata": metadata, "endpoints": slice.endpoints, "ports": slice.ports})
        }
    }
}

/// Returns the link that an object is labelled for, if it has our managed-by label.
#[must_use]
pub fn link_of_labels(metadata: &ObjectMeta) -> Option<ServiceKey> {
    let label = |key: &str| metadata.labels.as_ref()?.get(key);
    label(MANAGED_BY.0).filter(|manager| *manager == MANAGED_BY.1)?;
    Some(ServiceKey::new(label(ORIGINAL_NAMESPACE)?, label(ORIGINAL_NAME)?))
}

/// Returns whether lb-linker itself has written to an object.
#[must_use]
pub fn has_our_field_manager(metadata: &ObjectMeta) -> bool {
    metadata.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Returns the present target of an external target with these EndpointSlices.
#[must_use]
pub fn current_target<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> Option<Target> {
    if service.spec.type_.as_deref() == Some(EXTERNAL_NAME) {
        let name = service.spec.external_name.as_deref()?;
        return Some(match name.parse() {
            Ok(ip) => Target::Addresses([ip].into()),
            Err(_) => Target::Hostname(Hostname::from(&host_name(name).ok()?)),
        });
    }
    addresses_of(slices)
}

/// Returns the target that consists of the addresses of these EndpointSlices.
pub(super) fn addresses_of<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> Option<Target> {
    let ips: Vec<IpAddr> = slices
        .flat_map(|slice| &slice.endpoints)
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse().ok())
        .collect();
    (!ips.is_empty()).then_some(Target::Addresses(ips.into()))
}
