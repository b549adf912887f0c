//! The client of the upstream resolvers: one question, the first good answer that matches it.

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

use super::wire::{MAX_UDP, Reply, reply_to};

/// How long a question may take: a CoreDNS in front of us gives up at 2 s.
const DEADLINE: Duration = Duration::from_millis(1800);
/// How long an upstream may be silent before the question is repeated, and the next one asked too.
const PATIENCE: Duration = Duration::from_millis(500);
/// Questions of a kind that may be under way at once, as in CoreDNS's own Corefile. Each costs a
/// socket for every upstream that is asked.
const MAX_CONCURRENT: usize = 1000;
/// The longest datagram that is taken; we ask for less.
const MAX_DATAGRAM: usize = 4096;

/// The upstream resolvers.
#[derive(Debug)]
pub struct Upstream {
    servers: Vec<SocketAddr>,
    /// Other names and targets have a bound each: a flood of the ones leaves the others alone.
    forwards: Semaphore,
    chases: Semaphore,
}

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A name outside the zones.
    Forward,
    /// The target of a link.
    Chase,
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
    /// No upstream has answered in time, or none can be reached.
    #[error("no upstream has answered")]
    NoAnswer,
    /// Too many questions are under way.
    #[error("too many questions are under way")]
    Busy,
}

impl Upstream {
    /// Returns a client of these servers.
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers, forwards: Semaphore::new(MAX_CONCURRENT), chases: Semaphore::new(MAX_CONCURRENT) }
    }

    /// Asks the question: one server first, chosen at random, and one more as soon as one has
    /// failed or is silent for half a second. The first good answer counts; an error only when
    /// nothing better can come any more.
    ///
    /// # Errors
    /// If none has answered within 1.8 s.
    pub async fn ask(&self, question: &Question, purpose: Purpose) -> Result<Message, UpstreamError> {
        let permits = match purpose {
            Purpose::Forward => &self.forwards,
            Purpose::Chase => &self.chases,
        };
        let _permit = permits.try_acquire().map_err(|_| UpstreamError::Busy)?;
        let deadline = Instant::now() + DEADLINE;
        let number = self.servers.len();
        let first = rand::rng().random_range(0..number.max(1));
        let mut tried = 0;
        let mut tries = FuturesUnordered::new();
        let mut poor: Option<Message> = None;
        let mut next_try = Instant::now();
        loop {
            if tries.is_empty() && tried == number {
                return poor.ok_or(UpstreamError::NoAnswer);
            }
            tokio::select! {
                biased;
                Some(outcome) = tries.next() => {
                    next_try = Instant::now();
                    match outcome {
                        Ok(answer) if !is_poor(&answer) => return Ok(answer),
                        Ok(answer) if worth(&answer) > poor.as_ref().map_or(0, worth) => poor = Some(answer),
                        _ => {}
                    }
                }
                () = sleep_until(deadline) => return poor.ok_or(UpstreamError::NoAnswer),
                () = sleep_until(next_try), if tried < number => {
                    tries.push(exchange(self.servers[(first + tried) % number], question, deadline));
                    tried += 1;
                    next_try = Instant::now() + PATIENCE;
                }
            }
        }
    }
}

/// An answer that another server may well better.
fn is_poor(answer: &Message) -> bool {
    worth(answer) < 3
}

/// "I can't" says more about the name than "I won't", and that more than "what?".
fn worth(answer: &Message) -> u8 {
    match answer.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => 4,
        ResponseCode::ServFail => 2,
        ResponseCode::Refused | ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS => 1,
        _ => 3,
    }
}

impl Question {
    /// The id is random, as is the port of the socket: who can't see the question can't answer it
    /// (RFC 5452 section 9).
    fn message(&self, with_edns: bool) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.checking_disabled = self.checking_disabled;
        message.metadata.authentic_data = self.authentic_data;
        message.add_query(self.query.clone());
        if let Some(dnssec_ok) = self.dnssec_ok.filter(|_| with_edns) {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_UDP);
            edns.set_dnssec_ok(dnssec_ok);
            message.set_edns(edns);
        }
        message
    }
}

async fn exchange(server: SocketAddr, question: &Question, deadline: Instant) -> io::Result<Message> {
    timeout_at(deadline, async {
        let answer = ask_once(server, question.message(true)).await?;
        let old = matches!(
            answer.metadata.response_code,
            ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS
        );
        // RFC 6891 section 6.2.2: a server that doesn't know EDNS is asked without it.
        if old && question.dnssec_ok.is_some() {
            return ask_once(server, question.message(false)).await;
        }
        Ok(answer)
    })
    .await?
}

async fn ask_once(server: SocketAddr, asked: Message) -> io::Result<Message> {
    let bytes = asked.to_vec().map_err(io::Error::other)?;
    match by_udp(server, &bytes).await? {
        Reply::Answer(answer) => Ok(*answer),
        Reply::Truncated(cut) => match by_tcp(server, &bytes).await {
            Ok(whole) => Ok(whole),
            // Better than nothing, and TC says what it is.
            Err(error) => cut.map(|cut| *cut).ok_or(error),
        },
        Reply::Garbled | Reply::Foreign => Err(io::Error::other("the answer can't be decoded")),
    }
}

async fn by_udp(server: SocketAddr, bytes: &[u8]) -> io::Result<Reply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket of its own, connected: the kernel drops what other addresses send.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    loop {
        socket.send(bytes).await?;
        let repeat = Instant::now() + PATIENCE;
        while timeout_at(repeat, socket.readable()).await.is_ok() {
            // What doesn't match may be forged: the real answer may still come.
            match receive(&socket, bytes)? {
                None | Some(Reply::Foreign) => {}
                Some(reply) => return Ok(reply),
            }
        }
    }
}

/// Takes one datagram, if there is one. The buffer isn't kept while we wait.
fn receive(socket: &UdpSocket, asked: &[u8]) -> io::Result<Option<Reply>> {
    let mut buffer = [0; MAX_DATAGRAM];
    match socket.try_recv(&mut buffer) {
        Ok(length) => Ok(Some(reply_to(asked, &buffer[..length]))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

async fn by_tcp(server: SocketAddr, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    match reply_to(bytes, &answer) {
        Reply::Answer(answer) | Reply::Truncated(Some(answer)) => Ok(*answer),
        _ => Err(io::Error::other("the answer by TCP doesn't match the question")),
    }
}
