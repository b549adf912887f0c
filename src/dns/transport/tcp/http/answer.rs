//! Reads the body of a request and answers its query, for DNS over HTTPS and over gRPC.

use std::array;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::task::Poll;

use futures::stream::Iter;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::timeout;

use crate::dns::message::header::is_query;
use crate::dns::transport::connections::activity::query::{self, NoAnswer};
use crate::dns::transport::connections::activity::{Activity, OpenRequest};

/// The size of a body in bytes up to which it needs no quota.
const SMALL_BODY_BYTES: usize = 4096;

/// The body of a response; by gRPC a message and trailers.
pub(super) type Body =
    Either<Full<Bytes>, StreamBody<Iter<array::IntoIter<Result<Frame<Bytes>, Infallible>, 2>>>>;

/// Why a request gets no answer, by HTTPS and by gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The connection is about to end.
    Ending,
    /// The body is too large.
    TooLarge,
    /// The body doesn't arrive in time.
    Late,
    /// The message is no query.
    NoQuery,
    Unanswered(NoAnswer),
}

impl Problem {
    /// Returns the sentence for the client.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Ending => "The connection is about to end.",
            Self::TooLarge => "A query has 65,535 bytes at most.",
            Self::Late => "The body doesn't arrive in time.",
            Self::NoQuery => "There is no DNS query with one question.",
            Self::Unanswered(NoAnswer::Busy) => "Too many queries wait to be answered; try again.",
            Self::Unanswered(NoAnswer::Dropped) => "The query gets no answer.",
        }
    }
}

/// Returns the media type of a body, without its parameters; empty if there is none.
pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads the body of a request, which has at most `max` bytes.
///
/// # Errors
/// If the connection or the stream breaks.
pub(super) async fn read_body(
    activity: &Activity,
    open: &mut OpenRequest,
    mut body: Incoming,
    max: usize,
) -> io::Result<Result<Vec<u8>, Problem>> {
    let mut share = activity.body_share();
    let mut reading = pin!(async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > max {
                return Ok(Err(Problem::TooLarge));
            }
            if length > SMALL_BODY_BYTES && !share.resize(length) {
                return Ok(Err(Problem::Unanswered(NoAnswer::Busy)));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Ok(bytes))
    });
    if let Poll::Ready(read) = futures::poll!(&mut reading) {
        return read;
    }
    if !open.may_wait() {
        return Ok(Err(Problem::Unanswered(NoAnswer::Busy)));
    }
    timeout(activity.limits.read, reading).await.unwrap_or(Ok(Err(Problem::Late)))
}

/// Returns the answer to a DNS message.
pub(super) async fn answer_query(
    activity: &Activity,
    open: &mut OpenRequest,
    message: Vec<u8>,
) -> Result<Vec<u8>, Problem> {
    if !is_query(&message) {
        return Err(Problem::NoQuery);
    }
    let answered = query::answer(activity, open, message).await;
    answered.map(|answer| answer.bytes).map_err(Problem::Unanswered)
}
