//! Invalidates cached data about a target's name when the target of a link changes, and prefetches the new target.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use tokio::runtime::Handle;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::dns::chain::server::Server;
use crate::dns::message::query::wire_name;
use crate::dns::plugins::lb_linker::LbLinker;
use crate::model::link::{IpFamily, LinkChange, Target};
use crate::store::Store;

/// The new target of a link is prefetched if the link was queried within this time.
const RECENT_WINDOW: Duration = Duration::from_secs(60);
/// The maximum number of concurrent prefetches. Further targets are looked up when a client asks.
const MAX_CONCURRENT_PREFETCHES: usize = 64;

/// The current servers, one for each listener.
pub type Servers = Arc<[Arc<Server>]>;

/// Processes the changes of the store until `stop`. Cached data about the old and the new hostname is discarded: the
/// new hostname of a cloud's load balancer is often looked up before it exists. Prefetches run on the runtime `dns`.
pub async fn run(
    store: Arc<Store>,
    servers: watch::Receiver<Servers>,
    dns: Handle,
    stop: CancellationToken,
    is_restart: bool,
) {
    let mut feed = store.subscribe();
    if is_restart {
        // Changes before the restart may have been missed.
        servers.borrow().iter().for_each(|server| server.invalidate(None));
    }
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_PREFETCHES));
    let mut look_ups = JoinSet::new();
    loop {
        let changes = tokio::select! {
            changes = feed.recv() => changes,
            () = stop.cancelled() => return,
        };
        while look_ups.try_join_next().is_some() {}
        let servers = servers.borrow().clone();
        match changes {
            Ok(changes) => {
                let wanted = |change| {
                    invalidate_and_prefetch(change, &servers).into_iter().map(move |it| (change, it))
                };
                for (change, (server, links, query)) in distinct(&changes).flat_map(wanted) {
                    let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
                    let link = change.owner.key.clone();
                    let look_up = async move {
                        links.prefetch(&server, &link, query).await;
                        drop(permit);
                    };
                    look_ups.spawn_on(look_up, &dns);
                }
            }
            Err(RecvError::Lagged(missed)) => {
                debug!("missed {missed} changes of links: all cached answers are discarded");
                servers.iter().for_each(|server| server.invalidate(None));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Returns the changes of targets, each once: many names may share a target.
fn distinct(changes: &[LinkChange]) -> impl Iterator<Item = &LinkChange> {
    let of = |change: &LinkChange| [&change.before, &change.after].map(|link| link.as_ref().map(Arc::as_ptr));
    let mut seen = HashSet::new();
    changes.iter().filter(move |change| seen.insert(of(change)))
}

type Prefetch = (Arc<Server>, Arc<LbLinker>, Query);

/// Discards cached data about the old and the new target of a change; returns the queries to prefetch.
fn invalidate_and_prefetch(change: &LinkChange, servers: &[Arc<Server>]) -> Vec<Prefetch> {
    let Some((from, to)) = change.target_change() else { return Vec::new() };
    for name in [from, to].into_iter().filter_map(hostname) {
        let wire = wire_name(&name);
        servers.iter().for_each(|server| server.invalidate(Some(&wire)));
    }
    let (Some(name), Some(link)) = (hostname(to), &change.after) else { return Vec::new() };
    let qtypes: Vec<RecordType> = [(IpFamily::V4, RecordType::A), (IpFamily::V6, RecordType::AAAA)]
        .into_iter()
        .filter(|(family, _)| link.last_queried.is_recent(*family, RECENT_WINDOW))
        .map(|(_, qtype)| qtype)
        .collect();
    let mut look_ups = Vec::new();
    // Names in our zones are never sent upstream.
    for server in servers.iter().filter(|server| !server.is_link_name(&name)) {
        for links in LbLinker::all_of(server) {
            let queries = qtypes.iter().map(|qtype| Query::query(name.clone(), *qtype));
            look_ups.extend(queries.map(|query| (Arc::clone(server), Arc::clone(&links), query)));
        }
    }
    look_ups
}

fn hostname(target: Option<&Target>) -> Option<Name> {
    match target? {
        Target::Hostname(host) => Some(host.name()),
        Target::Addresses(_) => None,
    }
}
