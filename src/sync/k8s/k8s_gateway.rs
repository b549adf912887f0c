//! Which objects have names in zones of the plugin *k8s_gateway*.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::SelectorExt;

use crate::label_selector::selector;
use crate::model::owner::{K8sGateway, Source, Zone};

/// The label with which an object opts out.
const IGNORE: &str = "k8s-gateway.dns/ignore";

/// Returns whether an object has opted out of the zones of *k8s_gateway*.
#[must_use]
pub fn is_ignored(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.get(IGNORE).is_some_and(|value| value == "true"))
}

/// Returns whether a zone is one of *k8s_gateway* in which a load balancer with this metadata has names: if one of its
/// label selectors selects the load balancer.
#[must_use]
pub fn has_names_of_service(zone: &Zone, metadata: &ObjectMeta) -> bool {
    let Some(K8sGateway { service_selectors: selectors, .. }) = &zone.k8s_gateway else { return false };
    let none = BTreeMap::new();
    let labels = metadata.labels.as_ref().unwrap_or(&none);
    // The Corefile has valid selectors alone.
    let selects = |text: &str| selector(text).is_ok_and(|selector| selector.matches(labels));
    zone.has(&Source::SERVICES)
        && !is_ignored(metadata)
        && (selectors.is_empty() || selectors.iter().any(|text| selects(text)))
}
