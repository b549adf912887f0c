//! The result of a write to an external target.

use std::time::{Duration, Instant};

use super::desired::addresses_of;
use super::observed_object::ObservedObject;
use super::reconciler::departure::LookUp;
use super::status_log::destination;
use crate::model::link::Target;
use crate::sync::controller::write_error::WriteError;
use crate::sync::external_target::decision::Write;
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::object::Object;
use crate::sync::removal::facts::Found;
use crate::sync::removal::reason::RemovalReason;

/// The reason why a write was skipped.
#[derive(Debug)]
pub(crate) enum SkipReason {
    /// The look-up, if there was one, doesn't confirm that the Service is gone.
    Unconfirmed(Option<LookUp>),
    /// Other removals have used up `--max-deletes` meanwhile. The time until the next removal is allowed; `None` means
    /// forever.
    Held(Option<Duration>),
}

/// What a write finds in the place of its object, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// A foreign object, which the write adopts.
    Foreign,
    /// An object with the target that is written: only its labels, annotations or ports change.
    SameTarget,
    Other,
}

impl Before {
    /// Returns what a write finds if `before` is in the place of its object.
    pub(super) fn by(write: &Write, before: &ObservedObject) -> Self {
        if before.labelled_for.is_none() && !before.has_our_field_manager {
            return Self::Foreign;
        }
        let addresses = |slice: &EndpointSlice| addresses_of([slice].into_iter());
        let is_same = match (write, &before.to_object()) {
            (Write::Change { desired: Object::Service(desired), .. }, Object::Service(before)) => {
                destination(before) == destination(desired)
            }
            (
                Write::Change { desired: Object::EndpointSlice(desired), .. },
                Object::EndpointSlice(before),
            ) => addresses(before) == addresses(desired),
            _ => false,
        };
        if is_same { Self::SameTarget } else { Self::Other }
    }
}

/// Why a write may remove something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed {
    pub(crate) reason: RemovalReason,
    /// The answer to the look-up of the Service, if there was one.
    pub(crate) found: Option<Found>,
}

/// A write under way.
#[derive(Debug)]
pub(crate) struct SentWrite {
    pub(super) started_at: Instant,
    pub(super) write: Write,
    /// The target of the link when the write began.
    pub(super) target: Option<Target>,
    pub(super) before: Before,
    /// The deletion budget's key of the removed external target, if the write removes one for good.
    pub(super) budget_key: Option<String>,
}

/// The answer to a write, or why it was skipped.
pub(crate) type WriteOutcome = Result<Answered, SkipReason>;

/// The answer to a write.
#[derive(Debug)]
pub(crate) struct Answered {
    /// The confirmation that the Service is gone, if the write depends on it.
    pub(super) confirmed: Option<Confirmed>,
    /// The HTTP code; 0 without an answer.
    pub(super) code: u16,
    pub(super) result: Result<Option<Object>, WriteError>,
}
