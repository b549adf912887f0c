//! Computes the wanted `spec.externalName` of annotated Services. Pure functions.

use super::deleted_links::DeletedLink;
use crate::model::excerpt::value;
use crate::model::link::{Annotations, Link, Target};
use crate::model::names;
use crate::model::rejection::{RejectedField, Rejection};
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::TERM;
use crate::sync::external_target::decision::{OnDelete, SyncPolicy};
use crate::sync::external_target::desired::{Precondition, has_our_field_manager, ipv4_name, link_of_labels};
use crate::sync::k8s::annotations::OF_LOAD_BALANCERS;
use crate::sync::k8s::instance::INSTANCE;
use crate::sync::k8s::labels::{SERVICE_UID, SOURCE, STABLE_NAME_UID};
use crate::sync::k8s::service::{EXTERNAL_NAME, PREFIX, Service};

/// An ExternalName Service with the annotation `linker.hsj.com/source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnnotatedService {
    pub(super) key: ServiceKey,
    /// The uid and the resourceVersion of the Service as it was read.
    pub(super) version: Precondition,
    /// `spec.externalName`.
    pub(super) name: String,
    /// The link that the annotation names.
    pub(super) source: ServiceKey,
    /// Whether lb-linker has written the Service.
    pub(super) is_written: bool,
    /// Which other annotations have no effect.
    pub(super) ignored: Option<String>,
}

/// Returns whether an annotation with our prefix has a name that lb-linker gives none: a misspelled one.
pub(super) fn is_unknown_annotation(key: &str) -> bool {
    has_no_effect(key) && !OF_LOAD_BALANCERS.contains(&key)
}

/// Returns whether an annotation with our prefix has no effect on an ExternalName Service.
fn has_no_effect(key: &str) -> bool {
    const KNOWN: [&str; 5] = [INSTANCE, SERVICE_UID, SOURCE, STABLE_NAME_UID, TERM];
    key.starts_with(PREFIX) && !KNOWN.contains(&key)
}

/// Returns which annotations of an ExternalName Service are ignored. Those of load balancers are reported only on a
/// Service that follows: another one may have been a load balancer.
fn ignored(service: &Service) -> Option<String> {
    let follows = service.annotation(SOURCE).is_some();
    let is_ignored = |key: &str| if follows { has_no_effect(key) } else { is_unknown_annotation(key) };
    let mut rejection = Rejection::new(RejectedField::Annotation, "the annotation");
    let keys = service.metadata.annotations.iter().flatten().map(|(key, _)| key);
    for key in keys.filter(|key| is_ignored(key)) {
        rejection.reject(key, &format!("ExternalName Services have {SOURCE}"));
    }
    Some(rejection.non_empty()?.to_string())
}

/// The decision about an annotated Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Leave the Service unchanged.
    Leave,
    /// Set `spec.externalName` to this value.
    Write(String),
    /// Leave the Service unchanged although its annotation names a link, for this reason.
    Refuse(String),
}

/// An annotation that names no link, or has a name that lb-linker doesn't know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MalformedAnnotation {
    /// Why the annotation names no link; `None` if there is none.
    pub(super) refusal: Option<String>,
    /// Which other annotations have no effect.
    pub(super) ignored: Option<String>,
    /// `spec.externalName`.
    pub(super) name: String,
}

impl AnnotatedService {
    /// Reads the annotation of a Service. Returns an error if the annotation or its name is malformed, and `None` if
    /// there is none, or if the Service is an external target, is being deleted or isn't of type ExternalName.
    pub(super) fn of(
        service: &Service,
        target_namespace: Option<&str>,
    ) -> Option<Result<Self, MalformedAnnotation>> {
        let (text, ignored) = (service.annotation(SOURCE), ignored(service));
        if text.is_none() && ignored.is_none() {
            return None;
        }
        let key = service.key();
        let external_target =
            target_namespace == Some(key.namespace()) && link_of_labels(&service.metadata).is_some();
        let is_external_name = service.spec.type_.as_deref() == Some(EXTERNAL_NAME);
        if external_target || !is_external_name || service.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let name = service.spec.external_name.clone().unwrap_or_default();
        let Some(text) = text else {
            return Some(Err(MalformedAnnotation { refusal: None, ignored, name }));
        };
        let (namespace, source) = text.trim().split_once('/').unwrap_or((key.namespace(), text.trim()));
        if !names::is_label(namespace) || !names::is_label(source) {
            let refusal = Some(format!("annotation {SOURCE} {} isn't [<namespace>/]<service>", value(text)));
            return Some(Err(MalformedAnnotation { refusal, ignored, name }));
        }
        Some(Ok(Self {
            source: ServiceKey::new(namespace, source),
            version: Precondition::of(&service.metadata),
            name,
            is_written: has_our_field_manager(&service.metadata),
            ignored,
            key,
        }))
    }

    /// Decides about the Service; `gone` is the record of a deleted load balancer.
    pub(super) fn decide(
        &self,
        link: Option<&Link>,
        gone: Option<&DeletedLink>,
        policy: &SyncPolicy,
    ) -> Decision {
        // The withdrawn target of a StableName counts as a deleted load balancer.
        let is_withdrawn = |link: &Link| link.overridden.is_some() && link.service_gone_since().is_some();
        let Some(link) = link.filter(|link| !link.is_gone() && !is_withdrawn(link)) else {
            let moves = policy.on_delete == OnDelete::Tombstone && self.moves_to_tombstone(link, gone);
            return if moves { self.write_if_different(policy.tombstone.clone()) } else { Decision::Leave };
        };
        let Some(target) = &link.target else { return Decision::Leave };
        if link.is_left_out() {
            // The link is from an external target or a snapshot: which namespaces the Service allows may be unknown, or
            // may have changed.
            return Decision::Leave;
        }
        if !self.is_allowed(&link.annotations) {
            let list = match &link.overridden {
                Some(_) => {
                    "StableName (spec.allowFrom) or, without that field, annotation linker.hsj.com/allow-from"
                }
                None => "annotation linker.hsj.com/allow-from",
            };
            return Decision::Refuse(format!(
                "it may not follow {}, whose {list} doesn't list namespace {}",
                self.source,
                self.key.namespace()
            ));
        }
        match external_name(target, &self.name) {
            Some(name) => self.write_if_different(name),
            None => Decision::Refuse(format!("{} has no hostname and no IPv4 address", self.source)),
        }
    }

    /// Returns whether the Service moves to the tombstone when its load balancer is gone. A Service without the
    /// permission to follow stays as it is; if the permission is unknown, a Service that points at the load balancer's
    /// last target counts as permitted.
    fn moves_to_tombstone(&self, link: Option<&Link>, gone: Option<&DeletedLink>) -> bool {
        let followed = |gone: &DeletedLink| {
            external_name(&gone.target, &self.name).as_deref() == Some(self.name.trim_end_matches('.'))
                && gone.annotations.as_ref().is_none_or(|annotations| self.is_allowed(annotations))
        };
        // While the link exists, the tombstone is enforced. Afterwards it is written once, and later writes of other
        // clients are left alone.
        link.is_some_and(|link| self.is_allowed(&link.annotations)) || gone.is_some_and(followed)
    }

    fn is_allowed(&self, annotations: &Annotations) -> bool {
        self.key.namespace() == self.source.namespace() || annotations.allows(self.key.namespace())
    }

    fn write_if_different(&self, wanted: String) -> Decision {
        // The API server keeps a trailing dot that another client has written.
        if wanted == self.name.trim_end_matches('.') { Decision::Leave } else { Decision::Write(wanted) }
    }
}

/// Returns the `spec.externalName` for a target, of several addresses the one in use; `None` if the target can't be
/// expressed.
fn external_name(target: &Target, in_use: &str) -> Option<String> {
    match target {
        Target::Hostname(host) => Some(host.to_string()),
        Target::Addresses(ips) => ipv4_name(ips, Some(in_use)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hickory_proto::rr::Name;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::hostname_policy::HOSTNAME;
    use crate::model::link::LinkState;
    use crate::model::link_override::{Announcement, LinkOverride, OverriddenLink};
    use crate::sync::test_support;

    fn policy(on_delete: OnDelete) -> SyncPolicy {
        SyncPolicy { on_delete, ..test_support::policy(None) }
    }

    fn service(namespace: &str, source: &str) -> Value {
        json!({
            "metadata": {"namespace": namespace, "name": "db", "uid": "u", "resourceVersion": "1",
                "annotations": {SOURCE: source}},
            "spec": {"type": "ExternalName", "externalName": "old.example"},
        })
    }

    fn follower(service: Value) -> Option<Result<AnnotatedService, MalformedAnnotation>> {
        AnnotatedService::of(&serde_json::from_value(service).unwrap(), Some("targets"))
    }

    fn link(target: Option<Target>, allow_from: &[&str]) -> Link {
        let allow_from = allow_from.iter().map(|namespace| (*namespace).into()).collect();
        let annotations = Annotations { allow_from, ..Default::default() };
        Link { target, annotations, ..Link::new(ServiceKey::new("shop", "web"), "u") }
    }

    fn host(name: &str) -> Option<Target> {
        Some(Target::Hostname(Hostname::from(&Name::from_ascii(name).unwrap())))
    }

    fn ips(ips: &[&str]) -> Option<Target> {
        Some(Target::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect()))
    }

    #[test]
    fn misspelled_annotation_is_reported() {
        let with = |annotations: Value| {
            let mut service = service("app", "");
            service["metadata"]["annotations"] = annotations;
            service
        };
        let found = follower(with(json!({"linker.hsj.com/sorce": "web"}))).unwrap().unwrap_err();
        let why = "the annotation \"linker.hsj.com/sorce\" is ignored: ExternalName Services have \
                   linker.hsj.com/source";
        assert_eq!((found.refusal, found.ignored.as_deref()), (None, Some(why)));
        let both = json!({"linker.hsj.com/sorce": "web", SOURCE: "web"});
        assert_eq!(follower(with(both)).unwrap().unwrap().ignored.as_deref(), Some(why));
        let malformed = json!({"linker.hsj.com/sorce": "web", SOURCE: "a/b/c"});
        let malformed = follower(with(malformed)).unwrap().unwrap_err();
        assert!(malformed.refusal.is_some() && malformed.ignored.as_deref() == Some(why));
        let of_load_balancers = json!({HOSTNAME: "a.example", SOURCE: "web"});
        let ignored = follower(with(of_load_balancers)).unwrap().unwrap().ignored.unwrap();
        assert!(ignored.contains("\"linker.hsj.com/hostname\" is ignored"), "{ignored}");
        assert!(follower(with(json!({HOSTNAME: "a.example", "other": ""}))).is_none());
        let mut other = with(json!({"linker.hsj.com/sorce": "web"}));
        other["spec"]["type"] = "ClusterIP".into();
        assert!(follower(other).is_none());
    }

    #[test]
    fn annotation_names_a_service_of_any_namespace() {
        for (source, expected) in [("web", "app/web"), ("shop/web", "shop/web"), (" web ", "app/web")] {
            let found = follower(service("app", source)).unwrap().unwrap();
            assert_eq!(found.source.to_string(), expected);
        }
        for source in ["", "a/b/c", "/web", "shop/", "We b"] {
            let malformed = follower(service("app", source)).unwrap().unwrap_err();
            assert!(malformed.refusal.unwrap().contains("isn't"), "{source}");
            assert_eq!(malformed.name, "old.example");
        }
    }

    #[test]
    fn only_living_external_name_services_follow() {
        let mut other_type = service("app", "web");
        other_type["spec"]["type"] = "ClusterIP".into();
        assert_eq!(follower(other_type), None);
        let mut terminating = service("app", "web");
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(follower(terminating), None);
        let mut external_target = service("targets", "web");
        external_target["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "lb-linker-operator",
            "original-service-name": "web", "original-service-namespace": "shop"});
        assert_eq!(follower(external_target), None);
        assert!(follower(service("targets", "web")).is_some());
    }

    #[test]
    fn service_gets_the_target_if_allowed() {
        let own = follower(service("shop", "web")).unwrap().unwrap();
        let other = follower(service("app", "shop/web")).unwrap().unwrap();
        let delete = policy(OnDelete::Delete);
        let decide_on = |follower: &AnnotatedService, link: Link| follower.decide(Some(&link), None, &delete);
        let write = |name: &str| Decision::Write(name.to_owned());
        assert_eq!(decide_on(&own, link(host("new.example."), &[])), write("new.example"));
        assert_eq!(decide_on(&own, link(host("old.example."), &[])), Decision::Leave);
        assert_eq!(decide_on(&own, link(None, &[])), Decision::Leave, "pending");
        assert_eq!(decide_on(&own, link(ips(&["2001:db8::1", "192.0.2.1"]), &[])), write("192.0.2.1"));
        assert!(matches!(decide_on(&own, link(ips(&["2001:db8::1"]), &[])), Decision::Refuse(_)));
        assert_eq!(own.decide(None, None, &delete), Decision::Leave);
        let left_out = |link| Link { state: LinkState::LeftOut, ..link };
        assert_eq!(decide_on(&own, left_out(link(host("new.example."), &[]))), Decision::Leave);
        assert_eq!(
            decide_on(&other, left_out(link(host("new.example."), &[]))),
            Decision::Leave,
            "it may be allowed"
        );

        assert!(matches!(decide_on(&other, link(host("new.example."), &["b"])), Decision::Refuse(_)));
        for allowed in [&["b", "app"][..], &["*"]] {
            assert_eq!(decide_on(&other, link(host("new.example."), allowed)), write("new.example"));
        }
    }

    #[test]
    fn service_of_a_gone_link_stays_or_moves_to_the_tombstone() {
        let gone = |allow_from| Link { state: LinkState::Gone(Instant::now()), ..link(None, allow_from) };
        let own = follower(service("shop", "web")).unwrap().unwrap();
        let other = follower(service("app", "shop/web")).unwrap().unwrap();
        for on_delete in [OnDelete::Delete, OnDelete::Retain] {
            assert_eq!(own.decide(Some(&gone(&[])), None, &policy(on_delete)), Decision::Leave);
        }
        let tombstone = policy(OnDelete::Tombstone);
        let wanted = Decision::Write("deleted.lb.internal".to_owned());
        assert_eq!(own.decide(Some(&gone(&[])), None, &tombstone), wanted);
        assert_eq!(other.decide(Some(&gone(&["app"])), None, &tombstone), wanted);
        assert_eq!(other.decide(Some(&gone(&[])), None, &tombstone), Decision::Leave);
    }

    #[test]
    fn withdrawn_target_counts_as_a_deleted_load_balancer() {
        let annotations = link(None, &["app"]).annotations;
        let by = LinkOverride { announced: Announcement::Withdrawn, annotations, ..LinkOverride::default() };
        let withdrawn = OverriddenLink { by, service_link: None }.link(&ServiceKey::new("shop", "web"), None);
        let other = follower(service("app", "shop/web")).unwrap().unwrap();
        let moved = Decision::Write("deleted.lb.internal".to_owned());
        assert_eq!(other.decide(Some(&withdrawn), None, &policy(OnDelete::Tombstone)), moved);
        assert_eq!(other.decide(Some(&withdrawn), None, &policy(OnDelete::Delete)), Decision::Leave);
    }

    #[test]
    fn service_of_a_forgotten_link_moves_only_from_its_last_target() {
        let tombstone = policy(OnDelete::Tombstone);
        let moved = Decision::Write("deleted.lb.internal".to_owned());
        let other = follower(service("app", "shop/web")).unwrap().unwrap();
        let own = follower(service("shop", "web")).unwrap().unwrap();
        let seen = |allow_from| Some(link(None, allow_from).annotations);
        let gone = |name, annotations| DeletedLink { target: host(name).unwrap(), annotations };
        for (name, annotations, expected) in [
            ("old.example.", None, &moved),
            ("another.example.", None, &Decision::Leave),
            ("old.example.", seen(&["app"][..]), &moved),
            ("old.example.", seen(&[]), &Decision::Leave),
        ] {
            assert_eq!(other.decide(None, Some(&gone(name, annotations)), &tombstone), *expected, "{name}");
        }
        let gone = gone("old.example.", None);
        assert_eq!(own.decide(None, Some(&gone), &tombstone), moved);
        assert_eq!(own.decide(None, Some(&gone), &policy(OnDelete::Delete)), Decision::Leave);
        let ghost = Link { state: LinkState::Gone(Instant::now()), ..link(None, &[]) };
        assert_eq!(other.decide(Some(&ghost), Some(&gone), &tombstone), moved);
        assert_eq!(other.decide(Some(&ghost), None, &tombstone), Decision::Leave);
    }
}
