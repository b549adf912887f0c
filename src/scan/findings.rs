//! Finds the objects that name a load balancer. Pure functions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::api::stable_name::StableName;
use crate::links::remote_links::{RemoteLink, remote_links};
use crate::model::clusters;
use crate::model::excerpt::examples;
use crate::model::link::{Link, Target};
use crate::model::service_key::ServiceKey;
use crate::store::Store;
use crate::sync::external_target::desired::link_of_labels;
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::labels::{MANAGED_BY, SERVICE_NAME, SLICE_MANAGED_BY, SOURCE};
use crate::sync::k8s::service::{EXTERNAL_NAME, Service, null_is_default};

/// The minimum number of labels of a domain of load balancers, so that `com` isn't such a domain.
const MIN_DOMAIN_LABELS: usize = 2;
/// The manager of EndpointSlices that kube-controller-manager makes of Endpoints that were written by hand.
const MIRRORED: &str = "endpointslicemirroring-controller.k8s.io";

/// The findings of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scan {
    /// ExternalName Services with a hostname in a domain of this cluster's load balancers. No load balancer has the
    /// hostname now, and it doesn't exist in DNS, or DNS doesn't tell whether it exists.
    pub probable: Vec<Stale>,
    /// ExternalName Services whose hostname exactly one load balancer or StableName has now. A fixed target of an
    /// StableName counts only for Services of its namespace.
    pub exact: Vec<ExactMatch>,
    /// ExternalName Services whose hostname several load balancers have now.
    pub ambiguous: Vec<Ambiguous>,
    /// ExternalName Services with the hostname of a source, or of a former target, of a StableName, which are
    /// neither in `exact` nor in `ambiguous`: the source isn't in use, or is a fixed target in another namespace.
    pub sources: Vec<SourceMatch>,
    /// ExternalName Services whose hostname load balancers of remote clusters have now, and none of this cluster.
    pub remote: Vec<RemoteMatch>,
    /// Objects with the address of a load balancer.
    pub addresses: Vec<AddressMatch>,
    /// ExternalName Services with the hostname of an Ingress or Gateway, which no load balancer and no StableName
    /// has.
    pub targets: Vec<TargetMatch>,
    /// Sentences about objects that couldn't be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// An ExternalName Service whose hostname probably belonged to a load balancer that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stale {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    /// `NXDOMAIN`, or why DNS doesn't tell whether the hostname exists.
    pub dns: String,
}

/// An ExternalName Service that can follow a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExactMatch {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    /// `<namespace>/<name>` of the load balancer, or of the StableName that its link belongs to.
    pub load_balancer: String,
    /// Whether the link belongs to a StableName.
    pub is_stable_name: bool,
    /// The namespaces that the load balancer allows already.
    #[serde(skip)]
    pub allowed: Vec<String>,
    /// Whether the load balancer has to allow the namespace first.
    pub needs_allow_from: bool,
    /// The resourceVersion at which the Service was read.
    #[serde(skip)]
    pub version: Option<String>,
}

/// An ExternalName Service with a hostname that several load balancers have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ambiguous {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    pub load_balancers: Vec<String>,
}

/// An ExternalName Service with the hostname of a source, or of a former target, of StableNames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceMatch {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    /// `<namespace>/<name>` of the StableNames.
    pub stable_names: Vec<String>,
}

/// An ExternalName Service with the hostname of objects that may be a source of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetMatch {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    /// The objects, such as `Ingress shop/web`.
    pub objects: Vec<String>,
}

/// An ExternalName Service with the hostname of a load balancer of a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteMatch {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
    #[serde(flatten)]
    pub remote: RemoteLoadBalancer,
}

/// A load balancer of a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteLoadBalancer {
    pub cluster: String,
    /// `<namespace>/<name>` in its cluster.
    pub load_balancer: String,
    /// The DNS name that lb-linker gives it.
    pub name: String,
}

/// An EndpointSlice or Endpoints of a Service without a selector, with an address of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressMatch {
    /// `EndpointSlice` or `Endpoints`.
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub address: IpAddr,
    pub load_balancer: String,
    /// `<namespace>/<name>` of the external target, which has the load balancer's present addresses; of a load balancer of
    /// a remote cluster its DNS name.
    pub replacement: String,
}

/// An ExternalName Service with an unknown hostname in the domain of the load balancers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub namespace: String,
    pub service: String,
    pub external_name: String,
}

/// The objects of the cluster.
#[derive(Debug, Default)]
pub struct Objects {
    pub services: Vec<Service>,
    pub stable_names: Vec<StableName>,
    pub slices: Vec<EndpointSlice>,
    pub endpoints: Vec<Endpoints>,
    /// The objects that may be a source of names, such as `Ingress shop/web`, by the hostnames of their targets.
    pub of_targets: BTreeMap<String, BTreeSet<String>>,
}

/// Endpoints, with only the fields that a scan reads.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Endpoints {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub subsets: Vec<Subset>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Subset {
    #[serde(default, deserialize_with = "null_is_default")]
    pub addresses: Vec<EndpointsAddress>,
    #[serde(default, deserialize_with = "null_is_default", rename = "notReadyAddresses")]
    pub not_ready_addresses: Vec<EndpointsAddress>,
}

impl Subset {
    fn all_addresses(&self) -> impl Iterator<Item = &String> {
        self.addresses.iter().chain(&self.not_ready_addresses).map(|address| &address.ip)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct EndpointsAddress {
    pub ip: String,
}

impl Resource for Endpoints {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Endpoints".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "endpoints".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Returns the findings that need no DNS look-up, and the candidates for [`Scan::probable`]. Leaves `probable` empty.
#[must_use]
pub fn find(objects: &Objects, store: &Store, target_namespace: &str) -> (Scan, Vec<Candidate>) {
    let owners = owners_of_hostnames(store);
    let sources = hostnames_of_sources(&objects.stable_names, store);
    // A fixed target is text that a tenant chooses: no cloud controller has set it.
    let is_of_service = |link: &Arc<Link>| link.active_override().is_none_or(|by| !by.service_uid.is_empty());
    let of_services = owners.iter().filter(|(_, links)| links.iter().any(is_of_service));
    let remotes = Remotes::of(store);
    let of_services = of_services.map(|(hostname, _)| hostname).chain(remotes.by_hostname.keys());
    let domains: HashSet<&str> = of_services.filter_map(|hostname| domain(hostname)).collect();
    let (mut scan, mut candidates, mut labelled) = (Scan::default(), Vec::new(), BTreeSet::new());
    for service in &objects.services {
        let Some(external_name) = unmanaged_external_name(service, store, target_namespace) else { continue };
        if link_of_labels(&service.metadata).is_some() {
            labelled.insert(service.key());
            continue;
        }
        let (namespace, name) = (service.key().namespace().to_owned(), service.key().name().to_owned());
        let found = Candidate { namespace, service: name, external_name };
        let all = owners.get(&found.external_name).map(Vec::as_slice).unwrap_or_default();
        let is_owner = |link: &&Arc<Link>| is_of_service(link) || link.key.namespace() == found.namespace;
        let trusted: Vec<&Arc<Link>> = all.iter().filter(is_owner).collect();
        let (of_source, of_target) =
            (sources.get(&found.external_name), objects.of_targets.get(&found.external_name));
        match (&trusted[..], of_source, of_target) {
            ([owner], ..) => scan.exact.push(found.exact_match(owner, service)),
            ([_, _, ..], ..) => scan.ambiguous.push(found.ambiguous(&trusted)),
            ([], Some(stable_names), _) => scan.sources.push(found.source_match(stable_names)),
            ([], None, _) if remotes.by_hostname.contains_key(&found.external_name) => {
                let remotes = remotes.by_hostname.get(&found.external_name).into_iter().flatten();
                scan.remote.extend(remotes.map(|remote| found.remote_match(remote)));
            }
            ([], None, Some(others)) => scan.targets.push(found.target_match(others)),
            ([], None, None)
                if domain(&found.external_name).is_some_and(|domain| domains.contains(domain)) =>
            {
                candidates.push(found)
            }
            ([], None, None) => {}
        }
    }
    scan.exact.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    scan.ambiguous.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    scan.sources.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    scan.targets.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    scan.remote.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    scan.addresses = addresses(objects, store, &remotes, target_namespace, &mut labelled);
    if !labelled.is_empty() {
        scan.notices.push(format!(
            "objects outside of namespace {target_namespace} with lb-linker's labels, which each user may set, are left out: \
             {}; if no other lb-linker has written an object, remove its label {}",
            examples(&labelled),
            MANAGED_BY.0
        ));
    }
    (scan, candidates)
}

impl Candidate {
    fn exact_match(self, owner: &Link, service: &Service) -> ExactMatch {
        let Self { namespace, service: name, external_name } = self;
        ExactMatch {
            load_balancer: owner.key.to_string(),
            is_stable_name: owner.active_override().is_some(),
            needs_allow_from: owner.key.namespace() != namespace && !owner.annotations.allows(&namespace),
            allowed: owner.annotations.allow_from.iter().map(ToString::to_string).collect(),
            version: service.metadata.resource_version.clone(),
            namespace,
            service: name,
            external_name,
        }
    }

    fn ambiguous(self, owners: &[&Arc<Link>]) -> Ambiguous {
        let Self { namespace, service, external_name } = self;
        let load_balancers = owners.iter().map(|owner| owner.key.to_string()).collect();
        Ambiguous { namespace, service, external_name, load_balancers }
    }

    fn source_match(self, stable_names: &BTreeSet<ServiceKey>) -> SourceMatch {
        let Self { namespace, service, external_name } = self;
        let stable_names = stable_names.iter().map(ToString::to_string).collect();
        SourceMatch { namespace, service, external_name, stable_names }
    }

    fn remote_match(&self, remote: &RemoteLoadBalancer) -> RemoteMatch {
        let Self { namespace, service, external_name } = self.clone();
        RemoteMatch { namespace, service, external_name, remote: remote.clone() }
    }

    fn target_match(self, objects: &BTreeSet<String>) -> TargetMatch {
        let Self { namespace, service, external_name } = self;
        TargetMatch { namespace, service, external_name, objects: objects.iter().cloned().collect() }
    }
}

/// Returns the links with a hostname as target, by hostname and ordered by key.
fn owners_of_hostnames(store: &Store) -> BTreeMap<String, Vec<Arc<Link>>> {
    let mut owners: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut links = store.links();
    links.sort_by(|a, b| a.key.cmp(&b.key));
    for link in links.into_iter().filter(|link| !link.is_gone() && !link.is_left_out()) {
        if let Some(Target::Hostname(hostname)) = &link.target {
            owners.entry(hostname.to_string().to_ascii_lowercase()).or_default().push(Arc::clone(&link));
        }
    }
    owners
}

/// The load balancers of remote clusters, by their targets.
#[derive(Default)]
struct Remotes {
    by_hostname: BTreeMap<String, Vec<RemoteLoadBalancer>>,
    by_address: BTreeMap<IpAddr, Vec<RemoteLoadBalancer>>,
}

impl Remotes {
    /// Returns the load balancers that have a name.
    fn of(store: &Store) -> Self {
        let mut found = Self::default();
        for (key, RemoteLink { link, dns_names, .. }) in remote_links(store) {
            let (Some(cluster), Some(name)) = (key.cluster(), dns_names.into_iter().next()) else { continue };
            let (namespace, service) = key.parts();
            let load_balancer = format!("{}/{service}", clusters::split(namespace).1);
            let remote = RemoteLoadBalancer { cluster: cluster.to_owned(), load_balancer, name };
            match &link.target {
                Some(Target::Hostname(hostname)) => {
                    let hostname = hostname.to_string().to_ascii_lowercase();
                    found.by_hostname.entry(hostname).or_default().push(remote);
                }
                Some(Target::Addresses(addresses)) => {
                    for address in addresses.iter() {
                        found.by_address.entry(*address).or_default().push(remote.clone());
                    }
                }
                None => {}
            }
        }
        found
    }
}

/// Returns the StableNames by the hostnames of their sources and of their former targets.
fn hostnames_of_sources(
    stable_names: &[StableName],
    store: &Store,
) -> BTreeMap<String, BTreeSet<ServiceKey>> {
    let mut found: BTreeMap<String, BTreeSet<ServiceKey>> = BTreeMap::new();
    let mut add = |hostname: &str, key: &ServiceKey| {
        let hostname = hostname.trim_end_matches('.').to_ascii_lowercase();
        found.entry(hostname).or_default().insert(key.clone());
    };
    for object in stable_names {
        let ObjectMeta { namespace, name, .. } = &object.metadata;
        let key =
            ServiceKey::new(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        let status = object.status.clone().unwrap_or_default();
        let fixed = object.spec.sources.iter().filter_map(|source| source.hostname.as_ref());
        let offered = status.sources.iter().map(|source| &source.offers);
        let former = status.history.iter().map(|former| &former.display);
        fixed.chain(offered).chain(former).for_each(|hostname| add(hostname, &key));
    }
    for link in store.links().iter().filter(|link| link.active_override().is_some()) {
        if let Some(Target::Hostname(hostname)) =
            link.service_link().and_then(|service| service.target.as_ref())
        {
            add(&hostname.to_string(), &link.key);
        }
    }
    found
}

/// Returns the hostname of an ExternalName Service that isn't an external target, doesn't become one by its name, and
/// doesn't follow a load balancer yet. `None` for any other Service.
fn unmanaged_external_name(service: &Service, store: &Store, target_namespace: &str) -> Option<String> {
    let key = service.key();
    let is_written =
        || link_of_labels(&service.metadata).is_some() || !store.claimants(key.name()).is_empty();
    let is_kept = key.namespace() == target_namespace && is_written() || service.annotation(SOURCE).is_some();
    let is_external_name = service.spec.type_.as_deref() == Some(EXTERNAL_NAME);
    if is_kept || !is_external_name || service.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(service.spec.external_name.as_deref()?.trim_end_matches('.').to_ascii_lowercase())
}

/// Returns a hostname without its first label; `None` if fewer than [`MIN_DOMAIN_LABELS`] labels remain.
fn domain(hostname: &str) -> Option<&str> {
    let (_, domain) = hostname.split_once('.')?;
    (domain.split('.').count() >= MIN_DOMAIN_LABELS).then_some(domain)
}

/// Returns the objects with an address of a load balancer. Adds those with lb-linker's labels to `labelled` instead.
fn addresses(
    objects: &Objects,
    store: &Store,
    remotes: &Remotes,
    target_namespace: &str,
    labelled: &mut BTreeSet<ServiceKey>,
) -> Vec<AddressMatch> {
    // The endpoints of these Services are written by controllers, not by hand.
    let with_selector: BTreeSet<ServiceKey> = objects
        .services
        .iter()
        .filter(|service| !service.spec.selector.is_empty())
        .map(Service::key)
        .collect();
    let endpoints_keys: HashSet<_> = objects
        .endpoints
        .iter()
        .map(|object| (object.metadata.namespace.as_deref(), object.metadata.name.as_deref()))
        .collect();
    // The finding about the Endpoints covers the EndpointSlice that kube-controller-manager has made of them.
    let is_copy = |slice: &&EndpointSlice| {
        let label = |key| slice.metadata.labels.as_ref()?.get(key).map(String::as_str);
        label(SLICE_MANAGED_BY.0) == Some(MIRRORED)
            && endpoints_keys.contains(&(slice.metadata.namespace.as_deref(), label(SERVICE_NAME)))
    };
    let slices = objects.slices.iter().filter(|slice| !is_copy(slice)).filter_map(|slice| {
        let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        let texts = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect::<Vec<_>>();
        Some(("EndpointSlice", &slice.metadata, service.clone(), texts))
    });
    let endpoints = objects.endpoints.iter().filter_map(|object| {
        let texts = object.subsets.iter().flat_map(Subset::all_addresses);
        Some(("Endpoints", &object.metadata, object.metadata.name.clone()?, texts.collect::<Vec<_>>()))
    });
    let mut found = Vec::new();
    for (kind, metadata, service, texts) in slices.chain(endpoints) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let is_written = namespace == target_namespace;
        if is_written || with_selector.contains(&ServiceKey::new(namespace, &service)) {
            continue;
        }
        for address in texts.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
            if link_of_labels(metadata).is_some() && !store.links_at(address).is_empty() {
                labelled.insert(ServiceKey::new(namespace, metadata.name.as_deref().unwrap_or_default()));
                break;
            }
            let links = store.links_at(address);
            let of_home = links
                .iter()
                .map(|link| (link.key.to_string(), format!("{target_namespace}/{}", link.external_target())));
            // Private addresses may be in use in several clusters.
            let of_remotes = remotes.by_address.get(&address).filter(|_| links.is_empty());
            let of_remotes = of_remotes
                .into_iter()
                .flatten()
                .map(|remote| (format!("{}/{}", remote.cluster, remote.load_balancer), remote.name.clone()));
            found.extend(of_home.chain(of_remotes).map(|(load_balancer, replacement)| AddressMatch {
                kind,
                namespace: namespace.to_owned(),
                name: metadata.name.clone().unwrap_or_default(),
                address,
                load_balancer,
                replacement,
            }));
        }
    }
    found.sort_by(|a, b| {
        (&a.namespace, &a.name, a.kind, a.address).cmp(&(&b.namespace, &b.name, b.kind, b.address))
    });
    found
}

#[cfg(test)]
mod tests;
