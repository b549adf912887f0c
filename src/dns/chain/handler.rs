//! Decodes a message, passes the query to the plugin chain, and encodes the reply.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::{io, process};

use arc_swap::ArcSwap;
use futures::FutureExt;
use hickory_proto::op::{self as proto, Edns, Header, Metadata, OpCode, Query};
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use hickory_server::net::xfer;
use hickory_server::server::Request as Message;
use tracing::{debug, error};

use super::metrics::ServerMetrics;
use super::request::{Purpose, Request};
use super::server::Server;
use crate::dns::message::encode::{MessageSequence, encode};
use crate::dns::message::header::{
    HeaderCheck, MAX_UDP, check_header, disable_empty_subnets, format_error, server_failure,
};
use crate::dns::message::reply::RecordStream;
use crate::dns::message::tsig;
use crate::dns::net::{Protocol, unmapped};
use crate::dns::response_cache::wire_response::WireResponse;
use crate::metrics::Metrics;

/// The maximum number of bytes of a message in the log after a panic.
const MAX_LOGGED_BYTES: usize = 512;

/// Answers the messages of a listener, whatever their transport.
#[derive(Debug)]
pub struct Handler {
    /// The server that answers; a reload replaces it.
    pub server: ArcSwap<Server>,
    pub bound: SocketAddr,
    pub metrics: Arc<Metrics>,
    pub server_metrics: Arc<ServerMetrics>,
}

#[derive(Debug)]
pub struct EncodedReply {
    pub bytes: Vec<u8>,
    /// The reply in wire form for equal queries, if it may be reused.
    pub wire_response: Option<Box<WireResponse>>,
    /// The further messages of a reply by TCP, for [`Handler::next_message`].
    pub following: Option<Box<MessageSequence>>,
}

impl EncodedReply {
    fn not_reusable(bytes: Vec<u8>) -> Self {
        Self { bytes, wire_response: None, following: None }
    }
}

impl Handler {
    /// Answers a client's message. `local` is the address that the message was sent to; `None` means the address of the
    /// listener. `keep` asks for the reply in a form for the response cache, too. Returns `None` if the message gets no
    /// reply.
    pub async fn answer(
        &self,
        message: Vec<u8>,
        client: SocketAddr,
        local: Option<IpAddr>,
        protocol: Protocol,
        keep: bool,
    ) -> Option<EncodedReply> {
        let server = self.server.load_full();
        let debug = server.aborts_on_panic();
        // A panic in lb-linker or in the decoder must not end the listener.
        let ends = self.ends(client, local);
        let answering = check_and_answer(server, &message, &ends, protocol, keep);
        AssertUnwindSafe(answering).catch_unwind().await.unwrap_or_else(|_| {
            let (length, first) = (message.len(), &message[..message.len().min(MAX_LOGGED_BYTES)]);
            error!(
                "answering a message of {client} panicked: the first {} of {length} bytes: {first:02x?}",
                first.len()
            );
            if debug {
                process::abort();
            }
            self.server_metrics.panics.inc();
            server_failure(&message).map(EncodedReply::not_reusable)
        })
    }

    /// Returns the number under which the response cache keeps the answer to a client's message, for
    /// [`ResponseCache::answer`](crate::dns::response_cache::ResponseCache::answer). On a server with views, the
    /// message decides on the block that answers.
    #[must_use]
    pub fn number(
        &self,
        server: &Arc<Server>,
        message: &[u8],
        client: SocketAddr,
        local: Option<IpAddr>,
        protocol: Protocol,
    ) -> u64 {
        if !server.has_views() {
            return server.number();
        }
        let number = || {
            let request = request(
                Arc::clone(server),
                message,
                self.ends(client, local),
                protocol,
                decode_plain(message)?,
            );
            Some(server.number_for(&request))
        };
        // Nothing is kept under the number of a server with views, and `answer` tells of the panic.
        catch_unwind(AssertUnwindSafe(number)).ok().flatten().unwrap_or(server.number())
    }

    /// Returns the addresses of the client and of the server.
    fn ends(&self, client: SocketAddr, local: Option<IpAddr>) -> (SocketAddr, SocketAddr) {
        let local = SocketAddr::new(local.unwrap_or(self.bound.ip()), self.bound.port());
        (unmapped(client), unmapped(local))
    }

    /// Encodes the next message of a reply; an empty one isn't sent. `None` after the last one.
    ///
    /// # Errors
    /// If it can't be encoded: the client has only a part of the reply.
    pub fn next_message(&self, following: &mut MessageSequence) -> io::Result<Option<Vec<u8>>> {
        let Ok(next) = catch_unwind(AssertUnwindSafe(|| following.next())) else {
            error!("encoding a message of a zone transfer panicked");
            if self.server.load().aborts_on_panic() {
                process::abort();
            }
            self.server_metrics.panics.inc();
            return Err(io::Error::other("encoding a message panicked"));
        };
        next.transpose().map_err(|error| {
            error!("a zone transfer ends before its end: {error}");
            io::Error::other(error)
        })
    }
}

async fn check_and_answer(
    server: Arc<Server>,
    message: &[u8],
    ends: &(SocketAddr, SocketAddr),
    protocol: Protocol,
    keep: bool,
) -> Option<EncodedReply> {
    match check_header(message) {
        HeaderCheck::Drop => return None,
        HeaderCheck::Reply(bytes) => return Some(EncodedReply::not_reusable(bytes)),
        HeaderCheck::Question => {}
    }
    let decoded = decode_plain(message).or_else(|| decode_any(message, ends.0, protocol));
    let Some(decoded) = decoded else {
        return Some(EncodedReply::not_reusable(format_error(message)));
    };
    let mut request = request(server, message, *ends, protocol, decoded);
    let encoded = answer(&mut request, message, keep).await?;
    if let Some(observer) = &request.reply_observer {
        observer.observe(&encoded.bytes);
    }
    Some(encoded)
}

async fn answer(request: &mut Request, message: &[u8], keep: bool) -> Option<EncodedReply> {
    let query = request.query.clone();
    let reply = Server::serve(request).await?;
    let edns = request.response_edns(&reply);
    if let Some(records) = reply.stream.as_ref().and_then(RecordStream::take) {
        let signer = request.signer.take();
        let following = MessageSequence::new(&reply, &query, edns.as_ref(), records, signer);
        let first =
            following.ok().and_then(|mut following| Some((following.next()?.ok()?, Box::new(following))));
        let Some((bytes, following)) = first else {
            return server_failure(message).map(EncodedReply::not_reusable);
        };
        return Some(EncodedReply { bytes, wire_response: None, following: Some(following) });
    }
    let signature = request.signer.as_ref().map_or(0, |signer| signer.length());
    let limit = request.limit().saturating_sub(u16::try_from(signature).unwrap_or(u16::MAX));
    let encoded = encode(&reply, &query, edns.as_ref(), limit);
    let (mut bytes, offsets) = match encoded {
        Ok(encoded) => encoded,
        Err(error) => {
            error!("the answer to {} {} can't be encoded: {error}", query.name(), query.query_type());
            return server_failure(message).map(EncodedReply::not_reusable);
        }
    };
    if let Some(signer) = &mut request.signer {
        signer.sign(&mut bytes, tsig::now());
        return Some(EncodedReply::not_reusable(bytes));
    }
    // The response cache treats all clients that accept at least MAX_UDP bytes alike; `bufsize` may allow larger
    // replies.
    let is_size_independent = request.max_udp <= MAX_UDP
        || bytes.len() <= usize::from(MAX_UDP) && offsets.is_whole(reply.records.counts());
    if !keep || !is_size_independent {
        return Some(EncodedReply::not_reusable(bytes));
    }
    let wire_response = WireResponse::new(reply, &query, (&bytes, &offsets), request.kept_by);
    Some(EncodedReply { bytes, wire_response: wire_response.map(Box::new), following: None })
}

/// Returns the request in a message, of which `decoded` was decoded.
fn request(
    server: Arc<Server>,
    message: &[u8],
    (client, local): (SocketAddr, SocketAddr),
    protocol: Protocol,
    (metadata, query, edns, soa_serial): Decoded,
) -> Request {
    let additionals = u16::from_be_bytes([message[10], message[11]]);
    let has_more = additionals > u16::from(edns.is_some());
    let is_kept = server.reads_messages() || has_more && tsig::is_signed(message);
    Request {
        zone_metrics: server.unrouted_metrics(),
        zone: Name::root(),
        view: None,
        kept_by: server.number(),
        server,
        query,
        client,
        local,
        protocol,
        size: message.len(),
        metadata,
        edns,
        options: None,
        purpose: Purpose::Client,
        depth: 0,
        has_client_name: true,
        alias_look_up_tries: OnceLock::new(),
        query_limiter: None,
        key: None,
        labels: None,
        message: is_kept.then(|| message.into()),
        reply_observer: None,
        signer: None,
        max_udp: MAX_UDP,
        soa_serial,
    }
}

/// What a request has of its message. The number is the serial of an SOA record.
type Decoded = (Metadata, Query, Option<Edns>, Option<u32>);

/// Decodes a message that has no records but those of its additional section, as nearly all have; `None` if the message
/// has others, or can't be decoded.
fn decode_plain(message: &[u8]) -> Option<Decoded> {
    let mut decoder = BinDecoder::new(message);
    let Header { metadata, counts } = Header::read(&mut decoder).ok()?;
    if (counts.queries, counts.answers, counts.authorities) != (1, 0, 0) {
        return None;
    }
    let query = Query::read(&mut decoder).ok()?;
    let additionals = counts.additionals.into();
    let (_, edns, _) =
        proto::Message::read_records(&mut decoder, additionals, true, metadata.op_code).ok()?;
    Some((metadata, query, edns, None))
}

/// Decodes a message; `None` if it can't be decoded, or hasn't exactly one question.
fn decode_any(message: &[u8], client: SocketAddr, protocol: Protocol) -> Option<Decoded> {
    let by = if protocol == Protocol::Udp { xfer::Protocol::Udp } else { xfer::Protocol::Tcp };
    let mut bytes = message.to_vec();
    disable_empty_subnets(&mut bytes);
    let decoded = Message::from_bytes(bytes, client, by);
    let decoded =
        decoded.inspect_err(|error| debug!("a message from {client} can't be decoded: {error}")).ok()?;
    let [query] = decoded.queries.queries() else { return None };
    let is_notify = decoded.metadata.op_code == OpCode::Notify;
    let with_soa = if is_notify { &decoded.answers } else { &decoded.authorities };
    let serial = |record: &Record| match &record.data {
        RData::SOA(soa) => Some(soa.serial),
        _ => None,
    };
    let soa_serial = with_soa.iter().find_map(serial);
    Some((decoded.metadata, query.original().clone(), decoded.edns.clone(), soa_serial))
}
