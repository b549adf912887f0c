//! What is wrong with the flags, and with the files and the cluster that they name.

use crate::cli::flags::ConfigError;
use crate::dns::corefile::CorefileError;
use crate::sync::k8s::client::ClientError;
use crate::sync::source::file_watcher::DirectoryError;

/// Why the flags can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The flags can't be used together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no client of the cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A directory can't be used.
    #[error("--{flag} {source}")]
    Directory {
        /// The flag that names it.
        flag: &'static str,
        /// Why.
        source: DirectoryError,
    },
    /// A manifest can't be understood.
    #[error("{0}")]
    Manifest(String),
    /// The Corefile can't be used.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A metric is registered twice: a defect of lb-linker.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl InputError {
    /// Returns whether what the user wrote is at fault.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Metrics(_))
    }
}
