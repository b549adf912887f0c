//! The API server's audit log.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// Logs writes with their bodies, and other requests without. Leaves out requests of the API server to itself,
/// SubjectAccessReviews, and requests without a resource, except the discovery of two API groups.
pub(super) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "None", "users": ["system:apiserver"]},
    {"level": "None", "resources": [{"group": "authorization.k8s.io", "resources": ["subjectaccessreviews"]}]},
    {"level": "Metadata", "nonResourceURLs": ["/apis/linker.hsj.com*", "/apis/monitoring.coreos.com*"]},
    {"level": "None", "nonResourceURLs": ["*"]},
    {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
    {"level": "Metadata"}
  ]
}"#;

/// A completed request, or a started watch.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    pub user: String,
    pub user_agent: String,
    /// The path with the query.
    pub uri: String,
    /// The API group; empty for the core group.
    pub api_group: String,
    /// The plural name, such as `services`.
    pub resource: String,
    pub subresource: String,
    /// The namespace; empty for cluster-scoped resources, and for requests about all namespaces.
    pub namespace: String,
    /// The name; empty for requests about several objects, and for a create without a name.
    pub name: String,
    pub code: u16,
    /// When the response was complete, or the watch started.
    pub completed: Timestamp,
    /// The request body, for writes.
    pub request: Option<Value>,
}

impl AuditEvent {
    /// Returns whether the request lists all objects, in pages or streamed at the beginning of a watch.
    pub fn is_list(&self) -> bool {
        self.verb == "list" || self.uri.contains("sendInitialEvents=true")
    }

    pub fn is_write(&self) -> bool {
        ["create", "update", "patch", "delete", "deletecollection"].contains(&self.verb.as_str())
    }
}

/// Where a part of an audit log begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogStart {
    /// Only lines after this number of bytes.
    pub(super) bytes: u64,
    /// Only requests that were received then or later: a line is written some time after its request has completed.
    pub(super) time: Timestamp,
}

/// Reads those lines of a part of an audit log that contain `text`, in the order in which requests completed and
/// watches started.
pub(super) fn read(log: &Path, LogStart { bytes: start, time }: LogStart, text: &str) -> Vec<AuditEvent> {
    let mut content = Vec::new();
    let log = File::open(log).and_then(|mut log| {
        log.seek(SeekFrom::Start(start.saturating_sub(1)))?;
        log.read_to_end(&mut content)
    });
    log.expect("the audit log can be read");
    // A line without a line end is still being written. `start` may be in a line, too.
    String::from_utf8_lossy(&content)
        .split_inclusive('\n')
        .skip(usize::from(start > 0))
        .filter(|line| line.ends_with('\n') && line.contains(text))
        .map(|line| serde_json::from_str::<Line>(line).expect("an audit log has a JSON object per line"))
        .filter(|line| {
            let stage = if line.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
            line.stage == stage && line.request_received_timestamp >= time
        })
        .map(AuditEvent::from)
        .collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    request_object: Option<Value>,
}

#[derive(Deserialize)]
struct User {
    /// Missing if the request was refused before its authentication.
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl From<Line> for AuditEvent {
    fn from(line: Line) -> Self {
        Self {
            verb: line.verb,
            user: line.user.username,
            user_agent: line.user_agent,
            uri: line.request_uri,
            api_group: line.object_ref.api_group,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            completed: line.stage_timestamp,
            request: line.request_object,
        }
    }
}
