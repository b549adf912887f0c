//! # Name
//!
//! *cache* - caches answers until they expire.
//!
//! # Description
//!
//! Answers of the plugins after this one are cached, and given to all clients with the same question: name, type,
//! class, DO and CD. An answer is kept as long as the shortest TTL in it, the MINIMUM of the SOA record of a denial
//! included, within bounds: 5 seconds to an hour for a positive answer, 5 seconds to half an hour for one that denies
//! the name or the type. All records get that one TTL, also when the answer has just arrived. SERVFAIL and NOTIMP are
//! kept for 5 seconds.
//!
//! Not kept are truncated answers, transfers, other errors, NXDOMAIN without an SOA record or with records in its
//! answer section, CNAME chains that end with neither data nor an SOA record, and, for clients with DO, answers with
//! signatures that have expired, aren't valid yet, or are incomplete.
//!
//! An answer from the cache always has AA set, because some clients accept no other answer. Only clients that set AD or
//! DO see AD; queries to the plugins after this one always have AD set. An upstream's extended errors are cached with
//! its answer. The two parts, `success` for positive answers and `denial` for all others, have room for 9984 answers
//! each. A full part evicts at random.
//!
//! Answers of *lb_linker* are never cached; those for the targets of links are. When a target changes, the cached
//! answers for the old and the new target are dropped. For a target, *lb_linker* gets no cached denial that is older
//! than the zone's TTL, and no expired answer. An answer of *template* with the records of its CNAME's target isn't
//! cached if the target is a name of *lb_linker*, or was looked up through a block with *acl* or *clients*: another
//! client may get another answer.
//!
//! Differences from CoreDNS:
//!
//! - A part takes 32 MiB at most, or proportionally more if its capacity is above the default.
//! - Queries without RD have separate answers, which aren't cached: they hold only what a server happened to have
//!   cached.
//! - If no upstream answers at all, SERVFAIL is cached for one second (RFC 9520), unless `servfail` is 0. A failure by
//!   TCP isn't given to clients that use UDP. A plugin's own failure, such as a name that *hosts* lacks, is never
//!   cached.
//! - A failure replaces no answer that may still be given, and an expired failure is never given. CoreDNS protects only
//!   positive answers, and only from SERVFAIL.
//! - The newest answer replaces the older one, positive or denial, except with `prefer_positive`. CoreDNS may have
//!   both, and then gives the denial. With `prefer_positive`, an answer without records replaces a denial, and a denial
//!   an expired denial; CoreDNS goes on giving the old one.
//! - After an NXDOMAIN answer an expired answer isn't given any more, even if the NXDOMAIN can't be cached (RFC 8767
//!   section 4), except with `prefer_positive`.
//! - A TTL with the top bit set is 0 (RFC 2181 section 8).
//! - Words after **MINTTL**, which CoreDNS ignores, negative numbers and invalid zones are errors.
//!
//! # Syntax
//!
//! Syntax: `cache [TTL] [ZONES...]`, with the options below. If an option is repeated, the last values count; only
//! `serve_stale_policy` can't be repeated.
//!
//! - **TTL** is the longest time for both parts in seconds, from 1 on, instead of an hour and half an hour.
//! - `success` and `denial CAPACITY [TTL] [MINTTL]`: **CAPACITY** is the number of answers, rounded down to a multiple
//!   of 256, at least 1024; **TTL** and **MINTTL** (default 5) are the longest and the shortest time in seconds. With a
//!   **MINTTL** of 0, answers with a TTL of 0 aren't cached. A **MINTTL** above **TTL** counts as **TTL**.
//! - `prefetch AMOUNT [DURATION [PERCENTAGE%]]` refreshes popular answers in the background: those that were given
//!   **AMOUNT** times (0: off) without a gap longer than **DURATION** (default `1m`), when at most **PERCENTAGE** of
//!   their TTL is left (`10%`, the default, to `90%`).
//! - `serve_stale [DURATION [immediate [RESPONSE_TTL [FAILURE_RECHECK]]]]`, or `serve_stale [DURATION [verify
//!   [VERIFY_TIMEOUT [RESPONSE_TTL [FAILURE_RECHECK]]]]]`, serves answers that expired up to **DURATION** ago (default
//!   `1h`; whole seconds; 0: off). With `immediate`, the default, an expired answer is given at once and refreshed in
//!   the background, one refresh at a time. With `verify`, the plugins after this one are asked first; the expired
//!   answer is given if they have no better one, or none within **VERIFY_TIMEOUT** (default 0: no timeout), while the
//!   query goes on in the background. Better is NOERROR or NXDOMAIN, unless truncated without records in its answer
//!   section. **RESPONSE_TTL** is the TTL of expired answers in whole seconds (default 0; RFC 8767 recommends `30s`).
//!   After a failed refresh there is none for **FAILURE_RECHECK** (at most `5m`), which with `verify` also limits
//!   refreshes of an answer to one at a time (default 0: every client causes one).
//! - `serve_stale_policy prefer_positive` needs `serve_stale`: only a newer positive answer replaces a positive one,
//!   expired or not; no denial and no failure does. A record may be served long after it was removed on purpose.
//! - `servfail DURATION` is how long SERVFAIL and NOTIMP are kept (default `5s`, at most `5m`; whole seconds; 0: not at
//!   all).
//! - `disable success|denial [ZONES...]` turns a part off for the given zones; without **ZONES** for all names.
//! - `keepttl` serves the original TTL instead of the remaining one. It is for authoritative servers: clients count the
//!   whole TTL from each answer, and may keep the records of another server after they have changed.
//!
//! # Examples
//!
//! Popular names are prefetched, an outage of up to an hour is bridged, and clients wait 100 ms for the upstream. The
//! parts are small, and denials below sub.example.org aren't kept:
//!
//! ```text
//! . {
//!     cache 30 {
//!         success 5120
//!         denial 5120
//!         disable denial sub.example.org
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

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::error;

use super::setup::Setup;
use super::ttl_limits::TtlLimits;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use crate::dns::message::reply::Reply;
use crate::dns::net::Protocol;
use crate::dns::net::shared_runtime::shared_runtime;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::store::{CacheHit, CacheStore, Freshness};
use invalidated::InvalidatedNames;
use metrics::AllCacheCounters;
use options::{NAME, ParsedOptions, parse};
use query::CacheQuery;
use state::{CacheState, ReceivedReply, cached_failure};

/// The maximum number of concurrent background refreshes. At the limit, a query gets the cached answer, and a later
/// query refreshes the entry.
const MAX_REFRESHES: usize = 1024;

#[derive(Debug)]
struct Cache {
    shared: Arc<CacheState>,
    /// The background refreshes, which are aborted when the plugin is dropped.
    refreshes: Mutex<JoinSet<()>>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let ParsedOptions { options, zones, zones_without_success_cache, zones_without_denial_cache } =
        parse(setup)?;
    if !options.keep_ttl {
        let [success, denial] = [options.success.ttls, options.denial.ttls];
        setup.builder.ttl_limits = Some(TtlLimits { zones: zones.clone(), success, denial });
    }
    let labels: Vec<String> = zones.all().iter().map(ToString::to_string).collect();
    let shared = CacheState {
        is_refresh_exclusive: !options.failure_recheck.is_zero(),
        prefer_positive: options.prefer_positive,
        store: CacheStore::new(options),
        zones,
        zones_without_success_cache,
        zones_without_denial_cache,
        invalidated: InvalidatedNames::default(),
        counters: AllCacheCounters::new(setup.metrics()?, labels.join(","), setup.view()),
    };
    setup.add_reusable(Cache { shared: Arc::new(shared), refreshes: Mutex::default() });
    Ok(())
}

#[async_trait]
impl Plugin for Cache {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let shared = &self.shared;
        if request.is_check() || !shared.zones.contains(request.query.name()) {
            return next.serve(request).await;
        }
        let cache_query = CacheQuery::new(request, shared.counters.at(&request.server.label));
        let counters = &cache_query.counters;
        let Some(found) = shared.find(request, &cache_query) else {
            let counted = counters.answered(None);
            let mark = shared.invalidated.mark();
            request.key = Some(cache_query.key.clone());
            let mut reply = shared.store_outcome(&cache_query, mark, ask(request, next).await)?;
            // The response cache may reuse the reply even if it isn't stored here.
            if let Some(validity) = &mut reply.validity {
                validity.counters.extend(counted.map(Arc::clone));
            }
            return Ok(reply);
        };
        let counted = counters.answered(Some(found.kind));
        if found.kind == ResponseKind::NoAnswer {
            return Err(cached_failure());
        }
        match found.freshness {
            Freshness::Fresh => {}
            Freshness::Due | Freshness::Stale(None) => self.refresh(request, next, &cache_query, &found),
            Freshness::Stale(Some(verify_timeout)) => {
                // Boxed, because it is large and seldom needed.
                let verify = self.verify(request, next, &cache_query, &found, verify_timeout);
                if let Some(reply) = Box::pin(verify).await {
                    return Ok(reply);
                }
            }
        }
        if matches!(found.freshness, Freshness::Stale(_)) {
            counters.served_stale();
        }
        let mut reply = cache_query.reply_from(request, &found);
        reply.validity = cache_query.validity(request, &found, &reply, counted);
        Ok(reply)
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        // Record the invalidation first, then remove the entries: an answer that arrives in between is either rejected
        // because of the recorded name, or removed.
        self.shared.invalidated.add(name);
        match name {
            Some(name) => self.shared.store.remove_name(name),
            None => self.shared.store.clear(),
        }
    }
}

impl Cache {
    /// Refreshes an entry in the background, unless a refresh of the entry is under way or has just failed.
    fn refresh(&self, request: &Request, next: Next<'_>, cache_query: &CacheQuery, found: &CacheHit) {
        let is_stale = found.freshness != Freshness::Due;
        self.spawn(|| {
            let place = found.begin_refresh()?;
            let (shared, cache_query) = (Arc::clone(&self.shared), cache_query.clone());
            let (mut request, next) = (background_request(request), next.detached());
            cache_query.counters.prefetch();
            Some(async move {
                let mark = shared.invalidated.mark();
                let outcome = next.serve(&mut request).await;
                if !is_stale {
                    // A refresh of an unexpired entry stores any outcome, and never counts as failed.
                    let _ = shared.store_outcome(&cache_query, mark, outcome);
                    place.succeed();
                } else if shared.store_refreshed(&cache_query, mark, outcome).is_some() {
                    place.succeed();
                }
            })
        });
    }

    /// Refreshes an expired entry, and returns the new reply if it is better and arrives within `verify_timeout`; a
    /// `verify_timeout` of zero means no timeout.
    async fn verify(
        &self,
        request: &mut Request,
        next: Next<'_>,
        cache_query: &CacheQuery,
        found: &CacheHit,
        verify_timeout: Duration,
    ) -> Option<Reply> {
        let shared = &self.shared;
        let place = || {
            if shared.is_refresh_exclusive { found.begin_refresh().map(Some) } else { Some(None) }
        };
        if verify_timeout.is_zero() {
            let place = place()?;
            let mark = shared.invalidated.mark();
            let outcome = ask(request, next).await;
            let stored = shared.store_refreshed(cache_query, mark, outcome)?;
            if let Some(place) = place {
                place.succeed();
            }
            return Some(stored.reply);
        }
        let (sender, receiver) = oneshot::channel();
        self.spawn(|| {
            let place = place()?;
            let (shared, cache_query) = (Arc::clone(shared), cache_query.clone());
            let (mut request, next) = (background_request(request), next.detached());
            Some(async move {
                let mark = shared.invalidated.mark();
                let outcome = next.serve(&mut request).await;
                let stored = shared.store_refreshed(&cache_query, mark, outcome);
                if let (Some(place), true) = (place, stored.is_some()) {
                    place.succeed();
                }
                // Fails if the client has already got the expired answer.
                let _ = sender.send(stored);
            })
        });
        let ReceivedReply { mut reply, is_stored, .. } =
            timeout(verify_timeout, receiver).await.ok()?.ok()??;
        // As in CoreDNS, a stored answer counts as given from the cache, which sets AA.
        reply.metadata.authoritative |= is_stored;
        Some(reply)
    }

    /// Spawns the task that `begin` returns, unless `MAX_REFRESHES` tasks are running.
    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, begin: impl FnOnce() -> Option<F>) {
        let mut refreshes = self.refreshes.lock();
        while let Some(ended) = refreshes.try_join_next() {
            if let Err(error) = ended {
                error!("the refresh of a cached answer failed: {error}");
            }
        }
        if refreshes.len() < MAX_REFRESHES
            && let Some(task) = begin()
        {
            match shared_runtime() {
                Some(runtime) => drop(refreshes.spawn_on(task, &runtime)),
                None => drop(task),
            }
        }
    }
}

/// Asks the rest of the plugin chain, with AD set: the AD flag of the answer is cached for all clients.
async fn ask(request: &mut Request, next: Next<'_>) -> PluginResult {
    let before = std::mem::replace(&mut request.metadata.authentic_data, true);
    let outcome = next.serve(request).await;
    request.metadata.authentic_data = before;
    outcome
}

/// Returns the client's query for a background refresh: over TCP, because a UDP answer might be truncated.
fn background_request(request: &Request) -> Request {
    let mut request = request.clone();
    request.protocol = Protocol::Tcp;
    request.metadata.authentic_data = true;
    request.alias_look_up_tries = OnceLock::new();
    request
}
