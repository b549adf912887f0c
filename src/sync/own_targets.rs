//! Services whose target is a host in our zones. Whether such a target is followed depends on the link that has the name,
//! and on its `allow-from`: when these change, the Service is looked at again.

use std::collections::BTreeMap;

use hickory_proto::rr::Name;
use tracing::debug;

use super::admission::Admission;
use super::service::{MAX_INGRESS, Service, host_name};
use crate::store::{ServiceKey, Store};
use crate::targets::Refusal;

/// How many Services are remembered, how many of one namespace, and about how many bytes they may take. A Service beyond
/// that is looked at when it changes itself; DNS asks for `allow-from` with each answer anyway.
const MAX_SERVICES: usize = 1000;
const MAX_OF_NAMESPACE: usize = 100;
const MAX_BYTES: usize = 8 << 20;

/// The Services whose target depends on another Service.
#[derive(Debug, Default)]
pub struct OwnTargets {
    services: BTreeMap<ServiceKey, Noted>,
    bytes: usize,
}

#[derive(Debug)]
struct Noted {
    service: Service,
    weight: usize,
    /// Why each of its hosts in our zones wasn't followed when it was looked at last, if so; nothing if that isn't known.
    refused: Option<Vec<Option<Refusal>>>,
}

impl OwnTargets {
    /// Remembers a Service, as it is looked at now, if its target depends on others; returns whether it does. Without a
    /// store it is to be looked at again.
    pub(super) fn note(&mut self, service: &Service, admission: &Admission, store: Option<&Store>) -> bool {
        let hosts = own_hosts(service, admission);
        if hosts.is_empty() && self.services.is_empty() {
            return false;
        }
        let key = service.key();
        if let Some(before) = self.services.remove(&key) {
            self.bytes -= before.weight;
        }
        if hosts.is_empty() {
            return false;
        }
        let weight = weight(service);
        let of_namespace = self.services.keys().filter(|other| other.namespace() == key.namespace()).count();
        let has_room = self.services.len() < MAX_SERVICES
            && of_namespace < MAX_OF_NAMESPACE
            && self.bytes + weight <= MAX_BYTES;
        if !has_room {
            debug!(
                "Service {key}: too many have a target in lb-linker's own zones; it is looked at when it changes"
            );
            return false;
        }
        let refused = store.map(|store| refused(&key, &hosts, admission, store));
        self.bytes += weight;
        self.services.insert(key, Noted { service: service.clone(), weight, refused });
        true
    }

    /// Returns the Services of which other targets are followed now, or refused for another reason, and forgets those
    /// that have no living link. Not to be called while a list comes in: its Services have no links yet.
    pub(super) fn changed(&mut self, admission: &Admission, store: &Store) -> Vec<Service> {
        let mut changed = Vec::new();
        let bytes = &mut self.bytes;
        self.services.retain(|key, noted| {
            if store.get(key).is_none_or(|link| link.is_gone()) {
                *bytes -= noted.weight;
                return false;
            }
            let now = Some(refused(key, &own_hosts(&noted.service, admission), admission, store));
            if noted.refused != now {
                noted.refused = now;
                changed.push(noted.service.clone());
            }
            true
        });
        changed
    }
}

/// Returns the hosts in our zones that the status of a Service names.
pub(super) fn own_hosts(service: &Service, admission: &Admission) -> Vec<Name> {
    let zones = &admission.targets.zones;
    let entries = service.status.load_balancer.ingress.iter().take(MAX_INGRESS);
    let hosts = entries.filter_map(|entry| entry.hostname.as_deref());
    let hosts = hosts.filter_map(|host| host_name(host).ok());
    hosts.filter(|host| zones.iter().any(|zone| zone.zone_of(host))).collect()
}

fn refused(key: &ServiceKey, hosts: &[Name], admission: &Admission, store: &Store) -> Vec<Option<Refusal>> {
    let refusal = |host| admission.targets.check_host(key.namespace(), host, store).err();
    hosts.iter().map(refusal).collect()
}

/// Returns about how many bytes a Service takes in memory.
fn weight(service: &Service) -> usize {
    let metadata = &service.metadata;
    let texts = metadata.annotations.iter().chain(&metadata.labels).flatten();
    let texts: usize = texts.map(|(key, value)| key.len() + value.len()).sum();
    let entries = service.status.load_balancer.ingress.iter();
    let hosts: usize = entries.filter_map(|entry| entry.hostname.as_ref()).map(String::len).sum();
    size_of::<Noted>() + texts + hosts + 100 * service.spec.ports.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Departed;
    use crate::targets::TargetPolicy;

    fn admission() -> Admission {
        let zones = vec![Name::from_ascii("lb.internal.").unwrap()];
        Admission { targets: TargetPolicy { zones, ..Default::default() }, ..Default::default() }
    }

    fn service(namespace: &str, name: &str, host: &str, allow_from: &str) -> Service {
        let annotations = json!({"linker.hsj.com/allow-from": allow_from});
        let ingress = json!([{"hostname": host}]);
        let service = json!({
            "metadata": {"namespace": namespace, "name": name, "uid": "u", "annotations": annotations},
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        serde_json::from_value(service).unwrap()
    }

    fn keys(services: &[Service]) -> Vec<String> {
        services.iter().map(|service| service.key().to_string()).collect()
    }

    #[test]
    fn service_is_looked_at_again_when_its_target_opens_or_closes() {
        let (admission, store) = (admission(), Store::new(Departed::Dropped));
        store.set_zones(&admission.targets.zones);
        let mut own = OwnTargets::default();
        let apply = |service: &Service| store.apply(service.observe(&admission, &store).0);
        let guest = service("a", "guest", "host.b.lb.internal", "");
        assert!(!own.note(&service("a", "other", "cloud.example", ""), &admission, Some(&store)));
        assert!(own.note(&guest, &admission, Some(&store)));
        apply(&guest);
        assert_eq!(keys(&own.changed(&admission, &store)), [""; 0], "there is no host yet");
        for (allow_from, changed) in [("", true), ("c,a", true), ("*", false), ("c", true), ("a", true)] {
            apply(&service("b", "host", "cloud.example", allow_from));
            let expected: &[&str] = if changed { &["a/guest"] } else { &[] };
            assert_eq!(keys(&own.changed(&admission, &store)), expected, "{allow_from:?}");
        }
        store.delete(&ServiceKey::new("b", "host"), "u", None);
        assert_eq!(keys(&own.changed(&admission, &store)), ["a/guest"]);
        // One of a list is looked at again in any case.
        assert!(own.note(&guest, &admission, None));
        assert_eq!(keys(&own.changed(&admission, &store)), ["a/guest"]);
        // One of a list in which a later version opts out has no link, either.
        assert!(own.note(&service("a", "out", "host.b.lb.internal", ""), &admission, None));
        store.delete(&guest.key(), "u", None);
        assert_eq!(keys(&own.changed(&admission, &store)), [""; 0]);
        assert_eq!((own.services.len(), own.bytes), (0, 0));
    }

    #[test]
    fn one_namespace_takes_a_share_of_the_room_only() {
        let (admission, store) = (admission(), Store::new(Departed::Dropped));
        let mut own = OwnTargets::default();
        let mut note = |namespace: &str, name: &str, allow_from: &str| {
            own.note(&service(namespace, name, "host.b.lb.internal", allow_from), &admission, Some(&store))
        };
        let noted = (0..200).filter(|i| note("a", &format!("s{i}"), "")).count();
        assert_eq!(noted, MAX_OF_NAMESPACE);
        assert!(!note("b", "big", &"x".repeat(MAX_BYTES)));
        assert!(note("b", "small", ""));
    }
}
