//! Writes PrometheusRules.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::Value;

use super::rule::{ObservedRule, PLURAL, PrometheusRule};
use crate::model::service_key::ServiceKey;
use crate::sync::controller::write_error::{WriteError, WriteRequest, failed};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::labels::FIELD_MANAGER;
use crate::sync::k8s::watch::{RequestQuery, find};

/// The hint in errors: it names the manifest that grants the permissions.
pub(super) const PERMISSION_HINT: &str = "spec.alerts needs the permissions of deploy/alerts/ there";

/// A write of the PrometheusRule of a StableName.
#[derive(Debug)]
pub(super) enum RuleChange {
    Create(Box<PrometheusRule>),
    Patch(Value),
    /// Deletes the object with this uid and resourceVersion.
    Delete {
        uid: String,
        version: String,
    },
}

impl RuleChange {
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Patch(_) => "patch",
            Self::Delete { .. } => "delete",
        }
    }
}

/// What the API server has after a write.
#[derive(Debug)]
pub(super) enum Outcome {
    Present(Box<ObservedRule>),
    Absent,
    /// Another client's object has the name.
    Foreign,
}

/// A write under way.
#[derive(Debug)]
pub(super) struct RuleWrite {
    /// The fingerprint of the request.
    pub(super) fingerprint: u64,
    pub(super) verb: &'static str,
    /// The resourceVersion that the write is based on; empty for none.
    pub(super) version: String,
}

/// The HTTP code, 0 without an answer, and what the API server has afterwards.
pub(super) type RuleAnswer = (u16, Result<Outcome, WriteError>);

/// Sends writes to the API server.
#[derive(Clone)]
pub(super) struct RuleWriter {
    pub(super) client: Client,
    pub(super) availability: ApiAvailability,
}

impl RuleWriter {
    /// Writes the PrometheusRule `rule` of the StableName `key`. Returns the HTTP code, and the outcome.
    pub(super) async fn write(&self, key: &ServiceKey, rule: &ServiceKey, change: RuleChange) -> RuleAnswer {
        let api: Api<PrometheusRule> = Api::namespaced(self.client.clone(), rule.namespace());
        let (verb, manager) = (change.verb(), Some(FIELD_MANAGER.to_owned()));
        let present = |object: &PrometheusRule| match ObservedRule::for_stable_name(object, key) {
            Some(observed) => Outcome::Present(Box::new(observed)),
            None => Outcome::Foreign,
        };
        let sent = match change {
            RuleChange::Create(object) => {
                let params = PostParams { field_manager: manager, ..PostParams::default() };
                api.create(&params, &object).await.map(|object| (201, present(&object)))
            }
            RuleChange::Patch(patch) => {
                let params = PatchParams { field_manager: manager, ..PatchParams::default() };
                let patched = api.patch(rule.name(), &params, &Patch::Merge(patch)).await;
                patched.map(|object| (200, present(&object)))
            }
            RuleChange::Delete { uid, version } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                api.delete(rule.name(), &params).await.map(|left| {
                    // Another client's finalizer still holds the object.
                    let left = left.left().filter(|object| object.metadata.deletion_timestamp.is_some());
                    (200, left.map_or(Outcome::Absent, |object| present(&object)))
                })
            }
        };
        let doing = format!("{verb} PrometheusRules in namespace {}", rule.namespace());
        let request = |verb| WriteRequest { verb, resource: PLURAL, doing: &doing, hint: PERMISSION_HINT };
        match sent {
            Ok((code, outcome)) => {
                self.availability.report_available();
                (code, Ok(outcome))
            }
            Err(error) => match failed(error, &self.availability, request(verb)) {
                // The watch selects by label, so it may not show the object that has the name.
                (code, Err(WriteError::Conflict)) if verb == "create" => match self.find(rule).await {
                    Ok(Some(object)) => (code, Ok(present(&object))),
                    Ok(None) => (code, Err(WriteError::Conflict)),
                    Err(error) => (code, failed(error, &self.availability, request("list")).1),
                },
                answered => answered,
            },
        }
    }

    /// Finds a PrometheusRule by its name; `None` also if it can't be decoded. Needs only the permission to list.
    async fn find(&self, rule: &ServiceKey) -> kube::Result<Option<PrometheusRule>> {
        let query = RequestQuery::named(rule.namespace(), rule.name());
        let found = find::<PrometheusRule>(self.client.clone(), &query).await?;
        Ok(found.and_then(|object| object.0.ok()))
    }
}
