//! Index of target addresses: finds the links that have an address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use parking_lot::RwLock;

use crate::model::link::{Link, Target};
use crate::store::owners::OwnerId;

/// The addresses of all links, each with the owner of the link. The order keeps the addresses of a network together.
#[derive(Debug, Default)]
pub(super) struct ReverseIndex(RwLock<BTreeSet<(IpAddr, OwnerId)>>);

impl ReverseIndex {
    /// Replaces the addresses of an owner by those of its link now.
    pub(super) fn set(&self, owner: OwnerId, before: Option<&Link>, now: Option<&Link>) {
        let (before, now) =
            (before.map(addresses).unwrap_or_default(), now.map(addresses).unwrap_or_default());
        if before == now {
            return;
        }
        let mut all = self.0.write();
        all.extend(now.iter().map(|ip| (*ip, owner)));
        for ip in before.iter().filter(|ip| !now.contains(ip)) {
            all.remove(&(*ip, owner));
        }
    }

    pub(super) fn copy(&self) -> Self {
        Self(RwLock::new(self.0.read().clone()))
    }

    /// Returns the addresses in this network.
    pub(super) fn addresses_in(&self, net: IpNet) -> BTreeSet<IpAddr> {
        let all = self.0.read();
        let from = all.range((net.network(), OwnerId::default())..);
        from.take_while(|(ip, _)| *ip <= net.broadcast()).map(|(ip, _)| *ip).collect()
    }

    /// Returns the owners with an address in this network, at most `limit`: an owner once for each address.
    pub(super) fn of(&self, net: IpNet, limit: usize) -> Vec<OwnerId> {
        let all = self.0.read();
        let from = all.range((net.network(), OwnerId::default())..);
        from.take_while(|(ip, _)| *ip <= net.broadcast()).take(limit).map(|(_, owner)| *owner).collect()
    }
}

fn addresses(link: &Link) -> &[IpAddr] {
    match &link.target {
        Some(Target::Addresses(ips)) => ips,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use crate::model::hostname::Hostname;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::model::persisted_target::{PersistedTarget, TargetOwner};
    use crate::model::service_key::ServiceKey;
    use crate::store::{OnGone, Store};

    use super::*;
    use crate::store::Input;
    use crate::sync::source::service_links::apply_persisted_target;

    const ADDRESSES: [&str; 6] =
        ["192.0.2.1", "192.0.2.2", "192.0.99.1", "2001:db8::1", "2001:db8::2", "2001:db8:1::1"];

    const NETS: [&str; 9] = [
        "0.0.0.0/0",
        "192.0.0.0/16",
        "192.0.2.0/24",
        "192.0.2.2/32",
        "192.0.3.0/24",
        "::/0",
        "2001:db8::/48",
        "2001:db8::2/128",
        "2001:db9::/32",
    ];

    fn observed(key: &ServiceKey, uid: &str, ips: &[&str], hostname: bool) -> ObservedService {
        let hostnames = if hostname { vec![Hostname::from(&"a.example.".parse().unwrap())] } else { vec![] };
        ObservedService {
            key: key.clone(),
            uid: uid.into(),
            created: None,
            resource_version: None,
            ingress: Ingress { hostnames, addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect() },
            ports: [].into(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        }
    }

    /// Compares the index with the links.
    fn check(store: &Store, context: &str) {
        let links = store.links();
        let all: Vec<(IpAddr, &ServiceKey)> =
            links.iter().flat_map(|link| addresses(link).iter().map(|ip| (*ip, &link.key))).collect();
        for ip in ADDRESSES.map(|ip| ip.parse::<IpAddr>().unwrap()) {
            let mut expected: Vec<&ServiceKey> =
                all.iter().filter(|(other, _)| *other == ip).map(|(_, key)| *key).collect();
            expected.sort();
            let found = store.links_at(ip);
            assert_eq!(found.iter().map(|link| &link.key).collect::<Vec<_>>(), expected, "{context}: {ip}");
            assert_eq!(
                store.index.addresses.of(ip.into(), usize::MAX).len(),
                expected.len(),
                "{context}: {ip}, in the index alone"
            );
        }
        for net in NETS.map(|net| net.parse::<IpNet>().unwrap()) {
            let expected = all.iter().any(|(ip, _)| net.contains(ip));
            assert_eq!(store.has_address_in(net), expected, "{context}: {net}");
        }
    }

    #[test]
    fn index_agrees_with_links_after_random_changes() {
        for (seed, departed) in (0..40).zip([OnGone::Kept, OnGone::Dropped].into_iter().cycle()) {
            let mut random = StdRng::seed_from_u64(seed);
            let store = Store::new(departed);
            if random.random_bool(0.8) {
                store.set_known(Input::Services);
            }
            let mut uids: HashMap<ServiceKey, String> = HashMap::new();
            for step in 0..200 {
                // Names that clash: links are stored again when a name changes its owner.
                let parts = ["a", "a-a"];
                let mut part = || parts[random.random_range(0..parts.len())];
                let key = ServiceKey::new(part(), part());
                let ips: Vec<&str> = ADDRESSES.into_iter().filter(|_| random.random_bool(0.3)).collect();
                let uid = uids.entry(key.clone()).or_default().clone();
                let hostname = random.random_bool(0.2);
                match random.random_range(0..10) {
                    0..5 => drop(store.apply(observed(&key, &uid, &ips, hostname))),
                    5 => {
                        let other = format!("u{step}");
                        store.apply(observed(&key, &other, &ips, hostname));
                        uids.insert(key, other);
                    }
                    6 => drop(store.gone(&key, &uid, None, std::time::Instant::now())),
                    7 => drop((store.gone(&key, &uid, None, std::time::Instant::now()), store.forget(&key))),
                    8 => {
                        let target = Target::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect());
                        let written_for = TargetOwner::Uid(uid.as_str().into());
                        apply_persisted_target(
                            &store,
                            &key,
                            PersistedTarget {
                                target: Some(target),
                                owner: written_for,
                                hostnames: Box::default(),
                                is_removable: true,
                                overridden_by: None,
                            },
                        );
                    }
                    _ => {
                        let list = vec![observed(&key, &uid, &ips, hostname)];
                        store.replace(None, list, vec![], &Default::default());
                    }
                }
                check(&store, &format!("seed {seed}, step {step}"));
            }
        }
    }

    #[test]
    fn kept_address_is_always_found_during_changes() {
        let store = Store::new(OnGone::Kept);
        let (key, current) = (ServiceKey::new("default", "web"), "192.0.2.1".parse().unwrap());
        store.apply(observed(&key, "u", &["192.0.2.1"], false));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for i in 0..2_000 {
                    let all = ["192.0.2.1", "192.0.2.2"];
                    store.apply(observed(&key, "u", &all[..1 + i % 2], false));
                }
            });
            while !writing.is_finished() {
                assert_eq!(store.links_at(current).len(), 1);
            }
        });
    }
}
