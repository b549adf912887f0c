//! Writes statuses of StableNames.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use super::object::ObservedStableName;
use crate::api::stable_name::StableName;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::write_error::{WriteError, WriteRequest, failed};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::labels::FIELD_MANAGER;

/// Names the manifest that grants the permissions for StableNames.
pub(crate) const PERMISSION_HINT: &str = "StableNames need the permissions of deploy/crd/ there";

/// A write under way.
#[derive(Debug)]
pub(super) struct StatusWrite {
    /// The resourceVersion that the write is based on.
    pub(super) version: String,
}

/// The HTTP code, 0 without an answer, and the object afterwards.
pub(super) type StatusAnswer = (u16, Result<Box<ObservedStableName>, WriteError>);

/// Patches the status of a StableName. Returns the HTTP code, and the object afterwards.
pub(super) async fn patch_status(
    client: Client,
    availability: &ApiAvailability,
    key: &ServiceKey,
    patch: &Patch<Value>,
) -> StatusAnswer {
    let api: Api<StableName> = Api::namespaced(client, key.namespace());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let doing = format!("patch the status of StableNames in namespace {}", key.namespace());
    match api.patch_status(key.name(), &params, patch).await {
        Ok(object) => {
            availability.report_available();
            (200, Ok(Box::new(ObservedStableName::new(object))))
        }
        Err(error) => {
            let resource = "stablenames/status";
            let request = WriteRequest { verb: "patch", resource, doing: &doing, hint: PERMISSION_HINT };
            failed(error, availability, request)
        }
    }
}
