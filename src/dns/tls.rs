//! What DNS over TLS (RFC 7858) needs beside DNS over TCP: certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsConnector;

/// The protocol's name in the handshake (ALPN), as IANA has it. A client that offers others only
/// doesn't mean DNS.
const ALPN: &[u8] = b"dot";

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file doesn't hold what it should, in PEM, or can't be read.
    #[error("{}: there is no {what} in PEM: {source}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// The certificate and the key don't belong together, or can't be used.
    #[error("{} can't be used with the private key {}: {source}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// A certificate can't be one that others are checked by.
    #[error("{}: not a CA's certificate: {source}", file.display())]
    Ca {
        /// The file.
        file: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The system has no certificates of CAs.
    #[error("no CA is known here: {0}; install ca-certificates, or name a file by SSL_CERT_FILE")]
    NoRoots(String),
    /// Nobody could be checked by these CAs.
    #[error("{}: {source}", file.display())]
    Verifier {
        /// The file of the CAs.
        file: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
    /// The crypto provider has no TLS 1.2 or 1.3: a defect of ours.
    #[error("TLS: {0}")]
    Versions(rustls::Error),
}

/// Reads what a server of DNS over TLS needs: its certificate with those between it and its CA, and
/// its key. With `client_ca`, only clients that have a certificate of that CA are served.
///
/// TLS 1.2 and 1.3 are spoken (RFC 9325 section 3.1.1).
///
/// # Errors
/// If a file can't be used.
pub fn config(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
        file: key.to_owned(),
        what: "private key",
        source,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(file)?.into(), provider)
                .build()
                .map_err(|source| TlsError::Verifier { file: file.to_owned(), source })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, secret).map_err(|source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Returns what a client of DNS over TLS needs: it trusts the CAs of `ca`, or those of the system.
///
/// # Errors
/// If there are none.
pub fn connector(ca: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let roots = match ca {
        Some(file) => roots(file)?,
        None => system_roots()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A system may have some that nobody can use any more.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(TlsError::NoRoots(why));
    }
    Ok(roots)
}

fn roots(file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|source| TlsError::Ca { file: file.to_owned(), source })?;
    }
    Ok(roots)
}

/// Reads at least one certificate.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |source| TlsError::Pem { file: file.to_owned(), what: "certificate", source };
    let all = CertificateDer::pem_file_iter(file).map_err(error)?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(error)?;
    if all.is_empty() { Err(error(pem::Error::NoItemsFound)) } else { Ok(all) }
}
