//! Writes annotated Services, and processes the results.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use kube::api::Patch;
use serde_json::json;

use super::SourceAnnotationController;
use super::decision::AnnotatedService;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::work_queue::CONFLICT_TIMEOUT;
use crate::sync::external_target::backend::{WriteError, patch_service};
use crate::sync::external_target::desired::Precondition;
use crate::sync::k8s::object::Object;

/// The manifest that grants the permission to write.
const PERMISSION_HINT: &str = "the annotation linker.hsj.com/source needs the ClusterRole of deploy/source/";

/// A group of Services that share a circuit breaker: one cause makes the writes of all of them fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteClass {
    /// All namespaces: the API server doesn't answer.
    Everywhere,
    /// The Services of a namespace.
    Namespace(Arc<str>),
}

/// A write that has ended.
#[derive(Debug)]
pub(super) struct WriteResult {
    before: AnnotatedService,
    name: String,
    code: u16,
    result: Result<Option<Object>, WriteError>,
}

impl SourceAnnotationController {
    /// Starts to write a Service, unless it has to wait.
    pub(super) fn start(&mut self, follower: AnnotatedService, name: String) {
        let key = &follower.key;
        if let Some((outdated, since)) = self.stale_versions.get(key) {
            let remaining = CONFLICT_TIMEOUT.saturating_sub(since.elapsed());
            if *outdated == follower.version && !remaining.is_zero() {
                return self.work_queue.add_after(key.clone(), remaining);
            }
            self.stale_versions.remove(key);
        }
        if let Some(pause) = self.work_queue.throttled_for(key, &name) {
            return self.work_queue.add_after(key.clone(), pause);
        }
        if !self.breakers.admit(key, &[WriteClass::Everywhere, WriteClass::of(key)]) {
            return;
        }
        self.work_queue.begin(key);
        let (client, availability) = (self.context.client.clone(), self.context.availability.clone());
        let (leadership, term) = (self.context.leadership.clone(), self.lists.term);
        self.writes.spawn(async move {
            let Precondition { uid, resource_version } = &follower.version;
            let patch = Patch::Merge(json!({
                "metadata": {"uid": uid, "resourceVersion": resource_version},
                "spec": {"externalName": name},
            }));
            let request = patch_service(client, &availability, &follower.key, &patch, PERMISSION_HINT);
            // These Services carry no term that would reveal another leader.
            let request = AssertUnwindSafe(request).catch_unwind();
            let (code, result) = match leadership.write_confirmed(term, request).await {
                Ok(Ok(answered)) => answered,
                Ok(Err(_)) => (0, Err(WriteError::panicked())),
                Err(not_leading) => (0, Err(not_leading.into())),
            };
            WriteResult { before: follower, name, code, result }
        });
    }

    pub(super) fn written(&mut self, WriteResult { before, name, code, result }: WriteResult) {
        let (key, source) = (before.key, before.source);
        let is_superseded = self.work_queue.done(&key);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write("patch", "Service", code);
        }
        self.breakers.probe_ended(&key);
        let namespace = WriteClass::of(&key);
        if code != 0 {
            self.can_write(&WriteClass::Everywhere);
            if !matches!(result, Err(WriteError::WholeClass { code: 401 | 403, .. })) {
                self.can_write(&namespace);
            }
        }
        match &result {
            Ok(_) => {
                self.lost_answers.remove(&key);
                self.log_written(&key, &source, &before.name, &name);
            }
            Err(error) if error.may_be_made() && self.annotated.get(&key).is_some() => {
                self.lost_answers.insert(key.clone(), (before.name, name.clone()));
            }
            Err(_) => {}
        }
        // The Service is gone, or has no valid annotation any more: there is nothing to update.
        let Some(known) = self.annotated.get_mut(&key) else { return };
        let unseen = known.version == before.version;
        match result {
            Ok(after) => {
                if let (Some(Object::Service(service)), true) = (after, unseen) {
                    known.version = Precondition::of(&service.metadata);
                    known.name = service.spec.external_name.clone().unwrap_or_default();
                }
                self.work_queue.succeeded(&key);
                if let Some(pause) = self.work_queue.record_write(&key, &name) {
                    let line = format_args!(
                        "Service {key}, which follows {source}: another client, or an admission policy, changes \
                         what is written; it is written again, and then not before {pause:.0?} have passed"
                    );
                    self.context.link_reporter.log.warn(&key, line);
                }
                self.work_queue.add(&key);
            }
            // Another client has changed or deleted the Service first: the watch will deliver that.
            Err(WriteError::Conflict | WriteError::Gone) => {
                if unseen {
                    self.stale_versions.insert(key.clone(), (before.version, Instant::now()));
                }
                self.work_queue.add(&key);
            }
            // The lease has ended by the clock. The election may report its end a moment later.
            Err(WriteError::NotLeading(_)) => drop(self.work_queue.add_rate_limited(&key, None)),
            Err(WriteError::Unanswered) => self.breakers.record_failure(WriteClass::Everywhere, &key, None),
            // Credentials and permissions are the same for all Services of a namespace.
            Err(WriteError::WholeClass { code: code @ (401 | 403), message, retry_after }) => {
                self.error_logs.entry(key.namespace().into()).or_default().report(code, &message);
                self.breakers.record_failure(namespace, &key, retry_after);
            }
            // The target has changed since the write was sent: the failure concerns the old target.
            Err(WriteError::Refused { .. } | WriteError::Other { .. }) if is_superseded => {
                self.work_queue.add(&key)
            }
            Err(WriteError::Refused { message, .. }) => self.failed(&key, &source, &message, None),
            // The failure may concern this Service alone, such as a slow webhook: no circuit breaker opens.
            Err(
                WriteError::WholeClass { message, retry_after, .. }
                | WriteError::Other { message, retry_after },
            ) => {
                self.failed(&key, &source, &message, retry_after);
            }
        }
    }

    pub(super) fn log_written(&self, key: &ServiceKey, source: &ServiceKey, before: &str, name: &str) {
        let line = format_args!("Service {key}, which follows {source}: {before} → {name}");
        self.context.link_reporter.log.info(key, line);
    }

    /// Schedules the retry of a write whose failure opens no circuit breaker.
    fn failed(&mut self, key: &ServiceKey, source: &ServiceKey, reason: &str, at_least: Option<Duration>) {
        let (pause, is_new) = self.work_queue.add_refused(key, at_least, reason);
        let what = format_args!("Service {key}, which follows {source}");
        self.refusals.report(&self.context.link_reporter.log, key, what, reason, pause, is_new);
    }

    /// Queues the Services that wait until a place can be written.
    pub(super) fn can_write(&mut self, place: &WriteClass) {
        for key in self.breakers.record_success(place) {
            self.work_queue.add(&key);
        }
        if let WriteClass::Namespace(namespace) = place
            && let Some(mut error_log) = self.error_logs.remove(namespace)
        {
            error_log.recovered(&format!(
                "Services in namespace {namespace} that follow a load balancer can be written again"
            ));
        }
    }
}

impl WriteClass {
    fn of(key: &ServiceKey) -> Self {
        Self::Namespace(key.namespace().into())
    }
}
