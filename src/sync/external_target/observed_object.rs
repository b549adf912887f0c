//! External targets in packed form: some 150 bytes each, where the object itself takes 2 KB. There is one per link, and
//! it is only unpacked when its link is reconciled.

mod read;
mod write;

use std::borrow::Cow;

use super::desired::{HEADLESS, labels_for};
use crate::model::hostname_policy::HOSTNAME;
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::TERM;
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::labels::{
    FIELD_MANAGER, MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE, SERVICE_NAME, SERVICE_UID, SLICE_MANAGED_BY,
};
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::service::EXTERNAL_NAME;
use read::Unpacker;
use write::{Packer, has_more};

/// Frequent strings, encoded in one byte each. The encoding is never persisted, so the table may change.
const COMMON: [&str; 21] = [
    "",
    FIELD_MANAGER,
    MANAGED_BY.0,
    MANAGED_BY.1,
    ORIGINAL_NAME,
    ORIGINAL_NAMESPACE,
    SERVICE_UID,
    HOSTNAME,
    SERVICE_NAME,
    SLICE_MANAGED_BY.0,
    EXTERNAL_NAME,
    HEADLESS.0,
    HEADLESS.1,
    "IPv4",
    "IPv6",
    "TCP",
    "UDP",
    "manager",
    INSTANCE,
    TERM,
    // The default with the manifests in deploy/.
    "lb-linker/lb-linker",
];

/// Meaning of the first byte of a string. Smaller values are indexes into [`COMMON`].
const PART_OF_NAME: u8 = 32;
const UUID: u8 = 33;
const NUMBER: u8 = 34;
const NONE: u8 = 35;
/// From here on the value encodes the length of a string; the last value is followed by the length.
const TEXT: u8 = 36;
const LONG_TEXT: u8 = 255;

/// Flags for the parts of an object, in one byte.
const NAMELESS: u8 = 1;
const LABELS: u8 = 1 << 1;
const ANNOTATIONS: u8 = 1 << 2;
const MANAGERS: u8 = 1 << 3;
const CREATED: u8 = 1 << 4;
const DELETED: u8 = 1 << 5;
const FINALIZERS_OR_OWNERS: u8 = 1 << 6;
/// A Service with more fields than type and externalName.
const MORE: u8 = 1 << 7;

/// An object of the target namespace in packed form, without its namespace.
///
/// The form begins with the object's identity: the length of its name, its kind and the name.
#[derive(Clone, Debug)]
pub struct Packed(Box<[u8]>);

impl Packed {
    #[must_use]
    pub fn of(object: &Object) -> Self {
        let meta = object.meta();
        let name = meta.name.as_deref().unwrap_or_default();
        let mut packer = Packer { name, bytes: id_bytes(object.kind(), name) };
        packer.metadata(meta, object.as_service().is_some_and(has_more));
        match object {
            Object::Service(service) => packer.service(service),
            Object::EndpointSlice(slice) => packer.slice(slice),
        }
        Self(packer.bytes.into())
    }

    #[must_use]
    pub fn unpack(&self) -> Object {
        let (kind, mut unpacker) = self.unpacker();
        let (metadata, more) = unpacker.metadata();
        match kind {
            ObjectKind::EndpointSlice => unpacker.slice(metadata).into(),
            ObjectKind::Service | ObjectKind::LoadBalancer => unpacker.service(metadata, more).into(),
        }
    }

    #[must_use]
    pub fn id(&self) -> ObjectId {
        let (kind, unpacker) = self.unpacker();
        ObjectId { kind, name: unpacker.name.to_owned() }
    }

    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.unpacker().0
    }

    /// Returns the identity of the object in the form of [`id_bytes`].
    pub(crate) fn id_bytes(&self) -> &[u8] {
        let (_, unpacker) = self.unpacker();
        &self.0[..self.0.len() - unpacker.bytes.len()]
    }

    /// Returns `metadata.uid`, or an empty string.
    #[must_use]
    pub fn uid(&self) -> Cow<'_, str> {
        let (_, mut unpacker) = self.unpacker();
        unpacker.byte();
        unpacker.text()
    }

    #[must_use]
    pub fn resource_version(&self) -> Option<Cow<'_, str>> {
        let (_, mut unpacker) = self.unpacker();
        unpacker.byte();
        unpacker.text();
        unpacker.optional()
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.resource_version()?.parse().ok()
    }

    /// Returns the link that the object is labelled for, if it has our managed-by label.
    #[must_use]
    pub fn labelled_for(&self) -> Option<ServiceKey> {
        let (_, mut unpacker) = self.unpacker();
        let flags = unpacker.byte();
        unpacker.text();
        unpacker.text();
        let labels = if flags & LABELS == 0 { 0 } else { unpacker.number() };
        labels_for(|wanted| {
            let mut unpacker = unpacker;
            let mut all = (0..labels).map(|_| (unpacker.text(), unpacker.text()));
            all.find(|(key, _)| key == wanted).map(|(_, value)| value)
        })
    }

    #[must_use]
    pub fn annotation(&self, wanted: &str) -> Option<Cow<'_, str>> {
        let (_, mut unpacker) = self.unpacker();
        let flags = unpacker.byte();
        if flags & ANNOTATIONS == 0 {
            return None;
        }
        unpacker.text();
        unpacker.text();
        for _ in 0..if flags & LABELS == 0 { 0 } else { unpacker.number() } {
            unpacker.text();
            unpacker.text();
        }
        let mut all = (0..unpacker.number()).map(|_| (unpacker.text(), unpacker.text()));
        all.find(|(key, _)| key == wanted).map(|(_, value)| value)
    }

    /// Returns the kind, and an unpacker for the bytes after the name.
    fn unpacker(&self) -> (ObjectKind, Unpacker<'_>) {
        let mut unpacker = Unpacker { name: "", bytes: &self.0 };
        let length = unpacker.length();
        let kind = if unpacker.byte() == 0 { ObjectKind::Service } else { ObjectKind::EndpointSlice };
        unpacker.name = unpacker.string(length);
        (kind, unpacker)
    }
}

/// Returns the first bytes of a packed object of this kind and name.
pub(crate) fn id_bytes(kind: ObjectKind, name: &str) -> Vec<u8> {
    // The capacity that most packed objects need.
    let mut packer = Packer { name: "", bytes: Vec::with_capacity(160) };
    packer.number(name.len() as u64);
    packer.bytes.push(u8::from(kind == ObjectKind::EndpointSlice));
    packer.bytes.extend(name.as_bytes());
    packer.bytes
}

#[cfg(test)]
mod tests;
