//! The thread that runs sync.

use std::io;
use std::thread::Builder;

use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::sync_tasks::SyncSource;
use crate::app::error::RunError;
use crate::cli::flags::Flags;

/// A thread with a single-threaded runtime. A change passes through a dozen tasks: on one thread each task wakes the
/// next one without waking another thread, and DNS workers aren't delayed. Dropping this value ends the thread and its
/// tasks.
pub(super) struct SyncRuntime {
    runtime: Handle,
    _end: DropGuard,
}

impl SyncRuntime {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let end = CancellationToken::new();
        let until = end.clone();
        Builder::new().name("sync".to_owned()).spawn(move || {
            runtime.block_on(until.cancelled());
            // Doesn't wait for blocking tasks: a file system that doesn't respond must not delay the shutdown.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _end: end.drop_guard() })
    }

    /// Opens the source of links on the sync thread, because tasks that a kube client spawns stay in the runtime that
    /// created the client.
    pub(super) async fn open(&self, flags: Flags) -> Result<SyncSource, RunError> {
        let opened = self.runtime.spawn(async move { SyncSource::open(&flags).await });
        // The runtime lives as long as `self`, so the only possible `JoinError` is a panic.
        opened.await.unwrap_or_else(|error| Err(RunError::SyncThread(error.into())))
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
