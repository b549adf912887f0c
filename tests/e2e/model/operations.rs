//! What can happen to the cluster.

use std::net::IpAddr;

use lb_linker::model::service_key::ServiceKey;

use super::world::Kind;

// What waits for a part of lb-linker: the operations and the model of them are there, and switched off.

/// ExternalName Services without labels are taken over.
pub const ADOPTION: bool = true;
/// ExternalName Services elsewhere follow a link that they name as their `source`. It needs more rights than
/// `apply_deploy` gives.
pub const SOURCE: bool = true;
/// Extra DNS names by annotation.
pub const HOSTNAMES: bool = true;
/// Targets that are refused count as none.
pub const TARGET_POLICY: bool = true;

/// Something that happens to the Service `key`, or to its external target.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub key: ServiceKey,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create,
    Delete,
    /// Deleted, and created anew at once.
    Recreate,
    SetHosts(Vec<String>),
    SetAddresses(Vec<IpAddr>),
    Blank,
    /// A hostname that lb-linker doesn't serve.
    SetUnservable(String),
    SetPort(u16),
    ChangeType(Kind),
    OptOut,
    OptIn,
    /// The label by which the selector leaves it out.
    Hide,
    Show,
    /// Deleted, and held by a finalizer of somebody else.
    Hold,
    /// That finalizer goes.
    Release,
    AllowFrom(bool),
    Claim(Option<String>),
    // What people do in the target namespace.
    DeleteObject,
    DeleteService,
    Misdirect(String),
    Distort(usize),
    DeleteSlice,
    EditSlice(IpAddr),
    StripSlice,
    StrangerComes,
    StrangerGoes,
    AdoptableComes,
    // ExternalName Services elsewhere; `key` is the follower.
    Follow {
        source: ServiceKey,
        lead: String,
    },
    Unfollow,
}

impl Action {
    /// What it is counted as.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        match self {
            Self::SetHosts(hosts) if hosts.len() > 1 => "SetSeveralHosts".to_owned(),
            Self::ChangeType(kind) => format!("ChangeTypeTo{kind:?}"),
            _ => text[..end].to_owned(),
        }
    }

    /// Whether lb-linker has to repair something afterwards.
    pub fn is_by_hand(&self) -> bool {
        use Action::{DeleteObject, DeleteService, DeleteSlice, Distort, EditSlice, Misdirect, StripSlice};
        matches!(
            self,
            DeleteObject
                | DeleteService
                | DeleteSlice
                | Distort(_)
                | EditSlice(_)
                | Misdirect(_)
                | StripSlice
        ) || self.brings_stranger()
    }

    fn brings_stranger(&self) -> bool {
        matches!(self, Self::StrangerComes | Self::AdoptableComes)
    }
}

/// What came of an operation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of a Service that was created.
    pub uid: String,
    pub created: i64,
    /// Whether something of an external target was changed or removed by hand.
    pub touched: bool,
    /// Whether what was to be put there is there.
    pub done: bool,
    /// Of a stranger's object: uid and resourceVersion.
    pub version: String,
}
