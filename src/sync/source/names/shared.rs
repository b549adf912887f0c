//! What the objects of a source ask for together. Pure.
//!
//! The objects of a namespace share a name: their addresses are united, and a hostname goes before addresses. The store
//! has one owner for each name and namespace, as old as the oldest of these objects.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::model::link::{Link, LinkState, Target};
use crate::model::service_key::ServiceKey;
use crate::sync::events::RegardingKind;

/// An object of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub key: ServiceKey,
    pub kind: RegardingKind,
}

/// What an object asks for, and what is behind its names.
#[derive(Debug)]
pub struct Observation {
    /// For each name: the namespace whose objects share it, and the hostname.
    pub names: Box<[ServiceKey]>,
    /// What is behind the names, as far as the object decides.
    pub link: Arc<Link>,
}

/// The objects of a source.
#[derive(Debug, Default)]
pub struct SharedNames {
    objects: HashMap<ObjectId, Observation>,
    by_name: HashMap<ServiceKey, SmallVec<[ObjectId; 1]>>,
    /// What is behind the names for which no single object decides.
    united: HashMap<ServiceKey, Arc<Link>>,
}

impl SharedNames {
    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<&Observation> {
        self.objects.get(id)
    }

    pub fn objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.objects.keys()
    }

    pub fn names(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_name.keys()
    }

    /// Returns the objects that ask for a name, in no order.
    #[must_use]
    pub fn asking(&self, name: &ServiceKey) -> &[ObjectId] {
        self.by_name.get(name).map(|ids| &**ids).unwrap_or_default()
    }

    /// Replaces what was observed of an object; `None` if it is gone. Returns the names that are concerned.
    pub fn set(&mut self, id: &ObjectId, now: Option<Observation>) -> Vec<ServiceKey> {
        let before = self.objects.remove(id);
        let mut concerned: Vec<ServiceKey> = Vec::new();
        for name in before.iter().flat_map(|before| &before.names) {
            if let Some(ids) = self.by_name.get_mut(name) {
                ids.retain(|known| known != id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
            concerned.push(name.clone());
        }
        if let Some(now) = now {
            for name in &now.names {
                self.by_name.entry(name.clone()).or_default().push(id.clone());
            }
            concerned.extend(now.names.iter().cloned());
            self.objects.insert(id.clone(), now);
        }
        concerned.sort_unstable();
        concerned.dedup();
        concerned
    }

    /// Returns when the oldest object that asks for a name was created, and what is behind the name.
    pub fn behind(&mut self, name: &ServiceKey) -> Option<(i64, Arc<Link>)> {
        let ids = self.by_name.get(name).into_iter().flatten();
        let mut links: SmallVec<[(&ObjectId, &Arc<Link>); 1]> =
            ids.filter_map(|id| Some((id, &self.objects.get(id)?.link))).collect();
        links.sort_unstable_by_key(|(id, link)| (link.created, *id));
        let (_, oldest) = *links.first()?;
        let target = united(links.iter().map(|(_, link)| *link));
        if target == oldest.target {
            let behind = (oldest.created, Arc::clone(oldest));
            self.united.remove(name);
            return Some(behind);
        }
        let united = unite(oldest, target, self.united.get(name));
        let created = oldest.created;
        self.united.insert(name.clone(), Arc::clone(&united));
        Some((created, united))
    }
}

/// Returns the first hostname, or else all addresses; `None` without any.
fn united<'a>(links: impl Iterator<Item = &'a Arc<Link>> + Clone) -> Option<Target> {
    let targets = links.filter_map(|link| link.target.as_ref());
    if let Some(host) = targets.clone().find(|target| matches!(target, Target::Hostname(_))) {
        return Some(host.clone());
    }
    let mut all: Vec<IpAddr> = Vec::new();
    for target in targets {
        let Target::Addresses(addresses) = target else { continue };
        all.extend(addresses.iter().filter(|address| !all.contains(address)).copied().collect::<Vec<_>>());
    }
    (!all.is_empty()).then(|| Target::Addresses(all.into()))
}

/// Returns the settings of the oldest object with another target. `known` is what was behind the name before.
fn unite(oldest: &Link, target: Option<Target>, known: Option<&Arc<Link>>) -> Arc<Link> {
    let (namespace, name) = oldest.key.parts();
    let united = Link {
        // No object has such a name: the store tells by the key that a link is a newer version of another one, which the
        // oldest object's other names may share.
        key: ServiceKey::new(namespace, &format!("{name} and others")),
        target,
        state: LinkState::Live,
        last_queried: known.unwrap_or(&Arc::new(oldest.clone())).last_queried.clone(),
        ..oldest.clone()
    };
    match known {
        Some(known) if **known == united => Arc::clone(known),
        _ => Arc::new(united),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::link::Annotations;

    fn id(name: &str) -> ObjectId {
        ObjectId { key: ServiceKey::new("shop", name), kind: RegardingKind::Ingress }
    }

    fn name(host: &str) -> ServiceKey {
        ServiceKey::new("shop", host)
    }

    fn target(text: &str) -> Option<Target> {
        if text.is_empty() {
            return None;
        }
        let addresses: Option<Box<[IpAddr]>> = text.split(',').map(|ip| ip.parse().ok()).collect();
        let host = || Target::Hostname(Hostname::from(&Name::from_ascii(format!("{text}.")).unwrap()));
        Some(addresses.map_or_else(host, Target::Addresses))
    }

    fn observed(object: &str, created: i64, names: &[&str], behind: &str) -> Option<Observation> {
        let annotations = Annotations { ttl: u32::try_from(created).ok(), ..Annotations::default() };
        let link = Link { created, annotations, target: target(behind), ..Link::new(id(object).key, object) };
        Some(Observation { names: names.iter().map(|host| name(host)).collect(), link: Arc::new(link) })
    }

    fn shown(names: &mut SharedNames, host: &str) -> String {
        let Some((created, link)) = names.behind(&name(host)) else { return "nothing".to_owned() };
        let target = link.target.as_ref().map_or_else(|| "pending".to_owned(), Target::to_string);
        format!("{created} {target} {:?}", link.annotations.ttl)
    }

    #[test]
    fn addresses_are_united_and_settings_are_of_the_oldest() {
        let mut names = SharedNames::default();
        names.set(&id("b"), observed("b", 2, &["x"], "192.0.2.2,192.0.2.1"));
        assert_eq!(shown(&mut names, "x"), "2 192.0.2.2,192.0.2.1 Some(2)");
        names.set(&id("a"), observed("a", 3, &["x"], "192.0.2.1,192.0.2.3"));
        assert_eq!(shown(&mut names, "x"), "2 192.0.2.2,192.0.2.1,192.0.2.3 Some(2)");
        names.set(&id("c"), observed("c", 1, &["x", "y"], ""));
        assert_eq!(shown(&mut names, "x"), "1 192.0.2.2,192.0.2.1,192.0.2.3 Some(1)");
        assert_eq!(shown(&mut names, "y"), "1 pending Some(1)");
        assert_eq!(names.set(&id("c"), None), [name("x"), name("y")]);
        assert_eq!(shown(&mut names, "y"), "nothing");
        assert_eq!(names.asking(&name("x")), [id("b"), id("a")]);
    }

    #[test]
    fn hostname_of_the_oldest_object_goes_before_addresses() {
        let mut names = SharedNames::default();
        names.set(&id("a"), observed("a", 1, &["x"], "192.0.2.1"));
        names.set(&id("b"), observed("b", 3, &["x"], "b.example"));
        assert_eq!(shown(&mut names, "x"), "1 b.example Some(1)");
        names.set(&id("c"), observed("c", 2, &["x"], "c.example"));
        assert_eq!(shown(&mut names, "x"), "1 c.example Some(1)");
        // Of objects of one age the first by name counts.
        names.set(&id("d"), observed("d", 1, &["x"], "d.example"));
        names.set(&id("0"), observed("0", 1, &["x"], "0.example"));
        assert_eq!(shown(&mut names, "x"), "1 0.example Some(1)");
    }

    #[test]
    fn target_is_shared_where_one_object_decides() {
        let mut names = SharedNames::default();
        names.set(&id("a"), observed("a", 1, &["x", "y", "z"], "192.0.2.1"));
        names.set(&id("b"), observed("b", 2, &["y"], "192.0.2.1"));
        names.set(&id("c"), observed("c", 2, &["z"], "192.0.2.2"));
        let link = Arc::clone(&names.get(&id("a")).unwrap().link);
        let mut behind = |host: &str| names.behind(&name(host)).unwrap().1;
        assert!(Arc::ptr_eq(&behind("x"), &link));
        assert!(Arc::ptr_eq(&behind("y"), &link), "equal targets");
        let united = behind("z");
        assert_ne!(united.key, link.key, "it isn't a newer version of the object's own link");
        assert!(Arc::ptr_eq(&behind("z"), &united), "nothing has changed");
    }
}
