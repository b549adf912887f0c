//! A connection: reads queries, and writes answers in any order (RFC 7766 sections 6.2.1.1 and 7).

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::framing::{ReadBuffer, WriteHalf};
use crate::dns::message::encode::MessageSequence;
use crate::dns::message::header::server_failure;
use crate::dns::net::{Protocol, unmapped};
use crate::dns::transport::connections::connection_limit::BufferedReply;
use crate::dns::transport::connections::limits::{TRANSFER_TIMEOUT, transfer_pause};
use crate::dns::transport::connections::thread_cache::{ThreadCache, with_thread_cache};
use crate::dns::transport::connections::{Connection, ConnectionLimits};

/// The maximum number of queries of one connection that wait for an upstream (RFC 7766 section 6.2.1.1 asks for more
/// than one). Further queries that would have to wait fail at once, so that they don't delay queries with known
/// answers.
const MAX_PIPELINED: usize = 128;
/// How long the rest of the stream is read and discarded after the last allowed query, unless the client closes the
/// connection earlier.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection is read after the stop, if the client has sent that much.
const READ_TIMEOUT_AFTER_STOP: Duration = Duration::from_secs(5);

impl Connection {
    /// Serves a connection by plain TCP until the client or `stop` ends it, it has been idle too long, or its last
    /// allowed query is answered.
    ///
    /// # Errors
    /// If the connection breaks, the client doesn't finish a query or read an answer in time, or too many bytes of its
    /// answers are unread.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let stop = self.stop.clone();
        Session::new(self, Protocol::Tcp).run(stream, stop.cancelled()).await
    }

    /// Does the same as [`Connection::serve`], with TLS (RFC 7858).
    ///
    /// # Errors
    /// The errors of [`Connection::serve`], and a failed handshake.
    pub async fn serve_tls(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        tls: TlsAcceptor,
    ) -> io::Result<()> {
        let stop = self.stop.clone();
        let Some(stream) = self.handshake(stream, tls).await? else { return Ok(()) };
        Session::new(self, Protocol::Tls).run(stream, stop.cancelled()).await
    }

    /// Returns the stream with TLS; `None` if `stop` ends the handshake.
    ///
    /// # Errors
    /// If the handshake fails, or takes too long.
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        tls: TlsAcceptor,
    ) -> io::Result<Option<TlsStream<S>>> {
        tokio::select! {
            handshake = timeout(self.limits.read, tls.accept(stream)) => Ok(Some(handshake??)),
            () = self.stop.cancelled() => Ok(None),
        }
    }
}

struct Session {
    connection: Connection,
    protocol: Protocol,
    input: ReadBuffer,
    output: WriteHalf,
    waiting: JoinSet<io::Result<Option<BufferedReply>>>,
    /// Replies whose first message was sent, and since when.
    transfers: VecDeque<(Box<MessageSequence>, Instant)>,
    /// When the next message of a transfer may be encoded.
    next_message_at: Instant,
    /// Whether further queries are read.
    open: bool,
    /// The number of queries that the client may still send.
    remaining_queries: u64,
    /// When the last query was finished. Messages that get no reply don't count.
    last_finished_at: Instant,
}

struct Unanswered {
    message: Vec<u8>,
    /// The key for the response cache, if the answer may be cached.
    key: Option<Box<[u8]>>,
}

impl Session {
    fn new(connection: Connection, protocol: Protocol) -> Self {
        let (input, output, waiting, transfers) = Default::default();
        let (remaining_queries, last_finished_at) = (connection.limits.queries, Instant::now());
        let (open, next_message_at) = (true, last_finished_at);
        Self {
            connection,
            protocol,
            input,
            output,
            waiting,
            transfers,
            next_message_at,
            open,
            remaining_queries,
            last_finished_at,
        }
    }

    async fn run(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut stop = pin!(stop);
        let mut idle_timer = pin!(sleep_until(self.last_finished_at + self.connection.limits.idle));
        // The time after which nothing more is read, once the stop has begun.
        let mut last_read_at = None;
        loop {
            self.take_queries().await?;
            self.push_following()?;
            // Queries that the kernel has already received were sent before the stop.
            if let Some(last_read_at) = last_read_at
                && self.open
                && !self.input.has_message()
            {
                // Regardless of tokio's budget for this task, which would look like the end of the data.
                let read = futures::poll!(pin!(unconstrained(self.input.fill(&mut reader))));
                self.open = matches!(&read, Poll::Ready(Ok(1..))) && Instant::now() < last_read_at;
                if let Poll::Ready(read) = read {
                    read?;
                    // Other connections of this thread are served in between.
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            // Data that the kernel accepts at once needs no timeout.
            let written = futures::poll!(pin!(self.output.write(&mut writer)));
            if let Poll::Ready(written) = written {
                written?;
                if !self.output.is_empty() || self.may_push() || self.may_take() {
                    continue;
                }
            }
            if !self.open && self.is_idle() {
                break;
            }
            let deadline = self.deadline();
            if let Some(deadline) = deadline.filter(|deadline| *deadline != idle_timer.deadline()) {
                idle_timer.as_mut().reset(deadline);
            }
            let reading = self.open && !self.input.has_message();
            let pausing = !self.transfers.is_empty() && !self.output.is_full();
            let pause_end = self.next_message_at;
            tokio::select! {
                read = self.input.fill(&mut reader), if reading => self.open = read? > 0,
                written = self.output.write(&mut writer), if !self.output.is_empty() => written?,
                Some(answered) = self.waiting.join_next() => {
                    // A query gets no answer if its processing panicked.
                    self.answered(answered.unwrap_or(Ok(None))?)?;
                }
                () = async { sleep_until(pause_end).await }, if pausing => {}
                () = &mut idle_timer, if deadline.is_some() => {
                    if !self.is_idle() || self.input.partial_since().is_some() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    break;
                }
                () = &mut stop, if last_read_at.is_none() => {
                    last_read_at = Some(Instant::now() + READ_TIMEOUT_AFTER_STOP);
                }
            }
        }
        self.shut_down(reader, writer).await
    }

    /// Ends the connection after the last answer.
    async fn shut_down(
        &mut self,
        mut reader: impl AsyncRead + Unpin,
        mut writer: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        timeout(self.connection.limits.write, writer.shutdown()).await??;
        if self.remaining_queries == 0 {
            // Unread data would make the kernel reset the connection, and drop answers that the client hasn't received
            // yet.
            let mut nowhere = tokio::io::sink();
            tokio::select! {
                _ = timeout(DRAIN_TIMEOUT, tokio::io::copy(&mut reader, &mut nowhere)) => {}
                () = self.connection.stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Processes queries as long as there are complete queries and the client reads the answers.
    async fn take_queries(&mut self) -> io::Result<()> {
        while self.may_take() {
            let Some(Unanswered { message, key }) = self.answer_known()? else { break };
            let failure = self.is_busy().then(|| server_failure(&message));
            let Connection { client, local, ref handler, .. } = self.connection;
            let (handler, protocol) = (Arc::clone(handler), self.protocol);
            let limiter = Arc::clone(self.connection.permit.limiter());
            let mut answering = Box::pin(async move {
                let Some(answer) = handler.answer(message, client, local, protocol, key.is_some()).await
                else {
                    return Ok(None);
                };
                if let (Some(key), Some(wire_response)) = (key, answer.wire_response) {
                    let client = unmapped(client).ip();
                    with_thread_cache(|cache| {
                        cache.response_cache.insert(key, client, *wire_response, Instant::now())
                    });
                }
                let following = answer.following;
                limiter.hold(client, answer.bytes).map(|reply| Some(BufferedReply { following, ..reply }))
            });
            // Answers that need no waiting are sent at once, regardless of tokio's budget for this task.
            match (futures::poll!(unconstrained(&mut answering)), failure) {
                (Poll::Ready(answer), _) => {
                    if let Some(answer) = answer? {
                        self.answered(Some(answer))?;
                    }
                }
                (Poll::Pending, None) => {
                    self.connection.permit.set_busy();
                    self.waiting.spawn(answering);
                }
                (Poll::Pending, Some(failure)) => {
                    self.connection.permit.limiter().count_busy();
                    if let Some(failure) = failure {
                        self.output.push(&failure, None);
                    }
                    self.answered(None)?;
                }
            }
        }
        Ok(())
    }

    /// Answers queries from the response cache of this thread. Returns the first query without a cached answer, if
    /// there is one.
    fn answer_known(&mut self) -> io::Result<Option<Unanswered>> {
        let client = unmapped(self.connection.client).ip();
        let (address, local) = (self.connection.client, self.connection.local);
        let server = self.connection.handler.server.load();
        let now = Instant::now();
        let (mut answered, mut unanswered) = (0, None);
        with_thread_cache(|ThreadCache { response_cache, out }| {
            while unanswered.is_none() && self.may_take() {
                let message = match self.input.first() {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(error) => {
                        // A query that is too long isn't read, so no later query is. Earlier queries get answers.
                        debug!("TCP: connection of {}: {error}", self.connection.client);
                        (self.remaining_queries, self.open) = (0, false);
                        break;
                    }
                };
                let handler = &self.connection.handler;
                let of = handler.number(&server, message, address, local, self.protocol);
                match response_cache.answer(message, client, of, now, out) {
                    Ok(length) => {
                        self.output.push(&out[..length], None);
                        answered += 1;
                    }
                    Err(_) => {
                        let key = response_cache.key_to_keep().map(Box::from);
                        unanswered = Some(Unanswered { message: message.to_vec(), key });
                    }
                }
                self.input.advance(now);
                self.remaining_queries -= 1;
                self.open &= self.remaining_queries > 0;
            }
            if answered > 0 {
                response_cache.set_hit_duration(now.elapsed() / answered);
            }
        });
        if answered > 0 {
            self.answered(None)?;
        }
        Ok(unanswered)
    }

    /// Adds the next message of a transfer, if it is time for it.
    fn push_following(&mut self) -> io::Result<()> {
        if self.connection.stop.is_cancelled() {
            // They could take minutes. The client sees that they aren't whole, and comes again.
            self.transfers.clear();
        }
        if !self.may_push() {
            return Ok(());
        }
        let Some((transfer, _)) = self.transfers.front_mut() else { return Ok(()) };
        let begin = Instant::now();
        match self.connection.handler.next_message(transfer)? {
            Some(bytes) => {
                if !bytes.is_empty() {
                    let reply = self.connection.permit.limiter().hold(self.connection.client, bytes)?;
                    self.output.push(&reply.bytes, reply.held);
                }
                let end = Instant::now();
                self.next_message_at = end + transfer_pause(end - begin);
            }
            None => {
                self.transfers.pop_front();
                self.answered(None)?;
            }
        }
        Ok(())
    }

    /// Returns whether the next message of a transfer may be added: the client has read most of what precedes it, and the
    /// pause is over.
    fn may_push(&self) -> bool {
        !self.transfers.is_empty() && !self.output.is_full() && Instant::now() >= self.next_message_at
    }

    /// Returns whether the next query may be taken: the limit of queries isn't reached, the query is complete, and
    /// there is room for its answer.
    fn may_take(&self) -> bool {
        self.remaining_queries > 0 && self.input.has_message() && !self.output.is_full()
    }

    /// Returns whether no further query may wait for an upstream.
    fn is_busy(&mut self) -> bool {
        self.waiting.len() >= MAX_PIPELINED || !self.connection.permit.reserve(self.waiting.len())
    }

    /// Processes the end of a query, and sends its answer, if that isn't sent yet.
    ///
    /// # Errors
    /// If too many bytes are unread.
    fn answered(&mut self, answer: Option<BufferedReply>) -> io::Result<()> {
        if let Some(BufferedReply { bytes, held, following }) = answer {
            if held.is_none() && self.output.is_full() {
                return Err(self.connection.permit.limiter().too_many_unread_bytes());
            }
            self.output.push(&bytes, held);
            if let Some(following) = following {
                self.connection.permit.set_busy();
                self.transfers.push_back((following, Instant::now()));
            }
        }
        if self.waiting.is_empty() && self.transfers.is_empty() {
            self.last_finished_at = Instant::now();
            self.connection.permit.set_idle();
        } else {
            self.connection.permit.reserve(self.waiting.len());
        }
        Ok(())
    }

    /// Returns the time at which the connection ends unless the client acts.
    fn deadline(&self) -> Option<Instant> {
        let ConnectionLimits { read, write, idle, .. } = self.connection.limits;
        let partial = self.input.partial_since().filter(|_| self.open);
        let rested = self.is_idle().then(|| self.last_finished_at + idle);
        // A partial query extends the idle timeout once: otherwise a client that sends partial queries without
        // ever getting an answer could stay connected forever.
        let rested = if partial.is_some() { rested.map(|end| end + read) } else { rested };
        let partial = partial.map(|since| since + read);
        let unread = self.output.since().map(|since| since + write);
        let transfer = self.transfers.front().map(|(_, since)| *since + TRANSFER_TIMEOUT);
        [rested, partial, unread, transfer].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.output.is_empty() && self.transfers.is_empty()
    }
}

#[cfg(test)]
mod tests;
