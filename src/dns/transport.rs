//! The transports: UDP, TCP and TLS.

pub(crate) mod client_quota;
pub mod metrics;
pub mod tcp;
pub mod tls;
pub mod udp;
