//! The transports: UDP, TCP, TLS and HTTPS.

pub(crate) mod client_quota;
pub mod metrics;
pub mod tcp;
pub mod tls;
pub mod udp;
