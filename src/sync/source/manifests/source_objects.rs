//! Reads the objects of manifests that sources of names take: Ingresses, those of Gateway API, and DNSEndpoints.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_saphyr::Spanned;

use super::reader::{FieldError, Reader};
use super::schema::{self, Schema};
use super::strings::SourceText;
use super::tree::{Node, place};
use super::{ManifestFiles, ManifestSource};
use crate::model::excerpt::sentence;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::{Source, Zone};
use crate::store::{OnGone, Store};
use crate::sync::events::RegardingKind;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::source::dns_endpoint::{DnsEndpoint, DnsEndpoints};
use crate::sync::source::gateway::types::{Gateway, ListenerSet, Object, RouteObject};
use crate::sync::source::gateway::{self, Gateways};
use crate::sync::source::ingress::{Ingress, Ingresses};
use crate::sync::source::names::object::{Rules, id_of};
use crate::sync::source::names::shared::ObjectId;
use crate::sync::source::names::source::{NameSource, Names, WatchedKind};
use crate::sync::source::selection::Selection;

/// An object that a source takes.
#[derive(Clone, Debug)]
pub enum SourceObject {
    Ingress(Box<Ingress>),
    Gateway(Box<Object>),
    DnsEndpoint(Box<DnsEndpoint>),
}

impl SourceObject {
    pub(super) fn id(&self) -> ObjectId {
        match self {
            Self::Ingress(ingress) => ingress.id(),
            Self::Gateway(object) => id_of(object.kind(), object.metadata()),
            Self::DnsEndpoint(object) => object.id(),
        }
    }
}

/// The kinds of all sources.
fn kinds() -> impl Iterator<Item = &'static WatchedKind> {
    Ingresses::KINDS.iter().chain(Gateways::KINDS).chain(DnsEndpoints::KINDS)
}

/// Returns the kind of a source's objects; `None` for other objects.
pub(super) fn kind_of(api_version: &str, kind: &str) -> Option<RegardingKind> {
    let is_it = |known: &&WatchedKind| {
        let (own, name) = known.kind.api();
        let group = |api_version: &str| api_version.split('/').next() == own.split('/').next();
        let version = api_version.split_once('/').map(|(_, version)| version);
        let has_version = version.is_some_and(|version| known.versions.contains(&version));
        name == kind && (own == api_version || group(api_version) && has_version)
    };
    kinds().find(is_it).map(|known| known.kind)
}

/// Returns the names of the kinds of a group and version, and of all kinds without one.
pub(super) fn kind_names(api_version: Option<&str>) -> Vec<&'static str> {
    let names = kinds().map(|known| known.kind.api().1);
    let is_of = |name: &&str| api_version.is_none_or(|version| kind_of(version, name).is_some());
    names.filter(is_of).collect()
}

/// Returns an object with the fields that lb-linker needs.
///
/// # Errors
/// All fields that kubectl would refuse.
pub(super) fn read(
    content: &SourceText<'_>,
    object: &Spanned<Node>,
    kind: RegardingKind,
) -> Result<SourceObject, Vec<FieldError>> {
    let of_gateway = |object| SourceObject::Gateway(Box::new(object));
    match kind {
        RegardingKind::Gateway => {
            read_as(content, object, &schema::GATEWAY, |read: Gateway| of_gateway(Object::Gateway(read)))
        }
        RegardingKind::ListenerSet => read_as(content, object, &schema::LISTENER_SET, |read: ListenerSet| {
            of_gateway(Object::ListenerSet(read))
        }),
        RegardingKind::HttpRoute | RegardingKind::GrpcRoute | RegardingKind::TlsRoute => {
            read_as(content, object, &schema::ROUTE, |read: RouteObject| {
                of_gateway(Object::Route(kind, read))
            })
        }
        RegardingKind::DnsEndpoint => {
            read_as(content, object, &schema::DNS_ENDPOINT, |read| SourceObject::DnsEndpoint(Box::new(read)))
        }
        _ => read_as(content, object, &schema::INGRESS, |read| SourceObject::Ingress(Box::new(read))),
    }
}

fn read_as<T: DeserializeOwned>(
    content: &SourceText<'_>,
    object: &Spanned<Node>,
    schema: &Schema,
    of: impl FnOnce(T) -> SourceObject,
) -> Result<SourceObject, Vec<FieldError>> {
    let (mut reader, mut tree) = Reader::read(content, schema, object)?;
    // The resourceVersion of an exported manifest doesn't change with the file.
    if let Some(metadata) = tree.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    let read = of(serde_json::from_value(tree).map_err(|error| {
        vec![FieldError { position: place(object), message: sentence(&error.to_string()).to_string() }]
    })?);
    let key = read.id().key;
    if key.name().is_empty() {
        reader.refuse_field("metadata.name", "metadata.name is missing");
    }
    reader.check_label("metadata.namespace", key.namespace());
    reader.finish(read)
}

/// Returns the objects of each source.
fn by_source(objects: Vec<SourceObject>) -> (Vec<Ingress>, Vec<Object>, Vec<DnsEndpoint>) {
    let (mut ingresses, mut of_gateways, mut dns_endpoints) = (Vec::new(), Vec::new(), Vec::new());
    for object in objects {
        match object {
            SourceObject::Ingress(ingress) => ingresses.push(*ingress),
            SourceObject::Gateway(object) => of_gateways.push(*object),
            SourceObject::DnsEndpoint(object) => dns_endpoints.push(*object),
        }
    }
    (ingresses, of_gateways, dns_endpoints)
}

/// Returns the number of objects with names in the zones, of each source that has some, and what of each selected
/// object is denied or ignored.
pub(super) fn check(
    objects: Vec<SourceObject>,
    selection: &Selection,
    policy: &HostnamePolicy,
    zones: &[Zone],
) -> (Vec<(&'static str, usize)>, Vec<String>) {
    let (mut numbers, mut rejections) = (BTreeMap::new(), Vec::new());
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.iter().cloned()));
    let rules = Rules { zones: zones.into(), policy: Arc::new(policy.clone()), store };
    let (ingresses, of_gateways, dns_endpoints) = by_source(objects);
    let has = |source| zones.iter().any(|zone| zone.has(&source));
    let mut found = Vec::new();
    let selected = ingresses.into_iter().filter(|ingress| selection.takes(&ingress.metadata));
    for ingress in selected.filter(|_| has(Source::INGRESSES)) {
        let (names, _, mut unusable) = ingress.observe(&rules, None);
        // Whether such a target is allowed depends on the objects of all files.
        unusable.retain(|_| !ingress.has_own_target(policy));
        found.push((Ingresses::MANY, ingress.id(), !names.is_empty(), unusable));
    }
    if has(Source::GATEWAYS) {
        let of_gateways = gateway::check(of_gateways, selection, &rules).into_iter();
        found.extend(of_gateways.map(|(id, has_names, unusable)| (Gateways::MANY, id, has_names, unusable)));
    }
    let selected = dns_endpoints.into_iter().filter(|object| selection.takes(&object.metadata));
    for object in selected.filter(|_| has(Source::DNS_ENDPOINTS)) {
        let (has_names, unusable) = object.check(&rules);
        found.push((DnsEndpoints::MANY, object.id(), has_names, unusable));
    }
    for (many, ObjectId { key, kind }, has_names, unusable) in found {
        if has_names {
            *numbers.entry(many).or_default() += 1;
        }
        rejections.extend(unusable.iter().map(|rejection| format!("{} {key}: {rejection}", kind.api().1)));
    }
    (numbers.into_iter().collect(), rejections)
}

/// The names of the objects of all files.
pub struct SourceNames {
    ingresses: Names<Ingresses>,
    gateways: Names<Gateways>,
    dns_endpoints: Names<DnsEndpoints>,
}

impl SourceNames {
    #[must_use]
    pub fn new(store: &Arc<Store>, selection: &Arc<Selection>, link_reporter: &LinkReporter) -> Self {
        Self {
            ingresses: names_of(store, selection, link_reporter),
            gateways: names_of(store, selection, link_reporter),
            dns_endpoints: names_of(store, selection, link_reporter),
        }
    }
}

fn names_of<S: NameSource + Default>(
    store: &Arc<Store>,
    selection: &Arc<Selection>,
    link_reporter: &LinkReporter,
) -> Names<S> {
    Names::new(S::default(), None, Arc::clone(store), Arc::clone(selection), link_reporter.clone())
}

impl ManifestSource {
    /// Gives the names of the objects to the store, if a zone has them.
    pub(super) fn take_source_objects(&self) {
        let objects = self.files.lock().source_objects();
        let present: HashSet<ObjectId> = objects.iter().map(SourceObject::id).collect();
        let (ingresses, of_gateways, dns_endpoints) = by_source(objects);
        let mut names = self.source_names.lock();
        self.take(&mut names.ingresses, &present, ingresses);
        self.take(&mut names.gateways, &present, of_gateways);
        self.take(&mut names.dns_endpoints, &present, dns_endpoints);
    }

    fn take<S: NameSource>(
        &self,
        names: &mut Names<S>,
        present: &HashSet<ObjectId>,
        objects: Vec<S::Object>,
    ) {
        let zones = self.store.zones();
        if !zones.iter().any(|zone| zone.has(&S::SOURCE)) {
            return self.store.forget_source(&S::SOURCE);
        }
        names.set_rules(zones, Arc::clone(&self.hostname_policy));
        for WatchedKind { kind, .. } in S::KINDS {
            let known = names.source.keys(*kind, &names.state).into_iter();
            let known = known.map(|key| ObjectId { key, kind: *kind });
            known.filter(|id| !present.contains(id)).for_each(|id| names.remove(&id));
        }
        objects.into_iter().for_each(|object| names.take(object));
        names.end_lists();
    }
}

impl ManifestFiles {
    /// Returns the objects of all files; of several of a kind with the same name, the first.
    fn source_objects(&self) -> Vec<SourceObject> {
        let mut seen = HashSet::new();
        let objects = self.by_name.values().flat_map(|file| &file.objects.of_sources);
        objects.filter(|object| seen.insert(object.id())).cloned().collect()
    }

    /// As [`check`], for the objects of all files.
    pub(super) fn check_source_objects(
        &self,
        selection: &Selection,
        policy: &HostnamePolicy,
        zones: &[Zone],
    ) -> (Vec<(&'static str, usize)>, Vec<String>) {
        check(self.source_objects(), selection, policy, zones)
    }
}
