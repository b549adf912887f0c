//! Writes whose answer was lost: they are reported when the watch shows what they did.

use std::collections::HashMap;
use std::mem::discriminant;

use super::decision::Write;
use super::desired::{service_differs, slice_differs};
use super::observed_object::ObservedObject;
use super::write_result::Before;
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};

/// The last write without an answer of each object, until its effect is seen, a write of the object succeeds, another
/// kind of write of the object begins, or the link needs no write.
#[derive(Debug, Default)]
pub(crate) struct LostAnswers(HashMap<ObjectId, LostAnswer>);

#[derive(Debug)]
pub(crate) struct LostAnswer {
    pub(crate) key: ServiceKey,
    pub(crate) write: Write,
    pub(crate) before: Before,
}

impl LostAnswers {
    /// Records a write that the API server may have made.
    pub(crate) fn add(&mut self, key: &ServiceKey, write: &Write, before: Before) {
        if matches!(write, Write::Create(_) | Write::Change { .. } | Write::Delete { .. }) {
            self.0.insert(write.id(), LostAnswer { key: key.clone(), write: write.clone(), before });
        }
    }

    /// Forgets the write of an object. Returns whether it was a deletion of the object with this uid.
    pub(crate) fn remove(&mut self, id: &ObjectId, uid: &str) -> bool {
        let lost = self.0.remove(id);
        lost.is_some_and(|lost| matches!(lost.write, Write::Delete { .. }) && lost.write.uid() == uid)
    }

    /// Forgets the write of an object unless `write`, which begins now, is its retry.
    pub(crate) fn write_begins(&mut self, write: &Write) {
        let is_retry = |lost: &LostAnswer| discriminant(&lost.write) == discriminant(write);
        if self.0.get(&write.id()).is_some_and(|lost| !is_retry(lost)) {
            self.0.remove(&write.id());
        }
    }

    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.0.retain(|_, lost| lost.key != *key);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn of_kind(&self, kind: ObjectKind) -> Vec<ObjectId> {
        self.0.keys().filter(|id| id.kind == kind).cloned().collect()
    }

    /// Takes the write of an object if `present`, the object as it is now, shows its effect.
    pub(crate) fn take_if_made(
        &mut self,
        id: &ObjectId,
        present: Option<&ObservedObject>,
    ) -> Option<LostAnswer> {
        let is_made = self.0.get(id)?.is_made(present);
        if is_made { self.0.remove(id) } else { None }
    }
}

impl LostAnswer {
    fn is_made(&self, present: Option<&ObservedObject>) -> bool {
        match (&self.write, present) {
            (Write::Delete { .. }, present) => present.is_none_or(|object| object.uid != *self.write.uid()),
            (Write::Create(desired), Some(object)) => {
                object.has_our_field_manager && is_as_desired(object, desired)
            }
            (Write::Change { desired, .. }, Some(object)) => {
                object.uid == *self.write.uid() && is_as_desired(object, desired)
            }
            _ => false,
        }
    }
}

fn is_as_desired(present: &ObservedObject, desired: &Object) -> bool {
    match (&present.to_object(), desired) {
        (Object::Service(present), Object::Service(desired)) => !service_differs(present, desired),
        (Object::EndpointSlice(present), Object::EndpointSlice(desired)) => !slice_differs(present, desired),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sync::external_target::desired::Precondition;

    fn object(uid: &str, host: &str) -> Object {
        let labels = json!({"app.kubernetes.io/managed-by": "lb-linker-operator", "original-service-name": "web",
            "original-service-namespace": "shop"});
        let object: crate::sync::k8s::service::Service = serde_json::from_value(json!({
            "metadata": {"name": "web-shop-ext", "uid": uid, "resourceVersion": "5", "labels": labels,
                "managedFields": [{"manager": "lb-linker"}]},
            "spec": {"type": "ExternalName", "externalName": host},
        }))
        .unwrap();
        object.into()
    }

    #[test]
    fn only_the_effect_of_the_lost_write_counts() {
        let (key, id) = (ServiceKey::new("shop", "web"), ObjectId::service("web-shop-ext"));
        let precondition = Precondition { uid: Some("1".to_owned()), resource_version: None };
        let (old, new) = (object("1", "a.example"), object("1", "b.example"));
        let change = Write::Change { desired: new.clone(), precondition: precondition.clone() };
        let delete = Write::Delete { id: id.clone(), precondition };
        let other = object("2", "b.example");
        for (write, present, expected) in [
            (&Write::Create(new.clone()), Some(&new), true),
            (&Write::Create(new.clone()), Some(&old), false),
            (&Write::Create(new.clone()), None, false),
            (&change, Some(&new), true),
            (&change, Some(&old), false),
            (&change, Some(&other), false),
            (&delete, None, true),
            (&delete, Some(&other), true),
            (&delete, Some(&new), false),
        ] {
            let mut lost = LostAnswers::default();
            lost.add(&key, write, Before::Other);
            let present = present.map(ObservedObject::of);
            let made = lost.take_if_made(&id, present.as_ref());
            assert_eq!(made.is_some(), expected, "{write:?} {present:?}");
            assert_eq!(lost.of_kind(ObjectKind::Service).len(), usize::from(!expected));
        }
    }

    #[test]
    fn only_a_retry_keeps_the_lost_write_of_an_object() {
        let (key, id) = (ServiceKey::new("shop", "web"), ObjectId::service("web-shop-ext"));
        let precondition = Precondition { uid: Some("1".to_owned()), resource_version: None };
        let change = Write::Change { desired: object("1", "a.example"), precondition: precondition.clone() };
        let delete = Write::Delete { id, precondition };
        let mut lost = LostAnswers::default();
        lost.add(&key, &delete, Before::Other);
        lost.write_begins(&delete);
        assert_eq!(lost.of_kind(ObjectKind::Service).len(), 1);
        lost.write_begins(&change);
        assert!(lost.of_kind(ObjectKind::Service).is_empty());
    }
}
