//! Restores the links of a snapshot into a store, as the present flags and policies allow.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::warn;

use super::contents::{hostname, records, zone};
use super::format::{SavedLink, SavedTarget, Snapshot};
use super::rules::has_all_classes;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Annotations, Ingress, Link, ObservedService, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::store::change_time::unix_time;
use crate::store::{OnGone, Store};
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::set_override;

/// How far the time of the last change may be ahead of the clock, in seconds: the clock may have been set back since.
const MAX_AHEAD: u64 = 7 * 24 * 3600;

/// A store with the links of a snapshot.
#[derive(Debug)]
pub struct Restored {
    pub store: Store,
    /// The number of links in the snapshot.
    pub all: usize,
    /// The number of links with a target or records.
    pub answered: usize,
    /// The number of links that the present flags leave out, or whose target they deny.
    pub denied: usize,
}

/// Returns the links of a snapshot as the present flags allow them, with their names in these zones. Takes the snapshot,
/// so that each link is freed once it is in the store.
#[must_use]
pub fn restore(
    snapshot: Snapshot,
    selection: &Selection,
    policy: &HostnamePolicy,
    zones: &[Zone],
) -> Restored {
    let store = Store::new(OnGone::Dropped).with_zones(zones.iter().cloned());
    store.continue_at(snapshot.head.serial);
    let zones_then: Vec<Zone> = snapshot.head.recorded_flags.zones.iter().map(zone).collect();
    let is_of_class = |link: &SavedLink| {
        let source = owner(link).source;
        link.hostnames.iter().all(|name| has_all_classes(&source, name, &zones_then, zones))
    };
    let is_selected = |link: &SavedLink| {
        let namespace = &link.namespace;
        let is_watched = selection.namespaces.is_empty() || selection.namespaces.contains(namespace);
        (link.cluster.is_some() || is_watched) && (link.is_service() || is_of_class(link))
    };
    let last_change = snapshot.head.last_change;
    let all = snapshot.links.len();
    // A hostname that the snapshot lacks may lie below a wildcard of another link: no wildcard is restored then.
    let lacks_hostnames = snapshot.links.iter().any(|link| link.lacks_hostnames && link.is_service());
    let links: Vec<SavedLink> = snapshot.links.into_iter().filter(is_selected).collect();
    let mut denied = all - links.len();
    let granted = |link: &SavedLink| {
        let names = link.hostnames.iter().filter(|name| !lacks_hostnames || !name.starts_with("*."));
        let names: Vec<Arc<str>> = names.map(|name| Arc::from(&**name)).collect();
        if owner(link).source.is_like(&Source::GATEWAYS) {
            // The namespace is that of a Gateway; those of its routes aren't in the snapshot.
            return names.into_iter().filter(|name| policy.is_granted_to_any(name)).collect();
        }
        policy.still_granted(&link.namespace, names)
    };
    // First the owners of names, so that no name goes to another link than before.
    for link in links.iter().filter(|link| owner(link).is_service()) {
        store.set_owner(&link.external_target, Some(&key(link)), &granted(link));
    }
    let mut shared: HashMap<ServiceKey, Vec<Arc<Link>>> = HashMap::new();
    let mut answered = 0;
    for link in links {
        let target = target(&link).and_then(|target| policy.targets.allowed(target));
        denied += usize::from(target.is_none() && link.target.is_some());
        answered += usize::from(target.is_some() || !link.records.is_empty());
        let annotations = Annotations {
            ttl: link.ttl,
            // Only the hostnames that the link held. A requested hostname may have been held by another link, which
            // may be missing here.
            hostnames: granted(&link).into(),
            allow_from: link.allow_from.iter().map(|namespace| Arc::from(&**namespace)).collect(),
            // An owner of its own has these names.
            internal: None,
        };
        let owner = owner(&link);
        if owner.is_service() {
            apply(&store, &link, target, annotations);
        } else {
            let claims =
                Claims { created: link.created, names: annotations.hostnames.clone(), ..Default::default() };
            let behind = behind(&link, target, annotations);
            let known = shared.entry(behind.key.clone()).or_default();
            let target = known.iter().find(|known| ***known == behind).cloned().unwrap_or_else(|| {
                known.push(Arc::new(behind));
                Arc::clone(&known[known.len() - 1])
            });
            store.observe(&owner, &claims, &target, None);
        }
    }
    // Not that of the restoring, unless the snapshot lacks it.
    store.last_change().store(continued(last_change), Ordering::Relaxed);
    Restored { store, all, answered, denied }
}

/// Returns the time of the last change with which the serials of zones go on.
fn continued(last_change: Option<u64>) -> u64 {
    let now = unix_time();
    let last_change = last_change.unwrap_or(now);
    if last_change <= now + MAX_AHEAD {
        return last_change;
    }
    warn!(
        "the serial in the snapshot, {last_change}, is more than a week ahead of the clock ({now}) and isn't \
         continued: secondary servers that have a higher serial than the clock keep their zones until they are told to \
         transfer them again"
    );
    now
}

fn apply(store: &Store, link: &SavedLink, target: Option<Target>, annotations: Annotations) {
    let (key, created) = (key(link), Some(link.created));
    let ports = link.ports.as_slice().into();
    if let Some(by) = &link.overridden_by {
        let link_override = LinkOverride {
            uid: by.uid.as_str().into(),
            created,
            announced: target.map_or(Announcement::Withdrawn, Announcement::Target),
            source: by.source.as_str().into(),
            service_uid: by.service_uid.as_str().into(),
            ports,
            annotations,
            refused: false,
            is_provisional: false,
        };
        set_override(store, &key, link_override, None);
        return;
    }
    let ingress = match target {
        None => Ingress::default(),
        Some(Target::Hostname(host)) => Ingress { hostnames: vec![host], addresses: Vec::new() },
        Some(Target::Addresses(ips)) => Ingress { hostnames: Vec::new(), addresses: ips.into() },
    };
    store.apply(ObservedService {
        key,
        uid: link.uid.as_str().into(),
        created,
        resource_version: None,
        ingress,
        ports,
        annotations,
        refused: false,
        has_finalizer: false,
        persisted: None,
    });
}

/// Returns what is behind the names of an owner that isn't a Service.
fn behind(link: &SavedLink, target: Option<Target>, annotations: Annotations) -> Link {
    let key =
        link.behind.as_ref().map_or_else(|| key(link), |(namespace, name)| ServiceKey::new(namespace, name));
    Link {
        target,
        ports: link.ports.as_slice().into(),
        annotations: Annotations { hostnames: Arc::default(), ..annotations },
        records: (!link.records.is_empty()).then(|| Arc::new(records(&link.records))),
        ..Link::new(key, &link.uid)
    }
}

fn owner(link: &SavedLink) -> Owner {
    let source = match (&link.cluster, &link.kind) {
        (None, None) => Source::SERVICES,
        (cluster, kind) => Source {
            cluster: cluster.as_deref().map(Arc::from),
            kind: kind.clone().map_or(Source::SERVICES.kind, Cow::from),
        },
    };
    Owner { source, key: key(link) }
}

fn key(link: &SavedLink) -> ServiceKey {
    ServiceKey::new(&link.namespace, &link.service)
}

fn target(link: &SavedLink) -> Option<Target> {
    match link.target.as_ref()? {
        SavedTarget::Hostname(text) => hostname(text).map(Target::Hostname),
        SavedTarget::Addresses(ips) => Some(Target::Addresses(ips.as_slice().into())),
    }
}

#[cfg(test)]
mod tests;
