//! `spec.alerts`: requests PrometheusRules, and makes the condition AlertsReady.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::object::ObservedStableName;
use super::status_format::{ALERTS_READY, condition};
use crate::api::status::StableNameStatus;
use crate::sync::alerts::desired::RuleInputs;
use crate::sync::alerts::requests::{RuleRequests, RuleState};
use crate::sync::alerts::rule_name::rule_name;

const FORBIDDEN: &str = "Forbidden";

/// Requests the PrometheusRule that the specification of a StableName wants, or none. While the garbage collector
/// deletes a StableName, it removes the PrometheusRule or its owner reference, and lb-linker leaves both alone.
pub(super) fn request_rule(rules: &RuleRequests, object: &ObservedStableName) {
    let (key, uid) = (&object.key, &object.uid);
    if object.is_collected {
        return rules.forget(key);
    }
    match &object.spec.alerts {
        Some(alerts) => {
            let position_of = |pin: &String| object.sources().iter().position(|source| source.name == *pin);
            let pinned = object.spec.pin.as_ref().and_then(position_of);
            rules.request_rule(key, RuleInputs { uid: uid.clone(), alerts: alerts.clone(), pinned });
        }
        None => rules.request_removal(key, uid, recorded(&object.status).is_some()),
    }
}

fn recorded(status: &StableNameStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == ALERTS_READY)
}

/// Adds the condition AlertsReady to the status that the leader writes: from the state of the PrometheusRule, or, while
/// that isn't known, as the object has it. `is_exported` tells whether the metrics that the alerts need are exported.
pub(super) fn add_condition(
    after: &mut StableNameStatus,
    object: &ObservedStableName,
    state: Option<RuleState>,
    is_exported: bool,
    now: Timestamp,
) {
    let former = recorded(&object.status);
    let Some(alerts_ready) = alerts_ready(object, state, is_exported, former, now) else { return };
    let position = after.conditions.iter().position(|condition| condition.type_ == "Ready");
    after.conditions.insert(position.unwrap_or(after.conditions.len()), alerts_ready);
}

fn alerts_ready(
    object: &ObservedStableName,
    state: Option<RuleState>,
    is_exported: bool,
    former: Option<&Condition>,
    now: Timestamp,
) -> Option<Condition> {
    use RuleState::{Absent, Conflict, Forbidden, NotInstalled, Refused, Written};
    if object.spec.alerts.is_none() {
        // Without the permission a written rule may remain: keep the condition, so that the removal of the
        // rule is tried again.
        let is_over = |former: &&Condition| match state {
            Some(Absent | NotInstalled) => true,
            Some(Forbidden(_)) => !may_have_rule(former, object),
            _ => false,
        };
        return former.filter(|former| !is_over(former)).cloned();
    }
    let (is_ready, reason, message) = match state {
        None | Some(Absent) => return former.cloned(),
        Some(Written) if !is_exported => {
            let message =
                "there are too many StableNames: lb-linker exports no metrics of those in this namespace";
            (false, "MetricsNotExported", message.to_owned())
        }
        Some(Written) => (true, "RuleWritten", String::new()),
        Some(NotInstalled) => {
            (false, "PrometheusRuleNotInstalled", "the API server doesn't serve PrometheusRules".to_owned())
        }
        Some(Forbidden(why)) => {
            let may_remain = former.is_some_and(|former| may_have_rule(former, object));
            let message = if may_remain { format!("{}{why}", may_remain_prefix(object)) } else { why };
            (false, FORBIDDEN, message)
        }
        Some(Conflict) => {
            let name = rule_name(object.key.name());
            (false, "Conflict", format!("PrometheusRule {name} exists and isn't managed by lb-linker"))
        }
        Some(Refused(why)) => (false, "RuleRefused", why),
    };
    let status = if is_ready { "True" } else { "False" };
    let since = former.filter(|former| former.status == status).map(|former| former.last_transition_time.0);
    Some(condition(ALERTS_READY, status, reason, &message, since.unwrap_or(now), object.generation))
}

/// Returns whether a PrometheusRule may exist while the object has this condition.
fn may_have_rule(condition: &Condition, object: &ObservedStableName) -> bool {
    match &*condition.reason {
        "RuleWritten" | "MetricsNotExported" | "RuleRefused" => true,
        FORBIDDEN => condition.message.starts_with(&may_remain_prefix(object)),
        _ => false,
    }
}

/// Returns the beginning of the message if the permission is missing while a PrometheusRule may exist.
fn may_remain_prefix(object: &ObservedStableName) -> String {
    format!("PrometheusRule {} may remain: ", rule_name(object.key.name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::stable_name::StableName;

    const NOW: &str = "2026-11-22T10:20:00Z";

    fn object(alerts: bool, recorded: Option<&Condition>) -> ObservedStableName {
        let mut spec = json!({"sources": [{"name": "a", "hostname": "a.example"}]});
        if alerts {
            spec["alerts"] = json!({});
        }
        let mut object = StableName::new("web", serde_json::from_value(spec).unwrap());
        object.metadata.generation = Some(7);
        let conditions = recorded.into_iter().cloned().collect();
        object.status = Some(StableNameStatus { conditions, ..Default::default() });
        ObservedStableName::new(object)
    }

    fn made(alerts: bool, recorded: Option<&Condition>, state: Option<RuleState>) -> Option<Condition> {
        let mut after = StableNameStatus::default();
        add_condition(&mut after, &object(alerts, recorded), state, true, NOW.parse().unwrap());
        after.conditions.pop()
    }

    fn former() -> Condition {
        condition(ALERTS_READY, "True", "RuleWritten", "", "2026-11-01T00:00:00Z".parse().unwrap(), 3)
    }

    #[test]
    fn rule_is_left_alone_while_the_garbage_collector_deletes() {
        for (finalizer, expected) in [("orphan", 0), ("foregroundDeletion", 0), ("example.com/other", 1)] {
            let spec = json!({"sources": [{"name": "a", "hostname": "a.example"}], "alerts": {}});
            let mut object = StableName::new("web", serde_json::from_value(spec).unwrap());
            let rules = RuleRequests::default();
            request_rule(&rules, &ObservedStableName::new(object.clone()));
            assert_eq!(rules.keys().len(), 1);
            object.metadata.finalizers = Some(vec![finalizer.to_owned()]);
            object.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
            request_rule(&rules, &ObservedStableName::new(object));
            assert_eq!(rules.keys().len(), expected, "{finalizer}");
        }
    }

    #[test]
    fn condition_reports_the_state_of_the_rule() {
        for (state, status, reason) in [
            (RuleState::Written, "True", "RuleWritten"),
            (RuleState::NotInstalled, "False", "PrometheusRuleNotInstalled"),
            (RuleState::Forbidden("no".to_owned()), "False", "Forbidden"),
            (RuleState::Conflict, "False", "Conflict"),
            (RuleState::Refused("no".to_owned()), "False", "RuleRefused"),
        ] {
            let made = made(true, Some(&former()), Some(state)).unwrap();
            assert_eq!((&*made.status, &*made.reason, made.observed_generation), (status, reason, Some(7)));
            let since = if status == "True" { "2026-11-01T00:00:00Z" } else { NOW };
            assert_eq!(made.last_transition_time.0, since.parse().unwrap());
        }
    }

    #[test]
    fn alerts_without_metrics_are_not_ready() {
        let mut after = StableNameStatus::default();
        let (object, state) = (object(true, Some(&former())), Some(RuleState::Written));
        add_condition(&mut after, &object, state, false, NOW.parse().unwrap());
        let made = after.conditions.pop().unwrap();
        assert_eq!((&*made.status, &*made.reason), ("False", "MetricsNotExported"));
    }

    #[test]
    fn condition_stays_until_the_state_is_known() {
        assert_eq!(made(true, Some(&former()), None), Some(former()));
        assert_eq!(made(true, None, None), None);
    }

    #[test]
    fn condition_is_removed_after_the_rule() {
        assert_eq!(made(false, Some(&former()), None), Some(former()));
        for state in [RuleState::Absent, RuleState::NotInstalled] {
            assert_eq!(made(false, Some(&former()), Some(state)), None);
        }
    }

    #[test]
    fn condition_stays_while_a_rule_may_remain() {
        let with = |status, reason| condition(ALERTS_READY, status, reason, "", NOW.parse().unwrap(), 3);
        let forbidden = || Some(RuleState::Forbidden("no".to_owned()));
        for (reason, may_remain) in [
            ("RuleWritten", true),
            ("MetricsNotExported", true),
            ("RuleRefused", true),
            ("PrometheusRuleNotInstalled", false),
            ("Conflict", false),
            ("Forbidden", false),
        ] {
            let former = with(if reason == "RuleWritten" { "True" } else { "False" }, reason);
            let removed = made(false, Some(&former), forbidden());
            assert_eq!(removed, Some(former.clone()).filter(|_| may_remain), "{reason}");
            // The permission is missing before spec.alerts is removed.
            let once = made(true, Some(&former), forbidden());
            let twice = made(true, once.as_ref(), forbidden());
            assert_eq!(once, twice, "{reason}");
            let text = if may_remain { "PrometheusRule lb-linker-web may remain: no" } else { "no" };
            assert_eq!(twice.as_ref().unwrap().message, text, "{reason}");
            let removed = made(false, twice.as_ref(), forbidden());
            assert_eq!(removed, twice.filter(|_| may_remain), "{reason}");
        }
    }
}
