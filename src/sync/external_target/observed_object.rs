//! External targets and EndpointSlices as last observed, with only the fields that are read, which saves memory for
//! each link.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};

use super::desired::{has_our_field_manager, link_labels, link_of_labels};
use crate::model::hostname_policy::HOSTNAME;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::election::term::TERM;
use crate::sync::k8s::endpoint_slice::{Endpoint, EndpointPort, EndpointSlice};
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::labels::{
    FIELD_MANAGER, MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE, SERVICE_NAME, SERVICE_UID,
    SLICE_MANAGED_BY, SOURCE, STABLE_NAME_UID,
};
use crate::sync::k8s::object::{Object, ObjectId};
use crate::sync::k8s::service::{Service, Spec};

/// The labels that name the link of an object.
const LINK_LABELS: [&str; 3] = [MANAGED_BY.0, ORIGINAL_NAME, ORIGINAL_NAMESPACE];
/// The other labels that are read.
const SLICE_LABELS: [&str; 2] = [SERVICE_NAME, SLICE_MANAGED_BY.0];
/// The annotations that are read.
const ANNOTATIONS: [&str; 6] = [STABLE_NAME_UID, HOSTNAME, INSTANCE, SERVICE_UID, SOURCE, TERM];

/// An object of the target namespace, without its namespace.
#[derive(Clone, Debug)]
pub struct ObservedObject {
    pub id: ObjectId,
    pub uid: Uid,
    pub resource_version: Option<Box<str>>,
    /// The Unix time of the creation in seconds.
    pub created: Option<i64>,
    /// Boxed, like `owner`, because few objects have these fields.
    deletion_timestamp: Option<Box<Time>>,
    /// The first owner reference.
    owner: Option<Box<OwnerReference>>,
    pub has_our_field_manager: bool,
    /// The link that the object is labelled for, if it has our managed-by label.
    pub labelled_for: Option<ServiceKey>,
    /// The annotations that are read, and the labels that don't follow from `labelled_for`. No
    /// annotation has the key of a label.
    values: Box<[(&'static str, Box<str>)]>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// A Service of type ExternalName without other fields.
    ExternalName(Box<str>),
    Service(Box<Spec>),
    EndpointSlice(Box<SliceContent>),
}

#[derive(Clone, Debug)]
struct SliceContent {
    address_type: String,
    endpoints: Vec<Endpoint>,
    ports: Vec<EndpointPort>,
}

impl ObservedObject {
    #[must_use]
    pub fn of(object: &Object) -> Self {
        let meta = object.meta();
        let labelled_for = link_of_labels(meta);
        let link_labels = LINK_LABELS.iter().filter(|_| labelled_for.is_none());
        let labels = link_labels.chain(&SLICE_LABELS).map(|key| (key, &meta.labels));
        let annotations = ANNOTATIONS.iter().map(|key| (key, &meta.annotations));
        let value = |(key, all): (&&'static str, &Option<BTreeMap<String, String>>)| {
            Some((*key, all.as_ref()?.get(*key)?.as_str().into()))
        };
        Self {
            id: object.id(),
            uid: object.uid().into(),
            resource_version: meta.resource_version.as_deref().map(Into::into),
            created: meta.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            deletion_timestamp: meta.deletion_timestamp.clone().map(Box::new),
            owner: meta.owner_references.iter().flatten().next().cloned().map(Box::new),
            has_our_field_manager: has_our_field_manager(meta),
            values: labels.chain(annotations).filter_map(value).collect(),
            labelled_for,
            content: match object {
                Object::Service(service) => match &service.spec.external_name {
                    Some(host) if service.spec == Spec::external_name(host) => {
                        Content::ExternalName(host.as_str().into())
                    }
                    _ => Content::Service(Box::new(service.spec.clone())),
                },
                Object::EndpointSlice(slice) => {
                    let address_type = slice.address_type.clone();
                    let (endpoints, ports) = (slice.endpoints.clone(), slice.ports.clone());
                    Content::EndpointSlice(Box::new(SliceContent { address_type, endpoints, ports }))
                }
            },
        }
    }

    /// Returns the object with the fields that are read.
    #[must_use]
    pub fn to_object(&self) -> Object {
        let mut labels = self.labelled_for.as_ref().map(link_labels).unwrap_or_default();
        let mut annotations = BTreeMap::new();
        for (key, value) in &self.values {
            let all = if ANNOTATIONS.contains(key) { &mut annotations } else { &mut labels };
            all.insert((*key).to_owned(), value.to_string());
        }
        let manager = || ManagedFieldsEntry { manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let metadata = ObjectMeta {
            name: Some(self.id.name.clone()),
            uid: (!self.uid.is_empty()).then(|| self.uid.to_string()),
            resource_version: self.resource_version.clone().map(Into::into),
            creation_timestamp: self.created.and_then(|time| Timestamp::from_second(time).ok()).map(Time),
            deletion_timestamp: self.deletion_timestamp.as_deref().cloned(),
            owner_references: self.owner.as_deref().map(|owner| vec![owner.clone()]),
            managed_fields: self.has_our_field_manager.then(|| vec![manager()]),
            labels: Some(labels),
            annotations: Some(annotations),
            ..Default::default()
        };
        match &self.content {
            Content::ExternalName(host) => {
                Service { metadata, spec: Spec::external_name(host), ..Default::default() }.into()
            }
            Content::Service(spec) => {
                Service { metadata, spec: Spec::clone(spec), ..Default::default() }.into()
            }
            Content::EndpointSlice(slice) => {
                let SliceContent { address_type, endpoints, ports } = SliceContent::clone(slice);
                EndpointSlice { metadata, address_type, endpoints, ports, ..Default::default() }.into()
            }
        }
    }

    /// Returns the value of an annotation that is read.
    #[must_use]
    pub fn annotation(&self, wanted: &str) -> Option<&str> {
        self.values.iter().find(|(key, _)| *key == wanted).map(|(_, value)| &**value)
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.resource_version.as_deref()?.parse().ok()
    }
}

#[cfg(test)]
mod tests;
