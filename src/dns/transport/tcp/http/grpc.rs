//! Answers one call of DNS over gRPC, CoreDNS's `DnsService`.

use std::io;
use std::sync::Arc;

use futures::stream;
use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::answer::{Body, Problem, answer_query, media_type, read_body};
use crate::dns::message::grpc::{
    GrpcError, MAX_BODY_BYTES, MEDIA_TYPE, PATH, STATUS, STATUS_MESSAGE, decode, encode,
};
use crate::dns::transport::connections::activity::query::NoAnswer;
use crate::dns::transport::connections::activity::{Activity, OpenRequest};

/// The header field with the compressions of messages that a server knows.
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";

/// The statuses of gRPC that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// Why a call has no answer.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    code: Code,
    sentence: String,
    /// 200, if the request is one of gRPC.
    http: StatusCode,
}

impl Failure {
    fn new(code: Code, sentence: &str) -> Self {
        Self { code, sentence: sentence.to_owned(), http: StatusCode::OK }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = status(self.code);
        if let Ok(sentence) = HeaderValue::from_str(&self.sentence) {
            headers.insert(STATUS_MESSAGE, sentence);
        }
        if self.code == Code::Unimplemented {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if self.http == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        headers
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let code = match problem {
            Problem::NoQuery => Code::InvalidArgument,
            Problem::Late => Code::DeadlineExceeded,
            Problem::TooLarge => Code::ResourceExhausted,
            Problem::Unanswered(NoAnswer::Dropped) => Code::Internal,
            Problem::Ending | Problem::Unanswered(NoAnswer::Busy) => Code::Unavailable,
        };
        Self::new(code, problem.sentence())
    }
}

impl From<GrpcError> for Failure {
    fn from(error: GrpcError) -> Self {
        let code = match error {
            GrpcError::Compressed | GrpcError::Several => Code::Unimplemented,
            GrpcError::TooLarge => Code::ResourceExhausted,
            GrpcError::Incomplete | GrpcError::Malformed => Code::Internal,
        };
        Self::new(code, &error.to_string())
    }
}

/// Answers a call.
///
/// # Errors
/// If the connection or the stream breaks, or too many bytes of the connection's answers are unread.
pub(super) async fn respond(
    activity: Arc<Activity>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    // The headers take no memory while the query waits.
    let body = body(request);
    let answered = match activity.begin() {
        Some(mut open) => answer(&activity, &mut open, body).await?,
        None => Err(Problem::Ending.into()),
    };
    let mut response = Response::new(Either::Left(Full::default()));
    match answered {
        Ok(message) => {
            let message = Frame::data(activity.hold(encode(&message))?);
            // Without a length in the headers: some clients would read no further than that.
            let frames = [Ok(message), Ok(Frame::trailers(status(Code::Ok)))];
            *response.body_mut() = Either::Right(StreamBody::new(stream::iter(frames)));
        }
        // Without a message, the trailers are the headers.
        Err(failure) => {
            *response.status_mut() = failure.http;
            *response.headers_mut() = failure.headers();
        }
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    Ok(response)
}

fn status(code: Code) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(STATUS, HeaderValue::from(code as u16));
    headers
}

/// Returns the body of a call of `Query`.
fn body<B>(request: Request<B>) -> Result<B, Failure> {
    let media_type = media_type(request.headers());
    let of_grpc = |prefix: &str| prefix.eq_ignore_ascii_case(MEDIA_TYPE);
    if !of_grpc(media_type.strip_suffix("+proto").unwrap_or(media_type)) {
        let failure = Failure::new(Code::InvalidArgument, "The content type of a call is application/grpc.");
        return Err(Failure { http: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..failure });
    }
    if request.method() != Method::POST {
        let failure = Failure::new(Code::Internal, "Calls are made by POST.");
        return Err(Failure { http: StatusCode::METHOD_NOT_ALLOWED, ..failure });
    }
    if request.uri().path() != PATH {
        return Err(Failure::new(Code::Unimplemented, "The only method is /coredns.dns.DnsService/Query."));
    }
    Ok(request.into_body())
}

/// Returns the DNS message of the answer.
async fn answer(
    activity: &Activity,
    open: &mut OpenRequest,
    body: Result<Incoming, Failure>,
) -> io::Result<Result<Vec<u8>, Failure>> {
    let message = match body {
        Ok(body) => read_body(activity, open, body, MAX_BODY_BYTES).await?.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    let message = message.and_then(|body| Ok(decode(&body)?.to_vec()));
    Ok(match message {
        Ok(message) => answer_query(activity, open, message).await.map_err(Failure::from),
        Err(failure) => Err(failure),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_needs_the_path_the_method_and_the_content_type() {
        for (method, path, media_type, expected) in [
            ("POST", PATH, MEDIA_TYPE, None),
            ("POST", PATH, "application/grpc+proto", None),
            ("POST", PATH, "Application/gRPC; charset=x", None),
            ("POST", PATH, "application/grpc+json", Some((415, Code::InvalidArgument))),
            ("POST", PATH, "application/dns-message", Some((415, Code::InvalidArgument))),
            ("POST", "/", "", Some((415, Code::InvalidArgument))),
            ("GET", PATH, MEDIA_TYPE, Some((405, Code::Internal))),
            ("POST", "/coredns.dns.DnsService/Watch", MEDIA_TYPE, Some((200, Code::Unimplemented))),
            ("POST", "/dns-query", MEDIA_TYPE, Some((200, Code::Unimplemented))),
        ] {
            let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media_type);
            let failure = body(request.body(()).unwrap()).err();
            let found = failure.map(|failure| (failure.http.as_u16(), failure.code));
            assert_eq!(found, expected, "{method} {path} {media_type}");
        }
    }
}
