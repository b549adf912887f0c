//! The state of the controller of PrometheusRules.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use kube::Resource;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::AlertsContext;
use super::desired::DesiredRule;
use super::requests::{RequestedRule, RuleRequest, RuleState};
use super::rule::{GROUP_VERSION, ObservedRule, PLURAL, PrometheusRule, target_key};
use super::rule_name::rule_name;
use super::write::{Outcome, PERMISSION_HINT, RuleAnswer, RuleChange, RuleWrite, RuleWriter};
use crate::model::service_key::ServiceKey;
use crate::sync::controller::limits::Limits;
use crate::sync::controller::runtime::{Ended, Failure, Proof, Runtime};
use crate::sync::controller::write_error::WriteError;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::discovery::is_served;
use crate::sync::k8s::errors::{
    ObjectErrors, ThrottledLog, WARN_OF_REFUSAL_AFTER, WatchLog, describe, explain_watch, in_place,
    watch_scopes,
};
use crate::sync::k8s::forbidden::LastingRefusal;
use crate::sync::k8s::labels::RULE_OWNER;
use crate::sync::k8s::listed::ListEpoch;
use crate::sync::k8s::refusals::FailedWriteLog;
use crate::sync::k8s::watch::{
    Event, RequestQuery, WatchItem, decoded, key_of, list_watch, version_of, watch_name,
};

/// The interval of discovery requests while a watch of PrometheusRules isn't running. If the API server serves
/// PrometheusRules, all such watches start then, also watches that were forbidden before.
pub(super) const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// The pause before another try while another client's object, or an object that is being deleted, has the name.
const CONFLICT_RETRY: Duration = Duration::from_secs(30);

/// At most four writes at once, each 250 ms after the one before on average.
const LIMITS: Limits = Limits { at_once: 4, starts: Some((4, Duration::from_secs(1))) };

pub(super) type ScopedEvents = BoxStream<'static, (usize, WatchItem<PrometheusRule>)>;

/// The watch of a namespace, or of all namespaces.
struct Scope {
    namespace: Option<String>,
    log: WatchLog,
    list: HashMap<ServiceKey, ObservedRule>,
    is_listed: bool,
    /// The number of restores of etcd before the last list, or before the watch began.
    rewinds: u64,
    /// Why the API server refused to list or watch at the last try.
    forbidden: Option<String>,
    /// Ends the stream of events.
    end: Option<AbortHandle>,
}

impl Scope {
    fn contains(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| key.namespace() == namespace)
    }

    fn stop(&mut self) {
        if let Some(end) = self.end.take() {
            end.abort();
        }
        self.list.clear();
        self.is_listed = false;
    }
}

/// What the controller knows about the PrometheusRules of a namespace.
enum Access {
    Unknown,
    NotInstalled,
    Forbidden(String),
    Listed,
}

pub(super) struct AlertsController {
    context: AlertsContext,
    /// The term; `None` while another replica leads.
    term: Option<u64>,
    /// The PrometheusRules, by the key of their StableName.
    rules: HashMap<ServiceKey, ObservedRule>,
    scopes: Vec<Scope>,
    pub(super) events: SelectAll<ScopedEvents>,
    /// Whether discovery was asked since the beginning of the term, or since the last tick without open requests.
    has_asked_discovery: bool,
    /// Whether the API server serves PrometheusRules, by the last answer of discovery; `None` before the first answer
    /// since the same time.
    is_served: Option<bool>,
    pub(super) discoveries: JoinSet<kube::Result<bool>>,
    /// The desired state of a key is the fingerprint of its request.
    pub(super) runtime: Runtime<u64, (), RuleWrite, RuleAnswer>,
    /// The requests for which `--sync plan` has logged the write.
    planned: HashMap<ServiceKey, u64>,
    object_errors: ObjectErrors,
    discovery_log: ThrottledLog,
    /// The refusals (403) of discovery since its last other answer.
    discovery_refusal: LastingRefusal,
    /// The log of writes that fail for a reason that other writes may share.
    write_log: ThrottledLog,
    /// The namespace of the last write in `write_log`.
    failing_namespace: Box<str>,
    refusals: FailedWriteLog,
}

impl AlertsController {
    pub(super) fn new(context: AlertsContext) -> Self {
        let scope = |namespace: Option<&str>| Scope {
            namespace: namespace.map(ToOwned::to_owned),
            log: WatchLog::new(
                context.availability.clone(),
                in_place("PrometheusRules", namespace),
                PERMISSION_HINT,
            ),
            list: HashMap::new(),
            is_listed: false,
            rewinds: context.rewinds.count(),
            forbidden: None,
            end: None,
        };
        Self {
            term: None,
            rules: HashMap::new(),
            scopes: watch_scopes(&context.selection.namespaces).map(scope).collect(),
            events: SelectAll::new(),
            has_asked_discovery: false,
            is_served: None,
            discoveries: JoinSet::new(),
            runtime: Self::runtime(&context),
            planned: HashMap::new(),
            object_errors: ObjectErrors::of_kind("PrometheusRule", context.log.clone()),
            discovery_log: ThrottledLog::default(),
            discovery_refusal: LastingRefusal::default(),
            write_log: ThrottledLog::default(),
            failing_namespace: Box::default(),
            refusals: FailedWriteLog::default(),
            context,
        }
    }

    fn runtime(context: &AlertsContext) -> Runtime<u64, (), RuleWrite, RuleAnswer> {
        Runtime::new(LIMITS, Duration::ZERO, context.leadership.clone())
    }

    // === leadership, requests and discovery ===

    /// Begins or ends a term.
    pub(super) fn on_leadership(&mut self) {
        let term = match self.context.sync {
            SyncMode::Off => None,
            SyncMode::On | SyncMode::Plan => self.context.leadership.current_term(),
        };
        if term == self.term {
            return;
        }
        self.stop_watching();
        self.context.rules.forget_states();
        (self.has_asked_discovery, self.is_served) = (false, None);
        // Aborts the writes of the former term.
        self.runtime = Self::runtime(&self.context);
        self.planned.clear();
        self.term = term;
        self.on_any_request();
    }

    pub(super) fn on_request(&mut self, key: &ServiceKey) {
        if self.term.is_none() {
            return;
        }
        self.runtime.queue.changed(key);
        self.runtime.queue.add(key);
        // This is the first request; later discovery requests are sent at each tick.
        if !self.has_asked_discovery {
            self.ask_discovery();
        }
    }

    pub(super) fn on_any_request(&mut self) {
        for key in self.context.rules.keys() {
            self.on_request(&key);
        }
    }

    pub(super) fn on_tick(&mut self) {
        if self.term.is_none() {
            return;
        }
        if !self.context.rules.has_pending_requests() {
            self.stop_watching();
            (self.has_asked_discovery, self.is_served) = (false, None);
        } else if self.scopes.iter().any(|scope| scope.end.is_none()) {
            self.ask_discovery();
        }
    }

    /// Sends a discovery request, unless one is under way.
    fn ask_discovery(&mut self) {
        self.has_asked_discovery = true;
        if self.discoveries.is_empty() {
            self.discoveries.spawn(is_served(self.context.client.clone(), GROUP_VERSION, PLURAL));
        }
    }

    pub(super) fn on_discovery(&mut self, served: kube::Result<bool>) {
        if self.term.is_none() || !self.context.rules.has_pending_requests() {
            return;
        }
        self.discovery_refusal.note(matches!(&served, Err(kube::Error::Api(status)) if status.code == 403));
        match served {
            Ok(is_served) => {
                self.context.availability.report_available();
                self.discovery_log.recovered("the API server tells again whether it serves PrometheusRules");
                let before = self.is_served.replace(is_served);
                if is_served {
                    let idle = |number: &usize| self.scopes[*number].end.is_none();
                    let idle: Vec<usize> = (0..self.scopes.len()).filter(idle).collect();
                    idle.into_iter().for_each(|number| self.watch(number));
                } else {
                    if before != Some(false) {
                        warn!(
                            "the API server doesn't serve PrometheusRules ({GROUP_VERSION}), which spec.alerts of \
                             StableNames needs; the alerts follow within {DISCOVERY_INTERVAL:?} once it does"
                        );
                    }
                    self.stop_watching();
                    self.queue_all();
                }
            }
            // The next tick asks again.
            Err(error) => {
                self.context.availability.report_error(&error);
                let kube::Error::Api(status) = &error else { return };
                let sentence = describe(&error, "ask whether the API server serves PrometheusRules", "");
                match status.code {
                    403 if !self.discovery_refusal.has_lasted(WARN_OF_REFUSAL_AFTER) => debug!("{sentence}"),
                    code => self.discovery_log.report(code, &sentence),
                }
            }
        }
    }

    // === watch ===

    fn watch(&mut self, number: usize) {
        let scope = &mut self.scopes[number];
        scope.stop();
        scope.rewinds = self.context.rewinds.count();
        let query = RequestQuery {
            namespace: scope.namespace.clone(),
            labels: RULE_OWNER.to_owned(),
            ..RequestQuery::default()
        };
        let activity =
            self.context.staleness.watch(&watch_name("prometheus-rules", scope.namespace.as_deref()));
        let (client, availability) = (self.context.client.clone(), self.context.availability.clone());
        let events = list_watch::<PrometheusRule>(client, query, activity, availability);
        let (events, end) = abortable(events.map(move |item| (number, item)));
        scope.end = Some(end);
        self.events.push(events.boxed());
    }

    fn stop_watching(&mut self) {
        self.scopes.iter_mut().for_each(Scope::stop);
        self.scopes.iter_mut().for_each(|scope| scope.forbidden = None);
        self.events = SelectAll::new();
        self.rules.clear();
    }

    pub(super) fn on_watch_item(&mut self, number: usize, item: WatchItem<PrometheusRule>) {
        let scope = &mut self.scopes[number];
        if let Err(error) = &item {
            match error.code() {
                403 if !scope.log.is_new_refusal(403) => {
                    let why = explain_watch(error, scope.log.what(), PERMISSION_HINT);
                    scope.stop();
                    if scope.forbidden.replace(why.clone()).is_none() {
                        warn!("{why}");
                    }
                    return self.queue_scope(number);
                }
                // The resource is gone, unless discovery says something else.
                404 => return self.ask_discovery(),
                _ => {}
            }
        }
        let Some(event) = scope.log.log_failure(item) else { return };
        match event {
            Event::ListBegins => scope.list.clear(),
            Event::Resumed => {}
            Event::Listed(object) => {
                let object = decoded(object, &mut self.object_errors);
                scope.list.extend(object.and_then(|object| ObservedRule::of(&object)));
            }
            Event::ListEnds { version, rewound } => {
                let is_restored = rewound || self.context.rewinds.count() != scope.rewinds;
                // Another watch may have noticed the restore first.
                if rewound && self.context.rewinds.count() == scope.rewinds {
                    self.context.rewinds.record_restore(scope.log.what());
                }
                scope.rewinds = self.context.rewinds.count();
                scope.is_listed = true;
                if scope.forbidden.take().is_some() {
                    info!("the {} can be followed again", scope.log.what());
                }
                let list = std::mem::take(&mut scope.list);
                self.rules.retain(|key, _| !scope.contains(key));
                self.rules.extend(list);
                // Of an unknown revision, or after a restore, only the watch can tell whether an object exists: no
                // answer counts.
                let revision = version.filter(|_| !is_restored).unwrap_or(u64::MAX);
                for key in self.runtime.queue.in_flight() {
                    if scope.contains(&key) && !self.rules.contains_key(&key) {
                        self.runtime.queue.absent(&key, revision);
                    }
                }
                self.queue_scope(number);
            }
            Event::Applied(object) => {
                let (key, revision) = (key_of(&object), version_of(&object).unwrap_or_default());
                let Some(object) = decoded(object, &mut self.object_errors) else { return };
                match ObservedRule::of(&object) {
                    Some((key, observed)) => self.on_observed(&key, observed),
                    None => self.on_removed(&key, None, revision),
                }
            }
            Event::Deleted(object) => {
                let (key, revision) = (key_of(&object), version_of(&object).unwrap_or_default());
                self.object_errors.set(&key, None);
                self.on_removed(&key, object.meta().uid.as_deref(), revision);
            }
        }
    }

    fn on_observed(&mut self, key: &ServiceKey, observed: ObservedRule) {
        let is_outdated = self
            .rules
            .get(key)
            .is_some_and(|known| known.uid == observed.uid && observed.revision() < known.revision());
        if !is_outdated {
            self.rules.insert(key.clone(), observed);
            self.queue(key);
        }
    }

    /// Processes the answer to a write. `removed` is the newest revision at which the watch has shown since that the
    /// object is absent: an older answer is outdated.
    fn on_answered(&mut self, key: &ServiceKey, observed: ObservedRule, removed: u64) {
        if observed.revision().is_none_or(|revision| revision >= removed) {
            self.on_observed(key, observed);
        }
    }

    /// Processes that the PrometheusRule `rule` is gone, or doesn't belong to a StableName any more.
    fn on_removed(&mut self, rule: &ServiceKey, uid: Option<&str>, revision: u64) {
        let Some(key) = target_key(rule) else { return };
        self.runtime.queue.absent(&key, revision);
        // The answer to a later write may have been faster than the watch.
        let is_known = self.rules.get(&key).is_some_and(|known| {
            uid.is_none_or(|uid| known.uid == *uid)
                && known.revision().is_none_or(|known| revision == 0 || known <= revision)
        });
        if is_known {
            self.rules.remove(&key);
        }
        self.runtime.queue.changed(&key);
        self.queue(&key);
    }

    // === reconciliation ===

    fn queue(&mut self, key: &ServiceKey) {
        if self.term.is_some() && self.context.rules.get(key).is_some() {
            self.runtime.queue.add(key);
        }
    }

    pub(super) fn queue_all(&mut self) {
        self.context.rules.keys().iter().for_each(|key| self.queue(key));
    }

    fn queue_scope(&mut self, number: usize) {
        let keys = self.context.rules.keys();
        keys.iter()
            .filter(|key| self.scopes[number].contains(key))
            .for_each(|key| self.runtime.queue.add(key));
    }

    fn access(&self, key: &ServiceKey) -> Access {
        let Some(scope) = self.scopes.iter().find(|scope| scope.contains(key)) else {
            return Access::Unknown;
        };
        // A list of StableNames from another term, or from before a restore, may contain another specification.
        let at = ListEpoch { term: self.term.unwrap_or_default(), rewinds: self.context.rewinds.count() };
        if !self.context.overrides_listed.borrow().covers(key.namespace(), at) {
            return Access::Unknown;
        }
        match (&scope.forbidden, self.is_served) {
            (Some(why), _) => Access::Forbidden(why.clone()),
            _ if scope.is_listed => Access::Listed,
            (None, Some(false)) => Access::NotInstalled,
            _ => Access::Unknown,
        }
    }

    /// Reconciles the queued StableNames, and starts writes up to their limits.
    pub(super) fn drain(&mut self) {
        while let Some(key) = self.runtime.queue.next() {
            self.reconcile(&key);
        }
    }

    fn reconcile(&mut self, key: &ServiceKey) {
        self.runtime.queue.stop_timer(key);
        let Some(request) = self.context.rules.get(key) else {
            self.planned.remove(key);
            return self.runtime.forget(key);
        };
        let state = match self.access(key) {
            Access::Unknown => return,
            Access::NotInstalled => RuleState::NotInstalled,
            Access::Forbidden(why) => RuleState::Forbidden(why),
            Access::Listed => {
                if let Some(change) = self.change(key, &request) {
                    return self.write(key, &request, change);
                }
                let is_terminating = self.rules.get(key).is_some_and(|known| known.is_terminating);
                match request.is_for_rule() {
                    // Another client's finalizer holds the object. If that client has removed our label, the watch
                    // doesn't report the deletion, so try to create the object again later.
                    true if is_terminating => {
                        self.rules.remove(key);
                        return self.runtime.queue.add_after(key.clone(), CONFLICT_RETRY);
                    }
                    // Another client changes the object after each write.
                    true if let Some(pause) = self.runtime.queue.throttled_for(key, &request.fingerprint) => {
                        return self.runtime.queue.add_within(key, pause);
                    }
                    true => RuleState::Written,
                    false => RuleState::Absent,
                }
            }
        };
        self.runtime.queue.succeeded(key);
        self.context.rules.set_state(key, request.fingerprint, state);
    }

    /// Returns the write that the request still needs, with the key of the PrometheusRule; `None` if there is none, or
    /// while the PrometheusRule is being deleted.
    fn change(&self, key: &ServiceKey, request: &RuleRequest) -> Option<(ServiceKey, RuleChange)> {
        let known = self.rules.get(key);
        if known.is_some_and(|known| known.is_terminating) {
            return None;
        }
        match &request.rule {
            RequestedRule::Rule(inputs) => {
                let desired = DesiredRule::new(key, inputs);
                let change = match known {
                    None => RuleChange::Create(Box::new(desired.object(key.name()))),
                    Some(known) if desired.matches(known) => return None,
                    Some(known) => RuleChange::Patch(desired.patch(known, key.name())),
                };
                Some((desired.key, change))
            }
            RequestedRule::NoRule { .. } => {
                let known = known.filter(|known| known.owner_uid == request.uid)?;
                let (uid, version) = (known.uid.to_string(), known.version.clone());
                let rule = ServiceKey::new(key.namespace(), &rule_name(key.name()));
                Some((rule, RuleChange::Delete { uid, version }))
            }
        }
    }

    /// Writes a PrometheusRule, unless it has to wait. `--sync plan` only logs the write.
    fn write(&mut self, key: &ServiceKey, request: &RuleRequest, (rule, change): (ServiceKey, RuleChange)) {
        let (verb, fingerprint) = (change.verb(), request.fingerprint);
        if self.context.sync == SyncMode::Plan {
            if self.planned.insert(key.clone(), fingerprint) != Some(fingerprint) {
                let rule = rule.name();
                let line = format_args!("plan for StableName {key}: {verb} PrometheusRule {rule}");
                self.context.log.info(key, line);
            }
            return;
        }
        let version = self.version_of(key);
        let Some(term) = self.term else { return };
        if !self.runtime.queue.may_start(key, &fingerprint, &version, false)
            || !self.runtime.may_send(key, &[])
        {
            return;
        }
        let writer = RuleWriter {
            client: self.context.client.clone(),
            availability: self.context.availability.clone(),
        };
        let proof =
            (term, if matches!(change, RuleChange::Patch(_)) { Proof::Clock } else { Proof::Renewal });
        let write = RuleWrite { fingerprint, verb, version };
        let owner = key.clone();
        let request = async move { writer.write(&owner, &rule, change).await };
        self.runtime.start(key, write, false, proof, request);
    }

    fn version_of(&self, key: &ServiceKey) -> String {
        self.rules.get(key).map(|known| known.version.to_string()).unwrap_or_default()
    }

    pub(super) fn written(&mut self, ended: Ended<RuleWrite, RuleAnswer>) {
        let (key, RuleWrite { fingerprint, verb, version }, code, result) = ended.into_result();
        let meanwhile = self.runtime.done(&key, code, result.is_err());
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write(verb, "PrometheusRule", code);
        }
        match result {
            Ok(Outcome::Foreign) => {
                self.rules.remove(&key);
                let why = "another client's object has the name".to_owned();
                let failure = self.runtime.refused(&key, why, Some(CONFLICT_RETRY));
                self.report(&key, failure);
                self.context.rules.set_state(&key, fingerprint, RuleState::Conflict);
            }
            // The name was taken by an object of ours that the watch hasn't shown.
            Ok(Outcome::Present(observed)) if code == 409 => {
                self.on_answered(&key, *observed, meanwhile.absent_at);
                self.runtime.queue.add_rate_limited(&key, None);
            }
            Ok(outcome) => {
                let namespace = key.namespace();
                if *self.failing_namespace == *namespace {
                    self.write_log
                        .recovered(&format!("PrometheusRules in namespace {namespace} can be written again"));
                }
                match outcome {
                    Outcome::Present(observed) => self.on_answered(&key, *observed, meanwhile.absent_at),
                    Outcome::Absent | Outcome::Foreign => drop(self.rules.remove(&key)),
                }
                if let Some(pause) = self.runtime.succeeded(&key, Some(&fingerprint)) {
                    let why = "another client changes the PrometheusRule".to_owned();
                    self.context.rules.set_state(&key, fingerprint, RuleState::Refused(why));
                    let line = format_args!(
                        "StableName {key}: another client changes its PrometheusRule; it was written again, and \
                         the next write is made after {pause:.0?}"
                    );
                    self.context.log.warn(&key, line);
                }
                self.runtime.queue.add(&key);
            }
            Err(WriteError::Conflict) if verb == "create" => {
                self.runtime.queue.add_rate_limited(&key, None);
            }
            Err(error) => self.on_failure(&key, error, &version, (fingerprint, meanwhile.is_superseded)),
        }
        if meanwhile.is_superseded {
            self.runtime.queue.changed(&key);
            self.runtime.queue.add(&key);
        }
    }

    fn on_failure(
        &mut self,
        key: &ServiceKey,
        error: WriteError,
        version: &str,
        (fingerprint, is_superseded): (u64, bool),
    ) {
        let is_forbidden = matches!(error, WriteError::WholeClass { code: 403, .. });
        if matches!(error, WriteError::Gone) {
            self.rules.remove(key);
        }
        match self.runtime.failed(key, error, version, is_superseded) {
            // The resource is gone, or the namespace is.
            Failure::Shared { code: 404, .. } => self.ask_discovery(),
            Failure::Shared { code, message } => {
                self.failing_namespace = key.namespace().into();
                self.write_log.report(code, &message);
                if is_forbidden {
                    self.context.rules.set_state(key, fingerprint, RuleState::Forbidden(message));
                }
            }
            Failure::Own { message, pause, is_new } => {
                let state = RuleState::Refused(message.clone());
                self.report(key, Failure::Own { message, pause, is_new });
                self.context.rules.set_state(key, fingerprint, state);
            }
            Failure::Unremarkable => {}
        }
    }

    fn report(&mut self, key: &ServiceKey, failure: Failure) {
        if let Failure::Own { message, pause, is_new } = failure {
            let what = format_args!("the PrometheusRule of StableName {key}");
            self.refusals.report(&self.context.log, key, what, &message, pause, is_new);
        }
    }
}
