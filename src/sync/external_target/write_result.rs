//! The result of a write to an external target.

use std::time::{Duration, Instant};

use super::reconciler::departure::{Confirmed, Unconfirmed};
use crate::model::link::Target;
use crate::sync::controller::write_error::WriteError;
use crate::sync::external_target::decision::Write;
use crate::sync::k8s::object::Object;

/// The reason why a write was skipped.
#[derive(Debug)]
pub(crate) enum SkipReason {
    /// It isn't confirmed that the Service is gone.
    Unconfirmed(Unconfirmed),
    /// Other removals have used up `--max-deletes` meanwhile. The time until the next removal is allowed; `None` means
    /// forever.
    Held(Option<Duration>),
}

/// A write under way.
#[derive(Debug)]
pub(crate) struct SentWrite {
    pub(super) started_at: Instant,
    pub(super) write: Write,
    /// The target of the link when the write began.
    pub(super) target: Option<Target>,
    /// Whether the write adopts a foreign object.
    pub(super) adopted: bool,
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
