//! The internal hostnames of load balancers, which lead to cluster IPs. For each load balancer that asks for some, the store
//! has an owner of its own beside the one of the link, which comes and goes with the link's Service.

use std::sync::Arc;

use super::Store;
use super::names::Names;
use crate::model::link::{Annotations, Link, Target};
use crate::model::owner::{Claims, Owner, Source};
use crate::model::service_key::ServiceKey;

impl Store {
    /// Gives a load balancer the internal hostnames that its present link asks for, in place of those of the link before.
    /// The names of a snapshot, whose links ask for none, stay.
    pub(super) fn set_internal_names(
        &self,
        names: &mut Names,
        key: &ServiceKey,
        before: Option<&Arc<Link>>,
        now: Option<&Arc<Link>>,
    ) {
        let (had, asking) = (before.and_then(asking), now.and_then(asking));
        if had.is_none() && asking.is_none() {
            return;
        }
        let owner = Owner { source: Source::INTERNAL, key: key.clone() };
        match asking.and_then(|service| internal(service)) {
            Some((claims, target)) => {
                let known = self.owners.find(&owner).and_then(|(_, known)| known);
                let target = known.filter(|known| **known == target).unwrap_or_else(|| Arc::new(target));
                self.observe_other(names, &owner, &claims, &target);
            }
            None if self.has(&owner) => drop(self.remove(names, owner)),
            None => {}
        }
    }
}

/// Returns the link of an existing Service that asks for internal hostnames.
fn asking(link: &Arc<Link>) -> Option<&Arc<Link>> {
    link.service_link().filter(|link| !link.is_gone() && link.annotations.internal.is_some())
}

fn internal(service: &Link) -> Option<(Claims, Link)> {
    let internal = service.annotations.internal.as_ref()?;
    let claims =
        Claims { created: service.created, names: Arc::clone(&internal.hostnames), ..Default::default() };
    let annotations =
        Annotations { hostnames: Arc::default(), internal: None, ..service.annotations.clone() };
    let target = Link {
        created: service.created,
        object_created: service.object_created,
        target: (!internal.addresses.is_empty()).then(|| Target::Addresses(internal.addresses.clone())),
        annotations,
        refused: internal.refused,
        ..Link::new(Source::INTERNAL.target_key(&service.key), &service.uid.to_string())
    };
    Some((claims, target))
}
