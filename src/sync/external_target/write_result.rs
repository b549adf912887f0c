//! Outcome of a write.

use std::time::{Duration, Instant};

use super::reconciler::departure::{Confirmed, Unconfirmed};
use crate::model::service_key::ServiceKey;
use crate::sync::external_target::backend::WriteError;
use crate::sync::external_target::decision::Write;
use crate::sync::k8s::object::Object;

/// What came of a decision to write.
#[derive(Debug)]
pub(crate) enum WriteEnd {
    /// The write was made, or tried.
    Written(WriteResult),
    /// It wasn't tried.
    Dropped { key: ServiceKey, write: Write, why: SkipReason },
}

/// Why a write that was decided on isn't tried.
#[derive(Debug)]
pub(crate) enum SkipReason {
    /// The Service may not be gone.
    Unconfirmed(Unconfirmed),
    /// Other removals have used up `--max-deletes` since; the next may be made after this time, or never.
    Held(Option<Duration>),
}

/// A write that has ended.
#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(super) key: ServiceKey,
    pub(super) looked_at: Instant,
    pub(super) write: Write,
    /// Whether the object was foreign before.
    pub(super) adopted: bool,
    /// How it was confirmed that the Service is gone, where the write relies on that.
    pub(super) confirmed: Option<Confirmed>,
    /// What it removes for good, as the brake counts it.
    pub(super) removal: Option<String>,
    pub(super) code: u16,
    pub(super) result: Result<Option<Object>, WriteError>,
}
