//! Reads the packed form of an object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use uuid::Uuid;

use super::{
    ANNOTATIONS, COMMON, CREATED, DELETED, FINALIZERS_OR_OWNERS, LABELS, LONG_TEXT, MANAGERS, MORE, NAMELESS,
    NONE, NUMBER, PART_OF_NAME, TEXT, UUID,
};
use crate::model::link::Port;
use crate::sync::k8s::endpoint_slice::{Conditions, Endpoint, EndpointPort, EndpointSlice};
use crate::sync::k8s::service::{IngressEntry, LoadBalancerStatus, Service, Spec, Status};

/// Reads the bytes of a [`Packer`](super::write::Packer). Missing bytes read as empty values.
#[derive(Clone, Copy)]
pub(super) struct Unpacker<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: &'a [u8],
}

impl<'a> Unpacker<'a> {
    /// Returns the metadata, and whether a Service has more fields than type and externalName.
    pub(super) fn metadata(&mut self) -> (ObjectMeta, bool) {
        let flags = self.byte();
        let has = |flag| flags & flag != 0;
        let mut meta = ObjectMeta {
            name: (!has(NAMELESS)).then(|| self.name.to_owned()),
            uid: self.optional().map(Cow::into_owned),
            resource_version: self.optional().map(Cow::into_owned),
            labels: has(LABELS).then(|| self.map()),
            annotations: has(ANNOTATIONS).then(|| self.map()),
            managed_fields: has(MANAGERS).then(|| {
                self.list(|unpacker| ManagedFieldsEntry {
                    manager: unpacker.optional().map(Cow::into_owned),
                    ..Default::default()
                })
            }),
            creation_timestamp: has(CREATED).then(|| self.time()),
            deletion_timestamp: has(DELETED).then(|| self.time()),
            ..Default::default()
        };
        if has(FINALIZERS_OR_OWNERS) {
            meta.finalizers = self.optional_list(Self::string_of);
            meta.owner_references = self.optional_list(Self::owner);
        }
        (meta, has(MORE))
    }

    fn time(&mut self) -> Time {
        let (seconds, nanos) = (self.signed(), self.signed());
        Time(Timestamp::new(seconds, i32::try_from(nanos).unwrap_or_default()).unwrap_or_default())
    }

    fn owner(&mut self) -> OwnerReference {
        let [api_version, kind, name, uid] = [(); 4].map(|()| self.string_of());
        let [block_owner_deletion, controller] = [(); 2].map(|()| self.truth());
        OwnerReference { api_version, block_owner_deletion, controller, kind, name, uid }
    }

    pub(super) fn service(&mut self, metadata: ObjectMeta, more: bool) -> Service {
        let [type_, external_name] = [(); 2].map(|()| self.optional().map(Cow::into_owned));
        let spec = Spec { type_, external_name, ..Default::default() };
        if !more {
            return Service { metadata, spec, ..Default::default() };
        }
        let cluster_ip = self.optional().map(Cow::into_owned);
        let spec = Spec { cluster_ip, ports: self.list(Self::port), selector: self.map(), ..spec };
        let ingress = self.list(|unpacker| {
            let [hostname, ip] = [(); 2].map(|()| unpacker.optional().map(Cow::into_owned));
            IngressEntry { hostname, ip }
        });
        let status = Status { load_balancer: LoadBalancerStatus { ingress } };
        Service { metadata, spec, status, ..Default::default() }
    }

    pub(super) fn slice(&mut self, metadata: ObjectMeta) -> EndpointSlice {
        let address_type = self.string_of();
        let endpoints = self.list(|unpacker| Endpoint {
            addresses: unpacker.list(Self::string_of),
            conditions: Conditions { ready: unpacker.truth() },
        });
        let ports = self.list(Self::endpoint_port);
        EndpointSlice { metadata, address_type, endpoints, ports, ..Default::default() }
    }

    fn endpoint_port(&mut self) -> EndpointPort {
        EndpointPort {
            name: self.optional().map(Cow::into_owned),
            protocol: self.string_of(),
            port: self.truth().map(|_| i32::try_from(self.signed()).unwrap_or_default()),
            app_protocol: self.optional().map(Cow::into_owned),
        }
    }

    fn port(&mut self) -> Port {
        Port {
            name: self.optional().map(Cow::into_owned),
            protocol: self.string_of(),
            port: u16::try_from(self.number()).unwrap_or_default(),
            app_protocol: self.optional().map(Cow::into_owned),
        }
    }

    fn map(&mut self) -> BTreeMap<String, String> {
        (0..self.number()).map(|_| (self.string_of(), self.string_of())).collect()
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.number()).map(|_| item(self)).collect()
    }

    fn optional_list<T>(&mut self, item: impl Fn(&mut Self) -> T) -> Option<Vec<T>> {
        self.truth().map(|_| self.list(item))
    }

    fn string_of(&mut self) -> String {
        self.text().into_owned()
    }

    pub(super) fn text(&mut self) -> Cow<'a, str> {
        self.optional().unwrap_or_default()
    }

    pub(super) fn optional(&mut self) -> Option<Cow<'a, str>> {
        Some(match self.byte() {
            NONE => return None,
            PART_OF_NAME => {
                let (start, length) = (self.length(), self.length());
                self.name.get(start..start.saturating_add(length)).unwrap_or_default().into()
            }
            UUID => Uuid::from_slice(self.take(16)).unwrap_or_default().to_string().into(),
            NUMBER => self.number().to_string().into(),
            LONG_TEXT => {
                let length = self.length();
                self.string(length).into()
            }
            tag @ TEXT.. => self.string((tag - TEXT).into()).into(),
            common => COMMON.get(usize::from(common)).copied().unwrap_or_default().into(),
        })
    }

    pub(super) fn string(&mut self, length: usize) -> &'a str {
        str::from_utf8(self.take(length)).unwrap_or_default()
    }

    fn truth(&mut self) -> Option<bool> {
        self.byte().checked_sub(1).map(|truth| truth != 0)
    }

    #[expect(clippy::cast_possible_wrap, reason = "the lowest bit is the sign")]
    fn signed(&mut self) -> i64 {
        let number = self.number();
        (number >> 1) as i64 ^ -((number & 1) as i64)
    }

    pub(super) fn length(&mut self) -> usize {
        usize::try_from(self.number()).unwrap_or_default()
    }

    pub(super) fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f).unbounded_shl(shift);
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }
}
