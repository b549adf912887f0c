//! What becomes of a Service's link when the Service is observed, and when it is gone. Pure.

use std::sync::Arc;
use std::time::Instant;

use crate::model::link::{
    Annotations, LastQueried, Link, LinkState, ObservedService, OutdatedFlag, RANK_NEVER_OBSERVED,
    RANK_WITHOUT_CREATION_TIME, Target,
};
use crate::model::link_override::OverriddenLink;
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::model::uid::Uid;

impl ObservedService {
    /// Returns the link of the Service. `known` is its link before, if there is one; `restores` tells whether the target
    /// that an earlier process left may be used.
    #[must_use]
    pub fn link(self, known: Option<&Link>, restores: bool) -> Link {
        let Self {
            key, uid, created, ingress, ports, annotations, refused, has_finalizer, persisted, ..
        } = self;
        // A recreated Service doesn't inherit the target of its predecessor.
        let same = known.filter(|link| {
            let is_it = link.uid == uid || link.is_left_out() && link.uid.is_empty();
            is_it && !link.is_gone()
        });
        let (in_use, predecessor_gone) = match known {
            None => match persisted {
                Some(last) if restores && last.owner.matches(&uid, created) => (last.target, None),
                Some(_) => (None, Some(Instant::now())),
                None => (None, None),
            },
            Some(known) => match same {
                Some(link) => (link.target.clone(), link.service_gone_since()),
                None => (None, Some(known.service_gone_since().unwrap_or_else(Instant::now))),
            },
        };
        let chosen = ingress.choose(in_use.as_ref());
        let state = match (&chosen, &in_use, predecessor_gone) {
            (None, None, Some(since)) => LinkState::Recreated(since),
            (None, Some(_), _) => LinkState::Stale,
            _ => LinkState::Live,
        };
        Link {
            uid,
            // A load balancer that is deleted and recreated keeps its rank for its names.
            created: known
                .filter(|link| !link.was_never_observed())
                .map_or(created.unwrap_or(RANK_WITHOUT_CREATION_TIME), |link| link.created),
            object_created: created,
            target: chosen.or(in_use),
            ports,
            annotations,
            hostnames: known.map_or_else(Box::default, |link| link.hostnames.clone()),
            refused,
            has_finalizer,
            state,
            external_target_override: known.and_then(|link| link.external_target_override.clone()),
            last_queried: known.map_or_else(LastQueried::default, |link| link.last_queried.clone()),
            outdated: OutdatedFlag::default(),
            records: None,
            overridden: None,
            key,
        }
    }
}

impl Link {
    /// Returns this link with another link of its Service, or without one. `None` if nothing is left. While a StableName
    /// overrides the link, the Service's own link stays behind the override.
    pub(crate) fn with_service(&self, service: Option<Self>) -> Option<Self> {
        let Some(overridden) = &self.overridden else { return service };
        let overridden = OverriddenLink { by: overridden.by.clone(), service_link: service.map(Arc::new) };
        Some(overridden.link(&self.key, Some(self)))
    }

    /// Returns this link of an existing Service with what its external target of an earlier process tells, which was
    /// observed later than the Service. A pending Service takes the target if the external target was written for that
    /// Service. The Service counts as recreated if the external target was written for a predecessor.
    #[must_use]
    pub fn with_persisted(&self, last: PersistedTarget) -> Option<Self> {
        if self.is_gone() || self.is_left_out() || self.target.is_some() {
            return None;
        }
        match last.target {
            // Without a recorded uid the external target may be that of the link's predecessor.
            Some(target) if last.owner == TargetOwner::Uid(self.uid.clone()) => {
                Some(Self { target: Some(target), state: LinkState::Stale, ..self.clone() })
            }
            _ if self.state == LinkState::Live && !last.owner.matches(&self.uid, Some(self.created)) => {
                Some(Self { state: LinkState::Recreated(Instant::now()), ..self.clone() })
            }
            _ => None,
        }
    }

    /// Returns this link of a Service that isn't selected, and that this process has never observed, with the contents
    /// of its external target.
    pub(crate) fn left_out(self, uid: Uid, target: Option<Target>, hostnames: Vec<Arc<str>>) -> Self {
        let is_same = self.is_left_out() && self.uid == uid;
        let annotations = if is_same { self.annotations.clone() } else { Annotations::default() };
        Self {
            uid,
            target,
            created: RANK_NEVER_OBSERVED,
            annotations: Annotations { hostnames: hostnames.into(), ..annotations },
            state: LinkState::LeftOut,
            ..self
        }
    }
}
