//! Changes of the links of Services that only sync makes: what it has found out about Services that aren't selected, that
//! are gone, or that have our finalizer. Each function returns the change of the link, if there is one for the feed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::model::link::{Annotations, Link, LinkChange, LinkState, RANK_NEVER_OBSERVED, Target};
use crate::model::link_override::{LinkOverride, OverriddenLink};
use crate::model::names;
use crate::model::persisted_target::PersistedTarget;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::{Lookup, Store};

/// Returns the link of the Service of a key, also while a StableName overrides the link of the key.
#[must_use]
pub fn service_link(store: &Store, key: &ServiceKey) -> Option<Arc<Link>> {
    store.get(key)?.service_link().cloned()
}

/// Returns whether a Service or a StableName with this key has a link, or the Service exists but can't be decoded.
#[must_use]
pub fn is_present(store: &Store, key: &ServiceKey) -> bool {
    store.get(key).is_some() || store.is_unreadable(key)
}

/// Returns the DNS names that lead to a link: for each zone the short name, if the link has it, and the name that no
/// other link can have; then the custom hostnames. As text, without the trailing dot.
#[must_use]
pub fn dns_names(store: &Store, link: &Link) -> Vec<String> {
    let (namespace, service) = link.key.parts();
    let mut dns_names = Vec::new();
    for zone in store.zones().iter().filter(|zone| zone.has_default_names()) {
        for relative in [names::dashed_label(namespace, service), format!("{service}.{namespace}")] {
            let Some(name) = names::wire(relative.split('.').map(str::as_bytes)) else { continue };
            if !zone.reserves(&name)
                && matches!(store.find(&name, &zone.origin, true), Lookup::Link(holder) if holder.key == link.key)
            {
                dns_names.push(names::text(&[&name, &*zone.origin].concat()));
            }
        }
    }
    dns_names.extend(link.hostnames.iter().map(|hostname| hostname.to_string()));
    dns_names
}

/// Returns the number of links of watched Services in all namespaces, and the keys of those in `namespace` (`None`: in all
/// namespaces) that the list lacks.
#[must_use]
pub fn missing_from<'a>(
    store: &Store,
    list: impl Iterator<Item = &'a ServiceKey>,
    namespace: Option<&str>,
) -> (usize, HashSet<ServiceKey>) {
    let listed: HashSet<&ServiceKey> = list.collect();
    let (mut known, mut missing) = (0, HashSet::new());
    let links = store.links();
    let services = links.iter().filter_map(Link::service_link);
    for link in services.filter(|link| !link.is_gone() && !link.is_left_out()) {
        known += 1;
        let within = namespace.is_none_or(|namespace| link.key.namespace() == namespace);
        if within && !listed.contains(&link.key) {
            missing.insert(link.key.clone());
        }
    }
    (known, missing)
}

/// Adds a link for a Service that was gone before this process started, because its external target still exists. The
/// link keeps the names that it owns, ranks last for all other names, and keeps those of its custom hostnames that have
/// no other owner. Returns `None` if the link exists, or if the Service can't be decoded.
pub fn insert_gone(store: &Store, key: &ServiceKey, hostnames: Vec<Arc<str>>) -> Option<LinkChange> {
    if store.is_unreadable(key) {
        return None;
    }
    // An overridden link needs a gone Service only for its finalizer.
    store.update(key, None, |known| known.is_none().then(|| gone_link(key, "", false, hostnames)))
}

/// Adds a link for a Service that is being deleted, or that is no longer a load balancer. `has_finalizer` tells whether
/// the Service has our finalizer. The link of a gone Service gets this uid and finalizer. Returns `None` if nothing
/// changes.
pub fn insert_terminating(
    store: &Store,
    key: &ServiceKey,
    uid: &str,
    has_finalizer: bool,
) -> Option<LinkChange> {
    let is_unreadable = store.is_unreadable(key);
    change_service(store, key, |service| match service {
        Some(link) if link.is_gone() && !uid.is_empty() => {
            Some(Link { uid: uid.into(), has_finalizer, ..Link::clone(link) })
        }
        None if !is_unreadable => Some(gone_link(key, uid, has_finalizer, Vec::new())),
        _ => None,
    })
}

fn gone_link(key: &ServiceKey, uid: &str, has_finalizer: bool, hostnames: Vec<Arc<str>>) -> Link {
    Link {
        created: RANK_NEVER_OBSERVED,
        has_finalizer,
        annotations: Annotations { hostnames: hostnames.into(), ..Default::default() },
        state: LinkState::Gone(Instant::now()),
        ..Link::new(key.clone(), uid)
    }
}

/// Records that a Service isn't selected, perhaps because of a flag, and the contents of its external target: adds a link
/// in [`LinkState::LeftOut`], or changes the link of a Service that this process has never observed. `uid` is the
/// Service's, or empty if unknown. Returns `None` if nothing changes, and for a link that a StableName overrides.
pub fn insert_left_out(
    store: &Store,
    key: &ServiceKey,
    uid: Uid,
    target: Option<Target>,
    hostnames: Vec<Arc<str>>,
) -> Option<LinkChange> {
    if store.is_unreadable(key) {
        return None;
    }
    store.update(key, None, |known| {
        let known = match known {
            Some(link) if !link.was_never_observed() => return None,
            Some(link) => Link::clone(link),
            None => Link::new(key.clone(), ""),
        };
        Some(known.left_out(uid, target, hostnames))
    })
}

/// Adds a link of a snapshot in [`LinkState::LeftOut`]. Returns `None` if the store has a link of this key, or if the
/// Service can't be decoded.
pub fn insert_from_snapshot(store: &Store, saved: &Link) -> Option<LinkChange> {
    if store.is_unreadable(&saved.key) {
        return None;
    }
    store.update(&saved.key, None, |known| {
        let Link { key, uid, target, annotations, ports, .. } = saved.clone();
        known.is_none().then(|| Link {
            uid,
            target,
            annotations,
            ports,
            created: RANK_NEVER_OBSERVED,
            state: LinkState::LeftOut,
            ..Link::new(key, "")
        })
    })
}

/// Records that the Service of a link in [`LinkState::LeftOut`] is gone since the given time.
pub fn delete_left_out(store: &Store, key: &ServiceKey, since: Instant) -> Option<LinkChange> {
    change_service(store, key, |service| {
        service.filter(|link| link.is_left_out()).map(|link| link.to_gone(since))
    })
}

/// Records that our finalizer was added to the Service of a link, or removed from it.
pub fn set_has_finalizer(
    store: &Store,
    key: &ServiceKey,
    uid: &str,
    has_finalizer: bool,
) -> Option<LinkChange> {
    change_service(store, key, |service| {
        let link = service.filter(|link| link.uid == *uid)?;
        Some(Link { has_finalizer, ..Link::clone(link) })
    })
}

/// Applies an external target of an earlier process that was observed later than its Service: see
/// [`Link::with_persisted`].
pub fn apply_persisted_target(store: &Store, key: &ServiceKey, last: PersistedTarget) -> Option<LinkChange> {
    let is_own_name = store.leads_to(last.target.as_ref(), key);
    change_service(store, key, |service| service.filter(|_| !is_own_name)?.with_persisted(last))
}

/// Gives the link of a key to a StableName, or updates its override. The Service of the same name is still followed, and
/// gets the link back when the override ends. The names of the link stay. Returns `None` if nothing changes.
pub fn set_override(
    store: &Store,
    key: &ServiceKey,
    by: LinkOverride,
    resource_version: Option<u64>,
) -> Option<LinkChange> {
    store.update(key, resource_version, |before| {
        let service_link = before.and_then(Link::service_link).cloned();
        Some(OverriddenLink { by, service_link }.link(key, before.map(|link| &**link)))
    })
}

/// Ends the override of a link because its StableName is gone since the given time. The Service of the same name gets the
/// link back; without that Service the link is that of a deleted Service.
pub fn end_override(
    store: &Store,
    key: &ServiceKey,
    resource_version: Option<u64>,
    since: Instant,
) -> Option<LinkChange> {
    store.update(key, resource_version, |link| {
        let link = link.filter(|link| link.overridden.is_some())?;
        Some(match link.service_link().filter(|service| !service.is_gone()) {
            Some(service) => service.after_override(link),
            None => link.to_gone(since),
        })
    })
}

/// Replaces the link of a Service, also behind an override, by what `next` makes of it; `None` if it stays as it is.
fn change_service(
    store: &Store,
    key: &ServiceKey,
    next: impl FnOnce(Option<&Arc<Link>>) -> Option<Link>,
) -> Option<LinkChange> {
    store.update(key, None, |known| {
        let service = next(known.and_then(Link::service_link))?;
        match known {
            Some(link) => link.with_service(Some(service)),
            None => Some(service),
        }
    })
}
