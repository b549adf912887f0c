//! Answers one request of DNS over HTTPS (RFC 8484).

use std::io;
use std::sync::Arc;

use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::answer::{Body, Problem, answer_query, read_body};
use super::request::{QuerySource, Refusal, query_source};
use crate::dns::message::freshness::freshness;
use crate::dns::message::https::{MAX_MESSAGE_BYTES, MEDIA_TYPE};
use crate::dns::transport::connections::activity::{Activity, OpenRequest};

/// Answers a request.
///
/// # Errors
/// If the connection or the stream breaks, or too many bytes of the connection's answers are unread.
pub(super) async fn respond(
    activity: Arc<Activity>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let is_head = request.method() == Method::HEAD;
    // The headers, and a body that isn't needed, take no memory while the query waits.
    let source = query_source(request);
    let answered = match activity.begin() {
        Some(mut open) => answer(&activity, &mut open, source).await?,
        None => Err(Problem::Ending.into()),
    };
    let mut response = Response::new(Either::Left(Full::default()));
    let status = answered.as_ref().err().map_or(StatusCode::OK, |refusal| refusal.status);
    *response.status_mut() = status;
    let label = &activity.handler.server.load().label;
    activity.handler.server_metrics.https_responses.with_label_values(&[label, status.as_str()]).inc();
    let headers = response.headers_mut();
    let bytes = match answered {
        Ok(bytes) => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
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
        *response.body_mut() = Either::Left(Full::new(activity.hold(bytes)?));
    }
    Ok(response)
}

/// Returns how long a client's own HTTP cache may keep an answer (RFC 8484 section 5.1). A cache that clients share may
/// not: answers can depend on the client's address (RFC 9111 section 5.2.2.7).
fn cache_control(answer: &[u8]) -> HeaderValue {
    let max_age = freshness(answer).map(|seconds| format!("private, max-age={seconds}"));
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
        Ok(QuerySource::Body(body)) => read_body(activity, open, body, MAX_MESSAGE_BYTES).await?,
        Err(refusal) => return Ok(Err(refusal)),
    };
    Ok(match message {
        Ok(message) => answer_query(activity, open, message).await.map_err(Refusal::from),
        Err(problem) => Err(problem.into()),
    })
}
