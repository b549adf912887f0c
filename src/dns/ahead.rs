//! What a change of a target does to what is known of the names behind it.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Name, RecordType};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::question::{Question, wire_name};
use super::resolver::Resolver;
use super::zone::Zone;
use crate::store::{Change, Family, Store, Target};

/// Whose new target is looked up before somebody asks: who was asked for in this time.
const RECENT: Duration = Duration::from_secs(60);
/// Look-ups ahead that may be under way at once. What is more is looked up when somebody asks.
const MAX_LOOKUPS: usize = 64;

/// Follows the changes of the store until `stop`. What was cached about the old and the new name is
/// forgotten: a cloud's new name is often looked up before it exists.
pub async fn run(store: Arc<Store>, zones: Arc<[Zone]>, resolver: Arc<Resolver>, stop: CancellationToken) {
    let mut changes = store.subscribe();
    let places = Arc::new(Semaphore::new(MAX_LOOKUPS));
    let mut look_ups = JoinSet::new();
    loop {
        let change = tokio::select! {
            change = changes.recv() => change,
            () = stop.cancelled() => return,
        };
        while look_ups.try_join_next().is_some() {}
        match change {
            Ok(change) => {
                for question in heed(&change, &zones, &resolver) {
                    let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                    let resolver = Arc::clone(&resolver);
                    look_ups.spawn(async move {
                        resolver.look_ahead(&question).await;
                        drop(place);
                    });
                }
            }
            Err(RecvError::Lagged(missed)) => {
                debug!("{missed} changes at once: all cached answers are forgotten");
                resolver.forget_all();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Forgets what a change makes doubtful; returns the questions that clients will have.
fn heed(change: &Change, zones: &[Zone], resolver: &Resolver) -> Vec<Question> {
    let Some((from, to)) = change.retargeted() else { return Vec::new() };
    for name in [from, to].into_iter().filter_map(hostname) {
        resolver.forget_name(&wire_name(name));
    }
    let (Some(name), Some(link)) = (hostname(to), &change.after) else { return Vec::new() };
    // Our own names are nobody else's to know.
    if zones.iter().any(|zone| zone.origin().zone_of(name)) {
        return Vec::new();
    }
    [(Family::V4, RecordType::A), (Family::V6, RecordType::AAAA)]
        .into_iter()
        .filter(|(family, _)| link.asked.is_recent(*family, RECENT))
        .map(|(_, qtype)| Question::plain(name.clone(), qtype))
        .collect()
}

fn hostname(target: Option<&Target>) -> Option<&Name> {
    match target? {
        Target::Hostname(name) => Some(name),
        Target::Addresses(_) => None,
    }
}
