//! Why DNS isn't served.

use std::io;
use std::net::SocketAddr;

use crate::dns::corefile::CorefileError;

/// Why DNS isn't served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The Corefile can't be used.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A socket can't be opened.
    #[error("{place}can't listen on {address} by {transport}: {source}{}", hint(source))]
    Listen {
        /// Where the Corefile says so.
        place: String,
        /// The address.
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A signal can't be waited for.
    #[error("signals can't be waited for: {0}")]
    Signal(io::Error),
    /// A metric is registered twice: a defect of lb-linker.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A DNS listener has ended.
    #[error("the DNS listener on {address} is dead: {why}")]
    Dead {
        /// Its address.
        address: SocketAddr,
        /// Why.
        why: String,
    },
}

impl ServerError {
    /// Returns whether the Corefile is at fault, rather than what happened later.
    #[must_use]
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Corefile(_) | Self::Listen { .. })
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 needs root or the capability NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrInUse => "; another program has it, or this one somewhere else",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}
