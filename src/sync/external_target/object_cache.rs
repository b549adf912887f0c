//! A cache of the objects in the target namespace.

use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

use super::desired::{IPV4, IPV6, slice_name};
use super::observed_object::ObservedObject;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::instance::{INSTANCE, OtherOwner};
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};

/// The objects of the target namespace, by id and by the link that they are labelled for.
#[derive(Debug, Default)]
pub struct ObjectCache {
    /// This instance: objects of other instances count as labelled for no link.
    instance: Option<String>,
    all: HashSet<CachedObject>,
    /// By link, the objects that don't have one of the link's default names. Few links have such objects.
    with_other_names: HashMap<ServiceKey, BTreeSet<ObjectId>>,
    /// The number of links with objects.
    links: usize,
    /// The number of objects with our managed-by label that belong to other instances.
    foreign_instances: usize,
    /// Objects that lb-linker has deleted, by uid, until the watch reports the deletion: an older event may still
    /// arrive.
    deleted: HashMap<String, ObjectId>,
    /// The writes in flight, and the events that have arrived meanwhile.
    under_way: HashMap<ObjectId, PendingWrite>,
    /// The kinds with an incomplete list, and the objects with a write answered since the list began: the list may be
    /// older than these answers.
    listing: HashMap<ObjectKind, HashSet<ObjectId>>,
}

/// An object with its id as key. Boxed so that a free slot of the hash table has only the size of a pointer.
#[derive(Debug)]
struct CachedObject(Box<ObservedObject>);

impl Borrow<ObjectId> for CachedObject {
    fn borrow(&self) -> &ObjectId {
        &self.0.id
    }
}

impl Hash for CachedObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl PartialEq for CachedObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for CachedObject {}

/// The events about an object during a write.
#[derive(Debug, Default)]
struct PendingWrite {
    /// The uids of removed objects.
    gone: Vec<String>,
    /// Whether a complete list lacked the object.
    unlisted: bool,
}

impl ObjectCache {
    /// Returns an empty cache for this instance; for `None` all objects count as its own.
    #[must_use]
    pub fn new(instance: Option<String>) -> Self {
        Self { instance, ..Self::default() }
    }

    /// Returns the link that an object is labelled for, unless the object belongs to another instance.
    #[must_use]
    pub fn owner_of(&self, object: &ObservedObject) -> Option<ServiceKey> {
        object.labelled_for.clone().filter(|_| !self.is_of_another(object))
    }

    #[must_use]
    pub fn is_of_another(&self, object: &ObservedObject) -> bool {
        let Some(own) = &self.instance else { return false };
        object.annotation(INSTANCE).is_some_and(|instance| !instance.is_empty() && instance != own)
    }

    /// Returns the number of external targets and EndpointSlices that belong to other instances.
    #[must_use]
    pub fn number_of_foreign(&self) -> usize {
        self.foreign_instances
    }

    /// Returns the other instance that owns most of the external targets and EndpointSlices, if any.
    #[must_use]
    pub fn other_owner(&self, namespace: &str) -> Option<OtherOwner> {
        if self.foreign_instances == 0 {
            return None;
        }
        let labelled = self.iter().filter(|object| object.labelled_for.is_some());
        let instances = labelled.map(|object| object.annotation(INSTANCE).filter(|name| !name.is_empty()));
        OtherOwner::find(namespace, self.instance.as_deref()?, instances)
    }

    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<&ObservedObject> {
        self.all.get(id).map(|cached| &*cached.0)
    }

    /// Returns the objects that are labelled for a link, Services first, sorted by name.
    #[must_use]
    pub fn of_link(&self, key: &ServiceKey) -> Vec<&ObservedObject> {
        let usual = object_ids(&names::external_target(key.namespace(), key.name()));
        let usual = usual.iter().filter_map(|id| self.get(id));
        let usual = usual.filter(|object| self.owner_of(object).as_ref() == Some(key));
        let Some(with_other_names) = self.with_other_names.get(key) else { return usual.collect() };
        let mut objects: Vec<&ObservedObject> =
            usual.chain(with_other_names.iter().filter_map(|id| self.get(id))).collect();
        objects.sort_by(|one, other| one.id.cmp(&other.id));
        objects
    }

    /// Returns the links that objects are labelled for, one per object.
    pub fn links(&self) -> impl Iterator<Item = ServiceKey> {
        self.iter().filter_map(|object| self.owner_of(object))
    }

    #[must_use]
    pub fn number_of_links(&self) -> usize {
        self.links
    }

    pub fn iter(&self) -> impl Iterator<Item = &ObservedObject> {
        self.all.iter().map(|cached| &*cached.0)
    }

    /// Records that a list of the objects of a kind begins.
    pub fn list_begins(&mut self, kind: ObjectKind) {
        self.listing.insert(kind, HashSet::new());
    }

    /// Replaces all objects of a kind by a complete list. The list counts regardless of its versions, which are older
    /// than the cached ones after a restore of etcd. An object is kept only if it is newer than in the list because a
    /// write was answered since the list began. The last of several versions of an object in the list counts. Returns
    /// the objects that are gone.
    pub fn replace(&mut self, kind: ObjectKind, objects: Vec<ObservedObject>) -> Vec<ObjectId> {
        self.deleted.retain(|_, id| id.kind != kind);
        let answered = self.listing.remove(&kind).unwrap_or_default();
        let mut list = HashSet::new();
        for object in objects {
            list.replace(CachedObject(Box::new(object)));
        }
        let is_gone = |object: &&ObservedObject| object.id.kind == kind && !list.contains(&object.id);
        let gone: Vec<ObjectId> = self.iter().filter(is_gone).map(|object| object.id.clone()).collect();
        for id in &gone {
            self.take(id);
        }
        for CachedObject(object) in list {
            let was_answered = || answered.contains(&object.id);
            if !self.get(&object.id).is_some_and(|known| is_newer(known, &object) && was_answered()) {
                self.insert(object);
            }
        }
        for (id, pending_write) in self.under_way.iter_mut().filter(|(id, _)| id.kind == kind) {
            pending_write.unlisted |= !self.all.contains(id);
        }
        gone
    }

    /// Records that a write of an object begins.
    pub fn write_begins(&mut self, id: &ObjectId) {
        self.under_way.insert(id.clone(), PendingWrite::default());
    }

    /// Records that a write was answered, or that no answer will come.
    pub fn write_ended(&mut self, id: &ObjectId) {
        self.under_way.remove(id);
    }

    /// Returns whether a write of an object is under way.
    #[must_use]
    pub fn is_write_under_way(&self, id: &ObjectId) -> bool {
        self.under_way.contains_key(id)
    }

    /// Applies an object from the answer to a write. The watch may have been faster, even with the object's deletion.
    /// After a complete list without the object only the watch can tell whether it exists.
    pub fn answered(&mut self, object: &Object) {
        let id = object.id();
        let outdated = self.under_way.get(&id).is_some_and(|pending_write| {
            let unlisted = pending_write.unlisted && self.get(&id).is_none();
            unlisted || pending_write.gone.iter().any(|uid| uid == object.uid())
        });
        if !outdated {
            self.apply(object);
            if let Some(answered) = self.listing.get_mut(&id.kind) {
                answered.insert(id);
            }
        }
    }

    /// Applies an object from the watch or from the answer to a write, if it is newer than the cached one.
    pub fn apply(&mut self, object: &Object) {
        if self.changes_cache(object) {
            self.insert(Box::new(ObservedObject::of(object)));
        }
    }

    /// Returns whether [`Self::apply`] changes the cache: the cache has neither this nor a newer version of the object,
    /// and lb-linker hasn't deleted the object.
    #[must_use]
    pub fn changes_cache(&self, object: &Object) -> bool {
        let id = object.id();
        if self.deleted.get(object.uid()) == Some(&id) {
            return false;
        }
        !self.get(&id).is_some_and(|known| {
            known.uid == *object.uid() && known.version().is_some() && known.version() >= object.version()
        })
    }

    /// Applies a deletion from the watch.
    pub fn remove(&mut self, id: &ObjectId, uid: &str) {
        self.deleted.remove(uid);
        // Files have no uid.
        if let Some(pending_write) = self.under_way.get_mut(id).filter(|_| !uid.is_empty()) {
            pending_write.gone.push(uid.to_owned());
        }
        if self.get(id).is_some_and(|object| object.uid == *uid) {
            self.take(id);
        }
    }

    /// Applies a deletion from the answer to our own write, for the object with this uid. Another object may have its
    /// name by now.
    pub fn removed_by_us(&mut self, id: &ObjectId, uid: &str) {
        if self.get(id).is_some_and(|object| object.uid == *uid) {
            self.take(id);
            if !uid.is_empty() {
                self.deleted.insert(uid.to_owned(), id.clone());
            }
        }
    }

    fn insert(&mut self, object: Box<ObservedObject>) {
        let id = object.id.clone();
        self.take(&id);
        self.foreign_instances += usize::from(object.labelled_for.is_some() && self.is_of_another(&object));
        if let Some(key) = self.owner_of(&object) {
            self.links += usize::from(self.of_link(&key).is_empty());
            if !has_default_name(&id, &key) {
                self.with_other_names.entry(key).or_default().insert(id);
            }
        }
        self.all.insert(CachedObject(object));
    }

    fn take(&mut self, id: &ObjectId) -> Option<Box<ObservedObject>> {
        let object = self.all.take(id)?.0;
        self.foreign_instances -= usize::from(object.labelled_for.is_some() && self.is_of_another(&object));
        if let Some(key) = self.owner_of(&object) {
            if let Entry::Occupied(mut ids) = self.with_other_names.entry(key.clone()) {
                ids.get_mut().remove(id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
            self.links -= usize::from(self.of_link(&key).is_empty());
        }
        Some(object)
    }
}

/// Returns the ids of the objects that an external target of this name may consist of.
pub(crate) fn object_ids(external_target: &str) -> [ObjectId; 3] {
    let slice = |end| ObjectId { kind: ObjectKind::EndpointSlice, name: slice_name(external_target, end) };
    [ObjectId::service(external_target), slice(IPV4), slice(IPV6)]
}

/// Returns the name of the external target that an object with this id would be part of.
pub(crate) fn external_target(id: &ObjectId) -> Option<&str> {
    match id.kind {
        ObjectKind::Service => Some(&id.name),
        ObjectKind::EndpointSlice => {
            let family = |end| id.name.strip_suffix(end)?.strip_suffix('-');
            family(IPV4).or_else(|| family(IPV6))
        }
        ObjectKind::LoadBalancer => None,
    }
}

/// Returns whether an object has a default name of its link.
fn has_default_name(id: &ObjectId, key: &ServiceKey) -> bool {
    external_target(id) == Some(&names::external_target(key.namespace(), key.name()))
}

/// Returns whether `known` is a later version of the same object.
fn is_newer(known: &ObservedObject, other: &ObservedObject) -> bool {
    known.uid == other.uid && known.version() > other.version()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::k8s::endpoint_slice::EndpointSlice;
    use crate::sync::k8s::labels::{MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE};
    use crate::sync::k8s::service::Service;

    fn object(name: &str, uid: &str, version: u64, service: &str) -> Object {
        let service: Service = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "uid": uid, "resourceVersion": version.to_string(), "labels": {
                MANAGED_BY.0: MANAGED_BY.1, ORIGINAL_NAME: service, ORIGINAL_NAMESPACE: "default"}},
        }))
        .unwrap();
        service.into()
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::service(name)
    }

    #[test]
    fn newer_version_or_other_uid_replaces_the_cached_object() {
        let mut objects = ObjectCache::default();
        let mut version_after = |object| {
            objects.apply(&object);
            objects.get(&id("a")).unwrap().version()
        };
        assert_eq!(version_after(object("a", "1", 5, "web")), Some(5));
        assert_eq!(version_after(object("a", "1", 4, "web")), Some(5), "an older event");
        assert_eq!(version_after(object("a", "1", 6, "web")), Some(6));
        assert_eq!(version_after(object("a", "2", 3, "web")), Some(3), "another object of that name");
    }

    #[test]
    fn list_replaces_objects_regardless_of_versions() {
        let mut objects = ObjectCache::default();
        objects.apply(&object("a", "1", 9, "new"));
        objects.answered(&object("a", "1", 10, "new"));
        objects.list_begins(ObjectKind::EndpointSlice);
        objects.list_begins(ObjectKind::Service);
        let twice = [object("a", "1", 4, "older"), object("a", "1", 5, "old")];
        objects.replace(ObjectKind::Service, twice.iter().map(ObservedObject::of).collect());
        assert_eq!(objects.get(&id("a")).unwrap().version(), Some(5), "of two versions the last one");
        objects.apply(&object("a", "1", 6, "web"));
        assert_eq!(objects.get(&id("a")).unwrap().version(), Some(6));
    }

    #[test]
    fn older_list_doesnt_undo_a_newer_write() {
        let mut objects = ObjectCache::default();
        objects.list_begins(ObjectKind::Service);
        objects.answered(&object("a", "1", 9, "new"));
        objects.apply(&object("b", "2", 9, "gone"));
        objects.replace(ObjectKind::Service, vec![ObservedObject::of(&object("a", "1", 5, "old"))]);
        assert_eq!(objects.get(&id("a")).unwrap().version(), Some(9));
        assert!(objects.get(&id("b")).is_none());
        objects.replace(ObjectKind::EndpointSlice, vec![]);
        assert!(objects.get(&id("a")).is_some(), "a list of another kind says nothing of it");
        assert_eq!(objects.links().collect::<Vec<_>>(), [ServiceKey::new("default", "new")]);
    }

    #[test]
    fn late_event_doesnt_restore_an_object_that_we_deleted() {
        let mut objects = ObjectCache::default();
        objects.apply(&object("a", "1", 5, "web"));
        objects.removed_by_us(&id("a"), "another");
        assert!(objects.get(&id("a")).is_some(), "it was another object");
        objects.removed_by_us(&id("a"), "1");
        objects.apply(&object("a", "1", 6, "web"));
        assert!(objects.get(&id("a")).is_none());
        objects.apply(&object("a", "2", 8, "web"));
        objects.remove(&id("a"), "1");
        assert_eq!(objects.get(&id("a")).unwrap().uid, *"2", "only the old object is deleted");
    }

    #[test]
    fn late_answer_doesnt_restore_a_deleted_object() {
        let mut objects = ObjectCache::default();
        objects.write_begins(&id("a"));
        objects.apply(&object("a", "1", 5, "web"));
        objects.remove(&id("a"), "1");
        objects.answered(&object("a", "1", 5, "web"));
        assert!(objects.get(&id("a")).is_none());
        objects.answered(&object("a", "2", 7, "web"));
        assert!(objects.get(&id("a")).is_some(), "it is another object");
        objects.write_ended(&id("a"));

        objects.write_begins(&id("b"));
        objects.replace(ObjectKind::Service, vec![]);
        objects.answered(&object("b", "3", 9, "web"));
        assert!(objects.get(&id("b")).is_none(), "the watch will say whether it is there");
        objects.write_ended(&id("b"));
        objects.answered(&object("b", "3", 9, "web"));
        assert!(objects.get(&id("b")).is_some());
    }

    #[test]
    fn objects_are_found_by_the_link_in_their_labels() {
        let mut objects = ObjectCache::default();
        objects.apply(&object("a", "1", 5, "web"));
        objects.apply(&object("a", "1", 6, "api"));
        let names = |service| -> Vec<String> {
            let objects = objects.of_link(&ServiceKey::new("default", service));
            objects.iter().map(|object| object.id.name.clone()).collect()
        };
        assert!(names("web").is_empty());
        assert_eq!(names("api"), ["a"]);
    }

    #[test]
    fn objects_of_another_instance_have_no_link() {
        let of = |name: &str, instance: Option<&str>| {
            let mut object = object(name, name, 1, name);
            let annotations = instance.map(|instance| [(INSTANCE.to_owned(), instance.to_owned())].into());
            object.meta_mut().annotations = annotations;
            object
        };
        let mut objects = ObjectCache::new(Some("own".to_owned()));
        for (name, instance) in [("a", Some("own")), ("b", None), ("c", Some("other")), ("d", Some(""))] {
            objects.apply(&of(name, instance));
        }
        let mut links: Vec<String> = objects.links().map(|key| key.name().to_owned()).collect();
        links.sort();
        assert_eq!(links, ["a", "b", "d"]);
        assert!(objects.of_link(&ServiceKey::new("default", "c")).is_empty());
        assert_eq!((objects.number_of_links(), objects.number_of_foreign()), (3, 1));
        assert_eq!(objects.other_owner("targets"), None);
        objects.remove(&id("a"), "a");
        objects.remove(&id("b"), "b");
        objects.remove(&id("d"), "d");
        assert_eq!(objects.other_owner("targets").unwrap().other, "other");
        objects.replace(ObjectKind::Service, vec![]);
        assert_eq!(objects.number_of_foreign(), 0);

        let mut all = ObjectCache::default();
        all.apply(&of("c", Some("other")));
        assert_eq!(all.links().count(), 1, "without an instance all objects count");
        assert_eq!(all.number_of_foreign(), 0);
    }

    fn slice(name: &str, service: &str) -> Object {
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "addressType": "IPv4", "metadata": {"name": name, "labels": {
                MANAGED_BY.0: MANAGED_BY.1, ORIGINAL_NAME: service, ORIGINAL_NAMESPACE: "default"}},
        }))
        .unwrap();
        slice.into()
    }

    #[test]
    fn link_with_several_objects_counts_once() {
        let mut objects = ObjectCache::default();
        let web = ServiceKey::new("default", "web");
        let usual = "web-default-ext";
        objects.apply(&slice(&format!("{usual}-ipv6"), "web"));
        objects.apply(&object("zz", "1", 1, "web"));
        objects.apply(&object(usual, "2", 1, "web"));
        objects.apply(&object("aa", "3", 1, "web"));
        objects.apply(&slice(usual, "web"));
        objects.apply(&object("api-default-ext", "4", 1, "web"));
        let ids =
            |objects: &ObjectCache| objects.of_link(&web).iter().map(|it| it.id.clone()).collect::<Vec<_>>();
        let slice_id = |name: &str| ObjectId { kind: ObjectKind::EndpointSlice, name: name.to_owned() };
        let services = ["aa", "api-default-ext", usual, "zz"].map(id);
        let slices = [usual, &format!("{usual}-ipv6")].map(slice_id);
        assert_eq!(ids(&objects), [&services[..], &slices].concat());
        assert_eq!((objects.number_of_links(), objects.links().count()), (1, 6));

        objects.apply(&object(usual, "2", 2, "api"));
        assert_eq!(objects.number_of_links(), 2, "another link has its default name");
        assert!(!ids(&objects).contains(&id(usual)));
        assert_eq!(objects.replace(ObjectKind::Service, vec![]).len(), 4);
        assert_eq!(ids(&objects), slices);
        assert_eq!(objects.number_of_links(), 1);
        objects.replace(ObjectKind::EndpointSlice, vec![]);
        assert_eq!(objects.number_of_links(), 0);
        assert!(objects.with_other_names.is_empty());
    }
}
