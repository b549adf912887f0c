//! Connections by HTTP/2, for DNS over HTTPS (RFC 8484) and over gRPC. Each query is a request of its own, so a slow
//! one delays no other one.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use h2::client::{Builder, Connection, SendRequest};
use h2::{Reason, RecvStream};
use hyper::HeaderMap;
use hyper::body::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::{Stream, Task, copy};
use crate::dns::message::upstream_reply::{UpstreamReply, parse_reply};
use crate::dns::upstream::http::{HttpRefusal, HttpRequests, MAX_BODY_BYTES};
use crate::dns::upstream::sockets::UpstreamSocket;

/// The maximum number of queries at a time on a connection. An upstream may allow fewer.
pub(super) const MAX_STREAMS: usize = 100;
/// The maximum size of the headers of a response.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// The number of bytes of a body that the upstream may send: one more than a body may have.
const STREAM_WINDOW_BYTES: u32 = MAX_BODY_BYTES as u32 + 1;
/// The number of bytes of all bodies that aren't whole yet: with less, bodies that arrive by turns could use up the
/// window, and none would become whole.
const CONNECTION_WINDOW_BYTES: u32 = MAX_STREAMS as u32 * STREAM_WINDOW_BYTES;

/// A query to send.
struct OutgoingQuery {
    id: u16,
    /// With the id 0, for HTTP caches (RFC 8484 section 4.1).
    bytes: Vec<u8>,
    /// Ends when the query is given up.
    given_up: oneshot::Receiver<()>,
}

impl Task {
    /// Sends each query as a request until the connection fails, or is retired and has no unanswered query.
    pub(super) async fn run_http2(self, stream: Stream, requests: Arc<HttpRequests>) {
        let socket = &self.socket;
        let (mut sender, mut connection) = match builder().handshake::<_, Bytes>(stream).await {
            Ok(ends) => ends,
            Err(error) => {
                let error = broken(error);
                return socket.fail(|| copy(&error));
            }
        };
        let mut answers = FuturesUnordered::new();
        let mut idle_end = pin!(sleep(self.pool_config.idle));
        while !socket.is_done() {
            socket.limit_sharing(sender.current_max_send_streams());
            // The timer comes before the connection, which could use up this task's budget each time.
            tokio::select! {
                biased;
                () = socket.changed.notified() => {
                    let asked = socket.take_queries().into_iter();
                    answers.extend(asked.map(|query| answer(query, sender.clone(), Arc::clone(&requests))));
                }
                () = &mut idle_end, if socket.idle_since().is_some() => self.close_if_idle(),
                ended = poll_fn(|context| socket.poll_end(&mut connection, &mut sender, context)) => match ended {
                    Ok(()) => socket.retire(),
                    Err(error) => {
                        // The end may have come together with responses.
                        while let Some(Some(answer)) = answers.next().now_or_never() {
                            if let Some((id, Ok(reply))) = answer {
                                socket.accept_response(id, Ok(reply));
                            }
                        }
                        return socket.fail(|| copy(&error));
                    }
                },
                Some(answer) = answers.next() => {
                    if let Some((id, reply)) = answer {
                        socket.accept_response(id, reply);
                    }
                }
            }
            if self.rest() {
                idle_end.set(sleep(self.pool_config.idle));
            }
        }
    }
}

impl UpstreamSocket {
    fn limit_sharing(&self, streams: usize) {
        if let Some(state) = &mut self.queries.lock().connection {
            state.max_sharing = streams.min(MAX_STREAMS);
        }
    }

    fn take_queries(&self) -> Vec<OutgoingQuery> {
        let queries = &mut *self.queries.lock();
        let mut all = Vec::with_capacity(queries.outgoing.len());
        for id in queries.outgoing.drain(..) {
            // A query may have been given up meanwhile.
            let Some(query) = queries.by_id.get_mut(&id) else { continue };
            let (stream, given_up) = oneshot::channel();
            query.stream = Some(stream);
            let mut bytes = query.bytes.clone();
            bytes[..2].fill(0);
            all.push(OutgoingQuery { id, bytes, given_up });
        }
        all
    }

    /// Waits until the connection takes no further request, because the upstream has said so (GOAWAY).
    ///
    /// # Errors
    /// If the connection has ended.
    fn poll_end(
        &self,
        connection: &mut Connection<Stream, Bytes>,
        sender: &mut SendRequest<Bytes>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(connection).poll(context) {
            Poll::Ready(ended) => {
                Poll::Ready(Err(ended.map_or_else(broken, |()| io::ErrorKind::UnexpectedEof.into())))
            }
            Poll::Pending => match sender.poll_ready(context) {
                Poll::Ready(Err(_)) if !self.queries.lock().is_retired => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            },
        }
    }

    fn accept_response(&self, id: u16, reply: io::Result<UpstreamReply>) {
        let queries = &mut *self.queries.lock();
        queries.heard = Some(Instant::now());
        queries.end(id, reply);
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}

/// Returns the reply to a query, or the error of its request; `None` if the query is given up, which resets its stream.
async fn answer(
    OutgoingQuery { id, bytes, given_up }: OutgoingQuery,
    sender: SendRequest<Bytes>,
    requests: Arc<HttpRequests>,
) -> Option<(u16, io::Result<UpstreamReply>)> {
    tokio::select! {
        biased;
        _ = given_up => None,
        reply = exchange(&bytes, sender, &requests) => Some((id, reply)),
    }
}

async fn exchange(
    query: &[u8],
    mut sender: SendRequest<Bytes>,
    requests: &HttpRequests,
) -> io::Result<UpstreamReply> {
    let (request, body) = requests.request(query).map_err(io::Error::other)?;
    let (response, mut sending) = sender.send_request(request, body.is_none()).map_err(broken)?;
    if let Some(body) = body {
        sending.send_data(body.into(), true).map_err(broken)?;
    }
    let (head, body) = response.await.map_err(broken)?.into_parts();
    requests.check_head(head.status, &head.headers).map_err(io::Error::other)?;
    let (body, trailers) = read(body).await?;
    let trailers = trailers.as_ref().unwrap_or(&head.headers);
    let message = requests.message(query, &head.headers, body, trailers).map_err(io::Error::other)?;
    Ok(parse_reply(query, &message))
}

/// Reads a body and its trailers. The window of its stream isn't enlarged, and that of the connection only at its end,
/// so that unfinished bodies take limited memory.
async fn read(mut body: RecvStream) -> io::Result<(Vec<u8>, Option<HeaderMap>)> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data.map_err(broken)?);
        if bytes.len() > MAX_BODY_BYTES {
            return Err(io::Error::other(HttpRefusal::TooLong));
        }
    }
    Ok((bytes, body.trailers().await.map_err(broken)?))
}

/// Returns the error of a connection or a stream, without the text that the upstream may have sent with GOAWAY.
fn broken(error: h2::Error) -> io::Error {
    match error.reason() {
        // What TLS or HTTP/1.1 answers begins as a frame of more than 1 MiB does.
        Some(Reason::FRAME_SIZE_ERROR) if error.is_library() => {
            io::Error::other("http2: it doesn't speak HTTP/2, or only with TLS")
        }
        Some(reason) => io::Error::other(format!("http2: {reason}")),
        None => error.into_io().unwrap_or_else(|| io::Error::other("http2: the request can't be sent")),
    }
}

#[cfg(test)]
mod tests;
