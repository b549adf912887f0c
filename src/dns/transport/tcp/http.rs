//! DNS over HTTPS (RFC 8484), by HTTP/1.1 and HTTP/2, and over gRPC, by HTTP/2; without TLS for a proxy in front.
//!
//! hyper has the protocols. The timeouts and limits are those of TCP; [`Activity`] has what they depend on.

mod answer;
mod grpc;
mod https;
mod request;

use std::io::{self, Cursor};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use answer::Body;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

use super::connection::DRAIN_TIMEOUT;
use crate::dns::net::Protocol;
use crate::dns::transport::connections::activity::{Activity, Step};
use crate::dns::transport::connections::{Connection, ConnectionLimits, HttpConfig};
use crate::dns::transport::tls::ALPN_HTTP2;

/// The first bytes of a client that speaks HTTP/2 (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The maximum size of the headers of a request.
const MAX_HEADER_BYTES: u16 = 16 << 10;
/// The number of bytes that a client may send before they are processed (RFC 9113 section 5.2): a query of maximum
/// size.
const WINDOW_BYTES: u32 = 65_535;
/// The maximum numbers of streams that the client resets before they are processed, and of streams that are reset
/// because of its errors; then the connection ends (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 100;
/// How many bytes are discarded after the last answer, so that the kernel doesn't reset the connection before the
/// client has received the answer.
const MAX_DISCARDED_BYTES: u64 = 1 << 20;

/// Serves a connection until the client or the stop ends it, it has been idle too long, or its last allowed query is
/// answered.
///
/// # Errors
/// If the connection breaks, the client doesn't finish a request or read an answer in time, or too many bytes of its
/// answers are unread.
pub(super) async fn serve(
    connection: Connection,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    tls: Option<TlsAcceptor>,
    config: HttpConfig,
) -> io::Result<()> {
    let Some(tls) = tls else {
        if config.protocol == Protocol::Grpc {
            return serve_http(connection, stream, Vec::new(), config, true).await;
        }
        let (mut stream, mut first) = (stream, Vec::with_capacity(PREFACE.len()));
        let ConnectionLimits { idle, read, .. } = connection.limits;
        let deciding = async {
            timeout(idle, stream.read_buf(&mut first)).await??;
            timeout(read, has_preface(&mut stream, &mut first)).await?
        };
        // A request that the kernel has already received was sent before the stop.
        let is_http2 = tokio::select! {
            biased;
            is_http2 = deciding => is_http2?,
            () = connection.stop.cancelled() => return Ok(()),
        };
        return serve_http(connection, stream, first, config, is_http2).await;
    };
    let Some(stream) = connection.handshake(stream, tls).await? else { return Ok(()) };
    let by_alpn = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
    let is_http2 = by_alpn || config.protocol == Protocol::Grpc;
    serve_http(connection, stream, Vec::new(), config, is_http2).await
}

/// Reads until the bytes decide whether the client speaks HTTP/2.
async fn has_preface(stream: &mut (impl AsyncRead + Unpin), first: &mut Vec<u8>) -> io::Result<bool> {
    while first.len() < PREFACE.len() && PREFACE.starts_with(first) {
        if stream.read_buf(first).await? == 0 {
            break;
        }
    }
    Ok(first.starts_with(PREFACE))
}

/// Serves a connection of which the bytes `first` are already read.
async fn serve_http(
    connection: Connection,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    first: Vec<u8>,
    config: HttpConfig,
    is_http2: bool,
) -> io::Result<()> {
    let (limits, stop) = (connection.limits, connection.stop.clone());
    let activity = Activity::new(connection, config.protocol, is_http2);
    let (reader, writer) = tokio::io::split(stream);
    let received = Arc::clone(&activity);
    let reader = InspectReader::new(Cursor::new(first).chain(reader), move |bytes: &[u8]| {
        received.received(bytes.len());
    });
    let stream = TokioIo::new(tokio::io::join(reader, writer));
    let mut serving = Http::new(stream, &activity, config.max_streams);
    let outcome = drive(&mut serving, &activity, &stop).await;
    let is_late = outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
    if let (Http::One(connection), false) = (serving, is_late) {
        let stream = connection.into_parts().io.into_inner();
        shut_down(stream, limits.write, &stop).await?;
    }
    outcome
}

/// Runs a connection to its end.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    serving: &mut Http<S>,
    activity: &Activity,
    stop: &CancellationToken,
) -> io::Result<()> {
    let mut stop = pin!(stop.cancelled());
    let mut timer = pin!(sleep_until(Instant::now() + activity.limits.idle));
    std::future::poll_fn(|context| {
        loop {
            if let Poll::Ready(ended) = serving.poll(context) {
                return Poll::Ready(ended.map_err(io::Error::other));
            }
            match activity.next_step(stop.as_mut().poll(context).is_ready()) {
                Step::Close => serving.end_gracefully(),
                Step::End => return Poll::Ready(Ok(())),
                Step::Fail(error) => return Poll::Ready(Err(error)),
                Step::Wait(deadline) => {
                    if deadline < timer.deadline() || timer.is_elapsed() {
                        timer.as_mut().reset(deadline);
                    }
                    if timer.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    })
    .await
}

/// Ends a connection of HTTP/1.1. Data that isn't read would make the kernel reset the connection.
async fn shut_down(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    write: Duration,
    stop: &CancellationToken,
) -> io::Result<()> {
    timeout(write, stream.shutdown()).await??;
    let mut nowhere = tokio::io::sink();
    let mut rest = stream.take(MAX_DISCARDED_BYTES);
    tokio::select! {
        _ = timeout(DRAIN_TIMEOUT, tokio::io::copy(&mut rest, &mut nowhere)) => {}
        () = stop.cancelled() => {}
    }
    Ok(())
}

/// Answers the requests of a connection.
struct Requests(Arc<Activity>);

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.0);
        match activity.protocol {
            Protocol::Grpc => Box::pin(grpc::respond(activity, request)),
            _ => Box::pin(https::respond(activity, request)),
        }
    }
}

/// A connection of HTTP/1.1 or HTTP/2.
enum Http<S: AsyncRead + AsyncWrite + Unpin> {
    One(Box<http1::Connection<TokioIo<S>, Requests>>),
    Two(Pin<Box<http2::Connection<TokioIo<S>, Requests, TokioExecutor>>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http<S> {
    fn new(stream: TokioIo<S>, activity: &Arc<Activity>, max_streams: u32) -> Self {
        let requests = Requests(Arc::clone(activity));
        if !activity.is_http2 {
            // hyper's timeout also limits the pause between requests; `Activity` has one that doesn't.
            let connection = http1::Builder::new()
                .header_read_timeout(None)
                .half_close(true)
                .max_buf_size(MAX_HEADER_BYTES.into())
                .writev(true)
                .serve_connection(stream, requests);
            return Self::One(Box::new(connection));
        }
        let connection = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(max_streams)
            .max_header_list_size(MAX_HEADER_BYTES.into())
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_ERROR_RESETS)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .serve_connection(stream, requests);
        Self::Two(Box::pin(connection))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        match self {
            Self::One(connection) => connection.poll_without_shutdown(context),
            Self::Two(connection) => connection.as_mut().poll(context),
        }
    }

    /// Ends the connection after the requests that the client has sent.
    fn end_gracefully(&mut self) {
        match self {
            Self::One(connection) => Pin::new(&mut **connection).graceful_shutdown(),
            Self::Two(connection) => connection.as_mut().graceful_shutdown(),
        }
    }
}

#[cfg(test)]
mod tests;
