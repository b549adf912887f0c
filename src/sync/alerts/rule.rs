//! PrometheusRules of the Prometheus operator, and the part of them that lb-linker reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::rule_name::{rule_name, target_name};
use crate::api::limits::MAX_LABELS;
use crate::api::stable_name::StableName;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::labels::{RULE_LABELS, RULE_MANAGED_BY, RULE_OWNER};

pub(super) const GROUP_VERSION: &str = "monitoring.coreos.com/v1";
pub(super) const PLURAL: &str = "prometheusrules";

/// Maximum length of the annotation with the names of labels: 16 names with up to 317 characters each.
const MAX_RULE_LABELS: usize = MAX_LABELS * 318;

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PrometheusRule {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
}

impl Resource for PrometheusRule {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "PrometheusRule".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "monitoring.coreos.com".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Serialize for PrometheusRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("PrometheusRule", 4)?;
        fields.serialize_field("apiVersion", GROUP_VERSION)?;
        fields.serialize_field("kind", &Self::kind(&()))?;
        fields.serialize_field("metadata", &self.metadata)?;
        fields.serialize_field("spec", &self.spec)?;
        fields.end()
    }
}

/// What is kept of a PrometheusRule, with a bounded size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedRule {
    pub(super) uid: Uid,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// The uid of the StableName that controls the object; empty if the object has lost its owner.
    pub(super) owner_uid: Uid,
    /// Whether the reference to the StableName is the only one, with the fields that lb-linker writes.
    pub(super) has_exact_owner: bool,
    /// The labels that lb-linker has written.
    pub(super) labels: BTreeMap<String, String>,
    /// The annotation with the names of labels from `spec.alerts.ruleLabels`.
    pub(super) rule_labels: Option<String>,
    /// Hash of `spec.groups`.
    pub(super) groups: u64,
    pub(super) is_terminating: bool,
}

impl ObservedRule {
    /// Returns the key of the StableName that the object belongs to, and what is kept of the object; `None` if
    /// the object isn't the PrometheusRule of a StableName that controls it.
    pub(super) fn of(object: &PrometheusRule) -> Option<(ServiceKey, Self)> {
        let metadata = &object.metadata;
        let owner =
            metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        let is_ours = owner.kind == StableName::kind(&())
            && owner.api_version.split('/').next() == Some(&*StableName::group(&()))
            && Some(&*rule_name(&owner.name)) == metadata.name.as_deref();
        if !is_ours {
            return None;
        }
        let has_exact_owner = metadata.owner_references.as_ref().is_some_and(|owners| owners.len() == 1)
            && owner.block_owner_deletion == Some(false)
            && owner.api_version == StableName::api_version(&());
        let key = ServiceKey::new(metadata.namespace.as_deref().unwrap_or_default(), &owner.name);
        Some((key, Self::new(object, owner.uid.as_str().into(), has_exact_owner)))
    }

    /// Returns what is kept of an object that has the name of the PrometheusRule of the StableName `key`; `None`
    /// for a foreign object. The object isn't foreign if a StableName with this key controls it, or if lb-linker
    /// has written it and it has no controller any more.
    pub(super) fn for_stable_name(object: &PrometheusRule, key: &ServiceKey) -> Option<Self> {
        if let Some((owner, observed)) = Self::of(object) {
            return (owner == *key).then_some(observed);
        }
        let metadata = &object.metadata;
        let label = |name: &str| metadata.labels.as_ref()?.get(name).map(String::as_str);
        let is_written = label(RULE_MANAGED_BY.0) == Some(RULE_MANAGED_BY.1) && label(RULE_OWNER).is_some();
        let is_controlled = metadata.owner_references.iter().flatten().any(|it| it.controller == Some(true));
        (is_written && !is_controlled).then(|| Self::new(object, Uid::default(), false))
    }

    fn new(object: &PrometheusRule, owner_uid: Uid, has_exact_owner: bool) -> Self {
        let metadata = &object.metadata;
        let rule_labels = metadata.annotations.as_ref().and_then(|all| all.get(RULE_LABELS));
        // A longer annotation wasn't written by lb-linker, and is replaced.
        let rule_labels = rule_labels.filter(|names| names.len() <= MAX_RULE_LABELS);
        let names = rule_labels.iter().flat_map(|names| names.split(',')).take(MAX_LABELS);
        let names = names.chain([RULE_MANAGED_BY.0, RULE_OWNER]);
        let text = |name: &str| metadata.labels.as_ref()?.get(name).cloned();
        let labels = names.filter_map(|name| Some((name.to_owned(), text(name)?))).collect();
        Self {
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            owner_uid,
            has_exact_owner,
            labels,
            rule_labels: rule_labels.cloned(),
            groups: canonical_hash(&object.spec["groups"]),
            is_terminating: metadata.deletion_timestamp.is_some(),
        }
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change.
    pub(super) fn revision(&self) -> Option<u64> {
        self.version.parse().ok()
    }
}

/// Returns the key of the StableName whose PrometheusRule has this key. See [`target_name`].
pub(super) fn target_key(rule: &ServiceKey) -> Option<ServiceKey> {
    Some(ServiceKey::new(rule.namespace(), target_name(rule.name())?))
}

/// Returns a hash of a JSON value that doesn't depend on the order of fields.
pub(super) fn canonical_hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash_value(value, &mut hasher);
    hasher.finish()
}

fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Null => {}
        Value::Bool(value) => value.hash(hasher),
        Value::Number(number) => number.to_string().hash(hasher),
        Value::String(text) => text.hash(hasher),
        Value::Array(items) => {
            items.len().hash(hasher);
            items.iter().for_each(|item| hash_value(item, hasher));
        }
        Value::Object(fields) => {
            fields.len().hash(hasher);
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            for (name, field) in sorted {
                name.hash(hasher);
                hash_value(field, hasher);
            }
        }
    }
}
