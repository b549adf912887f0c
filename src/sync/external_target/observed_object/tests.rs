use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::model::link::Port;
use crate::sync::external_target::desired::link_of_labels;
use crate::sync::external_target::observed_object::*;
use crate::sync::k8s::endpoint_slice::{Conditions, Endpoint, EndpointPort, EndpointSlice};
use crate::sync::k8s::service::{IngressEntry, LoadBalancerStatus, Service, Spec, Status};

/// Generates objects of all kinds, ours and foreign ones.
struct Any(StdRng);

impl Any {
    fn one_in(&mut self, number: u32) -> bool {
        self.0.random_ratio(1, number)
    }

    fn text(&mut self, name: &str) -> String {
        const ODD: [&str; 22] = [
            "",
            "0",
            "007",
            "+7",
            "-1",
            "18446744073709551615",
            "18446744073709551616",
            "é",
            "🦀→x",
            "a",
            "--",
            "true",
            "0b4f3c1e-52a7-4d0e-9f57-2b1d6a1c9e11",
            "0B4F3C1E-52A7-4D0E-9F57-2B1D6A1C9E11",
            "0b4f3c1e52a74d0e9f572b1d6a1c9e11",
            "0b4f3c1e-52a7-4d0e-9f572b1d6a1c9e11----",
            "+b4f3c1e-52a7-4d0e-9f57-2b1d6a1c9e11",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "10.0.0.1",
            "2001:db8::1",
            "web.example.com.",
        ];
        match self.0.random_range(0..6) {
            0 => (*ODD.choose(&mut self.0).unwrap()).to_owned(),
            1 => (*COMMON.choose(&mut self.0).unwrap()).to_owned(),
            2 => {
                let start = self.0.random_range(0..=name.len());
                let end = self.0.random_range(start..=name.len());
                name.get(start..end).unwrap_or(name).to_owned()
            }
            3 => {
                let length =
                    *[1, 2, 3, 50, 63, 217, 218, 219, 220, 253, 300, 20_000].choose(&mut self.0).unwrap();
                (0..length).map(|_| char::from(self.0.random_range(b' '..=b'~'))).collect()
            }
            4 => self.0.random::<u64>().to_string(),
            _ => uuid::Uuid::from_u128(self.0.random()).to_string(),
        }
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.one_in(3)).then(|| make(self))
    }

    fn some<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        let number = self.0.random_range(0..4);
        (0..number).map(|_| make(self)).collect()
    }

    fn texts(&mut self, name: &str) -> BTreeMap<String, String> {
        self.some(|any| (any.text(name), any.text(name))).into_iter().collect()
    }

    fn time(&mut self) -> Time {
        let range = Timestamp::MIN.as_second()..Timestamp::MAX.as_second();
        let seconds = if self.one_in(2) { self.0.random_range(range) } else { 1_790_000_000 };
        let nanos = if self.one_in(2) { self.0.random_range(0..1_000_000_000) } else { 0 };
        Time(Timestamp::new(seconds, nanos).unwrap())
    }

    fn labels(&mut self, name: &str) -> BTreeMap<String, String> {
        let mut labels = self.texts(name);
        for key in [MANAGED_BY.0, ORIGINAL_NAME, ORIGINAL_NAMESPACE, SERVICE_NAME, SLICE_MANAGED_BY.0] {
            if !self.one_in(4) {
                let value = self.text(name);
                labels.insert(key.to_owned(), value);
            }
        }
        if !self.one_in(3) {
            labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
        }
        labels
    }

    fn metadata(&mut self) -> ObjectMeta {
        let name = ["web-shop-ext", "", "n", "→ strange/name", &"l".repeat(300), "svc-1234-team-34-ext-ipv4"];
        let name = (*name.choose(&mut self.0).unwrap()).to_owned();
        let owner = |any: &mut Self| OwnerReference {
            api_version: any.text(&name),
            block_owner_deletion: any.maybe(|any| any.one_in(2)),
            controller: any.maybe(|any| any.one_in(2)),
            kind: any.text(&name),
            name: any.text(&name),
            uid: any.text(&name),
        };
        let entry = |any: &mut Self| ManagedFieldsEntry {
            manager: any.maybe(|any| any.text(&name)),
            ..Default::default()
        };
        ObjectMeta {
            uid: self.maybe(|any| any.text(&name)),
            resource_version: self.maybe(|any| any.text(&name)),
            creation_timestamp: self.maybe(Self::time),
            deletion_timestamp: self.maybe(Self::time),
            labels: self.maybe(|any| any.labels(&name)),
            annotations: self.maybe(|any| any.texts(&name)),
            managed_fields: self.maybe(|any| any.some(entry)),
            owner_references: self.maybe(|any| any.some(owner)),
            finalizers: self.maybe(|any| any.some(|any| any.text(&name))),
            name: Some(name.clone()).filter(|name| !name.is_empty() || self.one_in(2)),
            ..Default::default()
        }
    }

    fn port(&mut self) -> Port {
        Port {
            name: self.maybe(|any| any.text("")),
            protocol: self.text(""),
            port: self.0.random(),
            app_protocol: self.maybe(|any| any.text("")),
        }
    }

    fn endpoint_port(&mut self) -> EndpointPort {
        EndpointPort { port: self.maybe(|any| any.0.random()), ..(&self.port()).into() }
    }

    fn service(&mut self) -> Service {
        let metadata = self.metadata();
        let name = metadata.name.clone().unwrap_or_default();
        let spec = Spec {
            type_: self.maybe(|any| any.text(&name)),
            external_name: self.maybe(|any| any.text(&name)),
            ..Default::default()
        };
        if self.one_in(2) {
            return Service { metadata, spec, ..Default::default() };
        }
        let entry = |any: &mut Self| IngressEntry {
            hostname: any.maybe(|any| any.text(&name)),
            ip: any.maybe(|any| any.text(&name)),
        };
        let spec = Spec {
            cluster_ip: self.maybe(|any| any.text(&name)),
            ports: self.some(Self::port),
            selector: self.texts(&name),
            ..spec
        };
        let status = Status { load_balancer: LoadBalancerStatus { ingress: self.some(entry) } };
        Service { metadata, spec, status, ..Default::default() }
    }

    fn slice(&mut self) -> EndpointSlice {
        let metadata = self.metadata();
        let endpoint = |any: &mut Self| Endpoint {
            addresses: any.some(|any| any.text("")),
            conditions: Conditions { ready: any.maybe(|any| any.one_in(2)) },
        };
        EndpointSlice {
            metadata,
            address_type: self.text(""),
            endpoints: self.some(endpoint),
            ports: self.some(Self::endpoint_port),
            ..Default::default()
        }
    }
}

#[test]
fn packing_is_lossless() {
    for seed in 0..5_000 {
        let mut any = Any(StdRng::seed_from_u64(seed));
        let object: Object = if any.one_in(3) { any.slice().into() } else { any.service().into() };
        let packed = Packed::of(&object);
        assert_eq!(packed.unpack(), object, "seed {seed}");
        assert_eq!(packed.id(), object.id(), "seed {seed}");
        assert_eq!(packed.id_bytes(), id_bytes(object.kind(), &object.id().name), "seed {seed}");
        assert_eq!(packed.kind(), object.kind(), "seed {seed}");
        assert_eq!(packed.uid(), object.uid(), "seed {seed}");
        assert_eq!(
            packed.resource_version().as_deref(),
            object.meta().resource_version.as_deref(),
            "seed {seed}"
        );
        assert_eq!(packed.version(), object.version(), "seed {seed}");
        assert_eq!(packed.labelled_for(), link_of_labels(object.meta()), "seed {seed}");
        assert_eq!(packed.annotation("none"), None, "seed {seed}");
        for (key, value) in object.meta().annotations.iter().flatten() {
            assert_eq!(packed.annotation(key).as_deref(), Some(&**value), "seed {seed}");
        }
    }
}

#[test]
fn object_of_ours_takes_few_bytes_and_loses_its_namespace() {
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "svc-1234-team-34-ext", "namespace": "external-targets",
            "uid": "0b4f3c1e-52a7-4d0e-9f57-2b1d6a1c9e11", "resourceVersion": "123456789",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {MANAGED_BY.0: MANAGED_BY.1, ORIGINAL_NAME: "svc-1234", ORIGINAL_NAMESPACE: "team-34"},
            "annotations": {SERVICE_UID: "5c3a1be0-6f1e-4e7e-8f3b-b0f0f3a4d2c1", INSTANCE: "lb-linker/lb-linker",
                TERM: "1790000000"},
            "managedFields": [{"manager": "lb-linker", "fieldsV1": {"f:spec": {}}}]
        },
        "spec": {"type": "ExternalName", "externalName": format!("a{}.elb.eu-west-1.amazonaws.com", "7".repeat(22))}
    }))
    .unwrap();
    let mut object: Object = service.clone().into();
    let packed = Packed::of(&object);
    // The C library rounds this up to 160 bytes.
    assert!(packed.0.len() <= 152, "{}", packed.0.len());
    if let Object::Service(service) = &mut object {
        service.metadata.namespace = None;
    }
    assert_eq!(packed.unpack(), object);
}
