//! Which objects have names in zones of the plugin *k8s_gateway*.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::SelectorExt;

use crate::label_selector::selector;
use crate::model::owner::{Source, Zone};

/// The label with which an object opts out.
const IGNORE: &str = "k8s-gateway.dns/ignore";

/// Returns whether an object has opted out of the zones of *k8s_gateway*.
#[must_use]
pub fn is_ignored(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.get(IGNORE).is_some_and(|value| value == "true"))
}

/// Returns whether a load balancer with this metadata has names in a zone of *k8s_gateway*: if one of the zone's label
/// selectors selects it.
#[must_use]
pub fn has_names_of_service(zone: &Zone, metadata: &ObjectMeta) -> bool {
    let selectors = zone.k8s_gateway.as_ref().map(|own| &own.service_selectors[..]).unwrap_or_default();
    let labels = metadata.labels.clone().unwrap_or_default();
    // The Corefile has valid selectors alone.
    let selects = |text: &str| selector(text).is_ok_and(|selector| selector.matches(&labels));
    zone.has(&Source::SERVICES)
        && !is_ignored(metadata)
        && (selectors.is_empty() || selectors.iter().any(|text| selects(text)))
}
