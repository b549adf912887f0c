//! DNS over TCP (RFC 7766).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_server::net::xfer::Protocol;
use hickory_server::server::Request;
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
use super::wire::{Screened, format_error, screen};
use super::{bind_with, unmapped};

/// Connections at once.
const MAX_CONNECTIONS: usize = 4096;
/// Questions of one connection that are answered at once (RFC 7766 section 6.2.1.1 asks for more
/// than one); then it is read no further until one is done.
const MAX_PIPELINED: usize = 128;
/// How long a connection may be idle (RFC 7766 section 6.2.3).
const IDLE: Duration = Duration::from_secs(30);
/// How long the rest of a message that has begun may take, either way.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: i32 = 1024;

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
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, client)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    handler.metrics.dns_dropped.with_label_values(&["tcp"]).inc();
                    continue;
                };
                let connection = connection(stream, unmapped(client), Arc::clone(&handler), stop.clone());
                connections.spawn(async move {
                    if let Err(error) = connection.await {
                        debug!("TCP: connection of {client}: {error}");
                    }
                    drop(place);
                });
            }
            // The client has gone before we came.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if out_of_files(&error) => {
                warn!("TCP: no connection can be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

fn out_of_files(error: &io::Error) -> bool {
    use nix::errno::Errno;
    [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

async fn connection(
    stream: TcpStream,
    client: SocketAddr,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let (sender, answers) = mpsc::channel(MAX_PIPELINED);
    let mut tasks = JoinSet::new();
    tasks.spawn(write(writer, answers));
    let reply = Reply { answers: sender };
    let outcome = loop {
        while tasks.try_join_next().is_some() {}
        if reply.answers.is_closed() {
            break Ok(());
        }
        // The writer is one of the tasks.
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
            () = stop.cancelled() => break Ok(()),
        };
        match screen(&message) {
            Screened::Silence => break Ok(()),
            Screened::Reply(bytes) => reply.send(bytes).await,
            Screened::Question => {
                tasks.spawn(answer(Arc::clone(&handler), message, client, reply.clone()));
            }
        }
    };
    // The writer ends when the last answer is written.
    drop(reply);
    while tasks.join_next().await.is_some() {}
    outcome
}

/// Reads one message; `None` at the end of the connection or after too long a silence.
async fn read(reader: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let length = match timeout(IDLE, reader.read_u16()).await {
        Err(_) => return Ok(None),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Ok(length) => length?,
    };
    let mut message = vec![0; usize::from(length)];
    timeout(PATIENCE, reader.read_exact(&mut message)).await??;
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

async fn answer(handler: Arc<Handler>, message: Vec<u8>, client: SocketAddr, reply: Reply) {
    match Request::from_bytes(message.clone(), client, Protocol::Tcp) {
        Ok(request) => reply.send(handler.answer(&request).await).await,
        Err(error) => {
            debug!("TCP: a message from {client} can't be decoded: {error}");
            reply.send(format_error(&message)).await;
        }
    }
}

/// Hands the answer to the connection's writer.
#[derive(Clone, Debug)]
struct Reply {
    answers: mpsc::Sender<Vec<u8>>,
}

impl Reply {
    async fn send(&self, bytes: Vec<u8>) {
        // A closed channel means that the client has gone.
        let _ = self.answers.send(bytes).await;
    }
}
