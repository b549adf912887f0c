//! The override of a link: a StableName replaces the target and the settings of the Service with the same
//! namespace and name.

use std::sync::Arc;
use std::time::Instant;

use crate::model::link::{
    Annotations, Link, LinkState, Port, RANK_NEVER_OBSERVED, RANK_WITHOUT_CREATION_TIME, Target,
};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// The target that a StableName announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Announcement {
    /// Nothing yet: the Service of the same name keeps the link.
    #[default]
    NotYet,
    /// The last target was withdrawn, or this replica's target policy denies it, or this version can't read it, or,
    /// before the StableName is read, its external target has none.
    Withdrawn,
    Target(Target),
}

/// What replaces the target and the settings of a link, from a StableName.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOverride {
    pub uid: Uid,
    /// `metadata.creationTimestamp` of the StableName in seconds since 1970, if it is known.
    pub created: Option<i64>,
    pub announced: Announcement,
    /// The name of the source in use; empty if it isn't known.
    pub source: Arc<str>,
    /// The uid of the Service in use; empty for fixed targets.
    pub service_uid: Uid,
    /// The ports of the Service in use; none for fixed targets.
    pub ports: Arc<[Port]>,
    /// The settings of the spec. While the Service of the same name is a source, settings that the spec omits are
    /// those of the Service.
    pub annotations: Annotations,
    /// Whether the target policy denies the announced target, or this version can't read it.
    pub refused: bool,
    /// Whether the target isn't from the status of the StableName, because the StableName isn't read yet or its
    /// status has no target. Then nothing is written for the link.
    pub is_provisional: bool,
}

impl LinkOverride {
    /// Returns whether the ports of the Service in use aren't known: a LoadBalancer has at least one.
    #[must_use]
    pub fn lacks_ports(&self) -> bool {
        !self.service_uid.is_empty() && self.ports.is_empty()
    }
}

/// An override, and the link of the Service beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverriddenLink {
    pub by: LinkOverride,
    /// The link that the Service of the same name would have without the override. Never an overridden link.
    pub service_link: Option<Arc<Link>>,
}

impl OverriddenLink {
    /// Returns the link that a StableName overrides. `before` is the previous link of the key.
    pub(crate) fn link(self, key: &ServiceKey, before: Option<&Link>) -> Link {
        let Self { by, service_link } = &self;
        let service = service_link.as_deref();
        let withdrawn = || before.and_then(Link::service_gone_since).unwrap_or_else(Instant::now);
        // The older creation time of Service and StableName, so that the rank doesn't depend on which of them was
        // observed first.
        let rank = service.map(|service| service.created).filter(|rank| *rank != RANK_NEVER_OBSERVED);
        let empty = Link::new(before.map_or(key, |before| &before.key).clone(), "");
        let link = Link {
            uid: service.map(|service| service.uid.clone()).unwrap_or_default(),
            created: rank.into_iter().chain(by.created).min().unwrap_or(RANK_WITHOUT_CREATION_TIME),
            object_created: by.created,
            target: None,
            ports: Arc::clone(&by.ports),
            annotations: by.annotations.clone(),
            refused: by.refused,
            has_finalizer: service.is_some_and(|service| service.has_finalizer),
            state: LinkState::Live,
            ..before.map_or(empty, Link::clone)
        };
        let link = match (&by.announced, service) {
            (Announcement::Target(target), _) => {
                // Answers keep the order of the addresses.
                let known = before.and_then(|before| before.target.as_ref()).filter(|known| *known == target);
                Link { target: Some(known.unwrap_or(target).clone()), ..link }
            }
            (Announcement::Withdrawn, _) if by.is_provisional => link,
            (Announcement::Withdrawn, _) => Link { state: LinkState::Recreated(withdrawn()), ..link },
            (Announcement::NotYet, None) => link,
            (Announcement::NotYet, Some(service)) => Link {
                target: service.target.clone(),
                ports: Arc::clone(&service.ports),
                annotations: service.annotations.clone(),
                refused: service.refused,
                object_created: service.object_created,
                state: service.state,
                ..link
            },
        };
        Link { overridden: Some(self.into()), ..link }
    }
}

impl Link {
    /// Returns the link of the Service itself, which differs from this link while a StableName overrides it.
    /// `None` if no Service has the name of an overridden link.
    #[must_use]
    pub fn service_link(self: &Arc<Self>) -> Option<&Arc<Self>> {
        self.overridden.as_ref().map_or(Some(self), |overridden| overridden.service_link.as_ref())
    }

    /// Returns the override once its StableName has announced a target, also after that target was withdrawn.
    #[must_use]
    pub fn active_override(&self) -> Option<&LinkOverride> {
        self.overridden
            .as_ref()
            .map(|overridden| &overridden.by)
            .filter(|by| by.announced != Announcement::NotYet)
    }

    /// Returns the link without target after the end of its Service, or of its override.
    pub(crate) fn to_gone(&self, since: Instant) -> Self {
        // The external target may be that of a predecessor: count the delay from the end of the predecessor.
        let since = self.service_gone_since().map_or(since, |outlived| outlived.min(since));
        Self { target: None, refused: false, overridden: None, state: LinkState::Gone(since), ..self.clone() }
    }

    /// Returns this link of an existing Service with the state and the names that it has after the end of the override
    /// of `overridden`.
    pub(crate) fn after_override(&self, overridden: &Self) -> Self {
        let state = match self.target {
            // The external target still has the target that the StableName announced.
            None if overridden.active_override().is_some() => {
                LinkState::Recreated(overridden.service_gone_since().unwrap_or_else(Instant::now))
            }
            _ => self.state,
        };
        Self {
            state,
            external_target_override: overridden.external_target_override.clone(),
            last_queried: overridden.last_queried.clone(),
            ..self.clone()
        }
    }
}
