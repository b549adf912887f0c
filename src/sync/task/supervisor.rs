//! Restarts sync tasks when they fail.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounterVec, Opts, Registry};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::backoff::Backoff;
use crate::file_watcher::DirectoryError;
use crate::metrics::{MetricGroup, registered};

/// How long writes under way may take to end when lb-linker is told to stop.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The first and the longest pause before a sync task is started again.
const RESTART_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// The reason for the end of a sync task.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A watch ended, although watches never end by themselves.
    #[error("the watch has ended")]
    WatchEnded,
    /// The source of load balancers or the destination of writes can't be used any more.
    #[error("{0}")]
    Source(Box<dyn std::error::Error + Send + Sync>),
    /// The sync task, or a task that it started, panicked.
    #[error("{0}")]
    Panic(#[from] tokio::task::JoinError),
}

impl From<DirectoryError> for SyncError {
    fn from(error: DirectoryError) -> Self {
        Self::Source(error.into())
    }
}

#[derive(Debug)]
pub struct SupervisorMetrics {
    restarts: IntCounterVec,
}

impl MetricGroup for SupervisorMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts =
            Opts::new("lb_linker_sync_restarts_total", "Sync tasks that ended and were started again.");
        Ok(Self { restarts: registered(registry, IntCounterVec::new(opts, &["task"]))? })
    }
}

/// Runs a sync task and restarts it, with exponential backoff, whenever it fails or panics; DNS isn't affected. Returns
/// when the task ends without an error, or when `stop` is cancelled during a pause.
pub async fn supervise<F>(
    name: &'static str,
    stop: CancellationToken,
    metrics: Arc<SupervisorMetrics>,
    mut task: impl FnMut() -> F,
) where
    F: Future<Output = Result<(), SyncError>> + Send + 'static,
{
    let mut pauses = Backoff::new(RESTART_BACKOFF);
    loop {
        let started = std::time::Instant::now();
        let failure = match tokio::spawn(task()).await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => SyncError::Panic(panic),
        };
        // A healthy run resets the backoff.
        if started.elapsed() > RESTART_BACKOFF.1 * 2 {
            pauses = Backoff::new(RESTART_BACKOFF);
        }
        let pause = pauses.next();
        metrics.restarts.with_label_values(&[name]).inc();
        error!("{name} stopped: {failure}; it starts again in {pause:.1?}, DNS goes on meanwhile");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
