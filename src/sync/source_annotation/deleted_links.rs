//! Remembers the targets of deleted load balancers: the store forgets a link as soon as nothing remains to be done for
//! its external target, but the Services that follow the link may be reconciled later.

use std::collections::{HashMap, VecDeque};

use crate::model::link::{Annotations, Link, LinkChange, Target};
use crate::model::service_key::ServiceKey;
use crate::store::Store;
use crate::sync::source::persisted_targets::PersistedTargets;

/// Maximum number of remembered load balancers.
const MAX_DELETED_LINKS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeletedLink {
    pub(super) target: Target,
    /// The annotations, for `allow-from`; `None` if this process has never observed the Service.
    pub(super) annotations: Option<Annotations>,
}

/// The load balancers that were deleted since the start of this process, and load balancers that were deleted before
/// it and left an external target.
#[derive(Debug, Default)]
pub(super) struct DeletedLinks {
    gone: HashMap<ServiceKey, DeletedLink>,
    /// In order of deletion, the oldest first.
    order: VecDeque<ServiceKey>,
}

impl DeletedLinks {
    pub(super) fn get(&self, key: &ServiceKey) -> Option<&DeletedLink> {
        self.gone.get(key)
    }

    pub(super) fn on_link_change(&mut self, change: &LinkChange, persisted: &PersistedTargets) {
        let Some(key) = change.service() else { return };
        match (&change.before, &change.after) {
            (_, Some(link)) if !link.is_gone() || link.was_never_observed() => self.look_at(link, persisted),
            // The Service may exist: a flag or a missing permission has left it out.
            (Some(link), None) if link.is_left_out() => {}
            (Some(link), _) if !link.is_gone() => {
                if let Some(target) = link.target.clone() {
                    self.insert(key, DeletedLink { target, annotations: Some(link.annotations.clone()) });
                }
            }
            _ => {}
        }
    }

    /// Processes all links, because changes have been missed.
    pub(super) fn rescan(&mut self, store: &Store, persisted: &PersistedTargets) {
        for link in store.links() {
            self.look_at(&link, persisted);
        }
    }

    fn look_at(&mut self, link: &Link, persisted: &PersistedTargets) {
        if !link.is_gone() {
            self.remove(&link.key);
        } else if link.was_never_observed()
            && let Some(target) = persisted.target(&link.key)
        {
            self.insert(&link.key, DeletedLink { target, annotations: None });
        }
    }

    fn insert(&mut self, key: &ServiceKey, gone: DeletedLink) {
        if self.gone.insert(key.clone(), gone).is_none() {
            self.order.push_back(key.clone());
        }
        if self.order.len() > MAX_DELETED_LINKS
            && let Some(oldest) = self.order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &ServiceKey) {
        if self.gone.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::model::link::LinkState;
    use crate::model::owner::Owner;

    fn change(before: Option<Link>, after: Option<Link>) -> LinkChange {
        let key = ServiceKey::new("shop", "web");
        LinkChange { owner: Owner::from(&key), before: before.map(Arc::new), after: after.map(Arc::new) }
    }

    #[test]
    fn last_target_is_remembered_until_the_load_balancer_is_back() {
        let (persisted, mut deleted_links) = (PersistedTargets::default(), DeletedLinks::default());
        let target = Target::Addresses(["192.0.2.1".parse().unwrap()].into());
        let bare = || Link::new(ServiceKey::new("shop", "web"), "u");
        let live = || Link { target: Some(target.clone()), ..bare() };
        let gone = || Link { state: LinkState::Gone(Instant::now()), ..bare() };
        let key = live().key;
        deleted_links.on_link_change(&change(Some(live()), Some(gone())), &persisted);
        deleted_links.on_link_change(&change(Some(gone()), None), &persisted);
        assert_eq!(deleted_links.get(&key).unwrap().target, target);
        deleted_links.on_link_change(&change(None, Some(live())), &persisted);
        assert_eq!(deleted_links.get(&key), None);
        deleted_links.on_link_change(&change(Some(live()), None), &persisted);
        assert_eq!(deleted_links.get(&key).unwrap().target, target, "the store forgets the link at once");
    }

    #[test]
    fn forgotten_link_that_was_left_out_is_no_deleted_one() {
        let mut deleted_links = DeletedLinks::default();
        let target = Target::Addresses(["192.0.2.1".parse().unwrap()].into());
        let bare = Link::new(ServiceKey::new("shop", "web"), "");
        let left_out = Link { target: Some(target), state: LinkState::LeftOut, ..bare };
        let key = left_out.key.clone();
        deleted_links.on_link_change(&change(Some(left_out), None), &PersistedTargets::default());
        assert_eq!(deleted_links.get(&key), None);
    }

    #[test]
    fn number_of_remembered_links_is_bounded() {
        let mut deleted_links = DeletedLinks::default();
        let target = Target::Addresses(["192.0.2.1".parse().unwrap()].into());
        for number in 0..=MAX_DELETED_LINKS {
            let key = ServiceKey::new("shop", &number.to_string());
            deleted_links.insert(&key, DeletedLink { target: target.clone(), annotations: None });
        }
        assert_eq!(
            (deleted_links.gone.len(), deleted_links.order.len()),
            (MAX_DELETED_LINKS, MAX_DELETED_LINKS)
        );
        assert_eq!(deleted_links.get(&ServiceKey::new("shop", "0")), None);
    }
}
