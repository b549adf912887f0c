//! A line of *dnstap*: what its messages contain, and the queues that they go to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use hickory_proto::op::Edns;

use super::message::{Kind, Message, frame};
use super::queue::{FrameQueue, Lost};
use crate::dns::chain::query_limiter::{Exchange, QueryLimiter};
use crate::dns::chain::request::{ReplyObserver, Request};
use crate::dns::message::encode::encode;
use crate::dns::message::presentation::lower_name_text;
use crate::dns::message::records::Records;
use crate::dns::message::reply::Reply;
use crate::dns::message::wire::WireMessage;
use crate::dns::net::Protocol;
use crate::dns::plugins::log::format::{Format, LogEntry};

#[derive(Debug)]
pub(super) struct Tap {
    pub is_full: bool,
    pub identity: String,
    pub version: String,
    pub extra: Option<Format>,
    pub queues: ArcSwap<Vec<FrameQueue>>,
    pub lost: Lost,
}

/// The lines of *dnstap* in a block.
#[derive(Clone, Debug)]
pub(in crate::dns::plugins) struct Taps(pub(super) Arc<[Arc<Tap>]>);

impl Tap {
    pub fn add(&self, queue: FrameQueue) {
        self.queues.rcu(|queues| queues.iter().chain([&queue]).cloned().collect::<Vec<_>>());
    }

    pub fn remove(&self, queue: &FrameQueue) {
        let is_other = |other: &&FrameQueue| !other.is_same(queue);
        self.queues.rcu(|queues| queues.iter().filter(is_other).cloned().collect::<Vec<_>>());
    }

    fn send(&self, extra: Option<&str>, message: &Message<'_>) {
        let queues = self.queues.load();
        if queues.is_empty() {
            return;
        }
        let message = Message { dns: message.dns.filter(|_| self.is_full), ..*message };
        let extra = extra.map(str::as_bytes);
        let frame = frame(self.identity.as_bytes(), self.version.as_bytes(), extra, &message);
        let lost = queues.iter().filter(|queue| !queue.push(&frame)).count();
        if lost > 0 {
            self.lost.add(lost as u64);
        }
    }

    /// Returns the field *extra* of messages about a request.
    fn extra(&self, request: &Request) -> Option<String> {
        let format = self.extra.as_ref()?;
        let name = lower_name_text(request.query.name());
        Some(format.text(&LogEntry { request, name: &name, reply: None, duration: None }))
    }
}

impl Taps {
    /// Returns whether messages are sent with their wire form.
    pub fn has_full(&self) -> bool {
        self.0.iter().any(|tap| tap.is_full)
    }

    /// Sends a client's query.
    pub(super) fn client_query(&self, request: &Request, at: SystemTime) {
        let message = client_message(request.client, request.protocol, at, None, request.message.as_deref());
        for tap in &*self.0 {
            tap.send(tap.extra(request).as_deref(), &message);
        }
    }

    /// Returns what sends the response to a client's query, once it is encoded.
    pub(super) fn client_response(&self, request: &Request, query_time: SystemTime) -> ReplyObserver {
        let taps: Vec<_> = self.0.iter().map(|tap| (Arc::clone(tap), tap.extra(request))).collect();
        let (client, protocol) = (request.client, request.protocol);
        ReplyObserver::new(move |reply| {
            let message = client_message(client, protocol, query_time, Some(SystemTime::now()), Some(reply));
            for (tap, extra) in &taps {
                tap.send(extra.as_deref(), &message);
            }
        })
    }

    /// Returns the limiter of a look-up at upstreams for a request, which also sends the queries and the responses.
    pub fn limiter(&self, request: &Request) -> QueryLimiter {
        let taps = self.clone();
        let request = self.0.iter().any(|tap| tap.extra.is_some()).then(|| request.clone());
        QueryLimiter::observed_by(move |exchange| taps.exchange(request.as_ref(), exchange))
    }

    fn exchange(&self, request: Option<&Request>, exchange: &Exchange<'_>) {
        let request = request.map(|request| {
            let limiter = QueryLimiter::default();
            limiter.set_upstream(exchange.upstream);
            Request { query_limiter: Some(Arc::new(limiter)), ..request.clone() }
        });
        let (query, response) = if self.has_full() { wire_forms(exchange) } else { (None, None) };
        let query = Message {
            kind: Kind::ForwarderQuery,
            is_udp: exchange.network == "udp",
            query: exchange.local,
            response: Some(exchange.upstream),
            query_time: exchange.begun,
            response_time: None,
            dns: query.as_deref(),
        };
        let response = Message {
            kind: Kind::ForwarderResponse,
            response_time: Some(SystemTime::now()),
            dns: response.as_deref(),
            ..query
        };
        for tap in &*self.0 {
            let extra = request.as_ref().and_then(|request| tap.extra(request));
            tap.send(extra.as_deref(), &query);
            if exchange.answer.is_some() {
                tap.send(extra.as_deref(), &response);
            }
        }
    }
}

fn client_message(
    client: SocketAddr,
    protocol: Protocol,
    query_time: SystemTime,
    response_time: Option<SystemTime>,
    dns: Option<&[u8]>,
) -> Message<'_> {
    let kind = if response_time.is_some() { Kind::ClientResponse } else { Kind::ClientQuery };
    let is_udp = protocol.is_over_udp();
    Message { kind, is_udp, query: Some(client), response: None, query_time, response_time, dns }
}

/// Returns the query of an exchange as it was sent, with the id of the response, and the response.
fn wire_forms(exchange: &Exchange<'_>) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let mut query = exchange.question.encode(true);
    let response = exchange.answer.as_ref().and_then(|answer| {
        query[..2].copy_from_slice(&answer.metadata.id.to_be_bytes());
        wire_form(answer)
    });
    (Some(query), response)
}

fn wire_form(answer: &Arc<WireMessage>) -> Option<Vec<u8>> {
    let question = answer.question()?;
    let mut reply = Reply::new(answer.metadata, "");
    reply.records = Records::of_wire(Arc::clone(answer), question.name());
    let needs_edns = answer.metadata.response_code.high() > 0 || !answer.extended_errors.is_empty();
    let edns = needs_edns.then(|| {
        let mut edns = Edns::new();
        answer.extended_errors.iter().for_each(|error| edns.options_mut().insert(error.clone()));
        edns
    });
    encode(&reply, &question, edns.as_ref(), u16::MAX).ok().map(|(bytes, _)| bytes)
}
