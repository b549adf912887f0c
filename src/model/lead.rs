//! The lead of an ExternalTarget over the link of the Service with the same namespace and name.

use std::sync::Arc;
use std::time::Instant;

use crate::model::link::{
    Annotations, Link, LinkState, Port, RANK_NEVER_OBSERVED, RANK_WITHOUT_CREATION_TIME, Target,
};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// The state of an ExternalTarget, as far as its link depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lead {
    pub uid: Uid,
    /// `metadata.creationTimestamp` in seconds since 1970, if the source has one.
    pub created: Option<i64>,
    /// The announced target; `None` if it is withdrawn or denied.
    pub target: Option<Target>,
    /// The uid of the Service in use; empty for fixed targets.
    pub service_uid: Uid,
    /// The ports of the Service in use; none for fixed targets.
    pub ports: Arc<[Port]>,
    /// The settings of the spec; `None` where the spec omits them.
    pub ttl: Option<u32>,
    pub hostnames: Option<Arc<[Arc<str>]>>,
    pub allow_from: Option<Arc<[Arc<str>]>>,
    /// Whether the Service of the same name is a source: its annotations replace omitted settings.
    pub inherits: bool,
    /// Whether the target policy denies the announced target.
    pub refused: bool,
}

/// A lead, and the Service beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    pub lead: Lead,
    /// The link that the Service of the same name would have without the lead. Never a led or left-out link.
    pub service: Option<Arc<Link>>,
}

impl Led {
    /// Returns the link that an ExternalTarget leads. `before` is the previous link of the key.
    pub(crate) fn link(self, key: &ServiceKey, before: Option<&Link>) -> Link {
        let Self { lead, service } = &self;
        let service = service.as_deref();
        let own = service.filter(|service| lead.inherits && !service.is_gone());
        let own = own.map(|service| service.annotations.clone()).unwrap_or_default();
        let annotations = Annotations {
            ttl: lead.ttl.or(own.ttl),
            hostnames: lead.hostnames.clone().unwrap_or(own.hostnames),
            allow_from: lead.allow_from.clone().unwrap_or(own.allow_from),
        };
        let withdrawn = || before.and_then(Link::service_gone_since).unwrap_or_else(Instant::now);
        // The older of both, so that the rank doesn't depend on which of them was observed first.
        let rank = service.map(|service| service.created).filter(|rank| *rank != RANK_NEVER_OBSERVED);
        let empty = Link::new(before.map_or(key, |before| &before.key).clone(), "");
        Link {
            uid: service.map(|service| service.uid.clone()).unwrap_or_default(),
            created: rank.into_iter().chain(lead.created).min().unwrap_or(RANK_WITHOUT_CREATION_TIME),
            target: lead.target.clone(),
            ports: Arc::clone(&lead.ports),
            annotations,
            refused: lead.refused,
            has_finalizer: service.is_some_and(|service| service.has_finalizer),
            state: lead
                .target
                .as_ref()
                .map_or_else(|| LinkState::Recreated(withdrawn()), |_| LinkState::Live),
            led: Some(self.into()),
            ..before.map_or(empty, Link::clone)
        }
    }
}

impl Link {
    /// Returns the link of the Service itself, which differs from the link while an ExternalTarget leads it.
    #[must_use]
    pub fn service(self: &Arc<Self>) -> Option<&Arc<Self>> {
        self.led.as_ref().map_or(Some(self), |led| led.service.as_ref())
    }

    /// Returns the lead, if an ExternalTarget leads the link.
    #[must_use]
    pub fn lead(&self) -> Option<&Lead> {
        self.led.as_ref().map(|led| &led.lead)
    }

    /// Returns the link without target after the end of its Service, or of its lead.
    pub(crate) fn ended(&self, since: Instant) -> Self {
        // The external target may be that of a predecessor: count the delay from the end of the predecessor.
        let since = self.service_gone_since().map_or(since, |outlived| outlived.min(since));
        Self { target: None, refused: false, led: None, state: LinkState::Gone(since), ..self.clone() }
    }

    /// Returns the link of a living Service after the end of the lead over `led`.
    pub(crate) fn returned(&self, led: &Self) -> Self {
        let state = match self.target {
            Some(_) => self.state,
            // The external target is still that of the ExternalTarget.
            None => LinkState::Recreated(led.service_gone_since().unwrap_or_else(Instant::now)),
        };
        Self {
            state,
            external_target_override: led.external_target_override.clone(),
            last_queried: led.last_queried.clone(),
            ..self.clone()
        }
    }
}
