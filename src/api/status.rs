//! The status of a StableName.
//!
//! No field but those of conditions is required, and states and reasons are plain strings in the schema: the CRD of an
//! earlier version of lb-linker then accepts the status that a later version writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::{
    MAX_ADDRESS, MAX_DNS_NAME, MAX_DNS_NAMES, MAX_HISTORY, MAX_MESSAGE, MAX_SOURCES, MAX_STATE_TEXT,
    MAX_TARGET_ADDRESSES,
};
use super::rules;
use crate::model::names::MAX_LABEL;

/// What lb-linker has decided and observed. DNS answers follow status.target.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StableNameStatus {
    /// The metadata.generation of the spec for which this status was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The target to which the DNS names lead. It is missing before the first target, and after it was withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<CurrentTarget>,
    /// The states of the sources, in the order of spec.sources.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SOURCES))]
    pub sources: Vec<SourceStatus>,
    /// The former targets, the newest first: 10 at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HISTORY))]
    pub history: Vec<FormerTarget>,
    /// The external target as namespace/name: the Service that points at the target.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 127))]
    pub service: String,
    /// The DNS names that lead to the target: the first 128.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DNS_NAMES), inner(length(max = MAX_DNS_NAME)))]
    pub dns_names: Vec<String>,
    /// The conditions Accepted, Resolved, Progressing, Degraded, AlertsReady and Ready. Ready is True if the target in
    /// use has passed its checks and doesn't fail them, the external target exists, and no name of the spec is refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules::conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// The target to which the DNS names lead.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CurrentTarget {
    /// The name of the source in spec.sources that has this target.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_LABEL))]
    pub source: String,
    /// The hostname, if the target is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DNS_NAME))]
    pub hostname: Option<String>,
    /// The addresses, if the target isn't a hostname.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_TARGET_ADDRESSES), inner(length(max = MAX_ADDRESS)))]
    pub addresses: Vec<String>,
    /// The target as text; of many addresses the first ones and a number.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub display: String,
    /// The uid of the Service, if the source is one.
    #[serde(rename = "serviceUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_STATE_TEXT))]
    pub service_uid: Option<String>,
    /// The time since which the DNS names lead to this target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::time_schema")]
    pub since: Option<Time>,
    /// Whether the target has passed a check.
    pub verified: bool,
}

/// The state of a source.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    /// The name of the source in spec.sources.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_LABEL))]
    pub name: String,
    /// Pending: it has no target yet, or a new one that has passed no check, for maxWaitSeconds at most. Healthy or
    /// Unhealthy: it passes or fails its checks. Refused: it isn't permitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(max = MAX_STATE_TEXT))]
    pub state: Option<SourceState>,
    /// The target that the source has, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub offers: String,
    /// The time since which the source has been in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::time_schema")]
    pub since: Option<Time>,
    /// The reason for the state, such as NXDOMAIN.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub message: String,
}

/// The state of a source in the status.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub enum SourceState {
    Pending,
    Healthy,
    Unhealthy,
    Refused,
    /// A state of a later version.
    Unknown(String),
}

impl From<String> for SourceState {
    fn from(text: String) -> Self {
        match &*text {
            "Pending" => Self::Pending,
            "Healthy" => Self::Healthy,
            "Unhealthy" => Self::Unhealthy,
            "Refused" => Self::Refused,
            _ => Self::Unknown(text),
        }
    }
}

impl From<SourceState> for String {
    fn from(state: SourceState) -> Self {
        match state {
            SourceState::Pending => "Pending".to_owned(),
            SourceState::Healthy => "Healthy".to_owned(),
            SourceState::Unhealthy => "Unhealthy".to_owned(),
            SourceState::Refused => "Refused".to_owned(),
            SourceState::Unknown(text) => text,
        }
    }
}

/// A target to which the DNS names led before.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FormerTarget {
    /// The name of the source that had this target.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_LABEL))]
    pub source: String,
    /// The target as text; of many addresses the first ones and a number.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub display: String,
    /// The time since which the DNS names led to this target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::time_schema")]
    pub since: Option<Time>,
    /// The time until which the DNS names led to this target.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::time_schema")]
    pub until: Option<Time>,
    /// Why the DNS names moved away from this target, such as FailedOver.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = MAX_STATE_TEXT))]
    pub reason: String,
}
