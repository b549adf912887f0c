//! The objects of a cluster that names stand for, with only the fields that DNS shows.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::Client;
use serde::Deserialize;

use crate::scan::list;
use crate::sync::k8s::errors::ListError;
use crate::sync::k8s::service::{null_is_default, slim_metadata};
use crate::sync::k8s::slim_resource::slim_resource;

/// The objects of a cluster.
#[derive(Debug, Default)]
pub struct Objects {
    pub services: Vec<Service>,
    pub slices: Vec<Slice>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
    /// The kinds that couldn't be listed.
    pub unread: Vec<&'static str>,
    /// Sentences about objects that couldn't be read.
    pub notices: Vec<String>,
}

impl Objects {
    /// Lists the objects.
    ///
    /// # Errors
    /// If Services can't be listed. An error about another kind becomes a notice.
    pub async fn read(client: &Client) -> Result<Self, ListError> {
        let (mut unread, mut notices) = (Vec::new(), Vec::new());
        let services = list(client, "Services", None, &mut notices).await?;
        macro_rules! others {
            ($what:literal) => {
                match list(client, $what, None, &mut notices).await {
                    Ok(objects) => objects,
                    Err(error) => {
                        unread.push($what);
                        notices.push(format!("{}; names of {} aren't compared", error.explain(""), $what));
                        Vec::new()
                    }
                }
            };
        }
        let (slices, namespaces, pods) = (others!("EndpointSlices"), others!("Namespaces"), others!("Pods"));
        Ok(Self { services, slices, namespaces, pods, unread, notices })
    }
}

slim_resource!(Service, NamespaceResourceScope, "Service", "", "services");
slim_resource!(Slice, NamespaceResourceScope, "EndpointSlice", "discovery.k8s.io", "endpointslices");
slim_resource!(Namespace, ClusterResourceScope, "Namespace", "", "namespaces");
slim_resource!(Pod, NamespaceResourceScope, "Pod", "", "pods");

#[derive(Debug, Deserialize)]
pub struct Service {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
}

#[derive(Debug, Default, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub external_name: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs", default, deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<Port>,
}

/// A port of a Service or of an EndpointSlice.
#[derive(Debug, Default, Hash, Deserialize)]
pub struct Port {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slice {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub address_type: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<Port>,
}

#[derive(Debug, Default, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    #[serde(default, deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    pub hostname: Option<String>,
    pub target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Hash, Deserialize)]
pub struct Conditions {
    pub ready: Option<bool>,
}

#[derive(Debug, Hash, Deserialize)]
pub struct TargetRef {
    pub name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Namespace {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
}

#[derive(Debug, Deserialize)]
pub struct Pod {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

#[derive(Debug, Default, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs", default, deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Debug, Default, Hash, Deserialize)]
pub struct PodIp {
    pub ip: Option<String>,
}
