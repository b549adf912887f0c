//! Classifies 403 responses: a missing permission concerns all objects; an exhausted quota and a terminating namespace
//! concern all new objects of the namespace; a denial by admission concerns one object.

use std::time::Duration;

use tokio::time::Instant;

/// How long an authorizer has to refuse all look-ups of a Service that the watch lacks before the Service counts as
/// gone. Changes of RBAC, and the start of an API server, take less time.
const LASTING_AFTER: Duration = Duration::from_secs(600);

/// How long an authorizer has to refuse the lists of a namespace before other work goes on without them. An API server
/// that has just started refuses everything until it has read the roles.
pub(crate) const REFUSED_AFTER: Duration = Duration::from_secs(60);

/// The part of the API server that refused a request with 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// An authorizer, such as RBAC: the permission for this verb on this resource is missing.
    Authorizer,
    /// The ResourceQuota of the namespace is used up.
    Quota,
    /// The namespace is being deleted and accepts no new objects.
    NamespaceTerminating,
    /// Admission of this object: a policy or a webhook, with its own text.
    Admission,
}

impl Forbidden {
    /// Classifies a 403 for a request with this verb on this resource (`services`, or with a subresource
    /// `services/status`); `None` for other errors.
    ///
    /// The message has the form `<resource>[ "<name>"] is forbidden: <reason>`. Policies and webhooks control only the
    /// end of the reason, so each reason is recognized by its beginning.
    #[must_use]
    pub fn of(error: &kube::Error, verb: &str, resource: &str) -> Option<Self> {
        let kube::Error::Api(status) = error else { return None };
        (status.code == 403).then(|| Self::classify(&status.message, verb, resource))
    }

    /// Returns whether an authorizer has refused a LIST of Services.
    pub(crate) fn lists_services(error: &kube::Error) -> bool {
        Self::of(error, "list", "services") == Some(Self::Authorizer)
    }

    /// Returns whether an authorizer has refused a LIST or a WATCH of Services. A streamed list is a WATCH.
    pub(crate) fn watches_services(error: &kube::Error) -> bool {
        Self::lists_services(error) || Self::of(error, "watch", "services") == Some(Self::Authorizer)
    }

    fn classify(message: &str, verb: &str, resource: &str) -> Self {
        let Some(reason) = reason(message, resource) else { return Self::Admission };
        if is_missing_right(reason, verb, resource) {
            Self::Authorizer
        } else if reason.starts_with("exceeded quota: ") {
            Self::Quota
        } else if is_of_terminating_namespace(reason) {
            Self::NamespaceTerminating
        } else {
            Self::Admission
        }
    }

    /// Returns whether other new objects of the namespace would be refused, too, until the namespace changes.
    #[must_use]
    pub fn applies_to_namespace(self) -> bool {
        matches!(self, Self::Quota | Self::NamespaceTerminating)
    }
}

/// Returns whether the message of a 401 or 404 is about admission. A webhook chooses the code, and the end of the
/// message; a ValidatingAdmissionPolicy may choose 401.
pub(crate) fn is_of_admission(message: &str, resource: &str) -> bool {
    message.starts_with("admission webhook \"")
        || message.starts_with(resource) && message.contains(" is forbidden: ")
}

/// Returns the text after `is forbidden: ` if the message is about this resource (`NewForbidden` of
/// k8s.io/apimachinery).
fn reason<'a>(message: &'a str, resource: &str) -> Option<&'a str> {
    let (plural, _) = resource.split_once('/').unwrap_or((resource, ""));
    let rest = message.strip_prefix(plural)?;
    // The API group follows the plural after a dot.
    let end = rest.find(' ')?;
    let (group, rest) = rest.split_at(end);
    if !group.is_empty() && !group.starts_with('.') {
        return None;
    }
    let rest = rest.strip_prefix(' ')?;
    let rest = match rest.strip_prefix('"') {
        Some(name) => after_quoted(name)?.strip_prefix(' ')?,
        None => rest,
    };
    rest.strip_prefix("is forbidden: ")
}

/// Returns whether a reason reads `User "<name>" cannot <verb> resource "<resource>"…` (`forbiddenMessage` of
/// k8s.io/apiserver).
fn is_missing_right(reason: &str, verb: &str, resource: &str) -> bool {
    let what = reason.strip_prefix("User \"").and_then(after_quoted);
    let what = what.and_then(|rest| rest.strip_prefix(" cannot ")?.strip_prefix(verb));
    what.and_then(|rest| rest.strip_prefix(" resource \"")?.strip_prefix(resource))
        .is_some_and(|rest| rest.starts_with('"'))
}

/// Returns whether a reason comes from the admission plugin NamespaceLifecycle.
fn is_of_terminating_namespace(reason: &str) -> bool {
    let rest = reason.strip_prefix("unable to create new content in namespace ");
    let namespace = rest.and_then(|rest| rest.split_once(' '));
    namespace.is_some_and(|(_, rest)| rest.starts_with("because it is being terminated"))
}

/// Returns the text after a string in Go's quotes, given the text after the opening quote.
fn after_quoted(text: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return text.get(at + 1..),
            _ => {}
        }
    }
    None
}

/// Consecutive refusals of the same request by an authorizer. If a namespace was deleted together with its RoleBinding,
/// they never end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastingRefusal {
    since: Option<Instant>,
}

impl LastingRefusal {
    /// Records whether an authorizer refused the request. Any other answer, or none, ends the series of refusals.
    pub(crate) fn note(&mut self, by_authorizer: bool) {
        self.since = by_authorizer.then(|| self.since.unwrap_or_else(Instant::now));
    }

    /// Returns whether every answer of the last ten minutes was a refusal.
    pub(crate) fn is_lasting(&self) -> bool {
        self.has_lasted(LASTING_AFTER)
    }

    /// Returns whether the refusals have lasted for this time.
    pub(crate) fn has_lasted(&self, duration: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uninterrupted_refusal_is_lasting_after_ten_minutes() {
        let mut refusal = LastingRefusal::default();
        assert!(!refusal.is_lasting());
        refusal.note(true);
        tokio::time::advance(LASTING_AFTER / 2).await;
        refusal.note(true);
        assert!(!refusal.is_lasting());
        tokio::time::advance(LASTING_AFTER / 2).await;
        assert!(refusal.is_lasting());
        refusal.note(false);
        assert!(!refusal.is_lasting());
        refusal.note(true);
        assert!(!refusal.is_lasting(), "it counts from the start again");
    }

    const RBAC: &str = "User \"system:serviceaccount:lb-linker:lb-linker\" cannot create resource \"services\" in \
                        API group \"\" in the namespace \"external-targets\"";

    fn of(message: &str) -> Forbidden {
        Forbidden::classify(message, "create", "services")
    }

    #[test]
    fn authorizer_is_recognized_by_the_start_of_its_reason() {
        for start in ["services is forbidden: ", "services \"web-default-ext\" is forbidden: "] {
            assert_eq!(of(&format!("{start}{RBAC}")), Forbidden::Authorizer, "{start}");
            assert_eq!(
                of(&format!("{start}{RBAC}: RBAC: role.rbac.authorization.k8s.io \"x\" not found")),
                { Forbidden::Authorizer }
            );
        }
        let slices = "endpointslices.discovery.k8s.io is forbidden: User \"a\\\"b\" cannot patch resource \
                      \"endpointslices\" in API group \"discovery.k8s.io\" in the namespace \"t\"";
        assert_eq!(Forbidden::classify(slices, "patch", "endpointslices"), Forbidden::Authorizer);
        let status = "services \"web\" is forbidden: User \"x\" cannot patch resource \"services/status\" in API \
                      group \"\" in the namespace \"t\"";
        assert_eq!(Forbidden::classify(status, "patch", "services/status"), Forbidden::Authorizer);
        assert_eq!(Forbidden::classify(status, "patch", "services"), Forbidden::Admission, "another request");
    }

    #[test]
    fn reason_for_another_request_counts_as_admission() {
        let message = format!("services is forbidden: {RBAC}");
        for (verb, resource) in [("patch", "services"), ("create", "service"), ("create", "endpointslices")] {
            assert_eq!(
                Forbidden::classify(&message, verb, resource),
                Forbidden::Admission,
                "{verb} {resource}"
            );
        }
    }

    #[test]
    fn text_in_an_admission_denial_isnt_taken_for_the_cause() {
        let reasons = [
            RBAC,
            "exceeded quota: q, requested: services=1, used: services=1, limited: services=1",
            "unable to create new content in namespace t because it is being terminated",
            "such objects cannot be created",
        ];
        for reason in reasons {
            for message in [
                format!(
                    "services \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                     services is forbidden: {reason}"
                ),
                format!(
                    "admission webhook \"w.example\" denied the request: services is forbidden: {reason}"
                ),
                format!("services \"a\\\" is forbidden: {reason}"),
                reason.to_owned(),
                format!("forbidden: {reason}"),
                format!("servicesx is forbidden: {reason}"),
            ] {
                assert_eq!(of(&message), Forbidden::Admission, "{message}");
            }
        }
    }

    #[test]
    fn quota_and_terminating_namespace_are_no_missing_permission() {
        let quota = "services \"a\" is forbidden: exceeded quota: q, requested: services=1, used: services=0, \
                     limited: services=0";
        assert_eq!(of(quota), Forbidden::Quota);
        let terminating = "services \"a\" is forbidden: unable to create new content in namespace t because it is \
                           being terminated";
        assert_eq!(of(terminating), Forbidden::NamespaceTerminating);
        assert!(of(quota).applies_to_namespace() && of(terminating).applies_to_namespace());
        assert!(
            !Forbidden::Authorizer.applies_to_namespace() && !Forbidden::Admission.applies_to_namespace()
        );
    }
}
