//! The thread that links and external targets are kept in step on.

use std::io;
use std::thread::Builder;

use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::sync_tasks::SyncSource;
use crate::app::error::RunError;
use crate::cli::flags::Flags;

/// A thread with a runtime of its own. A change goes through a dozen tasks: on one thread each wakes the next one
/// without waking another thread, and DNS workers aren't delayed. The thread and its tasks end when this is dropped.
pub(super) struct SyncRuntime {
    runtime: Handle,
    _end: DropGuard,
}

impl SyncRuntime {
    /// Starts one.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let end = CancellationToken::new();
        let until = end.clone();
        Builder::new().name("sync".to_owned()).spawn(move || {
            runtime.block_on(until.cancelled());
            // A file system that doesn't answer must not keep us.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _end: end.drop_guard() })
    }

    /// Opens the source of links there: what a client spawns stays in the runtime where it was made.
    pub(super) async fn open(&self, flags: Flags) -> Result<(SyncSource, Flags), RunError> {
        let opened = self.runtime.spawn(async move { Ok((SyncSource::open(&flags).await?, flags)) });
        // It ends with the process at the earliest, so only a panic is left.
        opened.await.unwrap_or_else(|error| Err(RunError::Thread(error.into())))
    }

    /// Where tasks are spawned that run on it.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
