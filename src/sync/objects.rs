//! What is in the target namespace, as far as lb-linker has heard.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::desired::{labelled_for, written_by_us};
use super::service::Service;
use crate::store::ServiceKey;

/// The Services of the target namespace, by name and by the link that they are labelled for.
#[derive(Debug, Default)]
pub struct Objects {
    by_name: HashMap<String, Arc<Service>>,
    by_link: HashMap<ServiceKey, BTreeSet<String>>,
    /// Objects that lb-linker has deleted, by uid, until the watch says so too: an older event may
    /// still be under way.
    deleted: HashMap<String, String>,
}

impl Objects {
    /// Returns the object `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Service>> {
        self.by_name.get(name)
    }

    /// Returns the objects that are labelled for a link, by name.
    pub fn of_link(&self, key: &ServiceKey) -> impl Iterator<Item = &Arc<Service>> {
        self.by_link.get(key).into_iter().flatten().filter_map(|name| self.by_name.get(name))
    }

    /// Returns the links that objects are labelled for and that lb-linker has written them for.
    pub fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.by_link.iter().filter_map(|(key, names)| {
            let ours = |name| self.by_name.get(name).is_some_and(|object| written_by_us(object));
            names.iter().any(ours).then_some(key)
        })
    }

    /// Returns the names of all objects.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Replaces everything by a complete list. An object that the answer to a write has shown to be
    /// newer than in the list stays as it is.
    pub fn replace(&mut self, list: Vec<Service>) {
        let mut before = std::mem::take(self);
        for service in list {
            let known = service.metadata.name.as_deref().and_then(|name| before.take(name));
            match known.filter(|known| is_newer(known, &service)).and_then(Arc::into_inner) {
                Some(known) => self.insert(known),
                None => self.insert(service),
            }
        }
    }

    /// Takes over an object from the watch or from the answer to a write, whichever is newer.
    pub fn apply(&mut self, service: Service) {
        let Some(name) = service.metadata.name.as_deref() else { return };
        if self.deleted.get(service.uid()).is_some_and(|deleted| deleted == name) {
            return;
        }
        if let Some(known) = self.by_name.get(name)
            && known.uid() == service.uid()
            && known.version().is_some()
            && known.version() >= service.version()
        {
            return;
        }
        self.insert(service);
    }

    /// Takes over from the watch that an object is gone.
    pub fn remove(&mut self, name: &str, uid: &str) {
        self.deleted.remove(uid);
        if self.by_name.get(name).is_some_and(|object| object.uid() == uid) {
            self.take(name);
        }
    }

    /// Takes over from the answer to a write of ours that an object is gone.
    pub fn removed_by_us(&mut self, name: &str) {
        if let Some(object) = self.take(name)
            && !object.uid().is_empty()
        {
            self.deleted.insert(object.uid().to_owned(), name.to_owned());
        }
    }

    fn insert(&mut self, service: Service) {
        let Some(name) = service.metadata.name.clone() else { return };
        self.take(&name);
        if let Some(key) = labelled_for(&service) {
            self.by_link.entry(key).or_default().insert(name.clone());
        }
        self.by_name.insert(name, Arc::new(service));
    }

    fn take(&mut self, name: &str) -> Option<Arc<Service>> {
        let object = self.by_name.remove(name)?;
        if let Some(key) = labelled_for(&object)
            && let Some(names) = self.by_link.get_mut(&key)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_link.remove(&key);
            }
        }
        Some(object)
    }
}

/// Whether `known` is a later version of the same object.
fn is_newer(known: &Service, other: &Service) -> bool {
    known.uid() == other.uid() && known.version() > other.version()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::desired::{MANAGED_BY, ORIGINAL_NAME, ORIGINAL_NAMESPACE};

    fn object(name: &str, uid: &str, version: u64, service: &str) -> Service {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "uid": uid, "resourceVersion": version.to_string(), "labels": {
                MANAGED_BY.0: MANAGED_BY.1, ORIGINAL_NAME: service, ORIGINAL_NAMESPACE: "default"}},
        }))
        .unwrap()
    }

    #[test]
    fn the_newer_of_watch_and_write_wins() {
        let mut objects = Objects::default();
        let mut version_after = |object| {
            objects.apply(object);
            objects.get("a").unwrap().version()
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
        objects.replace(vec![object("a", "1", 5, "old")]);
        assert_eq!(objects.get("a").unwrap().version(), Some(9));
        assert!(objects.get("b").is_none());
        assert_eq!(objects.links().count(), 0, "none of them was written by us");
    }

    #[test]
    fn a_late_event_doesnt_bring_back_what_we_deleted() {
        let mut objects = Objects::default();
        objects.apply(object("a", "1", 5, "web"));
        objects.removed_by_us("a");
        objects.apply(object("a", "1", 6, "web"));
        assert!(objects.get("a").is_none());
        objects.apply(object("a", "2", 8, "web"));
        objects.remove("a", "1");
        assert_eq!(objects.get("a").unwrap().uid(), "2", "the end of the old one isn't the new one's");
    }

    #[test]
    fn objects_are_found_by_the_link_they_are_labelled_for() {
        let mut objects = Objects::default();
        objects.apply(object("a", "1", 5, "web"));
        objects.apply(object("a", "1", 6, "api"));
        let names = |service| -> Vec<String> {
            let key = ServiceKey::new("default", service);
            objects.of_link(&key).map(|object| object.metadata.name.clone().unwrap()).collect()
        };
        assert!(names("web").is_empty());
        assert_eq!(names("api"), ["a"]);
    }
}
