//! The transports: UDP, TCP, TLS, HTTPS, gRPC and QUIC.

pub(crate) mod client_quota;
pub mod connections;
pub mod metrics;
pub mod quic;
pub mod tcp;
pub mod tls;
pub mod udp;
