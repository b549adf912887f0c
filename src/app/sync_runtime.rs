//! The thread that runs sync.

use std::io;
use std::thread::Builder;

use tokio::runtime::{self, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::app::error::RunError;

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

    /// Runs a task on the sync thread, and returns its result. A kube client's connections are tasks of the runtime that
    /// makes the request, so all requests for links are made here: they don't fail when another runtime ends first.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, RunError>> + Send + 'static,
    ) -> Result<T, RunError> {
        // The runtime lives as long as `self`, so the only possible `JoinError` is a panic.
        self.runtime.spawn(task).await.unwrap_or_else(|error| Err(RunError::SyncThread(error.into())))
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
