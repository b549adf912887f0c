//! Operations on the cluster.

use std::net::IpAddr;

use lb_linker::model::service_key::ServiceKey;

use super::world::ServiceType;

// Switches for operations that need one feature of lb-linker.

/// Adoption of ExternalName Services without labels.
pub const ADOPTION: bool = true;
/// ExternalName Services that follow a link by the annotation `source`. lb-linker needs more permissions for them
/// than `apply_deploy` grants.
pub const SOURCE: bool = true;
/// Custom DNS names by annotation.
pub const HOSTNAMES: bool = true;
/// Targets that the target policy denies.
pub const TARGET_POLICY: bool = true;

/// An operation on the Service `key` or on its external target.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub key: ServiceKey,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create,
    Delete,
    Recreate,
    SetHosts(Vec<String>),
    SetAddresses(Vec<IpAddr>),
    Blank,
    /// Sets a hostname that lb-linker doesn't accept as a target.
    SetUnservable(String),
    SetPort(u16),
    ChangeType(ServiceType),
    OptOut,
    OptIn,
    /// Sets the label that the selector excludes.
    Hide,
    Show,
    /// Adds a foreign finalizer to a Service, and deletes the Service.
    Hold,
    /// Removes the foreign finalizer.
    Release,
    AllowFrom(bool),
    Claim(Option<String>),
    // Manual changes in the target namespace.
    DeleteObject,
    DeleteService,
    SetWrongHost(String),
    SetWrongSpec(usize),
    DeleteSlice,
    EditSlice(IpAddr),
    RemoveSliceLabels,
    CreateForeign,
    DeleteForeign,
    CreateAdoptable,
    // ExternalName Services outside of the target namespace; `key` is the follower.
    Follow {
        source: ServiceKey,
        target: String,
    },
    Unfollow,
}

impl Action {
    /// Returns the name under which the operation is counted.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        match self {
            Self::SetHosts(hosts) if hosts.len() > 1 => "SetSeveralHosts".to_owned(),
            Self::ChangeType(kind) => format!("ChangeTypeTo{kind:?}"),
            _ => text[..end].to_owned(),
        }
    }

    /// Returns whether the operation damages or replaces an external target by hand.
    pub fn is_manual_change(&self) -> bool {
        use Action::{
            DeleteObject, DeleteService, DeleteSlice, EditSlice, RemoveSliceLabels, SetWrongHost,
            SetWrongSpec,
        };
        matches!(
            self,
            DeleteObject
                | DeleteService
                | DeleteSlice
                | SetWrongSpec(_)
                | EditSlice(_)
                | SetWrongHost(_)
                | RemoveSliceLabels
        ) || self.creates_foreign()
    }

    fn creates_foreign(&self) -> bool {
        matches!(self, Self::CreateForeign | Self::CreateAdoptable)
    }
}

/// The result of an operation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The UID of the created Service.
    pub uid: String,
    pub created: i64,
    /// Whether a part of an external target was changed or removed manually.
    pub touched: bool,
    /// Whether the operation created its object.
    pub done: bool,
    /// The UID and resourceVersion of a foreign object.
    pub version: String,
}
