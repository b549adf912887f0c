//! The spec of a StableName.
//!
//! The comments of types and fields are the descriptions that `kubectl explain` prints.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::limits::{
    MAX_DNS_NAME, MAX_SOURCES, PERIOD_SECONDS, TCP_PORT, THRESHOLD, TIMEOUT_SECONDS, TTL_SECONDS,
    WAIT_SECONDS,
};
use super::rules;
use super::status::StableNameStatus;
use crate::model::names::MAX_LABEL;

/// The sources of the target, and how lb-linker chooses between them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "linker.hsj.com",
    version = "v1alpha1",
    kind = "StableName",
    namespaced,
    shortname = "sn",
    category = "lb-linker",
    doc = "A StableName lists load balancers in the order of preference. lb-linker checks them, lets the DNS \
           names of the StableName lead to the first one that works, and moves these names only to what works.",
    status = "StableNameStatus",
    derive = "PartialEq",
    selectable = ".status.target.source",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Source", type_ = "string", json_path = ".status.target.source"),
    printcolumn(name = "Target", type_ = "string", json_path = ".status.target.display"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.target.since"),
    printcolumn(
        name = "Progressing",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Progressing\")].message"
    ),
    printcolumn(
        name = "Resolved",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Resolved\")].status",
        priority = 1
    ),
    printcolumn(
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Degraded\")].status",
        priority = 1
    ),
    printcolumn(name = "Service", type_ = "string", json_path = ".status.service", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = rules::OBJECT_NAME
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::PIN)]
pub struct StableNameSpec {
    /// The sources of the target, the preferred one first: 1 to 8. The DNS names lead to the target of one source. They
    /// move to another source when the source in use fails, and only to a source that passes its checks.
    #[schemars(length(min = 1, max = MAX_SOURCES))]
    #[x_kube(validation = rules::UNIQUE_NAMES, merge_strategy = ListMerge::Atomic)]
    pub sources: Vec<Source>,
    /// How the sources are checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// How long lb-linker waits for a target that works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cutover: Option<Cutover>,
    /// How the DNS names return to a preferred source that works again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failback: Option<Failback>,
    /// The name of a source. Its target is announced at once, whether it passes its checks or not. While this field is
    /// set, no other source is chosen: for drills, for freezes, and to return from another source when the mode of
    /// failback is Manual. If this field is missing, lb-linker chooses the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub pin: Option<String>,
    /// Further DNS names of the target, in the zones of lb-linker: 100 at most. The first label may be a *. An empty
    /// list means none. If this field is missing, the hostnames of the annotation linker.hsj.com/hostname of the Service
    /// with the name of the StableName apply while that Service is a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::hostnames_schema")]
    pub hostnames: Option<Vec<String>>,
    /// The TTL of the DNS records in seconds, from 0 to 3600. If this field is missing, the annotation
    /// linker.hsj.com/ttl of the Service with the name of the StableName applies while that Service is a source;
    /// without it the TTL is that of the zone, 5 seconds unless configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = TTL_SECONDS.0, max = TTL_SECONDS.1))]
    pub ttl_seconds: Option<i32>,
    /// The namespaces whose Services may follow this target by the annotation linker.hsj.com/source: 100 at most, or *
    /// for all. Services of the namespace of the StableName always may. An empty list means none. If this field is
    /// missing, the annotation linker.hsj.com/allow-from of the Service with the name of the StableName applies
    /// while that Service is a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::namespaces_schema")]
    pub allow_from: Option<Vec<String>>,
    /// The alerts about this StableName, which lb-linker writes as a PrometheusRule beside it. If this field is
    /// missing, there is no PrometheusRule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alerts: Option<Alerts>,
}

/// A source is a Service, a hostname or addresses to which the DNS names may lead: exactly one of these three must be
/// given.
#[derive(KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::ONE_KIND)]
pub struct Source {
    /// The name of the source in the status, in Events and in spec.pin. It is a DNS label of 1 to 63 lower-case
    /// letters, digits and hyphens; each source has a name of its own.
    #[schemars(length(max = MAX_LABEL))]
    #[x_kube(validation = rules::LABEL)]
    pub name: String,
    /// A LoadBalancer Service. The source follows its status, so that a recreated load balancer is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRef>,
    /// A fixed hostname, such as lb.example.com: a DNS name in lower case, with a dot in it and none at its end. It
    /// must lie outside the zones of lb-linker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DNS_NAME))]
    #[x_kube(validation = rules::HOSTNAME, validation = rules::NO_ADDRESS, validation = rules::NO_NUMBER)]
    pub hostname: Option<String>,
    /// Fixed IPv4 and IPv6 addresses in canonical form, such as 192.0.2.10 or 2001:db8::1: 1 to 32. Loopback,
    /// link-local, multicast, broadcast and unspecified addresses can't be targets. Addresses count as healthy without
    /// a check unless spec.check.tcpPort is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::addresses_schema")]
    pub addresses: Option<Vec<String>>,
}

/// The name of a LoadBalancer Service, its namespace and its cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// The name of the LoadBalancer Service.
    #[schemars(length(max = MAX_LABEL))]
    #[x_kube(validation = rules::LABEL)]
    pub name: String,
    /// The namespace of the Service. A Service of another namespace is a source only while its annotation
    /// linker.hsj.com/allow-from lists the namespace of the StableName. If this field is missing, the Service is in
    /// the namespace of the StableName, or in the namespace of that name in the other cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    #[x_kube(validation = rules::LABEL)]
    pub namespace: Option<String>,
    /// The cluster of the Service, by its name in the flag --remote of lb-linker. A Service of another cluster is a
    /// source only while its annotation linker.hsj.com/allow-from lists the namespace of the StableName behind the name
    /// of the cluster of the StableName, such as home/shop. If this field is missing, the Service is in the cluster of
    /// the StableName.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    #[x_kube(validation = rules::LABEL)]
    pub cluster: Option<String>,
}

/// How the sources are checked.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The time between two checks of a source in seconds, from 5 to 3600. If this field is missing, it is 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = PERIOD_SECONDS.0, max = PERIOD_SECONDS.1))]
    pub period_seconds: Option<i32>,
    /// The time in seconds, from 1 to 30, that a DNS look-up or a TCP connection of a check may take. A connection that
    /// takes longer has failed. A look-up without a reply has failed only if the upstream answers another name;
    /// otherwise that upstream doesn't count. If this field is missing, it is 2 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = TIMEOUT_SECONDS.0, max = TIMEOUT_SECONDS.1))]
    pub timeout_seconds: Option<i32>,
    /// The number of failed checks in a row, from 1 to 100, after which a source is Unhealthy. If this field is
    /// missing, it is 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = THRESHOLD.0, max = THRESHOLD.1))]
    pub failure_threshold: Option<i32>,
    /// The number of passed checks in a row, from 1 to 100, after which a source is Healthy again. If this field is
    /// missing, it is 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = THRESHOLD.0, max = THRESHOLD.1))]
    pub success_threshold: Option<i32>,
    /// The TCP port, from 1 to 65535, at which one of the first four addresses of a target must accept a connection;
    /// the lowest addresses of a list come first. A Service that is a source must have this TCP port. Sources with a
    /// hostname or addresses are checked at it only where --tcp-check-namespaces of lb-linker lists the namespace. If
    /// this field is missing, only DNS is checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = TCP_PORT.0, max = TCP_PORT.1))]
    pub tcp_port: Option<i32>,
}

/// How long lb-linker waits for a target that works.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    /// The time in seconds, from 0 to 86400, for which lb-linker waits until the first target, or another target of the
    /// source in use, passes a check. After that an old target stays as long as it passes its checks; otherwise the new
    /// one is announced unverified. If this field is missing, it is 300 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = WAIT_SECONDS.0, max = WAIT_SECONDS.1))]
    pub max_wait_seconds: Option<i32>,
}

/// How the DNS names return to a preferred source that works again.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failback {
    /// Automatic: the DNS names return to a preferred source by themselves. Manual: they stay until spec.pin or
    /// spec.sources is changed, or the source in use fails. If this field is missing, the mode is Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::failback_mode_schema")]
    pub mode: Option<FailbackMode>,
    /// The time in seconds, from 0 to 86400, for which a preferred source must have been Healthy before the DNS names
    /// return to it. If this field is missing, it is 300 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = WAIT_SECONDS.0, max = WAIT_SECONDS.1))]
    pub after_seconds: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub enum FailbackMode {
    Automatic,
    Manual,
    /// A mode of a later version: the object can be decoded, but isn't valid.
    Unknown(String),
}

impl From<String> for FailbackMode {
    fn from(text: String) -> Self {
        match &*text {
            "Automatic" => Self::Automatic,
            "Manual" => Self::Manual,
            _ => Self::Unknown(text),
        }
    }
}

impl From<FailbackMode> for String {
    fn from(mode: FailbackMode) -> Self {
        match mode {
            FailbackMode::Automatic => "Automatic".to_owned(),
            FailbackMode::Manual => "Manual".to_owned(),
            FailbackMode::Unknown(text) => text,
        }
    }
}

/// The alerts about a StableName.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alerts {
    /// The labels of the PrometheusRule, by which a Prometheus selects it: 16 at most. If this field is missing, it has
    /// only those of lb-linker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::object_labels_schema")]
    pub rule_labels: Option<BTreeMap<String, String>>,
    /// The labels of each alert, such as the team that receives it: 16 at most. Their names are Prometheus label names,
    /// and their values contain no templates. If this field is missing, the alerts have only those of lb-linker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "rules::alert_labels_schema")]
    pub labels: Option<BTreeMap<String, String>>,
    /// An alert fires after the StableName wasn't Ready for this time in seconds, from 0 to 86400. If this field is
    /// missing, it is 300 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = WAIT_SECONDS.0, max = WAIT_SECONDS.1))]
    pub not_ready_for_seconds: Option<i32>,
    /// An alert fires after a source other than the first one was in use for this time in seconds, from 0 to 86400. If
    /// this field is missing, it is 900 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = WAIT_SECONDS.0, max = WAIT_SECONDS.1))]
    pub failed_over_for_seconds: Option<i32>,
}

// === values of missing fields ===

impl Check {
    #[must_use]
    pub fn period(&self) -> Duration {
        seconds(self.period_seconds, 30)
    }

    #[must_use]
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_seconds, 2)
    }

    #[must_use]
    pub fn failure_threshold(&self) -> u32 {
        number(self.failure_threshold, 3)
    }

    #[must_use]
    pub fn success_threshold(&self) -> u32 {
        number(self.success_threshold, 2)
    }
}

impl Cutover {
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        seconds(self.max_wait_seconds, 300)
    }
}

impl Failback {
    #[must_use]
    pub fn is_automatic(&self) -> bool {
        matches!(self.mode, None | Some(FailbackMode::Automatic))
    }

    #[must_use]
    pub fn after(&self) -> Duration {
        seconds(self.after_seconds, 300)
    }
}

impl Alerts {
    #[must_use]
    pub fn not_ready_for(&self) -> Duration {
        seconds(self.not_ready_for_seconds, 300)
    }

    #[must_use]
    pub fn failed_over_for(&self) -> Duration {
        seconds(self.failed_over_for_seconds, 900)
    }
}

/// Returns the value of a field, or `assumed` if the field is missing or negative.
fn number(value: Option<i32>, assumed: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(assumed)
}

fn seconds(value: Option<i32>, assumed: u32) -> Duration {
    Duration::from_secs(number(value, assumed).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_mode_is_kept_and_not_automatic() {
        let failback: Failback = serde_json::from_value(json!({"mode": "Sometimes"})).unwrap();
        assert_eq!(failback.mode, Some(FailbackMode::Unknown("Sometimes".to_owned())));
        assert!(!failback.is_automatic());
        assert_eq!(serde_json::to_value(&failback).unwrap(), json!({"mode": "Sometimes"}));
        let failback: Failback = serde_json::from_value(json!({"mode": "Manual"})).unwrap();
        assert_eq!(failback.mode, Some(FailbackMode::Manual));
        assert!(Failback::default().is_automatic());
    }

    #[test]
    fn null_means_that_a_field_is_missing() {
        let source = json!({"name": "a", "service": null, "hostname": "a.example", "addresses": null});
        let spec: StableNameSpec =
            serde_json::from_value(json!({"sources": [source], "hostnames": null, "alerts": null})).unwrap();
        let stored = json!({"sources": [{"name": "a", "hostname": "a.example"}]});
        assert_eq!(serde_json::to_value(&spec).unwrap(), stored);
    }
}
