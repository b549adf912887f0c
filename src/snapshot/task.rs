//! The task of the snapshot: reads it at the start, lets DNS answer with it if the first list is late or refused, and
//! writes it once that list is complete.

use tokio_util::sync::CancellationToken;

use super::context::SnapshotContext;
use super::{serving, writer};
use crate::sync::task::supervisor::SyncError;

/// Runs until `stop`, and then finishes a pending write.
///
/// # Errors
/// If a task on another thread panics.
pub async fn run(context: SnapshotContext, stop: CancellationToken) -> Result<(), SyncError> {
    match stop.run_until_cancelled(serving::until_first_list(&context)).await {
        Some(kept) => writer::run(&context, kept?, &stop).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
