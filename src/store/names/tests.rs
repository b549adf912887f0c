use crate::model::link::Link;
use crate::model::owner::Owner;
use crate::model::service_key::ServiceKey;

use super::*;

mod default_names;
mod hostnames;

/// The names of Services, by the keys of the Services.
#[derive(Default)]
struct Names(super::Names);

/// [`super::Reassigned`] by key.
#[derive(Clone, Debug, PartialEq)]
enum Reassigned {
    Object(ServiceKey, Arc<str>),
    Label(Box<[u8]>, Option<ServiceKey>),
}

/// [`super::OwnerChange`] by key.
#[derive(Clone, Debug, PartialEq)]
struct OwnerChange {
    name: Arc<str>,
    from: Option<ServiceKey>,
    to: Option<ServiceKey>,
}

impl Names {
    fn id(&self, key: &ServiceKey) -> OwnerId {
        let id = self.0.owners.intern(&Owner::from(key));
        // An owner without a target loses its number when it isn't recorded any more.
        self.0.owners.set_target(id, Some(Arc::new(Link::new(key.clone(), ""))));
        id
    }

    fn key(&self, id: OwnerId) -> ServiceKey {
        self.0.owners.get(id).0.key
    }

    fn reassigned(&self, changes: Vec<super::Reassigned>) -> Vec<Reassigned> {
        let by_key = |change| match change {
            super::Reassigned::Object(id, name) => Reassigned::Object(self.key(id), name),
            super::Reassigned::Label(label, id) => Reassigned::Label(label, id.map(|id| self.key(id))),
        };
        changes.into_iter().map(by_key).collect()
    }

    fn passed(&self, changes: Vec<super::OwnerChange>) -> Vec<OwnerChange> {
        let key = |id: OwnerId| self.key(id);
        changes
            .into_iter()
            .map(|super::OwnerChange { name, from, to }| OwnerChange {
                name,
                from: from.map(key),
                to: to.map(key),
            })
            .collect()
    }

    fn claim(&mut self, key: &ServiceKey, created: i64) -> (Arc<str>, Vec<Reassigned>) {
        let id = self.id(key);
        let (own, changes) = self.0.claim(id, created);
        (own, self.reassigned(changes))
    }

    fn release(&mut self, key: &ServiceKey) -> Vec<Reassigned> {
        let changes = self.0.release(self.id(key));
        self.reassigned(changes)
    }

    fn set_owner(&mut self, object: &str, owner: Option<&ServiceKey>) -> Vec<Reassigned> {
        let owner = owner.map(|key| self.id(key));
        let changes = self.0.record(object, owner, &[]).0;
        self.reassigned(changes)
    }

    fn has_label(&self, key: &ServiceKey) -> bool {
        self.0.has_label(self.id(key))
    }

    fn request(&mut self, key: &ServiceKey, created: i64, names: &[Arc<str>]) -> Vec<OwnerChange> {
        let claims = owner::Claims { created, names: names.into(), ..Default::default() };
        let changes = self.0.request(self.id(key), &claims, |_, _| Some(0));
        self.passed(changes)
    }

    fn record(&mut self, object: &str, owner: Option<(&ServiceKey, &[Arc<str>])>) -> Vec<OwnerChange> {
        let hostnames = owner.map_or(&[][..], |(_, hostnames)| hostnames);
        let owner = owner.map(|(key, _)| self.id(key));
        let changes = self.0.record(object, owner, hostnames).1;
        self.passed(changes)
    }

    fn hostnames_of(&self, key: &ServiceKey) -> Vec<Arc<str>> {
        self.0.hostnames_of(self.id(key))
    }
}

fn default_name(key: &ServiceKey) -> Arc<str> {
    key.external_target().into()
}

#[test]
fn service_has_an_external_target_until_the_last_one_is_gone() {
    let (key, other) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
    let default = key.external_target();
    let mut names = Names::default();
    let mut set = |object: &str, owner: Option<&ServiceKey>| {
        names.set_owner(object, owner);
        let is_recorded = |key| names.0.is_recorded(names.id(key));
        (is_recorded(&key), is_recorded(&other))
    };
    assert_eq!(set(&default, Some(&key)), (true, false));
    assert_eq!(set("one", Some(&key)), (true, false));
    assert_eq!(set("two", Some(&key)), (true, false));
    assert_eq!(set("two", Some(&key)), (true, false));
    assert_eq!(set(&default, Some(&other)), (true, true));
    assert_eq!(set("one", None), (true, true));
    assert_eq!(set("two", Some(&other)), (false, true));
    assert_eq!(set(&default, None), (false, true));
    assert_eq!(set("two", None), (false, false));
}
