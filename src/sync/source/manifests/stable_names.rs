//! Reads the StableNames of manifests, and applies the rules of their CRD.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::reader::{FieldError, Reader};
use super::schema;
use super::strings::SourceText;
use super::tree::{Node, place};
use crate::api::stable_name::StableName;
use crate::api::validation::validate;
use crate::model::excerpt::{sentence, value};
use crate::model::names;
use crate::model::service_key::ServiceKey;

/// The namespace of objects without one.
const DEFAULT_NAMESPACE: &str = "default";

/// Returns whether an object with this apiVersion and kind is a StableName.
///
/// # Errors
/// If it is a StableName of another version.
pub(super) fn is_stable_name(api_version: Option<&str>, kind: Option<&str>) -> Result<bool, String> {
    let (group, known) = (StableName::group(&()), StableName::api_version(&()));
    let Some((theirs, _)) = api_version.and_then(|version| version.split_once('/')) else { return Ok(false) };
    let is_it = theirs == group && kind == Some(&StableName::kind(&()));
    match api_version.filter(|version| is_it && *version != known) {
        Some(unknown) => Err(format!("apiVersion {} is unknown: write {known}", value(unknown))),
        None => Ok(is_it),
    }
}

/// Returns a StableName without the metadata that aren't needed.
///
/// # Errors
/// All fields that the API server would refuse.
pub(super) fn read(content: &SourceText<'_>, object: &Spanned<Node>) -> Result<StableName, Vec<FieldError>> {
    let (mut reader, tree) = Reader::read(content, &schema::STABLE_NAME, object)?;
    let decoded = decode(tree).map_err(|error| {
        vec![FieldError { position: place(object), message: sentence(&error).to_string() }]
    })?;
    let key = key(&decoded);
    reader.check_label("metadata.namespace", key.namespace());
    // The rules of the CRD that aren't part of the types.
    for invalid in validate(key.name(), &decoded.spec).err().into_iter().flatten() {
        let why = match invalid.message.starts_with(&invalid.field) {
            true => invalid.message.clone(),
            false => invalid.to_string(),
        };
        reader.refuse_field(&invalid.field, sentence(&why).to_string());
    }
    for (number, source) in decoded.spec.sources.iter().enumerate() {
        let cluster = source.service.as_ref().and_then(|service| service.cluster.as_deref());
        if cluster.is_some_and(names::is_label) {
            let path = format!("spec.sources[{number}].service.cluster");
            let why = format!("{path}: with --manifests there are no other clusters: leave this field out");
            reader.refuse_field(&path, why);
        }
    }
    reader.finish(decoded)
}

fn decode(mut tree: Value) -> Result<StableName, String> {
    tree["apiVersion"] = StableName::api_version(&()).into();
    tree["kind"] = StableName::kind(&()).into();
    let decoded: StableName = serde_json::from_value(tree).map_err(|error| error.to_string())?;
    let ObjectMeta { name, namespace, uid, creation_timestamp, .. } = decoded.metadata;
    let namespace = Some(namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()));
    let metadata = ObjectMeta { name, namespace, uid, creation_timestamp, ..ObjectMeta::default() };
    Ok(StableName { metadata, ..decoded })
}

/// Returns the namespace and the name of a StableName that was read.
pub(super) fn key(object: &StableName) -> ServiceKey {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    ServiceKey::new(namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE), name.as_deref().unwrap_or_default())
}
