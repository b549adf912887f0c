//! Names from Ingresses.

use std::collections::HashSet;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::names::object::NamedObject;
use crate::model::owner::{Source, Zone};
use crate::sync::events::RegardingKind;
use crate::sync::k8s::annotations::annotation;
use crate::sync::k8s::service::{IngressEntry, Status, null_is_default, slim_metadata};
use crate::sync::k8s::slim_resource::slim_resource;
use crate::sync::k8s::watch::INGRESSES;

/// The annotation with the class of an Ingress without `spec.ingressClassName`.
const CLASS: &str = "kubernetes.io/ingress.class";

slim_resource!(Ingress, NamespaceResourceScope, "Ingress", "networking.k8s.io", "ingresses");

/// An Ingress, with only the fields that names need.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Ingress {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: Spec,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    ingress_class_name: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    rules: Vec<Rule>,
    #[serde(default, deserialize_with = "null_is_default")]
    tls: Vec<Tls>,
}

#[derive(Clone, Debug, Deserialize)]
struct Rule {
    host: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Tls {
    #[serde(default, deserialize_with = "null_is_default")]
    hosts: Vec<String>,
}

impl NamedObject for Ingress {
    const SOURCE: Source = Source::INGRESSES;
    const KIND: RegardingKind = RegardingKind::Ingress;
    const ONE: &'static str = "an Ingress";
    const MANY: &'static str = "Ingresses";
    const WATCH: &'static str = INGRESSES;
    const HINT: &'static str = "deploy/sources/ grants the permission";

    fn hosts(&self) -> Vec<&str> {
        let Spec { rules, tls, .. } = &self.spec;
        let of_rules = rules.iter().filter_map(|rule| rule.host.as_deref());
        let of_tls = tls.iter().flat_map(|tls| &tls.hosts).map(String::as_str);
        let mut seen = HashSet::new();
        of_rules.chain(of_tls).filter(|host| !host.is_empty() && seen.insert(*host)).collect()
    }

    fn has_class_of(&self, zone: &Zone) -> bool {
        let class = self.spec.ingress_class_name.as_deref().or_else(|| annotation(&self.metadata, CLASS));
        let classes = &zone.ingress_classes;
        classes.is_empty() || class.is_some_and(|class| classes.iter().any(|known| **known == *class))
    }

    fn status(&self) -> &[IngressEntry] {
        &self.status.load_balancer.ingress
    }
}
