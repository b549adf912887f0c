//! The transports: UDP, TCP, TLS, HTTPS, gRPC and QUIC.

mod activity;
pub(crate) mod client_quota;
pub mod metrics;
pub mod quic;
pub mod tcp;
mod thread_cache;
pub mod tls;
pub mod udp;
