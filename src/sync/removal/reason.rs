//! The reasons of removals. Their names are in the log, in Events, and in the table of docs/concepts.md.

use std::fmt;

use super::facts::Surplus;

/// Why something is removed, or stays. The text is the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemovalReason {
    // === it stays ===
    Foreign,
    OtherInstance,
    Orphan,
    Terminating,
    ServiceExists,
    Provisional,
    NotWatched,
    NotListed,
    SuspiciousList,
    LeftOut,
    Retained,
    DeleteDelay,
    MostGone,
    RemovalHeld,
    Unconfirmed,
    TargetStays,
    // === it stays for a delay, then it is removed ===
    NotSelected,
    CrdGone,
    // === it is removed ===
    ServiceGone,
    LookUpRefused,
    OptedOut,
    Withdrawn,
    StableNameGone,
    StableNameLeads,
    TargetDenied,
    NotAllowed,
    IpTargets,
    FormerName,
    UnwantedSlice,
    ForeignService,
    FormerLeader,
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<Surplus> for RemovalReason {
    fn from(surplus: Surplus) -> Self {
        match surplus {
            Surplus::IpTargets => Self::IpTargets,
            Surplus::FormerName => Self::FormerName,
            Surplus::UnwantedSlice => Self::UnwantedSlice,
            Surplus::ForeignService => Self::ForeignService,
        }
    }
}
