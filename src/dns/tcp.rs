//! DNS over TCP (RFC 7766).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use hickory_server::net::xfer::Protocol;
use nix::sys::resource::{Resource, getrlimit};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::handler::Handler;
use super::{REST, bind_with, is_fatal, is_shortage};

/// Connections at once, and never more than half of the files that the process may have open: the
/// upstream, the API server and the probes need some too.
const MAX_CONNECTIONS: usize = 4096;
/// Questions of one connection that are answered at once (RFC 7766 section 6.2.1.1 asks for more
/// than one); then it is read no further until one is done.
const MAX_PIPELINED: usize = 32;
/// Questions of all connections that wait for an upstream, or whose answers are read then. Each may
/// hold an answer of 64 KiB.
const MAX_IN_FLIGHT: usize = 1024;
/// The longest question that is taken.
const MAX_QUESTION: u16 = 4096;
/// How long a connection may be idle (RFC 7766 section 6.2.3).
const IDLE: Duration = Duration::from_secs(30);
/// How long the rest of a message that has begun may take, either way.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: i32 = 1024;
/// How often that is said.
const QUIET: Duration = Duration::from_secs(60);

/// Opens a socket for DNS over TCP.
///
/// # Errors
/// If the address can't be had.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Connections of the process before us may linger.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    })
}

/// Serves a listener until `stop`; then lets the answers under way go out.
///
/// # Errors
/// If the listener is broken.
pub async fn serve(listener: TcpListener, handler: Arc<Handler>, stop: CancellationToken) -> io::Result<()> {
    let files = getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(usize::MAX, |(soft, _)| soft.try_into().unwrap_or(usize::MAX));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS.min(files / 2)));
    let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut connections = JoinSet::new();
    let mut said: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, client)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    handler.metrics.tcp_refused.inc();
                    continue;
                };
                let connection = Connection {
                    client,
                    handler: Arc::clone(&handler),
                    in_flight: Arc::clone(&in_flight),
                    stop: stop.clone(),
                };
                connections.spawn(async move {
                    if let Err(error) = connection.serve(stream).await {
                        debug!("TCP: connection of {client}: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) if is_shortage(&error) => {
                if said.is_none_or(|said| said.elapsed() > QUIET) {
                    warn!("TCP: a connection can't be accepted: {error}");
                    said = Some(Instant::now());
                }
                tokio::time::sleep(REST).await;
            }
            // The client, the network or the firewall has thought better of it (accept(2)).
            Err(error) => debug!("TCP: a connection can't be accepted: {error}"),
        }
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// What a connection needs.
struct Connection {
    client: SocketAddr,
    handler: Arc<Handler>,
    in_flight: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let mut reader = BufReader::with_capacity(512, reader);
        let (sender, answers) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(write(writer, answers));
        let outcome = loop {
            while tasks.try_join_next().is_some() {}
            // The writer is one of the tasks, and gone when the client doesn't read.
            if sender.is_closed() {
                break Ok(());
            }
            if tasks.len() > MAX_PIPELINED {
                tasks.join_next().await;
                continue;
            }
            let message = tokio::select! {
                message = read(&mut reader) => match message {
                    Ok(Some(message)) => message,
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                },
                () = self.stop.cancelled() => break Ok(()),
            };
            let (handler, client) = (Arc::clone(&self.handler), self.client);
            let mut answering = Box::pin(async move { handler.answer(message, client, Protocol::Tcp).await });
            // What we know is answered here and now, and waits for nobody but its reader.
            if let Poll::Ready(answer) = futures::poll!(&mut answering) {
                if let Some(answer) = answer {
                    // A closed channel means that the client has gone.
                    let _ = sender.send(answer).await;
                }
                continue;
            }
            let Ok(permit) = Arc::clone(&self.in_flight).acquire_owned().await else { break Ok(()) };
            let sender = sender.clone();
            tasks.spawn(async move {
                if let Some(answer) = answering.await {
                    let _ = sender.send(answer).await;
                }
                drop(permit);
            });
        };
        // The writer ends when the last answer is written.
        drop(sender);
        while tasks.join_next().await.is_some() {}
        outcome
    }
}

/// Reads one message; `None` at the end of the connection or after too long a silence.
async fn read(reader: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let length = match timeout(IDLE, reader.read_u16()).await {
        Err(_) => return Ok(None),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Ok(length) => length?,
    };
    if length > MAX_QUESTION {
        return Err(io::Error::other(format!("a question of {length} bytes")));
    }
    // What is announced isn't there yet: memory is taken as it comes.
    let mut message = Vec::new();
    let read = timeout(PATIENCE, reader.take(length.into()).read_to_end(&mut message)).await??;
    if read < usize::from(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(message))
}

/// Writes answers as they come, in whatever order (RFC 7766 section 6.2.1.1). A client that doesn't
/// read loses its connection.
async fn write(mut writer: OwnedWriteHalf, mut answers: mpsc::Receiver<Vec<u8>>) {
    while let Some(answer) = answers.recv().await {
        let Ok(length) = u16::try_from(answer.len()) else { continue };
        let framed = [&length.to_be_bytes(), &*answer].concat();
        if !matches!(timeout(PATIENCE, writer.write_all(&framed)).await, Ok(Ok(()))) {
            return;
        }
    }
}
