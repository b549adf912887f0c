//! A stream: one query, and its answer (RFC 9250 section 4.2).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use quinn::{Connection, ReadError, RecvStream, SendStream, VarInt, WriteError};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::dns::chain::handler::Handler;
use crate::dns::message::encode::MessageSequence;
use crate::dns::message::header::{has_option, is_query};
use crate::dns::transport::connections::activity::query::{Answer, NoAnswer, answer};
use crate::dns::transport::connections::activity::{Activity, OpenRequest};
use crate::dns::transport::connections::limits::{MAX_QUERY_BYTES, TRANSFER_TIMEOUT, transfer_pause};

/// The EDNS option edns-tcp-keepalive (RFC 7828).
const TCP_KEEPALIVE: u16 = 11;

/// The error codes of RFC 9250 section 8.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorCode {
    NoError = 0,
    InternalError = 1,
    ProtocolError = 2,
    RequestCancelled = 3,
    ExcessiveLoad = 4,
}

impl ErrorCode {
    /// Counts an answer, or the end of a connection by an error.
    pub fn count(self, handler: &Handler) {
        let label = &handler.server.load().label;
        let status = ["0x0", "0x1", "0x2", "0x3", "0x4"][self as usize];
        handler.server_metrics.quic_responses.with_label_values(&[label, status]).inc();
    }
}

impl From<ErrorCode> for VarInt {
    fn from(code: ErrorCode) -> Self {
        Self::from_u32(code as u32)
    }
}

/// What ends by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Stream(ErrorCode),
    Connection(ErrorCode),
}

impl From<WriteError> for Failure {
    /// Returns the failure of a client that doesn't want the answer any more, or is gone.
    fn from(_: WriteError) -> Self {
        Self::Stream(ErrorCode::RequestCancelled)
    }
}

/// Serves a stream.
///
/// # Errors
/// If the connection has to end.
pub(super) async fn serve_stream(
    connection: &Connection,
    (mut sending, mut receiving): (SendStream, RecvStream),
    activity: &Arc<Activity>,
    stop: &CancellationToken,
) -> Result<(), ErrorCode> {
    // Ready if the client has the whole answer, or doesn't want it.
    let mut ended = pin!(sending.stopped());
    let served = match activity.begin() {
        Some(mut open) => {
            let query = read_query(connection, &mut receiving, activity, &mut open).await;
            match query {
                Ok(query) => tokio::select! {
                    biased;
                    replied = reply(query, &mut sending, activity, &mut open, stop) => replied,
                    _ = &mut ended => Err(Failure::Stream(ErrorCode::RequestCancelled)),
                },
                Err(failure) => Err(failure),
            }
        }
        // The connection is about to end.
        None => Err(Failure::Stream(ErrorCode::NoError)),
    };
    match served {
        Ok(()) => {
            // Wakes the connection, whose deadlines depend on it.
            let _ = ended.await;
            Ok(())
        }
        Err(Failure::Connection(code)) => Err(code),
        Err(Failure::Stream(code)) => {
            // They fail if the client has ended the stream.
            let _ = receiving.stop(code.into());
            let _ = sending.reset(code.into());
            Ok(())
        }
    }
}

/// Reads a query to the end of the stream.
async fn read_query(
    connection: &Connection,
    receiving: &mut RecvStream,
    activity: &Activity,
    open: &mut OpenRequest,
) -> Result<Vec<u8>, Failure> {
    let mut reading = pin!(read_to_end(receiving));
    let mut counting = pin!(std::future::poll_fn(|context| {
        // Out of order, a few bytes keep their whole packet in memory.
        count_bytes(connection, activity);
        reading.as_mut().poll(context)
    }));
    let read = match futures::poll!(&mut counting) {
        Poll::Ready(read) => Ok(read),
        Poll::Pending if !open.may_wait() => return Err(Failure::Stream(ErrorCode::ExcessiveLoad)),
        Poll::Pending => {
            activity.stream_unfinished();
            let read = timeout(activity.limits.read, counting).await;
            if connection.close_reason().is_none() {
                activity.stream_finished();
            }
            read
        }
    };
    let Ok(bytes) = read else {
        // The end of the stream is missing (RFC 9250 section 4.3.3).
        return Err(Failure::Connection(ErrorCode::ProtocolError));
    };
    let bytes = bytes.inspect_err(|_| activity.request_aborted())?;
    query_of(bytes).ok_or(Failure::Connection(ErrorCode::ProtocolError))
}

/// Notes the bytes that were received and sent so far.
pub(super) fn count_bytes(connection: &Connection, activity: &Activity) {
    let stats = connection.stats();
    let [received, sent] =
        [stats.udp_rx.bytes, stats.udp_tx.bytes].map(|bytes| bytes.try_into().unwrap_or(usize::MAX));
    activity.transferred(received, sent);
}

async fn read_to_end(receiving: &mut RecvStream) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    loop {
        match receiving.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) if bytes.len() + chunk.bytes.len() > 2 + usize::from(MAX_QUERY_BYTES) => {
                return Err(Failure::Stream(ErrorCode::ExcessiveLoad));
            }
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Ok(None) => return Ok(bytes),
            Err(ReadError::Reset(_)) => return Err(Failure::Stream(ErrorCode::RequestCancelled)),
            // The connection has ended.
            Err(_) => return Err(Failure::Stream(ErrorCode::InternalError)),
        }
    }
}

/// Returns the query that the bytes of a stream contain; `None` if they violate the protocol (RFC 9250 section 4.3.3).
#[must_use]
pub fn query_of(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (length, query) = bytes.split_first_chunk()?;
    // The id is 0 (RFC 9250 section 4.2.1).
    let is_valid = usize::from(u16::from_be_bytes(*length)) == query.len()
        && is_query(query)
        && query.starts_with(&[0, 0])
        && !has_option(query, TCP_KEEPALIVE);
    is_valid.then(|| bytes.split_off(2))
}

/// Answers a query.
async fn reply(
    query: Vec<u8>,
    sending: &mut SendStream,
    activity: &Arc<Activity>,
    open: &mut OpenRequest,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let answered = answer(activity, open, query).await;
    let Answer { bytes, following } = answered.map_err(|none| match none {
        NoAnswer::Busy => Failure::Stream(ErrorCode::ExcessiveLoad),
        NoAnswer::Dropped => Failure::Stream(ErrorCode::InternalError),
    })?;
    send(&bytes, sending, activity).await?;
    if let Some(following) = following {
        if !open.may_ask() {
            return Err(Failure::Stream(ErrorCode::ExcessiveLoad));
        }
        let transfer = send_following(following, sending, activity);
        tokio::select! {
            sent = timeout(TRANSFER_TIMEOUT, transfer) => {
                sent.unwrap_or(Err(Failure::Stream(ErrorCode::ExcessiveLoad)))?;
            }
            // It could take minutes. The client sees that the zone isn't whole, and comes again.
            () = stop.cancelled() => return Err(Failure::Stream(ErrorCode::RequestCancelled)),
        }
    }
    let _ = sending.finish();
    ErrorCode::NoError.count(&activity.handler);
    Ok(())
}

/// Sends the further messages of a zone transfer.
async fn send_following(
    mut following: Box<MessageSequence>,
    sending: &mut SendStream,
    activity: &Arc<Activity>,
) -> Result<(), Failure> {
    loop {
        let begin = Instant::now();
        let next = activity.handler.next_message(&mut following);
        let Some(bytes) = next.map_err(|_| Failure::Stream(ErrorCode::InternalError))? else {
            return Ok(());
        };
        let pause = transfer_pause(begin.elapsed());
        if !bytes.is_empty() {
            send(&bytes, sending, activity).await?;
        }
        sleep(pause).await;
    }
}

/// Sends a message, preceded by its length. Every encoded message fits the length.
async fn send(message: &[u8], sending: &mut SendStream, activity: &Arc<Activity>) -> Result<(), Failure> {
    let length = u16::try_from(message.len()).map_err(|_| Failure::Stream(ErrorCode::InternalError))?;
    let framed = [&length.to_be_bytes(), message].concat();
    // Too many bytes are unread.
    let held = activity.hold(framed).map_err(|_| Failure::Connection(ErrorCode::ExcessiveLoad))?;
    Ok(sending.write_chunk(held).await?)
}
