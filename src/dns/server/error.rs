//! Errors of the DNS server.

use std::io;
use std::net::SocketAddr;

use crate::dns::corefile::CorefileError;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    #[error("{place}can't listen on {address} by {transport}: {source}{}", hint(source))]
    Listen {
        /// The position of the address in the Corefile, or its flag for the built-in Corefile, followed by `: `.
        place: String,
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        source: io::Error,
    },
    /// Several addresses can't be listened on.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; and "))]
    SeveralListen(Vec<Self>),
    /// The handler of a signal can't be installed.
    #[error("signals can't be waited for: {0}")]
    Signal(io::Error),
    /// A metric is registered twice: a bug in lb-linker.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A DNS listener has stopped by itself.
    #[error("the DNS listener on {address} is dead: {why}")]
    ListenerStopped {
        /// The address of the listener.
        address: SocketAddr,
        why: String,
    },
}

impl ServerError {
    /// Returns one error for all of these.
    pub(super) fn of_all(mut errors: Vec<Self>) -> Self {
        match (errors.len(), errors.pop()) {
            (1, Some(only)) => only,
            (_, last) => Self::SeveralListen(errors.into_iter().chain(last).collect()),
        }
    }

    /// Returns whether the configuration is the cause: the Corefile is invalid, or an address can't be bound.
    #[must_use]
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Corefile(_) | Self::Listen { .. } | Self::SeveralListen(_))
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 needs root, the capability NET_BIND_SERVICE, or the sysctl \
             net.ipv4.ip_unprivileged_port_start"
        }
        io::ErrorKind::AddrInUse => {
            "; another program or another listener of lb-linker uses it: give another address or port"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}
