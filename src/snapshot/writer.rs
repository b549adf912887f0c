//! Writes the snapshot whenever the links have changed, and periodically while the watches live.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::contents::{recorded_flags, saved_owners};
use super::context::SnapshotContext;
use super::file;
use super::format::{Encoded, FormatError, Head, encode};
use super::rules::{pause_after, renewal};
use super::serving::Kept;
use crate::store::Input;
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::k8s::watch::OF_TARGETS;
use crate::sync::task::backoff::Backoff;
use crate::sync::task::supervisor::{SHUTDOWN_TIMEOUT, SyncError};

/// How long the first write waits for StableNames and sources of names if the file has nothing of them.
/// If it has such targets, the write waits without limit, and a warning is logged after this time.
const OVERRIDES_TIMEOUT: Duration = Duration::from_secs(60);
/// The first and the longest pause after a failed write.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why a snapshot couldn't be written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("{0}")]
    Format(#[from] FormatError),
    #[error("{0}")]
    File(#[from] std::io::Error),
}

/// The state of the writes.
struct Writer<'a> {
    context: &'a SnapshotContext,
    log: ThrottledLog,
    backoff: Backoff,
    /// The time at which the written links were known to be current.
    current_at: Option<std::time::Instant>,
    /// The time before which nothing is written.
    not_before: Instant,
    has_written: bool,
    cut: usize,
}

/// Writes the snapshot until `stop`, and then once more if the links have changed since. A file that has targets of
/// StableNames, or names of other sources, isn't replaced before these are listed, or StableNames known not to be
/// readable.
///
/// # Errors
/// If the thread that writes panics.
pub(super) async fn run(
    context: &SnapshotContext,
    kept: Kept,
    stop: &CancellationToken,
) -> Result<(), SyncError> {
    let store = &context.store;
    let mut changes = store.subscribe();
    if stop.run_until_cancelled(until_known(context, kept)).await.is_none() {
        return Ok(());
    }
    let mut writer = Writer {
        context,
        log: ThrottledLog::default(),
        backoff: Backoff::new(RETRY_BACKOFF),
        current_at: None,
        not_before: Instant::now(),
        has_written: false,
        cut: 0,
    };
    let mut is_pending = true;
    loop {
        if !is_pending {
            tokio::select! {
                biased;
                // `Lagged` also means a change. `Closed` can't occur, because the context has the store.
                _ = changes.recv() => {}
                () = stop.cancelled() => return Ok(()),
                () = sleep(renewal(context.max_age)) => if !writer.is_renewable() { continue },
            }
        }
        let _ = stop.run_until_cancelled(sleep_until(writer.not_before)).await;
        let is_last = stop.is_cancelled();
        // Discard the changes until now: the file has all of them.
        while !matches!(changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
        tokio::select! {
            written = writer.write() => is_pending = !written?,
            () = async { stop.cancelled().await; sleep(SHUTDOWN_TIMEOUT).await } => {
                warn!("the snapshot {} isn't written in time", context.path.display());
                return Ok(());
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Waits until what the file has is known, or for a time if it lacks it.
async fn until_known(context: &SnapshotContext, kept: Kept) {
    let store = &context.store;
    let both = async { tokio::join!(store.known(Input::StableNames), store.all_known()) };
    if timeout(OVERRIDES_TIMEOUT, both).await.is_ok() {
        return;
    }
    if kept.others {
        let path = context.path.display();
        warn!(
            "the snapshot {path} isn't written yet: it has names of sources that aren't read completely yet"
        );
        store.all_known().await;
    }
    if kept.overrides && !store.is_known(Input::StableNames) {
        let path = context.path.display();
        warn!(
            "the snapshot {path} isn't written yet: it has targets that StableNames have chosen, and the StableNames \
             can't be read"
        );
        store.known(Input::StableNames).await;
    }
}

impl Writer<'_> {
    /// Returns the time at which the links were known to be current: the last sign of life of the quietest watch.
    fn current_at(&self) -> std::time::Instant {
        self.context.staleness.least_recent(&OF_TARGETS).unwrap_or_else(std::time::Instant::now)
    }

    /// Returns whether the links are known to be current at a later time than the snapshot tells.
    fn is_renewable(&self) -> bool {
        self.current_at.is_none_or(|written| self.current_at() > written)
    }

    /// Writes the snapshot. Returns whether it is written; if not, it is to be tried again.
    async fn write(&mut self) -> Result<bool, SyncError> {
        let SnapshotContext { path, cluster, selection, policy, store, metrics, .. } = self.context;
        let (begun, current_at) = (Instant::now(), self.current_at());
        let silence = SignedDuration::try_from(current_at.elapsed()).unwrap_or_default();
        let mut head = Head {
            // Whole seconds, for the user.
            taken: Timestamp::from_second((Timestamp::now() - silence).as_second()).unwrap_or_default(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: cluster.borrow().clone(),
            recorded_flags: recorded_flags(selection, &policy.borrow(), &store.zones()),
            serial: 0,
            last_change: None,
        };
        let (store, file) = (Arc::clone(store), path.clone());
        let written = spawn_blocking(move || -> Result<Encoded, WriteError> {
            let links = store.links();
            let others = store.other_owners();
            // Read after the links: the serial of a zone must not be older than its links.
            head.serial = store.serial();
            head.last_change = Some(store.last_change().load(Ordering::Relaxed));
            let encoded = encode(&head, || saved_owners(&links, &others))?;
            file::replace(&file, &encoded.bytes)?;
            Ok(encoded)
        });
        let (written, path) = (written.await?, path.display());
        let encoded = match written {
            Ok(encoded) => encoded,
            Err(error) => {
                metrics.failures.inc();
                self.log
                    .report(0, &format!("the snapshot {path} can't be written: {error}; it stays as it was"));
                self.not_before = Instant::now() + self.backoff.next();
                return Ok(false);
            }
        };
        metrics.written(encoded.links);
        self.log.recovered(&format!("the snapshot {path} is written again"));
        if !std::mem::replace(&mut self.has_written, true) {
            let (links, size) = (encoded.links, encoded.bytes.len());
            info!(
                "the snapshot {path} is written now, and whenever links change; links: {links}, {size} bytes"
            );
        }
        let cut_before = std::mem::replace(&mut self.cut, encoded.cut);
        if encoded.cut > 0 && cut_before == 0 {
            warn!(
                "the snapshot {path} has only the default names of {} links, because these links or the snapshot would be \
                 too large: the names of these links get SERVFAIL while DNS answers from the snapshot",
                encoded.cut
            );
        }
        self.current_at = Some(current_at);
        self.backoff = Backoff::new(RETRY_BACKOFF);
        self.not_before = Instant::now() + pause_after(begun.elapsed());
        Ok(true)
    }
}
