//! Follows load balancers into the store, and makes the external targets match it.

pub mod controller;
pub mod election;
pub mod events;
pub mod external_target;
pub mod k8s;
pub mod source;
pub mod source_annotation;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::metrics::Metrics;
use crate::model::excerpt::examples;
use crate::store::{Change, Link, State, Store};
pub use events::service_log::ServiceLog;
use events::{Reason, Recorder};

/// The first and the longest pause before a sync task is started again.
const RESTART: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Why a sync task ended.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// There is nothing more to come from a watch that should never end.
    #[error("the watch has ended")]
    WatchEnded,
    /// A directory can't be used any more.
    #[error(transparent)]
    Directory(#[from] source::file_watcher::DirectoryError),
    /// A task that it started panicked.
    #[error("{0}")]
    Panic(#[from] tokio::task::JoinError),
}

/// Pauses that double, with jitter, from a first to a longest one.
#[derive(Debug)]
pub(crate) struct Pauses {
    backoff: ExponentialBackoff,
    longest: Duration,
}

impl Pauses {
    pub(crate) fn new((first, longest): (Duration, Duration)) -> Self {
        let builder = ExponentialBuilder::default()
            .with_min_delay(first)
            .with_max_delay(longest)
            .with_jitter()
            .without_max_times();
        Self { backoff: builder.build(), longest }
    }

    pub(crate) fn next(&mut self) -> Duration {
        // The jitter comes on top.
        self.backoff.next().unwrap_or(self.longest).min(self.longest)
    }
}

/// Runs a sync task and starts it again, after a growing pause, whenever it fails or panics: DNS
/// goes on meanwhile. Returns when the task ends without an error, or at `stop`.
pub async fn supervise<F>(
    name: &'static str,
    stop: CancellationToken,
    metrics: Arc<Metrics>,
    mut task: impl FnMut() -> F,
) where
    F: Future<Output = Result<(), SyncError>> + Send + 'static,
{
    let mut pauses = Pauses::new(RESTART);
    loop {
        let started = std::time::Instant::now();
        let failure = match tokio::spawn(task()).await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(panic) => SyncError::Panic(panic),
        };
        // Who ran well for a while starts anew.
        if started.elapsed() > RESTART.1 * 2 {
            pauses = Pauses::new(RESTART);
        }
        let pause = pauses.next();
        metrics.sync_restarts.with_label_values(&[name]).inc();
        error!("{name} stopped: {failure}; it starts again in {pause:.1?}, DNS goes on meanwhile");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Where what happens to links is told, beside the log.
#[derive(Clone)]
pub struct News {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is recorded as a Kubernetes Event.
    pub recorder: Recorder,
    /// What the log says of what Services ask for.
    pub log: ServiceLog,
}

fn log_changes(news: &News, changes: impl IntoIterator<Item = Change>) {
    for change in changes {
        log_change(news, &change);
    }
}

fn log_change(news: &News, change: &Change) {
    let state = |link: &Option<Arc<Link>>| link.as_ref().map(|link| link.state);
    let (before, after) = (state(&change.before), state(&change.after));
    let retargeted = change.retargeted();
    if change.before.is_some() && retargeted.is_some() {
        news.metrics.target_changes.inc();
    }
    if before != after && after == Some(State::Stale) {
        // It goes on, but somebody should look.
        warn!("{change}");
    } else if retargeted.is_some() || before != after {
        info!("{change}");
    } else {
        debug!("link {}: another TTL, other ports or another name", change.key);
    }
    let Some(link) = &change.after else { return };
    if let Some(note) = lost_hostnames(change) {
        news.log.warn(&link.key, &format!("link {}: {note}", link.key));
        news.recorder.about(link, Reason::Conflict, &note);
    }
    if let (Some(target), Some(State::Stale)) = (&link.target, after)
        && before != after
    {
        let why = if link.refused { "the new target isn't followed" } else { "the status is blank" };
        let note = format!("{why}; {target} stays the target");
        news.recorder.about(link, Reason::TargetStale, &note);
    }
}

/// Returns which DNS names a link asks for and hasn't, if that is news.
fn lost_hostnames(change: &Change) -> Option<String> {
    let lost = |link: &Option<Arc<Link>>| -> Vec<Box<str>> {
        let Some(link) = link else { return Vec::new() };
        link.wishes.hostnames.iter().filter(|name| !link.hostnames.contains(name)).cloned().collect()
    };
    let now = lost(&change.after);
    (!now.is_empty() && now != lost(&change.before))
        .then(|| format!("it doesn't get DNS names that another load balancer has: {}", examples(now)))
}

/// The first list is news about lb-linker, not about the links: one line of each would bury
/// everything else.
fn log_first_list(store: &Store, news: &News, changes: &[Change]) {
    for change in changes {
        debug!("{change}");
        if let Some(note) = lost_hostnames(change) {
            news.log.warn(&change.key, &format!("link {}: {note}", change.key));
        }
    }
    info!("ready: load balancers: {}", store.links().len());
}
