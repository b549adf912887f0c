//! What the connections of TCP, TLS, HTTPS, gRPC and QUIC have in common.

pub(super) mod activity;
pub(super) mod config;
pub mod connection_limit;
pub(super) mod limits;
pub(super) mod thread_cache;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use config::{ConnectionConfig, HttpConfig, MAX_GRPC_STREAMS};
use connection_limit::ConnectionPermit;
pub use limits::{ConnectionLimits, Timeouts};

use crate::dns::chain::handler::Handler;

pub(super) struct Connection {
    pub client: SocketAddr,
    /// The local address of the connection, if known.
    pub local: Option<IpAddr>,
    pub limits: ConnectionLimits,
    pub handler: Arc<Handler>,
    pub permit: ConnectionPermit,
    pub stop: CancellationToken,
}
