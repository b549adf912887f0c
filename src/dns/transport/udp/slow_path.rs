//! The slow path of a socket: the full handler answers the queries that the socket's thread can't answer from the
//! response cache.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::task::Poll;

use futures::future::Either;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::task::yield_now;

use super::answer_socket::AnswerSocket;
use super::batch::{BATCH_SIZE, OutgoingDatagram, send_all};
use super::pending::{CacheInsert, Peer, PendingQuery, QueryProgress};
use super::queues::QueueReceivers;
use crate::dns::chain::handler::Handler;
use crate::dns::net::{Protocol, unmapped};
use crate::dns::transport::client_quota::ClientQuota;
use crate::dns::transport::metrics::DropReason;

/// The maximum number of queries to read from a queue at a time, and the number of finished queries after which the
/// task yields.
const MAX_REPLIES_PER_TURN: usize = BATCH_SIZE;
/// The maximum number of queries about other names to read after queries about links.
const OTHERS_PER_TURN: usize = MAX_REPLIES_PER_TURN / 8;

pub(super) struct SlowPath {
    pub(super) socket: Arc<AnswerSocket>,
    pub(super) handler: Arc<Handler>,
    pub(super) quota: Arc<ClientQuota>,
    /// To the thread of the socket.
    pub(super) insert_sender: SyncSender<CacheInsert>,
}

impl SlowPath {
    /// Answers queries until the senders are gone, queries about links first. Queries that wait for an upstream have no
    /// tasks of their own: one wake-up handles the many answers that an upstream sends together.
    pub(super) async fn serve(self, mut queues: QueueReceivers) {
        let mut under_way = FuturesUnordered::new();
        let buffer = || Vec::with_capacity(MAX_REPLIES_PER_TURN);
        let (mut about_links, mut about_others) = (buffer(), buffer());
        let mut answers = Vec::with_capacity(MAX_REPLIES_PER_TURN);
        let (mut links_open, mut others_open, mut done) = (true, true, 0);
        while links_open || others_open || !under_way.is_empty() {
            tokio::select! {
                biased;
                Some(answer) = under_way.next() => {
                    answers.extend(answer);
                    done += 1;
                }
                number = queues.links.recv_many(&mut about_links, MAX_REPLIES_PER_TURN), if links_open => {
                    links_open = number > 0;
                    under_way.extend(about_links.drain(..).map(|question| self.answer(question)));
                    // Other names get turns even if the queue of links never becomes empty.
                    let others = std::iter::from_fn(|| queues.other.try_recv().ok()).take(OTHERS_PER_TURN);
                    under_way.extend(others.map(|question| self.answer(question)));
                }
                number = queues.other.recv_many(&mut about_others, MAX_REPLIES_PER_TURN), if others_open => {
                    others_open = number > 0;
                    under_way.extend(about_others.drain(..).map(|question| self.answer(question)));
                }
            }
            // Answers that are ready by now are sent together. This doesn't wait.
            while done < MAX_REPLIES_PER_TURN
                && let Some(Some(answer)) = under_way.next().now_or_never()
            {
                answers.extend(answer);
                done += 1;
            }
            send_all(&self.socket, &mut answers);
            answers.clear();
            if done >= MAX_REPLIES_PER_TURN {
                done = 0;
                yield_now().await;
            }
        }
    }

    /// Answers a query, after waiting for an upstream if necessary; `None` if the client gets no reply.
    async fn answer(&self, question: PendingQuery) -> Option<OutgoingDatagram> {
        let PendingQuery { progress, peer, key, guard, queue_share } = question;
        drop(queue_share);
        let Peer { address, local: asked, .. } = peer;
        let client = unmapped(address).ip();
        let mut answering = pin!(match progress {
            QueryProgress::Message(message) => {
                Either::Left(self.handler.answer(message, address, asked, Protocol::Udp))
            }
            QueryProgress::UnderWay(answering) => Either::Right(answering),
        });
        let mut share = None;
        let answer = poll_fn(|context| match answering.as_mut().poll(context) {
            Poll::Pending if share.is_none() => {
                // Only a query that waits for an upstream needs quota.
                share = self.quota.acquire(client, 1);
                if share.is_some() {
                    return Poll::Pending;
                }
                self.socket.count_dropped(DropReason::Busy, 1);
                Poll::Ready(None)
            }
            answer => answer,
        });
        let answer = answer.await?;
        if let (Some(key), Some(wire_response)) = (key, answer.wire_response) {
            // If the queue is full, the answer is cached another time.
            let _ = self.insert_sender.try_send(CacheInsert { key, client, wire_response });
        }
        drop(guard);
        Some(OutgoingDatagram { peer, bytes: answer.bytes })
    }
}
