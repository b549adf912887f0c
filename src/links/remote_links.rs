//! The load balancers of remote clusters, as users see them. They have no external targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::LinkFilter;
use super::facts::{LinkFacts, NameProblems};
use super::view::LinkView;
use crate::model::clusters;
use crate::model::link::Link;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;
use crate::store::Store;

/// The load balancers of remote clusters, in order.
pub(crate) type RemoteLinks = BTreeMap<ServiceKey, RemoteLink>;

/// A load balancer of a remote cluster.
pub(crate) struct RemoteLink {
    /// An owner of one of its names.
    owner: Owner,
    pub(crate) link: Arc<Link>,
    /// The names that lead to it.
    pub(crate) dns_names: Vec<String>,
}

impl LinkFacts {
    /// Returns the load balancers of remote clusters that a filter selects, ordered by cluster, namespace and name.
    pub(super) fn remote_views(&self, filter: &LinkFilter, problems: &NameProblems) -> Vec<LinkView> {
        let links = remote_links(&self.store).into_iter();
        let selected = links.filter(|(key, RemoteLink { dns_names, .. })| {
            let has_name = |name: &String| dns_names.contains(name);
            filter.is_within(key) && (filter.selects(key) || filter.service.as_ref().is_some_and(has_name))
        });
        let view = |(key, RemoteLink { owner, link, dns_names }): (ServiceKey, RemoteLink)| {
            let (state, reason) = self.state_of_name(&owner, &link, problems);
            LinkView {
                namespace: key.namespace().to_owned(),
                service: key.name().to_owned(),
                dns_names,
                target: link.target.as_ref().map(ToString::to_string),
                external_target: None,
                state,
                reason: reason.map(Into::into),
                overridden_by: None,
                created: link.object_created.and_then(|created| Timestamp::from_second(created).ok()),
                history: None,
            }
        };
        selected.map(view).collect()
    }
}

/// Returns the load balancers of remote clusters. Of the names of each, the default ones come first.
pub(crate) fn remote_links(store: &Store) -> RemoteLinks {
    let mut links = RemoteLinks::new();
    for (owner, claims, link) in store.other_owners() {
        let is_remote = owner.source.is_like(&Source::SERVICES) && owner.source.cluster.is_some();
        let lost = if is_remote { store.lost_names(&owner) } else { continue };
        let held = claims.names.iter().filter(|name| !lost.contains(name)).map(ToString::to_string);
        let new = || RemoteLink { owner, link: Arc::clone(&link), dns_names: Vec::new() };
        links.entry(link.key.clone()).or_insert_with(new).dns_names.extend(held);
    }
    for (key, RemoteLink { dns_names, .. }) in &mut links {
        let own = format!("{}.{}.", key.name(), clusters::domain_of(key.namespace()));
        dns_names.sort_by_key(|name| (!name.starts_with(&own), name.clone()));
    }
    links
}
