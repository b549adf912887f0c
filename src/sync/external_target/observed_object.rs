//! External targets as they are kept: packed into some 150 bytes each, where the object itself takes 2 KB. There are
//! as many of them as links, and one is only read when its link is looked at.

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

/// What many of them have in common: one byte each. It is written nowhere, so it may change.
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
    // The default with deploy/.
    "lb-linker/lb-linker",
];

/// What the first byte of a text says. Below this it is one of [`COMMON`].
const PART_OF_NAME: u8 = 32;
const UUID: u8 = 33;
const NUMBER: u8 = 34;
const NONE: u8 = 35;
/// From here on: a text of so many bytes, but for the last, after which the number follows.
const TEXT: u8 = 36;
const LONG_TEXT: u8 = 255;

/// What an object has, in one byte.
const NAMELESS: u8 = 1;
const LABELS: u8 = 1 << 1;
const ANNOTATIONS: u8 = 1 << 2;
const MANAGERS: u8 = 1 << 3;
const CREATED: u8 = 1 << 4;
const DELETED: u8 = 1 << 5;
const FINALIZERS_OR_OWNERS: u8 = 1 << 6;
/// A Service with more than a name to point at.
const MORE: u8 = 1 << 7;

/// An object of the target namespace, in few bytes. It doesn't say its namespace.
///
/// First comes which object it is: the length of its name, its kind and the name.
#[derive(Clone, Debug)]
pub struct Packed(Box<[u8]>);

impl Packed {
    /// Packs an object.
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

    /// Returns the object.
    #[must_use]
    pub fn unpack(&self) -> Object {
        let (kind, mut unpacker) = self.unpacker();
        let (metadata, more) = unpacker.metadata();
        match kind {
            ObjectKind::EndpointSlice => unpacker.slice(metadata).into(),
            ObjectKind::Service | ObjectKind::LoadBalancer => unpacker.service(metadata, more).into(),
        }
    }

    /// Returns which object it is.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        let (kind, unpacker) = self.unpacker();
        ObjectId { kind, name: unpacker.name.to_owned() }
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.unpacker().0
    }

    /// Returns which object it is, as [`id_bytes`] has it.
    pub(crate) fn id_bytes(&self) -> &[u8] {
        let (_, unpacker) = self.unpacker();
        &self.0[..self.0.len() - unpacker.bytes.len()]
    }

    /// Returns `metadata.uid`, or nothing.
    #[must_use]
    pub fn uid(&self) -> Cow<'_, str> {
        let (_, mut unpacker) = self.unpacker();
        unpacker.byte();
        unpacker.text()
    }

    /// Returns `metadata.resourceVersion`.
    #[must_use]
    pub fn resource_version(&self) -> Option<Cow<'_, str>> {
        let (_, mut unpacker) = self.unpacker();
        unpacker.byte();
        unpacker.text();
        unpacker.optional()
    }

    /// Returns `metadata.resourceVersion` as a number: newer is larger.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.resource_version()?.parse().ok()
    }

    /// Returns the link that it is labelled for, if it carries our managed-by label.
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

    /// Returns the value of an annotation.
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

    /// Returns its kind, and what comes behind its name.
    fn unpacker(&self) -> (ObjectKind, Unpacker<'_>) {
        let mut unpacker = Unpacker { name: "", bytes: &self.0 };
        let length = unpacker.length();
        let kind = if unpacker.byte() == 0 { ObjectKind::Service } else { ObjectKind::EndpointSlice };
        unpacker.name = unpacker.string(length);
        (kind, unpacker)
    }
}

/// Returns what a packed object of this kind and name begins with.
pub(crate) fn id_bytes(kind: ObjectKind, name: &str) -> Vec<u8> {
    // What most of them take.
    let mut packer = Packer { name: "", bytes: Vec::with_capacity(160) };
    packer.number(name.len() as u64);
    packer.bytes.push(u8::from(kind == ObjectKind::EndpointSlice));
    packer.bytes.extend(name.as_bytes());
    packer.bytes
}

#[cfg(test)]
mod tests;
