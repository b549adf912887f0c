//! Converts upstream answers to cache entries, and cache entries to replies.

use std::sync::Arc;

use hickory_proto::op::{Message, Metadata, ResponseCode};
use hickory_proto::rr::{Name, Record};
use tokio::time::Instant;

use super::options::NAME;
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::Server;
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::Validity;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::store::CacheHit;
use crate::metrics::sharded::ShardedCounters;

#[derive(Clone, Debug)]
pub(super) struct CacheQuery {
    pub(super) upstream_query: UpstreamQuery,
    pub(super) key: QueryKey,
    pub(super) server: Arc<Server>,
}

impl CacheQuery {
    pub(super) fn new(request: &Request) -> Self {
        let upstream_query = request.upstream_query();
        Self { key: upstream_query.key(), upstream_query, server: Arc::clone(&request.server) }
    }

    pub(super) fn name(&self) -> &Name {
        self.upstream_query.query.name()
    }

    /// Copies the records of a stored message into a reply, as many as the client has room for.
    pub(super) fn refill(&self, reply: &mut Reply, message: &Message, ttl: u32) {
        let room = self.upstream_query.max_records;
        reply.answers = copy(&message.answers, ttl, room);
        reply.authorities = copy(&message.authorities, ttl, room);
        reply.additionals = copy(&message.additionals, ttl, room);
        reply.metadata.truncation |= message.answers.len() > room;
    }

    /// Moves the records of a message back into its reply: the message isn't stored.
    pub(super) fn put_back(&self, reply: &mut Reply, message: Message, ttl: u32) {
        let room = self.upstream_query.max_records;
        reply.metadata.truncation |= message.answers.len() > room;
        reply.answers = message.answers;
        reply.authorities = message.authorities;
        reply.additionals = message.additionals;
        for section in reply.sections_mut() {
            section.truncate(room);
            section.iter_mut().for_each(|record| record.ttl = ttl);
        }
    }

    /// Returns whether to set AD: only for clients that set AD or DO (RFC 6840 sections 5.7 and 5.8).
    pub(super) fn shows_ad(&self, metadata: &Metadata) -> bool {
        metadata.authentic_data && (self.upstream_query.authentic_data || self.upstream_query.dnssec_ok)
    }

    /// Builds the reply from a cache entry. As in CoreDNS, AA is set, because some clients accept no other answer.
    pub(super) fn reply_from(&self, request: &Request, found: &CacheHit) -> Reply {
        let message = &*found.message;
        let mut reply = request.reply(NAME);
        reply.metadata.response_code = message.metadata.response_code;
        reply.metadata.recursion_available = message.metadata.recursion_available;
        reply.metadata.authentic_data = self.shows_ad(&message.metadata);
        reply.metadata.authoritative = true;
        reply.age = found.age;
        self.refill(&mut reply, message, found.ttl);
        // The cached answer was for another client, which may have spelled the name differently (RFC 4343 section 4.1).
        let own = |record: &&mut Record| record.name == *self.name();
        reply.answers.iter_mut().filter(own).for_each(|record| record.name = self.name().clone());
        reply
    }

    /// Returns the conditions under which the response cache may reuse this reply.
    pub(super) fn validity(
        &self,
        request: &Request,
        found: &CacheHit,
        reply: &Reply,
        counted: [Arc<ShardedCounters>; 2],
    ) -> Option<Box<Validity>> {
        let reusable = found.reusable_ref()?;
        let sections = [reply.answers.len(), reply.authorities.len(), reply.additionals.len()];
        let mut repeat = Validity::of_cached(reusable, found.countdown(), sections);
        repeat.counters.extend(counted);
        if let (Purpose::Target { absence, .. }, false) =
            (request.purpose, found.kind == ResponseKind::Success)
        {
            repeat.limit_until(Some(Instant::now() + absence.saturating_sub(found.age)));
        }
        Some(Box::new(repeat))
    }
}

/// Returns whether an answer may replace an expired one (RFC 8767 section 4).
pub(super) fn replaces_stale(reply: &Reply) -> bool {
    let Metadata { response_code, truncation, .. } = reply.metadata;
    matches!(response_code, ResponseCode::NoError | ResponseCode::NXDomain)
        && !(truncation && reply.answers.is_empty())
}

fn copy(records: &[Record], ttl: u32, room: usize) -> Vec<Record> {
    let with_ttl = |record: &Record| {
        let mut record = record.clone();
        record.ttl = ttl;
        record
    };
    records.iter().take(room).map(with_ttl).collect()
}
