//! A question on its way through the plugins.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Metadata, Query};
use hickory_proto::rr::Name;

use crate::dns::chain::metrics::{Counted, ZoneMetrics};
use crate::dns::chain::server::Server;
use crate::dns::message::encode::{OPT, wire_length};
use crate::dns::message::header::MIN_UDP;
use crate::dns::message::query::{UpstreamQuery, max_records};
use crate::dns::message::reply::Reply;
use crate::dns::net::Protocol;

/// Where requests of our own seem to come from.
pub(crate) const INTERNAL_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A question on its way through the plugins.
#[derive(Clone, Debug)]
pub struct Request {
    /// The server that was asked.
    pub server: Arc<Server>,
    /// The zone of the server block that answers.
    pub zone: Name,
    /// What counts the questions for it.
    pub zone_metrics: Arc<ZoneMetrics>,
    /// The client.
    pub client: SocketAddr,
    /// The address that was asked.
    pub local: SocketAddr,
    /// By which transport.
    pub protocol: Protocol,
    /// Bytes of the message.
    pub size: usize,
    /// Id, opcode and flags.
    pub metadata: Metadata,
    /// Name, type and class.
    pub query: Query,
    /// What the client says by EDNS, if it does.
    pub edns: Option<Edns>,
    /// How many bytes a UDP answer may have, however many the client takes.
    pub max_udp: u16,
    /// What it is asked for.
    pub purpose: Purpose,
    /// Look-ups of ours that have led to this one.
    pub depth: usize,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For a client.
    Client,
    /// For what is behind the target of a link.
    Target {
        /// How old absence may be.
        absence: Duration,
        /// Whether anything cached will do.
        cached: bool,
    },
}

// === impl Request ===

impl Request {
    /// Returns how many bytes it has; one of ours has been in no message, and would have so many.
    #[must_use]
    pub fn length(&self) -> usize {
        if self.depth == 0 {
            return self.size;
        }
        wire_length(&self.reply(""), &self.query) + self.edns.as_ref().map_or(0, |_| OPT)
    }

    /// Returns the client that its look-ups count for. A client's address is unmapped by now.
    #[must_use]
    pub fn account(&self) -> IpAddr {
        if self.is_own() { INTERNAL_ADDRESS } else { self.client.ip() }
    }

    /// Returns whether it is one of [`Server::own_request`]: no client asks from port 0, for it couldn't be answered.
    pub(crate) fn is_own(&self) -> bool {
        self.client == INTERNAL_CLIENT
    }

    /// Returns what is counted of it and its answer.
    #[must_use]
    pub fn counted(&self, reply: &Reply) -> Counted {
        Counted {
            protocol: self.protocol,
            is_ipv6: self.client.is_ipv6(),
            qtype: self.query.query_type(),
            dnssec_ok: self.dnssec_ok(),
            request_size: self.length(),
            response_size: wire_length(reply, &self.query),
            rcode: reply.metadata.response_code,
            plugin: reply.plugin,
            is_reusable: reply.repeat.is_some(),
        }
    }

    /// Returns an answer without records, of a plugin.
    #[must_use]
    pub fn reply(&self, plugin: &'static str) -> Reply {
        Reply::new(Metadata::response_from_request(&self.metadata), plugin)
    }

    /// Returns whether the client wants DNSSEC records (RFC 3225).
    #[must_use]
    pub fn dnssec_ok(&self) -> bool {
        self.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Returns how many bytes the answer may have.
    #[must_use]
    pub fn limit(&self) -> u16 {
        match self.protocol {
            Protocol::Udp => {
                self.edns.as_ref().map_or(MIN_UDP, Edns::max_payload).min(self.max_udp).max(MIN_UDP)
            }
            _ => u16::MAX,
        }
    }

    /// Returns the query as upstreams are asked it.
    #[must_use]
    pub fn question(&self) -> UpstreamQuery {
        UpstreamQuery {
            query: self.query.clone(),
            recursion_desired: self.metadata.recursion_desired,
            checking_disabled: self.metadata.checking_disabled,
            authentic_data: self.metadata.authentic_data,
            dnssec_ok: self.dnssec_ok(),
            // The look-up of a target serves all clients that wait for it.
            room: max_records(if self.purpose == Purpose::Client { self.limit() } else { u16::MAX }),
        }
    }
}

/// The client that the look-ups count for that lb-linker makes by itself. No packet has this source address.
pub(crate) const INTERNAL_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
