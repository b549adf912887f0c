//! The requests for PrometheusRules and the states of these PrometheusRules. The controller of StableNames sets the
//! requests, the controller of PrometheusRules the states.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::broadcast;

use super::desired::{DesiredRule, RuleInputs};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// Capacity of the feeds. A subscriber that falls behind has to look at all StableNames.
const FEED_CAPACITY: usize = 1024;

/// The state of the PrometheusRule of a StableName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleState {
    Written,
    /// No PrometheusRule exists, and none is wanted.
    Absent,
    /// The API server doesn't serve PrometheusRules.
    NotInstalled,
    /// The permission is missing, for this reason.
    Forbidden(String),
    /// Another client's object has the name.
    Conflict,
    /// The API server refuses the write, for this reason.
    Refused(String),
}

/// What is wanted for a StableName.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleRequest {
    pub(super) uid: Uid,
    pub(super) rule: RequestedRule,
    /// Distinguishes different requests for the same StableName.
    pub(super) fingerprint: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequestedRule {
    Rule(RuleInputs),
    /// `spec.alerts` was removed, so the rule has to be removed. `is_recorded` tells whether the status still has the
    /// condition AlertsReady.
    NoRule {
        is_recorded: bool,
    },
}

impl RuleRequest {
    pub(super) fn is_for_rule(&self) -> bool {
        matches!(self.rule, RequestedRule::Rule(_))
    }
}

#[derive(Debug)]
pub struct RuleRequests {
    requests: DashMap<ServiceKey, Arc<RuleRequest>>,
    /// The states, each with the fingerprint of the request that it is about.
    states: DashMap<ServiceKey, (u64, RuleState)>,
    requested: broadcast::Sender<ServiceKey>,
    state_changed: broadcast::Sender<ServiceKey>,
}

impl Default for RuleRequests {
    fn default() -> Self {
        Self {
            requests: DashMap::new(),
            states: DashMap::new(),
            requested: broadcast::Sender::new(FEED_CAPACITY),
            state_changed: broadcast::Sender::new(FEED_CAPACITY),
        }
    }
}

impl RuleRequests {
    /// Requests the PrometheusRule of a StableName that has `spec.alerts`.
    pub fn request_rule(&self, key: &ServiceKey, inputs: RuleInputs) {
        let is_known = self.requests.get(key).is_some_and(|known| match &known.rule {
            RequestedRule::Rule(before) => *before == inputs,
            RequestedRule::NoRule { .. } => false,
        });
        if !is_known {
            let fingerprint = DesiredRule::new(key, &inputs).fingerprint();
            self.set(
                key,
                RuleRequest { uid: inputs.uid.clone(), rule: RequestedRule::Rule(inputs), fingerprint },
            );
        }
    }

    /// Requests that a StableName without `spec.alerts` has no PrometheusRule, if it may have one: it had
    /// `spec.alerts` before, or its status still has the condition AlertsReady.
    pub fn request_removal(&self, key: &ServiceKey, uid: &Uid, is_recorded: bool) {
        let known = self.requests.get(key).map(|known| Arc::clone(&known)).filter(|known| known.uid == *uid);
        let is_needed = is_recorded
            || known.as_ref().is_some_and(|known| match known.rule {
                RequestedRule::Rule(_) => true,
                // A condition that was recorded before and isn't any more was removed by the leader: no rule is left,
                // or the permission to remove the rule is missing. No request is needed.
                RequestedRule::NoRule { is_recorded: was_recorded } => !was_recorded && !self.is_settled(key),
            });
        if !is_needed {
            return self.forget(key);
        }
        let mut hasher = DefaultHasher::new();
        uid.to_string().hash(&mut hasher);
        let fingerprint = hasher.finish();
        let request =
            RuleRequest { uid: uid.clone(), rule: RequestedRule::NoRule { is_recorded }, fingerprint };
        if known.is_none_or(|known| *known != request) {
            self.set(key, request);
        }
    }

    /// Forgets a StableName that has no PrometheusRule, or that is deleted: then the garbage collector removes its
    /// PrometheusRule.
    pub fn forget(&self, key: &ServiceKey) {
        self.states.remove(key);
        if self.requests.remove(key).is_some() {
            // A send fails if there are no subscribers, which is fine.
            let _ = self.requested.send(key.clone());
        }
    }

    /// Returns the state of the PrometheusRule of a StableName; `None` if the state isn't known yet.
    #[must_use]
    pub fn state(&self, key: &ServiceKey) -> Option<RuleState> {
        let fingerprint = self.requests.get(key)?.fingerprint;
        let state = self.states.get(key)?;
        (state.0 == fingerprint).then(|| state.1.clone())
    }

    /// Subscribes to the keys of StableNames whose PrometheusRule has a new state.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.state_changed.subscribe()
    }

    fn set(&self, key: &ServiceKey, request: RuleRequest) {
        self.requests.insert(key.clone(), Arc::new(request));
        let _ = self.requested.send(key.clone());
    }

    pub(super) fn subscribe_requests(&self) -> broadcast::Receiver<ServiceKey> {
        self.requested.subscribe()
    }

    pub(super) fn get(&self, key: &ServiceKey) -> Option<Arc<RuleRequest>> {
        self.requests.get(key).map(|request| Arc::clone(&request))
    }

    pub(in crate::sync) fn keys(&self) -> Vec<ServiceKey> {
        self.requests.iter().map(|request| request.key().clone()).collect()
    }

    /// Returns whether a rule is wanted, or may have to be removed.
    pub(super) fn has_pending_requests(&self) -> bool {
        let mut without_rule = Vec::new();
        for request in &self.requests {
            if request.is_for_rule() {
                return true;
            }
            without_rule.push(request.key().clone());
        }
        // After the loop: reading a DashMap during an iteration over it may deadlock.
        without_rule.iter().any(|key| !self.is_settled(key))
    }

    /// Returns whether it is known that a StableName has no PrometheusRule.
    fn is_settled(&self, key: &ServiceKey) -> bool {
        matches!(self.state(key), Some(RuleState::Absent | RuleState::NotInstalled))
    }

    /// Records the state of the PrometheusRule of a StableName for the request with this fingerprint.
    pub(super) fn set_state(&self, key: &ServiceKey, fingerprint: u64, state: RuleState) {
        if self.requests.get(key).is_none_or(|request| request.fingerprint != fingerprint) {
            return;
        }
        let state = (fingerprint, state);
        if self.states.insert(key.clone(), state.clone()).as_ref() != Some(&state) {
            let _ = self.state_changed.send(key.clone());
        }
    }

    /// Forgets all states: a term begins or ends.
    pub(super) fn forget_states(&self) {
        self.states.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::stable_name::Alerts;

    fn web() -> ServiceKey {
        ServiceKey::new("shop", "web")
    }

    fn inputs(uid: &str, pinned: Option<usize>) -> RuleInputs {
        RuleInputs { uid: uid.into(), alerts: Alerts::default(), pinned }
    }

    fn answer(requests: &RuleRequests, state: RuleState) {
        let fingerprint = requests.get(&web()).unwrap().fingerprint;
        requests.set_state(&web(), fingerprint, state);
    }

    #[test]
    fn state_is_known_until_the_request_changes() {
        let requests = RuleRequests::default();
        let mut feed = requests.subscribe_requests();
        requests.request_rule(&web(), inputs("u", None));
        answer(&requests, RuleState::Written);
        requests.request_rule(&web(), inputs("u", None));
        assert_eq!(requests.state(&web()), Some(RuleState::Written));
        assert_eq!(feed.try_iter_len(), 1);
        requests.request_rule(&web(), inputs("u", Some(1)));
        assert_eq!(requests.state(&web()), None);
        assert_eq!(feed.try_iter_len(), 1);
    }

    #[test]
    fn removal_request_is_open_until_the_rule_is_absent() {
        let (requests, uid) = (RuleRequests::default(), Uid::from("u"));
        requests.request_removal(&web(), &uid, false);
        assert!(requests.get(&web()).is_none() && !requests.has_pending_requests());
        for state in [RuleState::Absent, RuleState::NotInstalled] {
            requests.request_rule(&web(), inputs("u", None));
            requests.request_removal(&web(), &uid, false);
            assert!(requests.has_pending_requests());
            answer(&requests, RuleState::Forbidden(String::new()));
            requests.request_removal(&web(), &uid, false);
            assert!(requests.has_pending_requests(), "a rule may be left");
            answer(&requests, state);
            assert!(!requests.has_pending_requests());
            requests.request_removal(&web(), &uid, false);
            assert!(requests.get(&web()).is_none());
        }
    }

    #[test]
    fn recorded_condition_asks_for_the_removal_of_a_rule() {
        let (requests, uid) = (RuleRequests::default(), Uid::from("u"));
        requests.request_removal(&web(), &uid, true);
        assert!(requests.has_pending_requests());
        // The leader has removed the condition.
        requests.request_removal(&web(), &uid, false);
        assert!(requests.get(&web()).is_none());
    }

    #[test]
    fn request_for_an_earlier_uid_causes_no_removal_request() {
        let requests = RuleRequests::default();
        requests.request_rule(&web(), inputs("old", None));
        requests.request_removal(&web(), &"new".into(), false);
        assert!(requests.get(&web()).is_none());
    }

    trait Count {
        fn try_iter_len(&mut self) -> usize;
    }

    impl Count for broadcast::Receiver<ServiceKey> {
        fn try_iter_len(&mut self) -> usize {
            std::iter::from_fn(|| self.try_recv().ok()).count()
        }
    }
}
