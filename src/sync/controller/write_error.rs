//! Failed writes: what they mean for the write, for writes of the same kind, and for all.

use std::time::Duration;

use kube::core::Status;
use tower::timeout::error::Elapsed;

use crate::model::excerpt::sentence;
use crate::sync::election::NotLeading;
use crate::sync::k8s::errors::{ApiAvailability, describe, is_uid_mismatch, no_answer, retry_after};
use crate::sync::k8s::forbidden::{Forbidden, is_of_admission};
use crate::sync::k8s::timeouts::REQUEST_TIMEOUT;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object has changed, or exists already: the watch will deliver its present state.
    #[error("the object has changed meanwhile")]
    Conflict,
    #[error("the object is gone")]
    Gone,
    /// Another replica leads, or may lead by now.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// No answer arrived; the reason has been logged.
    #[error("no answer")]
    Unanswered,
    /// A failure that may concern every object of the kind: the namespace or the permission is missing, or the API
    /// server is overloaded.
    #[error("{message}")]
    WholeClass {
        /// The HTTP code; 0 if there was no answer in time.
        code: u16,
        message: String,
        /// The pause that the API server requests.
        retry_after: Option<Duration>,
    },
    /// The API server refuses this object: a policy, a webhook, a quota, or the namespace's termination.
    #[error("{message}")]
    Refused {
        /// The part of the API server that refuses the object.
        by: Forbidden,
        message: String,
    },
    /// Any other failure.
    #[error("{message}")]
    Other {
        message: String,
        /// The pause that the API server requests.
        retry_after: Option<Duration>,
    },
}

impl WriteError {
    /// Returns the error for a write that has panicked.
    pub(crate) fn panicked() -> Self {
        Self::Other {
            message: "writing it has panicked, a defect of lb-linker".to_owned(),
            retry_after: None,
        }
    }

    /// Returns whether the API server may have made the write although it has failed: there was no answer, or the API
    /// server has timed out.
    pub(crate) fn may_be_made(&self) -> bool {
        matches!(self, Self::Unanswered | Self::WholeClass { code: 0 | 500.., .. })
    }

    /// Returns whether the API server, or the directory, has refused the write: the message says why.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::WholeClass { .. } | Self::Refused { .. } | Self::Other { .. })
    }

    /// Returns the HTTP code for the metrics.
    fn code(error: &kube::Error) -> u16 {
        match error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        }
    }
}

/// A write request, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct WriteRequest<'a> {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    /// Completes "can't …".
    pub(crate) doing: &'a str,
    /// The manifest that grants the permission.
    pub(crate) hint: &'a str,
}

/// Classifies a failed request, and reports a missing answer.
pub(crate) fn failed<T>(
    error: kube::Error,
    availability: &ApiAvailability,
    write_request: WriteRequest<'_>,
) -> (u16, Result<T, WriteError>) {
    let code = WriteError::code(&error);
    let doing = write_request.doing;
    if let kube::Error::Service(error) = &error
        && error.is::<Elapsed>()
    {
        // Requests for other objects may succeed: an admission webhook may be slow for this one.
        let message = format!("can't {doing}: {}", no_answer(REQUEST_TIMEOUT));
        return (0, Err(WriteError::WholeClass { code: 0, message, retry_after: None }));
    }
    match &error {
        // A policy or a webhook may choose 401 for one object.
        kube::Error::Api(status) if is_of_admission(&status.message, write_request.resource) => {
            availability.report_available();
        }
        error => availability.report_error(error),
    }
    if code == 0 {
        return (0, Err(WriteError::Unanswered));
    }
    (code, Err(classify_api_error(error, write_request)))
}

fn classify_api_error(
    error: kube::Error,
    WriteRequest { verb, resource, doing, hint }: WriteRequest<'_>,
) -> WriteError {
    let created = verb == "create";
    let code = WriteError::code(&error);
    let everywhere = |hint, retry_after| WriteError::WholeClass {
        code,
        message: describe(&error, doing, hint),
        retry_after,
    };
    let kube::Error::Api(status) = &error else { return WriteError::Unanswered };
    let retry_after = retry_after(&error);
    match code {
        401 | 404 if is_of_admission(&status.message, resource) => {
            WriteError::Refused { by: Forbidden::Admission, message: answered(status) }
        }
        // No object is in the way; a quota was being updated, for example. No watch event follows such a conflict.
        409 if created && status.reason != "AlreadyExists" => other(status, retry_after),
        409 => WriteError::Conflict,
        404 if !created => WriteError::Gone,
        // Another uid: the object of this write is gone.
        422 if is_uid_mismatch(&error) && !created => WriteError::Gone,
        404 if is_namespace_missing(status) => WriteError::WholeClass {
            code,
            message: format!("can't {doing}: there is no such namespace (404 {})", sentence(&status.message)),
            retry_after,
        },
        401 | 429 | 500.. => everywhere("", retry_after),
        _ => match Forbidden::of(&error, verb, resource) {
            Some(Forbidden::Authorizer) => everywhere(hint, retry_after),
            Some(by) => WriteError::Refused { by, message: answered(status) },
            None => other(status, retry_after),
        },
    }
}

/// Returns whether a create was refused because its namespace doesn't exist.
fn is_namespace_missing(status: &Status) -> bool {
    status.message.starts_with("namespaces \"")
        || status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn other(status: &Status, retry_after: Option<Duration>) -> WriteError {
    WriteError::Other { message: answered(status), retry_after }
}

fn answered(status: &Status) -> String {
    format!("the API server answered {} {}", status.code, sentence(&status.message))
}
