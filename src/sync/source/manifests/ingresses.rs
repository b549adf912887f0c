//! Reads the Ingresses of manifests.

use std::collections::HashSet;
use std::sync::Arc;

use serde_saphyr::Spanned;

use super::ManifestSource;
use super::reader::{FieldError, Reader};
use super::schema;
use super::strings::SourceText;
use super::tree::{Node, place};
use crate::model::excerpt::sentence;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::{Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::store::{OnGone, Store};
use crate::sync::events::RegardingKind;
use crate::sync::source::ingress::Ingress;
use crate::sync::source::names::object::Rules;
use crate::sync::source::names::shared::ObjectId;
use crate::sync::source::names::source::NameSource;
use crate::sync::source::selection::Selection;

/// The apiVersion of Ingresses.
pub(super) const API_VERSION: &str = "networking.k8s.io/v1";

/// Returns an Ingress with the fields that lb-linker needs.
///
/// # Errors
/// All fields that kubectl would refuse.
pub(super) fn read(content: &SourceText<'_>, object: &Spanned<Node>) -> Result<Ingress, Vec<FieldError>> {
    let (mut reader, tree) = Reader::read(content, &schema::INGRESS, object)?;
    let mut ingress: Ingress = serde_json::from_value(tree).map_err(|error| {
        vec![FieldError { position: place(object), message: sentence(&error.to_string()).to_string() }]
    })?;
    if ingress.metadata.name.as_deref().unwrap_or_default().is_empty() {
        reader.refuse_field("metadata.name", "metadata.name is missing");
    }
    // The resourceVersion of an exported manifest doesn't change with the file.
    ingress.metadata.resource_version = None;
    reader.check_label("metadata.namespace", key(&ingress).namespace());
    reader.finish(ingress)
}

pub(super) fn key(ingress: &Ingress) -> ServiceKey {
    ingress.id().key
}

/// Returns the number of Ingresses with names in the zones, and what of each selected one is denied or ignored.
pub(super) fn check(
    ingresses: Vec<Ingress>,
    selection: &Selection,
    policy: &HostnamePolicy,
    zones: &[Zone],
) -> (usize, Vec<String>) {
    let (mut number, mut rejections) = (0, Vec::new());
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.iter().cloned()));
    let rules = Rules { zones: zones.into(), policy: Arc::new(policy.clone()), store };
    let selected = ingresses.into_iter().filter(|ingress| selection.takes(&ingress.metadata));
    for ingress in selected.filter(|_| zones.iter().any(|zone| zone.has(&Source::INGRESSES))) {
        let (names, _, found) = ingress.observe(&rules, None);
        number += usize::from(!names.is_empty());
        // Whether such a target is allowed depends on the objects of all files.
        let found = found.iter().filter(|_| !ingress.has_own_target(policy));
        let key = key(&ingress);
        rejections.extend(found.map(|rejection| format!("Ingress {key}: {rejection}")));
    }
    (number, rejections)
}

impl ManifestSource {
    /// Gives the names of the Ingresses to the store, if a zone has them.
    pub(super) fn take_ingresses(&self) {
        let zones = self.store.zones();
        if !zones.iter().any(|zone| zone.has(&Source::INGRESSES)) {
            return self.store.forget_source(&Source::INGRESSES);
        }
        let ingresses = self.files.lock().ingresses();
        let mut names = self.ingresses.lock();
        names.state.set_rules(zones, Arc::clone(&self.hostname_policy));
        let present: HashSet<ServiceKey> = ingresses.iter().map(key).collect();
        let known = names.source.keys(RegardingKind::Ingress, &names.state);
        for key in known.difference(&present).cloned() {
            names.remove(&ObjectId { key, kind: RegardingKind::Ingress });
        }
        ingresses.into_iter().for_each(|ingress| names.take(ingress));
        names.state.publish();
        names.end_lists();
    }
}
