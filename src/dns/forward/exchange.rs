//! One question to one upstream, by UDP, TCP or TLS.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_proto::op::{Message, ResponseCode};
use rand::RngExt;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tracing::debug;

use super::health::Upstream;
use super::pool::Connection;
use crate::dns::is_shortage;
use crate::dns::question::Question;
use crate::dns::wire::{Reply, reply_to};

/// How long an upstream may be silent before it is checked whether it lives. By then no other one has been
/// asked: who waits for its answer drops the question to this one.
const SILENCE: Duration = Duration::from_millis(400);
/// When a datagram is first sent again; then after twice as long, and so on.
const REPEAT: Duration = Duration::from_millis(500);
/// How long an answer is waited for where there is a part of it already.
const STREAM_PATIENCE: Duration = Duration::from_secs(1);
/// How long a connection that was idle may be silent: its other end may be gone.
const POOLED_PATIENCE: Duration = Duration::from_millis(300);
/// The longest datagram that is taken; we ask for less.
const MAX_DATAGRAM: usize = 4096;

/// Where an upstream is, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// By which transport.
    pub transport: Transport,
}

/// How an upstream is spoken to.
#[derive(Clone, Debug)]
pub enum Transport {
    /// By UDP, and by TCP where an answer doesn't fit.
    Udp,
    /// By TCP alone.
    Tcp,
    /// By TLS alone.
    Tls(TlsClient),
}

/// How an upstream is spoken to by TLS.
#[derive(Clone)]
pub struct TlsClient {
    /// How to connect.
    pub connector: TlsConnector,
    /// The name that its certificate must bear.
    pub name: ServerName<'static>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::Tls(client) => write!(f, "tls://{} ({})", self.address, client.name.to_str()),
            Transport::Udp | Transport::Tcp => self.address.fmt(f),
        }
    }
}

/// Asks an upstream until the deadline. One that fails, or is silent for long, is checked.
pub(super) async fn exchange(
    upstream: Arc<Upstream>,
    question: &Question,
    deadline: Instant,
) -> io::Result<Message> {
    let asking = timeout_at(deadline, ask(&upstream, question));
    tokio::pin!(asking);
    let answer = tokio::select! {
        answer = &mut asking => answer,
        () = sleep(SILENCE) => {
            upstream.suspect();
            asking.await
        }
    };
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if let Err(error) = &answer {
        debug!("upstream {}: {error}", upstream.endpoint);
        // That we have no socket for it says nothing about it.
        if !is_shortage(error) {
            upstream.suspect();
        }
    }
    answer
}

async fn ask(upstream: &Upstream, question: &Question) -> io::Result<Message> {
    let answer = ask_once(upstream, question, true).await?;
    let rcode = answer.metadata.response_code;
    // RFC 6891 section 6.2.2: a server that doesn't know EDNS is asked without it.
    if matches!(rcode, ResponseCode::FormErr | ResponseCode::NotImp | ResponseCode::BADVERS) {
        return ask_once(upstream, question, false).await;
    }
    Ok(answer)
}

/// Asks an upstream once, with EDNS or without.
pub(super) async fn ask_once(upstream: &Upstream, question: &Question, edns: bool) -> io::Result<Message> {
    let bytes = question.message(edns).to_vec().map_err(io::Error::other)?;
    if !matches!(upstream.endpoint.transport, Transport::Udp) {
        return by_stream(upstream, &bytes).await;
    }
    match by_udp(upstream.endpoint.address, &bytes).await? {
        Reply::Answer(answer) => Ok(*answer),
        Reply::Truncated(cut) => {
            let whole = by_stream(upstream, &bytes);
            match cut.filter(|cut| !cut.answers.is_empty()) {
                // Better than nothing, and TC says what it is.
                Some(cut) => match timeout(STREAM_PATIENCE, whole).await {
                    Ok(Ok(whole)) => Ok(whole),
                    _ => Ok(*cut),
                },
                None => whole.await,
            }
        }
        Reply::Garbled | Reply::Foreign => Err(io::Error::other("the answer can't be decoded")),
    }
}

/// Asks by UDP, again and again until somebody answers. Each time from another port and with another id: behind
/// one address there may be several servers, and the network keeps each port with one of them, dead or not.
async fn by_udp(server: SocketAddr, bytes: &[u8]) -> io::Result<Reply> {
    let mut tries = FuturesUnordered::new();
    let mut bytes = bytes.to_vec();
    let mut pause = REPEAT;
    loop {
        tries.push(ask_from_new_port(server, bytes.clone()));
        let repeat = Instant::now() + pause;
        while let Ok(Some(reply)) = timeout_at(repeat, tries.next()).await {
            // One that fails says nothing of those that wait.
            if reply.is_ok() || tries.is_empty() {
                return reply;
            }
        }
        pause *= 2;
        rand::rng().fill(&mut bytes[..2]);
    }
}

async fn ask_from_new_port(server: SocketAddr, bytes: Vec<u8>) -> io::Result<Reply> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket of its own: the port is random (RFC 5452 section 9.2), and once it is connected the kernel
    // drops what other addresses send.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    loop {
        socket.readable().await?;
        // What doesn't match may be forged: the real answer may still come.
        match receive(&socket, &bytes)? {
            None | Some(Reply::Foreign) => {}
            Some(reply) => return Ok(reply),
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

/// Asks over a connection that is open already, if there is one, else over a new one.
async fn by_stream(upstream: &Upstream, bytes: &[u8]) -> io::Result<Message> {
    if let Some(connection) = upstream.pool.take() {
        // It may have been closed at the other end meanwhile, or lead to nobody any more: then so do the others.
        if let Ok(Ok(answer)) = timeout(POOLED_PATIENCE, over(upstream, connection, bytes)).await {
            return Ok(answer);
        }
        upstream.pool.clear();
    }
    over(upstream, connect(&upstream.endpoint).await?, bytes).await
}

async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    let stream = TcpStream::connect(endpoint.address).await?;
    stream.set_nodelay(true)?;
    Ok(match &endpoint.transport {
        Transport::Udp | Transport::Tcp => Either::Left(stream),
        Transport::Tls(client) => {
            Either::Right(Box::new(client.connector.connect(client.name.clone(), stream).await?))
        }
    })
}

/// Asks over a connection, which is kept for the next question if all goes well.
async fn over(upstream: &Upstream, mut connection: Connection, bytes: &[u8]) -> io::Result<Message> {
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    connection.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    connection.flush().await?;
    let mut answer = vec![0; usize::from(connection.read_u16().await?)];
    connection.read_exact(&mut answer).await?;
    match reply_to(bytes, &answer) {
        Reply::Answer(answer) | Reply::Truncated(Some(answer)) => {
            upstream.pool.put(connection);
            Ok(*answer)
        }
        _ => Err(io::Error::other("the answer by TCP doesn't match the question")),
    }
}
