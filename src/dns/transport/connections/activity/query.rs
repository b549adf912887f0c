//! Answers the query of a request.

use std::pin::pin;
use std::task::Poll;

use tokio::task::coop::unconstrained;
use tokio::time::Instant;

use super::{Activity, OpenRequest};
use crate::dns::message::encode::MessageSequence;
use crate::dns::net::unmapped;
use crate::dns::transport::connections::thread_cache::{ThreadCache, with_thread_cache};

pub(in crate::dns::transport) struct Answer {
    pub bytes: Vec<u8>,
    /// The further messages of a zone transfer.
    pub following: Option<Box<MessageSequence>>,
}

/// Why a query gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dns::transport) enum NoAnswer {
    /// Too many queries wait.
    Busy,
    /// The handler decided so.
    Dropped,
}

impl Answer {
    fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, following: None }
    }
}

/// Returns the answer to a query, or why there is none.
pub(in crate::dns::transport) async fn answer(
    activity: &Activity,
    open: &mut OpenRequest,
    message: Vec<u8>,
) -> Result<Answer, NoAnswer> {
    let key = match known_answer(activity, &message) {
        Ok(bytes) => return Ok(Answer::of(bytes)),
        Err(key) => key,
    };
    let mut answering = pin!(activity.handler.answer(
        message,
        activity.client,
        activity.local,
        activity.protocol,
        key.is_some()
    ));
    // Regardless of tokio's budget for this task, as by TCP.
    let answered = match futures::poll!(unconstrained(&mut answering)) {
        Poll::Ready(answered) => answered,
        Poll::Pending if open.may_ask() => answering.await,
        Poll::Pending => return Err(NoAnswer::Busy),
    };
    let answered = answered.ok_or(NoAnswer::Dropped)?;
    if let (Some(key), Some(wire_response)) = (key, answered.wire_response) {
        let client = unmapped(activity.client).ip();
        with_thread_cache(|cache| cache.response_cache.insert(key, client, *wire_response, Instant::now()));
    }
    Ok(Answer { bytes: answered.bytes, following: answered.following })
}

/// Returns the answer from the response cache of this thread, or else the key under which the answer should be kept.
fn known_answer(activity: &Activity, message: &[u8]) -> Result<Vec<u8>, Option<Box<[u8]>>> {
    let client = unmapped(activity.client).ip();
    let handler = &activity.handler;
    let of =
        handler.number(&handler.server.load(), message, activity.client, activity.local, activity.protocol);
    let now = Instant::now();
    with_thread_cache(|ThreadCache { response_cache, out }| {
        let answered = response_cache.answer(message, client, of, now, out);
        let length = answered.map_err(|_| response_cache.key_to_keep().map(Box::from))?;
        response_cache.set_hit_duration(now.elapsed());
        Ok(out[..length].to_vec())
    })
}
