//! Errors of the flags, and of the files and the cluster that the flags name.

use crate::cli::flags::ConfigError;
use crate::dns::corefile::CorefileError;
use crate::sync::k8s::client::ClientError;
use crate::sync::source::file_watcher::DirectoryError;

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("--{flag} {source}")]
    Directory {
        /// The flag that names the directory, without the hyphens.
        flag: &'static str,
        source: DirectoryError,
    },
    #[error("{0}")]
    Manifest(String),
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A metric is registered twice: a bug in lb-linker.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl InputError {
    /// Returns whether the user's input is the cause.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Metrics(_))
    }
}
