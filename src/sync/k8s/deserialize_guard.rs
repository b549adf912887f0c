//! Decodes objects from the API server one by one, so that one undecodable object doesn't stop other objects.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::model::excerpt::sentence;

/// An object, or its identity and the reason why it can't be decoded. Cheaper than kube's `DeserializeGuard`, which
/// first builds a tree of each object, including `managedFields`, and a copy of the tree.
#[derive(Clone, Debug)]
pub struct RawDeserializeGuard<K>(pub Result<K, InvalidObject>);

/// The metadata that identify an object.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct PartialObject {
    #[serde(default)]
    metadata: PartialMetadata,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for RawDeserializeGuard<K> {
    /// Works only for JSON in memory, where the text can be borrowed. In kube's `WatchEvent`, `type` has to precede
    /// `object`, as the API server writes them (`metav1.WatchEvent`).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(<&RawValue>::deserialize(deserializer)?.get()).map_err(D::Error::custom)
    }
}

impl<K: DeserializeOwned> RawDeserializeGuard<K> {
    /// # Errors
    /// If the metadata can't be decoded, either.
    pub(crate) fn from_json(text: &str) -> serde_json::Result<Self> {
        let error = match serde_json::from_str(text) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error_without_position(&error),
        };
        let PartialObject { metadata } = serde_json::from_str(text)?;
        let PartialMetadata { name, namespace, uid, resource_version } = metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..Default::default() };
        Ok(Self(Err(InvalidObject { error, metadata })))
    }
}

/// Returns the error without its position: in the next version of the object the same error has another position.
fn error_without_position(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = error.to_string();
    // The text repeats a value of the wrong type, so the text is shortened.
    sentence(text.strip_suffix(&place).unwrap_or(&text)).to_string()
}

impl<K: Resource> Resource for RawDeserializeGuard<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use kube::api::{ObjectList, WatchEvent};

    use super::*;
    use crate::sync::k8s::service::Service;

    #[test]
    fn list_with_an_undecodable_object_is_decoded() {
        let list: ObjectList<RawDeserializeGuard<Service>> = serde_json::from_str(
            r#"{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [
                {"metadata": {"namespace": "a", "name": "broken", "uid": "u", "resourceVersion": "7",
                    "labels": {"a": 5}}, "spec": {"type": "LoadBalancer"}},
                {"metadata": {"namespace": "a", "name": "whole"}, "spec": {"type": "LoadBalancer"}}]}"#,
        )
        .unwrap();
        let [broken, whole] = &list.items[..] else { panic!("{list:?}") };
        assert_eq!(whole.0.as_ref().unwrap().key().to_string(), "a/whole");
        assert_eq!((broken.namespace().as_deref(), &*broken.name_any()), (Some("a"), "broken"));
        assert_eq!((broken.uid().as_deref(), broken.resource_version().as_deref()), (Some("u"), Some("7")));
        let why = &broken.0.as_ref().unwrap_err().error;
        assert_eq!(why, "invalid type: integer `5`, expected a string");
    }

    #[test]
    fn error_doesnt_repeat_a_whole_value() {
        let text = format!(r#"{{"metadata":{{"name":"broken"}},"spec":"{}"}}"#, "x".repeat(250_000));
        let broken: RawDeserializeGuard<Service> = serde_json::from_str(&text).unwrap();
        let why = &broken.0.as_ref().unwrap_err().error;
        assert!(why.starts_with("invalid type: string") && why.len() < 700, "{why}");
    }

    #[test]
    fn watch_event_with_an_undecodable_object_is_decoded() {
        let event = |object: &str| -> WatchEvent<RawDeserializeGuard<Service>> {
            serde_json::from_str(&format!(r#"{{"type":"MODIFIED","object":{object}}}"#)).unwrap()
        };
        let WatchEvent::Modified(whole) = event(r#"{"metadata":{"name":"whole"}}"#) else { panic!() };
        assert!(whole.0.is_ok());
        let WatchEvent::Modified(broken) = event(r#"{"metadata":{"name":"broken"},"spec":5}"#) else {
            panic!()
        };
        assert!(broken.0.is_err());
        assert_eq!(broken.name_any(), "broken");
    }
}
