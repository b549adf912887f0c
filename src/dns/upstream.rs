//! The client of the upstream resolvers: one question, the first answer that matches it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use rand::RngExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::wire::MAX_UDP;

/// How long a question may take: a CoreDNS in front of us gives up at 2 s.
const DEADLINE: Duration = Duration::from_millis(1800);
/// How long an upstream may be silent before the next one is asked too, or the same one again.
const NEXT_TRY: Duration = Duration::from_millis(500);
/// Questions that may be under way at once, as in CoreDNS's own Corefile.
const MAX_CONCURRENT: usize = 1000;

/// The upstream resolvers.
#[derive(Debug)]
pub struct Upstream {
    servers: Vec<SocketAddr>,
    permits: Semaphore,
}

/// A question for the upstream.
#[derive(Clone, Debug)]
pub struct Question {
    /// Name, type and class.
    pub query: Query,
    /// RD: the upstream shall recurse.
    pub recursion_desired: bool,
    /// CD: the upstream shall not validate (RFC 4035 section 3.2.2).
    pub checking_disabled: bool,
    /// AD: the client understands AD (RFC 6840 section 5.7).
    pub authentic_data: bool,
    /// The client speaks EDNS; `true` for DO (RFC 3225).
    pub dnssec_ok: Option<bool>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// No upstream has answered in time.
    #[error("no upstream has answered in time")]
    Timeout,
    /// No upstream can be reached.
    #[error("no upstream can be reached")]
    Unreachable,
    /// Too many questions are under way.
    #[error("too many questions are under way")]
    Busy,
}

impl Upstream {
    /// Returns a client of these servers.
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers, permits: Semaphore::new(MAX_CONCURRENT) }
    }

    /// Asks the question: one server first, chosen at random, then one more each half second or as
    /// soon as one has failed. The first answer counts, but a SERVFAIL or REFUSED only if no other
    /// server is left to ask.
    ///
    /// # Errors
    /// If none has answered within 1.8 s.
    pub async fn ask(&self, question: &Question) -> Result<Message, UpstreamError> {
        let _permit = self.permits.try_acquire().map_err(|_| UpstreamError::Busy)?;
        let deadline = Instant::now() + DEADLINE;
        let first = rand::rng().random_range(0..self.servers.len().max(1));
        let mut servers = self.servers.iter().cycle().skip(first);
        let mut tries = FuturesUnordered::new();
        let mut tried = 0;
        let mut poor = None;
        let mut next_try = Instant::now();
        loop {
            let untried = tried < self.servers.len();
            tokio::select! {
                biased;
                Some(outcome) = tries.next() => match outcome {
                    Ok(answer) if !untried || !is_poor(&answer) => return Ok(answer),
                    Ok(answer) => {
                        poor = Some(answer);
                        next_try = Instant::now();
                    }
                    Err(_) if untried => next_try = Instant::now(),
                    Err(_) if tries.is_empty() => return poor.ok_or(UpstreamError::Unreachable),
                    Err(_) => {}
                },
                () = sleep_until(deadline) => return poor.ok_or(UpstreamError::Timeout),
                () = sleep_until(next_try) => {
                    let Some(server) = servers.next() else { return Err(UpstreamError::Unreachable) };
                    tries.push(exchange(*server, question, deadline));
                    tried += 1;
                    next_try = Instant::now() + NEXT_TRY;
                }
            }
        }
    }
}

/// An answer that another server may well better.
fn is_poor(answer: &Message) -> bool {
    matches!(answer.metadata.response_code, ResponseCode::ServFail | ResponseCode::Refused)
}

impl Question {
    /// The id is random, as is the port of the socket: who can't see the question can't answer it
    /// (RFC 5452 section 9).
    fn message(&self) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.checking_disabled = self.checking_disabled;
        message.metadata.authentic_data = self.authentic_data;
        message.add_query(self.query.clone());
        if let Some(dnssec_ok) = self.dnssec_ok {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_UDP);
            edns.set_dnssec_ok(dnssec_ok);
            message.set_edns(edns);
        }
        message
    }
}

async fn exchange(server: SocketAddr, question: &Question, deadline: Instant) -> io::Result<Message> {
    let asked = question.message();
    let bytes = asked.to_vec().map_err(io::Error::other)?;
    timeout_at(deadline, async {
        let answer = by_udp(server, &asked, &bytes).await?;
        if answer.metadata.truncation { by_tcp(server, &asked, &bytes).await } else { Ok(answer) }
    })
    .await?
}

async fn by_udp(server: SocketAddr, asked: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket of its own, connected: the kernel drops what other addresses send.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Whatever doesn't match may be forged: the real answer may still come.
        if let Some(answer) = matching(&buffer[..length], asked) {
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, asked: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    matching(&answer, asked).ok_or_else(|| io::Error::other("the answer doesn't match the question"))
}

/// RFC 5452 section 9.1: id and question have to match; address and port the kernel has seen to.
fn matching(bytes: &[u8], asked: &Message) -> Option<Message> {
    use hickory_proto::op::MessageType;
    let answer = Message::from_vec(bytes).ok()?;
    let matches = answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == asked.metadata.id
        && answer.queries == asked.queries;
    matches.then_some(answer)
}
