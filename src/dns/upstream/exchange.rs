//! One question to one upstream, by UDP, TCP or TLS.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::select_ok;
use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::either::Either;
use tracing::debug;

use super::error::{ExchangeError, ExchangeProgress, Operation};
use super::few::Few;
use super::health::Upstream;
use super::socket_budget::{SocketPermit, SocketQuota};
use super::stream_pool::{Stream, StreamConnection};
use super::udp_pool::UdpUpstreamSocket;
use crate::dns::message::header::{UpstreamReply, parse_reply};
use crate::dns::message::query::QueryKey;
use crate::dns::upstream::endpoint::Transport;

/// How long an upstream may be silent before it is checked whether it lives. By then no other upstream has been
/// asked: the answer of another one would end this attempt.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(400);
/// When a datagram is first sent again; then after twice as long, and so on.
const UDP_RETRANSMIT: Duration = Duration::from_millis(500);
/// How long an answer is waited for where there is a part of it already.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection that was idle may be silent before a new one is tried: its other end may be gone.
const POOLED_STREAM_TIMEOUT: Duration = Duration::from_millis(300);

/// When a question is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Since then.
    pub(crate) begun: Instant,
    /// When an upstream that is silent still is checked, and the exchange wakes its caller: later steps need no
    /// timer until then. Nearly all queries are answered before.
    pub(crate) health_check_at: Instant,
    pub(crate) deadline: Instant,
}

/// One question on its way to one upstream.
struct Attempt<'a> {
    upstream: &'a Upstream,
    question: &'a QueryKey,
    by_tcp: bool,
    times: Deadlines,
    progress: &'a ExchangeProgress,
    quota: &'a SocketQuota,
}

/// Asks an upstream until the deadline, and returns when that has ended, too. One that fails, or is silent until it is
/// looked at, is checked.
pub(crate) async fn exchange(
    upstream: Arc<Upstream>,
    question: &QueryKey,
    by_tcp: bool,
    times: Deadlines,
    progress: Arc<ExchangeProgress>,
    quota: &SocketQuota,
) -> (Instant, Result<Message, ExchangeError>) {
    let asking = Attempt { upstream: &upstream, question, by_tcp, times, progress: &progress, quota };
    let mut asking = pin!(asking.ask());
    let answer = tokio::select! {
        biased;
        answer = &mut asking => answer,
        () = upstream.alarms.at(times.health_check_at) => {
            upstream.suspect();
            // The caller, which has set no timer so far, sees it in this same poll.
            progress.falls_silent();
            asking.await
        }
    };
    let ended = Instant::now();
    match &answer {
        Ok(Message { metadata, .. }) => upstream.metrics.iter().for_each(|metrics| {
            metrics.answered(metadata.response_code, ended - times.begun);
        }),
        Err(trouble) => {
            debug!("upstream {}: {trouble}", upstream.endpoint);
            // That we have no socket for it says nothing about it.
            if !trouble.is_shortage() {
                upstream.suspect();
            }
        }
    }
    (ended, answer)
}

/// Asks an upstream just to see whether it answers.
pub(crate) async fn ping(
    upstream: &Upstream,
    question: &QueryKey,
    deadline: Instant,
) -> Result<(), ExchangeError> {
    let by_tcp = !matches!(upstream.endpoint.transport, Transport::Udp);
    let now = Instant::now();
    let progress = &upstream.progress(now);
    // It is the check: it has timers of its own.
    let times = Deadlines { begun: now, health_check_at: deadline, deadline };
    let quota = &upstream.budget.of_checks();
    let asking = Attempt { upstream, question, by_tcp, times, progress, quota };
    let bytes = question.encode(false);
    // An open socket may be what is broken, so each check opens one. It isn't counted as a miss of the pool.
    if by_tcp {
        asking.over_new(&bytes, quota.take()).await.map(drop)
    } else {
        asking.by_udp(&bytes, quota.take(), None, now).await.map(drop)
    }
}

impl Upstream {
    /// Returns the progress of a question that is about to be sent.
    pub(crate) fn progress(&self, now: Instant) -> ExchangeProgress {
        ExchangeProgress::new(self.dialing("udp"), now)
    }

    fn dialing(&self, network: &'static str) -> Operation {
        Operation::dial(network, self.endpoint.address)
    }

    /// Returns what is bound for a socket to it.
    fn from(&self) -> SocketAddr {
        let any: IpAddr = match self.endpoint.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(self.source.unwrap_or(any), 0)
    }

    /// Counts that a socket was needed.
    fn needed(&self, was_open: bool, by_stream: bool) {
        let protocol = match self.endpoint.transport {
            Transport::Tls(_) => "tcp-tls",
            Transport::Udp if !by_stream => "udp",
            Transport::Udp | Transport::Tcp => "tcp",
        };
        self.metrics.iter().for_each(|metrics| metrics.socket(protocol, was_open));
    }

    fn open(&self, permit: SocketPermit) -> io::Result<UdpUpstreamSocket> {
        let from = self.source.map(|_| self.from());
        UdpUpstreamSocket::open(from, self.endpoint.address, permit)
    }

    async fn connect(&self) -> io::Result<Stream> {
        let socket = match self.endpoint.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if self.source.is_some() {
            socket.bind(self.from())?;
        }
        let stream = socket.connect(self.endpoint.address).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.endpoint.transport {
            Transport::Udp | Transport::Tcp => Either::Left(stream),
            Transport::Tls(client) => {
                let tls = client.connector.connect(client.name.clone(), stream).await;
                Either::Right(Box::new(tls.map_err(|error| match error.raw_os_error() {
                    Some(_) => error,
                    None => io::Error::other(format!("tls: {error}")),
                })?))
            }
        })
    }
}

impl Attempt<'_> {
    async fn ask(&self) -> Result<Message, ExchangeError> {
        let answer = self.ask_once(true, self.times.begun).await?;
        let rcode = answer.metadata.response_code;
        // RFC 6891 section 6.2.2: a server that doesn't know EDNS is asked without it.
        if matches!(rcode, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS) {
            drop(answer);
            return Box::pin(self.ask_once(false, Instant::now())).await;
        }
        Ok(answer)
    }

    /// Asks once, with EDNS or without.
    async fn ask_once(&self, edns: bool, now: Instant) -> Result<Message, ExchangeError> {
        let bytes = self.question.encode(edns);
        // Streams need much room, and seldom: it is taken only then.
        let by_stream = || Box::pin(self.by_stream(&bytes));
        if self.by_tcp || !matches!(self.upstream.endpoint.transport, Transport::Udp) {
            return by_stream().await;
        }
        let permit = self.quota.take();
        let idle = permit.is_ok().then(|| self.upstream.sockets.take(now)).flatten();
        self.upstream.needed(idle.is_some(), false);
        match self.by_udp(&bytes, permit, idle, now).await? {
            UpstreamReply::Answer(answer) => Ok(*answer),
            UpstreamReply::Truncated(cut) => {
                let whole = by_stream();
                match cut.filter(|cut| !cut.answers.is_empty()) {
                    // Better than nothing, and TC says what it is.
                    Some(cut) => match timeout(STREAM_TIMEOUT, whole).await {
                        Ok(Ok(whole)) => Ok(whole),
                        _ => Ok(*cut),
                    },
                    None => whole.await,
                }
            }
            UpstreamReply::Malformed | UpstreamReply::Mismatch => Err(self.malformed("udp", None)),
        }
    }

    fn malformed(&self, network: &'static str, local: Option<SocketAddr>) -> ExchangeError {
        let error = io::Error::other("what it answers isn't an answer to the question");
        Operation::read(network, local, self.upstream.endpoint.address).failed(error)
    }

    /// Asks by UDP, from a socket that is open already if there is one; again and again until an answer comes. Each
    /// time from another port and with another id: behind one address there may be several servers, and the network
    /// keeps each port with one of them, dead or not. A client that asks again may still be answered.
    async fn by_udp(
        &self,
        bytes: &[u8],
        mut permit: io::Result<SocketPermit>,
        mut idle: Option<UdpUpstreamSocket>,
        mut now: Instant,
    ) -> Result<UpstreamReply, ExchangeError> {
        let given_up = now + self.upstream.reply_timeout;
        let send_again = AtomicBool::new(false);
        let mut tries = Few::new();
        let mut id = [bytes[0], bytes[1]];
        let mut pause = UDP_RETRANSMIT;
        let mut local = None;
        loop {
            let was_open = idle.is_some();
            let socket = permit.and_then(|permit| match idle.take() {
                Some(socket) => Ok(socket.with(permit)),
                None => self.upstream.open(permit),
            });
            match socket {
                Ok(socket) => {
                    local = local.or(socket.local);
                    let mut bytes = bytes.to_vec();
                    bytes[..2].copy_from_slice(&id);
                    tries.push(self.ask_from(socket, bytes, &send_again));
                }
                Err(error) if tries.is_empty() => return Err(self.upstream.dialing("udp").failed(error)),
                // Without a socket for it the datagram leaves from one that waits: the first one may be lost.
                Err(_) => send_again.store(true, Ordering::Relaxed),
            }
            let reading = Operation::read("udp", local, self.upstream.endpoint.address);
            self.progress.first(reading, now);
            let next = now + pause;
            let repeat = if next < given_up { next.min(self.times.deadline) } else { self.times.deadline };
            while let Ok(Some(reply)) = self.timeout_late(repeat, tries.next()).await {
                // A failed socket says nothing about the waiting ones; a reused one, nothing about new ones.
                if reply.is_ok() || tries.is_empty() && !was_open {
                    return reply.map_err(|error| reading.failed(error));
                }
            }
            // Other idle sockets may lead to a dead server, too.
            self.upstream.sockets.clear();
            now = Instant::now();
            if now >= self.times.deadline {
                return Err(reading.late());
            }
            // What follows at once on one that has failed is no repetition.
            if now >= next {
                pause *= 2;
            }
            id = rand::random();
            permit = if tries.is_empty() { self.quota.take() } else { self.quota.take_spare() };
        }
    }

    /// Asks from a socket, which is kept for another question if all goes well. Of the tries that share `send_again` the
    /// first one that is polled after it was set sends its datagram once more.
    async fn ask_from(
        &self,
        socket: UdpUpstreamSocket,
        bytes: Vec<u8>,
        send_again: &AtomicBool,
    ) -> io::Result<UpstreamReply> {
        // Queries that come together are sent together: the upstream is woken once for all of them.
        yield_now().await;
        socket.send(&bytes)?;
        loop {
            // What doesn't match may be forged, or late for an earlier question: the real answer may still come.
            let reply = {
                let mut receiving = pin!(socket.receive(|answer| parse_reply(&bytes, answer)));
                let receive = poll_fn(|context| {
                    if send_again.load(Ordering::Relaxed) && send_again.swap(false, Ordering::Relaxed) {
                        socket.send_again(&bytes)?;
                    }
                    receiving.as_mut().poll(context)
                });
                receive.await?
            };
            match reply {
                UpstreamReply::Mismatch => {}
                reply => {
                    if !matches!(reply, UpstreamReply::Malformed) {
                        self.upstream.sockets.put(socket);
                    }
                    return Ok(reply);
                }
            }
        }
    }

    /// Waits for something until the deadline. As long as [`exchange`] wakes us before, no timer is set.
    async fn timeout_late<T>(&self, deadline: Instant, future: impl Future<Output = T>) -> Result<T, ()> {
        let mut future = pin!(future);
        let mut alarm = None;
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            if deadline > self.times.health_check_at && !self.progress.is_silent() {
                return Poll::Pending;
            }
            alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline))).as_mut().poll(context).map(Err)
        })
        .await
    }

    /// Asks over a connection that is open already, if there is one, else over a new one.
    async fn by_stream(&self, bytes: &[u8]) -> Result<Message, ExchangeError> {
        let permit = match self.quota.take() {
            Ok(permit) => permit,
            refused => return self.over_new(bytes, refused).await,
        };
        let pooled = self.upstream.pool.take();
        self.upstream.needed(pooled.is_some(), true);
        let Some(connection) = pooled else { return self.over_new(bytes, Ok(permit)).await };
        let mut old = Box::pin(self.over(connection.with(permit), bytes));
        let outcome = timeout(POOLED_STREAM_TIMEOUT, &mut old).await;
        if let Ok(Ok(answer)) = outcome {
            return Ok(answer);
        }
        // The other end may have closed it, or be gone: then the other idle connections are useless, too.
        self.upstream.pool.clear();
        self.upstream.needed(false, true);
        match outcome {
            Ok(_) => {
                drop(old);
                self.over_new(bytes, self.quota.take()).await
            }
            // Or the answer just takes its time.
            Err(_) => {
                let new = Box::pin(self.over_new(bytes, self.quota.take_spare()));
                select_ok([Either::Left(old), Either::Right(new)]).await.map(|(answer, _)| answer)
            }
        }
    }

    async fn over_new(
        &self,
        bytes: &[u8],
        permit: io::Result<SocketPermit>,
    ) -> Result<Message, ExchangeError> {
        let dialing = self.upstream.dialing("tcp");
        let permit = permit.map_err(|error| dialing.failed(error))?;
        self.progress.begins(dialing, Instant::now());
        let stream = match timeout_at(self.times.deadline, self.upstream.connect()).await {
            Ok(stream) => stream.map_err(|error| dialing.failed(error))?,
            Err(_) => return Err(dialing.late()),
        };
        self.over(StreamConnection { stream, opened: Instant::now(), _permit: permit }, bytes).await
    }

    /// Asks over a connection, which is kept for the next question if all goes well.
    async fn over(&self, mut connection: StreamConnection, bytes: &[u8]) -> Result<Message, ExchangeError> {
        let local = connection.local();
        let reading = Operation::read("tcp", local, self.upstream.endpoint.address);
        self.progress.begins(reading, Instant::now());
        let answer = match timeout_at(self.times.deadline, converse(&mut connection.stream, bytes)).await {
            Ok(answer) => answer.map_err(|error| reading.failed(error))?,
            Err(_) => return Err(reading.late()),
        };
        match parse_reply(bytes, &answer) {
            UpstreamReply::Answer(answer) | UpstreamReply::Truncated(Some(answer)) => {
                self.upstream.pool.put(connection);
                Ok(*answer)
            }
            _ => Err(self.malformed("tcp", local)),
        }
    }
}

/// Sends a message and reads one, each behind its length (RFC 1035 section 4.2.2).
async fn converse(stream: &mut Stream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    stream.flush().await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::{Name, RecordType};
    use tokio::net::UdpSocket;
    use tokio::time::advance;

    use super::*;
    use crate::dns::message::header::HEADER;
    use crate::dns::message::query::UpstreamQuery;
    use crate::dns::upstream::config::{ForwardOptions, LookupOrigin};
    use crate::dns::upstream::endpoint::UpstreamEndpoint;

    #[tokio::test(start_paused = true)]
    async fn question_is_repeated_though_no_socket_is_spare() {
        let upstream_socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint =
            UpstreamEndpoint { address: upstream_socket.local_addr().unwrap(), transport: Transport::Udp };
        let options = ForwardOptions { max_fails: 0, ..ForwardOptions::default() };
        let upstream = Arc::new(Upstream::new(endpoint, &options));
        let quota = upstream.budget.of(LookupOrigin::Forward, [10, 0, 0, 1].into());
        let _in_use: Vec<SocketPermit> = std::iter::from_fn(|| quota.take_spare().ok()).collect();
        let question = UpstreamQuery::plain(Name::from_ascii("a.example.").unwrap(), RecordType::A).key();
        let begun = Instant::now();
        let times = Deadlines {
            begun,
            health_check_at: begun + SILENT_AFTER,
            deadline: begun + Duration::from_secs(5),
        };
        let progress = Arc::new(upstream.progress(begun));
        let asking = exchange(Arc::clone(&upstream), &question, false, times, progress, &quota);
        let answering = async {
            let mut message = [0; 512];
            let (_, first) = upstream_socket.recv_from(&mut message).await.unwrap();
            // That one is lost.
            let (length, second) = upstream_socket.recv_from(&mut message).await.unwrap();
            assert_eq!(first, second, "from the socket that it was sent from");
            message[2] |= 0x80;
            upstream_socket.send_to(&message[..length], second).await.unwrap();
        };
        let ((_, answer), ()) = timeout(Duration::from_secs(10), async { tokio::join!(asking, answering) })
            .await
            .expect("the question comes again");
        assert!(answer.is_ok(), "{answer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn question_is_repeated_though_its_kept_socket_has_failed() {
        advance(Duration::from_secs(1)).await;
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = UpstreamEndpoint { address: silent.local_addr().unwrap(), transport: Transport::Udp };
        let upstream = Arc::new(Upstream::new(endpoint, &ForwardOptions::default()));
        let quota = upstream.budget.of_checks();
        let broken = upstream.open(quota.take().unwrap()).unwrap();
        broken.fail_to_send();
        upstream.sockets.put(broken);
        let question = UpstreamQuery::plain(Name::from_ascii("a.example.").unwrap(), RecordType::A).key();
        let begun = Instant::now();
        let times = Deadlines {
            begun,
            health_check_at: begun + SILENT_AFTER,
            deadline: begun + Duration::from_secs(5),
        };
        let progress = Arc::new(upstream.progress(begun));
        let asking = exchange(Arc::clone(&upstream), &question, false, times, progress, &quota);
        let heard = async || {
            let mut message = [0; 512];
            // Checks of whether it lives ask for the root.
            while message[HEADER] == 0 {
                silent.recv(&mut message).await.unwrap();
            }
            Instant::now()
        };
        let hearing = async {
            let first = heard().await;
            heard().await - first
        };
        let pause = tokio::select! {
            pause = hearing => pause,
            answer = asking => panic!("{answer:?}"),
        };
        assert!(pause < 2 * UDP_RETRANSMIT, "{pause:?}");
    }
}
