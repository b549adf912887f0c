//! The CustomResourceDefinition of StableNames.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use super::stable_name::StableName;

/// Returns the definition as it is installed in a cluster.
#[must_use]
pub fn stable_names() -> CustomResourceDefinition {
    let mut crd = StableName::crd();
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    for schema in schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()) {
        clean(schema);
    }
    crd.metadata.labels =
        Some(BTreeMap::from([("app.kubernetes.io/name".to_owned(), "lb-linker".to_owned())]));
    crd
}

/// Removes what schemars adds for its own purposes, from a schema and the schemas of its fields:
/// - `nullable`: a field without a value is omitted, and isn't `null`;
/// - `default`: the API server would store it in each object, which then differs from what the user applied;
/// - `title`: the name of the Rust type;
/// - the line breaks within the paragraphs of a comment.
fn clean(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.default = None;
    schema.title = None;
    if let Some(description) = &mut schema.description {
        let paragraphs = description.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(clean);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        clean(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        clean(values);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::api::stable_name::{Alerts, Check, Cutover, Failback};

    /// Calls `look` with a schema and each schema below it, and the path of each.
    fn walk(path: &str, schema: &Value, look: &mut impl FnMut(&str, &Value)) {
        look(path, schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), field, look);
        }
        for key in ["items", "additionalProperties"] {
            if schema[key].is_object() {
                walk(&format!("{path}[]"), &schema[key], look);
            }
        }
    }

    fn schemas(mut look: impl FnMut(&str, &Value)) {
        let crd = serde_json::to_value(stable_names()).unwrap();
        walk("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut look);
    }

    #[test]
    fn schema_has_no_defaults_and_takes_no_null() {
        schemas(|path, schema| {
            for key in ["default", "nullable", "title", "anyOf", "oneOf", "enum"] {
                let is_allowed = key == "enum" && path == ".spec.failback.mode";
                assert_eq!(schema.get(key).is_some(), is_allowed, "{path}: {key}");
            }
        });
    }

    #[test]
    fn texts_lists_maps_and_integers_are_bounded() {
        schemas(|path, schema| {
            let limit = match schema["type"].as_str() {
                Some("string") if schema["format"] == "date-time" || schema.get("enum").is_some() => return,
                Some("string") => "maxLength",
                Some("array") => "maxItems",
                Some("object") if schema.get("additionalProperties").is_some() => "maxProperties",
                Some("integer") if path.starts_with(".spec") => "maximum",
                _ => return,
            };
            assert!(schema[limit].is_u64() || schema[limit].is_f64(), "{path}: {schema}");
        });
    }

    #[test]
    fn status_requires_only_fields_of_conditions() {
        schemas(|path, schema| {
            let is_allowed = !path.starts_with(".status") || path == ".status.conditions[]";
            assert!(schema.get("required").is_none() || is_allowed, "{path}: {schema}");
        });
    }

    #[test]
    fn descriptions_name_bounds_and_assumed_values() {
        let (check, alerts) = (Check::default(), Alerts::default());
        let assumed = BTreeMap::from([
            (".spec.check.periodSeconds", check.period().as_secs()),
            (".spec.check.timeoutSeconds", check.timeout().as_secs()),
            (".spec.check.failureThreshold", check.failure_threshold().into()),
            (".spec.check.successThreshold", check.success_threshold().into()),
            (".spec.cutover.maxWaitSeconds", Cutover::default().max_wait().as_secs()),
            (".spec.failback.afterSeconds", Failback::default().after().as_secs()),
            (".spec.alerts.notReadyForSeconds", alerts.not_ready_for().as_secs()),
            (".spec.alerts.failedOverForSeconds", alerts.failed_over_for().as_secs()),
        ]);
        let mut named = 0;
        schemas(|path, schema| {
            let (Some(min), Some(max)) = (schema["minimum"].as_f64(), schema["maximum"].as_f64()) else {
                return;
            };
            let description = schema["description"].as_str().unwrap();
            assert!(description.contains(&format!("from {min} to {max}")), "{path}: {description}");
            if let Some(assumed) = assumed.get(path) {
                let sentence = format!("If this field is missing, it is {assumed}");
                assert!(description.contains(&sentence), "{path}: {description}");
                named += 1;
            }
        });
        assert_eq!(named, assumed.len());
    }

    #[test]
    fn every_field_has_a_description_in_one_line() {
        schemas(|path, schema| {
            let description = schema["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty() || path.ends_with("[]"), "{path}");
            assert!(!description.contains('\n'), "{path}: {description}");
        });
    }
}
