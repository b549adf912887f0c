//! A connection: accepts streams, and ends it if a limit is reached.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures::stream::{self, FuturesUnordered};
use futures::{Stream, StreamExt};
use quinn::{Connecting, Connection, ConnectionError};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::admission::ClosedAtEnd;
use super::stream::{ErrorCode, count_bytes, serve_stream};
use crate::dns::transport::connections::activity::{Activity, Step};

/// Serves a connection until the client or the stop ends it, it has been idle too long, or its last allowed query is
/// answered.
pub(super) async fn serve(
    connecting: Connecting,
    activity: Arc<Activity>,
    handshake: Option<OwnedSemaphorePermit>,
    _closed: ClosedAtEnd,
    stop: CancellationToken,
) {
    let client = activity.client;
    let connected = tokio::select! {
        connected = timeout(activity.limits.read, connecting) => connected,
        () = stop.cancelled() => return,
    };
    drop(handshake);
    let connection = match connected {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return debug!("QUIC: connection of {client}: {error}"),
        Err(_) => return debug!("QUIC: connection of {client}: the handshake takes too long"),
    };
    match drive(&connection, &activity, &stop).await {
        Ok(code) => {
            if code != ErrorCode::NoError {
                code.count(&activity.handler);
            }
            connection.close(code.into(), &[]);
        }
        // As of a client that closes the connection.
        Err(error) => {
            // quinn keeps them for some time.
            count_bytes(&connection, &activity);
            debug!("QUIC: connection of {client}: {error}");
        }
    }
}

/// Runs a connection to its end, and returns the error code for the client.
///
/// # Errors
/// If the connection has already ended.
async fn drive(
    connection: &Connection,
    activity: &Arc<Activity>,
    stop: &CancellationToken,
) -> Result<ErrorCode, ConnectionError> {
    let mut accepting = pin!(stream::unfold(connection, |connection| async move {
        // Other connections of this thread are served in between.
        consume_budget().await;
        Some((connection.accept_bi().await, connection))
    }));
    let mut queries = FuturesUnordered::new();
    let mut stopped = pin!(stop.cancelled());
    let mut timer = pin!(sleep_until(Instant::now() + activity.limits.idle));
    std::future::poll_fn(|context| {
        loop {
            while let Poll::Ready(Some(accepted)) = accepting.as_mut().poll_next(context) {
                match accepted {
                    Ok(halves) => queries.push(serve_stream(connection, halves, activity, stop)),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            while let Poll::Ready(Some(served)) = queries.poll_next_unpin(context) {
                if let Err(code) = served {
                    return Poll::Ready(Ok(code));
                }
            }
            match activity.next_step(stopped.as_mut().poll(context).is_ready()) {
                // RFC 9250 has no message about the end of a connection that goes on for its pending queries.
                Step::Close => {}
                Step::End => return Poll::Ready(Ok(ErrorCode::NoError)),
                Step::Fail(error) => {
                    debug!("QUIC: connection of {}: {error}", activity.client);
                    return Poll::Ready(Ok(ErrorCode::ExcessiveLoad));
                }
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
