//! Reads the Services of manifests.

use serde_saphyr::Spanned;

use super::reader::{FieldError, Reader};
use super::schema;
use super::strings::SourceText;
use super::tree::{Node, place};
use crate::model::excerpt::sentence;
use crate::sync::k8s::service::Service;

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
    reader.finish(service)
}
