//! Answers one HTTP request (RFC 8484).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;

use super::request::{DNS_MESSAGE, MAX_QUERY_BYTES, QuerySource, Refusal, query_source};
use crate::dns::message::freshness::freshness;
use crate::dns::message::header::is_query;
use crate::dns::net::Protocol;
use crate::dns::transport::activity::query::{self, NoAnswer};
use crate::dns::transport::activity::{Activity, OpenRequest};

/// The size of a body in bytes up to which it needs no quota.
const SMALL_BODY_BYTES: usize = 4096;

const BUSY: Refusal =
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "Too many queries wait to be answered; try again.");
const DROPPED: Refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "The query gets no answer.");

/// Answers a request.
///
/// # Errors
/// If the connection or the stream breaks, or too many bytes of the connection's answers are unread.
pub(super) async fn respond(
    activity: Arc<Activity>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let is_head = request.method() == Method::HEAD;
    // The headers, and a body that isn't needed, take no memory while the query waits.
    let source = query_source(request);
    let answered = match activity.begin() {
        Some(mut open) => answer(&activity, &mut open, source).await?,
        None => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "The connection is about to end.")),
    };
    let mut response = Response::new(Full::default());
    let status = answered.as_ref().err().map_or(StatusCode::OK, |refusal| refusal.status);
    *response.status_mut() = status;
    let label = &activity.handler.server.load().label;
    activity.handler.server_metrics.https_responses.with_label_values(&[label, status.as_str()]).inc();
    let headers = response.headers_mut();
    let bytes = match answered {
        Ok(bytes) => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(DNS_MESSAGE));
            headers.insert(CACHE_CONTROL, cache_control(&bytes));
            bytes
        }
        Err(refusal) => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
                headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            }
            format!("{}\n", refusal.sentence).into_bytes()
        }
    };
    headers.insert(CONTENT_LENGTH, bytes.len().into());
    // The rest of a body isn't read. By HTTP/2 only its stream ends.
    if !activity.is_http2 && matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
        activity.use_up();
    }
    // HTTP/2 has no such header, and hyper leaves it out.
    if activity.is_used_up() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if !is_head {
        *response.body_mut() = Full::new(activity.hold(bytes)?);
    }
    Ok(response)
}

/// Returns how long HTTP caches may keep an answer (RFC 8484 section 5.1).
fn cache_control(answer: &[u8]) -> HeaderValue {
    let max_age = freshness(answer).map(|seconds| format!("max-age={seconds}"));
    let max_age = max_age.and_then(|text| HeaderValue::try_from(text).ok());
    max_age.unwrap_or(HeaderValue::from_static("no-store"))
}

/// Returns the DNS message of the answer.
async fn answer(
    activity: &Activity,
    open: &mut OpenRequest,
    source: Result<QuerySource<Incoming>, Refusal>,
) -> io::Result<Result<Vec<u8>, Refusal>> {
    let message = match source {
        Ok(QuerySource::Parameter(message)) => Ok(message),
        Ok(QuerySource::Body(body)) => read_body(activity, open, body).await?,
        Err(refusal) => Err(refusal),
    };
    Ok(match message {
        Ok(message) if is_query(&message) => {
            let answered = query::answer(activity, open, Protocol::Https, message).await;
            answered.map(|answer| answer.bytes).map_err(|none| match none {
                NoAnswer::Busy => BUSY,
                NoAnswer::Dropped => DROPPED,
            })
        }
        Ok(_) => Err(Refusal::new(StatusCode::BAD_REQUEST, "There is no DNS query with one question.")),
        Err(refusal) => Err(refusal),
    })
}

async fn read_body(
    activity: &Activity,
    open: &mut OpenRequest,
    mut body: Incoming,
) -> io::Result<Result<Vec<u8>, Refusal>> {
    let mut share = activity.body_share();
    let mut reading = pin!(async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > MAX_QUERY_BYTES {
                return Ok(Err(Refusal::too_large()));
            }
            if length > SMALL_BODY_BYTES && !share.resize(length) {
                return Ok(Err(BUSY));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Ok(bytes))
    });
    if let Poll::Ready(read) = futures::poll!(&mut reading) {
        return read;
    }
    if !open.may_wait() {
        return Ok(Err(BUSY));
    }
    let late = || Ok(Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "The body doesn't arrive in time.")));
    timeout(activity.limits.read, reading).await.unwrap_or_else(|_| late())
}
