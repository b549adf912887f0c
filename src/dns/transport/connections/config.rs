//! The settings of a listener for its connections.

use tokio_rustls::TlsAcceptor;

use super::limits::ConnectionLimits;
use crate::dns::net::Protocol;

/// The maximum number of connections of a listener for DNS over HTTPS or gRPC, as in CoreDNS.
const DEFAULT_HTTP_CONNECTIONS: usize = 200;
/// The maximum number of requests at a time on a connection of HTTP/2 for DNS over HTTPS (RFC 9113 section 5.1.2
/// recommends 100 at least).
const MAX_HTTPS_STREAMS: u32 = 100;
/// The same for DNS over gRPC: CoreDNS's default. More could take too much memory.
pub const MAX_GRPC_STREAMS: u32 = 256;

#[derive(Clone, Default)]
pub struct ConnectionConfig {
    /// The TLS configuration; `None` for plain TCP or plain HTTP.
    pub tls: Option<TlsAcceptor>,
    pub limits: ConnectionLimits,
    /// `None` for DNS over TCP, TLS or QUIC.
    pub http: Option<HttpConfig>,
    /// The maximum number of streams at a time on a connection for DNS over QUIC.
    pub quic_streams: u32,
}

/// The settings of a listener for DNS over HTTPS or gRPC.
#[derive(Clone, Copy, Debug)]
pub struct HttpConfig {
    /// HTTPS or gRPC.
    pub(in crate::dns::transport) protocol: Protocol,
    pub(in crate::dns::transport) max_connections: usize,
    /// The maximum number of requests at a time on a connection of HTTP/2.
    pub(in crate::dns::transport) max_streams: u32,
}

impl HttpConfig {
    /// Returns the settings for DNS over HTTPS.
    #[must_use]
    pub fn https(max_connections: Option<usize>) -> Self {
        Self::new(Protocol::Https, max_connections, MAX_HTTPS_STREAMS)
    }

    /// Returns the settings for DNS over gRPC.
    #[must_use]
    pub fn grpc(max_connections: Option<usize>, max_streams: Option<u32>) -> Self {
        Self::new(Protocol::Grpc, max_connections, max_streams.unwrap_or(MAX_GRPC_STREAMS))
    }

    fn new(protocol: Protocol, max_connections: Option<usize>, max_streams: u32) -> Self {
        let max_connections = max_connections.unwrap_or(DEFAULT_HTTP_CONNECTIONS);
        Self { protocol, max_connections, max_streams }
    }

    /// Returns the protocol in the log.
    pub(in crate::dns::transport) fn name(&self) -> &'static str {
        if self.protocol == Protocol::Grpc { "gRPC" } else { "HTTPS" }
    }
}
