//! The links of arbitrary Services and StableNames, shared by the tests of manifests and of watches.

use std::collections::HashSet;
use std::sync::Arc;

use hickory_proto::rr::Name;
use lb_linker::api::stable_name::StableName;
use lb_linker::metrics::Metrics;
use lb_linker::model::hostname_policy::HostnamePolicy;
use lb_linker::model::names::is_label;
use lb_linker::model::rejection::Rejection;
use lb_linker::model::service_key::ServiceKey;
use lb_linker::model::target_policy::TargetPolicy;
use lb_linker::store::{Input, OnGone, Store};
use lb_linker::sync::k8s::service::Service;
use lb_linker::sync::source::service_links::dns_names;
use lb_linker::sync::stable_name::controller::manifests::ManifestOverrides;

/// Maximum number of custom hostnames of a link.
const MAX_HOSTNAMES: usize = 100;
/// Maximum length of a message about a rejected field, in bytes.
const MAX_MESSAGE: usize = 8192;

/// A store with one zone, with the policy and the overrides that make links of Services and StableNames.
pub struct Links {
    store: Arc<Store>,
    policy: HostnamePolicy,
    overrides: ManifestOverrides,
}

impl Links {
    pub fn start() -> Self {
        let zones = vec![Name::from_ascii("lb.internal.").unwrap()];
        let store = Arc::new(Store::new(OnGone::Dropped).with_zones(&zones));
        store.set_known(Input::Services);
        let policy = HostnamePolicy {
            targets: TargetPolicy { zones, ..Default::default() },
            hostname_annotations: vec!["external-dns.alpha.kubernetes.io/hostname".to_owned()],
            hostname_namespaces: ["*".to_owned()].into(),
            ..Default::default()
        };
        let metrics = Metrics::new().unwrap().group().unwrap();
        let overrides = ManifestOverrides::new(
            Arc::clone(&store),
            Arc::default(),
            Arc::default(),
            metrics,
            Default::default(),
            &Default::default(),
        );
        Self { store, policy, overrides }
    }

    /// Replaces all links by the links of these objects. Returns the violated property.
    pub fn replace(&self, services: &[Service], stable_names: &[Arc<StableName>]) -> Result<(), String> {
        let mut observed = Vec::new();
        let mut keys = HashSet::new();
        for service in services {
            let (service, rejections) = service.observe(&self.policy, &self.store);
            for message in rejections.iter().map(Rejection::to_string) {
                ensure(message.len() <= MAX_MESSAGE, "the message about a rejected field is short")?;
            }
            if is_name(&service.key) && keys.insert(service.key.clone()) {
                observed.push(service);
            }
        }
        let mut keys = HashSet::new();
        let mut is_first = |object: &&Arc<StableName>| {
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            let key = ServiceKey::new(namespace, object.metadata.name.as_deref().unwrap_or_default());
            is_name(&key) && keys.insert(key)
        };
        let stable_names: Vec<_> = stable_names.iter().filter(|object| is_first(object)).cloned().collect();
        self.store.replace(None, observed, Vec::new(), &HashSet::new());
        self.overrides.apply(&stable_names, &self.policy);
        for link in self.store.links() {
            check_names(&dns_names(&self.store, &link), &self.policy.targets.zones[0])?;
        }
        Ok(())
    }
}

/// Checks the names of a link. Returns the violated property.
pub fn check_names(names: &[String], zone: &Name) -> Result<(), String> {
    ensure(names.len() <= MAX_HOSTNAMES + 2, "the number of a link's names is limited")?;
    for name in names {
        let name = Name::from_ascii(name).map_err(|error| format!("{name:?} is no name: {error}"))?;
        ensure(zone.zone_of(&name), "a link's names are in the zone")?;
    }
    Ok(())
}

/// Returns whether the API server accepts the name and the namespace.
fn is_name(key: &ServiceKey) -> bool {
    let (namespace, name) = key.parts();
    is_label(namespace) && is_label(name)
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}
