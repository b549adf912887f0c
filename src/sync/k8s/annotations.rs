//! The annotations that load balancers and the other objects with names have in common.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::model::hostname_policy::HOSTNAME;
use crate::model::names;
use crate::model::rejection::{ListEntries, RejectedField, Rejection};

/// The annotation with the TTL of the object's records, in seconds.
pub(crate) const TTL: &str = "linker.hsj.com/ttl";
/// The annotation with the namespaces whose Services, load balancers and StableNames may refer to the object's names.
pub(crate) const ALLOW_FROM: &str = "linker.hsj.com/allow-from";
/// The annotation with which an object opts in (`"true"`) or out (`"false"`).
pub const MANAGED: &str = "linker.hsj.com/managed";
/// The prefix of all annotations of lb-linker.
pub(crate) const PREFIX: &str = "linker.hsj.com/";
/// The maximum TTL in seconds that an object may request: caches keep an old target for that long.
pub(crate) const MAX_TTL: u32 = 3600;

pub(crate) fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the TTL that the object requests; adds an invalid one to `unusable`.
pub(crate) fn ttl(metadata: &ObjectMeta, unusable: &mut Vec<Rejection>) -> Option<u32> {
    let text = annotation(metadata, TTL)?;
    if let Some(ttl) = text.parse().ok().filter(|ttl| *ttl <= MAX_TTL) {
        return Some(ttl);
    }
    let mut rejection = Rejection::new(RejectedField::Annotation, format!("annotation {TTL}"));
    rejection.reject(text, &format!("not a number of seconds from 0 to {MAX_TTL}"));
    unusable.push(rejection);
    None
}

/// Adds an invalid value of [`MANAGED`] to `unusable`.
pub(crate) fn check_managed(metadata: &ObjectMeta, unusable: &mut Vec<Rejection>) {
    if let Some(text) = annotation(metadata, MANAGED).filter(|text| !["true", "false"].contains(text)) {
        let mut rejection = Rejection::new(RejectedField::Annotation, format!("annotation {MANAGED}"));
        rejection.reject(text, "neither true nor false");
        unusable.push(rejection);
    }
}

/// Returns the namespaces of [`ALLOW_FROM`], sorted and without duplicates, and the invalid part of the annotation.
pub(crate) fn allow_from(metadata: &ObjectMeta) -> (Arc<[Arc<str>]>, Option<Rejection>) {
    let ListEntries { accepted, ignored } =
        ListEntries::of(annotation(metadata, ALLOW_FROM).unwrap_or_default());
    let mut rejection =
        Rejection::new(RejectedField::Annotation, format!("the namespace in annotation {ALLOW_FROM}"));
    rejection.ignore(ignored, ListEntries::LIMIT);
    let mut namespaces: Vec<Arc<str>> = Vec::new();
    for namespace in accepted {
        if namespace != "*" && !names::is_label(namespace) {
            rejection.reject(namespace, "neither the name of a namespace nor *");
        } else if !namespaces.iter().any(|known| **known == *namespace) {
            namespaces.push(namespace.into());
        }
    }
    namespaces.sort_unstable();
    (shared(namespaces), rejection.non_empty())
}

/// Returns the annotations with our prefix that objects of the kind `what` can't have: mistyped ones, or those of other
/// objects.
pub(crate) fn unknown(
    metadata: &ObjectMeta,
    hostname_annotations: &[String],
    what: &str,
) -> Option<Rejection> {
    const KNOWN: [&str; 4] = [ALLOW_FROM, HOSTNAME, MANAGED, TTL];
    let mut rejection = Rejection::new(RejectedField::Annotation, "the annotation");
    let is_known = |key: &String| KNOWN.contains(&&**key) || hostname_annotations.contains(key);
    let ours = metadata.annotations.iter().flatten().map(|(key, _)| key);
    for key in ours.filter(|key| key.starts_with(PREFIX) && !is_known(key)) {
        rejection.reject(key, &format!("{what} have {}", KNOWN.join(", ")));
    }
    rejection.non_empty()
}

/// Returns a list that links share. An empty one, as of nearly all objects, takes no memory.
pub(crate) fn shared(list: Vec<Arc<str>>) -> Arc<[Arc<str>]> {
    if list.is_empty() { Arc::default() } else { list.into() }
}
