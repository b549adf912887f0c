//! DNS over TCP (RFC 7766), and over TLS (RFC 7858).

mod connection;
mod frames;
pub mod places;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::Abortable;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::handler::Handler;
use super::{REST, bind_with, is_fatal, is_shortage};
use connection::Connection;
use places::Places;

/// Connections that the kernel holds for us until they are accepted.
const BACKLOG: i32 = 1024;
/// The kernel's buffers of a connection, in bytes; it takes twice as much, and by itself would take
/// megabytes for whoever sends without end or doesn't read.
const KERNEL_BUFFER: usize = 16 << 10;
/// How long the kernel keeps what a client doesn't take, in milliseconds. Longer than we do.
const KERNEL_PATIENCE: u32 = 10_000;
/// How often it is said that no connection can be accepted.
const QUIET: Duration = Duration::from_secs(60);

/// Opens a socket for DNS over TCP or TLS.
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
        // Connections have these from their listener. A kernel that hasn't is no reason not to start.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER);
        let _ = socket.set_send_buffer_size(KERNEL_BUFFER);
        let _ = setsockopt(&socket, sockopt::TcpUserTimeout, &KERNEL_PATIENCE);
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    })
}

/// Serves a listener until `stop`, by TLS if there is an acceptor; then lets the answers under way
/// go out. All listeners of a process share `places`.
///
/// # Errors
/// If the listener is broken.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    places: Arc<Places>,
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
                let serving = serve_one(stream, tls.clone(), Connection { client, handler, place, stop });
                connections.spawn(Abortable::new(serving, registration));
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
