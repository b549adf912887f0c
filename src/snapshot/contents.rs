//! Converts links, and the flags, to the form that a snapshot keeps.

use std::sync::Arc;

use hickory_proto::rr::Name;

use super::format::{RecordedFlags, RecordedZone, SavedLink, SavedOverride, SavedRecords, SavedTarget};
use crate::model::hostname::Hostname;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, Target};
use crate::model::names;
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::records::{RecordData, RecordSet, Records};
use crate::sync::source::selection::Selection;

/// Returns what a snapshot keeps of the links and of the other owners of a store.
pub(crate) fn saved_owners<'a>(
    links: &'a [Arc<Link>],
    others: &'a [(Owner, Claims, Arc<Link>)],
) -> impl Iterator<Item = SavedLink> + 'a {
    let others = others.iter().map(|(owner, claims, target)| saved_other(owner, claims, target));
    links.iter().map(|link| saved(link)).chain(others)
}

/// Returns what a snapshot keeps of an owner that isn't a Service.
fn saved_other(Owner { source, key }: &Owner, claims: &Claims, target: &Link) -> SavedLink {
    let (namespace, name) = key.parts();
    let behind = (target.key != *key).then(|| target.key.parts());
    SavedLink {
        cluster: source.cluster.as_deref().map(str::to_owned),
        kind: Some(source.kind.clone().into_owned()),
        namespace: namespace.to_owned(),
        service: name.to_owned(),
        behind: behind.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
        created: claims.created,
        hostnames: claims.names.iter().map(ToString::to_string).collect(),
        external_target: String::new(),
        ..saved(target)
    }
}

/// Returns what a snapshot keeps of a link.
pub(crate) fn saved(link: &Link) -> SavedLink {
    let texts = |texts: &[Arc<str>]| texts.iter().map(ToString::to_string).collect();
    let (namespace, service) = link.key.parts();
    SavedLink {
        cluster: None,
        kind: None,
        behind: None,
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        uid: link.uid.to_string(),
        created: link.created,
        target: link.target.as_ref().filter(|_| !link.is_gone()).and_then(saved_target),
        ttl: link.annotations.ttl,
        hostnames: texts(&link.hostnames),
        allow_from: texts(&link.annotations.allow_from),
        ports: link.ports.to_vec(),
        external_target: link.external_target().into_owned(),
        lacks_hostnames: false,
        overridden_by: link.active_override().map(|by| SavedOverride {
            uid: by.uid.to_string(),
            source: by.source.to_string(),
            service_uid: by.service_uid.to_string(),
        }),
        records: link.records.iter().flat_map(|records| records.sets()).map(saved_records).collect(),
    }
}

fn saved_records(RecordSet { kind, ttl, data }: &RecordSet) -> SavedRecords {
    SavedRecords { kind: *kind, ttl: *ttl, data: data.iter().map(ToString::to_string).collect() }
}

/// Returns records as [`saved`] writes them, without invalid ones.
pub(super) fn records(saved: &[SavedRecords]) -> Records {
    let mut all = Records::default();
    for SavedRecords { kind, ttl, data } in saved {
        for data in data.iter().filter_map(|text| RecordData::parse(*kind, text).ok()) {
            all.add(*kind, *ttl, data);
        }
    }
    all
}

fn saved_target(target: &Target) -> Option<SavedTarget> {
    match target {
        Target::Hostname(host) => {
            let text = host.to_string();
            // Unusual characters are escaped; such a text can't always be parsed to the same name.
            (hostname(&text).as_ref() == Some(host)).then_some(SavedTarget::Hostname(text))
        }
        Target::Addresses(ips) => Some(SavedTarget::Addresses(ips.to_vec())),
    }
}

/// Parses a hostname as [`saved`] writes it; `None` for the root and for invalid names.
pub(super) fn hostname(text: &str) -> Option<Hostname> {
    let mut name = Name::from_ascii(text).ok().filter(|name| !name.is_root())?;
    name.set_fqdn(true);
    Some(Hostname::from(&name))
}

/// Returns the flags that a snapshot records.
pub(crate) fn recorded_flags(
    selection: &Selection,
    policy: &HostnamePolicy,
    zones: &[Zone],
) -> RecordedFlags {
    let mut hostname_annotations = policy.hostname_annotations.clone();
    hostname_annotations.sort_unstable();
    RecordedFlags {
        annotated_only: selection.annotated_only,
        selector: selection.labels.to_string(),
        classes: selection.classes.clone(),
        hostname_annotations,
        annotation_prefixes: policy.annotation_prefixes.clone(),
        zones: zones.iter().filter(|zone| has_classes(zone)).map(recorded_zone).collect(),
    }
}

fn has_classes(zone: &Zone) -> bool {
    zone.has(&Source::INGRESSES) || zone.has(&Source::GATEWAYS)
}

fn recorded_zone(zone: &Zone) -> RecordedZone {
    let texts = |classes: &[Box<str>]| classes.iter().map(ToString::to_string).collect();
    RecordedZone {
        origin: names::text(&zone.origin),
        ingress_classes: texts(&zone.ingress_classes),
        gateway_classes: texts(&zone.gateway_classes),
    }
}

/// Returns a zone as [`recorded_flags`] writes it, with what is known of it.
pub(super) fn zone(RecordedZone { origin, ingress_classes, gateway_classes }: &RecordedZone) -> Zone {
    let classes = |texts: &[String]| texts.iter().map(|class| class.as_str().into()).collect();
    Zone {
        origin: names::wire_of(origin).unwrap_or_default().into(),
        apex: Box::default(),
        cluster: None,
        sources: Vec::new(),
        ingress_classes: classes(ingress_classes),
        gateway_classes: classes(gateway_classes),
        k8s_gateway: None,
    }
}
