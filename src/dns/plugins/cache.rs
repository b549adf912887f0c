//! # Name
//!
//! *cache* - keeps answers, and gives them until they expire.
//!
//! # Description
//!
//! What the plugins behind this one have answered is kept, and given to all clients that ask the same: the same name, type
//! and class, with the same DO and CD flags. An answer is kept as long as the shortest TTL in it, within bounds:
//! from 5 seconds to an hour for one that says something, from 5 seconds to half an hour for one that says that
//! the name or the type doesn't exist. All records of a message get that one TTL, also when it has just come.
//! SERVFAIL and NOTIMP are kept for 5 seconds. Nothing is kept of truncated answers, transfers, other errors,
//! denials without an SOA record, NXDOMAIN with records in its answer section, aliases that lead nowhere, and,
//! for clients with DO, answers with signatures that have expired.
//!
//! An answer from the cache has AA set, whoever it is from: there are clients that take no other. AD is only
//! shown to clients that have set AD or DO; the plugins behind are always asked with AD.
//!
//! There are two parts, one for answers that say something (`success`) and one for all others (`denial`). Each
//! has room for 9984 answers by default. Where one is full, answers are dropped at random.
//!
//! An answer of *template* with what is behind its CNAME isn't kept where that is a name of *lb_linker*, or was looked up
//! through a block with *acl* or *clients*: another client may get another answer.
//!
//! Names in a zone of *lb_linker* are never kept, only what their targets have. When a target changes, what is
//! kept about the old and the new one is dropped; absence of a target is given no longer than the zone's TTL; and
//! nothing that has expired is given for a target.
//!
//! Differences from CoreDNS:
//!
//! - A part also takes 32 MiB at most, or as much more as its capacity is more than the default: some thousand
//!   long answers must not take all memory.
//! - Questions without RD have answers of their own, which aren't kept: such an answer holds what a server
//!   happened to have cached, and isn't one for clients that set RD.
//! - That no upstream has answered at all is known for a second, as SERVFAIL (RFC 9520), unless `servfail` is 0. A
//!   plugin's own failure, such as a name that *hosts* doesn't have, is never kept.
//! - A failure takes nothing away: neither a cached SERVFAIL nor NOTIMP hides a better answer that is still good,
//!   and none is given once it has expired. CoreDNS does so for SERVFAIL beside a positive answer alone.
//! - The newest answer counts: absence replaces what there was, and the other way round, in every mode but
//!   `prefer_positive`. In CoreDNS both may be there, and absence wins.
//! - An expired answer isn't given any more once the name is known not to exist, though that answer itself can't
//!   be kept (RFC 8767 section 4).
//! - A TTL with the top bit set is 0 (RFC 2181 section 8).
//! - Words after **MINTTL**, which CoreDNS ignores, negative numbers and zones that are none are errors.
//!
//! # Syntax
//!
//! ```text
//! cache [TTL] [ZONES...] {
//!     success CAPACITY [TTL] [MINTTL]
//!     denial CAPACITY [TTL] [MINTTL]
//!     prefetch AMOUNT [[DURATION] [PERCENTAGE%]]
//!     serve_stale [DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]]]
//!     serve_stale [DURATION] [verify [VERIFY_TIMEOUT [RESPONSE_TTL [FAILURE_RECHECK]]]]
//!     serve_stale_policy prefer_positive
//!     servfail DURATION
//!     disable success|denial [ZONES...]
//!     keepttl
//! }
//! ```
//!
//! All is optional. The plugin can be there once in a block; where an option is there twice, the last one counts.
//!
//! - **TTL** is the longest time for both parts, in seconds, from 1 on. It makes no time longer.
//! - **ZONES** are the zones whose names are kept; without them, those of the block. A network such as
//!   `10.0.0.0/8` stands for its reverse zones.
//! - `success` is about answers that say something: **CAPACITY** is how many are kept, rounded down to a multiple
//!   of 256, at least 1024 (default 9984); **TTL** and **MINTTL** are the longest and the shortest time in seconds
//!   (default 3600 and 5, or **TTL** from above). With a **MINTTL** of 0, records with a TTL of 0 aren't kept.
//!   A **MINTTL** above **TTL** has no effect.
//! - `denial` is the same for answers that say that there is nothing; the default **TTL** is 1800.
//! - `prefetch` has popular answers asked for again before they expire, in the background. Popular are those that
//!   were given **AMOUNT** times with no gap longer than **DURATION** between (default `1m`); 0 turns it off.
//!   They are asked for when no more than **PERCENTAGE** of the TTL is left, from `10%` to `90%` (default `10%`).
//!   One question at a time is under way for an answer.
//! - `serve_stale` has answers given that have expired, up to **DURATION** ago (default `1h`; whole seconds count,
//!   and 0 turns it off). With `immediate`, the default, such an answer is given at once and asked for again in
//!   the background, one question at a time. With `verify` the plugins behind are asked first; the expired answer
//!   is given if they have no better one, or not within **VERIFY_TIMEOUT** (default 0: as long as they take) while
//!   the question goes on. Better is any whole answer with NOERROR or NXDOMAIN. **RESPONSE_TTL** is the TTL of
//!   expired answers, in whole seconds (default 0; RFC 8767 wants `30s`). **FAILURE_RECHECK**, `5m` at most, is how
//!   long an answer isn't asked for again after that has failed, and with `verify` also has one client at a time
//!   ask (default 0: every client does).
//! - `serve_stale_policy prefer_positive` has an answer with what was asked for, expired or not, given before one
//!   that says that there is nothing: no denial and no failure takes its place, only a newer one of its kind. It
//!   needs `serve_stale`. What was removed on purpose may be given for long with it.
//! - `servfail` is how long SERVFAIL and NOTIMP are kept (default `5s`, at most `5m`); 0 is not at all.
//! - `disable` has nothing kept in a part for these zones; without **ZONES**, for none.
//! - `keepttl` has cached answers given with the TTL that they were kept with, not with what is left of it. It is
//!   for servers that answer with authority: resolvers behind would keep what is outdated.
//!
//! Durations are such as `30s`, `1m30s` or `500ms`.
//!
//! # Metrics
//!
//! - `coredns_cache_entries{server, type, zones, view}`: answers in the cache, by part.
//! - `coredns_cache_requests_total{server, zones, view}`: questions that came to the cache.
//! - `coredns_cache_hits_total{server, type, zones, view}`: those that were answered from it, by part.
//! - `coredns_cache_misses_total{server, zones, view}`: those that weren't.
//! - `coredns_cache_prefetch_total{server, zones, view}`: answers that were asked for again in the background.
//! - `coredns_cache_served_stale_total{server, zones, view}`: expired answers that were given.
//! - `coredns_cache_evictions_total{server, type, zones, view}`: answers that had to make room for others, by part.
//!
//! `type` is `success` or `denial`, `zones` are the zones of the cache, separated by commas, and `view` is empty.
//! CoreDNS's `coredns_cache_drops_total` counts answers to other questions than the one that was asked; such
//! answers don't come this far here, so there is no such metric.
//!
//! # Examples
//!
//! Keep everything, for half a minute at most:
//!
//! ```text
//! . {
//!     cache 30
//!     forward . 192.0.2.53
//! }
//! ```
//!
//! Keep what is below example.org alone, 5120 answers of each part, and no absence below sub.example.org:
//!
//! ```text
//! . {
//!     cache example.org {
//!         success 5120
//!         denial 5120
//!         disable denial sub.example.org
//!     }
//!     forward . 192.0.2.53
//! }
//! ```
//!
//! Ask for popular names ahead, and outlive an upstream that is away for up to an hour; clients wait 100 ms for it:
//!
//! ```text
//! . {
//!     cache {
//!         prefetch 10 1m 10%
//!         serve_stale 1h verify 100ms 30s 30s
//!     }
//!     forward . 192.0.2.53
//! }
//! ```

pub(crate) mod entry;
mod invalidated;
mod metrics;
mod options;
mod query;
mod state;
pub mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::error;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use crate::dns::message::reply::Reply;
use crate::dns::net::Protocol;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::store::{CacheHit, CacheStore as Answers, Freshness};
use invalidated::InvalidatedNames;
use options::{NAME, ParsedOptions, parse};
use query::CacheQuery;
use state::{CacheState, RefreshGuard, failing};

/// How many entries are refreshed at once. Above that the present answer is given, and a later query refreshes it.
const MAX_REFRESHES: usize = 1024;

#[derive(Debug)]
struct Cache {
    shared: Arc<CacheState>,
    /// What is asked for again while clients have what there is. It ends with the plugin.
    refreshes: Mutex<JoinSet<()>>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let ParsedOptions { options, zones, without_success, without_denial } = parse(setup)?;
    let labels: Vec<String> = zones.all().iter().map(ToString::to_string).collect();
    let shared = CacheState {
        has_recheck: !options.recheck.is_zero(),
        prefer_positive: options.prefer_positive,
        answers: Answers::new(options),
        zones,
        zones_label: labels.join(","),
        without_success,
        without_denial,
        forgotten: InvalidatedNames::default(),
        metrics: setup.metrics()?,
    };
    setup.add(Cache { shared: Arc::new(shared), refreshes: Mutex::default() });
    Ok(())
}

#[async_trait]
impl Plugin for Cache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reusable(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let shared = &self.shared;
        if !shared.zones.hold(request.query.name()) {
            return next.serve(request).await;
        }
        let asked = CacheQuery::new(request);
        let counters = shared.counters(&asked);
        let Some(found) = shared.find(request, &asked) else {
            let counted = counters.answered(None);
            let mark = shared.forgotten.mark();
            let mut reply = shared.take_or_note(&asked, mark, ask(request, next).await)?;
            // One that isn't kept here may be repeated all the same.
            if let Some(repeat) = &mut reply.repeat {
                repeat.counts.extend(counted);
            }
            return Ok(reply);
        };
        let counted = counters.answered(Some(found.kind));
        if found.kind == ResponseKind::NoAnswer {
            return Err(failing());
        }
        match found.freshness {
            Freshness::Fresh => {}
            Freshness::Due | Freshness::Stale(None) => self.refresh(request, next, &asked, &found),
            Freshness::Stale(Some(patience)) => {
                if let Some(reply) = self.verify(request, next, &asked, &found, patience).await {
                    return Ok(reply);
                }
            }
        }
        if matches!(found.freshness, Freshness::Stale(_)) {
            counters.served_stale();
        }
        let mut reply = asked.given(request, &found);
        reply.repeat = asked.repeat(request, &found, &reply, counted);
        Ok(reply)
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        // In this order: what lands between the two isn't kept, or goes with the rest.
        self.shared.forgotten.add(name);
        match name {
            Some(name) => self.shared.answers.remove_name(name),
            None => self.shared.answers.clear(),
        }
    }
}

impl Cache {
    /// Asks for an answer again that is given meanwhile, unless a refresh is under way.
    fn refresh(&self, request: &Request, next: Next<'_>, asked: &CacheQuery, found: &CacheHit) {
        let is_stale = found.freshness != Freshness::Due;
        self.spawn(|| {
            let place = found.begin_refresh()?;
            let (shared, asked) = (Arc::clone(&self.shared), asked.clone());
            let (mut request, next) = (request_of_ours(request), next.detached());
            shared.counters(&asked).prefetch();
            Some(async move {
                let mark = shared.forgotten.mark();
                let outcome = next.serve(&mut request).await;
                if !is_stale {
                    // Whatever has come of it.
                    let _ = shared.take_or_note(&asked, mark, outcome);
                    place.succeed();
                } else if shared.take_news(&asked, mark, outcome).is_some() {
                    place.succeed();
                }
            })
        });
    }

    /// Returns a better answer than an expired one, if there is one in time; zero is for as long as it takes.
    async fn verify(
        &self,
        request: &mut Request,
        next: Next<'_>,
        asked: &CacheQuery,
        found: &CacheHit,
        patience: Duration,
    ) -> Option<Reply> {
        let shared = &self.shared;
        let place = || {
            if shared.has_recheck { found.begin_refresh().map(Some) } else { Some(None) }
        };
        if patience.is_zero() {
            let place = place()?;
            let mark = shared.forgotten.mark();
            let outcome = ask(request, next).await;
            let taken = shared.take_news(asked, mark, outcome)?;
            if let Some(place) = place {
                place.succeed();
            }
            return Some(taken.reply);
        }
        let (tell, told) = oneshot::channel();
        self.spawn(|| {
            let place = place()?;
            let (shared, asked) = (Arc::clone(shared), asked.clone());
            let (mut request, next) = (request_of_ours(request), next.detached());
            Some(async move {
                let mark = shared.forgotten.mark();
                let outcome = next.serve(&mut request).await;
                let taken = shared.take_news(&asked, mark, outcome);
                if let (Some(place), true) = (place, taken.is_some()) {
                    place.succeed();
                }
                // The client may have the old answer by now.
                let _ = tell.send(taken);
            })
        });
        let RefreshGuard { mut reply, is_kept, .. } = timeout(patience, told).await.ok()?.ok()??;
        // As in CoreDNS: it is given from the cache.
        reply.metadata.authoritative |= is_kept;
        Some(reply)
    }

    /// Starts what `begin` returns, if there is a place.
    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, begin: impl FnOnce() -> Option<F>) {
        let mut refreshes = self.refreshes.lock();
        while let Some(ended) = refreshes.try_join_next() {
            if let Err(error) = ended {
                error!("asking again for a cached answer: {error}");
            }
        }
        if refreshes.len() < MAX_REFRESHES
            && let Some(task) = begin()
        {
            refreshes.spawn(task);
        }
    }
}

/// Has the plugins behind answer. They are asked with AD: whether an answer is authentic is kept for all clients.
async fn ask(request: &mut Request, next: Next<'_>) -> PluginResult {
    let before = std::mem::replace(&mut request.metadata.authentic_data, true);
    let outcome = next.serve(request).await;
    request.metadata.authentic_data = before;
    outcome
}

/// Returns the question of a client as it is asked for the cache: an answer by UDP might be cut.
fn request_of_ours(request: &Request) -> Request {
    let mut request = request.clone();
    request.protocol = Protocol::Tcp;
    request.metadata.authentic_data = true;
    request
}
