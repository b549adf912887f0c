//! The error of [`run`](super::run).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::admin::client::ClientError as InstanceError;
use crate::cli::error::{ConfigError, InputError};
use crate::dns::corefile::CorefileError;
use crate::dns::server::error::ServerError;
use crate::sync::k8s::client::ClientError;
use crate::sync::k8s::errors::{ListError, WatchLog};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The flags, or the files named by flags, can't be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The DNS server can't start, or has stopped.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The thread that writes the query log can't be started.
    #[error("the thread that writes the query log can't be started: {0}")]
    QueryLogThread(io::Error),
    /// The sync thread can't be started, or has panicked while it opened the source of links.
    #[error("the sync thread can't be started, or has panicked: {0}")]
    SyncThread(io::Error),
    /// The API server can't be reached, or refuses to list the load balancers.
    #[error(
        "API server {server}: {}{}", error.explain(WatchLog::READING),
        if error.code() == 404 { "; the path of its URL may be wrong" } else { "" }
    )]
    NotListed {
        /// The URL of the API server.
        server: String,
        error: ListError,
    },
    /// The API server accepts connections and doesn't answer.
    #[error(
        "API server {server}: it hasn't answered within {} s, when it was asked for the load balancers: it is overloaded, or \
         another program listens at this address",
        waited.as_secs()
    )]
    Silent {
        /// The URL of the API server.
        server: String,
        waited: Duration,
    },
    /// `lb-linker links` couldn't read the load balancers in time.
    #[error("the load balancers weren't read within {} s: see the warnings above", .0.as_secs())]
    LinksNotRead(Duration),
    /// `lb-linker links` couldn't read the Services that follow in time.
    #[error(
        "the Services that follow weren't read within {} s: the kubeconfig's user, in a Pod the ServiceAccount, has to be \
         allowed to list Services in the watched namespaces",
        .0.as_secs()
    )]
    FollowersNotRead(Duration),
    /// There are no Services that follow in manifests.
    #[error("--followers needs a cluster: with --manifests no Service follows a load balancer")]
    FollowersOfManifests,
    /// The links of a running lb-linker can't be read.
    #[error("lb-linker at {address} (--admin-listen): {error}")]
    Instance { address: SocketAddr, error: InstanceError },
}

impl RunError {
    /// Returns whether the user's input is the cause, rather than a failure at runtime.
    #[must_use]
    pub fn is_input(&self) -> bool {
        match self {
            Self::Input(error) => error.is_input(),
            Self::FollowersOfManifests => true,
            Self::Server(error) => error.is_input(),
            Self::QueryLogThread(_)
            | Self::SyncThread(_)
            | Self::NotListed { .. }
            | Self::Silent { .. }
            | Self::LinksNotRead(_)
            | Self::FollowersNotRead(_)
            | Self::Instance { .. } => false,
        }
    }
}

impl From<ConfigError> for RunError {
    fn from(error: ConfigError) -> Self {
        Self::Input(error.into())
    }
}

impl From<ClientError> for RunError {
    fn from(error: ClientError) -> Self {
        Self::Input(error.into())
    }
}

impl From<CorefileError> for RunError {
    fn from(error: CorefileError) -> Self {
        Self::Input(error.into())
    }
}

impl From<prometheus::Error> for RunError {
    fn from(error: prometheus::Error) -> Self {
        Self::Input(error.into())
    }
}
