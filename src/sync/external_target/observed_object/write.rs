//! Writes the packed form of an object.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{
    ANNOTATIONS, COMMON, CREATED, DELETED, FINALIZERS_OR_OWNERS, LABELS, LONG_TEXT, MANAGERS, MORE, NAMELESS,
    NONE, NUMBER, PART_OF_NAME, TEXT, UUID,
};
use crate::model::link::Port;
use crate::model::uid::uuid;
use crate::sync::k8s::endpoint_slice::{EndpointPort, EndpointSlice};
use crate::sync::k8s::service::{Service, Spec};

/// Writes bytes for an [`Unpacker`](super::read::Unpacker).
pub(super) struct Packer<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: Vec<u8>,
}

impl Packer<'_> {
    pub(super) fn metadata(&mut self, meta: &ObjectMeta, more: bool) {
        let ObjectMeta { labels, annotations, managed_fields, finalizers, owner_references, .. } = meta;
        let (created, deleted) = (&meta.creation_timestamp, &meta.deletion_timestamp);
        let held = finalizers.is_some() || owner_references.is_some();
        let flags = [
            (meta.name.is_none(), NAMELESS),
            (labels.is_some(), LABELS),
            (annotations.is_some(), ANNOTATIONS),
            (managed_fields.is_some(), MANAGERS),
            (created.is_some(), CREATED),
            (deleted.is_some(), DELETED),
            (held, FINALIZERS_OR_OWNERS),
            (more, MORE),
        ];
        self.bytes.push(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
        self.optional(meta.uid.as_deref());
        self.optional(meta.resource_version.as_deref());
        for texts in [labels, annotations].into_iter().flatten() {
            self.map(texts);
        }
        if let Some(entries) = managed_fields {
            self.list(entries, |packer, entry| packer.optional(entry.manager.as_deref()));
        }
        for time in [created, deleted].into_iter().flatten() {
            self.signed(time.0.as_second());
            self.signed(time.0.subsec_nanosecond().into());
        }
        if held {
            self.optional_list(finalizers.as_deref(), |packer, finalizer| packer.text(finalizer));
            self.optional_list(owner_references.as_deref(), Self::owner);
        }
    }

    fn owner(&mut self, owner: &OwnerReference) {
        let OwnerReference { api_version, block_owner_deletion, controller, kind, name, uid } = owner;
        for text in [api_version, kind, name, uid] {
            self.text(text);
        }
        self.truth(*block_owner_deletion);
        self.truth(*controller);
    }

    pub(super) fn service(&mut self, service: &Service) {
        let Spec { type_, external_name, cluster_ip, ports, selector } = &service.spec;
        self.optional(type_.as_deref());
        self.optional(external_name.as_deref());
        if has_more(service) {
            self.optional(cluster_ip.as_deref());
            self.list(ports, Self::port);
            self.map(selector);
            self.list(&service.status.load_balancer.ingress, |packer, entry| {
                packer.optional(entry.hostname.as_deref());
                packer.optional(entry.ip.as_deref());
            });
        }
    }

    pub(super) fn slice(&mut self, slice: &EndpointSlice) {
        self.text(&slice.address_type);
        self.list(&slice.endpoints, |packer, endpoint| {
            packer.list(&endpoint.addresses, |packer, address| packer.text(address));
            packer.truth(endpoint.conditions.ready);
        });
        self.list(&slice.ports, Self::endpoint_port);
    }

    fn endpoint_port(&mut self, port: &EndpointPort) {
        let EndpointPort { name, protocol, port, app_protocol } = port;
        self.optional(name.as_deref());
        self.text(protocol);
        self.truth(port.map(|_| true));
        if let Some(port) = port {
            self.signed((*port).into());
        }
        self.optional(app_protocol.as_deref());
    }

    fn port(&mut self, port: &Port) {
        let Port { name, protocol, port, app_protocol } = port;
        self.optional(name.as_deref());
        self.text(protocol);
        self.number((*port).into());
        self.optional(app_protocol.as_deref());
    }

    fn map(&mut self, texts: &BTreeMap<String, String>) {
        self.number(texts.len() as u64);
        for (key, value) in texts {
            self.text(key);
            self.text(value);
        }
    }

    fn list<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|one| item(self, one));
    }

    fn optional_list<T>(&mut self, items: Option<&[T]>, item: impl Fn(&mut Self, &T)) {
        self.truth(items.map(|_| true));
        if let Some(items) = items {
            self.list(items, item);
        }
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.bytes.push(NONE),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is small")]
    fn text(&mut self, text: &str) {
        if let Some(number) = COMMON.iter().position(|common| *common == text) {
            self.bytes.push(number as u8);
        } else if let Some(uuid) = uuid(text) {
            self.bytes.push(UUID);
            self.bytes.extend(uuid.as_bytes());
        } else if let Some(number) = text.parse::<u64>().ok().filter(|number| number.to_string() == text) {
            self.bytes.push(NUMBER);
            self.number(number);
        } else if let Some(start) = self.name.find(text).filter(|_| text.len() > 2) {
            self.bytes.push(PART_OF_NAME);
            self.number(start as u64);
            self.number(text.len() as u64);
        } else {
            if text.len() < (LONG_TEXT - TEXT).into() {
                self.bytes.push(TEXT + text.len() as u8);
            } else {
                self.bytes.push(LONG_TEXT);
                self.number(text.len() as u64);
            }
            self.bytes.extend(text.as_bytes());
        }
    }

    fn truth(&mut self, truth: Option<bool>) {
        self.bytes.push(truth.map_or(0, |truth| 1 + u8::from(truth)));
    }

    #[expect(clippy::cast_sign_loss, reason = "a small number is to stay small, whatever its sign")]
    fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    /// Writes seven bits per byte, the lowest bits first.
    #[expect(clippy::cast_possible_truncation, reason = "the rest follows")]
    pub(super) fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

/// Returns whether a Service has more fields than type and externalName.
pub(super) fn has_more(service: &Service) -> bool {
    let Service { spec, status, .. } = service;
    spec.cluster_ip.is_some()
        || !spec.ports.is_empty()
        || !spec.selector.is_empty()
        || !status.load_balancer.ingress.is_empty()
}
