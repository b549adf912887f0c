//! Where keys are: the servers, the path, and how lb-linker is known there.

use std::fmt;

use secrecy::ExposeSecret;
use tokio_rustls::TlsConnector;

use super::client::{Credentials, Endpoint};
use super::index::KeyRange;

/// Where the keys are.
#[derive(Clone)]
pub struct Source {
    pub endpoints: Vec<Endpoint>,
    pub range: KeyRange,
    pub credentials: Option<Credentials>,
    /// There for endpoints with TLS.
    pub tls: Option<TlsConnector>,
    /// The files of the option `tls`.
    pub tls_files: Vec<Vec<u8>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("endpoints", &self.endpoints)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Source {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let secret = |source: &Self| {
            source
                .credentials
                .as_ref()
                .map(|known| (known.user.clone(), known.password.expose_secret().to_owned()))
        };
        self.endpoints == other.endpoints
            && self.range == other.range
            && self.tls_files == other.tls_files
            && secret(self) == secret(other)
    }

    /// Returns whether the keys are those of another source, as far as the lines of both say: etcd may refuse them to
    /// another user, or without a client certificate. The password and the certificate may be new.
    pub(super) fn has_same_keys(&self, other: &Self) -> bool {
        let access = |source: &Self| {
            let user = source.credentials.as_ref().map(|known| known.user.clone());
            (user, source.tls_files.len() > 1)
        };
        self.range == other.range
            && access(self) == access(other)
            && self.endpoints.iter().any(|endpoint| other.endpoints.contains(endpoint))
    }
}
