//! DNS over TLS to an upstream (RFC 7858): whom to trust, and under which name it is known.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system has no certificates of authorities.
    #[error("no certificate authority is known here: {0}; install ca-certificates, or set SSL_CERT_FILE")]
    NoRoots(String),
    /// A file can't be used.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Returns how to connect by TLS: the authorities of `ca` are trusted, or those of the system.
///
/// # Errors
/// If there are none.
pub fn connector(ca: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        let failed = |why: String| TlsError::File { path: path.to_owned(), why };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))? {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(failed("it has no certificate in PEM form".to_owned()));
        }
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
            return Err(TlsError::NoRoots(why));
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// How an upstream is spoken to by TLS.
#[derive(Clone)]
pub struct TlsClient {
    /// How to connect.
    pub connector: TlsConnector,
    /// The name that its certificate must bear.
    pub name: ServerName<'static>,
}

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}
