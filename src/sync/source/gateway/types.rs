//! The objects of Gateway API, with only the fields that names need.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::in_stored_form;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations::TargetEntries;
use crate::sync::k8s::service::{IngressEntry, null_is_default, slim_metadata};
use crate::sync::k8s::slim_resource::slim_resource;

/// The group of the API.
pub const GROUP: &str = "gateway.networking.k8s.io";
/// The condition of an object that its controller, or that of its parent, has accepted.
const ACCEPTED: &str = "Accepted";

/// An object of one of the kinds.
#[derive(Clone, Debug)]
pub enum Object {
    Gateway(Gateway),
    ListenerSet(ListenerSet),
    Route(RegardingKind, RouteObject),
}

impl Object {
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Gateway(gateway) => &gateway.metadata,
            Self::ListenerSet(set) => &set.metadata,
            Self::Route(_, route) => &route.metadata,
        }
    }

    #[must_use]
    pub fn kind(&self) -> RegardingKind {
        match self {
            Self::Gateway(_) => RegardingKind::Gateway,
            Self::ListenerSet(_) => RegardingKind::ListenerSet,
            Self::Route(kind, _) => *kind,
        }
    }
}

slim_resource!(Gateway, NamespaceResourceScope, "Gateway", "gateway.networking.k8s.io", "gateways");
slim_resource!(
    ListenerSet,
    NamespaceResourceScope,
    "ListenerSet",
    "gateway.networking.k8s.io",
    "listenersets"
);

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Gateway {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: GatewaySpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: GatewayStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    #[serde(default, deserialize_with = "null_is_default")]
    pub gateway_class_name: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct GatewayStatus {
    #[serde(default, deserialize_with = "null_is_default")]
    addresses: Vec<Address>,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    type_: Option<String>,
    value: Option<String>,
}

impl Gateway {
    /// Returns the addresses of the status, without those of other types than IPAddress, which is the default, and
    /// Hostname.
    #[must_use]
    pub fn addresses(&self) -> Vec<IngressEntry> {
        let entry = |Address { type_, value }: &Address| match type_.as_deref() {
            None | Some("IPAddress") => Some(IngressEntry { ip: value.clone(), hostname: None }),
            Some("Hostname") => Some(IngressEntry { hostname: value.clone(), ip: None }),
            Some(_) => None,
        };
        self.status.addresses.iter().filter_map(entry).collect()
    }

    /// Returns the hostnames that the Gateway names as its target, without the trailing dot.
    #[must_use]
    pub fn target_hosts(&self, prefixes: &[String]) -> Vec<String> {
        let addresses = self.addresses();
        let entries = TargetEntries::of(&self.metadata, prefixes, &addresses);
        entries.hosts().map(|host| to_presentation(&host)).collect()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ListenerSet {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: ListenerSetSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: ListenerSetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSetSpec {
    #[serde(default, deserialize_with = "null_is_default")]
    pub parent_ref: ParentRef,
    #[serde(default, deserialize_with = "null_is_default")]
    pub listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ListenerSetStatus {
    #[serde(default, deserialize_with = "null_is_default")]
    conditions: Vec<Condition>,
}

impl ListenerSet {
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        is_accepted(&self.status.conditions) == Some(true)
    }

    /// Returns the hostnames that the ListenerSet names as its target, without the trailing dot.
    #[must_use]
    pub fn target_hosts(&self, prefixes: &[String]) -> Vec<String> {
        TargetEntries::of(&self.metadata, prefixes, &[]).hosts().map(|host| to_presentation(&host)).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    #[serde(default)]
    pub name: String,
    pub hostname: Option<Host>,
    pub port: Option<i32>,
    #[serde(default)]
    pub protocol: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub allowed_routes: AllowedRoutes,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct AllowedRoutes {
    #[serde(default, deserialize_with = "null_is_default")]
    pub namespaces: RouteNamespaces,
    /// Empty for all kinds that fit the protocol.
    #[serde(default, deserialize_with = "null_is_default")]
    pub kinds: Vec<RouteKind>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct RouteNamespaces {
    /// `Same` by default.
    pub from: Option<String>,
    selector: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RouteKind {
    pub group: Option<String>,
    pub kind: String,
}

/// A hostname in the form in which names are stored; the first label may be `*`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct Host(Box<str>);

impl From<String> for Host {
    fn from(text: String) -> Self {
        Self(in_stored_form(&text).into())
    }
}

impl std::ops::Deref for Host {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A reference to a Gateway, a ListenerSet, or an object of another kind, or to a part of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentRef {
    pub group: Option<String>,
    pub kind: Option<String>,
    pub namespace: Option<String>,
    #[serde(default)]
    pub name: String,
    pub section_name: Option<String>,
    pub port: Option<i32>,
}

/// An HTTPRoute, a GRPCRoute or a TLSRoute.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RouteObject {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    pub spec: RouteSpec,
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: RouteStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteSpec {
    #[serde(default, deserialize_with = "null_is_default")]
    pub parent_refs: Vec<ParentRef>,
    #[serde(default, deserialize_with = "null_is_default")]
    pub hostnames: Vec<Host>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct RouteStatus {
    #[serde(default, deserialize_with = "null_is_default")]
    pub parents: Vec<ParentStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    #[serde(default, deserialize_with = "null_is_default")]
    pub parent_ref: ParentRef,
    #[serde(default, deserialize_with = "null_is_default")]
    conditions: Vec<Condition>,
}

impl ParentStatus {
    /// Returns whether the parent has accepted or refused the route; `None` if neither.
    #[must_use]
    pub fn is_accepted(&self) -> Option<bool> {
        is_accepted(&self.conditions)
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type", default)]
    type_: String,
    #[serde(default)]
    status: String,
}

/// The generation doesn't matter: names and listeners are compared here, and with each change of a route its names
/// would be gone until its controller has written the status.
fn is_accepted(conditions: &[Condition]) -> Option<bool> {
    let condition = conditions.iter().find(|condition| condition.type_ == ACCEPTED)?;
    match &*condition.status {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// Makes a type that is read as a kind of routes.
macro_rules! route {
    ($name:ident, $kind:literal, $plural:literal) => {
        slim_resource!($name, NamespaceResourceScope, $kind, "gateway.networking.k8s.io", $plural);

        #[derive(Clone, Debug, Default, Deserialize)]
        pub struct $name {
            #[serde(default, deserialize_with = "slim_metadata")]
            metadata: ObjectMeta,
            #[serde(default, deserialize_with = "null_is_default")]
            spec: RouteSpec,
            #[serde(default, deserialize_with = "null_is_default")]
            status: RouteStatus,
        }

        impl From<$name> for RouteObject {
            fn from($name { metadata, spec, status }: $name) -> Self {
                Self { metadata, spec, status }
            }
        }
    };
}

route!(HttpRoute, "HTTPRoute", "httproutes");
route!(GrpcRoute, "GRPCRoute", "grpcroutes");
route!(TlsRoute, "TLSRoute", "tlsroutes");
