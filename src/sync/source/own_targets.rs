//! Services with a target in our own zones. Whether such a target is allowed depends on the link that owns the name,
//! and on its `allow-from`: when these change, the Service is checked again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use hickory_proto::rr::Name;
use tracing::debug;

use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange};
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::Denied;
use crate::store::Store;
use crate::sync::k8s::service::Service;
use crate::sync::source::service_links::service_link;

/// Maximum numbers of tracked Services, in all and per namespace, and of the bytes that they take, roughly. A Service
/// beyond these limits is checked only when it changes itself; DNS checks `allow-from` for each answer anyway.
const MAX_SERVICES: usize = 1000;
const MAX_SERVICES_OF_NAMESPACE: usize = 100;
const MAX_BYTES: usize = 8 << 20;

/// The Services with a target that depends on another Service.
#[derive(Debug, Default)]
pub struct InZoneTargets {
    services: BTreeMap<ServiceKey, TrackedService>,
    bytes: usize,
    of_namespace: HashMap<Box<str>, usize>,
    /// The Services by the links that own their hosts.
    by_link: Dependents<ServiceKey>,
    /// The Services by the labels of their hosts directly below a zone. A name that appears or vanishes, even a
    /// wildcard, may change the owner of each host with the same label.
    by_label: Dependents<Box<[u8]>>,
    due: BTreeSet<ServiceKey>,
}

#[derive(Debug)]
struct TrackedService {
    service: Service,
    weight: usize,
    target_check: TargetCheck,
    labels: BTreeSet<Box<[u8]>>,
}

/// The result of the last check of a Service's hosts in our zones.
#[derive(Debug, Default)]
struct TargetCheck {
    /// The reason why each host is denied, if it is; `None` if unknown.
    refused: Option<Vec<Option<Denied>>>,
    /// The links that own the hosts.
    links: BTreeSet<ServiceKey>,
}

/// Services by the item that they depend on.
#[derive(Debug)]
struct Dependents<K>(HashMap<K, BTreeSet<ServiceKey>>);

impl<K> Default for Dependents<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> Dependents<K> {
    fn add(&mut self, on: &BTreeSet<K>, key: &ServiceKey) {
        for on in on {
            self.0.entry(on.clone()).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, on: &BTreeSet<K>, key: &ServiceKey) {
        for on in on {
            if let Some(keys) = self.0.get_mut(on) {
                keys.remove(key);
                if keys.is_empty() {
                    self.0.remove(on);
                }
            }
        }
    }

    fn of(&self, on: &K) -> impl Iterator<Item = &ServiceKey> {
        self.0.get(on).into_iter().flatten()
    }
}

impl InZoneTargets {
    /// Tracks a Service if its target is in our own zones, and checks the target; without a store the check is made
    /// later. Returns whether the Service is tracked: `false` also if the limits are reached.
    pub(crate) fn track(
        &mut self,
        service: &Service,
        hostname_policy: &HostnamePolicy,
        store: Option<&Store>,
    ) -> bool {
        let hosts = own_hosts(service, hostname_policy);
        if hosts.is_empty() && self.services.is_empty() {
            return false;
        }
        let key = service.key();
        self.forget(&key);
        if hosts.is_empty() {
            return false;
        }
        let weight = weight(service);
        let of_namespace = self.of_namespace.get(key.namespace()).copied().unwrap_or_default();
        let has_room = self.services.len() < MAX_SERVICES
            && of_namespace < MAX_SERVICES_OF_NAMESPACE
            && self.bytes + weight <= MAX_BYTES;
        if !has_room {
            debug!(
                "Service {key}: too many Services have a target in lb-linker's own zones; this Service is checked \
                 only when it changes itself"
            );
            return false;
        }
        let target_check = match store {
            Some(store) => check_targets(&key, &hosts, hostname_policy, store),
            None => {
                self.due.insert(key.clone());
                TargetCheck::default()
            }
        };
        let labels = hosts.iter().filter_map(|host| label_below_zone(host, hostname_policy)).collect();
        self.by_link.add(&target_check.links, &key);
        self.by_label.add(&labels, &key);
        self.bytes += weight;
        *self.of_namespace.entry(key.namespace().into()).or_default() += 1;
        self.services.insert(key, TrackedService { service: service.clone(), weight, target_check, labels });
        true
    }

    fn forget(&mut self, key: &ServiceKey) {
        self.due.remove(key);
        let Some(observed_target) = self.services.remove(key) else { return };
        self.bytes -= observed_target.weight;
        self.by_link.remove(&observed_target.target_check.links, key);
        self.by_label.remove(&observed_target.labels, key);
        if let Some(number) = self.of_namespace.get_mut(key.namespace()) {
            *number -= 1;
            if *number == 0 {
                self.of_namespace.remove(key.namespace());
            }
        }
    }

    /// Processes changes of the store: the Services that depend on them have to be checked.
    pub(crate) fn on_changes(&mut self, changes: &[LinkChange], hostname_policy: &HostnamePolicy) {
        if self.services.is_empty() {
            return;
        }
        if changes.iter().any(|change| change.service().is_none()) {
            return self.recheck_all();
        }
        changes.iter().for_each(|change| self.on_link_change(change, hostname_policy));
    }

    fn on_link_change(&mut self, change: &LinkChange, hostname_policy: &HostnamePolicy) {
        let Some(key) = change.service() else { return };
        let LinkChange { before, after, .. } = change;
        if self.services.contains_key(key) {
            self.due.insert(key.clone());
        }
        self.due.extend(self.by_link.of(key).cloned());
        let names =
            |link: &Option<Arc<Link>>| link.as_ref().map(|link| (link.is_gone(), link.hostnames.clone()));
        if names(before) == names(after) {
            return;
        }
        for link in [before, after].into_iter().flatten() {
            match labels_of(link, hostname_policy) {
                Some(labels) => {
                    for label in &labels {
                        self.due.extend(self.by_label.of(label).cloned());
                    }
                }
                None => return self.recheck_all(),
            }
        }
    }

    /// Marks all Services to be checked, because any link may have changed.
    pub(crate) fn recheck_all(&mut self) {
        self.due = self.services.keys().cloned().collect();
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Checks the Services that are due, and returns those with other allowed or denied targets than before. Forgets
    /// the Services without a living link. Not to be called while a list is being received: its Services have no links
    /// yet.
    pub(crate) fn changed(&mut self, hostname_policy: &HostnamePolicy, store: &Store) -> Vec<Service> {
        let mut changed = Vec::new();
        for key in std::mem::take(&mut self.due) {
            if service_link(store, &key).is_none_or(|link| link.is_gone()) {
                self.forget(&key);
                continue;
            }
            let Some(observed_target) = self.services.get_mut(&key) else { continue };
            let now = check_targets(
                &key,
                &own_hosts(&observed_target.service, hostname_policy),
                hostname_policy,
                store,
            );
            let before = std::mem::replace(&mut observed_target.target_check, now);
            if observed_target.target_check.refused != before.refused {
                changed.push(observed_target.service.clone());
            }
            if observed_target.target_check.links != before.links {
                self.by_link.remove(&before.links, &key);
                self.by_link.add(&observed_target.target_check.links, &key);
            }
        }
        changed
    }
}

/// Returns the label directly below the most specific of our zones that contains a host, in lower case; `None` for the
/// name of a zone itself, and for a host outside our zones.
fn label_below_zone(host: &Name, hostname_policy: &HostnamePolicy) -> Option<Box<[u8]>> {
    let zones = hostname_policy.targets.zones.iter().filter(|zone| zone.zone_of(host));
    let below = host.iter().count().checked_sub(zones.map(|zone| zone.iter().count()).max()?)?;
    Some(host.iter().nth(below.checked_sub(1)?)?.to_ascii_lowercase().into())
}

/// Returns the labels directly below a zone that occur in a link's names; `None` if any label may occur.
fn labels_of(link: &Link, hostname_policy: &HostnamePolicy) -> Option<BTreeSet<Box<[u8]>>> {
    let (namespace, service) = link.key.parts();
    let own = [names::dashed_label(namespace, service), namespace.to_owned()];
    let mut labels: BTreeSet<Box<[u8]>> = own.into_iter().map(|label| label.into_bytes().into()).collect();
    for name in &link.hostnames {
        let label = label_below_zone(&Name::from_ascii(format!("{name}.")).ok()?, hostname_policy);
        // A wildcard directly below the zone matches any label.
        if label.as_deref() == Some(b"*") {
            return None;
        }
        labels.extend(label);
    }
    Some(labels)
}

/// Returns the hosts in our zones that a Service names as its target.
pub(crate) fn own_hosts(service: &Service, hostname_policy: &HostnamePolicy) -> Vec<Name> {
    let zones = &hostname_policy.targets.zones;
    let entries = service.target_entries(hostname_policy);
    entries.hosts().filter(|host| zones.iter().any(|zone| zone.zone_of(host))).collect()
}

fn check_targets(
    key: &ServiceKey,
    hosts: &[Name],
    hostname_policy: &HostnamePolicy,
    store: &Store,
) -> TargetCheck {
    let refusal =
        |host| hostname_policy.targets.check_host_of(key, host, |host| store.link_of_host(host)).err();
    let link = |host| store.link_of_host(host).map(|link| link.key.clone());
    TargetCheck {
        refused: Some(hosts.iter().map(refusal).collect()),
        links: hosts.iter().filter_map(link).collect(),
    }
}

/// Returns the approximate size of a Service in memory, in bytes.
fn weight(service: &Service) -> usize {
    let metadata = &service.metadata;
    let texts = metadata.annotations.iter().chain(&metadata.labels).flatten();
    let texts: usize = texts.map(|(key, value)| key.len() + value.len()).sum();
    let entries = service.status.load_balancer.ingress.iter();
    let hosts: usize = entries.filter_map(|entry| entry.hostname.as_ref()).map(String::len).sum();
    size_of::<TrackedService>() + texts + hosts + 100 * service.spec.ports.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::hostname::{Hostname, host_name};
    use crate::model::link::Target;
    use crate::model::owner::Owner;
    use crate::model::persisted_target::{PersistedTarget, TargetOwner};
    use crate::model::target_policy::TargetPolicy;
    use crate::store::OnGone;
    use crate::sync::source::service_links::apply_persisted_target;

    fn hostname_policy() -> HostnamePolicy {
        let zones = vec![Name::from_ascii("lb.internal.").unwrap()];
        HostnamePolicy { targets: TargetPolicy { zones, ..Default::default() }, ..Default::default() }
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
    fn service_is_checked_again_when_permission_of_target_changes() {
        let (hostname_policy, store) = (hostname_policy(), Store::new(OnGone::Dropped));
        store.set_zones(&hostname_policy.targets.zones);
        let mut own = InZoneTargets::default();
        let apply = |own: &mut InZoneTargets, service: &Service| {
            let change = store.apply(service.observe(&hostname_policy, &store).0);
            change.iter().for_each(|change| own.on_link_change(change, &hostname_policy));
        };
        let guest = service("a", "guest", "host.b.lb.internal", "");
        assert!(!own.track(&service("a", "other", "cloud.example", ""), &hostname_policy, Some(&store)));
        assert!(own.track(&guest, &hostname_policy, Some(&store)));
        apply(&mut own, &guest);
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), [""; 0], "there is no host yet");
        for (allow_from, changed) in [("", true), ("c,a", true), ("*", false), ("c", true), ("a", true)] {
            apply(&mut own, &service("b", "host", "cloud.example", allow_from));
            let expected: &[&str] = if changed { &["a/guest"] } else { &[] };
            assert_eq!(keys(&own.changed(&hostname_policy, &store)), expected, "{allow_from:?}");
        }
        own.on_link_change(
            &store.gone(&ServiceKey::new("b", "host"), "u", None, std::time::Instant::now()).unwrap(),
            &hostname_policy,
        );
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), ["a/guest"]);
        // A Service of a list is always checked again.
        assert!(own.track(&guest, &hostname_policy, None));
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), ["a/guest"]);
        // A Service has no link, either, if a later version of it in the same list opts out.
        assert!(own.track(&service("a", "out", "host.b.lb.internal", ""), &hostname_policy, None));
        store.gone(&guest.key(), "u", None, std::time::Instant::now());
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), [""; 0]);
        own.recheck_all();
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), [""; 0]);
        assert_eq!((own.services.len(), own.bytes, own.of_namespace.len()), (0, 0, 0));
        assert_eq!((own.by_link.0.len(), own.by_label.0.len(), own.due.len()), (0, 0, 0));
    }

    #[test]
    fn own_names_are_denied_once_the_link_has_them() {
        let (hostname_policy, store) = (hostname_policy(), Store::new(OnGone::Dropped));
        store.set_zones(&hostname_policy.targets.zones);
        let mut own = InZoneTargets::default();
        let web = service("a", "web", "web.a.lb.internal", "");
        assert!(own.track(&web, &hostname_policy, Some(&store)));
        let change = store.apply(web.observe(&hostname_policy, &store).0).unwrap();
        own.on_link_change(&change, &hostname_policy);
        assert_eq!(keys(&own.changed(&hostname_policy, &store)), ["a/web"]);
        let (observed, rejections) = web.observe(&hostname_policy, &store);
        assert!(observed.refused && observed.ingress.hostnames.is_empty());
        assert!(rejections[0].to_string().contains("a DNS name of this object itself"));
        store.apply(observed);
        let target = || store.get(&web.key()).unwrap().target.clone();
        assert_eq!(target(), None, "its own name isn't kept as the last target");
        // The link keeps its names while it has no target.
        assert!(web.observe(&hostname_policy, &store).0.refused);
        let last = PersistedTarget {
            target: Some(Target::Hostname(Hostname::from(&host_name("web.a.lb.internal").unwrap()))),
            owner: TargetOwner::Uid("u".into()),
            hostnames: Box::default(),
            is_removable: true,
            overridden_by: None,
        };
        assert!(apply_persisted_target(&store, &web.key(), last).is_none());
        let other = service("a", "other", "web.a.lb.internal", "");
        assert!(!other.observe(&hostname_policy, &store).0.refused);

        // A target outside of the zones may be a name of the link after a reload.
        let moved = service("a", "web", "web.a.apps.example", "");
        store.apply(moved.observe(&hostname_policy, &store).0);
        assert!(target().is_some());
        let mut hostname_policy = hostname_policy;
        hostname_policy.targets.zones = vec![Name::from_ascii("apps.example.").unwrap()];
        store.set_zones(&hostname_policy.targets.zones);
        store.apply(moved.observe(&hostname_policy, &store).0);
        assert_eq!(target(), None);
    }

    #[test]
    fn change_of_a_link_affects_only_its_dependents() {
        let (hostname_policy, store) = (hostname_policy(), Store::new(OnGone::Dropped));
        store.set_zones(&hostname_policy.targets.zones);
        let mut own = InZoneTargets::default();
        let apply = |service: &Service| store.apply(service.observe(&hostname_policy, &store).0).unwrap();
        for number in 0..10 {
            let host = service("b", &format!("host{number}"), "cloud.example", "*");
            let change = apply(&host);
            own.on_link_change(&change, &hostname_policy);
        }
        for (namespace, number) in (0..10).flat_map(|n| (0..99).map(move |s| (n, s))) {
            let host = format!("host{}-b.lb.internal", number % 10);
            let guest = service(&format!("n{namespace}"), &format!("s{number}"), &host, "");
            own.track(&guest, &hostname_policy, Some(&store));
            apply(&guest);
        }
        assert_eq!(own.services.len(), 990);
        // Only the Services that depend on the link are checked: after a new target, a new `allow-from`, its deletion
        // and its recreation.
        let mut due = |change: &LinkChange| {
            own.on_link_change(change, &hostname_policy);
            let due = own.due.len();
            (due, own.changed(&hostname_policy, &store).len())
        };
        assert_eq!(due(&apply(&service("b", "host3", "other.example", "*"))), (100, 0));
        assert_eq!(due(&apply(&service("b", "host3", "other.example", "n1"))), (100, 90));
        let gone = store.gone(&ServiceKey::new("b", "host3"), "u", None, std::time::Instant::now()).unwrap();
        assert_eq!(due(&gone), (100, 100));
        assert_eq!(due(&apply(&service("b", "host3", "cloud.example", "*"))), (100, 100));
        // A new name concerns only the Services with the same label.
        assert_eq!(due(&apply(&service("c", "host", "cloud.example", "*"))), (0, 0));
        assert_eq!(due(&apply(&service("n1", "new", "cloud.example", "*"))), (0, 0));
    }

    #[test]
    fn wildcard_names_affect_the_hosts_that_they_may_match() {
        let (mut hostname_policy, store) = (hostname_policy(), Store::new(OnGone::Dropped));
        hostname_policy.targets.zones.push(Name::from_ascii("apps.example.").unwrap());
        store.set_zones(&hostname_policy.targets.zones);
        let mut own = InZoneTargets::default();
        let host = "x.y.apps.example";
        assert!(own.track(&service("a", "guest", host, ""), &hostname_policy, Some(&store)));
        let link = |key: &str, hostname: &str| {
            let (namespace, name) = key.split_once('/').unwrap();
            let mut link = Link::new(ServiceKey::new(namespace, name), "u");
            link.hostnames = [Arc::from(hostname)].into();
            link
        };
        let mut is_due = |before: Option<Link>, after: Option<Link>| {
            let (key, before, after) =
                (ServiceKey::new("b", "host"), before.map(Arc::new), after.map(Arc::new));
            own.due.clear();
            own.on_link_change(&LinkChange { owner: Owner::from(&key), before, after }, &hostname_policy);
            own.is_due()
        };
        for name in ["x.y.apps.example", "*.y.apps.example", "*.apps.example", "z.y.apps.example"] {
            assert!(is_due(None, Some(link("b/host", name))), "{name}");
            assert!(is_due(Some(link("b/host", name)), None), "{name}");
            assert!(!is_due(Some(link("b/host", name)), Some(link("b/host", name))), "{name}");
        }
        for name in ["x.z.apps.example", "y.lb.internal.example", "y.z.apps.example"] {
            assert!(!is_due(None, Some(link("b/host", name))), "{name}");
        }
        assert!(
            is_due(None, Some(link("y/host", "z.apps.example"))),
            "the namespace of the link is that label"
        );
    }

    #[test]
    fn tracked_services_are_limited_by_namespace_and_by_size() {
        let (hostname_policy, store) = (hostname_policy(), Store::new(OnGone::Dropped));
        let mut own = InZoneTargets::default();
        let mut note = |namespace: &str, name: &str, allow_from: &str| {
            own.track(
                &service(namespace, name, "host.b.lb.internal", allow_from),
                &hostname_policy,
                Some(&store),
            )
        };
        let observed_target = (0..200).filter(|i| note("a", &format!("s{i}"), "")).count();
        assert_eq!(observed_target, MAX_SERVICES_OF_NAMESPACE);
        assert!(!note("b", "big", &"x".repeat(MAX_BYTES)));
        assert!(note("b", "small", ""));
    }
}
