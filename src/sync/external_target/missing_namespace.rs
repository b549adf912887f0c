//! The target namespace may be missing, or be deleted and created again: a single create at a time probes it (one of each
//! kind if an authorizer refuses them), and the objects are listed again when it accepts one.

use std::borrow::Cow;
use std::time::Duration;

/// The pause between two creates while the target namespace is missing.
pub(crate) const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// The meaning of 403 in the target namespace: a ServiceAccount also gets 403 for a namespace that doesn't exist.
pub(crate) const NAMESPACE_HINT: &str = "either the namespace doesn't exist or lb-linker has no Role in it; \
                                         deploy/targets/ has the one and deploy/ the other";

/// The meaning of 403 in a target namespace that could be listed: it may be about to be deleted, or deleted by now.
pub(crate) const ROLE_HINT: &str =
    "deploy/ has the Role that grants it, and deploy/targets/ the namespace, if it was deleted";

/// What to do about a target namespace that doesn't exist for certain.
pub(crate) const ABSENT_HINT: &str = "deploy/targets/ has it, and deploy/ the Role in it";

/// Why the target namespace accepts no new objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingNamespace {
    /// The API server has answered that there is no such namespace.
    Absent,
    Terminating,
    /// An authorizer has refused a request: a ServiceAccount gets this answer also for a namespace that doesn't exist,
    /// because its Role is gone together with the namespace.
    Refused,
}

impl MissingNamespace {
    /// Returns why; `None` if that depends on what is refused.
    pub(crate) fn why(self) -> Option<Cow<'static, str>> {
        match self {
            Self::Absent => Some(format!("the namespace doesn't exist; {ABSENT_HINT}").into()),
            Self::Terminating => Some("the namespace is being deleted".into()),
            Self::Refused => None,
        }
    }
}
