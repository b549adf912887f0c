//! Reads the Services of manifests.

use serde_saphyr::Spanned;

use super::meant;
use super::reader::{FieldError, Reader};
use super::schema;
use super::strings::SourceText;
use super::tree::{Node, place};
use crate::model::excerpt::{sentence, value};
use crate::sync::k8s::service::{EXTERNAL_NAME, LOAD_BALANCER, Service};

/// The types of Services.
const TYPES: [&str; 4] = ["ClusterIP", EXTERNAL_NAME, LOAD_BALANCER, "NodePort"];

/// Returns a Service with the fields that lb-linker needs.
///
/// # Errors
/// All fields that kubectl or the API server would refuse.
pub(super) fn read(content: &SourceText<'_>, object: &Spanned<Node>) -> Result<Service, Vec<FieldError>> {
    let (mut reader, tree) = Reader::read(content, &schema::SERVICE, object)?;
    let service: Service = serde_json::from_value(tree).map_err(|error| {
        vec![FieldError { position: place(object), message: sentence(&error.to_string()).to_string() }]
    })?;
    let key = service.key();
    reader.check_label("metadata.name", key.name());
    reader.check_label("metadata.namespace", key.namespace());
    // The API server reads an empty type as ClusterIP.
    if let Some(type_) =
        service.spec.type_.as_deref().filter(|type_| !type_.is_empty() && !TYPES.contains(type_))
    {
        let hint = match meant(type_, &TYPES) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("there are {}", TYPES.join(", ")),
        };
        reader.refuse_field("spec.type", format!("spec.type {} is unknown; {hint}", value(type_)));
    }
    reader.finish(service)
}
