//! DNS over QUIC (RFC 9250), without 0-RTT.
//!
//! quinn has QUIC. The timeouts and limits are those of TCP; `Activity` has what they depend on.

mod admission;
mod connection;
mod connection_ids;
mod stream;
mod tasks;

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::Abortable;
use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TransportConfig, VarInt};
use socket2::{Domain, Socket, Type};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use admission::QuicLimits;
use admission::{Admitted, ClosedAtEnd};
use connection_ids::ConnectionIds;
pub use stream::query_of;
use tasks::Tasks;

use super::connections::activity::Activity;
use super::connections::limits::MAX_QUERY_BYTES;
use super::connections::{Connection, ConnectionConfig};
use crate::dns::chain::handler::Handler;
use crate::dns::net::{Protocol, bind_with};

/// The maximum number of streams at a time on a connection, unless the plugin *quic* sets another one.
pub const DEFAULT_STREAMS: u32 = 256;

/// The version of QUIC; quinn also knows drafts of it.
const VERSION: u32 = 1;
/// The receive buffer of the socket in bytes.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The maximum number of connections that wait to be accepted, and the memory for packets that follow their first ones.
const MAX_INCOMING: usize = 256;
const INCOMING_BYTES: u64 = 4096;
const ALL_INCOMING_BYTES: u64 = 128 << 10;
/// The number of bytes that a client may send before they are processed (RFC 9000 section 4.1).
const WINDOW_BYTES: u32 = 32 << 10;
/// The number of bytes of answers that the client hasn't acknowledged yet: an answer of maximum size.
const SEND_WINDOW_BYTES: u64 = 2 + 65_535;
/// How much later than by the idle timeout a connection ends whose client is gone, or waits for an answer.
const MORE_THAN_IDLE: Duration = Duration::from_secs(10);
/// How long a stopped listener waits until its connections are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens a socket for DNS over QUIC. `reuse_port` sets SO_REUSEPORT, so that the port can be shared with a listener of
/// this process that is about to stop.
///
/// # Errors
/// If the address can't be bound.
pub fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    bind_with(address, |address| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // The kernel may limit the size; this must not prevent the start.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        setsockopt(&socket, sockopt::ReusePort, &reuse_port)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    })
}

/// Serves a socket until `stop`, then sends pending answers. A new connection uses the configuration that
/// `connection_config` contains at that time. All listeners of a process share the limits.
///
/// # Errors
/// If the configuration has no certificate, or the socket is broken.
pub async fn serve(
    socket: UdpSocket,
    connection_config: Arc<ArcSwap<ConnectionConfig>>,
    limits: Arc<QuicLimits>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut settings = Settings::new(connection_config)?;
    let options = socket.try_clone()?;
    let tasks = Arc::new(Tasks::default());
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![VERSION]).cid_generator(|| Box::new(ConnectionIds));
    let runtime = Arc::clone(&tasks);
    let endpoint = Endpoint::new(config, Some(settings.server.clone()), socket, runtime)?;
    // quinn turns this on, and keeps packets that were received together in one allocation: a part of one packet would
    // keep 64 KiB. Old kernels don't have it.
    let _ = setsockopt(&options, sockopt::UdpGroSegment, &false);
    drop(options);
    let mut connections = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.accept() => incoming,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        let incoming = incoming.ok_or_else(|| io::Error::other("the socket can't be read"))?;
        let (client, local) = (incoming.remote_address(), incoming.local_ip());
        let Some(Admitted { incoming, permit, registration, handshake }) = limits.admit(incoming) else {
            continue;
        };
        let config = settings.load()?;
        let (handler, stop) = (Arc::clone(&handler), stop.clone());
        let connection =
            Connection { client, local, limits: config.limits, handler, permit, stop: stop.clone() };
        let activity = Activity::new(connection, Protocol::Quic, false);
        let server = Arc::new(settings.server_of(&config));
        let Some((connecting, task)) = tasks.accept(incoming, server, activity.kept()) else { continue };
        let closed = ClosedAtEnd { limits: Arc::clone(&limits), task };
        let serving = connection::serve(connecting, activity, handshake, closed, stop);
        connections.spawn(Abortable::new(serving, registration));
    }
    // Packets of new clients are ignored: the clients send them again, perhaps to the next listener at this port.
    let ignoring = async {
        while let Some(incoming) = endpoint.accept().await {
            incoming.ignore();
        }
        pending::<()>().await;
    };
    let ending = async {
        while connections.join_next().await.is_some() {}
        let _ = timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await;
    };
    tokio::select! { () = ignoring => {}, () = ending => {} }
    leave_port(&endpoint);
    Ok(())
}

/// Closes the socket of a stopped listener: until quinn has freed the last connection, the socket would take packets
/// that are for the next listener at this port. quinn keeps the last two sockets.
fn leave_port(endpoint: &Endpoint) {
    for _ in 0..2 {
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = endpoint.rebind(socket);
        }
    }
}

/// The settings of quinn for the present configuration.
struct Settings {
    source: Arc<ArcSwap<ConnectionConfig>>,
    config: Arc<ConnectionConfig>,
    /// What all connections with this configuration have in common.
    server: ServerConfig,
}

impl Settings {
    fn new(source: Arc<ArcSwap<ConnectionConfig>>) -> io::Result<Self> {
        let config = source.load_full();
        let mut server = ServerConfig::with_crypto(tls(&config)?);
        // ACLs are about the address that the client had at first.
        server
            .migration(false)
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(ALL_INCOMING_BYTES);
        Ok(Self { source, config, server })
    }

    /// Returns the present configuration.
    fn load(&mut self) -> io::Result<Arc<ConnectionConfig>> {
        let config = self.source.load_full();
        if !Arc::ptr_eq(&config, &self.config) {
            self.server.crypto = tls(&config)?;
            self.config = Arc::clone(&config);
        }
        Ok(config)
    }

    /// Returns the settings of a connection.
    fn server_of(&self, config: &ConnectionConfig) -> ServerConfig {
        let mut transport = TransportConfig::default();
        let idle = (config.limits.idle + MORE_THAN_IDLE).try_into().ok();
        transport
            .max_idle_timeout(idle)
            .max_concurrent_bidi_streams(config.quic_streams.into())
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(2 + u32::from(MAX_QUERY_BYTES)))
            .receive_window(VarInt::from_u32(WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES)
            .datagram_receive_buffer_size(None)
            // Most answers fit the smallest packets. Probes of larger ones, and buffers for many, are of no use.
            .mtu_discovery_config(None)
            .enable_segmentation_offload(false);
        let mut server = self.server.clone();
        server.transport_config(Arc::new(transport));
        server
    }
}

fn tls(config: &ConnectionConfig) -> io::Result<Arc<QuicServerConfig>> {
    let tls = config.tls.as_ref().ok_or_else(|| io::Error::other("there is no certificate"))?;
    let config = QuicServerConfig::try_from(Arc::clone(tls.config())).map_err(io::Error::other)?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
