//! What is kept, and what is done with it: for clients, and in the background.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;

use super::invalidated::{Forgotten, Mark};
use super::metrics::{CacheMetrics, Counters};
use super::query::{Asked, is_news};
use crate::dns::chain::plugin::{Failure, Outcome};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::Origins;
use crate::dns::plugins::cache::entry::Kind;
use crate::dns::plugins::cache::store::{Cache as Answers, Found, Freshness, is_kept, take_message};

/// What refreshes in the background need, too.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) answers: Answers,
    pub(super) zones: Origins,
    pub(super) zones_label: String,
    pub(super) without_success: Origins,
    pub(super) without_denial: Origins,
    /// Whether one client at a time asks for an expired answer, and none just after a failure.
    pub(super) has_recheck: bool,
    pub(super) prefer_positive: bool,
    pub(super) forgotten: Forgotten,
    pub(super) metrics: Arc<CacheMetrics>,
}

/// An answer that was taken in.
pub(super) struct Taken {
    pub(super) reply: Reply,
    pub(super) kind: Kind,
    pub(super) is_kept: bool,
}

impl Shared {
    pub(super) fn counters<'a>(&'a self, asked: &'a Asked) -> Counters<'a> {
        Counters { metrics: &self.metrics, server: &asked.server.label, zones: &self.zones_label }
    }

    /// Returns what is cached, as far as it is good enough. What is behind a target is given out with authority:
    /// nothing expired will do, and no absence that has been known for too long.
    pub(super) fn find(&self, request: &Request, asked: &Asked) -> Option<Found> {
        match request.purpose {
            Purpose::Client => self.answers.get(&asked.key),
            Purpose::Target { cached: true, absence } => self.answers.get(&asked.key).filter(|found| {
                !matches!(found.freshness, Freshness::Stale(_))
                    && (found.kind == Kind::Success || found.age < absence)
            }),
            // A failure is kept so that it isn't asked for again at once.
            Purpose::Target { cached: false, .. } => self.answers.failure(&asked.key),
        }
    }

    /// Takes in what has come of a question, and returns what the client gets.
    pub(super) fn take_or_note(&self, asked: &Asked, mark: Mark, outcome: Outcome) -> Outcome {
        match outcome {
            Ok(reply) => Ok(self.take(asked, mark, reply).reply),
            Err(failure) => {
                self.note(asked, mark, &failure);
                Err(failure)
            }
        }
    }

    /// Takes an answer in, if it is one that can be kept.
    fn take(&self, asked: &Asked, mark: Mark, mut reply: Reply) -> Taken {
        if !reply.is_cacheable || is_transfer(asked.question.query.query_type()) {
            reply.metadata.authentic_data = asked.authentic(&reply.metadata);
            return Taken { reply, kind: Kind::Other, is_kept: false };
        }
        let message = take_message(&mut reply, &asked.question.query);
        let worth = self.answers.appraise(&message, asked.question.dnssec_ok);
        let is_kept = is_kept(&asked.key, &message, worth) && self.may_keep(asked, mark, worth.kind);
        if is_kept {
            let message = Arc::new(message);
            self.store(asked, mark, worth.kind, || self.answers.put(&asked.key, &message, worth));
            asked.refill(&mut reply, &message, worth.ttl);
        } else {
            asked.put_back(&mut reply, message, worth.ttl);
        }
        reply.metadata.authentic_data = asked.authentic(&reply.metadata);
        Taken { reply, kind: worth.kind, is_kept }
    }

    /// Takes in what has come of a question that there is an expired answer to. Returns the new one if it is better
    /// (RFC 8767 section 4); the old one stays otherwise.
    pub(super) fn take_news(&self, asked: &Asked, mark: Mark, outcome: Outcome) -> Option<Taken> {
        let reply = outcome.ok()?;
        if !reply.is_cacheable && is_news(&reply) {
            return Some(self.take(asked, mark, reply));
        }
        let truncated = reply.metadata.truncation;
        let has_answers = !reply.answers.is_empty();
        if self.prefer_positive {
            let taken = self.take(asked, mark, reply);
            return (taken.kind == Kind::Success && has_answers && !truncated).then_some(taken);
        }
        if !is_news(&reply) {
            return None;
        }
        let taken = self.take(asked, mark, reply);
        let is_denial = taken.reply.metadata.response_code == ResponseCode::NXDomain;
        if !taken.is_kept && !truncated && (taken.kind != Kind::Other || is_denial) {
            // The old one is outdated, though the new one can't take its place.
            self.answers.remove(&asked.key);
        }
        Some(taken)
    }

    /// Keeps that no upstream has answered. A plugin's own failure says nothing about the upstreams, and may be about
    /// one client alone.
    fn note(&self, asked: &Asked, mark: Mark, failure: &Failure) {
        let no_upstream = matches!(failure, Failure::Error { no_upstream: true, .. });
        if no_upstream && self.may_keep(asked, mark, Kind::Silence) {
            self.store(asked, mark, Kind::Silence, || self.answers.put_silence(&asked.key));
        }
    }

    fn may_keep(&self, asked: &Asked, mark: Mark, kind: Kind) -> bool {
        let without = if kind == Kind::Success { &self.without_success } else { &self.without_denial };
        !without.hold(asked.name()) && !self.forgotten.since(mark, asked.key.name())
    }

    fn store(&self, asked: &Asked, mark: Mark, kind: Kind, put: impl FnOnce() -> usize) {
        let evicted = put();
        if self.forgotten.since(mark, asked.key.name()) {
            // Just now, between the first look and this one.
            self.answers.remove(&asked.key);
        }
        self.counters(asked).stored(kind, evicted, self.answers.len());
    }
}

/// The failure while it is cached that no upstream answers (RFC 9520).
pub(super) fn failing() -> Failure {
    Failure::no_upstream("no upstream has answered just now")
}
