//! The load balancers that are not selected, and those of remote clusters: they have no link, but StableNames may have
//! them as sources. Also a feed of their changes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::model::link::{Ingress, ObservedService};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// Capacity of the feed of changed Services. A subscriber that falls behind has to look at all Services.
const FEED_CAPACITY: usize = 1024;

/// A load balancer without a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnselectedService {
    pub observed: ObservedService,
    /// Whether the status of the Service has become blank: `observed` keeps the last targets then, as links do.
    pub is_blank: bool,
}

#[derive(Debug)]
pub struct UnselectedServices {
    services: Mutex<HashMap<ServiceKey, Arc<UnselectedService>>>,
    feed: broadcast::Sender<ServiceKey>,
}

impl Default for UnselectedServices {
    fn default() -> Self {
        Self { services: Mutex::default(), feed: broadcast::Sender::new(FEED_CAPACITY) }
    }
}

impl UnselectedServices {
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<Arc<UnselectedService>> {
        self.services.lock().get(key).cloned()
    }

    /// Returns the key of the Service with this uid.
    #[must_use]
    pub fn key_of(&self, uid: &Uid) -> Option<ServiceKey> {
        let services = self.services.lock();
        services.iter().find(|(_, service)| service.observed.uid == *uid).map(|(key, _)| key.clone())
    }

    /// Returns the uids of the Services for whose keys `of_key` has a value, with that value.
    #[must_use]
    pub fn uids_with<T>(&self, of_key: impl Fn(&ServiceKey) -> Option<T>) -> Vec<(Uid, T)> {
        let services = self.services.lock();
        let of_service =
            |(key, service): (_, &Arc<UnselectedService>)| Some((service.observed.uid.clone(), of_key(key)?));
        services.iter().filter_map(of_service).collect()
    }

    /// Subscribes to the keys of the Services that have changed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.feed.subscribe()
    }

    pub(crate) fn insert(&self, service: ObservedService) {
        let key = service.key.clone();
        if insert(&mut self.services.lock(), service) {
            self.changed(&key);
        }
    }

    /// Records that a Service has become a link, or is gone.
    pub(super) fn remove(&self, key: &ServiceKey) {
        if self.services.lock().remove(key).is_some() {
            self.changed(key);
        }
    }

    /// Forgets the Services of a remote cluster.
    pub fn forget_cluster(&self, cluster: &str) {
        let of_cluster = |key: &ServiceKey| (key.cluster() == Some(cluster)).then(|| key.clone());
        self.uids_with(of_cluster).into_iter().for_each(|(_, key)| self.remove(&key));
    }

    /// Records that the Service with this uid is gone. A streamed list reports deletions after a successor of the same
    /// name.
    pub(super) fn deleted(&self, key: &ServiceKey, uid: &str) {
        let mut services = self.services.lock();
        if services.get(key).is_some_and(|service| service.observed.uid == *uid) {
            services.remove(key);
            drop(services);
            self.changed(key);
        }
    }

    /// Returns the number of Services of the home cluster, and those of a namespace (`None`: of all its namespaces) that a
    /// complete list lacks.
    pub(super) fn missing_from(
        &self,
        list: &HashSet<ServiceKey>,
        namespace: Option<&str>,
    ) -> (usize, HashSet<ServiceKey>) {
        let services = self.services.lock();
        let missing =
            services.keys().filter(|key| is_within(key, namespace) && !list.contains(*key)).cloned();
        (services.keys().filter(|key| key.cluster().is_none()).count(), missing.collect())
    }

    /// Replaces the Services of a namespace (`None`: of all namespaces of the home cluster) by a complete list. Services
    /// that the list lacks are removed, except those in `kept`, which wait for a second list or can't be decoded.
    pub(super) fn replace(
        &self,
        namespace: Option<&str>,
        list: Vec<ObservedService>,
        kept: &HashSet<ServiceKey>,
    ) {
        let mut services = self.services.lock();
        let stays = |key: &ServiceKey| kept.contains(key) || !is_within(key, namespace);
        let mut former: HashSet<ServiceKey> = services.keys().cloned().collect();
        for service in list {
            let key = service.key.clone();
            former.remove(&key);
            if insert(&mut services, service) {
                self.changed(&key);
            }
        }
        for key in former.into_iter().filter(|key| !stays(key)) {
            services.remove(&key);
            self.changed(&key);
        }
    }

    /// Reports a change of a Service.
    fn changed(&self, key: &ServiceKey) {
        // The send fails if there are no subscribers, which is fine.
        let _ = self.feed.send(key.clone());
    }
}

/// Returns whether the Service has changed.
fn insert(services: &mut HashMap<ServiceKey, Arc<UnselectedService>>, observed: ObservedService) -> bool {
    let key = observed.key.clone();
    let (former, mut service) = (services.get(&key), UnselectedService { observed, is_blank: false });
    let has_none = |ingress: &Ingress| ingress.hostnames.is_empty() && ingress.addresses.is_empty();
    if let Some(former) = former
        && former.observed.uid == service.observed.uid
        && has_none(&service.observed.ingress)
        && !service.observed.refused
        && !has_none(&former.observed.ingress)
    {
        service.observed.ingress = former.observed.ingress.clone();
        service.is_blank = true;
    }
    let is_changed = former.is_none_or(|former| **former != service);
    services.insert(key, Arc::new(service));
    is_changed
}

/// Returns whether a list of a namespace (`None`: of all namespaces) of the home cluster may have a Service.
fn is_within(key: &ServiceKey, namespace: Option<&str>) -> bool {
    match namespace {
        Some(namespace) => key.namespace() == namespace,
        None => key.cluster().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::source::persisted_targets::tests::observed;

    #[test]
    fn lists_of_the_home_cluster_lack_no_remote_service() {
        let unselected = UnselectedServices::default();
        let remote = ServiceKey::new("west/default", "web");
        unselected.insert(ObservedService { key: remote.clone(), ..observed("web") });
        unselected.insert(observed("web"));
        let missing = HashSet::from([ServiceKey::new("default", "web")]);
        assert_eq!(unselected.missing_from(&HashSet::new(), None), (1, missing));
        unselected.replace(None, Vec::new(), &HashSet::new());
        assert!(unselected.get(&ServiceKey::new("default", "web")).is_none());
        assert!(unselected.get(&remote).is_some());
    }

    #[test]
    fn blank_status_keeps_the_targets_of_the_same_service() {
        let unselected = UnselectedServices::default();
        let ingress = Ingress { addresses: vec!["192.0.2.1".parse().unwrap()], ..Ingress::default() };
        let full = ObservedService { ingress, ..observed("web") };
        let blank = || ObservedService { ingress: Ingress::default(), ..full.clone() };
        let known = || {
            let service = unselected.get(&full.key).unwrap();
            (service.observed.ingress == full.ingress, service.is_blank)
        };
        unselected.insert(full.clone());
        let mut changed = unselected.subscribe();
        for _ in 0..2 {
            unselected.insert(blank());
            assert_eq!(known(), (true, true));
        }
        unselected.replace(None, vec![blank()], &HashSet::new());
        assert_eq!(known(), (true, true));
        assert_eq!((changed.try_recv().as_ref(), changed.try_recv().is_err()), (Ok(&full.key), true));
        unselected.insert(full.clone());
        assert_eq!(known(), (true, false));
        unselected.insert(ObservedService { refused: true, ..blank() });
        assert_eq!(known(), (false, false));
        unselected.insert(full.clone());
        unselected.insert(ObservedService { uid: "another".into(), ..blank() });
        assert_eq!(known(), (false, false));
    }

    #[test]
    fn deletion_of_a_predecessor_removes_no_service() {
        let unselected = UnselectedServices::default();
        unselected.insert(observed("web"));
        let key = ServiceKey::new("default", "web");
        let mut changed = unselected.subscribe();
        unselected.deleted(&key, "0");
        assert!(unselected.get(&key).is_some() && changed.try_recv().is_err());
        unselected.deleted(&key, "1");
        assert!(unselected.get(&key).is_none());
        assert_eq!(changed.try_recv(), Ok(key));
    }
}
