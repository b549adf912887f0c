//! Reads the ExternalTargets of manifests as strictly as the API server, by the schema of the CRD: an unknown field is
//! an error.

use std::collections::HashMap;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::{Map, Value, json};
use serde_saphyr::{Location, Spanned};

use super::strings::{SourceText, is_same_key, length, misread_string};
use super::tree::{Node, place};
use crate::api::crd;
use crate::api::external_target::ExternalTarget;
use crate::api::validation::validate;
use crate::model::excerpt::{sentence, value};
use crate::model::names;
use crate::model::service_key::ServiceKey;

/// The namespace of objects without one.
const DEFAULT_NAMESPACE: &str = "default";

/// A part of a manifest that is refused.
#[derive(Debug)]
pub(super) struct FieldError {
    pub(super) position: Location,
    /// The field and the reason.
    pub(super) message: String,
}

/// The schema of a whole object.
static SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| {
    let versions = crd::external_targets().spec.versions;
    let schema = versions.into_iter().find_map(|version| version.schema?.open_api_v3_schema);
    let mut schema = schema.unwrap_or_default();
    let metadata = ["apiVersion", "kind", "metadata"].map(|field| {
        let schema = if field == "metadata" { metadata_schema() } else { json!({"type": "string"}) };
        (field.to_owned(), serde_json::from_value(schema).unwrap_or_default())
    });
    schema.properties.get_or_insert_default().extend(metadata);
    schema
});

/// Returns the schema of the metadata. The fields without a type aren't read.
fn metadata_schema() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let text = json!({"type": "string"});
    json!({"type": "object", "properties": {
        "annotations": texts, "labels": texts,
        "name": text, "namespace": text, "uid": text, "creationTimestamp": text,
        "deletionGracePeriodSeconds": {}, "deletionTimestamp": {}, "finalizers": {}, "generateName": {},
        "generation": {}, "managedFields": {}, "ownerReferences": {}, "resourceVersion": {}, "selfLink": {},
    }})
}

/// Returns whether an object with this apiVersion and kind is an ExternalTarget.
///
/// # Errors
/// If it is an ExternalTarget of another version.
pub(super) fn is_external_target(api_version: Option<&str>, kind: Option<&str>) -> Result<bool, String> {
    let (group, known) = (ExternalTarget::group(&()), ExternalTarget::api_version(&()));
    let Some((theirs, _)) = api_version.and_then(|version| version.split_once('/')) else { return Ok(false) };
    let is_it = theirs == group && kind == Some(&ExternalTarget::kind(&()));
    match api_version.filter(|version| is_it && *version != known) {
        Some(unknown) => Err(format!("apiVersion {} is unknown: write {known}", value(unknown))),
        None => Ok(is_it),
    }
}

/// Returns an ExternalTarget without the metadata that aren't needed.
///
/// # Errors
/// All fields that the API server would refuse.
pub(super) fn read(
    content: &SourceText<'_>,
    object: &Spanned<Node>,
) -> Result<ExternalTarget, Vec<FieldError>> {
    let mut reader = Reader { content, refused: Vec::new(), places: HashMap::new() };
    let tree = reader.take("", &SCHEMA, object).unwrap_or_default();
    if reader.refused.is_empty() {
        let place = place(object);
        let decoded = decode(tree)
            .map_err(|error| vec![FieldError { position: place, message: sentence(&error).to_string() }])?;
        reader.validate(&decoded, place);
        if reader.refused.is_empty() {
            return Ok(decoded);
        }
    }
    Err(reader.refused)
}

fn decode(mut tree: Value) -> Result<ExternalTarget, String> {
    tree["apiVersion"] = ExternalTarget::api_version(&()).into();
    tree["kind"] = ExternalTarget::kind(&()).into();
    let decoded: ExternalTarget = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    let ObjectMeta { name, namespace, uid, creation_timestamp, .. } = decoded.metadata;
    let namespace = Some(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()));
    let metadata = ObjectMeta { name, namespace, uid, creation_timestamp, ..ObjectMeta::default() };
    Ok(ExternalTarget { metadata, ..decoded })
}

/// Returns the namespace and the name of an ExternalTarget that was read.
pub(super) fn key(object: &ExternalTarget) -> ServiceKey {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    ServiceKey::new(namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE), name.as_deref().unwrap_or_default())
}

fn is_null(node: &Spanned<Node>) -> bool {
    matches!(node.value, Node::Scalar(Value::Null))
}

/// Reads an object by the schema, and collects what the schema refuses.
struct Reader<'a> {
    content: &'a SourceText<'a>,
    refused: Vec<FieldError>,
    /// The positions of the fields.
    places: HashMap<String, Location>,
}

impl Reader<'_> {
    fn refuse(&mut self, place: Location, why: impl Into<String>) {
        self.refused.push(FieldError { position: place, message: why.into() });
    }

    /// Returns the value of a field, and notes what the schema refuses. Returns `None` for a value that isn't read, or
    /// is of another type.
    fn take(&mut self, path: &str, schema: &JSONSchemaProps, node: &Spanned<Node>) -> Option<Value> {
        let place = place(node);
        self.places.insert(path.to_owned(), place);
        let expected = schema.type_.as_deref()?;
        match (expected, &node.value) {
            ("object", Node::Map(entries)) => Some(self.take_object(path, schema, entries, place)),
            ("array", Node::List(items)) => {
                let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items else { return None };
                let items = items.iter().enumerate();
                Some(items.filter_map(|(i, item)| self.take(&format!("{path}[{i}]"), schema, item)).collect())
            }
            ("string", Node::Scalar(scalar)) if !scalar.is_null() => Some(self.take_text(path, scalar, node)),
            ("integer", Node::Scalar(Value::Number(number))) if number.is_i64() => {
                // YAML 1.1 reads other spellings, such as 017, as another number.
                if length(node.defined) != number.to_string().len() {
                    let spelled = sentence(self.content.spelled(node.defined)).to_string();
                    self.refuse(place, format!("{path}: {spelled} must be written as {number}"));
                }
                Some(number.clone().into())
            }
            ("boolean", Node::Scalar(Value::Bool(is))) => Some((*is).into()),
            _ => {
                self.refuse(place, format!("{}: must be of type {expected}", sentence(path)));
                None
            }
        }
    }

    fn take_object(
        &mut self,
        path: &str,
        schema: &JSONSchemaProps,
        entries: &[(Spanned<Option<String>>, Spanned<Node>)],
        place: Location,
    ) -> Value {
        let path_of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let mut object = Map::new();
        for (key, field) in entries {
            let name = key.value.as_deref().unwrap_or("null");
            let path = path_of(name);
            let known = schema.properties.as_ref().and_then(|properties| properties.get(name));
            let schema = match (known, &schema.additional_properties) {
                (Some(known), _) => known,
                (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => {
                    let misread = misread_string(self.content, &path, name, key.defined);
                    if let Some(why) = misread.filter(|_| !is_same_key(name)) {
                        self.refuse(key.referenced, why);
                    }
                    schema
                }
                _ => {
                    self.refuse(key.referenced, format!("unknown field {}", value(&path)));
                    continue;
                }
            };
            // As in the API server, null means that the field is missing.
            if !is_null(field)
                && let Some(taken) = self.take(&path, schema, field)
            {
                object.insert(name.to_owned(), taken);
            }
        }
        let has = |name: &String| {
            entries.iter().any(|(key, field)| key.value.as_ref() == Some(name) && !is_null(field))
        };
        for name in schema.required.iter().flatten().filter(|name| !has(name)) {
            self.refuse(place, format!("{}: must be given", path_of(name)));
        }
        object.into()
    }

    fn take_text(&mut self, path: &str, scalar: &Value, node: &Spanned<Node>) -> Value {
        let text = match scalar {
            Value::String(text) => text,
            _ => self.content.spelled(node.defined),
        };
        if let Some(why) = misread_string(self.content, &sentence(path).to_string(), text, node.defined) {
            self.refuse(place(node), why);
        }
        text.into()
    }

    /// Applies the rules of the CRD that aren't part of the types.
    fn validate(&mut self, object: &ExternalTarget, object_place: Location) {
        let key = key(object);
        if !names::is_label(key.namespace()) {
            let namespace = value(key.namespace());
            let why = format!(
                "metadata.namespace {namespace} isn't 1 to 63 lower-case letters, digits and hyphens"
            );
            self.refuse(self.place_of("metadata.namespace").unwrap_or(object_place), why);
        }
        for invalid in validate(key.name(), &object.spec).err().into_iter().flatten() {
            let why = match invalid.message.starts_with(&invalid.field) {
                true => invalid.message.clone(),
                false => invalid.to_string(),
            };
            self.refuse(self.place_of(&invalid.field).unwrap_or(object_place), sentence(&why).to_string());
        }
    }

    /// Returns the position of a field, or of the nearest field around it.
    fn place_of(&self, mut field: &str) -> Option<Location> {
        loop {
            if let Some(place) = self.places.get(field) {
                return Some(*place);
            }
            field = &field[..field.rfind(['.', '['])?];
        }
    }
}
