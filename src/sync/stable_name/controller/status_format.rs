//! The status of a StableName, between the form that the API server stores and the form that decisions use.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as StoredCondition, Time};
use serde_json::{Value, json};

use crate::api::limits::{
    MAX_CONDITIONS, MAX_DNS_NAME, MAX_DNS_NAMES, MAX_HISTORY, MAX_MESSAGE, MAX_SOURCES, MAX_STATE_TEXT,
    MAX_TARGET_ADDRESSES,
};
use crate::api::status::{self as stored, StableNameStatus};
use crate::model::excerpt::sentence;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::model::names::MAX_LABEL;
use crate::sync::k8s::service::host_name;
use crate::sync::stable_name::decision::status::{
    AnnouncedTarget, CHECK_LATE, Condition, ConditionStatus, ConditionType, FailoverStatus, FormerTarget,
    MASS_FAILURE, SourceState, SourceStatus,
};

/// The condition that tells whether the PrometheusRule of `spec.alerts` is written, and its metrics are exported.
pub(super) const ALERTS_READY: &str = "AlertsReady";

/// The conditions in their order. A condition that no decision contains has no [`ConditionType`].
const CONDITIONS: [(&str, Option<ConditionType>); 6] = [
    ("Accepted", Some(ConditionType::Accepted)),
    ("Resolved", Some(ConditionType::Resolved)),
    ("Progressing", Some(ConditionType::Progressing)),
    ("Degraded", Some(ConditionType::Degraded)),
    (ALERTS_READY, None),
    ("Ready", Some(ConditionType::Ready)),
];

/// The fields of the status, and of its target, that a patch sets or removes.
const STATUS_FIELDS: [&str; 7] =
    ["observedGeneration", "target", "sources", "history", "service", "dnsNames", "conditions"];
const TARGET_FIELDS: [&str; 7] =
    ["source", "hostname", "addresses", "display", "serviceUID", "since", "verified"];

/// The maximum length of the name of the external target, with its namespace.
const MAX_SERVICE: usize = 2 * MAX_LABEL + 1;

/// What the status says beside the decision.
#[derive(Clone, Copy, Debug)]
pub struct PublishedNames<'a> {
    /// The external target as `namespace/name`; empty while there is none.
    pub service: &'a str,
    /// The DNS names that lead to the target.
    pub dns_names: &'a [String],
}

/// Returns the status as decisions use it. Other clients and other versions may have written it: values that can't be
/// parsed are left out or become defaults. If the result has no target although `status.target` is set, that target
/// can't be parsed.
#[must_use]
pub fn from_stored(status: &StableNameStatus) -> FailoverStatus {
    let mut sources: Vec<SourceStatus> = Vec::new();
    for source in status.sources.iter().take(MAX_SOURCES) {
        if !sources.iter().any(|known| known.name == source.name) {
            sources.push(source_from_stored(source));
        }
    }
    let conditions = CONDITIONS.iter().filter_map(|(name, kind)| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == *name)?;
        Some(condition_from_stored((*kind)?, condition))
    });
    FailoverStatus {
        observed_generation: status.observed_generation.unwrap_or_default(),
        target: status.target.as_ref().and_then(announced_from_stored),
        sources,
        history: status.history.iter().take(MAX_HISTORY).map(former_from_stored).collect(),
        conditions: conditions.collect(),
    }
}

/// Returns the status as the API server stores it, within the limits of its schema.
#[must_use]
pub fn to_stored(status: &FailoverStatus, published: &PublishedNames<'_>) -> StableNameStatus {
    let conditions = CONDITIONS.iter().filter_map(|(name, kind)| {
        Some(condition_to_stored(name, status.condition((*kind)?)?, status.observed_generation))
    });
    let dns_names = published.dns_names.iter().filter(|name| name.chars().count() <= MAX_DNS_NAME);
    StableNameStatus {
        observed_generation: Some(status.observed_generation),
        target: status.target.as_ref().map(announced_to_stored),
        sources: status.sources.iter().take(MAX_SOURCES).map(source_to_stored).collect(),
        history: status.history.iter().take(MAX_HISTORY).map(former_to_stored).collect(),
        service: cut(published.service, MAX_SERVICE),
        dns_names: dns_names.take(MAX_DNS_NAMES).cloned().collect(),
        conditions: conditions.collect(),
    }
}

/// Returns a merge patch that makes the status of an object equal to `after`. A merge patch keeps what it doesn't name,
/// so missing fields are set to null; fields of a later version stay. Lists are replaced: conditions that aren't ours
/// are taken from `before`.
#[must_use]
pub fn merge_patch(
    before: Option<&StableNameStatus>,
    after: &StableNameStatus,
    uid: &str,
    resource_version: &str,
) -> Value {
    let mut conditions = after.conditions.clone();
    for condition in before.into_iter().flat_map(|before| &before.conditions) {
        let is_known = conditions.iter().any(|known| known.type_ == condition.type_);
        if !is_ours(condition) && !is_known && conditions.len() < MAX_CONDITIONS {
            conditions.push(condition.clone());
        }
    }
    conditions.sort_by_key(|condition| position(&condition.type_));
    let mut status = json!(StableNameStatus { conditions, ..after.clone() });
    add_nulls(&mut status["target"], &TARGET_FIELDS);
    add_nulls(&mut status, &STATUS_FIELDS);
    json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": status})
}

/// Returns the part of a status that lb-linker writes: without the conditions of other clients.
#[must_use]
pub fn own_part(status: &StableNameStatus) -> StableNameStatus {
    let mut own = status.clone();
    own.conditions.retain(is_ours);
    own
}

/// Returns why a StableName isn't Ready, is Degraded or not accepted, or isn't checked in time, for users, each cause
/// once; `None` if nothing is wrong.
#[must_use]
pub(super) fn problem(status: &StableNameStatus) -> Option<String> {
    let find = |kind: &str, status_text: &str| {
        status.conditions.iter().find(|known| known.type_ == kind && known.status == status_text)
    };
    let late = || find("Resolved", "Unknown").filter(|resolved| resolved.reason == CHECK_LATE);
    let degraded = find("Degraded", "True");
    // It says what Ready says, and that the failover is held.
    let held = degraded.filter(|degraded| degraded.reason == MASS_FAILURE);
    let ready = find("Ready", "False").filter(|_| held.is_none());
    let mut told: Vec<&StoredCondition> = Vec::new();
    for condition in [held, ready, degraded, find("Accepted", "False"), late()].into_iter().flatten() {
        let StoredCondition { reason, message, .. } = condition;
        // Accepted names sources as `Refusal::of_source` does, the other conditions without the word `source`.
        let parts = || message.strip_prefix("source ").unwrap_or(message).split("; source ");
        // Names of sources have no spaces: a part that begins within a name is another source's.
        let tells = |told: &str, part: &str| {
            told.match_indices(part).any(|(at, _)| at == 0 || told[..at].ends_with(' '))
        };
        let is_part =
            |told: &StoredCondition| !message.is_empty() && parts().all(|part| tells(&told.message, part));
        if !told.iter().any(|told| told.reason == *reason || is_part(told)) {
            told.push(condition);
        }
    }
    let text = |StoredCondition { reason, message, .. }: &&StoredCondition| match message.is_empty() {
        true => sentence(reason).to_string(),
        false => format!("{}: {}", sentence(reason), sentence(message)),
    };
    (!told.is_empty()).then(|| told.iter().map(text).collect::<Vec<_>>().join("; "))
}

fn is_ours(condition: &StoredCondition) -> bool {
    position(&condition.type_) < CONDITIONS.len()
}

/// Returns the position of a condition in the list; unknown conditions are the last ones.
fn position(condition: &str) -> usize {
    CONDITIONS.iter().position(|(name, _)| *name == condition).unwrap_or(CONDITIONS.len())
}

fn add_nulls(object: &mut Value, fields: &[&str]) {
    for field in fields {
        if let Some(object) = object.as_object_mut() {
            object.entry(*field).or_insert(Value::Null);
        }
    }
}

/// Shortens a text to at most `most` characters: then the last one is "…".
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Returns a time that the schema accepts: whole seconds since 1970.
fn second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().max(0)).unwrap_or_default()
}

fn time_from_stored(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| second(time.0))
}

fn time_to_stored(at: Timestamp) -> Time {
    Time(second(at))
}

// === target ===

fn announced_from_stored(target: &stored::CurrentTarget) -> Option<AnnouncedTarget> {
    Some(AnnouncedTarget {
        source: target.source.clone(),
        target: target_from_stored(target)?,
        uid: target.service_uid.as_deref().unwrap_or_default().into(),
        since: time_from_stored(target.since.as_ref()),
        verified: target.verified,
    })
}

fn target_from_stored(target: &stored::CurrentTarget) -> Option<Target> {
    if let Some(host) = target.hostname.as_deref().filter(|host| !host.is_empty()) {
        return Some(Target::Hostname(Hostname::from(&host_name(host).ok()?)));
    }
    let mut known = HashSet::new();
    let addresses = target.addresses.iter().take(MAX_TARGET_ADDRESSES);
    let addresses = addresses.filter_map(|text| Some(text.parse::<IpAddr>().ok()?.to_canonical()));
    let addresses: Box<[IpAddr]> = addresses.filter(|address| known.insert(*address)).collect();
    (!addresses.is_empty()).then_some(Target::Addresses(addresses))
}

fn announced_to_stored(announced: &AnnouncedTarget) -> stored::CurrentTarget {
    let AnnouncedTarget { source, target, uid, since, verified } = announced;
    let (hostname, addresses) = match target {
        Target::Hostname(host) => (Some(host.to_string()), Vec::new()),
        Target::Addresses(addresses) => {
            (None, addresses.iter().take(MAX_TARGET_ADDRESSES).map(ToString::to_string).collect())
        }
    };
    stored::CurrentTarget {
        source: cut(source, MAX_LABEL),
        hostname,
        addresses,
        display: cut(&target.to_string(), MAX_MESSAGE),
        service_uid: (!uid.is_empty()).then(|| cut(&uid.to_string(), MAX_STATE_TEXT)),
        since: Some(time_to_stored(*since)),
        verified: *verified,
    }
}

// === sources ===

fn source_from_stored(source: &stored::SourceStatus) -> SourceStatus {
    let state = match source.state {
        Some(stored::SourceState::Healthy) => SourceState::Healthy,
        Some(stored::SourceState::Unhealthy) => SourceState::Unhealthy,
        Some(stored::SourceState::Refused) => SourceState::Refused,
        Some(stored::SourceState::Pending | stored::SourceState::Unknown(_)) | None => SourceState::Pending,
    };
    SourceStatus {
        name: source.name.clone(),
        state,
        offers: (!source.offers.is_empty()).then(|| source.offers.clone()),
        since: time_from_stored(source.since.as_ref()),
        message: source.message.clone(),
    }
}

fn source_to_stored(source: &SourceStatus) -> stored::SourceStatus {
    let state = match source.state {
        SourceState::Pending => stored::SourceState::Pending,
        SourceState::Healthy => stored::SourceState::Healthy,
        SourceState::Unhealthy => stored::SourceState::Unhealthy,
        SourceState::Refused => stored::SourceState::Refused,
    };
    stored::SourceStatus {
        name: cut(&source.name, MAX_LABEL),
        state: Some(state),
        offers: cut(source.offers.as_deref().unwrap_or_default(), MAX_MESSAGE),
        since: Some(time_to_stored(source.since)),
        message: cut(&source.message, MAX_MESSAGE),
    }
}

// === history ===

fn former_from_stored(former: &stored::FormerTarget) -> FormerTarget {
    FormerTarget {
        source: former.source.clone(),
        display: former.display.clone(),
        since: time_from_stored(former.since.as_ref()),
        until: time_from_stored(former.until.as_ref()),
        reason: former.reason.clone(),
    }
}

fn former_to_stored(former: &FormerTarget) -> stored::FormerTarget {
    stored::FormerTarget {
        source: cut(&former.source, MAX_LABEL),
        display: cut(&former.display, MAX_MESSAGE),
        since: Some(time_to_stored(former.since)),
        until: Some(time_to_stored(former.until)),
        reason: cut(&former.reason, MAX_STATE_TEXT),
    }
}

// === conditions ===

fn condition_from_stored(kind: ConditionType, condition: &StoredCondition) -> Condition {
    let status = match &*condition.status {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    Condition {
        kind,
        status,
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: time_from_stored(Some(&condition.last_transition_time)),
    }
}

fn condition_to_stored(name: &str, condition: &Condition, generation: i64) -> StoredCondition {
    let status = match condition.status {
        ConditionStatus::True => "True",
        ConditionStatus::False => "False",
        ConditionStatus::Unknown => "Unknown",
    };
    let Condition { reason, message, since, .. } = condition;
    self::condition(name, status, reason, message, *since, generation)
}

/// Returns a condition within the limits of its schema.
pub(super) fn condition(
    name: &str,
    status: &str,
    reason: &str,
    message: &str,
    since: Timestamp,
    generation: i64,
) -> StoredCondition {
    StoredCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: cut(reason, MAX_MESSAGE),
        message: cut(message, MAX_MESSAGE),
        last_transition_time: time_to_stored(since),
        observed_generation: Some(generation),
    }
}
