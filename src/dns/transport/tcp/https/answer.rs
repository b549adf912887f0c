//! Answers one HTTP request (RFC 8484).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout};

use super::super::thread_cache::{ThreadCache, with_thread_cache};
use super::activity::{Activity, OpenRequest};
use super::request::{DNS_MESSAGE, MAX_QUERY_BYTES, QuerySource, Refusal, query_source};
use crate::dns::message::freshness::freshness;
use crate::dns::message::header::{is_query, server_failure};
use crate::dns::net::{Protocol, unmapped};

/// The size of a body in bytes up to which it needs no quota.
const SMALL_BODY_BYTES: usize = 4096;

const BUSY: Refusal =
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "Too many queries wait to be answered; try again.");

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
        Ok(message) if is_query(&message) => answer_query(activity, open, message).await,
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

async fn answer_query(
    activity: &Activity,
    open: &mut OpenRequest,
    message: Vec<u8>,
) -> Result<Vec<u8>, Refusal> {
    let key = match answer_known(activity, &message) {
        Ok(answer) => return Ok(answer),
        Err(key) => key,
    };
    let failure = server_failure(&message);
    let mut answering = pin!(activity.handler.answer(
        message,
        activity.client,
        activity.local,
        Protocol::Https,
        key.is_some()
    ));
    // Regardless of tokio's budget for this task, as by TCP.
    let answer = match futures::poll!(unconstrained(&mut answering)) {
        Poll::Ready(answer) => answer,
        Poll::Pending if open.may_ask() => answering.await,
        Poll::Pending => return failure.ok_or(BUSY),
    };
    let none = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "The query gets no answer.");
    let answer = answer.ok_or(none)?;
    if let (Some(key), Some(wire_response)) = (key, answer.wire_response) {
        let client = unmapped(activity.client).ip();
        with_thread_cache(|cache| cache.response_cache.insert(key, client, *wire_response, Instant::now()));
    }
    Ok(answer.bytes)
}

/// Returns the answer from the response cache of this thread, or else the key under which the answer should be kept.
fn answer_known(activity: &Activity, message: &[u8]) -> Result<Vec<u8>, Option<Box<[u8]>>> {
    let client = unmapped(activity.client).ip();
    let Activity { handler, client: address, local, .. } = activity;
    let of = handler.number(&handler.server.load(), message, *address, *local, Protocol::Https);
    let now = Instant::now();
    with_thread_cache(|ThreadCache { response_cache, out }| {
        let answered = response_cache.answer(message, client, of, now, out);
        let length = answered.map_err(|_| response_cache.key_to_keep().map(Box::from))?;
        response_cache.set_hit_duration(now.elapsed());
        Ok(out[..length].to_vec())
    })
}
