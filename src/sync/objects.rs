//! What is in the target namespace, as far as lb-linker has heard.

use std::collections::HashMap;
use std::sync::Arc;

use super::desired::labelled_for;
use super::object::{Kind, Object, ObjectId};
use crate::store::ServiceKey;

/// The objects of the target namespace, by id and by the link that they are labelled for.
#[derive(Debug, Default)]
pub struct Objects {
    by_id: HashMap<ObjectId, Arc<Object>>,
    /// In order; mostly there is one.
    by_link: HashMap<ServiceKey, Vec<ObjectId>>,
    /// Objects that lb-linker has deleted, by uid, until the watch says so too: an older event may
    /// still be under way.
    deleted: HashMap<String, ObjectId>,
    /// Writes under way, and what has been heard meanwhile.
    under_way: HashMap<ObjectId, Meanwhile>,
}

/// What has been heard of an object while a write of it was under way.
#[derive(Debug, Default)]
struct Meanwhile {
    /// The uids of those that are gone.
    gone: Vec<String>,
    /// A complete list came without it.
    unlisted: bool,
}

impl Objects {
    /// Returns an object.
    #[must_use]
    pub fn get(&self, id: &ObjectId) -> Option<&Arc<Object>> {
        self.by_id.get(id)
    }

    /// Returns the objects that are labelled for a link, Services first, by name.
    pub fn of_link(&self, key: &ServiceKey) -> impl Iterator<Item = &Arc<Object>> {
        self.by_link.get(key).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    /// Returns the links that objects are labelled for.
    pub fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_link.keys()
    }

    /// Returns how many links have objects here.
    #[must_use]
    pub fn number_of_links(&self) -> usize {
        self.by_link.len()
    }

    /// Returns the ids of all objects.
    pub fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.by_id.keys()
    }

    /// Replaces all objects of a kind by a complete list. An object that the answer to a write has
    /// shown to be newer than in the list stays as it is.
    pub fn replace(&mut self, kind: Kind, list: Vec<Object>) {
        let before: Vec<ObjectId> = self.by_id.keys().filter(|id| id.kind == kind).cloned().collect();
        let mut before: HashMap<ObjectId, Arc<Object>> =
            before.into_iter().filter_map(|id| Some((id.clone(), self.take(&id)?))).collect();
        self.deleted.retain(|_, id| id.kind != kind);
        for object in list {
            let known = before.remove(&object.id());
            self.insert(match known.filter(|known| is_newer(known, &object)) {
                Some(known) => known,
                None => Arc::new(object),
            });
        }
        for (id, meanwhile) in self.under_way.iter_mut().filter(|(id, _)| id.kind == kind) {
            meanwhile.unlisted |= !self.by_id.contains_key(id);
        }
    }

    /// Notes that a write of an object begins.
    pub fn write_begins(&mut self, id: &ObjectId) {
        self.under_way.insert(id.clone(), Meanwhile::default());
    }

    /// Notes that the answer to a write has come, or never will.
    pub fn write_ended(&mut self, id: &ObjectId) {
        self.under_way.remove(id);
    }

    /// Takes over an object from the answer to a write. The watch may have been faster, even with
    /// its end; after a complete list without it only the watch can say whether it is there.
    pub fn answered(&mut self, object: Object) {
        let id = object.id();
        let outdated = self.under_way.get(&id).is_some_and(|meanwhile| {
            let unlisted = meanwhile.unlisted && !self.by_id.contains_key(&id);
            unlisted || meanwhile.gone.iter().any(|uid| uid == object.uid())
        });
        if !outdated {
            self.apply(object);
        }
    }

    /// Takes over an object from the watch or from the answer to a write, whichever is newer.
    pub fn apply(&mut self, object: Object) {
        let id = object.id();
        if self.deleted.get(object.uid()) == Some(&id) {
            return;
        }
        if let Some(known) = self.by_id.get(&id)
            && known.uid() == object.uid()
            && known.version().is_some()
            && known.version() >= object.version()
        {
            return;
        }
        self.insert(Arc::new(object));
    }

    /// Takes over from the watch that an object is gone.
    pub fn remove(&mut self, id: &ObjectId, uid: &str) {
        self.deleted.remove(uid);
        // Files have no uid.
        if let Some(meanwhile) = self.under_way.get_mut(id).filter(|_| !uid.is_empty()) {
            meanwhile.gone.push(uid.to_owned());
        }
        if self.by_id.get(id).is_some_and(|object| object.uid() == uid) {
            self.take(id);
        }
    }

    /// Takes over from the answer to a write of ours that the object with this uid is gone. Another
    /// one may have its name by now.
    pub fn removed_by_us(&mut self, id: &ObjectId, uid: &str) {
        if self.by_id.get(id).is_some_and(|object| object.uid() == uid) {
            self.take(id);
            if !uid.is_empty() {
                self.deleted.insert(uid.to_owned(), id.clone());
            }
        }
    }

    fn insert(&mut self, object: Arc<Object>) {
        let id = object.id();
        self.take(&id);
        if let Some(key) = labelled_for(object.meta()) {
            let ids = self.by_link.entry(key).or_insert_with(|| Vec::with_capacity(1));
            if let Err(place) = ids.binary_search(&id) {
                ids.insert(place, id.clone());
            }
        }
        self.by_id.insert(id, object);
    }

    fn take(&mut self, id: &ObjectId) -> Option<Arc<Object>> {
        let object = self.by_id.remove(id)?;
        if let Some(key) = labelled_for(object.meta())
            && let Some(ids) = self.by_link.get_mut(&key)
        {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.by_link.remove(&key);
            }
        }
        Some(object)
    }
}

/// Whether `known` is a later version of the same object.
fn is_newer(known: &Object, other: &Object) -> bool {
    known.uid() == other.uid() && known.version() > other.version()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::desired::{MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE};
    use crate::sync::service::Service;

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
    fn the_newer_of_watch_and_write_wins() {
        let mut objects = Objects::default();
        let mut version_after = |object| {
            objects.apply(object);
            objects.get(&id("a")).unwrap().version()
        };
        assert_eq!(version_after(object("a", "1", 5, "web")), Some(5));
        assert_eq!(version_after(object("a", "1", 4, "web")), Some(5), "an older event");
        assert_eq!(version_after(object("a", "1", 6, "web")), Some(6));
        assert_eq!(version_after(object("a", "2", 3, "web")), Some(3), "another object of that name");
    }

    #[test]
    fn a_list_that_was_read_before_our_last_write_doesnt_undo_it() {
        let mut objects = Objects::default();
        objects.apply(object("a", "1", 9, "new"));
        objects.apply(object("b", "2", 9, "gone"));
        objects.replace(Kind::Service, vec![object("a", "1", 5, "old")]);
        assert_eq!(objects.get(&id("a")).unwrap().version(), Some(9));
        assert!(objects.get(&id("b")).is_none());
        objects.replace(Kind::EndpointSlice, vec![]);
        assert!(objects.get(&id("a")).is_some(), "a list of another kind says nothing of it");
        assert_eq!(objects.links().collect::<Vec<_>>(), [&ServiceKey::new("default", "new")]);
    }

    #[test]
    fn a_late_event_doesnt_bring_back_what_we_deleted() {
        let mut objects = Objects::default();
        objects.apply(object("a", "1", 5, "web"));
        objects.removed_by_us(&id("a"), "another");
        assert!(objects.get(&id("a")).is_some(), "it was another object");
        objects.removed_by_us(&id("a"), "1");
        objects.apply(object("a", "1", 6, "web"));
        assert!(objects.get(&id("a")).is_none());
        objects.apply(object("a", "2", 8, "web"));
        objects.remove(&id("a"), "1");
        assert_eq!(objects.get(&id("a")).unwrap().uid(), "2", "the end of the old one isn't the new one's");
    }

    #[test]
    fn a_late_answer_doesnt_bring_back_what_the_watch_said_is_gone() {
        let mut objects = Objects::default();
        objects.write_begins(&id("a"));
        objects.apply(object("a", "1", 5, "web"));
        objects.remove(&id("a"), "1");
        objects.answered(object("a", "1", 5, "web"));
        assert!(objects.get(&id("a")).is_none());
        objects.answered(object("a", "2", 7, "web"));
        assert!(objects.get(&id("a")).is_some(), "it is another object");
        objects.write_ended(&id("a"));

        objects.write_begins(&id("b"));
        objects.replace(Kind::Service, vec![]);
        objects.answered(object("b", "3", 9, "web"));
        assert!(objects.get(&id("b")).is_none(), "the watch will say whether it is there");
        objects.write_ended(&id("b"));
        objects.answered(object("b", "3", 9, "web"));
        assert!(objects.get(&id("b")).is_some());
    }

    #[test]
    fn objects_are_found_by_the_link_they_are_labelled_for() {
        let mut objects = Objects::default();
        objects.apply(object("a", "1", 5, "web"));
        objects.apply(object("a", "1", 6, "api"));
        let names = |service| -> Vec<String> {
            objects.of_link(&ServiceKey::new("default", service)).map(|object| object.id().name).collect()
        };
        assert!(names("web").is_empty());
        assert_eq!(names("api"), ["a"]);
    }
}
