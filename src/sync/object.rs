//! The objects that lb-linker keeps in the target namespace: Services and EndpointSlices, with just
//! the fields that it reads and writes.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::service::{Port, Service, null_is_default, slim_metadata};

/// An EndpointSlice (discovery.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// `discovery.k8s.io/v1`.
    #[serde(skip_deserializing)]
    pub api_version: SliceApiVersion,
    /// `EndpointSlice`.
    #[serde(skip_deserializing)]
    pub kind: SliceKind,
    /// The fields of `metadata` that lb-linker needs.
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    /// `IPv4` or `IPv6`; can't be changed.
    pub address_type: String,
    /// `endpoints`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// `ports`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<Port>,
}

/// One endpoint of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `addresses`; one, as Kubernetes recommends.
    pub addresses: Vec<String>,
    /// `conditions`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub conditions: Conditions,
}

/// `conditions` of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

/// The `apiVersion` of an EndpointSlice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SliceApiVersion {
    /// The only one.
    #[default]
    #[serde(rename = "discovery.k8s.io/v1")]
    V1,
}

/// The `kind` of an EndpointSlice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SliceKind {
    /// The only one.
    #[default]
    EndpointSlice,
}

impl Resource for EndpointSlice {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "EndpointSlice".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "discovery.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "endpointslices".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Which kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A Service.
    Service,
    /// An EndpointSlice.
    EndpointSlice,
    /// A load balancer itself, of which only our finalizer is written.
    LoadBalancer,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service | Self::LoadBalancer => "Service",
            Self::EndpointSlice => "EndpointSlice",
        })
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Its name; of a load balancer with its namespace.
    pub name: String,
}

impl ObjectId {
    /// Returns the id of the Service of this name.
    #[must_use]
    pub fn service(name: &str) -> Self {
        Self { kind: Kind::Service, name: name.to_owned() }
    }

    /// Returns the id of the object of this kind with these metadata.
    #[must_use]
    pub fn of(kind: Kind, metadata: &ObjectMeta) -> Self {
        Self { kind, name: metadata.name.clone().unwrap_or_default() }
    }
}

/// An object of the target namespace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// An EndpointSlice.
    EndpointSlice(Box<EndpointSlice>),
}

impl Object {
    /// Returns which object it is.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId::of(self.kind(), self.meta())
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
        }
    }

    /// Returns its metadata.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Service(service) => &service.metadata,
            Self::EndpointSlice(slice) => &slice.metadata,
        }
    }

    /// Returns the Service that it is.
    #[must_use]
    pub fn as_service(&self) -> Option<&Service> {
        match self {
            Self::Service(service) => Some(service),
            Self::EndpointSlice(_) => None,
        }
    }

    /// Returns the EndpointSlice that it is.
    #[must_use]
    pub fn as_slice(&self) -> Option<&EndpointSlice> {
        match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::Service(_) => None,
        }
    }

    /// Returns `metadata.uid`, or nothing.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns `metadata.resourceVersion` as a number: newer is larger.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.meta().resource_version.as_deref()?.parse().ok()
    }

    /// Returns whether it is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
}

impl From<Service> for Object {
    fn from(service: Service) -> Self {
        Self::Service(Box::new(service))
    }
}

impl From<EndpointSlice> for Object {
    fn from(slice: EndpointSlice) -> Self {
        Self::EndpointSlice(Box::new(slice))
    }
}
