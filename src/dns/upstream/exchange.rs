//! An exchange: one query to one upstream, by UDP, TCP, TLS or HTTPS.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures::future::select_ok;
use hickory_proto::op::ResponseCode;
use smallvec::SmallVec;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tracing::debug;

use super::error::{ExchangeError, ExchangeProgress, Operation};
use super::health::Upstream;
use super::socket_budget::{SocketPermit, SocketQuota};
use super::sockets::stream::{MISMATCH, POOLED_STREAM_TIMEOUT, Stream};
use super::sockets::{SentQuery, UpstreamSocket};
use crate::dns::chain::query_limiter::{Exchange, QueryLimiter};
use crate::dns::message::query::QueryKey;
use crate::dns::message::upstream_reply::UpstreamReply;
use crate::dns::message::validity::Section;
use crate::dns::message::wire::WireMessage;
use crate::dns::net::late_timer::LateTimer;
use crate::dns::net::shared_runtime::on_shared_runtime;
use crate::dns::transport::tls::ALPN_HTTP2;
use crate::dns::upstream::endpoint::{TlsClient, Transport};
use crate::dns::upstream::http::HttpClient;
use crate::model::tls_error;

/// The pause before the first retransmission of a datagram; it doubles with each retransmission.
const UDP_RETRANSMIT: Duration = Duration::from_millis(500);
/// The timeout of the query by TCP after a truncated answer: a resolver that forwards to lb-linker waits for 2 s.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);
const NO_HTTP2: &str = "tls: it doesn't offer HTTP/2 (ALPN h2)";

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeTimes {
    pub(crate) begun: Instant,
    pub(crate) deadline: Instant,
}

/// A query to an upstream.
pub(crate) struct Attempt<'a> {
    pub(crate) upstream: &'a Arc<Upstream>,
    pub(crate) question: &'a QueryKey,
    pub(crate) by_tcp: bool,
    pub(crate) times: ExchangeTimes,
    pub(crate) progress: &'a ExchangeProgress,
    pub(crate) quota: &'a SocketQuota,
    pub(crate) limiter: &'a QueryLimiter,
}

/// Tells the observer of a look-up about an attempt when it is dropped: the attempt has ended, or is given up.
pub(crate) struct ExchangeRecord<'a> {
    observer: &'a (dyn Fn(&Exchange<'_>) + Send + Sync),
    upstream: SocketAddr,
    question: &'a QueryKey,
    progress: &'a ExchangeProgress,
    begun: SystemTime,
    pub(crate) answer: Option<Arc<WireMessage>>,
}

impl<'a> ExchangeRecord<'a> {
    /// Returns `None` if nothing observes the look-up.
    pub(crate) fn of(attempt: &Attempt<'a>) -> Option<Box<Self>> {
        let (question, progress) = (attempt.question, attempt.progress);
        let (observer, upstream) = (attempt.limiter.observer()?, attempt.upstream.endpoint.address);
        let begun = SystemTime::now();
        Some(Box::new(Self { observer, upstream, question, progress, begun, answer: None }))
    }
}

impl Drop for ExchangeRecord<'_> {
    fn drop(&mut self) {
        let (network, local) = self.progress.socket();
        let (begun, upstream, question) = (self.begun, self.upstream, self.question);
        let answer = self.answer.take();
        (self.observer)(&Exchange { begun, network, local, upstream, question, answer });
    }
}

/// Sends a health check query to an upstream. By every transport, any reply to the query shows that the upstream works, as
/// in CoreDNS: also one that is truncated, malformed or an error.
pub(crate) async fn ping(
    upstream: &Arc<Upstream>,
    question: &QueryKey,
    deadline: Instant,
) -> Result<(), ExchangeError> {
    let by_tcp = !matches!(upstream.endpoint.transport, Transport::Udp);
    let now = Instant::now();
    let progress = &upstream.progress(now);
    let times = ExchangeTimes { begun: now, deadline };
    let quota = &upstream.budget.check_quota();
    let limiter = &QueryLimiter::default();
    let attempt = Attempt { upstream, question, by_tcp, times, progress, quota, limiter };
    // Each check opens a new socket, because an open one may be the problem. This isn't counted as a miss of the pool.
    let (reply, network, local) = if by_tcp {
        let query = attempt.send_by_new_connection(&question.encode(false), quota.take(), true).await?;
        let (reply, local) = attempt.reply_by_connection(query).await?;
        (reply, "tcp", local)
    } else {
        (attempt.by_udp(false, true, now).await?, "udp", None)
    };
    match reply {
        UpstreamReply::Mismatch => Err(attempt.refused(network, local, MISMATCH)),
        UpstreamReply::Answer(_) | UpstreamReply::Truncated(_) | UpstreamReply::Malformed(_) => Ok(()),
    }
}

impl Upstream {
    pub(crate) fn progress(&self, now: Instant) -> ExchangeProgress {
        ExchangeProgress::new(self.dialing("udp"), now)
    }

    fn dialing(&self, network: &'static str) -> Operation {
        Operation::dial(network, self.endpoint.address)
    }

    /// Returns the local address to bind a socket to.
    fn bind_address(&self) -> SocketAddr {
        let any: IpAddr = match self.endpoint.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(self.source.unwrap_or(any), 0)
    }

    fn count_socket(&self, was_open: bool, by_stream: bool) {
        let protocol = match self.endpoint.transport {
            Transport::Tls(_) => "tcp-tls",
            // The plugin grpc has no such metrics.
            Transport::Http(_) => "https",
            Transport::Udp if !by_stream => "udp",
            Transport::Udp | Transport::Tcp => "tcp",
        };
        self.metrics.iter().for_each(|metrics| metrics.record_socket(protocol, was_open));
    }

    fn open_udp(&self, permit: SocketPermit) -> io::Result<Arc<UpstreamSocket>> {
        let from = self.source.map(|_| self.bind_address());
        UpstreamSocket::open_udp(from, self.endpoint.address, permit, self.metrics.clone())
    }

    async fn connect(&self) -> io::Result<Stream> {
        let socket = match self.endpoint.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if self.source.is_some() {
            socket.bind(self.bind_address())?;
        }
        let stream = socket.connect(self.endpoint.address).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.endpoint.transport {
            Transport::Udp | Transport::Tcp | Transport::Http(HttpClient { tls: None, .. }) => {
                Either::Left(stream)
            }
            Transport::Tls(client) => Either::Right(self.handshake(client, stream).await?),
            Transport::Http(HttpClient { tls: Some(client), .. }) => {
                let tls = self.handshake(client, stream).await?;
                if tls.get_ref().1.alpn_protocol() != Some(ALPN_HTTP2) {
                    return Err(io::Error::other(NO_HTTP2));
                }
                Either::Right(tls)
            }
        })
    }

    async fn handshake(
        &self,
        client: &TlsClient,
        stream: TcpStream,
    ) -> io::Result<Box<TlsStream<TcpStream>>> {
        let tls = client.connector.connect(client.name_at(self.endpoint.address), stream).await;
        tls.map(Box::new).map_err(|error| match (error.raw_os_error(), tls_error::explain(&error)) {
            (Some(_), _) => error,
            (None, Some(why)) => io::Error::other(format!("tls: {why}")),
            (None, None) => io::Error::other(format!("tls: {error}")),
        })
    }
}

impl Attempt<'_> {
    /// Sends the query, repeatedly if necessary and within the rate of the look-up, and waits for the reply until the
    /// deadline. Also returns the time at which the exchange ended. Starts a health check of an upstream that fails.
    pub(crate) async fn exchange(&self) -> (Instant, Result<Arc<WireMessage>, ExchangeError>) {
        let (upstream, begun) = (self.upstream, self.times.begun);
        let answer = self.ask().await;
        let ended = Instant::now();
        match &answer {
            Ok(answer) => upstream.metrics.iter().for_each(|metrics| {
                metrics.record_answer(answer.metadata.response_code, ended - begun);
            }),
            Err(error) => {
                debug!("upstream {}: {error}", upstream.endpoint);
                // A lack of sockets isn't a failure of the upstream.
                if !error.is_shortage() {
                    upstream.start_health_checks();
                }
            }
        }
        (ended, answer)
    }

    async fn ask(&self) -> Result<Arc<WireMessage>, ExchangeError> {
        let answer = self.ask_once(true, self.times.begun).await?;
        let rcode = answer.metadata.response_code;
        // RFC 6891 section 6.2.2: a server without support for EDNS gets the query again without EDNS.
        // hickory-proto reads 16, BADVERS, as BADSIG, which has the same number.
        if matches!(rcode, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADSIG) {
            drop(answer);
            return Box::pin(self.ask_once(false, Instant::now())).await;
        }
        Ok(answer)
    }

    async fn ask_once(&self, edns: bool, now: Instant) -> Result<Arc<WireMessage>, ExchangeError> {
        // Boxed only when needed: the future of a stream is large and seldom used. A connection outlives the thread that
        // has opened it.
        let by_stream = || on_shared_runtime(Box::pin(self.by_stream(edns)));
        if self.by_tcp || !matches!(self.upstream.endpoint.transport, Transport::Udp) {
            return by_stream().await;
        }
        let now = self.wait_to_send("udp", now).await?;
        match self.by_udp(edns, false, now).await? {
            UpstreamReply::Truncated(cut) => {
                // Not longer than a reply may take: the attempt would count as failed, and the truncated answer be lost.
                let whole = timeout(STREAM_TIMEOUT.min(self.upstream.reply_timeout), by_stream()).await;
                Ok(self.best_of(cut, whole.unwrap_or_else(|_| Err(self.late()))))
            }
            reply => self.accepted("udp", (reply, None)),
        }
    }

    /// Returns the answer by TCP, unless it is an error, or it is truncated and the answer by UDP has records.
    fn best_of(
        &self,
        cut: Arc<WireMessage>,
        by_tcp: Result<Arc<WireMessage>, ExchangeError>,
    ) -> Arc<WireMessage> {
        let by_tcp = match by_tcp {
            Ok(by_tcp) => by_tcp,
            Err(error) => {
                debug!("upstream {}: the answer is truncated, and by TCP: {error}", self.upstream.endpoint);
                return cut;
            }
        };
        let is_better = !by_tcp.metadata.truncation || cut.count(Section::Answer) == 0;
        if is_better && is_about_the_name(by_tcp.metadata.response_code) { by_tcp } else { cut }
    }

    /// Waits until the look-up may send another query to the upstream. Returns the time.
    async fn wait_to_send(&self, network: &'static str, now: Instant) -> Result<Instant, ExchangeError> {
        let to = self.upstream.endpoint.address;
        if self.limiter.take(to, now).is_ok() {
            return Ok(now);
        }
        self.progress.begin(self.upstream.dialing(network), now);
        // Boxed, because it is seldom needed.
        let waited = Box::pin(timeout_at(self.times.deadline, self.limiter.wait(to))).await;
        waited.map(|()| Instant::now()).map_err(|_| self.late())
    }

    /// Returns the error of an attempt that has no time left for its current operation.
    fn late(&self) -> ExchangeError {
        self.progress.due(Duration::ZERO).0.late()
    }

    fn reading(&self, network: &'static str, local: Option<SocketAddr>) -> Operation {
        Operation::read(network, local, self.upstream.endpoint.address)
    }

    fn refused(
        &self,
        network: &'static str,
        local: Option<SocketAddr>,
        why: impl Into<String>,
    ) -> ExchangeError {
        self.reading(network, local).failed(io::Error::other(why.into()))
    }

    /// Sends the query by UDP, from a socket of its own or from one that has room, and repeats it until an answer comes. If
    /// there is another socket, a repetition has another port and another id: several servers may share an address, and
    /// the network maps each port to one of them, which may be dead. After `reply_timeout` the query isn't repeated any
    /// more, but an answer is accepted until the deadline. The caller has waited until the first datagram may be sent.
    async fn by_udp(
        &self,
        edns: bool,
        is_alone: bool,
        mut now: Instant,
    ) -> Result<UpstreamReply, ExchangeError> {
        let given_up = now + self.upstream.reply_timeout;
        let mut tries = UdpTries::default();
        let mut pause = UDP_RETRANSMIT;
        let mut may_send = true;
        loop {
            if may_send {
                let sent = self.send(edns, is_alone, &mut tries, now);
                sent.map_err(|error| self.upstream.dialing("udp").failed(error))?;
            }
            self.progress.begin_unless_current(self.reading("udp", tries.local), now);
            let next = now + pause;
            let repeat = if next < given_up { next.min(self.times.deadline) } else { self.times.deadline };
            let mut timer = LateTimer::new(now, repeat);
            while let Some(Some((reply, was_open))) = timer.limit(tries.next()).await {
                // If a socket fails, other sockets may still receive an answer. If a socket that was open fails, the query
                // is sent again from another socket.
                if reply.is_ok() || tries.is_empty() && !was_open {
                    return reply.map_err(|error| self.reading("udp", tries.local).failed(error));
                }
            }
            tries.retire_silent();
            now = Instant::now();
            if now >= self.times.deadline {
                return Err(self.reading("udp", tries.local).late());
            }
            // The query that is sent at once after a socket has failed isn't a retransmission.
            if tries.is_empty() {
                now = self.wait_to_send("udp", now).await?;
                may_send = true;
            } else {
                pause *= 2;
                may_send = self.limiter.take(self.upstream.endpoint.address, now).is_ok();
            }
        }
    }

    /// Sends the query from a socket of its own (`is_alone`), or from one that has room. A repetition has a socket that was
    /// opened later than the last one, because the other open sockets may be mapped to the same dead server.
    ///
    /// # Errors
    /// If there is no socket, and no query of this attempt is under way.
    fn send(&self, edns: bool, is_alone: bool, tries: &mut UdpTries, now: Instant) -> io::Result<()> {
        let (upstream, is_first) = (self.upstream, tries.is_empty());
        let count = |was_open| {
            if is_first && !is_alone {
                upstream.count_socket(was_open, false);
            }
        };
        if let Some(socket) = upstream.sockets.find(now, tries.last_sent).filter(|_| !is_alone) {
            count(true);
            tries.push(socket.ask(self.question.encode(edns), now), true);
            return Ok(());
        }
        let permit = if is_first { self.quota.take() } else { self.quota.take_spare() };
        match permit.and_then(|permit| upstream.open_udp(permit)) {
            Ok(socket) => {
                count(false);
                tries.push(socket.ask(self.question.encode(edns), now), false);
                if is_alone { socket.retire() } else { upstream.sockets.add(&socket) }
            }
            Err(error) if is_first => {
                let crowded = upstream.sockets.find_crowded(now).filter(|_| !is_alone).ok_or(error)?;
                count(true);
                tries.push(crowded.ask(self.question.encode(edns), now), true);
            }
            // Without a spare socket the query is sent again from a socket that waits, because it may be lost.
            Err(_) => tries.send_again(),
        }
        Ok(())
    }

    /// Sends the query over an open connection if there is one, else over a new one. If the open connection fails, the query
    /// is sent once more over another one; if it is silent for [`POOLED_STREAM_TIMEOUT`], also over another one, and the
    /// first answer counts.
    async fn by_stream(&self, edns: bool) -> Result<Arc<WireMessage>, ExchangeError> {
        let bytes = &self.question.encode(edns);
        let connections = &self.upstream.connections;
        let begun = self.wait_to_send("tcp", Instant::now()).await?;
        let (mut asked, mut opening) = (self.ask_open(bytes, begun, None, SocketQuota::take)?, None);
        if asked.is_none() {
            self.progress.begin(self.upstream.dialing("tcp"), begun);
            (asked, opening) = self.ask_opened(bytes, None, SocketQuota::take).await?;
        }
        let Some((query, is_shared)) = asked else {
            return self.answer_by_new_connection(bytes, self.quota.take(), opening).await;
        };
        drop(opening);
        self.upstream.count_socket(true, true);
        let (socket, sent) = (Arc::clone(&query.socket), query.sent);
        let mut old = Box::pin(async { self.accepted("tcp", self.reply_by_connection(query).await?) });
        match timeout(POOLED_STREAM_TIMEOUT, &mut old).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is_timeout() || error.is_http_refusal() => Err(error),
            Ok(Err(_)) => {
                drop(old);
                socket.retire();
                // The other end may have closed the idle connections, too. A shared connection may have been given up
                // meanwhile.
                if !is_shared {
                    connections.close_idle_since(begun);
                }
                self.answer_by_another_connection(bytes, sent, SocketQuota::take).await
            }
            // Either the other end is gone, or the answer is slow. If the old connection then answers first, the idle
            // connections stay open.
            Err(_) => {
                if connections.doubt(&socket, sent, is_shared) {
                    return old.await;
                }
                let new = Box::pin(async {
                    let outcome =
                        self.answer_by_another_connection(bytes, sent, SocketQuota::take_spare).await;
                    // A query that shares a connection may have waited for another query.
                    if outcome.is_ok() && !is_shared {
                        connections.close_idle_since(begun);
                    }
                    outcome
                });
                select_ok([Either::Left(old), Either::Right(new)]).await.map(|(answer, _)| answer)
            }
        }
    }

    /// Sends the query over an open connection, see [`Connections::ask`](super::sockets::stream::Connections::ask).
    fn ask_open(
        &self,
        bytes: &[u8],
        now: Instant,
        since: Option<Instant>,
        take: fn(&SocketQuota) -> io::Result<SocketPermit>,
    ) -> Result<Option<(SentQuery, bool)>, ExchangeError> {
        let asked = self.upstream.connections.ask(bytes, || take(self.quota), now, since);
        asked.map_err(|error| self.upstream.dialing("tcp").failed(error))
    }

    /// By HTTP/2 sends the query over the connection that another query opens, unless that takes too long. Without one,
    /// returns the permit to hold while this query opens one.
    ///
    /// # Errors
    /// Also if the attempt is late by then: it may end at any time, too early for a handshake, and many attempts that are
    /// late could open connections in turn, none of which would become usable.
    async fn ask_opened(
        &self,
        bytes: &[u8],
        since: Option<Instant>,
        take: fn(&SocketQuota) -> io::Result<SocketPermit>,
    ) -> Result<(Option<(SentQuery, bool)>, Option<SemaphorePermit<'_>>), ExchangeError> {
        let waiting = timeout_at(self.times.deadline, self.upstream.connections.wait_to_open());
        let opening = waiting.await.map_err(|_| self.upstream.dialing("tcp").late())?;
        if opening.is_none() {
            return Ok((None, None));
        }
        let now = Instant::now();
        let asked = self.ask_open(bytes, now, since, take)?;
        let (step, late_at) = self.progress.due(self.upstream.reply_timeout);
        if asked.is_none() && late_at <= now {
            return Err(step.late());
        }
        Ok((asked, opening))
    }

    /// Sends the query once more after its connection has failed, or was silent since `sent`: over a new one, or by HTTP/2
    /// over one that another query has opened since then.
    async fn answer_by_another_connection(
        &self,
        bytes: &[u8],
        sent: Instant,
        take: fn(&SocketQuota) -> io::Result<SocketPermit>,
    ) -> Result<Arc<WireMessage>, ExchangeError> {
        self.wait_to_send("tcp", Instant::now()).await?;
        let (asked, opening) = self.ask_opened(bytes, Some(sent), take).await?;
        let Some((query, _)) = asked else {
            return self.answer_by_new_connection(bytes, take(self.quota), opening).await;
        };
        drop(opening);
        self.accepted("tcp", self.reply_by_connection(query).await?)
    }

    async fn answer_by_new_connection(
        &self,
        bytes: &[u8],
        permit: io::Result<SocketPermit>,
        opening: Option<SemaphorePermit<'_>>,
    ) -> Result<Arc<WireMessage>, ExchangeError> {
        let permit = permit.inspect(|_| self.upstream.count_socket(false, true));
        let query = self.send_by_new_connection(bytes, permit, false).await?;
        drop(opening);
        self.accepted("tcp", self.reply_by_connection(query).await?)
    }

    /// Sends the query over a new connection, with `is_alone` over one of its own.
    async fn send_by_new_connection(
        &self,
        bytes: &[u8],
        permit: io::Result<SocketPermit>,
        is_alone: bool,
    ) -> Result<SentQuery, ExchangeError> {
        let dialing = self.upstream.dialing("tcp");
        let permit = permit.map_err(|error| dialing.failed(error))?;
        self.progress.begin(dialing, Instant::now());
        let stream = match timeout_at(self.times.deadline, self.upstream.connect()).await {
            Ok(stream) => stream.map_err(|error| dialing.failed(error))?,
            Err(_) => return Err(dialing.late()),
        };
        Ok(self.upstream.connections.ask_over(stream, permit, bytes, is_alone))
    }

    /// Waits for the reply to a query over a connection. Returns it, and the local address of the connection.
    async fn reply_by_connection(
        &self,
        query: SentQuery,
    ) -> Result<(UpstreamReply, Option<SocketAddr>), ExchangeError> {
        let local = query.socket.local;
        let reading = self.reading("tcp", local);
        self.progress.begin(reading, Instant::now());
        match timeout_at(self.times.deadline, poll_fn(|context| query.poll_reply(context))).await {
            Ok(reply) => Ok((reply.map_err(|error| reading.failed(error))?, local)),
            Err(_) => Err(reading.late()),
        }
    }

    /// Returns the answer in a reply.
    ///
    /// # Errors
    /// If the reply isn't accepted as an answer.
    fn accepted(
        &self,
        network: &'static str,
        (reply, local): (UpstreamReply, Option<SocketAddr>),
    ) -> Result<Arc<WireMessage>, ExchangeError> {
        match reply {
            UpstreamReply::Answer(answer) | UpstreamReply::Truncated(answer) => Ok(answer),
            UpstreamReply::Malformed(error) => {
                Err(self.refused(network, local, format!("the reply isn't accepted: {error}")))
            }
            UpstreamReply::Mismatch => Err(self.refused(network, local, MISMATCH)),
        }
    }
}

/// The same query on one or more sockets.
#[derive(Default)]
struct UdpTries {
    /// The queries under way, each with whether its socket was open before.
    queries: SmallVec<[(SentQuery, bool); 1]>,
    /// The local address of the first one.
    local: Option<SocketAddr>,
    /// When the last one was sent, also if it has failed.
    last_sent: Option<Instant>,
}

impl UdpTries {
    fn push(&mut self, query: SentQuery, was_open: bool) {
        self.local = self.local.or(query.socket.local);
        self.last_sent = Some(query.sent);
        self.queries.push((query, was_open));
    }

    fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    fn send_again(&self) {
        if let Some((query, _)) = self.queries.first() {
            query.send_again();
        }
    }

    fn retire_silent(&self) {
        self.queries.iter().for_each(|(query, _)| query.retire_if_silent());
    }

    /// Waits for the first reply or error; `None` if no query is under way. Returns whether its socket was open before.
    async fn next(&mut self) -> Option<(io::Result<UpstreamReply>, bool)> {
        poll_fn(|context| {
            for (at, (query, was_open)) in self.queries.iter().enumerate() {
                if let Poll::Ready(reply) = query.poll_reply(context) {
                    let was_open = *was_open;
                    drop(self.queries.swap_remove(at));
                    return Poll::Ready(Some((reply, was_open)));
                }
            }
            if self.queries.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

/// Returns whether an rcode tells something about the name, and not about the server that answers.
pub(crate) fn is_about_the_name(rcode: ResponseCode) -> bool {
    // YXDOMAIN: a DNAME makes a name too long (RFC 6672 section 2.2).
    matches!(rcode, ResponseCode::NoError | ResponseCode::NXDomain | ResponseCode::YXDomain)
}

#[cfg(test)]
mod tests;
