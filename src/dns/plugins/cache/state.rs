//! What is kept, and what is done with it: for clients, and in the background.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;

use super::invalidated::{InvalidatedNames, QueryMark};
use super::metrics::{CacheCounters, CacheMetrics};
use super::query::{CacheQuery, is_news};
use crate::dns::chain::plugin::{PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::store::{CacheHit, CacheStore as Answers, Freshness, is_kept, take_message};

/// What refreshes in the background need, too.
#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) answers: Answers,
    pub(super) zones: ZoneSet,
    pub(super) zones_label: String,
    pub(super) without_success: ZoneSet,
    pub(super) without_denial: ZoneSet,
    /// Whether one client at a time asks for an expired answer, and none just after a failure.
    pub(super) has_recheck: bool,
    pub(super) prefer_positive: bool,
    pub(super) forgotten: InvalidatedNames,
    pub(super) metrics: Arc<CacheMetrics>,
}

/// An answer that was taken in.
pub(super) struct RefreshGuard {
    pub(super) reply: Reply,
    pub(super) kind: ResponseKind,
    pub(super) is_kept: bool,
}

impl CacheState {
    pub(super) fn counters<'a>(&'a self, asked: &'a CacheQuery) -> CacheCounters<'a> {
        CacheCounters { metrics: &self.metrics, server: &asked.server.label, zones: &self.zones_label }
    }

    /// Returns what is cached, as far as it is good enough. What is behind a target is given out with authority:
    /// nothing expired will do, and no absence that has been known for too long.
    pub(super) fn find(&self, request: &Request, asked: &CacheQuery) -> Option<CacheHit> {
        match request.purpose {
            Purpose::Client => self.answers.get(&asked.key),
            Purpose::Target { cached: true, absence } => self.answers.get(&asked.key).filter(|found| {
                !matches!(found.freshness, Freshness::Stale(_))
                    && (found.kind == ResponseKind::Success || found.age < absence)
            }),
            // A failure is kept so that it isn't asked for again at once.
            Purpose::Target { cached: false, .. } => self.answers.failure(&asked.key),
        }
    }

    /// Takes in what has come of a question, and returns what the client gets.
    pub(super) fn take_or_note(
        &self,
        asked: &CacheQuery,
        mark: QueryMark,
        outcome: PluginResult,
    ) -> PluginResult {
        match outcome {
            Ok(reply) => Ok(self.take(asked, mark, reply).reply),
            Err(failure) => {
                self.note(asked, mark, &failure);
                Err(failure)
            }
        }
    }

    /// Takes an answer in, if it is one that can be kept.
    fn take(&self, asked: &CacheQuery, mark: QueryMark, mut reply: Reply) -> RefreshGuard {
        if !reply.is_cacheable || is_transfer(asked.question.query.query_type()) {
            reply.metadata.authentic_data = asked.authentic(&reply.metadata);
            return RefreshGuard { reply, kind: ResponseKind::Other, is_kept: false };
        }
        let message = take_message(&mut reply, &asked.question.query);
        let worth = self.answers.classify(&message, asked.question.dnssec_ok);
        let is_kept = is_kept(&asked.key, &message, worth) && self.may_keep(asked, mark, worth.kind);
        if is_kept {
            let message = Arc::new(message);
            self.store(asked, mark, worth.kind, || self.answers.put(&asked.key, &message, worth));
            asked.refill(&mut reply, &message, worth.ttl);
        } else {
            asked.put_back(&mut reply, message, worth.ttl);
        }
        reply.metadata.authentic_data = asked.authentic(&reply.metadata);
        RefreshGuard { reply, kind: worth.kind, is_kept }
    }

    /// Takes in what has come of a question that there is an expired answer to. Returns the new one if it is better
    /// (RFC 8767 section 4); the old one stays otherwise.
    pub(super) fn take_news(
        &self,
        asked: &CacheQuery,
        mark: QueryMark,
        outcome: PluginResult,
    ) -> Option<RefreshGuard> {
        let reply = outcome.ok()?;
        if !reply.is_cacheable && is_news(&reply) {
            return Some(self.take(asked, mark, reply));
        }
        let truncated = reply.metadata.truncation;
        let has_answers = !reply.answers.is_empty();
        if self.prefer_positive {
            let taken = self.take(asked, mark, reply);
            return (taken.kind == ResponseKind::Success && has_answers && !truncated).then_some(taken);
        }
        if !is_news(&reply) {
            return None;
        }
        let taken = self.take(asked, mark, reply);
        let is_denial = taken.reply.metadata.response_code == ResponseCode::NXDomain;
        if !taken.is_kept && !truncated && (taken.kind != ResponseKind::Other || is_denial) {
            // The old one is outdated, though the new one can't take its place.
            self.answers.remove(&asked.key);
        }
        Some(taken)
    }

    /// Keeps that no upstream has answered. A plugin's own failure says nothing about the upstreams, and may be about
    /// one client alone.
    fn note(&self, asked: &CacheQuery, mark: QueryMark, failure: &PluginError) {
        let no_upstream = matches!(failure, PluginError::Error { no_upstream: true, .. });
        if no_upstream && self.may_keep(asked, mark, ResponseKind::NoAnswer) {
            self.store(asked, mark, ResponseKind::NoAnswer, || self.answers.put_silence(&asked.key));
        }
    }

    fn may_keep(&self, asked: &CacheQuery, mark: QueryMark, kind: ResponseKind) -> bool {
        let without =
            if kind == ResponseKind::Success { &self.without_success } else { &self.without_denial };
        !without.hold(asked.name()) && !self.forgotten.since(mark, asked.key.name())
    }

    fn store(&self, asked: &CacheQuery, mark: QueryMark, kind: ResponseKind, put: impl FnOnce() -> usize) {
        let evicted = put();
        if self.forgotten.since(mark, asked.key.name()) {
            // Just now, between the first look and this one.
            self.answers.remove(&asked.key);
        }
        self.counters(asked).stored(kind, evicted, self.answers.len());
    }
}

/// The failure while it is cached that no upstream answers (RFC 9520).
pub(super) fn failing() -> PluginError {
    PluginError::no_upstream("no upstream has answered just now")
}
