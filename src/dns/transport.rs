//! The transports: UDP, TCP, TLS, HTTPS and gRPC.

pub(crate) mod client_quota;
pub mod metrics;
pub mod tcp;
pub mod tls;
pub mod udp;
