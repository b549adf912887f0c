//! DNS over TCP (RFC 7766), and over TLS (RFC 7858).

mod connection;
pub mod connection_limit;
mod framing;
mod thread_cache;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use connection::Connection;
use connection_limit::ConnectionLimiter;
use futures::future::Abortable;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::dns::chain::handler::Handler;
use crate::dns::net::{ACCEPT_RETRY_PAUSE, bind_with, is_fatal, is_shortage};

/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: i32 = 1024;
/// The kernel's buffers of a connection, in bytes; it takes twice as much, and by default
/// takes megabytes for a client that sends without end or doesn't read.
const KERNEL_BUFFER: usize = 16 << 10;
/// How often it is said that no connection can be accepted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How long the clients of a listener may take, and how much they may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// For the rest of a question that has begun, and for a TLS handshake.
    pub read: Duration,
    /// To take answers.
    pub write: Duration,
    /// Between questions (RFC 7766 section 6.2.3).
    pub idle: Duration,
    /// Questions of one connection.
    pub queries: u64,
}

/// On which terms connections are served.
#[derive(Clone, Default)]
pub struct ConnectionConfig {
    /// By TLS, and how; else by plain TCP.
    pub tls: Option<TlsAcceptor>,
    /// What a client may do.
    pub limits: ConnectionLimits,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let patience = Duration::from_secs(5);
        Self { read: patience, write: patience, idle: Duration::from_secs(30), queries: u64::MAX }
    }
}

impl ConnectionLimits {
    /// Returns these, but for what a block says.
    #[must_use]
    pub fn with(self, timeouts: Timeouts) -> Self {
        Self {
            read: timeouts.read.unwrap_or(self.read),
            write: timeouts.write.unwrap_or(self.write),
            idle: timeouts.idle.unwrap_or(self.idle),
            queries: timeouts.queries.unwrap_or(self.queries),
        }
    }

    /// How long the kernel keeps what a client doesn't take, in milliseconds: longer than we do.
    fn of_kernel(&self) -> u32 {
        u32::try_from((2 * self.write).as_millis()).unwrap_or(u32::MAX)
    }
}

/// Opens a socket for DNS over TCP or TLS, or for HTTP; `beside` another one of ours that is about to end, if there is
/// one at that port.
///
/// # Errors
/// If the address can't be had.
pub fn bind(address: SocketAddr, beside: bool) -> io::Result<TcpListener> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Connections of the process before us may linger.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Connections have these from their listener. A kernel that hasn't is no reason not to start.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER);
        let _ = socket.set_send_buffer_size(KERNEL_BUFFER);
        setsockopt(&socket, sockopt::ReusePort, &beside)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    })
}

/// Serves a listener until `stop`; then lets the answers under way go out. New connections are on the terms of that
/// moment. All listeners of a process share `places`.
///
/// # Errors
/// If the listener is broken.
pub async fn serve(
    listener: TcpListener,
    terms: Arc<ArcSwap<ConnectionConfig>>,
    places: Arc<ConnectionLimiter>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let mut said: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => {
                let Some((place, registration)) = places.admit(client) else { continue };
                let (handler, stop) = (Arc::clone(&handler), stop.clone());
                let ConnectionConfig { tls, limits } = ConnectionConfig::clone(&terms.load());
                let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &limits.of_kernel());
                let local = stream.local_addr().ok().map(|local| local.ip());
                let connection = Connection { client, local, limits, handler, place, stop };
                let serving = serve_one(stream, tls, connection);
                connections.spawn(Abortable::new(serving, registration));
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) if is_shortage(&error) => {
                if said.is_none_or(|said| said.elapsed() > LOG_INTERVAL) {
                    warn!("TCP: a connection can't be accepted: {error}");
                    said = Some(Instant::now());
                }
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
            // The client, the network or the firewall has thought better of it (accept(2)).
            Err(error) => debug!("TCP: a connection can't be accepted: {error}"),
        }
    }
    // No further client may wait in the kernel's queue, and the port may be needed again.
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_one(stream: TcpStream, tls: Option<TlsAcceptor>, connection: Connection) {
    let client = connection.client;
    let outcome = match tls {
        None => connection.serve(stream).await,
        // Boxed, for it is large, and the others are many.
        Some(tls) => Box::pin(connection.serve_tls(stream, tls)).await,
    };
    if let Err(error) = outcome {
        debug!("TCP: connection of {client}: {error}");
    }
}

/// How long clients may take, and how much they may ask; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// To send a question that has begun.
    pub read: Option<Duration>,
    /// To take an answer.
    pub write: Option<Duration>,
    /// Between questions.
    pub idle: Option<Duration>,
    /// Questions of one connection; `u64::MAX` is as many as it likes.
    pub queries: Option<u64>,
}
