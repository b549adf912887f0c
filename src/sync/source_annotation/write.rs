//! Writes annotated Services, and processes the results.

use kube::api::Patch;
use serde_json::{Value, json};

use super::SourceAnnotationController;
use super::decision::AnnotatedService;
use crate::model::service_key::ServiceKey;
use crate::sync::controller::runtime::{Ended, Failure, Proof};
use crate::sync::controller::write_error::WriteError;
use crate::sync::external_target::backend::patch_service;
use crate::sync::external_target::desired::Precondition;
use crate::sync::k8s::object::Object;

/// The manifest that grants the permission to write.
const PERMISSION_HINT: &str =
    "the annotation linker.hsj.com/source needs the permissions of deploy/source/ there";

/// A write under way.
#[derive(Debug)]
pub(super) struct FollowerWrite {
    before: AnnotatedService,
    name: String,
}

/// The HTTP code, 0 without an answer, and the Service afterwards.
pub(super) type WriteAnswer = (u16, Result<Option<Object>, WriteError>);

impl SourceAnnotationController {
    /// Starts to write a Service, unless it has to wait.
    pub(super) fn start(&mut self, before: AnnotatedService, name: String) {
        let key = before.key.clone();
        if !self.runtime.queue.may_start(&key, &name, &versioned(&before.version), false)
            || !self.runtime.may_send(&key, &[key.namespace().into()])
        {
            return;
        }
        let (client, availability) = (self.context.client.clone(), self.context.availability.clone());
        let (written, patch) = (key.clone(), patch(&before.version, &name));
        let request =
            async move { patch_service(client, &availability, &written, &patch, PERMISSION_HINT).await };
        // These Services carry no term that would reveal another leader.
        let proof = (self.lists.term, Proof::Renewal);
        self.runtime.start(&key, FollowerWrite { before, name }, false, proof, request);
    }

    pub(super) fn written(&mut self, ended: Ended<FollowerWrite, WriteAnswer>) {
        let (key, FollowerWrite { before, name }, code, result) = ended.into_result();
        let source = before.source;
        let is_superseded = self.runtime.done(&key, code, result.is_err()).is_superseded;
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.context.api.count_write("patch", "Service", code);
        }
        if code != 0 && !matches!(result, Err(WriteError::WholeClass { code: 401 | 403, .. })) {
            self.can_write(key.namespace());
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
        if let Err(error) = &result
            && error.is_refusal()
        {
            // The other Services of the namespace wait, and may not be tried for long.
            let is_shared = matches!(error, WriteError::WholeClass { code: 401 | 403, .. });
            self.context.followers.set_failure(&key, &error.to_string(), is_shared);
        }
        // The Service is gone, or has no valid annotation any more: there is nothing to update.
        let Some(known) = self.annotated.get_mut(&key) else { return };
        let failed = match result {
            Ok(after) => {
                if let (Some(Object::Service(service)), true) = (after, known.version == before.version) {
                    known.version = Precondition::of(&service.metadata);
                    known.name = service.spec.external_name.clone().unwrap_or_default();
                }
                if let Some(pause) = self.runtime.succeeded(&key, Some(&name)) {
                    let line = format_args!(
                        "Service {key}, which follows {source}: another client, or an admission policy, changes \
                         what is written; it is written again, and then not before {pause:.0?} have passed"
                    );
                    self.context.link_reporter.log.warn(&key, line);
                }
                return self.runtime.queue.add(&key);
            }
            // Credentials and permissions are the same for all Services of a namespace.
            Err(WriteError::WholeClass { code: code @ (401 | 403), message, retry_after }) => {
                self.error_logs.entry(key.namespace().into()).or_default().report(code, &message);
                return self.runtime.breakers.record_failure(key.namespace().into(), &key, retry_after);
            }
            // The failure may concern this Service alone, such as a slow webhook.
            Err(WriteError::WholeClass { message, retry_after, .. }) => {
                (WriteError::Other { message, retry_after }, false)
            }
            Err(error) => (error, is_superseded),
        };
        let (error, is_superseded) = failed;
        let failure = self.runtime.failed(&key, error, &versioned(&before.version), is_superseded);
        if let Failure::Own { message, pause, is_new } = failure {
            let what = format_args!("Service {key}, which follows {source}");
            self.refusals.report(&self.context.link_reporter.log, &key, what, &message, pause, is_new);
        }
    }

    pub(super) fn log_written(&self, key: &ServiceKey, source: &ServiceKey, before: &str, name: &str) {
        let line = format_args!("Service {key}, which follows {source}: {before} → {name}");
        self.context.link_reporter.log.info(key, line);
    }

    /// Queues the Services that wait until a namespace can be written.
    fn can_write(&mut self, namespace: &str) {
        self.context.followers.set_refused(namespace, None);
        for key in self.runtime.breakers.record_success(namespace) {
            self.runtime.queue.add(&key);
        }
        if let Some(mut error_log) = self.error_logs.remove(namespace) {
            error_log.recovered(&format!(
                "Services in namespace {namespace} that follow a load balancer can be written again"
            ));
        }
    }
}

fn patch(Precondition { uid, resource_version }: &Precondition, name: &str) -> Patch<Value> {
    Patch::Merge(json!({
        "metadata": {"uid": uid, "resourceVersion": resource_version},
        "spec": {"externalName": name},
    }))
}

/// Returns the uid and the version of a Service.
fn versioned(Precondition { uid, resource_version }: &Precondition) -> String {
    format!("{} {}", uid.as_deref().unwrap_or_default(), resource_version.as_deref().unwrap_or_default())
}
