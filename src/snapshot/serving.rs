//! From the start to the first complete list: reads the snapshot, and lets DNS answer with it if there is no list.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::contents::recorded_flags;
use super::context::SnapshotContext;
use super::file;
use super::format::{FormatError, Snapshot, decode};
use super::restore::{Restored, restore};
use super::rules::{self, FIRST_LIST_TIMEOUT};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::Zone;
use crate::store::Input;
use crate::store::fallback::{Age, Fallback};
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::source::first_list::FirstList;
use crate::sync::task::supervisor::SyncError;

/// Why the snapshot is in use although the load balancers are read.
const UNLISTED: &str = "the other sources of names aren't read completely yet";

/// The result of reading the file.
enum Loaded {
    Missing,
    Snapshot(Box<ReadSnapshot>),
    Unreadable(io::Error),
    Damaged {
        why: FormatError,
        /// The new name of the file.
        aside: io::Result<PathBuf>,
    },
}

/// What a file has beside the load balancers.
#[derive(Clone, Copy, Default)]
pub(super) struct Kept {
    /// Targets that StableNames have chosen.
    pub(super) overrides: bool,
    /// Names of other sources.
    pub(super) others: bool,
}

/// A snapshot, and its bytes.
struct ReadSnapshot {
    bytes: Vec<u8>,
    snapshot: Snapshot,
}

/// Runs until the first list is complete, and the sources of the names in the file are listed.
///
/// Returns what the file has.
///
/// # Errors
/// If a task on another thread panics.
pub(super) async fn until_first_list(context: &SnapshotContext) -> Result<Kept, SyncError> {
    let deadline = Instant::now() + FIRST_LIST_TIMEOUT;
    let path = context.path.clone();
    let loaded = spawn_blocking(move || load(path)).await?;
    let mut kept = Kept::default();
    if let Some(ReadSnapshot { bytes, snapshot }) = snapshot_or_log(context, loaded) {
        kept.overrides = snapshot.links.iter().any(|link| link.overridden_by.is_some());
        kept.others = snapshot.links.iter().any(|link| !link.is_service());
        context.metrics.links.set(i64::try_from(snapshot.links.len()).unwrap_or(i64::MAX));
        if is_needed(context, kept, deadline).await {
            serve(context, kept, snapshot, bytes).await?;
        }
    }
    context.store.known(Input::Services).await;
    Ok(kept)
}

fn load(path: PathBuf) -> Loaded {
    let bytes = match file::read(&path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Loaded::Missing,
        Err(error) => return Loaded::Unreadable(error),
    };
    match decode(&bytes) {
        Ok(snapshot) => Loaded::Snapshot(Box::new(ReadSnapshot { bytes, snapshot })),
        Err(why) => Loaded::Damaged { why, aside: file::rename_damaged(&path) },
    }
}

/// Returns the snapshot, or logs why it can't be used. A missing file isn't logged.
fn snapshot_or_log(context: &SnapshotContext, loaded: Loaded) -> Option<ReadSnapshot> {
    let path = context.path.display();
    match loaded {
        Loaded::Snapshot(read) => return Some(*read),
        Loaded::Missing => {}
        Loaded::Unreadable(error) => warn!("the snapshot {path} can't be read, so it isn't used: {error}"),
        Loaded::Damaged { why, aside: Ok(aside) } => {
            warn!(
                "the snapshot {path} isn't used: {why}; it was renamed to {}, and a new one will be written",
                aside.display()
            );
        }
        Loaded::Damaged { why, aside: Err(error) } => {
            warn!("the snapshot {path} isn't used: {why}; the file can't be renamed: {error}");
        }
    }
    None
}

/// Waits until all that the file has is known.
async fn known(context: &SnapshotContext, kept: Kept) {
    match kept.others {
        true => context.store.all_known().await,
        false => context.store.known(Input::Services).await,
    }
}

/// Returns `true` once the API server has refused the first list or can't produce it, or if the list isn't complete by
/// `deadline`; `false` once the list is complete.
async fn is_needed(context: &SnapshotContext, kept: Kept, deadline: Instant) -> bool {
    let mut first_list = context.first_list.clone();
    tokio::select! {
        biased;
        () = known(context, kept) => false,
        // The sender lives as long as the source.
        Ok(_) = first_list.wait_for(|state| state.is_refused()) => true,
        () = sleep_until(deadline) => true,
    }
}

/// Lets DNS answer with a snapshot until the first list is complete, or the snapshot is too old. `bytes` is the encoded
/// snapshot. It is decoded again for each new policy, because the decoded links take several times the memory.
async fn serve(
    context: &SnapshotContext,
    kept: Kept,
    snapshot: Snapshot,
    bytes: Vec<u8>,
) -> Result<(), SyncError> {
    let SnapshotContext { path, max_age, selection, store, .. } = context;
    let (mut first_list, mut policy) = (context.first_list.clone(), context.policy.clone());
    let mut known_zones = store.watch_zones();
    let (path, taken) = (path.display(), snapshot.head.taken);
    let Some(age) = usable_age(context, &snapshot) else { return Ok(()) };
    let read = Instant::now();
    let bytes = Arc::new(bytes);
    let mut decoded = Some(snapshot);
    let mut is_first = true;
    loop {
        let (current, watched) = (Arc::clone(&policy.borrow_and_update()), Arc::clone(selection));
        let (decoded, bytes) = (decoded.take(), Arc::clone(&bytes));
        let zones = zones(&current, &known_zones.borrow_and_update());
        let restored = spawn_blocking(move || {
            let snapshot = decoded.map_or_else(|| decode(&bytes), Ok)?;
            Ok::<_, FormatError>(restore(snapshot, &watched, &current, &zones))
        });
        let Restored { store: links, all, answered, denied } = match restored.await? {
            Ok(restored) => restored,
            Err(why) => {
                store.set_fallback(None);
                warn!("the snapshot {path} isn't used: {why}");
                return Ok(());
            }
        };
        if answered == 0 && is_first {
            warn!("the snapshot {path} isn't used: it has no link with a target that the flags allow");
            return Ok(());
        }
        let reason = match store.is_known(Input::Services) {
            true => UNLISTED.into(),
            false => first_list.borrow_and_update().reason(),
        };
        let snapshot_links = Arc::new(Fallback {
            store: Arc::new(links),
            taken,
            age_then: age + read.elapsed(),
            since: std::time::Instant::now(),
            reason: Mutex::new(reason),
        });
        if !store.set_fallback(Some(Arc::clone(&snapshot_links))) {
            return Ok(());
        }
        if std::mem::take(&mut is_first) {
            log_served(&path, &snapshot_links, &counts(all, answered, denied));
        }
        let end = read.checked_add(max_age.saturating_sub(age));
        let is_changed = tokio::select! {
            biased;
            is_changed = wait(context, kept, &snapshot_links, &mut first_list, &mut policy, end) => is_changed,
            // The zones have other sources or classes, without a new policy.
            Ok(()) = known_zones.changed() => true,
        };
        if !is_changed {
            return Ok(());
        }
    }
}

/// Returns the number of links in a snapshot, as its metric and the line about its write have it, how many of them have
/// answers, if not all, and how many the flags leave out, or have a target that the flags deny, if any.
fn counts(all: usize, answered: usize, denied: usize) -> String {
    let answered = if answered < all { format!(", with answers: {answered}") } else { String::new() };
    let denied = if denied > 0 { format!(", left out or denied by flags: {denied}") } else { String::new() };
    format!("links: {all}{answered}{denied}")
}

/// Logs that DNS answers with a snapshot.
fn log_served(path: impl Display, served: &Fallback, counts: &str) {
    warn!(
        "{}: DNS answers from the snapshot {path} of {}, {} old ({counts}); other names in the zones get SERVFAIL",
        served.reason.lock(),
        served.taken,
        Age(served.age())
    );
}

/// Returns the zones of the policy, with their sources as far as they are known, and the domains of remote clusters.
fn zones(policy: &HostnamePolicy, known: &[Zone]) -> Vec<Zone> {
    let with_sources = |origin: &Name| {
        let zone = Zone::from(origin);
        known.iter().find(|known| known.origin == zone.origin).cloned().unwrap_or(zone)
    };
    let domains = known.iter().filter(|zone| zone.cluster.is_some()).cloned();
    policy.targets.zones.iter().map(with_sources).chain(domains).collect()
}

/// Returns the age of a snapshot, or logs why it can't be used.
fn usable_age(context: &SnapshotContext, Snapshot { head, .. }: &Snapshot) -> Option<Duration> {
    let SnapshotContext { path, max_age, cluster, selection, policy, store, .. } = context;
    let now = recorded_flags(selection, &policy.borrow(), &store.zones());
    rules::check(head, &cluster.borrow(), &now)
        .and_then(|()| rules::age(head.taken, Timestamp::now(), *max_age))
        .inspect_err(|why| warn!("the snapshot {} isn't used: {why}", path.display()))
        .ok()
}

/// Waits while DNS answers with a snapshot. Returns whether a new policy applies; `false` once the snapshot isn't used
/// any more.
async fn wait(
    context: &SnapshotContext,
    kept: Kept,
    snapshot_links: &Fallback,
    first_list: &mut watch::Receiver<FirstList>,
    policy: &mut watch::Receiver<Arc<HostnamePolicy>>,
    end: Option<Instant>,
) -> bool {
    let (store, path) = (&context.store, context.path.display());
    let mut is_known = false;
    loop {
        tokio::select! {
            biased;
            () = known(context, kept) => {
                info!("the load balancers are read: DNS doesn't use the snapshot {path} any more");
                return false;
            }
            () = store.known(Input::Services), if !is_known => {
                is_known = true;
                *snapshot_links.reason.lock() = UNLISTED.into();
            }
            Ok(()) = policy.changed() => return true,
            Ok(()) = first_list.changed(), if !is_known => {
                *snapshot_links.reason.lock() = first_list.borrow_and_update().reason();
            }
            () = sleep_until_opt(end) => {
                store.set_fallback(None);
                warn!(
                    "the snapshot {path} is {} old and isn't used any more (--snapshot-max-age): until the load \
                     balancers are read, names in the zones get SERVFAIL",
                    Age(snapshot_links.age())
                );
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner::Source;
    use crate::model::target_policy::TargetPolicy;

    #[test]
    fn counts_name_what_they_count() {
        assert_eq!(counts(4, 4, 0), "links: 4");
        assert_eq!(counts(5, 4, 0), "links: 5, with answers: 4");
        assert_eq!(counts(5, 3, 1), "links: 5, with answers: 3, left out or denied by flags: 1");
    }

    #[test]
    fn zones_have_their_sources_and_the_domains_of_clusters() {
        let origin = Name::from_ascii("lb.internal.").unwrap();
        let zone = Zone { sources: vec![Source::INGRESSES, Source::SERVICES], ..(&origin).into() };
        let known = zone.with_remotes(&["west".into()]);
        let other = Name::from_ascii("other.internal.").unwrap();
        let targets = TargetPolicy { zones: vec![origin, other.clone()], ..Default::default() };
        let policy = HostnamePolicy { targets, ..Default::default() };
        assert_eq!(zones(&policy, &known), [known[0].clone(), Zone::from(&other), known[1].clone()]);
    }
}
