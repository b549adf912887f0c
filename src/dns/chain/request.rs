//! A query and its context in the plugin chain.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hickory_proto::op::{Edns, Metadata, Query};
use hickory_proto::rr::Name;

use crate::dns::chain::labels::{self, Labels};
use crate::dns::chain::metrics::{RequestStats, ZoneMetrics};
use crate::dns::chain::query_limiter::QueryLimiter;
use crate::dns::chain::server::Server;
use crate::dns::chain::target_check::TargetCheck;
use crate::dns::message::ede::Ede;
use crate::dns::message::encode::uncompressed_length;
use crate::dns::message::header::{MAX_UDP, MIN_UDP, OPT_LENGTH};
use crate::dns::message::query::{KeyFlags, QueryKey, UpstreamQuery};
use crate::dns::message::reply::Reply;
use crate::dns::message::tsig::Signer;
use crate::dns::net::Protocol;

/// The client address of lb-linker's own requests.
pub(crate) const INTERNAL_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A query and its context in the plugin chain.
#[derive(Clone, Debug)]
pub struct Request {
    pub server: Arc<Server>,
    pub zone: Name,
    pub zone_metrics: Arc<ZoneMetrics>,
    /// The name of the view of the block that answers; `None` if the block is for all queries.
    pub view: Option<Arc<str>>,
    /// The number under which the response cache keeps the answer.
    pub kept_by: u64,
    pub client: SocketAddr,
    /// The local address that received the query.
    pub local: SocketAddr,
    pub protocol: Protocol,
    /// The size of the message, in bytes.
    pub size: usize,
    /// The id, opcode and flags of the message.
    pub metadata: Metadata,
    pub query: Query,
    /// The client's EDNS, if the message has an OPT record.
    pub edns: Option<Edns>,
    /// The EDNS options that *rewrite* has added to the query, in wire form. Upstreams get them, and none of the client's.
    pub options: Option<Arc<[u8]>>,
    /// The serial of the SOA record in the message: of the client's zone in an IXFR (RFC 1995 section 3), of the primary's
    /// in a NOTIFY (RFC 1996 section 3.7).
    pub soa_serial: Option<u32>,
    /// The maximum size of a UDP answer in bytes, even if the client accepts more.
    pub max_udp: u16,
    pub purpose: Purpose,
    /// The number of internal look-ups that led to this request.
    pub depth: usize,
    /// Whether the question has the name that the client asks for, and not that of a target.
    pub has_client_name: bool,
    /// The number of calls of [`Server::look_up_alias`] for this request and the look-ups that they led to; set by the
    /// first call.
    pub alias_look_up_tries: OnceLock<Arc<AtomicUsize>>,
    /// The limit of the queries to one upstream, from the first look-up at upstreams on.
    pub(crate) query_limiter: Option<Arc<QueryLimiter>>,
    /// The key that *cache* has computed. The plugins after it may have changed the query.
    pub(crate) key: Option<QueryKey>,
    /// The labels, if the block has *metadata*.
    pub labels: Option<Arc<Labels>>,
    /// The message, if it has a TSIG record, or a plugin of the server reads messages.
    pub message: Option<Arc<[u8]>>,
    /// Gets the encoded reply.
    pub reply_observer: Option<ReplyObserver>,
    /// Signs the reply, if *tsig* has checked the message.
    pub signer: Option<Box<Signer>>,
}

/// A function that gets the reply to a client, as it is sent.
#[derive(Clone)]
pub struct ReplyObserver(Arc<ReplyFn>);

type ReplyFn = dyn Fn(&[u8]) + Send + Sync;

#[derive(Clone, Debug)]
pub enum Purpose {
    Client,
    Target {
        /// The maximum age of a cached negative answer.
        max_negative_age: Duration,
        /// Whether a cached answer may be used; if not, only a cached failure may be.
        may_use_cached: bool,
    },
    /// To check a target: no cache answers the query or stores its answer.
    Check(Arc<TargetCheck>),
}

// === impl Request ===

impl Request {
    /// Returns the size of the request, in bytes. The size of an internal look-up, which never was a message, is
    /// computed.
    #[must_use]
    pub fn length(&self) -> usize {
        if self.depth == 0 {
            return self.size;
        }
        uncompressed_length(&self.reply(""), &self.query) + self.edns.as_ref().map_or(0, |_| OPT_LENGTH)
    }

    /// Returns the transport as CoreDNS names it: `udp`, also for QUIC, or `tcp`, also for TLS, HTTPS and gRPC.
    #[must_use]
    pub fn proto_text(&self) -> &'static str {
        if self.protocol.is_over_udp() { "udp" } else { "tcp" }
    }

    /// Returns the size of the answers that the client accepts, in bytes, as CoreDNS shows it.
    #[must_use]
    pub fn accepted_size(&self) -> u16 {
        match self.protocol {
            Protocol::Udp => self.edns.as_ref().map_or(MIN_UDP, Edns::max_payload).max(MIN_UDP),
            _ => u16::MAX,
        }
    }

    /// Returns the client address that the look-ups of this request are charged to. `self.client` is already unmapped.
    #[must_use]
    pub fn quota_client(&self) -> IpAddr {
        match self.purpose {
            Purpose::Check(_) => CHECK_ADDRESS,
            _ if self.is_internal() => INTERNAL_ADDRESS,
            _ => self.client.ip(),
        }
    }

    /// Returns whether this is a request of [`Server::internal_request`]: no client sends from port 0, because port 0
    /// can't receive a reply.
    pub(crate) fn is_internal(&self) -> bool {
        self.client == INTERNAL_CLIENT
    }

    pub(crate) fn is_check(&self) -> bool {
        matches!(self.purpose, Purpose::Check(_))
    }

    #[must_use]
    pub fn stats(&self, reply: &Reply) -> RequestStats {
        RequestStats {
            protocol: self.protocol,
            is_ipv6: self.client.is_ipv6(),
            qtype: self.query.query_type(),
            dnssec_ok: self.dnssec_ok(),
            request_size: self.length(),
            response_size: uncompressed_length(reply, &self.query),
            rcode: reply.metadata.response_code,
            plugin: reply.plugin,
            is_reusable: reply.validity.is_some(),
        }
    }

    /// Returns the name of the view of the block that answers; empty if the block is for all queries.
    #[must_use]
    pub fn view_name(&self) -> &str {
        self.view.as_deref().unwrap_or_default()
    }

    /// Returns whether the client decides which views have this request. Look-ups of lb-linker itself and of targets of
    /// links, which clients share, stay in the view that they come from.
    pub(super) fn chooses_view_by_client(&self) -> bool {
        matches!(self.purpose, Purpose::Client) && !self.is_internal()
    }

    /// Returns the value of a label; `None` if it isn't known.
    #[must_use]
    pub fn label(&self, label: &str) -> Option<String> {
        let known = self.labels.as_ref()?;
        match label {
            labels::UPSTREAM => Some(self.query_limiter.as_ref()?.upstream()?.to_string()),
            _ => known.value(label),
        }
    }

    /// Returns an answer without records.
    #[must_use]
    pub fn reply(&self, plugin: &'static str) -> Reply {
        Reply::new(Metadata::response_from_request(&self.metadata), plugin)
    }

    /// Returns whether the DO bit is set: the client wants DNSSEC records (RFC 3225).
    #[must_use]
    pub fn dnssec_ok(&self) -> bool {
        self.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Returns the OPT record of a reply; `None` if the query has none (RFC 6891 section 7).
    #[must_use]
    pub fn response_edns(&self, reply: &Reply) -> Option<Edns> {
        let dnssec_ok = self.edns.as_ref()?.flags().dnssec_ok;
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP);
        edns.set_dnssec_ok(dnssec_ok);
        let options = reply.options.iter().cloned().chain(reply.ede.map(Ede::option));
        for option in options {
            edns.options_mut().insert(option);
        }
        Some(edns)
    }

    /// Returns the maximum size of the answer, in bytes.
    #[must_use]
    pub fn limit(&self) -> u16 {
        match self.protocol {
            Protocol::Udp => self.accepted_size().min(self.max_udp).max(MIN_UDP),
            _ => u16::MAX,
        }
    }

    #[must_use]
    pub fn upstream_query(&self) -> UpstreamQuery {
        UpstreamQuery {
            query: self.query.clone(),
            recursion_desired: self.metadata.recursion_desired,
            checking_disabled: self.metadata.checking_disabled,
            authentic_data: self.metadata.authentic_data,
            dnssec_ok: self.dnssec_ok(),
        }
    }

    /// Returns the key of the query for an upstream: the key that *cache* has computed, unless the query has changed.
    pub(crate) fn take_key(&mut self) -> QueryKey {
        let known = self.key.take().filter(|_| self.options.is_none());
        known.filter(|key| key.is_of(&self.query, self.key_flags())).unwrap_or_else(|| self.query_key())
    }

    /// Returns the key of the query for the cache and for upstreams.
    pub(crate) fn query_key(&self) -> QueryKey {
        QueryKey::of(&self.query, self.key_flags(), self.options.as_deref().unwrap_or_default())
    }

    fn key_flags(&self) -> KeyFlags {
        let Metadata { recursion_desired, checking_disabled, .. } = self.metadata;
        KeyFlags::new(recursion_desired, checking_disabled, self.dnssec_ok())
    }
}

// === impl ReplyObserver ===

impl ReplyObserver {
    pub(crate) fn new(observe: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(super) fn observe(&self, reply: &[u8]) {
        (self.0)(reply);
    }
}

impl fmt::Debug for ReplyObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyObserver")
    }
}

/// The address that lb-linker's own look-ups are charged to. No packet has this source address.
pub(crate) const INTERNAL_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The address that checks of targets are charged to, so that they don't take the share of other look-ups.
pub(crate) const CHECK_ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
