//! The load balancers of remote clusters, as users see them. They have no external targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::LinkFilter;
use super::facts::{LinkFacts, NameProblems};
use super::view::LinkView;
use crate::model::link::Link;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;
use crate::store::Store;

/// The load balancers of remote clusters with the names that lead to them, in order.
type RemoteLinks = BTreeMap<ServiceKey, (Owner, Arc<Link>, Vec<String>)>;

impl LinkFacts {
    /// Returns the load balancers of remote clusters that a filter selects, ordered by cluster, namespace and name.
    pub(super) fn remote_views(&self, filter: &LinkFilter, problems: &NameProblems) -> Vec<LinkView> {
        let links = remote_links(&self.store).into_iter();
        let selected = links.filter(|(key, (_, _, names))| {
            let has_name = |name: &String| names.contains(name);
            filter.is_within(key) && (filter.selects(key) || filter.service.as_ref().is_some_and(has_name))
        });
        let view = |(key, (owner, link, dns_names)): (ServiceKey, (Owner, Arc<Link>, Vec<String>))| {
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

fn remote_links(store: &Store) -> RemoteLinks {
    let mut links = RemoteLinks::new();
    for (owner, claims, link) in store.other_owners() {
        let is_remote = owner.source.is_like(&Source::SERVICES) && owner.source.cluster.is_some();
        let lost = if is_remote { store.lost_names(&owner) } else { continue };
        let held = claims.names.iter().filter(|name| !lost.contains(name)).map(ToString::to_string);
        let (_, _, names) = links.entry(link.key.clone()).or_insert_with(|| (owner, link, Vec::new()));
        names.extend(held);
    }
    for (key, (_, _, names)) in &mut links {
        let (service, cluster) = (format!("{}.", key.name()), key.cluster().unwrap_or_default());
        // The default names come first.
        names.sort_by_key(|name| (!(name.starts_with(&service) && name.contains(cluster)), name.clone()));
    }
    links
}
