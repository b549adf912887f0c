//! Selects the Services that become links.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt};

use crate::model::clusters;
use crate::sync::k8s::annotations::opted;
use crate::sync::k8s::labels::MANAGED_BY;
use crate::sync::k8s::service::Service;
use crate::sync::removal::facts::Membership;

/// The load balancer class of Services without a class.
pub const NO_CLASS: &str = "none";

#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Selects only Services that opt in, instead of all that don't opt out.
    pub annotated_only: bool,
    /// Selects only Services in these namespaces; empty for all.
    pub namespaces: BTreeSet<String>,
    /// Selects only Services with these labels.
    pub labels: Selector,
    /// Selects only Services with one of these values of `spec.loadBalancerClass`, where [`NO_CLASS`] means none; empty for
    /// all.
    pub classes: BTreeSet<String>,
    /// The prefixes of annotations of others that count, too: with them an object may be another program's.
    pub annotation_prefixes: Vec<String>,
    /// The target namespace: external targets are never links themselves.
    pub target_namespace: Option<String>,
}

impl Selection {
    #[must_use]
    pub fn selects(&self, service: &Service) -> bool {
        self.membership(service) == Membership::Selected
    }

    #[must_use]
    pub fn membership(&self, service: &Service) -> Membership {
        let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
        let opted = self.opted(&service.metadata);
        let external_target = self.target_namespace.as_deref() == Some(namespace)
            && service.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
        if !service.is_living_load_balancer() || external_target {
            return Membership::Gone;
        }
        if opted == Some("false") {
            return Membership::OptedOut;
        }
        let selected = self.watches(namespace)
            && (!self.annotated_only || opted == Some("true"))
            && self.matches_labels(&service.metadata)
            && self.matches_class(service.spec.load_balancer_class.as_deref());
        if selected { Membership::Selected } else { Membership::NotSelected }
    }

    /// Returns whether an object that isn't a Service may have names: whether it is watched, and opts in or out.
    #[must_use]
    pub fn takes(&self, metadata: &ObjectMeta) -> bool {
        let opted = self.opted(metadata);
        self.watches(metadata.namespace.as_deref().unwrap_or("default"))
            && opted != Some("false")
            && (!self.annotated_only || opted == Some("true"))
    }

    /// Returns the value of the annotation with which an object opts in or out.
    #[must_use]
    pub fn opted<'a>(&self, metadata: &'a ObjectMeta) -> Option<&'a str> {
        opted(metadata, &self.annotation_prefixes)
    }

    /// Returns whether the label selector selects an object with this metadata.
    #[must_use]
    pub fn matches_labels(&self, metadata: &ObjectMeta) -> bool {
        self.labels.matches(metadata.labels.as_ref().unwrap_or(&BTreeMap::new()))
    }

    /// Returns whether Services with this `spec.loadBalancerClass` are selected.
    #[must_use]
    pub fn matches_class(&self, class: Option<&str>) -> bool {
        self.classes.is_empty()
            || self.classes.contains(class.filter(|class| !class.is_empty()).unwrap_or(NO_CLASS))
    }

    /// Returns whether the objects of a namespace are watched; of remote clusters, those of all namespaces are.
    #[must_use]
    pub fn watches(&self, namespace: &str) -> bool {
        self.namespaces.is_empty()
            || self.namespaces.contains(namespace)
            || clusters::cluster_of(namespace).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sync::k8s::annotations::MANAGED;

    fn service(namespace: &str, metadata: serde_json::Value) -> Service {
        let mut service = json!({"metadata": metadata, "spec": {"type": "LoadBalancer"}});
        service["metadata"]["namespace"] = namespace.into();
        serde_json::from_value(service).unwrap()
    }

    fn annotated(value: &str) -> Service {
        service("default", json!({"annotations": {MANAGED: value}}))
    }

    #[test]
    fn services_opt_in_or_out_by_annotation() {
        let all = Selection::default();
        let some = Selection { annotated_only: true, ..Default::default() };
        let plain = service("default", json!({}));
        for (service, by_all, by_annotated) in [
            (&plain, true, false),
            (&annotated("true"), true, true),
            (&annotated("false"), false, false),
            (&annotated("yes"), true, false),
        ] {
            assert_eq!(all.selects(service), by_all, "{service:?}");
            assert_eq!(some.selects(service), by_annotated, "{service:?}");
        }
    }

    #[test]
    fn namespaces_and_labels_restrict_the_selection() {
        let labels = Selector::from_iter([("tier", "web")]);
        let selection = Selection { labels, namespaces: ["a".to_owned()].into(), ..Default::default() };
        assert!(selection.selects(&service("a", json!({"labels": {"tier": "web"}}))));
        assert!(!selection.selects(&service("a", json!({"labels": {"tier": "db"}}))));
        assert!(!selection.selects(&service("a", json!({}))));
        assert!(!selection.selects(&service("b", json!({"labels": {"tier": "web"}}))));
    }

    #[test]
    fn load_balancer_classes_restrict_the_selection() {
        let selects = |classes: &[&str], spec: serde_json::Value| {
            let classes = classes.iter().map(|class| (*class).to_owned()).collect();
            let mut service = service("a", json!({}));
            service.spec = serde_json::from_value(spec).unwrap();
            Selection { classes, ..Default::default() }.selects(&service)
        };
        let of = |class: &str| json!({"type": "LoadBalancer", "loadBalancerClass": class});
        let without = || json!({"type": "LoadBalancer"});
        assert!(selects(&[], of("service.k8s.aws/nlb")) && selects(&[], without()));
        assert!(selects(&["tailscale", "service.k8s.aws/nlb"], of("service.k8s.aws/nlb")));
        assert!(!selects(&["tailscale"], of("service.k8s.aws/nlb")) && !selects(&["tailscale"], without()));
        assert!(
            selects(&["none"], without())
                && selects(&["none"], of(""))
                && !selects(&["none"], of("tailscale"))
        );
    }

    #[test]
    fn external_target_is_never_a_link() {
        let selection = Selection { target_namespace: Some("targets".into()), ..Default::default() };
        let labels = json!({"labels": {"app.kubernetes.io/managed-by": "lb-linker-operator",
            "original-service-name": "web", "original-service-namespace": "default"}});
        assert!(!selection.selects(&service("targets", labels.clone())));
        let managed = json!({"labels": {"app.kubernetes.io/managed-by": "lb-linker-operator"}});
        assert!(!selection.selects(&service("targets", managed)));
        assert!(selection.selects(&service("elsewhere", labels)));
        assert!(selection.selects(&service("targets", json!({}))));
    }
}
