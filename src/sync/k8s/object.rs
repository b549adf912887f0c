//! The objects that lb-linker manages in the target namespace, Services and EndpointSlices, with only the fields that
//! it reads and writes.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::service::Service;
use crate::sync::k8s::endpoint_slice::EndpointSlice;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    Service,
    EndpointSlice,
    /// A load balancer itself. Only our finalizer is written to it.
    LoadBalancer,
}

impl ObjectKind {
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service | Self::LoadBalancer => "services",
            Self::EndpointSlice => "endpointslices",
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Service | Self::LoadBalancer => "Service",
            Self::EndpointSlice => "EndpointSlice",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub kind: ObjectKind,
    /// The name of the object; for a load balancer with its namespace.
    pub name: String,
}

impl ObjectId {
    #[must_use]
    pub fn service(name: &str) -> Self {
        Self { kind: ObjectKind::Service, name: name.to_owned() }
    }

    /// Returns the id of an object of this kind with these metadata.
    #[must_use]
    pub fn of(kind: ObjectKind, metadata: &ObjectMeta) -> Self {
        Self { kind, name: metadata.name.clone().unwrap_or_default() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
}

impl Object {
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId::of(self.kind(), self.meta())
    }

    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Service(_) => ObjectKind::Service,
            Self::EndpointSlice(_) => ObjectKind::EndpointSlice,
        }
    }

    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Service(service) => &service.metadata,
            Self::EndpointSlice(slice) => &slice.metadata,
        }
    }

    pub fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Service(service) => &mut service.metadata,
            Self::EndpointSlice(slice) => &mut slice.metadata,
        }
    }

    #[must_use]
    pub fn as_service(&self) -> Option<&Service> {
        match self {
            Self::Service(service) => Some(service),
            Self::EndpointSlice(_) => None,
        }
    }

    #[must_use]
    pub fn as_slice(&self) -> Option<&EndpointSlice> {
        match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::Service(_) => None,
        }
    }

    /// Returns `metadata.uid`, or an empty string.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.meta().resource_version.as_deref()?.parse().ok()
    }

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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1;
    use serde_json::{Value, json};

    use super::*;

    fn decoded(slice: Value) -> EndpointSlice {
        // lb-linker's type accepts everything that the API's own type accepts.
        serde_json::from_value::<v1::EndpointSlice>(slice.clone()).unwrap();
        serde_json::from_value(slice).unwrap()
    }

    #[test]
    fn endpoint_slice_ports_need_no_field() {
        let ports =
            json!([{}, {"name": "web", "protocol": null, "port": null}, {"port": -1}, {"port": 70000}]);
        let slice = decoded(json!({"addressType": "IPv4", "endpoints": null, "ports": ports}));
        let numbers: Vec<_> = slice.ports.iter().map(|port| port.port).collect();
        assert_eq!(numbers, [None, None, Some(-1), Some(70_000)]);
        assert!(slice.ports.iter().all(|port| *port.protocol == *"TCP"));
        assert_eq!(serde_json::to_value(&slice.ports[0]).unwrap(), json!({"protocol": "TCP"}));
    }

    #[test]
    fn fields_that_are_null_count_as_missing() {
        let endpoints = json!([{"addresses": null, "conditions": null}, {"conditions": {"ready": null}}]);
        let slice = decoded(json!({"addressType": null, "endpoints": endpoints, "ports": null,
            "metadata": {"name": "a", "labels": null, "ownerReferences": [{}], "managedFields": [{}]}}));
        assert_eq!(slice.endpoints.len(), 2);
        assert!(slice.endpoints.iter().all(|endpoint| endpoint.addresses.is_empty()));
    }
}
