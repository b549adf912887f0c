//! The state that queries and background refreshes share.

use std::borrow::Cow;

use hickory_proto::op::ResponseCode;
use tracing::debug;

use super::invalidated::{InvalidatedNames, QueryMark};
use super::metrics::AllCacheCounters;
use super::query::{CacheQuery, replaces_stale};
use crate::dns::chain::plugin::{PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::Section;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::cache::entry::{CachedAnswer, ResponseKind};
use crate::dns::plugins::cache::store::{CacheHit, CacheStore, Freshness, is_storable};

#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) store: CacheStore,
    pub(super) zones: ZoneSet,
    pub(super) zones_without_success_cache: ZoneSet,
    pub(super) zones_without_denial_cache: ZoneSet,
    /// Whether `FAILURE_RECHECK` is set, so that also with `verify` an expired entry has one refresh at a time, and
    /// none right after a failed refresh.
    pub(super) is_refresh_exclusive: bool,
    pub(super) prefer_positive: bool,
    pub(super) invalidated: InvalidatedNames,
    pub(super) counters: AllCacheCounters,
}

/// A received answer, and whether it was stored.
pub(super) struct ReceivedReply {
    pub(super) reply: Reply,
    pub(super) kind: ResponseKind,
    pub(super) is_stored: bool,
}

impl CacheState {
    /// Returns the cache entry that may answer the request. Answers of targets are served with authority, so neither an
    /// expired answer nor a denial older than `max_negative_age` may answer for a target.
    pub(super) fn find(&self, request: &Request, cache_query: &CacheQuery) -> Option<CacheHit> {
        match &request.purpose {
            Purpose::Client => self.store.get(&cache_query.key).or_else(|| match cache_query.failure_key() {
                Cow::Owned(by_stream) => self.store.failure(&by_stream),
                Cow::Borrowed(_) => None,
            }),
            Purpose::Target { may_use_cached: true, max_negative_age } => {
                self.store.get(&cache_query.key).filter(|found| {
                    !matches!(found.freshness, Freshness::Stale(_))
                        && (found.kind == ResponseKind::Success || found.age < *max_negative_age)
                })
            }
            // A cached failure prevents an immediate retry.
            Purpose::Target { may_use_cached: false, .. } => self.store.failure(&cache_query.key),
            Purpose::Check(_) => None,
        }
    }

    /// Stores the result of a query, and returns the result for the client.
    pub(super) fn store_outcome(
        &self,
        cache_query: &CacheQuery,
        mark: QueryMark,
        outcome: PluginResult,
    ) -> PluginResult {
        match outcome {
            Ok(reply) => Ok(self.store_reply(cache_query, mark, reply).reply),
            Err(failure) => {
                self.store_failure(cache_query, mark, &failure);
                Err(failure)
            }
        }
    }

    /// Stores an answer if it is cacheable.
    fn store_reply(&self, cache_query: &CacheQuery, mark: QueryMark, mut reply: Reply) -> ReceivedReply {
        if !reply.is_cacheable || is_transfer(cache_query.upstream_query.query.query_type()) {
            reply.metadata.authentic_data = cache_query.shows_ad(&reply.metadata);
            return ReceivedReply { reply, kind: ResponseKind::Other, is_stored: false };
        }
        let question = &cache_query.upstream_query.query;
        let message = reply.records.to_wire(&reply.metadata, question, &reply.options);
        let Some(message) = message else {
            debug!(
                "the answer to {} {} isn't cached: it can't be encoded in 64 KiB",
                question.name(),
                question.query_type()
            );
            reply.metadata.authentic_data = cache_query.shows_ad(&reply.metadata);
            return ReceivedReply { reply, kind: ResponseKind::Other, is_stored: false };
        };
        let answer = CachedAnswer { metadata: reply.metadata, message, rests_on: reply.rests_on.clone() };
        let cacheability = self.store.classify(&answer, cache_query.upstream_query.dnssec_ok);
        let is_stored = is_storable(&cache_query.key, &answer, cacheability)
            && self.may_store(cache_query, mark, cacheability.kind);
        if is_stored {
            self.insert(cache_query, mark, cacheability.kind, || {
                self.store.put(&cache_query.key, &answer, cacheability)
            });
        }
        reply.records.set_ttl(cacheability.ttl);
        reply.metadata.authentic_data = cache_query.shows_ad(&reply.metadata);
        ReceivedReply { reply, kind: cacheability.kind, is_stored }
    }

    /// Stores the result of refreshing an expired entry. Returns the new answer if it is better (RFC 8767 section 4);
    /// otherwise the expired entry stays.
    pub(super) fn store_refreshed(
        &self,
        cache_query: &CacheQuery,
        mark: QueryMark,
        outcome: PluginResult,
    ) -> Option<ReceivedReply> {
        let reply = outcome.ok()?;
        let has_data = |found: CacheHit| found.kind == ResponseKind::Success && !found.answer.is_empty();
        // With `prefer_positive`, only data replaces data.
        let keeps_data = self.prefer_positive && self.store.get(&cache_query.key).is_some_and(has_data);
        if !reply.is_cacheable && replaces_stale(&reply) {
            if self.outdates_expired(cache_query, &reply, keeps_data) {
                self.store.remove(&cache_query.key);
            } else if keeps_data {
                return None;
            }
            return Some(self.store_reply(cache_query, mark, reply));
        }
        let truncated = reply.metadata.truncation;
        let has_answers = reply.records.count(Section::Answer) > 0;
        if keeps_data {
            let stored = self.store_reply(cache_query, mark, reply);
            return (stored.kind == ResponseKind::Success && has_answers && !truncated).then_some(stored);
        }
        if !replaces_stale(&reply) {
            return None;
        }
        let stored = self.store_reply(cache_query, mark, reply);
        let is_denial = stored.reply.metadata.response_code == ResponseCode::NXDomain;
        if !stored.is_stored && !truncated && (stored.kind != ResponseKind::Other || is_denial) {
            // The expired entry is outdated, even though the new answer isn't cacheable.
            self.store.remove(&cache_query.key);
        }
        Some(stored)
    }

    /// Returns whether the expired entry is outdated after an answer that isn't cacheable. A CNAME without its target's
    /// records doesn't outdate it, because the look-up of the target may have failed.
    fn outdates_expired(&self, cache_query: &CacheQuery, reply: &Reply, keeps_data: bool) -> bool {
        let question = &cache_query.upstream_query.query;
        let message = reply.records.to_wire(&reply.metadata, question, &reply.options);
        let Some(message) = message.filter(|_| !reply.metadata.truncation) else { return false };
        let answer = CachedAnswer { metadata: reply.metadata, message, rests_on: reply.rests_on.clone() };
        match self.store.classify(&answer, cache_query.upstream_query.dnssec_ok).kind {
            ResponseKind::Success if !answer.is_empty() => true,
            _ if keeps_data => false,
            ResponseKind::Other => answer.metadata.response_code == ResponseCode::NXDomain,
            _ => true,
        }
    }

    /// Caches the failure if no upstream has answered. A plugin's own failure isn't cached: it doesn't show that the
    /// upstreams are down, and may depend on the client.
    fn store_failure(&self, cache_query: &CacheQuery, mark: QueryMark, failure: &PluginError) {
        let no_upstream = matches!(failure, PluginError::Error { no_upstream: true, .. });
        if no_upstream && self.may_store(cache_query, mark, ResponseKind::NoAnswer) {
            let key = cache_query.failure_key();
            self.insert(cache_query, mark, ResponseKind::NoAnswer, || self.store.put_no_answer(&key));
        }
    }

    /// Returns whether an answer of this kind may be stored: its zone isn't excluded, and its name hasn't been
    /// invalidated since `mark`.
    fn may_store(&self, cache_query: &CacheQuery, mark: QueryMark, kind: ResponseKind) -> bool {
        let without = if kind == ResponseKind::Success {
            &self.zones_without_success_cache
        } else {
            &self.zones_without_denial_cache
        };
        !without.contains(cache_query.name())
            && !self.invalidated.is_invalidated_since(mark, cache_query.key.name())
    }

    /// Stores an answer with `put`, which returns the number of evictions, and removes it again if the name was
    /// invalidated after `mark`.
    fn insert(
        &self,
        cache_query: &CacheQuery,
        mark: QueryMark,
        kind: ResponseKind,
        put: impl FnOnce() -> usize,
    ) {
        let evicted = put();
        if self.invalidated.is_invalidated_since(mark, cache_query.key.name()) {
            // The name was invalidated after `may_store`.
            self.store.remove(&cache_query.key);
            self.store.remove(&cache_query.failure_key());
        }
        self.counters.stored(&cache_query.counters, kind, evicted, self.store.len());
    }
}

/// Returns the error for a query while the failure of all upstreams is cached (RFC 9520).
pub(super) fn cached_failure() -> PluginError {
    PluginError::no_upstream("no upstream answered the same query less than 1 s ago")
}
