//! The state of the controller of PrometheusRules.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use futures::{FutureExt, StreamExt};
use kube::Resource;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::AlertsContext;
use super::desired::{DesiredRule, rule_name};
use super::fair_queue::{FairQueue, MAX_WRITES};
use super::pending_writes::PendingWrites;
use super::requests::{RequestedRule, RuleRequest, RuleState};
use super::rule::{GROUP_VERSION, ObservedRule, PLURAL, PrometheusRule, target_key};
use super::write::{Outcome, PERMISSION_HINT, RuleChange, RuleWrite, RuleWriter};
use crate::model::service_key::ServiceKey;
use crate::sync::controller::work_queue::WorkQueue;
use crate::sync::external_target::backend::WriteError;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::discovery::is_served;
use crate::sync::k8s::errors::{
    ObjectErrors, ThrottledLog, WatchLog, describe, explain_watch, in_place, root_cause, watch_scopes,
};
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
    /// Each key has the fingerprint of its last written request.
    pub(super) work_queue: WorkQueue<u64>,
    fair_queue: FairQueue,
    pub(super) writes: JoinSet<RuleWrite>,
    pending_writes: PendingWrites,
    /// The requests for which `--sync plan` has logged the write.
    planned: HashMap<ServiceKey, u64>,
    object_errors: ObjectErrors,
    discovery_log: ThrottledLog,
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
            work_queue: WorkQueue::new(MAX_WRITES),
            fair_queue: FairQueue::default(),
            writes: JoinSet::new(),
            pending_writes: PendingWrites::default(),
            planned: HashMap::new(),
            object_errors: ObjectErrors::of_kind("PrometheusRule", context.log.clone()),
            discovery_log: ThrottledLog::default(),
            write_log: ThrottledLog::default(),
            failing_namespace: Box::default(),
            refusals: FailedWriteLog::default(),
            context,
        }
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
        self.writes = JoinSet::new();
        self.pending_writes.clear();
        (self.work_queue, self.fair_queue) = (WorkQueue::new(MAX_WRITES), FairQueue::default());
        self.planned.clear();
        self.term = term;
        self.on_any_request();
    }

    pub(super) fn on_request(&mut self, key: &ServiceKey) {
        if self.term.is_none() {
            return;
        }
        self.work_queue.changed(key);
        self.work_queue.add(key);
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
        match served {
            Ok(is_served) => {
                self.context.availability.report_available();
                self.discovery_log.recovered("discovery of PrometheusRules works again");
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
            Err(error) => match &error {
                kube::Error::Api(status) => {
                    let sentence = describe(&error, "ask whether the API server serves PrometheusRules", "");
                    self.discovery_log.report(status.code, &sentence);
                }
                _ => self.context.availability.report(&root_cause(&error)),
            },
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
                403 => {
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
                self.pending_writes.listed(version.filter(|_| !is_restored), |key| {
                    scope.contains(key) && !self.rules.contains_key(key)
                });
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
        self.pending_writes.removed(&key, revision);
        // The answer to a later write may have been faster than the watch.
        let is_known = self.rules.get(&key).is_some_and(|known| {
            uid.is_none_or(|uid| known.uid == *uid)
                && known.revision().is_none_or(|known| revision == 0 || known <= revision)
        });
        if is_known {
            self.rules.remove(&key);
        }
        self.work_queue.changed(&key);
        self.queue(&key);
    }

    // === reconciliation ===

    fn queue(&mut self, key: &ServiceKey) {
        if self.term.is_some() && self.context.rules.get(key).is_some() {
            self.work_queue.add(key);
        }
    }

    pub(super) fn queue_all(&mut self) {
        self.context.rules.keys().iter().for_each(|key| self.queue(key));
    }

    fn queue_scope(&mut self, number: usize) {
        let keys = self.context.rules.keys();
        keys.iter().filter(|key| self.scopes[number].contains(key)).for_each(|key| self.work_queue.add(key));
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

    pub(super) fn write_due(&self, now: Instant) -> Option<Instant> {
        self.fair_queue.due(now)
    }

    /// Reconciles the queued StableNames, and starts writes up to their limits.
    pub(super) fn drain(&mut self) {
        loop {
            while let Some(key) = self.work_queue.next() {
                self.reconcile(&key);
            }
            match self.fair_queue.take(Instant::now()) {
                Some(key) => self.start_write(&key),
                None => break,
            }
        }
    }

    fn reconcile(&mut self, key: &ServiceKey) {
        self.work_queue.stop_timer(key);
        self.fair_queue.remove(key);
        let Some(request) = self.context.rules.get(key) else {
            self.planned.remove(key);
            return self.work_queue.forget(key);
        };
        let state = match self.access(key) {
            Access::Unknown => return,
            Access::NotInstalled => RuleState::NotInstalled,
            Access::Forbidden(why) => RuleState::Forbidden(why),
            Access::Listed => {
                if self.change(key, &request).is_some() {
                    return self.queue_write(key, &request);
                }
                let is_terminating = self.rules.get(key).is_some_and(|known| known.is_terminating);
                match request.is_for_rule() {
                    // Another client's finalizer holds the object. If that client has removed our label, the watch
                    // doesn't report the deletion, so try to create the object again later.
                    true if is_terminating => {
                        self.rules.remove(key);
                        return self.work_queue.add_after(key.clone(), CONFLICT_RETRY);
                    }
                    // Another client changes the object after each write.
                    true if let Some(pause) = self.work_queue.throttled_for(key, &request.fingerprint) => {
                        return self.work_queue.add_after(key.clone(), pause);
                    }
                    true => RuleState::Written,
                    false => RuleState::Absent,
                }
            }
        };
        self.work_queue.succeeded(key);
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

    /// Queues the write of a PrometheusRule. `--sync plan` only logs it.
    fn queue_write(&mut self, key: &ServiceKey, request: &RuleRequest) {
        if self.context.sync == SyncMode::Plan {
            if self.planned.insert(key.clone(), request.fingerprint) != Some(request.fingerprint)
                && let Some((rule, change)) = self.change(key, request)
            {
                let (verb, rule) = (change.verb(), rule.name());
                let line = format_args!("plan for StableName {key}: {verb} PrometheusRule {rule}");
                self.context.log.info(key, line);
            }
        } else if let Some(pause) = self.work_queue.throttled_for(key, &request.fingerprint) {
            self.work_queue.add_after(key.clone(), pause);
        } else {
            self.fair_queue.add(key);
        }
    }

    fn start_write(&mut self, key: &ServiceKey) {
        let (Some(term), Some(request)) = (self.term, self.context.rules.get(key)) else { return };
        // Since the key was queued, the watch may have ended.
        let change = self.change(key, &request).filter(|_| matches!(self.access(key), Access::Listed));
        let Some((rule, change)) = change else { return self.work_queue.add(key) };
        let writer = RuleWriter {
            client: self.context.client.clone(),
            availability: self.context.availability.clone(),
            leadership: self.context.leadership.clone(),
        };
        let (verb, fingerprint) = (change.verb(), request.fingerprint);
        self.work_queue.begin(key);
        self.fair_queue.begin(key, Instant::now());
        self.pending_writes.begin(key);
        let key = key.clone();
        self.writes.spawn(async move {
            let written = AssertUnwindSafe(writer.write(term, &key, &rule, change)).catch_unwind().await;
            let (code, result) = written.unwrap_or_else(|_| (0, Err(WriteError::panicked())));
            RuleWrite { key, fingerprint, verb, code, result }
        });
    }

    pub(super) fn written(&mut self, RuleWrite { key, fingerprint, verb, code, result }: RuleWrite) {
        let is_superseded = self.work_queue.done(&key);
        self.fair_queue.end(&key);
        let removed = self.pending_writes.end(&key);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write(verb, "PrometheusRule", code);
        }
        match result {
            Ok(Outcome::Foreign) => {
                self.rules.remove(&key);
                let (pause, is_new) = self.work_queue.add_refused(&key, Some(CONFLICT_RETRY), "conflict");
                let why = "another client's object has the name";
                self.report(&key, why, pause, is_new);
                self.context.rules.set_state(&key, fingerprint, RuleState::Conflict);
            }
            // The name was taken by an object of ours that the watch hasn't shown.
            Ok(Outcome::Present(observed)) if code == 409 => {
                self.on_answered(&key, *observed, removed);
                self.work_queue.add_rate_limited(&key, None);
            }
            Ok(outcome) => {
                let namespace = key.namespace();
                if *self.failing_namespace == *namespace {
                    self.write_log
                        .recovered(&format!("PrometheusRules in namespace {namespace} can be written again"));
                }
                match outcome {
                    Outcome::Present(observed) => self.on_answered(&key, *observed, removed),
                    Outcome::Absent | Outcome::Foreign => drop(self.rules.remove(&key)),
                }
                self.work_queue.succeeded(&key);
                if let Some(pause) = self.work_queue.record_write(&key, &fingerprint) {
                    let why = "another client changes the PrometheusRule".to_owned();
                    self.context.rules.set_state(&key, fingerprint, RuleState::Refused(why));
                    let line = format_args!(
                        "StableName {key}: another client changes its PrometheusRule; it was written again, and \
                         the next write is made after {pause:.0?}"
                    );
                    self.context.log.warn(&key, line);
                }
                self.work_queue.add(&key);
            }
            Err(WriteError::Gone) => {
                self.rules.remove(&key);
                self.work_queue.add_rate_limited(&key, None);
            }
            Err(WriteError::Conflict | WriteError::NotLeading(_) | WriteError::Unanswered) => {
                self.work_queue.add_rate_limited(&key, None);
            }
            Err(WriteError::WholeClass { code, message, retry_after }) => {
                // The resource is gone, or the namespace is.
                if code == 404 {
                    self.ask_discovery();
                } else {
                    self.failing_namespace = key.namespace().into();
                    self.write_log.report(code, &message);
                }
                if code == 403 {
                    self.context.rules.set_state(&key, fingerprint, RuleState::Forbidden(message));
                }
                self.work_queue.add_rate_limited(&key, retry_after);
            }
            Err(WriteError::Refused { message, .. }) => self.refused(&key, fingerprint, message, None),
            Err(WriteError::Other { message, retry_after }) => {
                self.refused(&key, fingerprint, message, retry_after);
            }
        }
        if is_superseded {
            self.work_queue.changed(&key);
            self.work_queue.add(&key);
        }
    }

    fn refused(
        &mut self,
        key: &ServiceKey,
        fingerprint: u64,
        message: String,
        retry_after: Option<Duration>,
    ) {
        let (pause, is_new) = self.work_queue.add_refused(key, retry_after, &message);
        self.report(key, &message, pause, is_new);
        self.context.rules.set_state(key, fingerprint, RuleState::Refused(message));
    }

    fn report(&mut self, key: &ServiceKey, why: &str, pause: Duration, is_new: bool) {
        let what = format_args!("the PrometheusRule of StableName {key}");
        self.refusals.report(&self.context.log, key, what, why, pause, is_new);
    }
}
