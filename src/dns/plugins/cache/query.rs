//! A query to the plugin *cache*, and the reply from a cache entry.

use std::borrow::Cow;
use std::sync::Arc;

use hickory_proto::op::{Metadata, ResponseCode};
use hickory_proto::rr::Name;
use tokio::time::Instant;

use super::metrics::CacheCounters;
use super::options::NAME;
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::records::Records;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{Section, Validity};
use crate::dns::net::Protocol;
use crate::dns::plugins::cache::entry::ResponseKind;
use crate::dns::plugins::cache::store::CacheHit;
use crate::metrics::sharded::ShardedCounters;

#[derive(Clone, Debug)]
pub(super) struct CacheQuery {
    pub(super) upstream_query: UpstreamQuery,
    pub(super) key: QueryKey,
    pub(super) counters: Arc<CacheCounters>,
    /// Whether upstreams are asked by TCP alone, as the client asks: the UDP port of an upstream may work, and TCP not.
    is_by_stream: bool,
}

impl CacheQuery {
    pub(super) fn new(request: &Request, counters: Arc<CacheCounters>) -> Self {
        let upstream_query = request.upstream_query();
        let is_by_stream = request.protocol != Protocol::Udp && matches!(request.purpose, Purpose::Client);
        Self { key: request.query_key(), upstream_query, counters, is_by_stream }
    }

    /// Returns the key of a failure of all upstreams: clients that use UDP don't get a failure by TCP.
    pub(super) fn failure_key(&self) -> Cow<'_, QueryKey> {
        if self.is_by_stream { Cow::Owned(self.key.by_stream()) } else { Cow::Borrowed(&self.key) }
    }

    pub(super) fn name(&self) -> &Name {
        self.upstream_query.query.name()
    }

    /// Returns whether to set AD for an answer with this header: only if the answer has AD, and the client set AD or DO
    /// (RFC 6840 sections 5.7 and 5.8).
    pub(super) fn shows_ad(&self, metadata: &Metadata) -> bool {
        metadata.authentic_data && (self.upstream_query.authentic_data || self.upstream_query.dnssec_ok)
    }

    /// Builds the reply from a cache entry. As in CoreDNS, AA is set, because some clients accept no other answer.
    pub(super) fn reply_from(&self, request: &Request, found: &CacheHit) -> Reply {
        let Metadata { response_code, recursion_available, .. } = found.answer.metadata;
        let mut reply = request.reply(NAME);
        reply.metadata.response_code = response_code;
        reply.metadata.recursion_available = recursion_available;
        reply.metadata.authentic_data = self.shows_ad(&found.answer.metadata);
        reply.metadata.authoritative = true;
        reply.age = found.age;
        reply.rests_on = found.answer.rests_on.clone();
        reply.options = found.answer.message.extended_errors.to_vec();
        // The client that caused the cached answer may have spelled the name differently (RFC 4343 section 4.1).
        reply.records = Records::of_wire(Arc::clone(&found.answer.message), self.name());
        reply.records.set_ttl(found.ttl);
        reply
    }

    /// Returns the conditions under which the response cache may reuse this reply; `None` if it must not.
    pub(super) fn validity(
        &self,
        request: &Request,
        found: &CacheHit,
        reply: &Reply,
        counted: [&Arc<ShardedCounters>; 2],
    ) -> Option<Box<Validity>> {
        let reusable = found.reusable_ref()?;
        let mut validity = Validity::of_cached(reusable, found.countdown(), reply.records.counts());
        validity.counters.extend(counted.map(Arc::clone));
        if let Some(rests_on) = &found.answer.rests_on {
            validity.add_rests_on(rests_on);
        }
        if let (Purpose::Target { max_negative_age, .. }, false) =
            (&request.purpose, found.kind == ResponseKind::Success)
        {
            validity.limit_until(Some(Instant::now() + max_negative_age.saturating_sub(found.age)));
        }
        Some(Box::new(validity))
    }
}

/// Returns whether an answer may replace an expired one (RFC 8767 section 4).
pub(super) fn replaces_stale(reply: &Reply) -> bool {
    let Metadata { response_code, truncation, .. } = reply.metadata;
    matches!(response_code, ResponseCode::NoError | ResponseCode::NXDomain)
        && !(truncation && reply.records.count(Section::Answer) == 0)
}
