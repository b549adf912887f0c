//! The facts that decide about a removal. A fact that isn't known keeps what it is about.

use std::time::{Duration, Instant};

use crate::model::link::{Link, LinkState};

/// What would be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The Service that is the external target of a link.
    #[default]
    ExternalTarget,
    /// A Service under a former name of the external target.
    FormerName,
    /// An EndpointSlice of the external target.
    Slice,
    /// The target in the external target of a gone Service: a tombstone replaces it.
    Target,
    /// lb-linker's finalizer on a load balancer. `is_settled`: whether the external target is gone, or stays.
    Finalizer { is_settled: bool },
    /// The link of a load balancer: it counts as gone.
    Link,
    /// The target of a Service that a StableName announces: it is withdrawn.
    Announcement,
    /// The override of a link by a StableName: it ends.
    Override,
}

/// Whose an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Owner {
    /// It isn't labelled for the link.
    #[default]
    Foreign,
    /// It belongs to another instance of lb-linker.
    OtherInstance,
    /// It is labelled for the link, lb-linker has never written it, and `--prune` doesn't apply to it.
    Unwritten,
    /// A former leader has created it after this leader's lists, for a Service that doesn't exist.
    FormerLeader,
    Ours,
}

/// What the watches of this process say about the Service or the StableName that the subject belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceState {
    /// It exists, and it is selected unless a look-up has found something else.
    #[default]
    Exists,
    /// A StableName announces a target in its place.
    Announced,
    /// A StableName may announce a target in its place, but isn't read yet.
    Provisional,
    /// The StableName has withdrawn its target.
    Withdrawn,
    /// The watch or a list lacks it, and its deletion wasn't reported.
    Unlisted,
    /// Its deletion was reported.
    Gone,
    /// It was deleted and recreated, and has no target yet.
    Recreated,
}

impl ServiceState {
    #[must_use]
    pub fn of(link: &Link) -> Self {
        match (link.active_override(), link.state) {
            (Some(by), _) if by.is_provisional => Self::Provisional,
            (Some(_), LinkState::Recreated(_)) => Self::Withdrawn,
            (Some(_), _) => Self::Announced,
            (None, LinkState::Live | LinkState::Stale) => Self::Exists,
            (None, LinkState::Recreated(_)) => Self::Recreated,
            (None, LinkState::Gone(_)) if !link.was_never_observed() => Self::Gone,
            (None, LinkState::Gone(_) | LinkState::LeftOut) => Self::Unlisted,
        }
    }
}

/// Why an existing Service doesn't need the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Surplus {
    /// `--ip-targets` allows no external target for its addresses.
    IpTargets,
    /// The external target exists under its present name.
    FormerName,
    /// The target has no addresses for this EndpointSlice.
    UnwantedSlice,
    /// A foreign Service has the name of the external target, and would get the addresses of the EndpointSlice.
    ForeignService,
}

/// The check at a start and at the beginning of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StartCheck {
    #[default]
    Passed,
    /// The Service is gone together with those of most external targets.
    MostGone,
    /// A flag leaves out the Service, or its namespace can't be listed, and `--max-deletes` isn't given.
    LeftOut,
}

/// The lists of the Service's namespace, and for an overridden link those of StableNames, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lists {
    /// The namespace isn't watched.
    Unwatched,
    /// There is no complete list since the last restore of etcd, or the list is refused.
    Missing,
    /// The last complete list is from before this term.
    BeforeTerm,
    /// The last list lacks suspiciously many objects, and no second list has confirmed it.
    Suspicious,
    Complete,
}

impl Lists {
    /// Returns whether writes may be based on these lists. A reported deletion stays true in the next term.
    #[must_use]
    pub fn suffice(self, service: ServiceState) -> bool {
        match self {
            Self::Complete => true,
            Self::BeforeTerm => service == ServiceState::Gone,
            Self::Unwatched | Self::Missing | Self::Suspicious => false,
        }
    }
}

/// The relation of a Service to the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// The Service becomes a link.
    Selected,
    /// The Service opts out by its annotation.
    OptedOut,
    /// The Service is a load balancer that isn't selected.
    NotSelected,
    /// The Service isn't a load balancer, is being deleted, or is an external target.
    Gone,
}

/// Which Service of the name a look-up has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The Service that the subject belongs to, as far as its uid is known.
    Same,
    /// The known successor of that Service.
    Successor,
    /// Another Service, which no watch has reported.
    Another,
}

/// The answer of the API server to a look-up of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    Absent,
    Exists {
        which: Which,
        membership: Membership,
        /// Whether the Service lets the namespace of the StableName follow it.
        is_open: bool,
    },
    /// An authorizer has refused it. `is_lasting`: and every look-up for ten minutes.
    Refused {
        is_lasting: bool,
    },
    /// There was no answer, or another error.
    Failed,
}

/// The answer of the deletion budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    Free,
    /// Until when the budget is used up; `None` means forever.
    UsedUp(Option<Instant>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub subject: Subject,
    pub owner: Owner,
    /// Whether the object is being deleted already.
    pub is_terminating: bool,
    pub service: ServiceState,
    /// Since when the Service is gone or not selected, the target is withdrawn, or the CRD isn't served.
    pub since: Option<Instant>,
    /// The delay from then on; `None` if `--on-delete` keeps the object.
    pub delay: Option<Duration>,
    pub surplus: Option<Surplus>,
    /// Whether the target policy denies the announced target.
    pub is_denied: bool,
    /// Whether the Service doesn't let the namespace of the StableName follow it.
    pub is_closed: bool,
    pub check: StartCheck,
    pub lists: Option<Lists>,
    pub budget: Option<Budget>,
    pub found: Option<Found>,
    /// Whether the API server serves StableNames, asked after one was found to be missing.
    pub is_served: Option<bool>,
}

impl Found {
    /// Returns what is found if a watch or a file has shown the Service itself.
    #[must_use]
    pub fn same(membership: Membership) -> Self {
        Self::Exists { which: Which::Same, membership, is_open: true }
    }
}

impl Facts {
    /// Returns the facts about something that isn't an object, for a Service or StableName in this state.
    #[must_use]
    pub fn of(subject: Subject, service: ServiceState) -> Self {
        Self { subject, service, owner: Owner::Ours, ..Self::default() }
    }

    /// Returns whether the removal counts in the deletion budget: it removes an external target for good, not only an
    /// object under a former name. That of a former leader's creation doesn't count: the budget is for objects that
    /// clients may use.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        let is_final = match self.subject {
            Subject::ExternalTarget => true,
            Subject::FormerName => !self.is_service_there(),
            _ => false,
        };
        is_final && self.owner != Owner::FormerLeader
    }

    /// Returns whether the Service, or a StableName's target in its place, is there as far as the watches know.
    pub(super) fn is_service_there(&self) -> bool {
        matches!(self.service, ServiceState::Exists | ServiceState::Announced | ServiceState::Provisional)
    }
}
