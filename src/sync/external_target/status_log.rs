//! Reports the state of external targets in the log, in Events and in metrics, each change once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{Level, debug, warn};

use super::backend::Backend;
use super::decision::Write;
use super::deletion_budget::MaxDeletes;
use super::desired::{addresses_of, lacks_address};
use super::write_result::Before;
use crate::model::excerpt::examples;
use crate::model::link::{Link, LinkChange, Target};
use crate::model::service_key::ServiceKey;
use crate::sync::controller::write_error::WriteError;
use crate::sync::events::Reason;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::external_target::metrics::{ReconcileResult, ReconcilerMetrics};
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::errors::{LOG_INTERVAL, ThrottledLog};
use crate::sync::k8s::instance::OtherOwner;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::refusals::FailedWriteLog;
use crate::sync::k8s::service::{FINALIZER, Service};
use crate::sync::removal::reason::RemovalReason;

/// The state that was last reported.
pub(crate) struct StatusLog {
    backend: Backend,
    link_reporter: LinkReporter,
    metrics: Arc<ReconcilerMetrics>,
    api: Arc<ApiMetrics>,
    conflicts: BTreeMap<ServiceKey, String>,
    /// Links with a removal held back by the deletion budget.
    held: HashSet<ServiceKey>,
    /// Links with a removal that comes ten minutes later, because most external targets would have gone at a start.
    postponed: HashSet<ServiceKey>,
    held_back_log: ThrottledLog,
    /// The number of held-back removals in the last log line, and the time of that line.
    held_logged: Option<(usize, Instant)>,
    /// The time at which the next removal is allowed; `None` means never.
    next_removal: Option<Instant>,
    /// Links with another name for their external target than the default name, and the link that has the default name,
    /// if it is known.
    names_lost: HashMap<ServiceKey, Option<ServiceKey>>,
    /// Links with a new target, and the target that they had before or that their external target still has.
    previous_targets: HashMap<ServiceKey, Option<Target>>,
    planned: HashMap<ServiceKey, Vec<Write>>,
    /// Whether it was logged that another instance owns most objects.
    other_owner: bool,
    /// Errors that concern all writes with this verb to objects of this kind.
    error_logs: HashMap<(&'static str, ObjectKind), ThrottledLog>,
    /// Errors that concern writes of single objects.
    refusals: FailedWriteLog,
    /// Errors of the look-ups of Services that count as gone.
    look_up_log: ThrottledLog,
    /// Services that count as gone although the API server refuses every look-up.
    refused_look_up_log: ThrottledLog,
}

impl StatusLog {
    pub(crate) fn new(
        backend: Backend,
        link_reporter: LinkReporter,
        metrics: Arc<ReconcilerMetrics>,
        api: Arc<ApiMetrics>,
    ) -> Self {
        metrics.conflicts.set(0);
        let mut log = Self {
            backend,
            link_reporter,
            metrics,
            api,
            conflicts: BTreeMap::new(),
            held: HashSet::new(),
            postponed: HashSet::new(),
            held_back_log: ThrottledLog::default(),
            held_logged: None,
            next_removal: None,
            names_lost: HashMap::new(),
            previous_targets: HashMap::new(),
            planned: HashMap::new(),
            other_owner: false,
            error_logs: HashMap::new(),
            refusals: FailedWriteLog::default(),
            look_up_log: ThrottledLog::default(),
            refused_look_up_log: ThrottledLog::default(),
        };
        log.forget_held();
        log
    }

    /// Returns the name of an object for the log.
    fn place(&self, id: &ObjectId) -> String {
        match id.kind {
            ObjectKind::LoadBalancer => id.name.clone(),
            ObjectKind::Service | ObjectKind::EndpointSlice => self.backend.describe(&id.name),
        }
    }

    /// Counts a write that has ended with this HTTP code, and the reconciliation that led to it, which began at
    /// `looked_at`.
    pub(crate) fn count(
        &self,
        write: &Write,
        code: u16,
        result: &Result<Option<Object>, WriteError>,
        looked_at: Instant,
    ) {
        let outcome = match result {
            Ok(_) => ReconcileResult::Written,
            Err(WriteError::Conflict | WriteError::Gone) => ReconcileResult::Waiting,
            Err(_) => ReconcileResult::Failed,
        };
        self.metrics.reconciled(outcome, looked_at);
        if matches!(self.backend, Backend::Namespace { .. }) {
            self.api.count_write(write.verb(), &write.id().kind.to_string(), code);
        }
    }

    /// Reports a successful write, and why it removes something: a single line for an external target and its
    /// EndpointSlices. Returns whether this ends an error of the whole class of writes.
    pub(crate) fn report_written(
        &mut self,
        key: &ServiceKey,
        link: Option<&Link>,
        write: &Write,
        before: Before,
        why: Option<RemovalReason>,
        after: Option<&Object>,
    ) -> bool {
        let id = write.id();
        let object = self.place(&id);
        let record = |reason, note: &str| {
            if let Some(link) = link {
                self.link_reporter.recorder.about(link, reason, note);
            }
        };
        let log = &self.link_reporter.log;
        let slice = after.and_then(Object::as_slice).filter(|_| self.changes_addresses(key, write, before));
        if let (Some(slice), Some(link)) = (slice, link) {
            let place = self.backend.describe(&link.external_target());
            log.info(key, format_args!("external target {place}: changed → {}", addresses(slice)));
        }
        match (write, after.and_then(|after| after.as_service())) {
            (Write::Finalizer { add, .. }, _) => {
                log.info(
                    key,
                    format_args!(
                        "Service {object}: finalizer {FINALIZER} {}",
                        if *add { "added" } else { "removed" }
                    ),
                );
            }
            (Write::Create(_), Some(service)) => {
                let to = shown_destination(service, link);
                log.info(key, format_args!("external target {object}: created → {to}"));
                if let (Some(link), Some(Some(holder))) = (link, self.names_lost.get(key)) {
                    record(Reason::Conflict, &format!("the {}", self.lost_name(link, holder)));
                }
                record(Reason::ExternalTargetCreated, &format!("{object} → {to}"));
            }
            (Write::Change { .. }, Some(service)) if before == Before::Foreign => {
                let to = shown_destination(service, link);
                log.info(key, format_args!("external target {object}: adopted → {to}"));
                record(Reason::Adopted, &format!("{object} → {to}"));
            }
            (Write::Change { .. }, Some(_)) if before == Before::SameTarget => {
                log.info(key, format_args!("external target {object}: labels, annotations or ports changed"));
            }
            (Write::Change { .. }, Some(service)) => {
                let to = shown_destination(service, link);
                log.info(key, format_args!("external target {object}: changed → {to}"));
            }
            (Write::Delete { .. }, Some(left)) => {
                let finalizers = left.metadata.finalizers.clone().unwrap_or_default();
                log.info(
                    key,
                    format_args!("external target {object}: deleted, and held by {}", examples(finalizers)),
                );
            }
            (Write::Delete { .. }, None) if id.kind == ObjectKind::Service => {
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                log.info(key, format_args!("external target {object}: removed{why}"));
                record(Reason::Removed, &object);
            }
            (Write::Annotate { .. }, _) => debug!("{} {object}: annotations written", id.kind),
            _ => debug!("EndpointSlice {object}: {}", write.verb()),
        }
        let Some(error_log) = self.error_logs.get_mut(&(write.verb(), id.kind)) else { return false };
        error_log.recovered(&format!("{}s can be written again ({})", id.kind, write.verb()))
    }

    /// Returns whether a write to an EndpointSlice changes the addresses of an external target that had some before.
    fn changes_addresses(&self, key: &ServiceKey, write: &Write, before: Before) -> bool {
        match write {
            Write::Change { .. } => before == Before::Other,
            // Of another address family.
            Write::Create(_) => {
                matches!(self.previous_targets.get(key), Some(Some(Target::Addresses(_))))
            }
            _ => false,
        }
    }

    /// Reports an error that concerns the whole class of writes.
    pub(crate) fn report_class_error(&mut self, write: &Write, code: u16, sentence: &str) {
        self.error_logs.entry((write.verb(), write.id().kind)).or_default().report(code, sentence);
    }

    /// Reports that the end of a Service can't be confirmed, so its external target stays.
    pub(crate) fn report_unconfirmed(&mut self, code: u16, sentence: &str) {
        self.look_up_log.report(
            code,
            &format!("{sentence}; its external target stays meanwhile ({})", RemovalReason::Unconfirmed),
        );
    }

    /// Reports that look-ups succeed again.
    pub(crate) fn report_confirmed(&mut self) {
        self.look_up_log.recovered("Services that count as gone can be looked up again");
    }

    /// Reports that the external target of a Service is removed although the Service can't be looked up.
    pub(crate) fn counts_as_gone(&mut self, key: &ServiceKey) {
        self.refused_look_up_log.remind(&format!(
            "Service {key} counts as gone: the watch has reported its deletion, and for ten minutes the API \
             server has refused every look-up of it, as after its namespace was deleted; --on-delete applies ({})",
            RemovalReason::LookUpRefused
        ));
    }

    /// Reports an error that concerns this write alone; `is_new` tells whether it differs from the last one.
    pub(crate) fn report_failed(
        &mut self,
        key: &ServiceKey,
        write: &Write,
        reason: &str,
        pause: Duration,
        is_new: bool,
    ) {
        let what = format!("external target {} of link {key}", self.place(&write.id()));
        self.refusals.report(&self.link_reporter.log, key, what, reason, pause, is_new);
    }

    /// Logs that another client seems to undo the writes for a link.
    pub(crate) fn report_reverted_write(&self, key: &ServiceKey, write: &Write, pause: Duration) {
        let object = self.place(&write.id());
        let line = format_args!(
            "external target {object} of link {key}: another client, or an admission policy, changes what is \
             written; it is written again, and then not before {pause:.0?} have passed"
        );
        self.link_reporter.log.warn(key, line);
    }

    /// Logs the planned writes; `present` is the Service that has the name of the external target. Those of the first
    /// list are logged in full, because they are what `--sync plan` is for.
    pub(crate) fn plan(
        &mut self,
        key: &ServiceKey,
        present: Option<&Service>,
        writes: Vec<Write>,
        is_news: bool,
    ) {
        if self.planned.get(key) == Some(&writes) {
            return;
        }
        for write in &writes {
            let id = write.id();
            let (object, verb, kind) = (self.place(&id), write.verb(), id.kind);
            let change = match write {
                Write::Create(Object::Service(service)) => format!(" → {}", destination(service)),
                Write::Change { desired: Object::Service(service), .. } => {
                    let (before, after) = (present.map(destination), destination(service));
                    match before {
                        Some(before) if before != after => format!(": {before} → {after}"),
                        _ => format!(" → {after}, as now: only its labels, annotations or ports change"),
                    }
                }
                _ => String::new(),
            };
            let line = format_args!("plan for link {key}: {verb} {kind} {object}{change}");
            let log = &self.link_reporter.log;
            if is_news { log.info(key, line) } else { log.write(key, Level::INFO, &line) }
        }
        self.planned.insert(key.clone(), writes);
    }

    /// Reports that an object that has the name of a link's external target or EndpointSlice isn't ours, or is another
    /// process's. Conflicts that exist at the start cause no Event.
    pub(crate) fn conflict(
        &mut self,
        link: &Link,
        object: &str,
        why: &str,
        remedy: &str,
        reports_events: bool,
    ) {
        let key = &link.key;
        let object = self.backend.describe(object);
        let sentence = format!("external target {object} of link {key} is left alone: {why}; {remedy}");
        if self.conflicts.get(key) != Some(&sentence) {
            self.link_reporter.log.warn(key, &sentence);
            if reports_events {
                let note = format!("{object} is left alone: {why}; {remedy}");
                self.link_reporter.recorder.about(link, Reason::Conflict, &note);
            }
            self.conflicts.insert(key.clone(), sentence);
        }
        self.count_conflicts();
    }

    /// Reports the end of a conflict, if there was one.
    pub(crate) fn no_conflict(&mut self, key: &ServiceKey) {
        if self.conflicts.remove(key).is_some() {
            let line = format_args!("link {key}: its external target isn't left alone any more");
            self.link_reporter.log.info(key, line);
            self.count_conflicts();
        }
    }

    /// Reports once that another instance owns most objects of the target namespace, and counts the objects of other
    /// instances.
    pub(crate) fn other_owner(&mut self, number: usize, find: impl FnOnce(&str) -> Option<OtherOwner>) {
        self.metrics.set_objects_of_others(number);
        let Backend::Namespace { namespace, .. } = &self.backend else { return };
        let found = find(namespace);
        if let Some(owner) = found.as_ref().filter(|_| !self.other_owner) {
            warn!("{owner}");
        }
        self.other_owner = found.is_some();
    }

    /// Reports that an external target isn't removed yet because of the deletion budget.
    pub(crate) fn report_held_back(&mut self, link: &Link, max: MaxDeletes, pause: Option<Duration>) {
        let key = &link.key;
        let limit = format!("--max-deletes allows the removal of {max} in ten minutes");
        self.end_postponement(key);
        if self.held.insert(key.clone()) {
            self.show_held(key, RemovalReason::RemovalHeld, &limit);
            let note = format!("{limit}: the external target stays");
            self.link_reporter.recorder.about(link, Reason::RemovalHeld, &note);
        }
        let now = Instant::now();
        let next = pause.map(|pause| now + pause);
        let earlier = self.next_removal.filter(|at| *at > now);
        self.next_removal = earlier.into_iter().chain(next).min();
    }

    /// Reports that an external target isn't removed yet, because most would have been removed at a start.
    pub(crate) fn report_postponed(&mut self, key: &ServiceKey) {
        if !self.postponed.contains(key) {
            self.clear_held_back(key);
            self.postponed.insert(key.clone());
            let why = "most external targets would have been removed at a start, so it stays for ten minutes more \
                       than --delete-delay";
            self.show_held(key, RemovalReason::MostGone, why);
        }
    }

    /// Reports that the ten minutes more are over, or their reason is.
    pub(crate) fn end_postponement(&mut self, key: &ServiceKey) {
        if self.postponed.remove(key) {
            self.hide_held(key);
        }
    }

    fn show_held(&self, key: &ServiceKey, reason: RemovalReason, why: &str) {
        let text = format!("its external target isn't removed yet: {why} ({reason})");
        self.link_reporter.findings.held_removals.set(key, Some(&text));
        self.count_held();
    }

    fn hide_held(&self, key: &ServiceKey) {
        self.link_reporter.findings.held_removals.set(key, None);
        self.count_held();
    }

    /// Logs the number of removals that the deletion budget holds back, if there are any.
    pub(crate) fn remind(&mut self, max: MaxDeletes) {
        if self.held.is_empty() {
            return;
        }
        let when = match self.next_removal {
            Some(at) => {
                let pause = at.saturating_duration_since(Instant::now());
                format!("the next removal is allowed in {pause:.0?}")
            }
            None => "no other removal is allowed".to_owned(),
        };
        let number = self.held.len();
        let is_logged = self.held_back_log.remind(&format!(
            "no more external targets are removed for now: --max-deletes allows {max} in ten minutes; {when}; \
             external targets held back so far: {number} ({})",
            RemovalReason::RemovalHeld
        ));
        if is_logged {
            self.held_logged = Some((number, Instant::now()));
        }
    }

    /// Returns the time of the next line of [`Self::remind`]: a minute after the last one, if the number of held-back
    /// removals has at least doubled since.
    pub(crate) fn reminder_due(&self) -> Option<Instant> {
        let (number, at) = self.held_logged?;
        (self.held.len() >= 2 * number).then(|| at + LOG_INTERVAL)
    }

    /// Records that this process doesn't lead any more: the next leader decides about held-back removals.
    pub(crate) fn leadership_lost(&mut self) {
        self.forget_held();
        (self.next_removal, self.held_back_log, self.held_logged) = Default::default();
        self.previous_targets.clear();
    }

    /// Reports that the removal of a link's external target isn't held back any more.
    pub(crate) fn clear_held_back(&mut self, key: &ServiceKey) {
        self.end_postponement(key);
        if self.held.remove(key) {
            self.hide_held(key);
            if self.held.is_empty() {
                self.held_logged = None;
                self.held_back_log
                    .recovered("--max-deletes holds back no removal of an external target any more");
            }
        }
    }

    fn forget_held(&mut self) {
        self.held.clear();
        self.postponed.clear();
        self.link_reporter.findings.held_removals.retain(|_| false);
        self.count_held();
    }

    fn count_held(&self) {
        let number = self.held.len() + self.postponed.len();
        self.metrics.deletes_held.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Reports that another link has the default name of a link's external target. The creation of the external target
    /// under another name has an Event of its own.
    pub(crate) fn name_lost(
        &mut self,
        link: &Link,
        holder: impl Fn(&str) -> Option<ServiceKey>,
        reports_events: bool,
    ) {
        if link.is_gone() || !link.lacks_its_external_target() {
            self.names_lost.remove(&link.key);
            return;
        }
        let reported = self.names_lost.get(&link.key).cloned().flatten();
        // The owner may be unknown while its object is recreated.
        let holder = holder(&link.key.external_target()).or_else(|| reported.clone());
        if let Some(holder) = holder.as_ref().filter(|_| holder != reported) {
            let note = self.lost_name(link, holder);
            self.link_reporter.log.warn(&link.key, format_args!("link {}: its {note}", link.key));
            if reports_events {
                self.link_reporter.recorder.about(link, Reason::Conflict, &format!("the {note}"));
            }
        }
        self.names_lost.insert(link.key.clone(), holder);
    }

    fn lost_name(&self, link: &Link, holder: &ServiceKey) -> String {
        let place = |name: &str| self.backend.describe(name);
        let (own, default) = (place(&link.external_target()), place(&link.key.external_target()));
        format!("external target is {own}, not {default}: link {holder} has it")
    }

    /// Records a change of a link's target, which is reported when it has been written.
    pub(crate) fn record_target_change(&mut self, key: &ServiceKey, change: &LinkChange) {
        match change.target_change() {
            Some((from, Some(_))) => {
                self.previous_targets.entry(key.clone()).or_insert_with(|| from.cloned());
            }
            Some((_, None)) => drop(self.previous_targets.remove(key)),
            None => {}
        }
    }

    /// Records the target of a link's external target before a write. At the first reconciliation this is the target
    /// from before this process led. Later, if the link's target hasn't changed, the write only reverts another
    /// client's change, and nothing is recorded.
    pub(crate) fn record_previous_target(
        &mut self,
        key: &ServiceKey,
        is_first: bool,
        target: impl FnOnce() -> Option<Target>,
    ) {
        match self.previous_targets.get_mut(key) {
            Some(former @ None) => *former = target(),
            Some(_) => {}
            None if is_first => drop(self.previous_targets.insert(key.clone(), target())),
            None => {}
        }
    }

    /// Records that a link needs no more writes.
    pub(crate) fn settled(&mut self, link: &Link) {
        self.planned.remove(&link.key);
        // The Event of a StableName comes from the decision about its status.
        if let Some(Some(from)) = self.previous_targets.remove(&link.key)
            && link.active_override().is_none()
            && let Some(to) = link.target.as_ref().filter(|to| **to != from)
        {
            self.link_reporter.recorder.about(link, Reason::TargetChanged, &format!("{from} → {to}"));
        }
    }

    /// Returns the links with a new target that isn't reported yet.
    pub(crate) fn changing_links(&self) -> Vec<ServiceKey> {
        self.previous_targets.keys().cloned().collect()
    }

    pub(crate) fn tidy(&mut self) {
        self.held.shrink_to_fit();
        self.postponed.shrink_to_fit();
        self.previous_targets.shrink_to_fit();
    }

    /// Returns the links with reported state.
    pub(crate) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        let Self { conflicts, held, postponed, names_lost, previous_targets: former, planned, .. } = self;
        let reported = conflicts.keys().chain(held).chain(postponed).chain(names_lost.keys());
        reported.chain(former.keys()).chain(planned.keys())
    }

    /// Forgets the reported state of a link that is gone.
    pub(crate) fn forget(&mut self, key: &ServiceKey) {
        self.no_conflict(key);
        self.clear_held_back(key);
        self.names_lost.remove(key);
        self.previous_targets.remove(key);
        self.planned.remove(key);
    }

    fn count_conflicts(&self) {
        self.metrics.conflicts.set(i64::try_from(self.conflicts.len()).unwrap_or(i64::MAX));
    }
}

/// Returns the destination of an external target for the log.
pub(super) fn destination(service: &Service) -> &str {
    service.spec.external_name.as_deref().unwrap_or("its addresses")
}

/// Returns the destination of an external target for the log, with the addresses of its link.
fn shown_destination(service: &Service, link: Option<&Link>) -> String {
    let target = link.and_then(|link| link.target.as_ref());
    match target.filter(|_| service.spec.external_name.is_none()) {
        Some(target) if lacks_address(target) => {
            format!("no address: the API server refuses {target} in EndpointSlices")
        }
        Some(target) => target.to_string(),
        None => destination(service).to_owned(),
    }
}

/// Returns the addresses of an EndpointSlice for the log.
fn addresses(slice: &EndpointSlice) -> String {
    addresses_of([slice].into_iter()).map_or_else(|| "no address".to_owned(), |target| target.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::captured_log::CapturedLog;
    use crate::sync::election::Leadership;
    use crate::sync::events::Recorder;
    use crate::sync::external_target::desired::{Desired, IpTargets, Precondition};
    use crate::sync::external_target::observed_object::ObservedObject;
    use crate::sync::k8s::errors::ApiAvailability;
    use crate::sync::test_support;

    fn status_log() -> StatusLog {
        let backend = Backend::Namespace {
            client: test_support::refusing(500, "InternalError", "").0,
            availability: ApiAvailability::default(),
            namespace: "external-targets".to_owned(),
            list_hint: "",
        };
        let (metrics, api) = (test_support::metrics(), test_support::metrics());
        StatusLog::new(backend, test_support::link_reporter(), metrics, api)
    }

    fn link(name: &str) -> Link {
        Link::new(ServiceKey::new("shop", name), "u")
    }

    #[tokio::test]
    async fn held_back_line_is_repeated_when_the_number_doubles() {
        let (log_text, _logging) = CapturedLog::start(Level::INFO);
        let mut log = status_log();
        let hold = |log: &mut StatusLog, names: std::ops::Range<u32>| {
            for name in names {
                log.report_held_back(&link(&name.to_string()), MaxDeletes::Share, None);
            }
            log.remind(MaxDeletes::Share);
        };
        hold(&mut log, 0..2);
        assert_eq!(log.reminder_due(), None);
        hold(&mut log, 2..3);
        assert_eq!(log.reminder_due(), None, "3 are less than twice as many");
        hold(&mut log, 3..22);
        let logged = log.held_logged.unwrap();
        assert_eq!((logged.0, log.reminder_due()), (2, Some(logged.1 + LOG_INTERVAL)));
        let held = log.link_reporter.findings.held_removals.clone();
        assert_eq!(held.number(), 22);
        assert!(held.get(&link("7").key).unwrap().ends_with("(RemovalHeld)"));
        (0..22).for_each(|name| log.clear_held_back(&link(&name.to_string()).key));
        assert_eq!((log.reminder_due(), held.number()), (None, 0));
        let text = log_text.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with("external targets held back so far: 2 (RemovalHeld)"), "{text}");
        assert!(
            lines[1].ends_with("--max-deletes holds back no removal of an external target any more"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn line_of_a_change_names_the_target_only_if_it_is_new() {
        let service = |host: &str, label: &str| -> Service {
            let labels = json!({"app.kubernetes.io/managed-by": "lb-linker-operator", "team": label,
                "original-service-name": "web", "original-service-namespace": "shop"});
            serde_json::from_value(json!({
                "metadata": {"name": "web-shop-ext", "uid": "o", "labels": labels},
                "spec": {"type": "ExternalName", "externalName": host},
            }))
            .unwrap()
        };
        let before = ObservedObject::of(&service("a.example", "a").into());
        for (host, expected) in [
            ("a.example", "web-shop-ext: labels, annotations or ports changed"),
            ("b.example", "web-shop-ext: changed → b.example"),
        ] {
            let (log_text, _logging) = CapturedLog::start(Level::INFO);
            let desired: Object = service(host, "b").into();
            let precondition = Precondition { uid: Some("o".to_owned()), resource_version: None };
            let write = Write::Change { desired: desired.clone(), precondition };
            let link = link("web");
            let found = Before::by(&write, &before);
            status_log().report_written(&link.key, Some(&link), &write, found, None, Some(&desired));
            let text = log_text.text();
            assert!(text.trim_end().ends_with(expected), "{text}");
        }
    }

    #[tokio::test]
    async fn lost_name_is_logged_once_and_its_creation_has_an_event() {
        let (log_text, _logging) = CapturedLog::start(Level::INFO);
        let mut log = status_log();
        let dropped = prometheus::IntCounter::new("dropped", "dropped").unwrap();
        log.link_reporter.recorder = Recorder::new(dropped, Leadership::unconditional());
        let mut link = link("web");
        link.rename("web-shop-ext-1".into());
        let owner = ServiceKey::new("p", "web-sho");
        for is_known in [true, false, true] {
            let holder = |name: &str| (is_known && name == "web-shop-ext").then(|| owner.clone());
            log.name_lost(&link, holder, false);
        }
        let why = "external target is external-targets/web-shop-ext-1, not external-targets/web-shop-ext: link \
                   p/web-sho has it";
        let text = log_text.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains(&format!("link shop/web: its {why}")), "{text}");
        assert!(log.link_reporter.recorder.take_queued().is_empty());
        let created = json!({"metadata": {"name": "web-shop-ext-1"}, "spec": {"externalName": "a.example"}});
        let created: Object = serde_json::from_value::<Service>(created).unwrap().into();
        let write = Write::Create(created.clone());
        log.report_written(&link.key, Some(&link), &write, Before::Other, None, Some(&created));
        let queued = log.link_reporter.recorder.take_queued();
        assert_eq!(queued[0], (Reason::Conflict, format!("the {why}").into()));
        assert_eq!(queued[1].0, Reason::ExternalTargetCreated);
    }

    #[tokio::test]
    async fn line_of_a_new_external_target_names_no_refused_address() {
        for (address, expected) in [
            ("192.0.2.1", "created → 192.0.2.1"),
            ("127.0.60.1", "created → no address: the API server refuses 127.0.60.1 in EndpointSlices"),
        ] {
            let (log_text, _logging) = CapturedLog::start(Level::INFO);
            let target = Some(Target::Addresses([address.parse().unwrap()].into()));
            let link = Link { target, ..link("web") };
            let created: Object = Desired::first(&link, IpTargets::Headless).service.unwrap().into();
            let write = Write::Create(created.clone());
            status_log().report_written(&link.key, Some(&link), &write, Before::Other, None, Some(&created));
            let text = log_text.text();
            assert!(text.trim_end().ends_with(expected), "{text}");
        }
    }

    #[tokio::test]
    async fn line_of_a_changed_slice_names_the_addresses() {
        let slice = |address: &str, label: &str| -> Object {
            let slice: EndpointSlice = serde_json::from_value(json!({
                "metadata": {"name": "web-shop-ext-ipv4", "uid": "o", "labels": {"team": label,
                    "app.kubernetes.io/managed-by": "lb-linker-operator",
                    "original-service-name": "web", "original-service-namespace": "shop"}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address]}],
            }))
            .unwrap();
            slice.into()
        };
        let before = ObservedObject::of(&slice("192.0.2.50", "a"));
        let lines = |write: &Write, former: Option<Target>| {
            let (log_text, _logging) = CapturedLog::start(Level::INFO);
            let (link, mut log) = (link("web"), status_log());
            log.previous_targets.insert(link.key.clone(), former);
            let (Write::Create(desired) | Write::Change { desired, .. }) = write else { unreachable!() };
            log.report_written(
                &link.key,
                Some(&link),
                write,
                Before::by(write, &before),
                None,
                Some(desired),
            );
            log_text.text()
        };
        let change = |address: &str| {
            let precondition = Precondition { uid: Some("o".to_owned()), resource_version: None };
            Write::Change { desired: slice(address, "b"), precondition }
        };
        let expected = "external target external-targets/web-shop-ext: changed → 192.0.2.51";
        let text = lines(&change("192.0.2.51"), None);
        assert!(text.trim_end().ends_with(expected), "{text}");
        assert_eq!(lines(&change("192.0.2.50"), None), "", "only a label changes");
        let create = Write::Create(slice("192.0.2.51", "b"));
        assert_eq!(lines(&create, None), "", "the line about the Service names the addresses");
        let text = lines(&create, Some(Target::Addresses(["2001:db8::1".parse().unwrap()].into())));
        assert!(text.trim_end().ends_with(expected), "{text}");
    }
}
