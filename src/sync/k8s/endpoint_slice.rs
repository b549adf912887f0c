//! EndpointSlices, with only the fields that lb-linker reads and writes.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::model::link::{Port, empty_is_none, null_is_tcp, tcp};
use crate::sync::k8s::service::{null_is_default, slim_metadata};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(skip_deserializing)]
    pub api_version: SliceApiVersion,
    #[serde(skip_deserializing)]
    pub kind: SliceKind,
    /// The fields of `metadata` that lb-linker needs.
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    /// `IPv4` or `IPv6`; immutable.
    #[serde(default, deserialize_with = "null_is_default")]
    pub address_type: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// A port of an EndpointSlice. The API requires none of its fields, and doesn't validate the number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPort {
    /// An empty `name` counts as none.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// `TCP`, `UDP` or `SCTP`; `TCP` by default.
    #[serde(default = "tcp", deserialize_with = "null_is_tcp")]
    pub protocol: Box<str>,
    /// The port number; `None` means all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// An empty `appProtocol` counts as none.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Box<str>>,
}

impl From<&Port> for EndpointPort {
    fn from(port: &Port) -> Self {
        let Port { name, protocol, port, app_protocol } = port.clone();
        Self { name, protocol, port: Some(port.into()), app_protocol }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    /// A single address, as Kubernetes recommends.
    #[serde(default, deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub conditions: Conditions,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Conditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SliceApiVersion {
    #[default]
    #[serde(rename = "discovery.k8s.io/v1")]
    V1,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SliceKind {
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
