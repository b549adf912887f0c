//! DNS over TCP (RFC 7766), over TLS (RFC 7858), over HTTPS (RFC 8484) and over gRPC.

mod connection;
mod framing;
mod http;
mod proxied;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use futures::future::Abortable;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::connections::connection_limit::ConnectionLimiter;
use super::connections::{Connection, ConnectionConfig, HttpConfig};
use crate::dns::chain::handler::Handler;
use crate::dns::chain::proxy_sources::ProxySources;
use crate::dns::net::{ACCEPT_RETRY_PAUSE, bind_with, is_fatal, is_out_of_resources};
use crate::model::line_limit::LineLimit;

/// The kernel's limit of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The size of the kernel's buffers of a connection in bytes, which the kernel doubles. The default would allow
/// megabytes for a client that sends without end or doesn't read.
const KERNEL_BUFFER: usize = 16 << 10;

/// Opens a socket for DNS over TCP, TLS, HTTPS or gRPC, or for HTTP. `reuse_port` sets SO_REUSEPORT, so that the port
/// can be shared with a listener of this process that is about to stop.
///
/// # Errors
/// If the address can't be bound.
pub fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Connections of a previous process may still be in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Connections inherit these options from their listener. A kernel without an option must not prevent the start.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER);
        let _ = socket.set_send_buffer_size(KERNEL_BUFFER);
        setsockopt(&socket, sockopt::ReusePort, &reuse_port)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    })
}

/// Serves a listener until `stop`, then sends pending answers. A new connection uses the configuration that
/// `connection_config` contains at that time. All listeners of a process share the limits of `limiter`.
///
/// # Errors
/// If the listener's socket is broken.
pub async fn serve(
    listener: TcpListener,
    connection_config: Arc<ArcSwap<ConnectionConfig>>,
    limiter: Arc<ConnectionLimiter>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let mut warnings = LineLimit::default();
    let mut own_limiter = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, client)) => {
                let ConnectionConfig { tls, limits, http, .. } =
                    ConnectionConfig::clone(&connection_config.load());
                let limiter = match http {
                    None => &limiter,
                    Some(http) => {
                        own_limiter.get_or_insert_with(|| limiter.of_listener(http.name())).limited_to(
                            http.max_connections,
                            tls.is_some() || handler.server.load().proxies().is_some(),
                        )
                    }
                };
                let Some((permit, registration)) = limiter.admit(client) else { continue };
                let (handler, stop) = (Arc::clone(&handler), stop.clone());
                let _ = setsockopt(&stream, sockopt::TcpUserTimeout, &limits.tcp_user_timeout_ms());
                let local = stream.local_addr().ok().map(|local| local.ip());
                let connection = Connection { client, local, limits, handler, permit, stop };
                let serving = serve_one(stream, tls, http, connection);
                connections.spawn(Abortable::new(serving, registration));
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) if is_out_of_resources(&error) => {
                if warnings.take(Instant::now()).is_some() {
                    warn!("TCP: a connection can't be accepted: {error}");
                }
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
            // The client, the network or the firewall has aborted the connection (accept(2)).
            Err(error) => debug!("TCP: a connection can't be accepted: {error}"),
        }
    }
    // Close the listener before the connections end: no new client waits in its backlog, and the port can be bound
    // again.
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_one(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    http: Option<HttpConfig>,
    connection: Connection,
) {
    let proxies = connection.handler.server.load().proxies().cloned();
    match proxies {
        None => serve_client(stream, tls, http, connection).await,
        Some(proxies) => Box::pin(serve_proxied(stream, tls, http, connection, &proxies)).await,
    }
}

/// Serves a connection that may begin with a PROXY header. Until the header is read, the connection counts for its sender,
/// and then for the client.
async fn serve_proxied(
    mut stream: TcpStream,
    tls: Option<TlsAcceptor>,
    http: Option<HttpConfig>,
    connection: Connection,
    proxies: &ProxySources,
) {
    let (sender, limiter) = (connection.client, Arc::clone(connection.permit.limiter()));
    let client = tokio::select! {
        biased;
        client = proxied::client(&mut stream, sender, proxies, connection.limits) => client,
        () = connection.stop.cancelled() => return,
    };
    match client {
        Ok(client) if client == sender => serve_client(stream, tls, http, connection).await,
        Ok(client) => {
            drop(connection.permit);
            let Some((permit, registration)) = limiter.admit(client) else { return };
            let connection = Connection { client, permit, ..connection };
            let serving = serve_client(stream, tls, http, connection);
            let _ = Abortable::new(Box::pin(serving), registration).await;
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            limiter.count_refused_header(sender, &error)
        }
        Err(error) => debug!("TCP: connection of {sender}: {error}"),
    }
}

async fn serve_client(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    http: Option<HttpConfig>,
    connection: Connection,
) {
    let client = connection.client;
    // Boxed where the future is large, because plain TCP connections are more numerous.
    let outcome = match (http, tls) {
        (Some(http), tls) => Box::pin(http::serve(connection, stream, tls, http)).await,
        (None, None) => connection.serve(stream).await,
        (None, Some(tls)) => Box::pin(connection.serve_tls(stream, tls)).await,
    };
    if let Err(error) = outcome {
        let protocol = http.as_ref().map_or("TCP", HttpConfig::name);
        debug!("{protocol}: connection of {client}: {error}");
    }
}
