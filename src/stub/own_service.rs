//! Finds lb-linker's own Service. Its label identifies nothing by itself, because each user may set it on the Services of
//! a namespace: the Service has to be in a namespace of lb-linker.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::platform::cluster_ips;
use super::{DNS_PORT, Forwarding};
use crate::model::excerpt::examples;
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::watch::{RequestQuery, list_pages};

/// The label of lb-linker's objects in `deploy/` and in the chart.
pub(super) const LABEL: (&str, &str) = ("app.kubernetes.io/name", "lb-linker");
/// The namespace of `deploy/`.
const NAMESPACE: &str = "lb-linker";

/// The reason why lb-linker's Service can't be found.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("{0}")]
    Request(String),
    #[error(
        "lb-linker's Service wasn't found: {0}; install lb-linker first, or name its Service by --service NAMESPACE/NAME"
    )]
    NoService(String),
    /// Only that of `deploy/cluster-dns/` exists.
    #[error(
        "lb-linker's Service wasn't found: {0}; install lb-linker first, or name the Service of deploy/cluster-dns/ by \
         --service kube-system/lb-linker-cluster-dns"
    )]
    OnlyClusterDns(String),
    #[error("several Services of lb-linker were found: name one by --service NAMESPACE/NAME: {0}")]
    SeveralServices(String),
    #[error("Service {0} doesn't exist, has no cluster IP, or has no UDP port for DNS")]
    Unsuitable(String),
}

/// Services by `<namespace>/<name>`.
type Services = BTreeMap<String, Service>;

/// Finds lb-linker's Service: `name` (`--service`), or the one in the namespace of this Pod, or that of the release.
///
/// # Errors
/// If no suitable Service is found, several are, or Services can't be listed.
pub async fn forwarding(
    client: &Client,
    name: Option<(&str, &str)>,
    own_namespace: Option<&str>,
    zones: Vec<String>,
) -> Result<Forwarding, StubError> {
    if let Some((namespace, name)) = name {
        // A list instead of a get: lb-linker's own permissions don't include get.
        let mut found = services(client, &RequestQuery::named(namespace, name), |_| true).await?;
        found.retain(|_, service| dns_port(service).is_some());
        let unsuitable = || StubError::Unsuitable(format!("{namespace}/{name}"));
        return only(found, zones)?.ok_or_else(unsuitable);
    }
    let mut reasons = Vec::new();
    if let Some(namespace) = own_namespace
        && let Some(found) = only(labelled(client, namespace, &mut reasons).await?, zones.clone())?
    {
        return Ok(found);
    }
    let found = of_release(client, own_namespace, &mut reasons).await?;
    if let Some(found) = only(found, zones)? {
        return Ok(found);
    }
    reasons.extend(foreign(client, own_namespace).await);
    Err(StubError::NoService(reasons.join("; ")))
}

/// Returns the Services of releases: in the namespace `lb-linker`, unless it is this Pod's, and in the namespaces of the
/// ServiceAccounts that ClusterRoleBindings of lb-linker name. Adds to `reasons` why others aren't taken.
async fn of_release(
    client: &Client,
    own_namespace: Option<&str>,
    reasons: &mut Vec<String>,
) -> Result<Services, StubError> {
    let mut found = Services::new();
    if own_namespace != Some(NAMESPACE) {
        found.extend(labelled(client, NAMESPACE, reasons).await?);
    }
    let accounts = service_accounts(client, reasons).await;
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        accounts.into_iter().partition(|account| account.namespace() == NAMESPACE);
    let mut of_accounts = Services::new();
    for account in elsewhere.iter().chain(here.iter().filter(|_| found.is_empty())) {
        of_accounts.extend(selecting(client, account, reasons).await?);
    }
    // With releases in other namespaces only, this namespace may be a user's.
    if !found.is_empty() && here.is_empty() && !elsewhere.is_empty() {
        reasons.push(format!(
            "{} isn't taken for it, because the ClusterRoleBindings of lb-linker name ServiceAccounts of other namespaces",
            examples(found.keys())
        ));
        found.clear();
    }
    found.extend(of_accounts);
    Ok(found)
}

/// Returns the zones with the only Service; `None` if there is no Service.
fn only(found: Services, zones: Vec<String>) -> Result<Option<Forwarding>, StubError> {
    if found.len() > 1 {
        return Err(StubError::SeveralServices(examples(found.keys())));
    }
    let forwarding = |(key, service): (String, Service)| {
        let addresses = cluster_ips(&service).collect();
        Some(Forwarding { zones, service: key, addresses, port: dns_port(&service)? })
    };
    Ok(found.into_iter().next().and_then(forwarding))
}

/// Returns the Services with lb-linker's label in a namespace of lb-linker. Adds to `reasons` why there are none.
async fn labelled(
    client: &Client,
    namespace: &str,
    reasons: &mut Vec<String>,
) -> Result<Services, StubError> {
    let query = RequestQuery {
        namespace: Some(namespace.to_owned()),
        labels: format!("{}={}", LABEL.0, LABEL.1),
        ..RequestQuery::default()
    };
    let mut found = services(client, &query, |_| true).await?;
    let all: Vec<String> = found.keys().cloned().collect();
    found.retain(|_, service| dns_port(service).is_some());
    if found.is_empty() && all.is_empty() {
        reasons.push(format!("no Service in namespace {namespace} has the label {}={}", LABEL.0, LABEL.1));
    } else if found.is_empty() {
        reasons.push(format!("{} has no cluster IP, or no UDP port for DNS", examples(all)));
    }
    Ok(found)
}

/// Returns the ServiceAccounts of lb-linker's releases. Only administrators may create ClusterRoleBindings.
async fn service_accounts(client: &Client, reasons: &mut Vec<String>) -> BTreeSet<ServiceKey> {
    let query = RequestQuery { labels: format!("{}={}", LABEL.0, LABEL.1), ..RequestQuery::default() };
    match list::<ClusterRoleBinding, _>(client, &query, Some).await {
        Ok(bindings) if bindings.is_empty() => {
            reasons.push(format!("no ClusterRoleBinding has the label {}={}", LABEL.0, LABEL.1));
            BTreeSet::new()
        }
        Ok(bindings) => {
            let accounts = bindings.iter().filter_map(|binding| match service_account(binding) {
                Ok(account) => Some(account),
                Err(reason) => {
                    reasons.push(reason);
                    None
                }
            });
            accounts.collect()
        }
        Err(error) => {
            reasons.push(describe(&error, "list ClusterRoleBindings", ""));
            BTreeSet::new()
        }
    }
}

/// Returns the ServiceAccount of a release: in `deploy/` and in the chart, a ClusterRoleBinding has the name of its
/// ClusterRole, and one subject. A copy that gives lb-linker's permissions to other accounts has other names or subjects.
fn service_account(binding: &ClusterRoleBinding) -> Result<ServiceKey, String> {
    let name = binding.name_any();
    let role = &binding.role_ref.name;
    if *role != name {
        return Err(format!("ClusterRoleBinding {name} isn't that of a release, because its role is {role}"));
    }
    match binding.subjects.as_deref().unwrap_or_default() {
        [subject] if subject.kind == "ServiceAccount" => {
            Ok(ServiceKey::new(subject.namespace.as_deref().unwrap_or_default(), &subject.name))
        }
        subjects => Err(format!(
            "ClusterRoleBinding {name} isn't that of a release, because it names {} subjects instead of one \
             ServiceAccount",
            subjects.len()
        )),
    }
}

/// Returns the Services that select Pods of a ServiceAccount; if some of them have lb-linker's label, only these. Adds to
/// `reasons` why there are none.
async fn selecting(
    client: &Client,
    account: &ServiceKey,
    reasons: &mut Vec<String>,
) -> Result<Services, StubError> {
    let (namespace, name) = account.parts();
    let pods = RequestQuery {
        namespace: Some(namespace.to_owned()),
        fields: format!("spec.serviceAccountName={name}"),
        metadata_only: true,
        ..RequestQuery::default()
    };
    // The Pods of one workload differ in few labels.
    let labels = list::<PartialObjectMeta<Pod>, _>(client, &pods, |mut pod| pod.metadata.labels.take()).await;
    let labels: BTreeSet<BTreeMap<String, String>> = labels
        .map_err(|error| request_failed(&error, &format!("list Pods in namespace {namespace}")))?
        .into_iter()
        .collect();
    let query = RequestQuery { namespace: Some(namespace.to_owned()), ..RequestQuery::default() };
    let is_found = |service: &Service| {
        dns_port(service).is_some() && labels.iter().any(|labels| selects(service, labels))
    };
    let mut found = services(client, &query, is_found).await?;
    if found.values().any(has_label) {
        found.retain(|_, service| has_label(service));
    }
    if found.is_empty() {
        reasons.push(format!(
            "no Service with a cluster IP and a UDP port for DNS selects Pods of ServiceAccount {account}, which a \
             ClusterRoleBinding of lb-linker names"
        ));
    }
    Ok(found)
}

/// Returns a sentence about Services with lb-linker's label in other namespaces.
async fn foreign(client: &Client, own_namespace: Option<&str>) -> Option<String> {
    let query = RequestQuery {
        labels: format!("{}={}", LABEL.0, LABEL.1),
        metadata_only: true,
        ..RequestQuery::default()
    };
    let key = |service: PartialObjectMeta<Service>| {
        let namespace = service.namespace()?;
        let is_own = namespace == NAMESPACE || own_namespace == Some(&namespace);
        (!is_own).then(|| format!("{namespace}/{}", service.name_any()))
    };
    // Without the permission to list the Services of all namespaces, the other reasons have to suffice.
    let found = list(client, &query, key).await.ok()?;
    (!found.is_empty()).then(|| {
        format!(
            "Services in other namespaces aren't taken for it, because each user of a namespace can set the label there: {}",
            examples(found)
        )
    })
}

async fn services(
    client: &Client,
    query: &RequestQuery,
    is_wanted: impl Fn(&Service) -> bool,
) -> Result<Services, StubError> {
    let namespace = query.namespace.as_deref().unwrap_or_default();
    let keyed = |service: Service| {
        is_wanted(&service).then(|| (format!("{namespace}/{}", service.name_any()), service))
    };
    let found = list(client, query, keyed).await;
    let doing = format!("list Services in namespace {namespace}");
    Ok(found.map_err(|error| request_failed(&error, &doing))?.into_iter().collect())
}

/// Lists all objects of a query, and keeps what `kept` returns of them. Objects that can't be decoded are left out.
pub(super) async fn list<K: Resource<DynamicType = ()> + DeserializeOwned, T>(
    client: &Client,
    query: &RequestQuery,
    kept: impl Fn(K) -> Option<T>,
) -> kube::Result<Vec<T>> {
    let mut all = Vec::new();
    list_pages(client.clone(), query, |page| {
        all.extend(page.into_iter().filter_map(|object| object.0.ok()).filter_map(&kept));
    })
    .await?;
    Ok(all)
}

fn request_failed(error: &kube::Error, doing: &str) -> StubError {
    StubError::Request(describe(error, doing, "name lb-linker's Service by --service NAMESPACE/NAME"))
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

fn has_label(service: &Service) -> bool {
    service.labels().get(LABEL.0).is_some_and(|value| value == LABEL.1)
}

/// Returns whether the selector of a Service selects a Pod with these labels. An empty selector selects none.
fn selects(service: &Service, labels: &BTreeMap<String, String>) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    })
}

#[cfg(test)]
mod tests;
