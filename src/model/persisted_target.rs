//! The data about a link that its external target keeps over a restart.

use std::sync::Arc;

use crate::model::link::Target;
use crate::model::uid::Uid;

/// The external target of a link, as an earlier process left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistedTarget {
    /// The target; `None` if the external target has none (as a tombstone), or if the target policy denies it.
    pub target: Option<Target>,
    /// The Service that the external target was written for; another Service of the same name has another target.
    pub owner: TargetOwner,
    /// The custom hostnames recorded on the external target that the hostname policy still allows.
    pub hostnames: Box<[Arc<str>]>,
    /// Whether lb-linker removes the external target when its Service is gone.
    pub is_removable: bool,
    /// The uid of the StableName that the external target was written for; `None` if it was written for a Service,
    /// or if the namespace isn't watched.
    pub overridden_by: Option<Uid>,
}

impl PersistedTarget {
    /// Returns the recorded uid of the Service, or an empty uid if none is recorded.
    #[must_use]
    pub fn uid(&self) -> Uid {
        match &self.owner {
            TargetOwner::Uid(uid) => uid.clone(),
            TargetOwner::CreatedUntil(_) | TargetOwner::Unknown => Uid::default(),
        }
    }
}

/// The Service that an external target was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOwner {
    /// The Service with this uid, as recorded on the external target. The uid is empty for a fixed target of an
    /// StableName.
    Uid(Uid),
    /// A Service created no later than this time, in seconds since 1970: the earlier operator created external targets
    /// after their Services, and deleted both together.
    CreatedUntil(i64),
    /// No owner is recorded: the external target may belong to any Service of that name.
    Unknown,
}

impl TargetOwner {
    /// Returns whether the external target was written for the Service with this uid and creation time (in seconds
    /// since 1970), as far as known.
    #[must_use]
    pub fn matches(&self, uid: &Uid, created: Option<i64>) -> bool {
        match self {
            Self::Uid(recorded) => recorded == uid,
            Self::CreatedUntil(until) => created.is_none_or(|created| created <= *until),
            Self::Unknown => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecorded_owner_matches_any_service_and_has_no_uid() {
        let owner = TargetOwner::Unknown;
        assert!(owner.matches(&"2".into(), None));
        let last = PersistedTarget {
            target: None,
            owner,
            hostnames: Box::default(),
            is_removable: true,
            overridden_by: None,
        };
        assert!(last.uid().is_empty());
    }
}
